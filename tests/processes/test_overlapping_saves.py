"""A save copies weights while the next step computes, and what is committed is the state between the two steps.

In this process no thread can be started for the copy, so that it is made as late as it may be: whoever forgets to join
it tears it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
import elastic_checkpoint
from elastic.loop.storage import saver
from elastic.state import trained
from elastic.state.train_state import TrainState
from elastic_checkpoint.save import copying
from tests.kit.arguments import grouped

pytestmark = pytest.mark.nightly(sample=2, of="saves beside the next step")

STEPS = 6
WITHIN_S = 240


class _NoThread(threading.Thread):
    def start(self) -> None:
        if self.name == "checkpoint-copying":
            raise RuntimeError("can't start new thread")
        super().start()


@pytest.fixture(autouse=True)
def late_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of a network as small as this one, too, and from the first save on."""
    with monkeypatch.context() as patched:
        patched.setattr(copying.threading, "Thread", _NoThread)
        patched.setattr(copying, "_SMALL_BYTES", 1)
        patched.setattr(copying, "_WORTH_BYTES", 1)
        patched.setattr(saver, "_WARM_AFTER_S", 0.0)
        yield


class Trained:
    """Weights, momentum and BatchNorm's averages, all of which move at every step."""

    def __init__(self, url: Path, *, dropped: int | None = None, **options: Any) -> None:
        """dropped  the save that is to come to nothing"""
        elastic.seed(3)
        self.url, self._dropped = url, dropped
        self.head = torch.nn.Linear(8, 1)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), self.head)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)
        data = torch.randn(64, 6)
        self.states: dict[int, str] = {}
        self.run = elastic.Run(
            str(url), model=self.model, optimizer=self.optimizer, dataset=[*data], batch_size=8, virtual_workers=2,
            steps=STEPS, seed=5, save_every=1, **grouped(options, keep=100),
        )  # fmt: skip

    def note(self, steps: int) -> None:
        """What a save of so many steps must hold. The one before is durable on return: else this may replace it."""
        ends_s = time.monotonic() + WITHIN_S
        while steps not in (0, self._next_of_dropped) and not self._committed(steps - 1):
            assert time.monotonic() < ends_s
            time.sleep(0.005)
        self.states[steps] = self._digest({"model": self.model, "optimizer": self.optimizer})

    @property
    def _next_of_dropped(self) -> int | None:
        return None if self._dropped is None else self._dropped + 1

    def _committed(self, steps: int) -> bool:
        return any((self.url / "commits").glob(f"*.s{steps:09d}-*"))

    def saved(self) -> dict[int, str]:
        with elastic_checkpoint.Checkpointer(self.url) as runs:
            trees = {commit.step: runs.read(step=commit.step).tree for commit in runs.list()}
        kept = {step: {name: tree[name] for name in ("model", "optimizer")} for step, tree in trees.items()}
        return {step: self._digest(tree) for step, tree in kept.items()}

    @staticmethod
    def _digest(tree: Any) -> str:
        return elastic_checkpoint.digest(tree)


def loop(one: Trained, *, before: Callable[[int], None] = lambda _: None) -> None:
    """before  the script's own code before an inner loop, which is where a save is still being copied"""
    with one.run as run:
        one.note(0)
        for step in run:
            before(step.index)
            for batch in step:
                step.backward(one.model(batch).square().sum(), count=len(batch))
            one.note(step.index + 1)


def plain_loop(one: Trained, **_: Any) -> None:
    with one.run as run:
        one.note(0)
        for batch in run.batches():
            one.optimizer.zero_grad()
            one.model(batch).square().mean().backward()
            one.optimizer.step()
            if run.step_index not in one.states:
                one.note(run.step_index)


@pytest.mark.parametrize("train", [loop, plain_loop])
def test_every_save_is_the_state_between_two_steps(tmp_path: Path, train: Callable[[Trained], None]) -> None:
    """An update that does not join the copy first would be in it; so would a share's BatchNorm, were it lent."""
    lent: list[Any] = []

    def versions_of(*asked: Any) -> Any:
        lent.append(copying.versions_of(*asked))
        return lent[-1]

    one = Trained(tmp_path)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("elastic_checkpoint.save.pipeline.versions_of", versions_of)
        train(one)
    assert sum(map(bool, lent)) >= STEPS - 2, "saves were not copied later at all"
    saved = one.saved()
    assert saved.keys() == set(range(STEPS + 1))
    assert saved == one.states


def test_a_script_that_writes_to_weights_meanwhile_loses_one_save_and_gets_another(tmp_path: Path) -> None:
    """It may do so before an inner loop. What it wrote to is in no save that says otherwise."""

    def reset(index: int) -> None:
        if index == 2:
            with torch.no_grad():
                one.head.weight.fill_(0.5)

    one = Trained(tmp_path, dropped=2)
    loop(one, before=reset)
    saved = one.saved()
    assert saved.keys() == set(range(STEPS + 1)) - {2}
    assert saved == {step: one.states[step] for step in saved}


def test_what_is_reached_through_data_is_copied_first(tmp_path: Path) -> None:
    """No version counts such a write."""

    def average(index: int) -> None:
        one.head.weight.data.mul_(0.9)

    one = Trained(tmp_path)
    loop(one, before=average)
    assert one.saved() == one.states
    assert one.states.keys() == set(range(STEPS + 1))


def test_a_run_that_may_go_back_to_a_save_lends_nothing(tmp_path: Path) -> None:
    """Which of its saves are there decides how it goes on, and must not depend on a write that came in between."""

    def reset(index: int) -> None:
        if index == 2:
            with torch.no_grad():
                one.head.weight.fill_(0.5)

    one = Trained(tmp_path, on_bad="rollback")
    loop(one, before=reset)
    assert one.saved() == one.states
    assert 2 in one.states


def test_a_state_that_comes_from_elsewhere_is_applied_after_the_copy(tmp_path: Path) -> None:
    """From a peer that is ahead, say, while this worker's save is under way."""
    model = torch.nn.Linear(3, 3)
    state = TrainState(
        trained=trained.Trained({"model": model}, {}, check=lambda: None), models={"model": model}, optimizers={},
        schedulers={}, scaler=None, extra={},
    )  # fmt: skip
    with elastic_checkpoint.Checkpointer(tmp_path) as runs:
        runs.save(0, {"model": model})
        then = elastic_checkpoint.digest({"model": model})
        saving = runs.save(1, {"model": model}, blocking=False, steady=state.staging.lend())
        state.staging.follow(saving, lambda: None)
        assert not saving.staged(wait=False)
        state.apply({"model": {name: torch.zeros_like(t) for name, t in model.state_dict().items()}}, step=2)
        saving.wait(WITHIN_S)
        assert elastic_checkpoint.digest(runs.read(step=1).tree) == then


KILLED_IN_THE_COPY = """
import os, pathlib, signal, sys, time
import torch, elastic
from elastic_checkpoint.save import copying
from elastic.loop.storage import saver
url, pieces = sys.argv[1], int(sys.argv[2])
saver._WARM_AFTER_S, copying.PIECE_BYTES = 0.0, 2**19
move, made = copying._memmove, []
def counted(*ends):
    made.append(1)
    if len(made) == pieces:
        os.kill(os.getpid(), signal.SIGKILL)
    move(*ends)
copying._memmove = counted
elastic.seed(3)
model = torch.nn.Sequential(torch.nn.Linear(64, 4096), torch.nn.BatchNorm1d(4096), torch.nn.Linear(4096, 256))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
with elastic.Run(url, model=model, optimizer=optimizer, dataset=[*torch.randn(64, 64)], batch_size=8,
                 virtual_workers=2, steps=8, seed=5, save_every=1, keep=100) as run:
    for step in run:
        for batch in step:
            step.backward(model(batch).square().sum(), count=len(batch))
        ends_s = time.monotonic() + 120
        while not list(pathlib.Path(url, "commits").glob(f"*.s{step.index:09d}-*")):
            assert time.monotonic() < ends_s
            time.sleep(0.005)  # or the save after this step may replace the one before it
"""


@pytest.mark.nightly(sample=1, of="killed at any moment beside training")
@pytest.mark.parametrize("restarts", [3])
def test_workers_killed_in_the_middle_of_a_copy_leave_only_whole_checkpoints(tmp_path: Path, restarts: int) -> None:
    """Each one that is there is that of the undisturbed run, to the bit, and the run goes on from it."""

    def launch(folder: str, pieces: int) -> int:
        command = [sys.executable, "-c", KILLED_IN_THE_COPY, str(tmp_path / folder), str(pieces)]
        return subprocess.run(command, check=False, timeout=WITHIN_S, cwd=Path(__file__).parents[2]).returncode

    def saved(folder: str) -> dict[int, str]:
        with elastic_checkpoint.Checkpointer(tmp_path / folder) as runs:
            assert all(found.ok for found in runs.verify())
            return {commit.step: elastic_checkpoint.digest(runs.read(step=commit.step).tree) for commit in runs.list()}

    assert launch("undisturbed", 0) == 0
    expected = saved("undisturbed")
    assert expected.keys() == set(range(9))
    for number in range(restarts):
        assert launch("killed", 30 + 11 * number) == -signal.SIGKILL
        found = saved("killed")
        assert found == {step: expected[step] for step in found}
    assert launch("killed", 0) == 0
    assert saved("killed") == expected
