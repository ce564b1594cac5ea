"""Is the holder of a claim alive? It listens on a port; whoever connects gets one JSON line: {"nonce", "job"}.

    right nonce                                                alive
    on this boot: its process has ended; its port on our own
    loopback is refused, or somebody else's by now             gone, for certain
    every one of its addresses refuses, from elsewhere         refused: it is gone, or a firewall says so
    silence, no route                                          unknown: a stopped process, a lost host, a firewall

The endpoint lies in the claim. A newcomer asks over loopback where it is on the same boot and in the same network
namespace (containers share the boot, but not the loopback), else at the advertised addresses. Those of a bridge, such
as Docker's 172.17.0.1, are on many machines, and there are firewalls that refuse: what another address says is no
proof, however sure it sounds. A forked child closes the listener at once, so the port dies with the holder.

Where the holder's run has a secret, the question is asked and answered by TLS, with the claim's nonce as the secret of
both: whoever may read the claim may ask, the next run too, whose own secret is another one by then; and nobody else can
ask, answer, or learn anything. Whoever says something is hung up on.

The claim of a run on several machines names the endpoint of the first one's agent. When that machine leaves, the run
goes on under the same claim, and another agent answers for it, which is written beside the claim:

    claims/00000007.beacon   {"nonce", "endpoint"}, as in the claim; written anew each time that it moves

It only adds somebody who may say "alive": a claim is free where all who are named are gone. So nothing rests on its
being the newest word, and a claim that names its own newest endpoint needs none.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.errors import CorruptCheckpoint
from elastic_checkpoint.format.hashing import seal, unseal
from elastic_checkpoint.format.names import liveness_key
from elastic_checkpoint.net.codec import NotAMessage, encode
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.dialing import ask as ask_for
from elastic_checkpoint.net.dialing import connected
from elastic_checkpoint.net.machine import (
    boot_id,
    network_namespace,
    only_near,
    own_addresses,
    pid_namespace,
    started_at,
)
from elastic_checkpoint.net.port import PortThread
from elastic_checkpoint.net.secret import TransportError, secret_of_run
from elastic_checkpoint.net.transport import Transport, client_side
from elastic_checkpoint.storage import Missing, Storage, TooLarge, get_bounded

_BACKLOG = 16
_LINE_MAX = 4096
_NEAR_S = 2.0  # an answer over the loopback, from a process that may be swapped out


@dataclass(frozen=True)
class Alive:
    """Somebody answered with the right nonce."""

    job: str | None


@dataclass(frozen=True)
class Gone:
    """Nobody can be holding the claim any more: seen on the holder's own machine."""

    why: str


@dataclass(frozen=True)
class Refused:
    """Each of its addresses refuses, which a firewall can do for it."""

    why: str


@dataclass(frozen=True)
class Unknown:
    """No answer, which proves nothing."""

    why: str


class LivenessServer:
    """Listens until `close()`, or until this process ends; a daemon thread answers, with `nonce`."""

    def __init__(self, *, nonce: str, job: str | None, ports: range | None = None) -> None:
        """Listen on one of these ports; None: on any. Raises OSError where no socket can be opened."""
        self.nonce, self._by_tls = nonce, secret_of_run() is not None
        self._line = encode({"nonce": nonce, "job": job})
        secret = nonce if self._by_tls else None
        self._served = PortThread("checkpoint-liveness", secret=secret, backlog=_BACKLOG, ports=ports)
        self._served.start(self._answer)
        self.port = self._served.number

    def endpoint(self) -> dict[str, Any]:
        """Return what goes into the claim."""
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pid_namespace": pid_namespace(),
            "started": started_at(os.getpid()),
            "boot_id": boot_id(),
            "network": network_namespace(),
            "addresses": own_addresses(),
            "port": self.port,
            **({"tls": True} if self._by_tls else {}),
        }

    def close(self) -> None:
        """Stop listening: from here on newcomers are refused, and know that the holder is gone. Idempotent."""
        self._served.close()

    def _answer(self, caller: socket.socket, _host: str, transport: Transport) -> Connection:
        """Answer whoever comes, and leave it to the caller to hang up, as long as it may be pending."""

        def heard(_message: object) -> None:
            raise NotAMessage("whoever asks says nothing")

        def ended(_why: str | None) -> None:
            self._served.port.identified(connection)

        connection = Connection(self._served.thread.loop, caller, heard, ended, transport, longest=_LINE_MAX)
        connection.send(self._line)
        return connection


Answer = Alive | Gone | Refused | Unknown


def ask(endpoint: dict[str, Any], nonce: str, *, timeout_s: float) -> Answer:
    """Ask the holder one question, at each of its addresses in turn; `timeout_s` for each of them.

    Whatever lies in the endpoint was read from storage: an entry that makes no sense is Unknown, never an exception.
    """
    port, addresses = endpoint.get("port"), endpoint.get("addresses")
    if type(port) is not int or not 0 < port < 65536 or type(addresses) is not list:
        return Unknown("its endpoint names no port and addresses")
    by_tls = endpoint.get("tls") is True
    if (endpoint.get("boot_id"), endpoint.get("network")) == (boot_id(), network_namespace()):
        answer = _ask_at("127.0.0.1", port, nonce, timeout_s, by_tls)
        return Gone(answer.why) if isinstance(answer, Refused) else answer
    if (ended := _ended(endpoint)) is not None:
        return Gone(ended)
    here = own_addresses()
    answers = [
        _ask_at(address, port, nonce, timeout_s, by_tls)
        for address in addresses
        if type(address) is str and address not in here and not only_near(address)
    ]
    if not answers:
        return Unknown("it advertises no address that is not also our own")
    alive = [answer for answer in answers if isinstance(answer, Alive)]
    silent = [answer for answer in answers if isinstance(answer, Unknown)]
    return (alive or silent or answers)[0]


def proven_dead(endpoint: dict[str, Any], nonce: str) -> str | None:
    """Return why the holder is gone, where this machine itself can tell; else None. Asks nobody elsewhere."""
    if endpoint.get("boot_id") != boot_id():
        return None
    if (ended := _ended(endpoint)) is not None:
        return ended
    if endpoint.get("network") != network_namespace():
        return None
    answer = ask(endpoint, nonce, timeout_s=_NEAR_S)
    return answer.why if isinstance(answer, Gone) else None


def _ended(endpoint: dict[str, Any]) -> str | None:
    """Return whether the holder's process was one of this machine, whose number means the same here, and has ended."""
    pid, started = endpoint.get("pid"), endpoint.get("started")
    if type(pid) is not int or type(started) is not int or endpoint.get("boot_id") != boot_id():
        return None
    if not pid_namespace() or endpoint.get("pid_namespace") != pid_namespace() or started_at(pid) == started:
        return None
    return f"process {pid} of this machine has ended"


def _ask_at(address: str, port: int, nonce: str, timeout_s: float, by_tls: bool) -> Alive | Refused | Unknown:
    where = f"{address}:{port}"
    deadline_s = time.monotonic() + timeout_s
    try:
        sock = connected((address, port), timeout_s)
        answer = ask_for(sock, client_side(nonce if by_tls else None), b"", deadline_s, longest=_LINE_MAX)
    except ConnectionRefusedError:
        return Refused(f"{where} refuses connections")
    except TransportError:
        return Refused(f"{where} is somebody else's now: it does not know the claim's nonce")
    except NotAMessage as wrong:
        return Refused(f"{where} is somebody else's now: {wrong}")
    except OSError as error:
        return Unknown(f"{where} does not answer ({type(error).__name__}: {error})")
    answered, job = answer.get("nonce"), answer.get("job")
    if answered != nonce:
        return Refused(f"{where} is another claim's now")
    return Alive(job if type(job) is str else None)


_BYTES_MAX = 1 << 16
_CERTAINTY = (Alive, Unknown, Refused, Gone)  # who may live comes first


@dataclass(frozen=True)
class LivenessEndpoint:
    """As LivenessServer's nonce and `endpoint()` say."""

    nonce: str
    endpoint: Mapping[str, Any]


def write_moved(storage: Storage, claim: int, moved_to: LivenessEndpoint) -> None:
    """Write that this one answers for the claim, too, from here on. Raises StorageError."""
    storage.put(liveness_key(claim), seal({"format": 1, "nonce": moved_to.nonce, "endpoint": dict(moved_to.endpoint)}))


def read_moved(storage: Storage, claim: int) -> LivenessEndpoint | None:
    """Return the endpoint that took the place of the holder's, None where none lies there. Raises StorageError."""
    key = liveness_key(claim)
    try:
        body = unseal(get_bounded(storage, key, _BYTES_MAX), f"endpoint {key}")
    except (Missing, TooLarge, CorruptCheckpoint):
        return None
    nonce, endpoint = body.get("nonce"), body.get("endpoint")
    return LivenessEndpoint(nonce, endpoint) if type(nonce) is str and type(endpoint) is dict else None


def ask_both(
    endpoint: Mapping[str, Any] | None, nonce: str, moved: LivenessEndpoint | None, *, timeout_s: float
) -> Answer:
    """Return what the claim's own endpoint answers, or the one that took its place: of the two, who may live.

    endpoint, nonce  as they lie in the claim
    """
    own: Answer = Unknown("it could not listen")
    if endpoint is not None:
        own = ask(dict(endpoint), nonce, timeout_s=timeout_s)
    if isinstance(own, Alive) or moved is None:
        return own
    return min(own, ask(dict(moved.endpoint), moved.nonce, timeout_s=timeout_s), key=_certainty)


def both_proven_dead(endpoint: Mapping[str, Any], nonce: str, moved: LivenessEndpoint | None) -> str | None:
    """Return why both are gone, as `proven_dead` says; else None."""
    why = proven_dead(dict(endpoint), nonce)
    if why is None or moved is None:
        return why
    return proven_dead(dict(moved.endpoint), moved.nonce)


def _certainty(answer: Answer) -> int:
    return _CERTAINTY.index(type(answer))
