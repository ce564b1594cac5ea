"""The writer process: hashes and stores what a training process staged, and outlives it for as long as that takes.

    python -m checkpoint.resident <descriptor of the socket> <process id of the parent>

Started ahead of the first save; waits without using the processor. One save after another, several objects of each at
once. It never loads torch. Signals that end a job do not end it: only its parent's end does, seen as the socket's
end, or in the kernel's own record where a fork still holds the socket. Then what is staged is finished within a
deadline; with nothing staged it goes at once. It answers no beacon: if a newer claim is taken meanwhile, that one's
holder resumed from an older commit, and what is staged is dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import fsspec

from checkpoint import messages
from checkpoint.arena import Attached
from checkpoint.draft import Draft
from checkpoint.errors import CheckpointError
from checkpoint.messages import Message
from checkpoint.names import CommitId
from checkpoint.orphans import announce
from checkpoint.storage import Scrubber, Storage, open_storage
from checkpoint.writer import commit, write_object

THREADS_MAX = 8


@dataclass(frozen=True)
class Staged:
    """A save that lies whole in one half of the arena."""

    number: int
    draft: Draft
    files: Sequence[memoryview]


class Resident:
    """Hears what is staged in one thread, and writes it in another."""

    def __init__(self, link: socket.socket, parent: int) -> None:
        self._link = link
        self._parent = parent
        self._storage: Storage | None = None
        self._scrub = Scrubber("", {})
        self._budget_bytes = 0
        self._finish_s = 0.0
        self._arena: Attached | None = None
        self._name: socket.socket | None = None
        self._staged: deque[Staged] = deque()
        self._changed = threading.Condition()
        self._ended = False

    def run(self) -> int:
        """Until the parent has ended and all that it staged is finished. Returns the exit status."""
        writing = threading.Thread(target=self._write_all, name="checkpoint-writing", daemon=True)
        writing.start()
        self._listen()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        writing.join(self._finish_s)
        if writing.is_alive():
            return 1  # a storage that does not answer; nothing half-written counts
        if self._storage is not None:
            self._storage.close()
        return 0

    def _listen(self) -> None:
        """Returns when the parent has ended and everything that it said was heard."""
        waiting = select.poll()
        waiting.register(self._link, select.POLLIN)
        alive = _watch(self._parent)
        if alive is None:
            self._link.setblocking(False)
        else:
            waiting.register(alive, select.POLLIN)
        while True:
            if alive is not None and any(ready == alive for ready, _ in waiting.poll()):
                waiting.unregister(alive)
                os.close(alive)
                alive = None
                self._link.setblocking(False)  # what it said before it died is there already
            try:
                heard = messages.receive(self._link)
            except BlockingIOError:
                return
            if heard is None:
                return
            self._hear(*heard)

    def _hear(self, message: Message, fds: list[int]) -> None:
        match message["kind"]:
            case "open":
                self._open(message)
            case "arena":
                self._arena = Attached(fds[0], message["half_bytes"])
                os.close(fds[0])
            case "staged":
                with self._changed:
                    self._staged.append(self._found(message))
                    self._changed.notify_all()
            case "take_back":
                self._take_back(message["number"])

    def _open(self, message: Message) -> None:
        url, options = message["url"], message["options"]
        self._scrub = Scrubber(url, options)
        self._budget_bytes, self._finish_s = message["budget_bytes"], message["finish_s"]
        try:
            fsspec.get_filesystem_class(fsspec.utils.get_protocol(url))
            self._storage = open_storage(url, options, retry_s=message["retry_s"])
            self._name = announce(self._storage.url, self._parent)
        except (ImportError, ValueError) as error:
            self._say({"kind": "unusable", "why": self._scrub(str(error))})
        else:
            self._say({"kind": "ready"})

    def _found(self, message: Message) -> Staged:
        assert self._arena is not None, "the arena is sent before anything is staged in it"
        sizes: list[int] = message["sizes"]
        *files, head, tail = self._arena.read(message["half"], sizes)
        id = CommitId(**message["id"])
        draft = Draft(id, message["claim_nonce"], tuple(sizes[:-2]), bytes(head), bytes(tail))
        return Staged(message["number"], draft, files)

    def _take_back(self, number: int) -> None:
        with self._changed:
            found = next((staged for staged in self._staged if staged.number == number), None)
            if found is not None:
                self._staged.remove(found)
        self._say({"kind": "taken_back", "number": number, "taken": found is not None})

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._staged or self._ended)
                if not self._staged:
                    return
                staged = self._staged.popleft()
            try:
                self._write(staged)
            except Exception as error:  # whatever it is, training has to hear of it
                document = messages.error_document(error, self._scrub(str(error)))
                self._say({"kind": "failed", "number": staged.number, "error": document})
            else:
                self._say({"kind": "done", "number": staged.number})

    def _write(self, staged: Staged) -> None:
        storage, draft = self._storage, staged.draft
        if storage is None:
            raise CheckpointError("the writer process has no storage; nothing was saved")
        at_once = max(1, min(THREADS_MAX, self._budget_bytes // max(draft.sizes, default=1), len(staged.files)))
        with ThreadPoolExecutor(at_once, thread_name_prefix="checkpoint-object") as pool:
            jobs = [
                pool.submit(write_object, storage, draft.id, index, file) for index, file in enumerate(staged.files)
            ]
            wait(jobs, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        failed = next((job.exception() for job in jobs if not job.cancelled() and job.exception()), None)
        if failed is not None:
            raise failed
        commit(storage, draft, [job.result() for job in jobs])

    def _say(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # nobody is left to hear it
            messages.send(self._link, message)


def _watch(process: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where it has ended already."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return None
    if os.getppid() == process:
        return watched
    os.close(watched)  # the number is another process's by now
    return None


def main(arguments: Sequence[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link: Any = socket.socket(fileno=int(arguments[0]))
    link.set_inheritable(False)
    status = Resident(link, int(arguments[1])).run()
    sys.stderr.flush()
    os._exit(status)  # a thread that still waits for the storage must not hold the process


if __name__ == "__main__":
    main(sys.argv[1:])
