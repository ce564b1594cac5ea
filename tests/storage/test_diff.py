"""`elastic checkpoint diff` finds what differs, to the bit, says by how much, and takes no trouble for an answer."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elastic_checkpoint import Checkpointer
from elastic_checkpoint.cli import main
from elastic_checkpoint.format.hashing import seal, unseal

Capture = pytest.CaptureFixture[str]
Make = Callable[..., Checkpointer]
Diff = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def differ(tmp_path: Path, checkpointer: Make, capsys: Capture) -> Diff:
    """Saves two states and compares them: the exit status and the JSON document."""

    def compare(a: object, b: object, **options: Any) -> tuple[int, dict[str, Any]]:
        for name, state, more in (("a", a, {}), ("b", b, options)):
            with checkpointer(tmp_path / name, **more) as runs:
                runs.save(1, state)
        status = main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return compare


def kinds(document: dict[str, Any]) -> dict[str, str]:
    return {one["path"]: one["kind"] for one in document["differences"]}


def test_sharding_containers_and_ties_do_not_count(differ: Diff) -> None:
    tied = torch.randn(7, 9)
    strided = torch.randn(2, 3, 4, 4)
    a = {
        "model": {"in": tied, "out": tied, "c": strided},
        "values": [1, (2, float("nan")), {}],
        "n": {0: torch.ones(2)},
    }
    b: dict[str, Any] = {
        "values": (1, [2, float("nan")], OrderedDict()),
        "n": [torch.ones(2)],
        "model": OrderedDict(
            {"out": tied.clone(), "c": strided.to(memory_format=torch.channels_last), "in": tied.clone()}
        ),
    }
    status, document = differ(a, b, shard_bytes=40)
    assert (status, document["equal"], document["differences"]) == (0, True, [])
    assert (document["equal_tensors"], document["equal_values"]) == (4, 4)


def test_each_kind_of_difference_is_named(differ: Diff) -> None:
    base = {"w": torch.arange(6.0).reshape(2, 3), "gone": torch.ones(2), "shape": torch.ones(4), "dtype": torch.ones(2)}
    other = {
        "w": torch.tensor([[0, 1, 2], [3, 4, 5.5]]),
        "new": torch.ones(2),
        "shape": torch.ones(2, 2),
        "dtype": torch.ones(2, dtype=torch.float64),
    }
    values = {"epoch": 1, "truth": 1, "name": "x", "float": 1, "kind": 3, "list": [1, 2]}
    others = {"epoch": 2, "truth": True, "name": "x", "float": 1.0, "kind": torch.ones(1), "list": [1]}
    status, document = differ({"model": base, **values}, {"model": other, **others})
    assert status == 1
    assert kinds(document) == {
        "model.w": "value",
        "model.gone": "missing",
        "model.shape": "other",
        "model.dtype": "other",
        "epoch": "value",
        "truth": "value",
        "float": "value",
        "kind": "other",
        "list[1]": "missing",
        "model.new": "extra",
    }
    [w] = [one for one in document["differences"] if one["path"] == "model.w"]
    assert (w["elements"], w["differing"], w["largest"], w["nonfinite"]) == (6, 1, 0.5, 0)
    assert (document["equal_tensors"], document["equal_values"]) == (0, 2)


FORMS: list[tuple[Any, Any, int, float | None, int]] = [
    (torch.tensor([0.0, math.nan, 1.0]), torch.tensor([-0.0, math.nan, 1.0]), 1, 0.0, 0),
    (torch.tensor([math.inf, 1.0, 2.0]), torch.tensor([-math.inf, math.nan, 5.0]), 3, 3.0, 2),
    (torch.tensor([2**62, -(2**63)]), torch.tensor([2**62 + 1, 2**63 - 1]), 2, 2**64 - 1, 0),
    (torch.tensor([True, False]), torch.tensor([True, True]), 1, 1, 0),
    (torch.tensor([1.5, 2.0]).bfloat16(), torch.tensor([1.5, -2.0]).bfloat16(), 1, 4.0, 0),
    (torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), torch.tensor([1.0, 4.0]).to(torch.float8_e4m3fn), 1, 2.0, 0),
    (torch.tensor([3 + 4j, 1]), torch.tensor([0j, 1]), 1, 5.0, 0),
    (torch.zeros(3, dtype=torch.uint8), torch.tensor([0, 255, 0], dtype=torch.uint8), 1, 255, 0),
    (np.array([[1, 2], [3, 4]], ">i4"), np.array([[1, 2], [3, -4]], ">i4"), 1, 8, 0),
    (np.array([1.0, np.nan]), np.array([1.0, 2.0]), 1, None, 1),
    (np.array(["one", "two"]), np.array(["one", "six"]), 1, None, 0),
    (torch.tensor(1.0), torch.tensor(3.0), 1, 2.0, 0),
]


@pytest.mark.parametrize(("a", "b", "differing", "largest", "nonfinite"), FORMS)
def test_differences_are_counted_in_every_form(
    a: Any, b: Any, differing: int, largest: float | None, nonfinite: int, differ: Diff
) -> None:
    status, document = differ({"x": a}, {"x": b})
    [one] = document["differences"]
    assert status == 1
    assert (one["differing"], one["largest"], one["nonfinite"]) == (differing, largest, nonfinite)


def test_a_tensor_larger_than_a_chunk_is_read_in_parts(differ: Diff) -> None:
    """80 MB lie in two chunks of 64 MiB, each with a hash of its own; on the other side in seven objects."""
    a = torch.arange(20_000_000, dtype=torch.int32)
    b = a.clone()
    for index in (0, 2**24 - 20, 2**24 + 20, len(a) - 1):
        b[index] += 7
    status, document = differ(
        {"small": torch.ones(3), "x": a}, {"x": b, "small": torch.ones(3)}, shard_bytes=12_345_678
    )
    [one] = document["differences"]
    assert (status, one["path"], one["differing"], one["largest"]) == (1, "x", 4, 7)
    assert document["equal_tensors"] == 1


@pytest.fixture
def run(tmp_path: Path, checkpointer: Make) -> Path:
    with checkpointer(tmp_path / "run") as runs:
        for step in (1, 2, 3):
            runs.save(
                step, {"model": {f"layer{i}": torch.full((4,), float(step)) for i in range(50)}, "same": "x" * 99}
            )
    return tmp_path / "run"


def test_steps_are_chosen_with_an_at_sign_or_as_two_numbers(run: Path, capsys: Capture) -> None:
    assert main(["diff", f"{run}@1", f"{run}@2"]) == 1
    one = capsys.readouterr().out
    assert main(["diff", str(run), "1", "2"]) == 1
    assert capsys.readouterr().out == one
    assert main(["diff", str(run), f"{run}@3"]) == 0
    assert "50 tensors and 1 value equal" in capsys.readouterr().out


def test_trouble_is_2_never_1(run: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main(["diff", str(run), str(tmp_path / "none")]) == 2
    assert main(["diff", f"{run}@7", str(run)]) == 2
    [shard] = (run / "data").glob("*/s000000002-*/*")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    capsys.readouterr()
    assert main(["diff", str(run), "1", "2"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "tensors  model.layer0" in said.err
    shard.write_bytes(data[:-1])
    assert main(["diff", str(run), "1", "2"]) == 2
    [manifest] = (run / "commits").glob("*s000000002*")
    manifest.write_bytes(b"{}")
    assert main(["diff", str(run), "1", "2"]) == 2


HOSTILE = [
    {"!": "ndarray", "name": "x", "dtype": "i4,(", "shape": [1]},
    {"!": "ndarray", "name": "x", "dtype": "|S0", "shape": [8]},
    {"!": "ndarray", "name": "x", "dtype": "|O", "shape": [1]},
    {"!": "ndarray", "name": "x", "dtype": "<f8", "shape": [2]},
    {"!": "ndarray", "name": "y", "dtype": "<f8", "shape": [1]},
    {"!": "tensor", "name": ["x"]},
    {"!": "dict", "items": [1]},
    {"!": "tuple", "items": None},
    {"!": "tuple"},
]


@pytest.mark.parametrize("document", HOSTILE)
def test_a_tree_from_an_enemy_is_damage_not_a_defect(
    document: dict[str, Any], tmp_path: Path, checkpointer: Make, capsys: Capture
) -> None:
    with checkpointer(tmp_path) as runs:
        runs.save(1, {"x": np.zeros(1)})
    [path] = (tmp_path / "commits").iterdir()
    body = unseal(path.read_bytes(), "it")
    body["tree"]["x"] = document
    path.write_bytes(seal(body))
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 2
    assert "CorruptCheckpoint: manifest commits/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("a", "b", "found"),
    [
        ({"p": "/runs/a"}, {"p": ""}, {"p": "value"}),
        ({"p": "/runs/a"}, {"p": "runs/b"}, {"p": "value"}),
        ({"k": {"/runs/a/1": 0.5}}, {"k": {"/runs/b/1": 0.7}}, {"k./runs/a/1": "value"}),
        ({"k": {"/a/1": 1}}, {"k": {"/b/1": 1, "/b/2": 1}}, {"k./a/1": "path", "k./b/2": "extra"}),
        ({"k": {"runs/a/1": 1}}, {"k": {"runs/b/1": 1}}, {"k.runs/a/1": "missing", "k.runs/b/1": "extra"}),
        ({"k": {"./a": 1}}, {"k": {"./b": 1}}, {"k../a": "missing", "k../b": "extra"}),
        (
            {"k": {"/a": 1}, "m": {}},
            {"k": {}, "m": {"/b": 1}},
            {"k./a": "missing", "m": "missing", "k": "extra", "m./b": "extra"},
        ),
    ],
)  # fmt: skip
def test_what_is_more_than_another_place_counts(differ: Diff, a: Any, b: Any, found: dict[str, str]) -> None:
    status, document = differ(a, b)
    assert (status, kinds(document)) == (1, found)


def test_only_a_part_is_compared(tmp_path: Path, checkpointer: Make, capsys: Capture) -> None:
    """Two runs of one model differ in what else they keep, and that is no answer to whether it is the same."""
    for name in ("a", "b"):
        with checkpointer(tmp_path / name) as saving:
            saving.save(1, {"model": {"w": torch.ones(2)}, "model_name": name, "extra": {"at": name}})
    urls = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["diff", *urls]) == 1
    assert main(["diff", *urls, "--only", "model"]) == 0
    assert main(["diff", *urls, "--only", "model", "--only", "extra.at"]) == 1
    capsys.readouterr()
    assert main(["diff", *urls, "--only", "modle"]) == 2
    assert "--only modle: neither checkpoint has anything below it" in capsys.readouterr().err
