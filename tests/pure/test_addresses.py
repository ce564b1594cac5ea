"""Which address a node tells the others, and why; of any machine, as tables say it is."""

from __future__ import annotations

import socket

import pytest

from elastic.drill.machine.hosting import free_port
from elastic.errors import ConfigError
from elastic.launch.net import addresses
from elastic.launch.net.addresses import Chosen, choose, port_range
from elastic_checkpoint.linux import first_ephemeral_port
from elastic_checkpoint.net import port
from elastic_checkpoint.net.machine import host_address, interfaces, own_addresses, resolve

MACHINE = {"lo": ["127.0.0.1", "::1"], "eth0": ["10.0.0.5", "fd00::5"], "ib0": ["192.168.7.5"], "docker0": []}
NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "head": ["10.0.0.1"],
    "storage-net": ["192.168.7.1"],
    "six": ["fd00::1"],
    "both": ["10.0.0.1", "fd00::1"],
    "myself": ["127.0.1.1"],  # Debian's /etc/hosts
    "me": ["10.0.0.5"],
    "10.0.0.1": ["10.0.0.1"],
    "127.0.0.1": ["127.0.0.1"],
    "::1": ["::1"],
}
ROUTES = {
    "10.0.0.1": "10.0.0.5",
    "10.0.0.5": "10.0.0.5",
    "192.168.7.1": "192.168.7.5",
    "fd00::1": "fd00::5",
    None: "10.0.0.5",
}


def chosen(towards: str, asked: str | None = None, *, routes: dict[str | None, str] = ROUTES) -> Chosen:
    return choose(
        towards,
        asked,
        known=MACHINE,
        resolve=lambda name: NAMES.get(name, [name] if name[0].isdigit() else []),
        route=lambda target: routes.get(target, "127.0.0.1"),
    )


@pytest.mark.parametrize(
    ("towards", "address", "interface", "why"),
    [
        ("head", "10.0.0.5", "eth0", "the way to head"),
        ("10.0.0.1", "10.0.0.5", "eth0", "the way to 10.0.0.1"),
        ("storage-net", "192.168.7.5", "ib0", "the way to storage-net"),
        ("six", "fd00::5", "eth0", "the way to six"),
        ("both", "10.0.0.5", "eth0", "the way to both"),
        ("me", "10.0.0.5", "eth0", "the rendezvous' own"),
        ("myself", "10.0.0.5", "eth0", "the way out of this machine"),
        ("nowhere", "10.0.0.5", "eth0", "the way out of this machine"),
        ("", "10.0.0.5", "eth0", "the way out of this machine"),
        ("localhost", "127.0.0.1", None, "this machine alone reaches it, as its rendezvous"),
        ("127.0.0.1", "127.0.0.1", None, "this machine alone reaches it, as its rendezvous"),
        ("::1", "::1", None, "this machine alone reaches it, as its rendezvous"),
    ],
)
def test_the_way_to_the_rendezvous_decides(towards: str, address: str, interface: str | None, why: str) -> None:
    assert chosen(towards) == Chosen(address, interface, why)


@pytest.mark.parametrize(
    ("asked", "address", "interface"),
    [
        ("ib0", "192.168.7.5", "ib0"),
        ("eth0", "10.0.0.5", "eth0"),
        ("192.168.7.5", "192.168.7.5", "ib0"),
        ("me", "10.0.0.5", "eth0"),
        ("localhost", "127.0.0.1", "lo"),
    ],
)
def test_an_interface_an_address_or_a_name_may_be_asked_for(asked: str, address: str, interface: str) -> None:
    assert chosen("head", asked) == Chosen(address, interface, "as --local-addr asks")


@pytest.mark.parametrize("asked", ["10.0.0.77", "head", "eth9"])
def test_what_is_nothing_of_this_machine_is_refused_with_what_it_has(asked: str) -> None:
    with pytest.raises(ConfigError, match=rf"--local-addr={asked} .*(\n.*)*eth0 \(10.0.0.5 fd00::5\), ib0") as refused:
        chosen("head", asked)
    assert "docker0" not in str(refused.value)
    with pytest.raises(ConfigError, match="docker0: this interface has no address"):
        chosen("head", "docker0")


@pytest.mark.parametrize("text", ["", "7000", "7000:7010", "7010-7000", "0-10", "7000-70000", "a-b", "-7000-7010"])
def test_a_port_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--port-range is FIRST-LAST"):
        port_range(text)


def test_the_first_free_port_of_a_range_is_taken() -> None:
    with port.listen("127.0.0.1") as taken:
        first = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port-range={first}-{first}: 127.0.0.1: "):
            addresses.listen("127.0.0.1", range(first, first + 1))
        with addresses.listen("127.0.0.1", range(first, min(first + 50, 1 << 16))) as found:
            assert first < found.getsockname()[1] < first + 50


def test_this_machine_itself() -> None:
    """What the kernel tells: other tests cannot know it."""
    assert "127.0.0.1" in [address for found in interfaces().values() for address in found]
    assert all(addresses.is_own(address) for address in own_addresses())
    assert addresses.is_own("localhost")
    assert addresses.is_own(socket.gethostname())  # which may stand for nothing
    assert not addresses.is_own("192.0.2.7")
    assert resolve("no such name") == []
    assert host_address("127.0.0.1") == "127.0.0.1"


def test_a_port_that_is_told_before_anybody_listens_is_none_that_the_kernel_gives_away() -> None:
    ports = {free_port() for _ in range(50)}
    assert len(ports) > 1
    assert max(ports) < first_ephemeral_port()
