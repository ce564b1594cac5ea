"""Which modules does a run know, and where do their buffers hang? Looked up anew at every step: scripts change them.

Known are the models, and what `extra=` holds: modules, objects that hold modules (an average with a `.module`, a
trainer with several), and those in their lists, tuples and dicts. Not looked into: optimizers, schedulers, containers
of more than CONTAINER_MAX items (replay buffers), and what hangs deeper than DEPTH_MAX objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

CONTAINER_MAX = 64
DEPTH_MAX = 3
_OPAQUE = (
    torch.Tensor,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.optim.lr_scheduler.ReduceLROnPlateau,
    str,
    bytes,
    int,
    float,
    type,
)


class BufferEntry(NamedTuple):
    """An entry of a module that may hold a buffer.

    root  the name of what it was found under: of a model, or `extra.` and that of the object
    path  from there to the module, in the words of its state_dict
    """

    root: str
    path: str
    module: torch.nn.Module
    attribute: str

    @property
    def key(self) -> str:
        """Return the entry's key in the state_dict of the root."""
        return f"{self.path}.{self.attribute}" if self.path else self.attribute


def roots(models: Mapping[str, torch.nn.Module], extra: Mapping[str, Any]) -> dict[str, torch.nn.Module]:
    """Return every module that the run was handed, by name, without the modules below them."""
    return {**models, **{f"extra.{name}": module for name, module in held(extra, DEPTH_MAX).items()}}


def held(things: Mapping[str, Any], depth: int) -> dict[str, torch.nn.Module]:
    """Return the modules that these things are, or hold within `depth` objects, by name and path."""
    return {f"{name}{path}": module for name, thing in things.items() for path, module in _held(thing, depth, set())}


def modules(found: Mapping[str, torch.nn.Module]) -> list[tuple[str, str, torch.nn.Module]]:
    """Return (root, path, module) of all that hang below the roots, each once. Takes 0.2 µs for each."""
    seen: set[int] = set()
    walked: list[tuple[str, str, torch.nn.Module]] = []
    for root, top in found.items():
        waiting: list[tuple[str, torch.nn.Module]] = [("", top)]
        while waiting:
            path, module = waiting.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            walked.append((root, path, module))
            for name, child in reversed(module._modules.items()):
                if child is not None:
                    waiting.append((f"{path}.{name}" if path else name, child))
    return walked


def buffer_entries(walked: list[tuple[str, str, torch.nn.Module]]) -> list[BufferEntry]:
    """Return the modules' entries for buffers, those that hold None, too."""
    return [BufferEntry(root, path, module, name) for root, path, module in walked for name in module._buffers]


def extra_states(walked: list[tuple[str, str, torch.nn.Module]]) -> list[tuple[str, str, torch.nn.Module]]:
    """Return (root, key in its state_dict, module) of the modules that have an extra state, as torch calls it."""
    none = torch.nn.Module.get_extra_state
    return [
        (root, f"{path}._extra_state" if path else "_extra_state", module)
        for root, path, module in walked
        if module.__class__.get_extra_state is not none  # of a proxy, which is of another type, that of what it is for
    ]


def _held(thing: Any, depth: int, seen: set[int]) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield (path, module) of the modules that an object holds, with the path that leads to them."""
    if isinstance(thing, torch.nn.Module):
        yield "", thing
        return
    if depth == 0 or isinstance(thing, _OPAQUE) or id(thing) in seen:
        return
    seen.add(id(thing))
    entries: Mapping[Any, Any]
    if isinstance(thing, (list, tuple)):
        entries = dict(enumerate(thing)) if len(thing) <= CONTAINER_MAX else {}
    elif isinstance(thing, dict):
        entries = thing if len(thing) <= CONTAINER_MAX else {}
    else:
        entries = getattr(thing, "__dict__", {})
    for key, value in list(entries.items()):
        if isinstance(value, torch.nn.Module):
            yield f".{key}", value
        elif depth > 1 and not isinstance(value, _OPAQUE):
            for path, module in _held(value, depth - 1, seen):
                yield f".{key}{path}", module
