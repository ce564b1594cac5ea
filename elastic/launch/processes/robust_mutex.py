"""A mutex in memory that two processes share, which the kernel gives back when the thread that holds it ends.

It does so as the first thing of a process's end (robust_list in futex(2), pthread_mutexattr_setrobust(3)): before the
process's memory is taken apart, its connections are closed, and its parent is told.
Where the C library has no such mutex nobody holds one, and nobody waits for it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from functools import cache

BYTES = 64
_USABLE_AT, _HELD_AT = 56, 60  # where the mutex, 40 or 48 bytes, has ended
_SHARED = _ROBUST = 1
_FAILED = ctypes.c_void_p(-1).value
_ATTRIBUTE_BYTES = 64  # at most; 4 in glibc
_HELD: list[RobustMutex] = []  # whose memory stays mapped


@cache
def _c() -> ctypes.CDLL:
    """Return the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    size, number, offset = ctypes.c_size_t, ctypes.c_int, ctypes.c_long
    library.mmap.argtypes = (ctypes.c_void_p, size, number, number, number, offset)
    return library


def _library() -> ctypes.CDLL | None:
    """Return the C library if it has such a mutex."""
    return _c() if hasattr(_c(), "pthread_mutexattr_setrobust") else None


def _map(fd: int, length: int) -> int:
    """Map the memory, and return its address; mmap.mmap would keep a descriptor of its own as long as it is there."""
    address: int | None = _c().mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), "no memory can be shared")
    return address


class RobustMutex:
    """The mutex as this process has it; fd: of the memory, which has BYTES from `at` on."""

    def __init__(self, fd: int, at: int) -> None:
        begin = _map(fd, at + BYTES)
        unmap = weakref.finalize(self, _c().munmap, ctypes.c_void_p(begin), ctypes.c_size_t(at + BYTES))
        unmap.atexit = False  # who holds it does so to the last
        self._can_be_held = ctypes.c_uint32.from_address(begin + at + _USABLE_AT)
        self._held = ctypes.c_uint32.from_address(begin + at + _HELD_AT)
        self._mutex = ctypes.c_void_p(begin + at)

    @classmethod
    def make(cls, fd: int, at: int) -> RobustMutex:
        """Make the memory, which is zeros, one that nobody holds."""
        made = cls(fd, at)
        if (library := _library()) is not None:
            attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
            failed = (
                library.pthread_mutexattr_init(attribute)
                or library.pthread_mutexattr_setpshared(attribute, _SHARED)
                or library.pthread_mutexattr_setrobust(attribute, _ROBUST)
                or library.pthread_mutex_init(made._mutex, attribute)
            )
            made._can_be_held.value = 0 if failed else 1
        return made

    @property
    def is_held(self) -> bool:
        """Return whether some thread has come to hold it; it may have ended since."""
        return bool(self._held.value)

    def hold(self) -> None:
        """Hold it by this thread, to its end; wait for nobody."""
        library = _library()
        if library is not None and self._can_be_held.value and library.pthread_mutex_trylock(self._mutex) == 0:
            self._held.value = 1

    def wait(self) -> None:
        """Wait until the thread that holds it has ended, or its process is another program; only while it is held."""
        library = _library()
        assert library is not None, "somebody holds it"
        library.pthread_mutex_lock(self._mutex)  # where nobody held it, this thread would
        library.pthread_mutex_unlock(self._mutex)  # or this thread's end would be another one to give it back


def hold(fd: int, at: int) -> None:
    """Hold the mutex in this memory by this thread, to the end of this process."""
    if os.fstat(fd).st_size >= at + BYTES:
        _HELD.append(RobustMutex(fd, at))
        _HELD[-1].hold()
