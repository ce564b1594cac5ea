"""Of a run that is watched: it has ended once all have left it, and goes on where its coordinator alone has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elastic.events.event import Event
from elastic.manifest import command as manifest_command
from elastic.manifest import files
from elastic.report.completion import completion
from elastic.watch_command import main, status


def told(worker: str, event: str, t: float, rank: int = 0, **facts: Any) -> Event:
    return {"t": t, "worker": worker, "event": event, "claim": 1, "rank": rank, "generation": 1, **facts}


def begun() -> list[Event]:
    step = {"step": 0, "epoch": 0, "count": 4, "attempt": 0}
    return [
        told("a", "run_started", 0.0, config={"virtual_workers": 4}),
        told("a", "view_formed", 1.0, workers=["a", "b"]),
        told("b", "view_formed", 1.0, 1, workers=["a", "b"]),
        told("a", "step_applied", 2.0, **step),
        told("b", "step_applied", 2.0, 1, **step),
    ]


def test_a_run_has_been_left_once_all_of_its_workers_have() -> None:
    events = [*begun(), told("a", "left", 3.0, step=1)]
    found = status(events, total_steps=9)
    assert found is not None
    assert (found["state"], found["step"], found["total_steps"], found["world_size"]) == ("going on", 1, 9, 2)
    found = status([*events, told("b", "left", 3.5, 1, step=1)])
    assert found is not None
    assert (found["state"], found["heard"]) == ("left", 3.5)


def test_a_launch_that_has_begun_again_goes_on_from_what_the_one_before_has_shown() -> None:
    ended = [*begun(), told("a", "left", 3.0, step=1), told("b", "left", 3.5, 1, step=1)]
    again = [*ended, told("c", "run_started", 9.0, claim=2), told("c", "view_formed", 9.5, claim=2, workers=["c"])]
    found = status(again, total_steps=9)
    assert found is not None
    assert (found["state"], found["step"], found["heard"]) == ("going on", 1, 9.5)


@pytest.mark.parametrize("end", ["finished", "left", None])
def test_what_is_watched_is_in_the_state_that_a_report_says(end: str | None) -> None:
    last = [] if end is None else [told("a", end, 3.0, step=1, digest="d"), told("b", end, 3.5, 1, step=1, digest="d")]
    found = status([*begun(), *last])
    assert found is not None
    assert found["state"] == {"unfinished": "going on"}.get(word := completion([*begun(), *last]).value, word)


def test_nothing_is_shown_before_the_first_step() -> None:
    assert status([]) is None
    assert status(begun()[:3]) is None


def test_a_run_is_watched_whose_manifest_a_later_version_has_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest says how many steps there are to be, and nothing else that is shown."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "all.jsonl").write_text("".join(json.dumps(event) + "\n" for event in begun()))
    (tmp_path / files.MANIFEST).write_text(json.dumps({"format": files.FORMAT, "version": files.VERSION + 1}))
    assert main([str(tmp_path), "--once", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["step"], found["total_steps"]) == ("going on", 1, 1)
    assert manifest_command.main([str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert (said.count("  state  "), said.count("  next ")) == (1, 1)


@pytest.mark.parametrize("every", ["nan", "inf", "0", "-1", "1e300", "often"])
def test_it_is_read_so_often_as_a_number_says(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["runs/x", "--every", every])
    assert ended.value.code == 2
    assert f"--every: expected 0.1 to 86400 seconds; found '{every}'" in capsys.readouterr().err
