"""Buffers as the last update left them, for a worker that still has to run the script's code after it.

That code may change a model's buffers (a temperature that falls, a queue), in place or by putting another tensor there.
What applied.py does for `extra=` would cost too much here: there are many buffers, most of them small, and no way of
changing them may be missed. So small ones are copied after each update, which takes 0.3 µs for each, and of large ones
the tensor and its version are noted; one that was ever seen to change between two steps is copied from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from elastic.state.modules import BufferEntry, buffer_entries, modules
from elastic.state.reached import same

_COPIED_BYTES = 1 << 20
Key = tuple[str, str]


class Rewound:
    """Of the modules by name, each on its own: what two of them share is in the state of both."""

    def __init__(self) -> None:
        self._lively: set[Key] = set()
        self._noted: dict[Key, tuple[torch.Tensor | None, int]] = {}
        self._copies: dict[Key, torch.Tensor] = {}

    def note(self, roots: Mapping[str, torch.nn.Module], *, whole: bool = False) -> None:
        """The end of an update. whole: large ones are copied, too"""
        before, self._copies, self._noted = self._copies, {}, {}
        into: list[torch.Tensor] = []
        out_of: list[torch.Tensor] = []
        for key, entry in _hanging(roots):
            now = entry.module._buffers[entry.attribute]
            self._noted[key] = now, 0 if now is None else now._version
            if now is None or not (whole or now.nbytes <= _COPIED_BYTES or key in self._lively):
                continue
            copy = before.get(key)
            if copy is None or copy.shape != now.shape or copy.dtype != now.dtype:
                copy = torch.empty_like(now, requires_grad=False)
            self._copies[key] = copy
            into.append(copy)
            out_of.append(now)
        if into:
            with torch.no_grad():
                torch._foreach_copy_(into, out_of)

    def look(self, roots: Mapping[str, torch.nn.Module]) -> None:
        """The beginning of the next update: what has changed since `note`, the script's own code has changed."""
        self._lively |= self._changed(roots)

    def known(self, roots: Mapping[str, torch.nn.Module]) -> bool:
        """Whether `state` can give all of them."""
        return not self._changed(roots)

    def changed(self, roots: Mapping[str, torch.nn.Module]) -> list[str]:
        """The names of those that are not as they were at `note`, by value where there is a copy."""
        now = {key: entry.module._buffers[entry.attribute] for key, entry in _hanging(roots)}
        still = {
            key
            for key, (tensor, version) in self._noted.items()
            if key in now
            and (
                now[key] is tensor and same(self._copies[key], tensor)
                if tensor is not None and key in self._copies
                else _is_still(now[key], tensor, version)
            )
        }
        return [".".join(key) for key in {**self._noted, **now} if key not in still]

    def state(self, root: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state of a module, or a part of it, with its buffers as they were at `note`. Ask `known` first."""
        ties: dict[tuple[int, int], torch.Tensor] = {}
        found = dict(state)
        for (its_root, key), copy in self._copies.items():
            now = self._noted[its_root, key][0]
            if its_root == root and key in state and now is not None:
                found[key] = ties.setdefault((now.data_ptr(), now.nbytes), copy) if now.nbytes else copy
        for key in state:
            if (root, key) in self._noted and self._noted[root, key][0] is None:
                del found[key]
        return found

    def _changed(self, roots: Mapping[str, torch.nn.Module]) -> set[Key]:
        """Large ones that are not what they were, and of which there is no copy."""
        large = {key for key, (tensor, _) in self._noted.items() if tensor is not None and key not in self._copies}
        if not large:
            return large
        now = {key: entry.module._buffers[entry.attribute] for key, entry in _hanging(roots) if key in large}
        return {key for key in large if not _is_still(now.get(key), *self._noted[key])}


def _is_still(now: torch.Tensor | None, noted: torch.Tensor | None, version: int) -> bool:
    return now is noted and (now is None or now._version == version)


def _hanging(roots: Mapping[str, torch.nn.Module]) -> list[tuple[Key, BufferEntry]]:
    found: list[tuple[Key, BufferEntry]] = []
    for name, module in roots.items():
        found += [((name, entry.key), entry) for entry in buffer_entries(modules({name: module}))]
    return found
