"""Runs a script in a worker as it is, and notes each step of its optimizers: when, on which examples, to which weights.

    python -m elastic.drill.torchrun.watched NOTES [-m] TARGET ARG ...

What a step trained on is what its data loaders gave out since the step before, and a module took with gradients on: so
neither what a script skips as it resumes, nor what it evaluates on. A trainer that holds a batch in hand while it asks
for the next one is known by its name. Of a batch its sampler's indices are kept, of data sets that have some. The
weights are one number, the same however they are cut, so that it shows from which step a worker that starts again goes
on.

Of torch 2.13: `_BaseDataLoaderIter` is private. Batches come in the order in which `_next_index` chose them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import _DatasetKind, dataloader

from elastic.membership import environment

_CHOSEN, _GIVEN = "_elastic_drill_chosen", "_elastic_drill_given"  # of an iterator: and not given out, or trained on
_ONE_AHEAD = ("accelerate.data_loader", "lightning.pytorch.utilities.combined_loader")
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Notes:
    """The notes of one process, a line of JSON for each step."""

    def __init__(self, folder: Path) -> None:
        launch = environment.read()
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1)
        self._given: deque[tuple[str, list[int]]] = deque()  # by the loader that was asked last
        self._ahead = 0  # so many of them whoever asks has in hand, and not trained on
        self._asked = self._began = False
        self._read: dict[str, list[int]] = {}
        self._before = [0, 0]
        self.note(rank=launch.rank, world_size=launch.world_size, pid=os.getpid())

    def note(self, **facts: Any) -> None:
        self._file.write(json.dumps({"t": time.time(), **facts}) + "\n")

    def asked(self, given: deque[tuple[str, list[int]]], *, ahead: int) -> None:
        """Note that a loader is asked for a batch; given: what it gave out and nobody has trained on."""
        self._given, self._ahead, self._asked = given, ahead, True

    def before_module(self, *_: Any) -> None:
        """Keep the batch that a module takes, the first time after a loader was asked."""
        if self._asked and self._given and torch.is_grad_enabled():
            self._asked = False
            for _skipped in range(len(self._given) - 1 - self._ahead):
                self._given.popleft()
            data, indices = self._given.popleft()
            self._read.setdefault(data, []).extend(indices)

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._before = weights(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note a step, and before the first one with which weights this process begins."""
        after = weights(optimizer)
        if after == self._before:
            return  # get_state_dict of DCP's takes one at no rate, to have moments to load into
        if not self._began:
            self._began = True
            self.note(begins=self._before)
        read, self._read = self._read, {}
        self.note(step=after, read=read)


def weights(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return what the bits of the weights add up to: of whole ones, and of this process's parts of others."""
    sums = [0, 0]
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            cut = isinstance(parameter, DTensor)
            local = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach().contiguous()
            sums[cut] += int(local.view(_BITS[local.element_size()]).sum(dtype=torch.int64))
    return sums


def watch(notes: Notes) -> None:
    """Have all optimizers, modules and data loaders of this process noted."""
    register_optimizer_step_pre_hook(notes.before_step)
    register_optimizer_step_post_hook(notes.after_step)
    register_module_forward_pre_hook(notes.before_module)
    iterator: Any = dataloader._BaseDataLoaderIter
    chooses, gives, begins = iterator._next_index, iterator.__next__, iterator._reset

    def next_index(self: Any) -> Any:
        index = chooses(self)
        vars(self).setdefault(_CHOSEN, deque()).append(index)
        return index

    def reset(self: Any, *args: Any, **options: Any) -> Any:
        vars(self)[_CHOSEN] = deque()  # what was read ahead of an epoch that was broken off
        return begins(self, *args, **options)

    def next_batch(self: Any) -> Any:
        given = vars(self).setdefault(_GIVEN, deque())
        notes.asked(given, ahead=int(sys._getframe(1).f_globals.get("__name__") in _ONE_AHEAD))
        batch = gives(self)
        index = vars(self)[_CHOSEN].popleft()
        if self._dataset_kind == _DatasetKind.Map:
            indices = index if isinstance(index, (list, tuple)) else [index]
            given.append((f"{type(self._dataset).__name__} of {len(self._dataset)}", [int(one) for one in indices]))
        return batch

    iterator._next_index, iterator.__next__, iterator._reset = next_index, next_batch, reset


def main() -> None:
    folder, *command = sys.argv[1:]
    watch(Notes(Path(folder)))
    module = command[0] == "-m"
    target, *args = command[1:] if module else command
    sys.argv = [target, *args]
    if module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(target))
        runpy.run_path(target, run_name="__main__")


if __name__ == "__main__":
    main()
