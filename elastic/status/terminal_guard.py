"""Gives a terminal back when the process that had changed it is gone, however it ended: a shell that waits beside it.

    restores_with: what would give it back from now on  ->  the shell's input ends  ->  it writes the last of these

A shell holds a megabyte, and learns of a SIGKILL by the end of its input. Without a shell nobody guards the terminal.
"""

from __future__ import annotations

import contextlib
import subprocess

_SHELL = "/bin/sh"
_PROGRAM = 'while IFS= read -r line; do back=$line; done; printf %b "$back"'
_CLOSE_S = 1.0


class TerminalGuard:
    """fd: of the terminal. The shell is started by the first `restores_with`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._shell: subprocess.Popen[bytes] | None = None

    def restores_with(self, back: str) -> None:
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
        """The shell writes what it got last, and is gone, or is killed."""
        if self._shell is None:
            return
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        try:
            self._shell.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # the terminal takes nothing
            self._shell.kill()
            self._shell.wait()
