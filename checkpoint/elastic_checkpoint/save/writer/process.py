"""The writer process as its parent sees it: started, told, listened to, and ended without leaving anything behind.

What it needs to know, secrets included, goes through the socket; the command line holds two numbers. Its standard error
is a memory file, which is quoted if it dies of itself: a pipe of ours would be held open for as long as it lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from elastic_checkpoint.forks import close_in_children, forget
from elastic_checkpoint.net.codec import NotAMessage, as_message, parse
from elastic_checkpoint.save.writer import WRITER_MODULE
from elastic_checkpoint.save.writer.link import pair
from elastic_checkpoint.save.writer.messages import FROM_WRITER, FromWriter, ToWriter

_QUOTED_BYTES = 2000
_WATCH_S = 2.0
_KILLED_S = 10.0

Heard = Callable[["WriterProcess", FromWriter], None]
Ended = Callable[["WriterProcess", str], None]


class WriterProcess:
    """Runs from the start of this object on.

    alive  False from the moment on that its end was noticed
    """

    def __init__(self, heard: Heard, ended: Ended, watch: Callable[[WriterProcess], None]) -> None:
        """Start the process; all three functions are called in a thread of this object's, and are given it.

        heard  gets each message
        ended  is called last, with what is known of why; the process is gone then
        watch  every few seconds

        Raises OSError where no process can be started.
        """
        self._link, theirs = pair()
        self._errors = os.memfd_create("checkpoint-writer-errors", os.MFD_CLOEXEC)
        package = str(Path(__file__).parents[3])  # the folder that holds elastic_checkpoint/
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WRITER_MODULE, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            )
        except OSError:
            self._close_files()
            raise
        finally:
            theirs.close()
        self.alive = True
        self._closing = False
        self._why_killed = ""
        self._killed_s: float | None = None
        self._thread = threading.Thread(
            target=self._listen, args=(heard, ended, watch), name="checkpoint-writer-link", daemon=True
        )
        close_in_children(self)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, said: ToWriter, fds: list[int] | None = None) -> None:
        """Send a message. Raises OSError where the process is gone, TypeError and ValueError for what is no JSON."""
        self._link.send(as_message(said), fds)

    def kill(self, why: str) -> None:
        """Kill the process; why: for the save's error."""
        self._why_killed = self._why_killed or why
        self._killed_s = self._killed_s or time.monotonic()
        self._process.kill()

    def let_go(self) -> None:
        """Tell it that nothing more comes: it finishes what is staged and ends. Returns at once. Idempotent."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._link.socket.shutdown(socket.SHUT_WR)

    def end(self, within_s: float) -> bool:
        """Let go of it, and wait for its end; then kill it. Returns whether it ended of itself."""
        self.let_go()
        self._thread.join(within_s)
        in_time = not self._thread.is_alive()
        if not in_time:
            self.kill(f"it was told to end and did not within {within_s:g} s")
            self._thread.join(2 * _KILLED_S)
        return in_time

    def close_in_child(self) -> None:
        """Close our files after a fork: the socket must not outlive the parent."""
        self.alive = False
        self._close_files()

    def _listen(self, heard: Heard, ended: Ended, watch: Callable[[WriterProcess], None]) -> None:
        try:
            self._listen_to_the_end(heard, watch)
        finally:
            self.alive = False
            if not self._closing:
                self._process.kill()  # it closed its end, or died: in either case it serves nobody any more
            parts = [f"the writer process {self._ended()}", self._why_killed, self._said()]
            forget(self)
            self._close_files()
            ended(self, "; ".join(filter(None, parts)))

    def _ended(self) -> str:
        """Return how it ended; wait for none that even SIGKILL does not end, as its kernel waits for a disk."""
        for _ in range(2):
            try:
                status = self._process.wait(_KILLED_S)
                return f"ended with {f'signal {signal.Signals(-status).name}' if status < 0 else f'status {status}'}"
            except subprocess.TimeoutExpired:
                self._process.kill()
        return f"was killed and is still there {_KILLED_S:g} s later"

    def _listen_to_the_end(self, heard: Heard, watch: Callable[[WriterProcess], None]) -> None:
        waiting = select.poll()
        waiting.register(self._link.socket, select.POLLIN)
        while self._killed_s is None or time.monotonic() < self._killed_s + _KILLED_S:
            if not waiting.poll(_WATCH_S * 1000):
                watch(self)
            elif (got := self._link.receive()) is not None:
                try:
                    said = parse(FROM_WRITER, got[0])
                except NotAMessage as wrong:
                    self.kill(f"it said what is no message: {wrong}")
                    return
                heard(self, said)
            else:
                return

    def _said(self) -> str:
        """Return the end of what it wrote to its standard error."""
        size = os.fstat(self._errors).st_size
        return os.pread(self._errors, _QUOTED_BYTES, max(0, size - _QUOTED_BYTES)).decode("utf-8", "replace").strip()

    def _close_files(self) -> None:
        self._link.close()
        os.close(self._errors)
