"""What all clouds have in common: a metadata service, and firmware that names them."""

from __future__ import annotations

from elastic.preemption.sources.metadata import MetadataService
from elastic.preemption.sources.source import Source


class Cloud(Source):
    found = "by the firmware"

    def __init__(self, service: MetadataService) -> None:
        self._service = service

    def abort(self) -> None:
        self._service.abort()
