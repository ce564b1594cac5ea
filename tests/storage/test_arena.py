"""An arena holds byte for byte what the foreground would have written; too little memory is an error."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic_checkpoint.format.tensors import DTYPES, pack, writable_bytes
from elastic_checkpoint.memory import GroupLimit, group_limits
from elastic_checkpoint.runs.claim_record import Claim
from elastic_checkpoint.save import arena as arenas
from elastic_checkpoint.save.arena import HALVES, PAGE, Arena, AttachedArena, NoRoom, offsets
from elastic_checkpoint.save.planner import Planner, Save
from elastic_checkpoint.save.staging import Stage

CLAIM = Claim(1, "nonce", None, None, None, None, 0.0)


def every_kind_of_tensor() -> dict[str, torch.Tensor]:
    """All dtypes with random bits (truth values aside), and every way in which a tensor can lie in memory."""
    found = {}
    for name, dtype in DTYPES.items():
        flat = torch.empty(24, dtype=dtype)
        values = 2 if dtype is torch.bool else 256
        writable_bytes(flat)[:] = torch.randint(0, values, (flat.nbytes,), dtype=torch.uint8).numpy()
        found[name] = flat.reshape(2, 3, 4)
        found[f"{name} transposed"] = found[name].transpose(0, 2)
    complex_one = torch.randn(40, dtype=torch.complex64)
    return found | {
        "conjugate": complex_one.conj(),
        "negative": complex_one.conj().imag,
        "every other": torch.arange(100)[::2],
        "expanded": torch.arange(3.0).expand(5, 3),
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "middle of another": torch.arange(1000.0)[77:300],
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.5),
        "wide": torch.randn(40, 30),
        "wide and strided": torch.randn(30, 40).t(),
    }


def planned(planner: Planner, state: dict[str, Any]) -> Save:
    return planner.save(claim=CLAIM, step=1, state=state, meta={}, now_s=1.0)


@pytest.mark.parametrize("shard_bytes", [16, 500, 10**6])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_half_holds_exactly_the_files_of_the_foreground(
    shard_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every dtype, layout and cut, and every bit: NaNs have payloads."""
    monkeypatch.setattr("elastic_checkpoint.save.staging._WORTH_THREADS_BYTES", 1)
    state = every_kind_of_tensor()
    save = planned(Planner(shard_bytes), state)
    expected = [bytes(pack(shard, save.tensors, bytearray(shard.size))) for shard in save.plan.shards]
    arena = Arena(offsets(save.plan.sizes)[-1] + 4 * PAGE)
    arena.touch()
    stage = Stage(save.plan, arena, pinned=False, threads=threads)
    texts = [b"first", b"second" * 900]
    for half in range(HALVES):
        stage.copy(half, save.tensors, texts)
    for tensor in state.values():
        torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(0)  # the state may change now

    attached = AttachedArena(arena.fd, arena.half_bytes)
    for half in range(HALVES):
        found = attached.read(half, [*save.plan.sizes, *map(len, texts)])
        assert [bytes(file) for file in found] == [*expected, *texts]
    arena.close()


def test_closing_returns_memory_and_descriptor() -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("checkpoint-arena")

    before = held()
    arena = Arena(10 * PAGE)
    arena.touch()
    assert held() == (before[0] + 1, before[1] + 1)
    arena.close()
    arena.close()
    del arena
    assert held() == before


def test_a_forked_child_has_neither_the_memory_nor_the_descriptor() -> None:
    """A data loader's worker would keep what is given back here, and its end would unmap what is not its own."""
    arena = Arena(10 * PAGE)
    arena.touch()
    child = os.fork()
    if child == 0:
        clean = True
        with contextlib.suppress(OSError):
            os.fstat(arena.fd)
            clean = False
        clean = clean and "checkpoint-arena" not in Path("/proc/self/maps").read_text()
        mine = mmap.mmap(-1, 20 * PAGE)  # may lie where the arena does in the parent
        del arena
        mine[:] = b"x" * 20 * PAGE
        os._exit(0 if clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    arena.touch()
    arena.close()


def test_more_than_is_free_is_refused_with_the_bytes_that_it_takes() -> None:
    """It would otherwise be the kernel's OOM killer that says so."""
    with pytest.raises(NoRoom, match=f"{2 * 2**50:,} bytes of memory are needed"):
        Arena(2**50)
    assert 0 < arenas.free_bytes() < 2**50


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_of_either_version_bounds_what_is_free(tmp_path: Path, version: int) -> None:
    """That of its parent, where it has none of its own. As the kernel writes them."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    most, used, cached = names[version]
    groups = {1: "5:cpu:/\n4:memory:/pod/one\n0::/\n", 2: "0::/pod/one\n"}
    root = tmp_path / "sys/fs/cgroup" / ("memory" if version == 1 else "")
    none = {1: "9223372036854771712", 2: "max"}[version]
    for folder, limit in ((root / "pod/one", none), (root / "pod", str(2**30)), (root, none)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / most).write_text(f"{limit}\n")
        (folder / used).write_text(f"{2**29}\n")
        (folder / "memory.stat").write_text(f"cache 7\n{cached} {2**20}\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups[version])

    assert group_limits(tmp_path) == [GroupLimit(2**30, 2**29 - 2**20)]


def test_memory_that_the_kernel_refuses_is_an_error_and_no_signal() -> None:
    """The limit on file sizes stands in for a full /dev/shm: posix_fallocate fails before a page is touched."""
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n"
        "from elastic_checkpoint.save.arena import Arena, NoRoom\n"
        "try: Arena(2**21)\n"
        "except NoRoom as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"{2**22:,} bytes of shared memory are needed: [Errno 27]")
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
