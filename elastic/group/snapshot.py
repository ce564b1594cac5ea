"""The buffers of a run as they were when a step began: found, compared with what a share left, and put back.

A buffer is an entry of a module and not a tensor: the update and the code between two steps may change the tensor or
put another one there, and so may a forward pass. Each step begins by looking where the buffers hang now
(state/modules.py), so that all of its shares, on every rank, start from the same values.

A change is found by another tensor, by its version, and by value, since BatchNorm's kernel (torch 2.13) and whatever
goes through `.data` count no version. Buffers above _COMPARED_BYTES are compared whole in the first steps of a view,
and later by _SAMPLED of their elements: a change of a few elements of a large one, through `.data` and later on, is
missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any

import torch

from elastic.state.data_access import same
from elastic.state.modules import BufferEntry, buffer_entries, modules, roots

_COMPARED_BYTES = 1 << 20
_COMPARED_WHOLE = 2  # steps
_SAMPLED = 4096


@dataclass(eq=False)
class Buffer:
    """An entry of a module that holds a buffer.

    name     for people, and for `Update(buffers=)`
    tensor   what hung there when the step began: the object; None: nothing, or the entry was not there
    start    its values then
    """

    name: str
    entry: BufferEntry
    tensor: torch.Tensor | None = None
    start: torch.Tensor | None = None
    _version: int = 0
    _pointer: int = 0
    _sample: torch.Tensor | None = None

    def now(self) -> torch.Tensor | None:
        """Return the tensor that the entry holds now, or None."""
        return self.entry.module._buffers.get(self.entry.attribute)

    def put(self, tensor: torch.Tensor | None) -> None:
        self.entry.module._buffers[self.entry.attribute] = tensor

    @property
    def persistent(self) -> bool:
        return self.entry.attribute not in self.entry.module._non_persistent_buffers_set

    def forget(self) -> None:
        """Remove the entry, which a share has registered."""
        module, attribute = self.entry.module, self.entry.attribute
        module._buffers.pop(attribute, None)
        module._non_persistent_buffers_set.discard(attribute)

    def become(self, value: torch.Tensor, *, persistent: bool) -> None:
        """Put another tensor there; in a new entry, if there was none."""
        module, attribute = self.entry.module, self.entry.attribute
        if attribute in module._buffers:
            self.put(value)
        else:
            module.register_buffer(attribute, value, persistent=persistent)

    def note(self) -> None:
        """Note what the entry holds now as what the step starts from."""
        now = self.now()
        self.tensor = now
        if now is None:
            self.start = None
            return
        if self.start is not None and same_kind(now, self.start):
            self.start.copy_(now)
        else:
            self.start = now.detach().clone()
        self.mark()

    def mark(self) -> None:
        """Note what a change of `tensor` will be known by, as it holds the values of `start`."""
        if self.tensor is not None:
            self._version = self.tensor._version
            if self.tensor.nbytes > _COMPARED_BYTES:
                self._pointer = self.tensor.data_ptr()
                self._sample = _sampled(self.tensor)

    def changed(self, *, whole: bool) -> bool:
        """Return whether the entry differs from the step's start. whole: a large one is compared in all elements."""
        now = self.now()
        if now is not self.tensor:
            return True
        if now is None or self.start is None:
            return False
        if now._version != self._version:
            return True
        if whole or now.nbytes <= _COMPARED_BYTES:
            return not torch.equal(now, self.start)
        if now.data_ptr() != self._pointer or now.shape != self.start.shape:
            return True
        return self._sample is not None and not torch.equal(_sampled(now), self._sample)  # type: ignore[arg-type]


class Snapshot:
    """The buffers of a run as they were when a step began.

    buffers  in the order in which they are found
    lively   of these, those that some share of this rank has changed: kept and put back without a look. Comparing all
             of them twice a share took 1.3 ms of a step of the digits network, 40 ms (measured, 2026-11-21)
    """

    def __init__(self, models: Mapping[str, torch.nn.Module], extra: Mapping[str, Any]) -> None:
        self._models = models
        self._extra = extra
        self._roots: dict[str, torch.nn.Module] = {}
        self._below: list[dict[str, Any]] = []
        self._held: list[Any] = []
        self._names: list[str] = []
        self.walked: list[tuple[str, str, torch.nn.Module]] = []
        self._hanging: list[tuple[torch.nn.Module, str]] = []
        self._entries: list[Mapping[str, Any]] = []
        self._counts: list[int] = []
        self._known: set[Buffer] = set()
        self._still: list[Buffer] = []
        self._begun = 0
        self._open = False
        self.buffers: list[Buffer] = []
        self.lively: list[Buffer] = []
        self._find()

    def begin(self) -> bool:
        """Note what every share of the step starts from. Call with the model in its applied state.

        Returns whether buffers have come or gone since the step before.
        """
        others = self._find()
        with torch.no_grad():
            whole = self._begun < _COMPARED_WHOLE
            for buffer in self._still:
                if buffer.changed(whole=whole):
                    buffer.note()
            self._note_lively()
        self._begun += 1
        self._open = True
        return others

    def stirred(self) -> list[Buffer]:
        """Return the lively buffers, with those that differ from the step's start: they are lively from here on."""
        whole = self._begun <= _COMPARED_WHOLE
        if stirred := [buffer for buffer in self._still if buffer.changed(whole=whole)]:
            gone = set(stirred)
            self.lively = [*self.lively, *stirred]
            self._still = [buffer for buffer in self._still if buffer not in gone]
        if list(map(len, self._entries)) != self._counts:  # a share has registered some
            self.lively = [*self.lively, *self._appeared()]
        return self.lively

    def put_back(self) -> None:
        """Put the lively buffers back as they were at `begin`, after `stirred`."""
        into: list[torch.Tensor] = []
        out_of: list[torch.Tensor] = []
        with torch.no_grad():
            for buffer in self.lively:
                tensor, start = buffer.tensor, buffer.start
                if buffer.now() is not tensor:
                    if buffer not in self._known:
                        buffer.forget()  # a share has registered it
                    else:
                        buffer.put(tensor)
                if tensor is None or start is None:
                    continue
                if tensor.shape != start.shape:
                    tensor.resize_(start.shape)  # a share has resized it in place
                into.append(tensor)
                out_of.append(start)
            if into:
                torch._foreach_copy_(into, out_of)

    def restore(self) -> None:
        """Put all back as it was at `begin`, within a step or what is `untouched`."""
        if self._open:
            self.stirred()
            self.put_back()

    def watched(self, *, closely: bool) -> Callable[[], list[str]]:
        """Return a function that tells which lively buffers have been moved since: see Buffers.watched."""
        noted = [
            (buffer, now, now._version, now.clone() if closely else None)
            for buffer in self.lively
            if (now := buffer.now()) is not None
        ]

        def moved() -> list[str]:
            return [
                buffer.name
                for buffer, then, version, value in noted
                if buffer.now() is not then or then._version != version or (value is not None and not same(value, then))
            ]

        return moved

    def close(self) -> None:
        """End the step: what hangs there from here on is the update's doing, and the script's."""
        self._open = False

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Let what is computed inside move buffers: `restore` puts them back, and so does the end."""
        self.begin()
        try:
            yield
        finally:
            self.restore()
            self.close()

    def at(self, root: str, path: str, attribute: str) -> Buffer | None:
        """Return the buffer of this entry, which only other ranks may have yet; None: there is no such module."""
        for buffer in (*self.buffers, *self.lively):
            if (buffer.entry.root, buffer.entry.path, buffer.entry.attribute) == (root, path, attribute):
                return buffer
        for its_root, its_path, module in self.walked:
            if (its_root, its_path) == (root, path):
                return self._made(BufferEntry(root, path, module, attribute))
        return None

    def _find(self) -> bool:
        """Find where buffers hang now, and return whether some came or went. Known ones stay what they are."""
        found = roots(self._models, self._extra)
        if found != self._roots or not self._are_as_walked():
            self.walked, self._roots = modules(found), found
            self._below = [module._modules for _, _, module in self.walked]
            self._held = list(chain.from_iterable(map(dict.values, self._below)))
            self._names = list(chain.from_iterable(self._below))
        self._entries = [module._buffers for _, _, module in self.walked]
        self._counts = list(map(len, self._entries))
        before_now, self._hanging = self._hanging, [(one, name) for _, _, one in self.walked for name in one._buffers]
        if self._hanging == before_now:
            if not self._known.issuperset(self.lively):
                self.lively = [buffer for buffer in self.lively if buffer in self._known]
            return False
        before = {(id(b.entry.module), b.entry.attribute): b for b in self.buffers}
        self.buffers = [
            before.get((id(entry.module), entry.attribute)) or self._made(entry)
            for entry in buffer_entries(self.walked)
        ]
        self._known = set(self.buffers)
        self.lively = [buffer for buffer in self.lively if buffer in self._known]
        lively = set(self.lively)
        self._still = [buffer for buffer in self.buffers if buffer not in lively]
        for buffer in self._still:
            if buffer.tensor is None:
                buffer.note()
        return True

    def _are_as_walked(self) -> bool:
        """Return whether every module has the same modules below it as before."""
        if not all(map(is_, self._below, [module._modules for _, _, module in self.walked])):
            return False
        held = list(chain.from_iterable(map(dict.values, self._below)))
        if len(held) != len(self._held) or not all(map(is_, held, self._held)):
            return False
        return list(chain.from_iterable(self._below)) == self._names

    def _made(self, entry: BufferEntry) -> Buffer:
        alone = len(self._models) == 1 and entry.root in self._models
        return Buffer(entry.key if alone else f"{entry.root}.{entry.key}", entry)

    def _note_lively(self) -> None:
        """Note the lively buffers, those of the same shape and dtype in one copy."""
        into: list[torch.Tensor] = []
        out_of: list[torch.Tensor] = []
        for buffer in self.lively:
            now = buffer.now()
            if now is None or buffer.start is None or not same_kind(now, buffer.start):
                buffer.note()
            else:
                buffer.tensor = now
                into.append(buffer.start)
                out_of.append(now)
        if into:
            torch._foreach_copy_(into, out_of)

    def _appeared(self) -> list[Buffer]:
        """Return the buffers that a share has registered with their modules."""
        there = {(id(b.entry.module), b.entry.attribute) for b in (*self.buffers, *self.lively)}
        return [
            self._made(entry)
            for entry in buffer_entries(self.walked)
            if (id(entry.module), entry.attribute) not in there
        ]


def same_kind(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _sampled(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return evenly spread elements of a large tensor on the CPU: a look at another device would wait for it."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return tensor.detach().view(-1)[:: max(1, tensor.numel() // _SAMPLED)].clone()
