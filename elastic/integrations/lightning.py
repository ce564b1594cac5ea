"""Lightning's Trainer in a run, as a strategy: its loop, logs, callbacks and schedules, over the run's workers.

    trainer = L.Trainer(..., strategy=ElasticStrategy("runs/mine", virtual_workers=16))
    trainer.fit(model, DataLoader(dataset, batch_size=64, shuffle=True))      # 64 examples are one update

What Lightning takes for a batch is a whole step of the run. It hands a strategy the closure of `training_step` and
backward, which is called once for each of this worker's shares, and again where a step comes round again. So hooks,
callbacks, validation and stops come once a step, on every worker. What `training_step` logs is logged once a step:
the mean over all of its examples.

Loops' counters, callbacks' states and logged values are part of the run's state. Checked with lightning 2.6.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset, RandomSampler
from torchmetrics.utilities import prints

from elastic.data.order import Order
from elastic.errors import ConfigError
from elastic.integrations.placing import own_device, steps_per_epoch
from elastic.loop.plain_step import PlainStep
from elastic.run import Run


class ElasticStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # it has no types
    """Also `Trainer(strategy="elastic")`, which takes the two first arguments from the environment.

    Args:
        url: Where the run lives, see elastic.Run; default ELASTIC_URL.
        virtual_workers: See elastic.Run; default ELASTIC_VIRTUAL_WORKERS.
        batch_size: Examples of one update, on all workers together; default the train loader's.
        device: Where this worker computes; "cuda" is its own GPU of those that its node has.
        **arguments: Others of elastic.Run that the Trainer does not decide.

    Attributes:
        run: The run, from `fit` on.

    Raises:
        ConfigError: Something was asked for that a run cannot carry exactly; from `fit`.
    """

    strategy_name = "elastic"

    def __init__(
        self,
        url: str | None = None,
        *,
        virtual_workers: int | None = None,
        batch_size: int | None = None,
        device: torch.device | str = "cpu",
        **arguments: Any,
    ) -> None:
        super().__init__(device=own_device(device))
        self._url = url or os.environ.get("ELASTIC_URL", "")
        self._virtual_workers = virtual_workers or int(os.environ.get("ELASTIC_VIRTUAL_WORKERS", "0"))
        self._batch_size = batch_size
        self._arguments = arguments
        self._trainer: Any = None
        self._stack = ExitStack()
        self._section = ExitStack()
        self._step: PlainStep | None = None
        self._share: Any = None
        self._results: _StepResults | None = None
        self._progress: _Progress | None = None
        self.run: Run | None = None

    def setup(self, trainer: Any) -> None:
        self._trainer = trainer
        super().setup(trainer)

    def process_dataloader(self, loader: Any) -> Any:
        """The train loader's dataset is read by the run; other loaders are read whole by each worker."""
        trainer = self._trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return loader
        if self.run is not None:
            raise ConfigError("the train loader is made a second time\n  next  one train loader, and one fit for a run")
        _check(trainer, loader, url=self._url, virtual_workers=self._virtual_workers)
        self._results = trainer.fit_loop.epoch_loop._results = _StepResults(self)
        self._progress = _Progress(trainer, self._results)
        schedulers = {f"scheduler{i}": one.scheduler for i, one in enumerate(self.lr_scheduler_configs)}
        plateaus = {name: one for name, one in schedulers.items() if isinstance(one, ReduceLROnPlateau)}
        ends = {"steps": trainer.max_steps, "epochs": trainer.max_epochs}
        run = Run(
            self._url,
            model=self.lightning_module,
            optimizer=self.optimizers[0],
            scheduler={name: one for name, one in schedulers.items() if name not in plateaus} or None,
            dataset=loader.dataset,
            collate_fn=loader.collate_fn,
            batch_size=self._batch_size or loader.batch_size,
            virtual_workers=self._virtual_workers,
            num_workers=loader.num_workers,
            last_batch="drop" if loader.drop_last else "short",
            **{name: end for name, end in ends.items() if end is not None and end > 0},
            **{name: value for name, value in self._arguments.items() if name != "extra"},
            extra={**self._arguments.get("extra", {}), **plateaus, "trainer": self._progress},
        )
        self.run = self._stack.enter_context(run)
        self._place()
        run.events.hear(lambda event: self._place() if event["event"] == "view_formed" else None)
        return _Steps(run, loader, self._batch_size or loader.batch_size, order=self._arguments.get("order"))

    def _place(self) -> None:
        run = self.run
        assert run is not None
        self.global_rank = rank_zero_only.rank = prints.rank_zero_only.rank = run.rank

    @property
    def is_global_zero(self) -> bool:
        return self.run is None or self.run.is_coordinator

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        return batch if _step_of(batch) is not None else super().batch_to_device(batch, *args, **kwargs)

    def on_train_start(self) -> None:
        """A resumed epoch is no other than one that was not interrupted."""
        self._trainer.fit_loop._restarting = False

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self._step = _step_of(batch)
        if self._progress is not None:
            self._progress.is_looping = True

    def training_step(self, _: Any, *args: Any) -> Any:
        run, step = self.run, self._step
        assert run is not None
        assert step is not None
        share = super().batch_to_device(self._share)
        result = super().training_step(share, *args)
        loss = result["loss"] if isinstance(result, dict) else result
        if loss is not None:
            run.add(loss=loss.detach().float() * step.items)
        return result

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """`closure` is training_step, zero_grad and backward; behind the last one `.grad` is exact."""
        run, step, results = self.run, self._step, self._results
        assert run is not None
        assert step is not None
        assert results is not None
        with results.of_shares(step):
            for self._share in step:
                closure()
        loss = torch.tensor(run.sums["loss"] / run.count)
        closure._result = ClosureResult(closure_loss=loss)  # the whole step's, for hooks
        results.log_step(run)
        return super().optimizer_step(optimizer, lambda: loss, model, **kwargs)

    def on_validation_start(self) -> None:
        if self.run is not None:
            self._section.enter_context(self.run.long_section())

    def on_validation_end(self) -> None:
        self._section.close()

    def on_train_end(self) -> None:
        self._stack.close()

    def on_exception(self, exception: BaseException) -> None:
        self._section.close()
        self._stack.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self) -> None:
        """Where there was nothing left to train, this is the first to come."""
        self._stack.close()
        super().teardown()


class _Steps:
    """The train loader. What it gives are steps, each in a dict, on which no hook of batches has an effect."""

    def __init__(self, run: Run, loader: Any, batch_size: int, *, order: Order | None) -> None:
        self.dataset, self.batch_size, self.drop_last = loader.dataset, batch_size, loader.drop_last
        self._per_epoch = steps_per_epoch(self.dataset, batch_size=batch_size, drops=self.drop_last, order=order)
        self._run = run
        self._of_run: Iterator[PlainStep] | None = None

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[dict[str, PlainStep]]:
        if self._of_run is None:
            self._of_run = self._run.steps()
        for step in self._of_run:
            yield {"step": step}
            if step.last_of_epoch:
                return

    def state_dict(self) -> dict[str, Any]:
        """The run knows where it stands."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See state_dict."""


def _step_of(batch: Any) -> PlainStep | None:
    step = batch.get("step") if isinstance(batch, dict) else None
    return step if isinstance(step, PlainStep) else None


class _StepResults(_ResultCollection):  # type: ignore[misc]  # it has no types
    """What is logged while training. In `training_step` that is of a share: it is added up, and logged once a step."""

    def __init__(self, strategy: ElasticStrategy) -> None:
        super().__init__(training=True)
        self._strategy = strategy
        self._step: PlainStep | None = None
        self._asked: dict[str, dict[str, Any]] = {}
        self._before: dict[str, tuple[float, int]] = {}

    def of_shares(self, step: PlainStep) -> ExitStack:
        """A context: what is logged in it is of this step's shares."""
        stack = ExitStack()
        self._step = step
        stack.callback(setattr, self, "_step", None)
        return stack

    def log(self, fx: str, name: str, value: Any, **named: Any) -> None:
        step, run = self._step, self._strategy.run
        if step is None or run is None:
            super().log(fx, name, value, **named)
            return
        if not isinstance(value, torch.Tensor) or named.get("reduce_fx") not in ("mean", torch.mean):
            raise ConfigError(
                f"training_step logs {name!r} as a {type(value).__name__}, reduced by {named.get('reduce_fx')}: of a "
                "step, means of numbers can be told\n"
                "  next  self.log(name, value), where value is a mean over the batch"
            )
        weight = named.get("batch_size") or step.items
        self._asked[name] = {**named, "fx": fx}
        run.add(**{f"logged {name}": value.detach().double() * weight, f"weight of {name}": weight})

    def log_step(self, run: Run) -> None:
        """What the step's shares have logged, on all workers."""
        asked, self._asked = self._asked, {}
        for name, named in asked.items():
            if f"logged {name}" not in run.sums:
                continue  # of a share that does not count
            weight = int(run.sums[f"weight of {name}"])
            value = torch.as_tensor(run.sums[f"logged {name}"] / weight, dtype=torch.float32)
            super().log(value=value, name=name, **{**named, "batch_size": weight})
            self._go_on(f"{named['fx']}.{name}")

    def state_dict(self) -> dict[str, list[Any]]:
        """Of this epoch's means, as far as they have come."""
        return {
            **{name: list(before) for name, before in self._before.items()},
            **{
                name: [float(one.value), int(one.cumulated_batch_size)]
                for name, one in self.items()
                if not one.has_reset and one.is_tensor and one.meta.on_epoch and one.meta.is_mean_reduction
            },
        }

    def load_state_dict(self, state: dict[str, list[Any]]) -> None:
        self._before = {name: (value, weight) for name, (value, weight) in state.items()}

    def _go_on(self, key: str) -> None:
        """From where the epoch's mean stood before this process."""
        value, weight = self._before.pop(key, (0.0, 0))
        if weight:
            self[key].value = self[key].value + value
            self[key].cumulated_batch_size = self[key].cumulated_batch_size + weight


class _Progress:
    """What of the Trainer must be the same on all workers, on one that joins, and after a restart.

    is_looping  this process has begun to train
    """

    def __init__(self, trainer: Any, results: _StepResults) -> None:
        self._trainer = trainer
        self._results = results
        self.is_looping = False

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        loops = {
            name: state for name, state in trainer.fit_loop.state_dict().items() if not name.endswith("state_dict")
        }
        counts = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
        counts["zero_grad"] = {scope: dict(count) for scope, count in counts["step"].items()}  # those are shares
        return {
            "loops": loops,
            "stepped": trainer.fit_loop.epoch_loop._batches_that_stepped,
            "callbacks": call._call_callbacks_state_dict(trainer),
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "logged": self._results.state_dict(),
        }

    def load_state_dict(self, told: dict[str, Any]) -> None:
        trainer = self._trainer
        fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        if self.is_looping:
            return  # a step was taken over: this loop stands where the donor's stood, and holds the same
        for one in trainer.checkpoint_callbacks:
            state = told["callbacks"].get(one.state_key, {})
            one.dirpath = state.get("dirpath", one.dirpath)  # that of the worker that writes
        if not told["loops"]["epoch_loop.batch_progress"]["total"]["ready"]:
            return  # the run begins
        fit.load_state_dict(told["loops"])
        epoch._batches_that_stepped = told["stepped"]
        call._call_callbacks_load_state_dict(trainer, {"callbacks": told["callbacks"]})
        metrics = {name: torch.tensor(value) for name, value in told["metrics"].items()}
        trainer._logger_connector._callback_metrics.update(metrics)
        self._results.load_state_dict(told["logged"])

        def reset() -> None:
            """Once in place of the epoch loop's own, which takes a resumed epoch for one that broke off."""
            del epoch.reset
            epoch.restarting = epoch.val_loop.restarting = False

        epoch.reset = reset


def _check(trainer: Any, loader: Any, *, url: str, virtual_workers: int) -> None:
    """Raises ConfigError for what cannot be carried."""
    module = trainer.lightning_module
    sampler = getattr(loader, "sampler", None)
    for found, refused, instead in (
        ("no url", not url, "ElasticStrategy(url, ...), or ELASTIC_URL"),
        ("no virtual_workers", not virtual_workers, "virtual_workers=, or ELASTIC_VIRTUAL_WORKERS"),
        ("manual optimization", not module.automatic_optimization, "a plain loop over run.batches()"),
        (f"{len(trainer.strategy.optimizers)} optimizers", len(trainer.strategy.optimizers) != 1, "one"),
        (f"accumulate_grad_batches={trainer.accumulate_grad_batches}", trainer.accumulate_grad_batches != 1,
         "leave it out: batch_size is what one update counts, micro_batch_size bounds memory"),
        (f"limit_train_batches={trainer.limit_train_batches}", trainer.limit_train_batches != 1.0, "leave it out"),
        ("overfit_batches", trainer.overfit_batches, "leave it out"),
        ("fast_dev_run", trainer.fast_dev_run, "leave it out, and the strategy in"),
        ("reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs, "leave it out"),
        ("ckpt_path", trainer.ckpt_path is not None, "a run goes on from what it saved itself"),
        ("max_epochs and max_steps without an end", (trainer.max_epochs or -1) < 0 and trainer.max_steps < 0,
         "max_epochs="),
        ("a Timer, or max_time", any(isinstance(one, Timer) for one in trainer.callbacks),
         "each worker would stop by its own clock"),
        (f"precision={trainer.precision}", getattr(trainer.precision_plugin, "scaler", None) is not None, "bf16-mixed"),
        ("on_before_batch_transfer", is_overridden("on_before_batch_transfer", module), "on_after_batch_transfer"),
        ("an IterableDataset to train on", isinstance(getattr(loader, "dataset", None), IterableDataset),
         "a dataset with a length and an index"),
        (f"a train loader that reads by a {type(sampler).__name__}", not isinstance(sampler, RandomSampler),
         "DataLoader(..., shuffle=True): a run's order is its own"),
    ):  # fmt: skip
        if refused:
            raise ConfigError(f"{found}: a run cannot carry that exactly\n  next  {instead}")
    for one in trainer.callbacks:
        if isinstance(one, ModelCheckpoint):
            one._enable_version_counter = False  # each worker would count the files that it sees


StrategyRegistry.register(
    ElasticStrategy.strategy_name, ElasticStrategy, description="live elastic training: see elastic.integrations"
)
