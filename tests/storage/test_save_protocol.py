"""A save is whole or invisible, whatever is cut or damaged, and whenever."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from elastic_checkpoint import Checkpointer, CorruptCheckpoint, NoCheckpoint, digest
from elastic_checkpoint.format.shards import cut as cut_boxes
from elastic_checkpoint.storage import open_storage
from tests.storage.cut import CutAfter, PowerCut

Make = Callable[..., Checkpointer]


def state(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {"w": torch.randn(40, 3, generator=generator), "b": torch.randn(5, generator=generator)},
        "at": seed,
    }


def operations_of_a_save(folder: Path) -> int:
    """How many storage operations a claim, a save and its sweep take, the first save having been made."""
    disk = CutAfter(open_storage(folder), 10**6)
    Checkpointer(disk, shard_bytes=200, take_over=True).save(2, state(2))
    return 10**6 - disk.left


def test_what_was_saved_is_read_back_from_every_kind_of_storage(
    location: tuple[str, dict[str, Any]], checkpointer: Make
) -> None:
    url, options = location
    saved = checkpointer(url, storage_options=options, shard_bytes=200)
    commit = saved.save(3, state(1), meta={"epoch": 2, "loss": float("inf")})
    found = checkpointer(url, storage_options=options).read()

    assert found.step == commit.step == 3
    assert found.commit == commit == saved.latest() == saved.list()[0]
    assert commit.objects > 1
    assert found.meta == {"epoch": 2, "loss": float("inf")}
    assert found.tree["at"] == 1
    assert digest(found.tree) == digest(state(1))


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_save_cut_short_anywhere_leaves_the_previous_checkpoint_newest(
    tmp_path: Path, late: bool, checkpointer: Make
) -> None:
    """Cut at each storage operation in turn, just before it and just after it: old or new, never a mix."""
    checkpointer(tmp_path / "count", keep=2).save(1, state(1))
    total = operations_of_a_save(tmp_path / "count")
    assert total > 12
    newest = Counter[int]()
    for operations in range(total):
        folder = tmp_path / str(operations)
        first = checkpointer(folder, keep=2)
        first.save(1, state(1))
        first.close()
        disk = CutAfter(open_storage(folder), operations, late=late)
        second = checkpointer(disk, shard_bytes=200)
        with pytest.raises(PowerCut):
            second.save(2, state(2))
        second.close()

        reader = checkpointer(folder)
        found = reader.read()
        assert digest(found.tree) == digest(state(found.step))
        assert all(one.ok for one in reader.verify())
        newest[found.step] += 1

        again = checkpointer(folder)
        again.save(3, state(3))
        assert again.read().step == 3
    assert newest[1] > 8  # the manifest is late
    assert newest[2] > 0  # sweeping comes after it


def test_an_interrupted_save_leaves_no_temporary_file_for_ever(tmp_path: Path, checkpointer: Make) -> None:
    checkpointer(tmp_path).save(1, state(1))
    saved = checkpointer(tmp_path, orphan_grace_s=0, take_over=True)
    saved.claim()
    left = tmp_path / "data" / ".00000.safetensors.0123456789ab.tmp"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))  # long ago: what is younger may belong to a save under way
    (tmp_path / "data" / "c00000001" / "s000000009-01a1fd3aea076c4d9fdc").mkdir()
    orphan = tmp_path / "data" / "c00000001" / "s000000009-01a1fd3aea076c4d9fdc" / "00000.safetensors"
    orphan.write_bytes(b"no manifest names it")

    assert list(saved.sweep()) == [
        "c00000001.s000000009-01a1fd3aea076c4d9fdc",
        "data/.00000.safetensors.0123456789ab.tmp",
    ]
    assert not left.exists()
    assert not orphan.parent.exists()


def test_the_newest_few_are_kept_and_older_ones_go(tmp_path: Path, checkpointer: Make) -> None:
    saved = checkpointer(tmp_path, keep=1)  # fewer than two would leave nothing to fall back to
    for step in range(5):
        saved.save(step, state(step))

    assert [commit.step for commit in saved.list()] == [4, 3]
    assert len(list((tmp_path / "data" / "c00000001").iterdir())) == 2


def test_a_checkpoint_whose_data_is_gone_does_not_count_as_kept(tmp_path: Path, checkpointer: Make) -> None:
    saved = checkpointer(tmp_path, keep=2)
    commits = [saved.save(step, state(step)) for step in range(2)]
    next((tmp_path / "data").rglob(f"*{commits[1].nonce}/*")).unlink()
    saved.save(2, state(2))

    assert [commit.step for commit in saved.list()] == [2, 1, 0]
    assert saved.read().step == 2


@pytest.mark.parametrize("kind", ["manifest", "shard"])
def test_one_flipped_byte_is_named_and_the_checkpoint_before_is_used(
    tmp_path: Path, kind: str, checkpointer: Make
) -> None:
    """Every 37th byte and both ends, one at a time, with three different bits."""
    lines: list[str] = []
    saved = checkpointer(tmp_path, log=lines.append)
    saved.save(1, state(1))
    commit = saved.save(2, state(2))
    where = "commits" if kind == "manifest" else "data"
    [path] = [p for p in (tmp_path / where).rglob(f"*{commit.nonce}*") if p.is_file()] or list(
        (tmp_path / where).rglob(f"*{commit.nonce}/*")
    )
    whole = path.read_bytes()
    for position in sorted({*range(0, len(whole), 37), len(whole) - 1}):
        bad = bytearray(whole)
        bad[position] ^= 1 << (position % 8)
        path.write_bytes(bad)
        lines.clear()

        found = saved.read()
        assert found.step == 1
        assert digest(found.tree) == digest(state(1))
        assert any(commit.name in line and "passed over" in line for line in lines)
        with pytest.raises(CorruptCheckpoint) as caught:
            saved.read(step=2)
        assert caught.value.commit == commit.name
        if kind == "shard":
            assert set(caught.value.tensors) == {"model.w", "model.b"}
            assert str(caught.value.key) in str(caught.value)
        assert [one.ok for one in saved.verify()] == [False, True]
    path.write_bytes(whole)
    assert saved.read().step == 2


@pytest.mark.parametrize("change", ["short", "long", "absent"])
def test_an_object_of_another_size_is_refused_before_anything_is_read(
    tmp_path: Path, change: str, checkpointer: Make
) -> None:
    saved = checkpointer(tmp_path)
    saved.save(1, state(1))
    saved.save(2, state(2))
    [path] = (tmp_path / "data" / "c00000001").glob("s000000002-*/*")
    data = path.read_bytes()
    path.unlink()
    if change != "absent":
        path.write_bytes(data[:-1] if change == "short" else data + b"x")
    assert saved.read().step == 1


def test_a_flipped_byte_in_a_claim_costs_nothing(tmp_path: Path, checkpointer: Make) -> None:
    """Its commits repeat what it resumed from."""
    for step in (1, 2):
        with checkpointer(tmp_path) as saved:
            saved.save(step, state(step))
    claim = tmp_path / "claims" / "00000002.json"
    data = bytearray(claim.read_bytes())
    data[60] ^= 4
    claim.write_bytes(data)

    reader = checkpointer(tmp_path)
    assert [commit.step for commit in reader.list()] == [2, 1]
    assert reader.claim().number == 3
    assert reader.read().step == 2


def test_when_nothing_is_whole_every_reason_is_given(tmp_path: Path, checkpointer: Make) -> None:
    saved = checkpointer(tmp_path)
    with pytest.raises(NoCheckpoint, match="start from the beginning"):
        saved.read()
    names = [saved.save(step, state(step)).name for step in (1, 2)]
    for path in (tmp_path / "data").rglob("*.safetensors"):
        path.write_bytes(b"")
    with pytest.raises(NoCheckpoint) as caught:
        saved.read()
    assert set(caught.value.rejected) == set(names)
    assert all(name in str(caught.value) for name in names)
    with pytest.raises(NoCheckpoint, match="no checkpoint of step 9"):
        saved.read(step=9)


def test_shards_are_safetensors_files_that_any_tool_reads(tmp_path: Path, checkpointer: Make) -> None:
    tree = {
        "w": torch.randn(10, 7),
        "half": torch.randn(3).bfloat16(),
        "n": torch.tensor(3),
        "c": torch.randn(2, dtype=torch.complex128),
    }
    checkpointer(tmp_path, shard_bytes=64).save(1, tree)
    found: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "data").rglob("*.safetensors"):
        with safetensors.safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict

    assert torch.equal(found["n@0"], tree["n"])
    assert torch.equal(found["half@0"], tree["half"])
    assert torch.equal(torch.cat([found[f"w@{row},0"] for row in range(0, 10, 2)]), tree["w"])
    assert torch.equal(found["c@0"].reshape(-1).view(torch.complex128), tree["c"])


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (0, 4), (1, 1, 9)])
@pytest.mark.parametrize("limit", [1, 4, 8, 24, 1000])
def test_cut_boxes_tile_a_tensor_in_order(shape: tuple[int, ...], limit: int) -> None:
    tensor = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
    pieces = []
    for offsets, sizes in cut_boxes(shape, 4, limit):
        box = tensor[tuple(slice(o, o + s) for o, s in zip(offsets, sizes, strict=True))]
        assert box.is_contiguous()
        assert box.nbytes <= max(limit, 4)
        pieces += box.reshape(-1).tolist()
    assert pieces == tensor.reshape(-1).tolist()
