"""Where the nodes of a run meet: what --rdzv-endpoint names, and which of several stores a node takes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from elastic.errors import ConfigError
from elastic.launch.rendezvous.store import (
    FoundStore,
    RendezvousEndpoints,
    StoreSearch,
    leave_word,
    rendezvous_endpoints,
)
from elastic.launch.rendezvous.store_host import StoreHost

WITHIN_S = 60.0
KEY = "elastic/run/hub"


@pytest.fixture(scope="module")
def stores() -> Iterator[StoreHost]:
    host = StoreHost(4, preloaded=False, say=print)
    yield host
    host.close()


@pytest.mark.parametrize(
    ("endpoint", "hosts", "url"),
    [
        ("", ("",), None),
        ("host1:29400", ("host1:29400",), None),
        ("host1:29400,s3://bucket/run", ("host1:29400",), "s3://bucket/run"),
        ("host1, host2:7000 ,host1", ("host1", "host2:7000"), None),
        ("/shared/run", (), "/shared/run"),
        ("./run,host1", ("host1",), "./run"),
    ],
)
def test_an_endpoint_is_hosts_and_a_url(endpoint: str, hosts: tuple[str, ...], url: str | None) -> None:
    assert rendezvous_endpoints(endpoint) == RendezvousEndpoints(hosts, url)


@pytest.mark.parametrize("endpoint", [":::", "host1:99999", "host1:x", "host1:29400,host2:-1"])
def test_a_port_that_is_none_is_refused(endpoint: str) -> None:
    """It was a traceback."""
    with pytest.raises(ConfigError, match=f"--rdzv-endpoint {endpoint}: (.|\n)*nothing was started"):
        rendezvous_endpoints(endpoint)


def test_two_runs_are_no_place_to_meet() -> None:
    with pytest.raises(ConfigError, match="one URL of the run, found /a,/b"):
        rendezvous_endpoints("/a,/b")


def test_the_first_of_several_hosts_that_answers_has_the_store(stores: StoreHost) -> None:
    """And who is named and did not come to host it leaves a word at its own place: the first may be gone by then."""
    hosts = [f"127.0.0.1:{port}" for port in _free_ports(3)]
    first = _found(StoreSearch(hosts, _params, stores))
    assert first.endpoint == hosts[0], "nobody was there"
    second = _found(StoreSearch(hosts, _params, stores))
    assert second.endpoint == hosts[0]
    second.store.set("who", "meets here")
    assert first.store.get("who") == b"meets here"
    where = {"host": "10.0.0.2", "port": 7, "nonce": "n"}
    leave_word(hosts, stores, KEY, where)
    gone = [f"127.0.0.1:{port}" for port in _free_ports(1)]
    joins = _found(StoreSearch([*gone, *hosts[1:]], _params, stores))
    assert joins.endpoint == hosts[1]
    assert joins.store.get(KEY) == b'{"host": "10.0.0.2", "port": 7, "nonce": "n"}'


def test_one_host_alone_leaves_no_word_anywhere(stores: StoreHost) -> None:
    (port,) = _free_ports(1)
    leave_word([f"127.0.0.1:{port}"], stores, KEY, {})
    assert not stores.hosts(port)


def test_a_host_that_is_not_the_first_gives_it_some_time(monkeypatch: pytest.MonkeyPatch, stores: StoreHost) -> None:
    """Else two of them, started together, would each meet nobody. Here the first is another machine, which is down."""
    first, second = (f"127.0.0.1:{port}" for port in _free_ports(2))
    monkeypatch.setattr("elastic.launch.rendezvous.store.is_here", lambda endpoint: endpoint == second)
    search = StoreSearch([first, second], _params, stores)
    _wait_for(lambda: len(search.failures) == 2)
    assert search.found is None
    monkeypatch.setattr("elastic.launch.rendezvous.store._FIRST_S", 0.0)
    assert _found(search).endpoint == second


def _found(search: StoreSearch) -> FoundStore:
    _wait_for(lambda: search.found or search.error)
    assert search.error is None
    assert search.found is not None
    return search.found


def _wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _params(endpoint: str) -> RendezvousParameters:
    return RendezvousParameters("c10d", endpoint, "run", 1, 4, "127.0.0.1", read_timeout=10)


def _free_ports(count: int) -> list[int]:
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports
