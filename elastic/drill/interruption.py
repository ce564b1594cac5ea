"""How a drill ends on a signal: SIGINT, SIGTERM and SIGHUP raise Interrupted, and nothing interrupts clearing away."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the drill to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP raise Interrupted."""

    def raised(number: int, _: FrameType | None) -> None:
        raise Interrupted(number)

    with _handled(dict.fromkeys(_SIGNALS, raised)):
        yield


@contextlib.contextmanager
def undisturbed_by_signals() -> Iterator[None]:
    """While everything is being cleared away, which takes a moment."""
    with _handled(dict.fromkeys(_SIGNALS, signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handled(
    handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], None] | signal.Handlers],
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
