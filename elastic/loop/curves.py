"""What the script logs, step by step: each worker holds the newest rows, and the coordinator writes them.

A row is handed over once its step's code has run to the end: until then the step may come round again. Who becomes the
coordinator writes what it holds behind a cut, so that what the one before had not written is there, and nothing twice.
Who joins, or stands behind, gets the rows beside the state (RunState.side_state).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from elastic.errors import ConfigError
from elastic.logging.base import STEP, Logger
from elastic.logging.writer import Writer
from elastic.loop.run_state import RunState
from elastic.loop.view_group import ViewGroup
from elastic.status.console import Console

_KEPT = 10_000  # rows that a coordinator may not have written yet when it is lost
_CLOSE_S = 10.0


class Curves:
    """This worker's part in what is logged."""

    def __init__(
        self, loggers: Sequence[Logger], run: str, state: RunState, view_group: ViewGroup, console: Console
    ) -> None:
        self._loggers = loggers
        self._run = run
        self._state = state
        self._view_group = view_group
        self._console = console
        self._new: dict[int, dict[str, Any]] = {}  # since rows were handed over last
        self._writers: list[Writer] | None = None  # of this worker, while it is the coordinator
        self._newest: list[Writer | None] = [None] * len(loggers)  # that there were, of each logger
        self._begun_at: int | None = None
        self._is_over = False

    def begin(self, *, from_storage: bool) -> None:
        """Note where this worker stands as it enters the run."""
        self._begun_at = self._state.step if from_storage else None

    def log(self, values: Mapping[str, Any]) -> None:
        """Take what the script logs of the step that was applied last. Raises ConfigError for what is no number."""
        if STEP in values:
            raise ConfigError(
                f"run.log({STEP}=...) is what each row is numbered by: run.step_index\n"
                "  state  nothing of this call is logged\n"
                "  next   leave it out, or give it another name"
            )
        row = {name: _number(name, value) for name, value in values.items()}
        if not self._loggers:
            return
        if self._is_over:
            self._write_behind(row)
            return
        for rows in (self._state.logged, self._new):
            _roll_back(rows, self._state.step)
            rows.setdefault(self._state.step, {}).update(row)
        if self._state.at_boundary:  # the script's code between two steps, which is not gone through again
            self.hand_over()

    def hand_over(self) -> None:
        """Have what was logged written, if this is the coordinator; what it logs of these steps may change no more."""
        if not self._loggers:
            return
        state, logged = self._state, self._state.logged
        for rows in (logged, self._new):
            _roll_back(rows, state.step)
        if self._view_group.rank == 0:
            rows = self._new
            if self._writers is None:
                self._writers, rows = self._open(), logged
            for step, row in rows.items():
                for writer in self._writers:
                    writer.put(step, dict(row))
        elif self._writers is not None:
            self._close(_CLOSE_S)
        self._new = {}
        while len(logged) > _KEPT:
            del logged[next(iter(logged))]

    def end(self, *, abruptly: bool) -> None:
        """End this worker's part; abruptly: without a wait, and for good."""
        self._is_over = True
        self._close(0.0 if abruptly else _CLOSE_S)
        if abruptly:
            self._loggers = ()

    def _close(self, wait_s: float) -> None:
        writers, self._writers = self._writers or [], None
        for writer in writers:
            writer.close(wait_s)

    def _write_behind(self, row: dict[str, Any]) -> None:
        """Write what is logged behind the run, unless it is there: a script may be started again for that."""
        if self._view_group.rank == 0:
            for writer in self._made():
                writer.open(self._state.step)
                writer.put(self._state.step, row)
                writer.close(_CLOSE_S)

    def _made(self) -> list[Writer]:
        """Return a new writer for each logger; each begins where the one before has come to its end."""
        pairs = zip(self._loggers, self._newest, strict=False)
        made = [Writer(one, self._run, self._console.warn, before=before) for one, before in pairs]
        self._newest = [*made]
        return made

    def _open(self) -> list[Writer]:
        first = min(self._state.logged, default=self._state.step) - 1
        after = first if self._begun_at is None else max(first, self._begun_at)
        writers = self._made()
        for writer in writers:
            writer.open(after)
        return writers


def _roll_back(rows: dict[int, dict[str, Any]], step: int) -> None:
    """Forget rows of later steps, which are done over, or not at all."""
    while rows and next(reversed(rows)) > step:
        rows.popitem()


def _number(name: str, value: Any) -> Any:
    """Return a number, or a copy of a tensor of one: reading it now would wait for a GPU."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.detach().clone()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"run.log({name}=...) takes a number, or a tensor of one; found {value!r:.80}\n"
            "  state  nothing of this call is logged"
        ) from None
