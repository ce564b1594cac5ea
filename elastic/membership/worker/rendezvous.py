"""Brings the ranks that a launcher started into one view over a store of their own, or says who is missing.

    rank 0 hosts a fresh store  ->  publishes its address  ->  the others connect, confirm that the world
    size is theirs and their rank is free, and leave their worker id  ->  rank 0 withdraws the address, says go

The address is published in the store of torchrun's agent, or, where the launcher says of no place (`srun`, mpiexec),
beside the run's checkpoints:

    elastic/ranks/<launch>.json   {"address", "port"}   of rank 0, while its ranks meet

torchrun's own store is used for nothing but that address. It outlives a round of workers and keeps the
keys of the dead one's groups, and its restart count is one agent's and not the job's; a group that is
formed there may try to reach the dead (half of the jobs that lost a worker never came back: measured,
torch 2.13).

Every wait has a deadline, and its error lists the silent ranks.
"""

from __future__ import annotations

import json
import math
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from torch.distributed import DistError, Store, TCPStore

from elastic.errors import RendezvousTimeout
from elastic.membership.environment import Launch
from elastic.membership.view import View
from elastic_checkpoint.net.machine import address_for_others
from elastic_checkpoint.net.port import listen
from elastic_checkpoint.storage import Missing, TooLarge, get_bounded, open_storage, redact

_PUBLISHED = "elastic/endpoint"
_FOLDER = "elastic/ranks"
_NO_NAME = re.compile(r"[^\w.-]")
_BYTES_MAX = 1 << 12
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


class Place(Protocol):
    """A place where rank 0 says at what address the others find it; poll_s: between two looks."""

    poll_s: float

    def publish(self, address: str, port: int) -> None: ...

    def look(self) -> tuple[str, int] | None:
        """Return the address that is published; None: there is none now."""

    def withdraw(self) -> None:
        """Take the address back, as all are in: whoever looks from now on is of another round."""

    def __str__(self) -> str:
        """Return it in words, after "at"."""


class _AtMaster:
    """MASTER_ADDR and MASTER_PORT, where rank 0 itself listens."""

    poll_s = 5 * _POLL_S

    def __init__(self, address: str, port: int) -> None:
        self._address = address, port

    def publish(self, address: str, port: int) -> None:
        pass

    def look(self) -> tuple[str, int] | None:
        return self._address

    def withdraw(self) -> None:
        pass

    def __str__(self) -> str:
        return "{}:{}".format(*self._address)


class _AtAgent(_AtMaster):
    """The same, where torchrun's agent listens; all raise DistError."""

    def __init__(self, address: str, port: int, store: Store) -> None:
        super().__init__(address, port)
        self._store = store

    def publish(self, address: str, port: int) -> None:
        self._store.set(_PUBLISHED, json.dumps({"address": address, "port": port}))

    def look(self) -> tuple[str, int] | None:
        if not self._store.check([_PUBLISHED]):
            return None
        return _address(self._store.get(_PUBLISHED))

    def withdraw(self) -> None:
        self._store.delete_key(_PUBLISHED)


class AtUrl:
    """A place beside the run's checkpoints; all raise StorageError. launch: its name, where it has one."""

    poll_s = 0.3

    def __init__(self, url: str, options: Mapping[str, Any], launch: str | None) -> None:
        self._url = url
        self._storage = open_storage(url, dict(options))
        self._key = f"{_FOLDER}/{_NO_NAME.sub('-', launch or 'ranks')}.json"

    def publish(self, address: str, port: int) -> None:
        self._storage.put(self._key, json.dumps({"address": address, "port": port}).encode())

    def look(self) -> tuple[str, int] | None:
        with suppress(Missing, TooLarge, ValueError, KeyError, TypeError):
            return _address(get_bounded(self._storage, self._key, _BYTES_MAX))
        return None

    def withdraw(self) -> None:
        self._storage.delete(self._key)

    def close(self) -> None:
        self._storage.close()

    def __str__(self) -> str:
        return redact(self._url)


def meet(launch: Launch, worker_id: str, *, timeout_s: float, at_url: Callable[[], AtUrl] | None = None) -> Meeting:
    """Return the view of the ranks of `launch`; at_url: where they meet if the launcher says of no place.

    Raises RendezvousTimeout after `timeout_s`; StorageError.
    """
    if launch.world_size == 1:
        return Meeting(View(generation=0, workers=(worker_id,)), None)
    deadline = time.monotonic() + timeout_s
    if launch.master_addr is None:
        assert at_url is not None
        with closing(at_url()) as place:
            return _meet(launch, worker_id, place, deadline, timeout_s)
    return _meet(launch, worker_id, None, deadline, timeout_s)


def _meet(launch: Launch, worker_id: str, place: Place | None, deadline: float, timeout_s: float) -> Meeting:
    """Host the meeting as rank 0, or look for it until the deadline. Raises RendezvousTimeout."""
    if launch.rank == 0:
        return _host(launch, worker_id, place, deadline, timeout_s)
    place = place or _torchruns(launch, deadline)
    while True:
        meeting = _join(launch, worker_id, deadline, place)
        if meeting is not None:
            return meeting
        if time.monotonic() > deadline:
            raise RendezvousTimeout(
                f"rank {launch.rank} of {launch.world_size} found no rank 0 within {timeout_s:.0f} s\n"
                f"  looked   at {place}, from {socket.gethostname()}\n"
                "  missing  rank 0, or a way to it: its port may be closed between these machines, or they share no "
                "folder\n"
                "  next     look at rank 0's log; the launcher restarts this worker if it may",
                missing=[0],
            )
        time.sleep(place.poll_s)


def _host(launch: Launch, worker_id: str, place: Place | None, deadline: float, timeout_s: float) -> Meeting:
    """Publish the address of a store, and wait for all ranks there. Raises RendezvousTimeout."""
    address = "127.0.0.1" if launch.one_node else address_for_others(launch.master_addr)
    if launch.agent_hosts_store or launch.master_port is None:
        store = _listen(address, 0, deadline, timeout_s)  # where the others are told to look
    else:
        store = _listen(_ANY, launch.master_port, deadline, timeout_s)  # what MASTER_ADDR means to them is theirs
    store.set("meta", json.dumps({"nonce": uuid.uuid4().hex, "world_size": launch.world_size}))
    store.set("worker/0", worker_id)
    place = place or _torchruns(launch, deadline)
    place.publish(address, store.port)
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
    place.withdraw()
    store.set("go", "")
    return Meeting(_view(store, launch.world_size), store)


def _join(launch: Launch, worker_id: str, deadline: float, place: Place) -> Meeting | None:
    """Try once; None: what is published there is not (or no longer) the rank 0 that waits for this worker."""
    try:
        endpoint = place.look()
        if endpoint is None:
            return None
        address, port = endpoint
        socket.create_connection((address, port), timeout=_CONNECT_S).close()  # quiet, unlike TCPStore's own attempts
        store = TCPStore(address, port, is_master=False, timeout=_time_left(deadline, _STORE_S), wait_for_workers=False)
        while not store.check(["meta"]):
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        # who comes from an older round finds its rank taken or the world size changed, and looks for another address
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
        return None  # the host of an older round, gone or going: the next one writes over its address


def _torchruns(launch: Launch, deadline: float) -> Place:
    """Return the place that torchrun says, or whoever sets its variables. Raises RendezvousTimeout."""
    assert launch.master_addr is not None
    assert launch.master_port is not None
    if not launch.agent_hosts_store:
        return _AtMaster(launch.master_addr, launch.master_port)
    begun = time.monotonic()
    while True:
        try:
            socket.create_connection((launch.master_addr, launch.master_port), timeout=_CONNECT_S).close()
            store = TCPStore(
                launch.master_addr,
                launch.master_port,
                is_master=False,
                timeout=_time_left(deadline),
                wait_for_workers=False,
            )
            return _AtAgent(launch.master_addr, launch.master_port, store)
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


def _address(published: bytes) -> tuple[str, int]:
    found = json.loads(published)
    return str(found["address"]), int(found["port"])


def _listen(address: str, port: int, deadline: float, timeout_s: float) -> TCPStore:
    """Return a store on a socket of ours: TCPStore's own may listen on IPv6 alone. Raises RendezvousTimeout."""
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
