"""A storage that hangs costs the wait for it, and what had come before is used."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from elastic.loop.arriving import arriving

WITHIN_S = 60.0


def test_what_came_before_time_was_up_is_there_and_the_thread_ends() -> None:
    goes_on, closed = threading.Event(), threading.Event()

    def items() -> Generator[int, None, None]:
        try:
            yield 1
            goes_on.wait(WITHIN_S)
            yield 2
            raise AssertionError("nobody wants a third")
        finally:
            closed.set()

    came = arriving(items, 0.5)
    assert next(came) == 1
    with pytest.raises(TimeoutError, match=r"within 0.5 s"):
        next(came)
    goes_on.set()
    assert closed.wait(WITHIN_S)


def test_an_error_comes_after_what_was_before_it() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise OSError("no disk")

    came = arriving(items, WITHIN_S)
    assert next(came) == 1
    with pytest.raises(OSError, match="no disk"):
        next(came)
