"""The agent that has the run's hub says so at the hosts where nodes meet, again and again.

A host that was lost and comes back opens an empty store, and by the same command would wait there for others, who have
met long ago.

    elastic/RUN_ID/hub   {"host", "port", "nonce"}   in the rendezvous' store of each host that --rdzv-endpoint names

Promises  what another run with the same id has written there stays.
          Where two agents took themselves for the hub, the word of the one that is stays in the end: it looks again.
          A run that is over takes its word back: in a store that outlives it the next run would wait for its hub. At
          the run's URL it says that it is over.
Leaves    to meeting.py, that such a node looks there until it meets others; and those who meet by the run's URL, who
          read there where the hub is.

Of torch 2.13: a client waits without an end for the first word of what listens there and is no store. Hence a thread.
`compare_set` takes bytes, which is not documented: what anybody has written there may be no text.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, Store, TCPStore
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from elastic.launch.rendezvous.store import DEFAULT_PORT
from elastic.membership.written_hub import hub_in
from elastic_checkpoint.net.connection import keep_alive

_LOOK_S = 0.25  # well within the last call of a round that one node may complete alone
# at a store that has been told: one that was the hub before, on another side of a cut, may have told it, too
_AGAIN_S = 5.0
_CONNECT_S = 1.0
_WITHDRAW_S = 10.0  # a client of torch's store may take seconds to connect on a busy machine
_STORE_S = 12.0  # see elastic/membership/worker/rendezvous.py


class HubAnnouncement:
    """What this node's agent writes at the places of meeting while it has the hub.

    hosts  HOST:PORT each; one that is empty stands for this machine
    key    in the store
    hub    where this node's agent listens, and the nonce of its run
    url    of the run; None: nobody looks there
    at_url  what is written there counts: it is not another run's
    """

    def __init__(
        self, hosts: Sequence[str], key: str, hub: Mapping[str, Any], url: str | None = None, *, at_url: bool = True
    ) -> None:
        self._endpoints = [parse_rendezvous_endpoint(host, DEFAULT_PORT) for host in hosts]
        self._key = key
        self._hub = hub
        self._url = url
        self._at_url = at_url
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._is_over = False
        self._threads: list[threading.Thread] = []
        # what listens there; it may never answer
        self._asks = {endpoint: threading.Lock() for endpoint in self._endpoints}

    def begin(self, *, first: bool = False) -> None:
        """Begin to say that this node has the hub, in a thread for each host.

        first  there was no view yet, so that no coordinator writes at the URL where the hub is
        """
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._keep_saying, args=[endpoint, self._ended], name="elastic-announce", daemon=True
            )
            for endpoint in self._endpoints
        ]
        if first and self._url is not None and self._at_url:
            self._threads.append(threading.Thread(target=self._write, name="elastic-announce", daemon=True))
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Say it no more: another node has the hub, or nobody. A look that has begun is left to itself."""
        self._ended.set()

    def withdraw(self, *, everywhere: bool) -> None:
        """Take it back, as the run is over: stores that answer within _WITHDRAW_S forget its hub.

        everywhere  nobody may be going on with it on another side of a cut, so its URL says that it is over
        """
        self._is_over = True
        self._ended.set()
        if everywhere and self._url is not None:
            self._threads.append(threading.Thread(target=self._say_over, name="elastic-announce", daemon=True))
            self._threads[-1].start()
        deadline = time.monotonic() + _WITHDRAW_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _write(self) -> None:
        """Write at the run's URL where the hub is."""
        from elastic.membership import hub_file  # which loads fsspec

        with self._writing, contextlib.suppress(Exception):  # fsspec raises what it likes; the coordinator writes later
            hub_file.write(self._url or "", None, {name: self._hub[name] for name in ("host", "port", "nonce")})

    def _say_over(self) -> None:
        """Write at the run's URL that the run is over."""
        from elastic.membership import hub_file

        with self._writing, contextlib.suppress(Exception):  # whoever comes next waits a while
            hub_file.write_end(self._url or "", self._hub["nonce"])

    def _keep_saying(self, endpoint: tuple[str, int], ended: threading.Event) -> None:
        """Say it at this host whenever a store is there, until that ends; then take it back, if the run is over."""
        is_there = True  # as far as is known
        while not ended.is_set():
            wait_s, is_there = _LOOK_S, False
            try:
                with socket.create_connection(endpoint, timeout=_CONNECT_S) as there:
                    is_there = True
                    keep_alive(there)
                    self._say(endpoint, ended)
                    _wait_for_end(there, ended, _AGAIN_S)
            except socket.gaierror:
                wait_s = _AGAIN_S  # a name that stands for nothing yet: those who know names are asked less often
            except (OSError, DistError):
                pass
            ended.wait(wait_s)
        if self._is_over and is_there:  # whatever was said last, or before this thread's first look
            with contextlib.suppress(OSError, DistError), socket.create_connection(endpoint, timeout=_CONNECT_S):
                self._say(endpoint, ended)

    def _say(self, endpoint: tuple[str, int], ended: threading.Event) -> None:
        """Write in the store that the hub is here; or, once the run is over, take that back."""
        if not self._asks[endpoint].acquire(timeout=_LOOK_S):
            return
        try:
            timeout = timedelta(seconds=_STORE_S)
            store = TCPStore(*endpoint, is_master=False, timeout=timeout, wait_for_workers=False)
            if self._is_over:
                take_back(store, self._key, self._hub)
            elif not ended.is_set():
                write_hub(store, self._key, self._hub)
        finally:
            self._asks[endpoint].release()


def write_hub(store: Store, key: str, hub: Mapping[str, Any]) -> None:
    """Write where the hub is, unless another run's is there. Raises DistError."""
    said = store.get(key) if store.check([key]) else b""
    before = hub_in(said)
    if before is None or (before["nonce"] == hub["nonce"] and before != hub):
        replace_hub(store, key, said, hub)


def replace_hub(store: Store, key: str, said: bytes, hub: Mapping[str, Any]) -> bool:
    """Write the hub if `said`, empty for nothing, is still there; return whether it was. Raises DistError."""
    new = json.dumps(dict(hub))
    return bool(store.compare_set(key, said, new) == new.encode())  # type: ignore[arg-type]


def take_back(store: Store, key: str, hub: Mapping[str, Any]) -> None:
    """Remove the hub, unless somebody else is written there meanwhile. Raises DistError."""
    store.compare_set(key, json.dumps(dict(hub)), "")


def _wait_for_end(connection: socket.socket, ended: threading.Event, within_s: float) -> None:
    """Wait until the store there ends, for `within_s` at most. Raises OSError, where it ends so."""
    connection.settimeout(_LOOK_S)  # a store says nothing to one who asks nothing
    deadline = time.monotonic() + within_s
    while not ended.is_set() and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            connection.recv(1)  # its end, or the word of what is no store
            return
