"""Is a worker stuck, by what it left in its record (membership/progress.py)? Pure.

A worker that stops computing is told apart from those that wait for it: they say that they wait, and have a deadline
of their own; it is computing for longer than it may, or is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass

from elastic.membership.progress import COMPUTING, Record

_STOPPED_LOOKS = 2  # one look may catch a debugger at work


@dataclass
class Patience:
    """One worker's looks so far."""

    stopped_looks: int = 0

    def stuck(
        self, now_s: float, record: Record, state: str, *, not_before_s: float, patience: float = 1.0
    ) -> str | None:
        """Why this worker will not go on by itself, in words.

        state         of the process, as in /proc/<pid>/stat
        not_before_s  phases count from here at the earliest: the watcher itself was held up until then
        patience      limits count so many times
        """
        self.stopped_looks = self.stopped_looks + 1 if state == "T" else 0
        if self.stopped_looks >= _STOPPED_LOOKS:
            return "its process is stopped"
        elapsed_s = now_s - max(record.since_s, not_before_s)
        limit_s = record.limit_s * patience
        if record.phase == COMPUTING and elapsed_s > limit_s:
            return f"it has computed for {elapsed_s:.1f} s without a sign, and may for {limit_s:.1f} s"
        return None


def state_of(pid: int) -> str:
    """One letter; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""
