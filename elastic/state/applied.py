"""What the script's code between two steps may change, as it was when the last step was applied.

A worker that has applied a step runs the code after the inner loop, which may count in `extra=` or let a plateau
scheduler lower the learning rate. A worker that lost that step's exchange takes the state over, and then runs that
code itself: so it must get these objects as they were before it, or it would count twice. Buffers are rewound.py's.

Kept are plain values (copied: learning rates, counters) and, of tensors, a mark: one that has not changed since is
its own copy. One that was ever seen to change between two steps is copied at every step from then on. When that
happens for the first time just before a fault, nothing can be given, and `known` says so. So it does where the script
has written to weights between two steps: of these there is never a copy (weights.py). A mark is the tensor's version
and a hash of up to _LOOKED_AT of its elements, evenly spread, since `.data` and some kernels change values without
counting a version. What changes a few elements of a large tensor, by such means and between two steps, is missed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

import elastic_checkpoint
from elastic.state.data_access import same
from elastic.state.leftout import LeftOutBuffers
from elastic.state.modes import Modes
from elastic.state.rewound import Rewound
from elastic.state.sharding import local, version_of
from elastic.state.trained import Trained
from elastic.state.trained_set import TrainedSet
from elastic.state.weights import Weights

Tree = dict[str, Any]
Mark = tuple[int, int]

_LOOKED_AT = 4096
_LOOK_EVERY = 16  # steps, after the first ones; in between only versions are compared


@dataclass
class _Marked:
    """An object's state as it was noted: a mark of each of its tensors, and copies of some."""

    document: Any
    tensors: dict[str, torch.Tensor]
    marks: dict[str, Mark]
    copies: dict[str, torch.Tensor] = field(default_factory=dict)


class Applied:
    """Notes, at the end of each update, what the script may change before the next one, and gives it as it was then.

    changeable  name -> object with a state_dict: schedulers, extras
    optimizers  name -> optimizer, of which only the groups may change between steps: their settings and parameters
    trained     what is trained, which may change as well; modes: likewise
    modules     gives name -> module, of which only the buffers may; called at each step
    in_loop     what is trained, and modes, count: what a state says of them holds from the script's loop on
    """

    def __init__(
        self,
        changeable: Mapping[str, Any],
        optimizers: Mapping[str, torch.optim.Optimizer],
        trained: Trained,
        modes: Modes,
        modules: Callable[[], Mapping[str, torch.nn.Module]] = dict,
        *,
        in_loop: bool = True,
    ) -> None:
        self._changeable = dict(changeable)
        self._optimizers = dict(optimizers)
        self._trained = trained
        self._modes = modes
        self._in_loop = in_loop
        self._set: TrainedSet | None = None
        self._eval: dict[str, list[str]] = {}
        self._modules = modules
        self._buffers = Rewound()
        self.weights = Weights(optimizers, trained)
        self._lively: set[tuple[str, str]] = set()
        self._updates = 0
        self._marked: dict[str, _Marked] = {}
        self._settings: dict[str, list[dict[str, Any]]] = {}

    def note(self) -> None:
        """Note everything, at the end of an update."""
        self.note_surroundings()
        self.weights.note()

    def note_surroundings(self) -> None:
        """Note everything but the weights, as `note` does."""
        self._note_objects(self._changeable)
        for name, optimizer in self._optimizers.items():
            self._settings[name] = [_settings(group) for group in optimizer.param_groups]
        self._note_modules()

    def note_whole(self) -> None:
        """Note all and copy all but the weights, so that `known` fails only for written weights or other parameters."""
        self.note_surroundings()
        self._lively = {(name, key) for name, kept in self._marked.items() for key in kept.tensors}
        self._note_objects(self._changeable)
        self._buffers.note(self._modules(), whole=True)
        self.weights.note()

    def is_as_noted(self) -> bool:
        """Return whether all is as at `note_whole`. Without in_loop, what is trained and the modes may differ."""
        assert self._set is not None
        is_set = self._trained.now().document == self._set.document and self._modes.now() == self._eval
        return (is_set or not self._in_loop) and not self.changed()

    def changed(self) -> list[str]:
        """Return the names of what is no longer as it was at `note`.

        Left out are weights, and which parameters train, and modes, which scripts set to what they are to be.
        """
        assert self._set is not None
        now = self._trained.now().groups
        pairs = zip(self._optimizers, self._set.groups.items(), strict=True)
        found = [f"the groups of {name}" for name, (key, then) in pairs if now[key] != then]
        found += [
            f"the options of {name}"
            for name, settings in self._settings.items()
            if not _equal([_without_parameters(then) for then in settings],
                          [_without_parameters(group) for group in self._optimizers[name].param_groups])
        ]  # fmt: skip
        found += [name for name, kept in self._marked.items() if self._is_another(self._changeable[name], kept)]
        found += [f"buffer {name}" for name in self._buffers.changed(self._modules())]
        return found

    def _is_another(self, thing: Any, kept: _Marked) -> bool:
        """Return whether an object's state has changed. It may hold other tensors than before, or give copies."""
        document, tensors = elastic_checkpoint.encode(thing.state_dict())
        if document != kept.document or tensors.keys() != kept.tensors.keys() or self._changed(kept):
            return True
        return not all(one is tensors[key] or same(one, tensors[key]) for key, one in kept.tensors.items())

    @contextmanager
    def stepping(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Count what an optimizer's own step sets in its groups as part of the update, after `note_surroundings`."""
        name = next(key for key, one in self._optimizers.items() if one is optimizer)
        groups = optimizer.param_groups
        before = [_settings(group) for group in groups]
        yield
        for kept, then, group in zip(self._settings.get(name, ()), before, groups, strict=False):
            now = _settings(group)
            # only what the step itself has changed: what the script has set before it is no part of the update
            kept |= {key: value for key, value in now.items() if key not in then or not _equal(value, then[key])}

    def note_own_update(self, *, also: bool) -> None:
        """Note that the update is over, after `note_surroundings`.

        also  functions of the script's were part of it: what they may have changed is noted again
        """
        if also:
            self._note_objects({name: thing for name, thing in self._changeable.items() if name.startswith("extra.")})
            self._note_modules()
        self.weights.note()

    def _note_objects(self, objects: Mapping[str, Any]) -> None:
        """Keep each object's state with marks of its tensors; those seen to change between steps are copied."""
        for name, thing in objects.items():
            document, tensors = elastic_checkpoint.encode(thing.state_dict())
            kept = _Marked(document, tensors, {key: mark(tensor) for key, tensor in tensors.items()})
            kept.copies = {key: tensor.clone() for key, tensor in tensors.items() if (name, key) in self._lively}
            self._marked[name] = kept

    def _note_modules(self) -> None:
        self._set, self._eval = self._trained.now(), self._modes.now()
        self._buffers.note(self._modules())

    def update_begins(self) -> None:
        """Find what the script has changed since `note`, as the next update begins: it is copied from now on."""
        self._updates += 1
        closely = self._updates <= _LOOK_EVERY or self._updates % _LOOK_EVERY == 0
        for name, kept in self._marked.items():
            self._lively |= {(name, key) for key in self._changed(kept, closely=closely)}
        self._buffers.update_begins(self._modules())
        self.weights.update_begins()

    def known(self) -> bool:
        """Return whether `tree` can give everything: no weights written, no parameters changed, nothing lost."""
        if self._set is not None and not self._set.same_parameters(self._trained.now()):
            return False
        for name, settings in self._settings.items():
            now = {id(parameter) for group in self._optimizers[name].param_groups for parameter in group["params"]}
            if not now.issuperset(id(parameter) for then in settings for parameter in then["params"]):
                return False
        lost = any(self._changed(kept) - kept.copies.keys() for kept in self._marked.values())
        return not lost and not self.weights.written() and self._buffers.known(self._modules())

    def tree(self, objects: Tree) -> Tree:
        """Return `objects` with these things as they were at `note`. Ask `known` first."""
        found = dict(objects)
        for name, kept in self._marked.items():
            found[name] = elastic_checkpoint.decode(kept.document, {**kept.tensors, **kept.copies})
        if self._set is not None and self._in_loop:
            found |= {"trained": self._set.document, "modes": self._eval}
        for name, settings in self._settings.items():
            found[name] = self._as_grouped(self._optimizers[name], settings)
        for name in objects.keys() & self._modules().keys() - self._marked.keys():  # models
            found[name] = self._buffers.state(name, objects[name].state_dict())
        for name, thing in objects.items():
            if isinstance(thing, LeftOutBuffers):
                found[name] = self._buffers.state(thing.of, thing.state_dict())
        return found

    def _as_grouped(self, optimizer: torch.optim.Optimizer, settings: list[dict[str, Any]]) -> Tree:
        """Return the optimizer's state_dict with its groups as at `note`: the script may have added some since."""
        state = optimizer.state_dict()
        now = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        number_of = {id(parameter): number for parameter, number in zip(now, numbers, strict=True)}
        # a state_dict numbers parameters by their place in the groups, so other groups give other numbers
        entries: dict[Any, Any] = {key: one for key, one in state["state"].items() if not isinstance(key, int)}
        groups, count = [], 0
        for then in settings:
            kept = [number_of[id(parameter)] for parameter in then["params"]]
            entries |= {count + i: state["state"][number] for i, number in enumerate(kept) if number in state["state"]}
            groups.append({**then, "params": list(range(count, count + len(kept)))})
            count += len(kept)
        return {**state, "state": entries, "param_groups": groups}

    def _changed(self, kept: _Marked, *, closely: bool = True) -> set[str]:
        """Return the keys of tensors that have another version, or, with closely, other elements where `mark` looks."""
        return {
            key
            for key, tensor in kept.tensors.items()
            if version_of(tensor) != kept.marks[key][0] or (closely and mark(tensor) != kept.marks[key])
        }


def mark(tensor: torch.Tensor) -> Mark:
    """Return a tensor's version and a hash of some of its elements, by which a change of it is known."""
    part = local(tensor)
    if not part.numel() or part.device.type != "cpu":  # a look at another device would wait for it
        return version_of(tensor), 0
    flat = part.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // _LOOKED_AT)].clone()  # after numpy() a tensor can never be resized again
    return version_of(tensor), xxhash.xxh3_64_intdigest(some.view(torch.uint8).numpy().data)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two settings have the same type and value; tensors and lists are compared by what they hold."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and (one is other or one == other)


def _without_parameters(group: Mapping[str, Any]) -> list[Any]:
    return [value for name, one in sorted(group.items()) if name != "params" for value in (name, one)]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if name == "params" else copy.deepcopy(value) for name, value in group.items()}
