"""`elastic reproduce` makes a run again at another size, and names the first step that differs, with its cause.

Real runs of a script in a repository: three workers, of which two are killed, and a resume; made again as the command
does it, also where the script, its threads or its data are others, and where there is no repository.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.record import read_record
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=3, of="runs that are made again")

WITHIN_S = 240.0
STEPS = 12
SCRIPT = """
import json, os, signal, sys
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
import elastic

url, steps, points = sys.argv[1], int(sys.argv[2]), sys.argv[3]


class Points(Dataset):
    def __init__(self):
        self.rows = torch.load(points)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], index % 2


elastic.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 256), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(256, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with elastic.Run(
    url, model=model, optimizer=optimizer, dataset=Points(), batch_size=24, virtual_workers=6, steps=steps,
    save_every=4, compute=elastic.Compute(threads=int(os.environ.get("THREADS", "1"))),
) as run:
    for step in run:
        for x, y in step:
            many = model[0](x).repeat(200, 1)  # threads add up in another order
            loss = F.cross_entropy(model(x), y, reduction="sum") + 1e-4 * many.square().sum()
            step.backward(loss, count=len(y))
            step.add(loss=loss)
        for at in json.loads(os.environ.get("KILLS", "[]")):
            if step.index == at[0] and run.rank == at[1] and not os.path.exists(f"{url}.{at[0]}"):
                open(f"{url}.{at[0]}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
"""


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=a", "-c", "user.email=a@host"]
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run of three workers, two SIGKILLs and a resume: (its repository, its URL). No test changes it."""
    folder = tmp_path_factory.mktemp("made")
    repository = folder / "repository"
    repository.mkdir()
    (repository / "train.py").write_text(SCRIPT)
    git(repository, "init", "--quiet")
    git(repository, "add", "train.py")
    git(repository, "commit", "--quiet", "--message", "first")
    torch.manual_seed(3)
    torch.save(torch.randn(STEPS * 24, 16), folder / "points.pt")
    for steps, kills in ((8, "[[2, 0], [5, 1]]"), (STEPS, "[]")):
        with launched(repository, folder / "run", steps, folder / "points.pt", workers=3, KILLS=kills):
            pass
    found = read_record(folder / "run")
    assert list(found.steps) == [*range(STEPS)]
    assert {one.claim for one in found.steps.values()} == {1, 2}
    return repository, folder / "run"


@contextmanager
def launched(repository: Path, url: Path, steps: int, points: Path, *, workers: int, **env: str) -> Iterator[str]:
    words = ["run", "--standalone", f"--nproc-per-node={workers}", repository / "train.py", url, steps, points]
    with Launch("elastic", words, env=env, cwd=repository) as launch:
        yield launch.succeed(within_s=WITHIN_S)


def reproduced(url: Path, *flags: object, cwd: Path | None = None, **env: str) -> tuple[int, dict[str, Any], str]:
    """(status, verdict, all output)"""
    with Launch("elastic", ["reproduce", url, "--json", *flags], env=env, cwd=cwd or url.parent) as launch:
        status = launch.finish(within_s=WITHIN_S)
        lines = [line for line in launch.output.splitlines() if line.startswith('{"equal"')]
        return status, json.loads(lines[0]) if lines else {}, launch.output


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_lost_workers_is_made_again_at_another_size(made: tuple[Path, Path], workers: int) -> None:
    _, url = made
    status, verdict, output = reproduced(url, "--workers", workers)
    assert (status, verdict.get("equal"), verdict.get("compared")) == (0, True, STEPS), output
    assert all(" was installed from " in one for one in verdict["not_checked"]), output
    assert verdict["parts"]["gradients"] > 0, "of steps that a lost coordinator had not written no norm is known"
    assert verdict["checkpoint"] == STEPS, output


def test_it_is_made_where_no_run_lies(made: tuple[Path, Path], tmp_path: Path) -> None:
    """A second try would take the first one's record for its own, and call it equal."""
    _, url = made
    status, verdict, output = reproduced(url, "--workers", 1, "--steps", 3, "--into", "again", cwd=tmp_path)
    assert (status, verdict.get("equal")) == (0, True), output
    assert list(read_record(tmp_path / "again").steps) == [*range(3)], "the folder of the command, not of the script"
    for into in (tmp_path / "again", url):
        before = {path: path.stat().st_mtime_ns for path in into.rglob("*")}
        status, verdict, output = reproduced(url, "--workers", 1, "--into", into)
        assert (status, verdict) == (2, {}), output
        assert f"--into {into}: a run lies there" in output
        assert {path: path.stat().st_mtime_ns for path in into.rglob("*")} == before


def test_a_signal_leaves_no_process_and_no_worktree(made: tuple[Path, Path], tmp_path: Path) -> None:
    repository, url = made
    script = ("--", url, 1_000_000, url.parent / "points.pt")
    flags = ("--workers", 1, "--into", tmp_path / "run", *script)
    with Launch("elastic", ["reproduce", url, *flags], cwd=tmp_path) as launch:
        launch.wait_for(lambda: any(tmp_path.glob("run/claims/*")), "a claim", within_s=WITHIN_S)
        assert len(git(repository, "worktree", "list").splitlines()) == 2
        launch.send(signal.SIGTERM)
        assert launch.finish(within_s=WITHIN_S) == 128 + signal.SIGTERM, launch.output
        assert len(git(repository, "worktree", "list").splitlines()) == 1
        until_s = time.monotonic() + WITHIN_S
        while launch.pids:  # of workers the kernel tells that their agent has ended
            assert time.monotonic() < until_s, launch.output
            time.sleep(0.05)


def test_a_changed_line_is_no_matter_unless_it_is_asked_for_and_then_it_is_named(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    """The script here has gone on: the run's commit counts. --here asks whether the change alters a bit, and where."""
    repository, url = made
    changed = SCRIPT.replace("step.backward(loss,", "step.backward(loss * (1 + (step.index == 6)),")
    (repository / "train.py").write_text(changed)
    try:
        status, verdict, output = reproduced(url, "--steps", 3)
        assert (status, verdict.get("equal"), verdict.get("compared")) == (0, True, 3), output
        status, verdict, output = reproduced(url, "--workers", 2, "--here")
        assert status == 1, output
        assert (verdict["step"], verdict["causes"][0]["path"]) == (6, "script.sha256"), output
        with launched(repository, tmp_path / "run", STEPS, url.parent / "points.pt", workers=1):
            pass
    finally:
        git(repository, "checkout", "--quiet", "train.py")
    status, verdict, output = reproduced(tmp_path / "run", "--workers", 1)
    assert (status, verdict.get("equal")) == (0, True), f"the change is in the manifest's diff\n{output}"


def test_other_threads_are_named_at_the_first_step_that_differs(made: tuple[Path, Path]) -> None:
    _, url = made
    status, verdict, output = reproduced(url, "--workers", 1, "--steps", 6, THREADS="2")
    assert (status, verdict["causes"][0]["path"]) == (1, "identity.threads"), output


def test_another_data_file_is_named_at_the_step_and_share_that_read_it(made: tuple[Path, Path], tmp_path: Path) -> None:
    _, url = made
    rows = torch.load(url.parent / "points.pt")
    rows[137] += 1.0
    torch.save(rows, tmp_path / "points.pt")
    status, verdict, output = reproduced(url, "--workers", 2, "--", url, STEPS, tmp_path / "points.pt")
    assert status == 1, output
    assert verdict["differs"][0]["part"] == "read", output
    assert verdict["differs"][0]["words"].startswith("other values are read by share "), output
    share = int(verdict["differs"][0]["words"].split()[-1])
    assert 137 in replayed(url, verdict["step"])["shares"][share]["indices"]


def replayed(url: Path, step: int) -> dict[str, Any]:
    """What `elastic replay` gives of a step, which is what the run has on record."""
    with Launch("elastic", ["replay", url, "--step", step, "--json"], cwd=url.parent) as launch:
        output = launch.succeed(within_s=WITHIN_S)
    (line,) = [line for line in output.splitlines() if line.startswith('{"step"')]
    found: dict[str, Any] = json.loads(line)
    assert (found["recorded"], found["differs"]) == (True, []), output
    return found


def test_without_the_repository_the_manifests_copy_is_run_and_it_is_said(
    made: tuple[Path, Path], tmp_path: Path
) -> None:
    _, url = made
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    status, verdict, output = reproduced(url, "--workers", 1, cwd=tmp_path, PATH=path)
    assert (status, verdict.get("equal")) == (0, True), output
    assert any("copy" in one for one in verdict["not_checked"]), output
