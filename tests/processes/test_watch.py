"""`elastic watch` shows how a run goes on, from its storage alone."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.faults import At
from elastic.report.command import main as report_main
from elastic.watch_command import main
from tests.kit.s3 import s3_server

PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STEPS, WITHIN_S = 30, 120.0


def test_a_run_is_watched_while_it_goes_on_and_when_it_has_ended(
    elastic_cluster: Callable[..., Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hurry = tmp_path / "hurry"
    run = elastic_cluster(script=PROGRAM, workers=2, launcher="elastic", steps=STEPS, slow_until=hurry)
    run.kill(1, At(step=4, phase="in_backward"))
    run.start()
    run.wait_for(lambda event: event["event"] == "step_applied" and event["step"] >= 7, within_s=WITHIN_S)
    assert main([run.url, "--once", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["total_steps"], found["lost"]) == ("going on", STEPS, 1)
    assert 6 <= found["step"] <= STEPS
    assert "SIGKILL" in found["fault"]["why"]
    hurry.touch()
    assert run.finish(within_s=WITHIN_S).exit_code == 0
    assert main([run.url, "--every", "0.1"]) == 0, "it ends with the run"
    first, second, state = capsys.readouterr().out.splitlines()
    assert first.startswith(f"step {STEPS} of {STEPS} 100 %"[:12])
    assert "lost 1" in second
    assert state.startswith("finished, heard of ")


def test_a_run_on_s3_is_watched_through_its_launches_and_a_report_agrees(
    elastic_cluster: Callable[..., Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Events of a run in storage come once a minute, and as a launch ends."""
    hurry = tmp_path / "hurry"
    with s3_server() as server:
        url, given = f"{server.new_bucket('runs')}/mine", server.options
        options = [f"--storage-option={key}={value}" for key, value in given.items()]

        def shown() -> tuple[dict[str, Any], str]:
            assert main([url, "--once", "--json", *options]) == 0
            (line,) = capsys.readouterr().out.splitlines()
            assert report_main([url, "--json", *options]) == 0
            return json.loads(line), json.loads(capsys.readouterr().out)["state"]

        run = elastic_cluster(
            script=PROGRAM, url=url, workers=2, launcher="elastic", steps=STEPS, slow_until=hurry,
            storage=json.dumps(given), storage_options=given,
        )  # fmt: skip
        assert main([url, "--once", "--json", *options]) == 0
        assert capsys.readouterr().out == "", "nothing is there yet"
        run.start()
        run.wait_for(lambda event: event["event"] == "step_applied" and event["step"] >= 4, within_s=WITHIN_S)
        run.send(signal.SIGTERM)
        run.finish(within_s=WITHIN_S)
        found, reported = shown()
        assert (found["state"], reported) == ("left", "left")
        assert found["total_steps"] == STEPS
        assert 5 <= (left_at := found["step"]) < STEPS

        hurry.touch()
        run.start()
        assert run.finish(within_s=WITHIN_S).exit_code == 0
        found, reported = shown()
        assert (found["state"], reported, found["step"], found["lost"]) == ("finished", "finished", STEPS, 0)
        assert left_at < STEPS
        assert main([url, *options]) == 0, "it ends, as the run has"
        assert capsys.readouterr().out.splitlines()[2].startswith("finished, heard of ")


def test_what_is_no_run_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--once"]) == 0
    assert "no step of" in capsys.readouterr().err
    assert main(["s3://bucket/run", "--once", "--storage-option", "endpoint_url=http://127.0.0.1:9"]) == 2
    assert "cannot be read" in capsys.readouterr().err
