"""Nodes that know nothing but the run's URL meet at one store, whoever was there before."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters

from elastic.errors import ConfigError
from elastic.launch.rendezvous import written_meeting
from elastic.launch.rendezvous.store_host import StoreHost
from elastic.launch.rendezvous.written_meeting import FOLDER, MOVING_S, MeetingSearch
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.storage import Storage

pytestmark = pytest.mark.nightly(sample=5, of="meetings by storage")

HERE = "127.0.0.1"
WITHIN_S = 60.0

Begin = Callable[..., MeetingSearch]


@pytest.fixture(scope="module")
def stores() -> Iterator[StoreHost]:
    host = StoreHost(9, preloaded=False, say=print)
    yield host
    host.close()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stores: StoreHost) -> Iterator[Begin]:
    """A node's search, by the same folder."""
    monkeypatch.setattr(written_meeting, "_POLL_S", 0.02)
    monkeypatch.setattr(written_meeting, "SILENT_S", 1.0)
    monkeypatch.setattr(written_meeting, "_ANSWER_S", 3.0)
    begun: list[MeetingSearch] = []

    def params(endpoint: str) -> RendezvousParameters:
        return RendezvousParameters("c10d", endpoint, "run", 1, 9, HERE, read_timeout=10)

    def make(
        *, url: str = str(tmp_path), ports: range | None = None, hub_silent_s: Callable[[], float | None] = lambda: None
    ) -> MeetingSearch:
        begun.append(MeetingSearch(url, HERE, ports, params, stores, hub_silent_s))
        return begun[-1]

    yield make
    for search in begun:
        search.end()
    for search in begun:
        search.settle()  # or its last look would be counted by the next test


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def met(*searches: MeetingSearch) -> list[Any]:
    """Their stores."""
    wait_for(lambda: all(search.take() or search.error for search in searches))
    assert [search.error for search in searches] == [None] * len(searches)
    return [found.store for search in searches if (found := search.take()) is not None]


def write(folder: Path, number: int, text: str) -> None:
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / FOLDER / f"{number:06}.json").write_text(text)


def written_store(port: int, nonce: str = "theirs") -> str:
    return json.dumps({"host": HERE, "port": port, "nonce": nonce})


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


def test_nodes_that_come_at_once_meet_at_one_store(begin: Begin, tmp_path: Path) -> None:
    stores = met(*(begin() for _ in range(6)))
    for number, store in enumerate(stores):
        store.set(f"from {number}", str(number))
    assert all(store.get(f"from {number}") == str(number).encode() for store in stores for number in range(6))
    assert written(tmp_path) == ["000001.json"]


@pytest.mark.nightly(sample=3)
@pytest.mark.parametrize(
    "left", ["a port that nobody has", "another's store", "a silent server", "nonsense", "no host"]
)
def test_what_was_left_by_nodes_that_are_gone_is_superseded(begin: Begin, tmp_path: Path, left: str) -> None:
    """As after the loss of all machines, whose addresses others may have by now."""
    free = socket.create_server((HERE, 0))
    port = free.getsockname()[1]
    other = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    other.set("elastic/meeting", "not theirs")
    if left == "a port that nobody has":
        free.close()
    texts = {"another's store": written_store(other.port), "nonsense": '{"host": 1}'}
    texts["no host"] = written_store(port).replace(HERE, "a..b")
    write(tmp_path, 7, texts.get(left, written_store(port)))
    one, two = begin(), begin()
    here, there = met(one, two)
    here.set("key", "value")
    assert there.get("key") == b"value"
    assert written(tmp_path) == ["000007.json", "000008.json"]
    free.close()
    wait_for(lambda: "elastic-store" not in [thread.name for thread in threading.enumerate()])


def test_a_name_in_another_script_s_digits_is_no_meeting(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "٠٠٠٠٠٧.json").write_text(written_store(1))
    met(begin())
    assert "000001.json" in written(tmp_path)


def test_nobody_meets_anew_while_the_hub_of_a_run_may_be_moving(begin: Begin, tmp_path: Path) -> None:
    asked: list[float] = []

    def silent_s() -> float:
        asked.append(10.0 * len(asked))
        return asked[-1]

    met(begin(hub_silent_s=silent_s))
    assert asked == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_nobody_meets_where_a_node_waited_that_has_found_the_hub_meanwhile(begin: Begin, tmp_path: Path) -> None:
    """Its store lives as long as it does."""
    first, waits = begin(), begin()
    stores = met(first, waits)
    assert not waits.is_over(stores[1])
    first.say_over(stores[0])
    assert waits.is_over(stores[1])
    later = begin()
    assert met(later)[0].port != stores[0].port
    assert written(tmp_path) == ["000001.json", "000002.json"]


def test_a_search_that_has_ended_looks_no_more(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Storage] = []
    monkeypatch.setattr(MeetingSearch, "_is_superseded", lambda _, storage: looks.append(storage))
    search = begin()
    met(search)
    search.settle()
    assert looks == []


def test_a_store_that_nobody_took_is_closed(begin: Begin, tmp_path: Path) -> None:
    """The hub was found while it was opened."""
    search = begin()
    wait_for((tmp_path / FOLDER / "000001.json").exists)
    search.settle()
    assert search.take() is None
    port = json.loads((tmp_path / FOLDER / "000001.json").read_text())["port"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HERE, port), timeout=WITHIN_S)


def test_a_round_waits_as_well_while_the_hub_may_be_moving(begin: Begin) -> None:
    assert begin().may_begin()
    assert not begin(hub_silent_s=lambda: MOVING_S).may_begin()


def test_storage_that_fails_for_a_while_is_asked_again(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def newest(storage: Storage) -> tuple[int, None]:
        looks.append(len(looks))
        if len(looks) in (2, 3):
            raise CheckpointError("503")
        return 0, None

    monkeypatch.setattr(written_meeting, "newest_meeting", newest)
    met(begin(hub_silent_s=lambda: 0.0 if len(looks) < 4 else None))
    assert len(looks) >= 4


def test_a_node_that_was_not_to_be_reached_for_a_while_learns_that_the_others_meet_elsewhere(
    begin: Begin, tmp_path: Path
) -> None:
    first = begin()
    (store,) = met(first)
    assert not first.is_over(store)
    other = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    other.set("elastic/meeting", "theirs")
    write(tmp_path, 2, written_store(other.port))
    wait_for(lambda: first.is_over(store))


def test_the_store_keeps_to_the_range_of_ports(begin: Begin, tmp_path: Path) -> None:
    with socket.create_server((HERE, 0)) as taken, socket.create_server((HERE, 0)) as free:
        ports = range(taken.getsockname()[1], taken.getsockname()[1] + 1)
        fits = free.getsockname()[1]
        free.close()
        full = begin(ports=ports)
        wait_for(lambda: full.error)
        assert "no port of 127.0.0.1 is free" in str(full.error)
        (store,) = met(begin(ports=range(fits, fits + 1)))
        assert store.port == fits


class Careless(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Creates over what is there."""

    protocol = "careless"
    store: dict[str, Any] = {}  # noqa: RUF012  # as the base class has it

    def pipe_file(self, path: str, value: Any, mode: str = "overwrite", **options: Any) -> None:
        super().pipe_file(path, value, mode="overwrite", **options)


def test_a_storage_that_lets_two_create_the_same_object_is_refused(begin: Begin) -> None:
    fsspec.register_implementation("careless", Careless, clobber=True)
    search = begin(url="careless://run")
    wait_for(lambda: search.error)
    assert isinstance(search.error, ConfigError)
    assert "name the host at which they meet" in str(search.error)


def test_a_storage_that_cannot_be_read_is_said(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    search = begin(url=str(tmp_path / "file"))
    wait_for(lambda: search.error)
    assert "the nodes cannot meet by the run's storage" in str(search.error)
