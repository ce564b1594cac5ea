"""Does a share's gradient depend on which shares came before? Asked once, as a loop's body runs for the first time.

How many bodies a worker has depends on the world size. What one of them leaves for the next (a count of bodies, a
replay buffer, a hidden state in an object of the script's own) makes the result depend on it, too, and no look at the
script's objects would find all of it. So in exact mode a process's first share is passed once more, for nothing:
other gradients are a body that depends on what it has changed.

Nothing is asked where kernels may give other bits by themselves (gpu_kernels.py), of one that joins a run that is
under way, and of batches that cannot be copied.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from elastic.data.aligned import aligned
from elastic.errors import CANNOT_DO, UNTOUCHED, StepError
from elastic.loop.refusals.script_variables import values, variables
from elastic.state.bits import sum_of_bits
from elastic.state.trained_set import listed

_ITEMS = 64  # of a list


class Rehearsal:
    """
    device  where the gradients are

    due       the next share will be passed for nothing first, if its batch can be copied
    runs      the body in hand is the one for nothing
    compares  the next one is its share itself
    """

    def __init__(self, device: torch.device) -> None:
        self.due = device.type == "cpu" or torch.get_deterministic_debug_mode() == 2
        self.runs = False
        self._given: dict[int, torch.Tensor] = {}
        self._again: dict[int, torch.Tensor] = {}
        self._seen: dict[str, Any] = {}
        self._changed: list[str] = []
        self.compares = False

    def begins(self, batch: Any) -> Any:
        """A copy of the first batch, for the body to pass; None: there is none to be passed."""
        if not self.due:
            return None
        self.due = False
        try:
            copied = aligned(copy.deepcopy(batch))  # as the batch is, or kernels would sum in another order
        except Exception:  # the script's own class, which may raise anything
            return None
        self._seen = values(variables())
        self.runs = True
        return copied

    def passed(self, gradients: Iterable[tuple[int, torch.Tensor]]) -> None:
        """What the pass for nothing gave each parameter, by its number."""
        self._given = {number: sum_of_bits(gradient) for number, gradient in gradients}

    def ends(self) -> None:
        """That body is over."""
        self.runs, self.compares = False, True
        here = variables()
        now = values(here)
        changed = [name for name, then in self._seen.items() if not _same(now.get(name), then)]
        # What is only counted or printed is a number; what may reach gradients is named alone, where there is any.
        self._changed = [name for name in changed if _holds_a_tensor(here.get(name))] or changed
        self._seen = {}

    def give_up(self) -> None:
        """The step comes round again, and this worker's first share may be another one."""
        self.runs = self.compares = False

    def take(self, number: int, gradient: torch.Tensor) -> None:
        """What the share itself gives."""
        self._again[number] = sum_of_bits(gradient)

    def compare(self, names: Sequence[str], *, step: int) -> StepError | None:
        """Both passes; returns what is to be raised where they differ."""
        self.compares = False
        given, again = self._given, self._again
        differ = [
            name
            for number, name in enumerate(names)
            if (number in given) != (number in again) or (number in given and bool(given[number] != again[number]))
        ]
        return _depends_on_itself(step, differ, self._changed) if differ else None


def _depends_on_itself(step: int, differ: Sequence[str], changed: Sequence[str]) -> StepError:
    of_script = f"         of the script's variables it changed {listed(changed)}\n" if changed else ""
    return StepError(
        f"the first share of step {step} was passed twice, and gave other gradients the second time: {listed(differ)}\n"
        "  found  what the loop's body has changed itself reaches the gradients (a hidden state; a count of bodies, "
        "enumerate's\n         too; a buffer of what came by; what objects keep of the last batch); how many bodies a "
        "worker has depends\n         on the world size\n"
        f"{of_script}{UNTOUCHED}"
        "  next   steps are counted by run.step_index, and what is summed up, by run.add and run.sums; what is kept "
        "from step to\n         step is changed where run.stepped, and handed over: extra=; a hidden state begins anew "
        f"with each batch\n         ({CANNOT_DO})"
    )


def _holds_a_tensor(value: Any, depth: int = 3) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and depth:
        return any(_holds_a_tensor(one, depth - 1) for one in value[:_ITEMS])
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other or one != one)
