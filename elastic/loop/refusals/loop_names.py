"""What do names of a script's loop mean, and attributes of them? A path: a name, and attributes of it, `state.best`."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Mapping
from inspect import getattr_static
from itertools import accumulate
from types import FrameType, MemberDescriptorType
from typing import Any

import numpy as np
import torch

from elastic.loop.refusals.loop_source import Function

UNKNOWN: Any = object()
"""What cannot be told without running something, or is not there yet."""

GLOBALS, FIRST_ARGUMENT = "<globals>", "<first argument>"  # no names that a script could have
_CONTAINERS = (list, dict, set, deque, np.ndarray, torch.Tensor)


def names_of(frame: FrameType, local: Mapping[str, Any]) -> dict[str, Any]:
    """What names mean in a frame with these local variables."""
    code = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else None
    return {**frame.f_globals, **local, GLOBALS: frame.f_globals, FIRST_ARGUMENT: first}


def at(there: Mapping[str, Any], path: str) -> list[Any]:
    """What `a`, `a.b` and `a.b.c` are; UNKNOWN from where one is no plain attribute."""
    root, *attributes = path.split(".")
    found = [there.get(root, UNKNOWN)]
    for attribute in attributes:
        found.append(_attribute(found[-1], attribute))
    return found


def _attribute(thing: Any, name: str) -> Any:
    if isinstance(getattr_static(type(thing), name, None), MemberDescriptorType):
        try:
            return object.__getattribute__(thing, name)  # a slot
        except AttributeError:
            return UNKNOWN
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return UNKNOWN
    for held in (attributes, *(attributes.get(kind) for kind in ("_modules", "_parameters", "_buffers"))):
        if type(held) is dict and name in held:
            return held[name]
    return UNKNOWN


def own_names(function: Function) -> set[str]:
    """Names that mean something of its own in it."""
    inside = [*ast.walk(function)]
    shared = {name for one in inside if isinstance(one, (ast.Global, ast.Nonlocal)) for name in one.names}
    stored = {one.id for one in inside if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    return (stored | {one.arg for one in inside if isinstance(one, ast.arg)}) - shared


def names_in(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def is_container(value: Any) -> bool:
    """Something may be put into it."""
    return issubclass(type(value), _CONTAINERS) or is_metric(value)


def is_metric(value: Any) -> bool:
    """It is updated by batches, and computed in the end, as torchmetrics' and others' are."""
    return all(callable(getattr_static(type(value), name, None)) for name in ("update", "compute", "reset"))


def has_subscript(node: ast.AST) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Subscript)


def paths(name: str) -> list[str]:
    """Of `a.b.c`: a, a.b and a.b.c."""
    return [*accumulate(name.split("."), "{}.{}".format)]
