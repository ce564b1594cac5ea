"""How live objects are filled with what was saved: tensors in place, modules and optimizers by their load_state_dict().

A rank gets its own part of a tensor wherever it holds a DTensor, which takes no communication.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from elastic_checkpoint.format.document import is_sharded
from elastic_checkpoint.format.marks import KEPT


def load_optimizer(
    optimizer: torch.optim.Optimizer, saved: dict[str, Any], dtypes: dict[tuple[Any, str], torch.dtype]
) -> None:
    """Load the saved state into the optimizer, in the dtypes that were saved.

    dtypes  (key, name) of the saved state's entries -> what they become; all others stay as they are
    """
    saved = owned_copy(_as_parameters(optimizer, saved), {})
    for (key, name), dtype in dtypes.items():
        if saved["state"][key][name].dtype != dtype:
            saved["state"][key] = {**saved["state"][key], name: saved["state"][key][name].to(dtype)}
    optimizer.load_state_dict(saved)
    for key, param in parameters(optimizer, saved):
        if key in saved["state"]:
            optimizer.state[param] = _exact(saved["state"][key], optimizer.state[param])


def parameters(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> list[tuple[Any, torch.Tensor]]:
    """Return the saved state's keys beside the parameters that they stand for, by position in the groups."""
    return [
        (key, param)
        for mine, theirs in zip(optimizer.param_groups, saved["param_groups"], strict=True)
        for key, param in zip(theirs["params"], mine["params"], strict=True)
    ]


def _exact(saved: Any, loaded: Any) -> Any:
    """Return `loaded` with the saved tensor, on the same device, wherever torch cast it to the parameter's dtype."""
    if isinstance(saved, torch.Tensor) and isinstance(loaded, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(device=loaded.device)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        loaded.update({key: _exact(value, loaded[key]) for key, value in saved.items() if key in loaded})
    elif isinstance(saved, list) and isinstance(loaded, list):
        loaded[:] = [_exact(mine, theirs) for mine, theirs in zip(saved, loaded, strict=True)]
    return loaded


def owned_copy(saved: Any, owned: dict[int, Any]) -> Any:
    """Return `saved`, with its own memory for every tensor and array: the object that gets them may keep them.

    owned  id -> what it became, so that what is one stays one. Changes dicts and lists in place.
    """
    if id(saved) in owned:
        return owned[id(saved)]
    if isinstance(saved, torch.Tensor) and not is_sharded(saved) and saved.untyped_storage().nbytes() != saved.nbytes:
        owned[id(saved)] = saved.clone()
        return owned[id(saved)]
    if isinstance(saved, np.ndarray) and saved.base is not None:
        owned[id(saved)] = saved.copy()
        return owned[id(saved)]
    if isinstance(saved, dict):
        for key, value in saved.items():
            saved[key] = owned_copy(value, owned)
    elif isinstance(saved, list):
        saved[:] = [owned_copy(value, owned) for value in saved]
    elif type(saved) is tuple:
        return tuple(owned_copy(value, owned) for value in saved)
    return saved


def refill(target: Any, saved: Any) -> None:
    """Give a list or dict another content, so that it stays the same object."""
    if isinstance(target, list):
        target[:] = saved
    else:
        target.clear()
        target.update(saved)


def copy_tensor(target: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy what was saved into a tensor in place; of a DTensor, this rank's part."""
    with torch.no_grad():
        target.copy_(sharded_as(saved, target))


def as_here(saved: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """Return a module's saved state with this rank's part of a tensor wherever the module holds a DTensor."""
    if not any(is_sharded(value) for value in here.values()) and not any(value is KEPT for value in saved.values()):
        return saved
    entries = saved.copy()  # with an OrderedDict's attributes: layers' versions
    entries.update(
        {n: here[n] if value is KEPT else sharded_as(value, here[n]) for n, value in saved.items() if n in here}
    )
    return entries


def _as_parameters(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's saved state with this rank's part of a tensor wherever the parameter is a DTensor."""
    state = dict(saved["state"])
    for key, param in parameters(optimizer, saved):
        if is_sharded(param) and key in state:
            entries = state[key].items()
            state[key] = {n: sharded_as(value, param) if is_of(value, param) else value for n, value in entries}
    return {**saved, "state": state}


def is_of(value: Any, param: torch.Tensor) -> bool:
    """Return whether an entry of an optimizer's state has one element for each of the parameter's."""
    return isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape == param.shape


def sharded_as(saved: Any, target: Any) -> Any:
    """Return the whole tensor `saved` as a DTensor like `target`, without communication; anything else as it is."""
    if not is_sharded(target) or not isinstance(saved, torch.Tensor) or is_sharded(saved):
        return saved
    from elastic_checkpoint.format.tensors import like, local_box

    box = saved
    offsets, sizes = local_box(target)
    for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        box = box.narrow(axis, offset, size)
    return like(target, box.contiguous())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, all of any other tensor; it shares memory with it."""
    if not is_sharded(tensor):
        return tensor.detach()
    from elastic_checkpoint.format.tensors import local_part

    with torch.no_grad():
        return local_part(tensor)
