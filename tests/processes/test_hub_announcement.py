"""What the hub's process writes into the rendezvous' stores, which come and go: torch's, at real ports."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from checkpoint.net.listener import listen
from elastic.launch.hub.announcement import HubAnnouncement, write_hub
from elastic.membership import hub_file
from tests.kit.launch import Launch

WITHIN_S = 60.0
KEY = "elastic/job/hub"
HUB = {"host": "10.0.0.2", "port": 7001, "nonce": "ours"}


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def announces(port: int) -> Iterator[HubAnnouncement]:
    announcement = HubAnnouncement([f"127.0.0.1:{port}"], KEY, HUB)
    yield announcement
    announcement.end()
    wait_until(lambda: not announcing())


def store(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=WITHIN_S))


def wait_until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s"
        time.sleep(0.01)


def announcing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "elastic-announce"]


def is_told(at: TCPStore) -> bool:
    return at.check([KEY]) and json.loads(at.get(KEY)) == HUB


def test_a_store_that_opens_later_and_the_one_after_it_hear_of_the_hub(announces: HubAnnouncement, port: int) -> None:
    announces.begin()
    for _ in range(2):
        opened = store(port)
        wait_until(partial(is_told, opened))
        del opened


def test_an_older_address_of_the_run_is_replaced(announces: HubAnnouncement, port: int) -> None:
    opened = store(port)
    opened.set(KEY, json.dumps({**HUB, "host": "10.0.0.1"}))
    announces.begin()
    wait_until(partial(is_told, opened))


def test_another_run_s_word_stays_and_what_is_none_does_not() -> None:
    for before in (json.dumps({**HUB, "nonce": "another's"}).encode(), b"no hub", b"\xffno text", b""):
        held = HashStore()
        held.set(KEY, before)  # type: ignore[arg-type]
        write_hub(held, KEY, HUB)
        assert held.get(KEY) == (before if b"another" in before else json.dumps(HUB).encode()), before


def test_the_word_of_one_that_was_the_hub_on_another_side_of_a_cut_does_not_stay(
    announces: HubAnnouncement, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may end later, and whoever comes then finds nobody there, while the run goes on."""
    monkeypatch.setattr("elastic.launch.hub.announcement._AGAIN_S", 0.1)
    opened = store(port)
    announces.begin()
    wait_until(partial(is_told, opened))
    opened.set(KEY, json.dumps({**HUB, "host": "10.0.0.1"}))
    wait_until(partial(is_told, opened))


def test_a_run_that_is_over_takes_its_word_back_and_no_other_s(announces: HubAnnouncement, port: int) -> None:
    opened = store(port)
    announces.begin()
    wait_until(partial(is_told, opened))
    announces.withdraw()
    assert opened.get(KEY) == b""
    assert not announcing()

    announces = HubAnnouncement([f"127.0.0.1:{port}"], KEY, HUB)
    others = json.dumps({**HUB, "nonce": "another's"})
    opened.set(KEY, others)
    announces.begin()
    announces.withdraw()
    assert opened.get(KEY) == others.encode()


def test_the_next_run_at_a_store_that_stays_waits_for_nobody(port: int, tmp_path: Path) -> None:
    """It waited for the hub of the last one, which may have been moving."""
    opened = store(port)
    (tmp_path / "nothing.py").touch()
    meet = ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint=127.0.0.1:{port}"]
    for _ in range(2):
        with Launch("elastic", ["run", "--no-status", *meet, str(tmp_path / "nothing.py")]) as node:
            assert node.succeed(within_s=WITHIN_S).count("it may be moving") == 0
    assert opened.get(KEY) == b""


@pytest.mark.parametrize(
    ("written", "status"),
    [
        pytest.param(b"\xffno text", 0, id="no text"),
        pytest.param(json.dumps({**HUB, "host": "127.0.0.1", "port": 1}).encode(), 1, id="a hub that may be moving"),
    ],
)
def test_a_node_that_may_meet_alone_does_not_where_the_run_has_had_a_hub(
    port: int, tmp_path: Path, written: bytes, status: int
) -> None:
    """It took the hub's lease for its end, met itself, and wrote over where the run is."""
    opened = store(port)
    opened.set(KEY, written)  # type: ignore[arg-type]
    (tmp_path / "nothing.py").touch()
    meet = [
        "--nnodes=1:2",
        "--rdzv-backend=c10d",
        "--rdzv-id=job",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-conf=join_timeout=8",
    ]
    with Launch("elastic", ["run", "--no-status", *meet, str(tmp_path / "nothing.py")]) as node:
        assert node.finish(within_s=WITHIN_S) == status, node.output
        assert ("it may be moving" in node.output) == bool(status)
    assert (opened.get(KEY) == written) == bool(status)


def test_a_node_that_waits_for_the_hub_that_is_written_at_the_run_s_url_says_so(tmp_path: Path) -> None:
    """After the loss of all machines it is the lease of a hub that is gone: half a minute, which was silent."""
    (tmp_path / "nothing.py").touch()
    hub_file.write(str(tmp_path / "run"), None, {**HUB, "host": "127.0.0.1", "port": 1})
    meet = ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={tmp_path / 'run'}"]
    launcher = ["run", "--no-status", *meet, "--rdzv-conf=join_timeout=8", str(tmp_path / "nothing.py")]
    with Launch("elastic", launcher) as node:
        assert node.finish(within_s=WITHIN_S) == 1, node.output
        assert node.output.count("no hub of the run answers where its URL says") == 1, node.output
        assert "nothing was started here" in node.output


def test_what_listens_and_never_answers_holds_one_thread_however_often_this_node_has_the_hub(
    announces: HubAnnouncement, port: int
) -> None:
    with listen("127.0.0.1", range(port, port + 1)) as listener:
        announces.begin()
        mute = [listener.accept()[0] for _ in range(2)]  # the look, and torch's client
        for _ in range(4):
            announces.end()
            announces.begin()
        announces.end()
        wait_until(lambda: len(announcing()) == 1)
    for connection in mute:
        connection.close()


def test_a_store_is_told_that_opens_where_something_else_listened(announces: HubAnnouncement, port: int) -> None:
    with listen("127.0.0.1", range(port, port + 1)) as listener:
        announces.begin()
        for connection in [listener.accept()[0] for _ in range(2)]:  # the look, and torch's client
            connection.close()
    opened = store(port)
    wait_until(partial(is_told, opened))
