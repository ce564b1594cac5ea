"""An answer, or none within a time: for whoever waits at a terminal, whatever a client library does meanwhile.

Most libraries have a limit of their own, some of minutes and some of none, and not all of them let anybody set it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def answer_within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises. Raises `TimeoutError` where it does neither in time: it is left to itself then, in
    a thread that ends with the process at the latest."""
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
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return answers.pop()
