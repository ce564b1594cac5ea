"""The thread that feeds one logger: training hands rows over and goes on, however slow or dead its service is."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from elastic.logging.base import Logger

_ROWS_MAX = 10_000  # that wait for a service; what is older is dropped, and counted
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
_TRIES = 5  # of one row, which the service may never take: a name that it does not know
_IDLE_S = 1.0  # without a row, after which a logger may do what it has put off


class Writer:
    """Feeds a logger in a thread, from `open` to `close`.

    run     names the run
    warn    says something once
    before  fed this logger, and may not have come to its end yet
    """

    def __init__(self, logger: Logger, run: str, warn: Callable[[str], None], *, before: Writer | None = None) -> None:
        self._before = before._thread if before is not None else None
        self._logger = logger
        self._run = run
        self._warn = warn
        self._rows: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._changed = threading.Condition()
        self._after = 0
        self._is_open = self._ending = self._told = False
        self._writing = False  # a row that is in `_rows` no more
        self._dropped = self._tries = 0
        self._failed: int | None = None  # the step whose row was tried so often
        self._last: tuple[int, dict[str, float]] | None = None  # the row that was written last
        self._thread: threading.Thread | None = None

    def open(self, after: int) -> None:
        """Begin; what the logger has of steps behind `after` is dropped."""
        self._after = after
        self._thread = threading.Thread(target=self._feed, name="elastic-logger", daemon=True)
        self._thread.start()

    def put(self, step: int, values: Mapping[str, Any]) -> None:
        """Hand a row over: numbers, and tensors of one number that nobody writes to any more."""
        with self._changed:
            self._rows.append((step, values))
            if len(self._rows) > _ROWS_MAX:
                self._rows.popleft()
                self._dropped += 1
            self._changed.notify()

    def close(self, wait_s: float) -> None:
        """End once all is written, or after so long."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(wait_s)
        waiting = len(self._rows) + self._writing
        if waiting + self._dropped and wait_s > 0:
            self._warn(
                f"{_name(self._logger)} lacks {waiting + self._dropped} of this worker's rows: {waiting} were not "
                f"written in time, {self._dropped} were dropped before"
            )

    def _feed(self) -> None:
        if self._before is not None:
            self._before.join()
        retry_s = _RETRY_S
        while True:
            row = None
            try:
                if not self._is_open:
                    self._logger.open(self._run, after=self._after)
                    self._is_open = True
                row = self._next()
                if row is None:
                    self._logger.close()
                    return
                self._write(*row)
                self._writing, retry_s = False, _RETRY_S
                if not self._rows:
                    self._logger.flush()
            except Exception as failure:  # whatever a library, a disk or a network does
                self._tell(failure)
                self._take_back(row, failure)
                with self._changed:
                    if self._ending or self._changed.wait_for(lambda: self._ending, retry_s):
                        return
                retry_s = min(2 * retry_s, _RETRY_MAX_S)

    def _next(self) -> tuple[int, Mapping[str, Any]] | None:
        """Wait for a row, and take it; None: the end has come, and there is none."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._rows or self._ending, _IDLE_S):
                    self._writing = bool(self._rows)
                    return self._rows.popleft() if self._rows else None
            self._logger.flush()  # without the lock: who hands a row over waits for nothing

    def _take_back(self, row: tuple[int, Mapping[str, Any]] | None, failure: Exception) -> None:
        """Have a row written again that failed, and the one before it, behind a cut: they may be there by half."""
        with self._changed:
            if row is not None:
                self._tries = self._tries + 1 if row[0] == self._failed else 1
                self._failed = row[0]
                if self._tries < _TRIES:
                    self._rows.appendleft(row)
                else:
                    self._dropped += 1
                    self._warn(
                        f"{_name(self._logger)} has not taken the row of step {row[0]}: {failure}; it is left out"
                    )
            if self._last is not None:
                self._rows.appendleft(self._last)
                self._after = max(self._after, self._last[0] - 1)
                self._last = None
            self._writing = self._is_open = False

    def _write(self, step: int, values: Mapping[str, Any]) -> None:
        row = {name: float(value) for name, value in values.items()}
        if self._last is None and step <= self._after:  # as code between two steps runs again after a resume
            self._logger.write(step, self._logger.missing(step, row))
            return
        last, known = self._last if self._last is not None else (self._after, {})
        done_over = step < last or (step == last and bool(known.keys() & row.keys()))
        if done_over:
            self._after, self._last = step - 1, None
            self._logger.open(self._run, after=self._after)
        if step == last:
            known = {**known, **row}
            row = known if done_over else row
        else:
            known = row
        self._logger.write(step, row)
        self._last = step, known

    def _tell(self, failure: Exception) -> None:
        if not self._told:
            self._told = True
            self._warn(
                f"{_name(self._logger)}: {type(failure).__name__}: {failure}\n"
                f"  state  training goes on; up to {_ROWS_MAX:,} rows are kept for it\n"
                "  next   nothing, if it comes back; it is tried again"
            )


def _name(logger: Logger) -> str:
    return type(logger).__name__
