"""Keeps the record of a run's steps on each worker, and has the coordinator write it, in a thread.

    record/c00000007-000001200-<worker>.jsonl    a segment: a line that says what it is, with the names of parameters,
                                                 then a line a step

Every worker keeps the lines of the steps since the save before the last: the coordinator of the moment writes its own
as a save begins, as a view forms, after each thousand, and at its end; should it be killed, the next one has them, too.
What both have written says the same. Objects cannot be appended to, so that a segment is written over as it grows, and
ends at half a megabyte. Nothing here raises: what cannot be written is tried again with the next lines, and said once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import xxhash

from elastic.config import Config
from elastic.group.sums import Agreed
from elastic.record.reading import FOLDER
from elastic.record.share_digests import SHARES_MAX
from elastic.record.step_record import FORMAT, VERSION, encoded
from elastic_checkpoint.storage import open_storage

log = logging.getLogger("elastic.record")
SEGMENT_BYTES = 512 << 10
_EVERY = 1000  # steps
_WAITING_MAX = 1 << 15  # lines, of a storage that does not answer; older ones are missing then
_RETRY_S = 30.0
_CLOSE_S = 5.0
_ABRUPTLY_S = 0.5
_LISTED = 16


class Recorder:
    """The record of a run on one worker.

    of_shares  what each share read and gave is on record
    """

    def __init__(self, config: Config, worker_id: str, hear: Callable[[Mapping[str, Any]], None]) -> None:
        """Begin an empty record; hear: is called with each line as it comes."""
        self._config = config
        self._hear = hear
        self._worker_id = worker_id
        plan, mode = config.plan, config.compute.mode
        self.of_shares = mode == "exact" and plan.virtual_workers <= SHARES_MAX
        self._head = {"format": FORMAT, "version": VERSION, "worker": worker_id, "mode": mode}
        self._head["virtual_workers"] = plan.virtual_workers
        self._lock = threading.Lock()
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_WAITING_MAX)
        self._unwritten = 0  # steps since the last write; a step of a GPU has two lines
        self._saved_at = 0  # the first step behind the save before the last
        self._norm: tuple[int, float] | None = None
        self._newest, self._claim = -1, 0
        self._coordinates = False
        self._thread: threading.Thread | None = None
        self._again = self._complained = False
        self._segment, self._key = b"", ""
        self._parameters: Sequence[str] = ()
        self._named: Sequence[str] | None = None  # the parameters that the segment has named last

    def norm(self, step: int, norm: float) -> None:
        """Take the norm of a step's gradients; of a GPU it comes once the step is on record."""
        if step == self._newest:
            self._add({"step": step, "claim": self._claim, "norm": norm})
        else:
            self._norm = step, norm

    def add(
        self, step: int, claim: int, agreed: Agreed, *, coordinates: bool, parameters: Sequence[str] = (), **known: Any
    ) -> None:
        """Take a step whose update is complete on this worker.

        parameters  the names of those that prefixes tell of, where there are some
        known       further fields of StepRecord
        """
        self._parameters = parameters or self._parameters
        line = {
            "step": step,
            "claim": claim,
            "t": time.time(),
            "count": agreed.count,
            "sums": {name: _listed(value) for name, value in agreed.sums.items()},
            "shares": agreed.shares,
            "left_out": agreed.left_out,
            **known,
        }
        if self._norm is not None and self._norm[0] == step:
            line["norm"] = self._norm[1]
        self._newest, self._claim, self._coordinates = step, claim, coordinates
        self._add(line)
        self._unwritten += 1
        if coordinates and self._unwritten >= _EVERY:
            self._write_soon()

    def save_begins(self, step: int, *, coordinates: bool) -> None:
        """Have what waits written, as a save of so many steps begins; elsewhere let go of what others have written."""
        self._coordinates = coordinates
        if coordinates:
            self._write_soon()
            return
        with self._lock:
            while self._waiting and self._waiting[0]["step"] < self._saved_at:
                self._waiting.popleft()
        self._saved_at = step

    def view_formed(self, *, coordinates: bool) -> None:
        """Have what waits written by the coordinator of a new view: nobody else may know of it."""
        self._coordinates = coordinates
        if coordinates:
            self._write_soon()

    def close(self, *, abruptly: bool = False) -> None:
        """Write what waits, and wait for that for a moment; abruptly: for a shorter one."""
        if self._coordinates:
            self._write_soon()
        thread = self._thread
        if thread is not None:
            thread.join(_ABRUPTLY_S if abruptly else _CLOSE_S)

    def _add(self, line: dict[str, Any]) -> None:
        with self._lock:
            self._waiting.append(line)
        self._hear(line)

    def _write_soon(self) -> None:
        self._unwritten = 0
        with self._lock:
            self._again = True
            if self._thread is None and self._waiting:
                self._thread = threading.Thread(target=self._write, name="elastic-record", daemon=True)
                self._thread.start()

    def _write(self) -> None:
        """Write what waits until nothing does; what fails waits for the next time."""
        config = self._config
        try:
            opened = open_storage(config.url, config.storage_options or None, retry_s=_RETRY_S, answer_s=_RETRY_S)
            with contextlib.closing(opened) as storage:
                while True:
                    with self._lock:
                        lines = list(self._waiting)
                        if not (lines and self._again):
                            self._thread = None
                            return
                        self._again = False
                    if not self._segment:
                        self._key = f"{FOLDER}/c{lines[0]['claim']:08d}-{lines[0]['step']:09d}-{self._worker_id}.jsonl"
                        self._named = None
                    if self._parameters != self._named:  # a script may add layers
                        self._named = self._parameters
                        self._segment += encoded({**self._head, "parameters": self._named})
                    segment = self._segment + b"".join(map(encoded, lines))
                    storage.put(self._key, segment)
                    self._segment = segment if len(segment) < SEGMENT_BYTES else b""
                    with self._lock:
                        while lines and self._waiting and self._waiting[0] is lines[0]:
                            self._waiting.popleft()
                            del lines[0]
        except Exception as error:  # whatever it is, training is worth more than what is written of it
            if not self._complained:
                self._complained = True
                log.warning("steps are not on record: %s; tried again later, and training goes on", error)
            with self._lock:
                self._thread = None


def _listed(value: Any) -> Any:
    """Return a sum as a line has it, taken now: the script may change a tensor afterwards."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() <= _LISTED:
        return value.reshape(-1).tolist()
    return f"xxh3:{xxhash.xxh3_64_hexdigest(value.contiguous().numpy().tobytes())}"
