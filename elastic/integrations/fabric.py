"""Lightning Fabric in a run: its Fabric computes alone, and the run brings the workers together.

    fabric = Fabric()                                          # this one, in place of lightning's
    with elastic.Run(..., model=model, optimizer=optimizer, dataset=dataset, ...) as run:
        fabric.follow(run)
        model, optimizer = fabric.setup(model, optimizer)      # and no setup_dataloaders for training
        for epoch in run.epochs():
            for batch in run.batches():
                ...                                            # as it was

Checked with lightning 2.6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning.fabric
import torch
from lightning.fabric.strategies import SingleDeviceStrategy
from lightning.fabric.utilities.rank_zero import rank_zero_only

from elastic.config.preferred_device import prefer
from elastic.errors import ConfigError
from elastic.integrations.placing import check_device, own_device, place_before_views, warn_of_nobody_followed
from elastic.integrations.sharded import gathered, loads_whole, whole_state

if TYPE_CHECKING:
    from elastic.run import Run


class Fabric(lightning.fabric.Fabric):  # type: ignore[misc]  # it has no types
    """lightning.fabric.Fabric, for a run's worker. Takes what that takes, by name, but for what spreads a model.

        fabric = Fabric(precision="bf16-mixed")                # before the Run, which trains where this computes
        with elastic.Run("runs/mine", model=model, optimizer=optimizer, dataset=dataset, ...) as run:
            fabric.follow(run)                                 # the main process is the run's coordinator
            model, optimizer = fabric.setup(model, optimizer)
            for epoch in run.epochs():
                for batch in run.batches():                    # in place of the train loader
                    ...                                        # as it was: fabric.backward(loss), optimizer.step()

    Run gets model and optimizer as they are, and they are set up behind it; `setup_dataloaders` is not for the train
    loader, for the run reads the dataset. Where the Fabric is made behind the Run, Compute(device=) names its device.
    Run takes what it takes for a loop over `batches`: so no `clip_grad_norm`, for which there is
    `fabric.clip_gradients`, no `Update(apply=)` and no `overlap=False`.

    A model that is sharded by `fully_shard` over `elastic.device_mesh()`, before the Run, is set up as it is.
    `fabric.save` gathers what is in its state within the replica, of which all workers call it, and `fabric.load` takes
    a whole model.

    Args:
        device: Where this worker computes; "cuda" is its own GPU of those that its node has. Default: that, where
            there is one, else the CPU.
        **named: Fabric's, without `strategy`, `devices`, `num_nodes` and `accelerator`.

    Raises:
        ConfigError: It is to spread the model by itself, or to scale losses (a `precision` that begins with 16).
    """

    def __init__(self, *, device: torch.device | str | None = None, **named: Any) -> None:
        if given := [name for name in ("strategy", "devices", "num_nodes", "accelerator") if name in named]:
            raise ConfigError(
                f"Fabric({', '.join(given)}) is for a launch of Fabric's own, and workers are a run's\n"
                "  next  leave it out; device= says where this worker computes"
            )
        if str(named.get("precision", "")).startswith("16"):
            raise ConfigError(
                f"precision={named['precision']!r} scales losses by a scaler of Fabric's own, which is not carried\n"
                "  next  precision='bf16-mixed', which needs none"
            )
        own = own_device(device)
        self._of_worker = _OfWorker(own)
        self._follows = False
        super().__init__(strategy=self._of_worker, accelerator=own.type, devices=1, **named)
        prefer(own)
        self._of_worker.stand_as(*place_before_views())

    def follow(self, run: Run) -> None:
        """Have the main process be the run's coordinator, from here on. Call it in the run's with-block.

        Raises:
            ConfigError: The run trains on another device.
        """
        check_device(run, self.device, "Fabric")
        strategy = self._of_worker

        def follow_view() -> None:
            strategy.stand_as(run.rank, run.local_rank)

        follow_view()
        run.events.hear(lambda event: follow_view() if event["event"] == "view_formed" else None)
        self._follows = True

    def backward(self, tensor: torch.Tensor, *args: Any, **named: Any) -> None:
        """Compute gradients as Fabric does; warn where nobody has called `follow`."""
        if not self._follows:
            self._follows = warn_of_nobody_followed("fabric")
        super().backward(tensor, *args, **named)


class _OfWorker(SingleDeviceStrategy):  # type: ignore[misc]  # it has no types
    """One device, and a place among the workers, in place of a strategy of Fabric's."""

    def stand_as(self, rank: int, local_rank: int) -> None:
        self.global_rank = rank_zero_only.rank = rank
        self.local_rank = max(1, local_rank) if rank else 0  # only the main process is a local one

    @property
    def is_global_zero(self) -> bool:
        return bool(self.global_rank == 0)

    def get_module_state_dict(self, module: torch.nn.Module) -> dict[str, Any]:
        """Return a module's state, whole; see `gathered` in sharded.py."""
        return whole_state(module)

    def get_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return an optimizer's state, whole."""
        return gathered(super().get_optimizer_state(optimizer))

    def load_module_state_dict(self, module: torch.nn.Module, state_dict: dict[str, Any], strict: bool = True) -> None:
        """Load a whole module's state."""
        with loads_whole(module):
            super().load_module_state_dict(module, state_dict, strict)
