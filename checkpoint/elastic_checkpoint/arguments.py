"""What is wrong with an argument, in one form: what was found, what was expected. None: nothing is.

Of any type, for people give what they like. `Checkpointer` raises it by `refuse`, `elastic.Run` as its own error.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from elastic_checkpoint.errors import CheckpointError


def refuse(*wrong: str | None) -> None:
    """Raise CheckpointError for the first that says something."""
    for text in wrong:
        if text is not None:
            raise CheckpointError(f"{text}\n  state  nothing was read or written")


def count(name: str, given: Any, meaning: str, *, none: bool = False, bound: bool = False) -> str | None:
    """Return what is wrong with a count, or None.

    none   whether it may be None
    bound  it is only compared with: 8e9 is as good as 8 * 10**9 then, and so is infinity
    """
    is_number = isinstance(given, numbers.Real if bound else numbers.Integral) and not isinstance(given, bool)
    if (given is None and none) or (is_number and given >= 1):
        return None
    return f"{name}={given!r}; expected {meaning}, an integer of 1 or more{', or None' if none else ''}"


def seconds(name: str, given: Any, *, zero: bool = True) -> str | None:
    """Return what is wrong with a number of seconds, or None.

    zero  whether it may be 0
    """
    is_number = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if is_number and (given > 0 or (zero and given == 0)):
        return None
    return f"{name}={given!r}; expected a number of seconds{', 0 or more' if zero else ' above 0'}"


def choice(name: str, given: Any, *choices: str) -> str | None:
    """Return what is wrong with a choice, or None."""
    if isinstance(given, str) and given in choices:
        return None
    *others, last = map(repr, choices)
    return f"{name}={given!r}; expected {', '.join(others)} or {last}"


def flag(name: str, given: Any) -> str | None:
    """Return what is wrong with a flag, or None; NumPy's are taken, too, and nothing else, as "no" would be true."""
    return None if type(given).__name__ in ("bool", "bool_") else f"{name}={given!r:.60}; expected True or False"


def step(name: str, given: Any) -> str | None:
    """Return what is wrong with the step of a checkpoint, or None."""
    wrong = whole(name, given)
    if wrong is None and (given is None or given >= 0):
        return None
    return f"{name}={given!r:.60}; expected a number of steps, an integer of 0 or more, or None"


def whole(name: str, given: Any) -> str | None:
    """Return what is wrong with an integer that may be None, or None."""
    if not isinstance(given, bool) and (given is None or isinstance(given, numbers.Integral)):
        return None
    return f"{name}={given!r:.60}; expected an integer, or None"


def some(name: str, given: Any, what: str) -> str | None:
    return None if isinstance(given, Iterable) else f"{name}={given!r:.60}; expected {what}"


def keeping(keep: Any, keep_every: Any, keep_multiple: Any = None) -> str | None:
    """Return what is wrong with the arguments that say which checkpoints stay, or None."""
    return (
        count("keep", keep, "how many checkpoints stay")
        or count("keep_every", keep_every, "a number of steps, of which the first checkpoint stays for good", none=True)
        or count("keep_multiple", keep_multiple, "a number of steps, of whose multiples the newest stays", none=True)
    )


def options(name: str, given: Any) -> str | None:
    """Return what is wrong with storage options, or None; show none of them, for they may be confidential."""
    if given is None or (isinstance(given, Mapping) and all(isinstance(key, str) for key in given)):
        return None
    return f"{name}={type(given).__name__}; expected a dict from names to values"
