"""The small numbers of a step: what the script adds up, the global count, and each rank's wishes.

One all-gather per step carries a fixed row per rank: where it stands, its count, its wishes, and its
subtrees' sums in float64, in the tree's order. Which names exist (and which buffers move) is agreed
once and remembered; a rank that brings a new one says so in its row, and then all exchange their lists.

A sum of integers comes back as an int, exact below 2**53.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from elastic.errors import StepError
from elastic.group.form import Group, gather_bytes
from elastic.group.gradients import UNTOUCHED
from elastic.group.tree import Schedule
from elastic.group.treesum import NOTHING

Value = "int | float | torch.Tensor"

_MARKS = 2  # how many shares added anything under a name, and how many of them something other than integers
_HEADER = ("epoch", "step", "phase", "count", "wishes", "buffers", "news")


@dataclass(frozen=True, order=True)
class Entry:
    """A name that is summed, and its shape. In a row its values are followed by `_MARKS` counts of shares."""

    name: str
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        return self.numel + _MARKS


@dataclass
class ShareSums:
    """What one share added: name -> float64 array, in the order of the calls."""

    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    integral: dict[str, bool] = field(default_factory=dict)

    def add(self, name: str, value: Any) -> None:
        """Raises StepError for what is no number."""
        if isinstance(value, torch.Tensor):
            integral = not value.is_floating_point() and not value.is_complex()
            array = (
                np.asarray(value.item(), dtype=np.float64)
                if value.dim() == 0 and not value.is_complex()
                else _array(value)
            )
        else:
            try:
                array = np.asarray(value, dtype=np.float64)
            except (TypeError, ValueError) as not_a_number:
                raise StepError(
                    f"step.add({name}=...) takes a number or a tensor of numbers, not {type(value).__name__}\n"
                    f"{UNTOUCHED}  next   add what sums over examples; keep the rest in your own variables"
                ) from not_a_number
            integral = isinstance(value, (int, np.integer)) or getattr(value, "dtype", np.dtype(float)).kind in "iub"
        if name in self.values:
            if self.values[name].shape != array.shape:
                raise StepError(
                    f"step.add({name}=...) got shape {array.shape} after {self.values[name].shape} in one share\n"
                    f"{UNTOUCHED}  next   give every call of a name the same shape"
                )
            self.values[name] = self.values[name] + array
            self.integral[name] &= integral
        else:
            self.values[name] = array.copy()
            self.integral[name] = integral

    def entries(self) -> list[Entry]:
        return [Entry(name, value.shape) for name, value in self.values.items()]


@dataclass(frozen=True)
class Agreed:
    """What the ranks know together once a step's rows are exchanged."""

    sums: dict[str, Any]
    count: int
    wishes: tuple[int, ...]
    buffers: tuple[int, ...]
    moving: tuple[str, ...]


class StepSums:
    """The agreed names of one view, and the exchange of rows."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._entries: tuple[Entry, ...] = ()
        self._moving: tuple[str, ...] = ()

    def exchange(
        self,
        position: tuple[int, int, int],
        shares: Sequence[ShareSums],
        *,
        count: int,
        wishes: int,
        buffers: int,
        newly_moving: Sequence[str],
        schedule: Schedule,
    ) -> Agreed:
        """One round, two more when a name is new. Raises PeerLost, and StepError when the ranks are not at one step.

        position  (epoch, step, phase)
        count     of this rank's shares; the global one is returned
        wishes    bits, the caller's to define; every rank's are returned
        buffers   digest of the exact buffers, see buffers.py
        """
        mine = {entry for share in shares for entry in share.entries()}
        news = bool(mine - set(self._entries) or newly_moving)
        header = (*position, count, wishes, buffers, int(news))
        rows = self._gather(header, shares, schedule)
        self._same_step(rows, position)
        if any(row[_HEADER.index("news")] for row in rows.view(np.int64)):
            self._agree_names(mine, newly_moving)
            rows = self._gather(header, shares, schedule)
        heads = rows.view(np.int64)
        return Agreed(
            sums=self._total(rows, schedule),
            count=int(heads[:, _HEADER.index("count")].sum()),
            wishes=tuple(int(w) for w in heads[:, _HEADER.index("wishes")]),
            buffers=tuple(int(d) for d in heads[:, _HEADER.index("buffers")]),
            moving=self._moving,
        )

    def _gather(
        self, header: Iterable[int], shares: Sequence[ShareSums], schedule: Schedule
    ) -> npt.NDArray[np.float64]:
        """Rows of all ranks, (world size, header + subtrees * width), the header's integers as raw bits."""
        width = sum(entry.width for entry in self._entries)
        row = np.full(len(_HEADER) + max(schedule.rows) * width, NOTHING)
        row[: len(_HEADER)].view(np.int64)[:] = list(header)
        if width:
            for index, subtree in enumerate(self._subtrees(shares, schedule, width)):
                row[len(_HEADER) + index * width :][:width] = subtree
        rows = torch.empty(self._group.world_size * row.size, dtype=torch.float64)
        self._group.all_gather(rows, torch.from_numpy(row)).wait()
        return rows.numpy().reshape(self._group.world_size, row.size)

    def _subtrees(self, shares: Sequence[ShareSums], schedule: Schedule, width: int) -> list[npt.NDArray[np.float64]]:
        stack: list[npt.NDArray[np.float64]] = []
        for share, merges in zip(shares, schedule.merges[self._group.rank], strict=True):
            stack.append(self._leaf(share, width))
            for _ in range(merges):
                right = stack.pop()
                stack[-1] += right
        return stack

    def _leaf(self, share: ShareSums, width: int) -> npt.NDArray[np.float64]:
        """A share's sums side by side, each followed by its marks."""
        leaf = np.full(width, NOTHING)
        at = 0
        for entry in self._entries:
            if entry.name in share.values:
                leaf[at : at + entry.numel] = share.values[entry.name].reshape(-1)
                leaf[at + entry.numel] = 1.0
                leaf[at + entry.numel + 1] = float(not share.integral[entry.name])
            at += entry.width
        return leaf

    def _total(self, rows: npt.NDArray[np.float64], schedule: Schedule) -> dict[str, Any]:
        width = sum(entry.width for entry in self._entries)
        if not width:
            return {}
        held = [
            row[len(_HEADER) + index * width :][:width].copy()
            for row, count in zip(rows, schedule.rows, strict=True)
            for index in range(count)
        ]
        for into, out_of in schedule.joins:
            held[into] += held[out_of]
        total, sums, at = held[0], {}, 0
        for entry in self._entries:
            if total[at + entry.numel] > 0:
                integral = total[at + entry.numel + 1] == 0
                sums[entry.name] = _returned(total[at : at + entry.numel], entry.shape, integral)
            at += entry.width
        return sums

    def _agree_names(self, mine: Iterable[Entry], newly_moving: Sequence[str]) -> None:
        """All ranks exchange their lists; afterwards all know the same names."""
        news = {
            "entries": [[e.name, list(e.shape)] for e in (*self._entries, *mine)],
            "moving": [*self._moving, *newly_moving],
        }
        entries: dict[str, Entry] = {}
        moving: set[str] = set()
        for told in gather_bytes(self._group, json.dumps(news).encode()):
            answer: Mapping[str, Any] = json.loads(told)
            moving.update(answer["moving"])
            for name, shape in answer["entries"]:
                entry = Entry(name, tuple(shape))
                known = entries.setdefault(name, entry)
                if known.shape != entry.shape:
                    raise StepError(
                        f"step.add({name}=...) has shape {known.shape} in one share and {entry.shape} in another\n"
                        f"{UNTOUCHED}  next   give every share's value of a name the same shape"
                    )
        self._entries = tuple(sorted(entries.values()))
        self._moving = tuple(sorted(moving))

    def _same_step(self, rows: npt.NDArray[np.float64], position: tuple[int, int, int]) -> None:
        heads = rows.view(np.int64)[:, : len(position)]
        for rank, head in enumerate(heads.tolist()):
            if tuple(head) != position:
                raise StepError(
                    f"rank {self._group.rank} is at (epoch, step, phase) {position}, and rank {rank} at {tuple(head)}\n"
                    f"{UNTOUCHED}  next   every worker must take every step: look for a loop or an evaluation that "
                    "only some workers run"
                )


def _array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = tensor.detach().to(device="cpu", dtype=torch.float64).numpy()
    return array


def _returned(values: npt.NDArray[np.float64], shape: tuple[int, ...], integral: bool) -> Any:
    if shape:
        tensor = torch.from_numpy(values.copy()).view(shape)
        return tensor.to(torch.int64) if integral else tensor
    return int(values[0]) if integral else float(values[0])
