"""A plan being carried out: counts operations, lets faults happen, keeps the record. Threads may share it."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import fsspec

from elastic_checkpoint.testing.fault_plan import ERRORS, Cut, Delay, Error, Hang, Plan, Rule


class PowerCut(BaseException):
    """Not an Exception: like a SIGKILL, nothing may handle it."""


class Happened(NamedTuple):
    """A fault that struck: `number` is the operation's, among all that were begun, from 0."""

    number: int
    operation: str
    path: str
    rule: Rule


class Faults:
    """Carries out a plan. One of these may stand behind any number of filesystems: they share its counts.

    Args:
        plan: What goes wrong.
        sleep: Waits for so many seconds, where an operation takes longer.
        record: A file that gets a line of JSON for each fault that strikes, for whom no process holds this object.

    Attributes:
        operations: How many of each kind were begun, faulty or not.
        happened: The faults that struck, in order.
    """

    def __init__(
        self, plan: Plan, *, sleep: Callable[[float], None] = time.sleep, record: str | os.PathLike[str] | None = None
    ) -> None:
        self.plan = plan
        self._record = record
        self.operations: Counter[str] = Counter()
        self.happened: list[Happened] = []
        self._seen = [0] * len(plan.rules)
        self._struck = [0] * len(plan.rules)
        self._sleep = sleep
        self._healed = threading.Event()
        self._dead = False
        self._lock = threading.Lock()

    def around(self, url: str, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return the same place, with these faults between.

        Args:
            url: A folder, or any fsspec URL.
            options: For its filesystem.

        Returns:
            The URL and the storage options to use instead.
        """
        protocol, separator, _ = url.partition("://")
        protocol = protocol if separator else "file"
        path = fsspec.get_filesystem_class(protocol)._strip_protocol(url)
        target = {"target_protocol": protocol, "target_options": options or {}}
        return f"faulty://{path}", {**target, "faults": self}

    def heal(self) -> None:
        """Let nothing go wrong from now on; what hangs, fails at once. The power is back too."""
        with self._lock:
            self._healed.set()
            self._dead = False

    def report(self) -> str:
        """Return the plan and what happened, a line for each fault."""
        lines = [f"operation {one.number} {one.operation} {one.path}: {one.rule}" for one in self.happened]
        return "\n".join([f"{self.plan}", *lines])

    @contextlib.contextmanager
    def during(self, operation: str, path: str) -> Iterator[Rule | None]:
        """Surround one operation, in a filesystem of one's own. Faults of time and answer happen here.

        Args:
            operation: One of those that a Rule is about.
            path: Of the object.

        Yields:
            The rule that strikes it, if any; the block does what the others ask of it.

        Raises:
            OSError: As the plan says: before the block or, for lost answers, after it; then the block's result must not
                reach the caller.
            PowerCut: Likewise.
        """
        rule = self._next(operation, path)
        if isinstance(rule, Delay):
            self._sleep(rule.seconds)
        elif isinstance(rule, Hang):
            self._healed.wait(rule.at_most_s)
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT) + " (hung on purpose)", path)
        elif isinstance(rule, Error | Cut) and not rule.late:
            raise _error(rule)
        yield rule
        if isinstance(rule, Error | Cut):
            raise _error(rule)

    def _next(self, operation: str, path: str) -> Rule | None:
        """Count the operation, and decide what strikes it."""
        with self._lock:
            number = self.operations.total()
            self.operations[operation] += 1
            if self._dead:
                raise PowerCut
            found: int | None = None
            for index, rule in enumerate(self.plan.rules):
                if rule.about(operation, path):
                    count, self._seen[index] = self._seen[index], self._seen[index] + 1
                    if found is None and self._may_strike(index, count):
                        found = index
            if found is None:
                return None
            rule = self.plan.rules[found]
            self._struck[found] += 1
            self._dead = isinstance(rule, Cut)
            self.happened.append(Happened(number, operation, path, rule))
            if self._record is not None:
                self._put_on_record(self._record, self.happened[-1])
            return rule

    def _put_on_record(self, record: str | os.PathLike[str], one: Happened) -> None:
        what = {"t": time.time(), "pid": os.getpid(), "fault": type(one.rule).__name__, "rule": str(one.rule)}
        line = json.dumps({**what, "number": one.number, "operation": one.operation, "path": one.path}) + "\n"
        with open(record, "a") as file:
            file.write(line)  # one write, appended: lines of several processes do not mix

    def _may_strike(self, index: int, count: int) -> bool:
        rule = self.plan.rules[index]
        spent = rule.times is not None and self._struck[index] >= rule.times
        return not (self._healed.is_set() or count < rule.after or spent) and self.plan.strikes(index, count)


class Listings:
    """The last undisturbed answer of each listing, for those that are to be stale."""

    def __init__(self) -> None:
        self._answers: dict[object, Any] = {}
        self._lock = threading.Lock()

    def remember(self, question: object, answer: Any) -> None:
        with self._lock:
            self._answers[question] = copy.deepcopy(answer)

    def recall(self, question: object) -> Any:
        """Return the answer, or None where the question was never asked."""
        with self._lock:
            return copy.deepcopy(self._answers.get(question))


def _error(rule: Error | Cut) -> BaseException:
    return ERRORS[rule.kind]() if isinstance(rule, Error) else PowerCut()
