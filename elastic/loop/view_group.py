"""The view that a worker is in, its rank there, and the group that it shares with the others.

Under torchrun, or alone, a process is in one view from its start to its end (`join`). Under `elastic run` it goes
from view to view (`enter`), and the group of the one before ends in the background, for gloo takes some 20 ms.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch.distributed import DistError, PrefixStore, Store

from elastic.events import schema
from elastic.events.event import ABSENT
from elastic.group.form import Group, LocalGroup, form, gather_bytes
from elastic.loop.assignment import assign_shares
from elastic.loop.context import Context
from elastic.membership.progress import Phase
from elastic.membership.view import View
from elastic.membership.worker.rendezvous import AtUrl, meet
from elastic_checkpoint.net.machine import address_for_others
from elastic_checkpoint.net.secret import secret_of_run, without_secret

_RENDEZVOUS_S = 300.0
_OPEN = without_secret(
    "several hosts",
    "whoever reaches the ports of ranks that save together can stop their saves",
    give_to="all ranks",
)
_RETIRED_S, _RETIRED_ABRUPTLY_S = 5.0, 0.2


class ViewGroup:
    """This worker's place in the present view, and the process group that it forms with the others.

    rank, world_size, generation  of this worker's present view; before the first one what the launcher said, and 0
    liveness                        (nonce, endpoint) of what answers for the run: the agent of its hub then; None:
                                  nobody does
    claim  that the run writes under, as the hub knows it
    nodes  of each worker
    across  the group of the workers at this one's place in all replicas; `group`, where a replica is of one worker
    witness, begun_elsewhere, unanswered  see NewView
    """

    view: View
    group: Group
    across: Group

    def __init__(self, context: Context) -> None:
        self._context = context
        self.rank = context.launch.rank
        self.world_size = context.launch.world_size
        self.generation = 0
        self._store: Store | None = None
        self._grouped = False
        self._short_s = 0.0
        self._not_lost: list[str] = []
        self._retired: list[threading.Thread] = []
        self.liveness: tuple[str, dict[str, object]] | None = None
        self.claim: dict[str, Any] | None = None
        self.nodes: list[str] = []
        self.witness = self.begun_elsewhere = self.unanswered = False

    def join(self) -> None:
        """Form the one view of this process. Raises RendezvousTimeout, PeerLost."""
        launch = self._context.launch
        if launch.rank == 0 and not launch.one_node and secret_of_run() is None:
            self._context.console.warn(_OPEN)
        self._context.moment("form")
        config = self._context.config
        at_url = partial(AtUrl, config.url, config.storage_options or {}, launch.job)
        meeting = meet(launch, self._context.worker_id, timeout_s=_RENDEZVOUS_S, at_url=at_url)
        self._form(
            meeting.view,
            launch.rank,
            meeting.store,  # rank 0 hosts it, so it must live as long as the group
            "127.0.0.1" if launch.one_node else address_for_others(launch.master_addr),
        )

    def enter(self, *, step: int) -> None:
        """Enter the next view. Raises PeerLost (say "view_is_over", try again), and what Live.wait_for_view raises."""
        context, live = self._context, self._context.live
        assert live is not None
        view, details = live.wait_for_view(within_s=math.inf)  # the hub ends a run that waits too long, and names whom
        self._short_s, self._not_lost = details.short_s, details.not_lost
        self._retire()
        before = self.view if self.generation else None
        rank = view.rank_of(context.worker_id)
        self.rank, self.world_size, self.generation = rank, view.world_size, view.generation
        context.console.quiet = rank != 0  # but for bad news
        context.progress.at(Phase.WAITING, generation=view.generation, step=step)
        context.events.context(
            rank=rank,
            world_size=view.world_size,
            generation=view.generation,
            replica=context.launch.replica or None,
        )
        context.moment("form")
        self.claim, self.nodes = details.claim, details.nodes
        self.witness, self.begun_elsewhere = details.witness, details.begun_elsewhere
        self.unanswered = details.unanswered
        self.liveness = (details.liveness["nonce"], details.liveness["endpoint"]) if details.liveness else None
        address = context.launch.address or ("127.0.0.1" if details.one_node else address_for_others(None))
        self._form(view, rank, live.board(), address)
        if rank == 0:
            self._tell_faults(details.gone, before)
        live.on_broken = self.abort
        if live.is_broken():  # before anybody listened
            self.abort()

    def stay_out(self) -> None:
        """Stay in no view, and alone, of a run that others are past."""
        self._context.console.quiet = True
        # Rank -1, as torch calls it, so that nothing is printed or written twice.
        self.rank, self.world_size, self.group = -1, 1, LocalGroup()
        self.across = self.group
        self.view = View(generation=self.generation, workers=(self._context.worker_id,))

    def abort(self) -> None:
        """Shut the groups down, which are of no use any more; all others learn of it at once."""
        if self._grouped:
            for group in self._groups():
                group.abort()

    def first_answer(self, answer: str | None) -> str | None:
        """Return the answer of the first rank that has one; all ranks call it and get the same. Raises PeerLost."""
        answers = gather_bytes(self.group, (answer or "").encode())
        return next((one.decode() for one in answers if one), None)

    def what_others_do(self, doing: str, *, within_s: float) -> dict[int, str]:
        """Return rank -> what it says it was doing when its exchange failed, of those that say so in time."""
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

    def close(self, *, abruptly: bool) -> None:
        """Leave the group; abruptly: wait for no collective in flight, so that peers that wait learn of it at once."""
        self._retire(abruptly=abruptly)  # not here: gloo may not let go of a collective that failed
        # Survivors wait for the end of one that raised: it must not wait for messages that were torn in two (10 s, in 1
        # of 30 exceptions).
        deadline = time.monotonic() + (_RETIRED_ABRUPTLY_S if abruptly else _RETIRED_S)
        for thread in self._retired:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        self._store = None

    def _form(self, view: View, rank: int, store: Store | None, address: str) -> None:
        """Form the group of a view, and record that."""
        config, live = self._context.config, self._context.live
        self.view = view
        self._store = store
        make = partial(
            form,
            generation=view.generation,
            address=address,
            device=config.device,
            timeout_s=config.compute.timeout_s,
            broken=live.is_broken if live is not None else None,
        )
        self.group = self.across = make(store, rank=rank, world_size=view.world_size)
        if (size := config.replica_size) > 1:
            replicas, place = view.world_size // size, rank % size
            self._grouped = True  # the first is there, and is closed if the second cannot be formed
            between = PrefixStore(f"place {place}", store) if store is not None and replicas > 1 else None
            self.across = make(between, rank=rank // size, world_size=replicas)
        self._grouped = True
        shares = assign_shares(config, config.plan.virtual_workers, view.world_size)[rank].shares
        self._context.events.emit(
            schema.ViewFormed(
                workers=list(view.workers),
                shares=[shares.start, shares.stop],
                replica_size=size if size > 1 else ABSENT,
                idle_s=self._short_s or ABSENT,
                not_lost=self._not_lost or ABSENT,
            )
        )
        self._context.moment("formed")

    def _groups(self) -> list[Group]:
        return [self.group] if self.across is self.group else [self.group, self.across]

    def _tell_faults(self, gone: Sequence[Mapping[str, Any]], before: View | None) -> None:
        """Record what the agents know of those who are gone since the last view, the one `before`."""
        events = self._context.events
        for one in gone:
            lost, step = one["worker"], one["step"]
            replica = ABSENT
            if before is not None and before.replica_size > 1 and lost in before.workers:
                replica = before.rank_of(lost) // before.replica_size
            events.emit(
                schema.FaultDetected(lost=lost, cause=one["cause"], of_replica=replica, died_t=one["t"], step=step)
            )
            if one["stuck_s"] is not None:
                events.emit(schema.Hang(lost=lost, step=step, stuck_s=one["stuck_s"]))

    def _retire(self, *, abruptly: bool = True) -> None:
        """Close the group in a thread of its own, if there is one."""
        if self._grouped:
            self._grouped = False
            ends = [
                threading.Thread(target=one.close, kwargs={"abruptly": abruptly}, name="elastic-retire", daemon=True)
                for one in self._groups()
            ]
            for end in ends:
                end.start()
            self._retired = [*(one for one in self._retired if one.is_alive()), *ends]
