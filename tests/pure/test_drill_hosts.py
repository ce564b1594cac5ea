"""Faults of whole hosts: written on the command line, drawn, struck from outside, and what they excuse."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic.drill.faults import (
    NAMED,
    At,
    Cut,
    Fault,
    Heal,
    LoseHost,
    LosePackets,
    Partition,
    SlowNetwork,
)
from elastic.drill.faults.host_faults import HostFault
from elastic.drill.folder import DrillFolder
from elastic.drill.hosts.hosts import Hosts, Outcome
from elastic.drill.hosts.on_hosts import OnHosts, left_behind_on
from elastic.drill.plan.draw import draw_faults
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.plan.options import Options, parse
from elastic.drill.watched_run import WatchedRun
from elastic.errors import ConfigError
from elastic.events.event import Event
from tests.kit.random_drills import RandomDrill, random_host_drill

NOW = At(5, "backward", later=True)


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a machine that can have hosts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("elastic.drill.plan.options.missing", lambda: None)


def asked(text: str) -> Options:
    return parse(["train.py", *shlex.split(text)])


def test_faults_of_hosts_become_a_plan() -> None:
    options = asked(
        "--hosts 4 --cut 2@step=30 --heal @step=34 --crash-host 1@step=50 --cut-in 3@step=60,seconds=1.5 "
        "--power-off 0@step=70,phase=exchange --partition 0,1@step=80,seconds=9 --lose-packets 1@step=90,loss=0.1 "
        "--slow-network 1@step=2,delay=0.02"
    )
    assert options.asked.faults == (
        SlowNetwork(1, At(2, "backward", later=True), delay=0.02),
        Cut(2, At(30, "backward", later=True), "both", seconds=None),
        Heal(At(34, "backward", worker=0, later=True)),
        LoseHost(1, At(50, "backward", later=True), "crash"),
        Cut(3, At(60, "backward", later=True), "in", seconds=1.5),
        LoseHost(0, At(70, "exchange", later=True), "power"),
        Partition((0, 1), At(80, "backward", later=True), seconds=9.0),
        LosePackets(1, At(90, "backward", later=True), loss=0.1),
    )
    assert (options.asked.workers, options.asked.nodes, options.asked.hosts) == (4, 4, True)
    assert DrillPlan.from_json(options.asked.to_json()) == options.asked
    assert asked("--hosts 3 --seed 1").kinds == ("crash-host", "power-off", "cut", "kill")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("--hosts 1 --kill 1@step=3", "hosts are 2 or more; found 1"),
        ("--hosts 4 --nodes 2", "leave out --nodes"),
        ("--hosts 3 --workers 4", "4 workers cannot be spread evenly over 3 hosts"),
        ("--hosts 2 --crash-host 1@step=3 --power-off 0@step=9", "nobody would be left"),
        ("--hosts 2 --lose-all @step=3", "lose-all cannot strike hosts"),
        ("--hosts 2 --faults kill,read-only", "read-only cannot strike hosts"),
        ("--hosts 2 --kill 0,1@step=3", "kill W,W cannot strike hosts"),
        ("--hosts 2 --disk-full @step=3", "disk-full cannot strike hosts"),
        ("--cut-in 1@step=3", "cut-in strikes a whole host: it needs --hosts N"),
        ("--hosts 64 --join @step=3", "64 at most, with those that join; found 65"),
        ("--hosts 4 --heal @step=3 --cut 1@step=4", "nothing has happened to the network by then"),
        ("--hosts 2 --workers 4 --partition 0,3@step=4", "all hosts, so nobody is on the other side"),
        ("--hosts 2 --cut 1@step=3 --storage s3://b", "reaches no object store"),
        ("--hosts 2 --cut 1@step=3 --torn-writes 0.1", "choose one of them"),
        ("--hosts 2 --cut 1@step=3,seconds=0", "seconds must be above 0"),
        ("--hosts 2 --cut 0,1@step=3", "only --kill and --partition"),
        ("--hosts 2 --lose-packets 1@step=3,loss=30", "between 0 and 1; found 30"),
        ("--hosts 2 --slow-network 1@step=3,delay=50", "up to 1 s; found 50"),
    ],
)
def test_what_hosts_cannot_do_is_refused_before_anything_starts(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        asked(text)


def test_a_machine_without_hosts_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.drill.plan.options.missing", lambda: "needs ip: apt-get install iproute2")
    with pytest.raises(ConfigError, match="--hosts needs ip: apt-get install iproute2"):
        asked("--hosts 2 --cut 1@step=3")


@pytest.mark.parametrize("seed", range(60))
def test_drawn_faults_leave_a_host_for_sure(seed: int) -> None:
    """One that is cut off may come back after the run's end."""
    kinds = ("crash-host", "cut", "partition", "lose-packets", "kill")
    faults = draw_faults(seed, kinds=kinds, rate=0.1, steps=100, workers=4, nodes=4, resume_workers=4)
    there = 4
    for fault in faults:
        assert fault.worker < there
        there -= isinstance(fault, HostFault)
    assert there >= 1


def test_a_host_drill_of_a_seed_is_read_back_and_the_first_host_is_struck_in_most() -> None:
    drills = [random_host_drill(seed) for seed in range(100)]

    assert drills == [random_host_drill(seed) for seed in range(100)]
    assert all(RandomDrill.from_json(drill.to_json()) == drill for drill in drills)
    first = [any(isinstance(fault, HostFault) and 0 in fault.ranks for fault in drill.plan.faults) for drill in drills]
    assert sum(first) > 60
    drawn = Counter(type(fault).__name__ for drill in drills for fault in drill.plan.faults)
    for name, one in NAMED.items():
        if one.kind.needs_hosts and name != "heal":
            assert drawn[one.kind.__name__] >= 5, drawn
    assert any(len(fault.ranks) > 1 for drill in drills for fault in drill.plan.faults)


class Recorded:
    """Hosts that only note what is done to them."""

    numbers = (1, 2, 3, 4, 5)

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.done.append((name, *arguments))

    def running(self, host: int) -> bool:
        return host != 2


def struck(*faults: Fault, ranks: list[str], tmp_path: Path) -> list[tuple[Any, ...]]:
    """What the drill does as each of them is recorded, by its worker, in that view."""
    hosts = Recorded()
    on_hosts = OnHosts(cast(Hosts, hosts))
    (tmp_path / "let_go").mkdir()
    cluster = SimpleNamespace(drill=DrillFolder(tmp_path))
    plan = DrillPlan(workers=5, nodes=5, hosts=True, faults=faults)
    run = WatchedRun(cast(Any, cluster), cast(Any, None), plan, on_hosts)
    told: list[Event] = [{"t": 0.0, "event": "view_formed", "generation": 7, "worker": ranks[0], "workers": ranks}]
    told += [
        {"t": 1.0 + at, "event": "fault", "generation": 7, "worker": ranks[fault.worker], "index": at}
        for at, fault in enumerate(faults)
    ]
    for event in told:
        run.hear(event)
    assert len(list((tmp_path / "let_go").iterdir())) == len(faults)
    return hosts.done


def test_the_drill_strikes_the_hosts_of_the_workers_that_a_fault_names(tmp_path: Path) -> None:
    ranks = [f"h{host}-17-t" for host in (4, 3, 1, 5)]
    faults = (
        LoseHost(0, NOW, "crash"),
        LoseHost(1, NOW, "power"),
        Cut(2, NOW, "both"),
        Cut(2, NOW, "in"),
        LosePackets(3, NOW),
        SlowNetwork(3, NOW),
        Partition((0, 3), NOW),
        Heal(NOW),
    )
    assert struck(*faults, ranks=ranks, tmp_path=tmp_path) == [
        ("crash", 4),
        ("lose_power", 3),
        ("cut", 1),
        ("cut_one_way", 1, "in"),
        ("lose_packets", 5, 0.3),
        ("delay", 5, 0.05),
        ("partition", [1, 2, 3], [4, 5]),
        ("heal", 1, 3, 4, 5),
    ]


def test_what_a_killed_worker_s_loaders_leave_is_the_next_worker_s_to_remove() -> None:
    outcome = Outcome(0, ("/var/tmp/elst-x", "/dev/shm/torch_3_4", "/var/tmp/torchinductor_root", "/var/tmp/mine"))
    assert left_behind_on(3, outcome, killed=True) == ["/var/tmp/mine of h3"]
    assert len(left_behind_on(3, outcome)) == 3
