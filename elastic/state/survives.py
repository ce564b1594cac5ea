"""What must survive a restart, as one tree: captured after a step, applied before one.

    model, optimizer, scheduler   state_dicts; of several, each under `model.name` and so on
    extra.name, scaler            state_dicts
    buffers                       those that the model's state_dict leaves out, if there are any

Random generators are not in it: every stream is derived (randomness.py). Nor is the position: the
checkpoint's meta holds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

import checkpoint
from checkpoint.apply import apply
from elastic.group.form import Group, gather_bytes
from elastic.state.applied import Applied

Tree = dict[str, Any]


class Survives:
    """The live objects of a run that a state is captured from and applied to.

    applied  what of them the script may change between two steps, as the last update left it
    """

    def __init__(
        self,
        *,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        scaler: Any,
        extra: Mapping[str, Any],
    ) -> None:
        self._models = dict(models)
        self._objects: Tree = {
            **_named("model", models),
            **_named("optimizer", optimizers),
            **_named("scheduler", schedulers),
            **{f"extra.{name}": thing for name, thing in extra.items()},
        }
        for name, model in _named("buffers", models).items():
            left_out = _LeftOutBuffers(model)
            if left_out.state_dict():
                self._objects[name] = left_out
        if scaler is not None:
            self._objects["scaler"] = scaler
        self.applied = Applied(
            {**_named("scheduler", schedulers), **{f"extra.{name}": thing for name, thing in extra.items()}},
            _named("optimizer", optimizers),
        )

    def objects(self) -> Tree:
        """The tree for `checkpoint`: stateful objects stand for their state_dict."""
        return self._objects

    def apply(self, tree: Tree) -> None:
        """Gives every object its state. Raises checkpoint.StateMismatch, before touching anything, if one misfits."""
        apply(self._objects, tree)

    def weights_digest(self) -> str:
        """SHA-256 over the models' tensors by name: for one model, checkpoint.digest(model)."""
        return weights_digest(self._models)


def _named(kind: str, things: Mapping[str, Any]) -> Tree:
    """A single one is called by its kind, several `kind.name`."""
    return dict(things) if list(things) == [kind] else {f"{kind}.{name}": thing for name, thing in things.items()}


def weights_digest(models: Mapping[str, Any]) -> str:
    """The digest of one model is that of its state_dict; several are told apart by their names."""
    (single, *others) = models.values()
    return checkpoint.digest(dict(models) if others else single)


def broadcast(group: Group, tree: Tree | None) -> Tree:
    """The coordinator's tree, on every rank, tensors on the CPU. Raises PeerLost.

    tree  on rank 0; None elsewhere
    """
    tensors: dict[str, torch.Tensor] = {}
    header = b""
    if group.rank == 0:
        assert tree is not None
        if group.world_size == 1:
            return tree
        document, tensors = checkpoint.encode(tree)
        kinds = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()}
        header = json.dumps({"document": document, "tensors": kinds}).encode()
    told = json.loads(gather_bytes(group, header)[0])
    received: dict[str, torch.Tensor] = {}
    for name, (dtype, shape) in told["tensors"].items():
        wire = torch.empty(shape, dtype=getattr(torch, dtype))
        if group.rank == 0:
            wire.copy_(tensors[name])
        if wire.numel():
            group.broadcast(wire.reshape(-1).view(torch.uint8)).wait()
        received[name] = wire
    return dict(checkpoint.decode(told["document"], received))


class _LeftOutBuffers:
    """The non-persistent buffers of a module, as something with a state."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def _buffers(self) -> dict[str, torch.Tensor]:
        persistent = self._module.state_dict().keys()
        return {name: tensor for name, tensor in self._module.named_buffers() if name not in persistent}

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._buffers()

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in self._buffers().items():
            tensor.copy_(state[name])
