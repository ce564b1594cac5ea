"""`elastic drill --hosts`, as a person runs it: real hosts are lost and cut off, and the verdict is the drill's."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from pathlib import Path

import pytest

from elastic.drill.command import BROKEN, HOLDS, main
from elastic.drill.hosts.network import host_of
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.plan.options import parse
from elastic.events.reading import read_events
from elastic_checkpoint import linux

pytestmark = pytest.mark.nightly(sample=1, of="drills of hosts")

SMALL = str(Path(__file__).parents[1] / "kit" / "programs" / "small.py")


@pytest.mark.usefixtures("hosts")
def test_a_drill_of_hosts_that_are_cut_off_and_lost_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is cut off until the network is healed, and comes back; one joins; the first one crashes, with the hub."""
    monkeypatch.chdir(tmp_path)
    faults = "--cut 2@step=20 --heal @step=24 --join @step=40 --crash-host 0@step=60,phase=in_backward"
    script = [SMALL, "--", "own", "--steps", "110", "--unhurried", "4", "--save-every", "20"]
    status = main(["--hosts", "4", *faults.split(), "--keep", "--folder", "kept", *script])
    shown = capsys.readouterr().out

    assert status == HOLDS, shown
    assert "4 workers on 4 hosts" in shown
    assert shown.count("✓") == 10
    told = read_events(tmp_path / "kept" / "disturbed-drill")
    views = [event["workers"] for event in told if event["event"] == "view_formed"]
    assert sorted(map(host_of, views[0])) == [1, 2, 3, 4]
    assert sorted(map(host_of, views[-1])) == [2, 3, 4, 5]
    workers = {worker for view in views for worker in view}
    assert sorted(Counter(map(host_of, workers)).values()) == [1, 1, 1, 1, 2]  # who was cut off came as a newcomer
    plan = DrillPlan.from_json((tmp_path / "kept" / "plan.json").read_text())
    words = shlex.split(shown.rpartition("replay")[2])
    assert words[:2] == ["elastic", "drill"]
    assert parse(words[2:]).asked == plan
    assert plan.hosts
    assert linux.children(os.getpid()) == {}


@pytest.mark.usefixtures("hosts")
def test_two_sides_that_go_on_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bug of our own, planted in every process: whoever is left goes on, and asks nobody."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(
        "from elastic.membership.succession import succession\n"
        "succession.may_go_on = lambda *_, **__: succession.GoOn()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    script = [SMALL, "--", "own", "--steps", "60", "--unhurried", "2"]
    assert main(["--hosts", "2", "--partition", "1@step=10,seconds=9", "--folder", "kept", *script]) == BROKEN
    assert "(sides, with faults)" in " ".join(capsys.readouterr().out.split())
