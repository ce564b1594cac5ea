"""A manifest that someone wrote on purpose, with a right hash: refused before anything large is allocated or read."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint import Checkpointer, CheckpointError, CorruptCheckpoint, StateMismatch, decode
from elastic_checkpoint.format.hashing import seal, unseal
from elastic_checkpoint.format.manifest import parse
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.save import commit as writer
from elastic_checkpoint.storage import open_storage
from tests.storage.cut import CutAfter

Change = Callable[[dict[str, Any]], object]
BIG = 2**61


def piece(body: dict[str, Any], index: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = body["tensors"]["w"]["pieces"][index]
    return found


def alike(count: int) -> list[Any]:
    """Integers that all have the hash 0: a set of them compares each with each."""
    return [{"!": "int", "hex": format(number * (2**61 - 1), "x")} for number in range(count)]


def nested(depth: int, first: int = 0) -> list[Any]:
    """Two frozensets of frozensets of such integers, in all 2**depth of them."""
    if not depth:
        return alike(first + 2)[first:]
    return [{"!": "frozenset", "items": nested(depth - 1, 2 * (first + index))} for index in (0, 1)]


CHANGES: dict[str, Change] = {
    "huge shape": lambda b: b["tensors"]["w"].update(shape=[BIG, BIG]),
    "huge shape and box": lambda b: (
        b["tensors"]["w"].update(shape=[2**40]),
        piece(b).update(offsets=[0], sizes=[2**40]),
    ),
    "huge object": lambda b: (
        b["objects"][0].update(size=2**50, chunk_bytes=2**50),
        b["tensors"]["w"].update(shape=[2**40], pieces=[{"object": 0, "start": 0, "offsets": [0], "sizes": [2**40]}]),
    ),
    "boolean shape": lambda b: b["tensors"]["w"].update(shape=[True, 6]),
    "fractional shape": lambda b: b["tensors"]["w"].update(shape=[2.0, 3.0]),
    "negative shape": lambda b: b["tensors"]["w"].update(shape=[-2, -3]),
    "too many axes": lambda b: b["tensors"]["w"].update(shape=[1] * 100),
    "unknown dtype": lambda b: b["tensors"]["w"].update(dtype="float1"),
    "dtype that is no name": lambda b: b["tensors"]["w"].update(dtype={"a": 1}),
    "dtype that is code": lambda b: b["tensors"]["w"].update(dtype="load"),
    "negative start": lambda b: piece(b).update(start=-8),
    "start beyond the object": lambda b: piece(b).update(start=10**6),
    "another object": lambda b: piece(b).update(object=7),
    "object by path": lambda b: piece(b).update(object="../../secret"),
    "negative offset": lambda b: piece(b).update(offsets=[-1, 0]),
    "box outside": lambda b: piece(b).update(offsets=[1, 1]),
    "empty box": lambda b: piece(b).update(sizes=[0, 3]),
    "gap": lambda b: b["tensors"]["w"].update(pieces=[]),
    "overlapping boxes": lambda b: b["tensors"]["w"].update(
        pieces=[{"object": 0, "start": start, "offsets": [0, 0], "sizes": [1, 3]} for start in (0, 12)]
    ),
    "tensors on the same bytes": lambda b: b["tensors"].update(twin=copy.deepcopy(b["tensors"]["w"])),
    "tensor that is no object": lambda b: b["tensors"].update(w=[1]),
    "tensors that are a list": lambda b: b.update(tensors=[]),
    "objects that are an object": lambda b: b.update(objects={}),
    "chunks that do not add up": lambda b: b["objects"][0].update(chunks=[]),
    "no chunk size": lambda b: b["objects"][0].update(chunk_bytes=0),
    "hash that is none": lambda b: b["objects"][0].update(xxh3_128="../x"),
    "another step": lambda b: b.update(step=3),
    "another claim": lambda b: b.update(claim=True),
    "resumed from nonsense": lambda b: b.update(resumed_from="c1"),
    "time that is none": lambda b: b.update(saved_at="now"),
    "time beyond floats": lambda b: b.update(saved_at=10**400),
    "time before all": lambda b: b.update(saved_at=-1),
    "meta that is a list": lambda b: b.update(meta=[]),
    "meta with a tensor": lambda b: b.update(meta={"x": {"!": "tensor", "name": "w"}}),
    "lacking a field": lambda b: b.pop("tensors"),
    "format that is none": lambda b: b.update(format=[1]),
    "tree with an unknown kind": lambda b: b.update(tree={"!": "pickle", "data": "gASVLg=="}),
    "tree with an unknown tensor": lambda b: b.update(tree={"!": "tensor", "name": "v"}),
    "tree with a stride outside": lambda b: b.update(tree={"!": "tensor", "name": "w", "stride": [BIG, 1]}),
    "tree with one tensor in many layouts, each a copy": lambda b: b.update(
        tree=[{"!": "tensor", "name": "w", "stride": stride} for stride in ([1, 2], [3, 1])]
    ),
    "tree with an array too long": lambda b: b.update(
        tree={"!": "ndarray", "name": "w", "dtype": "<f8", "shape": [BIG, BIG]}
    ),
    "tree with an array of nothing": lambda b: (
        b["tensors"].update(e={"dtype": "uint8", "shape": [0], "pieces": []})
        or b.update(tree={"!": "ndarray", "name": "e", "dtype": "<U0", "shape": [BIG]})
    ),
    "empty tensor of a shape that overflows": lambda b: b["tensors"].update(
        e={"dtype": "uint8", "shape": [0, BIG, BIG], "pieces": []}
    ),
    "tree with a dtype that is no Python": lambda b: b.update(
        tree={"!": "ndarray", "name": "w", "dtype": "i4,(", "shape": [3]}
    ),
    "tree with an array of objects": lambda b: b.update(tree={"!": "ndarray", "name": "w", "dtype": "O", "shape": [3]}),
    "tree with an unhashable key": lambda b: b.update(tree={"!": "dict", "items": [[[], 1]]}),
    "tree with a key twice": lambda b: b.update(tree={"!": "dict", "items": [[1, 1], [1, 2]]}),
    "tree with an attribute of torch": lambda b: b.update(tree={"!": "torch.dtype", "name": "load"}),
    "tree with a device of nobody": lambda b: b.update(tree={"!": "torch.device", "name": "rm -rf"}),
    "tree with a set of one hash": lambda b: b.update(tree={"!": "set", "items": alike(101)}),
    "tree with a dict of one hash": lambda b: b.update(tree={"!": "dict", "items": [[key, 1] for key in alike(101)]}),
    "tree with a count of one hash": lambda b: b.update(
        tree={"!": "Counter", "items": [[key, 1] for key in alike(101)]}
    ),
    "tree with frozensets of frozensets of one hash": lambda b: b.update(tree={"!": "set", "items": nested(10)}),
    "tree with a tuple of frozensets as a key": lambda b: b.update(
        tree={"!": "dict", "items": [[{"!": "tuple", "items": nested(10)}, 1]]}
    ),
    "tree with bits missing": lambda b: b.update(tree={"!": "float", "bits": "00"}),
}


@pytest.fixture
def little_memory() -> Iterator[None]:
    """An allocation of what the manifests promise would fail here, rather than fill the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Watched(CutAfter):
    """Notes every key that is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(open_storage(folder), 10**6)
        self.read: list[str] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.read.append(key)
        return self.inner.get(key, start, length)


@pytest.mark.usefixtures("little_memory")
def test_a_giant_where_a_manifest_or_a_claim_belongs_is_passed_over(tmp_path: Path) -> None:
    """A sparse file of 200 GB costs nothing to make, and reading it whole ends every load for good."""
    lines: list[str] = []
    with Checkpointer(tmp_path, log=lines.append) as runs:
        w = torch.ones(3)
        commits = [runs.save(step, {"w": step * w}) for step in (1, 2)]
        for key in (commits[1].id.manifest_key, "claims/00000001.json"):
            (tmp_path / key).chmod(0o600)
            os.truncate(tmp_path / key, 200 * 2**30)
    with Checkpointer(tmp_path, log=lines.append) as runs:
        assert runs.load({"w": w}) == 1
        assert w.tolist() == [1, 1, 1]
        assert [commit.step for commit in runs.list()] == [1]
    told = [line for line in lines if "214,748,364,800 bytes" in line]
    assert any("manifest commits/c00000001.s000000002" in line for line in told)
    assert any("claim claims/00000001.json" in line for line in told)


def test_a_manifest_that_no_reader_would_take_is_not_committed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(writer, "MANIFEST_BYTES_MAX", 1000)
    with Checkpointer(tmp_path) as runs:
        assert runs.save(1, {"w": torch.ones(3)}).step == 1
        with pytest.raises(CheckpointError, match="readers take at most 1,000"):
            runs.save(2, {"w": torch.ones(3), "note": "x" * 1000})
        assert [commit.step for commit in runs.list()] == [1]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.usefixtures("little_memory")
def test_a_hostile_manifest_is_refused_and_the_one_before_is_used(
    name: str, tmp_path: Path, checkpointer: Callable[..., Checkpointer]
) -> None:
    runs = checkpointer(tmp_path)
    runs.save(1, {"w": torch.ones(2, 3)})
    commit = runs.save(2, {"w": torch.ones(2, 3)})
    path = tmp_path / commit.id.manifest_key
    body = unseal(path.read_bytes(), "manifest")
    CHANGES[name](body)
    path.write_bytes(seal(body))

    watched = Watched(tmp_path)
    reader = checkpointer(watched)
    with pytest.raises(CorruptCheckpoint) as caught:
        reader.read(step=2)
    assert caught.value.commit == commit.name
    assert set(watched.read) <= {"claims/00000001.json", commit.id.manifest_key, commit.id.shard_key(0)}
    assert reader.read().step == 1


@pytest.mark.parametrize("text", [b"", b"{}", b"[" * 100_000, b'{"xxh3_128":"', b"\xff" * 100])
def test_a_manifest_that_is_no_document_is_refused(
    text: bytes, tmp_path: Path, checkpointer: Callable[..., Checkpointer]
) -> None:
    runs = checkpointer(tmp_path)
    commit = runs.save(1, {})
    (tmp_path / commit.id.manifest_key).write_bytes(text)
    with pytest.raises(CorruptCheckpoint):
        runs.read(step=1)
    assert runs.latest() is None


def test_deep_nesting_with_a_right_hash_is_refused() -> None:
    deep = b'{"xxh3_128":"%s","body":{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}}"
    from elastic_checkpoint.format.hashing import xxh3

    content = deep[deep.index(b'"body":') + 7 : -1]
    with pytest.raises(CorruptCheckpoint, match="no JSON"):
        unseal(deep.replace(b"%s", xxh3(content).encode(), 1), "it")
    with pytest.raises(CorruptCheckpoint, match="levels deep"):
        decode(json.loads("[" * 500 + "]" * 500), {})


def test_a_format_of_the_future_is_not_passed_over_in_silence(
    tmp_path: Path, checkpointer: Callable[..., Checkpointer]
) -> None:
    """Taking an older checkpoint instead would throw work away because of an old installation."""
    runs = checkpointer(tmp_path)
    runs.save(1, {"at": 1})
    path = tmp_path / runs.save(2, {"at": 2}).id.manifest_key
    path.write_bytes(seal({**unseal(path.read_bytes(), "manifest"), "format": 4}))
    with pytest.raises(CheckpointError, match="newer one") as caught:
        runs.read()
    assert not isinstance(caught.value, CorruptCheckpoint)


@pytest.mark.parametrize(
    "body", [{}, {"resumed_from": 3}, {"resumed_from": {"claim": 9, "step": 1, "nonce": "0" * 20}}]
)
def test_a_hostile_claim_does_not_stop_the_run(
    body: dict[str, Any], tmp_path: Path, checkpointer: Callable[..., Checkpointer]
) -> None:
    with checkpointer(tmp_path) as runs:
        runs.save(1, {"at": 1})
    (tmp_path / "claims" / "00000002.json").write_bytes(seal(body))
    again = checkpointer(tmp_path, grace_s=0)
    assert again.save(2, {"at": 2}).claim == 3
    assert [commit.step for commit in again.list()] == [2, 1]


def boxes(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]], shape: tuple[int, ...]) -> dict[str, Any]:
    """A manifest's body whose only tensor, of bytes, consists of these (offsets, sizes), one after another."""
    starts = list(itertools.accumulate((math.prod(sizes) for _, sizes in pieces), initial=0))
    entries = [
        {"object": 0, "start": start, "offsets": list(offsets), "sizes": list(sizes)}
        for start, (offsets, sizes) in zip(starts, pieces, strict=False)
    ]
    id, hash = CommitId(1, 2, "0" * 20), "0" * 32
    return {
        "format": 1, **id._asdict(), "saved_at": 0, "resumed_from": None, "meta": {}, "tree": None,
        "objects": [{"size": starts[-1], "chunk_bytes": 2**62 - 1, "xxh3_128": hash, "chunks": [hash]}],
        "tensors": {"w": {"dtype": "uint8", "shape": list(shape), "pieces": entries}},
    }  # fmt: skip


def judged(pieces: list[tuple[tuple[int, ...], tuple[int, ...]]], shape: tuple[int, ...]) -> bool:
    """Whether a manifest of these boxes is taken. Their bytes add up, so that only their places can be wrong."""
    refused = ""
    try:
        parse(seal(boxes(pieces, shape)), CommitId(1, 2, "0" * 20))
    except CorruptCheckpoint as error:
        refused = str(error)
    assert "overlap" in refused or not refused
    return not refused


def work(act: Callable[[], object]) -> int:
    """How many lines of Python it executes."""
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(None)
    return lines


def pinwheel() -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Five rectangles in a 3 by 3 square that no straight cut parts."""
    return [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))]


def test_any_tiling_is_taken_and_nothing_else() -> None:
    assert judged(pinwheel(), (3, 3))
    assert judged([((0,) * 64, (2, *(1,) * 63)), ((2, *(0,) * 63), (1,) * 64)], (3, *(1,) * 63))
    assert not judged([*pinwheel()[:4], ((0, 0), (1, 1))], (3, 3))
    assert not judged([((0, 0), (1, 2)), ((0, 0), (2, 1))], (2, 2))  # one too often, one never


@pytest.mark.parametrize(
    "form",
    [
        {"state": {}, "param_groups": 5},
        {"state": {}, "param_groups": [5]},
        {"state": {}, "param_groups": [{}]},
        {"state": {}, "param_groups": [{"params": 1.5}]},
        {"state": {}, "param_groups": [{"params": [[], []]}]},
        {"state": 1, "param_groups": [{"params": [0, 1]}]},
        {"state": [], "param_groups": "ab"},
    ],
    ids=str,
)
def test_what_is_no_optimizers_state_is_named(
    form: dict[str, Any], tmp_path: Path, checkpointer: Callable[..., Checkpointer]
) -> None:
    """They were raw errors of whatever was asked of them."""
    runs, model = checkpointer(tmp_path), torch.nn.Linear(2, 1)
    runs.save(1, {"o": form})
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(StateMismatch, match="o: saved a dict that is no optimizer's state"):
        runs.load({"o": optimizer})
