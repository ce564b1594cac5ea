"""Azure: Scheduled Events that name this VM.

The document lists events of all VMs of an availability set or scale set, so each is looked at for this VM's own name. A
Spot VM is told 30 s ahead (Preempt), one of a scale set as long as it is set to (Terminate), a reboot or a move to
another host minutes ahead. An event begins at NotBefore, or as soon as it is acknowledged, which is done only where
the setting asks for it: the machine is gone then.
Source: "Azure Metadata Service: Scheduled Events for Linux VMs", Microsoft Learn.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any

from elastic.preemption.firmware import Firmware
from elastic.preemption.notice import Kind, Notice, by_clock_s
from elastic.preemption.sources.metadata import LINK_LOCAL, Answer, Cloud, MetadataService
from elastic.preemption.sources.source import SourceFailed, ask_each

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
COMPUTE = "/metadata/instance/compute?api-version=2021-02-01&format=json"
FIRST_ANSWER_S = 130.0  # the first question turns the service on, which takes up to two minutes
AHEAD_S = 15 * 60.0
WITHIN_S = 3.0  # an answer
_LEAVE = {"Preempt": "Azure takes this Spot VM", "Terminate": "Azure deletes this VM of a scale set"}
_HINT = {"Reboot": "Azure reboots this VM", "Redeploy": "Azure moves this VM to another host"}
_CHASSIS = "7783-7084-3265-9085-8269-3286-77"
_HEADERS = {"Metadata": "true"}


class Azure(Cloud):
    """Scheduled Events of Azure. acknowledge: tell Azure that it need not wait, once this node has left."""

    name = "azure"
    every_s = 2.0

    def __init__(
        self,
        service: MetadataService,
        *,
        acknowledge: bool = False,
        within_s: float = WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(service)
        self._acknowledge = acknowledge
        self._within_s = within_s
        self._clock = clock
        self._wall = wall
        self._asked_s: float | None = None
        self._answered = False
        self._name: str | None = None

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Azure:
        """Make the source. rest: its address, acknowledge, or both with a + between."""
        address, acknowledge = rest.removesuffix("acknowledge").rstrip("+"), rest.endswith("acknowledge")
        return cls(MetadataService(address or LINK_LOCAL), acknowledge=acknowledge)

    @classmethod
    def is_here(cls, machine: Firmware, environ: Mapping[str, str]) -> bool:
        return machine.vendor == "microsoft corporation" and machine.chassis_tag == _CHASSIS

    def look(self) -> list[Notice]:
        if self._name is None:
            self._name = self._own_name()
        answer = self._events()
        return [] if answer is None else self._notices(answer, self._name)

    def gone(self, ids: Collection[str]) -> None:
        """Acknowledge these events, if the setting asks for it. Raises SourceFailed."""
        if self._acknowledge and ids:
            body = json.dumps({"StartRequests": [{"EventId": id} for id in ids]}).encode()
            answer = self._ask("POST", EVENTS, body)
            if answer.status != 200:
                raise SourceFailed(f"{EVENTS}: the acknowledgement is answered with {answer.status}")

    def _own_name(self) -> str:
        """Ask for this VM's name. Raises SourceFailed."""
        answer = self._ask("GET", COMPUTE)
        said = answer.json_object(COMPUTE).get("name")
        if answer.status != 200 or not isinstance(said, str) or not said:
            raise SourceFailed(f"{COMPUTE} answers {answer.status}, name={str(said)[:80]!r}; expected this VM's name")
        return said

    def _events(self) -> Answer | None:
        """Ask for the events; None: the service is being turned on. Raises SourceFailed."""
        self._asked_s = self._clock() if self._asked_s is None else self._asked_s
        try:
            answer = self._ask("GET", EVENTS)
        except SourceFailed:
            if not self._answered and self._clock() - self._asked_s < FIRST_ANSWER_S:
                return None
            raise
        self._answered = True
        if answer.status != 200:
            raise SourceFailed(f"{self.service.endpoint}{EVENTS} answers {answer.status}; expected 200")
        return answer

    def _notices(self, answer: Answer, name: str) -> list[Notice]:
        """Return what the answer says of this VM. Raises SourceFailed."""
        events = answer.json_object(EVENTS).get("Events")
        if not isinstance(events, list):
            raise SourceFailed(f"{EVENTS} has Events={str(events)[:80]}; expected a list")
        # The list itself is an answer, whatever is wrong with an event in it: it is asked for as often as before.
        return ask_each([list, *(partial(self._of_event, event, answer, name) for event in events)])

    def _of_event(self, event: object, answer: Answer, name: str) -> list[Notice]:
        """Return an event's notice; nothing of what is said of other machines, or is over when it has happened."""
        if not isinstance(event, dict):
            raise SourceFailed(f"{EVENTS} has the event {str(event)[:80]}; expected an object")
        kind, named, id = event.get("EventType"), event.get("Resources"), event.get("EventId")
        if not isinstance(kind, str) or not isinstance(named, list) or not isinstance(id, str):
            raise SourceFailed(f"{EVENTS} has the event {str(event)[:200]}; expected EventType, Resources, EventId")
        ours = name.lower() in (str(one).lower() for one in named)  # Azure's names have no case
        if ours and kind in _LEAVE:
            return [Notice(source=self.name, id=id, why=_LEAVE[kind], by_s=self._by_s(event, answer))]
        if ours and kind in _HINT:
            by_s = self._by_s(event, answer)
            return [Notice(source=self.name, id=id, kind=Kind.HINT, why=_HINT[kind], by_s=by_s)]
        return []

    def _by_s(self, event: dict[str, Any], answer: Answer) -> float | None:
        """Return when an event begins, by time.monotonic(), or None. NotBefore is empty once it has started."""
        said = event.get("NotBefore")
        if said == "":
            return answer.at_s
        try:
            at_t = parsedate_to_datetime(str(said)).timestamp()
        except (ValueError, TypeError, OverflowError):
            return None
        clock_t, wall_t = answer.clock_t, self._wall()
        return by_clock_s(at_t, clock_t=clock_t, wall_t=wall_t, now_s=answer.at_s, at_most_s=AHEAD_S)

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        return self.service.ask(method, path, _HEADERS, within_s=self._within_s, body=body)
