"""The store of torch's rendezvous, at one of the hosts that --rdzv-endpoint names.

    one host      whoever starts first on it hosts the store, and the others wait for it
    several       they are tried in turn, again and again, and the first that answers has it. Where none does, the first
                  of them hosts it, and the others do some seconds later: they may be all that there is

A host that is named and did not come to host the store opens one all the same once it has met the others, and leaves in
it where it is itself: so a run is found at each of them, whichever is left. Nobody meets there.

A store that is here has a process of its own (store_host.py); this one is a client of it, as everybody is.

Of torch 2.13: `create_backend` is public. `TCPStore.clone`, since a client that one thread waits with is blocked for
all, is not documented.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from elastic.errors import ConfigError
from elastic.launch.net import addresses
from elastic.launch.rendezvous.store_host import StoreHost

DEFAULT_PORT = 29400  # torchrun's
_POLL_S = 0.1
_PROBE_S = 1.0  # for one of several hosts to answer
SILENT_S = 3.0  # so long a store may not answer: a lease, as of a hub (hub/rules.py)
_FIRST_S = 5.0  # so long the first of several hosts is waited for before another one hosts the store


@dataclass(frozen=True)
class RendezvousEndpoints:
    """What --rdzv-endpoint names.

    hosts  HOST:PORT each, in order; one that is empty stands for this machine
    url    of the run
    """

    hosts: tuple[str, ...]
    url: str | None


def rendezvous_endpoints(endpoint: str) -> RendezvousEndpoints:
    """Return what --rdzv-endpoint names: hosts, and the run's URL or folder, with commas. Raises ConfigError."""
    parts = [part.strip() for part in endpoint.split(",") if part.strip()]
    urls = [part for part in parts if addresses.is_url(part)]
    if len(urls) > 1:
        raise ConfigError(f"--rdzv-endpoint takes one or more HOST:PORT and one URL of the run, found {endpoint}")
    hosts = tuple(dict.fromkeys(part for part in parts if part not in urls))
    for host in hosts:
        try:
            parse_rendezvous_endpoint(host, DEFAULT_PORT)
        except ValueError as wrong:
            raise ConfigError(
                f"--rdzv-endpoint {endpoint}: {wrong}\n  state  nothing was started\n"
                "  next   name HOST or HOST:PORT, or the run's URL, or a folder that begins with /, ./ or ~/"
            ) from wrong
    return RendezvousEndpoints(hosts or (() if urls else ("",)), urls[0] if urls else None)


class StoreSilent(DistError):
    """A store does not answer, nor does its machine say that nobody is there."""


class PatientStore:
    """A client of the store whose calls come back, with what torch gives, or after SILENT_S with StoreSilent.

    torch 2.13 waits without an end for a machine that is cut off or without power. From then on each call raises that
    at once. For one thread at a time.
    """

    def __init__(self, store: Any) -> None:
        """Connect to the same store, which may take torch a while. Raises DistError."""
        self._store = store.clone()
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._is_silent = False
        weakref.finalize(self, self._asked.put, None)
        threading.Thread(target=_answer, args=[self._asked, self._answers], name="elastic-look", daemon=True).start()

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask(lambda: self._store.check(keys)))

    def get(self, key: str) -> bytes:
        return bytes(self._ask(lambda: self._store.get(key)))

    def set(self, key: str, value: str) -> None:
        self._ask(lambda: self._store.set(key, value))

    def compare_set(self, key: str, expected: Any, value: str) -> bytes:
        return bytes(self._ask(lambda: self._store.compare_set(key, expected, value)))

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return what a call in the other thread gives. Raises what it raises, and StoreSilent."""
        if not self._is_silent:
            self._asked.put(call)
            with contextlib.suppress(queue.Empty):
                answer = self._answers.get(timeout=SILENT_S)
                if isinstance(answer, Exception):
                    raise answer
                return answer
        self._is_silent = True
        raise StoreSilent(f"it has said nothing for {SILENT_S:g} s")


def _answer(asked: queue.SimpleQueue[Callable[[], Any] | None], answers: queue.SimpleQueue[Any]) -> None:
    """Make the calls that are asked for, until None comes."""
    while (call := asked.get()) is not None:
        try:
            answers.put(call())
        except Exception as failure:
            answers.put(failure)
        del call  # it holds the store


@dataclass(frozen=True)
class FoundStore:
    """A store that is found; looking: a client of it for looks, while others wait with `store`."""

    endpoint: str
    params: RendezvousParameters
    backend: Any
    store: Any
    looking: PatientStore


class StoreSearch:
    """A search for the store at the named hosts, in a thread of its own: torch waits for one within its own calls.

    found     once it is
    error     what no further try helps against
    failures  by host, of the last try
    """

    def __init__(self, hosts: Sequence[str], params: Callable[[str], RendezvousParameters], stores: StoreHost) -> None:
        self.found: FoundStore | None = None
        self.error: Exception | None = None
        self.failures: dict[str, object] = {}
        self._hosts = hosts
        self._params = params
        self._stores = stores
        self._stopping = threading.Event()
        threading.Thread(target=self._run, name="elastic-store", daemon=True).start()

    def take(self) -> FoundStore | None:
        """Return the store, once it is found."""
        return self.found

    def end(self) -> None:
        """End the search. A call of torch that has begun is left to itself."""
        self._stopping.set()

    def _run(self) -> None:
        began_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                for endpoint, is_there in self._candidates(time.monotonic() - began_s):
                    if self._tries(endpoint, is_there=is_there):
                        return
                self._stopping.wait(_POLL_S)
        except Exception as error:
            self.error = error

    def _candidates(self, waited_s: float) -> list[tuple[str, bool]]:
        """Return the hosts to try now, and whether a store is known to be there already."""
        if len(self._hosts) == 1:
            return [(self._hosts[0], False)]
        there = [endpoint for endpoint in self._hosts if self._is_open(endpoint)]
        if there:
            return [(endpoint, True) for endpoint in there]
        may_host = self._hosts if waited_s > _FIRST_S else self._hosts[:1]
        return [(endpoint, False) for endpoint in may_host if is_here(endpoint)]

    def _is_open(self, endpoint: str) -> bool:
        try:
            probe(endpoint)
        except OSError as failure:
            self.failures[endpoint] = failure
            return False
        return True

    def _tries(self, endpoint: str, *, is_there: bool) -> bool:
        """Return whether the store at this host was found, or could be opened."""
        params = self._params(endpoint)
        try:
            self.found = connected(params if is_there else _hosted(params, self._stores))
        except (RendezvousError, DistError, OSError) as failure:  # TCPStore waits by itself, and now and then gives up
            self.failures[endpoint] = failure.__cause__ or failure
            return False
        return True


def leave_word(hosts: Sequence[str], stores: StoreHost, key: str, where: Mapping[str, Any]) -> None:
    """Have the stores at this machine say where this node's agent is: one at each of these hosts that is here.

    A store that is open already says so, should it be opened anew.
    """
    word = json.dumps(dict(where))
    stores.remember(key, word)
    for endpoint in hosts if len(hosts) > 1 else ():
        if is_here(endpoint):
            with contextlib.suppress(OSError):  # another node of this machine has
                port = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)[1]
                stores.open(range(port, port + 1), {key: word})


def probe(endpoint: str) -> None:
    """Raise OSError where nobody listens."""
    socket.create_connection(parse_rendezvous_endpoint(endpoint, DEFAULT_PORT), timeout=_PROBE_S).close()


def connected(params: RendezvousParameters) -> FoundStore:
    """Connect to the store there. Raises RendezvousError, DistError."""
    backend, store = create_backend(with_config(params, is_host=0))
    return FoundStore(params.endpoint, params, backend, store, PatientStore(store))


def _hosted(params: RendezvousParameters, stores: StoreHost) -> RendezvousParameters:
    """Open the store, if it is here and none is open. Raises OSError where it has to be here, and cannot be."""
    must = params.get_as_bool("is_host")
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    if must or (must is None and is_here(params.endpoint)):  # torch knows not all addresses that a machine has
        try:
            params.endpoint = in_words(host, stores.open(range(port, port + 1)))
        except OSError:  # another node of this machine hosts it, or this one does
            if must and not stores.hosts(port):
                raise
    return params


def in_words(host: str, port: int) -> str:
    """Return an address as an endpoint is written."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_here(endpoint: str) -> bool:
    return addresses.is_own(parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)[0])


def with_config(params: RendezvousParameters, **config: Any) -> RendezvousParameters:
    known = {**params.config, **config}
    return RendezvousParameters(
        params.backend, params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, **known
    )
