"""A run is made again, and its steps computed again, wherever it lives and whoever drives its loop.

On object storage; of trainers, and of sharded models; where there is no git; in an environment of its lock file; under
another torch; where its record is not whole, or something cannot be written.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.launch import ROOT, Launch
from tests.kit.s3 import S3Server, s3_server

pytestmark = pytest.mark.nightly(sample=3, of="runs that are made again elsewhere")

WITHIN_S = 300.0
STEPS = 8
PROGRAMS = ROOT / "tests" / "kit" / "programs"
SCRIPT = """
import json, os, sys, time
import torch
import torch.nn.functional as F
import elastic
try:
    import tiny
except ImportError:
    tiny = None

elastic.seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.arange(96) % 2)
options = json.loads(os.environ.get("STORAGE", "null"))
from_step, scale = json.loads(os.environ.get("OTHERWISE", "[99, 1.0]"))


def written(url):  # a run is not held up by its manifest, and this one is short
    from elastic.manifest.files import LAUNCHES
    from elastic_checkpoint.storage import Missing, open_storage
    try:
        return open_storage(url, options).size(LAUNCHES)
    except Missing:
        return False


def update(run, step):
    if step.index >= from_step:  # what no manifest knows
        model[2].weight.grad *= scale
    optimizer.step()


with elastic.Run(
    sys.argv[1], model=model, optimizer=optimizer, dataset=dataset, batch_size=12, virtual_workers=4, epochs=1,
    save_every=4, saving=elastic.Saving(storage_options=options), update=elastic.Update(apply=update),
) as run:
    for step in run:
        for x, y in step:
            loss = F.cross_entropy(model(x), y, reduction="sum") * (tiny.FACTOR if tiny else 1.0)
            step.backward(loss, count=len(y))
            step.add(loss=loss)
        while options and step.index == 2 and not written(sys.argv[1]):
            time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        server.new_bucket("runs")
        yield server


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers of a script in no repository. No test changes it."""
    folder = tmp_path_factory.mktemp("made")
    launched(folder, folder / "run")
    return folder / "run"


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """That run, to be damaged."""
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def launched(
    folder: Path,
    *arguments: object,
    script: Path | None = None,
    flags: tuple[str, ...] = ("--nproc-per-node=2",),
    env: dict[str, str] | None = None,
) -> None:
    """Makes a run of a script in this folder."""
    if script is not None:
        shutil.copy(script, folder / "train.py")
    else:
        (folder / "train.py").write_text(SCRIPT)
    words = ["run", "--standalone", *flags, folder / "train.py", *arguments]
    with Launch("elastic", words, cwd=folder, env=env) as launch:
        launch.succeed(within_s=WITHIN_S)


def called(command: str, url: object, *flags: object, cwd: Path, **env: str) -> tuple[int, dict[str, Any], str]:
    """(status, the document that it prints, all output)"""
    with Launch("elastic", [command, url, "--json", *flags], env=env, cwd=cwd) as launch:
        status = launch.finish(within_s=WITHIN_S)
        lines = [line for line in launch.output.splitlines() if line.startswith(('{"equal"', '{"step"'))]
        return status, json.loads(lines[0]) if lines else {}, launch.output


# where it lives


def test_a_run_on_object_storage_is_made_again_there_or_here_and_replayed(s3: S3Server, tmp_path: Path) -> None:
    """Its credentials are in no variable that the manifest keeps, so they are given as they were to the run."""
    url, storage = "s3://runs/mine", {"STORAGE": json.dumps(s3.options)}
    launched(tmp_path, url, env=storage)
    given = [f"--storage-option={name}={value}" for name, value in s3.options.items()]
    for into in ([], ["--into", "s3://runs/again"]):
        status, verdict, output = called(
            "reproduce", url, "--workers", 1, *into, *given, cwd=tmp_path, **storage
        )  # fmt: skip
        assert (status, verdict.get("equal"), verdict.get("checkpoint")) == (0, True, STEPS), output
        assert s3.secret not in output
    status, verdict, output = called("reproduce", url, "--into", "s3://runs/again", *given, cwd=tmp_path, **storage)
    assert (status, verdict) == (2, {}), output
    assert "--into s3://runs/again: a run lies there" in output
    status, found, output = called("replay", url, "--step", 5, *given, cwd=tmp_path, **storage)
    assert (status, found.get("differs")) == (0, []), output
    assert "from the checkpoint of step 4" in output


# whose loop it is


@pytest.mark.parametrize("framework", ["accelerate", "fabric", "transformers", "lightning"])
def test_a_trainers_run_is_made_again_at_another_size_and_replayed_alone(framework: str, tmp_path: Path) -> None:
    launched(tmp_path, framework, tmp_path / "run", "--whole", script=PROGRAMS / "sharded_trainers.py")
    is_made_again_and_replayed(tmp_path, workers=1, steps={2: 24, 3: 17})


@pytest.mark.parametrize("framework", ["accelerate", "fabric", "transformers", "lightning"])
def test_a_sharded_run_is_made_again_in_replicas_and_replayed_in_one_process(framework: str, tmp_path: Path) -> None:
    replicas = ("--nproc-per-node=2", "--replica-size=2")
    program = PROGRAMS / "sharded_trainers.py"
    launched(tmp_path, framework, tmp_path / "run", script=program, flags=replicas)
    # Of other steps than those behind a save no norm is known where a replica is of several workers.
    is_made_again_and_replayed(tmp_path, workers=2, steps={2: 24})


def is_made_again_and_replayed(folder: Path, *, workers: int, steps: dict[int, int]) -> None:
    """steps: to be replayed, with how many examples each has"""
    status, verdict, output = called("reproduce", folder / "run", "--workers", workers, cwd=folder)
    assert (status, verdict.get("equal"), verdict.get("compared")) == (0, True, 5), output
    for step, examples in steps.items():
        status, found, output = called("replay", folder / "run", "--step", step, cwd=folder)
        assert (status, found.get("differs")) == (0, []), output
        assert {"read", "gradients"} <= {*found["compared"]}, output
        read = Counter(index for one in found["shares"] for index in one["indices"])
        assert (len(read), read.total()) == (examples, examples), "each of the batch's examples once"
        assert "from the checkpoint of step 2" in output


# what the machine has


def test_without_git_the_copy_is_run_and_it_is_said(made: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, verdict, output = called("reproduce", made, "--workers", 1, cwd=tmp_path, PATH=str(tmp_path / "empty"))
    assert (status, verdict.get("equal")) == (0, True), output
    assert any("train.py is the copy that the manifest keeps" in one for one in verdict["not_checked"]), output
    status, found, output = called("replay", made, "--step", 6, cwd=tmp_path, PATH=str(tmp_path / "empty"))
    assert (status, found.get("differs")) == (0, []), output


def test_a_repository_that_nobody_can_write_to_is_none(tmp_path: Path) -> None:
    """A worktree is entered in it: the copy is run then, and why is said."""
    words = ["git", "-c", "user.name=a", "-c", "user.email=a@host"]
    (tmp_path / "train.py").write_text(SCRIPT)
    for more in (["init", "--quiet"], ["add", "train.py"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*words, *more], cwd=tmp_path, check=True)
    launched(tmp_path, tmp_path / "run")
    (tmp_path / ".git" / "worktrees").write_text("no folder can be made here")
    status, verdict, output = called("reproduce", tmp_path / "run", "--workers", 1, "--steps", 2, cwd=tmp_path)
    assert (status, verdict.get("equal")) == (0, True), output
    assert any("cannot be checked out here" in one and "is the copy" in one for one in verdict["not_checked"]), output


def test_an_environment_of_the_lock_file_has_the_version_that_the_run_had(tmp_path: Path) -> None:
    """Here is another version of a package, which changes what is computed."""
    here = environment_with(tmp_path, "2.0", factor=2.0)
    then = environment_with(tmp_path, "1.0", factor=1.0)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["run", "--standalone", "--nproc-per-node=1", str(tmp_path / "train.py"), str(tmp_path / "run")]
    by(then, words, cwd=tmp_path)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["packages"]["versions"]["tiny"] == "1.0"
    lock = tmp_path / "run" / manifest["packages"]["lock"]["file"]
    assert "\ntiny==1.0\n" in lock.read_text()
    # Only that package is to be installed: of all others `rest` has those that are here.
    lock.write_text("tiny==1.0\nrest==1.0\n")
    wheel(tmp_path / "wheels", "tiny", "1.0", {"tiny.py": "FACTOR = 1.0\n"})
    wheel(tmp_path / "wheels", "rest", "1.0", {"rest.pth": paths_here()})
    hermetic = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"), "PIP_CONFIG_FILE": os.devnull}
    reproduce = ["reproduce", str(tmp_path / "run"), "--json"]
    status, verdict = by(here, reproduce, cwd=tmp_path, status=1)
    assert (status, verdict["equal"], verdict["step"]) == (1, False, 0)
    assert "packages.versions.tiny" in [one["path"] for one in verdict["causes"]]
    status, verdict = by(here, [*reproduce, "--environment"], cwd=tmp_path, env=hermetic)
    assert (status, verdict["equal"], verdict["compared"]) == (0, True, STEPS)


def environment_with(folder: Path, version: str, *, factor: float) -> Path:
    """The python of a virtual environment that has what is here, and this version of `tiny`."""
    made = folder / f"environment-{version}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    (site,) = made.glob("lib/python3*/site-packages")
    (site / "here.pth").write_text(paths_here())
    (site / "tiny.py").write_text(f"FACTOR = {factor}\n")
    (site / f"tiny-{version}.dist-info").mkdir()
    (site / f"tiny-{version}.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n"
    )
    return made / "bin" / "python"


def paths_here() -> str:
    """Lines of a .pth file with which an environment sees what this one has."""
    return "".join(f"{path}\n" for path in (sysconfig.get_path("purelib"), ROOT, ROOT / "checkpoint"))


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, text in files.items():
            made.writestr(path, text)


def by(
    python: Path, words: list[str], *, cwd: Path, status: int = 0, env: dict[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Calls `elastic` by another python; (status, the document that it prints)."""
    environ = {**os.environ, "PYTHONPATH": "", **(env or {})}
    done = subprocess.run(
        [python, "-m", "elastic", *words], cwd=cwd, env=environ, capture_output=True, text=True, timeout=WITHIN_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, json.loads(lines[0]) if lines else {}


def test_another_torch_is_named_where_a_step_differs(copied: Path, tmp_path: Path) -> None:
    """As the manifest of a run has it that was made under another one."""
    for name in ("manifest.json", "launches.jsonl"):
        text = (copied / name).read_text()
        assert name != "manifest.json" or '"torch": "' in text
        documents = [json.loads(text)] if name == "manifest.json" else list(map(json.loads, text.splitlines()))
        for one in documents:
            for part, field in (("identity", "torch"), ("torch", "version")):
                if part in one:
                    one[part][field] = "2.12.1+cpu"
        (copied / name).write_text("".join(f"{json.dumps(one)}\n" for one in documents))
    status, verdict, output = called("reproduce", copied, "--workers", 1, cwd=tmp_path)
    assert (status, verdict.get("equal")) == (0, True), output
    assert "2.12.1+cpu" in output, "it is said before the launch"
    status, verdict, output = called("reproduce", copied, "--workers", 1, cwd=tmp_path, OTHERWISE="[5, 1.5]")
    assert (status, verdict["step"]) == (1, 6), output
    assert (verdict["causes"][0]["path"], verdict["causes"][0]["effect"]) == ("identity.torch", "decides bits"), output


# the tensor


@pytest.mark.parametrize(("begins", "step"), [(4, 4), (5, 6)])
def test_one_parameter_that_is_updated_otherwise_is_named(begins: int, step: int, made: Path, tmp_path: Path) -> None:
    """At the first step behind a save its update is on record; else the next step's loss shows it first."""
    otherwise = f"[{begins}, 1.5]"
    status, verdict, output = called("reproduce", made, "--workers", 1, cwd=tmp_path, OTHERWISE=otherwise)
    assert (status, verdict["step"]) == (1, step), output
    assert verdict["differs"][0]["part"] == ("weights" if begins == 4 else "gave"), output
    assert verdict["tensor"].startswith("2.weight, " if begins == 4 else "0.weight, "), output
    status, found, output = called("replay", made, "--step", begins, cwd=tmp_path, OTHERWISE=otherwise)
    if begins == 4:
        assert (status, found["tensor"]) == (1, "2.weight, after step 4"), output
        assert "first in 2.weight" in found["differs"][0]


# what is not whole


def test_a_record_that_is_cut_short_is_compared_as_far_as_it_goes(copied: Path, tmp_path: Path) -> None:
    """And so is what is left of it where a line within is none."""
    (segment,) = (copied / "record").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:3], b"\xff\x00garbage\n", *lines[4:6], lines[6][:40]]))
    status, verdict, output = called("reproduce", copied, "--workers", 1, cwd=tmp_path)
    assert (status, verdict.get("step"), verdict.get("missing")) == (1, None, [[2, 3]]), output
    assert (verdict["compared"], verdict["steps"]) == (4, 5), output


def test_a_trace_that_cannot_be_kept_costs_no_answer(made: Path, tmp_path: Path) -> None:
    (tmp_path / "replay-step-3.json").mkdir()
    status, found, output = called("replay", made, "--step", 3, "--profile", cwd=tmp_path)
    assert (status, found["differs"]) == (0, []), output
    assert "the trace is not kept" in output
