"""The small numbers of a step: what the script adds up, the global count, and each rank's requests.

One all-gather per step carries a fixed row per rank: where it stands, its count, its requests, digests of what its
shares read and gave, and its subtrees' sums in float64, in the tree's order. Which names exist (and which buffers move)
is agreed once and remembered; a rank that brings a new one says so in its row, and then all exchange their lists.
What shares add is added along the tree as it comes, so that as many sums are kept as the tree is high.

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

from elastic.errors import UNTOUCHED, StepError
from elastic.group.flat_sum import NOTHING
from elastic.group.form import Group, gather_bytes
from elastic.group.tree import Schedule

Value = "float | torch.Tensor"
Values = float | npt.NDArray[np.float64]

LEFT_OUT = "\0left out"  # no name that a script gives: how many of a share's examples were
COUNT = "\0count"  # likewise: what a share's loss is a mean over, where that is no integer
READ = "\0read"  # likewise: digest of a batch, how many shares end with it, and 1
FIRST = "\0first"  # likewise, of a step's first share: digests of its first micro-batch, and of what that gave
_MARKS = 2  # how many shares added anything under a name, and how many of them something other than integers
_HEADER = ("epoch", "step", "phase", "count", "requests", "buffers", "replica", "own", "passed", "news")


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
    """The sums of one share, or of several once it took others in.

    values  name -> a float, or a float64 array, in the order of the calls
    given   name -> how many shares added anything, and how many of them something other than integers
    """

    values: dict[str, Values] = field(default_factory=dict)
    given: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, name: str, value: Any, *, of_nothing: bool = False) -> None:
        """Add a value; a mean `of_nothing`, which is no number, is 0 here. Raises StepError for what is no number."""
        array, integral = _number(value) or _several(name, value)
        if of_nothing:
            array = _or_zero(array)
        if name not in self.values:
            self.values[name] = array
            self.given[name] = 1, int(not integral)
            return
        before = self.values[name]
        if _shape(before) != _shape(array):
            raise StepError(
                f"step.add({name}=...) got shape {_shape(array)} after {_shape(before)} in one share\n"
                f"{UNTOUCHED}  next   give every call of a name the same shape"
            )
        self.values[name] = before + array
        self.given[name] = 1, int(bool(self.given[name][1]) or not integral)

    def take_in(self, right: ShareSums) -> None:
        """Add what the subtree on the right added. A name that only one of the two has stays to the bit."""
        for name, value in right.values.items():
            if name not in self.values:
                self.values[name], self.given[name] = value, right.given[name]
                continue
            total = self.values[name]
            if _shape(total) != _shape(value):
                raise _two_shapes(name, _shape(total), _shape(value))
            total += value
            shares, fractional = self.given[name]
            self.values[name] = total
            self.given[name] = shares + right.given[name][0], fractional + right.given[name][1]

    def entries(self) -> list[Entry]:
        return [Entry(name, _shape(value)) for name, value in self.values.items()]


@dataclass(frozen=True)
class Agreed:
    """All that the ranks know together once a step's rows are exchanged.

    left_out  how many of the step's examples
    own, passed  digests of cross-checked shares, of every rank's own and of what it has passed of others
    read      digest of what was read for it, of how many shares, in how many batches; where that was asked for
    first     digests of the first share's batch and of what that gave; likewise
    shares    what each share read and gave, see record/share_digests.py
    """

    sums: dict[str, Any]
    count: float
    requests: tuple[int, ...]
    buffers: tuple[int, ...]
    replicas: tuple[int, ...]
    moving: tuple[str, ...]
    relaid: tuple[str, ...]
    left_out: int
    read: tuple[int, ...] = ()
    first: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    passed: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()


class SubtreeSums:
    """The partial sums of this rank's shares, added as the shares come.

    parts  in the end one for each of its subtrees
    """

    def __init__(self) -> None:
        self.parts: list[ShareSums] = []

    def push(self, share: ShareSums, merges: int) -> None:
        """Take a share, then add the topmost two `merges` times: see tree.Schedule. Raises StepError."""
        self.parts.append(share)
        for _ in range(merges):
            right = self.parts.pop()
            self.parts[-1].take_in(right)


class StepSums:
    """The agreed names of one view, and the exchange of rows."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._entries: tuple[Entry, ...] = ()
        self._moving: tuple[str, ...] = ()

    def exchange(
        self,
        position: tuple[int, int, int],
        parts: Sequence[ShareSums],
        *,
        count: int,
        requests: int,
        buffers: int,
        newly_moving: Sequence[str],
        schedule: Schedule,
        relaid: Sequence[str] = (),
        replica: int = 0,
        checked: tuple[int, int] = (0, 0),
        shares: Sequence[int] = (),
        slots: int = 0,
    ) -> Agreed:
        """Exchange rows in one round, two more when a name is new.

        Raises PeerLost, and StepError when the ranks are not at one step.

        position  (epoch, step, phase)
        parts     this rank's, one for each subtree
        count     of this rank's shares; the global one is returned, with what shares added as COUNT
        requests    bits, the caller's to define; every rank's are returned
        buffers   digest of the exact buffers, see buffers.py; those that are `newly_moving` all remember, what is
                  `relaid` is known for this step
        replica   digest of what the step began with, see state/replica.py; every rank's are returned
        checked   see loop/cross_check.py; likewise
        shares    numbers other than 0, of as many shares as this rank has, at most `slots`; those of all are returned
        """
        mine = {entry for part in parts for entry in part.entries()}
        news = bool(mine - set(self._entries) or newly_moving or relaid)
        all_relaid: tuple[str, ...] = ()
        header = (*position, count, requests, buffers, replica, *checked, int(news))
        head = (*header, *shares, *[0] * (slots - len(shares)))
        rows = self._gather(head, parts, schedule)
        self._same_step(rows, position)
        if any(row[_HEADER.index("news")] for row in rows.view(np.int64)):
            all_relaid = self._agree_names(mine, newly_moving, relaid)  # the rows get other widths, and go once more
            rows = self._gather(head, parts, schedule)
        heads = rows.view(np.int64)
        sums = self._total(rows[:, len(head) :], schedule)
        return Agreed(
            sums=sums,
            count=int(heads[:, _HEADER.index("count")].sum()) + sums.pop(COUNT, 0),
            requests=tuple(int(w) for w in heads[:, _HEADER.index("requests")]),
            buffers=tuple(int(d) for d in heads[:, _HEADER.index("buffers")]),
            replicas=tuple(int(d) for d in heads[:, _HEADER.index("replica")]),
            moving=self._moving,
            relaid=all_relaid,
            left_out=int(sums.pop(LEFT_OUT, 0)),
            read=tuple(map(int, sums.pop(READ, ()))),
            first=tuple(map(int, sums.pop(FIRST, ()))),
            own=tuple(int(d) for d in heads[:, _HEADER.index("own")]),
            passed=tuple(int(d) for d in heads[:, _HEADER.index("passed")]),
            shares=tuple(d for d in heads[:, len(header) : len(head)].reshape(-1).tolist() if d),
        )

    def _gather(self, head: Sequence[int], parts: Sequence[ShareSums], schedule: Schedule) -> npt.NDArray[np.float64]:
        """Return all ranks' rows, (world size, head + subtrees * width), the head's integers as raw bits."""
        width = sum(entry.width for entry in self._entries)
        row = np.full(len(head) + max(schedule.rows) * width, NOTHING)  # which no sum notices
        row[: len(head)].view(np.int64)[:] = head
        for index, part in enumerate(parts):
            self._write(row[len(head) + index * width :][:width], part)
        rows = torch.empty(self._group.world_size * row.size, dtype=torch.float64)
        self._group.all_gather(rows, torch.from_numpy(row)).wait()
        return rows.numpy().reshape(self._group.world_size, row.size)

    def _write(self, row: npt.NDArray[np.float64], part: ShareSums) -> None:
        """Write a subtree's sums side by side, each followed by its marks."""
        at = 0
        for entry in self._entries:
            value = part.values.get(entry.name)
            if value is not None and _shape(value) == entry.shape:  # another shape is news, and refused with the news
                row[at : at + entry.numel] = value if isinstance(value, float) else value.reshape(-1)
                row[at + entry.numel : at + entry.width] = part.given[entry.name]
            at += entry.width

    def _total(self, rows: npt.NDArray[np.float64], schedule: Schedule) -> dict[str, Any]:
        """Return the step's sums by name, added as the tree says, of the names that any share gave.

        rows  of all ranks, from behind the head
        """
        width = sum(entry.width for entry in self._entries)
        if not width:
            return {}
        held = [
            row[index * width :][:width].copy()
            for row, count in zip(rows, schedule.rows, strict=True)
            for index in range(count)
        ]
        for into, out_of in schedule.joins:
            held[into] += held[out_of]
        total, sums, at = held[0], {}, 0  # joins end with row 0
        for entry in self._entries:
            if total[at + entry.numel] > 0:
                integral = total[at + entry.numel + 1] == 0
                sums[entry.name] = _returned(total[at : at + entry.numel], entry.shape, integral)
            at += entry.width
        return sums

    def _agree_names(
        self, mine: Iterable[Entry], newly_moving: Sequence[str], relaid: Sequence[str]
    ) -> tuple[str, ...]:
        """Exchange lists, so that all ranks know the same names. Returns the buffers relaid on any of them."""
        news = {
            "entries": [[e.name, list(e.shape)] for e in (*self._entries, *mine)],
            "moving": [*self._moving, *newly_moving],
            "relaid": list(relaid),
        }
        entries: dict[str, Entry] = {}
        moving: set[str] = set()
        all_relaid: set[str] = set()
        for packed in gather_bytes(self._group, json.dumps(news).encode()):
            answer: Mapping[str, Any] = json.loads(packed)
            moving.update(answer["moving"])
            all_relaid.update(answer["relaid"])
            for name, shape in answer["entries"]:
                entry = Entry(name, tuple(shape))
                known = entries.setdefault(name, entry)
                if known.shape != entry.shape:
                    raise _two_shapes(name, known.shape, entry.shape)
        self._entries = tuple(sorted(entries.values()))
        self._moving = tuple(sorted(moving))
        return tuple(sorted(all_relaid))

    def _same_step(self, rows: npt.NDArray[np.float64], position: tuple[int, int, int]) -> None:
        """Raise StepError unless all ranks are at `position`."""
        heads = rows.view(np.int64)[:, : len(position)]
        for rank, head in enumerate(heads.tolist()):
            if tuple(head) != position:
                raise StepError(
                    f"rank {self._group.rank} is at (epoch, step, phase) {position}, and rank {rank} at {tuple(head)}\n"
                    f"{UNTOUCHED}  next   every worker must take every step: look for a loop or an evaluation that "
                    "only some workers run"
                )


def _two_shapes(name: str, one: tuple[int, ...], other: tuple[int, ...]) -> StepError:
    return StepError(
        f"step.add({name}=...) has shape {one} in one share and {other} in another\n"
        f"{UNTOUCHED}  next   give every share's value of a name the same shape"
    )


def _number(value: Any) -> tuple[float, bool] | None:
    """Return a float, and whether it is an integer; None: it is no single number, or one of another library."""
    if isinstance(value, torch.Tensor):
        if value.dim() or value.is_complex():
            return None
        value = value.item()
    kind = type(value)
    return (float(value), kind is not float) if kind in (float, int, bool) else None


def _several(name: str, value: Any) -> tuple[npt.NDArray[np.float64], bool]:
    """Return an array, and whether its numbers are integers. Raises StepError for what is no number."""
    if isinstance(value, torch.Tensor):
        return _array(value).copy(), not value.is_floating_point() and not value.is_complex()
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as not_a_number:
        raise StepError(
            f"step.add({name}=...) takes a number or a tensor of numbers, not {type(value).__name__}\n"
            f"{UNTOUCHED}  next   add what sums over examples; keep the rest in your own variables"
        ) from not_a_number
    return array, isinstance(value, (int, np.integer)) or getattr(value, "dtype", np.dtype(float)).kind in "iub"


def _or_zero(value: Values) -> Values:
    if isinstance(value, float):
        return 0.0 if math.isnan(value) else value
    return np.where(np.isnan(value), 0.0, value)


def _shape(value: Values) -> tuple[int, ...]:
    return () if isinstance(value, float) else value.shape


def _array(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = tensor.detach().to(device="cpu", dtype=torch.float64).numpy()
    return array


def _returned(values: npt.NDArray[np.float64], shape: tuple[int, ...], integral: bool) -> Any:
    """Return a sum as the script gets it: an int, a float or a tensor."""
    if shape:
        tensor = torch.from_numpy(values.copy()).view(shape)
        return tensor.to(torch.int64) if integral else tensor
    return int(values[0]) if integral else float(values[0])
