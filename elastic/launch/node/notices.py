"""A node's notices: heard in the agent's loop, one after the other, told to its workers and to the --on-notice hook.

Promises  the hook, a line for the shell, is run once for each notice, hint and signal to leave, whatever says so, and
          however often; not for Ctrl-C, which somebody presses who stands by. It is waited for once the node's workers
          have left: until the machine goes, `WITHIN_S` at most.
          A hint makes the run save once, and nobody leaves.
Leaves    the hook's end, when that is over, to the agent: it is a child like others, and so is what it leaves behind.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from elastic.launch.processes import children
from elastic.launch.workers.node_worker import NodeWorker
from elastic.membership.messages.messages import Hint
from elastic.preemption.notice import Notice
from elastic.preemption.sources.source import Source
from elastic.preemption.watcher import Watcher

WITHIN_S = 60.0


class NodeNotices:
    """The notices of a node, from `open` to `close`."""

    def __init__(self, sources: Sequence[Source], hook: NoticeHook) -> None:
        self._hook = hook
        self._said: deque[Notice | str] = deque()
        self._arrived = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._watcher = Watcher(sources, tell=self._put, say=self._put)

    def open(self, loop: selectors.BaseSelector, tell: Callable[[Notice], None], say: Callable[[str], None]) -> None:
        """Begin to watch; `tell` and `say`, see Watcher, are called in the loop."""
        self._tell, self._say = tell, say
        loop.register(self._arrived, selectors.EVENT_READ, self._hear)
        self._watcher.start()

    def close(self, loop: selectors.BaseSelector, *, gone: bool) -> None:
        """Stop watching; gone: see Watcher.close."""
        self._watcher.close(gone=gone)
        if self._arrived in loop.get_map():
            loop.unregister(self._arrived)

    def _put(self, said: Notice | str) -> None:
        self._said.append(said)
        os.eventfd_write(self._arrived, 1)

    def _hear(self) -> None:
        os.eventfd_read(self._arrived)
        while self._said:
            said = self._said.popleft()
            if isinstance(said, str):
                self._say(said)
            else:
                self._tell(said)
                self._hook.call(said)


_Known = tuple[str, str]  # a notice by its source and its id


class Hints:
    """The hints to one node that are in force."""

    def __init__(self) -> None:
        self._in_force: dict[_Known, Notice] = {}
        self._sent_to: dict[_Known, set[str]] = {}  # who was, by token

    def came(self, hint: Notice, workers: Iterable[NodeWorker]) -> None:
        """Keep a hint, and tell the workers that are in the run."""
        self._in_force[_known_as(hint)] = hint
        for worker in workers:
            if worker.ready:
                self._tell(hint, worker)

    def withdrawn(self, hint: Notice) -> None:
        """Forget a hint that holds no more."""
        self._in_force.pop(_known_as(hint), None)
        self._sent_to.pop(_known_as(hint), None)

    def is_ready(self, worker: NodeWorker, workers: Iterable[NodeWorker]) -> None:
        """Tell a worker that has come to the run the hints that nobody here was told; workers: all of the node."""
        here = {one.token for one in workers}
        for known, hint in self._in_force.items():
            if here.isdisjoint(self._sent_to.get(known, ())):  # else somebody here has seen, or sees, to the save
                self._tell(hint, worker)

    def _tell(self, hint: Notice, worker: NodeWorker) -> None:
        self._sent_to.setdefault(_known_as(hint), set()).add(worker.token)
        worker.tell(Hint(why=hint.why, left_s=hint.left_s(time.monotonic())))


def _known_as(notice: Notice) -> _Known:
    return notice.source, notice.id


class NoticeHook:
    """The command of --on-notice, and its processes.

    line     None: nobody is told
    environ  of the command, beside what it is told
    """

    def __init__(self, line: str | None, environ: Mapping[str, str], *, say: Callable[[str], None]) -> None:
        self._line = line
        self._environ = dict(environ)
        self._say = say
        self._called_for: set[tuple[str, str]] = set()
        self._running: set[int] = set()
        self._until_s: float | None = None  # it is waited for

    def call(self, notice: Notice) -> None:
        """Run the command for a notice that is new; one that is said again after its withdrawal is."""
        known = notice.source, notice.id
        if notice.withdrawn:
            self._called_for.discard(known)  # said again, it is another one
        elif self._line is not None and known not in self._called_for and notice.source != signal.SIGINT.name:
            self._called_for.add(known)
            self._run(self._line, notice)

    def pids(self) -> set[int]:
        """Return the processes that are this hook's to reap."""
        return set(self._running)

    def reap(self) -> None:
        """Reap the commands that have ended, and say which have failed."""
        for pid in sorted(self._running):
            if (ended := children.ended(pid)) is not None:
                self._running.remove(pid)
                children.reap(pid)
                if ended.code != 0:
                    self._say(f"--on-notice ended with {ended.text}; the node acts on the notice all the same")

    def is_waited_for(self, now_s: float, gone_by_s: float | None) -> bool:
        """Return whether a command is still to be waited for; asked when nothing else is.

        gone_by_s  the machine is gone then, as far as somebody says
        """
        if not self._running:
            return False
        if self._until_s is None:
            self._until_s = now_s + WITHIN_S if gone_by_s is None else min(now_s + WITHIN_S, gone_by_s)
            self._say(f"waiting for --on-notice to end, {max(0.0, self._until_s - now_s):.0f} s at most")
        return now_s < self._until_s

    def _run(self, line: str, notice: Notice) -> None:
        left_s = notice.left_s(time.monotonic())
        facts = {
            "ELASTIC_NOTICE_KIND": notice.kind.value,
            "ELASTIC_NOTICE_SOURCE": notice.source,
            "ELASTIC_NOTICE_WHY": notice.why,
            "ELASTIC_NOTICE_LEFT_S": "" if left_s is None else f"{left_s:.0f}",
            "ELASTIC_NOTICE_HOST": notice.node,
        }
        command, env = ["/bin/sh", "-c", line], {**self._environ, **facts}
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, env=env)
        except OSError as failure:
            self._say(f"--on-notice cannot be run: {failure}; the node acts on the notice all the same")
            return
        process.returncode = 0  # waited for here
        self._running.add(process.pid)
