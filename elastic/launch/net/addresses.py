"""The address under which other nodes find this one, and the ports at which they may.

    as asked       --local-addr: an address of this machine, or an interface or a name that stands for one
    the way there  otherwise the kernel's choice: the address from which a packet to the rendezvous would leave. On the
                   rendezvous' own host, that which others know it by
    any way        otherwise that of the default route

Nodes tell each other addresses and never names: a name may mean something else elsewhere, or nothing. IPv4 where the
rendezvous' host has it, so that all nodes choose alike.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic.errors import ConfigError
from elastic_checkpoint.net import machine, port
from elastic_checkpoint.net.machine import host_address, interfaces, only_near

_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096  # all nodes of a run may come at once to one that takes over; the kernel's own bound is as large

Resolve = Callable[[str], Sequence[str]]
Route = Callable[[str | None], str]


@dataclass(frozen=True)
class Chosen:
    """This node's address, the interface that has it where that is known, and why this one."""

    address: str
    interface: str | None
    why: str

    def __str__(self) -> str:
        return f"{self.address} ({self.interface}, {self.why})" if self.interface else f"{self.address} ({self.why})"


def choose(
    towards: str,
    asked: str | None,
    *,
    known: Mapping[str, Sequence[str]] | None = None,
    resolve: Resolve = machine.resolve,
    route: Route = host_address,
) -> Chosen:
    """Choose this node's address, and say why. Raises ConfigError where `asked` is nothing of this machine's.

    towards  the rendezvous' host; empty: there is none
    asked    --local-addr
    known    the machine's addresses by interface; None: it is asked
    """
    known = interfaces() if known is None else known
    if asked is not None:
        return _asked(asked, known, resolve)
    there = resolve(towards) if towards else []
    if towards == "localhost" or (there and all(map(_is_loopback, there)) and towards in there):
        return Chosen(there[0] if there else _LOOPBACK, None, "this machine alone reaches it, as its rendezvous")
    for address in there:
        if not _is_loopback(address) and not _is_loopback(way := route(address)):
            why = "the rendezvous' own" if way == address else f"the way to {towards}"
            return Chosen(way, _of(way, known), why)
    way = route(None)  # a host may know itself by a loopback address, under which nobody else finds it
    if not _is_loopback(way):
        return Chosen(way, _of(way, known), "the way out of this machine")
    for name, addresses in known.items():
        for address in _fit(addresses):
            return Chosen(address, name, "its first; the machine has no route")
    return Chosen(_LOOPBACK, None, "this machine has no other")


def others(chosen: Chosen, known: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """Return what else it could have been, in words: one for each other interface."""
    known = interfaces() if known is None else known
    return [f"{fit[0]} ({name})" for name, all_ in known.items() if name != chosen.interface and (fit := _fit(all_))]


def in_words(chosen: Chosen, asked: str | None) -> str:
    """Return the address in words, with what else it could have been, where nobody has asked for it."""
    if asked is not None or chosen.interface is None or not (else_ := others(chosen)):
        return str(chosen)
    return f"{chosen}, not {', '.join(else_)}: --local-addr chooses"


def listen(address: str, ports: range | None) -> socket.socket:
    """Listen at one of these ports. Raises ConfigError where none is free."""
    try:
        return port.listen(address, ports, backlog=_BACKLOG)
    except OSError as refused:
        if ports is None:
            raise
        raise none_free(ports, address, refused) from refused


def none_free(ports: range, where: str, refused: OSError) -> ConfigError:
    """Return the error for a --port-range without a free port."""
    return ConfigError(
        f"--port-range={ports.start}-{ports.stop - 1}: {where}: {refused.strerror}\n"
        "  next  end what listens there, or name more: an agent takes two ports, one for other agents and one for "
        "whoever asks whether the run is alive, and a third where nodes meet by the run's URL alone"
    )


def is_url(part: str) -> bool:
    """Return whether this part of --rdzv-endpoint is a URL or a folder; else it is a host."""
    return "://" in part or part.startswith(("/", "./", "../", "~/"))


def port_range(text: str) -> range:
    """Return the ports of FIRST-LAST. Raises ConfigError."""
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 16:
        return range(int(first), int(last) + 1)
    raise ConfigError(f"--port-range is FIRST-LAST, two ports from 1 to 65535; found {text!r}")


def is_own(host: str) -> bool:
    """Return whether a name or address is this machine's: torch looks only at what its own name stands for."""
    if host in ("localhost", socket.gethostname()):
        return True
    own = {address for addresses in interfaces().values() for address in addresses}
    return any(_is_loopback(address) or address in own for address in machine.resolve(host))


def _asked(asked: str, known: Mapping[str, Sequence[str]], resolve: Resolve) -> Chosen:
    """Return the address that --local-addr asks for. Raises ConfigError."""
    why = "as --local-addr asks"
    if asked in known:
        if not known[asked]:
            raise ConfigError(f"--local-addr={asked}: this interface has no address")
        return Chosen(sorted(known[asked], key=_last_resort)[0], asked, why)
    found = resolve(asked)
    for address in found:
        if (name := _of(address, known)) is not None or _is_loopback(address):
            return Chosen(address, name, why)
    has = ", ".join(f"{name} ({' '.join(addresses)})" for name, addresses in known.items() if addresses)
    raise ConfigError(
        f"--local-addr={asked} is no address, interface or name of this machine\n"
        f"  found  {asked} stands for {', '.join(found) or 'nothing'}; this machine has {has or 'no address'}\n"
        "  next   name one of these, or leave it out: the way to the rendezvous is taken then"
    )


def _of(address: str, known: Mapping[str, Sequence[str]]) -> str | None:
    return next((name for name, addresses in known.items() if address in addresses), None)


def _fit(addresses: Iterable[str]) -> list[str]:
    """Return the addresses that others may reach, the best first."""
    return sorted((address for address in addresses if not only_near(address)), key=_last_resort)


def _last_resort(address: str) -> tuple[bool, bool]:
    """Sort by this: addresses that only neighbours reach go last, and IPv6 after IPv4."""
    return only_near(address), ":" in address


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
