"""Jobs of a real Slurm: told to end, taken for others, or at their limit, they leave whole, queue again and go on.

Those of deploy/slurm lose a node, too, and grow.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.end import End
from elastic.drill.faults.plan import Plan
from elastic.drill.folder import DrillFolder
from elastic.drill.hosts.network import address
from elastic.drill.judge.review import review
from elastic.errors import ElasticError
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic_checkpoint import linux
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit.host_runs import ROOT, SCRIPT
from tests.kit.hosts import Hosts
from tests.kit.slurm import HOST, Slurm, missing

pytestmark = pytest.mark.nightly(sample=1, of="hosts in rarer trouble")

DEPLOY = ROOT / "deploy/slurm"
STEPS, WITHIN_S, POLL_S = 160, 240.0, 0.2
LEFT = 75

# Its nodes meet at a host that is named, and it has a number for its --rdzv-id, where deploy/slurm has neither.
JOB = """
export {secret}={value} ELASTIC_OBSERVER={observer} TMPDIR=/var/tmp OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
cd {root}
echo "begun ${{SLURM_RESTART_COUNT:-0}}"
srun --mpi=none --wait=0 --kill-on-bad-exit=0 {python} -m elastic run --nnodes=1:2 --nproc-per-node=1 \\
    --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint={address}:29466,{url} \\
    --leave-status={left} {flags} {script} {url} --steps={steps} --save-every=50 --slow-until={hurry}
status=$?
echo "ended with $status"
if [ $status -eq {left} ]; then scontrol requeue $SLURM_JOB_ID; fi
exit $status
"""


@pytest.fixture
def two_hosts(hosts: Callable[[int], Hosts]) -> Hosts:
    return hosts(2)


@pytest.fixture
def slurm(two_hosts: Hosts, tmp_path: Path) -> Slurm:
    if (why := missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"slurm: {why}")
    return Slurm(two_hosts, tmp_path / "slurm")


@pytest.mark.parametrize("why", ["scancel", "an urgent job", "the end of its allocation"])
def test_a_job_leaves_whole_is_queued_again_and_goes_on(
    slurm: Slurm, elastic_undisturbed: Callable[..., End], tmp_path: Path, why: str
) -> None:
    """Slurm says SIGTERM twice, to agents and to their workers; of the end of an allocation it says nothing."""
    url, hurry = tmp_path / "run", tmp_path / "hurry"
    job = slurm.submit(
        _job(tmp_path / "drill", url, hurry, flags="--notices=slurm:30" if "allocation" in why else "--notices=none"),
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--requeue",
        "--time=1" if "allocation" in why else "--time=30",
    )

    given = 1

    def both_train() -> bool:
        """On a busy machine a minute is over before there is a step: each start gets one more."""
        nonlocal given
        starts = slurm.said().count("begun ")
        if "allocation" in why and starts > given and _is_given(slurm, job, f"TimeLimit={starts}"):
            given = starts
        return (url / "events").exists() and _trained_by(read_events(url)) >= 2

    _until(slurm, "steps of both nodes", both_train)
    before = _left(read_events(url))
    if why == "scancel":
        slurm.ask("scancel", "--signal=TERM", f"{job}.0")
    elif why == "an urgent job":
        slurm.submit("sleep 1", "--partition=urgent", "--nodes=2", "--cpus-per-task=2")
    _wait(slurm, url, "both to have left", lambda events: _left(events) >= before + 2)
    if "allocation" in why:  # once is enough
        _until(slurm, "a longer limit to be taken", lambda: _is_given(slurm, job, "TimeLimit=30"))
    hurry.touch()
    _wait(slurm, url, "the end of the run", lambda events: any(event["event"] == "finished" for event in events))
    _until(slurm, "an empty queue", lambda: not slurm.states())

    events = read_events(url)
    undisturbed = elastic_undisturbed(steps=STEPS, seed=7).events
    verdict = review(str(url), events, steps=STEPS, reference=undisturbed, lost_max=0, one_launch=False)
    assert verdict.ok, f"{verdict}\n{slurm.said()}"
    assert verdict.redone == 0
    said = slurm.said()
    *left, last = re.findall(r"^ended with (\d+)$", said, re.M)
    assert set(left) == {str(LEFT)}, said
    assert last == "0", said
    assert said.count("this node has left (") == 2 * len(left), said
    assert re.findall(r"^begun (\d+)$", said, re.M) == [str(again) for again in range(len(left) + 1)], said


@pytest.mark.timeout(900)
def test_a_job_loses_a_node_grows_is_preempted_and_goes_on(
    slurm: Slurm, elastic_undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    """deploy/slurm/job.sbatch and grow.sbatch, as they stand, are one run, whichever of their nodes has it."""
    url, hurry = tmp_path / "run", tmp_path / "hurry"
    more = _as_deployed(tmp_path, url, hurry)
    slurm.submit_file(DEPLOY / "job.sbatch", **more)
    _wait(slurm, url, "steps of both nodes", lambda events: _trained_by(events) == 2)
    slurm.lose(2)
    _wait(slurm, url, "a step of the other one", lambda events: _worlds(events)[-1] == 1)
    slurm.bring_back(2)
    slurm.submit_file(DEPLOY / "grow.sbatch", **more)
    _wait(slurm, url, "steps of the node that came back", lambda events: _trained_by(events) == 3)
    slurm.submit("sleep 1", "--partition=urgent", "--nodes=2", "--cpus-per-task=2")
    _wait(slurm, url, "both to have left", lambda events: _left(events) == 2)
    _wait(slurm, url, "both jobs to go on", lambda events: _trained_by(events) >= 5)
    hurry.touch()
    _until(slurm, "an empty queue", lambda: not slurm.states())

    events = read_events(url)
    undisturbed = elastic_undisturbed(steps=STEPS, seed=7).events
    verdict = review(str(url), events, steps=STEPS, reference=undisturbed, lost_max=1, redone_max=1)
    assert verdict.ok, f"{verdict}\n{slurm.said()}"
    assert slurm.ended() == {"COMPLETED"}, f"{slurm.ended()}\n{slurm.said()}"


def test_a_task_of_an_array_that_leaves_queues_no_other_one_again(
    slurm: Slurm, elastic_undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    """Its last one has the array's own number."""
    url, hurry = tmp_path / "run", tmp_path / "hurry"
    deployed = _as_deployed(tmp_path, url, hurry)
    job = slurm.submit_file(DEPLOY / "array.sbatch", **{**deployed, "flags": [*deployed["flags"], "--array=1-2"]})
    _wait(slurm, url, "steps of both tasks", lambda events: _trained_by(events) == 2)
    slurm.ask("scancel", "--signal=TERM", f"{job}_2.0")
    _wait(slurm, url, "the last one to have left", lambda events: any(event["event"] == "left" for event in events))
    _wait(slurm, url, "it to come back", lambda events: _trained_by(events) >= 3)
    hurry.touch()
    _until(slurm, "an empty queue", lambda: not slurm.states())

    events = read_events(url)
    reference = elastic_undisturbed(steps=STEPS, seed=7).events
    verdict = review(str(url), events, steps=STEPS, reference=reference, lost_max=0)
    assert verdict.ok, f"{verdict}\n{slurm.said()}"
    assert _left(events) == 1, slurm.said()
    assert slurm.ended() == {"COMPLETED"}, f"{slurm.ended()}\n{slurm.said()}"


def test_a_job_ends_well_though_an_agent_was_killed(
    slurm: Slurm, two_hosts: Hosts, elastic_undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    """srun ends with its status, though the other node has finished the run: the job finds that out."""
    url, hurry = tmp_path / "run", tmp_path / "hurry"
    slurm.submit_file(DEPLOY / "job.sbatch", **_as_deployed(tmp_path, url, hurry))
    _wait(slurm, url, "steps of both nodes", lambda events: _trained_by(events) == 2)
    agent = next(pid for pid in two_hosts.pids(2) if b"/elastic\0run\0" in linux.command_line(pid))
    os.kill(agent, signal.SIGKILL)
    hurry.touch()
    _until(slurm, "an empty queue", lambda: not slurm.states())

    reference = elastic_undisturbed(steps=STEPS, seed=7).events
    verdict = review(str(url), read_events(url), steps=STEPS, reference=reference, lost_max=1, redone_max=1)
    assert verdict.ok, f"{verdict}\n{slurm.said()}"
    assert "Killed" in slurm.said()
    assert slurm.ended() == {"COMPLETED"}, f"{slurm.ended()}\n{slurm.said()}"


UNDER_SRUN = """
export ELASTIC_OBSERVER={observer} TMPDIR=/var/tmp OMP_NUM_THREADS=1 ELASTIC_URL={url}
cd {root}
srun --mpi=none --kill-on-bad-exit=0 --wait=0 {command}
echo "ended with $?"
"""


@pytest.mark.parametrize("agents", [False, True], ids=["ranks", "agents"])
def test_what_srun_starts_on_two_nodes_is_one_run(
    slurm: Slurm, elastic_undisturbed: Callable[..., End], tmp_path: Path, agents: bool
) -> None:
    """Neither ranks nor agents are given a flag: they meet by the run's URL."""
    url, steps = tmp_path / "run", 12
    command = [sys.executable, *(["-m", "elastic", "run"] if agents else []), str(SCRIPT), str(url), f"--steps={steps}"]
    observer = f"elastic.drill.inject.injector:observer:{_drill(tmp_path / 'drill').path}"
    slurm.submit(
        UNDER_SRUN.format(observer=observer, url=url, root=ROOT, command=" ".join(command)),
        "--nodes=2",
        "--ntasks-per-node=1",
        "--time=30",
    )
    _until(slurm, "an empty queue", lambda: not slurm.states())
    assert "ended with 0" in slurm.said(), slurm.said()
    reference = elastic_undisturbed(steps=steps, seed=7).events
    verdict = review(str(url), read_events(url), steps=steps, reference=reference, lost_max=0)
    assert verdict.ok, f"{verdict}\n{slurm.said()}"
    assert _trained_by(read_events(url)) == 2, slurm.said()


OWN_LOOP = """
export TMPDIR=/var/tmp OMP_NUM_THREADS=1 ELASTIC_NOTICES=none
cd {root}
srun --mpi=none --kill-on-bad-exit=0 {python} -m tests.kit.programs.preempted {folder} {left}
echo "ended with $?"
"""


def test_a_loop_of_ones_own_leaves_at_a_signal_to_every_process_of_its_step(slurm: Slurm, tmp_path: Path) -> None:
    """Its loader process is among them, and hears it twice."""
    (tmp_path / "notes").mkdir()
    job = slurm.submit(
        OWN_LOOP.format(root=ROOT, python=sys.executable, folder=tmp_path, left=LEFT), "--ntasks=1", "--time=30"
    )
    _until(slurm, "a batch", (tmp_path / "stepped").exists)
    slurm.ask("scancel", "--signal=TERM", f"{job}.0")
    _until(slurm, "an empty queue", lambda: not slurm.states())
    assert f"ended with {LEFT}" in slurm.said(), slurm.said()
    assert "Traceback" not in slurm.said()
    assert (tmp_path / "notes" / "left").read_text().endswith(" leaves: SIGTERM\n")


def _job(folder: Path, url: Path, hurry: Path, *, flags: str) -> str:
    drill = _drill(folder)
    return JOB.format(
        secret=VARIABLE,
        value=generated_secret(),
        observer=f"elastic.drill.inject.injector:observer:{drill.path}",
        root=ROOT,
        python=sys.executable,
        address=address(HOST),
        url=url,
        hurry=hurry,
        left=LEFT,
        flags=flags,
        script=SCRIPT,
        steps=STEPS,
    )


def _as_deployed(tmp_path: Path, url: Path, hurry: Path) -> dict[str, Any]:
    """What is said to a job of deploy/slurm, whose file stays as it is."""
    env = {
        "RUN": str(url),
        "NODES_MAX": "3",
        "GRACE_S": "60",
        VARIABLE: generated_secret(),
        "ELASTIC_OBSERVER": f"elastic.drill.inject.injector:observer:{_drill(tmp_path / 'drill').path}",
        "TMPDIR": "/var/tmp",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = [str(SCRIPT), str(url), f"--steps={STEPS}", "--save-every=50", f"--slow-until={hurry}"]
    return {"flags": ["--time=30", "--cpus-per-task=1", f"--chdir={ROOT}"], "arguments": script, "env": env}


def _drill(folder: Path) -> DrillFolder:
    drill = DrillFolder(folder)
    drill.begin_launch()
    drill.plan.write_text(Plan().to_json())
    return drill


def _is_given(slurm: Slurm, job: str, limit: str) -> bool:
    """Not between its end and its queueing again."""
    try:
        slurm.ask("scontrol", "update", f"JobId={job}", limit)
    except ElasticError:
        return False
    return True


def _worlds(events: list[Event]) -> list[int]:
    """How many workers each step was shared by, in the order in which they were applied."""
    applied = [event for event in events if event["event"] == "step_applied"]
    return [event["world_size"] for event in sorted(applied, key=lambda event: event["t"])]


def _trained_by(events: list[Event]) -> int:
    """How many workers have applied three steps."""
    return len({event["worker"] for event in events if event["event"] == "step_applied" and event["step"] >= 2})


def _left(events: list[Event]) -> int:
    return sum(event["event"] == "left" for event in events)


def _wait(slurm: Slurm, url: Path, what: str, holds: Callable[[list[Event]], bool]) -> None:
    _until(slurm, what, lambda: (url / "events").exists() and holds(read_events(url)))


def _until(slurm: Slurm, what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}\n{slurm.states()}\n{slurm.said()}"
        time.sleep(POLL_S)
