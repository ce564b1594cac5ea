"""A drill's plan is a value: drawn from a seed alone, read back strictly, and what the command line asks for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.faults import (
    NAMED,
    OF_THE_SCRIPT,
    At,
    Fault,
    Kill,
    KillAgent,
    KillAll,
    KillChild,
    KillTogether,
    Slow,
    Terminate,
)
from elastic.drill.faults.base import Sizes
from elastic.drill.plan.draw import draw_faults
from elastic.drill.plan.drill_plan import DrillPlan, StorageFaults
from elastic.drill.plan.options import Options, parse
from elastic.drill.plan.saves import with_saves
from elastic.drill.report.story import of_plan
from elastic.errors import ConfigError

FLEET = """t_s,op,node
0,add,a
10,add,b
10,add,c
30,remove,a
30,add,d
50,remove,b
51,remove,c
60,add,e
90,add,f
95,remove,f
"""
SIZES = {"steps": 120, "workers": 4, "nodes": 1, "resume_workers": 2}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return "train.py"


def asked(text: str) -> Options:
    return parse(shlex.split(text))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        asked(text)
    return str(refused.value)


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_plan_is_a_function_of_its_arguments_and_comes_back_from_json(seed: int) -> None:
    """The verdict is worth something to another person only if a seed means the same faults on their machine."""
    kinds = tuple(NAMED)
    faults = draw_faults(seed, kinds=kinds, rate=0.2, **SIZES)

    assert faults == draw_faults(seed, kinds=kinds, rate=0.2, **SIZES)
    plan = DrillPlan(workers=4, resume_workers=2, seed=seed, faults=faults)
    assert DrillPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("seed", range(200))
def test_a_drawn_fault_finds_whom_it_strikes(seed: int) -> None:
    """A fault whose worker never comes holds up all that follow, and the drill has tested less than it says."""
    there = 4
    faults = draw_faults(seed, kinds=("kill", "leave", "join", "lose-all", "exception"), rate=0.1, **SIZES)
    steps = [fault.when.step for fault in faults]

    assert len(faults) == 12
    assert steps == sorted(set(steps))  # type: ignore[type-var]  # none is None
    assert all(0 <= step < 106 for step in steps if step is not None)
    for fault in faults:
        assert fault.worker < there
        if isinstance(fault, Terminate):
            assert there > 1
            there -= 1
        elif isinstance(fault, KillAll):
            there = 2
        elif type(fault).__name__ == "Raise":
            assert fault.when.phase in OF_THE_SCRIPT


@pytest.mark.parametrize("seed", range(200))
def test_a_replica_is_struck_leaves_and_joins_whole(seed: int) -> None:
    """One that leaves takes two along, and the last one stays: its state is nowhere else."""
    there = 6
    sizes = {**SIZES, "workers": 6, "resume_workers": 3, "replica_size": 3}
    faults = draw_faults(seed, kinds=("kill", "leave", "join", "lose-all", "exception"), rate=0.1, **sizes)

    for fault in faults:
        assert fault.worker < there
        if isinstance(fault, Terminate):
            there -= 3
        elif isinstance(fault, KillAll):
            there = 3
        assert there in (3, 6)
        assert fault.joining(6) in (0, 3)
    assert DrillPlan(workers=6, resume_workers=3, replica_size=3, faults=faults).sizes()["replica_size"] == 3


@pytest.mark.parametrize(
    ("options", "workers", "nodes"),
    [
        ("--replica-size 2", 4, 1),
        ("--replica-size 3", 6, 1),
        ("--replica-size 8", 16, 1),
        ("--replica-size 2 --workers 6", 6, 1),
        ("--replica-size 2 --workers 6 --nodes 3", 6, 3),
    ],
)
def test_a_drill_has_two_replicas_unless_it_is_told_how_many(
    script: str, options: str, workers: int, nodes: int
) -> None:
    plan = asked(f"train.py {options} --join @step=9").asked
    assert (plan.workers, plan.nodes, plan.resume_workers) == (workers, nodes, workers)
    assert plan.joining() == plan.replica_size
    assert DrillPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("fault", "lost"),
    [
        (Kill(1, At(3, "forward")), 3),
        (KillTogether((0, 4), At(3, "forward")), 6),
        (Terminate(1, At(3, "forward")), 0),
        (KillAgent(1, At(3, "forward")), 6),
        (KillAll(At(3, "forward")), 0),
    ],
)
def test_who_is_lost_takes_its_replica_along(fault: Fault, lost: int) -> None:
    assert fault.lost_max(Sizes(nodes=2, of_a_node=6, resume_workers=6, of_a_replica=3)) == lost


def test_named_faults_become_a_plan_in_order(script: str) -> None:
    options = asked(
        "train.py --workers 4 --lose-all @step=70 --kill 2@step=30 --stop 1@step=40 --leave 3@step=50 --join @step=60 "
        "--resume-workers 2 --kill '1,2@step=30,phase=in_update' --slow 0@step=3,seconds=0.5,shares=4 "
        "--kill-writer @step=9,phase='update' --storage-errors 0.05 --seed 41"
    )
    assert options.kinds == ()
    assert options.plan(999) == options.asked
    assert [(fault.when.step, fault.when.phase, type(fault).__name__) for fault in options.asked.faults] == [
        (3, "backward", "Slow"),
        (9, "update", "KillChild"),
        (30, "backward", "Kill"),
        (30, "in_update", "KillTogether"),
        (40, "backward", "Stop"),
        (50, "backward", "Terminate"),
        (60, "forward", "Join"),
        (70, "backward", "KillAll"),
    ]
    slow, writer, _, together, *_ = options.asked.faults
    assert slow == Slow(0, At(3, "backward", later=True), seconds=0.5, shares=4)
    assert writer == KillChild(0, At(9, "update", later=True), "writer")
    assert isinstance(together, KillTogether)
    assert together.workers == (1, 2)
    assert options.asked.storage == StorageFaults(errors=0.05)
    assert (options.asked.workers, options.asked.resume_workers, options.asked.seed) == (4, 2, 41)
    assert DrillPlan.from_json(options.asked.to_json()) == options.asked


def test_a_plan_is_printed_a_line_for_each_fault(script: str) -> None:
    options = asked("train.py --kill 2@step=30,phase=backward,share=3 --lose-all @step=70,phase=update")
    assert list(of_plan(options.asked.faults)) == [
        "   1  step 30   backward of share 3 SIGKILL to worker 2",
        "   2  step 70   update       SIGKILL to everything, agents included",
    ]


def test_the_replay_command_reads_back_as_the_same_drill(script: str, tmp_path: Path) -> None:
    options = asked("train.py a --workers 2 --seed 9 --hang-limit 5 --undisturbed-workers 2 -- --name 'x y'")
    plan = options.plan(50)
    (tmp_path / "plan.json").write_text(plan.to_json())

    words = shlex.split(options.replay(tmp_path / "plan.json"))
    assert words[:2] == ["elastic", "drill"]
    again = parse(words[2:])
    assert again.plan(77) == plan
    assert (again.args, again.hang_s, again.undisturbed_workers) == (("a", "--name", "x y"), 5.0, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("absent.py", "there is no script absent.py"),
        ("train.py --kill 2", "expected WORKER@step=N"),
        ("train.py --kill 2@30", "'30' is not one of step="),
        ("train.py --kill 2@phase=forward", "no step"),
        ("train.py --kill two@step=3", "a worker is a rank"),
        ("train.py --kill 4@step=3", "there is no worker 4; they are counted from 0, and at most 4"),
        ("train.py --kill 1,9@step=3", "there is no worker 9"),
        ("train.py --stop 1,2@step=3", "only --kill and --partition take several"),
        ("train.py --join 2@step=3", "nothing stands before the @"),
        ("train.py --kill 1@step=3,phase=backwards", "did you mean 'backward'"),
        ("train.py --kill 1@step=3,phase=save", "only worker 0"),
        ("train.py --kill 1@step=3,phase=update,share=2", "have a share"),
        ("train.py --exception 1@step=3,phase=exchange", "the script's code runs at"),
        ("train.py --faults kill,explode", "--faults: unknown 'explode'; known: kill, stop"),
        ("train.py --faults kil", "did you mean 'kill'"),
        ("train.py --faults ,", "names none"),
        ("train.py --rate 2", "above 0 and up to 1"),
        ("train.py --storage-errors 1.5", "from 0 to below 1"),
        ("train.py --workers 3 --nodes 2", "3 workers cannot be spread evenly over 2 nodes"),
        ("train.py --replica-size 2 --workers 3", "a node: 3 workers, and a replica has 2"),
        ("train.py --replica-size 2 --workers 6 --nodes 2", "a node: 3 workers, and a replica has 2"),
        ("train.py --replica-size 2 --resume-workers 1", "what is resumed: 1 worker, and a replica has 2"),
        ("train.py --replica-size 0", "--replica-size must be 1 or more; found 0"),
        ("train.py --replica-size 2 --corrupt-weight 1@step=3", "a run of sharded models does not look for"),
        ("train.py --plan train.py --replica-size 2", "leave out --replica-size"),
        ("train.py --workers 0", "--workers must be 1 or more; found 0"),
        ("train.py --within 0", "--within must be above 0"),
        ("train.py --grace -1", "--grace must be above 0"),
        ("train.py --plan absent.json", "--plan absent.json: .*No such file"),
        ("train.py --plan train.py", "not a drill's plan"),
        ("train.py --plan train.py --kill 1@step=3", "leave out --kill"),
        ("train.py --plan train.py --workers 2", "leave out --workers"),
        ("train.py --folder .", "not empty"),
        ("train.py --save-every often", "--save-every takes a number of steps, a time such as 5s, or 'script'"),
        ("train.py --save-every 0", "--save-every takes"),
        ("train.py --storage runs", "expected the URL of an object store"),
        ("train.py --storage memory://runs", "expected the URL of an object store"),
        ("train.py --storage-option anon=true", "--storage-option is one of --storage URL, which is not given"),
        ("train.py --storage s3://b --flip-bytes @step=3", "flip-bytes needs a run in a folder of this machine"),
        ("train.py --plan train.py --save-every 3", "leave out --save-every"),
        ("train.py --plan train.py --hosts 2", "leave out --hosts"),
        ("train.py --cut 1@step=3", "cut strikes a whole host: it needs --hosts N"),
        ("train.py --faults kill,crash-host", "crash-host strikes a whole host"),
        ("train.py --torchrun --replica-size 2", "--replica-size does nothing beside --torchrun"),
        ("train.py --torchrun --hosts 2", "--hosts does nothing beside --torchrun"),
        ("train.py --torchrun --storage s3://b", "--storage does nothing beside --torchrun"),
        ("train.py --torchrun --stop-after 9", "--stop-after does nothing beside --torchrun"),
        ("train.py --torchrun --hang-limit 9", "--hang-limit does nothing beside --torchrun"),
        ("train.py --torchrun --cross-check 1", "--cross-check does nothing beside --torchrun"),
        ("train.py --torchrun --undisturbed-workers 2", "--undisturbed-workers does nothing beside --torchrun"),
        ("train.py --torchrun --save-every 3", "--save-every does nothing beside --torchrun"),
        ("train.py --torchrun --torn-writes 0.1", "--torn-writes does nothing beside --torchrun"),
        ("train.py --torchrun --grace 9", "--grace does nothing beside --torchrun"),
        ("train.py --torchrun --corrupt-batch 1@output=x", "strikes a script in an elastic.Run alone"),
        ("train.py --torchrun --kill 1@step=3 --leave 1@step=4", "strikes a script in an elastic.Run alone"),
        ("train.py --torchrun --faults kill,corrupt-batch", "corrupt-batch: that strikes a script in an elastic.Run"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_starts(script: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        asked(text)


@pytest.mark.parametrize("text", ["--read-only @step=3", "--faults kill,disk-full"])
def test_a_disk_without_root_is_refused_before_anything_starts(
    script: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "which only root may" in refusal(f"train.py {text}")
    assert asked("train.py --storage-errors 0.1").asked.storage.any


def test_what_opens_storage_is_shown_to_nobody(script: str, tmp_path: Path) -> None:
    """Not in an error, not in a repr, not in the command that replays a drill, not in its plan."""
    assert "hunter2" not in refusal("train.py --storage file://me:hunter2@b")
    (tmp_path / "token").write_text("hunter2\n")
    options = asked(
        "train.py --kill 1@step=3 --storage s3://me:hunter2@b/c --storage-option secret=hunter2 "
        f"--storage-option token=@{tmp_path}/token"
    )
    assert options.storage_root is not None
    assert options.storage_root.options == {"secret": "hunter2", "token": "hunter2"}
    assert "hunter2" not in repr(options) + options.replay(tmp_path) + options.plan(9).to_json()
    shown = f"--storage s3://b/c --storage-option=secret=@FILE --storage-option=token=@{tmp_path}/token"
    assert shown in options.replay(tmp_path)


@pytest.mark.parametrize(
    ("text", "steps", "saved", "every"),
    [
        ("--lose-all @step=70", 120, [0, 120], "15"),  # eight saves in a run
        ("--lose-all @step=9", 120, [], "4"),  # or two before it is lost
        ("--lose-all @step=1 --lose-all @step=60", 120, [], "1"),
        ("--lose-all @step=70", 120, [0, 60, 120], None),  # the script saves in time
        ("--lose-all @step=70", 120, [0, 80, 120], "15"),
        ("--lose-all @step=70 --save-every 40", 120, [], "40"),
        ("--lose-all @step=70 --save-every 5s", 120, [], "5s"),
        ("--kill 1@step=70", 120, [], None),
    ],
)
def test_a_drill_that_loses_all_sees_to_it_that_something_was_saved(
    script: str, text: str, steps: int, saved: list[int], every: str | None
) -> None:
    plan = with_saves(asked(f"train.py {text}").plan(steps), steps=steps, saved=saved)
    assert plan.save_every == every
    assert DrillPlan.from_json(plan.to_json()) == plan


PLAN = DrillPlan(seed=1, faults=(Kill(1, At(3, "data", later=True)),))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"elastic_drill": 2}, "of version 2; this elastic reads version 1"),
        ({"wrkers": 4}, "the plan: unknown 'wrkers'; did you mean 'workers'"),
        ({"workers": "4"}, "the plan: workers: expected int; found '4'"),
        ({"workers": True}, "expected int; found True"),
        ({"faults": {}}, "faults are a list"),
        ({"faults": [{"kind": "explode"}]}, r"faults\[0\]: unknown kind 'explode'"),
        ({"faults": [{"kind": "kill", "worker": 1}]}, r"faults\[0\]: 'when' is missing"),
        ({"faults": [{"kind": "kill", "worker": 1.5, "when": {"step": 1, "phase": "data"}}]}, "worker: expected int"),
        ({"faults": [{"kind": "kill", "worker": 1, "when": {"step": "1", "phase": "data"}}]}, "step: expected int"),
        ({"faults": [{"kind": "kill", "worker": 1, "when": {"step": 1, "phase": "lunch"}}]}, "unknown phase 'lunch'"),
        ({"faults": [{"kind": "kill", "worker": 1, "when": {"step": 1, "phase": "data"}, "how": 1}]}, "unknown 'how'"),
        ({"storage": {"errors": "often"}}, "errors: expected float"),
    ],
)
def test_a_plan_that_is_half_understood_is_refused(change: dict[str, Any], says: str) -> None:
    document = {**json.loads(PLAN.to_json()), **change}
    with pytest.raises(ConfigError, match=says):
        DrillPlan.from_json(json.dumps(document))


def test_a_recorded_fleet_becomes_nodes_that_are_killed_and_join_at_the_steps_of_its_times(
    script: str, tmp_path: Path
) -> None:
    """From 10 s on, when there are three for the first time; 85 s in 42 s of a run with steps of half a second."""
    (tmp_path / "fleet.csv").write_text(FLEET)
    options = asked("train.py --workers 6 --nodes 3 --trace fleet.csv --speedup 2 --seed 1")
    faults = [(str(fault), fault.when.step) for fault in options.plan(100, 0.5).faults]
    assert faults == [
        (
            "step 20 backward: SIGKILL to the agent of worker 2",
            20,
        ),  # the second takes the first one's part
        ("step 22 forward of worker 0: another node arrives, with 2 workers", 22),
        ("step 40 backward: SIGKILL to the agent of worker 2", 40),
        ("step 42 backward: SIGKILL to the agent of worker 2", 42),
        ("step 50 forward of worker 0: another node arrives, with 2 workers", 50),
        ("step 80 forward of worker 0: another node arrives, with 2 workers", 80),
    ]
    assert [fault for fault, _ in faults] == [str(f) for f in options.plan(100, 0.5).faults]
    assert options.plan(60, 0.5).faults == options.plan(100, 0.5).faults[:5]
    assert DrillPlan.from_json(options.plan(100, 0.5).to_json()) == options.plan(100, 0.5)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("train.py --trace nowhere", "--trace nowhere"),
        ("train.py --workers 9 --trace fleet.csv", "never has 9 machines at once, but 3 at most"),
        ("train.py --speedup 3", "--speedup is that of --trace"),
        ("train.py --workers 2 --trace fleet.csv --speedup 0", "--speedup must be above 0"),
        ("train.py --plan plan.json --trace fleet.csv", "leave out --trace"),
    ],
)
def test_a_fleet_that_cannot_be_replayed_is_refused(script: str, tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "fleet.csv").write_text(FLEET)
    assert match in refusal(text)
