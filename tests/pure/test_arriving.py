"""A storage that hangs costs the wait for it, and what had come before is used."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator

import pytest

from elastic.loop.compiled.arriving import arriving

WITHIN_S = 60.0


def test_what_came_before_time_was_up_is_there_and_the_thread_ends() -> None:
    goes_on, wants_a_third, closed = threading.Event(), threading.Event(), threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            yield 1
            goes_on.wait(WITHIN_S)
            yield 2
            wants_a_third.set()
        finally:
            closed.set()

    came = arriving(items, 0.5)
    assert next(came) == 1
    with pytest.raises(TimeoutError, match=r"within 0.5 s"):
        next(came)
    goes_on.set()
    assert closed.wait(WITHIN_S)
    assert not wants_a_third.is_set()


def test_time_is_up_also_where_something_comes_again_and_again() -> None:
    def items() -> Generator[int, None, None]:
        for number in range(500):
            time.sleep(0.01)
            yield number

    with pytest.raises(TimeoutError):
        list(arriving(items, 0.5))


def test_an_error_comes_after_what_was_before_it() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise OSError("no disk")

    came = arriving(items, WITHIN_S)
    assert next(came) == 1
    with pytest.raises(OSError, match="no disk"):
        next(came)
