"""An answer, or none within a time: for whoever waits at a terminal, whatever a client library does meanwhile.

Most libraries have a limit of their own, some of minutes and some of none, and not all of them let anybody set it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import thread as pools
from typing import TypeVar

T = TypeVar("T")


def answer_within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises. Raises `TimeoutError` where it does neither in time: it is left to itself then, in
    a thread that ends with the process at the latest, and so are those in which its client looks names up."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def asks() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=asks, name="checkpoint-answer", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if errors:
        raise errors.pop()
    if not answers:
        _let_end()
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answers.pop()


def _let_end() -> None:
    """The end of an interpreter joins every pool's threads, daemons too (CPython 3.10 to 3.14): of asyncio's pool that
    is here whoever waits for a resolver that does not answer, as long as that may take."""
    for one in list(pools._threads_queues):
        if one.daemon and one.name.startswith("asyncio"):
            pools._threads_queues.pop(one, None)  # type: ignore[attr-defined]
