"""Buffers that a module's load_state_dict would not fill: those outside the state_dict, and those of another shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from elastic.state.modules import BufferEntry, buffer_entries, modules


class LeftOutBuffers:
    """The non-persistent buffers of a module, as something with a state.

    of  what the module is called
    """

    def __init__(self, module: torch.nn.Module, *, of: str) -> None:
        self._module = module
        self.of = of

    def state_dict(self) -> dict[str, torch.Tensor]:
        kept = self._module.state_dict().keys()
        return {
            entry.key: tensor
            for entry in buffer_entries(modules({"": self._module}))
            if entry.key not in kept and (tensor := entry.module._buffers[entry.attribute]) is not None
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        _hang(self._module, state, persistent=False)
        for key, tensor in self.state_dict().items():
            if key in state:
                with torch.no_grad():
                    tensor.copy_(state[key])


def make_room(module: torch.nn.Module, saved: Mapping[str, Any]) -> None:
    """Give buffers the shapes and dtypes of a saved state_dict, and register those that came to be during the run.

    What does not fit otherwise is load_state_dict's to refuse.
    """
    _hang(module, saved, persistent=True)


def _hang(module: torch.nn.Module, saved: Mapping[str, Any], *, persistent: bool) -> None:
    """Give buffers the layout of the saved ones, and register missing ones with the modules that they belong to."""
    walked = modules({"": module})
    there = {entry.key: entry for entry in buffer_entries(walked)}
    parameters = {f"{path}.{name}" if path else name for _, path, one in walked for name in one._parameters}
    by_path = {path: one for _, path, one in walked}
    device = next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
    for key, value in saved.items():
        if not isinstance(value, torch.Tensor) or key in parameters:
            continue
        path, _, attribute = key.rpartition(".")
        if key in there:
            _fit(there[key], value, device)
        elif path in by_path and not hasattr(by_path[path], attribute):
            made = torch.empty(value.shape, dtype=value.dtype, device=device)
            by_path[path].register_buffer(attribute, made, persistent=persistent)


def _fit(entry: BufferEntry, value: torch.Tensor, device: torch.device) -> None:
    now = entry.module._buffers[entry.attribute]
    if now is None or (now.shape, now.dtype) != (value.shape, value.dtype):
        on = now.device if now is not None else device
        entry.module._buffers[entry.attribute] = torch.empty(value.shape, dtype=value.dtype, device=on)
