"""The hosts themselves: what is done to a machine or to a cable has the effect that a test relies on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.hosts.hosts import Outcome
from elastic.drill.hosts.network import Way, address, until
from elastic_checkpoint import linux
from tests.kit.hosts import Hosts

pytestmark = pytest.mark.nightly(sample=2, of="what is done to hosts")

MakeHosts = Callable[[int], Hosts]

HEARD_S, SILENT_S = 20.0, 0.3

# Says what it is, then answers each datagram, and each connection with silence.
MACHINE = """
import json, os, socket, time
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("", 7))
listener = socket.create_server(("", 7))
about = [socket.gethostname(), os.getpid(), time.monotonic(), os.listdir("/dev/shm")]
print(json.dumps(about), flush=True)
while True:
    data, sender = datagrams.recvfrom(99)
    datagrams.sendto(data, sender)
"""
# Of COUNT datagrams to ADDRESS, how many were answered within WAIT_S, and the fastest answer's seconds.
PROBE = """
import json, socket, sys, time
address, count, wait_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(wait_s)
took = []
for number in range(count):
    begun = time.monotonic()
    sock.sendto(b"%d" % number, (address, 7))
    try:
        while sock.recv(99) != b"%d" % number:
            pass
        took.append(time.monotonic() - begun)
    except OSError:
        pass
print(json.dumps([len(took), min(took, default=None)]))
"""
# Connects, says so, and says how the connection ended.
HOLD = """
import socket, sys
sock = socket.create_connection((sys.argv[1], 7))
print("connected", flush=True)
try:
    print("closed" if sock.recv(1) == b"" else "data")
except OSError as error:
    print(type(error).__name__)
"""


def boot(hosts: Hosts, host: int, folder: Path, program: str = MACHINE, *args: str) -> Path:
    output = folder / f"output-{host}.txt"
    output.write_bytes(b"")
    hosts.start(host, [sys.executable, "-c", program, *args], env={}, output=output)
    until(lambda: output.read_bytes() or not hosts.running(host), f"host {host} to say something")
    return output


def hears(hosts: Hosts, source: int, target: int) -> bool:
    """Whether the target answers, however busy this machine is."""
    return bool(probed(hosts, source, target, 1, HEARD_S)[0])


def deaf(hosts: Hosts, source: int, target: int) -> bool:
    """Whether it does not, for a while."""
    return not probed(hosts, source, target, 1, SILENT_S)[0]


def probed(hosts: Hosts, source: int, target: int, count: int, wait_s: float) -> list[float]:
    said = hosts.on(source, sys.executable, "-S", "-c", PROBE, address(target), str(count), str(wait_s))
    found: list[float] = json.loads(said)
    return found


def test_cables_are_cut_and_healed(hosts: MakeHosts, tmp_path: Path) -> None:
    lab = hosts(4)
    for host in (1, 2, 3, 4):
        boot(lab, host, tmp_path)
    assert hears(lab, 1, 2)

    lab.cut(1)
    assert deaf(lab, 1, 2)
    assert deaf(lab, 2, 1)
    assert hears(lab, 2, 3)
    lab.heal(1)
    assert hears(lab, 1, 2)

    lab.partition([1, 2], [3, 4])
    assert hears(lab, 1, 2)
    assert hears(lab, 3, 4)
    assert deaf(lab, 2, 3)
    assert deaf(lab, 4, 1)
    lab.heal()
    assert hears(lab, 2, 3)


def test_a_cable_is_cut_in_one_direction(hosts: MakeHosts, tmp_path: Path) -> None:
    """What the other host counts as received tells whether the datagrams got through."""
    lab = hosts(2)
    for host in (1, 2):
        boot(lab, host, tmp_path)
    assert hears(lab, 1, 2)  # and each knows where the other is

    def received(host: int) -> int:
        names, numbers = [line.split() for line in lab.on(host, "cat", "/proc/net/snmp").splitlines() if "Udp:" in line]
        return int(numbers[names.index("InDatagrams")])

    ways: list[tuple[Way, bool]] = [("out", False), ("in", True)]
    for way, gets_through in ways:
        before = received(2)
        lab.cut_one_way(1, way)
        assert deaf(lab, 1, 2)
        assert (received(2) > before) == gets_through
        lab.heal(1)
        assert hears(lab, 1, 2)


def test_packets_are_lost_and_delayed(hosts: MakeHosts, tmp_path: Path) -> None:
    lab = hosts(2)
    boot(lab, 2, tmp_path)
    assert hears(lab, 1, 2)

    lab.lose_packets(2, 0.5)
    assert 0 < probed(lab, 1, 2, 40, 0.1)[0] < 40  # each is answered with probability 1/4
    lab.heal()

    lab.delay(2, 0.05)
    count, fastest = probed(lab, 1, 2, 3, 2.0)
    assert count == 3
    assert fastest >= 0.1
    lab.cut(2)
    assert deaf(lab, 1, 2)
    lab.heal()
    lab.partition([1], [2])
    assert deaf(lab, 1, 2)
    lab.heal()
    assert hears(lab, 1, 2)


def test_a_crash_resets_connections_and_a_loss_of_power_does_not(hosts: MakeHosts, tmp_path: Path) -> None:
    lab = hosts(3)
    said = []
    for host in (2, 3):
        boot(lab, host, tmp_path)
    for host in (2, 3):
        boot(lab, 1, tmp_path, HOLD, address(host))
        lab.crash(host) if host == 2 else lab.lose_power(host)
        if host == 2:
            until(lambda: not lab.running(1), "the end of the connection")
            assert lab.ended(1) == Outcome(0, ())
        said.append((tmp_path / "output-1.txt").read_text())
    assert said == ["connected\nConnectionResetError\n", "connected\n"]
    assert not lab.running(2)
    assert lab.ended(2) is None


def test_what_a_command_leaves_behind_is_told(hosts: MakeHosts, tmp_path: Path) -> None:
    lab = hosts(1)
    boot(lab, 1, tmp_path, "open('/dev/shm/x', 'w'); open('/var/tmp/y', 'w'); print('done'); raise SystemExit(3)")
    until(lambda: not lab.running(1), "its end")

    assert lab.ended(1) == Outcome(3, ("/dev/shm/x", "/var/tmp/y"))
    assert not Path("/dev/shm/x").exists()


def test_nothing_is_left_of_hosts_that_are_closed(tmp_path: Path, hosts: MakeHosts) -> None:
    before = linux.children(os.getpid()).keys()  # a server that other tests fork their processes from
    lab = hosts(2)
    boot(lab, 1, tmp_path)
    pids = lab.pids(1)
    lab.close()

    assert [pid for pid in pids if os.path.exists(f"/proc/{pid}")] == []
    assert linux.children(os.getpid()).keys() <= before
