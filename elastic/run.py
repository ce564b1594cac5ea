"""The loop: step after step, each applied on every worker exactly once, whatever happens to the workers.

    step: compute, exchange, apply -> the script's own code -> boundary: save, leave or stop -> ... -> final save

Where the run stands is course.py's, and what happens when a collective fails, or workers come and go, recovery.py's:
an exchange that fails comes to `recover`, which returns in the next view, in the same process with the same objects,
and its caller goes round again, unless a peer has got there already.
"""

from __future__ import annotations

import math
import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from elastic.config import Config, Mode, configure
from elastic.course import Course
from elastic.data.plan import LastBatch
from elastic.errors import ConfigError, PeerLost, StepError
from elastic.evaluation import evaluate
from elastic.group.fingerprint import Kind
from elastic.group.form import Group, Solo
from elastic.group.sums import Agreed
from elastic.launch import environment
from elastic.launch.portable import pin_instruction_set
from elastic.membership.live import RunEnded, ToldToLeave
from elastic.membership.progress import BETWEEN, EVALUATING, OVER, SAVING, WAITING
from elastic.membership.view import View
from elastic.observe.console import Console
from elastic.observe.events import EventLog, digest_of_indices, digest_of_sums, plain_values
from elastic.observe.timing import EVALUATE, SAVE, WAIT
from elastic.preemption.signals import SignalNotices
from elastic.recovery import EXIT_RESTART, Recovery
from elastic.session import Session
from elastic.state.compiled import explained
from elastic.state.randomness import before_seed, end_seed, evaluated_seed, seed_streams, start_seed
from elastic.step import Step
from elastic.update import default_update

_LEAVE, _STOP, _SAVE, _REGROUP = 1, 2, 4, 8
_SPENT_ON = {WAITING: WAIT, SAVING: SAVE, EVALUATING: EVALUATE}


class Run:
    """A training run whose result does not depend on what happens to its workers: a context manager to iterate over.

    url               where the run lives: a folder or any fsspec URL. The same command resumes it
    model, optimizer  one each, or dicts by name; `scheduler` likewise, stepped once per step
    dataset           dataset[i] for i < len(dataset)
    batch_size        examples per step, at every world size
    virtual_workers   V: the parts that a step's batch is cut into, and the most workers that can share it. Part of the
                      run's identity, chosen for life: three to six times the usual fleet, with many divisors
    epochs, steps     where the run ends; the earlier one if both are given
    seed              of the data's order and of every random stream inside steps
    clip_grad_norm    the largest norm of all gradients together; None leaves them
    save_every        steps, a time such as "10min", or "auto" (60 s)
    mode              "exact": the same bits at any world size. "fast": a worker's shares run as one batch
    update            update(run, step), instead of clip, optimizer step and scheduler step
    rebuild           rebuild(step), for a script that adds parameters to its models between steps: makes of models and
                      optimizers, as the script builds them, what they are after `step` steps. Called on a worker that
                      joins then, or resumes there, before it gets the state
    micro_batch_size  the most examples in one forward pass: shares are passed in pieces, to bound memory
    last_batch        of an epoch: "short" (a smaller step), "drop", or "carry" (filled from the next epoch)
    num_workers       loader processes of this worker; 0 reads in the training process
    collate_fn        makes a batch of a list of examples; default torch's default_collate
    device            default: where the model is. "cuda", or a model that `.cuda()` has moved, means this worker's own
                      GPU of those that its node has; workers beyond their number share them
    extra             {name: object with state_dict and load_state_dict} that must survive as well
    scaler            a torch.amp.GradScaler: losses are scaled, and the default update unscales
    buffers           {name: "first" | "keep"} for model buffers that the rules of group/buffers.py do not fit
    threads           intra-op threads; part of the run's identity, since they change bits
    portable          pin the instruction set to AVX2, so that processors of one maker with equal caches agree, whatever
                      else they can (starts the process again if need be)
    overlap           send gradients during the last backward pass; off for reentrant checkpointing
    bucket_bytes      how much of the gradients travels together
    accept            names of identity fields that may differ from the saved run's
    keep              how many of the newest checkpoints stay
    keep_every        beside them, of every so many steps the first checkpoint stays for good: step N itself where it
                      was saved, else the next one after it
    save_failures_max after so many failed saves in a row the run stops, with SavesFailed, before more work is at risk;
                      None trains on whatever happens. At the default cadence, and with what each save is tried again,
                      10 are 10 to 20 minutes
    take_over         claim the URL even if another live job holds it
    timeout_s         the deadline of every exchange
    storage_options   for fsspec's filesystem: endpoint, credentials

    Attributes: rank, local_rank, world_size, generation, device, is_coordinator, step_index (steps applied), epoch,
    finished, stopped (the reason given to `stop`, if any).
    Raises ConfigError at once; in `with`, also IdentityMismatch, RendezvousTimeout and checkpoint.ClaimHeld; in the
    loop also SavesFailed.
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
        clip_grad_norm: float | None = None,
        save_every: int | str = "auto",
        mode: Mode = "exact",
        update: Callable[[Run, Step], None] | None = None,
        rebuild: Callable[[int], None] | None = None,
        micro_batch_size: int | None = None,
        last_batch: LastBatch = "short",
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        device: torch.device | str | None = None,
        extra: Mapping[str, Any] | None = None,
        scaler: Any = None,
        buffers: Mapping[str, str] | None = None,
        threads: int = 1,
        portable: bool = False,
        overlap: bool = True,
        bucket_bytes: int = 8 << 20,
        accept: Collection[str] = (),
        keep: int = 3,
        keep_every: int | None = None,
        save_failures_max: int | None = 10,
        take_over: bool = False,
        timeout_s: float = 600.0,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        arguments = {name: given for name, given in locals().items() if name not in ("self", "url", "__class__")}
        self._launch = environment.read()
        self._observer = environment.observer(self._launch)
        url, arguments["storage_options"] = self._observer.storage(os.fspath(url), storage_options)
        arguments["save_every"] = self._observer.cadence(save_every)
        self._config: Config = configure(url, self._launch, **arguments)
        config = self._config
        if portable:
            pin_instruction_set()
        self.rank = self._launch.rank
        self.local_rank = self._launch.local_rank
        self.world_size = self._launch.world_size
        self.generation = 0
        self.device = config.device
        self.model: Any = config.models if isinstance(model, Mapping) else model
        self.optimizers = config.optimizers
        token = self._launch.token or uuid.uuid4().hex[:6]
        self.worker_id = f"{socket.gethostname()}-{os.getpid()}-{token}"
        self._course = Course(config.plan.total_steps)
        self._console = Console(quiet=not self.is_coordinator)
        self._notices = SignalNotices()
        self._on_apply: list[Callable[[Run, Step], None]] = []
        self._session: Session | None = None
        self._recovery: Recovery | None = None
        self._wished = 0
        self._at_most_s: float | None = None  # of the long_section that the script is in
        self._joined_late = False
        self._evaluated = False
        self._open_step: Step | None = None

    @property
    def is_coordinator(self) -> bool:
        """Rank 0 of the view: who prints and who saves."""
        return self.rank == 0

    @property
    def step_index(self) -> int:
        """How many steps are applied."""
        return self._course.step

    @property
    def epoch(self) -> int:
        return self._course.epoch

    @property
    def finished(self) -> bool:
        return self._course.finished

    @property
    def stopped(self) -> str | None:
        """The reason given to `stop`, if any."""
        return self._course.stopped

    @property
    def attempt(self) -> int:
        """How often the step in hand has come round again."""
        return self._open_step.attempt if self._open_step is not None else 0

    @property
    def claim(self) -> int | None:
        """The number under which this run writes its storage, once it is claimed."""
        return self._session.origin.claim or None if self._session is not None else None

    @property
    def events(self) -> EventLog:
        return self._here.events

    def __enter__(self) -> Run:
        if self._session is not None:
            raise ConfigError("this Run was entered before; make a new one, it goes on from what this one saved")
        self._session = session = Session(self, self._config, self._launch, self._observer, self._console)
        try:
            session.open()
        except PeerLost as lost:
            session.close(abruptly=True)
            self._console.warn(
                f"rank {self.rank} lost a peer while the run started: {lost}; its launcher starts it again"
            )
            raise SystemExit(EXIT_RESTART) from lost
        except RunEnded as ended:
            session.tell_end(ended)
            session.close(abruptly=True)
            raise SystemExit(EXIT_RESTART) from ended
        except ToldToLeave as told:
            session.close(abruptly=True)
            raise SystemExit(0) from told  # it holds nothing yet
        except BaseException:
            session.close(abruptly=True)
            raise
        self._recovery = Recovery(self, session, self._course, self._notices, self._observer, self._console)
        self._course.goes_on_from(session.origin.position)
        if session.told is not None:
            self._joined_late = session.told["in_loop"]
            self._course.take(session.told)
        for optimizer in self.optimizers.values():
            session.keep(optimizer.register_step_pre_hook(self._only_in_update).remove)
        self._notices.install(session.live.told_to_leave if session.live is not None else None)
        session.keep(self._notices.close)
        seed_streams(start_seed(self._config.plan.seed), self.device)
        self._observer.at("loaded", self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session = self._here
        orderly = False
        try:
            if error is None:
                if self._course.in_loop:
                    self._broke_off()
                self._recovering.part()
                orderly = True
                return
            orderly = isinstance(error, SystemExit) and not error.code
            session.exchange.buffers.restore()  # a share that raised has moved BatchNorm's averages
            if not isinstance(error, (SystemExit, KeyboardInterrupt)):
                session.events.emit("error", step=self.step_index, error=f"{type(error).__name__}: {error}")
            if (told := explained(error)) is not None:
                raise told from error
        finally:
            session.close(abruptly=not orderly)

    def __iter__(self) -> Iterator[Step]:
        session = self._here
        self._course.begin_loop()
        self._joined_late = False
        session.trained.begin_loop()
        session.survives.begin_loop()
        while not self.finished:
            self._goes_on()
            self._open_step = step = Step(self, session, session.step_plan(self.step_index))
            seed_streams(before_seed(self._config.plan.seed, step.index), self.device)
            yield step
            if not step.applied:
                raise self._left_open(step)
            self._open_step = None
            self._boundary(session)
        self._finish(session)
        self._course.in_loop = False
        seed_streams(end_seed(self._config.plan.seed), self.device)

    def stop(self, reason: str) -> None:
        """Ends the run on all workers, at the boundary after the next exchange: that of the step in hand inside the
        inner loop, that of the following step outside it. The same at every world size."""
        self._course.stop_wish = reason or "stopped"

    def on_apply(self, function: Callable[[Run, Step], None]) -> None:
        """Calls function(run, step) as part of each update, on every worker: for averaged weights and the like."""
        self._on_apply.append(function)

    def evaluate(
        self, dataset: Any, function: Callable[..., Mapping[str, Any]], *, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Sums what `function(*batch)` returns over every example of `dataset`, each exactly once. All workers call it.

        The models are in eval mode and no gradients are recorded. batch_size: examples per call, default a share's.
        Returns name -> sum, the same bits on every worker and at every world size.
        """
        session = self._here
        if self._open_step is not None and not self._open_step.applied:
            raise StepError(
                f"run.evaluate was called inside step {self._open_step.index}, whose gradients are under way\n"
                "  state  the model is as it was before this step\n"
                "  next   call it after the inner loop, on all workers"
            )
        self._observer.at("evaluate", self)
        self._course.evaluations += 1
        position, ordinal = (self.epoch, self.step_index, 0), self._course.evaluations

        def sign(phase: int) -> None:
            first_s = None if self._evaluated else session.progress.long_s  # it may compile
            self._sign(phase, first_s if self._at_most_s is None and phase == EVALUATING else self._at_most_s)

        def within(group: Group) -> dict[str, Any]:
            self._phase(EVALUATING, math.inf)
            buffers = session.exchange.buffers
            return evaluate(self._config, group, dataset, function, batch_size, position, ordinal, sign, buffers)

        def alone() -> dict[str, Any]:  # what it gives does not depend on who computes it
            return within(Solo())

        def together() -> dict[str, Any]:
            try:
                return within(session.group)
            except PeerLost:
                if session.live is None or not self.finished:
                    raise
                session.group.sever()
                return alone()  # the run is over, so no other view will come

        if self._joined_late:  # the others are past this
            sums = alone()
        else:
            name = f"evaluation {self._course.evaluations}{'' if self._course.looped else ' before the loop'}"
            sums = self._recovering.agree(name, together, f"evaluating after step {self.step_index}")
        self._evaluated = True
        self._goes_on()
        if session.compiling is not None:
            session.compiling.check(f"{self.step_index} steps are applied; what was evaluated is not given")
        at = self.step_index if self._course.looped else None
        seed_streams(evaluated_seed(self._config.plan.seed, at, self._course.evaluations), self.device)
        return sums

    @contextmanager
    def long_section(self, at_most_s: float = math.inf) -> Iterator[None]:
        """Between steps: declares that what follows may take long on this worker (writing samples, compiling), so that
        its agent does not take it for hung. It has no effect but under `elastic run`.

        at_most_s  after which it counts as hung all the same
        """
        progress, outer = self._here.progress, self._at_most_s
        self._at_most_s = at_most_s
        self._phase(progress.phase, at_most_s)
        try:
            yield
        finally:
            self._at_most_s = outer
            self._phase(progress.phase, outer)

    @property
    def _here(self) -> Session:
        if self._session is None:
            raise ConfigError("a Run is used inside its with-block: with elastic.Run(...) as run")
        return self._session

    @property
    def _recovering(self) -> Recovery:
        assert self._recovery is not None
        return self._recovery

    def placed(self, rank: int, view: View) -> None:
        """A view has this worker at this place."""
        self.rank, self.world_size, self.generation = rank, view.world_size, view.generation
        self._console.quiet = not self.is_coordinator

    def _phase(self, phase: int, limit_s: float | None = None) -> None:
        self._here.stopwatch.at(_SPENT_ON.get(phase))
        self._sign(phase, limit_s)

    def _sign(self, phase: int, limit_s: float | None = None) -> None:
        """As `_phase`, where the time is spent on what it was."""
        self._here.progress.at(phase, generation=self.generation, step=self.step_index, limit_s=limit_s)

    def _goes_on(self) -> None:
        """In the script's own code, until a step's shares are computed."""
        self._phase(OVER if self.finished and not self._course.in_loop else BETWEEN, self._at_most_s)

    def _wishes(self) -> int:
        """This worker's wishes, for the exchange that is about to be carried out."""
        saver, live = self._here.origin.saver, self._here.live
        wishes = _STOP if self._course.stop_wish is not None else 0
        if self._recovering.parting.notice is not None:
            self._recovering.parting.tell_notice()
            wishes |= _LEAVE
        if live is not None and live.wants_regroup():
            wishes |= _REGROUP
        if saver is not None and saver.time_is_up():
            wishes |= _SAVE
        self._wished = wishes
        return wishes

    def _apply(self, session: Session, step: Step, agreed: Agreed) -> None:
        """The only place that changes the model. A worker that fails inside it holds a torn state."""
        self._course.begin_update()
        self._observer.at("update", self)
        if session.live is not None:
            session.survives.applied.look()
        session.exchange.buffers.apply()
        (self._config.update or default_update)(self, step)
        for function in self._on_apply:
            function(self, step)
        self._course.step += 1
        if session.live is not None:
            session.survives.applied.note()
        self._course.end_update(agreed)
        session.progress.step_done()
        shares = session.exchange.part.shares
        session.events.emit(
            "step_applied",
            step=step.index,
            epoch=step.epoch,
            attempt=step.attempt,
            shares=[shares.start, shares.stop],
            count=step.count,
            indices=digest_of_indices(step.indices_read),
            sums=digest_of_sums(step.sums, step.count),
            redone=step.attempt > 0,
            **({"values": plain_values(step.sums)} if self.is_coordinator else {}),
            **session.stopwatch.lap(),
        )
        self._observer.at("applied", self)

    def _boundary(self, session: Session) -> None:
        """Between two steps, after the script's own code: what the exchange agreed on happens, on every worker."""
        course, recovery = self._course, self._recovering
        assert course.agreed is not None
        course.at_boundary = True
        if session.compiling is not None:
            session.compiling.check(f"step {course.step - 1} is applied; it is not saved")
        if session.origin.saver is not None:
            session.origin.saver.look()
        wishes = 0
        for wish in course.agreed.wishes:
            wishes |= wish
        if course.step < course.total_steps:
            course.epoch = session.step_plan(course.step).epoch
        every = self._config.save_every_steps
        if wishes & _STOP:
            course.stopped = recovery.told_by_all(Kind.STOP, course.stop_wish)
            course.stop_wish = None
        course.look_for_end()
        if course.finished:
            return
        leaving = [rank for rank, wish in enumerate(course.agreed.wishes) if wish & _LEAVE]
        all_leave = leaving and (session.live is None or len(leaving) == len(course.agreed.wishes))
        if all_leave:
            recovery.leave()
        if session.origin.saver is not None:
            session.origin.saver.check(step=course.step)
        if wishes & _SAVE or (every is not None and course.step % every == 0):
            recovery.save()
        if leaving or wishes & _REGROUP:
            recovery.regroup(leaves=bool(self._wished & _LEAVE))

    def _finish(self, session: Session) -> None:
        """The last save, awaited by all, so that whoever sees this run end finds its result in storage."""
        recovery = self._recovering
        self._course.stop_wish = None

        def saved() -> None:
            self._observer.at("finish", self)
            recovery.commit(must=True, patiently="the last save")
            recovery.wait_for_all(Kind.FINISH, None)

        recovery.agree("finish", saved, "waiting for the last save")
        self._phase(OVER)
        self._notices.close()
        if session.live is not None:
            session.live.finished(step=self.step_index)
        self._tell_finished()

    def _tell_finished(self) -> None:
        digest = self._here.survives.weights_digest()
        self.events.emit("finished", step=self.step_index, digest=digest, **self._here.stopwatch.lap())

    def _broke_off(self) -> None:
        """The script left the outer loop by `break`. If all workers do so at one step, the run ends there."""
        session, course = self._here, self._course
        step = self._open_step
        if step is not None and not step.applied:
            session.exchange.buffers.restore()
            raise self._left_open(step)
        self._open_step = None
        self._boundary(session)
        if course.finished:
            self._finish(session)
        elif self._recovering.all_break():
            course.stopped = "the script left the loop"
            course.finished = True
            self._finish(session)
        else:
            self._recovering.parting.break_off()

    def _left_open(self, step: Step) -> StepError:
        """For a step whose inner loop did not come to its end: break, return, or an exception that was caught."""
        torn = self._course.updating
        return StepError(
            f"step {step.index} was left before {'its update was complete' if torn else 'its inner loop ended'}\n"
            f"  state  {'torn by that update' if torn else 'as it was before this step'}; nothing of it was saved\n"
            "  next   let `for batch in step` run to its end, and exceptions leave the with-block; run.stop(reason) "
            "ends a run early"
        )

    def _only_in_update(self, *_: Any) -> None:
        if not self._course.updating:
            raise StepError(
                "optimizer.step() was called in the loop, and Run steps the optimizer itself when the inner loop ends\n"
                "  state  the model is unchanged\n"
                "  next   remove the call, or pass update=function to do it your own way"
            )
