"""Real workers, real signals, at exact moments; and a drill that notices when something is wrong.

What a run keeps under which faults is judged on a small script with all that draws random numbers.
"""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.drill.cluster import Cluster, DrillTimeout
from elastic.drill.end import End
from elastic.drill.faults import BEFORE_STEPS, IN_EXCHANGE, IN_TRANSFER, PHASES, At, Kill, Plan
from elastic.drill.machine.processes import marked
from elastic.drill.plan.draw import draw_faults
from elastic.events.reading import read_events
from tests.kit.s3 import s3_server

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
def test_a_worker_killed_in_backward_costs_at_most_the_steps_since_the_last_save(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """The others are inside a collective when it dies, so nobody may wait for ever."""
    run = elastic_cluster(workers=4, steps=12, seed=7)
    run.kill(worker=3, when=At(step=5, phase="backward"))
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=12, seed=7).events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ())
    assert end.world_sizes == [4, 4]
    assert end.examples_applied == Counter(range(12 * end.batch_size))
    assert end.steps_redone <= 2
    assert end.weights_sha256 == elastic_undisturbed(steps=12, seed=7).weights_sha256


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
def test_killed_all_at_once_a_run_goes_on_at_another_size(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """A power cut in the middle of an update, and fewer machines afterwards."""
    run = elastic_cluster(workers=3, steps=12, seed=7)
    run.kill_all(At(step=7, phase="in_update", worker=1))
    cut = run.finish(within_s=240)
    assert cut.exit_code == -signal.SIGKILL
    assert (cut.left_behind, cut.not_reached) == ((), ())

    end = run.start(workers=2).finish(within_s=240, reference=elastic_undisturbed(steps=12, seed=7).events)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert end.world_sizes == [3, 2]
    assert end.steps_redone <= 2


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
def test_a_worker_is_killed_in_the_middle_of_an_exchange(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """It has sent a part of what the others wait for, and its loader processes must die with it."""
    run = elastic_cluster(workers=2, steps=6, seed=7, num_workers=1)
    run.kill(worker=0, when=At(step=3, phase=IN_EXCHANGE))
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=6, seed=7).weights_sha256)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.not_reached) == (0, ())
    assert end.left_behind == ()


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
@pytest.mark.parametrize("part", range(4))
def test_one_process_is_killed_at_every_moment_there_is(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, part: int
) -> None:
    """Each fault is reached, ends the process there and then, happens once, and changes no bit of the result."""
    of_steps = [phase for phase in PHASES if phase not in (*BEFORE_STEPS, IN_EXCHANGE, "save", "saved")]
    late = {"evaluate": 11, "finish": 11}
    steps = {phase: late.get(phase, at) for at, phase in enumerate(of_steps)}
    saves = [Kill(0, At(step, phase)) for step, phase in ((9, "save"), (11, "saved"))]
    within = [Kill(0, At(step, phase)) for phase, step in steps.items()]
    starts = [Kill(0, At(None, phase)) for phase in BEFORE_STEPS if phase not in ("transfer", IN_TRANSFER)]
    plan = Plan((within[0], *starts, *within[1:-2], *saves, *within[-2:])[part::4])

    run = elastic_cluster(steps=12, seed=7, plan=plan)
    for fault in plan.faults:
        end = run.start().finish(within_s=240)
        last = [event for event in end.events if event["worker"] == end.events[-1]["worker"]][-1]
        assert (end.exit_code, last["event"]) == (-signal.SIGKILL, "fault"), (
            f"{fault}, not reached {end.not_reached}\n{end.output}"
        )
    end = run.start().finish(within_s=240, reference=elastic_undisturbed(steps=12, seed=7).events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ())
    happened = [event["fault"] for event in end.events if event["event"] == "fault"]
    assert sorted(happened) == sorted(map(str, plan.faults))


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
def test_two_nodes_lose_a_worker_of_each(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """Each node has an agent of its own, which learns of the other's loss only through the rendezvous."""
    run = elastic_cluster(workers=4, nodes=2, steps=12, seed=7)
    run.kill(worker=3, when=At(step=3, phase="backward"))
    run.kill(worker=0, when=At(step=8, phase="update"))
    end = run.finish(within_s=240, reference=elastic_undisturbed(steps=12, seed=7).events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ())


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
def test_a_run_in_object_storage_loses_everything_and_goes_on(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """The drill keeps the evidence of killed workers in its folder; the run's own ends with the last upload."""
    with s3_server() as server:
        server.new_bucket("runs")
        options = json.dumps(server.options)
        url = "s3://runs/drilled"
        run = elastic_cluster(url=url, workers=2, steps=6, seed=7, storage_options=server.options, storage=options)
        run.kill_all(At(step=4, phase="backward"))
        assert run.finish(within_s=240).exit_code == -signal.SIGKILL
        end = run.start().finish(within_s=240, reference=elastic_undisturbed(steps=6, seed=7).events)

        assert end.verdict.ok, f"{end.verdict}\n{end.output}"
        assert (end.exit_code, end.left_behind) == (0, ())
        assert "finished" in {event["event"] for event in read_events(url, storage_options=server.options)}


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_plan_changes_no_bit(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, seed: int
) -> None:
    faults = draw_faults(seed, kinds=["kill", "lose-all"], rate=0.25, steps=12, workers=3, nodes=1, resume_workers=3)
    plan = Plan(faults, seed)
    print(plan)
    run = elastic_cluster(workers=3, steps=12, seed=7, plan=plan)
    reference = elastic_undisturbed(steps=12, seed=7).events
    end = run.finish(within_s=240, reference=reference)
    for _ in plan.faults:
        if end.exit_code != 0:  # everything was killed
            end = run.start().finish(within_s=240, reference=reference)

    assert end.verdict.ok, f"{plan}\n{end.verdict}\n{end.output}"
    assert (end.exit_code, end.left_behind) == (0, ())


def test_being_watched_changes_no_bit(elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed) -> None:
    """What a drill finds is true of the run that nobody observes, which without records of reads is not acquitted."""
    end = elastic_cluster(observed=False, steps=12, seed=7).finish(within_s=240)

    assert end.weights_sha256 == elastic_undisturbed(steps=12, seed=7).weights_sha256
    assert end.verdict.broken() == {"shares", "record"}


def test_what_a_launch_leaves_behind_is_found_named_and_ended(tmp_path: Path) -> None:
    """A clean machine is one of the promises, so the drill must be seen to notice a dirty one."""
    script = tmp_path / "untidy.py"
    script.write_text(
        "import os, subprocess, sys, tempfile\n"
        "listen = 'import socket, time; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); s.listen(); time.sleep(600)'\n"
        "subprocess.Popen([sys.executable, '-c', listen], start_new_session=True)\n"
        "open(tempfile.mktemp(prefix='forgotten-'), 'w').close()\n"
        "name = f'/dev/shm/torch_{os.getpid()}_drill_0'\n"
        "open(name, 'w').close()\n"
    )
    with Cluster(script, url=tmp_path / "run", folder=tmp_path / "drill") as run:
        end = run.finish(within_s=240)

        assert end.exit_code == 0
        process, temporary, shared = end.left_behind
        Path(shared.split()[-1]).unlink()
        assert "time.sleep(600)" in process
        assert "listens on" in process
        assert temporary.startswith("temporary file forgotten-")
        assert shared.startswith("shared memory /dev/shm/torch_")
        assert marked(run.folder) == []
        assert end.verdict.broken() == {"finished"}


def test_a_run_that_does_not_end_is_killed_at_the_deadline_and_the_error_says_where_it_was(tmp_path: Path) -> None:
    """No silent hang, in a drill least of all."""
    script = tmp_path / "stuck.py"
    begun = tmp_path / "begun"
    script.write_text(f"import time\nprint('about to hang', flush=True)\nopen({str(begun)!r}, 'w')\ntime.sleep(600)\n")
    with Cluster(script, url=tmp_path / "run", folder=tmp_path / "drill") as run:
        until_s = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < until_s:
            time.sleep(0.05)
        with pytest.raises(DrillTimeout, match=r"did not end within 1 s(.|\n)*running: .*stuck.py(.|\n)*about to hang"):
            run.finish(within_s=1)
        assert marked(run.folder) == []


@pytest.mark.nightly(sample=1, of="what strikes under torchrun")
def test_a_signal_from_outside_reaches_the_run_at_an_event(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed
) -> None:
    """A scheduler that stops a job: the step is finished, saved, and the next launch goes on without a step redone."""
    run = elastic_cluster(workers=2, steps=400, seed=7, length=96)
    run.wait_for(lambda event: event["event"] == "step_applied" and event["step"] >= 5, within_s=240)
    run.send(signal.SIGTERM)
    stopped = run.finish(within_s=240)
    assert any(event["event"] == "left" for event in stopped.events), stopped.output

    end = run.start().finish(within_s=240, reference=elastic_undisturbed(steps=400, seed=7, length=96).weights_sha256)
    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert end.steps_redone == 0


def test_a_fault_that_never_struck_is_no_success(elastic_cluster: MakeCluster) -> None:
    """The run is right, and the drill has shown nothing."""
    run = elastic_cluster(steps=2, seed=7)
    run.kill(worker=0, when=At(step=50, phase="backward"))
    end = run.finish(within_s=240)

    assert end.verdict.ok
    assert end.not_reached == ("step 50 backward: SIGKILL to worker 0",)
    assert not end.ok
