"""Hugging Face Accelerate in a run: its Accelerator computes alone, and the run brings the workers together.

    accelerator = Accelerator()                                # this one, in place of accelerate's
    with elastic.Run(..., model=model, optimizer=optimizer, dataset=dataset, ...) as run:
        accelerator.follow(run)
        model, optimizer = accelerator.prepare(model, optimizer)      # and no train loader
        for epoch in run.epochs():
            for batch in run.batches():
                ...                                            # as it was

Accelerate sets up torch.distributed by itself where it finds LOCAL_RANK, which it must not: the group is the run's, and
changes. So it is one process to itself (`num_processes` is 1), and an evaluation loader that is prepared reads all of
its data on each worker. Who is the main process, by whom it prints and saves, follows the run's views.

Checked with accelerate 1.15.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import accelerate
from accelerate.state import AcceleratorState, PartialState

from elastic.config.preferred_device import prefer
from elastic.errors import ConfigError
from elastic.integrations.placing import check_device, own_device, place_before_views, warn_of_nobody_followed
from elastic.integrations.sharded import is_sharded_model, whole_state
from elastic.membership.environment import REPLICA, WORLD

if TYPE_CHECKING:
    from elastic.run import Run

_OF_A_LAUNCH = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", WORLD, REPLICA)


class Accelerator(accelerate.Accelerator):  # type: ignore[misc]  # it has no types
    """accelerate.Accelerator, for a run's worker. Takes what that takes.

        accelerator = Accelerator(mixed_precision="bf16")      # before the Run, which trains where this computes
        with elastic.Run("runs/mine", model=model, optimizer=optimizer, dataset=dataset, ...) as run:
            accelerator.follow(run)                            # the main process is the run's coordinator
            model, optimizer = accelerator.prepare(model, optimizer)
            for epoch in run.epochs():
                for batch in run.batches():                    # in place of the train loader
                    ...                                        # as it was: accelerator.backward(loss), optimizer.step()

    Model, optimizer and scheduler are prepared behind the Run, which wants them as they are; the train loader is not
    prepared, for the run reads the dataset. A loader to evaluate with may be: each worker reads all of it. Where the
    Accelerator is made behind the Run, Compute(device=) names its device. Before `follow` the main process is the first
    one that the launcher has started, under `elastic run` the first of each node. `sync_gradients` is true once a step,
    before and behind `optimizer.step()`. Run takes what it takes for a loop over
    `batches`: so no `clip_grad_norm`, for which there is `accelerator.clip_grad_norm_`, no `Update(apply=)` and no
    `overlap=False`.

    A model that is sharded by `fully_shard` over `elastic.device_mesh()`, before the Run, is prepared as it is.
    `get_state_dict` and `save_model` gather it within the replica, of which all workers call them: the first one has
    the whole, the others an empty dict.

    Raises:
        ConfigError: It is to accumulate gradients, to scale losses (mixed_precision="fp16"), or to spread the model by
            itself (`accelerate launch`); or to save or load all of a sharded model's training (`save_state`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        with hidden_launch():
            # Accelerate sets up torch.distributed by itself where it finds LOCAL_RANK.
            super().__init__(*args, **kwargs)
        check_alone(self)
        own = own_device(self.device.type) if self.device.type == "cuda" else self.device
        for state in (PartialState, AcceleratorState):
            state._shared_state["device"] = own
        prefer(own)
        self._run: Run | None = None
        self._warned = False
        stand_before_views()

    def follow(self, run: Run) -> None:
        """Have the main process be the run's coordinator, from here on. Call it in the run's with-block.

        Raises:
            ConfigError: The run trains on another device.
        """
        check_device(run, self.device, "Accelerator")
        follow(run)
        self._run = run

    @property
    def sync_gradients(self) -> bool:
        """Tell whether this batch's update is made here, before and behind `optimizer.step()`: once a step."""
        if (run := self._run) is None:
            return bool(self.gradient_state.sync_gradients)
        return run.updating or run.stepped or run.passed_over is not None

    def backward(self, loss: Any, **named: Any) -> None:
        """Compute gradients as accelerate does; warn where nobody has called `follow`."""
        if self._run is None and not self._warned:
            self._warned = warn_of_nobody_followed("accelerator")
        super().backward(loss, **named)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> Any:
        """Return the model's state as accelerate does; a sharded one's is gathered, see `gathered` in sharded.py."""
        return (
            whole_state(self.unwrap_model(model)) if is_sharded_model(model) else super().get_state_dict(model, unwrap)
        )

    def save_state(self, *args: Any, **named: Any) -> Any:
        """Save as accelerate does. Raises ConfigError for a sharded model."""
        self._check_whole("save_state")
        return super().save_state(*args, **named)

    def load_state(self, *args: Any, **named: Any) -> Any:
        """Load as accelerate does. Raises ConfigError for a sharded model."""
        self._check_whole("load_state")
        return super().load_state(*args, **named)

    def _check_whole(self, called: str) -> None:
        if any(map(is_sharded_model, self._models)):
            raise ConfigError(
                f"accelerator.{called} of a sharded model: each worker holds a part of it\n"
                "  next  leave it out: a run saves by itself, and goes on from there; accelerator.save_model has the "
                "weights"
            )


def check_alone(accelerator: accelerate.Accelerator) -> None:
    """Raise ConfigError where the Accelerator would do by itself what is the run's."""
    if accelerator.gradient_accumulation_steps != 1:
        raise ConfigError(
            f"gradient_accumulation_steps={accelerator.gradient_accumulation_steps}, and a run adds gradients up by "
            "itself\n"
            "  next  leave it out: Run(batch_size=) is what one update counts, Data(micro_batch_size=) bounds memory"
        )
    if accelerator.num_processes != 1:
        raise ConfigError(
            f"accelerate set up {accelerator.distributed_type} over {accelerator.num_processes} processes, and workers "
            "are a run's\n"
            "  next  start the script with python, elastic run or torchrun, and not with accelerate launch"
        )
    if accelerator.scaler is not None:
        raise ConfigError(
            "mixed_precision='fp16' scales losses by a scaler of accelerate's own, which is not carried\n"
            "  next  mixed_precision='bf16', which needs none"
        )


def follow(run: Run) -> None:
    """Have accelerate's main process be the run's coordinator, from here on."""

    def heard(event: dict[str, Any]) -> None:
        if event["event"] == "view_formed":
            _follow_view(run)

    _follow_view(run)
    run.events.hear(heard)


def _follow_view(run: Run) -> None:
    _stand_as(run.rank, run.local_rank)


def stand_before_views() -> None:
    """Have accelerate's main process be the first that the launcher has started, until `follow`."""
    _stand_as(*place_before_views())


def _stand_as(rank: int, local_rank: int) -> None:
    """Set what `is_main_process`, `print` and `on_main_process` ask; only the main process is a local one."""
    for state in (PartialState, AcceleratorState):
        if state._shared_state:
            state._shared_state["process_index"] = rank
            state._shared_state["local_process_index"] = max(1, local_rank) if rank else 0


@contextmanager
def hidden_launch() -> Iterator[None]:
    """Hide the launcher from accelerate, within this context."""
    hidden = {name: os.environ.pop(name) for name in _OF_A_LAUNCH if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
