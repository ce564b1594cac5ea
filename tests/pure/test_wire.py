"""What arrives over a channel is data, whoever sent it: a bad line ends that connection and nothing else."""

from __future__ import annotations

import socket

import pytest

from elastic.launch.processes.worker import cut
from elastic.membership.messages.wire import LINE_MAX, Lines, NotAMessage, encode
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.event_loop import EventLoop


def test_messages_come_whole_however_they_are_cut() -> None:
    sent: list[dict[str, object]] = [{"say": "ready", "shares": 8}, {"say": "put", "value": "ä" * 1000}]
    data = b"".join(encode(message) for message in sent)
    lines = Lines()
    assert [message for at in range(0, len(data), 7) for message in lines.feed(data[at : at + 7])] == sent


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b"[]", b"\xff\xfe", b"x" * 10],
    ids=["nested too deeply", "no object", "no text", "no JSON"],
)
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(NotAMessage):
        Lines().feed(line + b"\n")


def test_a_line_without_end_is_refused_before_memory_is() -> None:
    with pytest.raises(NotAMessage, match="a line of more than"):
        Lines().feed(b"x" * (LINE_MAX + 1))


def test_an_exception_of_megabytes_fits_into_a_line_and_keeps_its_beginning_and_its_end() -> None:
    """The agent would take the worker's channel for broken, kill it, and start it again, for ever.

    By what an error begins with, its type, its repetition is known."""
    told = cut("ValueError: " + "\N{PILE OF POO}" * 5_000_000 + "the reason")
    assert told.startswith("ValueError: ")
    assert told.endswith("the reason")
    assert len(encode({"say": "failed", "error": told, "trace": told})) < LINE_MAX
    assert cut("short") == "short"


@pytest.mark.parametrize("characters", [100, 70_000, 150_000])
def test_what_a_dead_worker_said_last_is_heard_however_long_it_is(characters: int) -> None:
    """Its exception may be longer than one read: without it nobody would know why it ended."""
    last = {"say": "failed", "trace": "x" * characters}
    heard: list[object] = []
    agents, workers = socket.socketpair()
    workers.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    with EventLoop() as loop, workers, workers.dup() as of_its_child:
        connection = Connection(loop, agents, heard.append, lambda why: None)
        workers.sendall(encode(last))
        workers.close()
        connection.drain()  # of_its_child keeps the channel open
        assert heard == [last]
        assert of_its_child.fileno() > 0
