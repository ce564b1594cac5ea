"""In which order do the tests run? Each of pytest's workers begins with tests that wait, and ends with the short ones.

pytest-xdist gives each worker one piece of the list, of as many tests as any other; who is done early takes from the
end of another's. In the order of their names, the tests that wait for processes are all in the middle: one worker has
most of them and is alone with them for the last minutes.

Takes     the collected tests, by file, and the seconds that a test of a room takes, more or less.
Promises  every test once; the tests of a file stay together and in order, but for those of the last room;
          the same order in each of the workers, which all collect the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

Test = TypeVar("Test")

SECONDS_A_TEST = {
    "counts": 20.0,
    "hosts": 15.0,
    "processes": 3.0,
    "storage": 0.5,
    "gpu": 0.5,
    "one_process": 0.5,
    "pure": 0.03,
}
"""Of the rooms of tests/, longest first; measured, and good to a factor of two."""
SHORT = "pure"


def dealt(files: Mapping[str, Sequence[Test]], room_of: Mapping[str, str], workers: int) -> list[Test]:
    """All tests of these files, so that each of `workers` equal pieces begins with its part of what takes long."""
    rooms = list(SECONDS_A_TEST)
    unknown = len(rooms)
    waiting = [name for name in files if room_of[name] != SHORT]
    waiting.sort(key=lambda name: rooms.index(room_of[name]) if room_of[name] in rooms else unknown)
    pieces: list[list[Test]] = [[] for _ in range(workers)]
    seconds = [0.0] * workers
    for name in waiting:
        least = seconds.index(min(seconds))
        pieces[least].extend(files[name])
        seconds[least] += SECONDS_A_TEST.get(room_of[name], 1.0) * len(files[name])
    short = [test for name, tests in files.items() if room_of[name] == SHORT for test in tests]
    left = sum(map(len, pieces)) + len(short)
    for at, piece in enumerate(pieces):
        room = max(0, left // (workers - at) - len(piece))
        piece.extend(short[:room])
        del short[:room]
        left -= len(piece)
    return [test for piece in pieces for test in piece] + short
