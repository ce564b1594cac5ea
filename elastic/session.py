"""From a started process to a worker of a view that holds the run's state, and from there to the next view.

    at a start      form a group  ->  agree on the run's identity  ->  the coordinator claims the storage and reads
                    the newest state, or commits the first one  ->  every rank receives that state
    in a later view form a group  ->  say where one stands  ->  those behind receive what those ahead hold

What keeps the coordinator from it (the URL is taken, the checkpoint is another run's) is told to all
before anyone raises, so nobody is left waiting in a collective. Under plain torchrun there is one view in the life
of a process; under `elastic run` a worker goes from view to view with the same objects.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch.distributed import DistError, Store

import checkpoint
from elastic.config import Config
from elastic.data.loader import Loader
from elastic.data.plan import Examples
from elastic.errors import IdentityMismatch, PeerLost, StartFailed
from elastic.exchange import Exchange, deal, micro_batches
from elastic.group.form import Group, form, gather_bytes
from elastic.launch.environment import Launch, host_address
from elastic.launch.parent import leave_with_parent
from elastic.membership.live import OtherIdentity, live
from elastic.membership.progress import STARTING, WAITING, Progress
from elastic.membership.rendezvous import meet
from elastic.membership.rules import BOUNDARY
from elastic.membership.view import View
from elastic.observe.console import Console
from elastic.observe.events import EventLog
from elastic.observe.observer import Observer
from elastic.state import identity as identities
from elastic.state.saver import Position, Saver
from elastic.state.survives import Survives, Tree, broadcast
from elastic.state.transfer import Standing, exchange_standings, pass_on, roles

if TYPE_CHECKING:
    from elastic.run import Run

_RENDEZVOUS_S = 300.0
_VIEW_S = 3600.0  # the agent ends a run that waits too long, and says for whom
_RETIRED_S = 10.0


class Session:
    """What a worker holds from joining to leaving. `close` gives all of it back, in reverse order.

    position   where the state stands that the run goes on from
    saver      on the coordinator
    live       the way to the agent of `elastic run`; None under any other launcher
    """

    view: View
    group: Group
    exchange: Exchange
    loader: Loader
    word: Tree | None = None
    _identity: identities.Identity

    def __init__(self, run: Run, config: Config, launch: Launch, observer: Observer, console: Console) -> None:
        self._run = run
        self._config = config
        self._launch = launch
        self._observer = observer
        self._console = console
        self._closing = ExitStack()
        self._abruptly = False
        self._grouped = False
        self._store: Store | None = None
        self.step_plan = lru_cache(maxsize=64)(config.plan.step)
        self.saver: Saver | None = None
        self.claim = 0
        self.live = live(launch.channel)
        self.progress = Progress(launch.progress, hang_s=launch.hang_s)
        self._claimed: checkpoint.Claim | None = None
        self._answers: tuple[str, dict[str, object]] | None = None
        self._retired: list[threading.Thread] = []
        self.position = Position(epoch=0, step=0)
        self.survives = Survives(
            models=config.models,
            optimizers=config.optimizers,
            schedulers=config.schedulers,
            scaler=config.scaler,
            extra=config.extra,
        )
        self.events = EventLog(config.url, worker_id=run.worker_id, storage_options=config.storage_options or None)
        self.events.context(rank=launch.rank, world_size=launch.world_size, generation=run.generation)

    def open(self) -> None:
        """Raises IdentityMismatch, RendezvousTimeout, PeerLost, StartFailed; on rank 0, what checkpoint raises."""
        config = self._config
        self._closing.callback(self.events.close)
        threads_before = torch.get_num_threads()
        torch.set_num_threads(config.threads)
        if self._launch.master_addr is not None:
            self._closing.callback(leave_with_parent())
        self._closing.callback(lambda: torch.set_num_threads(threads_before))
        for model in config.models.values():
            model.to(config.device)
        identity = identities.identity(
            config.numerics(), config.models, config.optimizers, config.schedulers, config.device
        )
        identities.check_accept(config.accept, identity)
        self.progress.at(STARTING, generation=0, step=0)
        self._observer.at("start", self._run)
        self.events.emit(
            "run_started",
            config=config.numerics(),
            identity=identity,
            pid=os.getpid(),
            host=socket.gethostname(),
            restart=self._launch.restart,
        )
        self._identity = identity
        self._closing.callback(self._close_group)
        if self.live is None:
            self._join()
            self._start()
        else:
            self.live.ready(shares=config.plan.virtual_workers, identity=identity)
            self._enter_first()
        self._prepare()

    def keep(self, closing: Callable[[], None]) -> None:
        """Have something closed with the session."""
        self._closing.callback(closing)

    def close(self, *, abruptly: bool = False) -> None:
        """abruptly  do not wait for collectives in flight: peers that wait for this worker learn of its end at once"""
        self._abruptly = abruptly
        self._closing.close()
        self._store = None

    def requests(self, first: int) -> Iterator[Examples]:
        """What this worker reads in the present view, from step `first` to the run's end."""
        return self._requests(first, self.group.rank, self.group.world_size)

    def _requests(self, first: int, rank: int, world_size: int) -> Iterator[Examples]:
        config = self._config
        for index in range(first, config.plan.total_steps):
            plan = self.step_plan(index)
            for batch in deal(config, len(plan.sizes), world_size)[rank].batches:
                yield from micro_batches(config, plan, batch, world_size)

    def told_by_all(self, word: str | None) -> str | None:
        """The first rank's word among those that have one; all ranks call it and get the same. Raises PeerLost."""
        told = gather_bytes(self.group, (word or "").encode())
        return next((answer.decode() for answer in told if answer), None)

    def all_at(self, place: str, *, within_s: float) -> bool:
        """Whether every worker comes to `place` within `within_s`. Needs no collective: others may be in one."""
        if self._store is None:
            return True
        with suppress(RuntimeError):
            self._store.set(f"{place}/{self.group.rank}", "")
            deadline = time.monotonic() + within_s
            while time.monotonic() < deadline:
                if self._store.check([f"{place}/{rank}" for rank in range(self.group.world_size)]):
                    return True
                time.sleep(0.02)
        return False

    def what_others_do(self, doing: str, *, within_s: float) -> dict[int, str]:
        """rank -> what it says it was doing when its exchange failed, of those that say so in time."""
        said: dict[int, str] = {}
        if self._store is not None:
            with suppress(DistError):
                self._store.set(f"doing/{self.group.rank}", doing)
                deadline = time.monotonic() + within_s
                while len(said) < self.group.world_size and time.monotonic() < deadline:
                    for rank in set(range(self.group.world_size)) - said.keys():
                        if self._store.check([f"doing/{rank}"]):
                            said[rank] = self._store.get(f"doing/{rank}").decode()
                    time.sleep(0.02)
        return said

    def regroup(self, standing: Standing, word: Tree, *, at: str, lost: bool) -> Tree | None:
        """Leaves the view, and enters the next one with the same objects. Returns the word of those who stand ahead.

        word  what this rank has to tell those behind, beside the state
        at    where this worker stands; a newcomer is let in only if all survivors say BOUNDARY
        lost  a collective failed: the group is severed now, so that all others learn of it
        Raises PeerLost (try again), membership.live.RunEnded, StartFailed.
        """
        assert self.live is not None
        assert standing.step is not None
        if lost:
            self.group.sever()
        self.live.over(step=standing.step, at=at, lost=lost)
        told = self._enter(standing, word)
        self.exchange.close()
        self.exchange = Exchange(self._config, self.group)
        return told

    def _enter_first(self) -> None:
        """Into a view, with no state yet."""
        assert self.live is not None
        while True:
            try:
                self.word = self._enter(Standing(step=None), {})
                return
            except PeerLost:
                if self._grouped:
                    self.group.sever()
                self.live.over(step=-1, at=BOUNDARY, lost=True)
            except OtherIdentity as other:
                where = "the run that is under way"
                identities.check(self._identity, other.identity, accept=self._config.accept, where=where)
                self.live.ready(shares=self._config.plan.virtual_workers, identity=self._identity, accepted=True)

    def _enter(self, standing: Standing, word: Tree) -> Tree | None:
        assert self.live is not None
        launch, run = self._launch, self._run
        view, told = self.live.next_view(within_s=_VIEW_S)
        self._retire()
        self.view = view
        rank = view.rank_of(run.worker_id)
        run.placed(rank, view)
        self.progress.at(WAITING, generation=view.generation, step=standing.step or 0)
        self.events.context(rank=rank, world_size=view.world_size, generation=view.generation)
        self._observer.at("form", run)
        self._answers = (told["beacon"]["nonce"], told["beacon"]["endpoint"]) if told["beacon"] else None
        board = self.live.board()
        self.group = form(
            board,
            rank=rank,
            world_size=view.world_size,
            generation=view.generation,
            address=launch.address or ("127.0.0.1" if told["one_node"] else host_address(None)),
            device=self._config.device,
            timeout_s=self._config.timeout_s,
        )
        self._store = board
        self.live.on_broken = self.group.sever
        if self.live.is_broken():
            self.group.sever()
        self._formed()
        parts = roles(exchange_standings(self.group, standing))
        if parts is None:
            if standing.step is not None:
                raise StartFailed(
                    "every worker of this view failed inside an update, and none holds a whole state\n"
                    "  state  the newest checkpoint in storage is whole\n"
                    "  next   nothing: this worker ends, and the run goes on from storage"
                )
            self._start()
            return None
        self._observer.at("transfer", run)
        begun_s = time.monotonic()
        taken, state, received = pass_on(self.group, parts, word, self.survives.objects())
        if taken is not None:
            self.position = Position(**taken["position"])
            self._claimed = checkpoint.Claim.from_document(taken["claim"])
            self.claim = self._claimed.number
            self.events.context(claim=self.claim)
        if state is not None:
            self.survives.apply(state)
            self.events.emit("transfer", step=self.position.step, bytes=received, seconds=time.monotonic() - begun_s)
            self.events.emit(
                "loaded", step=self.position.step, epoch=self.position.epoch, from_claim=self.claim, accepted=[]
            )
        if rank == 0:
            self.take_the_pen()
        if self.saver is not None:
            self.saver.world_size = view.world_size
        return taken

    def _retire(self) -> None:
        """Ends the group of the view before, which takes gloo some 20 ms, beside the forming of the next one."""
        if self._grouped:
            group, self._grouped = self.group, False
            thread = threading.Thread(target=group.close, kwargs={"abruptly": True}, name="elastic-retire", daemon=True)
            thread.start()
            self._retired = [*(one for one in self._retired if one.is_alive()), thread]

    def _close_group(self) -> None:
        if self._grouped:
            self.group.close(abruptly=self._abruptly)
        for thread in self._retired:
            thread.join(timeout=_RETIRED_S)

    def claim_document(self) -> dict[str, object]:
        """The claim that the run writes under, for those who join."""
        assert self._claimed is not None
        return self._claimed.document()

    def take_the_pen(self) -> None:
        """This worker, coordinator or not, writes what is written from here on."""
        if self.saver is None:
            self._succeed()

    def _succeed(self) -> None:
        """This worker is the coordinator now; the one before it is gone, or has handed over."""
        assert self._claimed is not None
        self.saver = Saver(
            self._config, self._launch, self.survives, self._identity, self.events, self._console, self._answers
        )
        self._closing.callback(self.saver.close)
        if self._answers is not None and self._answers[0] == self._claimed.nonce:
            self.saver.adopt(self._claimed)
        else:
            self._claimed = self.saver.claim()

    def _join(self) -> None:
        launch, run = self._launch, self._run
        self._observer.at("form", run)
        meeting = meet(launch, run.worker_id, timeout_s=_RENDEZVOUS_S)
        self.view = meeting.view
        self._store = meeting.store  # rank 0 hosts it, so it must live as long as the group
        self.group = form(
            meeting.store,
            rank=launch.rank,
            world_size=launch.world_size,
            generation=run.generation,
            address="127.0.0.1" if launch.one_node else host_address(launch.master_addr),
            device=self._config.device,
            timeout_s=self._config.timeout_s,
        )
        self._formed()

    def _formed(self) -> None:
        self._grouped = True
        group = self.group
        shares = deal(self._config, self._config.plan.virtual_workers, group.world_size)[group.rank].shares
        self.events.emit("view_formed", workers=list(self.view.workers), shares=[shares.start, shares.stop])
        self._observer.at("formed", self._run)

    def _start(self) -> None:
        """Nobody in this view has a state: it comes from storage, or begins there."""
        self._agree_on(self._identity)
        tree, from_claim = self._claim_and_read(self._identity)
        self._check_that_storage_is_shared()
        self._receive(tree, from_claim)

    def _agree_on(self, identity: identities.Identity) -> None:
        """Every rank compares its own identity with rank 0's, and all learn of a difference."""
        theirs = json.loads(gather_bytes(self.group, json.dumps(identity).encode())[0])
        mismatch: IdentityMismatch | None = None
        try:
            identities.check(identity, theirs, accept=self._config.accept, where="rank 0")
        except IdentityMismatch as differing:
            mismatch = differing
        refusal = self.told_by_all(f"rank {self.group.rank}: {mismatch}" if mismatch is not None else None)
        if mismatch is not None:
            raise mismatch
        if refusal is not None:
            raise IdentityMismatch(refusal, {})

    def _claim_and_read(self, identity: identities.Identity) -> tuple[Tree | None, int | None]:
        """The state on the coordinator (None elsewhere), and the claim it was saved under (None: a new run)."""
        tree: Tree | None = None
        failure: Exception | None = None
        told: dict[str, object] = {}
        if self.group.rank == 0:
            try:
                tree, from_claim = self._coordinate(identity)
                assert self._claimed is not None
                claimed = self._claimed.document()
                told = {"claim": claimed, "from_claim": from_claim, "position": asdict(self.position)}
            except Exception as refused:
                failure = refused
                told = {"failure": f"{type(refused).__name__}: {refused}"}
        answer = json.loads(gather_bytes(self.group, json.dumps(told).encode())[0])
        if failure is not None:
            raise failure
        if "failure" in answer:
            raise StartFailed(f"rank 0 could not start the run\n{answer['failure']}")
        self._claimed = checkpoint.Claim.from_document(answer["claim"])
        self.claim = self._claimed.number
        self.position = Position(**answer["position"])
        self.events.context(claim=self.claim)
        return tree, answer["from_claim"]

    def _coordinate(self, identity: identities.Identity) -> tuple[Tree, int | None]:
        config = self._config
        if self.saver is None:
            self.saver = Saver(config, self._launch, self.survives, identity, self.events, self._console, self._answers)
            self._closing.callback(self.saver.close)
        self._observer.at("claim", self._run)
        self._claimed = self.saver.claim()
        self.claim = self._claimed.number
        self._observer.at("load", self._run)
        found = self.saver.read()
        if found is None:
            self._console.say(f"a new run in {self.saver.where}")
            self._observer.at("save", self._run)
            self.saver.save(self.position, must=True)
            self._observer.at("saved", self._run)
            return self.survives.objects(), None
        self.position, tree, from_claim = found
        total = config.plan.total_steps
        if self.position.stopped is not None or self.position.step >= total:
            why = f": {self.position.stopped}" if self.position.stopped is not None else ""
            self._console.say(f"{self.saver.where} is finished, with {self.position.step} steps applied{why}")
        else:
            self._console.say(
                f"goes on from step {self.position.step} of {total}, epoch {self.position.epoch}, of {self.saver.where}"
            )
        return tree, from_claim

    def _check_that_storage_is_shared(self) -> None:
        """One worker of every other node looks for the coordinator's claim. A folder that only one node has is a trap:
        when the coordinator comes to run on another node, the run begins anew there."""
        launch = self._launch
        if launch.one_node and self.live is None:
            return
        blind: str | None = None
        if launch.local_rank == 0 and self.group.rank != 0:
            options = self._config.storage_options or None
            with checkpoint.Checkpointer(self._config.url, storage_options=options) as storage:
                if storage.newest_claim() < self.claim:
                    blind = socket.gethostname()
        blind = self.told_by_all(blind)
        if blind is not None:
            self._console.say(
                f"{blind} does not see the claim that rank 0 wrote to {self._config.url}: the folder is not shared, "
                "and the run can go on only while its coordinator stays where it is; use shared or object storage"
            )

    def _receive(self, tree: Tree | None, from_claim: int | None) -> None:
        """From here on every rank holds the same bytes."""
        if from_claim is not None or self.group.world_size > 1:
            self.survives.apply(broadcast(self.group, tree))
        self.events.emit(
            "loaded",
            step=self.position.step,
            epoch=self.position.epoch,
            from_claim=from_claim,
            accepted=self.saver.accepted if self.saver is not None else [],
            digest=self.survives.weights_digest(),
        )

    def _interrupt(self) -> None:
        """For waits that a lost peer makes pointless. Raises PeerLost."""
        self.group.check()

    def _prepare(self) -> None:
        config = self._config
        self.exchange = Exchange(config, self.group)
        self._closing.callback(self.exchange.close)
        self.loader = Loader(
            config.dataset,
            seed=config.plan.seed,
            observer=self._observer,
            collate_fn=config.collate_fn,
            num_workers=config.num_workers,
            device=config.device,
            pin_memory=config.device.type == "cuda",
            timeout_s=config.timeout_s,
            interrupt=self._interrupt,
        )
        self._closing.callback(self.loader.close)
        if config.scaler is not None:
            config.scaler.scale(torch.zeros((), device=config.device))  # an idle rank needs its scale, too
        self.loader.open(self.requests(self.position.step))
