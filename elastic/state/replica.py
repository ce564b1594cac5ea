"""Is what this worker trains still what the others train? Compared as a step begins.

Equal gradients give equal weights where they began equal. What a script does between two steps on the coordinator
alone, or by its own share's loss, leaves every worker with a model of its own, and nothing would say so: gradients are
summed as before, and a save holds the coordinator's.

    at every step    which modules are in train mode, what modules keep in plain attributes, what objects in `extra=`
                     hold, and in turn _WEIGHTS weights and _OTHERS of what optimizers keep, and of buffers: of each
                     tensor _WINDOW bytes, the next ones when it comes by again
    at the end       all of it, to the bit

So a small model is compared whole within a few steps; in a large one a change of all weights is found at once, and
that of a single layer when it comes by. Tensors on another device than the CPU are compared at the end: a look at them
would wait for it.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
import xxhash
from torch.optim.lr_scheduler import LRScheduler

import checkpoint
from elastic.state.trained_set import TrainedSet

_WEIGHTS, _OTHERS = 8, 4  # 30 µs, most of it Python (measured, 2026-11-27)
_WINDOW = 4096
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
_WEIGHT, _KEPT, _BUFFER, _ATTRIBUTE, _OBJECT = "weight", "optimizer state of", "buffer", "attribute", "extra"

T = TypeVar("T")
Tensors = Callable[[], Iterable[Any]]
Hanging = Sequence[tuple[str, Callable[[], Any]]]
Walked = Sequence[tuple[str, str, torch.nn.Module]]


class Replica:
    """
    optimizers  whose state is compared
    extra       what the script has the run carry; its modules come with `follow`, and schedules are settings
    values      whether equal bits are to be had: not where workers may differ in how they compute
    """

    def __init__(
        self, optimizers: Mapping[str, torch.optim.Optimizer], extra: Mapping[str, Any], *, values: bool
    ) -> None:
        self._values = values
        self._optimizers = optimizers
        self._objects = {
            name: thing
            for name, thing in extra.items()
            if not isinstance(thing, (torch.nn.Module, LRScheduler))
            and not getattr(thing, "counts_before_steps", False)
        }
        self._trained: TrainedSet | None = None
        self._buffers: Hanging = ()
        self._walked: Walked = ()
        self._weights: list[tuple[str, Any]] = []
        self._others: list[tuple[str, Tensors]] = []

    def follow(self, trained: TrainedSet, buffers: Hanging, walked: Walked) -> None:
        """What there is from this step on; nothing to do for the objects of the step before.

        buffers  what hangs under each name
        walked   all modules, those in `extra=`, too
        """
        if trained is self._trained and buffers is self._buffers and walked is self._walked:
            return
        self._trained, self._buffers, self._walked = trained, buffers, walked
        known = set(map(id, trained.parameters))
        of_extra = [
            (f"{root}.{path}.{name}" if path else f"{root}.{name}", weight)
            for root, path, module in walked
            for name, weight in module._parameters.items()
            if weight is not None and id(weight) not in known
        ]
        weights = [*zip(trained.names, trained.parameters, strict=True)]
        self._weights = [*weights, *of_extra]
        self._others = [
            *((f"{_KEPT} {name}", self._kept(one)) for name, one in weights),
            *((f"{_BUFFER} {name}", _single(now)) for name, now in buffers),
        ]

    def digest(self, step: int, attributes: Mapping[str, str]) -> int:
        """63 bits of what is compared at this step, never 0. attributes: see PlainAttributes.at_begin"""
        hasher = xxhash.xxh3_64(repr(attributes).encode() if attributes else b"")
        if self._values:
            for lap, (_, weight) in _in_turn(self._weights, _WEIGHTS, step):
                hasher.update(_window(weight, lap))
            for lap, (_, tensors) in _in_turn(self._others, _OTHERS, step):
                for tensor in tensors():
                    hasher.update(_window(tensor, lap))
        for name, thing in self._objects.items():
            document, kept = checkpoint.encode(thing.state_dict())
            hasher.update(json.dumps([name, document]).encode())
            for lap, tensor in _in_turn([*kept.values()], _OTHERS, step) if self._values else ():
                hasher.update(_window(tensor, lap))
        return hasher.intdigest() >> 1 or 1

    def parts(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """All that is compared, whole: name -> what is equal where it is the same to the bit."""
        found = {f"{_ATTRIBUTE} {name}": one for name, one in attributes.items()}
        if self._values:
            found |= {f"{_WEIGHT} {name}": _of_tensors((weight,)) for name, weight in self._weights}
            found |= {name: _of_tensors(tensors()) for name, tensors in self._others}
        return found | {f"{_OBJECT} {name!r}": self._of_object(thing) for name, thing in self._objects.items()}

    def _of_object(self, thing: Any) -> str:
        document, tensors = checkpoint.encode(thing.state_dict())
        return json.dumps([document, _of_tensors(tensors.values()) if self._values else ""])

    def _kept(self, parameter: torch.nn.Parameter) -> Tensors:
        states = [optimizer.state for optimizer in self._optimizers.values()]

        def kept() -> Iterable[Any]:
            return chain.from_iterable(
                state[parameter].values() for state in states if isinstance(state.get(parameter), dict)
            )

        return kept


def digest_of(parts: Mapping[str, str]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """The names of what differs."""
    return [name for name in {**here, **there} if here.get(name) != there.get(name)]


def _single(now: Callable[[], Any]) -> Tensors:
    return lambda: (now(),)


def _in_turn(entries: Sequence[T], most: int, step: int) -> Iterator[tuple[int, T]]:
    """Those of this step, and how often all came by before."""
    count = min(most, len(entries))
    for number in range(step * count, (step + 1) * count):
        lap, entry = divmod(number, len(entries))
        yield lap, entries[entry]


def _window(tensor: Any, lap: int) -> Any:
    """_WINDOW of its bytes, others in every lap; all of them where they are few."""
    if not _is_plain(tensor) or not tensor.is_cpu:
        return b""
    size = tensor.nbytes
    if not size:
        return b""
    start = lap * _WINDOW % size // tensor.element_size() * tensor.element_size() if size > _WINDOW else 0
    stop = min(start + _WINDOW, size)
    if tensor.is_contiguous():
        # numpy() would do, but for a tensor whose memory numpy has seen torch refuses ever to resize it
        return (ctypes.c_char * (stop - start)).from_address(tensor.data_ptr() + start)
    row = size // len(tensor)
    first = start // row
    return _bytes(tensor[first : -(-stop // row)])[start - first * row : stop - first * row]


def _bytes(tensor: torch.Tensor) -> Any:
    """In the order of its elements, whatever its layout."""
    copy = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return copy.reshape(-1).view(torch.uint8).numpy().data if copy.numel() else b""


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN_TENSORS and value.layout is torch.strided


def _of_tensors(values: Iterable[Any]) -> str:
    said = []
    for value in values:
        if isinstance(value, torch.Tensor):
            said.append(xxhash.xxh3_64_hexdigest(_bytes(value)) if _is_plain(value) else type(value).__name__)
        else:
            said.append(repr(value) if isinstance(value, (int, float)) else "")
    return " ".join(said)
