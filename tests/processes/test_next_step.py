"""A resume reads the step behind its checkpoint as the run had read it, or is refused before anything is applied."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

import elastic
import elastic_checkpoint
from elastic.errors import IdentityMismatch
from elastic.loop.storage.step_digest import StepDigest
from elastic_checkpoint.format.hashing import unseal
from tests.kit.arguments import grouped
from tests.kit.ranks import as_worker_of_torchrun, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=7, of="the step behind a checkpoint")


class Own(Dataset[Any]):
    """What it holds says nothing of its examples, whose floats are made as they are read."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = {"of all": scale}

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), self.scale["of all"] * index) + torch.rand(4), torch.tensor(index % 2)


def train(url: Path | str, *, scale: float = 1.0, times: float = 1.0, until: int | None = None, **changes: Any) -> str:
    """The weights' digest. Four steps an epoch, of three shares; interrupted in the step `until`. times: the loss"""
    elastic.seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given: dict[str, Any] = {"batch_size": 6, "virtual_workers": 3, "epochs": 2, "save_every": 2, "cross_check": None}
    data = Own(scale)
    with suppress(KeyboardInterrupt), elastic.Run(url, model=model, optimizer=optimizer, dataset=data,
                                                  **grouped(given | changes)) as run:  # fmt: skip
        for _ in run.epochs():
            for x, y in run.batches():
                if run.step_index == until:
                    raise KeyboardInterrupt
                optimizer.zero_grad()
                (times * F.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return elastic_checkpoint.digest(model)


def notes(url: Path) -> dict[int, StepDigest]:
    """What lies there, by its step."""
    found = [StepDigest.of(unseal(path.read_bytes(), path.name)) for path in url.glob("data/*/*/note.json")]
    return {note.step: note for note in found if note is not None}


def in_rank(
    rank: int, world_size: int, port: int, url: str, scale: float, until: int | None = None, times: float = 1.0
) -> str:
    as_worker_of_torchrun(rank, world_size, port)
    try:
        return train(url, scale=scale, until=until, times=times)
    except IdentityMismatch as refused:
        return str(refused)


def test_other_data_is_refused_in_the_first_step_by_every_worker(tmp_path: Path, port: int) -> None:
    (whole,) = returned(run_ranks(in_rank, 1, port, str(tmp_path / "whole"), 1.0))
    returned(run_ranks(in_rank, 1, port, str(tmp_path / "run"), 1.0, 3))
    assert sorted(notes(tmp_path / "run")) == [0, 2]
    commits = sorted((tmp_path / "run" / "commits").iterdir())

    for said in returned(run_ranks(in_rank, 2, port, str(tmp_path / "run"), 2.0)):
        assert said.startswith("step 2 reads other values than it did before the run was ended")
        assert "accept=['dataset_content']" in said
    assert sorted((tmp_path / "run" / "commits").iterdir()) == commits
    assert returned(run_ranks(in_rank, 2, port, str(tmp_path / "run"), 1.0)) == [whole, whole]
    noted, alone = notes(tmp_path / "run"), notes(tmp_path / "whole")
    assert noted == {step: alone[step] for step in noted}  # whoever reads, alone and by two


def test_another_script_is_refused_in_the_first_step_by_every_worker(tmp_path: Path, port: int) -> None:
    (whole,) = returned(run_ranks(in_rank, 1, port, str(tmp_path / "whole"), 1.0))
    returned(run_ranks(in_rank, 1, port, str(tmp_path / "run"), 1.0, 3))
    commits = sorted((tmp_path / "run" / "commits").iterdir())

    for workers in (1, 3):
        for said in returned(run_ranks(in_rank, workers, port, str(tmp_path / "run"), 1.0, None, 1.0001)):
            assert said.startswith("step 2 reads the same, and gives other gradients than before the run was ended")
            assert "accept=['script']" in said
    assert sorted((tmp_path / "run" / "commits").iterdir()) == commits
    assert returned(run_ranks(in_rank, 3, port, str(tmp_path / "run"), 1.0)) == [whole] * 3


@pytest.mark.parametrize("meant", ["dataset_content", "script"])
def test_what_is_meant_to_be_another_goes_on(tmp_path: Path, meant: str) -> None:
    other: dict[str, Any] = {"scale": 2.0} if meant == "dataset_content" else {"times": 2.0}
    whole = train(tmp_path / "whole")
    train(tmp_path / "run", until=3)
    assert train(tmp_path / "run", accept=[meant], **other) != whole


@pytest.mark.parametrize("note", [b"", b"{}", b"\0" * 99, None], ids=["empty", "of others", "zeros", "none"])
def test_what_is_no_note_is_compared_with_nothing(tmp_path: Path, note: bytes | None) -> None:
    train(tmp_path / "run", until=3)
    for path in (tmp_path / "run").glob("data/*/*/note.json"):
        path.write_bytes(note) if note is not None else path.unlink()
    train(tmp_path / "run", scale=2.0)


def test_a_checkpoint_takes_its_note_along(tmp_path: Path) -> None:
    """As it is swept, and a sweep counts only what the manifest names."""
    train(tmp_path / "run", save_every=1, keep=2)
    with elastic_checkpoint.Checkpointer(tmp_path / "run", keep=2) as storage:
        storage.claim()
        storage.sweep()
        kept = {commit.step for commit in storage.list()}
        assert all(one.ok for one in storage.verify())
    assert {*notes(tmp_path / "run")} <= kept
    assert len(kept) == 2


def test_a_finished_run_that_is_made_longer_is_told_of_other_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has read the step behind its last one; and a data set may honestly look otherwise in the next epoch."""
    train(tmp_path / "run", epochs=1)
    train(tmp_path / "run", epochs=2)
    assert "read once more" not in capsys.readouterr().err
    train(tmp_path / "run", epochs=3, scale=2.0)
    assert "step 7, read once more, gives other values" in capsys.readouterr().err


def train_by_count(url: Path, *, until: int | None = None, rates: bool = True, save_every: int = 3) -> str:
    """The weights' digest; a rate for the next step follows from how many steps this process has seen."""
    elastic.seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = 0
    given: dict[str, Any] = {"batch_size": 6, "virtual_workers": 3, "epochs": 2, "save_every": save_every}
    data = Own()
    with (
        suppress(KeyboardInterrupt),
        elastic.Run(url, model=model, optimizer=optimizer, dataset=data, **grouped(given)) as run,
    ):
        for step in run:
            for x, y in step:
                if step.index == until:
                    raise KeyboardInterrupt
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), len(y))
            seen += 1
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + (seen if rates else step.index))
    return elastic_checkpoint.digest(model)


@pytest.mark.parametrize("save_every", [1, 3])
def test_a_rate_that_a_count_sets_for_the_next_step_is_refused_before_it_is_saved(
    tmp_path: Path, save_every: int
) -> None:
    """The first step behind the save has the rate that was saved; the next one would have that of the count."""
    whole = train_by_count(tmp_path / "whole", rates=False)
    train_by_count(tmp_path / "honest", until=5, rates=False)
    assert notes(tmp_path / "honest")[3].settings
    assert train_by_count(tmp_path / "honest", rates=False) == whole

    train_by_count(tmp_path / "run", until=5)
    commits = sorted((tmp_path / "run" / "commits").iterdir())
    with pytest.raises(IdentityMismatch, match="behind step 3 optimizers, or schedules, are set otherwise"):
        train_by_count(tmp_path / "run", save_every=save_every)
    assert sorted((tmp_path / "run" / "commits").iterdir()) == commits


class Counts:
    """What a script may keep beside what it hands over, and what reaches its loss."""

    seen = 0


def train_until_told(
    url: Path | str,
    *,
    tell: int | None = None,
    counts: bool = False,
    steps: bool = False,
    fails: bool = False,
    **changes: Any,
) -> str:
    """The weights' digest, or what the run was refused for; told to leave in the step `tell`."""
    elastic.seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given: dict[str, Any] = {"batch_size": 6, "virtual_workers": 3, "epochs": 2, "save_every": 100}
    kept = Counts()

    def loss_of(step: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if fails and tell is not None and step > tell:
            raise ValueError("no more")
        if step == tell:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1.0 if fails else 0.2)  # a thread reads it; should that be late, the run leaves a step later
        return F.cross_entropy(model(x), y, reduction="sum" if steps else "mean") * (1 + counts * kept.seen)

    try:
        with elastic.Run(url, model=model, optimizer=optimizer, dataset=Own(), **grouped(given | changes)) as run:
            if steps:
                for step in run:
                    for x, y in step:
                        step.backward(loss_of(step.index, x, y), len(y))
                    kept.seen += step.count > 0
            else:
                for _ in run.epochs():
                    for x, y in run.batches():
                        optimizer.zero_grad()
                        loss_of(run.step_index, x, y).backward()  # type: ignore[no-untyped-call]
                        optimizer.step()
                        kept.seen += run.stepped
    except IdentityMismatch as refused:
        return str(refused)
    except SystemExit as left:
        return f"left with {left.code}"
    return elastic_checkpoint.digest(model)


def told_in_rank(
    rank: int, world_size: int, port: int, url: str, tell: int | None, counts: bool, options: dict[str, Any]
) -> str:
    as_worker_of_torchrun(rank, world_size, port)
    return train_until_told(url, tell=tell, counts=counts, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"steps": True}, {"mode": "fast"}, {"virtual_workers": 1}],
    ids=["plain loop", "steps", "fast", "one share"],
)
@pytest.mark.parametrize("tell", [1, 3], ids=["in an epoch", "at its end"])
def test_a_resume_after_an_orderly_leave_finds_what_the_script_keeps(
    tmp_path: Path, options: dict[str, Any], tell: int
) -> None:
    """Nobody has computed the step behind the last save: its first share is passed before the coordinator goes."""
    whole = train_until_told(tmp_path / "whole", **options)
    assert train_until_told(tmp_path / "run", tell=tell, **options) == "left with 0"
    (noted,) = (note for note in notes(tmp_path / "run").values() if note.first_gradients)
    assert noted.first_batch
    assert train_until_told(tmp_path / "run", **options) == whole

    assert train_until_told(tmp_path / "counts", tell=tell, counts=True, **options) == "left with 0"
    commits = sorted((tmp_path / "counts" / "commits").iterdir())
    said = train_until_told(tmp_path / "counts", counts=True, **options)
    assert re.match(r"share 0 of step \d reads the same, and gives other gradients", said), said
    assert sorted((tmp_path / "counts" / "commits").iterdir()) == commits


@pytest.mark.parametrize("workers", [(3, 2), (1, 3)])
def test_all_workers_are_refused_who_resume_after_an_orderly_leave(
    tmp_path: Path, port: int, workers: tuple[int, int]
) -> None:
    leave, resume = workers
    left = returned(run_ranks(told_in_rank, leave, port, str(tmp_path / "run"), 1, True, {}))
    assert left == ["left with 0"] * leave
    for said in returned(run_ranks(told_in_rank, resume, port, str(tmp_path / "run"), None, True, {})):
        assert re.match(r"share 0 of step \d reads the same, and gives other gradients", said), said
    (whole,) = returned(run_ranks(told_in_rank, 1, port, str(tmp_path / "whole"), None, False, {}))
    returned(run_ranks(told_in_rank, leave, port, str(tmp_path / "honest"), 1, False, {}))
    assert (
        returned(run_ranks(told_in_rank, resume, port, str(tmp_path / "honest"), None, False, {})) == [whole] * resume
    )


@pytest.mark.parametrize("steps", [True, False])
def test_a_body_that_fails_on_leaving_fails_nothing(tmp_path: Path, steps: bool) -> None:
    """All is saved by then."""
    assert train_until_told(tmp_path / "run", tell=0, steps=steps, fails=True) == "left with 0"
    whole = train_until_told(tmp_path / "whole", steps=steps)
    assert train_until_told(tmp_path / "run", steps=steps) == whole
