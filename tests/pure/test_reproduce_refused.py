"""Of what is no run, damaged, or of a later version `elastic reproduce` and `elastic replay` say what to do next.

All of it is said before anything is launched, so these are calls in the test's own process.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.manifest.files import LAUNCHES, MANIFEST
from elastic.record import read_record
from elastic.record.step_record import FORMAT, VERSION, encoded
from elastic.reproduce import command, replay_command
from elastic.reproduce.source_tree import CannotReproduce
from elastic_checkpoint.storage import open_storage

STEPS, SHARES = 8, 4
WHOLE: dict[str, Any] = {
    "format": "elastic-manifest",
    "version": 1,
    "run": {"url": "/runs/x", "claim": 1, "resumed_from": None, "t": 1.5, "worker": "a", "world_size": 2,
            "workers": ["a", "b"]},
    "absent": {},
    "arguments": {"given": {}, "resolved": {"total_steps": STEPS, "virtual_workers": SHARES}},
    "script": {"path": "/x/train.py", "sha256": "0" * 64, "module": None, "arguments": [], "folder": "/x"},
}  # fmt: skip
Refused = Callable[..., str]
COMMANDS = {"reproduce": (command.main, ["--workers", "1"]), "replay": (replay_command.main, ["--step", "3"])}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder, with a manifest and a record."""
    folder = tmp_path / "run"
    (folder / "record").mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(WHOLE))
    (folder / LAUNCHES).write_text(json.dumps(WHOLE) + "\n")
    head = {"format": FORMAT, "version": VERSION, "mode": "exact", "virtual_workers": SHARES}
    lines = [head, *({"step": at, "claim": 1, "count": 12, "sums": {"loss": 0.5 + at}} for at in range(STEPS))]
    (folder / "record" / "c00000001-000000000-a.jsonl").write_bytes(b"".join(map(encoded, lines)))
    return folder


@pytest.fixture(params=list(COMMANDS))
def refused(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Refused:
    """refused(url, *flags): what the command says of it."""
    act, usual = COMMANDS[request.param]

    def call(url: object, *flags: str) -> str:
        assert act([str(url), *usual, *flags]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert f"elastic {request.param}: " in said.err
        for part in ("\n  state  ", "\n  next   "):
            assert said.err.count(part) == 1, said.err
        return said.err

    return call


def damaged(run: Path, path: str, value: object = None) -> None:
    """Writes the manifest, of the launch too, with another value, or without this part."""
    document = copy.deepcopy(WHOLE)
    *above, last = path.split(".")
    part = document
    for name in above:
        part = part[name]
    if value is None:
        del part[last]
    else:
        part[last] = value
    (run / MANIFEST).write_text(json.dumps(document))
    (run / LAUNCHES).write_text(json.dumps(document) + "\n")


def test_what_is_no_run_is_told_from_one_that_is_damaged(refused: Refused, run: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("no run")
    for name in ("folder", "nothing", "file"):
        assert f"{tmp_path / name}: no manifest" in refused(tmp_path / name)
    assert not (tmp_path / "nothing").exists()
    assert "nonesuch" in refused("nonesuch://runs/mine")
    whole = (run / MANIFEST).read_bytes()
    for data in (whole[: len(whole) // 2], b"\xff\x00\x80{]" * 100, b"[]", b"{}", b""):
        (run / MANIFEST).write_bytes(data)
        assert "manifest.json is there, and is no whole manifest" in refused(run)


def test_a_later_version_is_named(refused: Refused, run: Path) -> None:
    damaged(run, "version", 2)
    assert "the manifest is of version 2; this elastic-exact reads up to 1" in refused(run)
    damaged(run, "version", 1)
    segment = next((run / "record").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b'"version":1', b'"version":2', 1))
    assert "the record is of version 2" in refused(run)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("script", None, "no script."),
        ("script.path", 7, "no script.path: it is damaged"),
        ("script.arguments", "x", "no script.arguments: it is damaged"),
        ("script.folder", None, "no script.folder: it is damaged"),
        ("run.world_size", "2", "no run.world_size: it is damaged"),
        ("run.url", None, "no run.url: it is damaged"),
        ("arguments", None, "no arguments.resolved.total_steps: it is of an older elastic-exact, or damaged"),
        ("arguments.resolved", [], "no arguments.resolved.total_steps: it is damaged"),
    ],
)
def test_a_part_that_is_missing_or_of_another_kind_is_named(
    path: str, value: object, said: str, refused: Refused, run: Path
) -> None:
    damaged(run, path, value)
    assert f"the manifest has {said}" in refused(run)


def test_why_a_part_could_not_be_had_is_repeated(refused: Refused, run: Path) -> None:
    document = {name: part for name, part in WHOLE.items() if name != "script"}
    document["absent"] = {"script": "python has no script: it was started interactively, or by -c"}
    (run / MANIFEST).write_text(json.dumps(document))
    (run / LAUNCHES).write_text("torn")
    assert "python has no script: it was started interactively, or by -c" in refused(run)


def test_a_script_that_is_nowhere_is_said(refused: Refused, run: Path) -> None:
    assert "no repository here has the script (it was in no commit)" in refused(run)
    assert "--here: /x/train.py is not here" in refused(run, "--here")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--step", str(STEPS)], f"--step {STEPS}: the run has steps 0 to {STEPS - 1}"),
        (["--step", "-1"], f"--step -1: the run has steps 0 to {STEPS - 1}"),
        (["--step", "3", "--share", "4"], "--share 4: the run has shares 0 to 3"),
        (["--step", "3", "--share", "-1"], "--share -1: the run has shares 0 to 3"),
    ],
)
def test_a_step_or_share_that_the_run_has_not_is_refused(
    flags: list[str], said: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay_command.main([str(run), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_share_that_a_step_has_not_is_refused_with_those_that_it_has() -> None:
    replay_command._check_share(1, 3, [0, 1])
    for seen, following in (([0, 1], "give one of shares 0 to 1"), ([], "leave out --share")):
        with pytest.raises(CannotReproduce, match="step 3 has no examples for it") as refused:
            replay_command._check_share(2, 3, seen)
        assert following in str(refused.value)


def test_a_run_without_a_record_has_nothing_to_compare_with(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = next((run / "record").iterdir())
    for data in (b"", b"\xff\x00\x80{]" * 100, b'{"step": "x"}\n[]\n7\n'):
        segment.write_bytes(data)
        assert command.main([str(run)]) == 2
        assert "is on record: its record is gone, or an older elastic-exact made it" in capsys.readouterr().err


def test_a_record_that_is_cut_anywhere_keeps_the_steps_that_are_whole(run: Path) -> None:
    segment = next((run / "record").iterdir())
    whole = segment.read_bytes()
    for cut in range(len(whole)):
        segment.write_bytes(whole[:cut])
        found = read_record(run)
        lines = whole[:cut].count(b"\n")
        assert max(0, lines - 1) <= len(found.steps) <= lines, cut
        assert list(found.steps) == [*range(len(found.steps))]


def test_garbage_within_a_record_costs_the_steps_that_it_hits(run: Path) -> None:
    segment = next((run / "record").iterdir())
    head, *lines = segment.read_bytes().splitlines(keepends=True)
    garbage = [b"\xff\x00garbage\n", b'{"step": "x"}\n', b"[]\n", b'{"step": 2, "claim": 1, "sums": 7}\n']
    segment.write_bytes(b"".join([head, *lines[:2], *garbage, *lines[3:]]))
    found = read_record(run)
    assert list(found.steps) == [0, 1, 3, 4, 5, 6, 7]
    assert found.missing == [(2, 3)]
    segment.write_bytes(b"".join([garbage[0], *lines]))
    assert list(read_record(run).steps) == [*range(STEPS)], "without its first line"


def test_a_run_is_only_read(refused: Refused, run: Path) -> None:
    before = {key: open_storage(run).get(key) for key in (MANIFEST, LAUNCHES)}
    refused(run)
    assert {key: open_storage(run).get(key) for key in before} == before
    assert sorted(path.name for path in run.iterdir()) == sorted([MANIFEST, LAUNCHES, "record"])
