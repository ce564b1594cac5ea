"""Saving and loading by all ranks of a process group at once. `Checkpointer` comes here where it was given a group.

What saves, makes ready and loads is collective: all ranks call the same things in the same order. What only reads
(`read`, `list`, `verify`, ...) is not, nor is what waits for saves under way; both work on any rank by itself.
"""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist

from elastic_checkpoint import arguments
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.format.document import Tree
from elastic_checkpoint.format.marks import Patterns
from elastic_checkpoint.load.group.load import load_together
from elastic_checkpoint.load.into_state import LoadRules
from elastic_checkpoint.load.loaded import Loaded
from elastic_checkpoint.net.codec import Message
from elastic_checkpoint.net.rank_channel import RankChannel
from elastic_checkpoint.runs.history import Log
from elastic_checkpoint.save.group.agreement import Agreement, Sameness
from elastic_checkpoint.save.group.ranks import GroupRanks
from elastic_checkpoint.save.in_flight import Rules
from elastic_checkpoint.save.pipeline import SavePipeline
from elastic_checkpoint.storage import Scrubber, Storage

Group = dist.ProcessGroup | Literal["auto"]


def check_group(given: Any) -> None:
    """Raise CheckpointError for what is none."""
    expected = "'auto', a process group of torch.distributed that this process is in, or None"
    arguments.refuse(
        None if given == "auto" or isinstance(given, dist.ProcessGroup) else f"group={given!r}; expected {expected}"
    )


class GroupMember:
    """This rank's part in it, made anew when torch.distributed is."""

    def __init__(
        self,
        group: Group,
        storage: Storage,
        opening: Message | str,
        rules: Rules,
        *,
        shard_bytes: int,
        per_rank: Patterns,
        rank0: Patterns,
        trusted: bool,
        log: Log,
    ) -> None:
        """Join the group.

        opening          what a writer process opens, or why there cannot be one
        per_rank, rank0  see marks.py
        trusted          whether tensors are saved without a look at whether ranks differ
        """
        self._group = group
        self._storage = storage
        self._opening = opening
        self._scrub = None if isinstance(opening, str) else Scrubber(opening["url"], opening["options"])
        self._rules = rules
        self._shard_bytes = shard_bytes
        self._sameness = Sameness(per_rank, rank0, trusted)
        self._log = log
        self._present: _Membership | None = None
        self._former: list[SavePipeline] = []  # of groups that are no more, whose saves may be under way
        self._unless_closed: list[weakref.finalize[..., GroupMember]] = []

    @property
    def active(self) -> bool:
        """Return whether there is a group: with "auto", only where torch.distributed is initialised.

        Raises CheckpointError where it was, and is no more: each rank would go on alone, on one URL.
        """
        if self._group != "auto":
            return True
        initialised = dist.is_available() and dist.is_initialized()
        if self._present is not None and not initialised:
            raise CheckpointError(
                "torch.distributed is no more, and this Checkpointer works with all of its ranks\n"
                "  state  what was committed stays; nothing was saved or loaded now\n"
                "  next   save and load before destroy_process_group(), or make a new Checkpointer to go on alone"
            )
        return initialised

    @property
    def rank(self) -> int:
        return dist.get_rank(self._process_group())

    @property
    def saves(self) -> SavePipeline | None:
        """Return the saves of this group; None where this rank has made none."""
        return None if self._present is None else self._present.pipeline

    def pipeline(self) -> SavePipeline:
        """Return what saves are made with. Collective, where the group is another than before."""
        return self._joined().pipeline

    def load(self, state: Tree, rules: LoadRules) -> Loaded:
        """Load as `load_together` says."""
        channel = self._joined().channel
        with channel.reporting_errors():
            return load_together(channel, self._storage, state, rules)

    def close(self, *, finish: bool) -> None:
        """Finish what is staged, or leaves it to the writer process; hangs up on the other ranks. Idempotent."""
        self._forget_what_is_the_parents()
        self._leave()
        if finish:
            for pipeline in self._former:
                pipeline.close()
            self._former = []

    def _joined(self) -> _Membership:
        group = self._process_group()
        self._forget_what_is_the_parents()
        if self._present is not None and self._present.channel.group is not group:
            self._leave()
        if self._present is None:
            channel = RankChannel(group, wait_s=self._rules.finish_s, scrub=self._scrub)
            ranks = GroupRanks(channel, Agreement(channel, self._shard_bytes, self._sameness, self._log))
            pipeline = SavePipeline(ranks, self._storage, self._opening, self._rules, log=self._log)
            self._present = _Membership(channel, pipeline)
            self._unless_closed = [weakref.finalize(self, end) for end in (channel.close, pipeline.let_go)]
        return self._present

    def _forget_what_is_the_parents(self) -> None:
        """Forget, in a forked child, what is its parent's."""
        if self._present is not None and self._present.channel.pid != os.getpid():
            self._present = None
            self._former = []

    def _leave(self) -> None:
        """Leave the group. What is under way ends by itself, for the others of that group may be gone."""
        if self._present is not None:
            self._former.append(self._present.pipeline)
            self._present.channel.close()
        self._former = [pipeline for pipeline in self._former if not pipeline.close_if_settled()]
        for finalizer in self._unless_closed:
            finalizer.detach()
        self._unless_closed = []
        self._present = None

    def _process_group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if isinstance(self._group, str) else self._group


@dataclass(frozen=True)
class _Membership:
    """This rank's membership in one process group."""

    channel: RankChannel
    pipeline: SavePipeline
