"""What the pages tell a user to write works as it stands: every block of the tutorial, and the others' Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs/how-to"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str


def blocks(page: Path, language: str = "") -> Iterator[Block]:
    for found in BLOCK.finditer(page.read_text()):
        if language in ("", found[1]):
            yield Block(found[1], found[2], found[3])


def run(command: list[str] | str, folder: Path, *, within_s: float = 280) -> str:
    """Its output. The environment's own commands come first."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        shell=isinstance(command, str),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=within_s,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"\d[\d,.]*(×|%)?|\b[0-9a-f]{8,}…?", "#", text).split())


@pytest.mark.timeout(600)
def test_the_tutorial(tmp_path: Path) -> None:
    """Files are written, commands are run in order, and what the page shows of their output is in it, in order."""
    output = ""
    for block in blocks(ROOT / "docs/tutorial.md"):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "bash":
            output = "".join(run(command, tmp_path) for command in block.text.splitlines())
        else:
            said, at = without_numbers(output), 0
            for line in map(without_numbers, block.text.splitlines()):
                assert line in said[at:], f"{line!r} is not in\n{output}"
                at = said.index(line, at) + len(line)


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("which", [0, 1], ids=["random faults", "a fault at a moment"])
def test_the_lines_that_test_a_script(tmp_path: Path, which: int) -> None:
    """docs/how-to/test-your-script.md, on the small script of the tests."""
    block = list(blocks(HOW_TO / "test-your-script.md", "python"))[which]
    (tmp_path / "test_train.py").write_text(block.text)
    shutil.copy(ROOT / "tests/kit/programs/small.py", tmp_path / "train.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'runs'}"]
    assert "1 passed" in run(command, tmp_path)


BEFORE = {
    "README.md": """
        import torch
        import torch.nn.functional as F
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        dataset = test_set = [(torch.full((4,), float(i)) / 600, i % 3) for i in range(600)]
        """,
    "docs/how-to/read-data-files.md": "",
    "docs/how-to/use-checkpoints-alone.md": """
        import torch
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        """,
}


@pytest.mark.parametrize("page", BEFORE)
def test_the_python_of_a_page(tmp_path: Path, page: str) -> None:
    """What it leaves open (a model, an optimizer) is given; its bucket is a folder."""
    code = "\n".join(block.text for block in blocks(ROOT / page, "python"))
    code = code.replace("s3://bucket", str(tmp_path)).replace("model, optimizer, scheduler = ...\n", "")
    (tmp_path / "script.py").write_text("\n".join(line.strip() for line in BEFORE[page].splitlines()) + "\n" + code)
    run([sys.executable, "script.py"], tmp_path)


def test_the_loop_that_is_kept(tmp_path: Path) -> None:
    """docs/how-to/keep-your-loop.md, on two workers."""
    (script,) = (block for block in blocks(HOW_TO / "keep-your-loop.md", "python") if block.title)
    (tmp_path / script.title).write_text(script.text)
    said = run([sys.executable, "-m", "elastic", "run", "--standalone", "--nproc-per-node=2", script.title], tmp_path)
    assert len(re.findall(r"^epoch \d loss", said, re.MULTILINE)) == 3, said


def test_the_mixture_of_the_page_on_orders(tmp_path: Path) -> None:
    """docs/how-to/choose-an-order.md, on two workers."""
    (script,) = (block for block in blocks(HOW_TO / "choose-an-order.md", "python") if block.title)
    (tmp_path / script.title).write_text(script.text)
    run([sys.executable, "-m", "elastic", "run", "--standalone", "--nproc-per-node=2", script.title], tmp_path)
    assert (tmp_path / "runs/mixture/commits").is_dir()


def test_the_ddp_loop_that_is_kept(tmp_path: Path) -> None:
    """docs/how-to/keep-ddp.md: killed after a save, it goes on with more ranks."""
    (script,) = (block for block in blocks(HOW_TO / "keep-ddp.md", "python") if block.title)
    (tmp_path / script.title).write_text(script.text)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    dies = script.text.replace(
        "if loader.step % 10 == 0:",
        "if loader.step == 13:\n                raise SystemExit(1)\n            if loader.step % 10 == 0:",
    )
    (tmp_path / "dies.py").write_text(dies)
    with pytest.raises(AssertionError, match="epoch 0 step 10"):
        run([*torchrun, "--nproc-per-node=2", "dies.py"], tmp_path)
    said = run([*torchrun, "--nproc-per-node=3", script.title], tmp_path)
    assert re.findall(r"^epoch (\d) step (\d+)", said, re.MULTILINE) == [("1", "20"), ("2", "30")], said


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("title", "command", "leave"),
    [
        ("ddp.py", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "leave 90 "),
        ("ddp.py", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "leave "),
        ("with_lightning.py", [], "leave 90 "),
        ("with_transformers.py", [], "leave 90 "),
    ],
)
def test_loops_that_leave_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, command: list[str], leave: str
) -> None:
    """docs/how-to/use-spot-notices.md: each would train for hours, and ends because a file says that it must leave."""
    (script,) = (block for block in blocks(HOW_TO / "use-spot-notices.md", "python") if block.title == title)
    (tmp_path / title).write_text(script.text)
    (tmp_path / "leave").write_text(f"{leave}the price went up")
    monkeypatch.setenv("ELASTIC_NOTICES", f"file:{tmp_path / 'leave'}")
    said = run([sys.executable, *command, title], tmp_path)
    assert re.search(r"^saved step \d+: .*says leave: the price went up", said, re.MULTILINE), said


def test_all_python_of_the_pages_is_python() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for block in blocks(page, "python"):
            compile(block.text, str(page), "exec")
