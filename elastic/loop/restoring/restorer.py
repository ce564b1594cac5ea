"""Where does a view's state come from? From those of its workers who hold it, else from storage.

    from storage  agree on the run's identity  ->  the coordinator claims the storage and reads the newest state, or
                  commits the first one  ->  every rank receives it
    from peers    say where one stands  ->  those behind receive what those ahead hold (loop/restoring/transfer.py)

What keeps the coordinator from it (the URL is taken, the checkpoint is another run's) is told to all.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from enum import Enum
from functools import partial
from typing import Any

import elastic_checkpoint
from elastic.errors import IdentityMismatch, PeerLost, StartFailed, Stranded
from elastic.events import schema
from elastic.events.event import ABSENT
from elastic.group.form import all_know, gather_bytes
from elastic.loop.assignment import IdleRanks
from elastic.loop.context import Context
from elastic.loop.phases import Phases
from elastic.loop.restoring.background_transfer import BackgroundSend
from elastic.loop.restoring.transfer import Passed, Roles, at_one_place, broadcast, exchange_summaries, pass_on, roles
from elastic.loop.run_state import StateSummary
from elastic.loop.storage.claim_lookup import ClaimLookup
from elastic.loop.storage.hub_notice import HubNotice
from elastic.loop.storage.saver import Saver
from elastic.loop.storage.step_digest import StepDigest
from elastic.loop.storage.under_way import Position
from elastic.loop.view_group import ViewGroup
from elastic.manifest.recorder import ManifestRecorder
from elastic.membership.messages.messages import TakeClaim
from elastic.membership.progress import Phase
from elastic.plan.cadence import Losses
from elastic.state import identity as identities
from elastic.state.train_state import TrainState, Tree
from elastic_checkpoint.errors import TornManifest
from elastic_checkpoint.storage import redact

_CANNOT_TELL = "storage that is no witness"


class _TransferRole(Enum):
    """This worker's part in a transfer, as schema.Transfer has it."""

    TAKES, GIVES = "takes", "gives"


class StateRestorer:
    """Gives this worker the run's state whenever a view has formed, and keeps the coordinator's hand on the storage.

    identity  this worker's, to be set before anything is asked for
    position  where the state stands that came last, from storage or from peers
    saver     on the coordinator: its hand on the storage
    claim     the number under which this run writes; 0 before it is known
    losses  what the run has seen by now, of losses that cost a reload
    save_begun_s  when this worker last took part in a save, on the clock time.monotonic()
    background_send  what newcomers of this view still receive from this worker
    idle    these newcomers, in their first step
    first_steps  of this view's newcomers: step -> those who compute a part of it as their first one
    """

    identity: identities.Identity

    def __init__(
        self,
        context: Context,
        phases: Phases,
        view_group: ViewGroup,
        train_state: TrainState,
        manifest: ManifestRecorder,
        any_mate: Callable[[bool], bool],
    ) -> None:
        self._context = context
        self._config = context.config
        self._events = context.events
        self._phases = phases
        self._view_group = view_group
        self._train_state = train_state
        self._claimed: elastic_checkpoint.Claim | None = None
        self.saver: Saver | None = None
        self.check: Callable[[], None] = _fit  # whether a new run's weights are fit to be saved; raises if not
        self.save_begun_s = time.monotonic()
        self._losses, self._losses_known_s = Losses(), time.monotonic()
        self.position = Position(epoch=0, step=0)
        self.background_send: BackgroundSend | None = None
        self.idle = IdleRanks()
        self.first_steps: dict[int, frozenset[int]] = {}
        self._late = ClaimLookup()
        self._next_step: StepDigest | None = None  # of the checkpoint that the run goes on from
        self._noted: StepDigest | None = None
        self._noted_in = 0
        self._hub_notice = HubNotice(context.config.url, context.config.storage_options, context.console)
        self._manifest = manifest
        self._any_mate = any_mate
        self._keeps_trained = False  # what the script has made trainable, and not what the saved run had
        self._accepted: set[str] = set()  # fields in which the run that goes on was another, or other workers are

    @property
    def storage_s(self) -> float:
        """Return how long a worker may be at its storage: ten hang limits, or a collective's timeout if it is more."""
        return max(self._context.progress.long_s, self._config.compute.timeout_s)

    @property
    def claim(self) -> int:
        return self._claimed.number if self._claimed is not None else 0

    def claim_document(self) -> dict[str, object]:
        """Return the claim that the run writes under, for those who join."""
        assert self._claimed is not None
        return self._claimed.document()

    def losses(self) -> Losses:
        return self._losses.after(time.monotonic() - self._losses_known_s)

    def _know_losses(self, losses: Losses) -> None:
        self._losses, self._losses_known_s = losses, time.monotonic()

    def from_storage(self) -> None:
        """Take the newest saved state, or the one that the run begins with; all ranks hold it afterwards.

        Raises IdentityMismatch, PeerLost, StartFailed; on rank 0, what checkpoint raises.
        """
        self._agree_on_identity()
        tree, from_claim = self._claim_and_read()
        if from_claim is None and self._config.replica_size > 1:
            tree = self._save_the_first_together()
        live = self._context.live
        if live is not None:
            live.witness(self.claim_document(), agreed=False)
        shared = self._check_that_storage_is_shared()
        if live is not None and shared:
            live.witness(self.claim_document(), agreed=True)
        # What is read is whole; what a run begins with lies with the workers of its first replica, part by part.
        group = self._view_group.group if from_claim is not None else self._view_group.across
        if from_claim is not None or group.world_size > 1:  # a worker that begins alone holds its state already
            self._apply(broadcast(group, tree, self._config.sharding), keeps_trained=self._keeps_trained)
        self._events.emit(
            schema.Loaded(
                step=self.position.step,
                epoch=self.position.epoch,
                from_claim=from_claim,
                accepted=sorted(self._accepted),
                digest=self._train_state.weights_digest(),
                passed_over=self._train_state.health.ranges() or ABSENT,
            )
        )
        self._record_launch()

    def _record_launch(self) -> None:
        """Have the coordinator write what this launch is made with, unless the one before it has."""
        if self._view_group.rank == 0:
            self._manifest.record(self.claim_document(), self.identity, self._view_group.view.workers)

    def _save_the_first(self) -> Tree:
        """Commit the state that a new run begins with, and return it."""
        saver = self._open_saver()
        self.check()
        self._phases.sign(Phase.SAVING, self.storage_s)
        self._context.moment("save")
        saver.save(self.position, must=True)
        self._context.moment("saved")
        self._phases.sign(Phase.WAITING)
        return self._train_state.objects()

    def _save_the_first_together(self) -> Tree | None:
        """Commit it likewise, by the workers of the first replica; return it there, None elsewhere."""
        tree: Tree | None = None
        for tries_left in (1, 0):
            failure: Exception | None = None
            if self._saves:
                try:
                    tree = self._save_the_first()
                except Exception as refused:
                    failure = refused  # told to all before anyone raises, as in `_claim_and_read`
            told = f"{type(failure).__name__}: {failure}" if failure is not None else None
            refusal = self._view_group.first_answer(told)
            if refusal is None:
                return tree
            # The first save has none before it that the run could go on from, so it is tried again, by all of them.
            if tries_left and refusal.startswith(f"{TornManifest.__name__}: "):
                continue
            all_know(self._view_group.group)
            raise failure or StartFailed(f"the first replica could not start the run\n{refusal}")
        return tree

    @property
    def _saves(self) -> bool:
        """Return whether this worker saves: the coordinator, and with it the others of its replica."""
        return self._view_group.rank < self._config.replica_size

    def from_result(self) -> None:
        """Take the state of a run that is finished, on this worker alone, which neither claims nor writes anything.

        Raises IdentityMismatch, StartFailed, and what checkpoint raises.
        """
        self._phases.sign(Phase.LOADING, self.storage_s)
        saver, self.saver = self._open_saver(), None
        try:
            found = saver.read()
        finally:
            saver.close()
        if found is None:
            raise StartFailed(
                f"the script's other workers are past the run in {saver.where}, and nothing of it is there\n"
                "  state  nothing was loaded\n"
                "  next   leave what the script's runs have saved where it is until the last of them is finished"
            )
        self.position, tree, _ = found
        self._apply(tree, keeps_trained="trained" in saver.accepted)

    def from_peers_or_storage(self, summary: StateSummary, side_state: Tree) -> Tree | None:
        """Bring all ranks of the view to one step with the same bytes.

        Returns what those ahead tell, if this rank was behind. Raises PeerLost, Stranded, and what `from_storage`
        raises.

        side_state  what this rank would tell those behind, beside the state
        """
        group = self._view_group.group
        if self._view_group.witness and self._has_newer_claim(self._view_group.claim):
            raise PeerLost(
                "this worker has taken a claim that its view does not know of; the next view will",
                step=summary.step,
                phase="summaries",
            )
        summaries = exchange_summaries(group, summary)
        parts = roles(summaries)
        self.background_send, self.idle, self.first_steps = None, IdleRanks(), {}
        if self._context.live is not None:
            self._context.live.entered()
        if parts is None:
            if summary.step is not None:
                raise StartFailed(
                    "every worker of this view failed inside an update, and none holds a whole state\n"
                    "  state  the newest checkpoint in storage is whole\n"
                    "  next   nothing: this worker ends, and the run goes on from storage"
                )
            self.from_storage()
            self._tell_where_the_hub_is()
            return None
        _refuse_stranded(parts, group.rank, summary.step)
        self.learn_claim(self._view_group.claim)
        self._read_it_later()
        if self._saves:
            self.take_over_saving()  # which gives heartbeats in the storage: a transfer may be long
        ahead = self._from_peers(parts, summaries, side_state)
        self._record_launch()
        if parts.follows:
            self.idle = IdleRanks(
                step=self.position.step if summary.step is None else summary.step, ranks=frozenset(parts.need_state)
            )
        for rank, one in enumerate(summaries):
            if one.step is None or one.joined:
                first = (summaries[parts.donors[0]].step or 0) + (rank in self.idle.ranks)
                self.first_steps[first] = self.first_steps.get(first, frozenset()) | {rank}
        self._tell_where_the_hub_is()
        if self.saver is not None:
            self.saver.world_size = group.world_size
        return ahead

    def _from_peers(self, parts: Roles, summaries: Sequence[StateSummary], side_state: Tree) -> Tree | None:
        """Receive what those ahead hold, or send it; return what those ahead tell, if this rank was behind."""
        summary = summaries[self._view_group.group.rank]
        group, applied = self._view_group.group, self._train_state.applied
        self._context.moment("transfer")
        begun_s = time.monotonic()
        objects = self._train_state.objects()
        # Those behind have still to run the script's code behind the step: they get the state as it was before that.
        rewound = applied.tree(objects) if parts.rewound and group.rank in parts.donors else None
        if (size := self._config.replica_size) == 1:
            passed = pass_on(group, parts, side_state, rewound or objects, applied.weights, self._config.sharding)
            ahead = passed.side_state
        else:
            ahead = pass_on(group, replace(parts, need_state=()), side_state, {}, applied.weights).side_state
            passed = Passed()
            if parts.need_state:
                across, of_replicas = self._view_group.across, at_one_place(parts, summaries, size)
                passed = pass_on(across, of_replicas, {}, objects, applied.weights, self._config.sharding)
        self.background_send = passed.background_send
        if ahead is not None:
            self.position = Position(**ahead["position"])
            self._know_losses(Losses.from_document(ahead["losses"]))
            before, self._claimed = self.claim, elastic_checkpoint.Claim.from_document(ahead["claim"])
            self._events.context(claim=self.claim)
            if self.saver is not None and self.claim != before:
                self.saver.adopt(self._claimed)
            self.learn_claim(self._view_group.claim)
        if passed.state is not None:
            self._apply(passed.state)
            applied.note()
            step, epoch = self.position.step, self.position.epoch
            self._tell_transfer(_TransferRole.TAKES, step, passed.nbytes, begun_s)
            passed_over = self._train_state.health.ranges() or ABSENT
            self._events.emit(
                schema.Loaded(
                    step=step,
                    epoch=epoch,
                    from_claim=self.claim,
                    accepted=sorted(self._accepted),
                    passed_over=passed_over,
                )
            )
        elif passed.nbytes and summary.step is not None:
            tell = partial(self._tell_transfer, _TransferRole.GIVES, summary.step, passed.nbytes, begun_s)
            if self.background_send is not None:
                self.background_send.on_finish = tell
            else:
                tell()
        return ahead

    def _apply(self, state: Tree, *, keeps_trained: bool = False) -> None:
        self._phases.sign(Phase.LOADING)  # objects in extra= are the script's own code
        self._train_state.apply(state, step=self.position.step, keeps_trained=keeps_trained)
        self._phases.sign(Phase.WAITING)

    def take_over_saving(self) -> None:
        """Make this worker the one who saves from here on; the one before it is gone, or has handed over."""
        if self.saver is not None:
            return
        assert self._claimed is not None
        saver = self._open_saver()
        saver.schedule.last_s = self.save_begun_s
        if self._context.live is None:  # whoever answered for the claim is gone
            self._claimed = saver.claim()
        else:  # a view that needs another claim has got it before it was formed (succession.py)
            saver.adopt(self._claimed)

    def _tell_where_the_hub_is(self) -> None:
        """Write where the hub is beside the checkpoints, on the coordinator, now and whenever the hub moves."""
        live = self._context.live
        if live is not None and self._view_group.rank == 0:
            live.on_hub_moved = self._tell_where_the_hub_is
            self._hub_notice.write(live.liveness, self._claimed)

    def check_step(self, found: StepDigest) -> None:
        """Compare the first step behind a resume with what it was.

        All workers call it, with the same: before the update, and once it is applied.

        Raises IdentityMismatch where it is not what was read and computed there before.
        """
        if self._next_step is not None:
            self._next_step.check(found, where=redact(self._config.url))

    def applied(self, found: StepDigest | None) -> None:
        """Compare and note the first step behind a save, once it is applied. Raises as `check_step`.

        A step that could not be applied is not noted: whoever mends its script has nothing to compare.
        """
        if found is None:
            return
        self.check_step(found)
        self._noted = found
        self._noted_in = self._view_group.generation
        if self.saver is not None:
            self.saver.note(found)
        self._write_alone()

    def weights_noted(self, step: int) -> int:
        """Return the digest of the weights with which this step begins, if this view has noted them; else 0."""
        noted = self._noted
        return noted.weights if noted is not None and self._noted_here and noted.step == step - 1 else 0

    @property
    def _noted_here(self) -> bool:
        """Return whether this view has noted what was noted last: newcomers of a later one have not."""
        return self._noted_in == self._view_group.generation

    def agreed(self) -> None:
        """Write what this view noted before a step that all workers have exchanged: they have compared it."""
        if self.saver is not None and self._noted_here:
            self.saver.write_note()

    def _write_alone(self) -> None:
        """Write what was noted at once where there is nobody to compare it with."""
        if self.saver is not None and self._view_group.world_size == 1:
            self.saver.write_note()

    def check_settings(self, step: int, digest_of_settings: Callable[[], int]) -> None:
        """Note what optimizers are set to behind the first step after a save, and compare it behind a resume.

        step  how many are applied: nothing is saved of them before this was asked

        Raises IdentityMismatch where it is not what it was there before.
        """
        noted = self._next_step
        if noted is not None and noted.step == step - 1 and noted.settings:
            noted.check_settings(digest_of_settings(), where=redact(self._config.url))
        if self.saver is not None:
            self.saver.note_settings(step, digest_of_settings)
        self._write_alone()

    def compares_first(self, step: int) -> bool:
        """Return whether a launch before has left what this step's first share gives."""
        noted = self._next_step
        return noted is not None and noted.step == step and noted.first_gradients != 0

    def last_read(self) -> StepDigest | None:
        """Return what the last step has read of a run that is made longer: on the coordinator, once; else None."""
        if self.saver is None:
            return None
        last, self.saver.last_read = self.saver.last_read, None
        return last

    def claim_for_next_view(self, words: TakeClaim) -> None:
        """Ask the storage for the next claim, and tell the hub: with it, nobody else goes on with the run.

        Nodes are lost that had not left in order, and may be going on elsewhere.
        """
        live = self._context.live
        assert live is not None
        assert self._claimed is not None
        assert words.liveness is not None
        self.learn_claim(words.claim)
        answers, at = (words.liveness["nonce"], words.liveness["endpoint"]), words.generation
        self._phases.sign(Phase.SAVING, self.storage_s)
        try:
            saver = self._open_saver()
            if not saver.can_exclude:
                live.claimed(at, None, why="it creates objects although they exist, so it cannot tell two sides apart")
                return
            self._claimed = saver.succeed(self._claimed, answers=answers, nodes=words.nodes)
            live.claimed(at, self._claimed.document())
        except elastic_checkpoint.ClaimLost as lost:
            theirs = self.newest_claim()  # says which of us may ask again; where it cannot be read, all may
            why = f"others have gone on with the run: {lost}"
            live.claimed(at, theirs, why=why, moved_on=theirs is not None)
        except elastic_checkpoint.CheckpointError as failure:
            live.claimed(at, None, why=str(failure))
        finally:
            self._phases.sign(Phase.WAITING)

    def newest_claim(self) -> dict[str, object] | None:
        """Return the newest claim in storage: by it the hub knows whether this node sees the same as the run.

        None where no other node can be, or where storage cannot tell.
        """
        if not self._context.launch.several_nodes:
            return None
        with suppress(elastic_checkpoint.CheckpointError):
            with self._look() as storage:
                newest = storage.newest_claim() if storage.exclusive else None
            return newest.document() if newest is not None else None
        return None

    def _read_it_later(self) -> None:
        """Read the claim later, where the storage is no witness of this view: this node may have failed to read it."""
        live, launch, known = self._context.live, self._context.launch, self._view_group.claim
        self._late.end()
        is_asked = launch.several_nodes and launch.local_rank == 0 and not self._view_group.witness
        if live is not None and known is not None and is_asked:
            self._late.begin(partial(self._sees, known), partial(live.has_read, known))

    def _sees(self, claim: dict[str, Any]) -> bool:
        """Return whether storage has a claim, and can tell two sides of a cut network apart. Raises CheckpointError."""
        with self._look() as storage:
            return storage.sees(elastic_checkpoint.Claim.from_document(claim)) and storage.exclusive

    def _has_newer_claim(self, known: dict[str, Any] | None) -> bool:
        """Return whether this worker has a newer claim than its view knows of.

        The hub that asked for it is gone, or has gone on before the answer came. What is saved under the older one
        would find that the run has been taken over. Of folders that are not shared the numbers say nothing.
        """
        return known is not None and self._claimed is not None and self._claimed.number > int(known["claim"])

    def learn_claim(self, known: dict[str, Any] | None) -> None:
        """Take the hub's claim if it is newer: a worker may have taken it for a view that is ours, too."""
        if known is not None and (self._claimed is None or int(known["claim"]) > self._claimed.number):
            self._claimed = elastic_checkpoint.Claim.from_document(known)
            self._events.context(claim=self.claim)
            if self.saver is not None:
                self.saver.adopt(self._claimed)

    def _look(self) -> elastic_checkpoint.Checkpointer:
        """Open the storage for a look beside the saver."""
        return elastic_checkpoint.Checkpointer(self._config.url, storage_options=self._config.storage_options or None)

    def is_committed(self, step: int) -> bool:
        """Return whether storage holds a commit of this run with at least so many steps; of what cannot be read, no."""
        with suppress(elastic_checkpoint.CheckpointError):
            with self._look() as storage:
                newest = storage.latest()
            return newest is not None and newest.step >= step and newest.claim >= self.claim
        return False

    def _tell_transfer(self, role: _TransferRole, step: int, moved: int, begun_s: float) -> None:
        seconds = time.monotonic() - begun_s
        self._events.emit(schema.Transfer(step=step, bytes=moved, seconds=seconds, role=role.value))

    def close(self, *, abruptly: bool = False) -> None:
        """Close the saver, if this worker has one; see Saver.close."""
        self._late.end()
        if self.saver is not None:
            self.saver.close(abruptly=abruptly)

    def _open_saver(self) -> Saver:
        """Return the saver, which is made at the first call."""
        if self.saver is None:
            self.saver = Saver(
                self._config,
                self._context.launch,
                self._train_state,
                self.identity,
                self._events,
                self._context.console,
                self.losses,
                self._any_mate,
                self._view_group.liveness,
            )
            self.saver.world_size = self._view_group.group.world_size
        return self.saver

    def _agree_on_identity(self) -> None:
        """Compare every rank's identity with rank 0's; raise IdentityMismatch on all where one differs."""
        group = self._view_group.group
        theirs = json.loads(gather_bytes(group, json.dumps(self.identity).encode())[0])
        mismatch: IdentityMismatch | None = None
        try:
            self.accepts(self.identity, theirs, where="rank 0")
        except IdentityMismatch as differing:
            mismatch = differing
        refusal = self._view_group.first_answer(f"rank {group.rank}: {mismatch}" if mismatch is not None else None)
        if refusal is not None:
            all_know(group)
            raise mismatch or IdentityMismatch(refusal, {})

    def accepts(self, here: identities.Identity, theirs: identities.Identity, *, where: str) -> None:
        """Check another worker's identity, and put on record what differs by permission. Raises IdentityMismatch."""
        self._accepted.update(identities.check(here, theirs, accept=self._config.accept, where=where))

    def _claim_and_read(self) -> tuple[Tree | None, int | None]:
        """Return what the coordinator has read (None elsewhere), and the claim it was saved under (None: a new run)."""
        group = self._view_group.group
        tree: Tree | None = None
        failure: Exception | None = None
        outcome: dict[str, object] = {}
        if group.rank == 0:
            try:
                self._phases.sign(Phase.LOADING, self.storage_s)
                tree, from_claim = self._coordinate()
                self._phases.sign(Phase.WAITING)
                outcome = {"claim": self.claim_document(), "from_claim": from_claim, "position": asdict(self.position)}
                outcome["accepted"] = self._open_saver().accepted
                outcome["losses"] = self.losses().document()
                outcome["next_step"] = self._open_saver().next_step
            except Exception as refused:
                failure = refused  # told to all before anyone raises, so that nobody waits in a collective
                outcome = {"failure": f"{type(refused).__name__}: {refused}"}
                if isinstance(refused, elastic_checkpoint.ClaimHeld) and self._is_of_this_run(refused):
                    outcome["elsewhere"] = f"others of this run go on with it, and hold the state\n{refused}"
        answer = json.loads(gather_bytes(group, json.dumps(outcome).encode())[0])
        if "elsewhere" in answer:
            all_know(group)
            if group.rank == 0:
                self._tell_elsewhere(answer["elsewhere"])
            raise Stranded(answer["elsewhere"]) from failure
        if "failure" in answer:
            all_know(group)
            raise failure or StartFailed(f"rank 0 could not start the run\n{answer['failure']}")
        self._claimed = elastic_checkpoint.Claim.from_document(answer["claim"])
        self.position = Position(**answer["position"])
        self._know_losses(Losses.from_document(answer["losses"]))
        self._accepted.update(answer["accepted"])
        self._keeps_trained = "trained" in answer["accepted"]
        self._next_step = StepDigest.of(answer["next_step"])
        self._events.context(claim=self.claim)
        if self._saves and group.rank:
            self._open_saver().saves_along(self._claimed, self.position if answer["from_claim"] is not None else None)
        return tree, answer["from_claim"]

    def _is_of_this_run(self, held: elastic_checkpoint.ClaimHeld) -> bool:
        """Return whether the claim is held by others of this run, with whom a node of this view may have been."""
        launch = self._context.launch
        return self._view_group.unanswered and launch.job is not None and held.job == launch.job

    def _tell_elsewhere(self, why: str) -> None:
        """Tell the hub that others go on with the run, of which nobody here holds the state."""
        assert self._context.live is not None  # else no view has others elsewhere
        self._context.live.claimed(self._view_group.generation, None, why=why, moved_on=True)

    def _coordinate(self) -> tuple[Tree | None, int | None]:
        """Claim the storage, read the newest state or commit the first one, and return it as `_claim_and_read` does."""
        saver = self._open_saver()
        self._context.moment("claim")
        claim = partial(saver.claim, self._view_group.nodes, answers_for_others=self._view_group.unanswered)
        if self._context.launch.restart:  # its storage has worked: what replaces a lost worker does not fail there
            self._claimed = saver.patiently("the claim", claim)
        else:
            self._claimed = claim()
        self._context.moment("load")
        if self._view_group.begun_elsewhere and self._claimed.number == 1:
            raise StartFailed(
                f"the run has begun on other nodes, and {saver.where} shows nothing of it\n"
                "  found   no claim before ours: a folder that is not shared, or one that was emptied\n"
                "  state   nothing was loaded or saved; the others may be going on, or what they saved is with them\n"
                "  next    give all nodes one URL in shared or object storage; or start the run anew, on all nodes"
            )
        found = saver.read()
        if found is None:
            self._context.console.say(f"a new run in {saver.where}")
            return (self._save_the_first() if self._config.replica_size == 1 else None), None
        self.position, tree, from_claim = found
        self._know_losses(saver.seen)
        total = self._config.plan.total_steps
        if self.position.stopped is not None or self.position.step >= total:
            why = f": {self.position.stopped}" if self.position.stopped is not None else ""
            self._context.console.say(f"{saver.where} is finished, with {self.position.step} steps applied{why}")
        else:
            how = "left in order" if saver.left_in_order else "ended without a word"
            before = "its workers are started again" if self._context.launch.restart else f"the launch before {how}"
            self._context.console.say(
                f"resuming after step {self.position.step} of {total}, epoch {self.position.epoch}, of {saver.where} "
                f"({before})"
            )
        return tree, from_claim

    def _check_that_storage_is_shared(self) -> bool:
        """Tell people where another node does not see the coordinator's claim; one worker of every node looks for it.

        A folder that only one node has is a trap: when the coordinator comes to run on another node, the run begins
        anew there. Returns whether all see the claim, in a storage that can tell two sides of a cut network apart.
        """
        launch = self._context.launch
        if launch.one_node and launch.channel is None:
            return True
        blind: str | None = None
        if launch.local_rank == 0:
            assert self._claimed is not None
            with self._look() as storage:
                if not storage.sees(self._claimed):
                    blind = socket.gethostname()
                elif launch.several_nodes and not storage.exclusive:
                    blind = _CANNOT_TELL
        blind = self._view_group.first_answer(blind)
        if blind is not None and blind != _CANNOT_TELL:
            self._context.console.say(
                f"{blind} does not see the claim that rank 0 wrote to {redact(self._config.url)}: the folder is not "
                "shared, and the run can go on only while its coordinator stays where it is; use shared or object "
                "storage"
            )
        return blind is None


def _fit() -> None:
    """Find any weights fit to be saved."""


def _refuse_stranded(parts: Roles, rank: int, step: int | None) -> None:
    """Raise Stranded on workers that can go on in no way, and PeerLost on the others of their view."""
    if rank in parts.stranded:
        raise Stranded(
            "this worker lost the exchange of a step that others have applied, and what the script has changed "
            "since cannot be given back to it; it ends, and comes back as a newcomer"
        )
    if parts.stranded:
        raise PeerLost("a peer ends, to come back as a newcomer", step=step, phase="transfer")
