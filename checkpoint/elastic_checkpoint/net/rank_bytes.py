"""How bytes travel between the ranks that save and load together: by gloo, in a group of our own.

So nothing of training's is in their way. Who is lost meanwhile ends it for all; who that is, rank_channel.py finds out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.errors import UNTOUCHED, next_lines


class Sent:
    """Bytes on their way, in either direction."""

    def __init__(self, work: Any, data: torch.Tensor) -> None:
        self._work, self._data = work, data

    def wait(self) -> torch.Tensor:
        """Return the bytes, when they are there or gone. Raises CheckpointError where the other rank is gone."""
        with _lost_ranks():
            self._work.wait()
        return self._data


class RankBytes:
    """One rank's end. Of a single rank it sends nothing."""

    def __init__(self, size: int) -> None:
        """Connect nobody yet."""
        self._size = size
        self._gloo: dist.ProcessGroup | None = None

    def connect(self, group: dist.ProcessGroup | None, within_s: float) -> None:
        """Connect the ranks of `group`, None: all. Collective. Raises RuntimeError, OSError."""
        self._gloo = dist.new_group(
            dist.get_process_group_ranks(group),
            backend="gloo",
            timeout=timedelta(seconds=within_s),
            use_local_synchronization=True,
        )

    def all_gather(self, number: int) -> list[int]:
        """Return every rank's number. Raises CheckpointError where a rank is gone."""
        if self._gloo is None:
            return [number]
        numbers = [torch.zeros(1, dtype=torch.int64) for _ in range(self._size)]
        with _lost_ranks():
            dist.all_gather(numbers, torch.tensor([number], dtype=torch.int64), group=self._gloo)
        return [int(one.item()) for one in numbers]

    def broadcast(self, data: torch.Tensor, *, source: int) -> None:
        """Copy rank `source`'s bytes into everybody's `data`, a flat uint8 tensor. Raises CheckpointError."""
        if self._gloo is not None:
            with _lost_ranks():
                dist.broadcast(data, group=self._gloo, group_src=source)

    def send(self, data: torch.Tensor, to: int, tag: int) -> Sent:
        """Begin to send these bytes, a flat uint8 tensor, to a rank that receives as many with this tag."""
        with _lost_ranks():
            return Sent(dist.isend(data, group=self._gloo, group_dst=to, tag=tag), data)

    def receive(self, data: torch.Tensor, source: int, tag: int) -> Sent:
        """Begin to receive."""
        with _lost_ranks():
            return Sent(dist.irecv(data, group=self._gloo, group_src=source, tag=tag), data)


@contextlib.contextmanager
def _lost_ranks() -> Iterator[None]:
    """Turn gloo's error of a failed collective, which has lost a rank, into one of ours."""
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(
            f"a rank was lost while bytes were exchanged ({str(error)[:200]}){next_lines(UNTOUCHED)}"
        ) from error
