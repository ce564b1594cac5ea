"""A network of hosts h1, h2, … on this machine: what happens to the cables between them. Of their machines: hosts.py.

A host is a network namespace with addresses of its own, 10.77.0.i and fd77::i, plugged into a bridge in another
namespace. Nothing has a name outside of them, and they live as long as a process of ours holds them, which the kernel
kills with this one: so nothing collides, and nothing stays, however it ends.

The kernel may lack netem: packets are dropped by a classic BPF filter on the bridge's side of a cable, and delayed by a
process (cable.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from typing_extensions import Self

from elastic.drill.machine.hosting import Node
from elastic.errors import ElasticError

Way = Literal["in", "out"]

HOSTS_MAX = 64
WITHIN_S = 30.0  # what the kernel does at once
DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
_DROP, _PASS = 2, 0  # TC_ACT_SHOT, TC_ACT_OK
_CONGESTION = "reno"  # what any kernel has; this machine's own may be BBR
_CABLE = Path(__file__).with_name("cable.py")


class Network:
    """`count` hosts, numbered from 1. `with` takes them down."""

    def __init__(self, count: int) -> None:
        self.open = ExitStack()  # what ends with it, the youngest first
        self._holder: dict[int, int] = {}  # host -> the process that holds its namespace
        self._port: dict[int, str] = {}  # host -> its plug at the bridge
        self._bridge: dict[int, str] = {}
        self._bridges: set[str] = set()
        self._delayed: set[int] = set()
        self._switch = self._hold()
        try:
            for _ in range(count):
                self.add()
        except BaseException:
            self.close()
            raise

    def add(self) -> int:
        """Add one host; return its number."""
        host = len(self._holder) + 1
        holder = self._holder[host] = self._hold()
        port = self._port[host] = f"v{host}"
        self._on_switch("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(holder))
        addresses = [f"addr add {address(host)}/24 dev eth0", f"addr add {ipv6_address(host)}/64 dev eth0 nodad"]
        for command in ("link set lo up", *addresses, "link set eth0 up"):
            _run(*_inside(holder), "ip", *command.split())
        _run(*_inside(holder), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={_CONGESTION}")
        self._on_switch("ip", "link", "set", port, "up")
        self._on_switch("tc", "qdisc", "add", "dev", port, "clsact")
        self._plug(host, self._bridge_for(0))
        return host

    @property
    def numbers(self) -> list[int]:
        return list(self._holder)

    def on(self, host: int, *command: str) -> str:
        """Return what a command on this host's network prints; of its machine it sees nothing."""
        return _run(*self.inside(host), *command)

    def inside(self, host: int) -> list[str]:
        """Return the beginning of a command line that runs a command on this host's network, and becomes it."""
        return _inside(self._holder[host])

    def network(self, host: int) -> str:
        """Return the file of this host's network namespace."""
        return _network(self._holder[host])

    def cut(self, *hosts: int) -> None:
        """Let nothing into these hosts or out of them, and have nobody told."""
        self._drop({host: {"in": 1.0, "out": 1.0} for host in hosts})

    def cut_one_way(self, host: int, way: Way) -> None:
        """Let nothing into this host, or nothing out of it."""
        self._drop({host: {way: 1.0}})

    def lose_packets(self, host: int, share: float) -> None:
        """Lose this share of a host's packets, in both directions."""
        self._drop({host: {"in": share, "out": share}})

    def partition(self, *groups: Collection[int]) -> None:
        """Let each group reach itself alone, from one moment to the next for each host. Others stay as they are."""
        for number, group in enumerate(groups):
            for host in group:
                self._plug(host, self._bridge_for(number))

    def heal(self, *hosts: int) -> None:
        """Make the cables of these hosts, or of all, as they were at first, but for a delay."""
        healed = hosts or tuple(self._holder)
        self._drop({host: {"in": 0.0, "out": 0.0} for host in healed})
        for host in healed:
            self._plug(host, self._bridge_for(0))

    def delay(self, host: int, seconds: float) -> None:
        """Make each packet of a host so much later, both ways, from now on. A second call for it has no effect."""
        if host in self._delayed:
            return
        self._delayed.add(host)
        near, far = f"near{host}", f"far{host}"
        relay = subprocess.Popen(
            [*DIES_WITH_US, *_inside(self._switch), sys.executable, "-S", str(_CABLE), near, far, str(seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self.open.callback(end, relay)
        assert relay.stdout is not None, "a pipe"
        with relay.stdout as said:
            is_ready = said.readline() == b"ready\n"
        if not is_ready:
            raise ElasticError(f"{name(host)}: no cable that delays packets could be made; is there a /dev/net/tun?")
        own = f"own{host}"
        self._on_switch("ip", "link", "add", own, "up", "type", "bridge", "forward_delay", "0")
        self._on_switch("ip", "link", "set", near, "master", own, "up")
        self._on_switch("ip", "link", "set", self._port[host], "master", own)
        self._port[host] = far
        self._on_switch("ip", "link", "set", far, "master", self._bridge[host], "up")

    def close(self) -> None:
        """End all that the network has started. Harmless when repeated."""
        self.open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self) -> int:
        """Return the pid of a process that holds a new network namespace."""
        process = subprocess.Popen(
            [*DIES_WITH_US, "unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL, start_new_session=True
        )
        self.open.callback(end, process)
        ours = os.readlink("/proc/self/ns/net")
        until(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != ours, "a network namespace")
        return process.pid

    def _on_switch(self, *command: str, stdin: str | None = None) -> None:
        _run(*_inside(self._switch), *command, stdin=stdin)

    def _bridge_for(self, number: int) -> str:
        """Return the name of the bridge with this number, which is made if need be."""
        bridge = f"bridge{number}"
        if bridge not in self._bridges:
            self._on_switch("ip", "link", "add", bridge, "up", "type", "bridge", "forward_delay", "0")
            self._bridges.add(bridge)
        return bridge

    def _plug(self, host: int, bridge: str) -> None:
        """Plug the host's cable into this bridge, unless it is there."""
        if self._bridge.get(host) != bridge:
            self._on_switch("ip", "link", "set", self._port[host], "master", bridge)
            self._bridge[host] = bridge

    def _drop(self, shares: Mapping[int, Mapping[Way, float]]) -> None:
        """Drop these shares of packets from now on, by host and direction."""
        side = {"in": "egress", "out": "ingress"}  # what comes out of a host goes into the switch
        lines = [
            f"filter replace dev v{host} {side[way]} pref 1 handle 1 protocol all bpf da bytecode '{_bytecode(share)}'"
            for host, ways in shares.items()
            for way, share in ways.items()
        ]
        self._on_switch("tc", "-batch", "-", stdin="\n".join(lines))


def name(host: int) -> str:
    return f"h{host}"


def host_of(worker: str) -> int:
    """Return the number of a worker's host, with whose name its id begins."""
    return int(worker.partition("-")[0].removeprefix("h"))


def address(host: int) -> str:
    return f"10.77.0.{host}"


def ipv6_address(host: int) -> str:
    return f"fd77::{host}"


def until(holds: Callable[[], object], what: str, *, within_s: float = WITHIN_S) -> None:
    """Wait until it holds. Raises ElasticError, which says what was waited for, after `within_s`."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise ElasticError(f"waited {within_s:g} s for {what}")
        time.sleep(0.01)


def _bytecode(share: float) -> str:
    """Return a BPF filter that drops that share of packets: A = random; A >= limit: pass."""
    if share in (0.0, 1.0):
        return f"1,6 0 0 {_DROP if share else _PASS},"
    random = 0x1_0000_0000 - 0x1000 + 56  # SKF_AD_OFF + SKF_AD_RANDOM
    return f"4,32 0 0 {random},53 0 1 {int(share * 2**32)},6 0 0 {_PASS},6 0 0 {_DROP},"


def _inside(holder: int) -> list[str]:
    return ["nsenter", f"--net={_network(holder)}"]


def _network(holder: int) -> str:
    return f"/proc/{holder}/ns/net"


def _run(*command: str, stdin: str | None = None) -> str:
    """Return what a command prints. Raises ElasticError if it fails, with what it said."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode:
        raise ElasticError(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def end(process: Node) -> None:
    process.kill()
    process.wait(WITHIN_S)
