"""How a drill ends on a signal: SIGINT, SIGTERM and SIGHUP raise Interrupted, and nothing interrupts clearing away."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(BaseException):
    """A signal asked the drill to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise Interrupted on SIGINT, SIGTERM and SIGHUP, inside the with-block."""

    def raised(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled_by(raised):
        yield


@contextlib.contextmanager
def undisturbed_by_signals() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP while everything is being cleared away, which takes a moment."""
    with _handled_by(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
