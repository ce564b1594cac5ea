"""Real launchers other than torchrun start ranks, or agents of `elastic run`: one run, and the bits of one worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from elastic.drill.end import End
from elastic.drill.faults.plan import Plan
from elastic.drill.folder import DrillFolder
from elastic.drill.hosts.network import until
from elastic.drill.judge.review import review
from elastic.events.reading import read_events
from tests.kit.host_runs import ROOT, SCRIPT

STEPS, WITHIN_S = 12, 240.0
MPIEXEC = {
    "openmpi": ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"],
    "mpich": ["mpiexec.mpich", "-n", "3"],
}
RANK = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}


@contextmanager
def launched(which: str, command: Sequence[str], output: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """By mpiexec, which is ended with all that it started."""
    if shutil.which(MPIEXEC[which][0]) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"apt-get install {which}")
    drill = DrillFolder(output.with_suffix(".drill"))
    drill.begin_launch()
    drill.plan.write_text(Plan().to_json())
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": "/var/tmp", **env}
    own["ELASTIC_OBSERVER"] = f"elastic.drill.inject.injector:observer:{drill.path}"
    with output.open("wb") as said:
        process = subprocess.Popen(
            [*MPIEXEC[which], sys.executable, *command], cwd=ROOT, stdout=said, stderr=said, env={**os.environ, **own}
        )
        try:
            yield process
        finally:
            started = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.kill()
            process.wait()
            for one in started:
                one.kill()


@pytest.mark.nightly(sample=1, of="launchers")
@pytest.mark.parametrize("which", MPIEXEC)
@pytest.mark.parametrize("agents", [False, True], ids=["ranks", "agents"])
def test_what_mpiexec_starts_is_one_run_whose_bits_are_those_of_one_worker(
    tmp_path: Path, elastic_undisturbed: Callable[..., End], which: str, agents: bool
) -> None:
    """Nobody says where they meet but the run's URL; agents get no flag."""
    url, output = tmp_path / "run", tmp_path / "said"
    script = [str(SCRIPT), str(url), f"--steps={STEPS}"]
    command = ["-m", "elastic", "run", *script] if agents else script
    with launched(which, command, output, **({"ELASTIC_URL": str(url)} if agents else {})) as process:
        assert process.wait(WITHIN_S) == 0, output.read_text()
    events = read_events(url)
    assert max(len(one["workers"]) for one in events if one["event"] == "view_formed") == int(MPIEXEC[which][-1])
    reference = elastic_undisturbed(steps=STEPS).events
    verdict = review(str(url), events, steps=STEPS, reference=reference, lost_max=0)
    assert verdict.ok, f"{verdict}\n{output.read_text()}"
    assert [*(url / "elastic" / "ranks").glob("*")] == []


@pytest.mark.nightly(sample=1, of="launchers")
@pytest.mark.parametrize("which", MPIEXEC)
def test_a_lost_rank_ends_all_and_the_same_command_goes_on(
    tmp_path: Path, elastic_undisturbed: Callable[..., End], which: str
) -> None:
    url, hurry = tmp_path / "run", tmp_path / "hurry"
    command = [str(SCRIPT), str(url), f"--steps={STEPS}", f"--slow-until={hurry}"]
    with launched(which, command, tmp_path / "first") as process:
        until(lambda: saved_after(0, url), "a save", within_s=WITHIN_S)
        ranks = psutil.Process(process.pid).children(recursive=True)
        (last,) = [one for one in ranks if one.environ().get(RANK[which]) == "1" and "python" in one.name()]
        os.kill(last.pid, signal.SIGKILL)
        assert process.wait(WITHIN_S) != 0
    hurry.touch()
    with launched(which, command, tmp_path / "second") as process:
        assert process.wait(WITHIN_S) == 0, (tmp_path / "second").read_text()
    verdict = review(
        str(url), read_events(url), steps=STEPS, reference=elastic_undisturbed(steps=STEPS).events, lost_max=None,
        one_launch=False,
    )  # fmt: skip
    assert verdict.ok, str(verdict)


def test_agents_that_do_not_know_where_to_meet_start_nothing(tmp_path: Path) -> None:
    output = tmp_path / "said"
    with launched("openmpi", ["-m", "elastic", "run", str(SCRIPT), str(tmp_path / "run")], output) as process:
        assert process.wait(WITHIN_S) == 2, output.read_text()
    assert "Open MPI has started 2 of these" in output.read_text()
    assert not (tmp_path / "run").exists()


def saved_after(step: int, url: Path) -> bool:
    return any(event["event"] == "saved" and event["step"] > step for event in read_events(url))
