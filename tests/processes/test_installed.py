"""What a stranger installs: the built wheel, in an environment and a folder that know nothing of this repository."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from elastic.errors import CANNOT_DO
from tests.kit.html import figures_of

pytestmark = pytest.mark.nightly(sample=1, of="what is installed")

ROOT = Path(__file__).parents[2]
WITHIN_S = 280


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as a release is: the source distribution, and from it the wheel."""
    folder = tmp_path_factory.mktemp("build")
    source = shutil.copytree(
        ROOT, folder / "source", ignore=shutil.ignore_patterns(".*", "__pycache__", "build", "tests")
    )
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder / "dist", source],
        check=True,
        capture_output=True,
        timeout=WITHIN_S,
    )
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an environment with the wheel. What it depends on is this environment's, less this repository's packages: a
    .pth file is read in the first folder of a path alone."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=WITHIN_S)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True, timeout=WITHIN_S)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder / "bin"


def test_nothing_is_installed_under_a_name_that_people_have(wheel: Path) -> None:
    """Thousands of repositories have a module `checkpoint`, or folders of recipes and tests."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"elastic", "elastic_checkpoint"}


def test_the_pages_that_errors_name_are_installed(bin: Path, tmp_path: Path) -> None:
    """An error named files of the repository."""
    named = CANNOT_DO.split()
    assert named[:2] == ["elastic", "docs"]
    assert run_in(tmp_path, [bin / "elastic", *named[1:]]).startswith("# What a run cannot do")
    assert "keep-your-loop" in run_in(tmp_path, [bin / "elastic", "docs"])
    for page, of_another_file in (("run-a-spot-fleet", "ExecStart="), ("lose-workers", "| a worker is killed |")):
        shown = run_in(tmp_path, [bin / "elastic", "docs", page])
        assert of_another_file in shown
        assert "8<" not in shown


def test_a_page_is_made_of_what_is_installed_alone(bin: Path, tmp_path: Path) -> None:
    job = ["--parameters=124M", "--batch-time=16s", "--nodes=4", "--across=10Gbit/s:20us"]
    run_in(tmp_path, [bin / "elastic", "plan", *job, "--plot=plan.html"])
    page = (tmp_path / "plan.html").read_text()
    assert len(figures_of(page)) == 1
    assert "Licensed under the MIT license" in page


SCRIPT = """
import sys, torch
import elastic, elastic_checkpoint
assert "{home}" in elastic.__file__ and "{home}" in elastic_checkpoint.__file__
{uses}

elastic.seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
with elastic.Run(
    sys.argv[1], model=model, optimizer=optimizer, dataset=data, batch_size=8, virtual_workers=2, epochs=1
) as run:
    for _ in run.epochs():
        for (x,) in run.batches():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
print("trained", flush=True)
"""
LAUNCHERS = {
    "python": [],
    "elastic run": ["-m", "elastic", "run", "--standalone", "--nproc-per-node=2"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_repository_that_has_a_checkpoint_py_keeps_it(launcher: str, bin: Path, tmp_path: Path) -> None:
    """`import elastic` ended with an ImportError, and under elastic run the script got a package of ours."""
    (tmp_path / "checkpoint.py").write_text("THEIRS = 'best.pt'\n")
    uses = "from checkpoint import THEIRS"
    (tmp_path / "train.py").write_text(SCRIPT.format(home=bin.parent, uses=uses))
    assert run_in(tmp_path, [bin / "python", *LAUNCHERS[launcher], "train.py", "run"]).count("trained") in (1, 2)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_folder_of_weights_called_checkpoint_disturbs_nothing(launcher: str, bin: Path, tmp_path: Path) -> None:
    """Also where the script asks whether there is such a package."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "best.pt").write_bytes(b"weights")
    uses = "import checkpoint; assert checkpoint.__file__ is None"
    (tmp_path / "train.py").write_text(SCRIPT.format(home=bin.parent, uses=uses))
    assert run_in(tmp_path, [bin / "python", *LAUNCHERS[launcher], "train.py", "run"]).count("trained") in (1, 2)


def test_a_script_called_elastic_py_trains_or_ends_with_the_reason(bin: Path, tmp_path: Path) -> None:
    """Under python it imports itself, which Python says; where the launcher has imported ours before, it trains."""
    (tmp_path / "elastic.py").write_text(SCRIPT.format(home="", uses=""))
    assert run_in(tmp_path, [bin / "elastic", "run", "--standalone", "--nproc-per-node=2", "elastic.py", "run"])
    alone = subprocess.run(
        [bin / "python", "elastic.py", "alone"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert "partially initialized module 'elastic'" in alone.stderr.splitlines()[-1]


def test_the_demo_loses_a_worker_and_then_everything_and_ends_with_the_same_weights(bin: Path, tmp_path: Path) -> None:
    """The first thing that a stranger runs. It computes its verdict and exits with it; what is printed is what people
    are promised to see."""
    shown = run_in(tmp_path, [bin / "elastic", "demo", "--keep", tmp_path / "runs"])
    assert "The same weights, byte for byte: " in shown
    assert told(shown) == told(readme_block())


def run_in(folder: Path, command: list[str | Path]) -> str:
    """What it prints; it must end with 0."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def readme_block() -> str:
    """What the README shows under `make demo`."""
    readme = (ROOT / "README.md").read_text()
    return readme.partition("<!-- demo:")[2].partition("```text\n")[2].partition("```")[0]


def told(output: str) -> list[str]:
    """The lines without their numbers: times vary, and digests with the machine's instruction set."""
    lines = [re.sub(r"[0-9a-f]{16,}", "#", line).rstrip() for line in output.splitlines()]
    return [re.sub(r"\s*\d[\d,.]*\s*", " # ", line).strip() for line in lines if line.strip()]
