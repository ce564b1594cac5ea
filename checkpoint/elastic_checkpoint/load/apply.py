"""A checkpoint's tree into live objects: first everything is matched, then everything is applied.

Matched before anything is touched: names, shapes and dtypes of modules, tensors and arrays, and whether those that
share memory here were saved alike (aliases.py); the groups of an optimizer, and the shapes of its element-wise state.
What other objects accept only their load_state_dict() knows; if one of them refuses, the error says which entries
already hold the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from elastic_checkpoint.errors import StateMismatch
from elastic_checkpoint.format.document import Tree, child, is_sharded, is_stateful, shown
from elastic_checkpoint.format.marks import KEPT
from elastic_checkpoint.load.aliases import Aliases
from elastic_checkpoint.load.cast import Cast, Casts
from elastic_checkpoint.load.fill import (
    as_here,
    copy_tensor,
    is_of,
    load_optimizer,
    local,
    owned_copy,
    parameters,
    refill,
    sharded_as,
)
from elastic_checkpoint.load.loaded import Skipped

# Optimizer state of a parameter's own shape. Others (step counts, factored moments) have shapes of their own.
_ELEMENTWISE = {
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum",
    "exp_inf", "prev", "step_size",
}  # fmt: skip
_SHOWN = 20  # entries of each kind in the message; the error's fields hold all


Action = tuple[str, Callable[[], object]]  # the path of what it fills, for the error


def apply(state: Tree, saved: Tree, *, strict: bool = True, cast: Cast = None, kept: Sequence[str] = ()) -> Skipped:
    """Make the objects in `state` hold what `saved`, a tree of `read`, has at the same places.

    Tensors and arrays are written in place. A list or dict of plain values, a list of losses, say, keeps being the same
    object, with what was saved in it; any other plain value, a tuple too, is replaced in the dict or list that holds
    it. An optimizer's state keeps the dtype that was saved; its own load_state_dict() would cast it to the parameter's.

    strict   False accepts names that only one side has; another shape or dtype is refused all the same
    cast     see cast.py; an optimizer's element-wise state then becomes the dtype that it has here or, where there is
             none yet, its parameter's
    kept     of `Resolver`: entries that are left as they are
    returns  these names, and those of what was cast
    raises   StateMismatch, listing everything that differs; nothing was touched then
    """
    matched = match(state, saved, strict=strict, cast=cast, kept=kept)
    matched.refuse_values()
    try:
        with _one_thread():
            _act(matched.actions)
    finally:
        matched.actions.clear()  # they refer to each other: all that was read would stay until the collector comes
    return Skipped((*matched.missing, *kept), tuple(matched.unexpected), dict(matched.casts.names))


def _act(actions: list[Action]) -> None:
    """Do all actions in turn. Raises StateMismatch if an object refuses, which says what is changed already."""
    done: list[str] = []
    for path, act in actions:
        try:
            act()
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise StateMismatch(
                f"{path or 'the state'} refuses what was saved for it: {type(error).__name__}: {error}\n"
                f"  state  already changed: {', '.join(done) or 'nothing'}; it may be half changed itself\n"
                "  next   make all objects anew, the way they were made when this was saved, and load again",
                missing=[],
                unexpected=[],
                misshaped={path: str(error)},
            ) from error
        done.append(path)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch copy in one thread: its copies would join a team of threads for each tensor."""
    # Where others use the machine, too, loading 1,200 took 20 to 60 times as long as in one thread, which copies about
    # as fast as memory takes it (2026-11, 2 cores).
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def match(state: Tree, saved: Tree, *, strict: bool = True, cast: Cast = None, kept: Sequence[str] = ()) -> Match:
    """Match a state with what was saved, and change nothing: `saved` may hold tensors without data.

    Raises StateMismatch for what `apply` would refuse, but for what only values tell.
    """
    found = Match(strict, Casts(cast), some_kept=bool(kept))
    found.visit(state, saved, "", None)
    found.casts.refuse_unmatched()
    found.refuse_if_different()
    return found


class Match:
    """Collects what differs, and what is to be done if nothing does.

    sharded  each saved tensor of which no more is needed than this rank's part of a DTensor, and that DTensor; as often
             as it is met
    used     the parts of what was saved that are loaded; the rest need not be read
    aliases  where what is loaded into lies
    """

    def __init__(self, strict: bool, casts: Casts, *, some_kept: bool = False) -> None:
        self.strict = strict
        self.casts = casts
        self.aliases = Aliases()
        self._some_kept = some_kept
        self.sharded: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.used: list[Any] = []
        self.missing: list[str] = []
        self.unexpected: list[str] = []
        self.misshaped: dict[str, str] = {}
        self.actions: list[Action] = []
        self._owned: dict[int, Any] = {}  # what is put in the place of plain values: one tensor stays one

    def visit(self, target: Any, saved: Any, path: str, assign: Callable[[Any], None] | None) -> None:
        """Compare an entry with what was saved for it, and note how it is to be filled.

        assign  puts a plain value into the container that holds `target`, or None where that cannot be done.
        """
        if saved is KEPT:
            return
        keeps = self._some_kept and _holds_kept(saved)  # then only what is beside it is replaced
        if isinstance(target, torch.Tensor):
            if self._same_tensor(target, saved, path):
                self._note(saved, target)
                self._place(path, target, saved)
                self.used.append(saved)
                self.actions.append((path, lambda: copy_tensor(target, saved)))
        elif isinstance(target, np.ndarray):
            if self._same_array(target, saved, path):
                self.aliases.array(path, target, saved)
                self.used.append(saved)
                self.actions.append((path, lambda: np.copyto(target, saved)))
        elif isinstance(target, torch.nn.Module):
            self._module(target, saved, path)
        elif isinstance(target, torch.optim.Optimizer):
            self._optimizer(target, saved, path)
        elif keeps and not isinstance(target, dict | list | tuple | torch.nn.Module):
            self.misshaped[path] = "a part of it is of each rank and is to be kept: let per_rank= name all of it"
        elif path and type(target) in (dict, list) and type(target) is type(saved) and _is_plain(target) and not keeps:
            self.used.append(saved)
            self.actions.append((path, lambda: refill(target, owned_copy(saved, self._owned))))
        elif assign is not None and _is_plain(target) and not keeps:
            self.used.append(saved)
            self.actions.append((path, lambda: assign(owned_copy(saved, self._owned))))
        elif isinstance(target, dict) and isinstance(saved, dict):
            self._names(set(target), set(saved), path)
            for key in target:
                if key in saved:
                    self.visit(target[key], saved[key], child(path, key), _assigner(target, key))
        elif isinstance(target, list | tuple) and isinstance(saved, list | tuple):
            self._names(set(range(len(target))), set(range(len(saved))), path)
            anew = list(target) if type(target) is tuple and assign is not None else None  # np.random.get_state()'s
            holder = target if isinstance(target, list) else anew
            for index, (mine, theirs) in enumerate(zip(target, saved, strict=False)):
                assign_item = _assigner(holder, index) if holder is not None else None
                self.visit(mine, theirs, child(path, index), assign_item)
            if anew is not None and assign is not None:
                self.actions.append((path, lambda: assign(tuple(anew))))
        elif is_stateful(target):
            self.used.append(saved)
            self.actions.append((path, lambda: target.load_state_dict(owned_copy(saved, {}))))
        elif isinstance(target, dict | list | tuple):
            self.misshaped[path] = f"saved a {type(saved).__name__}, here a {type(target).__name__}"
        elif type(target) is not type(saved) or target != saved:
            self.misshaped[path] = f"saved {shown(saved):.60}, here {shown(target):.60}, and a tuple cannot be changed"

    def _note(self, saved: torch.Tensor, target: torch.Tensor) -> None:
        if is_sharded(target):
            self.sharded.append((saved, target))

    def _place(self, path: str, target: torch.Tensor, saved: torch.Tensor) -> None:
        self.aliases.tensor(path, local(target), saved, lambda: local(sharded_as(saved, target)))

    @property
    def values_decide(self) -> bool:
        """Return whether `refuse_values` has anything to look at."""
        return self.casts.any or self.aliases.any

    def refuse_values(self) -> None:
        """Raise StateMismatch for what is seen in values only, so that `saved` must hold data."""
        self.casts.refuse_overflow()
        self.aliases.refuse_two_values()

    def refuse_if_different(self) -> None:
        """Raise StateMismatch if any name, shape or dtype differs; names count only if the match is strict."""
        missing, unexpected = (self.missing, self.unexpected) if self.strict else ([], [])
        if not (missing or unexpected or self.misshaped):
            return
        parts = [
            f"  {title}  {line}"
            for title, lines in (
                ("missing   ", missing),
                ("unexpected", unexpected),
                ("misshaped ", [f"{name}: {what}" for name, what in self.misshaped.items()]),
            )
            for line in [*lines[:_SHOWN], *([f"... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])]
        ]
        counts = f"{len(missing)} missing, {len(unexpected)} unexpected, {len(self.misshaped)} misshaped"
        raise StateMismatch(
            f"the checkpoint is of another state: {counts}\n"
            + "\n".join(parts)
            + "\n  state       nothing was changed"
            + "\n  next        build the state as it was when this was saved, or load with strict=False to accept\n"
            + "              missing and unexpected names, with cast=True for another floating-point dtype, or take\n"
            + "              the parts that you want from read().tree",
            missing=missing,
            unexpected=unexpected,
            misshaped=self.misshaped,
        )

    def _names(self, here: set[Any], there: set[Any], path: str) -> None:
        """Note the names below `path` that only one side has."""
        self.missing += sorted(child(path, key) for key in here - there)
        self.unexpected += sorted(child(path, key) for key in there - here)

    def _same_tensor(self, target: torch.Tensor, saved: Any, path: str) -> bool:
        """Return whether `saved` can be loaded into this tensor; if not, note why."""
        if not isinstance(saved, torch.Tensor):
            self.misshaped[path] = f"saved a {type(saved).__name__}, here a tensor"
        elif is_lazy(target):  # has no shape that could be compared
            self.misshaped[path] = f"saved {_describe(saved)}, here {_cannot_hold(target)}"
        elif saved.shape != target.shape or not self.casts.tensor(path, saved, target.dtype):
            self.misshaped[path] = f"saved {_describe(saved)}, here {_describe(target)}"
        elif (why := _cannot_hold(target)) is not None:
            self.misshaped[path] = f"saved {_describe(saved)}, here {why}"
        return path not in self.misshaped

    def _same_array(self, target: np.ndarray[Any, Any], saved: Any, path: str) -> bool:
        """Return whether `saved` can be loaded into this array; if not, note why."""
        if not isinstance(saved, np.ndarray):
            self.misshaped[path] = f"saved a {type(saved).__name__}, here an array"
        elif saved.shape != target.shape or not self.casts.array(path, saved.dtype, target.dtype):
            self.misshaped[path] = f"saved {saved.dtype}{saved.shape}, here {target.dtype}{target.shape}"
        return path not in self.misshaped

    def _module(self, module: torch.nn.Module, saved: Any, path: str) -> None:
        """Compare a module's entries with those that were saved, and note that its load_state_dict() fills it."""
        if not isinstance(saved, dict):
            self.misshaped[path] = f"saved a {type(saved).__name__}, here a module"
            return
        here = module.state_dict()
        is_filled_in_place = type(module).load_state_dict is torch.nn.Module.load_state_dict
        self._names(set(here), set(saved), path)
        for name, value in here.items():
            if name not in saved or saved[name] is KEPT or not isinstance(value, torch.Tensor):
                continue
            if self._same_tensor(value, saved[name], child(path, name)):
                self._note(saved[name], value)
                if is_filled_in_place:
                    self._place(child(path, name), value, saved[name])
        self.used += [saved[name] for name in here if name in saved]
        self.actions.append((path, lambda: module.load_state_dict(as_here(saved, here), strict=self.strict)))

    def _optimizer(self, optimizer: torch.optim.Optimizer, saved: Any, path: str) -> None:
        """Compare an optimizer's groups and element-wise state with what was saved, and note how it is filled."""
        if not _is_of_an_optimizer(saved):
            self.misshaped[path] = f"saved a {type(saved).__name__} that is no optimizer's state, here an optimizer"
            return
        groups = child(path, "param_groups")
        ours, others = optimizer.param_groups, saved["param_groups"]
        if len(ours) != len(others):
            self.misshaped[groups] = f"saved {len(others)} groups, here {len(ours)}"
            return
        for index, (mine, theirs) in enumerate(zip(ours, others, strict=True)):
            if len(mine["params"]) != len(theirs["params"]):
                count = f"saved {len(theirs['params'])} parameters, here {len(mine['params'])}"
                self.misshaped[child(groups, index)] = count
                return
        dtypes: dict[tuple[Any, str], torch.dtype] = {}
        for key, param in parameters(optimizer, saved):
            if key in saved["state"] and (param.is_meta or is_lazy(param)):
                self.misshaped[child(child(path, "state"), key)] = f"here the parameter is {_cannot_hold(param)}"
                continue
            held_for = saved["state"].get(key)
            for name, value in held_for.items() if isinstance(held_for, dict) else ():
                at = child(child(child(path, "state"), key), name)
                if (
                    name in _ELEMENTWISE
                    and isinstance(value, torch.Tensor)
                    and value.dim()
                    and value.shape != param.shape
                ):
                    self.misshaped[at] = f"saved {_describe(value)}, here the parameter is {_describe(param)}"
                elif is_of(value, param):
                    self._note(value, param)
                    held = optimizer.state[param].get(name) if param in optimizer.state else None
                    here = held.dtype if isinstance(held, torch.Tensor) else param.dtype
                    if self.casts.tensor(at, value, here):
                        dtypes[key, name] = here
        self.used.append(saved)
        self.actions.append((path, lambda: load_optimizer(optimizer, saved, dtypes)))


def _is_of_an_optimizer(saved: Any) -> bool:
    """Return whether `saved` has the form that torch's optimizers give their state_dict()."""
    if not (isinstance(saved, dict) and isinstance(saved.get("state"), dict)):
        return False
    groups = saved.get("param_groups")
    return isinstance(groups, list) and all(
        isinstance(group, dict)
        and isinstance(group.get("params"), list)
        and all(isinstance(key, int | str) for key in group["params"])
        for group in groups
    )


def _is_plain(target: Any) -> bool:
    """Return whether a value holds nothing alive: no tensor, array or stateful object that others may hold on to."""
    if isinstance(target, dict):
        return all(_is_plain(value) for value in target.values())
    if isinstance(target, list | tuple):
        return all(_is_plain(value) for value in target)
    return not isinstance(target, torch.Tensor | np.ndarray) and not is_stateful(target)


def _holds_kept(saved: Any) -> bool:
    """Return whether any part of what was saved is to be kept as it is here."""
    if isinstance(saved, dict):
        return any(_holds_kept(value) for value in saved.values())
    if isinstance(saved, list | tuple):
        return any(_holds_kept(value) for value in saved)
    return saved is KEPT


def _cannot_hold(tensor: torch.Tensor) -> str | None:
    """Return why nothing can be loaded into this tensor, if so."""
    if is_lazy(tensor):
        return "uninitialized, without a shape yet: run a forward pass first, which gives a lazy module its parameters"
    if tensor.is_meta:
        return "on the meta device, which has no memory: give it some first (`module.to_empty(device=...)`)"
    if any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return "expanded, so that many of its elements are one in memory: load into a `.clone()` of it"
    return None


def _assigner(container: Any, key: Any) -> Callable[[Any], None]:
    """Return a function that puts a value at this place of a dict or list."""

    def assign(value: Any) -> None:
        container[key] = value

    return assign


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
