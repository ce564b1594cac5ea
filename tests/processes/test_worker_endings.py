"""How workers of `elastic run` end, and what is said of it: by their script, an exception, or a closed stream."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.agents import HERE, WITHIN_S, Here, Run
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=4, of="how workers are said to have ended")

TRAINS = """
import os, signal, sys
import torch
import elastic
from torch.utils.data import TensorDataset

elastic.seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(32, 2))
with elastic.Run(
    sys.argv[1], model=model, optimizer=optimizer, dataset=data, batch_size=4, virtual_workers=2, epochs=1
) as run:
    for (x,) in run.batches():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if sys.argv[2:] == [str(run.step_index)]:
            os.kill(os.getpid(), signal.SIGKILL)
if run.is_coordinator:
    print(run.step_index, "steps")
"""
IN_A_FOLDER_OF_ITS_OWN = """
import os, sys
os.makedirs(mine := f"{sys.argv[1]}/of-{os.getpid()}")
os.chdir(mine)
""" + TRAINS.replace("sys.argv[1]", "'run'")


def test_a_replacement_whose_url_is_another_is_refused_with_both(run: Run, tmp_path: Path) -> None:
    """A relative one, after the script has changed to a folder by its process: it would begin anew there."""
    launch = run(IN_A_FOLDER_OF_ITS_OWN, args=(str(tmp_path), "2"))
    assert launch.finish(within_s=WITHIN_S) == 1
    assert re.search(r'url: ".*/of-\d+/run" here, ".*/of-\d+/run" there', launch.output), launch.output
    assert "before its first step: elastic.errors.IdentityMismatch" in launch.output


def test_an_exception_that_repeats_is_shown_once_and_ends_the_run(run: Run) -> None:
    launch = run(HERE + "raise ValueError(f'no good {1 + 1}')", "--nproc-per-node=2")
    assert launch.finish(within_s=WITHIN_S) == 1
    assert launch.output.count("Traceback (most recent call last)") == 1
    assert 'script.py", line' in launch.output
    assert "elastic/launch" not in launch.output
    assert "the same failure twice before its first step: ValueError: no good 2" in launch.output
    assert "(local rank" in launch.output


def test_a_first_failure_is_forgiven(run: Run, tmp_path: Path) -> None:
    source = HERE + "if os.environ['ELASTIC_RESTART'] == '0': raise OSError('the disk was busy')"
    launch = run(source)
    assert launch.finish(within_s=WITHIN_S) == 0
    assert [restart for _, _, restart in Here(launch).all()] == [0, 1]


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 1, "exit status 3"),
        ("sys.exit('a reason')", 1, "a reason"),
        ("os.abort()", 1, "SIGABRT"),
        ("this is no python", 1, "SyntaxError"),
        ("import no_such_module", 1, "ModuleNotFoundError"),
    ],
)
def test_the_exit_status_says_how_the_workers_ended(run: Run, end: str, status: int, said: str) -> None:
    launch = run(HERE + end)
    assert launch.finish(within_s=WITHIN_S) == status, launch.output
    assert said in launch.output


def test_a_worker_ends_like_a_python_program(run: Run, tmp_path: Path) -> None:
    """atexit functions run, threads are joined, files that nobody closed are flushed."""
    source = f"""
    import atexit, pickle, threading, time, multiprocessing
    folder = {str(tmp_path)!r}
    class Mine:
        pass
    def child(thing, queue):
        queue.put(type(thing).__name__)
    def late():
        time.sleep(0.3)
        pickle.loads(pickle.dumps(Mine()))
        open(folder + "/thread", "w").write("joined")
    atexit.register(lambda: open(folder + "/atexit", "w").write("ran"))
    threading.Thread(target=late).start()
    queue = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=child, args=(Mine(), queue))
    process.start()
    assert queue.get() == "Mine"
    process.join()
    unclosed = open(folder + "/file", "w")
    unclosed.write("flushed")
    """
    run(source).succeed(within_s=WITHIN_S)
    assert [(tmp_path / name).read_text() for name in ("thread", "atexit", "file")] == ["joined", "ran", "flushed"]


def test_a_module_runs_as_python_m_would(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "near.py").write_text("word = 'near'\n")
    (tmp_path / "pack" / "go.py").write_text(
        "import sys\nfrom .near import word\nprint(word, __name__, __spec__.name, sys.argv[1:])\n"
    )
    flags = ["run", "-m", "pack.go", "a", "--b"]
    with Launch("elastic", flags, env={"PYTHONPATH": str(tmp_path)}) as launch:
        assert "near __main__ pack.go ['a', '--b']" in launch.succeed(within_s=WITHIN_S)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_streams_are_closed_runs(closed: str, tmp_path: Path) -> None:
    """It ended in an AttributeError that nobody saw."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import os\nos.write(1, b'')\nopen({str(tmp_path)!r} + '/' + os.environ['LOCAL_RANK'], 'w').close()\n"
    )
    command = f"exec {sys.executable} -m elastic run --standalone --nproc-per-node=2 {script} {closed}"
    assert subprocess.run(["sh", "-c", command], check=False, timeout=WITHIN_S).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}
