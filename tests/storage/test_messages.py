"""Messages between a training process and its writer: of any size, whole or not at all, errors with their fields."""

from __future__ import annotations

import os
import threading

import pytest

from elastic_checkpoint.errors import (
    CheckpointError,
    ClaimLost,
    CorruptCheckpoint,
    RanksDiffer,
    SaveDropped,
    StorageError,
)
from elastic_checkpoint.net.errors import ErrorDocument, error_document, error_from
from elastic_checkpoint.save.writer.link import PACKET_BYTES, Link, pair


@pytest.mark.parametrize("size", [0, PACKET_BYTES - 50, 3 * PACKET_BYTES, 40 * PACKET_BYTES])
def test_a_message_of_any_size_arrives_with_its_descriptor(size: int) -> None:
    """A save of 12,000 objects tells their sizes; the kernel takes some 200 KB at once."""
    ours, theirs = pair()
    other = Link(theirs)
    message = {"kind": "staged", "text": "x" * size}
    read, write = os.pipe()
    senders = [threading.Thread(target=ours.send, args=(message, [write] if n == 0 else None)) for n in range(3)]
    for sender in senders:
        sender.start()
    got = [other.receive() for _ in senders]
    for sender in senders:
        sender.join(30)
    assert [one is not None and one[0] for one in got] == [message] * 3
    [fd] = [fd for one in got if one is not None for fd in one[1]]
    assert os.fstat(fd).st_ino == os.fstat(write).st_ino
    assert not os.get_inheritable(fd)
    for each in (read, write, fd):
        os.close(each)
    ours.close()
    assert other.receive() is None
    other.close()


def test_of_a_message_that_was_cut_nothing_is_heard() -> None:
    ours, theirs = pair()
    other = Link(theirs)
    ours.socket.send(b'+{"kind": "sta')
    ours.close()
    assert other.receive() is None
    other.close()


def test_an_error_comes_back_as_what_it_was() -> None:
    errors = [
        StorageError("full", operation="put", key="data/x", attempts=3),
        ClaimLost("lost", ours=1, newest=2),
        SaveDropped("dropped", step=7),
        CorruptCheckpoint("damaged", commit="c", key="data/x", tensors=("a", "b")),
        RanksDiffer("differ", entries={"model.x": [1]}),
        CheckpointError("plain"),
    ]
    for error in errors:
        again = error_from(error_document(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    foreign = error_from(error_document(OSError("of another kind"), str))
    assert (type(foreign), str(foreign)) == (CheckpointError, "OSError: of another kind")
    odd = error_from(ErrorDocument(type="annotations", text="no error", fields={}))
    assert (type(odd), str(odd)) == (CheckpointError, "no error")
