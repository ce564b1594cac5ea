"""The public face of a training run: it checks what it is given, and has elastic.loop do it."""

from __future__ import annotations

import math
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NoReturn

import torch

from elastic.config import Config
from elastic.config.argument_groups import (
    Checks,
    Compute,
    Data,
    Saving,
    Update,
    arguments_of,
    check_groups,
    unknown_argument,
)
from elastic.config.check_sharding import check_sharding
from elastic.config.checks import check_url, check_world, length_of, named
from elastic.config.config import absolute, device_of, extra_of, loggers_of, order_of, save_rules
from elastic.data.data_plan import DataPlan
from elastic.errors import ConfigError, StepError
from elastic.events.log import EventLog
from elastic.events.timing import Stopwatch
from elastic.logging.base import Logger
from elastic.loop.context import Context
from elastic.loop.loop import Loop
from elastic.loop.plain.loop import Batches, PlainLoop, check_plain
from elastic.loop.plain.step import PlainStep
from elastic.loop.portable import pin_instruction_set
from elastic.loop.run_state import RunState
from elastic.loop.steps.current_step import CurrentStep
from elastic.loop.steps.step import Step
from elastic.loop.steps.update import default_update
from elastic.membership import environment
from elastic.membership.progress import Progress
from elastic.membership.view import ReplicaPlace
from elastic.membership.worker.live import live
from elastic.plan.save_rules import SaveEvery
from elastic.state.on_bad import parse
from elastic.state.sharding import sharding_of
from elastic.state.torch_release import check_torch
from elastic.status.console import Console
from elastic.status.unread_output import drop_unread_output
from elastic_checkpoint import linux
from elastic_checkpoint.storage import Scrubber


class Run:
    """A training run whose result does not depend on what happens to its workers: a context manager with a loop.

        with elastic.Run("runs/mine", model=model, optimizer=optimizer, scheduler=scheduler, dataset=dataset,
                         batch_size=256, virtual_workers=24, epochs=20) as run:
            for epoch in run.epochs():                         # those that are left
                for x, y in run.batches():                     # this worker's shares of each step's batch
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()

    A script may have several runs, one after the other, each at its own URL; those that are finished are passed.

    `epochs` and `batches` keep such a body as it is; `steps` is for one that adds gradients up by itself. In the other
    loop, `for step in run`, the run makes the update: see `elastic.Step`.

    Args:
        url: Where the run lives: a folder or any fsspec URL. The same command resumes it.
        model: One, or a dict of models by name.
        optimizer: One, or a dict of optimizers by name.
        scheduler: One, or a dict by name. `for step in run` steps it once a step; in a loop over `batches` the script
            does, behind `optimizer.step()`, or once an epoch: before its first batch, or behind its last.
        dataset: `dataset[i]` for i < `len(dataset)`, or `elastic.Streams`. An example is whatever `collate_fn` takes:
            for the default a tensor, an array, a number or a string, or a tuple, list or dict of such. What the
            dataset's `data_identity()` gives, where it has that, is part of the run's identity: something JSON holds,
            that tells its content from others'.
        batch_size: Examples per step, at every world size.
        virtual_workers: V: the parts that a step's batch is cut into, and the most workers that can share it. Part of
            the run's identity, so chosen once: three to six times the usual fleet, with many divisors.
        epochs: How many epochs to train.
        steps: How many steps to train, at most; the run ends at whichever comes first, if both are given.
        seed: That of the data's order and of every random stream inside steps.
        save_every: "auto": at the interval that wastes least, by what a save was measured to cost and what the run has
            lost (60 s until then). Or steps; a time such as "10min" or "90s"; a time of day such as "02:30 UTC"; or a
            list of these, and then whichever comes first. It changes no bit of the result, but where a rollback goes.
        extra: `{name: object with state_dict and load_state_dict}` that must survive as well: a teacher, a best result,
            whatever training depends on and the script changes. What lies in variables, or in plain attributes of
            modules and optimizers, is carried by nothing; a module's `get_extra_state`, an optimizer's `state` are.
        loggers: Where `log` writes, such as `[elastic.logging.TensorBoard("runs/mine/curves")]`. All workers give the
            same; the coordinator of the moment writes.
        data: `elastic.Data`: which order, what ends an epoch, how examples are read, what is left out.
        update: `elastic.Update`: clipping, the update itself, the scaler, buffers, what becomes of a bad step.
        compute: `elastic.Compute`: device, exact or fast mode, threads, deadlines, compiled code.
        saving: `elastic.Saving`: which checkpoints stay, failed saves, what opens the storage.
        checks: `elastic.Checks`: how many shares two workers pass, and what may differ from the saved run.

    Attributes:
        device: Where this worker computes.
        local_rank: Its number among the workers of its node.
        model: As it was given.
        optimizers: By name.
        extra: What was handed over as `extra=`, by name.

    Raises:
        ConfigError: An argument, or what the arguments are together, cannot work; at once, or where the loop begins
            that it is not for.
        IdentityMismatch: The saved run is another run; in `with`, or in the first step of a resume, which reads or
            computes something else than before.
        RendezvousTimeout: Too few workers came; in `with`.
        elastic_checkpoint.ClaimHeld: A live job writes to this URL; in `with`.
        StartFailed: The coordinator could not start the run, and the message repeats why; in `with`. Or no worker holds
            a whole state any more; in the loop.
        StepError: The loop's body breaks a rule of its loop: see `batches`, `steps` and `elastic.Step`.
        CollectiveMismatch: The workers' scripts went different ways, in what they call, set or train; in the loop, and
            from `evaluate` and `on_coordinator`. It is a StepError, as are ComputesWrongly (this worker gives other
            bits than most) and NotLetIn (it has joined, and gives others).
        ExampleError: `dataset[i]` or `collate_fn` raised, and `on_bad_example` does not leave that out; in the loop.
        LoaderError: A loader process died; in the loop, with `num_workers`.
        LoaderTimeout: The loader processes brought nothing for timeout_s; likewise.
        Evicted: Another job has claimed the URL, and the run goes on there; in the loop.
        SavesFailed: Too many saves in a row failed, or the last one for long; in the loop. It says where a copy lies.
        BadStep: A step is bad, and `on_bad` says to end there, or has passed over too many; in the loop.
        WeightsNotFinite: With `on_bad`, what is about to be saved holds no number; in the loop.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        model: torch.nn.Module | Mapping[str, torch.nn.Module],
        optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
        dataset: Any,
        batch_size: int,
        virtual_workers: int,
        scheduler: Any = None,
        epochs: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        save_every: SaveEvery = "auto",
        extra: Mapping[str, Any] | None = None,
        loggers: Sequence[Logger] = (),
        data: Data = Data(),
        update: Update = Update(),
        compute: Compute = Compute(),
        saving: Saving = Saving(),
        checks: Checks = Checks(),
        **unknown: NoReturn,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in ("self", "unknown")}
        check_torch()
        linux.open_standard_streams()  # a script may have closed them
        for name in unknown:
            raise unknown_argument(name, "elastic.Run", arguments_of(Run))
        check_groups(data=data, update=update, compute=compute, saving=saving, checks=checks)
        check_url(url, saving.storage_options)
        environment.leave_world()
        self._launch = environment.read()
        self._observer = environment.observer(self._launch)
        where, storage_options = self._observer.storage(os.fspath(url), saving.storage_options)
        models, rule, accept = named("model", model, torch.nn.Module), parse(update.on_bad), checks.accept
        self._config = config = Config(
            url=absolute(where),
            models=models,
            optimizers=named("optimizer", optimizer, torch.optim.Optimizer),
            schedulers=named("scheduler", scheduler, object) if scheduler is not None else {},
            extra=extra_of(extra),
            loggers=self._observer.loggers(loggers_of(loggers)),
            dataset=dataset,
            plan=DataPlan(
                dataset_length=length_of(dataset),
                batch_size=batch_size,
                virtual_workers=virtual_workers,
                seed=seed,
                last_batch=data.last_batch,
                micro_batch_size=data.micro_batch_size,
                epochs=epochs,
                steps=steps,
                order=order_of(dataset, data.order),
            ),
            saves=save_rules(self._observer.cadence(save_every), rule),
            data=data,
            update=update,
            compute=compute,
            saving=saving,
            device=device_of(compute.device, self._launch, models),
            on_bad=rule,
            cross_check=self._observer.cross_checks(checks.cross_check),
            accept=accept if isinstance(accept, str) else (*accept, *environment.accept()),  # type: ignore[arg-type]
            storage_options=dict(storage_options or {}),
            sharding=sharding_of(models),
            given=given,
        ).with_streams()
        check_sharding(config, self._launch)
        check_world(self._launch, virtual_workers, where)
        if compute.portable:
            pin_instruction_set()
        self.device = config.device
        self.model: Any = config.models if isinstance(model, Mapping) else model
        self.optimizers = config.optimizers
        self.extra = config.extra
        self.local_rank = self._launch.local_rank
        token = self._launch.token or uuid.uuid4().hex[:6]
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{token}"
        self._state = RunState(config.plan.total_steps)
        self._plain: PlainLoop | None = None
        self._on_apply: list[Callable[[Run, Any], None]] = []
        self._context: Context | None = None
        self._loop: Loop | None = None

    @property
    def rank(self) -> int:
        """Return this worker's place in its view, from 0; -1 in a run that was finished, in which it has no part."""
        return self._loop.session.view_group.rank if self._loop is not None else self._launch.rank

    @property
    def world_size(self) -> int:
        """Return how many workers the view has."""
        return self._loop.session.view_group.world_size if self._loop is not None else self._launch.world_size

    @property
    def replica(self) -> ReplicaPlace:
        """Return which replica of the view this worker stands in, and where: `index`, `count`, `rank` and `size`."""
        size = self._config.replica_size
        place = self._config.sharding.place if self._config.sharding is not None else 0
        return ReplicaPlace(index=self.rank // size, count=max(1, self.world_size // size), rank=place, size=size)

    @property
    def generation(self) -> int:
        """Return the number of the view that this worker is in; 0 before the first one."""
        return self._loop.session.view_group.generation if self._loop is not None else 0

    @property
    def is_coordinator(self) -> bool:
        """Tell whether this is rank 0 of the view: who prints and who saves."""
        return self.rank == 0

    @property
    def step_index(self) -> int:
        """Return how many steps are applied."""
        return self._state.step

    @property
    def step_in_epoch(self) -> int:
        """Return, in a loop over `batches`, the number in its epoch of the current step, from 0.

        It is what `enumerate(loader)` counts where a batch is a step.
        """
        step = self._here.step
        return step.plan.step_in_epoch if step is not None else 0

    @property
    def total_steps(self) -> int:
        """Return the steps in the whole run, if nobody stops it."""
        return self._state.total_steps

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps in an epoch.

        Raises:
            ConfigError: There is no such number: under `last_batch="carry"`, and of Streams.
        """
        steps = None if self._config.streams is not None else self._config.plan.steps_per_epoch
        if steps is None:
            why = "epochs differ by a step" if self._config.streams is None else "streams have no length"
            raise ConfigError(f"run.steps_per_epoch: {why}\n  next  run.total_steps, which the whole run has")
        return steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the next step's first example."""
        return self._state.epoch

    @property
    def finished(self) -> bool:
        """Tell whether the run has come to its end."""
        return self._state.finished

    @property
    def stopped(self) -> str | None:
        """Return the reason given to `stop`, if any."""
        return self._state.stopped

    @property
    def attempt(self) -> int:
        """Return how often the current step has come round again."""
        return self._state.attempt

    @property
    def claim(self) -> int | None:
        """Return the number under which this run writes its storage, once it is claimed."""
        return self._loop.session.restorer.claim or None if self._loop is not None else None

    @property
    def events(self) -> EventLog:
        """Return the log of this worker's events; a script may add some: `run.events.emit_named("fell_back", to=3)`."""
        if self._context is None:
            raise _outside()
        return self._context.events

    def __enter__(self) -> Run:
        if self._context is not None:
            raise ConfigError("this Run was entered before; make a new one, it goes on from what this one saved")
        config, launch = self._config, self._launch
        drop_unread_output()
        agent = live(launch.channel)
        self._context = Context(
            config=config,
            launch=launch,
            worker_id=self.worker_id,
            live=agent,
            observer=self._observer,
            observed=self,
            events=EventLog(
                config.url,
                worker_id=self.worker_id,
                storage_options=config.storage_options or None,
                scrub=Scrubber(config.url, config.storage_options, environment.named_values(launch, sys.argv)),
            ),
            console=Console(quiet=not self.is_coordinator),
            progress=Progress(launch.progress, hang_s=launch.hang_s),
            stopwatch=Stopwatch(),
        )
        self._loop = Loop(self._context, self._state, self._compute, self._call_on_apply)
        self._loop.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._here.exit(error)

    def __iter__(self) -> Iterator[Step]:
        if self._plain is not None:
            raise ConfigError("run.batches() is under way; a script has one loop: that, or `for step in run`")
        return self._here.in_steps()

    def batches(self) -> Batches:
        """Return this worker's batches, for a loop that is written as without elastic: its own code is the update.

        Each batch is a share of a step's (in fast mode all of this worker's): forward, `loss.backward()` with a mean
        loss, clipping, `optimizer.step()`, `scheduler.step()`. The gradients of a step are exchanged when the backward
        pass of this worker's last share ends. Until then `.grad` is None after each backward pass, and the optimizers',
        the schedulers' and the scaler's calls do nothing; from then on they are the update. A worker that has no share
        of a step gets one all the same, which does not count.

        What the body does beside that, it does once a share: `if run.stepped:` guards what belongs to a step.

        Inside `for epoch in run.epochs()` these are the batches of that epoch, else of all that are left. Their `len`
        is how many this worker passes, if no worker comes or goes: several a step, and fewer the more workers there
        are.

        Raises:
            ConfigError: An argument of this Run is for the other loop, `for step in run`.
            StepError: The body left out a backward pass or an `optimizer.step()`, called one twice, or changed what
                only the update may change.
        """
        return self._plain_loop().batches()

    def progress(self, bar: Iterable[Any]) -> Iterator[Any]:
        """Yield what `batches` gives, with a progress bar that counts steps, as it would without elastic.

            for x, y in run.progress(tqdm(range(run.steps_per_epoch), disable=not run.is_coordinator)):

        Args:
            bar: An iterable that shows how far it was iterated over, such as `tqdm(range(n))` or
                `rich.progress.track(range(n))`, with an item for each step: of an epoch inside
                `for epoch in run.epochs()`, else of the run. Those of steps that are done already are taken at once.

        Raises:
            ConfigError: What `batches` raises it for.
            StepError: Likewise.
        """
        return self._plain_loop().progress(bar)

    def steps(self) -> Iterator[PlainStep]:
        """Yield the steps that are left, for a loop that adds gradients up by itself, or a trainer: see `batches`.

            for step in run.steps():
                for x, y in step:                          # this worker's batches of it
                    F.cross_entropy(model(x), y).backward()
                optimizer.step()                           # clipping, optimizers, schedulers: behind all of them
                optimizer.zero_grad()

        A batch's loss is a mean, and is not divided by how many there are.

        Yields:
            The step: to iterate over once, with its `index`, `epoch`, `last_of_epoch` and `passed_over`.

        Raises:
            ConfigError: An argument of this Run is for the other loop, `for step in run`.
            StepError: What `batches` raises it for; or the update was left out behind a step's batches.
        """
        return self._plain_loop().steps()

    def epochs(self) -> Iterator[int]:
        """Yield the numbers of the epochs that are left, from where the run stands. See `batches`, and its errors."""
        return self._plain_loop().epochs()

    @property
    def updating(self) -> bool:
        """Tell, in a loop over `batches`, whether exact gradients are in `.grad`, and the loop's code is the update.

        That is from the end of the backward pass of this worker's last share of a step until each optimizer has stepped
        (and `scaler.update()` was called); not in a step that is passed over, or that this worker took from a peer.
        """
        plain = self._here.plain
        return plain is not None and plain.update.asks_whether_open()

    @property
    def stepped(self) -> bool:
        """Tell, in a loop over `batches`, after `optimizer.step()`, whether a step was applied.

        It is so once a step, and not where a step was passed over.
        """
        step = self._here.step
        return step is not None and step.applied and step.passed_over is None

    @property
    def passed_over(self) -> str | None:
        """Return why the step was passed over, see `OnBad`; else None.

        To be asked in a loop over `batches`, after `optimizer.step()`.
        """
        step = self._here.step
        return step.passed_over if step is not None else None

    def add(self, **values: Any) -> None:
        """Add to `sums`, exactly and in the tree's order; in a loop over `batches`, before `backward`.

        Args:
            **values: Numbers, or tensors of any one shape per name: sums over the batch, such as
                `loss=loss.detach() * len(x)`.

        Raises:
            StepError: It was called after the batch's backward pass, or outside the loop.
        """
        plain = self._here.plain
        step = plain.step if plain is not None else None
        if step is None:
            raise StepError(
                "run.add was called outside the loop over run.batches()\n"
                "  state  nothing was added\n"
                "  next   call it in the loop's body, before backward; with `for step in run` it is step.add"
            )
        step.add(values)

    @property
    def sums(self) -> dict[str, Any]:
        """Return what `add` added over the step's whole batch, once it is exchanged: the same on all workers."""
        step = self._here.step
        return step.sums if step is not None else {}

    @property
    def count(self) -> float:
        """Return over how many examples (or what `count` counts) the current step is a mean, once it is exchanged."""
        step = self._here.step
        return step.count if step is not None else 0

    def stop(self, reason: str) -> None:
        """End the run on all workers, at the boundary after the next exchange; the same at every world size.

        That is the exchange of the current step inside the inner loop, and of the following step outside it.

        Args:
            reason: Is in `stopped` afterwards, and in the report. A run that was stopped stays stopped.
        """
        self._state.stop_request = reason or "stopped"

    def on_apply(self, function: Callable[[Run, Any], None]) -> None:
        """Have a function called as part of each update, on every worker: for averaged weights and the like.

        It is called behind the optimizers' steps, before the step is saved. A step that is passed over has no update.

        Args:
            function: Gets the run and the step that is applied.
        """
        self._on_apply.append(function)

    def log(self, **values: Any) -> None:
        """Log values of the step that was applied last, to this run's `loggers`: each step once, whatever happens.

        All workers call it, between two steps or under `if run.stepped:`, and the coordinator's values are written, in
        a thread. What is the same on all workers, such as `run.sums`, has whole curves. A step's calls make one row.
        Behind the run it is written at once, unless it is there already.

        Args:
            **values: Numbers, or tensors of one, which are read later.

        Raises:
            ConfigError: A value is no number.
            StepError: It was called inside a step whose gradients are under way.
        """
        self._here.log(values)

    def evaluate(
        self,
        dataset: Any,
        function: Callable[..., Mapping[str, Any]],
        *,
        batch_size: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
    ) -> dict[str, Any]:
        """Sum what `function(*batch)` returns over each example of `dataset`, exactly once. All workers call it.

        The models are in eval mode and no gradients are recorded; what a forward pass moves of buffers is put back. It
        may be called between two steps, in a body of a loop over `batches` under `if run.stepped:`, and in an update
        (`on_apply`).

        Args:
            dataset: `dataset[i]` for i < `len(dataset)`.
            function: Gets a batch, and returns numbers or tensors by name, to be added up.
            batch_size: Examples per call; default a share's.
            collate_fn: Makes a batch of a list of examples; default this run's.

        Returns:
            name -> sum, the same bits on every worker and at every world size.

        Raises:
            StepError: It was called where a step's gradients are under way, or at an epoch's beginning.
            CollectiveMismatch: Other workers came to something else.
        """
        return self._here.evaluate(dataset, function, batch_size, collate_fn)

    def on_coordinator(self, function: Callable[[], object]) -> None:
        """Call function() on one worker, between steps, while the others wait for it. All workers call this.

        For what is written once, and must be there: an export, a file that the run's end reads. Where the coordinator
        is lost meanwhile, the next one calls its own `function` again, from the beginning. Behind the loop there is no
        next one. The calls of an update that a resumed run makes again are made again.

        Args:
            function: Takes nothing; what it returns is dropped. An error of it is raised on the worker that it is
                called on.

        Raises:
            StepError: It was called inside a step's inner loop.
            CollectiveMismatch: Other workers came to something else.
        """
        self._here.on_coordinator(function)

    def long_section(self, at_most_s: float = math.inf) -> AbstractContextManager[None]:
        """Declare, between steps, that what follows may take long on this worker, so that it is not taken for hung.

        Such as writing samples, or compiling. It has no effect but under `elastic run`.

        Args:
            at_most_s: Seconds after which it counts as hung all the same.
        """
        return self._here.session.phases.long_section(at_most_s)

    @property
    def _here(self) -> Loop:
        if self._loop is None:
            raise _outside()
        return self._loop

    def _plain_loop(self) -> PlainLoop:
        if self._plain is None:
            self._plain = self._here.begin_plain(check_plain(self._config))
        return self._plain

    def _compute(self, step: Step) -> None:
        """Make the update of a step's exact gradients: the script's, or the default one."""
        if (apply := self._config.update.apply) is not None:
            apply(self, step)
        else:
            default_update(self._config, self._here.session.gradient_sync.parameters)

    def _call_on_apply(self, step: Step | CurrentStep) -> bool:
        """Call what `on_apply` was given; tell whether there was anything."""
        for function in self._on_apply:
            function(self, step)
        return bool(self._on_apply)


def _outside() -> ConfigError:
    return ConfigError("a Run is used inside its with-block: with elastic.Run(...) as run")
