"""One answer to what a step trains: its names and flags, what of it travels, and how two answers differ, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import is_
from typing import Any

import torch
import xxhash

from elastic.errors import UNTOUCHED, StepError

_SHOWN = 8


@dataclass(frozen=True, eq=False)
class TrainedSet:
    """What a step trains. Another object means another answer.

    names       of every parameter of all models, under its first name; `parameters` beside them
    trained     whether each requires a gradient
    groups      optimizer -> its groups' parameters, as indices
    hooks       how many hooks of the script each parameter has
    """

    names: tuple[str, ...]
    parameters: tuple[torch.nn.Parameter, ...]
    trained: tuple[bool, ...]
    groups: Mapping[str, tuple[tuple[int, ...], ...]]
    hooks: tuple[int, ...]

    @cached_property
    def frozen(self) -> tuple[tuple[str, torch.nn.Parameter], ...]:
        return tuple(
            (name, parameter)
            for name, parameter, trains in zip(self.names, self.parameters, self.trained, strict=True)
            if not trains
        )

    @cached_property
    def digest(self) -> int:
        """Return 63 bits that are equal where two ranks train the same, of the same shapes, in the same groups."""
        kinds = [(tuple(p.shape), p.stride(), str(p.dtype)) for p in self.parameters]
        answer = repr((self.names, kinds, self.trained, sorted(self.groups.items())))
        return xxhash.xxh3_64_intdigest(answer.encode()) >> 1

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the set as plain values, to be saved and given to others."""
        return {
            "names": list(self.names),
            "trained": "".join("01"[trains] for trains in self.trained),
            "groups": {key: [_ranges(group) for group in groups] for key, groups in self.groups.items()},
            "hooks": {name: count for name, count in zip(self.names, self.hooks, strict=True) if count},
        }

    def same_parameters(self, other: TrainedSet) -> bool:
        return len(self.parameters) == len(other.parameters) and all(map(is_, self.parameters, other.parameters))


def changed_in_body(before: TrainedSet, now: TrainedSet) -> StepError:
    """Return the error for what changed between a step's begin and the end of its last share."""
    if not now.same_parameters(before):
        what = listed(two_lists("now", now.names, "when the step began", before.names)) or "parameters were exchanged"
    elif now.trained != before.trained:
        pairs = zip(now.names, now.trained, before.trained, strict=True)
        what = listed([f"{name} is {word(is_)} and was {word(was)}" for name, is_, was in pairs if is_ != was])
    elif now.groups != before.groups:
        what = "parameters were added to an optimizer, or moved between its groups"
    else:
        what = "hooks of parameters were registered or removed, and not put back"
    return StepError(
        f"the body of the inner loop changed what the step trains: {what}\n"
        "  found  which gradients are exchanged is settled when the step begins, on workers without a share, too\n"
        f"{UNTOUCHED}"
        "  next   call requires_grad_, add_param_group and the like between steps, or before the inner loop:\n"
        "             for step in run:\n"
        "                 D.requires_grad_(step.index % 2 == 0)\n"
        "                 for batch in step: ...\n"
        "         A network that is frozen for a part of the loss only, unfreeze again in the same body"
    )


def listed(said: Sequence[str]) -> str:
    more = f" and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    return ", ".join(said[:_SHOWN]) + more


def word(trains: bool) -> str:
    return "trained" if trains else "frozen"


def two_lists(where: str, mine: Iterable[str], elsewhere: str, theirs: Iterable[str]) -> list[str]:
    """Say which names only one of two lists has, or that their order differs."""
    here, there = set(mine), set(theirs)
    said = [f"{name} only {where}" for name in mine if name not in there]
    said += [f"{name} only {elsewhere}" for name in theirs if name not in here]
    return said or (["their order"] if list(mine) != list(theirs) else [])


def hooks_of(parameters: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Return how many hooks torch calls with each parameter's gradient."""
    # torch 2.13 has no other way to ask; tests/one_process/test_trained.py notices a change
    before = [parameter._backward_hooks for parameter in parameters]
    after = [parameter._post_accumulate_grad_hooks for parameter in parameters]
    if not any(before) and not any(after):
        return (0,) * len(parameters)
    return tuple([len(b or ()) + len(a or ()) for b, a in zip(before, after, strict=True)])


def _ranges(indices: Sequence[int]) -> str:
    """Write indices as "0-3 7", which is short: groups hold thousands of neighbours."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1][-1] = index
        else:
            runs.append([index, index])
    return " ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def indices(ranges: str) -> tuple[int, ...]:
    """Return the indices that `_ranges` has written."""
    pairs = [part.partition("-") for part in ranges.split()]
    return tuple(chain.from_iterable(range(int(low), int(high or low) + 1) for low, _, high in pairs))
