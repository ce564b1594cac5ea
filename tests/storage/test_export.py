"""`elastic checkpoint export` writes what other tools really load, bit for bit, whole or not at all."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch.distributed import checkpoint as dcp

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.cli import main
from elastic_checkpoint.load import stream
from tests.kit.forkserver import piped

WITHIN_S = 240.0
BIG = 60_000_000  # bytes that take a while to write

Capture = pytest.CaptureFixture[str]
Make = Callable[..., Checkpointer]

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


class Tied(torch.nn.Module):
    """An embedding and a head that are one tensor, as in most language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.a_head = torch.nn.Linear(6, 11)
        self.a_head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.a_head(self.norm(self.embed(tokens)))
        return logits


def trained(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randint(11, (8,))).square().sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "epoch": seed, "history": [1, 2.5], "array": np.arange(3)}


def export(url: object, out: Path, *arguments: object) -> int:
    return main(["export", str(url), str(out), *map(str, arguments)])


@pytest.fixture
def run(tmp_path: Path, checkpointer: Make) -> Path:
    with checkpointer(tmp_path / "run") as runs:
        runs.save(10, trained(1))
        runs.save(20, trained(2))
    return tmp_path / "run"


def test_safetensors_hold_the_state_dict_and_tie_again_on_load(run: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "deep" / "out"
    assert export(run, out, "--to", "safetensors") == 0
    assert "tied: a_head.weight is embed.weight" in capsys.readouterr().out
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]

    expected = trained(2)["model"]
    loaded = safetensors.torch.load_file(out / "model.safetensors")
    assert set(loaded) == set(expected.state_dict()) - {"a_head.weight"}
    assert digest(loaded) == digest({name: expected.state_dict()[name] for name in loaded})
    with safe_open(out / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "a_head.weight": "embed.weight"}

    fresh = trained(3)["model"]
    safetensors.torch.load_model(fresh, out / "model.safetensors")
    assert digest(fresh) == digest(expected)
    assert fresh.a_head.weight is fresh.embed.weight
    assert stat.S_IMODE((out / "model.safetensors").stat().st_mode) == stat.S_IMODE(out.stat().st_mode) & 0o666


def test_large_models_are_cut_into_files_with_an_index(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert export(run, out, "--to", "safetensors", "--step", 10, "--max-shard-size", "50B") == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    names = sorted(path.name for path in out.iterdir() if path.suffix == ".safetensors")
    count = len(names)
    assert names == [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    assert sorted(set(index["weight_map"].values())) == names

    merged: dict[str, torch.Tensor] = {}
    for name in names:
        part = safetensors.torch.load_file(out / name)
        assert sum(tensor.nbytes for tensor in part.values()) <= 50 or len(part) == 1
        assert {index["weight_map"][key] for key in part} == {name}
        merged |= part
    expected = trained(1)["model"].state_dict()
    assert index["metadata"] == {
        "total_size": sum(tensor.nbytes for tensor in merged.values()),
        "a_head.weight": "embed.weight",
    }
    assert set(merged) == set(index["weight_map"]) == set(expected) - {"a_head.weight"}
    assert digest(merged) == digest({name: expected[name] for name in merged})


def test_dcp_loads_it_into_a_live_model_and_optimizer(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert (
        export(run, out, "--to", "dcp", "--part", "model", "--part", "optimizer", "--part", "epoch", "--step", 20) == 0
    )
    expected, fresh = trained(2), trained(3)
    state = {"model": fresh["model"].state_dict(), "optimizer": fresh["optimizer"].state_dict(), "epoch": 0}
    dcp.load(state, checkpoint_id=out, no_dist=True)
    fresh["model"].load_state_dict(state["model"])
    fresh["optimizer"].load_state_dict(state["optimizer"])
    assert digest(fresh["model"]) == digest(expected["model"])
    assert digest(fresh["optimizer"]) == digest(expected["optimizer"])
    assert state["epoch"] == 2


ODD = {
    "bf16": torch.randn(3, 5).bfloat16(),
    "f8": torch.randn(4).to(torch.float8_e4m3fn),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "nan": torch.tensor([float("nan"), -0.0]),
}


@pytest.mark.parametrize("kept", [0, 2**27])
@pytest.mark.parametrize("form", ["safetensors", "dcp"])
def test_every_shape_and_dtype_arrives_bit_by_bit(
    form: str, kept: int, tmp_path: Path, checkpointer: Make, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor is cut into pieces, and read again after it was verified, or kept from then."""
    monkeypatch.setattr(stream, "KEPT_BYTES", kept)
    with checkpointer(tmp_path / "run", shard_bytes=40) as runs:
        runs.save(1, {"model": {**ODD, "array": np.arange(4, dtype=">f8"), "note": "text", "none": {}}})
    assert export(tmp_path / "run", tmp_path / "out", "--to", form, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    if form == "safetensors":
        found = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
        assert torch.equal(found.pop("array"), torch.arange(4, dtype=torch.float64))
        assert document["left_out"] == ["note", "none"]
    else:
        target = {"model": {name: torch.zeros_like(tensor) for name, tensor in ODD.items()}}
        dcp.load(target, checkpoint_id=tmp_path / "out", no_dist=True)
        found = target["model"]
        assert document["left_out"] == ["model.none"]
    assert digest(found) == digest(ODD)
    assert document["files"] == {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}


def test_what_safetensors_lacks_is_named_before_anything_is_written(
    tmp_path: Path, checkpointer: Make, capsys: Capture
) -> None:
    with checkpointer(tmp_path / "run") as runs:
        runs.save(1, {"model": {"w": torch.ones(2, dtype=torch.complex128)}, "values": {"a": 1}})
        runs.save(2, {"model": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}})
    for step, part, says in (
        (1, "model", "w (complex128)"),
        (1, "values", "no tensor in values"),
        (1, "optimizer", "model (1 tensor), values (no tensors)"),
        (2, "model", "two tensors are called 'a.b'"),
    ):
        assert export(tmp_path / "run", tmp_path / "out", "--to", "safetensors", "--step", step, "--part", part) == 2
        assert says in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_is_there_is_never_overwritten(run: Path, tmp_path: Path, capsys: Capture) -> None:
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "mine").write_text("kept")
    file.write_text("kept")
    for out in (folder, file):
        assert export(run, out, "--to", "dcp") == 2
        assert "give another OUT" in capsys.readouterr().err
    assert (folder / "mine").read_text() == file.read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "folder", "file"}


def test_damage_leaves_no_folder_and_is_1(run: Path, tmp_path: Path, capsys: Capture) -> None:
    for shard in (run / "data").glob("*/s000000020-*/*"):
        shard.write_bytes(shard.read_bytes()[:-1])
    assert export(run, tmp_path / "out", "--to", "safetensors", "--step", 20) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    capsys.readouterr()
    assert export(run, tmp_path / "out", "--to", "safetensors", "--json") == 0
    assert json.loads(capsys.readouterr().out)["step"] == 10


@pytest.fixture
def big(tmp_path: Path, checkpointer: Make) -> Path:
    with checkpointer(tmp_path / "run") as runs:
        runs.save(1, {"model": {f"w{i}": torch.full((BIG // 16,), i, dtype=torch.int32) for i in range(4)}})
    return tmp_path / "run"


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("ends_with", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("at_first", [".out.*.tmp/*", "out"])
def test_an_export_that_is_killed_is_there_as_a_whole_or_not_at_all(
    at_first: str, ends_with: signal.Signals, big: Path, tmp_path: Path
) -> None:
    """It is killed the moment that its first file appears, or its folder."""
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "elastic", "checkpoint", "export", str(big), str(out), "--to", "safetensors"]
    with piped(arguments) as process:
        deadline = time.monotonic() + WITHIN_S
        while not list(tmp_path.glob(at_first)) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.0002)
        process.send_signal(ends_with)
        _, error = process.communicate(timeout=WITHIN_S)
    assert out.exists() or at_first != "out"
    if out.exists():  # also where the other moment was over before we saw it
        assert len(safetensors.torch.load_file(out / "model.safetensors")) == 4
    if ends_with is signal.SIGINT:
        assert "Traceback (most recent call last)" not in error or out.exists()
        assert not list(tmp_path.glob(".out.*"))


def test_what_a_killed_export_left_goes_with_the_next_one_and_a_living_one_s_stays(
    big: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    arguments = [sys.executable, "-m", "elastic", "checkpoint", "export", str(big), str(out), "--to", "safetensors"]
    with piped(arguments) as process:
        deadline = time.monotonic() + WITHIN_S
        while not list(tmp_path.glob(".out.*.tmp/*")) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.0002)
        process.send_signal(signal.SIGSTOP)
        left = list(tmp_path.glob(".out.*.tmp"))
        assert left or out.exists()
        if left:  # it was stopped in the middle
            assert export(big, out, "--to", "safetensors") == 0
            assert list(tmp_path.glob(".out.*.tmp")) == left
            shutil.rmtree(out)
        process.kill()
        process.communicate(timeout=WITHIN_S)
    mine = tmp_path / ".out.0123456789ab.tmp.kept"
    mine.mkdir()
    (tmp_path / ".out.0123456789ab.tmp").mkdir()
    (tmp_path / ".out.0123456789ab.tmp" / "half").write_bytes(b"x")
    if out.exists():
        shutil.rmtree(out)
    assert export(big, out, "--to", "safetensors") == 0
    assert {path.name for path in tmp_path.iterdir()} == {"run", "out", mine.name}


@pytest.mark.parametrize("command", [["export", "--to", "safetensors"], ["export", "--to", "dcp"], ["digest"]])
def test_memory_is_needed_for_one_object_and_one_tensor(
    command: list[str], tmp_path: Path, checkpointer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 MB in 64 tensors, sharded over two ranks; the numbers of NumPy and Python, to the byte."""
    with checkpointer(tmp_path / "run", shard_bytes=2**20) as runs:
        runs.save(1, {"model": {f"w{i}": torch.randn(2**17) for i in range(64)}})
    monkeypatch.setattr(stream, "KEPT_BYTES", 0)
    monkeypatch.setattr(stream, "READ_AHEAD_BYTES", 2**16)
    out = [str(tmp_path / "out")] if command[0] == "export" else []
    arguments = [command[0], str(tmp_path / "run"), *out, *command[1:]]
    main(["verify", str(tmp_path / "run")])  # imports
    tracemalloc.start()
    try:
        assert main(arguments) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * 2**20
