"""The command `elastic checkpoint` says what is there, whether it is whole, and exits so that a script can tell."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.cli import housekeeping, main
from elastic_checkpoint.cli.screen import escaped, one_line
from elastic_checkpoint.cli.usage import parse
from elastic_checkpoint.command_line import storage_options
from elastic_checkpoint.runs.newer_claim import withdraw
from elastic_checkpoint.storage import open_storage
from tests.kit.s3 import S3Server

STATE = {"model": {"w": torch.arange(6.0)}, "epoch": 3}
ROOT = Path(__file__).parents[2]
WITHIN_S = 240.0

Capture = pytest.CaptureFixture[str]
Make = Callable[..., Checkpointer]


@pytest.fixture
def run(tmp_path: Path, checkpointer: Make) -> Path:
    """A run whose job has ended: steps 10, 20 and 30, saved by 8 workers."""
    with checkpointer(tmp_path / "run", keep=9) as first:
        first.save(10, STATE, meta={"world_size": 8, "loss": float("nan")})
        first.save(20, STATE)
        first.save(30, STATE, meta={"world_size": "many"})
    return tmp_path / "run"


@pytest.fixture
def late(run: Path, checkpointer: Make) -> Path:
    """The run went on from step 20 to 25, and a host that was given up then finished its save of step 30."""
    [manifest] = (run / "commits").glob("*.s000000030-*")
    hidden = run / "hidden"
    manifest.rename(hidden)
    with checkpointer(run, keep=9) as second:
        second.save(25, STATE)
    hidden.rename(manifest)
    return run


def damage(run: Path, step: int) -> None:
    [path] = (run / "data").glob(f"*/s{step:09d}-*/*")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def files(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def command(
    *arguments: object, program: Sequence[str] = ("-m", "elastic", "checkpoint"), **options: Any
) -> subprocess.CompletedProcess[str]:
    """The real command, with its output in pipes."""
    return subprocess.run(
        [sys.executable, *program, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
        **options,
    )


def s3_options(s3: S3Server) -> list[str]:
    return [f"--storage-option={key}={value}" for key, value in s3.options.items()]


def test_ls_lists_commits_newest_first(run: Path, capsys: Capture) -> None:
    assert main(["ls", str(run)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["step", "size", "age", "workers", "claim", "lineage"]
    assert [line.split()[0] for line in lines[1:]] == ["30", "20", "10"]
    assert re.fullmatch(r"10 +\d+ B +\d+ s +8 +1 +yes", lines[3])
    assert re.fullmatch(r"30 +\d+ B +\d+ s +- +1 +yes", lines[1])

    assert main(["ls", str(run), "--long"]) == 0
    assert re.search(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  1 +c00000001\.s000000030-[0-9a-f]{20}\n", capsys.readouterr().out
    )

    assert main(["ls", str(run), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(one["step"], one["in_lineage"], one["world_size"]) for one in listed] == [
        (30, True, None),
        (20, True, None),
        (10, True, 8),
    ]
    assert listed[2]["meta"] == {"world_size": 8, "loss": "nan"}
    assert 0 <= listed[0]["age_s"] < 3600


def test_where_nothing_would_ever_be_loaded_ls_says_1(tmp_path: Path, checkpointer: Make, capsys: Capture) -> None:
    """The first commit of a job whose claim had been withdrawn as it was made."""
    with checkpointer(tmp_path) as first:
        first.save(10, STATE)
    withdraw(open_storage(tmp_path), 1, "its taker gave up")

    assert main(["ls", str(tmp_path)]) == 1
    assert "no, never loaded" in capsys.readouterr().out
    assert main(["digest", str(tmp_path)]) == 2
    assert main(["digest", str(tmp_path), "--step", "10"]) == 2
    assert "outside the run's lineage" in capsys.readouterr().err


def test_verify_reads_every_byte(run: Path, capsys: Capture) -> None:
    assert main(["verify", str(run)]) == 0
    assert "3 of 3 whole" in capsys.readouterr().out
    damage(run, 20)

    assert main(["verify", str(run)]) == 1
    out = capsys.readouterr().out
    assert "2 of 3 whole" in out
    assert "DAMAGED  step 20  c00000001.s000000020-" in out
    assert "tensors  model.w" in out
    assert main(["verify", str(run), "--step", "10"]) == 0
    capsys.readouterr()
    assert main(["verify", str(run), "--json"]) == 1
    assert [one["ok"] for one in json.loads(capsys.readouterr().out)] == [True, False, True]


def test_digest_is_that_of_the_state_and_of_its_parts(run: Path, capsys: Capture) -> None:
    assert main(["digest", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["digest"]) == (30, digest(STATE))
    assert found["parts"] == {"model": digest(STATE["model"])}
    assert main(["digest", str(run), "--step", "10"]) == 0
    assert f"{digest(STATE)}  step 10, everything" in capsys.readouterr().out


def test_digest_of_damage_is_1_where_it_was_asked_for_and_the_one_below_where_not(run: Path, capsys: Capture) -> None:
    damage(run, 30)
    assert main(["digest", str(run), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["step"] == 20
    assert "passed over" in said.err
    assert main(["digest", str(run), "--step", "30"]) == 1
    for step in (10, 20):
        damage(run, step)
    assert main(["digest", str(run)]) == 1
    assert capsys.readouterr().out == ""


def test_looking_changes_nothing_and_needs_no_claim(run: Path, tmp_path: Path) -> None:
    with Checkpointer(run) as held:
        held.claim()
        before = files(run)
        for arguments in (
            ["ls", run],
            ["verify", run],
            ["digest", run],
            ["diff", run, "10", "20"],
            ["export", run, "--to", "safetensors", tmp_path / "out"],
            ["sweep", run, "--keep", "2", "--dry-run"],
        ):
            assert main([str(argument) for argument in arguments]) == 0
    assert files(run) == before


@pytest.mark.parametrize("name", ["ls", "verify", "digest", "sweep"])
def test_every_command_works_on_s3(name: str, s3: S3Server, checkpointer: Make, capsys: Capture) -> None:
    url = f"s3://runs/cli-{name}"
    with checkpointer(url, storage_options=s3.options, keep=9) as runs:
        for step in (10, 20, 30):
            runs.save(step, STATE)
    assert main([name, url, "--json", *s3_options(s3), *(["--keep", "2"] if name == "sweep" else [])]) == 0
    said = capsys.readouterr()
    assert s3.options["secret"] not in said.out + said.err
    if name == "sweep":
        assert [one["step"] for one in json.loads(said.out)["planned"]] == [10]
        assert [one.step for one in checkpointer(url, storage_options=s3.options).list()] == [30, 20]


def test_memory_is_read_from_inside_the_process_that_saved(checkpointer: Make, capsys: Capture) -> None:
    checkpointer("memory://cli").save(10, STATE)
    assert main(["ls", "memory://cli"]) == 0
    assert main(["ls", "memory://cli-nothing"]) == 2
    assert "empty" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ls", "verify", "digest", "diff", "export", "sweep"])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("{tmp}/none", "no such folder"),
        ("{tmp}", "a folder of runs: run"),
        ("{run}/data", "give the run's folder"),
        ("{file}", "a file"),
        ("s3:/bucket/run", "write s3:// with two slashes"),
        ("", "it is empty"),
        ("nosuch://secret-user:secret-word@host/x", "nothing here opens nosuch://"),
    ],
)
def test_where_there_is_no_run_every_command_says_what_there_is_and_changes_nothing(
    name: str, url: str, says: str, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    before = files(tmp_path)
    url = url.format(tmp=tmp_path, run=run, file=file)
    more = {"diff": [str(run)], "export": ["--to", "dcp", str(tmp_path / "out")]}.get(name, [])

    assert main([name, url, *more]) == 2
    said = capsys.readouterr()
    assert says in said.err
    for part in ("found", "expected", "state", "next"):
        assert re.search(rf"^  {part} ", said.err, re.MULTILINE)
    assert said.out == ""
    assert "secret" not in said.err
    assert files(tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["verify", "digest", "export"])
def test_a_step_that_is_not_there_is_answered_with_those_that_are(
    name: str, run: Path, tmp_path: Path, capsys: Capture
) -> None:
    more = ["--to", "dcp", str(tmp_path / "out")] if name == "export" else []
    assert main([name, str(run), "--step", "15", *more]) == 2
    assert "steps 30, 20, 10" in capsys.readouterr().err


def test_a_bucket_that_is_not_there_and_options_that_are_wrong_are_told_without_secrets(
    s3: S3Server, capsys: Capture
) -> None:
    assert main(["ls", "s3://no-such-bucket/x", *s3_options(s3)]) == 2
    assert main(["ls", "s3://runs/nothing-here", *s3_options(s3)]) == 2
    assert main(["ls", "s3://runs/x", *s3_options(s3), "--storage-option=sesame=open-sesame"]) == 2
    said = capsys.readouterr()
    assert "create the bucket" in said.err
    assert "no object below commits/" in said.err
    assert "each --storage-option" in said.err
    for secret in (s3.options["secret"], "open-sesame"):
        assert secret not in said.out + said.err


def test_a_usage_error_is_2_and_repeats_no_secret(capsys: Capture) -> None:
    for arguments in (
        ["ls"],
        ["ls", "s3://user:hush@b/x", "s3://user:hush@b/y"],
        ["ls", "x", "--storage-option", "hush"],
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
    assert "hush" not in capsys.readouterr().err
    assert main(["diff", "a", "b", "3"]) == 2


def test_an_option_may_stand_in_a_file_that_only_its_owner_reads(tmp_path: Path, capsys: Capture) -> None:
    """Others see the arguments of a command; what cannot be read names no file, for a secret may begin with @, too."""
    (tmp_path / "secret").write_text("open=sesame\n")
    (tmp_path / "client").write_text('{"region_name": "eu"}\n')
    asked = parse(["ls", "x", f"--storage-option=secret=@{tmp_path}/secret", f"--storage-option=c=@{tmp_path}/client"])
    assert storage_options(asked) == {"secret": "open=sesame", "c": {"region_name": "eu"}}

    (tmp_path / "bytes").write_bytes(b"\xff")
    for value, why in (("hush", "No such file or directory"), (f"{tmp_path}/bytes", "it is no text")):
        with pytest.raises(SystemExit):
            parse(["ls", "x", f"--storage-option=secret=@{value}"])
        said = capsys.readouterr().err
        assert f"argument --storage-option: secret=@FILE: the file cannot be read: {why}\n  next  " in said
        assert value not in said


def test_help_of_every_command_says_what_the_exit_statuses_mean_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ([], ["ls"], ["verify"], ["digest"], ["diff"], ["export"], ["sweep"]):
        with pytest.raises(SystemExit) as caught:
            main([*name, "--help"])
        assert caught.value.code == 0
        text = capsys.readouterr().out
        assert re.search(r"exit status:\n  0  .*\n(?:.*\n)*  2  it could not be found out", text)
        assert max(map(len, text.splitlines())) <= 80


def test_a_reader_that_leaves_early_is_no_answer_and_no_traceback(run: Path) -> None:
    """`elastic checkpoint ls | head -1` under `set -o pipefail`."""
    for more in ([], ["--json"]):
        with subprocess.Popen(
            [sys.executable, "-m", "elastic", "checkpoint", "ls", str(run), *more],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == b""
            assert process.wait(timeout=WITHIN_S) == 141


def test_a_sweep_says_what_would_go_and_removes_just_that(run: Path, checkpointer: Make, capsys: Capture) -> None:
    before = files(run)
    assert main(["sweep", str(run), "--keep", "2", "--dry-run"]) == 0
    assert re.search(
        r"^10 +\d+ B +older than those to keep +c00000001\.s000000010-", capsys.readouterr().out, re.MULTILINE
    )
    assert files(run) == before

    assert main(["sweep", str(run), "--keep", "2"]) == 0
    assert "removed 1 save" in capsys.readouterr().out
    assert main(["sweep", str(run), "--keep", "2"]) == 0
    assert "nothing to remove" in capsys.readouterr().out
    assert not [name for name in files(run) if "s000000010" in name]
    assert main(["verify", str(run)]) == 0
    with checkpointer(run, grace_s=0) as later:  # nobody holds the URL: the sweep's claim stands in nobody's way
        later.save(40, STATE)
        assert [one.step for one in later.list()][:3] == [40, 30, 20]


def test_without_keep_only_what_the_run_never_needs_again_goes(late: Path, capsys: Capture) -> None:
    orphan = late / "data" / "c00000001" / "s000000040-0123456789abcdef0123"
    orphan.mkdir()
    (orphan / "00000.safetensors").write_bytes(b"half of a save")
    assert main(["sweep", str(late), "--dry-run"]) == 0
    assert "nothing to remove" not in capsys.readouterr().out  # the orphan's clock says that it is old
    assert main(["sweep", str(late), "--json", "--grace-s", "0"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {(one["step"], one["why"]) for one in document["planned"]} == {
        (30, "outside the lineage"),
        (40, "never committed"),
    }
    assert document["left"] == []
    assert not orphan.exists()
    with Checkpointer(late) as runs:
        assert [one.step for one in runs.list()] == [25, 20, 10]


def test_a_live_job_is_not_swept_from_under(run: Path, checkpointer: Make, capsys: Capture) -> None:
    with checkpointer(run, keep=9) as live:
        live.save(40, STATE)
        before = files(run)
        assert main(["sweep", str(run), "--keep", "2", "--take-over"]) == 2
        err = capsys.readouterr().err
        assert "ClaimHeld" in err
        assert "it answers" in err
        assert files(run) == before
        live.save(50, STATE)


@pytest.fixture
def stopped(run: Path) -> Iterator[int]:
    """The id of a process that holds the run's claim, and was stopped: it may go on at any time."""
    program = (
        "import sys, elastic_checkpoint\n"
        "c = elastic_checkpoint.Checkpointer(sys.argv[1]); c.claim(); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], WITHIN_S)[0]
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            yield process.pid
        finally:
            process.kill()


def test_a_silent_job_is_swept_only_if_the_person_insists(
    run: Path, stopped: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(housekeeping, "_ANSWER_S", 0.5)
    before = files(run)
    assert main(["sweep", str(run), "--keep", "2"]) == 2
    err = capsys.readouterr().err
    assert f"process {stopped}" in err
    assert "--take-over" in err
    assert files(run) == before
    assert main(["sweep", str(run), "--keep", "2", "--take-over"]) == 0
    assert "removed 1 save" in capsys.readouterr().out


def test_a_job_that_starts_during_a_sweep_ends_it_and_loses_nothing(run: Path, checkpointer: Make) -> None:
    class StartsAtTheFirstRemoval:
        """The storage, beneath which another job starts just before anything is removed."""

        def __init__(self) -> None:
            self._inner = open_storage(run)
            self.newcomer: Checkpointer | None = None

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def delete(self, key: str) -> None:
            if self.newcomer is None:
                self.newcomer = checkpointer(run, grace_s=0, keep=9)
                self.newcomer.save(40, STATE)
            self._inner.delete(key)

    with checkpointer(run, keep=9) as more:
        more.save(35, STATE)
    storage: Any = StartsAtTheFirstRemoval()
    planned, removed = housekeeping.sweep_as_claimant(
        storage, lambda line: None, keep=2, orphan_grace_s=3600, insist=False, deadline_s=10
    )
    assert [one.step for one in planned] == [10, 20]
    assert removed == [planned[0].name]
    assert [one.step for one in storage.newcomer.list()] == [40, 35, 30, 20]
    assert all(one.ok for one in storage.newcomer.verify())


def test_what_storage_holds_cannot_steer_the_terminal() -> None:
    """A tensor's name may be anything that somebody wrote into a manifest."""
    assert escaped("a\x1b[2Jb\r\ud800é\n") == "a\\x1b[2Jb\\r\\ud800é\n"
    assert one_line("a\nb") == "a\\nb"
