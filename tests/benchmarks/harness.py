"""A benchmark on its way: how far it is, and what becomes of it when it is interrupted."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, Protocol, TypeVar

Item = TypeVar("Item", covariant=True)


class _SizedIterable(Sized, Iterable[Item], Protocol[Item]): ...


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C or SIGTERM ends what is inside, in order; what follows prints the figures that there are."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print("\ninterrupted; the figures so far:", file=sys.stderr, flush=True)
    finally:
        signal.signal(signal.SIGTERM, before)


def run(main: Callable[[], int | None]) -> NoReturn:
    """Ends this process with main's status; interrupted where there is no figure yet, without a traceback."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\ninterrupted before there was a figure")


def progress(what: str, of: _SizedIterable[Item]) -> Iterator[Item]:
    """On stderr: a line that counts on a terminal, elsewhere a line for each tenth."""
    total, said = len(of), -1
    for done, item in enumerate(of):
        if sys.stderr.isatty():
            print(f"\r\x1b[2K{what}: {done + 1} of {total}", end="", file=sys.stderr, flush=True)
        elif 10 * done // total > said:
            said = 10 * done // total
            print(f"{what}: {done + 1} of {total}", file=sys.stderr, flush=True)
        yield item
    if sys.stderr.isatty():
        print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
