"""Writer processes of a group, seen from rank 0's: who counts as there for a save, and who does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_checkpoint import CheckpointError
from elastic_checkpoint.format.draft import Draft
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.net.codec import as_message
from elastic_checkpoint.net.errors import error_document
from elastic_checkpoint.net.peers import Client, Server
from elastic_checkpoint.save.writer.roles import Committed, Failed, Follower, Leader, Stored
from elastic_checkpoint.storage import open_storage

PATIENCE_S = 60.0
SAVE = "c00000001.s000000001-00"


class Writer:
    """Rank 1's, as little of it as rank 0's writer sees."""

    def __init__(self, first: Leader) -> None:
        self.heard: list[dict[str, Any]] = []
        self.client = Client(first.endpoint, 1, self.heard.append, lambda why: None)


@pytest.fixture
def first() -> Iterator[Leader]:
    made = Leader(2, PATIENCE_S)
    yield made
    made.close()


def finish(first: Leader, folder: Path) -> CheckpointError | None:
    """What rank 0's writer fails of, once its own part is stored."""
    draft = Draft(CommitId(1, 1, "00"), "", (), b"", b"")
    assert str(draft.id) == SAVE
    try:
        first.finish(open_storage(folder), draft, [])
    except CheckpointError as error:
        return error
    return None


def gone(first: Leader, rank: int) -> None:
    with first._changed:
        assert first._changed.wait_for(lambda: rank not in first._here, PATIENCE_S)


def test_a_writer_that_came_later_has_nothing_of_the_save(first: Leader, tmp_path: Path) -> None:
    """Waiting for it would last until the deadline, and the next save, which it does have, would wait behind."""
    old = Writer(first)
    first.staged(SAVE)
    old.client.close()
    gone(first, 1)
    new = Writer(first)
    error = finish(first, tmp_path)
    assert error is not None
    assert "the writer process of rank 1 ended before it was stored" in str(error)
    new.client.close()


def test_a_writer_that_said_its_part_may_go(first: Leader, tmp_path: Path) -> None:
    """Then only the commit is lacking: this one fails of the claim, which nobody took."""
    old = Writer(first)
    first.staged(SAVE)
    old.client.send(as_message(Stored(save=SAVE, objects=[])))
    old.client.close()
    gone(first, 1)
    error = finish(first, tmp_path)
    assert error is None or "claim" in str(error)


def test_a_writer_that_is_there_is_waited_for(first: Leader, tmp_path: Path) -> None:
    one = Writer(first)
    first.staged(SAVE)
    found: list[CheckpointError | None] = []
    finishing = threading.Thread(target=lambda: found.append(finish(first, tmp_path)), daemon=True)
    finishing.start()
    finishing.join(1.0)
    assert finishing.is_alive()
    one.client.send(as_message(Failed(save=SAVE, error=error_document(CheckpointError("disk on fire")))))
    finishing.join(PATIENCE_S)
    assert ["disk on fire" in str(error) for error in found] == [True]
    one.client.close()


OBJECT = {"size": 4, "xxh3_128": "0" * 32, "chunk_bytes": 4, "chunks": ["0" * 32]}


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({}, "no known word: None"),
        ({"say": "committed", "save": SAVE}, "no known word: 'committed'"),
        ({"say": "stored", "save": SAVE}, "stored: Object missing required field `objects`"),
        ({"say": "stored", "save": 7, "objects": []}, "stored: Expected `str`, got `int` - at `$.save`"),
        (
            {"say": "stored", "save": SAVE, "objects": [OBJECT, {**OBJECT, "size": "4"}]},
            "at `$.objects[1].size`",
        ),
        ({"say": "stored", "save": SAVE, "objects": [{"size": 4}]}, "missing required field `xxh3_128`"),
        (
            {"say": "failed", "save": SAVE, "error": {"type": "CheckpointError"}},
            "missing required field `text` - at `$.error`",
        ),
    ],
)
def test_a_writer_that_says_what_is_no_part_fails_the_save_by_name(
    said: dict[str, Any], refusal: str, first: Leader, tmp_path: Path
) -> None:
    """A KeyError ended the thread that hears all writers, and each save after it failed of its deadline."""
    one = Writer(first)
    first.staged(SAVE)
    one.client.send(said)
    gone(first, 1)
    error = str(finish(first, tmp_path))
    assert "the writer process of rank 1 ended before it was stored (what it said was refused: " in error
    assert refusal in error


@pytest.mark.parametrize(
    ("said", "refusal"),
    [
        ({}, "no known word: None"),
        ({"say": "committed"}, "committed: Object missing required field `save`"),
        ({"say": "failed", "save": SAVE, "error": None}, "failed: Expected `object`, got `null` - at `$.error`"),
    ],
)
def test_what_rank_0s_writer_says_is_an_outcome_or_parts_them(
    said: dict[str, Any], refusal: str, tmp_path: Path
) -> None:
    failed: list[str] = []
    parted, came = threading.Event(), threading.Event()
    server = Server(lambda rank, message: None, lambda rank, why: None, came=lambda rank: came.set())
    one = Follower(server.endpoint, 1, 2, PATIENCE_S, failed.append, parted.set)
    assert came.wait(PATIENCE_S)
    server.send(1, as_message(Committed(save="an earlier one")))
    server.send(1, said)
    assert parted.wait(PATIENCE_S)
    assert refusal in str(one.ended(SAVE))
    assert failed == []
    server.close()
