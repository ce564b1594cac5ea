"""Finds out by which address others find this node, whether they may reach its ports, and whether it reaches them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic.doctor.finding import Finding, Verdict, of_error
from elastic.errors import ConfigError
from elastic.launch.net import addresses
from elastic.launch.net.addresses import Chosen
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.machine import only_near

PORTS = 3  # that an agent takes: for agents, for whoever asks whether the run is alive, for the rendezvous
_CONNECT_S = 5.0
_GLOO = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OPEN = (
    "let TCP in there, between the machines of the run: a security group of the cloud, a network policy, or the "
    "machine's own firewall (nft list ruleset)"
)


def chosen(towards: str, local_addr: str | None) -> Chosen:
    """Choose the address that others find this node by. Raises ConfigError."""
    return addresses.choose(towards, local_addr)


def interface(found: Chosen, local_addr: str | None) -> Finding:
    """Say by which address others find this node, and whether only this machine can."""
    words = addresses.in_words(found, local_addr)
    if only_near(found.address):
        advice = "for several machines, name the interface that reaches the others: --local-addr; one needs none"
        return Finding("interface", Verdict.NOTE, words, advice)
    return Finding("interface", Verdict.OK, words)


def ports(address: str, named: range | None) -> Finding:
    """Listen as an agent does, and connect: a firewall that lets nobody in holds up this machine's connections, too."""
    with contextlib.ExitStack() as held:
        try:
            sockets = [held.enter_context(addresses.listen(address, named)) for _ in range(PORTS)]
        except ConfigError as none_free:
            return of_error("ports", none_free)
        except OSError as refused:
            return Finding("ports", Verdict.WRONG, f"{address}: {refused}", "name an address of this machine")
        numbers = [one.getsockname()[1] for one in sockets]
        for number in numbers:
            if (why := _unreached(address, number)) is not None:
                found = f"{address} port {number}: a connection from this very machine {why}"
                return Finding("ports", Verdict.WRONG, found, f"{_OPEN}; or name others: --port-range=FIRST-LAST")
    first, last = _GLOO.read_text().split()
    which = f"{', '.join(map(str, numbers))} of {address}" if named else f"any of {address}"
    return Finding("ports", Verdict.OK, f"{which}, for agents; those of gloo are among {first}-{last}")


def others(url: str | None, options: Mapping[str, Any], hosts: Sequence[tuple[str, int]]) -> Finding:
    """Try to reach other nodes: the hosts that were named, and where nodes have written at the run's URL."""
    places = [(host, port, f"{host}:{port}, as named") for host, port in hosts]
    if url is not None:
        from elastic.launch.rendezvous.written_meeting import newest_meeting
        from elastic.membership import hub_file
        from elastic_checkpoint.storage import open_storage

        try:
            with contextlib.closing(open_storage(url, dict(options), retry_s=_CONNECT_S)) as storage:
                written = {"nodes meet": newest_meeting(storage)[1], "its hub is": hub_file.read(url, options)}
        except CheckpointError:  # what becomes of the storage has lines of its own
            return Finding("other nodes", Verdict.NOTE, "not known: the run's URL cannot be read")
        for what, one in written.items():
            if one is not None:
                places.append((one["host"], one["port"], f"{one['host']}:{one['port']}, where {what}"))
    if not places:
        return Finding("other nodes", Verdict.OK, "none has written at the run's URL where it is")
    unreached = [f"{words}, {why}" for host, port, words in places if (why := _unreached(host, port)) is not None]
    if not unreached:
        return Finding("other nodes", Verdict.OK, "; ".join(f"{words}, answers" for _, _, words in places))
    advice = f"is it on? Start elastic run there first, or, where it runs, {_OPEN}"
    if not hosts:
        advice = f"if the run goes on, {_OPEN}; if it has ended, nothing: a new one looks for itself"
    return Finding("other nodes", Verdict.WRONG if hosts else Verdict.NOTE, "; ".join(unreached), advice)


def _unreached(host: str, port: int) -> str | None:
    """Try to connect; return why that failed, or None where a connection was taken."""
    try:
        socket.create_connection((host, port), timeout=_CONNECT_S).close()
    except TimeoutError:
        return f"has no answer within {_CONNECT_S:.0f} s: something drops the packets, or nobody is there"
    except OSError as failure:
        return f"fails: {failure.strerror or failure}"
    return None
