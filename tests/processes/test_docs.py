"""What the pages tell a user to write works as it stands: every block of the tutorial, and the others' Python."""

from __future__ import annotations

import ast
import copy
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import elastic
from tests.kit.needs import needs_transformers
from tests.kit.s3 import s3_server

pytestmark = pytest.mark.nightly(sample=5, of="what the pages show")

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


def run(command: list[str] | str, folder: Path, *, within_s: float = 280, status: int = 0) -> str:
    """Its output, once it has ended with that status. The environment's own commands come first."""
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
    assert done.returncode == status, f"{command}\n{done.stdout}"
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
        dataset = [(torch.full((4,), float(i)) / 600, i % 3) for i in range(600)]
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
    code = code.replace("s3://bucket", str(tmp_path))
    (tmp_path / "script.py").write_text("\n".join(line.strip() for line in BEFORE[page].splitlines()) + "\n" + code)
    run([sys.executable, "script.py"], tmp_path)


class Fragments:
    """A page's lines of Python, which leave out what is the reader's own: here that is a small training."""

    def __init__(self, folder: Path, **names: Any) -> None:
        elastic.seed(0)
        self.folder = folder
        self.model = torch.nn.Linear(2, 2)
        self.arguments: dict[str, Any] = {
            "model": self.model,
            "optimizer": torch.optim.SGD(self.model.parameters(), lr=0.1),
            "dataset": [(torch.tensor([1.0, i]), i % 2) for i in range(16)],
            "batch_size": 4,
            "virtual_workers": 2,
            "steps": 4,
        }
        self.names = {"elastic": elastic, "model": self.model, "url": str(folder / "run"), **names}

    def shown(self, block: Block, **instead: str) -> Any:
        """What its last line gives. instead: other words for some of it; `...` is what every run needs."""
        text = block.text.replace("Run(..., ", "Run(url, ..., ").replace("..., ", "**arguments, ")
        for word, other in instead.items():
            assert word in text
            text = text.replace(word, other)
        tree = ast.parse(text)
        if isinstance(last := tree.body[-1], ast.Expr):
            tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("run", ast.Store())], last.value), last)
        given = {name: value for name, value in self.arguments.items() if f"{name}=" not in text}
        names = {**self.names, "arguments": given}
        exec(compile(ast.fix_missing_locations(tree), str(self.folder), "exec"), names)
        self.names |= {"streams": names.get("streams")}
        return names.get("run")

    def train(self, run: elastic.Run) -> None:
        with run:
            for step in run:
                for x, y in step:
                    step.backward(F.cross_entropy(self.model(x), y, reduction="sum"), count=len(y))
        assert run.step_index == 4


def test_a_cadence_that_is_found(tmp_path: Path) -> None:
    """docs/how-to/choose-a-cadence.md"""
    page = Fragments(tmp_path)
    (block,) = blocks(HOW_TO / "choose-a-cadence.md", "python")
    page.train(page.shown(block))


def test_a_long_section(tmp_path: Path) -> None:
    """docs/how-to/debug-a-hang.md: inside a run, between two steps."""
    samples: list[str] = []
    page = Fragments(tmp_path, write_samples=lambda: samples.append("written"))
    (block,) = blocks(HOW_TO / "debug-a-hang.md", "python")
    with elastic.Run(page.names["url"], **page.arguments) as run:
        page.names["run"] = run
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(page.model(x), y, reduction="sum"), count=len(y))
            page.shown(block)
    assert samples == ["written"] * 4


def test_rules_for_bad_steps(tmp_path: Path) -> None:
    """docs/how-to/pass-over-bad-steps.md: the rule by a word, and the rule in full."""
    page = Fragments(tmp_path)
    by_a_word, in_full = blocks(HOW_TO / "pass-over-bad-steps.md", "python")
    page.train(page.shown(by_a_word))
    page.names["url"] += "-2"
    update = elastic.Update(on_bad=page.shown(in_full))
    page.train(elastic.Run(page.names["url"], **page.arguments, save_every=2, update=update))


def test_weights_of_an_older_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/resume.md: a run's weights at a step that is not its last one, in another script's model."""
    monkeypatch.chdir(tmp_path)
    page = Fragments(tmp_path)
    older: list[torch.Tensor] = []
    with elastic.Run("runs/digits", **{**page.arguments, "steps": 82}, save_every=80) as run:
        for step in run:
            if step.index == 80:
                older += [parameter.detach().clone() for parameter in page.model.parameters()]
            for x, y in step:
                step.backward(F.cross_entropy(page.model(x), y, reduction="sum"), count=len(y))
    assert not torch.equal(older[0], next(page.model.parameters()))
    (block,) = (one for one in blocks(HOW_TO / "resume.md", "python") if "Checkpointer" in one.text)
    page.shown(block)
    assert all(torch.equal(*pair) for pair in zip(older, page.model.parameters(), strict=True))


def test_streams_of_lines_and_of_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/train-on-streams.md. Those of other kinds are in test_stream_kinds.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for number in range(24):
        lines = [json.dumps([[1.0, number + line], line % 2]) + "\n" for line in range(40)]
        (tmp_path / f"data/{number:02}.jsonl").write_text("".join(lines))
        with tarfile.open(tmp_path / f"data/{number:02}.tar", "w") as archive:
            for sample in range(40):
                for extension, content in (("jpg", bytes([sample])), ("cls", b"%d" % (sample % 2))):
                    member = tarfile.TarInfo(f"{sample:03}.{extension}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    page = Fragments(tmp_path, glob=glob, json=json, image=lambda data: [1.0, float(data[0])])
    of_lines, of_archives, *_ = blocks(HOW_TO / "train-on-streams.md", "python")
    page.arguments["data"] = elastic.Data(
        collate_fn=lambda some: (torch.tensor([x for x, _ in some]), torch.tensor([y for _, y in some]))
    )
    page.train(page.shown(of_lines, **{"100_000": "4"}))
    page.shown(of_archives)
    page.train(elastic.Run(f"{page.names['url']}-2", **{**page.arguments, "dataset": page.names["streams"]}))


def test_options_of_an_s3_storage(tmp_path: Path) -> None:
    """docs/how-to/use-s3.md, with a server of the test's."""
    (block,) = blocks(HOW_TO / "use-s3.md", "python")
    with s3_server() as server:
        server.new_bucket("bucket")
        given = f'"key": "{server.key}", "secret": "{server.secret}"'
        page = Fragments(tmp_path)
        run = page.shown(
            block, **{"http://127.0.0.1:9000": server.endpoint_url, '"key": "...", "secret": "..."': given}
        )
        page.train(run)


def test_the_best_weights(tmp_path: Path) -> None:
    """docs/how-to/write-the-loop.md: they are those that got most right."""
    (block,) = [one for one in blocks(HOW_TO / "write-the-loop.md", "python") if "class Best" in one.text]
    page = Fragments(tmp_path)
    page.arguments |= {"steps": None, "epochs": 2}

    def train(x: torch.Tensor, y: torch.Tensor) -> None:
        page.arguments["optimizer"].zero_grad()
        F.cross_entropy(page.model(x), y).backward()  # type: ignore[no-untyped-call]
        page.arguments["optimizer"].step()

    def count(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"right": (page.model(x).argmax(dim=1) == y).sum()}

    data = page.arguments["dataset"]
    page.names |= {"copy": copy, "train": train, "count": count, "held_out": data}
    best = page.shown(block).extra["best"]
    assert sum(int(best.model(x).argmax() == y) for x, y in data) == best.right > 0


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


@pytest.mark.parametrize(
    ("title", "command", "leave", "status"),
    [
        ("ddp.py", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "leave 90 ", 0),
        ("ddp.py", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "leave ", 0),
        ("with_lightning.py", [], "leave 90 ", 75),
        pytest.param("with_transformers.py", [], "leave 90 ", 75, marks=needs_transformers),
    ],
)
def test_loops_that_leave_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, title: str, command: list[str], leave: str, status: int
) -> None:
    """docs/how-to/use-spot-notices.md: each would train for hours, and ends because a file says that it must leave."""
    (script,) = (block for block in blocks(HOW_TO / "use-spot-notices.md", "python") if block.title == title)
    (tmp_path / title).write_text(script.text)
    (tmp_path / "leave").write_text(f"{leave}the price went up")
    monkeypatch.setenv("ELASTIC_NOTICES", f"file:{tmp_path / 'leave'}")
    said = run([sys.executable, *command, title], tmp_path, status=status)
    assert re.search(r"^(saved|will save at) step \d+: .*says leave: the price went up", said, re.MULTILINE), said
    assert re.search(rf"says leave: the price went up; the same command goes on \(status {status}\)", said), said
    assert (tmp_path / "runs" / "left").exists() == (title == "ddp.py")


def test_all_python_of_the_pages_is_python() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for block in blocks(page, "python"):
            compile(block.text, str(page), "exec")
