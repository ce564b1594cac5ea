"""The coordinator's hand on the run's storage: claims it, reads the state to go on from, saves on a cadence.

Training stops for a periodic save only until what forward passes or the script may move is copied; weights, and what
optimizers keep, are copied while the next step computes, and joined before its update (state/staging.py). The rest is
done by a writer process, even if this one is killed (elastic_checkpoint/save/writer/). One that fails is reported and
training goes on, until so many in a row have failed that the run stops (SavesFailed) before more work is at risk; the
final one must succeed, and is tried again.
A newer claim means that the run goes on elsewhere: Evicted, and nothing more is written. Unless this side has it: then
what was under way of the older one is made anew, as the state stands at the next boundary.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

import torch

import elastic_checkpoint
from elastic.config import Config
from elastic.errors import Evicted, IdentityMismatch, SavesFailed
from elastic.events import schema
from elastic.events.event import ABSENT
from elastic.events.log import EventLog
from elastic.loop.storage.failed_saves import Rescue, saves_failed
from elastic.loop.storage.save_duration import SaveDuration, UploadOrder, likely_s, older_left_s, too_late, upload_order
from elastic.loop.storage.save_schedule import SaveSchedule, SoonSave
from elastic.loop.storage.step_digest import Notes, StepDigest
from elastic.loop.storage.under_way import LateSaves, Position, UnderWay
from elastic.membership.environment import Launch
from elastic.membership.succession.going_on import nodes_of
from elastic.membership.succession.succession import may_succeed
from elastic.plan.cadence import Losses
from elastic.state import identity as identities
from elastic.state.finite import not_finite
from elastic.state.identity import CONTENT, SCRIPT
from elastic.state.train_state import TrainState, Tree
from elastic.status.console import Console
from elastic_checkpoint.runs.retention import UNFIT

PATIENCE_S = 20.0  # so long what nobody would try again is tried again
_LAST_S = {True: 60.0, False: 600.0}  # so long the last save more, with a rescue copy and without one
_WAIT_MAX_S = 30.0  # between two tries
T = TypeVar("T")
_LOOK_S = 0.5
_WARM_AFTER_S = 2.0  # a run that is over by then, or a coordinator that is, never needs the writer process


class Saver:
    """The coordinator's hand on the run's storage; no other worker has one.

    schedule  when the next save is due
    duration  of a save
    losses   what the run has seen by now, of losses that cost a reload
    seen     the same, as of the state that was read
    left_in_order  that state was the last of its launch, saved as it left or came to its end
    next_step  what is known of the first step behind the checkpoint that was read last, as JSON; None: it is not
               compared
    last_read  likewise the step before it, where that was the last one of its run
    any_mate  see Session.any_mate
    answers  (nonce, endpoint) of the liveness endpoint that the agent of `elastic run` keeps for all its workers
    """

    def __init__(
        self,
        config: Config,
        launch: Launch,
        train_state: TrainState,
        identity: identities.Identity,
        events: EventLog,
        console: Console,
        losses: Callable[[], Losses],
        any_mate: Callable[[bool], bool],
        answers: tuple[str, dict[str, Any]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._config = config
        self.world_size = launch.world_size
        self._train_state = train_state
        self._identity = identity
        self._events = events
        self._console = console
        self._clock = clock
        self._losses = losses
        self._any_mate = any_mate
        self._opened_s = clock()
        self.schedule = SaveSchedule(config.saves, losses, events, clock=clock)
        self._soon = SoonSave()
        self._late_saves = LateSaves()
        self.duration = SaveDuration()
        self.seen = Losses()
        self.left_in_order = False
        self._claim = 0
        self._warmed = False
        self.next_step: dict[str, Any] | None = None
        self.last_read: StepDigest | None = None
        self._notes = Notes(config.url, config.storage_options)
        self._under_way: list[UnderWay] = []
        self._order_sent: tuple[int, bool] | None = None
        self.accepted: list[str] = []
        self._saved: tuple[int, str | None] | None = None
        self._saved_s = self._opened_s
        self._failures = 0
        self._is_patient = False
        self._last_failure: elastic_checkpoint.CheckpointError | None = None
        self._place = 0 if config.sharding is None else config.sharding.place
        self._together = config.sharding is not None
        self._checkpoints = elastic_checkpoint.Checkpointer(
            config.url,
            group=config.sharding.mesh.get_group() if config.sharding is not None else None,
            keep=config.saving.keep,
            keep_every=config.saving.keep_every,
            keep_multiple=config.saves.steps if config.goes_back else None,
            storage_options=config.storage_options or None,
            job=launch.job,
            take_over=config.saving.take_over,
            log=self._log,
            answers=answers,
            when_busy="wait" if config.goes_back else "replace",  # a save to go back to is not taken back
            failures_max=sys.maxsize,  # they are counted here, whichever way the saves are made
        )
        self._rescue = Rescue(self.where, launch.rescue, self._log)

    def claim(self, nodes: Sequence[str] = (), *, answers_for_others: bool = False) -> elastic_checkpoint.Claim:
        """Claim the run's storage. nodes: of the view; answers_for_others: see Checkpointer.claim.

        Raises ClaimHeld where another job is alive on this URL, or others of this one are.
        """
        world = {"world_size": self.world_size, "nodes": sorted(nodes)}
        return self._claimed(self._checkpoints.claim(world=world, answers_for_others=answers_for_others))

    def succeed(
        self, to: elastic_checkpoint.Claim, *, answers: tuple[str, dict[str, Any]], nodes: Sequence[str]
    ) -> elastic_checkpoint.Claim:
        """Take the next claim, for those of the run's nodes that are here. Raises ClaimLost, StorageError."""

        def ours(claim: elastic_checkpoint.Claim) -> bool:
            return may_succeed(to=to.number, nodes=nodes, newest=claim.number, its_nodes=nodes_of(claim.document()))

        world = {"world_size": self.world_size, "nodes": sorted(nodes)}
        return self._claimed(self._checkpoints.succeed(to, answers=answers, world=world, ours=ours))

    @property
    def can_exclude(self) -> bool:
        """Return whether the storage lets one of several claims win."""
        return self._checkpoints.exclusive

    def _claimed(self, claim: elastic_checkpoint.Claim) -> elastic_checkpoint.Claim:
        """Take a claim as the one to write under, record it, and return it."""
        self._claim, resumed = claim.number, claim.resumed_from
        self._events.context(claim=claim.number)
        self._events.emit(schema.Claimed(resumed_from=resumed._asdict() if resumed is not None else None))
        return claim

    def adopt(self, claim: elastic_checkpoint.Claim) -> None:
        """Go on under a claim that another worker of the run has taken.

        That was the coordinator before this one, which is gone; or one that was asked for it, for a view that this
        worker is in, too.
        """
        self._claim = claim.number
        if self._place == 0:  # of workers that save together, the first holds the claim
            self._checkpoints.adopt(claim)

    def saves_along(self, claim: elastic_checkpoint.Claim, read: Position | None) -> None:
        """Save along with the coordinator, whose replica this worker is of.

        claim  that the coordinator has taken
        read   where the state stands that it has read; None: the run is a new one
        """
        self.adopt(claim)
        self._saved = (read.step, read.stopped) if read is not None else None

    def read(self) -> tuple[Position, Tree, int] | None:
        """Return the newest whole state, its position and its claim; None for a new run.

        Raises IdentityMismatch, and elastic_checkpoint.NoCheckpoint when there are checkpoints and none is whole.
        """
        try:
            found = self._checkpoints.read(fit=self._config.on_bad is not None)
        except elastic_checkpoint.NoCheckpoint as none:
            if none.rejected:
                raise  # there are checkpoints, and none is whole: beginning anew would bury them
            return None
        if not found.meta.keys() >= {"identity", "position"}:
            raise IdentityMismatch(
                f"checkpoint step {found.step} in {self.where} is not an elastic.Run's: it was imported, or saved by a "
                "Checkpointer alone, and does not say which examples were trained on\n"
                "  state  nothing was loaded or written\n"
                "  next   give the run a URL of its own; what is here is loaded before it, by "
                "elastic_checkpoint.Checkpointer(url).read()",
                {},
            )
        accepted = identities.check(
            self._identity,
            found.meta["identity"],
            accept=self._config.accept,
            where=f"checkpoint step {found.step} in {self.where}",
            saved=True,
        )
        if (there := found.meta["identity"].get("elastic")) != (here := self._identity["elastic"]):
            self._console.say(
                f"checkpoint step {found.step} was saved by elastic-exact {there or 'of an earlier version'}, and "
                f"the run goes on with {here}"
            )
        if (unfit := found.meta.get(UNFIT)) is not None:
            self._console.warn(
                f"NOT FINITE: the run goes on from step {found.step}, whose weights are not finite: {unfit}\n"
                "  state  on_bad=None looks at nothing; older checkpoints whose weights are finite stay\n"
                '  next   Update(on_bad="stop") goes on from the newest of those instead, and so does on_bad="skip" '
                'with Checks(accept=["on_bad"])'
            )
        self.accepted = sorted(accepted)
        for name, (here, there) in accepted.items():
            self._console.say(f"accepted: {name} is {here} here and was {there}; the bits of the result may differ")
        position = Position(**found.meta["position"])
        if not accepted and not {CONTENT, SCRIPT} & {*self._config.accept}:
            self.next_step = self._checkpoints.noted(found.commit)
            self.last_read = StepDigest.of(found.meta.get("last_read"))
        self._saved = position.step, position.stopped
        seen = found.meta.get("losses") or {}
        claims = self._claim - found.commit.claim
        self.duration.learn(found.meta)
        self.left_in_order = bool(seen.get("ended"))
        self.seen = Losses.from_document(seen).resumed(claims=claims, in_order=self.left_in_order)
        return position, found.tree, found.commit.claim

    def note(self, step: StepDigest) -> None:
        """Take what is known of the first step behind the newest save, to be written beside that save."""
        self._notes.computed(step)

    def note_settings(self, step: int, digest: Callable[[], int]) -> None:
        """Take, too, what optimizers and schedules are set to behind that step."""
        if (noted := self._notes.newest) is not None and noted.step == step - 1 and noted.shares:
            self._notes.computed(replace(noted, settings=digest()))

    def write_note(self) -> None:
        """Write what was taken: all workers agree on it, or all others have left."""
        if self._place == 0:
            self._notes.agreed()

    def read_regular(self, step: int, every: int) -> tuple[int, Tree] | None:
        """Return the newest whole save of this run after a multiple of `every` steps: (its steps, its state).

        It has at most `step` steps; None: there is none. Waits for one that is under way. Raises
        elastic_checkpoint.StorageError, where patience did not help.
        """
        for one in self._under_way:
            if one.position.step <= step:
                with suppress(elastic_checkpoint.CheckpointError):  # `poll` says what failed
                    one.saving.wait()

        def read(at: int) -> Tree | None:
            with suppress(elastic_checkpoint.NoCheckpoint, elastic_checkpoint.CorruptCheckpoint):
                tree: Tree = self._checkpoints.read(step=at).tree
                return tree
            return None

        known = self.patiently("listing what was saved", self._checkpoints.list)
        there = {one.step for one in known if one.in_lineage and one.step <= step and one.step % every == 0}
        for at in sorted(there, reverse=True):
            if (tree := self.patiently(f"reading the save of step {at}", partial(read, at))) is not None:
                return at, tree
        return None

    @property
    def has_committed(self) -> bool:
        """Return whether the storage has taken a save of this launch."""
        return self._saved_s > self._opened_s

    @property
    def where(self) -> str:
        return self._checkpoints.url  # credentials removed

    def holds(self, step: int, stopped: str | None) -> bool:
        """Return whether the newest save, or the state read, is this one; wait if it is under way. Raises Evicted."""
        for one in self._under_way:
            if (one.position.step, one.position.stopped) == (step, stopped):
                with suppress(elastic_checkpoint.CheckpointError):  # `poll` says what failed
                    one.saving.wait()
        self.poll()
        return self._saved == (step, stopped)

    def poll(self) -> None:
        """See, at each boundary, what became of saves; make ready for more once the run is going. Raises Evicted."""
        if not self._warmed and not self._together and self._clock() - self._opened_s > _WARM_AFTER_S:
            self._warmed = True
            self._checkpoints.warm(self._train_state.objects())
            self.duration.look_up(self._newest_meta)
        while self._under_way and self._under_way[0].saving.done:
            one = self._under_way.pop(0)
            try:
                commit = one.saving.wait()
                self._committed(one.position, commit, one.took_s, one.stall_s, one.unfit)
                self.schedule.committed(stall_s=one.cost_s, durable_s=one.took_s)
            except (elastic_checkpoint.SaveDropped, elastic_checkpoint.ClaimLost) as lost:
                if isinstance(lost, elastic_checkpoint.StateChanged):
                    self.schedule.owes_one = True
                elif one.claim < self._claim:  # this side has the newer claim: the save is made anew
                    self.schedule.owes_one = True
                    if (words := self._late_saves.came_too_late(took_s=one.took_s, newest=self.newest)) is not None:
                        self._console.warn(words)
                elif isinstance(lost, elastic_checkpoint.ClaimLost):
                    raise _evicted(lost) from lost
                elif not self._under_way:  # else a newer save took its place
                    self.schedule.owes_one = True
            except elastic_checkpoint.CheckpointError as failure:
                self._failed(one.position, failure)

    def check(self, position: Position) -> None:
        """Raise SavesFailed, before more is computed, where too many saves have failed since the last commit."""
        most = self._config.saving.failures_max
        if most is not None and self._failures >= most:
            what = f"{self._failures} saves in a row failed, and the run stops before more work is at risk"
            raise self._saves_failed(position, self.rescue(position), what) from self._last_failure

    def likely_s(self, step: int, *, left_s: float | None = None) -> float | None:
        """Return how long it will be until what is held after so many steps is durable; None: nobody knows.

        left_s  that this node is there: what is being uploaded may be given up for it
        """
        now_s, took_s = self._clock(), self.duration.seconds
        older = self._older_than(step)
        if older is not None and left_s is not None and took_s is not None and self._order(older, left_s).newest_first:
            return took_s
        under_way = [(one.position.step, now_s - one.begun_s) for one in self._under_way if not one.saving.done]
        begun_s = dict(under_way).get(step)
        if begun_s is not None:  # it is this one
            return None if took_s is None else max(0.0, took_s - begun_s)
        under_way_s = [begun_s for _, begun_s in under_way]
        return likely_s(took_s, under_way_s)

    def _newest_meta(self) -> dict[str, Any]:
        """Return the newest commit's meta; called in a thread of its own. Empty where the storage cannot be read."""
        with suppress(elastic_checkpoint.CheckpointError):
            options = self._config.storage_options or None
            with elastic_checkpoint.Checkpointer(self._config.url, storage_options=options) as storage:
                newest = storage.latest()
            return newest.meta if newest is not None else {}
        return {}

    def save_soon(self, step: int) -> None:
        """Have the next save of so many steps or more begun again until one is committed: a machine is at risk."""
        self._soon.asked(step)

    @property
    def is_due(self) -> bool:
        """Return whether a save is due, by the cadence of time, or because one failed that was wanted soon."""
        return self.schedule.is_due() or self._soon.is_due(self._clock())

    @property
    def newest(self) -> str:
        """Return what is saved, in words."""
        return f"step {self._saved[0]}" if self._saved is not None else "no checkpoint of this run"

    def _log(self, line: str) -> None:
        if not self._is_patient:  # who tries again tells of the failure
            self._console.say(line)

    def patiently(
        self, what: str, act: Callable[[], T], *, by_s: float | None = None, again_for_s: float | None = None
    ) -> T:
        """Return what `act` gives; try again for a while where the storage or the writer process fails.

        by_s         by the clock, after which nobody is there to try again
        again_for_s  so long, of what has failed, and was told of, before

        A disk that is full for a moment costs no run. Raises StorageError or WriterDied where every attempt failed, and
        whatever else `act` raises.
        """
        until_s, wait_s = self._clock() + (PATIENCE_S if again_for_s is None else again_for_s), 1.0
        until_s = until_s if by_s is None else min(until_s, by_s)
        known = again_for_s is not None
        self._is_patient = True
        try:
            while True:
                try:
                    return act()
                except (elastic_checkpoint.StorageError, elastic_checkpoint.WriterDied) as failure:
                    if self._clock() + wait_s > until_s or getattr(failure, "hopeless", False):
                        raise
                    said = "as before" if known else str(failure)
                    known = True
                    self._console.say(f"{what} failed, and is tried again in {wait_s:.0f} s: {said}")
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, _WAIT_MAX_S)
        finally:
            self._is_patient = False

    def save_last(self, position: Position) -> None:
        """Make the run's last save: nobody would save later. It is tried for long, after a copy is put elsewhere.

        Raises Evicted; SavesFailed, which says where the copy is.
        """
        what, save = "the last save", partial(self.save, position, must=True)
        with suppress(elastic_checkpoint.StorageError, elastic_checkpoint.WriterDied):
            self.patiently(what, save)
            return
        rescued = self.rescue(position)
        if rescued is not None:
            self._console.warn(f"{what} still fails, and {rescued.rstrip()}")
        try:
            self.patiently(what, save, again_for_s=_LAST_S[rescued is not None])
        except (elastic_checkpoint.StorageError, elastic_checkpoint.WriterDied):
            failed = self._saves_failed(position, rescued, f"{what} failed, {self._failures} times")
        else:
            return
        raise failed

    def rescue(self, position: Position) -> str | None:
        """Put what is held elsewhere; see Rescue.copy. None of what a replica's workers hold in parts."""
        if self._together:
            return None
        return self._rescue.copy(position.step, self._train_state.objects(), self._meta(position, ended=True))

    def _saves_failed(self, position: Position, rescued: str | None, what: str) -> SavesFailed:
        """Return the error that says what is at risk; rescued: see `rescue`."""
        return saves_failed(
            what,
            step=position.step,
            saved=self._saved[0] if self._saved is not None else None,
            since_s=self._clock() - self._saved_s,
            reason=self._last_failure,
            rescued=rescued,
            failures_max=self._config.saving.failures_max,
        )

    def _meta(self, position: Position, *, ended: bool) -> dict[str, Any]:
        """Return a checkpoint's meta; ended: it is its launch's last."""
        meta = {
            "position": asdict(position),
            "identity": self._identity,
            "world_size": self.world_size,
            "losses": {**self._losses().document(), "ended": ended and position.step > 0},
            **self.duration.meta(),
        }
        if ended and (read := self._notes.newest) is not None and read.step == position.step - 1:
            meta["last_read"] = asdict(read)
        if (unfit := self._unfit(position.step)) is not None:
            meta[UNFIT] = unfit
        return meta

    def save(self, position: Position, *, must: bool, by_s: float | None = None) -> None:
        """Save the live state.

        must  it is committed on return, and a failure ends the run
        by_s  by the clock, after which this node is gone: that it comes too late is said as soon as it shows

        Raises Evicted; CheckpointError where it must.
        """
        self.poll()
        if must and not self._together:
            self._give_way(position.step, by_s)
        at_risk = self._soon.begun()
        self._train_state.staging.join()
        self._events.emit(schema.SaveBegun(step=position.step))
        begun_s = self._clock()
        meta = self._meta(position, ended=must)
        unfit = meta.get(UNFIT)
        objects = self._train_state.objects()
        try:
            if self._warmed or self._together:
                steady = [] if must or at_risk else self._lent()
                saving = self._checkpoints.save(position.step, objects, meta=meta, blocking=False, steady=steady)
                one = UnderWay(saving, position, self._claim, begun_s, self._has_saved() - begun_s, unfit)
                self._under_way.append(one)
                self._train_state.staging.follow(saving, partial(self._tell_staged, one))
                commit = None
            else:
                commit = self._checkpoints.save(position.step, objects, meta=meta)
                stall_s = self._has_saved() - begun_s
        except elastic_checkpoint.ClaimLost as lost:
            raise _evicted(lost) from lost
        except elastic_checkpoint.UnsupportedValue:
            raise
        except elastic_checkpoint.CheckpointError as failure:
            self._failed(position, failure)
            if must:
                raise
            self._console.say(f"step {position.step} could not be saved: {failure}")
            self._has_saved()
            return
        if commit is not None:
            self._committed(position, commit, stall_s, stall_s, unfit)
        elif must and not self._await(saving, by_s):
            self.save(position, must=must, by_s=by_s)

    def _unfit(self, step: int) -> str | None:
        """Return what the checkpoint says of weights that are not finite; None: nothing."""
        # One that says so does not count among those to keep. With `on_bad` it is not saved at all.
        trained = {name: p for name, p in self._config.parameters().items() if p.requires_grad}
        found = not_finite(trained, self._any_mate) if self._config.on_bad is None else None
        return None if found is None else f"after {step} steps, {found}"

    def _older_than(self, step: int) -> UnderWay | None:
        """Return what is being uploaded of another step, if it may be given up."""
        # Not where bad steps go back to saves: what is there must not depend on how fast a save is uploaded.
        older = next((one for one in self._under_way if not one.saving.done), None)
        return None if older is None or older.position.step == step or self._config.goes_back else older

    def _order(self, older: UnderWay, left_s: float) -> UploadOrder:
        """Decide whether the older save or the newest is uploaded first."""
        took_s, begun_s = self.duration.seconds, self._clock() - older.begun_s
        older_s = older_left_s(older.saving.likely_left_s, begun_s, took_s)
        if took_s is None and older_s is not None:
            took_s = begun_s + older_s
        return upload_order(older_s, took_s, left_s)

    def _give_way(self, step: int, by_s: float | None) -> bool:
        """Give up what is being uploaded, and all behind it, if this step's save is to go first; return whether it was.

        by_s  by the clock, after which this node is gone; None: nobody says, so all is uploaded

        Raises Evicted.
        """
        older = self._older_than(step) if by_s is not None else None
        if older is None or by_s is None:
            return False
        left_s = by_s - self._clock()
        order, at = self._order(older, left_s), older.position.step
        if not order.both and self._order_sent != (at, order.newest_first):
            self._order_sent = at, order.newest_first
            first = "newest" if order.newest_first else "older"
            said = schema.SaveOrder(step=step, older=at, first=first, why=order.why, left_s=round(max(0.0, left_s), 3))
            self._events.emit(said)
            what = "is given up for" if order.newest_first else "is being uploaded, and goes before"
            self._console.say(f"the save of step {at} {what} that of step {step}: {order.why}")
        if order.newest_first:
            self._checkpoints.give_up_saves()
            self.poll()
        return order.newest_first

    def _lent(self) -> list[torch.Tensor]:
        """Return what is copied while training goes on."""
        # Nothing where bad steps go back to saves: which are there must not depend on what the script writes meanwhile.
        none = self._config.goes_back or self._config.sharding is not None
        return [] if none else self._train_state.staging.lend()

    def _tell_staged(self, one: UnderWay) -> None:
        """Record that a save is copied."""
        if not isinstance(one.saving.error, elastic_checkpoint.StateChanged):
            self._events.emit(schema.Staged(step=one.position.step, seconds=one.stall_s))

    def _has_saved(self) -> float:
        """Return the time, from which the next save is counted."""
        self.schedule.last_s, self.schedule.owes_one = self._clock(), False
        return self.schedule.last_s

    def _await(self, saving: elastic_checkpoint.Saving, by_s: float | None) -> bool:
        """Wait until a save is committed; False: an older one was given up for it, and it is to be made anew."""
        said = False  # if this process is killed meanwhile, the writer process commits it all the same
        while by_s is not None and not saving.done:
            with suppress(elastic_checkpoint.CheckpointError, TimeoutError):
                saving.wait(_LOOK_S)
            if not saving.done and not self._together and self._give_way(saving.step, by_s):
                return False
            words = too_late(saving.likely_left_s, by_s - self._clock(), self.newest)
            if words is not None and not said:
                self._console.warn(words)
                said = True
        with suppress(elastic_checkpoint.CheckpointError):
            saving.wait()
        self.poll()
        if saving.error is not None:
            raise saving.error
        return True

    def close(self, *, abruptly: bool = False) -> None:
        """Close the storage; abruptly: the writer process finishes what is under way, as others wait for this one."""
        if not abruptly:
            with suppress(elastic_checkpoint.CheckpointError):  # logged
                self._checkpoints.wait()
            with suppress(Evicted):
                self.poll()
        self._checkpoints.close(finish=not abruptly)
        self._notes.close()

    def _committed(
        self,
        position: Position,
        commit: elastic_checkpoint.Commit,
        took_s: float,
        stall_s: float,
        unfit: str | None,
    ) -> None:
        """Record a committed save, and count failures anew from there."""
        self.duration.measured(took_s)
        self._notes.committed(commit)
        self._saved = position.step, position.stopped
        self._saved_s = self._clock()
        self._failures = 0
        self._late_saves.committed()
        self._soon.committed(position.step)
        self._events.emit(
            schema.Saved(
                step=position.step,
                bytes=commit.bytes,
                seconds=took_s,
                stall=stall_s,
                name=commit.name,
                unfit=unfit or ABSENT,
            )
        )
        self._events.flush()

    def _failed(self, position: Position, failure: elastic_checkpoint.CheckpointError) -> None:
        """Record a failed save, and count it."""
        self._failures += self._soon.failed(self._clock())
        self._last_failure = failure
        self._events.emit(
            schema.SaveFailed(
                step=position.step,
                error=str(failure),
                in_a_row=self._failures,
                saved_step=self._saved[0] if self._saved is not None else None,
            )
        )


def _evicted(lost: elastic_checkpoint.ClaimLost) -> Evicted:
    return Evicted(f"{lost}\n  next   nothing: another worker has taken this run over; this one ends")
