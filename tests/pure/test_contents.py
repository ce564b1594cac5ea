"""What two reads of one example in one step tell of the dataset."""

from __future__ import annotations

from elastic.drill.judge.contents import conflicts
from elastic.events.event import Event


def read(worker: str, share: int, **contents: str) -> Event:
    """Of step 6; `_3="a"` is example 3 with content a."""
    indices = [int(name[1:]) for name in contents]
    given = {"worker": worker, "claim": 1, "generation": 1, "attempt": 0, "step": 6, "share": share}
    return {"t": 0.0, "event": "reads", **given, "indices": indices, "contents": list(contents.values())}


def test_an_example_that_a_step_takes_from_two_epochs_may_have_two_contents() -> None:
    """last_batch="carry": the augmentation of either epoch is its own. (Random drills 1 and 2.)"""
    alone = [read("w0", 2, _136="of epoch 0"), read("w0", 4, _136="of epoch 1", _7="seven")]
    shared = [read("w1", 2, _136="of epoch 0"), read("w2", 4, _136="of epoch 1", _7="seven")]
    assert list(conflicts(shared, alone)) == []


def test_what_is_read_once_in_each_run_is_compared() -> None:
    alone = [read("w0", 2, _136="of epoch 0"), read("w0", 4, _7="seven")]
    shared = [read("w1", 2, _136="of epoch 0"), read("w2", 4, _7="another")]
    assert [(one.index, one.contents) for one in conflicts(shared, alone)] == [(7, ("seven", "another"))]
