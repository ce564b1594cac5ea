"""Which machine this is, and how others reach it. Asks the kernel, and for names what the machine asks for names.

No packet is sent otherwise.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

from elastic_checkpoint.linux import process_stat

_OUTSIDE = ("192.0.2.1", "2001:db8::1")  # for documentation: nobody has them
_SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address, in bytes 20 to 24 of the answer


def boot_id() -> str:
    """Return what changes with every boot of this machine; the same in all its containers. Off Linux: its name."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}-{uuid.getnode():x}"


def network_namespace() -> str | None:
    """Return which loopback is ours, within one boot."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return None


def pid_namespace() -> int:
    """Return where process numbers mean what they mean here, within one boot; 0 where that is not known."""
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def started_at(pid: int) -> int | None:
    """Return when a process began, in the kernel's ticks since the boot; None where it has ended, or never was."""
    stat = process_stat(pid)
    return stat.started if stat is not None and not stat.is_dead else None


def own_addresses() -> list[str]:
    """Return this machine's addresses but for those of the loopback and of single links. Asks no name server."""
    found = [address for addresses in interfaces().values() for address in addresses]
    if not found:
        found.append(host_address(None))
    return [address for address in found if not only_near(address)]


def interfaces() -> dict[str, list[str]]:
    """Return this machine's addresses by the name of the interface, IPv4 first, as far as the kernel tells."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in found:
            with suppress(OSError):  # an interface without an IPv4 address; not Linux
                request = name.encode()[:15].ljust(256, b"\0")
                found[name].append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]))
    for name, address in _own_ipv6():
        found.setdefault(name, []).append(address)
    return found


def host_address(towards: str | None) -> str:
    """Return this machine's address as seen from `towards` (or outside), IPv4 if that has it; 127.0.0.1: no route."""
    for target in resolve(towards) if towards else _OUTSIDE:
        with suppress(OSError), socket.socket(_family(target), socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # a UDP connect sends nothing; it only picks a route
            return str(probe.getsockname()[0])
    return "127.0.0.1"


def address_for_others(towards: str | None) -> str:
    """Return host_address; where nobody is named and there is no way out, the first, which those on its cable reach."""
    address = host_address(towards)
    return address if towards or not only_near(address) else next(iter(own_addresses()), address)


def resolve(host: str) -> list[str]:
    """Return the addresses that a name or an address stands for here, IPv4 first; none where it stands for nothing."""
    with suppress(OSError, UnicodeError):
        found = dict.fromkeys(str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        return sorted(found, key=lambda address: ":" in address)
    return []


def only_near(address: str) -> bool:
    """Return whether an address means another machine from each: the loopback's, and those of a single link."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _own_ipv6() -> list[tuple[str, str]]:
    """Return each interface with its global IPv6 address, from Linux's table."""
    with suppress(OSError):
        # a row: 32 hexadecimal digits, index, prefix, scope (00 is global), flags, name
        rows = [row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines()]
        return [(row[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))) for row in rows if row[3] == "00"]
    return []
