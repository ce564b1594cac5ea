"""A claim that could not be read is read later, in a thread that nobody waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from elastic.loop.storage.claim_lookup import ClaimLookup
from elastic_checkpoint.errors import CheckpointError

WITHIN_S = 60.0


class Storage:
    """fails: how often it is read in vain"""

    def __init__(self, *, fails: int = 0, holds: bool = False) -> None:
        self.reads, self.told = 0, threading.Event()
        self.is_read, self.goes_on = threading.Event(), threading.Event()
        self._fails, self._holds = fails, holds
        self.reading = ClaimLookup()

    def begin(self) -> None:
        self.reading.begin(self.read, self.told.set)

    def read(self) -> bool:
        self.reads += 1
        self.is_read.set()
        assert self.goes_on.wait(WITHIN_S)
        if self.reads <= self._fails:
            raise CheckpointError("it fails")
        return self._holds


def test_it_is_tried_again_where_the_storage_fails() -> None:
    storage = Storage(fails=2, holds=True)
    storage.goes_on.set()
    storage.begin()
    assert storage.told.wait(WITHIN_S)
    assert storage.reads == 3


def test_what_is_not_there_is_not_looked_for_again() -> None:
    storage = Storage()
    storage.goes_on.set()
    storage.begin()
    wait_until(lambda: not reading())
    assert (storage.reads, storage.told.is_set()) == (1, False)


def test_of_a_view_that_is_over_nobody_is_told() -> None:
    storage = Storage(holds=True)
    storage.begin()
    assert storage.is_read.wait(WITHIN_S)
    storage.reading.end()
    storage.goes_on.set()
    wait_until(lambda: not reading())
    assert not storage.told.is_set()


def test_its_end_is_not_slept_through() -> None:
    storage = Storage(fails=9)
    storage.goes_on.set()
    storage.begin()
    assert storage.is_read.wait(WITHIN_S)
    storage.reading.end()
    wait_until(lambda: not reading())


def reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "elastic-claim-lookup"]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
