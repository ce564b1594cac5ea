"""A table: a line for each step, a column for each name.

In a folder lines are appended; a name that is new has the table written again. An object cannot be appended to: it is
written whole, at most every few seconds, and at the end.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Mapping
from typing import Any

import fsspec

from elastic.events.sinks import local_folder
from elastic.logging.base import STEP, Logger

_EVERY_S = 10.0  # an object is written again


class CSV(Logger):
    """Writes a table, as `csv.DictReader` and pandas read it: `step`, and a column for each name.

    Args:
        url: The file: a path, or any fsspec URL.
        storage_options: For fsspec.
    """

    def __init__(self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None) -> None:
        self._path = local_folder(url)
        self._url, self._options = os.fspath(url), dict(storage_options or {})
        self._rows: dict[int, dict[str, str]] = {}
        self._columns: list[str] = [STEP]
        self._put_s = float("-inf")
        self._is_ahead = False  # of the object

    def open(self, run: str, *, after: int) -> None:
        found = csv.DictReader(io.StringIO(self._read()))
        self._columns = [STEP, *(name for name in found.fieldnames or () if name != STEP)]
        self._rows = {}
        for row in found:
            if (row.get(STEP) or "").isdecimal() and int(row[STEP]) <= after:  # the last line may be torn
                self._rows[int(row[STEP])] = {name: text for name, text in row.items() if name != STEP and text}
        self._put()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        known = self._rows.setdefault(step, {})
        again = bool(known) or any(name not in self._columns for name in values)
        known.update({name: repr(float(value)) for name, value in values.items()})
        self._columns += [name for name in values if name not in self._columns]
        if self._path is None:
            self._is_ahead = True
        elif again:
            self._put()
        else:
            with open(self._path, "a", newline="") as file:
                file.write(self._text([step], header=False))

    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        known = self._rows.get(step, {})
        return {name: value for name, value in values.items() if name not in known}

    def rows(self) -> dict[int, dict[str, float]]:
        """Return what is there by now, by step and name."""
        return {step: {name: float(text) for name, text in row.items()} for step, row in self._rows.items()}

    def flush(self) -> None:
        if self._is_ahead and time.monotonic() - self._put_s > _EVERY_S:
            self._put()

    def close(self) -> None:
        if self._is_ahead:
            self._put()

    def _text(self, steps: list[int], *, header: bool) -> str:
        made = io.StringIO()
        table = csv.DictWriter(made, self._columns, lineterminator="\n")
        if header:
            table.writeheader()
        table.writerows({STEP: step, **self._rows[step]} for step in steps)
        return made.getvalue()

    def _read(self) -> str:
        try:
            if self._path is not None:
                return self._path.read_text()
            with fsspec.open(self._url, "r", **self._options) as file:
                return str(file.read())
        except FileNotFoundError:
            return ""

    def _put(self) -> None:
        """Write the table whole; whoever reads it meanwhile has the one before."""
        text = self._text(sorted(self._rows), header=True)
        if self._path is None:
            with fsspec.open(self._url, "w", **self._options) as file:
                file.write(text)
        else:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            beside.write_text(text)
            beside.replace(self._path)
        self._put_s, self._is_ahead = time.monotonic(), False
