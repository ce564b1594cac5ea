"""Saving and loading by all ranks of a process group at once. `Checkpointer` comes here where it was given a group.

Everything here is collective: all ranks call the same things in the same order. What only reads (`read`, `list`,
`verify`, ...) is not, and works on any rank by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

import torch.distributed as dist

from checkpoint.claims import Claim
from checkpoint.distributed_load import NoneLeft, load_together
from checkpoint.distributed_save import Saver
from checkpoint.history import Log
from checkpoint.loaded import Loaded
from checkpoint.manifest import Commit
from checkpoint.storage import Storage
from checkpoint.tree import Tree
from checkpoint.world import World

Group = dist.ProcessGroup | Literal["auto"]


class Together:
    """This rank's part in it, made anew when torch.distributed is."""

    def __init__(self, group: Group, storage: Storage, *, shard_bytes: int, wait_s: float, log: Log) -> None:
        self._group = group
        self._storage = storage
        self._shard_bytes = shard_bytes
        self._wait_s = wait_s
        self._log = log
        self._world: World | None = None
        self._saver: Saver | None = None

    @property
    def active(self) -> bool:
        """Whether there is a group: with "auto", only where torch.distributed is initialised."""
        return self._group != "auto" or (dist.is_available() and dist.is_initialized())

    @property
    def rank(self) -> int:
        return dist.get_rank(self._process_group())

    def save(
        self,
        step: int,
        state: Tree,
        meta: dict[str, Any],
        *,
        claim: Callable[[], Claim],
        now_s: Callable[[], float],
    ) -> Commit:
        """See `Saver.save`. `meta` gets the number of ranks as "world_size", which `checkpoint ls` shows."""
        world = self._joined()
        if self._saver is None:
            self._saver = Saver(world, self._storage, self._shard_bytes)
        return self._saver.save(step, state, {"world_size": world.size, **meta}, claim=claim, now_s=now_s)

    def load(self, state: Tree, *, step: int | None, strict: bool, none: NoneLeft) -> Loaded:
        """See `load_together`."""
        world = self._joined()
        return load_together(world, self._storage, state, step=step, strict=strict, log=self._log, none=none)

    def close(self) -> None:
        """Lets go of what connects the ranks. Idempotent."""
        if self._world is not None:
            self._world.close()
        self._world = self._saver = None

    def _joined(self) -> World:
        group = self._process_group()
        if self._world is None or self._world.group is not group or self._world.pid != os.getpid():
            self.close()
            self._world = World(group, wait_s=self._wait_s)
        return self._world

    def _process_group(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD if isinstance(self._group, str) else self._group
