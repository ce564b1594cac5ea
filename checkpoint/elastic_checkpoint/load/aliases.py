"""Can entries of a state that share memory, as tied weights do, hold what was saved for each? If not, it is refused.

It can where they were saved as one tensor, or apart with equal bytes, and where they lie beside each other, as slices
of one buffer do. Else what is loaded last would take the place of the other value without a word.

Looks at addresses alone until two entries overlap; only then at values, in memory as large as what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elastic_checkpoint.errors import StateMismatch
from elastic_checkpoint.format.tensors import flat_bytes

_SHOWN = 10


@dataclass(frozen=True, eq=False)
class _Place:
    """The place of an entry's elements in memory, in bytes; and what is to be loaded into them.

    address  of the first element
    saved    what was saved for it: one object for all that were saved as one
    value    that, as the entry will hold it
    """

    path: str
    device: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    saved: object
    value: Callable[[], torch.Tensor | NDArray[Any]]

    @property
    def start(self) -> int:
        """Return the address of the entry's first byte; strides may be negative."""
        return self.address + sum(min(0, (n - 1) * step) for n, step in zip(self.shape, self.strides, strict=True))

    @property
    def end(self) -> int:
        """Return the address behind the entry's last byte."""
        steps = sum(max(0, (n - 1) * step) for n, step in zip(self.shape, self.strides, strict=True))
        return self.address + steps + self.itemsize

    @property
    def key(self) -> object:
        """Return a key that is equal for entries that are one tensor here and were saved as one."""
        return self.device, self.address, self.shape, self.strides, self.itemsize, id(self.saved)

    @property
    def _in_one_piece(self) -> bool:
        """Return whether the elements lie side by side, in row-major order."""
        expected = self.itemsize
        for size, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and step != expected:
                return False
            expected *= size
        return True

    def within(self, memory: NDArray[np.uint8], first: int) -> NDArray[np.uint8]:
        """Return the entry's bytes, in the shape of `bytes`, in `memory`, which begins at the address `first`."""
        if self._in_one_piece:  # ten times as fast
            return memory[self.start - first : self.end - first]
        shape, strides = (*self.shape, self.itemsize), (*self.strides, 1)
        return np.lib.stride_tricks.as_strided(memory[self.address - first :], shape, strides)

    def bytes(self) -> NDArray[np.uint8]:
        """Return what the entry is to hold: flat if it lies in one piece, else one row of bytes for each element."""
        value = self.value()
        flat = flat_bytes(value) if isinstance(value, torch.Tensor) else np.ascontiguousarray(value).data
        found = np.frombuffer(flat, np.uint8)
        return found if self._in_one_piece else found.reshape(*self.shape, self.itemsize)


class Aliases:
    """The places of all tensors and arrays that are loaded into."""

    def __init__(self) -> None:
        self._places: dict[object, _Place] = {}

    def tensor(self, path: str, target: torch.Tensor, saved: object, value: Callable[[], torch.Tensor]) -> None:
        """Note a tensor that is loaded into.

        target  detached, and of a DTensor this rank's part; what has no memory of its own to look at is passed over
        value   makes of `saved` what is put there
        """
        if type(target) is not torch.Tensor or target.layout is not torch.strided or not target.numel():
            return
        if target.is_conj() or target.is_neg():
            return
        size, dtype = target.element_size(), target.dtype
        strides = tuple(step * size for step in target.stride())
        place = _Place(
            path, str(target.device), target.data_ptr(), tuple(target.shape), strides, size, saved,
            lambda: value().to(dtype),
        )  # fmt: skip
        self._places.setdefault(place.key, place)

    def array(self, path: str, target: NDArray[Any], saved: NDArray[Any]) -> None:
        """Note an array that is loaded into; an empty one is passed over."""
        if not target.size or not target.dtype.itemsize:
            return
        address, dtype = target.__array_interface__["data"][0], target.dtype
        place = _Place(
            path, "cpu", address, target.shape, target.strides, dtype.itemsize, saved, lambda: saved.astype(dtype)
        )
        self._places.setdefault(place.key, place)

    @property
    def any(self) -> bool:
        """Return whether any entries may overlap, so that values decide."""
        return any(self._groups())

    def refuse_two_values(self) -> None:
        """Raise StateMismatch where one place would have to hold two values."""
        lost: dict[str, str] = {}
        for group in self._groups():
            for place in _lost(group):
                other = _over(place, group).path if len(lost) < _SHOWN else "another entry"
                lost[place.path] = f"shares memory with {other} here, and was saved with another value"
        if not lost:
            return
        lines = [f"  {path}: {what}" for path, what in lost.items()]
        more = [f"  ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
        raise StateMismatch(
            "the checkpoint has two values where the state has room for one\n"
            + "\n".join(lines[:_SHOWN] + more)
            + "\n  state  nothing was changed"
            + "\n  next   build the state without tying these, as it was when this was saved, load, and tie them then; "
            "or take\n         the value that you want from read().tree",
            missing=[],
            unexpected=[],
            misshaped=lost,
        )

    def _groups(self) -> Iterator[list[_Place]]:
        """Yield groups of places that overlap, or may: of strided ones only first and last byte are looked at."""
        group: list[_Place] = []
        end = 0
        for place in sorted(self._places.values(), key=lambda place: (place.device, place.start)):
            if group and (place.device != group[0].device or place.start >= end):
                if len(group) > 1:
                    yield group
                group = []
            end = max(end, place.end) if group else place.end
            group.append(place)
        if len(group) > 1:
            yield group


def _lost(group: list[_Place]) -> list[_Place]:
    """Return the places that would hold something else in the end, if all of the group were filled in turn."""
    first = min(place.start for place in group)
    memory = np.zeros(max(place.end for place in group) - first, np.uint8)
    for place in group:
        place.within(memory, first)[...] = place.bytes()
    return [place for place in group if not _equal(place.within(memory, first), place.bytes())]


def _equal(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    if one.ndim == 1 and one.size % 8 == 0:  # what is compared at a time takes no memory to speak of
        return np.array_equal(one.view(np.uint64), other.view(np.uint64))
    return np.array_equal(one, other)


def _over(lost: _Place, group: list[_Place]) -> _Place:
    """Return the last place of the group that would be written over this one."""
    first = min(place.start for place in group)
    memory = np.zeros(max(place.end for place in group) - first, np.uint8)
    lost.within(memory, first)[...] = 1
    others = [place for place in reversed(group) if place is not lost]
    return next((place for place in others if place.within(memory, first).any()), lost)
