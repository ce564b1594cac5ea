"""A stranger at the rendezvous' store, which whoever reaches its port may fill: no agent grows, and nodes join."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import DistError, TCPStore

from elastic.drill.machine.processes import listening
from elastic.events.reading import read_events
from elastic.launch.rendezvous.store_host import StoreHost
from elastic.launch.rendezvous.store_process import KEEPER, NAME
from elastic_checkpoint import linux
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit.agents import meet
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=2, of="strangers at a store")

WITHIN_S = 240.0
GROWS_MAX = 200 << 20  # of an agent, which may read once what a stranger has left; what is sent is far more
SENT, MANY = 60, 600
BLOB = b"x" * (7 << 20)
SMALL = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
HUB = "elastic/meeting/hub"  # the key, of tests.kit.agents.meet

Run = Callable[..., Launch]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """run(flags): `elastic run` of one script, all nodes with one secret."""
    secret = generated_secret()
    script = [SMALL, tmp_path / "run", "--steps=300", f"--slow-until={tmp_path / 'hurry'}"]
    with contextlib.ExitStack() as stack:
        yield lambda *flags: stack.enter_context(
            Launch("elastic", ["run", "--no-status", *flags, *script], env={VARIABLE: secret})
        )


def client(port: int) -> TCPStore:
    return TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=10))


def sets(port: int, _stack: contextlib.ExitStack) -> None:
    stranger = client(port)
    for number in range(SENT):
        stranger.set(f"stranger/{number}", BLOB.decode())


def appends_to_what_agents_read(port: int, _stack: contextlib.ExitStack) -> None:
    stranger = client(port)
    for _ in range(SENT):
        stranger.append(HUB, BLOB.decode())  # type: ignore[attr-defined]  # torch's stubs lack it


def begins_messages(port: int, stack: contextlib.ExitStack) -> None:
    """To set a key, as torch 2.13 sends it; the last byte does not come."""
    for _ in range(SENT):
        stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
        stranger.sendall(b"\0" + struct.pack("<I", 0x3C85F7CE))
        stranger.sendall(b"\1" + struct.pack("<Q", 1) + b"k" + struct.pack("<Q", len(BLOB)) + BLOB[:-1])


def connects(port: int, stack: contextlib.ExitStack) -> None:
    """And says nothing."""
    for _ in range(MANY):
        stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))


ATTACKS = (sets, appends_to_what_agents_read, begins_messages, connects)


def attack(port: int, how: Callable[[int, contextlib.ExitStack], None], node: Launch) -> None:
    """Returns when the store that was there has been replaced."""
    (before,) = wait_for_stores(node)
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(DistError, OSError):
            how(port, stack)
        node.wait_for(lambda: stores(node) not in ([], [before]), f"another store after: {how}", within_s=WITHIN_S)


def named(node: Launch, name: str) -> list[int]:
    return [pid for pid in node.pids if (stat := linux.process_stat(pid)) is not None and stat.name == name]


def stores(node: Launch) -> list[int]:
    return named(node, NAME)


def wait_for_stores(node: Launch) -> list[int]:
    node.wait_for(lambda: bool(stores(node)), "a store", within_s=WITHIN_S)
    return stores(node)


def port_of(node: Launch) -> int:
    """Of its store; the agent has the socket, too, so that it stays open."""
    (store,) = wait_for_stores(node)
    (port,) = listening(store)
    assert port in listening(node.process.pid)
    return port


def family() -> dict[int, str]:
    """The keepers of this process, and their stores, by process id: what each is called."""
    keepers = living(linux.children(os.getpid()), KEEPER)
    return {**keepers, **living(linux.children(*keepers), NAME)}


def living(found: dict[int, linux.ProcessStat], name: str) -> dict[int, str]:
    return {pid: stat.name for pid, stat in found.items() if stat.name == name and not stat.is_dead}


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def peaks(nodes: list[Launch]) -> list[int]:
    return [linux.peak_bytes(node.process.pid) or 0 for node in nodes]


def views(url: Path) -> dict[int, int]:
    """How many workers each had, by generation."""
    formed = [event for event in read_events(url) if event["event"] == "view_formed"]
    return {event["generation"]: len(event["workers"]) for event in formed}


def wait_for_steps(node: Launch, url: Path, *, of: int) -> None:
    """Two more, by so many workers."""

    def steps() -> int:
        if not url.exists():
            return 0
        applied = [event for event in read_events(url) if event["event"] == "step_applied"]
        sizes = views(url)
        return sum(sizes.get(event["generation"]) == of for event in applied)

    before = steps()
    node.wait_for(lambda: steps() >= before + 2, f"steps of {of} workers", within_s=WITHIN_S)


@pytest.mark.parametrize("by_url", [False, True], ids=["at a host", "by the run's URL"])
def test_a_filled_store_costs_a_run_nothing_and_nodes_join_as_before(run: Run, tmp_path: Path, by_url: bool) -> None:
    """The store was in the agent: a stranger without the secret filled the memory of its process while it trained."""
    url, flags = tmp_path / "run", meet("2:3")
    if by_url:
        flags[2] = f"--rdzv-endpoint={url}"
    nodes = [run(*flags), run(*flags)]
    wait_for_steps(nodes[0], url, of=2)
    host = next(node for node in nodes if stores(node))
    port, before, trained = port_of(host), peaks(nodes), views(url)
    for how in ATTACKS:
        attack(port, how, host)
    wait_for_steps(nodes[0], url, of=2)
    assert views(url) == trained, "nobody was lost"
    store = client(port)
    store.wait([HUB], timedelta(seconds=WITHIN_S))
    assert b'"nonce"' in store.get(HUB)
    nodes.append(run(*flags))
    wait_for_steps(nodes[0], url, of=3)
    grown = [after - peak for after, peak in zip(peaks(nodes), before, strict=False)]
    assert max(grown) < GROWS_MAX, grown
    assert f"the rendezvous' store at port {port} is opened anew: what it holds has grown by " in host.output
    (tmp_path / "hurry").touch()
    for node in nodes:
        node.succeed(within_s=WITHIN_S)
        assert node.pids == []


def test_a_node_that_waits_for_others_goes_on_waiting_where_its_store_was_filled(run: Run, tmp_path: Path) -> None:
    url, flags = tmp_path / "run", meet("2:2")
    waits = run(*flags)
    waits.wait_for(lambda: "waiting at" in waits.output, "the rendezvous", within_s=WITHIN_S)
    port, before = port_of(waits), peaks([waits])
    for how in ATTACKS:
        attack(port, how, waits)
    other = run(*flags)
    wait_for_steps(waits, url, of=2)
    assert peaks([waits])[0] - before[0] < GROWS_MAX
    (tmp_path / "hurry").touch()
    for node in (waits, other):
        node.succeed(within_s=WITHIN_S)
        assert node.pids == []


def test_a_store_ends_with_its_agent_however_that_ends(run: Run, tmp_path: Path) -> None:
    flags = meet("1:2")
    for how in (signal.SIGTERM, signal.SIGKILL):
        node = run(*flags)
        wait_for_steps(node, tmp_path / "run", of=1)
        assert len(named(node, KEEPER)) == len(stores(node)) == 1
        port = port_of(node)
        node.send(how)
        node.finish(within_s=WITHIN_S)
        wait_until(lambda: not node.pids)  # noqa: B023
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def test_a_node_that_hosts_no_store_keeps_no_process_for_it(run: Run, tmp_path: Path) -> None:
    flags = meet("2:2")
    nodes = [run(*flags), run(*flags)]
    wait_for_steps(nodes[0], tmp_path / "run", of=2)
    assert sorted(len(stores(node)) for node in nodes) == [0, 1]
    assert sorted(len(named(node, KEEPER)) for node in nodes) == [0, 1]
    (tmp_path / "hurry").touch()
    for node in nodes:
        node.succeed(within_s=WITHIN_S)


def test_a_store_and_a_keeper_that_are_killed_are_replaced_and_what_is_remembered_stands_there() -> None:
    said: list[str] = []
    host = StoreHost(2, preloaded=False, say=said.append)
    try:
        port = host.open(None, {"nonce": "n"})
        assert client(port).get("nonce") == b"n"
        host.remember("hub", "where")
        for name in (NAME, KEEPER):
            (pid,) = [pid for pid, stat in family().items() if stat == name]
            linux.send_signal(pid, signal.SIGKILL)
            wait_until(lambda gone=pid: gone not in family())  # type: ignore[misc]
            assert (client(port).get("hub"), client(port).get("nonce")) == (b"where", b"n")
        assert said[0].startswith(f"the rendezvous' store at port {port} is opened anew: its process was killed")
        assert len(said) == 1, "not again within a minute"
    finally:
        host.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
    wait_until(lambda: not family())
