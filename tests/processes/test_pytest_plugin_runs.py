"""The plugin's fixtures as a project meets them: test files of its own, run by pytest, with scripts beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly(sample=1, of="pytest in pytest")

SMALL = Path(__file__).parents[1] / "kit/programs/small.py"

A_SCRIPT_OF_ITS_OWN = """
import pytest

@pytest.fixture(scope="session")
def elastic_script():
    return "train_{name}.py"

def test_it(elastic_undisturbed):
    assert elastic_undisturbed(steps=2, env={{"A": "B"}}).batch_size == {batch_size}
"""

FAILS = """
import pytest
from elastic.drill.faults import At

@pytest.fixture(scope="session")
def elastic_script():
    return "train.py"

def test_it(elastic_cluster):
    run = elastic_cluster(steps=2, amp=True, slow=False)
    run.kill(worker=0, when=At(step=1, phase="backward"))
    end = run.finish(within_s=240)
    assert end.verdict.ok, end.verdict

def test_of_a_script_that_is_not_there(elastic_cluster):
    elastic_cluster(script="elsewhere.py")
"""

DIFFERS = """
import pytest

@pytest.fixture(scope="session")
def elastic_script():
    return "train.py"

def test_it(elastic_cluster, elastic_undisturbed):
    end = elastic_cluster(steps=4).finish(within_s=240)
    assert end.weights_sha256 == elastic_undisturbed(steps=4).weights_sha256
"""


def run(asked: Path, *, cwd: Path) -> str:
    """What pytest says."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command += [f"--basetemp={cwd / 'runs'}", str(asked)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200, check=False)
    return done.stdout + done.stderr


def test_each_test_module_is_compared_with_its_own_script_wherever_pytest_is_started(tmp_path: Path) -> None:
    """Of two scripts with the same options, one's weights say nothing about the other's."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    for name, batch_size in (("a", 16), ("b", 32)):
        wrapped = f"import runpy, sys\nsys.argv += ['--batch-size', '{batch_size}']\n"
        (project / f"train_{name}.py").write_text(f"{wrapped}runpy.run_path({str(SMALL)!r}, run_name='__main__')\n")
        (project / f"test_{name}.py").write_text(A_SCRIPT_OF_ITS_OWN.format(name=name, batch_size=batch_size))
    assert "2 passed" in (said := run(project, cwd=elsewhere)), said


def test_a_test_that_fails_tells_the_verdict_whole_and_what_the_script_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint('given', sys.argv[2:])\nsys.exit(3)\n")
    (tmp_path / "test_it.py").write_text(FAILS)
    said = run(tmp_path, cwd=tmp_path)
    assert "2 failed" in said
    assert "no worker recorded that it had read its configuration" in said.partition("drill: run 1")[2]
    assert "did not happen: step 1" in said
    assert "ended with status 3, and printed:\ngiven ['--steps', '2', '--amp']\n" in said
    assert "there is no file elsewhere.py, looked for in" in said
    assert said.count("draws the same again") == 2


def test_a_test_that_compares_weights_is_told_why_they_differ(tmp_path: Path) -> None:
    seeded = SMALL.read_text()
    assert "    elastic.seed(options.seed)\n" in seeded
    (tmp_path / "train.py").write_text(seeded.replace("    elastic.seed(options.seed)\n", ""))
    (tmp_path / "test_it.py").write_text(DIFFERS)
    said = run(tmp_path, cwd=tmp_path)
    assert "1 failed" in said
    assert "they are initialised without a seed" in said, said
    assert "elastic report " in said
