"""A run is told to leave while an older save is still being uploaded, and there is not time for both."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import elastic_checkpoint
from elastic.events.reading import read_events
from elastic_checkpoint.testing import Hang, Plan
from tests.kit.launch import Launch
from tests.kit.observed import assert_observed

PROGRAM = "tests.kit.programs.slow_upload"
WITHIN_S = 240.0
LONG_S = 600.0


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("hanging", ["*/s000000002-*", "*/s000000002-*/0001*"], ids=["nothing stored", "a part stored"])
def test_an_older_save_that_would_take_all_of_the_time_gives_way_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: str
) -> None:
    """It was uploaded first, and the newest state waited behind it until the machine was gone."""
    monkeypatch.setenv("ELASTIC_GRACE_S", "40")
    url, record = tmp_path / "run", tmp_path / "faults"
    plan = Plan(Hang(LONG_S, on="write", path=hanging))
    target = {"target_protocol": "file", "target_options": {"auto_mkdir": True}}
    storage = json.dumps({**target, "faults": plan.document(), "record": str(record)})
    with Launch("elastic", ["run", "--no-status", "-m", PROGRAM, f"faulty://{url}", tmp_path, storage]) as launch:
        launch.wait_for(record.exists, "an upload that hangs", within_s=WITHIN_S)
        launch.wait_for((tmp_path / "waits").exists, "a worker that waits", within_s=WITHIN_S)
        launch.send(signal.SIGTERM)
        assert launch.finish(within_s=WITHIN_S) == 0, launch.output
        output = launch.output
    events = read_events(url)
    assert_observed(events)
    (order,) = [event for event in events if event["event"] == "save_order"]
    assert (order["older"], order["step"], order["first"]) == (2, 4, "newest")
    assert not [event for event in events if event["event"] == "save_failed"]
    assert "the save of step 2 is given up for that of step 4: only one is likely to be done" in output
    with elastic_checkpoint.Checkpointer(url) as runs:
        assert all(one.ok for one in runs.verify())
        newest = runs.latest()
        assert newest is not None
        assert newest.step == 4
