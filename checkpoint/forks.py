"""What a forked child must not keep: its parent's sockets and memory files are closed in it at once.

A data loader's worker outlives the process that it belongs to for a while. A connection or a port that it held open
would pass for that process, and memory that was given back would not be free.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class OfOneProcess(Protocol):
    def close_in_child(self) -> None:
        """Closes descriptors, and nothing else: threads and processes are the parent's."""


_open: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()


def close_in_children(one: OfOneProcess) -> None:
    """From now on, in every child that is forked."""
    _open.add(one)


def forget(one: OfOneProcess) -> None:
    """It is closed."""
    _open.discard(one)


def _close_all_in_child() -> None:
    for one in list(_open):
        one.close_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_close_all_in_child)
