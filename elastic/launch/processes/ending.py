"""The end of a worker's interpreter, as python's own but for one part: modules are not taken apart.

Promises  in python's order: threads that are no daemons are joined, atexit functions run, what only the script held is
          destroyed, every open file is flushed.
          It is quick. Taking some thousand imported modules apart, all of them shared with the fork server until
          somebody writes to them, takes a worker 0.4 s of a processor that the others want for a recovery.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
import threading
from typing import NoReturn

_NOT_FLUSHED = 120  # python's
_PATIENCE_S = 10.0  # with threads of the script's, before it is said who is waited for


def end(status: int) -> NoReturn:
    """End this process as python would, with this status."""
    threads = [thread for thread in threading.enumerate() if not (thread.daemon or thread is threading.main_thread())]
    teller = threading.Timer(_PATIENCE_S, _tell, args=(threads,))
    teller.daemon = True
    if threads:
        with contextlib.suppress(RuntimeError):  # there may be too many
            teller.start()
    # Both are private, and what multiprocessing's children end with (CPython 3.10 to 3.14).
    threading._shutdown()  # type: ignore[attr-defined]
    teller.cancel()
    atexit._run_exitfuncs()
    _flush()  # before the collector may close a file's bytes ahead of its text, which would be lost
    sys.modules.pop("__main__", None)
    gc.collect()
    if not _flush() and status == 0:
        status = _NOT_FLUSHED
    os._exit(status & 0xFF)


def _tell(threads: list[threading.Thread]) -> None:
    if names := ", ".join(thread.name for thread in threads if thread.is_alive()):
        sys.stderr.write(
            f"elastic: the script has ended, and its process waits for threads that go on, as python does: {names}\n"
            "  next   end them, or make them with daemon=True\n"
        )


def _flush() -> bool:
    """Flush every open file; return whether what the script printed got through."""
    through = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            through = False
    # By their types: isinstance would ask every object for its class, and some answer with a warning.
    everything = gc.get_objects()
    for layer in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):  # text writes to bytes, so it comes first
        for thing in everything:
            if issubclass(type(thing), layer):
                with contextlib.suppress(Exception):
                    thing.flush()
    return through
