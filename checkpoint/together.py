"""Saving and loading by all ranks of a process group at once. `Checkpointer` comes here where it was given a group.

What saves, makes ready and loads is collective: all ranks call the same things in the same order. What only reads
(`read`, `list`, `verify`, ...) is not, nor is what waits for saves under way; both work on any rank by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Literal

import torch.distributed as dist

from checkpoint.errors import CheckpointError
from checkpoint.format.manifest import Commit
from checkpoint.format.marks import Patterns
from checkpoint.format.names import CommitId
from checkpoint.format.tree import Tree
from checkpoint.load.cast import Cast
from checkpoint.load.group.load import LoadRules, load_together
from checkpoint.load.loaded import Loaded
from checkpoint.load.newest import Search
from checkpoint.net.framing import Message
from checkpoint.net.rank_channel import RankChannel
from checkpoint.runs.history import Log
from checkpoint.save.group.agreement import Agreed, Agreement, Sameness
from checkpoint.save.group.background import BackgroundTogether, Context
from checkpoint.save.group.foreground import write_together
from checkpoint.save.handle import Saving
from checkpoint.save.in_flight import Rules
from checkpoint.storage import Scrubber, Storage

Group = dist.ProcessGroup | Literal["auto"]


class Together:
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
        resized: str,
        log: Log,
    ) -> None:
        """
        opening          what a writer process opens, or why there cannot be one
        per_rank, rank0  see marks.py; resized: `Resolver`
        trusted          whether tensors are saved without a look at whether ranks differ
        """
        self._group = group
        self._storage = storage
        self._opening = opening
        self._scrub = None if isinstance(opening, str) else Scrubber(opening["url"], opening["options"])
        self._rules = rules
        self._shard_bytes = shard_bytes
        self._sameness = Sameness(per_rank, rank0, trusted)
        self._resized = resized
        self._log = log
        self._channel: RankChannel | None = None
        self._agreement: Agreement | None = None
        self._background: BackgroundTogether | None = None
        self._left: list[BackgroundTogether] = []  # of groups that are no more, whose saves may be under way
        self._unless_closed: list[weakref.finalize[..., Together]] = []

    @property
    def active(self) -> bool:
        """Whether there is a group: with "auto", only where torch.distributed is initialised.

        Raises CheckpointError where it was, and is no more: each rank would go on alone, on one URL.
        """
        if self._group != "auto":
            return True
        initialised = dist.is_available() and dist.is_initialized()
        if self._channel is not None and not initialised:
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
    def ready(self) -> bool:
        """See `BackgroundTogether.ready`."""
        return self._background is not None and self._background.ready

    def save(self, step: int, state: Tree, meta: dict[str, Any], context: Context) -> Commit:
        """The commit, durable, on every rank. See `Agreement.reach` and `write_together` for what it raises.

        `meta` gets the number of ranks as "world_size", which `checkpoint ls` shows.
        """
        channel, agreement = self._joined()
        if self._background is not None:
            self._background.settle()
        meta = _with_size(meta, channel)
        with channel.telling():
            agreed = agreement.reach(step, state, meta, claim=context.claim, now_s=context.now_s, how="blocking=True")
            assert isinstance(agreed, Agreed)
            return write_together(channel, self._storage, agreed)

    def begin(self, step: int, state: Tree, meta: dict[str, Any], context: Context) -> Saving:
        """See `BackgroundTogether.begin`; and `save` about `meta`."""
        channel, _ = self._joined()
        return self._in_background().begin(step, state, _with_size(meta, channel), context)

    def warm(self, state: Tree, context: Context) -> None:
        """See `BackgroundTogether.warm`."""
        channel, _ = self._joined()
        with channel.telling():
            self._in_background().warm(state, context)

    def load(
        self,
        state: Tree,
        *,
        step: int | None,
        strict: bool,
        cast: Cast,
        prepare: Callable[[], None],
        search: Callable[[int | None], Search],
        loaded: Callable[[CommitId, CommitId], None],
    ) -> Loaded:
        """See `load_together`."""
        channel, _ = self._joined()
        rules = LoadRules(step, strict, cast, self._resized, self._log, prepare, search, loaded)
        with channel.telling():
            return load_together(channel, self._storage, state, rules)

    def settle(self) -> None:
        """Returns when no save of this group is under way on this rank, whatever came of them."""
        if self._background is not None:
            self._background.settle()

    def wait(self) -> None:
        """Returns when no save of this group is under way on this rank. Raises what the newest one failed of."""
        if self._background is not None:
            self._background.wait()

    def close(self, *, finish: bool) -> None:
        """Finishes what is staged, or leaves it to the writer process; hangs up on the other ranks. Idempotent."""
        self._forget_what_is_the_parents()
        self._leave()
        if finish:
            for background in self._left:
                background.close()
            self._left = []

    def _joined(self) -> tuple[RankChannel, Agreement]:
        group = self._process_group()
        self._forget_what_is_the_parents()
        if self._channel is not None and self._channel.group is not group:
            self._leave()
        if self._channel is None or self._agreement is None:
            self._channel = RankChannel(group, wait_s=self._rules.finish_s, scrub=self._scrub)
            self._agreement = Agreement(self._channel, self._shard_bytes, self._sameness, self._log)
            self._unless_closed.append(weakref.finalize(self, self._channel.close))
        return self._channel, self._agreement

    def _forget_what_is_the_parents(self) -> None:
        """In a forked child."""
        if self._channel is not None and self._channel.pid != os.getpid():
            self._channel = self._agreement = self._background = None
            self._left = []

    def _leave(self) -> None:
        """What is under way ends by itself, for the others of that group may be gone."""
        if self._background is not None:
            self._left.append(self._background)
        self._left = [background for background in self._left if not background.close_if_settled()]
        if self._channel is not None:
            self._channel.close()
        for finalizer in self._unless_closed:
            finalizer.detach()
        self._unless_closed = []
        self._channel = self._agreement = self._background = None

    def _in_background(self) -> BackgroundTogether:
        channel, agreement = self._joined()
        if self._background is None:
            opening, unusable = (None, self._opening) if isinstance(self._opening, str) else (self._opening, None)
            self._background = BackgroundTogether(
                channel, agreement, self._storage, opening, self._rules, unusable=unusable, log=self._log
            )
            self._unless_closed.append(weakref.finalize(self, self._background.let_go))
        return self._background

    def _process_group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if isinstance(self._group, str) else self._group


def _with_size(meta: dict[str, Any], channel: RankChannel) -> dict[str, Any]:
    return {"world_size": channel.size, **meta}
