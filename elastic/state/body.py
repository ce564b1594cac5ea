"""What the body of the inner loop may not do, found out at the end of a step's shares, before anything is exchanged.

    change what the step trains      requires_grad, groups, hooks (trained.py says why)
    write to weights                 of the models, and of modules in `extra=`
    set an optimizer's options       learning rates and the like; a plain loop's bodies may, to the same values in all
    change objects in `extra=`       their state_dicts are compared in the first steps, and now and then
    give a frozen parameter a gradient

How often the body runs on a worker, or whether at all, depends on the world size. So would what it changes.

A write is known by the tensor's version. `.data` hides it: what is reached through `parameter.data` while a body runs
is kept as it was, and compared. Values that are written past both (`numpy()` views, other libraries' kernels) are not
noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import elastic_checkpoint
from elastic.errors import UNTOUCHED, StepError
from elastic.state.applied import mark
from elastic.state.data_access import DATA, same, watch
from elastic.state.modules import roots
from elastic.state.sharding import version_of
from elastic.state.trained import Trained
from elastic.state.trained_set import TrainedSet, changed_in_body, listed

_LOOK_FIRST, _LOOK_EVERY = 3, 16  # steps
_SIMPLE = (float, int, bool, type(None))


class Body:
    """Finds what a worker's loop bodies did and must not do. One for its session, from `open` to `close`.

    extra  objects; the modules that they are or hold (modules.py) are looked at
    """

    def __init__(
        self, trained: Trained, optimizers: Mapping[str, torch.optim.Optimizer], extra: Mapping[str, Any]
    ) -> None:
        self._trained = trained
        self._optimizers = dict(optimizers)
        self._extra = roots({}, extra)
        self._objects = {name: thing for name, thing in extra.items() if not isinstance(thing, torch.nn.Module)}
        self._looks = 0
        self._states: dict[str, tuple[str, dict[str, int]]] = {}
        self._runs = False
        self._step: int | None = None
        self._settings: list[_Settings] = []
        self._set_by_bodies: list[_Settings] | None = None
        self._versions: list[int] = []
        self._of_extra = [module._parameters for thing in self._extra.values() for module in thing.modules()]
        self._others: list[torch.nn.Parameter] = []
        self._others_versions: list[int] = []
        self._known: set[int] = set()
        self._before: dict[int, tuple[torch.nn.Parameter, torch.Tensor]] = {}
        self._unwatch: Callable[[], None] = lambda: None

    def open(self) -> None:
        """Start watching what is reached through `parameter.data`."""
        self._unwatch = watch(self._accessed)

    def begin(self, step: int, trained: TrainedSet) -> None:
        """Note how things are before a step's first share; that still counts when the step comes round again."""
        self._set_by_bodies = None
        if step == self._step:
            self._runs = True
            return
        self._step, self._set = step, trained
        for _, parameter in trained.frozen:
            parameter.grad = None  # of steps before it was frozen: an optimizer would go on applying it
        self._settings = [_settings(optimizer) for optimizer in self._optimizers.values()]
        self._versions = [version_of(parameter) for parameter in trained.parameters]
        self._others = [
            parameter for within in self._of_extra for parameter in within.values() if parameter is not None
        ]
        self._others_versions = [version_of(parameter) for parameter in self._others]
        self._known = {*map(id, trained.parameters), *map(id, self._others)}
        self._before = {}
        self._looks += 1
        if self._looks <= _LOOK_FIRST or self._looks % _LOOK_EVERY == 0:
            self._states = {name: _state(thing) for name, thing in self._objects.items()}
        self._runs = True

    def give_up(self, step: int) -> None:
        """Put back the options that the step's bodies have set, as it comes round again or takes another's state.

        They are not of the state, and `lr *= 0.9` counts once a step. A step that did not begin has set nothing.
        """
        if step != self._step or self._set_by_bodies is None:
            return
        self._set_by_bodies = None
        for optimizer, before in zip(self._optimizers.values(), self._settings, strict=True):
            _put_back(optimizer, before)

    @property
    def has_set_options(self) -> bool:
        """Return whether an optimizer is set otherwise than when the step began, as a plain loop's bodies may do."""
        return self._set_by_bodies not in (None, self._settings)

    def share_ends(self, step: int) -> None:
        """Note the options that a plain loop's body has set. Raises StepError where the body before set other values.

        Called behind the backward pass of each body, which all workers have.
        """
        now = [_settings(optimizer) for optimizer in self._optimizers.values()]
        before, self._set_by_bodies = self._set_by_bodies, now
        if before is None or before == now:
            return
        for (key, _), then, here in zip(self._optimizers.items(), before, now, strict=True):
            if apart := [(name, was, now) for (name, was), (_, now) in zip(then, here, strict=False) if was != now]:
                said = [f"{name} {was}, then {now}" for name, was, now in apart]
                raise StepError(
                    f"the loop's body set options of optimizer {key!r} to other values in one share of step {step} "
                    f"than in the next\n  found  {listed(said)}\n{UNTOUCHED}"
                    "  next   set them to what is the same in every body: from run.step_index (steps, not batches) or "
                    "run.epoch,\n         and not by *= or +=; or between two steps, or in run.on_apply(function)"
                )

    def end(self, step: int) -> None:
        """Raise StepError if a body did what it must not do. Called after a step's last body, or as it is given up."""
        if not self._runs:
            return
        self._runs = False
        written = self._written()
        self._before = {}
        if written:
            raise StepError(
                f"the body of the inner loop wrote to weights in step {step}: {listed(written)}\n"
                "  found  how often the body runs on a worker depends on the world size; only the update may write\n"
                "  state  nothing was applied or saved, but these weights are not as they were before this step\n"
                "  next   clip, average or set weights in run.on_apply(function), in Update(apply=), or after the "
                "inner loop in extra= objects;\n         layers that set their weights from the first batch need a "
                "forward pass before the Run"
            )
        now = self._trained.now()
        if now is not self._set:
            raise changed_in_body(self._set, now)
        foreign = [name for name, parameter in now.frozen if parameter.grad is not None]
        if foreign:
            raise StepError(
                f"parameters that step {step} does not train have got a gradient: {listed(foreign)}\n"
                "  found  they were frozen when the step began, so these gradients are not exchanged\n"
                f"{UNTOUCHED}  next   unfreeze them between steps: after the inner loop, or before it"
            )
        states, self._states = self._states, {}
        changed = [f"extra[{name!r}]" for name, then in states.items() if _state(self._objects[name]) != then]
        if changed:
            raise StepError(
                f"the body of the inner loop changed {listed(changed)} in step {step}\n"
                "  found  how often the body runs on a worker depends on the world size; what it makes of them, too\n"
                f"{UNTOUCHED}  next   change them in run.on_apply(function), in Update(apply=), or after the inner "
                "loop, from step.sums, say"
            )
        if self._set_by_bodies is not None:
            return
        for (key, optimizer), before in zip(self._optimizers.items(), self._settings, strict=True):
            if _settings(optimizer) != before:
                raise StepError(
                    f"the body of the inner loop set options of optimizer {key!r} in step {step}\n"
                    "  found  a worker without a share of a short batch does not run it, and would keep the old ones\n"
                    f"{UNTOUCHED}  next   set learning rates and the like between steps, or before the inner loop"
                )

    def close(self) -> None:
        """Stop watching `parameter.data`."""
        self._runs = False
        self._unwatch()

    def _written(self) -> list[str]:
        """Return the names of weights with another version, or reached through `.data` and with another value."""
        parameters = [*self._set.parameters, *self._others]
        versions = [*self._versions, *self._others_versions]
        written = {id(p) for p, then in zip(parameters, versions, strict=True) if version_of(p) != then}
        written |= {key for key, (p, before) in self._before.items() if not same(before, DATA.__get__(p))}
        if not written:
            return []
        named = [*zip(self._set.names, self._set.parameters, strict=True)]
        for key, module in self._extra.items():
            named += [(f"{key}.{name}", parameter) for name, parameter in module.named_parameters()]
        # a weight with several names is named by its first one, in the order of the names
        return list({id(p): name for name, p in reversed(named) if id(p) in written}.values())[::-1]

    def _accessed(self, parameter: torch.nn.Parameter) -> None:
        """Keep a weight's value, once a step, before something is done through `parameter.data`."""
        # not those that a unit of fully_shard has gathered, whose memory is let go again
        if self._runs and id(parameter) in self._known and id(parameter) not in self._before:
            self._before[id(parameter)] = parameter, DATA.__get__(parameter).clone()


def _state(thing: Any) -> tuple[str, dict[str, int]]:
    """Return a state with its tensors by value: putting back the buffers that a share has moved counts as a version."""
    document, tensors = elastic_checkpoint.encode(thing.state_dict())
    return repr(document), {name: mark(tensor)[1] for name, tensor in tensors.items()}


_Settings = list[tuple[str, Any]]
"""Group by group, each option and its value."""


def _settings(optimizer: torch.optim.Optimizer) -> _Settings:
    return [
        (name, value if type(value) in _SIMPLE else _plain(value))
        for group in optimizer.param_groups
        for name, value in group.items()
        if name != "params"
    ]


def _put_back(optimizer: torch.optim.Optimizer, before: _Settings) -> None:
    """Set an optimizer's numeric options back to `before`; others, such as tuples, stay as they are."""
    if _settings(optimizer) == before:
        return
    values = iter(before)
    for group in optimizer.param_groups:
        for name in [name for name in group if name != "params"]:
            known, value = next(values, (None, None))
            if known != name or type(value) not in _SIMPLE:
                continue
            if isinstance(group[name], torch.Tensor):
                group[name].fill_(value)
            else:
                group[name] = value


def _plain(value: Any) -> Any:
    """Return what an option is compared by: a large tensor, or one of another device, by its identity and version."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else (id(value), version_of(value))
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
