"""A report is asked for when something went wrong, on the disk, too: what is damaged costs no more than itself."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from elastic.__main__ import main
from elastic.events.compaction import Compaction
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.report.damaged_records import is_sound
from tests.kit.sampling import seeds
from tests.kit.story import Story

FOLDED = {"records": {}, "steps": 4, "first": 0, "last": 3, "redone": 0, "count": 8, "since": 0.0, "saved_bytes": 0}
FOLDED |= {"stall_s": 0.0, "saved_t": [1.0], "curve": [[0, 8, {"loss": "nan"}]], "unknown": False}


def told(folder: Path) -> list[Event]:
    """A run with a loss, a restart and folded records, in files."""
    story = Story().launch(3).train(2).read().regroup([0, 1]).train(4).launch(2).train(6).finish()
    compaction = Compaction()
    for event in [event for event in story.events if event["worker"] == "w0"]:
        compaction.add({**event, "values": {"loss": 1.0}} if event["event"] == "step_applied" else event)
    rest = [event for event in story.events if event["worker"] != "w0"]
    return written(folder, [*compaction.items, *rest])


def written(folder: Path, events: list[Event]) -> list[Event]:
    (folder / "events").mkdir(parents=True, exist_ok=True)
    for worker in {str(event["worker"]) for event in events}:
        lines = [json.dumps(event) + "\n" for event in events if event["worker"] == worker]
        (folder / "events" / f"{worker}.jsonl").write_text("".join(lines))
    return events


def ways(run: Path) -> list[list[str]]:
    return [
        ["report", str(run)],
        ["report", str(run), "--json"],
        ["report", str(run), "--html", str(run / "page.html")],
    ]


def test_whatever_bytes_are_wrong_there_is_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(tmp_path)
    files = {path: path.read_bytes() for path in sorted((tmp_path / "events").iterdir())}
    for seed in seeds(60, sample=20):
        draw = random.Random(seed)
        for path, data in files.items():
            wrong = bytearray(data)
            for _ in range(20):
                wrong[draw.randrange(len(wrong))] = draw.randrange(32, 127)
            path.write_bytes(wrong)
        for way in ways(tmp_path):
            assert main(way) == 0
    assert "damaged record" in capsys.readouterr().err


def test_what_real_records_say_is_never_called_damaged(tmp_path: Path) -> None:
    events = told(tmp_path)
    assert [event for event in read_events(tmp_path) if not is_sound(event)] == []
    assert len(read_events(tmp_path)) == len(events)


def test_text_that_no_terminal_should_get_is_shown_without(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file name that is no UTF-8 comes as half a surrogate pair; colours and bells come with other people's texts."""
    error = {"t": 1.0, "worker": "w0", "event": "error", "error": "OSError: \udcff\x1b[2J\x07 [bold]x[/bold] [/]"}
    written(tmp_path, [error])
    for way in ways(tmp_path):
        assert main(way) == 0
    shown = capsys.readouterr().out.partition("{")[0]
    assert "[bold]x[/bold] [/]" in shown
    assert not set("\udcff\x1b\x07").intersection(shown)
    assert "OSError" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["foo://bar"], "nothing here opens foo:"),
        (["memory://x", "--storage-option", "client_kwargs={"], "the value of client_kwargs is no JSON object"),
        ([""], "no events in ''"),
    ],
)
def test_what_cannot_be_read_is_said_and_no_traceback(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["report", *arguments])
    except SystemExit as ended:  # argparse's
        status = int(ended.code or 0)
    assert status == 2
    assert said in capsys.readouterr().err
