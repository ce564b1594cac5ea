"""Brings the ranks that torchrun started into one view over a store of their own, or says who is missing.

    rank 0 hosts a fresh store  ->  publishes its address  ->  the others connect, confirm that the world
    size is theirs and their rank is free, and leave their worker id  ->  rank 0 withdraws the address, says go

torchrun's own store is used for nothing but that address. It outlives a round of workers and keeps the
keys of the dead one's groups, and its restart count is one agent's and not the job's; a group that is
formed there may try to reach the dead (half of the jobs that lost a worker never came back: measured,
torch 2.13). A worker of an older round that comes to a newer store finds its rank taken or the world
size changed, and looks for another address until its deadline.

Every wait has a deadline, and its error lists the silent ranks.
"""

from __future__ import annotations

import json
import math
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistError, Store, TCPStore

from elastic.errors import RendezvousTimeout
from elastic.membership.environment import Launch
from elastic.membership.view import View
from elastic_checkpoint.net.listener import listen
from elastic_checkpoint.net.machine import host_address

_PUBLISHED = "elastic/endpoint"
_ANY = ""
_POLL_S = 0.01
_CONNECT_S = 5.0
_REFUSED_S = 5.0
"""How long torchrun's store may refuse connections. It listens before any worker starts, so then it is gone: a worker
that was still importing when its torchrun was killed would look for it until the deadline, and nobody would end it."""
_STORE_S = 12.0
"""TCPStore asks for its peer's name in reverse DNS when it connects, and an unanswered question takes the resolver 5 to
10 s (one connection in 26, on a machine whose name server loses some: measured, 2026-11-21). The connection is good
then, unless its deadline was shorter: hence this one, and no more connections than needed. A longer one would be spent
on a store that closes while it is being connected to."""


@dataclass(frozen=True)
class Meeting:
    """A view and the store that its workers share; `store` is None for a worker on its own."""

    view: View
    store: Store | None


def meet(launch: Launch, worker_id: str, *, timeout_s: float) -> Meeting:
    """The view of the ranks of `launch`. Raises RendezvousTimeout after `timeout_s`."""
    if launch.world_size == 1:
        return Meeting(View(generation=0, workers=(worker_id,)), None)
    deadline = time.monotonic() + timeout_s
    if launch.rank == 0:
        return _host(launch, worker_id, deadline, timeout_s)
    agent = _agent_store(launch, deadline)
    while True:
        meeting = _join(launch, worker_id, deadline, agent)
        if meeting is not None:
            return meeting
        if time.monotonic() > deadline:
            raise RendezvousTimeout(
                f"rank {launch.rank} of {launch.world_size} found no rank 0 within {timeout_s:.0f} s\n"
                f"  looked   at {launch.master_addr}:{launch.master_port}, from {socket.gethostname()}\n"
                "  missing  rank 0, or a way to it: its port may be closed between these machines\n"
                "  next     look at rank 0's log; the launcher restarts this worker if it may",
                missing=[0],
            )
        time.sleep(_POLL_S * 5)


def _host(launch: Launch, worker_id: str, deadline: float, timeout_s: float) -> Meeting:
    assert launch.master_port is not None
    address = "127.0.0.1" if launch.one_node else host_address(launch.master_addr)
    if launch.agent_hosts_store:
        store = _listen(address, 0, deadline, timeout_s)  # where the others are told to look
    else:
        store = _listen(_ANY, launch.master_port, deadline, timeout_s)  # what MASTER_ADDR means to them is theirs
    store.set("meta", json.dumps({"nonce": uuid.uuid4().hex, "world_size": launch.world_size}))
    store.set("worker/0", worker_id)
    agent = _agent_store(launch, deadline)
    if agent is not None:
        agent.set(_PUBLISHED, json.dumps({"address": address, "port": store.port}))
    ranks = range(1, launch.world_size)
    while not store.check([f"worker/{rank}" for rank in ranks]):
        if time.monotonic() > deadline:
            missing = [rank for rank in ranks if not store.check([f"worker/{rank}"])]
            raise RendezvousTimeout(
                f"{launch.world_size - len(missing)} of {launch.world_size} ranks arrived within {timeout_s:.0f} s\n"
                f"  missing  rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}\n"
                "  next     look at their logs; the launcher restarts this worker if it may",
                missing=missing,
            )
        time.sleep(_POLL_S)
    if agent is not None:  # all are in: whoever looks from now on is of another round
        agent.delete_key(_PUBLISHED)
    store.set("go", "")
    return Meeting(_view(store, launch.world_size), store)


def _join(launch: Launch, worker_id: str, deadline: float, agent: Store | None) -> Meeting | None:
    """One try. None: what is published there is not (or no longer) the rank 0 that waits for this worker."""
    try:
        endpoint = _endpoint(launch, agent)
        if endpoint is None:
            return None
        address, port = endpoint
        socket.create_connection((address, port), timeout=_CONNECT_S).close()  # quiet, unlike TCPStore's own attempts
        store = TCPStore(address, port, is_master=False, timeout=_time_left(deadline, _STORE_S), wait_for_workers=False)
        while not store.check(["meta"]):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        same_world = json.loads(store.get("meta"))["world_size"] == launch.world_size
        if not same_world or store.add(f"taken/{launch.rank}", 1) != 1:
            return None
        store.set(f"worker/{launch.rank}", worker_id)
        while not store.check(["go"]):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return Meeting(_view(store, launch.world_size), store)
    except (DistError, OSError):
        return None  # the host of an older round, gone or going


def _agent_store(launch: Launch, deadline: float) -> Store | None:
    """The store of torchrun's agent; None where it has none."""
    assert launch.master_addr is not None
    assert launch.master_port is not None
    if not launch.agent_hosts_store:
        return None
    begun = time.monotonic()
    while True:
        try:
            socket.create_connection((launch.master_addr, launch.master_port), timeout=_CONNECT_S).close()
            return TCPStore(
                launch.master_addr,
                launch.master_port,
                is_master=False,
                timeout=_time_left(deadline),
                wait_for_workers=False,
            )
        except (DistError, OSError) as failure:
            now = time.monotonic()
            if now > deadline or (isinstance(failure, ConnectionRefusedError) and now > begun + _REFUSED_S):
                raise RendezvousTimeout(
                    f"rank {launch.rank} reached no store of torchrun's agent within {now - begun:.0f} s: {failure}\n"
                    f"  looked  at {launch.master_addr}:{launch.master_port}, from {socket.gethostname()}\n"
                    "  next    look at the first node's torchrun, and whether its port is open between these machines",
                    missing=[],
                ) from failure
            time.sleep(_POLL_S * 5)


def _endpoint(launch: Launch, agent: Store | None) -> tuple[str, int] | None:
    if agent is None:
        assert launch.master_addr is not None
        assert launch.master_port is not None
        return launch.master_addr, launch.master_port
    if not agent.check([_PUBLISHED]):
        return None
    published = json.loads(agent.get(_PUBLISHED))
    return published["address"], published["port"]


def _listen(address: str, port: int, deadline: float, timeout_s: float) -> TCPStore:
    """A store on a socket of ours: TCPStore's own may listen on IPv6 alone."""
    while True:
        try:
            listener = listen(address, range(port, port + 1), backlog=2048)
            break
        except OSError as taken:  # the rank 0 of the round before may still be closing its own
            if time.monotonic() > deadline:
                raise RendezvousTimeout(
                    f"rank 0 could not listen on port {port} within {timeout_s:.0f} s: {taken}\n"
                    "  next  choose another --master-port, or end the process that listens there",
                    missing=[],
                ) from taken
            time.sleep(_POLL_S)
    port = listener.getsockname()[1]
    return TCPStore(
        "127.0.0.1" if address == _ANY else address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_time_left(deadline, _STORE_S),
        master_listen_fd=listener.detach(),  # the store owns it from here
    )


def _view(store: Store, world_size: int) -> View:
    return View(generation=0, workers=tuple(store.get(f"worker/{rank}").decode() for rank in range(world_size)))


def _time_left(deadline: float, most_s: float = math.inf) -> timedelta:
    return timedelta(seconds=min(most_s, max(1.0, deadline - time.monotonic())))
