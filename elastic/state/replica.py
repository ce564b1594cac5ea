"""Is what this worker trains still what the others train? Compared as a step begins, and before saves.

Equal gradients give equal weights where they began equal. What a script does between two steps on the coordinator
alone, or by its own share's loss, leaves every worker with a model of its own, and nothing would say so: gradients are
summed as before, and a save holds the coordinator's.

    at every step    which modules there are, and which are in train mode; and in turn _WEIGHTS weights and _OTHERS of
                     what optimizers keep, and of buffers: of each tensor _WINDOW bytes, the next ones when it comes by
                     again
    before a save    all of these to the bit, and modules' extra states, as torch calls them
    of `extra=`      modules as the models; other objects by what their state_dict holds, of which people are told where
                     it differs: nothing says that it must not

So a small model is compared whole within a few steps; in a large one a change of all weights is found at once, and that
of a single layer when it comes by. Tensors on another device than the CPU are compared before saves: a look at them
would wait for it. Not compared are a scaler, and what an optimizer keeps under no parameter or in no tensor or number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
import xxhash
from torch.optim.lr_scheduler import LRScheduler

from elastic.state.bits import memory, sum_of_bits, update
from elastic.state.modules import extra_states
from elastic.state.normal_form import PLAIN_TENSORS, as_text, is_readable, normal_form
from elastic.state.sharding import local
from elastic.state.trained_set import TrainedSet

_WEIGHTS, _OTHERS = 8, 4  # about 50 µs, most of it Python (measured, 2026-11-27)
_WINDOW = 4096
_WEIGHT, _KEPT, _BUFFER, _MODULE = "weight", "optimizer state of", "buffer", "module"
_EXTRA, _OBJECT = "module state", "extra"
_NEXT = """\
  next   what changes a model or its optimizer between two steps must do the same on every worker: not under
         `if run.is_coordinator:`, nor by loss.item(), which is of its own share (run.sums is of the whole batch);
         a script that does nothing of the kind: the memory, or the processor, of the machine is damaged"""
_KEEP = """
         what a module only notes, update=Update(buffers={{{name!r}: 'keep'}}) puts back and leaves out"""

T = TypeVar("T")
Tensors = Callable[[], Iterable[Any]]
Hanging = Sequence[tuple[str, Callable[[], Any]]]
Walked = Sequence[tuple[str, str, torch.nn.Module]]
Parts = Mapping[str, str]


class Replica:
    """The state of one worker as it is compared with the others', for as long as its session is open.

    optimizers  whose state is compared
    extra       what the script has the run carry; its modules come with `follow`, and schedules are settings
    values      whether equal bits are to be had: not where workers may differ in how they compute. Then only modules
                and their modes are compared
    """

    def __init__(
        self,
        optimizers: Mapping[str, torch.optim.Optimizer],
        extra: Mapping[str, Any],
        *,
        values: bool,
    ) -> None:
        self.values = values
        self._optimizers = optimizers
        self._objects = {
            name: thing
            for name, thing in extra.items()
            if values
            and not isinstance(thing, (torch.nn.Module, LRScheduler))
            and not getattr(thing, "counts_before_steps", False)
        }
        self.apart: set[str] = set()
        self._trained: TrainedSet | None = None
        self._buffers: Hanging = ()
        self._walked: Walked = ()
        self._modules: list[torch.nn.Module] = []
        self._classes = b""
        self._extra_states: list[tuple[str, torch.nn.Module]] = []
        self._weights: list[tuple[str, Callable[[], Any]]] = []
        self._others: list[tuple[str, Tensors]] = []

    def follow(self, trained: TrainedSet, buffers: Hanging, walked: Walked) -> None:
        """Compare these from this step on; returns at once for the objects of the step before.

        buffers  what hangs under each name
        walked   all modules, those in `extra=`, too
        """
        if trained is self._trained and buffers is self._buffers and walked is self._walked:
            return
        self._trained, self._buffers, self._walked = trained, buffers, walked
        self._modules = [module for *_, module in walked]
        self._classes = " ".join(type(module).__qualname__ for module in self._modules).encode()
        self._extra_states = [(f"{_EXTRA} {root}.{key}", one) for root, key, one in extra_states([*walked])]
        known = set(map(id, trained.parameters))
        of_extra = [
            (f"{root}.{path}.{name}" if path else f"{root}.{name}", _entry(module, name))
            for root, path, module in walked
            for name, weight in module._parameters.items()
            if weight is not None and id(weight) not in known
        ]
        weights = [*zip(trained.names, trained.parameters, strict=True)]
        self._weights = [*((name, _itself(one)) for name, one in weights), *of_extra]
        self._others = [
            *((f"{_KEPT} {name}", self._kept(one)) for name, one in weights),
            *((f"{_BUFFER} {name}", _single(now)) for name, now in buffers),
        ]

    def digest(self, step: int) -> int:
        """Return 63 bits of what is compared at this step, never 0."""
        hasher = xxhash.xxh3_64(self._classes)
        hasher.update(bytes(bool(module.training) for module in self._modules))
        if self.values:
            for lap, (_, weight) in _in_turn(self._weights, _WEIGHTS, step):
                hasher.update(_window(weight(), lap))
            for lap, (_, tensors) in _in_turn(self._others, _OTHERS, step):
                for tensor in tensors():
                    hasher.update(_window(tensor, lap))
        for name, thing in self._compared():
            held: list[torch.Tensor] = []
            hasher.update(json.dumps([name, normal_form(thing.state_dict(), held.append)]).encode())
            for lap, tensor in _in_turn(held, _OTHERS, step):
                hasher.update(_window(tensor, lap))
        return hasher.intdigest() >> 1 or 1  # it travels as an int64

    def parts(self) -> dict[str, str]:
        """Return all that is compared, whole: name -> text that is equal where it is the same to the bit."""
        found = {
            f"{_MODULE} {root}.{path}" if path else f"{_MODULE} {root}": (
                f"{type(module).__qualname__} in {'train' if module.training else 'eval'} mode"
            )
            for root, path, module in self._walked
        }
        if self.values:
            found |= {f"{_WEIGHT} {name}": _of_tensors((weight(),)) for name, weight in self._weights}
            found |= {name: _of_tensors(tensors()) for name, tensors in self._others}
            found |= {name: as_text(one.get_extra_state()) for name, one in self._extra_states}
        for name, thing in self._compared():
            held: list[torch.Tensor] = []
            form = normal_form(thing.state_dict(), held.append)
            found[_told_of(_OBJECT, name)] = json.dumps([form, _of_tensors(held)])
        return found

    def leave_out(self, told: Iterable[str]) -> None:
        """Compare these no more, which `told_of` gave: that they differ is known."""
        self.apart.update(told)

    def _compared(self) -> Iterator[tuple[str, Any]]:
        return ((name, one) for name, one in self._objects.items() if _told_of(_OBJECT, name) not in self.apart)

    def _kept(self, parameter: torch.nn.Parameter) -> Tensors:
        """Return a function that gives what the optimizers keep of a parameter by then."""
        states = [optimizer.state for optimizer in self._optimizers.values()]

        def kept() -> Iterable[Any]:
            return chain.from_iterable(
                state[parameter].values() for state in states if isinstance(state.get(parameter), dict)
            )

        return kept


def digest_of(parts: Parts) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(parts).encode())


def difference(all_parts: Sequence[Parts]) -> list[str]:
    """Return the names of what is not the same everywhere."""
    names = dict.fromkeys(chain.from_iterable(all_parts))
    return [name for name in names if len({parts.get(name) for parts in all_parts}) > 1]


def of_memory(names: Sequence[str]) -> bool:
    """Return whether all of these are weights, optimizer state or buffers, which a damaged machine may change."""
    return all(name.startswith((f"{_WEIGHT} ", f"{_KEPT} ", f"{_BUFFER} ")) for name in names)


def who_differs(
    all_parts: Sequence[Any], few: Collection[int], hosts: Sequence[str], *, what: str = "another one"
) -> str:
    """Say which ranks hold something else. few: those alone with what they hold; none if nobody knows who is right."""
    few = few or [rank for rank, parts in enumerate(all_parts) if parts != all_parts[0]]
    first = next(rank for rank in range(len(all_parts)) if rank not in few)
    many = [rank for rank, parts in enumerate(all_parts) if parts == all_parts[first]]
    named = ", ".join(f"rank {rank} (on {hosts[rank]})" for rank in sorted(few))
    return f"{named} hold{'s' if len(few) == 1 else ''} {what} than rank {', '.join(map(str, many))}"


def told_of(names: Sequence[str]) -> list[str] | None:
    """Return these names if all are of objects in `extra=`, which may differ; else None."""
    return [*names] if all(name.startswith(_told_of(_OBJECT, "")) for name in names) else None


def _told_of(kind: str, name: str) -> str:
    return f"{kind} {name}"


def advice(names: Sequence[str]) -> str:
    """Return the lines of an error that say what to do where these differ."""
    noted = [name.removeprefix(f"{_BUFFER} ") for name in names if name.startswith(f"{_BUFFER} ")]
    return _NEXT + (_KEEP.format(name=noted[0]) if noted else "")


def _itself(tensor: torch.Tensor) -> Callable[[], Any]:
    return lambda: tensor


def _entry(module: torch.nn.Module, name: str) -> Callable[[], Any]:
    return lambda: module._parameters.get(name)


def _single(now: Callable[[], Any]) -> Tensors:
    return lambda: (now(),)


def _in_turn(entries: Sequence[T], most: int, step: int) -> Iterator[tuple[int, T]]:
    """Yield the entries whose turn it is at this step, each with how often it had its turn before."""
    count = min(most, len(entries))
    for number in range(step * count, (step + 1) * count):
        lap, entry = divmod(number, len(entries))
        yield lap, entries[entry]


def _window(tensor: Any, lap: int) -> Any:
    """Return _WINDOW bytes of this worker's part of a tensor on the CPU, others in every lap; all of a small one."""
    tensor = local(tensor)
    if type(tensor) not in PLAIN_TENSORS or not tensor.is_cpu or tensor.layout is not torch.strided or tensor.is_nested:
        return b""
    size, unit = tensor.nbytes, tensor.element_size()
    start = lap * _WINDOW % size // unit * unit if size > _WINDOW else 0
    stop = min(start + _WINDOW, size)
    if tensor.is_contiguous():
        return memory(tensor, start, stop)
    if not is_readable(tensor):
        return b""
    elements = torch.arange(start // unit, stop // unit)
    return _bytes(tensor.detach()[torch.unravel_index(elements, tensor.shape)])


def _bytes(tensor: torch.Tensor) -> Any:
    """Return a tensor's bytes in the order of its elements, whatever its layout."""
    copy = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    return copy.reshape(-1).view(torch.uint8).numpy().data if copy.numel() else b""


def _of_tensor(value: torch.Tensor) -> str:
    """Return a digest of the bits of this worker's part of a tensor; of one that cannot be read, its type's name."""
    value = local(value)
    if not is_readable(value):
        return type(value).__name__
    if not value.is_cpu:
        return str(int(sum_of_bits(value)))
    hasher = xxhash.xxh3_64()
    update(hasher, value)
    return hasher.hexdigest()


def _of_tensors(values: Iterable[Any]) -> str:
    said = []
    for value in values:
        if isinstance(value, torch.Tensor):
            said.append(_of_tensor(value))
        else:
            said.append(float(value).hex() if isinstance(value, (int, float)) else "")
    return " ".join(said)
