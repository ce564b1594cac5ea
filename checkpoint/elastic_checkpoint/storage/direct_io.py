"""Writes around the page cache (O_DIRECT), where the filesystem can do that and the bytes begin at a page of memory."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

DIRECT_BYTES_MIN = 2**20


_DIRECT_WRITE_BYTES = 2**25  # in one call; its pages are pinned meanwhile


def is_aligned(content: memoryview) -> bool:
    """Return whether the bytes are worth a write around the page cache, which takes whole pages of memory only."""
    if len(content) < DIRECT_BYTES_MIN:
        return False
    import numpy as np  # only large objects need it: a writer process begins in two thirds of the time

    address: int = np.frombuffer(content, np.uint8).ctypes.data
    return address % mmap.PAGESIZE == 0


def create(path: Path, *, direct: bool) -> int:
    """Create a new file to write to; directly, where the filesystem can."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    if direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)  # some create it first, and refuse then
    return os.open(path, flags, 0o666)


def write_all(file: int, content: memoryview) -> None:
    """Write all of it: whole pages as the file was opened, and through the page cache what cannot go around it."""
    direct = bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT)
    while len(content):
        whole = min(len(content) // mmap.PAGESIZE * mmap.PAGESIZE, _DIRECT_WRITE_BYTES)
        if direct and not whole:
            direct = _through_cache(file)
        try:
            written = os.write(file, content[:whole] if direct else content)
        except OSError as error:
            if not direct or error.errno != errno.EINVAL:
                raise
            direct = _through_cache(file)  # a device of larger blocks than pages
            continue
        content = content[written:]
        if direct and written % mmap.PAGESIZE:
            direct = _through_cache(file)  # cut short, by a full disk; the next write says it


def _through_cache(file: int) -> bool:
    """Write to this file through the page cache from now on; return False: it is not direct any more."""
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_DIRECT)
    return False
