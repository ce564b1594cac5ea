"""Calls functions around each of torch's compilations, for as long as somebody wants it.

torch calls what was registered with it, and forgets all of that at `torch._dynamo.reset()`, which a script may call at
any time, to have its functions compiled anew. What is registered here is registered again at that moment.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

_Callback = Callable[[Any], None]
_watching: list[tuple[_Callback, _Callback]] = []


def watch(*, begins: Callable[[], None], ended: Callable[[], None]) -> Callable[[], None] | None:
    """Have both called around each compilation, until the function returned is. None: no script can compile yet."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is None:
        return None
    handler = dynamo.callback_handler
    callbacks = ((lambda _: begins()), (lambda _: ended()))
    if not _watching:
        handler.clear = partial(_clear, handler)
    _watching.append(callbacks)
    _register(handler, callbacks)
    return partial(_forget, handler, callbacks)


def _register(handler: Any, callbacks: tuple[_Callback, _Callback]) -> None:
    handler.register_start_callback(callbacks[0])
    handler.register_end_callback(callbacks[1])


def _clear(handler: Any) -> None:
    """Forget what is registered, as torch does it, and register again what is still watching."""
    try:
        type(handler).clear(handler)
    finally:  # it forgets, and may raise then
        for callbacks in _watching:
            _register(handler, callbacks)


def _forget(handler: Any, callbacks: tuple[_Callback, _Callback]) -> None:
    _watching.remove(callbacks)
    with contextlib.suppress(ValueError):
        handler.remove_start_callback(callbacks[0])
        handler.remove_end_callback(callbacks[1])
    if not _watching:
        del handler.clear
