"""Buffers as the last update left them, for a worker that still has to run the script's code after it.

That code may change a model's buffers (a temperature that falls, a queue), in place or by putting another tensor there.
What applied.py does for `extra=` would cost too much here: there are many buffers, most of them small, and no way of
changing them may be missed. So small ones are copied after each update, which takes 0.3 µs for each, and of large ones
the tensor and its version are noted; one that was ever seen to change between two steps is copied from then on.
Modules' extra states, what torch's get_extra_state gives, are copied likewise.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from elastic.state.data_access import same
from elastic.state.modules import BufferEntry, buffer_entries, extra_states, modules
from elastic.state.normal_form import as_text

_COPIED_BYTES = 1 << 20
Key = tuple[str, str]


class Rewound:
    """The buffers of modules by name, each module on its own: what two of them share is in the state of both."""

    def __init__(self) -> None:
        self._lively: set[Key] = set()
        self._noted: dict[Key, tuple[torch.Tensor | None, int]] = {}
        self._copies: dict[Key, torch.Tensor] = {}
        self._extra: dict[Key, Any] = {}

    def note(self, roots: Mapping[str, torch.nn.Module], *, whole: bool = False) -> None:
        """Note the buffers at the end of an update, with copies of small and changing ones, or of all (`whole`)."""
        before, self._copies, self._noted = self._copies, {}, {}
        self._extra = {key: copy.deepcopy(state) for key, state in _extra_states(roots)}
        into: list[torch.Tensor] = []
        out_of: list[torch.Tensor] = []
        for key, entry in _hanging(roots):
            now = entry.module._buffers[entry.attribute]
            self._noted[key] = now, 0 if now is None else now._version
            if now is None or not (whole or now.nbytes <= _COPIED_BYTES or key in self._lively):
                continue
            kept = before.get(key)  # its memory is used again
            if kept is None or kept.shape != now.shape or kept.dtype != now.dtype:
                kept = torch.empty_like(now, requires_grad=False)
            self._copies[key] = kept
            into.append(kept)
            out_of.append(now)
        if into:
            with torch.no_grad():
                torch._foreach_copy_(into, out_of)

    def update_begins(self, roots: Mapping[str, torch.nn.Module]) -> None:
        """Find what the script has changed since `note`, as the next update begins: it is copied from now on."""
        self._lively |= self._changed(roots)

    def known(self, roots: Mapping[str, torch.nn.Module]) -> bool:
        """Return whether `state` can give all buffers as they were."""
        return not self._changed(roots)

    def changed(self, roots: Mapping[str, torch.nn.Module]) -> list[str]:
        """Return the names of buffers that are not as at `note`, compared by value where there is a copy."""
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
        found = [".".join(key) for key in {**self._noted, **now} if key not in still]
        extra = dict(_extra_states(roots))
        for key in {**self._extra, **extra}:
            if key not in self._extra or key not in extra or as_text(self._extra[key]) != as_text(extra[key]):
                found.append(".".join(key))
        return found

    def state(self, root: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a module's state, or a part of it, with its buffers as they were at `note`. Ask `known` first."""
        # buffers that share memory stay one tensor in what is given
        ties: dict[tuple[int, int], torch.Tensor] = {}
        found = dict(state) | {
            key: one for (its_root, key), one in self._extra.items() if its_root == root and key in state
        }
        for (its_root, key), kept in self._copies.items():
            now = self._noted[its_root, key][0]
            if its_root == root and key in state and now is not None:
                found[key] = ties.setdefault((now.data_ptr(), now.nbytes), kept) if now.nbytes else kept
        for key in state:
            if (root, key) in self._noted and self._noted[root, key][0] is None:
                del found[key]
        return found

    def _changed(self, roots: Mapping[str, torch.nn.Module]) -> set[Key]:
        """Return the large ones that are not what they were, and of which there is no copy."""
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


def _extra_states(roots: Mapping[str, torch.nn.Module]) -> Iterator[tuple[Key, Any]]:
    for name, module in roots.items():
        for root, key, one in extra_states(modules({name: module})):
            yield (root, key), one.get_extra_state()
