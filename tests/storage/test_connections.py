"""Connections between one process and many: nothing said is lost, who dies is noticed, and strangers are not heard."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_checkpoint.net import port as ports
from elastic_checkpoint.net.codec import NotAMessage
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from elastic_checkpoint.net.peers import Client, Server
from elastic_checkpoint.net.secret import VARIABLE, WANTS_TLS
from elastic_checkpoint.net.transport import client_side, server_side

WITHIN_S = 30.0
SECRET = "known to its processes alone, and random"

# A client in a process of its own: says what it reads, line by line; "fork" leaves a child that sleeps.
PROGRAM = """
import json, os, sys, time
from elastic_checkpoint.net.peers import Client
say = lambda message: print(json.dumps(message), flush=True)
client = Client(json.loads(sys.argv[1]), int(sys.argv[2]), say, print)
for line in sys.stdin:
    if line == "fork\\n":
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    client.send({"text": line.strip() * 100_000})
"""

# A client that may have no more descriptors, one more, two more and so on.
FEW_DESCRIPTORS = """
import json, os, resource, sys
import elastic_checkpoint.net.tls
from elastic_checkpoint.net.peers import Client
most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for free in range(12):
    limit = len(os.listdir("/proc/self/fd")) - 1 + free
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        client, how = Client(json.loads(sys.argv[1]), 1, print, print), "connected"
    except OSError as error:
        client, how = None, "OSError"
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    print(how, flush=True)
    if client is not None:
        client.close()
"""


class Listener:
    """A server and what it was told, in order."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.server = Server(
            self._hear,
            lambda number, why: self.told.put((number, why)),
            came=lambda number: self.told.put((number, {})),
        )

    def _hear(self, number: int, message: dict[str, Any]) -> None:
        if "odd" in message:
            raise NotAMessage(f"no known word: {message['odd']}")
        if "bug" in message:
            raise KeyError(message["bug"])
        self.told.put((number, message))

    def next(self) -> tuple[int, Any]:
        return self.told.get(timeout=WITHIN_S)


@pytest.fixture(autouse=True, params=[None, SECRET], ids=["no secret", "a secret"])
def secret(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All holds with a secret of the run as without one."""
    has(request.param, monkeypatch)


@pytest.fixture
def listener(secret: None) -> Iterator[Listener]:
    one = Listener()
    yield one
    one.server.close()


@pytest.fixture
def others(listener: Listener) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes with clients 1 and 2."""
    made = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(listener.server.endpoint), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        for number in (1, 2)
    ]
    assert sorted(listener.next() for _ in made) == [(1, {}), (2, {})]
    yield made
    for one in made:
        os.killpg(one.pid, signal.SIGKILL)
        one.communicate(timeout=WITHIN_S)


def has(secret: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if secret is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, secret)


def say(other: subprocess.Popen[str], line: str) -> None:
    assert other.stdin is not None
    other.stdin.write(line + "\n")
    other.stdin.flush()


def test_what_was_said_is_heard_before_the_one_who_said_it_is_gone(
    listener: Listener, others: list[subprocess.Popen[str]]
) -> None:
    """Messages of some 100 KB each, and a SIGKILL right after the last of them."""
    for text in "abc":
        say(others[0], text)
    assert [listener.next()[1]["text"][:2] for _ in "ab"] == ["aa", "bb"]
    number, last = listener.next()
    others[0].kill()
    assert (number, last["text"]) == (1, "c" * 100_000)
    number, why = listener.next()
    assert number == 1
    assert isinstance(why, str)
    assert not listener.server.send(1, {"lost": True})

    assert listener.server.send(2, {"n": 1})
    assert others[1].stdout is not None
    assert others[1].stdout.readline() == '{"n": 1}\n'


def test_a_forked_child_does_not_keep_a_dead_process_connected(
    listener: Listener, others: list[subprocess.Popen[str]]
) -> None:
    """A data loader's workers outlive the rank that they belong to for a while."""
    say(others[0], "fork")
    listener.next()
    others[0].kill()
    assert listener.next()[0] == 1


def test_a_stopped_process_is_not_gone(listener: Listener, others: list[subprocess.Popen[str]]) -> None:
    """It may be slow, or swapped out: a deadline decides, which knows how long a save may take."""
    others[0].send_signal(signal.SIGSTOP)
    with pytest.raises(queue.Empty):
        listener.told.get(timeout=1.0)
    others[0].send_signal(signal.SIGCONT)
    say(others[0], "x")
    assert listener.next()[1]["text"][0] == "x"


def test_the_others_learn_that_the_centre_is_gone() -> None:
    server = Server(lambda number, message: None, lambda number, why: None)
    gone: queue.SimpleQueue[str] = queue.SimpleQueue()
    clients = [Client(server.endpoint, number, lambda message: None, gone.put) for number in (1, 2)]
    server.close()
    server.close()
    assert [type(gone.get(timeout=WITHIN_S)) for _ in clients] == [str, str]
    deadline_s = time.monotonic() + WITHIN_S
    while clients[0].send({"x": 1}) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not clients[0].send({"x": 1})
    with pytest.raises(OSError, match="nobody is reached at port"):
        Client(server.endpoint, 1, lambda message: None, lambda why: None)


def test_a_client_for_which_no_descriptor_is_left_says_so_and_leaves_none_open(listener: Listener) -> None:
    """A secret needs two more than the connection, which stayed open where they were not there."""
    asked = subprocess.run(
        [sys.executable, "-X", "dev", "-c", FEW_DESCRIPTORS, json.dumps(listener.server.endpoint)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=4 * WITHIN_S,
        check=True,
    )
    ends = asked.stdout.splitlines()
    assert {*ends} == {"OSError", "connected"}, ends
    assert "unclosed" not in asked.stderr, asked.stderr


def test_whoever_comes_back_takes_the_place_of_its_predecessor(listener: Listener) -> None:
    """A writer process that was killed, and its successor, which is faster than the news of the death."""
    first = Client(listener.server.endpoint, 1, lambda message: None, lambda why: None)
    assert listener.next() == (1, {})
    heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
    second = Client(listener.server.endpoint, 1, heard.put, lambda why: None)
    assert listener.next() == (1, "it connected anew")
    assert listener.next() == (1, {})
    assert listener.server.send(1, {"for": "the second"})
    assert heard.get(timeout=WITHIN_S) == {"for": "the second"}
    first.close()
    assert second.send({"n": 1})
    assert listener.next() == (1, {"n": 1})
    second.close()
    assert listener.next()[0] == 1


def test_who_says_what_is_no_message_is_hung_up_on_with_the_reason(listener: Listener) -> None:
    """A KeyError ended the thread that listens to all: from then on nobody was heard, and nobody's death was seen."""
    gone: queue.SimpleQueue[str] = queue.SimpleQueue()
    odd = Client(listener.server.endpoint, 1, lambda message: None, gone.put)
    other = Client(listener.server.endpoint, 2, lambda message: None, gone.put)
    assert sorted(listener.next() for _ in "ab") == [(1, {}), (2, {})]
    odd.send({"odd": "sings"})
    odd.send({"n": 1})
    assert listener.next() == (1, "what it said was refused: no known word: sings")
    gone.get(timeout=WITHIN_S)  # it ended; or was reset, where what it said last lay unread
    assert other.send({"n": 2})
    assert listener.next() == (2, {"n": 2}), "and others are heard as ever"
    other.close()


def test_what_meets_a_bug_costs_the_connection_that_it_came_by_and_no_other(
    listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended the thread: all that it served were hung up on, and the log said nothing of whom it was about."""
    gone: queue.SimpleQueue[str] = queue.SimpleQueue()
    one = Client(listener.server.endpoint, 1, lambda message: None, gone.put)
    other = Client(listener.server.endpoint, 2, lambda message: None, gone.put)
    assert sorted(listener.next() for _ in "ab") == [(1, {}), (2, {})]
    one.send({"bug": "of ours"})
    assert listener.next() == (1, "what it said was refused: KeyError: 'of ours'")
    gone.get(timeout=WITHIN_S)
    assert other.send({"n": 2})
    assert listener.next() == (2, {"n": 2})
    (told,) = caplog.records
    assert told.exc_info is not None
    assert told.exc_info[0] is KeyError
    other.close()


def test_who_is_said_what_is_no_message_hangs_up(listener: Listener) -> None:
    def refuse(message: dict[str, Any]) -> None:
        raise NotAMessage("no known word: sings")

    gone: queue.SimpleQueue[str] = queue.SimpleQueue()
    Client(listener.server.endpoint, 1, refuse, gone.put)
    assert listener.next() == (1, {})
    assert listener.server.send(1, {"odd": "sings"})
    assert gone.get(timeout=WITHIN_S) == "what it said was refused: no known word: sings"
    assert listener.next() == (1, "its connection ended")


def test_from_another_machine_it_is_reached_at_one_of_its_addresses(listener: Listener) -> None:
    """The loopback is tried on the same machine only."""
    endpoint = listener.server.endpoint
    if not endpoint["addresses"]:
        pytest.skip("needs a network interface beside the loopback")
    elsewhere = endpoint | {"machine": ["another", None]}
    client = Client(elsewhere, 5, lambda message: None, lambda why: None)
    assert listener.next() == (5, {})
    client.close()


@pytest.mark.parametrize(
    "line",
    [
        b'{"say": "greeting", "number": 1, "token": "guessed"}\n',
        b'{"say": "greeting", "number": "1", "token": 7}\n',
        b'{"number": 1, "token": "guessed"}\n',
        '{"say": "greeting", "number": 1, "token": "é"}\n'.encode(),
        b"[]\n",
        b"[" * 4000 + b"\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"x" * 10_000,
        b"\xff\xfe\n",
    ],
)
def test_who_does_not_know_the_token_is_hung_up_on(line: bytes, listener: Listener) -> None:
    with socket.create_connection(("127.0.0.1", listener.server.endpoint["port"]), timeout=WITHIN_S) as stranger:
        stranger.sendall(line)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(100) in (b"", WANTS_TLS)
            assert stranger.recv(100) == b""
    client = Client(listener.server.endpoint, 3, lambda message: None, lambda why: None)
    assert listener.next() == (3, {}), "and others are heard as ever"
    client.close()


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"port": "80"}, r"this is no endpoint of a process: Expected `int`, got `str` - at `\$\.port`"),
        ({"port": 80_000}, r"at `\$\.port`"),
        ({"machine": [], "addresses": ["x" * 300]}, "nobody is reached at port"),
        ({"machine": [], "addresses": ["\0"]}, "nobody is reached at port"),
        ({"token": None}, r"got `null` - at `\$\.token`"),
        ({"machine": "here"}, r"got `str` - at `\$\.machine`"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_what_is_no_endpoint_is_refused_by_name(changed: dict[str, Any], refusal: str, listener: Listener) -> None:
    """It comes from another rank."""
    with pytest.raises(OSError, match=refusal):
        Client(listener.server.endpoint | changed, 1, lambda message: None, lambda why: None)


@pytest.mark.parametrize("said", [b"{}\n", b'{"say": "good morning"}\n', b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_who_does_not_welcome_is_none_of_ours(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program may have got the port, long after the server that had it."""
    has(None, monkeypatch)
    listener = Listener()
    endpoint = listener.server.endpoint
    listener.server.close()
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            caller, _ = other.accept()
            with caller:
                caller.sendall(said)
                caller.recv(4096)

        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        with pytest.raises(OSError, match="somebody else listens there"):
            Client(endpoint | {"addresses": [], "port": other.getsockname()[1]}, 1, lambda message: None, print)
        answering.join(WITHIN_S)


def test_strangers_who_say_nothing_do_not_use_up_the_descriptors(listener: Listener) -> None:
    """The oldest of too many is hung up on, though it is connected still; those who say their token are not."""
    client = Client(listener.server.endpoint, 3, lambda message: None, lambda why: None)
    assert listener.next() == (3, {})
    with contextlib.ExitStack() as held:
        port = listener.server.endpoint["port"]
        strangers = [
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)) for _ in range(200)
        ]
        with contextlib.suppress(ConnectionResetError):
            assert strangers[0].recv(1) == b""
        assert client.send({"n": 1})
        assert listener.next() == (3, {"n": 1})
    client.close()


@pytest.mark.parametrize(
    ("theirs", "why"),
    [("that of another run, and as long", "it has another ELASTIC_SECRET"), (None, "ELASTIC_SECRET, and this process")],
    ids=["another", "none"],
)
def test_who_has_another_secret_is_refused_and_both_say_so(
    theirs: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the token: that may travel in the clear."""
    for known, unknown in ((SECRET, theirs), (theirs, SECRET)):
        has(known, monkeypatch)
        listener = Listener()
        has(unknown, monkeypatch)
        with pytest.raises(OSError, match=why) as refused:
            Client(listener.server.endpoint, 1, lambda message: None, lambda why: None)
        assert "give all nodes of the run the same ELASTIC_SECRET" in str(refused.value)
        listener.server.close()
        assert "ELASTIC_SECRET" in listener.server.refused
        assert SECRET not in str(refused.value) + listener.server.refused
        assert listener.told.empty()


def test_reading_does_not_wait_for_what_is_just_being_sent() -> None:
    """Who reads for all ranks waited until one of them had taken what was said to it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    heard: list[Any] = []
    with theirs, EventLoop() as loop:
        caller = client_side(SECRET)
        connection = Connection(loop, ours, heard.append, heard.append, server_side(SECRET))
        theirs.sendall(caller.encrypt())
        assert run_once(loop, WITHIN_S)
        caller.decrypt(theirs.recv(1 << 16))
        connection.say({"much": "x" * 10_000_000})
        theirs.sendall(caller.encrypt(b'{"n": 1}\n'))
        while not heard:
            assert run_once(loop, WITHIN_S)
        assert heard == [{"n": 1}]
        assert connection.unsent, "nobody has taken what it sends"
        connection.close()


def test_who_stops_in_the_middle_of_saying_who_it_is_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_IDENTIFY_WITHIN_S", 0.3)
    has(SECRET, monkeypatch)
    listener = Listener()
    port = listener.server.endpoint["port"]
    with contextlib.ExitStack() as held:
        half = [b"", b"\x16", client_side(SECRET).encrypt()[:-1]]
        strangers = [held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)) for _ in half]
        for stranger, said in zip(strangers, half, strict=True):
            stranger.sendall(said)
        client = Client(listener.server.endpoint, 3, lambda message: None, lambda why: None)
        for stranger in strangers:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert listener.next() == (3, {})
        assert client.send({"n": 1})
        assert listener.next() == (3, {"n": 1}), "who has said who it is stays"
        client.close()
    listener.server.close()
