"""Where a hub is, anybody may have written: a node that looks there goes on looking, whatever it finds."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from elastic.launch.hub.written_lookup import HubLookup, LookupByUrl
from elastic.membership import hub_file
from elastic.membership.messages.messages import HubIs, Refusal, as_message
from elastic.membership.messages.wire import encode

WITHIN_S = 30.0
OWN = "127.0.0.1", 1
HUB = {"host": "127.0.0.1", "port": 7000, "nonce": "n"}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"{" * 4000,
        b"[" * 4000,
        b'{"a":' * 800,
        b" " * 5000 + json.dumps(HUB).encode(),
        *(json.dumps({**HUB, **wrong}).encode() for wrong in (
            {"port": "7000"}, {"port": 0}, {"port": 70_000}, {"port": -1}, {"port": 7000.0}, {"port": True},
            {"host": None}, {"host": ["127.0.0.1"]}, {"nonce": 7}, {"nonce": None},
        )),
    ],
)  # fmt: skip
def test_what_is_no_hub_s_address_is_none(tmp_path: Path, text: bytes) -> None:
    """The thread that looked died of it, and the joiner waited 600 s without a word."""
    path = tmp_path / hub_file.KEY
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    assert hub_file.read(tmp_path) is None
    path.write_text(json.dumps({**HUB, "more": 1}))
    assert hub_file.read(tmp_path) == {**HUB, "more": 1}


def test_a_hub_that_is_written_over_nonsense_is_found(tmp_path: Path) -> None:
    path = tmp_path / hub_file.KEY
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**HUB, "host": ["127.0.0.1"]}))
    lookup = LookupByUrl(str(tmp_path), None, OWN)
    assert lookup.looked.wait(WITHIN_S)
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub_file.write(tmp_path, None, written(hub))
        answers(hub, HubIs(address="127.0.0.1", port=hub.getsockname()[1]))
        joined, _ = hub.accept()
        lookup.end()
        joined.close()


def test_a_url_that_no_storage_has_ends_the_search_with_why() -> None:
    """The thread that looked died of it, and the node waited for its word until the deadline."""
    looks = LookupByUrl("nosuch://bucket/run", None, OWN)
    assert looks.looked.wait(WITHIN_S)
    looks.end()
    assert "nothing here opens nosuch://" in str(looks.failure)


def test_an_agent_asks_neither_itself_nor_goes_there() -> None:
    """With --port-range, an agent that is started again has the address of the one before it, which is still written:
    each look asked its own port, where nobody listens yet, for five seconds."""
    with socket.create_server(("127.0.0.1", 0)) as own, socket.create_server(("127.0.0.1", 0)) as other:
        own.setblocking(False)
        lookup = HubLookup(None, own.getsockname())
        assert lookup.connect(written(own)) is None
        assert "is this agent's own address" in lookup.unreachable("hub  ")
        asked(lookup, other, HubIs(address="127.0.0.1", port=own.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            own.accept()


def test_another_run_at_the_address_is_said_to_be_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        lookup = HubLookup(None, OWN)
        asked(lookup, other, Refusal(why="the agent here is of another run"))
        assert "refuses: the agent here is of another run" in lookup.unreachable("hub  ")
        assert not lookup.refused, "it is no matter of secrets: the hub may yet be written there"


def asked(lookup: HubLookup, who: socket.socket, says: Any) -> None:
    """Nothing is found by what it says."""
    answer = threading.Thread(target=answers, args=[who, says], daemon=True)
    answer.start()
    assert lookup.connect(written(who)) is None
    answer.join(WITHIN_S)


def answers(who: socket.socket, says: Any) -> None:
    who.settimeout(WITHIN_S)
    connection, _ = who.accept()
    with connection:
        connection.settimeout(WITHIN_S)
        assert b"where_is_the_hub" in connection.recv(1 << 16)
        connection.sendall(encode({"to": None, **as_message(says)}))


def written(who: socket.socket) -> dict[str, Any]:
    host, port = who.getsockname()
    return {"host": host, "port": port, "nonce": "n"}
