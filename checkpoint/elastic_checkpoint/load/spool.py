"""Memory without a name, in which one process puts ranges of a checkpoint's objects and another finds them.

    head    whether it is over, how many bytes were taken, how long the index is
    index   JSON: [key, start, length] of each range
    marks   a byte for each range: 1 once its bytes are there
    ranges  their bytes

Promises  nobody waits for a range, and each is given out once: what turns out wrong is read from storage next.
          The memory is free when it is over, whoever still has it open; at the latest with the last who has.
Leaves    to verify what it gives to whoever takes it. Imports nothing that takes time: an agent starts with it.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading
from collections.abc import Sequence
from typing import NamedTuple

_NUMBER = struct.Struct("<Q")
_OVER_AT, _TAKEN_AT, _LENGTH_AT, _INDEX_AT = 0, 8, 16, 4096
_THERE = b"\1"


class Range(NamedTuple):
    """Of the object under that key."""

    key: str
    start: int
    length: int


class _StoredRange(NamedTuple):
    """A range, with where its mark is and where its bytes are, in the memory."""

    range: Range
    mark: int
    at: int


def new_spool() -> int:
    """A descriptor of one."""
    descriptor = os.memfd_create("checkpoint-spool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, _INDEX_AT)
    return descriptor


class Spool:
    """As one of those sees it who have it open."""

    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor
        self._lock = threading.Lock()
        self._ranges: list[_StoredRange] = []
        self._index: dict[str, list[_StoredRange]] | None = None  # by key

    @property
    def is_over(self) -> bool:
        """Nobody needs more."""
        return self._number(_OVER_AT) != 0

    @property
    def taken(self) -> int:
        """Bytes, by all."""
        return self._number(_TAKEN_AT)

    def take_over(self) -> None:
        """What is not here by now, the caller reads."""
        self._write(_OVER_AT, 1)

    def end(self) -> None:
        """Nothing of it is needed any more. Idempotent."""
        self.take_over()
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)  # whoever still puts fails
        os.ftruncate(self._fd, _INDEX_AT)
        self._write(_LENGTH_AT, 0)

    def begin(self, wanted: Sequence[Range]) -> None:
        """These will be put. Raises OSError where it has ended."""
        index = json.dumps(wanted).encode()
        self._ranges = _layout(wanted, len(index))
        os.ftruncate(self._fd, _INDEX_AT + len(index) + len(wanted) + sum(one.length for one in wanted))
        os.pwrite(self._fd, index, _INDEX_AT)
        self._write(_LENGTH_AT, len(index))

    def put(self, number: int, data: bytes) -> None:
        """The bytes of that range. Raises OSError where it has ended, or there is no memory."""
        stored = self._ranges[number]
        os.pwrite(self._fd, data, stored.at)
        os.pwrite(self._fd, _THERE, stored.mark)

    def take(self, key: str, target: memoryview) -> list[tuple[int, int]]:
        """What is here of that object, to its place in `target`. Returns where each stretch of the rest begins and
        ends."""
        missing, done, taken = [], 0, 0
        for (_, start, length), mark, at in self._of(key):
            is_there = start + length <= len(target) and os.pread(self._fd, 1, mark) == _THERE
            if is_there and os.preadv(self._fd, [target[start : start + length]], at) == length:
                if done < start:
                    missing.append((done, start))
                done, taken = start + length, taken + length
        if done < len(target):
            missing.append((done, len(target)))
        with self._lock:
            self._write(_TAKEN_AT, self.taken + taken)
        return missing

    def _of(self, key: str) -> list[_StoredRange]:
        """Of that object, the first time that it is asked for."""
        with self._lock:
            if self._index is None:
                self._index = self._read_index()
            return self._index.pop(key, [])

    def _read_index(self) -> dict[str, list[_StoredRange]]:
        found: dict[str, list[_StoredRange]] = {}
        if length := self._number(_LENGTH_AT):
            for stored in _layout([Range(*one) for one in json.loads(os.pread(self._fd, length, _INDEX_AT))], length):
                found.setdefault(stored.range.key, []).append(stored)
        return found

    def _write(self, at: int, number: int) -> None:
        os.pwrite(self._fd, _NUMBER.pack(number), at)

    def _number(self, at: int) -> int:
        found: int = _NUMBER.unpack(os.pread(self._fd, _NUMBER.size, at))[0]
        return found


def _layout(wanted: Sequence[Range], index: int) -> list[_StoredRange]:
    """index: the index's length"""
    marks = _INDEX_AT + index
    at, found = marks + len(wanted), []
    for number, one in enumerate(wanted):
        found.append(_StoredRange(one, marks + number, at))
        at += one.length
    return found
