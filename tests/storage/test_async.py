"""Saves beside training: what is committed is the state as it was, wherever it is saved to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elastic_checkpoint import (
    Checkpointer,
    digest,
)
from tests.storage.beside import WITHIN_S, Make, newest, state, writers

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def test_a_save_beside_training_is_what_the_state_was_when_it_returned(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path, shard_bytes=5000)
    changing = state(1)
    savings = []
    for step in range(1, 8):
        savings.append(runs.save(step, changing, meta={"epoch": step}, blocking=False))
        assert savings[-1].step == step
        for name, tensor in changing["model"].items():
            tensor.copy_(state(step + 1)["model"][name])
        changing["at"] = step + 1
    commits = [saving.wait(WITHIN_S) for saving in savings]

    assert [commit.step for commit in commits] == list(range(1, 8))
    assert runs.latest() == commits[-1]
    assert commits[-1].objects > 10
    assert runs.read().meta == {"epoch": 7}
    assert newest(tmp_path) == 7
    runs.wait()
    assert [commit.step for commit in runs.list()] == [7, 6, 5]  # the rest was swept meanwhile


@pytest.mark.nightly(sample=2)
def test_every_kind_of_storage_can_be_saved_to_beside_training(
    location: tuple[str, dict[str, Any]], checkpointer: Make
) -> None:
    """What lives in this process only cannot be handed to another one: training waits there, and one line says so."""
    url, options = location
    lines: list[str] = []
    runs = checkpointer(url, storage_options=options, shard_bytes=9000, log=lines.append)
    runs.warm(state(1))
    for step in (1, 2, 3):
        runs.save(step, state(step), blocking=False)
    runs.wait()
    assert newest(url, storage_options=options) == 3
    said = [line for line in lines if "no saving in the background" in line]
    assert len(said) == (1 if url.startswith(("memory", "faulty")) else 0)


def test_blocking_saves_and_others_take_turns(tmp_path: Path, checkpointer: Make) -> None:
    runs = checkpointer(tmp_path, keep=100)
    for step in range(1, 9):
        runs.save(step, state(step), blocking=bool(step % 2))
    runs.wait()
    assert [commit.step for commit in runs.list()] == list(range(8, 0, -1))


def test_the_state_may_grow_shrink_and_change_its_text(tmp_path: Path, checkpointer: Make) -> None:
    """Another plan, a larger arena, or documents far larger than the spare room in it."""
    runs = checkpointer(tmp_path, keep=100)
    states = [
        state(1, 10),
        state(2, 50_000),
        state(3, 10),
        {"x": [0.5] * 500_000, "at": 4},
        {"nothing": 1},
        state(6, 9),
    ]
    for step, one in enumerate(states, 1):
        runs.save(step, one, blocking=False)
    runs.wait()
    assert [commit.step for commit in runs.list()] == [6, 5, 4, 3, 2, 1]
    for step, one in enumerate(states, 1):
        found = runs.read(step=step).tree
        assert digest(found) == digest(one)
        assert found.get("at") == one.get("at")
        assert found.get("x") == one.get("x")


def test_the_writer_process_never_loads_torch(tmp_path: Path) -> None:
    """It would cost each node 200 MB, and the first save 2 s; NumPy, which it needs for large objects only, 0.1 s."""
    program = (
        "import sys, elastic_checkpoint, elastic_checkpoint.save.writer.server, elastic_checkpoint.save.commit\n"
        "print([name for name in ('torch', 'numpy', 's3fs') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
    with Checkpointer(tmp_path) as runs:
        runs.save(1, state(1), blocking=False).wait(WITHIN_S)
        [writer] = writers()
        assert "libtorch" not in Path(f"/proc/{writer.pid}/maps").read_text()
