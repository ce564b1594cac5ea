"""What must survive a restart, as one tree: captured after a step, applied before one.

    model, optimizer, scheduler   state_dicts; of several, each under `model.name` and so on
    extra.name, scaler            state_dicts
    buffers.name                  those that the state_dict of a model, or of a module in extra, leaves out, if any
    trained                       which parameters train, in which groups of the optimizers
    modes                         which modules are in eval mode
    health                        the last losses and norms, and what was passed over, if on_bad= is given or was

Buffers may have got another shape since the model was built (observers), or have come: the model here follows.
Random generators are not in it: every stream is derived (randomness.py). Nor is the position: the
checkpoint's meta holds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

import elastic_checkpoint
from elastic.state.applied import Applied
from elastic.state.health import Health
from elastic.state.leftout import LeftOutBuffers, make_room
from elastic.state.modes import Modes
from elastic.state.modules import modules, roots
from elastic.state.repeated_writes import RepeatedWrites
from elastic.state.since_boundary import SinceBoundary
from elastic.state.staging import Staging
from elastic.state.trained import Trained
from elastic_checkpoint.load.apply import apply

Tree = dict[str, Any]

_BEFORE_2026_11_29 = ("attributes", "optimizer_attributes", "dataset_attributes")
_APART = ("trained", "health", *_BEFORE_2026_11_29)
"""What no object takes as its state_dict; of runs saved before then, what they held in plain attributes, too."""


class TrainState:
    """The live objects of a run that a state is captured from and applied to.

    applied  what of them the script may change between two steps, as the last update left it
    since_boundary  whether it has changed what a resume would change once more
    staging  what of them a save is still copying
    health   see Health
    """

    def __init__(
        self,
        *,
        trained: Trained,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        schedulers: Mapping[str, Any],
        scaler: Any,
        extra: Mapping[str, Any],
        health: Health | None = None,
    ) -> None:
        self._models = dict(models)
        self._trained = trained
        self._extra = dict(extra)
        self.health = health if health is not None else Health(None)
        self.modes = Modes(trained.modules, self._modules_in_extra)
        self._objects: Tree = {
            "trained": trained,
            "modes": self.modes,
            **_named("model", models),
            **_named("optimizer", optimizers),
            **_named("scheduler", schedulers),
            **{f"extra.{name}": thing for name, thing in extra.items()},
        }
        if scaler is not None:
            self._objects["scaler"] = scaler
        changeable = {**_named("scheduler", schedulers), **{f"extra.{name}": thing for name, thing in extra.items()}}
        self.since_boundary = SinceBoundary(
            changeable, lambda: (weight for model in self._models.values() for weight in model.parameters())
        )
        self._changeable = changeable
        self.applied = self.noting()
        self.staging = Staging(self.applied.weights, self._modules)

    def begin_loop(self) -> None:
        """Set the modes that the state says: they hold from the script's loop on."""
        self.modes.begin_loop()

    def objects(self) -> Tree:
        """Return the tree for `Checkpointer`: stateful objects stand for their state_dict."""
        left_out = {name: one for name, one in self._left_out().items() if one.state_dict()}
        health = {} if self.health.is_blank else {"health": self.health}
        return {**self._objects, **left_out, **health}

    def apply(self, tree: Tree, *, step: int, keeps_trained: bool = False) -> None:
        """Give every object its state, of step `step`.

        keeps_trained  train what the script trains here, and not what the state's owner trained
        Raises ConfigError and elastic_checkpoint.StateMismatch, before any weight is touched, if one misfits.
        """
        self.staging.join()  # weights are written to from here on
        tree = {"trained": self._trained.state_dict(), "modes": self.modes.state_dict(), **tree}  # older runs lack them
        document = tree["trained"]
        self._trained.make_room(document, step=step)
        for name, thing in self._objects.items():
            if isinstance(thing, torch.nn.Module) and isinstance(saved := tree.get(name), Mapping):
                make_room(thing, saved)
        left_out = {name: one for name, one in self._left_out().items() if name in tree}
        others = {name: thing for name, thing in {**self._objects, **left_out}.items() if name != "trained"}
        apply(others, {name: saved for name, saved in tree.items() if name not in _APART})
        if "health" in tree:
            self.health.load_state_dict(tree["health"])
        if not keeps_trained:
            self._trained.adopt(document, step=step)

    def noting(self, *, in_loop: bool = True) -> Applied:
        """Return another `Applied` of the same objects, for another use. in_loop: see Applied."""
        optimizers = _named("optimizer", self._trained.optimizers)
        return Applied(self._changeable, optimizers, self._trained, self.modes, self._modules, in_loop=in_loop)

    def writes_at_beginning(self) -> RepeatedWrites:
        """Note everything, as the script comes to the beginning of an epoch that its state is past."""
        return RepeatedWrites(self.noting(), self._put_back, self._trained.optimizers)

    def writes_before_loop(self, *, again: bool) -> RepeatedWrites:
        """Note everything, as the script has entered the run. again: the state is past what precedes its loop."""
        put_back = self._put_back if again else None
        return RepeatedWrites(self.noting(in_loop=False), put_back, self._trained.optimizers)

    def _put_back(self, noted: Applied, step: int) -> None:
        now = elastic_checkpoint.encode(noted.tree(self.objects()))
        self.apply(elastic_checkpoint.decode(*now), step=step)

    def _modules(self) -> dict[str, torch.nn.Module]:
        """Return the modules whose buffers are the run's, by the names of their objects."""
        return {**_named("model", self._models), **roots({}, self._extra)}

    def _modules_in_extra(self) -> list[tuple[str, torch.nn.Module]]:
        walked = modules(roots(self._models, self._extra))
        return [(f"{root}.{path}", module) for root, path, module in walked if root not in self._models]

    def _left_out(self) -> dict[str, LeftOutBuffers]:
        """Return the buffers that the state_dicts of models and of modules in `extra=` leave out, by name."""
        models = _named("buffers", self._models)
        names = zip(models, _named("model", self._models), strict=True)
        found = {name: LeftOutBuffers(models[name], of=of) for name, of in names}
        known = {id(model) for model in self._models.values()}
        for root, module in roots({}, self._extra).items():
            if id(module) not in known:
                found[f"buffers.{root}"] = LeftOutBuffers(module, of=root)
        return found

    def weights_digest(self) -> str:
        """Return the SHA-256 over the models' tensors by name: of one model, elastic_checkpoint.digest(model)."""
        return weights_digest(self._models)


def _named(kind: str, things: Mapping[str, Any]) -> Tree:
    """Name a single thing by its kind, and several `kind.name`."""
    return dict(things) if list(things) == [kind] else {f"{kind}.{name}": thing for name, thing in things.items()}


def weights_digest(models: Mapping[str, Any]) -> str:
    """Return the digest of one model's state_dict, or of several models, told apart by their names."""
    (single, *others) = models.values()
    return elastic_checkpoint.digest(dict(models) if others else single)
