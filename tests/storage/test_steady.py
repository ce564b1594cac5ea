"""Tensors that are promised to be steady are copied while training goes on, and what is committed is never a mixture.

Where no thread can be started nothing is copied before somebody asks for it: so these tests need not be quick.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, SaveDropped, Saving, StateChanged, WriterDied, digest
from elastic_checkpoint.save import copying
from elastic_checkpoint.save.copying import PIECE_BYTES, BackgroundCopy, Remainder
from tests.storage.beside import WITHIN_S, Make, writers

pytestmark = pytest.mark.usefixtures("nothing_is_left")


class _NoThread(threading.Thread):
    def start(self) -> None:
        if self.name == "checkpoint-copying":
            raise RuntimeError("can't start new thread")
        super().start()


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(copying.threading, "Thread", _NoThread)
        yield


def state(seed: int) -> dict[str, Any]:
    """Four weights of 4 MiB, and a buffer."""
    draw = torch.Generator().manual_seed(seed)
    weights = {f"w{n}": torch.randn(2**20, generator=draw) for n in range(4)}
    return {"weights": weights, "buffer": torch.full((2**17,), float(seed)), "at": seed}


def become(live: dict[str, Any], seed: int, *names: str) -> None:
    then = state(seed)
    for name in names:
        if name == "weights":
            for key, tensor in live[name].items():
                tensor.copy_(then[name][key])
        else:
            live[name].copy_(then[name])


def begun(runs: Checkpointer, step: int, live: dict[str, Any]) -> Saving:
    return runs.save(step, live, blocking=False, steady=live["weights"].values())


def held(folder: Path, step: int) -> str:
    with Checkpointer(folder) as runs:
        return digest(runs.read(step=step).tree)


def test_a_copy_is_whole_whoever_makes_its_pieces() -> None:
    source = torch.randint(0, 256, (3 * PIECE_BYTES + 5,), dtype=torch.uint8)
    into = torch.zeros_like(source)
    to, start = into.data_ptr(), source.data_ptr()
    one = BackgroundCopy(Remainder([(to, start, 7), (to + 7, start + 7, len(source) - 7)]), keeps=None)
    one.finish()
    assert one.done
    assert torch.equal(into, source)


def test_a_piece_that_an_exception_cuts_off_is_missed(no_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come between two pieces, when one is taken and not copied."""
    source, into = torch.ones(2 * PIECE_BYTES, dtype=torch.uint8), torch.zeros(2 * PIECE_BYTES, dtype=torch.uint8)
    one = BackgroundCopy(Remainder([(into.data_ptr(), source.data_ptr(), len(source))]), keeps=None)

    def interrupted(*_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_memmove", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.finish()
    one.finish()
    assert not one.done


def test_what_is_steady_is_copied_after_the_call_and_all_else_in_it(
    tmp_path: Path, checkpointer: Make, no_thread: None
) -> None:
    """A forward pass moves buffers at once; the next update comes later."""
    runs, live = checkpointer(tmp_path), state(1)
    runs.save(0, live)
    saving = begun(runs, 1, live)
    assert not saving.staged(wait=False)
    become(live, 2, "buffer")
    live["at"] = 2
    assert saving.staged()
    become(live, 2, "weights")
    assert saving.wait(WITHIN_S).step == 1
    assert held(tmp_path, 1) == digest(state(1))
    assert saving.joined_s > 0


def test_a_save_that_is_copied_says_so_while_the_next_one_is_not(
    tmp_path: Path, checkpointer: Make, no_thread: None
) -> None:
    """Else who waits for one save would make another's copy, too early or for nothing."""
    runs, live = checkpointer(tmp_path), state(1)
    first, second = begun(runs, 1, live), begun(runs, 2, live)
    assert first.staged(wait=False)
    first.wait(WITHIN_S)
    assert not second.staged(wait=False)
    second.wait(WITHIN_S)
    assert [commit.step for commit in runs.list()] == [2, 1]


def test_with_a_thread_the_copy_ends_by_itself_and_a_look_hands_it_over(tmp_path: Path, checkpointer: Make) -> None:
    runs, live = checkpointer(tmp_path), state(1)
    saving = begun(runs, 1, live)
    pause = threading.Event()
    while not saving.staged(wait=False):
        pause.wait(0.001)
    become(live, 2, "weights")
    saving.wait(WITHIN_S)
    assert held(tmp_path, 1) == digest(state(1))


ENDS: dict[str, Callable[[Checkpointer, dict[str, Any]], object]] = {
    "a save beside training": lambda runs, live: begun(runs, 2, live),
    "a save in the foreground": lambda runs, live: runs.save(2, live),
    "waiting": lambda runs, live: runs.wait(),
    "loading": lambda runs, live: runs.load(state(9), resume=False),
    "warming": lambda runs, live: runs.warm(live),
    "closing": lambda runs, live: runs.close(),
    "leaving": lambda runs, live: runs.close(finish=False),
}


@pytest.mark.parametrize("what", ENDS)
def test_everything_that_comes_after_makes_the_copy_whole_first(
    tmp_path: Path, checkpointer: Make, no_thread: None, what: str
) -> None:
    """Or its half would be filled twice, or be gone, or the save would be forgotten."""
    runs, live = checkpointer(tmp_path), state(1)
    runs.save(0, state(0))
    saving = begun(runs, 1, live)
    ENDS[what](runs, live)
    become(live, 3, "weights", "buffer")
    saving.wait(WITHIN_S)
    assert held(tmp_path, 1) == digest(state(1))


def test_a_save_whose_steady_tensors_are_written_to_is_dropped_and_the_next_one_is_whole(
    tmp_path: Path, no_thread: None
) -> None:
    """Nobody knows which of the values were copied. What was committed before stays the newest."""
    lines: list[str] = []
    live = state(1)
    with Checkpointer(tmp_path, log=lines.append) as runs:
        runs.save(0, live)
        saving = begun(runs, 1, live)
        with torch.no_grad():
            live["weights"]["w2"][7] += 1
        saving.staged()
        with pytest.raises(StateChanged, match=r"step 1 was not saved: weights\.w2 changed") as raised:
            saving.wait(WITHIN_S)
        assert raised.value.tensors == ("weights.w2",)
        assert isinstance(raised.value, SaveDropped)
        assert [line for line in lines if "step 1 was not saved" in line]
        then = digest(live)
        begun(runs, 2, live).wait(WITHIN_S)
        assert [commit.step for commit in runs.list()] == [2, 0]
    assert held(tmp_path, 2) == then


def test_another_writer_process_takes_what_is_copied_and_never_what_has_moved_on(
    tmp_path: Path, checkpointer: Make, no_thread: None
) -> None:
    """The one before it died while the copy was made."""
    runs, live = checkpointer(tmp_path), state(1)
    runs.save(0, live, blocking=False).wait(WITHIN_S)
    saving = begun(runs, 1, live)
    [writer] = writers()
    writer.kill()
    writer.wait(WITHIN_S)
    become(live, 2, "buffer")
    saving.staged()
    become(live, 2, "weights")
    try:
        saving.wait(WITHIN_S)
    except WriterDied:  # told to the dying one
        assert runs.latest().step == 0  # type: ignore[union-attr]
    else:
        assert held(tmp_path, 1) == digest(state(1))


def test_a_forked_child_leaves_the_copy_to_its_parent(tmp_path: Path, checkpointer: Make, no_thread: None) -> None:
    """It has no arena: to copy there would be its end by a signal."""
    runs, live = checkpointer(tmp_path), state(1)
    saving = begun(runs, 1, live)
    child = os.fork()
    if child == 0:
        os._exit(0 if saving.staged() else 1)
    assert os.waitpid(child, 0)[1] == 0
    saving.wait(WITHIN_S)
    assert held(tmp_path, 1) == digest(state(1))
