"""Memory: how much there is, files that are mapped into it, and which files may be."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from elastic_checkpoint.linux import mounts

POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14: what cannot be read is an error here, and no SIGBUS later

# Where a file's bytes are this machine's own, so that nobody else takes them away between two looks at them.
_LOCAL = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "tmpfs", "ramfs", "overlay"}

# What a control group calls its limit, its use, and of that what the kernel would give up: second version, or first.
_OF_VERSION = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_NO_LIMIT = 2**62  # the first version's word for none is a number

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _madvise = _libc.mmap, _libc.munmap, _libc.madvise
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


def mapped(fd: int, size: int, flags: int, advice: int) -> Any:
    """Return the file's first bytes, to read and to write, as a ctypes array; unmapped when nothing refers to it.

    flags, advice  of mmap(2) and madvise(2). Python's mmap would keep a descriptor of its own for each, and unmap in a
                   forked child what is not the child's
    Raises OSError.
    """
    address = _mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == _FAILED:
        raise _error()
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _unmap, address, size, os.getpid()).atexit = False
    if _madvise(address, size, advice):
        raise _error()
    return memory


def on_this_machine(fd: int) -> bool:
    """Return whether the file lies on a filesystem of this machine, as far as its mounts say."""
    device = os.fstat(fd).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        kinds = {mount.kind for mount in mounts() if mount.device == wanted}
    except OSError:
        return False
    return bool(kinds) and kinds <= _LOCAL


def free_bytes() -> int:
    """Return how much memory can still be had: of the machine, and of the control groups that this process is in."""
    found = {line.split(":")[0]: line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines()}
    free = int(found["MemAvailable"]) * 1024
    return max(0, min([free, *(limit.most - limit.used for limit in group_limits())]))


class GroupLimit(NamedTuple):
    """A control group's limit of memory, in bytes; used: without what the kernel would give up for more."""

    most: int
    used: int


def group_limits(filesystem: Path = Path("/")) -> list[GroupLimit]:
    """Return those that the control groups of this process have, of either version, from its own up to the root.

    filesystem  its root, for tests
    """
    found = []
    for number, controllers, path in control_groups(filesystem):
        if number != "0" and "memory" not in controllers.split(","):
            continue
        most, used, cached = _OF_VERSION[number == "0"]
        root = filesystem / "sys/fs/cgroup" / ("" if number == "0" else "memory")
        own = root / path.strip("/")
        for folder in [own, *(parent for parent in own.parents if parent.is_relative_to(root))]:
            try:
                bytes_max = (folder / most).read_text().strip()
                bytes_used = int((folder / used).read_text())
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                if bytes_max != "max" and int(bytes_max) < _NO_LIMIT:
                    found.append(GroupLimit(int(bytes_max), bytes_used - int(stat[cached])))
            except (OSError, ValueError, KeyError):
                continue  # the root group, or one without a memory controller
    return found


def control_groups(filesystem: Path = Path("/")) -> list[tuple[str, str, str]]:
    """Return (hierarchy, controllers, path) of each control group of this process; hierarchy 0 is the second version's.

    filesystem  its root, for tests
    """
    try:
        lines = (filesystem / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(parts[0], parts[1], parts[2]) for line in lines if len(parts := line.split(":", 2)) == 3]


def _unmap(address: int, size: int, pid: int) -> None:
    if os.getpid() == pid:
        _munmap(address, size)


def _error() -> OSError:
    error = ctypes.get_errno()
    return OSError(error, os.strerror(error))
