"""Compute Engine: a Spot VM is preempted, or its host is maintained.

The metadata server answers a question with `wait_for_change` when the value is another than `last_etag` says, so a
preemption is known at once: some 30 s before the machine is gone. `maintenance-event` changes a minute ahead.
Source: "Preemptible VM instances", "Query metadata server for maintenance event notices", Compute Engine documentation.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic.preemption.firmware import Firmware
from elastic.preemption.notice import Kind, Notice
from elastic.preemption.sources.metadata import LINK_LOCAL, Answer, Cloud, MetadataService
from elastic.preemption.sources.source import SourceFailed, ask_each

PREEMPTED, MAINTENANCE = (f"/computeMetadata/v1/instance/{key}" for key in ("preempted", "maintenance-event"))
FLAVOR = "Metadata-Flavor"
AHEAD_S = 30.0
WAIT_S = 10  # for a change; then the host's maintenance is asked about
WITHIN_S = 2.0  # an answer that waits for nothing
_HOST = "GCE_METADATA_HOST"
_TERMINATE, _MIGRATE, _NONE = "TERMINATE_ON_HOST_MAINTENANCE", "MIGRATE_ON_HOST_MAINTENANCE", "NONE"


class Gcp(Cloud):
    name = "gcp"
    variables = (_HOST,)
    every_s = 1.0  # beside the wait for a change: a server that does not wait is not asked without a pause

    def __init__(self, service: MetadataService, *, within_s: float = WITHIN_S, wait_s: int = WAIT_S) -> None:
        super().__init__(service)
        self._within_s = within_s
        self._wait_s = wait_s
        self._etag: str | None = None

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Gcp:
        """Make the source. rest: its address."""
        host = environ.get(_HOST)
        return cls(MetadataService(rest or (f"http://{host}" if host else LINK_LOCAL)))

    @classmethod
    def is_here(cls, machine: Firmware, environ: Mapping[str, str]) -> bool:
        return machine.vendor == "google" or machine.product.startswith("google")

    def look(self) -> list[Notice]:
        return ask_each([self._preemption, self._maintenance])

    def _preemption(self) -> list[Notice]:
        """Ask whether this VM is preempted, once, or until that changes. Raises SourceFailed."""
        waits = f"?wait_for_change=true&last_etag={self._etag}&timeout_sec={self._wait_s}" if self._etag else ""
        answer = self._ask(PREEMPTED + waits, within_s=self._within_s + (self._wait_s if waits else 0))
        etag = answer.headers.get("etag", "")
        preempted = answer.body.strip()
        if preempted not in ("TRUE", "FALSE"):
            raise SourceFailed(f"{PREEMPTED} says {preempted[:80]!r}; expected TRUE or FALSE")
        # One that is preempted is asked without waiting: nothing else will change.
        self._etag = etag if etag.isalnum() and len(etag) < 100 and preempted == "FALSE" else None
        if preempted == "FALSE":
            return []
        why = "Compute Engine preempts this VM"
        return [Notice(source=self.name, id="preempted", why=why, by_s=answer.at_s + AHEAD_S)]

    def _maintenance(self) -> list[Notice]:
        """Ask what becomes of this VM while its host is maintained. Raises SourceFailed."""
        event = self._ask(MAINTENANCE, within_s=self._within_s).body.strip()
        if event == _TERMINATE:
            why = "Compute Engine ends this VM for the maintenance of its host"
            return [Notice(source=self.name, id=event, why=why)]
        if event == _MIGRATE:
            why = "Compute Engine moves this VM to another host"
            return [Notice(source=self.name, id=event, kind=Kind.HINT, why=why)]
        if event != _NONE:
            raise SourceFailed(f"{MAINTENANCE} says {event[:80]!r}; expected {_NONE}, {_TERMINATE} or {_MIGRATE}")
        return []

    def _ask(self, path: str, *, within_s: float) -> Answer:
        answer = self.service.ask("GET", path, {FLAVOR: "Google"}, within_s=within_s)
        if answer.status != 200 or answer.headers.get(FLAVOR.lower()) != "Google":
            raise SourceFailed(
                f"{self.service.endpoint}{path.partition('?')[0]} answers {answer.status}, not as Google's"
            )
        return answer
