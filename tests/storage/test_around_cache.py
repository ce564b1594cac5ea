"""Large objects in a folder go around the page cache, and are mapped when read: every byte, on any filesystem."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from elastic_checkpoint import Checkpointer
from elastic_checkpoint.storage.local import LocalStorage

MIB = 2**20
SIZES = (MIB - 1, MIB, MIB + 1, MIB + mmap.PAGESIZE, 33 * MIB + 513, 64 * MIB)
SMALL_DISK_BYTES = 8 * MIB

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")


def aligned(size: int) -> memoryview:
    """Random bytes at the start of a page."""
    memory = memoryview(mmap.mmap(-1, size))
    memory[:] = os.urandom(size)
    return memory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where O_DIRECT is to be had."""
    path = tmp_path / "run"
    path.mkdir()
    try:
        os.close(os.open(path / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this filesystem has no O_DIRECT")
    (path / "probe").unlink()
    return path


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A filesystem of its own: the arguments of mount."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", *request.param, "disk", path], check=True, timeout=30)
    yield path
    subprocess.run(["umount", path], check=True, timeout=30)


def cached_pages(path: Path) -> int:
    """How much of the file the page cache holds."""
    size = path.stat().st_size
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as mapped:
        memory = np.frombuffer(mapped, np.uint8)
        found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(size), found) == 0
        del memory
    return sum(page & 1 for page in found)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 1], ids=["page", "odd"])
def test_any_size_from_any_address_is_written_whole(folder: Path, size: int, offset: int) -> None:
    storage = LocalStorage(folder)
    data = aligned(size + offset)[offset:]
    storage.put("objects/1", data)
    assert (folder / "objects/1").read_bytes() == data
    assert storage.get("objects/1") == data
    assert [path.name for path in (folder / "objects").iterdir()] == ["1"]


def test_what_is_written_leaves_the_page_cache_to_others(folder: Path) -> None:
    storage = LocalStorage(folder)
    storage.put("direct", aligned(32 * MIB + 5))
    storage.put("through", aligned(32 * MIB + 1)[1:])
    assert cached_pages(folder / "direct") <= 1
    assert cached_pages(folder / "through") >= 32 * MIB // mmap.PAGESIZE


@as_root
@pytest.mark.parametrize("disk", [["-t", "ramfs"]], indirect=True)
def test_a_filesystem_may_refuse_direct_writes(disk: Path) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        os.open(disk / "probe", os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
    data = aligned(3 * MIB + 7)
    LocalStorage(disk / "run").put("1", data)
    assert (disk / "run/1").read_bytes() == data
    assert [path.name for path in (disk / "run").iterdir()] == ["1"]


@as_root
@pytest.mark.parametrize("disk", [["-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}"]], indirect=True)
def test_a_full_disk_is_said_and_leaves_nothing(disk: Path) -> None:
    storage = LocalStorage(disk)
    with pytest.raises(OSError, match="No space left"):
        storage.put("1", aligned(2 * SMALL_DISK_BYTES))
    assert list(disk.iterdir()) == []
    storage.put("2", aligned(MIB))
    assert storage.size("2") == MIB


def test_a_mapped_object_can_be_written_to_and_stays_as_it_was_in_storage(folder: Path) -> None:
    storage = LocalStorage(folder)
    data = bytes(aligned(2 * MIB))
    storage.put("1", data)
    mapped = storage.map("1")
    assert mapped is not None
    assert mapped == data
    mapped[:4] = b"mine"
    assert storage.get("1") == data
    storage.delete("1")
    assert mapped[4:] == data[4:], "a sweep takes nothing from those who read"


def test_a_loaded_state_has_memory_of_its_own(folder: Path) -> None:
    """Files are mapped while they are loaded; what was loaded outlives them, and changing it changes no file."""
    weights = torch.randn(2 * MIB)
    model, optimizer = torch.nn.Linear(2048, 1024), {"momentum": weights.clone()}
    with Checkpointer(folder) as checkpoints:
        checkpoints.save(1, {"model": model, "optimizer": optimizer})
        saved = {name: value.clone() for name, value in model.state_dict().items()}
        for _ in range(2):
            torch.nn.init.zeros_(model.weight)
            optimizer["momentum"].zero_()
            assert checkpoints.load({"model": model, "optimizer": optimizer}) == 1
            assert torch.equal(optimizer["momentum"], weights)
            assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
        read = checkpoints.read().tree["optimizer"]["momentum"]
        read.zero_()
        assert not any(".safetensors" in line for line in Path("/proc/self/maps").read_text().splitlines())
        assert torch.equal(checkpoints.read().tree["optimizer"]["momentum"], weights)
