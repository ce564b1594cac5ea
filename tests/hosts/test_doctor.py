"""`elastic doctor` on a host whose ports a firewall blocks: its own, and those of the node that it is to meet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.hosts.network import address, until
from tests.kit.doctor import WITHIN_S, doctor, wrong
from tests.kit.hosts import Hosts

pytestmark = pytest.mark.nightly(sample=1, of="doctor on hosts")

PORT = 7000
_NOT = "6 0 0 0,6 0 0 2"  # pass, drop


def block(hosts: Hosts, host: int, device: str, port: int) -> None:
    """TCP to this port, that comes in by this interface: what a firewall's rule of one line does."""
    is_tcp = "40 0 0 12,21 0 5 2048,48 0 0 23,21 0 3 6"
    program = f"9,{is_tcp},177 0 0 14,72 0 0 16,21 1 0 {port},{_NOT}"
    hosts.on(host, "tc", "qdisc", "add", "dev", device, "clsact")
    hosts.on(host, "tc", "filter", "add", "dev", device, "ingress", "bpf", "da", "bytecode", program)


def test_a_port_of_its_own_that_is_blocked(hosts: Callable[[int], Hosts]) -> None:
    lab = hosts(1)
    named = f"--port-range={PORT}-{PORT + 9}"
    status, found = doctor(named, within=lab.inside(1))
    assert (status, wrong(found)) == (0, [])
    assert found["interface"]["found"].startswith(f"{address(1)} (eth0")
    assert found["ports"]["found"].startswith(f"{PORT}, {PORT + 1}, {PORT + 2} of {address(1)}")

    block(lab, 1, "lo", PORT + 1)
    status, found = doctor(named, within=lab.inside(1))
    assert (status, wrong(found)) == (1, ["ports"])
    assert f"{address(1)} port {PORT + 1}: " in found["ports"]["found"]
    assert "--port-range" in found["ports"]["next"]


def test_a_node_that_waits_behind_a_blocked_port(hosts: Callable[[int], Hosts], tmp_path: Path) -> None:
    """It has written at the run's URL where it waits. Where the host is named, and nobody listens, that is said."""
    lab, run, output = hosts(2), tmp_path / "run", tmp_path / "output"
    (script := tmp_path / "script.py").write_text("")
    waits = ["-m", "elastic", "run", "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={run}"]
    lab.start(1, [sys.executable, *waits, f"--port-range={PORT}-{PORT + 9}", str(script)], env={}, output=output)
    until(lambda: list(run.glob("elastic/meetings/*.json")), "a meeting to be written", within_s=WITHIN_S)

    status, found = doctor(str(run), within=lab.inside(2))
    assert (status, wrong(found)) == (0, [])
    assert found["other nodes"]["verdict"] == "ok"
    meets = int(found["other nodes"]["found"].split(",")[0].rpartition(":")[2])
    assert f"{address(1)}:{meets}, where nodes meet, answers" in found["other nodes"]["found"]

    block(lab, 1, "eth0", meets)
    status, found = doctor(str(run), within=lab.inside(2))
    assert (status, found["other nodes"]["verdict"]) == (0, "note")  # it may have ended, and another run begin
    assert f"{address(1)}:{meets}, where nodes meet, has no answer" in found["other nodes"]["found"]
    assert "security group" in found["other nodes"]["next"]

    named = f"--rdzv-endpoint={address(1)}:{PORT + 100},{address(1)}:{meets},{run}"
    status, found = doctor(named, within=lab.inside(2))
    assert (status, wrong(found)) == (1, ["other nodes"])
    refused, silent, _ = found["other nodes"]["found"].split("; ")
    assert refused == f"{address(1)}:{PORT + 100}, as named, fails: Connection refused"
    assert silent.startswith(f"{address(1)}:{meets}, as named, has no answer")
