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
from elastic.launch import written_meeting
from elastic.launch.written_meeting import FOLDER, MeetingSearch

HERE = "127.0.0.1"
WITHIN_S = 60.0

Begin = Callable[..., MeetingSearch]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """A node's search, by the same folder."""
    monkeypatch.setattr(written_meeting, "_POLL_S", 0.02)
    monkeypatch.setattr(written_meeting, "_SILENT_S", 0.2)
    monkeypatch.setattr(written_meeting, "_ANSWER_S", 1.0)
    begun: list[MeetingSearch] = []

    def params(endpoint: str) -> RendezvousParameters:
        return RendezvousParameters("c10d", endpoint, "run", 1, 9, HERE, read_timeout=3)

    def make(
        *, url: str = str(tmp_path), ports: range | None = None, hub_silent_s: Callable[[], float | None] = lambda: None
    ) -> MeetingSearch:
        begun.append(MeetingSearch(url, HERE, ports, params, hub_silent_s))
        return begun[-1]

    yield make
    for search in begun:
        search.end()


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def met(*searches: MeetingSearch) -> list[Any]:
    """Their stores."""
    wait_for(lambda: all(search.found or search.error for search in searches))
    assert [search.error for search in searches] == [None] * len(searches)
    return [search.found.store for search in searches if search.found is not None]


def write(folder: Path, number: int, text: str) -> None:
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    (folder / FOLDER / f"{number:06}.json").write_text(text)


def place(port: int, nonce: str = "theirs") -> str:
    return json.dumps({"host": HERE, "port": port, "nonce": nonce})


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


def test_nodes_that_come_at_once_meet_at_one_store(begin: Begin, tmp_path: Path) -> None:
    stores = met(*(begin() for _ in range(6)))
    for number, store in enumerate(stores):
        store.set(f"from {number}", str(number))
    assert all(store.get(f"from {number}") == str(number).encode() for store in stores for number in range(6))
    assert written(tmp_path) == ["000001.json"]


@pytest.mark.parametrize("left", ["a port that nobody has", "another's store", "a silent server", "nonsense"])
def test_what_was_left_by_nodes_that_are_gone_is_superseded(begin: Begin, tmp_path: Path, left: str) -> None:
    """As after the loss of all machines, whose addresses others may have by now."""
    free = socket.create_server((HERE, 0))
    port = free.getsockname()[1]
    other = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    other.set("elastic/meeting", "not theirs")
    if left == "a port that nobody has":
        free.close()
    texts = {"another's store": place(other.port), "nonsense": '{"host": 1}'}
    write(tmp_path, 7, texts.get(left, place(port)))
    one, two = begin(), begin()
    here, there = met(one, two)
    here.set("key", "value")
    assert there.get("key") == b"value"
    assert written(tmp_path) == ["000007.json", "000008.json"]
    free.close()
    wait_for(lambda: "elastic-store" not in [thread.name for thread in threading.enumerate()])


def test_nobody_meets_anew_while_the_hub_of_a_run_may_be_moving(begin: Begin, tmp_path: Path) -> None:
    asked: list[float] = []

    def silent_s() -> float:
        asked.append(4.0 * len(asked))
        return asked[-1]

    met(begin(hub_silent_s=silent_s))
    assert asked == [0.0, 4.0, 8.0, 12.0]


def test_a_node_that_was_not_to_be_reached_for_a_while_learns_that_the_others_meet_elsewhere(
    begin: Begin, tmp_path: Path
) -> None:
    first = begin()
    met(first)
    assert not first.superseded
    other = TCPStore(HERE, 0, is_master=True, wait_for_workers=False)
    other.set("elastic/meeting", "theirs")
    write(tmp_path, 2, place(other.port))
    wait_for(lambda: first.superseded)


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
