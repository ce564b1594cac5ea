"""The variables that the loop's body can name.

Those of the functions that the loop stands in, and the globals that these name, or functions of the script that they
call. Random generators among them draw by place; and where a share that was passed twice gave other bits, those that
its body has changed are named in the error.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import CO_OPTIMIZED
from itertools import islice
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any
from weakref import ProxyTypes

import numpy as np
import torch

_FRAMES_MAX = 6
_FUNCTIONS = 32
_OWN = "elastic"
_BYTES_MAX = 1 << 16
_HELD_HERE = 3  # by the frame, by a variable, and as what is asked about
_NO_STATE = (type, ModuleType, FunctionType)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def variables() -> dict[str, Any]:
    """Return name -> value of what the loop's body can name; call it while the script waits for its next batch.

    `self` counts by its attributes.
    """
    found: dict[str, Any] = {}
    for frame in islice(_frames(), _FRAMES_MAX):
        functions, seen = [frame.f_code], set[CodeType]()
        local = _locals_of(frame)
        known = {**frame.f_globals, **local}
        names = [*local]
        while functions and len(seen) < _FUNCTIONS:
            code = functions.pop()
            seen.add(code)
            names += code.co_names
            called = [known[name] for name in code.co_names if isinstance(known.get(name), FunctionType)]
            functions += [
                one.__code__ for one in called if one.__globals__ is frame.f_globals if one.__code__ not in seen
            ]
        for name in dict.fromkeys(names):
            value = known.get(name)
            if type(value) in ProxyTypes:  # what it stands for is others', and may be gone
                continue
            if name not in known or name.startswith("__") or isinstance(value, _NO_STATE) or _is_own(type(value)):
                continue
            found.setdefault(name, value)
            if name == "self":
                found |= {f"self.{key}": one for key, one in getattr(value, "__dict__", {}).items()}
    return found


def generators() -> dict[str, Any]:
    """Return the random generators among these variables, by name."""
    return {name: value for name, value in variables().items() if isinstance(value, _GENERATORS)}


def values(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return for each variable what tells that it has changed, as far as that is quickly told."""
    return {name: _value(value) for name, value in found.items()}


def _frames() -> Iterator[FrameType]:
    """Yield the script's frames, from the loop outwards to the script's first line."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != _OWN:
            yield frame
            if frame.f_code.co_name == "<module>":
                return
        frame = frame.f_back


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a function's variables, and leave nothing with its frame that would keep them alive."""
    there = frame.f_locals
    local = dict(there)
    # Before Python 3.13 those of a function are a copy, which stays with the frame, and with it the last outputs. It is
    # also what locals() gave the script, and is left alone where the script has kept that.
    if sys.version_info < (3, 13) and frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(there) <= _HELD_HERE:
        there.clear()
    return local


def _is_own(kind: type) -> bool:
    """Return whether a type is elastic's and not the script's."""
    return kind.__module__.partition(".")[0] == _OWN


def _value(value: Any) -> Any:
    """Return the value as text where it is small and plain, else what tells one object and its versions apart."""
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (list, dict, set, deque)):
        return id(value), len(value)
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return id(value), value.tobytes() if value.nbytes <= _BYTES_MAX else None
    return id(value)
