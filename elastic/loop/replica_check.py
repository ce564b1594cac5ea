"""Compares what the ranks of a view hold and are set to, and says which of them differ.

A digest of it travels with every step (state/replica.py, state/settings.py); where digests differ, and before each
save, all of it is compared here, and whoever holds something else than most ends.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Sequence
from typing import Any

from elastic.config import Config
from elastic.errors import UNTOUCHED, CollectiveMismatch, ComputesWrongly, NotLetIn
from elastic.group.buffers import Buffers
from elastic.group.form import Group, all_know, gather_bytes
from elastic.loop.disagreement import PeerWrong, first_besides
from elastic.loop.verdict import apart
from elastic.state import settings
from elastic.state.replica import Replica, advice, difference, digest_of, of_memory, told_of, who_differs
from elastic.state.trained import Trained
from elastic.state.trained_set import TrainedSet, listed


class ReplicaCheck:
    """Compares what the ranks of one view hold, and are set to.

    newcomers  ranks that have joined with this view
    warn       tells people
    digest     of what this rank holds in a step, see Replica.digest; 0 where nobody compares
    """

    def __init__(
        self,
        config: Config,
        group: Group,
        trained: Trained,
        replica: Replica,
        buffers: Buffers,
        newcomers: Collection[int],
        warn: Callable[[str], None],
    ) -> None:
        self._group = group
        self._trained = trained
        self._replica = replica
        self._buffers = buffers
        self._newcomers = frozenset(newcomers)
        self._warn = warn
        self._settings = settings.settings_of(config.optimizers, config.extra)
        self._step = 0
        self.digest = 0

    def begin(self, step: int, trained: TrainedSet, noted: int) -> None:
        """Digest what this rank holds as a step begins; noted: see GradientSync.begin."""
        self._step = step
        if self._group.world_size > 1:
            self._replica.follow(trained, self._buffers.hanging, self._buffers.walked)
            self.digest = self._replica.digest(step) ^ noted

    def add_settings(self) -> None:
        """Have what the step's bodies have set compared, too."""
        if self._group.world_size > 1:
            self.digest ^= self.digest_of_settings()

    def digest_of_settings(self) -> int:
        """Return the digest of what optimizers and schedules are set to by now, see settings.digest."""
        return settings.digest(self._settings)

    def step_began_apart(self) -> None:
        """Find what differs where digests of what a step began with do; all call it together. Raises as `_compare`."""
        self._compare(f"as step {self._step} began", f"  state  step {self._step} is not applied")

    def before_save(self, step: int) -> None:
        """Compare all that ranks hold, before a save; all call it together. Raises as `_compare`."""
        if self._group.world_size == 1:
            return
        self._step = step
        with self._buffers.untouched():
            self._replica.follow(self._trained.now(), self._buffers.hanging, self._buffers.walked)
            when = f"after step {step - 1}" if step else "before the first step"
            self._compare(when, "  state  it is not saved", unapplied=False)

    def _compare(self, when: str, state: str, *, unapplied: bool = True) -> None:
        """Compare what all hold, and are set to; all call it together. when, state: for the error.

        Raises PeerLost, CollectiveMismatch; where most hold the same, PeerWrong on these and ComputesWrongly on the
        others.
        """
        own = {"apart": sorted(self._replica.apart), **self.said()}
        known = [json.loads(one) for one in gather_bytes(self._group, json.dumps(own).encode())]
        if len({one["digest"] for one in known}) > 1:
            weights = {name: one for name, one in self._replica.parts().items() if of_memory([name])}
            # Where these are alike, nothing that another rate has made is in anybody's state.
            unapplied = unapplied or len({*gather_bytes(self._group, digest_of(weights).encode())}) == 1
            all_know(self._group)
            for other in range(len(known)):  # ahead of what they hold: a rate that is another one is the reason
                self.check_settings(known, other, f"{state}; what was saved before stays\n", unapplied=unapplied)
        self._replica.leave_out(name for one in known for name in one["apart"])  # then all compare the same
        parts = self._replica.parts()
        if len({*gather_bytes(self._group, digest_of(parts).encode())}) == 1:
            return
        gathered: list[dict[str, str]] = [*map(json.loads, gather_bytes(self._group, json.dumps(parts).encode()))]
        names = difference(gathered)
        if (told := told_of(names)) is not None:
            self._replica.leave_out(told)
            if self._group.rank == 0:
                self._warn(
                    f"another worker holds something else {when}: {listed(told)}\n"
                    "  state  what is saved, and what who joins is given, is the coordinator's\n"
                    "  next   nothing, if it is only noted; what training depends on must be the same on every worker: "
                    "by\n         run.sums, and not by loss.item()"
                )
            return
        all_know(self._group)
        few, hosts = apart([*map(digest_of, gathered)]), [one["host"] for one in known]
        what = f"{when}: {who_differs(gathered, few, hosts)}\n  found  {listed(names)}\n"
        if few and of_memory(names):
            raise self._wrong(few, hosts, what, state, advice(names))
        raise CollectiveMismatch(
            f"the workers no longer hold the same state {what}{state}; what was saved before stays, and the same "
            f"command goes on from it\n{advice(names)}",
            doing={rank: f"holds {digest_of(there)}" for rank, there in enumerate(gathered)},
        )

    def _wrong(
        self, few: Collection[int], hosts: Sequence[str], what: str, state: str, advised: str
    ) -> ComputesWrongly | PeerWrong:
        """Return what this rank raises, where these few hold something else than most."""
        rank = self._group.rank
        if rank not in few:
            named = ", ".join(f"rank {one} (on {hosts[one]})" for one in sorted(few))
            tells = rank == first_besides(few)
            return PeerWrong(named, step=self._step, phase="comparison of what all hold", tells=tells)
        return ComputesWrongly(
            f"this worker no longer holds the same state as most {what}{state}; this worker ends, and another one "
            f"takes its place\n{advised}",
            host=hosts[rank],
            rank=rank,
        )

    def said(self) -> dict[str, Any]:
        """Return what this rank is set to, and its host, for the others to compare."""
        said = {"settings": settings.settings(self._settings), "digest": settings.digest(self._settings)}
        return {"host": socket.gethostname(), **said}

    def check_settings(
        self, known: Sequence[Any], other: int, state: str = UNTOUCHED, *, unapplied: bool = True
    ) -> None:
        """Raise CollectiveMismatch unless rank `other` is set as this one is.

        On all, if only newcomers are not as the others, NotLetIn or PeerWrong. known: each rank's `said`;
        unapplied: so is the current step.
        """
        rank = self._group.rank
        all_settings = [one["settings"] for one in known]
        if apart_in := settings.difference(all_settings[rank], all_settings[other]):
            hosts = [one["host"] for one in known]
            came = self._newcomers_apart(all_settings)
            few = came or apart([json.dumps(one) for one in all_settings])
            who = who_differs(all_settings, few, hosts, what="other settings")
            refused = (
                f"the workers' optimizers, or schedules, are set differently: {who}\n"
                f"  found  {listed(apart_in)} (rank {rank} is here, rank {other} there)\n{state}"
                "  next   set rates and the like from what is the same on every worker: step.index, step.sums or "
                "run.sums,\n         run.evaluate, or what is kept in extra=; loss.item() is of a worker's own share"
            )
            if not came:
                doing = {number: f"is set to {one['digest']:x}" for number, one in enumerate(known)}
                raise CollectiveMismatch(refused, doing=doing)
            if rank in came:
                raise NotLetIn(f"this worker is not let in: {refused}")
            named = ", ".join(f"rank {one} (on {hosts[one]})" for one in sorted(came))
            raise PeerWrong(
                named,
                step=self._step,
                phase="comparison of settings",
                tells=rank == first_besides(came),
                unapplied=unapplied,
            )

    def _newcomers_apart(self, held: Sequence[Any]) -> frozenset[int]:
        """Return the newcomers that hold something else than all others, who hold the same; none where these do not."""
        others = [one for rank, one in enumerate(held) if rank not in self._newcomers]
        if not others or any(one != others[0] for one in others):
            return frozenset()
        return frozenset(rank for rank in self._newcomers if held[rank] != others[0])
