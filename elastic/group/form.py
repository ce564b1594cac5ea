"""A view's process group: gloo for CPU tensors, and NCCL beside it where gradients live on GPUs.

What fails in it fails as PeerLost, or as CollectiveFailed where no peer was lost. Groups are torch's backend classes
without the global default group, so that a process can leave one and join the next. Their constructors are not in
torch's documentation: this file calls gloo's and nccl.py NCCL's, and no other does. Checked against torch 2.13;
tests/processes/test_group.py notices a change.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from elastic.errors import CollectiveFailed, PeerLost
from elastic.group.hierarchy import hosts_of
from elastic.group.nccl import connect as connect_nccl
from elastic.group.sockets import connections, listening_ports
from elastic.group.watch import Watch
from elastic_checkpoint.forks import leave_garbage_to_parents

_ACCEPTED_S = 5.0
_OF_PEERS = re.compile(
    # gloo's transport, what aborting or a deadline does to it, and NCCL's words for the same
    r"gloo/transport|connection|connect|socket|timed out|timeout|closed|abort|broken|shut ?down|ncclRemoteError|"
    r"ncclSystemError|remote process exited",
    re.IGNORECASE,
)
_LOOK = timedelta(milliseconds=50)
_GPU_LOOK_S = 50e-6
_KNOWN_S = 2.0
_KNOWN_LOOK_S = 1e-3
_TAG = 0  # of what goes from one rank to another: gloo keeps these apart from collectives


class Work:
    """A collective in flight.

    aborted  for gloo, whether the group is: a collective that has not ended some time after that is given up (see
             watch.py). None: abort wakes whoever waits (NCCL)
    """

    def __init__(self, work: Any, what: str, aborted: Callable[[], bool] | None) -> None:
        self._work = work
        self._what = what
        self._aborted = aborted

    @property
    def arrived(self) -> bool:
        """Return whether `wait` need not wait: the result is there, or will not come."""
        return bool(self._work.is_completed())

    def wait(self) -> None:
        """Wait until the result is there. Raises PeerLost, CollectiveFailed."""
        given_up = False
        while not self._ended(_LOOK if self._aborted is not None else None):
            if given_up:
                raise PeerLost(f"the {self._what} did not end after a peer hung up", step=None, phase=self._what)
            given_up = self._aborted is not None and self._aborted()  # after one look more: it may be on its way

    def _ended(self, within: timedelta | None) -> bool:
        """Wait `within` a time, or for good, and return whether it has ended. Raises PeerLost, CollectiveFailed."""
        try:
            if within is None:
                self._work.wait()
            else:
                self._work.wait(within)
        except RuntimeError as failure:
            if within is None:
                aborted = self._aborted is not None and self._aborted()
                raise failed(self._what, failure, aborted=aborted) from failure
            return self._work.is_completed() and self._ended(None)  # failed, or ended a moment after the look
        return True


class Group(Protocol):
    """The collectives that a step needs. All return at once; `Work.wait` gives the result or PeerLost.

    hosts  the ranks of each host, neighbours; the same on all ranks
    """

    rank: int
    world_size: int
    hosts: tuple[range, ...]

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        """Sum over the ranks in place, in no fixed order."""

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], sizes: list[int]) -> Work:
        """Send `sizes[r]` elements of `tensor` to each rank r, and receive `out_sizes[r]` in `out` from it; 1-D."""

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Work:
        """Gather every rank's `tensor` (equal sizes, 1-D) in `out`, in rank order."""

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> Work:
        """Send the source's bytes to all, in place."""

    def send(self, tensor: torch.Tensor, to: int) -> Work:
        """Send the bytes of `tensor` to one rank that receives them; beside collectives, and in order.

        `tensor` is dense, on the CPU. `Work.wait` needs a thread of its own: it returns when all has left, or the
        group has broken, not sooner.
        """

    def receive(self, tensor: torch.Tensor, source: int) -> Work:
        """Receive what that rank sends: see `send`."""

    def settle(self) -> None:
        """Wait until a GPU has come so far: `Work.wait` only orders what comes after it there. Raises PeerLost."""

    def check(self) -> None:
        """Raise PeerLost if a peer is known to be gone: what was computed for this group is of no use."""

    def abort(self) -> None:
        """End the connections: collectives in flight fail at once, here and at the peers. From any thread."""

    def close(self, *, abruptly: bool = False) -> None:
        """End connections and threads. abruptly: what is in flight fails at once, here and at the peers."""


class LocalGroup:
    """The group of a worker on its own: nothing to exchange, nothing to lose."""

    rank = 0
    world_size = 1
    hosts: tuple[range, ...] = (range(1),)

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        return _DONE

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], sizes: list[int]) -> Work:
        out.copy_(tensor)
        return _DONE

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Work:
        out.copy_(tensor)
        return _DONE

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> Work:
        return _DONE

    def send(self, tensor: torch.Tensor, to: int) -> Work:
        return _DONE

    def receive(self, tensor: torch.Tensor, source: int) -> Work:
        return _DONE

    def settle(self) -> None:
        return

    def check(self) -> None:
        return

    def abort(self) -> None:
        return

    def close(self, *, abruptly: bool = False) -> None:
        return


class _Done:
    def wait(self) -> None:
        return

    def is_completed(self) -> bool:
        return True


_DONE = Work(_Done(), "nothing", None)


class DistributedGroup:
    """The group of two workers or more. It aborts itself as soon as one of its connections ends."""

    def __init__(
        self,
        gloo: Any,
        nccl: Any | None,
        rank: int,
        hosts: tuple[range, ...],
        connections: Sequence[socket.socket],  # copies of the sockets that gloo opened, one per peer
        *,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self.rank = rank
        self.world_size = hosts[-1].stop
        self.hosts = hosts
        self._device = device
        self._timeout_s = timeout_s
        self._gloo = gloo
        self._nccl = nccl
        self._aborted = False
        self._watch = Watch(connections, self._peer_hung_up)

    def all_reduce(self, tensor: torch.Tensor) -> Work:
        return self._start("all-reduce", tensor, "allreduce", [tensor])

    def all_to_all(self, out: torch.Tensor, tensor: torch.Tensor, out_sizes: list[int], sizes: list[int]) -> Work:
        return self._start("all-to-all", tensor, "alltoall_base", out, tensor, out_sizes, sizes)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Work:
        return self._start("all-gather", tensor, "_allgather_base", out, tensor)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> Work:
        return self._start("broadcast", tensor, "broadcast", tensor, source)

    def send(self, tensor: torch.Tensor, to: int) -> Work:
        return self._start_between_two("send", tensor, to)

    def receive(self, tensor: torch.Tensor, source: int) -> Work:
        return self._start_between_two("recv", tensor, source)

    def settle(self) -> None:
        if self._device.type != "cuda":
            return
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self._device))
        deadline = time.monotonic() + self._timeout_s
        while not done.query():  # a synchronize would wait for a dead peer's part, and for ever
            self.check()
            if time.monotonic() > deadline:
                self.abort()
                what = f"what was started on {self._device} did not end within {self._timeout_s:g} s"
                raise PeerLost(what, step=None, phase="exchange")
            time.sleep(_GPU_LOOK_S)
        self.check()  # a collective that was aborted has left anything, and says nothing

    def check(self) -> None:
        if self._aborted:
            raise PeerLost("a peer hung up", step=None, phase="group")

    def abort(self) -> None:
        self._aborted = True
        self._watch.abort()
        nccl = self._nccl  # another thread may be closing the group
        if nccl is not None:
            nccl.abort()

    def close(self, *, abruptly: bool = False) -> None:
        if abruptly:  # gloo would wait for what is in flight, until its deadline
            self.abort()
        self._watch.close()
        for backend in (self._nccl, self._gloo):
            if backend is not None:
                backend.shutdown()
        self._nccl = self._gloo = None  # gloo ends its threads and connections when the last reference goes

    def _is_aborted(self) -> bool:
        return self._aborted

    def _peer_hung_up(self) -> None:
        """Remember that a peer is gone; the watch ends gloo's connections by itself."""
        self._aborted = True
        if self._nccl is not None:
            self._nccl.abort()

    def _start(self, what: str, tensor: torch.Tensor, method: str, *arguments: Any) -> Work:
        """Start a collective of the tensor's backend. Raises PeerLost where the group is aborted or closed."""
        # The backend has no name here: a traceback would keep it, and whoever forgets that last would wait for gloo's
        # end (20 ms; where a message was torn in half, for good), which is the affair of the thread that closes it.
        if self._aborted or self._backend(tensor) is None:
            why = "the group is closed" if self._backend(tensor) is None else "a peer hung up"
            raise PeerLost(f"the {what} cannot start: {why}", step=None, phase=what)
        try:
            aborted = None if tensor.is_cuda and self._nccl is not None else self._is_aborted
            return Work(getattr(self._backend(tensor), method)(*arguments), what, aborted)
        except RuntimeError as failure:
            raise failed(what, failure, aborted=self._aborted) from failure

    def _start_between_two(self, method: str, tensor: torch.Tensor, other: int) -> Work:
        """Start what goes from one rank to another. Raises PeerLost where the group is aborted or closed."""
        if self._aborted or self._gloo is None:
            raise PeerLost("the transfer cannot start: a peer hung up", step=None, phase="transfer")
        try:
            # without looks: one at gloo's own work for these would break its connections
            return Work(getattr(self._gloo, method)([tensor], other, _TAG), "transfer", None)
        except RuntimeError as failure:
            raise failed("transfer", failure, aborted=self._aborted) from failure

    def _backend(self, tensor: torch.Tensor) -> Any:
        return self._nccl if tensor.is_cuda and self._nccl is not None else self._gloo


def form(
    store: Store | None,
    *,
    rank: int,
    world_size: int,
    generation: int,
    address: str | None,
    device: torch.device,
    timeout_s: float,
    broken: Callable[[], bool] | None = None,
) -> Group:
    """Connect the ranks of a view over `store`, each listening on the interface that holds `address`.

    address    ranks that listen on the same one are on one host
    timeout_s  for the forming and for every collective
    broken     whether the view is known to be: then the forming ends, whatever it waits for
    Raises PeerLost when the ranks cannot all be connected; what the store raises in a wait ends the forming, too.
    """
    if world_size == 1:
        return LocalGroup()
    assert store is not None
    forming = _Forming(store, rank, world_size, f"generation/{generation}", address, device, timeout_s)
    if broken is None:
        forming.run()
    else:
        # gloo waits for a peer that died between two of its steps until the deadline, and nothing wakes it: such a
        # forming is left to itself, in its own thread.
        threading.Thread(target=forming.run, name="elastic-forming", daemon=True).start()
        while not forming.done.wait(_LOOK.total_seconds()):
            if broken():
                raise PeerLost("a peer was lost while the group was formed", step=None, phase="forming of the group")
    return forming.group()


class _Forming:
    """The forming of one group, which may be left to itself in a thread of its own."""

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        prefix: str,
        address: str | None,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._prefix = prefix
        self._address = address
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._made: DistributedGroup | None = None
        self._failure: RuntimeError | PeerLost | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._made = self._connect()
        except (RuntimeError, PeerLost) as failure:
            self._failure = failure
        self.done.set()

    def group(self) -> DistributedGroup:
        """Return the group, once the forming is over. Raises PeerLost."""
        if isinstance(self._failure, PeerLost):
            raise self._failure
        if self._failure is not None:
            raise failed("forming of the group", self._failure, aborted=True) from self._failure
        assert self._made is not None
        return self._made

    def _connect(self) -> DistributedGroup:
        """Connect gloo, and NCCL on GPUs, and find the connections that are the group's own."""
        store, rank, world_size, prefix = self._store, self._rank, self._world_size, self._prefix
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        before = listening_ports()
        options._devices = [
            ProcessGroupGloo.create_device(hostname=self._address)
            if self._address
            else ProcessGroupGloo.create_default_device()
        ]
        own_ports = listening_ports() - before  # those that gloo has opened for this group
        options._timeout = self._timeout
        leave_garbage_to_parents()  # a forked child that collected a broken gloo group would crash
        gloo = ProcessGroupGloo(PrefixStore(f"{prefix}/gloo", store), rank, world_size, options)
        own_gpus: Any = None
        if self._device.type == "cuda":
            own_gpus = connect_nccl(store, prefix, rank, world_size, self._device, self._timeout)
        # A rank whose peer dies here would wait for a connection that nobody makes: only when all are through it is a
        # group, and from then on the watch sees every loss.
        store.set(f"{prefix}/formed/{rank}", " ".join([self._address or "here", *map(str, own_ports)]))
        store.wait([f"{prefix}/formed/{other}" for other in range(world_size)], self._timeout)
        known = [store.get(f"{prefix}/formed/{other}").decode().split() for other in range(world_size)]
        hosts = hosts_of([address for address, *_ in known])
        peer_ports = {int(port) for other, (_, *ports) in enumerate(known) if other != rank for port in ports}
        found = _connections(own_ports, peer_ports, world_size - 1)
        timeout_s = self._timeout.total_seconds()
        return DistributedGroup(gloo, own_gpus, rank, hosts, found, device=self._device, timeout_s=timeout_s)


def _connections(own_ports: set[int], peer_ports: set[int], peers: int) -> list[socket.socket]:
    """Return one connection per peer, waiting a moment for the last ones to be accepted. Raises PeerLost."""
    deadline = time.monotonic() + _ACCEPTED_S
    while True:
        found = connections(own_ports, peer_ports)
        if len(found) >= peers or not own_ports:
            return found
        for connection in found:
            connection.close()
        if time.monotonic() > deadline:
            raise PeerLost("a peer was lost while the group was formed", step=None, phase="forming of the group")
        time.sleep(0.001)


def gather_bytes(group: Group, data: bytes) -> list[bytes]:
    """Return every rank's bytes, in rank order; lengths may differ. Takes two rounds. Raises PeerLost."""
    sizes = torch.empty(group.world_size, dtype=torch.int64)
    group.all_gather(sizes, torch.tensor([len(data)])).wait()
    longest = int(sizes.max())
    if longest == 0:
        return [b""] * group.world_size
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else mine[:0]
    everyones = torch.empty(group.world_size * longest, dtype=torch.uint8)
    group.all_gather(everyones, mine).wait()
    rows: Sequence[torch.Tensor] = everyones.view(group.world_size, longest).unbind()
    return [bytes(row[: int(size)].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]


def all_know(group: Group) -> None:
    """Wait until all ranks have come here. All call it before an error that all of them raise.

    The first to know of it ends the group, and results go from rank to rank: it would hang up on those that are still
    getting them. One that computes, or reads, for longer than 2 s is not waited for: gloo's own threads have got the
    result for it by then.
    """
    with suppress(PeerLost):  # then somebody knew, and has ended the group
        rows, row = torch.empty(group.world_size, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
        work = group.all_gather(rows, row)
        deadline = time.monotonic() + _KNOWN_S
        while not work.arrived and time.monotonic() < deadline:
            time.sleep(_KNOWN_LOOK_S)


def failed(what: str, failure: RuntimeError, *, aborted: bool) -> PeerLost | CollectiveFailed:
    """Return what a collective's RuntimeError says: a peer is gone or silent, or something is wrong with the tensors.

    aborted  a peer hung up: then whatever failed did so for that
    """
    # gloo's messages begin with a place in its source and end with general advice; between them lies what happened.
    text = str(failure).strip()
    happened = re.sub(r"^\[[^]]*\.cc:\d+\]\s*", "", text.splitlines()[0]) if text else type(failure).__name__
    happened = happened.partition(". This is typically")[0]
    if aborted or _OF_PEERS.search(text):
        return PeerLost(f"the {what} failed: {happened}", step=None, phase=what)
    return CollectiveFailed(
        f"the {what} failed, and no peer was lost: {happened}\n"
        "  state  nothing was applied since the last step\n"
        "  next   look at the shapes, types and devices of what is exchanged: gradients, buffers, sums"
    )
