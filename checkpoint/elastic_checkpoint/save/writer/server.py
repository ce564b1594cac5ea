"""The writer process: hashes and stores what a training process staged, and outlives it for as long as that takes.

    python -m elastic_checkpoint.save.writer.server <descriptor of the socket> <process id of the parent>

Started ahead of the first save; waits without using the processor. One save after another, several objects of each at
once; of a save by several ranks the objects of its own rank, in company with the others' writers (roles.py). It never
loads torch. Signals that end a job do not end it: only its parent's end does, seen as the socket's end, or in the
kernel's own record where a fork still holds the socket. Then what is staged is finished within a deadline; with nothing
staged it goes at once. It answers nobody: if a newer claim is taken meanwhile, that one's holder resumed from an
older commit, and what is staged is dropped.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from elastic_checkpoint.errors import CheckpointError, SaveDropped
from elastic_checkpoint.format.draft import Draft, StoredObject
from elastic_checkpoint.format.names import CommitId
from elastic_checkpoint.net.codec import as_message, parse
from elastic_checkpoint.net.errors import error_document
from elastic_checkpoint.runs.orphans import announce
from elastic_checkpoint.save.arena import AttachedArena
from elastic_checkpoint.save.commit import write_object
from elastic_checkpoint.save.writer.link import Link
from elastic_checkpoint.save.writer.messages import (
    TO_WRITER,
    Arena,
    ArenaDropped,
    CancelSave,
    Connect,
    Connected,
    Disconnected,
    Done,
    DropArena,
    Failed,
    FromWriter,
    GiveUp,
    NotConnected,
    Open,
    Progress,
    Ready,
    SaveCancelled,
    Serve,
    Staged,
    ToWriter,
    Unusable,
)
from elastic_checkpoint.save.writer.roles import Follower, Leader, Local, Role, dropped
from elastic_checkpoint.storage import Scrubber, Storage, open_storage

THREADS_MAX = 8


@dataclass(frozen=True)
class StagedSave:
    """A save, or this rank's part of one, that lies whole in one half of the arena.

    first  the number of its first file in the save
    """

    number: int
    draft: Draft
    files: Sequence[memoryview]
    first: int
    role: Role

    @property
    def name(self) -> str:
        return str(self.draft.id)


class WriterServer:
    """Hears what is staged in one thread, and writes it in another."""

    def __init__(self, link: Link, parent: int) -> None:
        self._link = link
        self._parent = parent
        self._storage: Storage | None = None
        self._scrub = Scrubber("", {})
        self._budget_bytes = 0
        self._finish_s = 0.0
        self._arena: AttachedArena | None = None
        self._role: Role = Local()
        self._name: socket.socket | None = None
        self._staged: deque[StagedSave] = deque()
        self._changed = threading.Condition()
        self._ended = False

    def run(self) -> int:
        """Serve until the parent has ended and all that it staged is finished. Returns the exit status."""
        writing = threading.Thread(target=self._write_all, name="checkpoint-writing", daemon=True)
        writing.start()
        self._listen()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        writing.join(self._finish_s)
        if writing.is_alive():
            return 1  # a storage that does not answer; nothing half-written counts
        self._role.close()
        if self._storage is not None:
            self._storage.close()
        return 0

    def _listen(self) -> None:
        """Listen until the parent has ended and everything that it said was heard."""
        waiting = select.poll()
        waiting.register(self._link.socket, select.POLLIN)
        alive = _watch(self._parent)
        if alive is None:
            self._link.socket.setblocking(False)
        else:
            waiting.register(alive, select.POLLIN)
        while True:
            if alive is not None and any(ready == alive for ready, _ in waiting.poll()):
                waiting.unregister(alive)
                os.close(alive)
                alive = None
                self._link.socket.setblocking(False)  # what it said before it died is there already
            try:
                heard = self._link.receive()
            except BlockingIOError:
                return
            if heard is None:
                return
            message, fds = heard
            self._hear(parse(TO_WRITER, message), fds)

    def _hear(self, said: ToWriter, fds: list[int]) -> None:
        match said:
            case Open():
                self._open(said)
            case Arena(half_bytes=half_bytes):
                self._arena = AttachedArena(fds[0], half_bytes)
                os.close(fds[0])
            case DropArena():
                self._arena = None
                gc.collect()  # errors hold on to the frames that they went through, and those to views
                self._say(ArenaDropped())
            case Serve() | Connect():
                self._meet(said)
            case Staged():
                staged = self._found(said)
                staged.role.staged(staged.name)
                with self._changed:
                    self._staged.append(staged)
                    self._changed.notify_all()
                self._drop_failed(staged.name)  # it may have failed elsewhere by now
            case CancelSave(number=number):
                self._take_back(number)
            case GiveUp(id=id, error=error):
                self._role.give_up(id, error)

    def _open(self, said: Open) -> None:
        self._scrub = Scrubber(said.url, said.options)
        self._budget_bytes, self._finish_s = said.budget_bytes, said.finish_s
        try:
            if "://" in said.url:
                import fsspec  # only here: for a folder this process begins in two thirds of the time

                fsspec.get_filesystem_class(fsspec.utils.get_protocol(said.url))
            self._storage = open_storage(said.url, said.options, retry_s=said.retry_s)
            self._name = announce(self._storage.url, self._parent)
        except (ImportError, ValueError) as error:
            self._say(Unusable(why=self._scrub(str(error))))
        else:
            self._say(Ready())

    def _meet(self, said: Serve | Connect) -> None:
        """Join the writers of a group."""
        self._role.close()
        self._role = Local()
        try:
            if isinstance(said, Serve):
                self._role = first = Leader(said.size, self._finish_s)
                endpoint = first.endpoint
            else:
                endpoint = said.endpoint
                self._role = Follower(
                    endpoint,
                    said.rank,
                    said.size,
                    self._finish_s,
                    failed=self._drop_failed,
                    parted=lambda: self._say(Disconnected()),
                )
        except OSError as error:
            self._say(NotConnected(why=str(error)))
        else:
            self._say(Connected(endpoint=endpoint))

    def _found(self, said: Staged) -> StagedSave:
        assert self._arena is not None, "the arena is sent before anything is staged in it"
        *files, head, tail = self._arena.read(said.half, said.sizes)
        draft = Draft(CommitId(**said.id), said.claim_nonce, tuple(said.all_sizes), bytes(head), bytes(tail))
        return StagedSave(said.number, draft, files, said.first, self._role)

    def _take_back(self, number: int) -> None:
        staged = self._unbegun(lambda staged: staged.number == number)
        if staged is not None:
            why = "a newer save took its place before it was begun"
            staged.role.give_up(staged.name, dropped(staged.draft.id.step, why))
        self._say(SaveCancelled(number=number, cancelled=staged is not None))

    def _drop_failed(self, name: str) -> None:
        """Drop a save that has ended elsewhere, before it was begun here: it need not wait for its turn."""
        staged = self._unbegun(lambda staged: staged.name == name and staged.role.ended(name) is not None)
        if staged is not None:
            self._say(self._write(staged))

    def _unbegun(self, wanted: Callable[[StagedSave], bool]) -> StagedSave | None:
        with self._changed:
            found = next(filter(wanted, self._staged), None)
            if found is not None:
                self._staged.remove(found)
        return found

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._staged or self._ended)
                if not self._staged:
                    return
                staged = self._staged.popleft()
            said = self._write(staged)
            del staged  # and with it the views into the arena, which may be dropped next
            self._say(said)

    def _write(self, staged: StagedSave) -> Done | Failed | SaveCancelled:
        """Write it, and return what is to be said of it."""
        try:
            self._store_and_finish(staged)
        except SaveDropped:
            return SaveCancelled(number=staged.number, cancelled=True)
        except Exception as error:  # whatever it is, training has to hear of it
            document = error_document(error, self._scrub)
            staged.role.give_up(staged.name, document)
            return Failed(number=staged.number, error=document)
        return Done(number=staged.number)

    def _store_and_finish(self, staged: StagedSave) -> None:
        storage, draft = self._storage, staged.draft
        if storage is None:
            raise CheckpointError("the writer process has no storage; nothing was saved")
        largest = max(map(len, staged.files), default=1)
        at_once = max(1, min(THREADS_MAX, self._budget_bytes // max(1, largest), len(staged.files)))
        tell = self._tell_progress(staged.number, of=sum(map(len, staged.files)))

        def write(index: int) -> StoredObject:
            if (ended := staged.role.ended(staged.name)) is not None:
                raise ended
            stored = write_object(storage, draft.id, staged.first + index, staged.files[index])
            tell(stored.size)
            return stored

        with ThreadPoolExecutor(at_once, thread_name_prefix="checkpoint-object") as pool:
            jobs = [pool.submit(write, index) for index in range(len(staged.files))]
            wait(jobs, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        failed = next((job.exception() for job in jobs if not job.cancelled() and job.exception()), None)
        if failed is not None:
            raise failed
        staged.role.finish(storage, draft, [job.result() for job in jobs])

    def _tell_progress(self, number: int, *, of: int) -> Callable[[int], None]:
        lock, bytes_stored = threading.Lock(), 0

        def tell(size: int) -> None:
            nonlocal bytes_stored
            with lock:
                bytes_stored += size
                self._say(Progress(number=number, stored=bytes_stored, of=of))

        tell(0)
        return tell

    def _say(self, said: FromWriter) -> None:
        with contextlib.suppress(OSError):  # nobody is left to hear it
            self._link.send(as_message(said))


def _watch(process: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; None where it has ended already."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return None
    if os.getppid() == process:
        return watched
    os.close(watched)  # the number is another process's by now
    return None


def main(arguments: Sequence[str]) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end: Any = socket.socket(fileno=int(arguments[0]))
    end.set_inheritable(False)
    status = WriterServer(Link(end), int(arguments[1])).run()
    sys.stderr.flush()
    os._exit(status)  # a thread that still waits for the storage must not hold the process


if __name__ == "__main__":
    main(sys.argv[1:])
