"""Weights & Biases: one run there for one here, whichever worker writes.

What is logged there reaches a disk or a server when wandb has the time, and a process that is killed takes it along. So
a table beside it has each row first (csv_file.py), and whoever writes next logs those that are not there.
What stands there cannot be removed: a step that is done over after a rollback keeps its first row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from elastic.errors import ConfigError
from elastic.logging.base import STEP, Logger
from elastic.logging.csv_file import CSV

_HEADER, _BLOCK = 7, 32 << 10  # of a file and of each record in it: a checksum of 4 bytes, a length of 2, and the kind
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class WandB(Logger):
    """Logs to Weights & Biases, also to a folder without a network (`mode="offline"`, and `wandb sync` later).

    Every metric is drawn over `step`.

    Args:
        **init: For `wandb.init`, such as `project`, `entity`, `dir` and `mode`. `id` is derived from the run's URL
            unless it is given.

    Raises:
        ConfigError: There is no `wandb` here.
    """

    def __init__(self, **init: Any) -> None:
        try:
            import wandb
        except ImportError as missing:
            raise ConfigError(
                f"elastic.logging.WandB needs a package that is not here: {missing}\n  next  pip install wandb"
            ) from missing
        self._wandb, self._init = wandb, init
        self._run: Any = None
        self._failure: Exception | None = None
        self._starting: threading.Thread | None = None
        self._table: CSV | None = None
        self._there: dict[str, set[int]] = {}  # by name, the steps that are there
        self._last = -1  # up to this one all are
        self._is_behind = True  # there may be rows of the table that are not there

    def open(self, run: str, *, after: int) -> None:
        asked = {"id": xxhash.xxh3_64_hexdigest(run.encode()), "name": run.rstrip("/").rpartition("/")[2], **self._init}
        folder = Path(asked.get("dir") or ".") / "wandb"
        self._table = self._table or CSV(folder / f"elastic-{asked['id']}.csv")
        self._table.open(run, after=after)
        self._is_behind = True
        if self._starting is None:
            # It takes seconds, in which rows would wait in memory, and go with this process.
            self._starting = threading.Thread(
                target=self._start, args=(folder, asked), name="elastic-wandb", daemon=True
            )
            self._starting.start()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        assert self._table is not None
        self._table.write(step, values)
        if not self._is_behind:
            self._log(step, values)
        self.flush()

    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        assert self._table is not None
        return self._table.missing(step, values)

    def flush(self) -> None:
        if self._starting is not None and self._starting.is_alive():
            return
        if self._failure is not None:
            failure, self._failure, self._starting = self._failure, None, None
            raise failure
        if self._is_behind and self._table is not None:
            for step, values in self._table.rows().items():
                self._log(step, values)
            self._is_behind = False

    def close(self) -> None:
        if self._starting is not None:
            self._starting.join()  # whoever closes has a deadline
            self.flush()
        if self._run is not None:
            self._run.finish()
        self._run = self._starting = None

    def _start(self, folder: Path, asked: dict[str, Any]) -> None:
        try:
            self._there = _offline(folder, asked["id"])
            run = self._wandb.init(resume="allow", reinit="create_new", **asked)
            run.define_metric(STEP)
            run.define_metric("*", step_metric=STEP)
            self._last = last_step(dict(run.summary))
            self._run = run
        except Exception as failure:  # raised where rows are given
            self._failure = failure

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        there = self._there
        new = {name: value for name, value in values.items() if step > self._last and step not in there.get(name, ())}
        if new:
            self._run.log({**new, STEP: step})
            for name in new:
                there.setdefault(name, set()).add(step)


def last_step(summary: Mapping[str, Any]) -> int:
    """Return the step that a run's summary says was logged last; -1: none."""
    step = summary.get(STEP)
    return -1 if step is None else int(step)


def _offline(folder: Path, id: str) -> dict[str, set[int]]:
    """Return, by name, the steps in what runs without a network have left there."""
    from wandb.proto.wandb_internal_pb2 import Record

    there: dict[str, set[int]] = {}
    for path in sorted(folder.glob(f"offline-run-*-{id}/run-{id}.wandb")):
        for data in records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            if STEP in items:
                for name in items:
                    there.setdefault(name, set()).add(int(float(items[STEP])))
    return there


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records in a `.wandb` file, up to one that a process was killed in the midst of.

    It is LevelDB's log format (github.com/google/leveldb, doc/log_format.md) behind a header of 7 bytes (wandb 0.31).
    """
    at, record = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left  # zeros
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        at += _HEADER
        if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or at + length > len(data):
            return
        record = (b"" if kind in (_WHOLE, _FIRST) else record) + data[at : at + length]
        at += length
        if kind in (_WHOLE, _LAST):
            yield record
