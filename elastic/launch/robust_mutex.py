"""A mutex in memory that two processes share, which the kernel gives back when the thread that holds it ends.

It does so as the first thing of a process's end (robust_list in futex(2), pthread_mutexattr_setrobust(3)): before the
process's memory is taken apart, its connections are closed, and its parent is told.
Where the C library has no such mutex nobody holds one, and nobody waits for it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from functools import cache

BYTES = 64
_HELD_AT = 56  # where the mutex, 40 or 48 bytes, has ended
_SHARED = _ROBUST = 1
_ATTRIBUTE_BYTES = 64  # at most; 4 in glibc
_HELD: list[RobustMutex] = []  # whose memory stays mapped


@cache
def _library() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None)
    return library if hasattr(library, "pthread_mutexattr_setrobust") else None


class RobustMutex:
    """In this process. fd: of the memory, which has BYTES from `at` on"""

    def __init__(self, fd: int, at: int) -> None:
        self._memory = mmap.mmap(fd, at + BYTES)
        self._at = at
        self._held = ctypes.c_uint32.from_buffer(self._memory, at + _HELD_AT)
        self._mutex = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._memory, at)))

    @classmethod
    def make(cls, fd: int, at: int) -> RobustMutex:
        """The memory, which is zeros, becomes one that nobody holds."""
        made = cls(fd, at)
        if (library := _library()) is not None:
            attribute = ctypes.create_string_buffer(_ATTRIBUTE_BYTES)
            library.pthread_mutexattr_init(attribute)
            library.pthread_mutexattr_setpshared(attribute, _SHARED)
            library.pthread_mutexattr_setrobust(attribute, _ROBUST)
            library.pthread_mutex_init(made._mutex, attribute)
        return made

    @property
    def is_held(self) -> bool:
        """Some thread has come to hold it; it may have ended since."""
        return bool(self._held.value)

    def hold(self) -> None:
        """By this thread, to its end. Waits for nobody."""
        if (library := _library()) is not None and library.pthread_mutex_trylock(self._mutex) == 0:
            self._held.value = 1

    def wait(self) -> None:
        """Until the thread that holds it has ended, or its process has become another program. Only while somebody
        holds it: else this thread would."""
        library = _library()
        assert library is not None, "somebody holds it"
        library.pthread_mutex_lock(self._mutex)


def hold(fd: int, at: int) -> None:
    """By this thread, to the end of this process."""
    if os.fstat(fd).st_size >= at + BYTES:
        _HELD.append(RobustMutex(fd, at))
        _HELD[-1].hold()
