"""Which machine is this, and how do others reach it? Asks the kernel only: no name server, no packet is sent."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import uuid
from pathlib import Path

from checkpoint.linux import process_stat

_SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address, in bytes 20 to 24 of the answer


def boot_id() -> str:
    """Changes with every boot of this machine; the same in all of its containers. Off Linux: this machine's name."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()}-{uuid.getnode():x}"


def network_namespace() -> str | None:
    """Which loopback is ours, within one boot."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return None


def pid_namespace() -> int:
    """In which process numbers mean what they mean here, within one boot; 0 where that is not known."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def started_at(pid: int) -> int | None:
    """When this process began, in the kernel's ticks since the boot; None where it has ended, or never was."""
    stat = process_stat(pid)
    return stat.started if stat is not None and not stat.is_dead else None


def own_addresses() -> list[str]:
    """This machine's addresses, those of the loopback and of single links excepted. Asks no name server."""
    found = _own_ipv6()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # an interface without an IPv4 address; not Linux
                request = name.encode()[:15].ljust(256, b"\0")
                found.append(socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24]))
        if not found:
            with contextlib.suppress(OSError):  # no route: sends nothing, only picks the outgoing interface
                probe.connect(("192.0.2.1", 9))
                found.append(probe.getsockname()[0])
    return [address for address in found if not only_near(address)]


def only_near(address: str) -> bool:
    """Whether an address means another machine from each: the loopback's, and those of a single link."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified


def _own_ipv6() -> list[str]:
    """From Linux's table of interfaces: 32 hexadecimal digits, index, prefix, scope (00 is global), flags, name."""
    with contextlib.suppress(OSError):
        rows = [row.split() for row in Path("/proc/net/if_inet6").read_text().splitlines()]
        return [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[3] == "00"]
    return []
