"""What a worker holds from joining a run to leaving it, opened in order and given back in reverse.

    a view and its group (view_group.py)  ->  the run's state (restoring/restorer.py)  ->  exchange and loader for them

Under plain torchrun there is one view in the life of a process; under `elastic run` a worker goes from view to
view (`change_view`) with the same model, optimizer and loader processes.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import torch

from elastic.data.data_plan import Examples, StepPlan
from elastic.data.loader import Loader, read_once
from elastic.data.own_generators import OwnGenerators
from elastic.errors import PeerLost
from elastic.events import schema
from elastic.events.event import ABSENT
from elastic.events.timing import age_s
from elastic.group.form import Group
from elastic.group.replica_group import MateLost, ReplicaGroup
from elastic.group.sharded_gradients import ShardedUnits
from elastic.group.warm_memory import WarmMemory
from elastic.loop.assignment import assign_shares, micro_batches
from elastic.loop.compiled.cache import CompileCache
from elastic.loop.context import Context
from elastic.loop.cross_check import CrossCheck, First, each
from elastic.loop.curves import Curves
from elastic.loop.gradient_sync import GradientSync
from elastic.loop.phases import Phases
from elastic.loop.restoring.restorer import StateRestorer
from elastic.loop.run_state import Request, RunState, StateSummary
from elastic.loop.script_variables import generators
from elastic.loop.view_group import ViewGroup
from elastic.manifest.recorder import ManifestRecorder
from elastic.membership.exit_statuses import AGAIN
from elastic.membership.progress import Phase
from elastic.membership.rules.next_view import BOUNDARY
from elastic.membership.worker.live import IdentityDiffers, RunIsPast
from elastic.record.recorder import Recorder
from elastic.state import gpu_kernels
from elastic.state import identity as identities
from elastic.state.body import Body
from elastic.state.clipping import carry_exact_norms
from elastic.state.compiled import Compiling
from elastic.state.data_access import watch
from elastic.state.health import Health
from elastic.state.identity import CONTENT, NORM, SCRIPT
from elastic.state.modules import roots
from elastic.state.randomness import seed_streams
from elastic.state.replica import Replica
from elastic.state.train_state import TrainState, Tree
from elastic.state.trained import Trained
from elastic.status.figures import WorkerFigures
from elastic.status.tracker import Status, StatusTracker
from elastic_checkpoint import linux
from elastic_checkpoint.storage import redact

_CHECK = int(Request.CHECK)
T = TypeVar("T")


class Session:
    """What one worker holds while it is in a run; `close` gives back all of it.

    compiling                  torch's compiler, under exact mode
    compile_cache              what it made, in the run's storage
    record                     what each step comes to
    side_state_of_those_ahead  where the run was under way when this worker joined
    mates                      the other workers of this one's replica; None: it holds the whole model
    is_past                    the run was finished then, and the others in a later one of the script's: this worker
                               has its result, and no part in it
    """

    gradient_sync: GradientSync
    loader: Loader

    def __init__(self, context: Context, state: RunState) -> None:
        config, launch = context.config, context.launch
        self.context = context
        self.state = state
        self._config = config
        self._closing = ExitStack()
        self._abruptly = False
        self.step_plan = lru_cache(maxsize=64)(config.plan.step)
        self.compiling: Compiling | None = None
        self._memory = WarmMemory()
        self._own_generators = OwnGenerators()
        self.side_state_of_those_ahead: Tree | None = None
        self.is_past = False
        self._newest_claim: dict[str, object] | None = None
        self.trained = Trained(config.models, config.optimizers, config.check, config.update.rebuild)
        self.body = Body(self.trained, config.optimizers, config.extra)
        self.train_state = TrainState(
            trained=self.trained,
            models=config.models,
            optimizers=config.optimizers,
            schedulers=config.schedulers,
            scaler=config.update.scaler,
            extra=config.extra,
            health=Health(config.on_bad),
        )
        self._alike = {*config.accept} <= {CONTENT, SCRIPT, NORM}  # else machines may compute other bits
        comparable = self._alike and (config.compute.mode == "exact" or config.device.type == "cpu")
        self._replica = Replica(config.optimizers, config.extra, values=comparable)
        self.view_group = ViewGroup(context)
        self.phases = Phases(context, state, self.view_group)
        self.mates: ReplicaGroup | None = None
        self._next_sync: GradientSync | None = None
        self._units: ShardedUnits | None = None
        self.compile_cache = CompileCache(context, lambda: self.view_group.rank, self.phases)
        self.curves = Curves(config.loggers, redact(config.url), state, self.view_group, context.console)
        self._manifest = ManifestRecorder(config, launch, context.worker_id)
        self.record = Recorder(config, context.worker_id, context.observer.recorded)
        self.restorer = StateRestorer(
            context, self.phases, self.view_group, self.train_state, self._manifest, self.any_mate
        )
        context.events.context(rank=launch.rank, world_size=launch.world_size, generation=0)
        show = self._on_the_terminal() if launch.terminal else None
        tracker = StatusTracker(
            total_steps=config.plan.total_steps,
            shares=config.plan.virtual_workers,
            show=context.live.status if context.live is not None and launch.status else show,
            say=context.console.say if not launch.shown and show is None else None,
        )
        context.events.hear(tracker.hear)
        if launch.metrics and context.live is not None:
            context.events.hear(WorkerFigures(tracker, context.live.figures).hear)
        if launch.observer is not None:
            context.events.keep_uncompacted()  # evidence

    @property
    def group(self) -> Group:
        return self.view_group.group

    @property
    def repeats(self) -> bool:
        """Return whether a share gives the same bits each time that it is passed, on every machine."""
        # In exact mode, unless kernels by themselves may give others, or processors, which accept= lets differ.
        return self._kernels_repeat and self._config.compute.mode == "exact" and self._alike

    @property
    def _kernels_repeat(self) -> bool:
        """Return whether kernels give the same bits each time."""
        return self._config.device.type == "cpu" or torch.get_deterministic_debug_mode() == 2

    @property
    def checks(self) -> bool:
        """Return whether there are steps whose shares two workers pass."""
        return self._may_check and (self.group.world_size > 1 or self._config.plan.virtual_workers > 1)

    @property
    def _may_check(self) -> bool:
        """Return whether a share may be passed twice: not where one failed read, of two, leaves an example out."""
        config = self._config
        repeats = self._kernels_repeat and self._alike
        repeats = repeats and (config.streams is None or config.replica_size == 1)  # copies are not passed in rounds
        return config.cross_check is not None and repeats and config.data.on_bad_example == "raise"

    @property
    def state_is_agreed_on(self) -> bool:
        """Return whether what is held can hold nothing that some worker alone has computed."""
        # Nothing was applied since the last save, before which all compare; or every share is passed by two.
        config = self._config
        of_two = self.checks and config.cross_check == 1 and config.compute.mode == "exact" and config.streams is None
        return (of_two and config.plan.micro_batch_size is None) or self.state.saved == self.state.step

    def open(self) -> None:
        """Open all in order, until this worker holds the run's state.

        Raises IdentityMismatch, RendezvousTimeout, PeerLost, StartFailed; on rank 0, what checkpoint raises.
        """
        context, config = self.context, self._config
        self.on_close(context.events.close)  # opened first, closed last: what else ends may still be recorded
        self.on_close(lambda: self.record.close(abruptly=self._abruptly))  # once peers know that this worker ends
        if context.live is not None:
            context.live.begin_run(redact(config.url))
            self.on_close(context.live.end_run)
        self.on_close(self.compile_cache.close)
        self.on_close(lambda: self.curves.end(abruptly=self._abruptly))
        self.body.open()
        self.on_close(self.body.close)
        self.on_close(self.train_state.staging.watched())
        if context.live is not None:
            self.on_close(watch(self.train_state.applied.weights.accessed))
        threads_before = torch.get_num_threads()
        torch.set_num_threads(config.compute.threads)  # the bits depend on how many there are
        if context.launch.launcher is not None:
            linux.signal_at_parents_end(signal.SIGTERM)  # nobody would restart it, and its URL would stay claimed
            self.on_close(partial(linux.signal_at_parents_end, 0))
        self.on_close(lambda: torch.set_num_threads(threads_before))
        if config.device.type == "cuda":
            self.on_close(partial(torch.cuda.set_device, torch.cuda.current_device()))
            torch.cuda.set_device(config.device)  # what the script puts on "cuda" from now on
            if config.compute.mode == "exact":
                self._closing.enter_context(gpu_kernels.deterministic())
            elif config.cross_check is not None and not self._kernels_repeat:
                context.console.say(
                    "fast mode on a GPU, whose kernels may give other bits by themselves: the cross-check cannot tell, "
                    "and no share is passed by two workers; torch.use_deterministic_algorithms(True) has it done"
                )
        for model in config.models.values():
            model.to(config.device)
        if config.sharding is not None:
            if config.replica_size > 1:
                units = [unit.name for unit in config.sharding.units]
                self.mates = ReplicaGroup(config.sharding.mesh, units, timeout_s=2 * config.compute.timeout_s)
                self.on_close(self.mates.close)
            self._units = ShardedUnits(config.sharding, self.mates)
            carry_exact_norms()
            self.on_close(self._units.close)
        identity = identities.identity(
            config.numerics(), config.models, config.optimizers, config.schedulers, config.device, config.sharding
        )
        identity["url"] = redact(config.url)
        identities.check_accept(config.accept, identity)
        if config.compute.mode == "exact":
            self.compiling = self._closing.enter_context(
                Compiling(begun=self.phases.compiles, ended=self.phases.has_compiled)
            )
        self.compile_cache.open()
        context.progress.at(Phase.STARTING, generation=0, step=0)
        context.moment("start")
        context.events.emit(
            schema.RunStarted(
                config=config.numerics(),
                identity=identity,
                pid=os.getpid(),
                host=socket.gethostname(),
                restart=context.launch.restart,
                age_s=age_s(context.launch.ordered),
            )
        )
        if context.live is not None:
            context.live.on_moved_on = self._end_moved_on
        self.restorer.identity = identity
        self.on_close(lambda: self.view_group.close(abruptly=self._abruptly))
        self.on_close(self._close_restorer)
        if context.live is None:
            self.view_group.join()
            self.restorer.from_storage()
        else:
            self._newest_claim = self.restorer.newest_claim() if context.launch.local_rank == 0 else None
            self._ready(identity, accepted=False)
            self.side_state_of_those_ahead = self._enter_first(identity)
        self._prepare()

    def _end_moved_on(self, why: str) -> None:
        """End this process, whatever the others may be in: what this worker holds must change nothing any more.

        Called in the channel's thread. Its agent kills it soon, should the storage be slow to take the record.
        """
        self.context.events.emit(schema.MovedOn(step=self.state.step, why=why))
        self.context.events.flush(wait=True)
        os._exit(AGAIN)

    def tell_finished(self) -> None:
        """Record that the run is finished, with the digest of its weights."""
        digest = self.train_state.weights_digest()
        spent = self.context.stopwatch.lap()
        passed_over = self.train_state.health.ranges() or ABSENT
        finished = schema.Finished(step=self.state.step, digest=digest, passed_over=passed_over, **spent)
        self.context.events.emit(finished)

    def mates_go_on(self, lost: PeerLost | None) -> None:
        """Vote, in a replica of several workers, on whether all of it go on. Raises PeerLost, on all, where one is not.

        lost  the peer that this one has lost; None: it goes on
        """
        if self.mates is not None:
            if lost is not None:
                self.view_group.abort()  # a mate may be waiting for this worker's own word in the view's group
            self.mates.goes_on(lost, step=self.state.step)

    def any_mate(self, flag: bool) -> bool:
        """Return whether any worker of this one's replica says so; all of them call it together."""
        return flag if self.mates is None else self.mates.any(flag)

    def let_pass(self, due: bool) -> None:
        """Let a sharded model be passed from here on, as all of its replica's workers are to make the same passes."""
        if self._units is not None:
            self._units.pass_due = due

    def all_or_none(self, act: Callable[[], T]) -> T:
        """Return what `act` gives; where one worker of the replica loses a peer in it, raise PeerLost on all of them.

        For what comes ahead of something that a replica's workers do together, and must all do, or none.
        """
        if self.mates is None:
            return act()
        try:
            found = act()
        except MateLost:
            raise  # all know
        except PeerLost as lost:
            self.mates_go_on(lost)
            raise
        self.mates_go_on(None)
        return found

    def mates_have_voted(self, lost: PeerLost) -> None:
        """Have all of this worker's replica know that it has lost a peer, as they recover together."""
        if not isinstance(lost, MateLost):
            with suppress(PeerLost):
                self.mates_go_on(lost)

    def on_close(self, closing: Callable[[], None]) -> None:
        """Have something closed with the session."""
        self._closing.callback(closing)

    @property
    def is_orderly(self) -> bool:
        """Return whether the session does not end abruptly."""
        return not self._abruptly

    def close(self, *, abruptly: bool = False) -> None:
        """Give back all; abruptly: wait for no collective in flight, so that peers that wait learn of it at once."""
        self._abruptly = abruptly
        self.context.progress.at(Phase.ENDED, generation=self.view_group.generation, step=self.state.step)
        self._closing.close()

    def change_view(self, summary: StateSummary, side_state: Tree, *, at: str, lost: bool, whole: bool) -> Tree | None:
        """Leave the view, and enter the next one; return the side state of those who stand ahead of this worker.

        side_state  what this rank has to tell those behind, beside the state
        at          where this worker stands; a newcomer is let in only if all survivors say BOUNDARY
        lost        a collective failed: the group is aborted now, so that all others learn of it
        whole       what this worker holds may be saved as it is

        Raises PeerLost (try again), StartFailed, and what Live.wait_for_view raises.
        """
        live = self.context.live
        assert live is not None
        assert summary.step is not None
        if lost:
            self.view_group.abort()
        live.view_is_over(step=summary.step, at=at, lost=lost, whole=whole, torn=summary.torn)
        self.view_group.enter(step=summary.step)
        side_state_of_those_ahead = self.restorer.from_peers_or_storage(summary, side_state)
        self.gradient_sync.close(in_order=not lost)
        self.gradient_sync = self._new_gradient_sync()
        self.record.view_formed(coordinates=self.view_group.rank == 0)
        return side_state_of_those_ahead

    def completes(self, exchanged_by: GradientSync) -> None:
        """Keep what has exchanged the current step, in the view before, until that is applied."""
        self._next_sync, self.gradient_sync = self.gradient_sync, exchanged_by

    def has_completed(self) -> None:
        """Go on with the exchange of the present view: the step is applied."""
        if self._next_sync is not None:
            self.gradient_sync, self._next_sync = self._next_sync, None

    def cross_check(self, plan: StepPlan) -> CrossCheck:
        """Return this worker's part in a step's cross-check; that of the next step is agreed on with the one before."""
        config, agreed = self._config, self.state.agreed
        asked = agreed is None or any(one & _CHECK for one in agreed.requests)
        world_size, idle = self.group.world_size, self.restorer.idle.at(plan.index)
        wanted = each(config, plan.index, world_size=world_size, asked=asked) if self.checks else 0
        # In fast mode the other one passes more batches than it has foreseen, too.
        exact = config.compute.mode == "exact"
        joined = self.restorer.first_steps.get(plan.index, frozenset()) if self.checks and exact else frozenset()
        compares = self.first_is_passed and self.restorer.compares_first(plan.index)
        if not wanted and not joined and not compares:
            return CrossCheck()
        blocks = assign_shares(config, len(plan.sizes), world_size, idle)[0].blocks
        streams = config.streams is not None
        rank, size, every = self.group.rank, config.replica_size, list[CrossCheck]()
        for mate in range(rank - rank % size, rank - rank % size + size):
            check = CrossCheck.planned(
                blocks, mate, each=wanted, idle=idle, streams=streams, joined=joined, fast=not exact
            )
            if compares and 0 in blocks[mate]:
                check.first = First.AS_OWN if exact else First.FOR_NOTHING
            if not wanted and self.state.foreseen is not None:
                check.passes = ()  # the loop knows how many batches there are
            every.append(check)
        check = every[rank % size]
        if size > 1:
            check.at_least = max(one.for_nothing for one in every)
        return check

    @property
    def first_is_passed(self) -> bool:
        """Return whether, where all leave, the coordinator passes the next step's first share for whoever resumes."""
        # In fast mode a stream's share is passed with others only.
        return self._may_check and (self._config.compute.mode == "exact" or self._config.streams is None)

    def holds_state(self, step: int) -> bool:
        """Return whether this worker holds the state in a step, which may be its first in a view."""
        return self.group.rank not in self.restorer.idle.at(step)

    def find_generators(self) -> None:
        """Find, once models are built, the generators in them and in the script's variables: they are seeded, too."""
        modules = roots(self._config.models, self._config.extra)
        self._own_generators = OwnGenerators(*modules.values(), *self._config.optimizers.values(), named=generators())

    def seed(self, value: int) -> None:
        """Point all generators at the stream `value`, a `derive`d number."""
        seed_streams(value, self._config.device)
        self._own_generators.seed(value)

    def read_beside(self, examples: Examples) -> Any:
        """Return a batch of `examples` that nobody counts: not the loader's, not observed. None: all are left out."""
        config = self._config
        return read_once(
            config.dataset,
            examples,
            seed=config.plan.seed,
            collate_fn=config.data.collate_fn,
            to=config.device,
            on_bad_example=config.data.on_bad_example,
        )

    def read_from(self, first: int) -> None:
        """Point the loader at what this worker reads in the present view, from step `first` to the run's end."""
        self.loader.redirect(self._requests(first, self.group.rank, self.group.world_size))

    def _enter_first(self, identity: identities.Identity) -> Tree | None:
        """Enter a view, with no state yet; return the side state of those who stand ahead."""
        live = self.context.live
        assert live is not None
        while True:
            try:
                self.view_group.enter(step=-1)
                ahead = self.restorer.from_peers_or_storage(StateSummary(step=None), {})
                self.mates_go_on(None)
                return ahead
            except RunIsPast:
                self.is_past = True
                self.context.events.close()  # it has ended, as its record says
                self.view_group.stay_out()
                self.restorer.from_result()
                return None
            except PeerLost as lost:
                self.view_group.abort()
                self.mates_have_voted(lost)
                live.view_is_over(step=-1, at=BOUNDARY, lost=True, whole=False, torn=False)
            except IdentityDiffers as other:
                self.restorer.accepts(identity, other.identity, where="the run that is under way")
                self._ready(identity, accepted=True)

    def _ready(self, identity: identities.Identity, *, accepted: bool) -> None:
        """Say that this worker is ready for a view."""
        live = self.context.live
        assert live is not None
        shares = self._config.plan.virtual_workers
        live.ready(shares=shares, identity=identity, accepted=accepted, newest=self._newest_claim)

    def _prepare(self) -> None:
        """Make the exchange and the loader for the first view."""
        config = self._config
        self.gradient_sync = self._new_gradient_sync()
        self.on_close(self._close_gradient_sync)
        self.loader = Loader(
            config.dataset,
            seed=config.plan.seed,
            observer=self.context.observer,
            collate_fn=config.data.collate_fn,
            interrupt=self._interrupt,
            on_bad_example=config.data.on_bad_example,
            **config.loading(),
        )
        self.on_close(self.loader.close)
        if config.update.scaler is not None:
            config.update.scaler.scale(torch.zeros((), device=config.device))  # an idle rank needs its scale, too
        self.read_from(self.restorer.position.step)

    def _new_gradient_sync(self) -> GradientSync:
        restorer, size = self.restorer, self._config.replica_size
        return GradientSync(
            self._config,
            self.group,
            self.view_group.across,
            self.trained,
            self.train_state.health,
            self.phases.waiting,
            self._memory,
            self._replica,
            self.context.console.warn,
            restorer.background_send,
            restorer.idle,
            newcomers={rank // size for ranks in restorer.first_steps.values() for rank in ranks},
            units=self._units,
            mates=self.mates,
        )

    def _on_the_terminal(self) -> Callable[[Status], None]:
        """Return what takes the status, where this worker shows it itself."""
        from elastic.status.terminal import StatusTerminal  # rich takes a moment to load, and few show anything

        terminal = StatusTerminal(sys.stderr.fileno())
        self.on_close(terminal.close)
        return terminal.show

    def _close_restorer(self) -> None:
        """Close the restorer; where others wait for this process's end, the writer process finishes the save."""
        saver = self.restorer.saver
        self._manifest.close(saved=saver is not None and saver.has_committed, abruptly=self._abruptly)
        alone = self.context.live is None and (not self._abruptly or self.view_group.world_size == 1)
        self.restorer.close(abruptly=not alone)

    def _close_gradient_sync(self) -> None:
        self.gradient_sync.close()  # that of the last view

    def _interrupt(self) -> None:
        """Raise PeerLost in a wait that a lost peer makes pointless."""
        self.group.check()

    def _requests(self, first: int, rank: int, world_size: int) -> Iterator[Examples]:
        """Yield what this rank reads, one batch after the other, from step `first` to the run's end."""
        config = self._config
        idle = self.restorer.idle
        for index in range(first, config.plan.total_steps):
            plan = self.step_plan(index)
            assignment = assign_shares(config, len(plan.sizes), world_size, idle.at(index))[rank]
            for batch in assignment.batches:
                yield from micro_batches(config, plan, batch, assignment.blocks)
