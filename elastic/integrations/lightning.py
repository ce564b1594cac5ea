"""Lightning's Trainer in a run, as a strategy: its loop, logs, callbacks and schedules, over the run's workers.

    trainer = L.Trainer(..., strategy=ElasticStrategy("runs/mine", virtual_workers=16))
    trainer.fit(model, DataLoader(dataset, batch_size=64, shuffle=True))      # 64 examples are one update

What Lightning takes for a batch is a whole step of the run. It hands a strategy the closure of `training_step` and
backward, which is called once for each of this worker's shares, and again where a step comes round again. So hooks,
callbacks, validation and stops come once a step, on every worker. What `training_step` logs is logged once a step:
the mean over all of its examples.

Loops' counters, callbacks' states and logged values are part of the run's state. What callbacks and the module keep in
attributes alone is not, as in Lightning's own checkpoints. Checked with lightning 2.6.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from typing import Any

import lightning
import torch
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    Timer,
)
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.strategies import SingleDeviceStrategy, StrategyRegistry
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch.distributed.device_mesh import init_device_mesh
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset, SequentialSampler
from torchmetrics import Metric
from torchmetrics.utilities import prints

from elastic.config.argument_groups import Data
from elastic.data.order import Order, Sequential
from elastic.errors import UNTOUCHED, ConfigError, StepError
from elastic.group.replica_mesh import device_mesh
from elastic.integrations.lightning_loggers import rows_of
from elastic.integrations.placing import (
    check_arguments,
    other_than_shuffle,
    own_device,
    passes_over,
    place_before_views,
    steps_per_epoch,
)
from elastic.integrations.sharded import gathered, is_sharded_model, loads_whole, passed_whole, whole_state
from elastic.logging.base import Logger
from elastic.logging.rows import Rows
from elastic.loop.plain.step import PlainStep
from elastic.membership import environment
from elastic.run import Run

_DECIDED = {
    "model": "trainer.fit(model, ...) has it",
    "optimizer": "configure_optimizers has it",
    "scheduler": "configure_optimizers has it",
    "dataset": "the train loader has it: trainer.fit(model, DataLoader(dataset, ...))",
    "collate_fn": "the train loader has it: DataLoader(..., collate_fn=)",
    "num_workers": "the train loader has it: DataLoader(..., num_workers=)",
    "last_batch": "the train loader has it: DataLoader(..., drop_last=)",
    "steps": "Trainer(max_steps=)",
    "epochs": "Trainer(max_epochs=)",
    "device": "ElasticStrategy(device=)",
}


class ElasticStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # it has no types
    """Lightning's Trainer in a run, which `fit` makes: there is no Run to make and nothing to follow.

        strategy = ElasticStrategy("runs/mine", virtual_workers=16, save_every="10min")
        trainer = L.Trainer(max_epochs=3, gradient_clip_val=1.0, strategy=strategy)
        trainer.fit(model, DataLoader(dataset, batch_size=64, shuffle=True))    # 64 examples are one update
        print(strategy.run.step_index)

    One strategy, one train loader and one `fit` make a run; the same command resumes it. Once the script has imported
    this module there is `Trainer(strategy="elastic")`, too, which takes the first two arguments from the environment.
    A train loader without `shuffle=True` gives the order `elastic.orders.Sequential()`, unless
    `data=elastic.Data(order=...)` says another.

    Of Run's arguments the Trainer and its train loader decide `model`, `optimizer`, `scheduler`, `dataset`,
    `collate_fn`, `num_workers`, `last_batch` (drop_last), `steps` (max_steps) and `epochs` (max_epochs). The loader
    shuffles, and has no sampler of its own.

    `configure_model` shards the module by `fully_shard(..., mesh=self.device_mesh["data_parallel"])`, the mesh of this
    worker's replica, as under ModelParallelStrategy; checkpoints have it whole.

    Args:
        url: Where the run lives, see elastic.Run; default ELASTIC_URL.
        virtual_workers: See elastic.Run; default ELASTIC_VIRTUAL_WORKERS.
        batch_size: Examples of one update, on all workers together; default the train loader's.
        device: Where this worker computes; "cuda" is its own GPU of those that its node has. Default: that, or the
            CPU, as the Trainer's accelerator is.
        **arguments: Others of elastic.Run: `seed`, `save_every`, `extra`, `loggers` (which get what the Trainer logs),
            and the groups `data` (such as its `order`, `micro_batch_size` and `count`), `update` (`on_bad`: "stop"),
            `compute`, `saving` and `checks`. Not what is for `for step in run` only, nor a `scaler`.

    Attributes:
        run: The run, from `fit` on.

    Raises:
        ConfigError: What the Trainer decides is given here, such as `model`, or what Run does not have. Something was
            asked for that a run cannot carry exactly, such as manual optimization, accumulate_grad_batches, 16-mixed,
            ckpt_path, or a Timer; from `fit`, as is what else Run raises.
    """

    strategy_name = "elastic"

    def __init__(
        self,
        url: str | None = None,
        *,
        virtual_workers: int | None = None,
        batch_size: int | None = None,
        device: torch.device | str | None = None,
        **arguments: Any,
    ) -> None:
        check_arguments(arguments, Run, whose="ElasticStrategy", decided=_DECIDED)
        super().__init__(device=own_device(device))
        self._has_device = device is not None
        usual_url, usual_workers = environment.url_and_virtual_workers()
        self._url = url or usual_url
        self._virtual_workers = virtual_workers or usual_workers
        self._batch_size = batch_size
        self._arguments = arguments
        self._loaded = False
        self._rows = Rows()
        self._steps: _Steps | None = None
        self._loggers: list[Logger] = []
        self._stack = ExitStack()
        self._section = ExitStack()
        self._step: PlainStep | None = None
        self._share: Any = None
        self._results: _StepResults | None = None
        self._progress: _Progress | None = None
        self._is_open = False
        self.run: Run | None = None
        self._stand_as(place_before_views()[0])

    def setup_environment(self) -> None:
        """Choose the device. It is called first, and refuses what would come before the run. Raises ConfigError."""
        trainer = self.lightning_module.trainer
        _check_before(trainer)
        if trainer.state.fn == TrainerFn.FITTING and self._url and self.run is None:
            self._loggers = rows_of(trainer.loggers, os.fspath(self._url), self._log)
        if not self._has_device:
            self._root_device = own_device("cpu" if isinstance(self.accelerator, CPUAccelerator) else "cuda")
        super().setup_environment()
        self.lightning_module._device_mesh = _Mesh(self._root_device.type)

    def setup(self, trainer: Any) -> None:
        """Set up as Lightning does; of a sharded model refuse what saves alone. Raises ConfigError."""
        super().setup(trainer)
        module = self.lightning_module
        if not is_sharded_model(module):
            return
        if any(getattr(one, "save_on_exception", False) for one in trainer.callbacks) or _has(
            trainer, OnExceptionCheckpoint
        ):
            raise ConfigError(
                "a callback saves on an exception, and a sharded model is gathered by all workers of a replica\n"
                "  next  leave it out: the run saves by itself, and the same command goes on"
            )
        for metric in module.modules():
            if isinstance(metric, Metric):  # each worker validates with all examples: nothing is missing
                metric.distributed_available_fn = _no_others

    def process_dataloader(self, loader: Any) -> Any:
        """Give the run the train loader's dataset; other loaders are read whole by each worker. Raises ConfigError."""
        trainer = self.lightning_module.trainer
        if trainer.state.fn != TrainerFn.FITTING or not trainer.training:
            return loader
        if self._loaded:
            raise ConfigError(
                "the train loader is made a second time, or there are several\n"
                "  next  one train loader, and one fit for a run; of several, a data set that gives of each"
            )
        self._loaded = True
        _check(trainer, loader, url=self._url, virtual_workers=self._virtual_workers, arguments=self._arguments)
        data = self._arguments.get("data", Data())
        if type(loader.sampler) is SequentialSampler and data.order is None:
            data = replace(data, order=Sequential())
        self._arguments["data"] = replace(
            data,
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            last_batch="drop" if loader.drop_last else "short",
        )
        batch_size = self._batch_size or loader.batch_size
        self._steps = steps = _Steps(loader, batch_size, order=data.order, rows=self._rows)
        if self.optimizers:
            self._open(steps, loader)
        else:  # a hook asked for `estimated_stepping_batches`, before there is anything to train with
            fit = trainer.fit_loop

            def set_up() -> None:
                """Open the run once there are optimizers, in place of the loop's own set-up, which has the loader."""
                if self.optimizers:
                    del fit.setup_data
                    self._open(steps, loader)

            fit.setup_data = set_up
        return steps

    def _open(self, steps: _Steps, loader: Any) -> None:
        """Make the run of what the Trainer and its loader decide, and enter it."""
        trainer = self.lightning_module.trainer
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
            batch_size=steps.batch_size,
            virtual_workers=self._virtual_workers,
            **{name: end for name, end in ends.items() if end is not None and end > 0},
            **{name: value for name, value in self._arguments.items() if name not in ("extra", "loggers")},
            loggers=[*self._arguments.get("loggers", ()), *self._loggers],
            extra={**self._arguments.get("extra", {}), **plateaus, "trainer": self._progress},
        )
        self.run = steps.run = self._rows.run = self._stack.enter_context(run)
        self._is_open = True
        self._stack.callback(setattr, self, "_is_open", False)
        self._follow_view()
        run.events.hear(lambda event: self._follow_view() if event["event"] == "view_formed" else None)

    def _log(self, writes: Callable[..., None], metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Have the run log what one of the Trainer's loggers is to write; `writes` is how it would by itself."""
        run, steps = self.run, self._steps
        if run is None or steps is None:
            return  # a placeholder that stands there, or will
        at = run.step_index
        if step is None or not at - 1 <= step <= at:
            writes(metrics, step)  # over an axis of the script's own
            return
        ahead = step == at and self._is_open
        if ahead and not steps.are_begun and at % len(steps):
            return  # this worker goes on, or joins, in an epoch's midst, and its beginning is logged
        self._rows.log(metrics, ahead=ahead)

    def _follow_view(self) -> None:
        """Stand where the run's view has this worker; only the coordinator draws the progress bar."""
        run, drew = self.run, self.global_rank == 0
        assert run is not None
        self._stand_as(run.rank)
        trainer = self.lightning_module.trainer
        bar = trainer.progress_bar_callback
        if bar is None or drew == run.is_coordinator:
            return
        if drew:
            bar.disable()
            return
        # Lightning disables the bar of who is not the first as it sets up; who becomes it later draws one.
        bar.enable()
        if self._progress is not None and self._progress.is_looping:
            bar.on_train_start(trainer, self.lightning_module)
            bar.on_train_epoch_start(trainer, self.lightning_module)

    def _stand_as(self, rank: int) -> None:
        self.global_rank = rank_zero_only.rank = prints.rank_zero_only.rank = rank

    @property
    def is_global_zero(self) -> bool:
        """Tell whether this is the run's coordinator, which may change; before the run see placing.py."""
        return self.global_rank == 0 if self.run is None else self.run.is_coordinator

    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Move a batch; leave a step as it is, whose shares are moved one by one, as each is computed."""
        return batch if _step_of(batch) is not None else super().batch_to_device(batch, *args, **kwargs)

    def on_train_start(self) -> None:
        """Have a resumed epoch be no other than one that was not interrupted."""
        self.lightning_module.trainer.fit_loop._restarting = False

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Note the step: what Lightning takes for a batch is a step of the run."""
        self._step = _step_of(batch)
        if self._progress is not None:
            self._progress.is_looping = True

    def training_step(self, _: Any, *args: Any) -> Any:
        """Pass the share in hand instead of the batch; add its loss to the run's sums. Raises StepError for none."""
        run, step = self.run, self._step
        assert run is not None
        assert step is not None
        share = super().batch_to_device(self._share)
        result = super().training_step(share, *args)
        loss = result["loss"] if isinstance(result, dict) else result
        if loss is None:
            raise StepError(
                f"training_step returned no loss for a share of step {step.index}\n"
                "  found  Lightning passes over such a batch; of a run's step each example counts once, on whichever "
                f"worker it is\n{UNTOUCHED}"
                "  next   return a loss that leaves those out, such as (loss * weights).sum() / len(x)"
            )
        run.add(loss=loss.detach().float() * step.items)
        return result

    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        """Call `closure` (training_step, zero_grad and backward) for each share, then update by the exact gradients."""
        run, step, results = self.run, self._step, self._results
        assert run is not None
        assert step is not None
        assert results is not None
        step.show_sums(_shown)
        with results.of_shares(step):
            for self._share in step:
                closure()
        loss = torch.tensor(run.sums["loss"] / run.count)
        closure._result = ClosureResult(closure_loss=loss)  # the whole step's, for hooks
        results.log_step(run)
        return super().optimizer_step(optimizer, lambda: loss, model, **kwargs)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state for a checkpoint; a sharded one's is gathered within the replica."""
        return whole_state(self.lightning_module)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return an optimizer's state for a checkpoint, likewise."""
        return gathered(super().optimizer_state(optimizer))

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Load a checkpoint's whole model; of a sharded one each worker keeps its part."""
        with loads_whole(self.lightning_module):
            super().load_model_state_dict(checkpoint, strict)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **named: Any) -> Any:
        """Load a checkpoint as Lightning does. Raises ConfigError for `fit(ckpt_path=...)`."""
        if self.lightning_module.trainer.state.fn == TrainerFn.FITTING:
            raise ConfigError(
                f"ckpt_path={str(checkpoint_path)!r}, and a run goes on from what it saved itself\n"
                "  next  leave it out; weights to begin with are loaded into the module before"
            )
        return super().load_checkpoint(checkpoint_path, *args, **named)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Write a checkpoint on one worker; all go on when it is there."""

        def write() -> None:
            if self.is_global_zero:  # and no other of its replica
                self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options=storage_options)

        fails_alone = sys.exc_info()[0] is not None  # a callback that saves on an exception
        if self._is_open and not fails_alone and self.run is not None:
            self.run.on_coordinator(write)
        else:
            write()

    def on_validation_start(self) -> None:
        """Open a long section: other workers do not take a long validation for a hang."""
        self._section.enter_context(passed_whole(self.lightning_module))
        if self.run is not None:
            self._section.enter_context(self.run.long_section())

    def on_validation_end(self) -> None:
        """Close the section that on_validation_start opened."""
        self._section.close()

    def on_train_end(self) -> None:
        """Leave the run, after its last save."""
        self._rows.end_step()
        self._stack.close()

    def on_exception(self, exception: BaseException) -> None:
        """Leave the run with what was raised."""
        self._section.close()
        self._stack.__exit__(type(exception), exception, exception.__traceback__)

    def teardown(self) -> None:
        """Leave the run where there was nothing left to train: then this is the first to come."""
        self._stack.close()
        super().teardown()


class _Mesh:
    """The mesh of this worker's replica, by ModelParallelStrategy's names. torch.distributed begins as it is used."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    @cached_property
    def _made(self) -> Any:
        size = device_mesh(self._kind).size()
        return init_device_mesh(self._kind, (size, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))


def _no_others() -> bool:
    return False


class _WholeStep(dict[str, PlainStep]):
    """A step as hooks around a batch are given it: no examples, which `training_step` gets share by share."""

    def __iter__(self) -> Iterator[str]:
        raise self._refused("unpacked")

    def __missing__(self, key: object) -> PlainStep:
        raise self._refused(f"asked for [{key!r}]")

    def _refused(self, what: str) -> StepError:
        return StepError(
            f"a hook around a batch has {what} what it was given, and that is a whole step: its examples "
            "are spread over the workers, and this one may read none of them\n"
            f"{UNTOUCHED}  next   look at examples in training_step, which is given each share that this worker "
            "computes; or at outputs, trainer.callback_metrics"
        )


class _Steps:
    """The train loader. What it gives are steps, each in a dict, on which no hook of batches has an effect.

    run        whose they are, once it is entered
    are_begun  this process has got one
    """

    def __init__(self, loader: Any, batch_size: int, *, order: Order | None, rows: Rows) -> None:
        self.dataset, self.batch_size, self.drop_last = loader.dataset, batch_size, loader.drop_last
        self._per_epoch = steps_per_epoch(self.dataset, batch_size=batch_size, drops=self.drop_last, order=order)
        self.run: Run | None = None
        self.are_begun = False
        self._rows = rows
        self._of_run: Iterator[PlainStep] | None = None

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[_WholeStep]:
        if self._of_run is None:
            assert self.run is not None
            self._of_run = self.run.steps()
        self._rows.end_step()
        for step in self._of_run:
            self.are_begun = True
            yield _WholeStep(step=step)
            self._rows.end_step()
            if step.last_of_epoch:
                return

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the run knows where it stands."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing, see state_dict."""


_SUM, _WEIGHT = "sum of ", "weight of "
_SAID_WITH_LOG = ("prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "metric_attribute",
                  "rank_zero_only")  # fmt: skip


def _step_of(batch: Any) -> PlainStep | None:
    step = batch.get("step") if isinstance(batch, dict) else None
    return step if isinstance(step, PlainStep) else None


class _StepResults(_ResultCollection):  # type: ignore[misc]  # it has no types
    """Values logged while training. Those of `training_step`, a share's each, are added up and logged once a step."""

    def __init__(self, strategy: ElasticStrategy) -> None:
        super().__init__(training=True)
        self._strategy = strategy
        self._step: PlainStep | None = None
        self._before: dict[str, tuple[float, int]] = {}

    def of_shares(self, step: PlainStep) -> ExitStack:
        """Return a context: what is logged in it is of this step's shares."""
        stack = ExitStack()
        self._step = step
        stack.callback(setattr, self, "_step", None)
        return stack

    def log(self, fx: str, name: str, value: Any, **named: Any) -> None:
        """Log a value; of a share, add it to the run's sums. Raises ConfigError for what is no mean of numbers."""
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
        weight = (named.get("batch_size") or step.items) if step.items else 0  # what counts nothing says nothing
        how = json.dumps([name, fx, {key: named[key] for key in _SAID_WITH_LOG if key in named}])
        run.add(**{f"{_SUM}{name}": value.detach().double() * weight, f"{_WEIGHT}{how}": weight})

    def log_step(self, run: Run) -> None:
        """Log what the step's shares have logged, on all workers, also where none of this worker's own has."""
        for mean, weight, name, fx, named in _logged(run.sums):
            super().log(fx, name, torch.as_tensor(mean, dtype=torch.float32), **named, batch_size=weight)
            self._go_on(f"{fx}.{name}")

    def state_dict(self) -> dict[str, list[Any]]:
        """Return this epoch's means, as far as they have come."""
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
        """Add to the epoch's mean where it stood before this process."""
        value, weight = self._before.pop(key, (0.0, 0))
        if weight:
            self[key].value = self[key].value + value
            self[key].cumulated_batch_size = self[key].cumulated_batch_size + weight


def _logged(sums: Mapping[str, Any]) -> Iterator[tuple[Any, int, str, str, dict[str, Any]]]:
    """Yield of each value that a step's shares have logged: its mean, over how much, its name, where, and how."""
    for key, weight in list(sums.items()):
        if key.startswith(_WEIGHT) and weight:
            name, fx, named = json.loads(key.removeprefix(_WEIGHT))
            yield sums[f"{_SUM}{name}"] / int(weight), int(weight), name, fx, named


def _shown(sums: Mapping[str, Any], count: float) -> dict[str, Any]:
    """Return what people see of a step: what training_step has logged, by its names, and what else was added up."""
    # People are shown sums divided by the step's count, and a value may have been logged over something else.
    added = {key: value for key, value in sums.items() if not key.startswith((_SUM, _WEIGHT))}
    return {**added, **{name: mean * count for mean, _, name, _, _ in _logged(sums)}}


class _Progress:
    """The Trainer's state that must be the same on all workers, on one that joins, and after a restart.

    is_looping  this process has begun to train
    """

    counts_before_steps = True  # see SinceBoundary

    def __init__(self, trainer: Any, results: _StepResults) -> None:
        self._trainer = trainer
        # Behind a function: modules that an object in `extra=` holds are the run's, and a metric's are not.
        self._results: Callable[[], _StepResults] = lambda: results
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
            "should_stop": trainer.should_stop,
            "callbacks": call._call_callbacks_state_dict(trainer),
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "logged metrics": {name: float(value) for name, value in trainer.logged_metrics.items()},
            "logged": self._results().state_dict(),
            "checkpoint": self._of_hooks(),
        }

    def _of_hooks(self) -> dict[str, Any]:
        """Return what the hooks of module and callbacks add to a checkpoint, as a file of Lightning's would have it."""
        trainer, module = self._trainer, self._trainer.lightning_module
        if not _keep_more(trainer):
            return {}
        checkpoint = self._checkpoint()
        weights, given = checkpoint["state_dict"], dict(checkpoint)
        call._call_callbacks_on_save_checkpoint(trainer, checkpoint)
        call._call_lightning_module_hook(trainer, "on_save_checkpoint", checkpoint, pl_module=module)
        changed = {name: value for name, value in checkpoint.items() if given.get(name) is not value}
        return {
            "weights": [name for name, value in changed.items() if value is weights],  # those are the run's
            "rest": {name: value for name, value in changed.items() if value is not weights},
        }

    def _take_hooks(self, saved: dict[str, Any], callbacks: dict[str, Any]) -> None:
        """Hand the hooks of module and callbacks a checkpoint with what `_of_hooks` gave."""
        trainer, module = self._trainer, self._trainer.lightning_module
        if not saved:
            return
        checkpoint = {**self._checkpoint(), "callbacks": callbacks}
        checkpoint |= dict.fromkeys(saved["weights"], checkpoint["state_dict"]) | saved["rest"]
        call._call_lightning_module_hook(trainer, "on_load_checkpoint", checkpoint, pl_module=module)
        call._call_callbacks_on_load_checkpoint(trainer, checkpoint)

    def _checkpoint(self) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "pytorch-lightning_version": lightning.__version__,
            "state_dict": trainer.lightning_module.state_dict(),
            "callbacks": {},
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Bring the Trainer to where the state stands, unless its loop stands there already."""
        trainer = self._trainer
        fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        if self.is_looping:
            return  # a step was taken over: this loop stands where the donor's stood, and holds the same
        for one in trainer.checkpoint_callbacks:
            state = saved["callbacks"].get(one.state_key, {})
            one.dirpath = state.get("dirpath", one.dirpath)  # that of the worker that writes
        if not saved["loops"]["epoch_loop.batch_progress"]["total"]["ready"]:
            return  # the run begins
        fit.load_state_dict(saved["loops"])
        epoch._batches_that_stepped = saved["stepped"]
        trainer.should_stop = saved.get("should_stop", False)
        call._call_callbacks_load_state_dict(trainer, {"callbacks": saved["callbacks"]})
        self._take_hooks(saved.get("checkpoint", {}), saved["callbacks"])
        connector = trainer._logger_connector
        for metrics, of_run in (
            (connector._callback_metrics, saved["metrics"]),
            (connector._logged_metrics, saved.get("logged metrics", {})),
        ):
            metrics.update({name: torch.tensor(value) for name, value in of_run.items()})
        self._results().load_state_dict(saved["logged"])

        def reset() -> None:
            """Stand in once for the epoch loop's own, which takes a resumed epoch for one that broke off."""
            del epoch.reset
            epoch.restarting = epoch.val_loop.restarting = False

        epoch.reset = reset


def _keep_more(trainer: Any) -> bool:
    """Tell whether the module or a callback has a hook of its own that adds to checkpoints."""
    of_callbacks = any(is_overridden("on_save_checkpoint", one, parent=Callback) for one in trainer.callbacks)
    return of_callbacks or is_overridden("on_save_checkpoint", trainer.lightning_module)


def _check(trainer: Any, loader: Any, *, url: str, virtual_workers: int, arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for what a run cannot carry exactly."""
    module = trainer.lightning_module
    sampler = getattr(loader, "sampler", None)
    sampled = None if type(sampler) is SequentialSampler else other_than_shuffle(sampler)
    for found, refused, instead in (
        ("no url", not url, "ElasticStrategy(url, ...), or ELASTIC_URL"),
        ("no virtual_workers", not virtual_workers, "virtual_workers=, or ELASTIC_VIRTUAL_WORKERS"),
        ("manual optimization", not module.automatic_optimization, "a plain loop over run.batches()"),
        (f"accumulate_grad_batches={trainer.accumulate_grad_batches}", trainer.accumulate_grad_batches != 1,
         "leave it out: batch_size is what one update counts, Data(micro_batch_size=) bounds memory"),
        (f"limit_train_batches={trainer.limit_train_batches}", trainer.limit_train_batches != 1.0, "leave it out"),
        ("overfit_batches", trainer.overfit_batches, "leave it out"),
        ("fast_dev_run", trainer.fast_dev_run, "leave it out, and the strategy in"),
        ("reload_dataloaders_every_n_epochs", trainer.reload_dataloaders_every_n_epochs, "leave it out"),
        ("max_epochs and max_steps without an end", (trainer.max_epochs or -1) < 0 and trainer.max_steps < 0,
         "max_epochs="),
        ("a GradientAccumulationScheduler", _has(trainer, GradientAccumulationScheduler),
         "leave it out: batch_size is what one update counts, Data(micro_batch_size=) bounds memory"),
        ("a StochasticWeightAveraging", _has(trainer, StochasticWeightAveraging),
         "EMAWeightAveraging, or a WeightAveraging: it exchanges the scheduler while the run trains"),
        ("sync_batchnorm", trainer._accelerator_connector._layer_sync is not None,
         "leave it out: statistics are those of a share, and running ones the mean over the batch"),
        ("a Timer, or max_time", _has(trainer, Timer),
         "each worker would stop by its own clock"),
        ("val_check_interval= in time", trainer._val_check_time_interval is not None,
         "steps, or a part of an epoch: each worker would validate by its own clock"),
        ("a ModelCheckpoint with train_time_interval", any(
            isinstance(one, ModelCheckpoint) and one._train_time_interval is not None for one in trainer.callbacks),
         "every_n_train_steps=: each worker would save by its own clock"),
        (f"precision={trainer.precision}", getattr(trainer.precision_plugin, "scaler", None) is not None, "bf16-mixed"),
        ("on_before_batch_transfer", is_overridden("on_before_batch_transfer", module), "on_after_batch_transfer"),
        ("on_bad='skip' or 'rollback'", passes_over(arguments), "on_bad='stop', or a plain loop: the Trainer would "
         "count and log a step that was passed over"),
        ("an IterableDataset to train on", isinstance(getattr(loader, "dataset", None), IterableDataset),
         "a dataset with a length and an index"),
        (f"a train loader that reads by {sampled}", sampled,
         "DataLoader(..., shuffle=True), or False: a run's order is its own; elastic.orders has others"),
    ):  # fmt: skip
        if refused:
            raise ConfigError(f"{found}: a run cannot carry that exactly\n  next  {instead}")
    for one in trainer.callbacks:
        if isinstance(one, ModelCheckpoint):
            one._enable_version_counter = False  # each worker would count the files that it sees


def _check_before(trainer: Any) -> None:
    """Raise ConfigError for what would train by itself before the run begins."""
    for found, refused, instead in (
        ("a LearningRateFinder", _has(trainer, LearningRateFinder), "find it without the strategy, before the run"),
        ("a BatchSizeFinder", _has(trainer, BatchSizeFinder), "Data(micro_batch_size=) bounds memory"),
    ):
        if refused and trainer.state.fn == TrainerFn.FITTING:
            raise ConfigError(f"{found}: a run cannot carry that exactly\n  next  {instead}")


def _has(trainer: Any, kind: type) -> bool:
    return any(isinstance(one, kind) for one in trainer.callbacks)


StrategyRegistry.register(
    ElasticStrategy.strategy_name, ElasticStrategy, description="live elastic training: see elastic.integrations"
)
