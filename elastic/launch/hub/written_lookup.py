"""Where is the run's hub, by what somebody wrote of it a while ago? Whoever was it then is asked, and says where to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.membership.messages.messages import TO_AGENT, HubIs, Refusal, WhereIsTheHub, as_message, parse
from elastic.membership.messages.wire import LINE_MAX, encode
from elastic.version import __version__
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.codec import WORD
from elastic_checkpoint.net.dialing import Address, ask, connected
from elastic_checkpoint.net.secret import TransportError
from elastic_checkpoint.net.transport import client_side

_CONNECT_S = _ANSWER_S = 5.0
_LOOK_S = 1.0
_HUB_IS = as_message(HubIs())[WORD]
_REFUSED_S = 5.0  # so long a hub may be written there that is somebody else's by now


class HubLookup:
    """Asks whoever is written as the hub where the hub is now.

    own      where this agent listens: it may be written there, and is not asked
    refused  who was found there has had another secret than this node, for a while
    nobody_there  no connection is taken where that is written
    other_version  who was found there is of the run, and of another elastic-exact than this node: where, and which
    """

    def __init__(self, secret: str | None, own: Address) -> None:
        self._secret = secret
        self._own = own
        self._unreachable: dict[str, str] = {}
        self._refused: tuple[str, float] | None = None  # where, and since when
        self.other_version: tuple[str, str | None] | None = None
        self.nobody_there = False

    @property
    def refuses(self) -> bool:
        """Return whether who was asked last has another secret."""
        return self._refused is not None

    @property
    def refused(self) -> bool:
        """Return whether it has had another secret for so long that it is no accident."""
        return self._refused is not None and time.monotonic() - self._refused[1] > _REFUSED_S

    def unreachable(self, title: str) -> str:
        """Return why no hub was reached, a line for each address."""
        return "".join(f"  {title}{where} {why}\n" for where, why in self._unreachable.items())

    def connect(self, hub: Mapping[str, Any] | None) -> socket.socket | None:
        """Connect to the hub of now by way of the one that is written; None: none is, or see `unreachable`."""
        if hub is None:
            self._refused = None
            return None
        self.nobody_there = False
        at = hub["host"], hub["port"]
        where = f"{at[0]}:{at[1]}"
        if at == self._own:
            self._unreachable[where] = "is this agent's own address, which another one had"
            return None
        try:
            found = self._ask(at, hub["nonce"])
            self._refused = None
            if isinstance(found, _OtherVersion):
                its = found.version or "that does not say its version"
                self._unreachable[where] = f"has an elastic-exact {its}, and this node has {__version__}"
                self.other_version = (where, found.version) if found.knows_hub else None
                return None
            self.other_version = None
            if isinstance(found, HubIs) and found.address is not None and (found.address, found.port) != self._own:
                return connected((found.address, found.port), _CONNECT_S)
            knows_none = "is no hub, and knows of none"
            self._unreachable[where] = f"refuses: {found.why}" if isinstance(found, Refusal) else knows_none
        except TransportError as refused:
            self._unreachable[where] = f"is not joined: {refused}"
            if self._refused is None or self._refused[0] != where:
                self._refused = where, time.monotonic()
        except (OSError, ValueError) as failure:  # the latter: no message, or no name of a host
            self._unreachable[where] = f"does not answer: {failure}"
            self._refused = None
        return None

    def _ask(self, at: Address, nonce: str) -> HubIs | Refusal | _OtherVersion | None:
        """Return what the agent at this address says of the hub."""
        question = encode(as_message(WhereIsTheHub(run=nonce)))
        try:
            sock = connected(at, _CONNECT_S)
        except OSError:
            self.nobody_there = True
            raise
        said = ask(sock, client_side(self._secret), question, time.monotonic() + _ANSWER_S, longest=LINE_MAX)
        said.pop("to", None)
        if said.get(WORD) == _HUB_IS and (theirs := said.get("version")) != __version__:
            return _OtherVersion(theirs if isinstance(theirs, str) else None, said.get("address") is not None)
        found = parse(TO_AGENT, said)
        return found if isinstance(found, HubIs | Refusal) else None


@dataclass(frozen=True)
class _OtherVersion:
    """An answer of another elastic-exact; version: None: it did not say yet; knows_hub: else it may be about to end."""

    version: str | None
    knows_hub: bool


class LookupByUrl:
    """Looks for the hub by what its agent or the coordinator has written at the run's URL (membership/hub_file.py).

    It looks once a second, in a thread of its own: the hub may be moving, and who was it last may be gone or silent.

    found    the connection, and the nonce of the run
    failure  why the storage cannot be read, where it could not be so far
    looked   at least once
    """

    def __init__(self, url: str, secret: str | None, own: Address) -> None:
        self.found: tuple[socket.socket, str] | None = None
        self.failure: Exception | None = None
        self.looked = threading.Event()
        self.hubs = HubLookup(secret, own)
        self.url = url
        self._was_read = False
        self._looked_at: tuple[Any, float] | None = None  # who is written there, and since when
        self._silent_s: float | None = None
        self._stopping = threading.Event()
        threading.Thread(target=self._run, name="elastic-url", daemon=True).start()

    def silent_s(self) -> float | None:
        """Return for how long looks at the hub that is written there have failed; None: none is written."""
        return self._silent_s

    def end(self) -> None:
        """End the search, but for what was found. A look that has begun is left to itself."""
        self._stopping.set()

    def _run(self) -> None:
        """Read and ask until the hub is found, or the storage cannot be read."""
        from elastic.membership import hub_file  # which loads fsspec

        while not self._stopping.is_set():
            try:
                written = hub_file.read(self.url)
                self._was_read = True
                self._looks_at(written)
                connected = self.hubs.connect(written)
                if connected is None and self._looked_at is not None:
                    self._silent_s = time.monotonic() - self._looked_at[1]
                if connected is not None and written is not None:
                    self.found = connected, written["nonce"]
                    if self._stopping.is_set():
                        connected.close()
                    return
            except CheckpointError as failure:
                if not self._was_read:
                    self.failure = failure
                    return
            except (ImportError, ValueError) as failure:  # of fsspec: no storage has such a URL, or not here
                self.failure = failure
                return
            finally:
                self.looked.set()
            self._stopping.wait(_LOOK_S)

    def _looks_at(self, written: Mapping[str, Any] | None) -> None:
        """Note since when this hub is written there."""
        if written is None:
            self._looked_at = self._silent_s = None
        elif self._looked_at is None or self._looked_at[0] != written:
            self._looked_at, self._silent_s = (written, time.monotonic()), 0.0


class BackgroundLookup:
    """Asks again and again, in a thread, until somebody says where the hub is; found: a connection to it."""

    def __init__(self, find: Callable[[], socket.socket | None]) -> None:
        self.found: socket.socket | None = None
        self._find = find
        self._stopping = threading.Event()
        threading.Thread(target=self._run, name="elastic-hub-search", daemon=True).start()

    def end(self) -> None:
        """End the search, and close what was found. A question that is being asked is left to itself."""
        self._stopping.set()
        if self.found is not None:
            self.found.close()

    def take(self) -> socket.socket | None:
        """Return what was found, to whoever asks first."""
        if (found := self.found) is not None:  # the search may find it between two lines of this
            self.found = None
        return found

    def _run(self) -> None:
        while not self._stopping.is_set():
            found = self._find()
            if found is not None:
                self.found = found
                if self._stopping.is_set():
                    found.close()
                return
            self._stopping.wait(_LOOK_S)
