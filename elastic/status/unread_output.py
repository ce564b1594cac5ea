"""What is printed when nobody can read it any more goes nowhere, and ends nobody.

A terminal is closed (ssh drops: EIO from then on), or who read a pipe has ended (`elastic run ... | head`: EPIPE). For
most programs that is a reason to end. Here it would be an exception in whichever worker prints next, and the loss of
what was trained since the newest save.

Promises  whoever writes to the standard streams of this process by Python's objects, the script's `print`, loggers and
          progress bars among them, whenever they got hold of these, is told that it was written. So is Python's flush
          at the end. The descriptor then leads to nothing, for what is written to it otherwise, and for programs that
          are started later.
Leaves    a full disk, and streams of another kind, such as a notebook's, to whom they belong; a first write by
          `os.write`, or by a program that is started, which fails as ever.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any

_NO_READER = (errno.EIO, errno.EPIPE, errno.ECONNRESET)


def drop_unread_output() -> None:
    """Drop it for the rest of this process, and in what is forked from it; harmless when repeated."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)  # unbuffered, there is no layer between
        if type(raw) is io.FileIO and "write" not in vars(raw):
            # In the object itself, so that whoever has got hold of the stream already is helped, too.
            raw.write = _Write(raw)  # type: ignore[method-assign]


class _Write:
    """Writes as a file does, and to nowhere once nobody reads."""

    def __init__(self, raw: io.FileIO) -> None:
        self._write, self._fd = raw.write, raw.fileno()

    def __call__(self, data: Any) -> int | None:
        try:
            return self._write(data)
        except OSError as refused:
            if refused.errno not in _NO_READER:
                raise
            with contextlib.suppress(OSError):  # there may be too many open files
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._fd)
                os.close(null)
            return memoryview(data).nbytes
