"""EC2: the interruption notice of a Spot Instance, two minutes ahead, and the recommendation to rebalance.

IMDSv2: a token (PUT, at most six hours) goes with each question; 401 asks for a new one. Both paths are 404 until there
is something to say, and EC2 says to ask every 5 s.
Source: "Spot Instance interruption notices" and "EC2 instance rebalance recommendations", Amazon EC2 User Guide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

from elastic.events import words
from elastic.preemption.firmware import Firmware
from elastic.preemption.notice import Kind, Notice, by_clock_s
from elastic.preemption.sources.metadata import LINK_LOCAL, Answer, Cloud, MetadataService, Unanswered
from elastic.preemption.sources.source import SourceFailed, ask_each

ACTION, REBALANCE = "/latest/meta-data/spot/instance-action", "/latest/meta-data/events/recommendations/rebalance"
TOKEN = "/latest/api/token"
TOKEN_HEADER, TTL_HEADER = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
TTL_S, AHEAD_S = 21600, 120.0
WITHIN_S = 2.0  # an answer, which takes milliseconds
_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_WORDS = {"terminate": "EC2 terminates this Spot Instance", "stop": "EC2 stops this Spot Instance"}
_WORDS["hibernate"] = "EC2 hibernates this Spot Instance"
_HOPS = (
    "EC2's metadata service is there, and its answer to PUT /latest/api/token does not come back: from within a "
    "container it needs one hop more\n"
    "  next  aws ec2 modify-instance-metadata-options --instance-id i-… --http-put-response-hop-limit 2"
)


class Ec2(Cloud):
    name = "ec2"
    variables = (_ENDPOINT,)
    every_s = 5.0

    def __init__(
        self, service: MetadataService, *, within_s: float = WITHIN_S, wall: Callable[[], float] = time.time
    ) -> None:
        super().__init__(service)
        self._within_s = within_s
        self._wall = wall
        self._token: str | None = None

    @classmethod
    def of(cls, rest: str, environ: Mapping[str, str]) -> Ec2:
        """Make the source. rest: its address."""
        return cls(MetadataService(rest or environ.get(_ENDPOINT, "").rstrip("/") or LINK_LOCAL))

    @classmethod
    def is_here(cls, machine: Firmware, environ: Mapping[str, str]) -> bool:
        return machine.vendor == "amazon ec2" or machine.xen.startswith("ec2") or "amazon" in machine.bios

    def look(self) -> list[Notice]:
        return ask_each([self._interruption, self._recommendation])

    def _interruption(self) -> list[Notice]:
        """Ask for the interruption. Whatever the action is called: EC2 says one only where it takes the instance."""
        if (answer := self._get(ACTION)) is None:
            return []
        said = answer.json_object(ACTION)
        action, at = said.get("action"), said.get("time")
        if not isinstance(action, str):
            raise SourceFailed(f"{ACTION} says action={str(action)[:80]}; expected a word, as {', '.join(_WORDS)}")
        at_t = _unix(at)
        by_s = answer.at_s + AHEAD_S
        if at_t is not None:
            clock_t, wall_t = answer.clock_t, self._wall()
            by_s = by_clock_s(at_t, clock_t=clock_t, wall_t=wall_t, now_s=answer.at_s, at_most_s=AHEAD_S)
        why = _WORDS.get(action, f"EC2 interrupts this Spot Instance (action {words.printable(action[:80])})")
        return [Notice(source=self.name, id=f"{action} {at}", why=why, by_s=by_s)]

    def _recommendation(self) -> list[Notice]:
        """Ask for the recommendation to rebalance, which is a hint."""
        if (answer := self._get(REBALANCE)) is None:
            return []
        said = answer.json_object(REBALANCE).get("noticeTime")
        why = "EC2 recommends to rebalance: this Spot Instance is at a higher risk"
        return [Notice(source=self.name, id=f"rebalance {said}", kind=Kind.HINT, why=why)]

    def _get(self, path: str) -> Answer | None:
        """Ask with a token, twice if that is refused; None: there is nothing to say. Raises SourceFailed."""
        for _ in range(2):
            token = self._token or self._new_token()
            answer = self.service.ask("GET", path, {TOKEN_HEADER: token}, within_s=self._within_s)
            if answer.status == 401:  # it is too old, or the service forgot it
                self._token = None
                continue
            if answer.status == 404:
                return None
            if answer.status == 200:
                return answer
            raise SourceFailed(f"{self.service.endpoint}{path} answers {answer.status}; expected 200 or 404")
        raise SourceFailed(f"{self.service.endpoint}{path} refuses a token that it has just given (401)")

    def _new_token(self) -> str:
        """Ask for a token. Raises SourceFailed, which says what to do where only the answer gets lost."""
        try:
            answer = self.service.ask("PUT", TOKEN, {TTL_HEADER: str(TTL_S)}, within_s=self._within_s)
        except Unanswered as unanswered:
            raise SourceFailed(_HOPS if self._is_there() else str(unanswered)) from unanswered
        if answer.status != 200 or not answer.body or not answer.body.isascii() or not answer.body.isprintable():
            raise SourceFailed(f"{self.service.endpoint}{TOKEN} answers {answer.status} and no token")
        self._token = answer.body
        return answer.body

    def _is_there(self) -> bool:
        """Tell whether the service answers at all."""
        try:
            self.service.ask("GET", "/latest/meta-data/", {}, within_s=self._within_s)
        except Unanswered:
            return False
        return True


def _unix(at: object) -> float | None:
    try:
        return datetime.strptime(str(at), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
