"""Workers of a node that ended otherwise than in order, as its agent keeps them for the next hub: that one counts on.

What a hub has counted is gone with it. A script that fails once for each hub, or a step that needs more memory than
there is, would be started again for as long as hubs are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import asdict

from elastic.membership.messages.messages import Exited, Failed, Leaving
from elastic.membership.rules.endings import LEAVES, Ended, ended
from elastic.membership.rules.kills import Slot
from elastic_checkpoint.net.codec import Facts, Float, Int, Name

_KEPT = 32
_WHAT_MAX = 2000  # characters


class EndedBefore(Facts):
    """The end of a worker, see Ended; at_s: on its agent's clock, and as it travels, how long ago."""

    worker: Name
    local_rank: Int
    what: str
    step: Int | None
    killed: bool
    asks: bool
    stopped: bool
    lived_s: Float
    out_of_memory: bool
    at_s: Float

    def at(self, node: str, replica_size: int) -> Ended:
        """Return it for the hub, as the end of a worker on this node."""
        facts = {name: value for name, value in asdict(self).items() if name not in ("local_rank", "at_s")}
        return Ended(slot=(node, self.local_rank - self.local_rank % replica_size), **facts)


def with_exit(
    known: Iterable[EndedBefore],
    said: Exited,
    last_words: Mapping[str, Any],
    *,
    local_rank: int,
    now_s: float,
    started_s: float,
) -> tuple[EndedBefore, ...]:
    """Return the ends that are known, and this one if it counts; last_words: by kind, see node_report.py."""
    failed, parting = last_words.get("failed"), last_words.get("stands")
    failed = failed if isinstance(failed, Failed) else None
    in_order = said.expected or said.with_replica or said.signal in LEAVES or isinstance(parting, Leaving)
    if in_order or (said.code == 0 and failed is None):
        return tuple(known)
    slot: Slot = ("", local_rank)
    one = ended(said, failed, slot=slot, lived_s=now_s - started_s)
    fresh = EndedBefore(
        worker=one.worker,
        local_rank=local_rank,
        what=one.what[:_WHAT_MAX],
        step=one.step,
        killed=one.killed,
        asks=one.asks,
        stopped=one.stopped,
        lived_s=one.lived_s,
        out_of_memory=one.out_of_memory,
        at_s=now_s,
    )
    return (*[*known][-_KEPT + 1 :], fresh)
