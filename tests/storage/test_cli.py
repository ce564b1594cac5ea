"""The command `checkpoint` says what is there, whether it is whole, and exits so that a script can tell."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from checkpoint import Checkpointer, digest
from checkpoint.cli import human_bytes, main
from tests.kit.s3 import S3Server

STATE = {"model": {"w": torch.arange(6.0)}, "epoch": 3}


@pytest.fixture
def run(tmp_path: Path, checkpointer: Callable[..., Checkpointer]) -> Path:
    with checkpointer(tmp_path) as first:
        first.save(10, STATE, meta={"epoch": 3, "loss": float("nan")})
        first.save(20, STATE)
    return tmp_path


def test_ls_lists_commits_newest_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"20 +1 +\d{4}-\d\d-\d\d .* c00000001\.s000000020-[0-9a-f]{20}", lines[1])
    assert lines[2].startswith("10")

    assert main(["ls", str(run), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["step"], one["in_lineage"]) for one in listed] == [(20, True), (10, True)]
    assert listed[1]["meta"]["epoch"] == 3


def test_verify_reads_every_byte(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(run)]) == 0
    assert "2 of 2 whole" in capsys.readouterr().out
    [path] = (run / "data" / "c00000001").glob("s000000020-*/*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    assert main(["verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 whole" in out
    assert "model.w" in out
    assert main(["verify", str(run), "--step", "10"]) == 0
    capsys.readouterr()
    assert main(["verify", str(run), "--json"]) == 1
    assert [one["ok"] for one in json.loads(capsys.readouterr().out)] == [False, True]


def test_digest_is_that_of_the_state_and_of_its_parts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["digest", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["digest"]) == (20, digest(STATE))
    assert found["parts"] == {"model": digest(STATE["model"])}
    assert main(["digest", str(run), "--step", "10"]) == 0
    assert f"{digest(STATE)}  step 10, everything" in capsys.readouterr().out


def test_looking_changes_nothing_and_needs_no_claim(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path for path in run.rglob("*"))
    with Checkpointer(run) as held:
        held.claim()
        for command in ("ls", "verify", "digest"):
            assert main([command, str(run)]) == 0
    assert sorted(path for path in run.rglob("*") if path.name != "00000002.json") == before


def test_nothing_there_is_1_and_not_knowing_is_2(
    tmp_path: Path, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("ls", "verify", "digest"):
        assert main([command, str(tmp_path / "none")]) == 1
    assert "NoCheckpoint" in capsys.readouterr().err

    options = [f"--storage-option={key}={value}" for key, value in s3.options.items()]
    assert main(["ls", "s3://no-such-bucket/x", *options]) == 2
    assert s3.options["secret"] not in capsys.readouterr().err
    assert main(["ls", "s3://runs/nothing-here", *options]) == 1
    with pytest.raises(SystemExit) as caught:
        main(["ls"])
    assert caught.value.code == 2


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_214_000_000, "1.21 GB")])
def test_sizes_are_written_for_people(count: int, text: str) -> None:
    assert human_bytes(count) == text
