"""A run has a manifest beside its checkpoints, and each launch a line, whatever starts it; no secret is there.

Real runs: two workers of which one is killed, resumed from a changed working tree; on S3; where git hangs or is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from elastic.manifest import command, files, schema
from elastic_checkpoint.storage import open_storage
from elastic_checkpoint.testing import Delay, Plan
from tests.kit.launch import Launch
from tests.kit.s3 import s3_server

pytestmark = pytest.mark.nightly(sample=4, of="manifests of runs")

WITHIN_S = 240.0
SCRIPT = """
import json, os, signal, sys, time
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset
import elastic
from elastic.manifest import files
from elastic_checkpoint.storage import open_storage

url, epochs, options = sys.argv[1], int(sys.argv[2]), json.loads(os.environ.get("OPTIONS", "null"))
elastic.seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
with elastic.Run(
    url, model=model, optimizer=optimizer, dataset=data, batch_size=12, virtual_workers=4, epochs=epochs, save_every=4,
    saving=elastic.Saving(storage_options=options),
) as run:
    if run.is_coordinator:
        storage = open_storage(url, options)
        with run.long_section():
            while len(files.read_launches(storage, {})) < int(os.environ["LAUNCHES"]):
                time.sleep(0.02)
    for x, y in run.batches():
        marker = os.environ.get("KILL")
        if marker and run.step_index == 5 and run.rank == 1 and not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with a script that is committed, and a remote whose URL holds a password."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    git(folder, "init", "--quiet", "--initial-branch=trunk")
    git(folder, "add", "script.py")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@host", "commit", "--quiet", "--message", "first")
    git(folder, "remote", "add", "origin", "https://me:planted-in-remote@host/repository.git")
    return folder


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def launched(launcher: str, script: Path, *args: object, env: dict[str, str] | None = None) -> Iterator[str]:
    """The output of a launch that has succeeded. It trains once it is on record: LAUNCHES, with those before it."""
    env = {"LAUNCHES": "1", **(env or {})}
    if launcher == "elastic":
        started = Launch("elastic", ["run", "--standalone", "--nproc-per-node=2", script, *args], env=env)
    else:
        workers = 2 if launcher == "torchrun" else None
        started = Launch(script.stem, args, workers=workers, env=env, cwd=script.parent)
    with started as launch:
        yield launch.succeed(within_s=WITHIN_S)


def manifests(url: str, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with contextlib.closing(open_storage(url, options)) as storage:
        manifest = files.read_manifest(storage)
        assert manifest is not None
        launches = files.read_launches(storage, manifest)
    validator = jsonschema.Draft202012Validator(json.loads(schema.json_schema()))
    for one in (manifest, *launches):
        assert [error.message for error in validator.iter_errors(one)] == []
    return manifest, launches


def test_a_run_is_described_launch_by_launch_and_no_secret_is_there(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, script = tmp_path / "run", repository / "script.py"
    environ = {
        "KILL": str(tmp_path / "killed"),
        "OMP_NUM_THREADS": "1",
        "MY_SERVICE_TOKEN": "planted-in-environment",
        "TORCH_HUB_URL": "https://me:planted-in-variable@host/hub",
        "OPTIONS": json.dumps({"secret": "planted-in-options"}),
        "ELASTIC_IMAGE": "host/image@sha256:12ab",
    }
    secrets = ["--api-key", "planted-in-flag", "--from=s3://me:planted-in-url@bucket/x?sig=planted-in-query"]
    with launched("elastic", script, run, 2, *secrets, env=environ):
        pass
    assert (tmp_path / "killed").exists()
    first = (run / "manifest.json").read_bytes()
    script.write_text(SCRIPT + "print('planted-in-flag', 'end')\n")
    (repository / "new.py").write_text("")
    with launched("elastic", script, run, 3, *secrets, env={**environ, "LAUNCHES": "2"}):
        pass

    assert (run / "manifest.json").read_bytes() == first, "it is written once"
    manifest, launches = manifests(str(run))
    assert manifest == launches[0]
    assert [one["run"]["claim"] for one in launches] == [1, 2]
    assert [(one["run"]["resumed_from"] or {}).get("step") for one in launches] == [None, 8]
    assert [one["git"]["dirty"] for one in launches] == [False, True]
    assert manifest["git"]["commit"] == git(repository, "rev-parse", "HEAD")
    assert (manifest["git"]["branch"], manifest["git"]["script"]) == ("trunk", "script.py")
    assert launches[1]["git"]["untracked"] == ["new.py"]
    assert manifest["script"]["arguments"][:2] == [str(run), "2"]
    assert (run / manifest["script"]["copy"]["file"]).read_text() == SCRIPT
    assert manifest["arguments"]["given"]["epochs"] == 2
    assert launches[1]["arguments"]["given"]["epochs"] == 3
    assert manifest["arguments"]["given"]["saving"]["storage_options"] == ["secret"]
    assert manifest["identity"]["virtual_workers"] == 4
    assert manifest["run"]["world_size"] in (1, 2)
    assert manifest["launcher"]["name"] == "elastic run"
    assert "--standalone" in manifest["command"]["launcher"]
    assert manifest["container"] == {"image": "host/image", "digest": "sha256:12ab"}
    assert manifest["environment"]["OMP_NUM_THREADS"] == "1"
    assert manifest["absent"] == {}

    diff = launches[1]["git"]["diff"]
    assert diff["altered"], "a secret stood in it"
    assert "+print('***', 'end')" in (run / diff["file"]).read_text()
    lock = (run / manifest["packages"]["lock"]["file"]).read_text()
    assert "msgspec==" in lock

    written = [path for path in run.rglob("*") if path.is_file() and "events" not in path.parts]
    leaks = [path for path in written if b"planted" in path.read_bytes()]
    assert leaks == []

    assert command.main([str(run), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {view["world_size"] for view in shown["views"]} >= {1, 2}
    assert command.main([str(run)]) == 0
    said = capsys.readouterr().out
    assert "launch 2" in said
    assert "script.sha256" in said
    assert "planted" not in said


@pytest.mark.parametrize("launcher", ["torchrun", "python"])
def test_other_launchers_are_described_too(launcher: str, repository: Path, tmp_path: Path) -> None:
    with launched(launcher, repository / "script.py", tmp_path / "run", 1):
        pass
    manifest, launches = manifests(str(tmp_path / "run"))
    assert manifest == launches[0]
    assert manifest["launcher"]["name"] == (None if launcher == "python" else "torchrun")
    assert manifest["run"]["world_size"] == (1 if launcher == "python" else 2)


def test_two_runs_are_compared_what_decides_bits_first(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = repository / "script.py"
    with launched("python", script, tmp_path / "one", 1):
        pass
    with launched("python", script, tmp_path / "same", 1):
        pass
    script.write_text(SCRIPT.replace("lr=0.1", "lr=0.2"))
    with launched("python", script, tmp_path / "other", 1):
        pass
    assert command.main([str(tmp_path / "one"), "--diff", str(tmp_path / "same")]) == 0
    capsys.readouterr()
    assert command.main([str(tmp_path / "one"), "--diff", str(tmp_path / "other"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["differences"]
    deciding = [each["path"] for each in found if each["effect"] == "decides bits"]
    assert deciding == [each["path"] for each in found[: len(deciding)]]
    assert "script.sha256" in deciding
    assert any(path.startswith("identity.optimizer") for path in deciding)
    assert command.main([str(tmp_path / "absent")]) == 2


def test_a_run_on_object_storage_has_both_files(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with s3_server() as server:
        url = f"{server.new_bucket('runs')}/mine"
        for epochs in (1, 2):
            environ = {"OPTIONS": json.dumps(server.options), "LAUNCHES": str(epochs)}
            with launched("python", script, url, epochs, env=environ):
                pass
        manifest, launches = manifests(url, server.options)
        with contextlib.closing(open_storage(url, server.options)) as storage:
            text = b"".join(storage.get(key) for key in storage.list("") if not key.startswith("data"))
    assert [one["run"]["claim"] for one in launches] == [1, 2]
    assert "git" in manifest["absent"], "the script is in no repository"
    assert server.secret.encode() not in text
    assert server.key.encode() not in text


def test_a_short_run_on_a_storage_that_is_slow_has_its_manifest(tmp_path: Path) -> None:
    """It is over long before: once the storage has taken its save, it waits for the manifest, too."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    url, slow = f"faulty://{tmp_path}/run", Plan(Delay(4.0, on="write", path="*/run/manifest.json"))
    options = {"target_protocol": "file", "target_options": {"auto_mkdir": True}, "faults": slow.document()}
    with launched("python", script, url, 1, env={"OPTIONS": json.dumps(options), "LAUNCHES": "0"}):
        pass
    _, launches = manifests(str(tmp_path / "run"))
    assert [one["run"]["claim"] for one in launches] == [1]


@pytest.mark.parametrize(("git_is", "why"), [("absent", "no git here"), ("hanging", "had not answered")])
def test_a_machine_without_git_or_with_one_that_hangs_costs_no_more_than_fields(
    git_is: str, why: str, repository: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if git_is == "hanging":
        (programs / "git").write_text("#!/bin/sh\nexec sleep 600\n")
        (programs / "git").chmod(0o755)
    path = str(programs) if git_is == "absent" else f"{programs}{os.pathsep}{os.environ['PATH']}"
    with launched("python", repository / "script.py", tmp_path / "run", 1, env={"PATH": path}):
        pass
    manifest, _ = manifests(str(tmp_path / "run"))
    assert why in manifest["absent"]["git"]
    assert "git" not in manifest
    assert manifest["script"]["copy"]["bytes"] == len(SCRIPT)
