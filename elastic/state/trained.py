"""Which parameters does the next step train, in which groups of which optimizers? Asked anew at every step.

A script may freeze and unfreeze parameters, and add or change groups of its optimizers, between steps and before an
inner loop. What it has made of them travels with the state (`state_dict`), so that a worker that joins later, or a
resume, trains what the others train although its script starts from the first line. What cannot travel is refused:

    parameters that were not there when the run began, unless `rebuild` can make them
    hooks of parameters that come or go between two steps

What the body of the inner loop may not do is body.py's; the buckets follow the set in loop/gradient_sync.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import Any

import torch

from elastic.errors import UNTOUCHED, ConfigError, StepError
from elastic.state.trained_set import TrainedSet, changed_in_body, hooks_of, indices, listed, two_lists, word

_REBUILD = (
    "update=Update(rebuild=function): function(step) makes of models and optimizers what they are after `step` steps"
)
Rebuild = Callable[[int], None]


class Trained:
    """The parameters that one run trains, and their groups, for as long as its session lasts.

    check    raises ConfigError for models and optimizers that cannot work; called whenever they have changed
    rebuild  rebuild(step) makes of the models and optimizers what the script had made of them when `step` steps were
             applied; None: the script adds no parameters
    """

    def __init__(
        self,
        models: Mapping[str, torch.nn.Module],
        optimizers: Mapping[str, torch.optim.Optimizer],
        check: Callable[[], None],
        rebuild: Rebuild | None = None,
    ) -> None:
        self._models = dict(models)
        self.optimizers = self._optimizers = dict(optimizers)
        self._check = check
        self._rebuild = rebuild
        self._found: TrainedSet | None = None
        self._walk()
        self._begun_with = self._shapes()
        self._set = self.now()
        self._hooks: tuple[int, ...] | None = None  # of the steps before
        self._in_loop = False
        self._carried: dict[str, Any] | None = None  # the state's, which holds from the script's loop on

    def now(self) -> TrainedSet:
        """Return what a step would train, whether it may or not. The same object as before if nothing has changed."""
        if not self._as_walked():
            self._walk()
        trained = tuple([parameter.requires_grad for parameter in self._parameters])
        hooks = hooks_of(self._parameters)
        if self._found is None or trained != self._found.trained or hooks != self._found.hooks:
            self._found = TrainedSet(self._names, self._parameters, trained, self._groups(), hooks)
        return self._found

    def modules(self) -> list[tuple[str, torch.nn.Module]]:
        """Return (name, module) of all models, each once, as they are now."""
        self.now()
        return self._modules

    def refresh(self, *, again: bool) -> TrainedSet:
        """Return what this step trains. Raises StepError where that cannot travel with the state.

        again  the step has come round again: what it trains was settled when it began
        """
        found = self.now()
        if again or found is self._set:
            if found is not self._set:
                raise changed_in_body(self._set, found)
            self._look_at_hooks(found)
            return found
        if not found.same_parameters(self._set) or found.groups != self._set.groups:
            self._look_at_structure(found)
        self._look_at_hooks(found)
        self._set = found
        return found

    # what travels with the state

    def state_dict(self) -> dict[str, Any]:
        """Return what trains, in which groups, and how many hooks it has, to travel with the state."""
        if self._carried is not None:
            return self._carried
        found = self.now()
        # the hooks of the last step's shares: a script may register them around its inner loop only
        settled = self._hooks if self._hooks is not None and found.same_parameters(self._set) else found.hooks
        hooks = {name: count for name, count in zip(found.names, settled, strict=True) if count}
        return {**found.document, "hooks": hooks}

    def load_state_dict(self, document: Mapping[str, Any]) -> None:
        self.make_room(document, step=0)
        self._set_flags(document["trained"])

    def make_room(self, document: Mapping[str, Any], *, step: int) -> None:
        """Bring the parameters and groups to those of a state of step `step`, before it is applied.

        Raises ConfigError where parameters are missing, or are too many.
        """
        if self._rebuild is not None and step > 0 and list(self.now().names) != document["names"]:
            self._rebuild(step)
        here = self.now()
        if list(here.names) != document["names"]:
            raise self._other_parameters(here.names, document["names"], step)
        for key, saved in document["groups"].items():
            groups = [indices(group) for group in saved]
            if groups != list(here.groups[key]):
                self._regroup(self._optimizers[key], [[here.parameters[i] for i in group] for group in groups])

    def adopt(self, document: dict[str, Any], *, step: int) -> None:
        """Train what the state's owner trained: at once, or from the script's loop on if that has not begun.

        Called after the state is applied. What comes before the loop (it registers hooks, say, or freezes layers) finds
        all as at the run's first start.
        """
        if self._in_loop or step == 0:
            self._set_flags(document["trained"])
        else:
            self._carried = document

    def begin_loop(self) -> None:
        """Train what a state said that was loaded before the script's loop."""
        self._in_loop = True
        if self._carried is not None:
            self._set_flags(self._carried["trained"])
            self._set = self.now()
            self._hooks = tuple(self._carried["hooks"].get(name, 0) for name in self._set.names)
            self._carried = None

    def difference(self, theirs: Mapping[str, Any]) -> list[str]:
        """Say what another worker's `document` has otherwise than here."""
        mine = self.now().document
        if mine["names"] != theirs["names"]:
            return two_lists("here", mine["names"], "there", theirs["names"])
        flags = zip(mine["names"], mine["trained"], theirs["trained"], strict=True)
        said = [
            f"{name} is {word(here == '1')} here and {word(there == '1')} there"
            for name, here, there in flags
            if here != there
        ]
        if not said and mine["groups"] != theirs["groups"]:
            said = [
                f"the groups of optimizer {key!r}"
                for key in mine["groups"]
                if mine["groups"][key] != theirs["groups"][key]
            ]
        return said or ["shapes, strides or dtypes of parameters"]

    # within

    def _set_flags(self, trained: str) -> None:
        for parameter, trains in zip(self.now().parameters, trained, strict=True):
            if parameter.requires_grad != (trains == "1"):
                parameter.requires_grad_(trains == "1")

    def _walk(self) -> None:
        """Go through models and optimizers, and note where to look whether it must be done again."""
        named: dict[int, tuple[str, torch.nn.Parameter]] = {}
        for key, model in self._models.items():
            for name, parameter in model.named_parameters():
                named.setdefault(id(parameter), (f"{key}.{name}" if len(self._models) > 1 else name, parameter))
        self._names = tuple(name for name, _ in named.values())
        self._parameters = tuple(parameter for _, parameter in named.values())
        self._modules = [
            (f"{key}.{name}", module) for key, model in self._models.items() for name, module in model.named_modules()
        ]
        self._of_modules = [module._modules for _, module in self._modules]
        self._of_modules += [module._parameters for _, module in self._modules]
        self._held = self._holds()
        self._sizes, self._in_groups = self._grouped()
        self._found = None

    def _as_walked(self) -> bool:
        """Return whether modules, parameters and groups are those that `_walk` found."""
        held = self._holds()
        sizes, in_groups = self._grouped()
        return (
            len(held) == len(self._held)
            and sizes == self._sizes
            and all(map(is_, held, self._held))
            and all(map(is_, in_groups, self._in_groups))
        )

    def _holds(self) -> list[Any]:
        return list(chain.from_iterable([within.values() for within in self._of_modules]))

    def _grouped(self) -> tuple[list[int], list[torch.Tensor]]:
        """Return how many parameters each group of each optimizer has, and all of them."""
        groups = [[group["params"] for group in optimizer.param_groups] for optimizer in self._optimizers.values()]
        sizes = [len(params) for of_one in groups for params in [of_one, *of_one]]  # groups, then parameters in each
        return sizes, list(chain.from_iterable(chain.from_iterable(groups)))

    def _groups(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return the groups of each optimizer as the numbers of their parameters."""
        if self._found is not None:
            return dict(self._found.groups)
        index = {id(parameter): i for i, parameter in enumerate(self._parameters)}
        return {  # a parameter of no model is refused at the next step
            key: tuple(
                tuple(index[id(p)] for p in group["params"] if id(p) in index) for group in optimizer.param_groups
            )
            for key, optimizer in self._optimizers.items()
        }

    def _shapes(self) -> list[tuple[Any, ...]]:
        return [(n, tuple(p.shape), p.dtype) for n, p in zip(self._names, self._parameters, strict=True)]

    def _look_at_structure(self, found: TrainedSet) -> None:
        """Raise StepError where parameters or groups changed to what cannot work, or what a resume could not have."""
        try:
            self._check()
        except ConfigError as refused:
            raise StepError(f"{refused}\n{UNTOUCHED}") from refused
        shapes = self._shapes()
        if self._rebuild is None and shapes != self._begun_with:
            before = {name: rest for name, *rest in self._begun_with}
            after = {name: rest for name, *rest in shapes}
            gone = [f"{name} is gone" for name in before if name not in after]
            new = [f"{name} is new" for name in after if name not in before]
            other = [
                f"{name} has another shape or dtype" for name in after if before.get(name, after[name]) != after[name]
            ]
            raise StepError(
                f"the models' parameters are others than when the run began: {listed([*new, *gone, *other])}\n"
                f"  found  a worker that joins later, or a resume, would not have them\n{UNTOUCHED}"
                "  next   build them before the Run, frozen with requires_grad_(False), and unfreeze them when their\n"
                f"         time comes; or pass {_REBUILD}"
            )

    def _look_at_hooks(self, found: TrainedSet) -> None:
        """Raise StepError where hooks of parameters have come or gone since the steps before."""
        if self._hooks is None or not found.same_parameters(self._set):
            self._hooks = found.hooks
        if found.hooks != self._hooks:
            said = [
                f"{name} has {now}, and had {before}"
                for name, now, before in zip(found.names, found.hooks, self._hooks, strict=True)
                if now != before
            ]
            raise StepError(
                f"hooks of parameters have come or gone since the steps before: {listed(said)}\n"
                "  found  a hook changes gradients, and a worker that joins later, or a resume, would not have it\n"
                f"{UNTOUCHED}"
                "  next   register it before the loop at every start, and before the parameter is frozen;\n"
                "         it may look at run.step_index"
            )

    def _other_parameters(self, here: Sequence[str], there: Sequence[str], step: int) -> ConfigError:
        said = listed(two_lists("here", here, "in the run", there))
        why = (
            "rebuild=function was called and did not make them equal"
            if self._rebuild is not None
            else f"pass {_REBUILD}"
        )
        return ConfigError(
            f"the models have other parameters than those of the run, which has applied {step} steps: {said}\n"
            f"  state  nothing was loaded\n  next   {why}"
        )

    def _regroup(self, optimizer: torch.optim.Optimizer, groups: list[list[torch.nn.Parameter]]) -> None:
        """Move parameters to these groups of an optimizer. Settings come with the state, which is loaded next."""
        kept = [{**optimizer.defaults, **group} for group in optimizer.param_groups[: len(groups)]]
        kept += [dict(optimizer.defaults) for _ in groups[len(kept) :]]
        optimizer.param_groups[:] = [{**group, "params": params} for group, params in zip(kept, groups, strict=True)]
