"""How the nodes of a run meet: by torchrun's c10d rendezvous at first, and at the hub from then on.

    first nodes   meet in a round of the rendezvous; its rank 0 hosts the hub and publishes where
    later nodes   find that in the rendezvous' store, and connect straight to the hub: no new round, no restart

Promises  a node waits for the others no longer than --rdzv-conf join_timeout, and its error says who came.
          A published hub that does not answer is no hub: the node goes on waiting, for a round or another hub.
Leaves    who may join, and everything after hello, to the hub.

Of torch 2.13: `create_backend` and `create_handler` are public. `TCPStore.clone`, since a client that one thread waits
with is blocked for all, and the pickled state that `participants` reads (for an error's text) are not documented.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from elastic.errors import ElasticError
from elastic.membership.environment import host_address

JOIN_S, LAST_CALL_S = 600, 1  # torchrun's last call is 30 s: here a node that comes later costs nobody anything
_DEFAULT_PORT = 29400  # torchrun's
_POLL_S = 0.1
_CONNECT_S = 5.0


class NodesMissing(ElasticError, TimeoutError):
    """Too few nodes met by the deadline, or the place where they meet cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a node knows when it has met the others.

    listener   this node hosts the hub, and other agents connect here
    connected  to the hub, elsewhere
    address    this node's IPv4 address, as the others see it
    first      how many nodes met in the first round; 0 where that is the hub's to know
    kept       what must live as long as this process: the store may be here, and absence would end our membership
    """

    listener: socket.socket | None
    connected: socket.socket | None
    address: str
    nonce: str
    first: int = 0
    kept: tuple[Any, ...] = field(default=(), repr=False)


def meet(
    endpoint: str,
    run_id: str,
    *,
    nodes_min: int,
    nodes_max: int,
    conf: Mapping[str, Any],
    local_addr: str | None = None,
    say: Callable[[str], None],
) -> Meeting:
    """Raises NodesMissing."""
    conf = {"last_call_timeout": LAST_CALL_S, **conf}
    conf.setdefault("join_timeout", conf.get("timeout", JOIN_S))
    join_s = float(conf["join_timeout"])
    deadline_s = time.monotonic() + join_s
    params = RendezvousParameters(
        "c10d", endpoint, run_id, nodes_min, nodes_max, local_addr, **{"read_timeout": min(60, int(join_s)), **conf}
    )
    backend, store = _backend(params, deadline_s)
    handler = create_handler(store, backend, params)
    looking = store.clone()
    key = f"elastic/{run_id}/hub"
    address = _address(endpoint, local_addr)
    round_ = _Round(handler.next_rendezvous)
    unreachable: dict[str, str] = {}
    while True:
        found = _published(looking, key)
        connected = _connect(found, unreachable) if found is not None else None
        if found is not None and connected is not None:
            kept = (handler, store, looking, round_)
            return Meeting(listener=None, connected=connected, address=address, nonce=found["nonce"], kept=kept)
        if not round_.begun:
            say(f"waiting at {endpoint or 'localhost'} for {nodes_min} to {nodes_max} nodes of run {run_id!r}")
            round_.begin()
        if round_.info is not None and round_.info.rank == 0:
            listener = socket.create_server((address, 0), family=socket.AF_INET, backlog=128)
            nonce = secrets.token_hex(16)
            where = {"host": address, "port": listener.getsockname()[1], "nonce": nonce}
            looking.set(key, json.dumps(where))
            first = round_.info.world_size
            kept = (handler, store, looking, round_)
            return Meeting(listener=listener, connected=None, address=address, nonce=nonce, first=first, kept=kept)
        if round_.error is not None or time.monotonic() > deadline_s:
            raise NodesMissing(
                f"the nodes of run {run_id!r} did not meet within {join_s:.0f} s at {endpoint or 'localhost'}\n"
                f"  found     {participants(backend)}, and at least {nodes_min} are needed\n"
                + "".join(f"  hub       {where} {why}\n" for where, why in unreachable.items())
                + f"  state     nothing was started here ({round_.error or 'no round was completed'})\n"
                "  next      start the missing nodes with the same --rdzv-id and --rdzv-endpoint, or allow fewer with "
                "--nnodes=MIN:MAX, or wait longer with --rdzv-conf join_timeout=SECONDS"
            ) from round_.error
        time.sleep(_POLL_S)


class _Round:
    """Waits for a round of the rendezvous in a thread, so that a hub that is published meanwhile is found."""

    def __init__(self, wait: Callable[[], RendezvousInfo]) -> None:
        self._wait = wait
        self.info: RendezvousInfo | None = None
        self.error: Exception | None = None
        self.begun = False

    def begin(self) -> None:
        self.begun = True
        threading.Thread(target=self._run, name="elastic-rendezvous", daemon=True).start()

    def _run(self) -> None:
        try:
            self.info = self._wait()
        except Exception as error:
            self.error = error


def participants(backend: Any) -> str:
    """Who is at the rendezvous, in words."""
    with contextlib.suppress(Exception):  # a private format, and a store that may be gone
        found = backend.get_state()
        if found is None:
            return "nobody, not even this node yet"
        known = pickle.loads(found[0])  # noqa: S301  # torch's own, which it loads itself all the time
        names = sorted({f"{node.addr} (pid {node.pid})" for node in (*known.participants, *known.wait_list)})
        return f"{len(names)} nodes: {', '.join(names)}"
    return "nobody can be asked"


def _backend(params: RendezvousParameters, deadline_s: float) -> tuple[Any, Any]:
    """The store may start a little later than this node. TCPStore waits for it by itself, and now and then gives up."""
    while True:
        try:
            return create_backend(params)
        except RendezvousError as failure:
            if time.monotonic() > deadline_s:
                raise NodesMissing(
                    f"no rendezvous store answers at {params.endpoint}: {failure.__cause__ or failure}\n"
                    "  state  nothing was started here\n"
                    "  next   start `elastic run` on that host, too; it hosts the store"
                ) from failure
            time.sleep(_POLL_S)


def _published(store: Any, key: str) -> dict[str, Any] | None:
    if not store.check([key]):
        return None
    found = json.loads(store.get(key))
    assert isinstance(found, dict)
    return found


def _connect(hub: Mapping[str, Any], unreachable: dict[str, str]) -> socket.socket | None:
    try:
        return socket.create_connection((hub["host"], hub["port"]), timeout=_CONNECT_S)
    except OSError as failure:
        unreachable[f"{hub['host']}:{hub['port']}"] = f"does not answer: {failure}"
        return None


def _address(endpoint: str, local_addr: str | None) -> str:
    if local_addr is not None:
        return str(socket.getaddrinfo(local_addr, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    host, _ = parse_rendezvous_endpoint(endpoint, _DEFAULT_PORT)
    address = host_address(host)
    # The store's own host may be known to itself by a loopback address, under which nobody else finds it.
    return host_address(None) if ipaddress.ip_address(address).is_loopback and not _loopback(host) else address


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
