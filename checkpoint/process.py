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
import weakref
from collections.abc import Callable
from pathlib import Path

from checkpoint import messages
from checkpoint.messages import Message

_QUOTED_BYTES = 2000
_WATCH_S = 2.0

Heard = Callable[["WriterProcess", Message], None]
Ended = Callable[["WriterProcess", str], None]

_live: weakref.WeakSet[WriterProcess] = weakref.WeakSet()


class WriterProcess:
    """Runs from the start of this object on.

    alive  False from the moment on that its end was noticed
    """

    def __init__(self, heard: Heard, ended: Ended, watch: Callable[[WriterProcess], None]) -> None:
        """All three are called in a thread of this object's, and are given it.

        heard  gets each message
        ended  is called last, with what is known of why; the process is gone then
        watch  every few seconds
        Raises OSError where no process can be started.
        """
        self._link, theirs = messages.pair()
        self._errors = os.memfd_create("checkpoint-writer-errors", os.MFD_CLOEXEC)
        package = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "checkpoint.resident", str(theirs.fileno()), str(os.getpid())],
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
        self._thread = threading.Thread(
            target=self._listen, args=(heard, ended, watch), name="checkpoint-writer-link", daemon=True
        )
        _live.add(self)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: Message, fds: list[int] | None = None) -> None:
        """Raises OSError where the process is gone."""
        messages.send(self._link, message, fds)

    def kill(self, why: str) -> None:
        self._why_killed = self._why_killed or why
        self._process.kill()

    def let_go(self) -> None:
        """Tells it that nothing more comes: it finishes what is staged and ends. Returns at once. Idempotent."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)

    def end(self, within_s: float) -> bool:
        """As `let_go`, and waits for the end; then it is killed. Returns whether it ended of itself."""
        self.let_go()
        self._thread.join(within_s)
        in_time = not self._thread.is_alive()
        if not in_time:
            self.kill(f"it was told to end and did not within {within_s:g} s")
            self._thread.join()
        return in_time

    def close_in_child(self) -> None:
        """After a fork: the socket must not outlive the parent."""
        self.alive = False
        self._close_files()

    def _listen(self, heard: Heard, ended: Ended, watch: Callable[[WriterProcess], None]) -> None:
        try:
            self._listen_to_the_end(heard, watch)
        finally:
            self.alive = False
            if not self._closing:
                self._process.kill()  # it closed its end, or died: in either case it serves nobody any more
            status = self._process.wait()
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            parts = [f"the writer process ended with {how}", self._why_killed, self._said()]
            _live.discard(self)
            self._close_files()
            ended(self, "; ".join(filter(None, parts)))

    def _listen_to_the_end(self, heard: Heard, watch: Callable[[WriterProcess], None]) -> None:
        waiting = select.poll()
        waiting.register(self._link, select.POLLIN)
        while True:
            if not waiting.poll(_WATCH_S * 1000):
                watch(self)
            elif (got := messages.receive(self._link)) is not None:
                heard(self, got[0])
            else:
                return

    def _said(self) -> str:
        size = os.fstat(self._errors).st_size
        return os.pread(self._errors, _QUOTED_BYTES, max(0, size - _QUOTED_BYTES)).decode("utf-8", "replace").strip()

    def _close_files(self) -> None:
        self._link.close()
        os.close(self._errors)


def _close_all_in_child() -> None:
    for process in list(_live):
        process.close_in_child()
    _live.clear()


os.register_at_fork(after_in_child=_close_all_in_child)
