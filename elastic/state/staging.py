"""What is still being staged is joined before anything writes to weights, or to what optimizers keep beside them.

A save lends them to the copy (Checkpointer.save, steady=) while the next step computes. Whoever writes to them, and so
calls `join` first:

    an update, of either loop, and what passes a step over      loop/steps/update.py, as it begins
    a state that comes from storage or from a peer              TrainState.apply
    whatever is reached through `parameter.data`, and each      Staging.watched, here
    step of any optimizer: a fused one counts no version
    the next save, `wait` and the checkpointer's end            elastic_checkpoint/save/pipeline.py, by itself

What the script writes by other ways between two steps is known by the tensor's version: that save is dropped, another
is due, and from then on this run's saves are copied at once. Buffers, and all else in a state, always are.

`poll` is for places where this thread writes to nothing: a copy that is whole by then is told to the writer process,
and needs this worker no more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import elastic_checkpoint
from elastic.state.data_access import watch
from elastic.state.weights import Weights

Modules = Callable[[], Mapping[str, torch.nn.Module]]


class Staging:
    """Waits for a worker's save before anything writes to what it copies. modules: whose buffers training may move."""

    def __init__(self, weights: Weights, modules: Modules) -> None:
        self._weights = weights
        self._modules = modules
        self._saving: elastic_checkpoint.Saving | None = None
        self._on_staged: Callable[[], None] = lambda: None
        self._pid = os.getpid()  # whose the save is
        self.at_once = False  # the script has written to what was lent

    def lend(self) -> list[torch.Tensor]:
        """Return the tensors that only updates of the run write to; none where the script was seen to write there."""
        if self.at_once:
            return []
        modules = self._modules().values()
        moving = {buffer.untyped_storage().data_ptr() for module in modules for buffer in module.buffers()}
        return [one for one in self._weights.tensors() if one.untyped_storage().data_ptr() not in moving]

    def follow(self, saving: elastic_checkpoint.Saving, on_staged: Callable[[], None]) -> None:
        """Wait for `saving` where needed from here on. `on_staged` is called once it is copied, or came to nothing."""
        self._saving, self._on_staged, self._pid = saving, on_staged, os.getpid()
        self.poll()

    def poll(self) -> None:
        """Take note of a copy that is whole, without waiting. Costs nothing where nothing is under way."""
        if self._saving is not None:
            self._ended(self._saving.staged(wait=False))

    def join(self) -> None:
        """Wait for the copy: afterwards all that was lent may be written to."""
        if self._saving is not None and self._pid == os.getpid():  # a forked child reaches `.data`, too
            self._ended(self._saving.staged())

    def watched(self) -> Callable[[], None]:
        """Have `parameter.data` and every optimizer's step join first, until what is returned is called."""
        unwatch = watch(lambda _: self.join())
        hook = register_optimizer_step_pre_hook(lambda *_: self.join())

        def undo() -> None:
            hook.remove()
            unwatch()

        return undo

    def _ended(self, staged: bool) -> None:
        saving = self._saving
        if not staged or saving is None:
            return
        self._saving = None
        self.at_once |= isinstance(saving.error, elastic_checkpoint.StateChanged)
        self._on_staged()
