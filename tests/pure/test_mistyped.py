"""A mistyped flag or command: what was found, the nearest one and `--help`, in two lines, by every command."""

from __future__ import annotations

import pytest

from elastic.__main__ import main
from elastic.launch.arguments import parse


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--versoin", "elastic: there is no --versoin; the nearest is --version"),
        ("demo --kep=x", "elastic demo: there is no --kep; the nearest is --keep"),
        ("drill --kil 2@step=3 train.py", "elastic drill: there is no --kil; the nearest is --kill"),
        ("report --jsn runs/a", "elastic report: there is no --jsn; the nearest is --json"),
        ("plan --paramters 1B", "elastic plan: there is no --paramters; the nearest is --parameters"),
        ("simulate --nodse 3", "elastic simulate: there is no --nodse; the nearest is --nodes"),
        ("checkpoint ls --lnog a", "elastic checkpoint ls: there is no --lnog; the nearest is --long"),
        ("checkpoint diff --jsn a", "elastic checkpoint diff: there is no --jsn; the nearest is --json"),
        ("report s3://b --storage-options {hush}", "there is no --storage-options; the nearest is --storage-option"),
        ("drill a --storage-options @hush", "there is no --storage-options; the nearest is --storage-option"),
        ("report s3://b --storage-option hush", "elastic report: argument --storage-option: expected KEY=VALUE"),
        ("drill a --storage-option hush", "elastic drill: argument --storage-option: expected KEY=VALUE"),
        ("checkpoint ls a --storage-optoin=key=hush", "there is no --storage-optoin; the nearest is --storage-option"),
    ],
)
def test_a_mistyped_flag_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str], given: str, said: str) -> None:
    """Also where what is required is missing for it: argparse would name that only, behind 27 lines of usage."""
    first, then = refused(capsys, given)
    assert first.endswith(said)
    assert "--help" in then
    assert "hush" not in first + then


def test_a_mistyped_flag_of_a_launch_is_named_and_those_of_its_script_are_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["--hang-limt", "3", "train.py", "--nnods", "2"])
    said = "elastic run: there is no --hang-limt; the nearest is --hang-limit\n  next  elastic run --help\n"
    assert capsys.readouterr().err == said


def test_a_drill_says_where_the_flags_of_a_script_stand(capsys: pytest.CaptureFixture[str]) -> None:
    first, then = refused(capsys, "drill train.py --epochs 3")
    assert first == "elastic drill: there is no --epochs"
    assert then.endswith("--help; the script's own flags follow after --")


@pytest.mark.parametrize(("given", "near"), [("plna", "plan"), ("checkpoint dif a b", "diff")])
def test_a_mistyped_command_is_named_with_the_nearest(
    capsys: pytest.CaptureFixture[str], given: str, near: str
) -> None:
    first, _ = refused(capsys, given)
    assert first.endswith(f"; the nearest is {near}")


def refused(capsys: pytest.CaptureFixture[str], given: str) -> list[str]:
    """The two lines on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(given.split())
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    return err.splitlines()
