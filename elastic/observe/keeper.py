"""Gives a terminal back when the process that had changed it is gone, however it ended: a shell that waits beside it.

    tell: these bytes would give it back from now on  ->  the shell's input ends  ->  it writes what it was told last

A shell holds a megabyte, and learns of a SIGKILL by the end of its input. Without one nobody keeps the terminal.
"""

from __future__ import annotations

import contextlib
import subprocess

_SHELL = "/bin/sh"
_PROGRAM = 'while IFS= read -r told; do back=$told; done; printf %b "$back"'
_CLOSE_S = 1.0


class Keeper:
    """fd: of the terminal. The shell is started by the first `tell`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._shell: subprocess.Popen[bytes] | None = None

    def tell(self, back: str) -> None:
        """What gives the terminal back from now on, in one line of codes and letters; empty: it is as it was."""
        with contextlib.suppress(OSError, ValueError):  # it is gone, or closed
            if self._shell is None:
                self._shell = subprocess.Popen(
                    [_SHELL, "-c", _PROGRAM],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=self._fd,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # what is sent to a process group is not for it
                )
            assert self._shell.stdin is not None
            self._shell.stdin.write(back.replace("\x1b", "\\0033").encode() + b"\n")

    def close(self) -> None:
        """The shell writes what it was told last, and is gone, or is told to be; to reap it then is the caller's."""
        if self._shell is None:
            return
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # the terminal takes nothing
            self._shell.kill()
            self._shell.wait()
