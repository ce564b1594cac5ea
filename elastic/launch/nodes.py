"""How the nodes of a run meet: by torchrun's c10d rendezvous at first, and at the hub from then on.

    first nodes   meet in a round of the rendezvous; its rank 0 hosts the hub and publishes where
    later nodes   find that in the rendezvous' store, and connect straight to the hub: no new round, no restart

Promises  a node waits for the others no longer than --rdzv-conf join_timeout, and its error says who came.
          A published hub that does not answer is no hub: the node goes on waiting, for a round or another hub. One
          that has another secret, it does not wait for: nobody else would be found there.
Leaves    who may join, and everything after hello, to the hub.

Of torch 2.13: `create_backend` and `create_handler` are public. `TCPStore.clone`, since a client that one thread waits
with is blocked for all, and the pickled state that `participants` reads (for an error's text) are not documented.
"""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousInfo, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from checkpoint.net.secured import prepare
from checkpoint.net.transport import ANOTHER, SAME_FOR_ALL
from elastic.errors import ConfigError, ElasticError
from elastic.launch import addresses
from elastic.launch.hub_lookup import HubLookup
from elastic.launch.rendezvous_state import SignedBackend, StateRefused

JOIN_S, LAST_CALL_S = 600, 1  # torchrun's last call is 30 s: here a node that comes later costs nobody anything
_DEFAULT_PORT = 29400  # torchrun's
_POLL_S = 0.1
_REFUSED_BYTES_MAX = 64


class NodesMissing(ElasticError, TimeoutError):
    """Too few nodes met by the deadline, or the place where they meet cannot be reached, or has another secret."""


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a node knows when it has met the others.

    listener   other agents connect here: the hub is here, or may come to be
    connected  to the hub, elsewhere; None: it is here
    address    this node's, as the others see it
    first      how many nodes met in the first round; 0 where that is the hub's to know
    publish    tells those who come later where the hub is now, if the store still lives
    kept       what must live as long as this process: the store may be here, and absence would end our membership
    """

    listener: socket.socket
    connected: socket.socket | None
    address: str
    nonce: str
    first: int = 0
    publish: Callable[[str, int], None] | None = None
    kept: tuple[Any, ...] = field(default=(), repr=False)


def meet(
    endpoint: str,
    run_id: str,
    *,
    nodes_min: int,
    nodes_max: int,
    conf: Mapping[str, Any],
    local_addr: str | None = None,
    ports: range | None = None,
    secret: str | None = None,
    say: Callable[[str], None],
) -> Meeting:
    """secret: of the run, see checkpoint/net/secret.py

    Raises NodesMissing, ConfigError; CheckpointError for a secret that cannot be used here.
    """
    endpoint, url = _places(endpoint)
    host, _ = parse_rendezvous_endpoint(endpoint, _DEFAULT_PORT)
    chosen = addresses.choose(host if endpoint else "", local_addr)
    address, listener = chosen.address, addresses.listen(chosen.address, ports)
    prepare(secret)
    hubs = HubLookup(secret)

    def joins(found: Mapping[str, Any] | None, kept: tuple[Any, ...] = ()) -> Meeting | None:
        connected = hubs.connect(found)
        if found is None or connected is None:
            return None
        return Meeting(listener=listener, connected=connected, address=address, nonce=found["nonce"], kept=kept)

    conf = {"last_call_timeout": LAST_CALL_S, **conf}
    conf.setdefault("join_timeout", conf.get("timeout", JOIN_S))
    within_s = join_s(conf)
    deadline_s = time.monotonic() + within_s
    params = RendezvousParameters(
        "c10d", endpoint, run_id, nodes_min, nodes_max, address, **{"read_timeout": min(60, int(within_s)), **conf}
    )
    if url is not None and (meeting := joins(_written(url))) is not None:
        return meeting
    if not endpoint:
        raise NodesMissing(
            f"no hub of a run answers by what lies at {url}\n"
            + hubs.unreachable("hub    ")
            + "  state  nothing was started here\n"
            f"  next   name the host at which the first nodes meet, too: --rdzv-endpoint=HOST:PORT,{url}"
        )
    unsigned, store = _backend(params, deadline_s)
    backend = SignedBackend(unsigned, run_id, secret)
    handler = create_handler(store, backend, params)
    looking = store.clone()
    key = f"elastic/{run_id}/hub"
    refusals = _Refusals(looking, f"elastic/{run_id}/refused", say)
    round_ = _Round(handler.next_rendezvous)
    kept = (handler, store, looking, round_)
    while True:
        try:
            published = _published(looking, key)
            if round_.begun:
                refusals.tell()
        except DistError as lost:
            raise NodesMissing(
                f"the rendezvous store at {endpoint or 'localhost'} has gone: {lost}\n"
                + hubs.unreachable("hub    ")
                + "  state  nothing was started here\n"
                "  next   see what became of the node that hosts it; start this one again when it is there"
            ) from lost
        if (meeting := joins(published, kept)) is not None:
            _met()
            return replace(meeting, publish=_publisher(store, key, meeting.nonce))
        if hubs.refused or isinstance(round_.error, StateRefused):
            refusals.leave(address)
            raise NodesMissing(
                f"the nodes of run {run_id!r} let this one not in, or are none of its run"
                + (f": whoever is at {endpoint}: {round_.error}\n" if round_.error is not None else "\n")
                + hubs.unreachable("hub    ")
                + "  state  nothing was started here, and the run goes on without this node\n"
                f"  next   {SAME_FOR_ALL}"
            )
        if not round_.begun:
            nodes = f"{nodes_min} to {nodes_max} nodes of run {run_id!r}"
            say(f"waiting at {endpoint or 'localhost'} for {nodes}, as {_in_words(chosen, local_addr)}")
            round_.begin()
        if round_.info is not None and round_.info.rank == 0:
            nonce = secrets.token_hex(16)
            where = {"host": address, "port": listener.getsockname()[1], "nonce": nonce}
            looking.set(key, json.dumps(where))
            _met()
            return Meeting(
                listener=listener,
                connected=None,
                address=address,
                nonce=nonce,
                first=round_.info.world_size,
                kept=kept,
                publish=_publisher(store, key, nonce),
            )
        if round_.error is not None or time.monotonic() > deadline_s:
            raise NodesMissing(
                f"the nodes of run {run_id!r} did not meet within {within_s:.0f} s at {endpoint or 'localhost'}\n"
                f"  found     {participants(backend)}, and at least {nodes_min} are needed\n"
                + hubs.unreachable("hub       ")
                + f"  state     nothing was started here ({round_.error or 'no round was completed'})\n"
                "  next      start the missing nodes with the same --rdzv-id and --rdzv-endpoint, or allow fewer with "
                "--nnodes=MIN:MAX, or wait longer with --rdzv-conf join_timeout=SECONDS"
            ) from round_.error
        time.sleep(_POLL_S)


def join_s(conf: Mapping[str, Any]) -> float:
    """How long a node waits for others, and for a place among them."""
    return float(conf.get("join_timeout", conf.get("timeout", JOIN_S)))


class _Refusals:
    """Who is waiting is told of who was refused, by a word in the store that anybody may have written."""

    def __init__(self, store: Any, key: str, say: Callable[[str], None]) -> None:
        self._store, self._key, self._say = store, key, say
        self._told = self._newest()

    def tell(self) -> None:
        """Of each once, and not of those before this node came."""
        where = self._newest()
        if where != self._told:
            self._told = where
            self._say(
                f"a node at {where.decode(errors='replace')!r} was refused: {ANOTHER}\n"
                f"  state  this one goes on waiting for the others\n  next   {SAME_FOR_ALL}"
            )

    def _newest(self) -> bytes:
        return bytes(self._store.get(self._key)[:_REFUSED_BYTES_MAX]) if self._store.check([self._key]) else b""

    def leave(self, address: str) -> None:
        with contextlib.suppress(DistError):
            self._store.set(self._key, address)


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


def _places(endpoint: str) -> tuple[str, str | None]:
    """Of --rdzv-endpoint: HOST:PORT, and the run's URL or folder; either may be missing."""
    parts = [part.strip() for part in endpoint.split(",") if part.strip()]
    urls = [part for part in parts if "://" in part or part.startswith(("/", "./", "../"))]
    hosts = [part for part in parts if part not in urls]
    if len(hosts) > 1 or len(urls) > 1:
        raise ConfigError(f"--rdzv-endpoint takes one HOST:PORT and one URL of the run, found {endpoint}")
    return (hosts[0] if hosts else "", urls[0] if urls else None)


def _written(url: str) -> dict[str, Any] | None:
    from elastic.membership import hub_file  # which loads fsspec

    try:
        return hub_file.read(url)
    except hub_file.CheckpointError as failure:
        raise NodesMissing(f"the run's storage cannot be read, to see where its hub is: {failure}") from failure


def _publisher(store: Any, key: str, nonce: str) -> Callable[[str, int], None]:
    """In a thread of its own, for the store may be gone."""
    told = store.clone()

    def tell(host: str, port: int) -> None:
        def tries() -> None:
            with contextlib.suppress(Exception):  # whatever torch's store raises where its host is gone
                told.set(key, json.dumps({"host": host, "port": port, "nonce": nonce}))

        threading.Thread(target=tries, name="elastic-publish", daemon=True).start()

    return tell


def _met() -> None:
    """From here on the rendezvous may be lost with its host: that its heartbeats fail then is of no interest."""
    logging.getLogger("torch.distributed.elastic.rendezvous").setLevel(logging.ERROR)


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
    hosts = "is_host" not in params.config and addresses.is_own(parse_rendezvous_endpoint(params.endpoint, 0)[0])
    while True:
        try:
            return _create(params, hosts=hosts)
        except RendezvousError as failure:
            if time.monotonic() > deadline_s:
                raise NodesMissing(
                    f"no rendezvous store answers at {params.endpoint}: {failure.__cause__ or failure}\n"
                    "  state  nothing was started here\n"
                    "  next   start `elastic run` on that host, too; it hosts the store"
                ) from failure
            time.sleep(_POLL_S)


def _create(params: RendezvousParameters, *, hosts: bool) -> tuple[Any, Any]:
    """hosts: the store may be this process's. torch finds that out, too, but not of all addresses that a machine has,
    and not where the machine's own name stands for nothing."""
    if "is_host" in params.config:
        return create_backend(params)
    if hosts:
        with contextlib.suppress(RendezvousError):  # another node of this machine hosts it
            return create_backend(_with(params, is_host=1))
    return create_backend(_with(params, is_host=0))


def _with(params: RendezvousParameters, **config: Any) -> RendezvousParameters:
    known = {**params.config, **config}
    return RendezvousParameters(
        params.backend, params.endpoint, params.run_id, params.min_nodes, params.max_nodes, params.local_addr, **known
    )


def _published(store: Any, key: str) -> dict[str, Any] | None:
    if not store.check([key]):
        return None
    with contextlib.suppress(ValueError):  # anybody may have written there
        found = json.loads(store.get(key))
        kinds = {"host": str, "port": int, "nonce": str}
        if isinstance(found, dict) and all(type(found.get(name)) is kind for name, kind in kinds.items()):
            return found
    return None


def _in_words(chosen: addresses.Chosen, asked: str | None) -> str:
    if asked is not None or chosen.interface is None or not (others := addresses.others(chosen)):
        return str(chosen)
    return f"{chosen}, not {', '.join(others)}: --local-addr chooses"
