"""Hugging Face's Trainer in a run: its loop, logs, callbacks and schedules, over the run's workers.

    from elastic.integrations.transformers import ElasticTrainer       # in place of transformers' Trainer
    trainer = ElasticTrainer(model=model, args=args, train_dataset=dataset, ...,
                             elastic={"url": "runs/mine", "virtual_workers": 16})

What the Trainer takes for a batch is a whole step of the run: this worker's shares of it are passed inside
`training_step`, where a step also comes round again. So logs, callbacks, evaluations and stops come once a step, on
every worker, with the step's own loss: that of all of its examples (of its tokens, where the model's loss counts them).

Trainer state is part of the run's state: its counters, log history (without running times), running loss, best metric,
and the callbacks that transformers itself can save (`ExportableState`). What other callbacks, and a trainer of one's
own, keep in attributes is not, as in the Trainer's own checkpoints.

Importing this hides the launcher from accelerate, see accelerate.py. Checked with transformers 5.23.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import transformers
from accelerate.state import PartialState
from accelerate.utils import find_batch_size
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset
from transformers.integrations.integration_utils import rewrite_logs
from transformers.trainer_callback import ExportableState, PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import EvalLoopOutput

from elastic.config.argument_groups import Data
from elastic.errors import UNTOUCHED, ConfigError, StepError
from elastic.integrations.accelerate import check_alone, follow, hidden_launch, stand_before_views
from elastic.integrations.fsdp_arguments import Shard, without_fsdp
from elastic.integrations.placing import check_arguments, other_than_shuffle, passes_over, steps_per_epoch
from elastic.integrations.sharded import gathered, is_sharded_model, loads_whole, passed_whole, whole_state
from elastic.integrations.transformers_loggers import rows_of
from elastic.logging.rows import Rows
from elastic.loop.plain.loss_means import mean_over
from elastic.loop.plain.step import PlainStep
from elastic.membership import environment
from elastic.run import Run
from elastic.state.sharding import local

_DECIDED = {
    "model": "ElasticTrainer(model=)",
    "optimizer": "TrainingArguments(optim=), ElasticTrainer(optimizers=), or create_optimizer",
    "scheduler": "TrainingArguments(lr_scheduler_type=), or ElasticTrainer(optimizers=)",
    "dataset": "ElasticTrainer(train_dataset=)",
    "collate_fn": "ElasticTrainer(data_collator=)",
    "steps": "TrainingArguments(max_steps=)",
    "epochs": "TrainingArguments(num_train_epochs=)",
    "seed": "TrainingArguments(seed=), and data_seed=",
    "num_workers": "TrainingArguments(dataloader_num_workers=)",
    "last_batch": "TrainingArguments(dataloader_drop_last=)",
}
_CARRIED = ("global_step", "epoch", "total_flos", "best_metric", "best_global_step", "best_model_checkpoint")
_RUNNING_TIMES = ("_runtime", "_per_second")
_LEFT_OUT = -100  # transformers' label of what does not count
_APART = "means over something else"
_ELEMENTS = "elements of its inputs"
_REPORTS = ("transformers.integrations.integration_utils", "transformers.utils.notebook")
_DRAW = (ProgressCallback, PrinterCallback)

if TYPE_CHECKING:
    _Trainer = Any
else:
    _Trainer = object


class ElasticMixin(_Trainer):  # type: ignore[misc]  # it has no types
    """ElasticTrainer's part of a Trainer of one's own: `class Mine(ElasticMixin, transformers.Seq2SeqTrainer)`.

    Args:
        elastic: Of elastic.Run, see ElasticTrainer.
        *args: The Trainer's.
        **kwargs: The Trainer's.

    Attributes:
        run: The run, from `train()` on.

    Raises:
        ConfigError: See ElasticTrainer.
        StepError: Likewise.
    """

    def __init__(self, *args: Any, elastic: Mapping[str, Any], **kwargs: Any) -> None:
        self._shard: Shard | None = None
        self._whole: dict[str, Any] | None = None  # a sharded model's state, while a checkpoint is written
        super().__init__(*map(self._taken, args), **{name: self._taken(given) for name, given in kwargs.items()})
        _check(self, elastic)
        self._elastic: dict[str, Any] = {"batch_size": self.args.train_batch_size, "data": Data(), **elastic}
        self._train_batch_size = self._elastic["batch_size"]
        self._steps: _Steps | None = None
        self._stack = ExitStack()
        self.run: Run | None = None
        self._progress = _Progress(self)
        self._rows = Rows()
        self._follower = _Follower(self)
        self.callback_handler.callbacks.insert(0, self._follower)  # before those who read the state

    def _taken(self, given: Any) -> Any:
        """Return an argument of the Trainer's as it is to get it. Raises ConfigError."""
        if isinstance(given, transformers.TrainingArguments):
            _check_handler(given)  # before the Trainer takes it
            given, self._shard = without_fsdp(given)
        return given

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Move the model as the Trainer does; leave it to fully_shard, which puts each worker's part there."""
        if self._shard is None:
            super()._move_model_to_device(model, device)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as transformers.Trainer does. The run resumes by itself: `resume_from_checkpoint` is refused."""
        if args or kwargs.get("resume_from_checkpoint") or kwargs.get("trial"):
            raise ConfigError(
                "train() was given a checkpoint or a trial, and a run goes on from what it saved itself\n"
                "  next  trainer.train(); weights to begin with are loaded into the model before"
            )
        if self.run is not None:
            raise ConfigError(
                "train() was called a second time, and a run is one training\n"
                "  next  num_train_epochs= or max_steps= for all of it; or another script, with a run of its own, that "
                "begins with these weights"
            )
        accelerator = self.accelerator
        check_alone(accelerator)
        with ExitStack() as self._stack:
            backward = accelerator.backward
            accelerator.backward = self._progress.counting(backward)
            self._stack.callback(setattr, accelerator, "backward", backward)
            return super().train(*args, **kwargs)

    def get_train_dataloader(self) -> Any:
        """Return a loader of the run's steps instead of batches. Raises ConfigError for a sampler of one's own."""
        loader = super().get_train_dataloader()
        sampler = getattr(loader.batch_sampler, "sampler", None)
        if (found := other_than_shuffle(sampler)) is not None:
            raise ConfigError(
                f"the train loader's sampler is {found}, and a run's order is its own\n"
                "  next  leave _get_train_sampler and train_sampling_strategy as they are"
            )
        self._steps = _Steps(self, loader)
        return self._steps

    def _init_training_state(self, max_steps: int, per_epoch: int, *args: Any) -> tuple[int, int]:
        """Make the run and enter it; return the epoch to go on in, and 0. Raises ConfigError."""
        super()._init_training_state(max_steps, per_epoch, *args)
        steps = self._steps
        if steps is None:
            raise ConfigError("get_train_dataloader is overridden, and the run's batches come from there")
        if self._shard is not None:
            self._shard(self.model, self.args.device.type)
        self.create_optimizer()
        self.create_scheduler(num_training_steps=max_steps)
        self._created_lr_scheduler = False  # or the Trainer makes another one
        plateau = isinstance(self.lr_scheduler, ReduceLROnPlateau)
        seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
        given = dict(self._elastic)
        extra = {**given.pop("extra", {}), "trainer": self._progress}
        own = rows_of(self.callback_handler.callbacks, self.args.output_dir, os.fspath(given["url"]))
        run = Run(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=None if plateau else self.lr_scheduler,
            dataset=steps.dataset,
            steps=max_steps,
            seed=seed,
            data=replace(
                given.pop("data"),
                collate_fn=steps.collate_fn,
                num_workers=self.args.dataloader_num_workers,
                last_batch="drop" if self.args.dataloader_drop_last else "short",
                count=self._items,
            ),
            extra={**extra, "plateau": self.lr_scheduler} if plateau else extra,
            loggers=[*given.pop("loggers", ()), *own],
            **given,
        )
        self.run = self._rows.run = self._stack.enter_context(run)
        follow(run)
        self._follower.put_aside()
        steps.of_run = run.steps()
        return run.step_index // per_epoch, 0

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare with the run's optimizer and scheduler: an override would make others, unless it looks for them."""
        made = {
            "create_optimizer": lambda *_, **__: self.optimizer,
            "create_scheduler": lambda *_, **__: self.lr_scheduler,
        }
        self.__dict__.update(made)
        try:
            return super()._prepare_for_training(*args, **kwargs)
        finally:
            for name in made:
                del self.__dict__[name]

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Pass all of this worker's shares of a step; return the loss of the whole step. Raises StepError."""
        run, step = self.run, inputs["step"]
        assert run is not None
        step.show_sums(_shown)
        for batch in self._progress.shares(step):
            items = self._get_num_items_in_batch([batch], self.args.device)
            super().training_step(model, batch, items)
        if run.sums.get(_APART):
            raise _counted_otherwise(self, step.index)
        return torch.tensor(run.sums["loss"] / run.count, device=self.args.device)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log as the Trainer does. Raises StepError in a batch, where each worker would log its own shares."""
        if self._progress.batch is not None:
            raise StepError(
                f"log() was called in a batch, with {', '.join(logs)}: each worker would log its own shares\n"
                f"{UNTOUCHED}  next   self.run.add(name=value * examples) there; and self.log(...) of self.run.sums "
                "once a step, in a callback's\n         on_step_end, say"
            )
        super().log(logs, *args, **kwargs)

    def _items(self, batch: Any) -> int:
        """Count what a batch's loss is a mean over: targets that are not left out or, without labels, its examples.

        The Trainer counts for models whose loss takes the count. What another model's loss is a mean over shows in the
        loss itself, see `_is_apart`.
        """
        if (count := self._elastic["data"].count) is not None:
            return int(count(batch))
        items = self._get_num_items_in_batch([batch], self.args.device)
        if items is None and (targets := self._targets(batch)) is not None:
            items = targets.ne(_LEFT_OUT).sum()
        return int(find_batch_size(batch) if items is None else items)

    def _targets(self, batch: Any) -> torch.Tensor | None:
        """Return the labels that the loss looks at; None where there are none."""
        labels = batch.get("shift_labels", batch.get("labels"))
        if not isinstance(labels, torch.Tensor):
            return None
        return labels[..., 1:] if self._loss_shifts_labels and "shift_labels" not in batch else labels

    def _is_apart(self, loss: torch.Tensor, batch: Any, items: int) -> bool:
        """Tell whether the loss is a mean over something else than so many items, or may be."""
        if self._elastic["data"].count is not None:
            return False
        if told := mean_over(loss):
            return any(one != items for one in told)
        divides = self.model_accepts_loss_kwargs or self.compute_loss_func is not None or self.label_smoother
        targets = self._targets(batch)
        return not divides and targets is not None and bool(targets.eq(_LEFT_OUT).any())

    def floating_point_ops(self, inputs: Any) -> int:
        """Estimate the operations on the whole step's inputs, on whatever worker they were computed."""
        name = getattr(self.model, "main_input_name", "input_ids")
        elements = 0 if self.run is None else int(self.run.sums.get(_ELEMENTS, 0))
        return int(super().floating_point_ops({name: torch.empty(elements, device="meta")}))

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip by the norm of the step's exact gradients, also on a worker that took the step over."""
        norm = self._progress.norm()
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), self.args.max_grad_norm, torch.tensor(norm))
        return norm

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """Return the norm of the step's exact gradients, see _clip_grad_norm."""
        return self._progress.norm()

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """Share the examples among workers where it is about the loss alone; metrics of one's own see all of them."""
        run = self.run
        if run is None or not self._progress.is_looping:
            return super().evaluation_loop(dataloader, *args, **kwargs)
        alone = self.compute_metrics is not None or not hasattr(dataloader.dataset, "__len__")
        if alone or not (kwargs.get("prediction_loss_only") or self.args.prediction_loss_only):
            with run.long_section(), passed_whole(self.model):
                return super().evaluation_loop(dataloader, *args, **kwargs)

        def losses(batch: Any) -> dict[str, Any]:
            examples = find_batch_size(batch)
            loss, _, _ = self.prediction_step(self.model, batch, True, ignore_keys=kwargs.get("ignore_keys"))
            return {} if loss is None else {"loss": loss.mean() * examples, "examples": examples}

        sums = run.evaluate(
            dataloader.dataset, losses, batch_size=self.args.eval_batch_size, collate_fn=dataloader.collate_fn
        )
        metrics = {}
        if sums:
            metrics[f"{kwargs.get('metric_key_prefix', 'eval')}_loss"] = float(sums["loss"] / sums["examples"])
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=len(dataloader.dataset))

    def _evaluate(self, *args: Any, skip_scheduler: bool = False) -> Any:
        """Evaluate, but for `eval_on_start` in a process that goes on or joins: what it gave at the start is there."""
        run = self.run
        assert run is not None
        if skip_scheduler and (run.step_index or self.state.log_history):
            return {}
        return super()._evaluate(*args, skip_scheduler=skip_scheduler)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint on one worker; all go on when it is there, and know where it lies."""
        run, state = self.run, self.state
        assert run is not None

        def write() -> None:
            # of a view that came in the meantime
            state.is_world_process_zero = state.is_local_process_zero = run.is_coordinator
            with self._gathered():
                if run.is_coordinator:
                    super(ElasticMixin, self)._save_checkpoint(model, trial)

        best = state.best_model_checkpoint
        if state.best_global_step == state.global_step:  # the best step so far need not be one that is saved
            best = os.path.join(self._get_output_dir(trial=trial), f"checkpoint-{state.global_step}")
        self.store_flos()
        run.on_coordinator(write)
        state.best_model_checkpoint = best

    @contextmanager
    def _gathered(self) -> Iterator[None]:
        """Have the whole states of a sharded model and its optimizer in hand. All of a replica's workers call it."""
        if not is_sharded_model(self.model):
            yield
            return
        self._whole = whole_state(self.model)
        whole = {} if self.args.save_only_model else gathered(self.optimizer.state_dict())
        self.optimizer.state_dict = lambda: whole
        try:
            yield
        finally:
            self._whole = None
            del self.optimizer.state_dict

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save as the Trainer does; a sharded model is gathered, for which all of a replica's workers call it."""
        if state_dict is None and is_sharded_model(self.model):
            state_dict = whole_state(self.model) if self._whole is None else self._whole
        super()._save(output_dir, state_dict)

    def _load_best_model(self) -> None:
        """Load it as the Trainer does; of a sharded model each worker keeps its part."""
        with loads_whole(self.model):
            super()._load_best_model()

    def _finalize_training(self, *args: Any) -> Any:
        """Leave the run first: its last save is of the weights that were trained, not of the best."""
        self._stack.close()  # the run's last save, before the best model is loaded
        self._progress.is_looping = False
        return super()._finalize_training(*args)


class ElasticTrainer(ElasticMixin, transformers.Trainer):  # type: ignore[misc]  # it has no types
    """transformers.Trainer, for a run's worker. `train()` makes the run: there is no Run to make and nothing to follow.

        args = TrainingArguments("out", num_train_epochs=3, per_device_train_batch_size=64)   # 64 are one update
        trainer = ElasticTrainer(model=model, args=args, train_dataset=dataset,
                                 elastic={"url": "runs/mine", "virtual_workers": 16})
        trainer.train()                                        # the same command resumes

    Import this module before TrainingArguments is made: it hides the launcher from accelerate. Of Run's
    arguments the Trainer decides `model`, `optimizer`, `scheduler`, `dataset`, `collate_fn`, `steps`, `epochs`, `seed`,
    `num_workers` and `last_batch`.

    `TrainingArguments(fsdp=True, fsdp_config={...})` shards the model by torch's `fully_shard` over this worker's
    replica (`elastic run --replica-size=`) as `train` begins; one that was sharded before is taken as it is.
    `save_model` then gathers it within the replica: all workers call it, and the main process writes.

    Args:
        elastic: Of elastic.Run `url`, `virtual_workers`, and any others: `save_every`, `extra`, `loggers` (which get
            what the Trainer logs), and the groups `data` (such as its `order` and `micro_batch_size`), `update`
            (`on_bad`: "stop"), `compute`, `saving` and `checks`. Not what is for `for step in run` only, nor a
            `scaler`. `batch_size`, the examples of one update on all workers together, is
            `per_device_train_batch_size` unless it is given. `Data(count=...)` says what the loss is a mean over,
            where that is not as the Trainer counts it.
        *args: The Trainer's.
        **kwargs: The Trainer's.

    Attributes:
        run: The run, from `train()` on.

    Raises:
        ConfigError: `elastic` lacks an argument, or has one that the Trainer decides; or something was asked for that a
            run cannot carry exactly, such as gradient accumulation, fp16, resume_from_checkpoint, an IterableDataset,
            or of fsdp_config offloading and version 1; from here or from `train`.
        StepError: The loss is a mean over something else than what is counted; from `train`, before the update;
            as is what else Run raises.
    """


class _Steps:
    """The train loader. What it gives are steps, each in a dict: the Trainer looks for labels in what it gets."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        self.dataset, self.collate_fn = loader.dataset, loader.collate_fn
        self.batch_size = trainer._elastic["batch_size"]
        self._per_epoch = steps_per_epoch(
            self.dataset,
            batch_size=self.batch_size,
            drops=trainer.args.dataloader_drop_last,
            order=trainer._elastic["data"].order,
        )
        self.of_run: Iterator[PlainStep] = iter(())

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[dict[str, PlainStep]]:
        for step in self.of_run:
            yield {"step": step}
            if step.last_of_epoch:
                return


class _Progress:
    """The Trainer's state that must be the same on all workers, on one that joins, and after a restart.

    batch       in hand
    is_looping  the Trainer is in its loop
    """

    counts_before_steps = True  # see SinceBoundary

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loss = (0.0, 0.0, 0, 0.0)
        self._norm: tuple[int, float] | None = None  # the step's index, and that of its gradients
        self._logged: list[str] = []
        self._log = ""
        self.batch: Any = None
        self.is_looping = False

    def shares(self, step: PlainStep) -> Iterator[Any]:
        """Yield this worker's shares of a step, each while it is in hand."""
        for self.batch in step:
            yield self.batch
        self.batch = None

    def counting(self, backward: Any) -> Any:
        """Return a `backward` that first adds the loss to the run's sums."""

        def adds(loss: torch.Tensor, **named: Any) -> None:
            trainer, batch = self._trainer, self.batch
            if batch is not None:
                main = batch.get(getattr(trainer.model, "main_input_name", "input_ids"))
                added = {} if main is None else {_ELEMENTS: main.numel()}
                items = trainer._items(batch)
                if trainer._is_apart(loss, batch, items):
                    added[_APART] = 1
                trainer.run.add(loss=loss.detach().float() * items, **added)
            backward(loss, **named)

        return adds

    def norm(self) -> float:
        """Return the norm of the step's exact gradients. A worker that took the step over got it with the step."""
        run = self._trainer.run
        if run.updating and (self._norm is None or self._norm[0] != run.step_index):
            gradients = [one.grad for one in self._trainer.model.parameters() if one.grad is not None]
            self._norm = run.step_index, float(local(torch.nn.utils.get_total_norm(gradients)))
        return 0.0 if self._norm is None else self._norm[1]

    def begin_loop(self) -> None:
        """Give the Trainer, as its loop begins, the loss and the counters that the run carries."""
        trainer = self._trainer
        loss, trainer._total_loss_scalar, trainer._globalstep_last_logged, trainer.current_flos = self._loss
        trainer._tr_loss = torch.tensor(loss, device=trainer.args.device)
        trainer._initial_global_step = 0  # what the Trainer says at the end is of the whole run
        self.is_looping = True

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        if self.is_looping:
            self.norm()
            total, last = trainer._total_loss_scalar, trainer._globalstep_last_logged
            self._loss = float(trainer._tr_loss), total, last, float(trainer.current_flos)
        of_trainer = {
            "state": {name: getattr(trainer.state, name) for name in _CARRIED},
            "callbacks": [(type(one).__name__, one.state()["attributes"]) for one in self._exportable()],
            "loss": self._loss,
            "norm": self._norm,
        }
        return {"trainer": json.dumps(of_trainer, default=float), "log": self._log_history()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Bring the Trainer to where the state stands, unless its loop stands there already. Raises ConfigError."""
        trainer, saved = self._trainer, _of_trainer(state)
        self._norm = saved["norm"] and tuple(saved["norm"])
        if self.is_looping:
            return  # a step was taken over: this loop stands where the donor's stood, and holds the same
        for name, value in saved["state"].items():
            setattr(trainer.state, name, value)
        for one, (name, attributes) in zip(self._exportable(), saved["callbacks"], strict=False):
            if type(one).__name__ != name:
                names = [name for name, _ in saved["callbacks"]]
                raise ConfigError(
                    f"the run's callbacks with a state are {', '.join(names)}, and this script's "
                    f"{', '.join(type(one).__name__ for one in self._exportable())}\n"
                    "  next  give the Trainer the same ones, in that order"
                )
            vars(one).update(attributes)
        trainer.state.log_history = [json.loads(line) for line in state["log"].splitlines()]
        self._loss = tuple(saved["loss"])

    def _log_history(self) -> str:
        """Return the log history as JSON lines, without what differs from run to run."""
        history = self._trainer.state.log_history or []
        if len(history) < len(self._logged):
            self._logged = []
        if len(history) > len(self._logged) or not history:
            # Of a long history only what is new is turned into text.
            for entry in history[len(self._logged) :]:
                lasting = {name: value for name, value in entry.items() if not name.endswith(_RUNNING_TIMES)}
                self._logged.append(json.dumps(lasting, default=float))
            self._log = "\n".join(self._logged)
        return self._log

    def _exportable(self) -> list[Any]:
        everyone = [*self._trainer.callback_handler.callbacks, self._trainer.control]
        return [one for one in everyone if isinstance(one, ExportableState)]


def _of_trainer(state: dict[str, Any]) -> dict[str, Any]:
    """Return the trainer's part of what `_Progress.state_dict` gives; before 2026-11-24 it had another name."""
    saved: dict[str, Any] = json.loads(state["trainer"] if "trainer" in state else state["told"])
    return saved


def _shown(sums: Mapping[str, Any], _: float) -> dict[str, Any]:
    """Return a step's sums for people, without what the Trainer adds up for itself."""
    return {name: value for name, value in sums.items() if name not in (_APART, _ELEMENTS)}


def _counted_otherwise(trainer: Any, step: int) -> StepError:
    return StepError(
        f"the loss of {type(trainer.model).__name__} in step {step} is a mean over something else than the labels that "
        f"are not {_LEFT_OUT}, or cannot be told to be one\n"
        "  found  a share with few of them would count for more than its part, and the gradient be no mean over the "
        f"batch\n{UNTOUCHED}"
        "  next   elastic={'data': Data(count=function)}: function(batch) gives how many targets the loss is a mean "
        "over; or let the\n         model's forward take num_items_in_batch (**kwargs), and divide by it"
    )


class _Follower(TrainerCallback):  # type: ignore[misc]  # it has no types
    """Tells the Trainer what it cannot know: where a run stands that others began, and who is the main process.

    transformers' own bars, prints and loggers open what they write to as the training begins, where the main process
    is. So only the coordinator has them, and who becomes it later has them begin then.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._aside: list[TrainerCallback] = []

    def put_aside(self) -> None:
        """Take bars, prints and loggers from whoever is not the coordinator, as the run begins."""
        handler = self._trainer.callback_handler
        if not self._trainer.run.is_coordinator:
            self._aside = [one for one in handler.callbacks if type(one).__module__ in _REPORTS or type(one) in _DRAW]
            handler.callbacks = [one for one in handler.callbacks if one not in self._aside]

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # callbacks of one's own may open now what they need as the coordinator later on
        state.is_world_process_zero = state.is_local_process_zero = True
        self._trainer._progress.begin_loop()

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self._follow(args, state, control, named)

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Set the epoch, as the Trainer counts an epoch's steps from where this process began."""
        state.epoch = state.global_step / len(self._trainer._steps)
        self._follow(args, state, control, named)
        self._trainer._rows.end_step()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Have the run log what the Trainer logs, by the names that transformers' loggers give."""
        self._trainer._rows.log(rewrite_logs(logs or {}))

    def _follow(self, args: Any, state: Any, control: Any, named: dict[str, Any]) -> None:
        """Tell the Trainer whether this is the main process; who becomes it has what was put aside begin."""
        trainer = self._trainer
        state.is_world_process_zero = state.is_local_process_zero = trainer.run.is_coordinator
        if self._aside and trainer.run.is_coordinator:
            begun, self._aside = self._aside, []
            for one in begun:
                one.on_train_begin(args, state, control, **named)
            trainer.callback_handler.callbacks.extend(begun)


def _check_handler(args: transformers.TrainingArguments) -> None:
    """Raise ConfigError where the Trainer would take SIGTERM's handler."""
    if args.enable_jit_checkpoint:
        raise _refusal("enable_jit_checkpoint", "leave it out: elastic run saves on a notice")


def _check(trainer: Any, elastic: Mapping[str, Any]) -> None:
    """Raise ConfigError for what a run cannot carry exactly."""
    if missing := [name for name in ("url", "virtual_workers") if name not in elastic]:
        raise ConfigError(
            f"elastic={{...}} lacks {', '.join(missing)}\n"
            "  next  url, virtual_workers, batch_size (of one update, on all workers together), and what else "
            "elastic.Run takes"
        )
    check_arguments(elastic, Run, whose="elastic={...}", decided=_DECIDED)
    args = trainer.args
    _check_handler(args)
    for found, refused, instead in (
        (f"gradient_accumulation_steps={args.gradient_accumulation_steps}", args.gradient_accumulation_steps != 1,
         "leave it out: batch_size is what one update counts, Data(micro_batch_size=) bounds memory"),
        (f"n_gpu={args.n_gpu}", args.n_gpu > 1,
         "show each worker one GPU, by CUDA_VISIBLE_DEVICES, set for its LOCAL_RANK before torch is asked for any"),
        (f"world_size={args.world_size}", args.world_size != 1,
         "import elastic.integrations.transformers before TrainingArguments is made"),
        ("use_liger_kernel", args.use_liger_kernel, "leave it out: its loss is not known to be a mean"),
        (f"train_sampling_strategy={args.train_sampling_strategy!r}", args.train_sampling_strategy != "random",
         "leave it out: a run's order is its own"),
        ("auto_find_batch_size", args.auto_find_batch_size, "Data(micro_batch_size=) bounds memory"),
        (f"include_num_input_tokens_seen={args.include_num_input_tokens_seen!r}",
         args.include_num_input_tokens_seen != "no", "leave it out: this worker sees its own shares only"),
        (f"optim={str(args.optim)!r}", "lomo" in str(args.optim).lower() or "layerwise" in str(args.optim).lower(),
         "an optimizer that steps behind the backward pass"),
        ("deepspeed, or FSDP by accelerate", trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled,
         "leave it out: TrainingArguments(fsdp=True) shards"),
        ("optimizers= beside fsdp", trainer._shard is not None and (trainer.optimizer or trainer.lr_scheduler),
         "TrainingArguments(optim=), or an override of create_optimizer, which is called behind the sharding"),
        ("on_bad='skip' or 'rollback'", passes_over(elastic), "on_bad='stop', or a plain loop: the Trainer would count "
         "and log a step that was passed over"),
        ("an IterableDataset to train on", isinstance(trainer.train_dataset, IterableDataset),
         "a dataset with a length and an index"),
    ):  # fmt: skip
        if refused:
            raise _refusal(found, instead)


def _refusal(found: str, instead: str) -> ConfigError:
    return ConfigError(f"{found}: a run cannot carry that exactly\n  next  {instead}")


_set_up, _train = PartialState.__init__, transformers.Trainer.train


def _set_up_alone(self: Any, *args: Any, **kwargs: Any) -> None:
    """Set accelerate up without a launcher, as one process to itself."""
    first = not self.initialized
    with hidden_launch():
        _set_up(self, *args, **kwargs)
    if first:  # later it says who the main process of the run's view is
        stand_before_views()


def _train_together(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Train, but raise ConfigError for a Trainer that would train by itself in each of several workers."""
    if environment.is_one_of_several() and not isinstance(self, ElasticMixin):
        raise ConfigError(
            f"a {type(self).__name__} is no ElasticTrainer, and elastic.integrations.transformers is imported: each "
            "worker would train by itself\n"
            "  next  ElasticTrainer(..., elastic={...}); or start the script without a launcher"
        )
    return _train(self, *args, **kwargs)


PartialState.__init__, transformers.Trainer.train = _set_up_alone, _train_together
