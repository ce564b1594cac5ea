"""What the hub's process writes into the rendezvous' stores, which come and go: torch's, at real ports."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from torch.distributed import HashStore, TCPStore

from elastic.launch.hub.announcement import HubAnnouncement, write_hub
from elastic.membership import hub_file
from elastic_checkpoint.net.port import listen
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=5, of="announcements of a hub")

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
    large = json.dumps({**HUB, "nonce": "a stranger's", "nodes": [[]] * (1 << 20)}).encode()
    for before in (json.dumps({**HUB, "nonce": "another's"}).encode(), b"no hub", b"\xffno text", b"", large):
        held = HashStore()
        held.set(KEY, before)  # type: ignore[arg-type]
        write_hub(held, KEY, HUB)
        assert held.get(KEY) == (before if b"another" in before else json.dumps(HUB).encode()), before[:99]


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
    announces.withdraw(everywhere=True)
    assert opened.get(KEY) == b""
    assert not announcing()

    announces = HubAnnouncement([f"127.0.0.1:{port}"], KEY, HUB)
    others = json.dumps({**HUB, "nonce": "another's"})
    opened.set(KEY, others)
    announces.begin()
    announces.withdraw(everywhere=True)
    assert opened.get(KEY) == others.encode()


def test_a_run_that_is_over_at_once_takes_its_word_back(announces: HubAnnouncement, port: int) -> None:
    """Whatever its threads had come to: the word was there before them, or they were just writing it."""
    opened = store(port)
    for at in range(18):
        opened.set(KEY, json.dumps(HUB))
        announces = HubAnnouncement([f"127.0.0.1:{port}"], KEY, HUB)
        announces.begin()
        time.sleep(at % 6 / 2000)
        announces.withdraw(everywhere=True)
        assert opened.get(KEY) == b"", at
        wait_until(lambda: not announcing())


@pytest.mark.nightly(sample=2, of="who comes after a hub")
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


WAITS = "this node waits 30 s for it"
GOES_ON = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).touch()\ntime.sleep({within})\n"


def by_url(folder: Path, script: str, *argv: object) -> Launch:
    """A node that knows nothing but the run's URL."""
    (folder / "script.py").write_text(script)
    meet = ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={folder / 'run'}"]
    launcher = ["run", "--no-status", "--max-restarts=0", *meet, "--rdzv-conf=join_timeout=15"]
    return Launch("elastic", [*launcher, str(folder / "script.py"), *map(str, argv)])


def begun(folder: Path, name: str) -> Launch:
    node = by_url(folder, GOES_ON.format(within=WITHIN_S), folder / name)
    node.wait_for((folder / name).exists, "the script", within_s=WITHIN_S)
    return node


@pytest.mark.nightly(sample=2, of="who comes after a hub")
@pytest.mark.parametrize("end", ["finished", "failed", "left"])
def test_who_comes_after_a_run_s_end_waits_for_no_hub(tmp_path: Path, end: str) -> None:
    """It waited half a minute for the hub of a run that was over, as it does for one that may be moving."""
    if end == "left":
        with begun(tmp_path, "began") as node:
            node.send(signal.SIGTERM)
            assert node.finish(within_s=WITHIN_S) == 0, node.output
    else:
        with by_url(tmp_path, "raise SystemExit(1)" if end == "failed" else "") as node:
            assert node.finish(within_s=WITHIN_S) == (end == "failed"), node.output
    with by_url(tmp_path, "") as node:
        assert WAITS not in node.succeed(within_s=WITHIN_S)


@pytest.mark.nightly(sample=2, of="who comes after a hub")
def test_who_comes_after_a_hub_was_killed_waits_for_the_next_one(tmp_path: Path) -> None:
    """Nobody has said that it has ended, nor whether others go on; an earlier run's word there says nothing of it."""
    with by_url(tmp_path, "") as node:
        node.succeed(within_s=WITHIN_S)
    with begun(tmp_path, "began") as node:
        node.send(signal.SIGKILL)
        node.finish(within_s=WITHIN_S)
    with by_url(tmp_path, "") as node:
        assert node.finish(within_s=WITHIN_S) == 1, node.output
        assert WAITS in node.output


@pytest.mark.nightly(sample=2, of="who comes after a hub")
def test_a_hub_that_hands_over_says_no_end_and_the_one_after_it_does(tmp_path: Path) -> None:
    """Both are of one run, and where the hub is stays written until there is a view."""
    with begun(tmp_path, "first") as first, begun(tmp_path, "second") as second:
        met = hub_file.read(str(tmp_path / "run"))
        first.send(signal.SIGTERM)
        assert first.finish(within_s=WITHIN_S) == 0, first.output
        assert "this node is the run's hub now" in second.output
        assert met is not None
        assert hub_file.read(str(tmp_path / "run")) == met
        second.send(signal.SIGTERM)
        assert second.finish(within_s=WITHIN_S) == 0, second.output
    assert hub_file.read(str(tmp_path / "run")) is None


@pytest.mark.parametrize("everywhere", [True, False])
def test_only_what_cannot_go_on_elsewhere_is_said_to_have_ended(tmp_path: Path, everywhere: bool) -> None:
    """On another side of a cut, say, where the next hub has not been written yet."""
    url = str(tmp_path / "run")
    hub_file.write(url, None, HUB)
    HubAnnouncement([], KEY, HUB, url).withdraw(everywhere=everywhere)
    assert hub_file.read(url) == (None if everywhere else HUB)


def test_the_end_of_one_run_says_nothing_of_another_or_of_its_next_hub(tmp_path: Path) -> None:
    url = str(tmp_path / "run")
    hub_file.write(url, None, HUB)
    hub_file.write_end(url, "another's")
    assert hub_file.read(url) == HUB
    hub_file.write_end(url, str(HUB["nonce"]))
    assert hub_file.read(url) is None
    for moved in ({"host": "10.0.0.9"}, {"port": 7002}, {"nonce": "another's"}):
        hub_file.write(url, None, {**HUB, **moved})
        assert hub_file.read(url) == {**HUB, **moved}


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
    opened = store(port)  # else torch's client asks for one until it gives up
    wait_until(lambda: not announcing())
    assert not opened.check([KEY])


def test_a_store_is_told_that_opens_where_something_else_listened(announces: HubAnnouncement, port: int) -> None:
    with listen("127.0.0.1", range(port, port + 1)) as listener:
        announces.begin()
        for connection in [listener.accept()[0] for _ in range(2)]:  # the look, and torch's client
            connection.close()
    opened = store(port)
    wait_until(partial(is_told, opened))
