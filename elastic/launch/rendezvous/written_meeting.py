"""The place where the first nodes of a run meet when all that they know is its URL: a store that one opens.

    elastic/meetings/000001.json   {"host", "port", "nonce"}   created exclusively; the highest number counts

    there is none, or its store   this node opens one, and writes the next number; of several that do, the storage lets
    is gone, or silent for 3 s    one win, and the others meet there
    it answers                    this node meets the others there

Promises  what answers there is the store that was written of, by its nonce: a port may be somebody else's by now.
          Where a run had a hub, nobody opens a store, or a round at one, before that was silent for 30 s: it may be
          moving. A node that finds the hub meanwhile says at its store that nobody meets there any more.
Leaves    a run that is under way to hub/written_lookup.py, which looks at the same time. Two sides of a cut network
          may meet apart: the run's claims let one of them go on, as always.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters

from elastic.errors import ConfigError
from elastic.launch.rendezvous.store import SILENT_S, FoundStore, connected
from elastic.launch.rendezvous.store import in_words as endpoint_of
from elastic.launch.rendezvous.store_host import StoreHost
from elastic.membership.written_hub import hub_in
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.storage import AlreadyThere, Missing, Storage, TooLarge, get_bounded, open_storage

FOLDER = "elastic/meetings"
_NAME = re.compile(rf"{FOLDER}/(\d{{6,}})\.json", re.ASCII)
_NONCE = "elastic/meeting"  # in the store
_BYTES_MAX = 1 << 12
_RETRY_S = 10.0
_POLL_S = 0.5
_PROBE_S, _ANSWER_S = 1.0, 5.0  # for a connection, and for a store's first word
_GONE_S = 1.0  # the same where its machine says that nobody is there: what has ended does not come back to that port
MOVING_S = 30.0  # so long a run's hub may not: a lease, the next one's beginning, and a step of those who form a view


class MeetingSearch:
    """A search for that store, in a thread of its own, for storages take their time.

    address       this node's
    ports         that it may listen at; None: any
    stores        that are here
    hub_silent_s  for how long the hub that is written at the URL has not answered; None: none is written
    error         what no further try helps against
    failures      by place, of the last try
    """

    def __init__(
        self,
        url: str,
        address: str,
        ports: range | None,
        params: Callable[[str], RendezvousParameters],
        stores: StoreHost,
        hub_silent_s: Callable[[], float | None],
    ) -> None:
        self.error: Exception | None = None
        self.failures: dict[str, object] = {}
        self._url = url
        self._address = address
        self._ports = ports
        self._params = params
        self._stores = stores
        self._port: int | None = None  # of the store that was opened here
        self._hub_silent_s = hub_silent_s
        self._found: FoundStore | None = None
        self._number, self._nonce = 0, ""  # of the meeting that was found
        self._taken = self._superseded = self._was_read = False
        self._probe: _StoreOf | None = None
        self._silent: tuple[int, float, float] | None = None  # which meeting's store, since when, and how long it may
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-meeting", daemon=True)
        self._thread.start()

    def take(self) -> FoundStore | None:
        """Return the store, once it is found."""
        self._taken |= self._found is not None
        return self._found

    def may_begin(self) -> bool:
        """Return whether a round may begin: a hub that is written there may be moving."""
        hub_silent_s = self._hub_silent_s()
        return hub_silent_s is None or hub_silent_s > MOVING_S

    def is_over(self, store: Any) -> bool:
        """Return whether the others meet elsewhere by now: they could not reach this node, or the run has a hub.

        store  the one that was found, for the caller's thread. Raises DistError.
        """
        return self._superseded or store.get(_NONCE) != self._nonce.encode()

    def say_over(self, store: Any) -> None:
        """Say in this store, which lives on, that nobody is to meet there: this node has found the run's hub."""
        self._stores.remember(_NONCE, "")
        with contextlib.suppress(DistError):
            store.set(_NONCE, "")

    def end(self) -> None:
        """End the search. A look that has begun is left to itself."""
        self._stopping.set()

    def leave(self) -> None:
        """End the search, as this node meets elsewhere or looks again."""
        self.end()
        if self._superseded:
            self._close()

    def settle(self) -> None:
        """Wait for the thread before this process ends, which would abort if one were within torch's code."""
        self.end()
        self._thread.join(_PROBE_S + _ANSWER_S)

    def _run(self) -> None:
        """Search; then see, while nodes meet here, whether another meeting has superseded this one."""
        try:
            with contextlib.closing(open_storage(self._url, retry_s=_RETRY_S)) as storage:
                while not self._stopping.is_set() and not self._meets(storage):
                    self._stopping.wait(_POLL_S)
                while not self._stopping.is_set() and not self._superseded:
                    if not self._stopping.wait(SILENT_S):
                        self._superseded = self._is_superseded(storage)
        except Exception as error:
            self.error = error
        finally:
            if not self._taken:
                self._found = None
                self._close()

    def _close(self) -> None:
        """Close the store that was opened here, so that nobody meets there any more."""
        if self._port is not None:
            self._stores.close_one(self._port)
            self._port = None

    def _meets(self, storage: Storage) -> bool:
        """Return whether a store was found, or opened here. Raises ConfigError."""
        is_read = False
        try:
            number, where = newest_meeting(storage)
            is_read = self._was_read = True
            if where is not None and (joined := self._joined(number, where)) is not None:
                self._number, self._nonce, self._found = number, where["nonce"], joined
                return True
            if where is not None and not self._is_gone(number):
                return False
            return self.may_begin() and self._opens(storage, number + 1)
        except CheckpointError as failure:
            if self._was_read and not (is_read and self._can_read(storage)):  # it was there before, and may be again
                self.failures[self._url] = failure
                return False
            raise ConfigError(
                f"the nodes cannot meet by the run's storage: {failure}\n"
                "  state  this node has not joined, and nothing was started here\n"
                "  next   look at the URL in --rdzv-endpoint and at its credentials on this node, which has to write "
                "there; or name a host, too: --rdzv-endpoint=HOST:PORT,URL"
            ) from failure

    def _can_read(self, storage: Storage) -> bool:
        with contextlib.suppress(CheckpointError):
            newest_meeting(storage)
            return True
        return False

    def _is_superseded(self, storage: Storage) -> bool:
        """Return whether a store of a later meeting answers."""
        with contextlib.suppress(CheckpointError):
            number, where = newest_meeting(storage)
            return number > self._number and where is not None and self._joined(number, where) is not None
        return False

    def _joined(self, number: int, where: dict[str, Any]) -> FoundStore | None:
        """Return the store of a meeting; None: not yet, or never."""
        endpoint = endpoint_of(where["host"], where["port"])
        try:
            socket.create_connection((where["host"], where["port"]), timeout=_PROBE_S).close()
            if self._probe is None or self._probe.number != number or self._probe.is_over:
                self._probe = _StoreOf(number, self._params(endpoint), where["nonce"])
            found = self._probe.take(_POLL_S)
        except (OSError, RendezvousError, DistError, ValueError) as failure:  # the last: no name of a host
            self.failures[endpoint] = failure.__cause__ or failure
            may_be_s = _GONE_S if isinstance(failure, ConnectionRefusedError) else SILENT_S
            is_known = self._silent is not None and self._silent[0] == number
            since_s = self._silent[1] if is_known and self._silent is not None else time.monotonic()
            self._silent = number, since_s, may_be_s
            return None
        self._silent = None
        return found

    def _is_gone(self, number: int) -> bool:
        """Return whether that meeting's store has not answered for long enough to count as gone."""
        if self._silent is None or self._silent[0] != number:
            return False
        return time.monotonic() - self._silent[1] > self._silent[2]

    def _opens(self, storage: Storage, number: int) -> bool:
        """Open a store, and write where; return whether the meeting is this node's. Raises ConfigError."""
        if not storage.exclusive():
            raise ConfigError(
                f"{storage.url} lets two nodes create the same object, so they could meet in two places\n"
                "  state  this node has not joined, and nothing was started here\n"
                "  next   name the host at which they meet, too: --rdzv-endpoint=HOST:PORT,URL"
            )
        nonce = secrets.token_hex(16)
        self._port = port = self._opened(nonce)
        endpoint = endpoint_of(self._address, port)
        try:
            found = connected(self._params(endpoint))
            found.store.get(_NONCE)  # it is there by now
            if not self._stopping.is_set():
                written = {"host": self._address, "port": port, "nonce": nonce}
                storage.put_new(f"{FOLDER}/{number:06}.json", json.dumps(written).encode())
                self._number, self._nonce, self._found = number, nonce, found
                return True
        except (RendezvousError, DistError) as failure:  # somebody has filled it already
            self.failures[endpoint] = failure.__cause__ or failure
        except AlreadyThere:
            pass
        self._close()
        return False

    def _opened(self, nonce: str) -> int:
        """Open a store, and return its port. Raises ConfigError where none is free."""
        try:
            return self._stores.open(self._ports, {_NONCE: nonce})
        except OSError as refused:
            if self._ports is None:
                raise
            raise ConfigError(
                f"--port-range: no port of {self._address} is free for the rendezvous' store: {refused}\n"
                "  state  this node has not joined, and nothing was started here\n"
                "  next   end what listens there, or name more: a node takes three"
            ) from refused


class _StoreOf:
    """A client of the store at this place, if it is theirs who wrote this nonce.

    It connects in a thread of its own: what listens there may be no store at all, and torch 2.13 waits for a server's
    first word without an end.
    """

    def __init__(self, number: int, params: RendezvousParameters, nonce: str) -> None:
        self.number = number
        self.is_over = False
        self._until_s = time.monotonic() + _ANSWER_S
        self._found: FoundStore | None = None
        self._failure: Exception = TimeoutError("what listens there is no rendezvous' store")
        self._thread = threading.Thread(target=self._connect, args=[params, nonce], name="elastic-store", daemon=True)
        self._thread.start()

    def take(self, within_s: float) -> FoundStore | None:
        """Return the store; None: it may answer yet. Raises OSError, RendezvousError, DistError, ValueError."""
        self._thread.join(within_s)
        self.is_over = not self._thread.is_alive()
        if self._found is None and (self.is_over or time.monotonic() > self._until_s):
            raise self._failure
        return self._found

    def _connect(self, params: RendezvousParameters, nonce: str) -> None:
        try:
            found = connected(params)
            if not (found.store.check([_NONCE]) and found.store.get(_NONCE) == nonce.encode()):
                raise ConnectionError("another run has a store there")
            self._found = found
        except (OSError, RendezvousError, DistError, ValueError) as failure:
            self._failure = failure


def newest_meeting(storage: Storage) -> tuple[int, dict[str, Any] | None]:
    """Return the newest meeting's number, 0 where there is none, and what it says; None: nothing of the kind."""
    newest = max((int(name[1]) for key in storage.list(FOLDER) if (name := _NAME.fullmatch(key))), default=0)
    with contextlib.suppress(Missing, TooLarge):
        return newest, hub_in(get_bounded(storage, f"{FOLDER}/{newest:06}.json", _BYTES_MAX)) if newest else None
    return newest, None
