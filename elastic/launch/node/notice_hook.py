"""--on-notice: a line for the shell that is told of each notice of a node, to order another machine, say.

Promises  it is run once for each notice, hint and signal to leave, whatever says so, and however often; not for Ctrl-C,
          which somebody presses who stands by.
          What it does is waited for once the node's workers have left: until the machine goes, `WITHIN_S` at most.
Leaves    its end, when that is over, to the agent: it is a child like others, and so is what it leaves behind.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping

from elastic.launch.processes import children
from elastic.preemption.notice import Notice

WITHIN_S = 60.0


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
