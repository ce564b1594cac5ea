"""What a command prints, asked from a thread of a process that may reap children which it does not know.

An agent reaps what dead workers leave to it, so the exit status of a child that a thread has started may be lost to
that thread. A shell therefore prints it behind the output.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable

OUTPUT_MAX = 1 << 12
_LOOK_S = 0.1  # whether it is still wanted


class CommandFailed(Exception):
    """A command gave no output to go by: why, in words."""


def output_of(command: str, *, within_s: float, wanted: Callable[[], bool] = lambda: True) -> str:
    """Run a line for /bin/sh, with no input and a session of its own; return what it prints. Its errors go to ours.

    Raises CommandFailed: it ended with another status than 0 or 1 (which is `test`'s and `grep`'s no), took too long,
    or printed too much. It is gone then.
    """
    # The exit status comes behind the output: an agent's reaper may be faster than `wait` below.
    script = f"(\n{command}\n)\nprintf '\\n%s' $?"
    process = subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            printed = _read(process.stdout.fileno(), time.monotonic() + within_s, wanted).decode("utf-8", "replace")
        except TimeoutError:
            raise CommandFailed(f"`{command}` took more than {within_s:g} s, and was killed") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whatever it left behind, too
            process.wait()  # 0 where this process's reaper was faster
    output, _, status = printed.rpartition("\n")
    if len(output) >= OUTPUT_MAX:
        raise CommandFailed(f"`{command}` printed more than {OUTPUT_MAX:,} characters")
    if status not in ("0", "1"):
        raise CommandFailed(f"`{command}` ended with status {status or 'unknown'}")
    return output


def _read(fd: int, deadline_s: float, wanted: Callable[[], bool]) -> bytes:
    """Read until the end, or one byte too many. Raises TimeoutError."""
    data = b""
    with selectors.DefaultSelector() as loop:
        loop.register(fd, selectors.EVENT_READ)
        while len(data) <= OUTPUT_MAX + 8:
            if not wanted() or (left_s := deadline_s - time.monotonic()) <= 0:
                raise TimeoutError
            if loop.select(min(left_s, _LOOK_S)):
                part = os.read(fd, OUTPUT_MAX)
                if not part:
                    break
                data += part
    return data
