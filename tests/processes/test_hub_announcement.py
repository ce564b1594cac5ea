"""What the hub's process writes into the rendezvous' stores, which come and go: torch's, at real ports."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import pytest
from torch.distributed import HashStore, TCPStore

from checkpoint.net.listener import listen
from elastic.launch.hub_announcement import HubAnnouncement, write_hub

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
    for before in (json.dumps({**HUB, "nonce": "another's"}), "no hub", ""):
        held = HashStore()
        held.set(KEY, before)
        write_hub(held, KEY, HUB)
        assert held.get(KEY).decode() == (before if "another" in before else json.dumps(HUB)), before


def test_a_store_is_told_that_opens_where_something_else_listened(announces: HubAnnouncement, port: int) -> None:
    with listen("127.0.0.1", range(port, port + 1)) as listener:
        announces.begin()
        for connection in [listener.accept()[0] for _ in range(2)]:  # the look, and torch's client
            connection.close()
    opened = store(port)
    wait_until(partial(is_told, opened))
