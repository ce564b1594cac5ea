"""What all clouds have in common: a metadata service, and firmware that names them."""

from __future__ import annotations

from elastic.preemption.sources.metadata import MetadataService
from elastic.preemption.sources.source import Source


class Cloud(Source):
    """A cloud as a source of notices. service: where it is asked."""

    found = "by the firmware"

    def __init__(self, service: MetadataService) -> None:
        self.service = service

    def abort(self) -> None:
        self.service.abort()
