"""TensorBoard's event files. What a cut removes stays in older files, and every reader of them passes over it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from elastic.errors import ConfigError
from elastic.events.sinks import local_folder
from elastic.logging.base import Logger
from elastic_checkpoint.storage import redact

# Another host's file may be from the future by so much; less than rows behind a run have time (loop/curves.py).
_SKEW_S = 5.0

log = logging.getLogger("elastic.logging")


class TensorBoard(Logger):
    """Writes event files into a folder, as `torch.utils.tensorboard` does; a new one for each coordinator.

    Args:
        folder: For TensorBoard's `--logdir`: a path, or whatever TensorBoard can write to.

    Raises:
        ConfigError: There is no `tensorboard` here.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise ConfigError(
                f"elastic.logging.TensorBoard needs a package that is not here: {missing}\n"
                "  next  pip install tensorboard"
            ) from missing
        self._writer: Any = None
        self._kind = SummaryWriter
        self._folder = os.fspath(folder)
        self._there: Any = None

    def open(self, run: str, *, after: int) -> None:
        self.close()
        self._wait_for_turn()
        # Readers drop what files before this one hold of that step and later ones.
        self._writer = self.make(purge_step=after + 1)

    def make(self, **named: Any) -> Any:
        """Return a SummaryWriter of the folder, by arguments of its own."""
        return self._kind(self._folder, **named)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        if self._there is None:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

            self._there = EventAccumulator(self._folder, size_guidance={"scalars": 0}).Reload()
        found = {name: self._there.Scalars(name) for name in self._there.Tags()["scalars"] if name in values}
        known = {name for name, scalars in found.items() if any(one.step == step for one in scalars)}
        return {name: value for name, value in values.items() if name not in known}

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._there = None

    def _wait_for_turn(self) -> None:
        """Wait for a second of which there is no file yet: readers sort files by names, and those begin with it."""
        folder, waited_by = local_folder(self._folder), time.monotonic() + _SKEW_S
        names = [path.name.split(".") for path in folder.glob("events.out.tfevents.*")] if folder is not None else []
        newest = max((int(parts[3]) for parts in names if parts[3].isdecimal()), default=0)
        while (left_s := newest + 1 - time.time()) > 0:
            if left_s > waited_by - time.monotonic():
                log.warning(
                    "%s holds an event file of %.0f s from now: readers take it for newer than this worker's, and may "
                    "show of a step what was done over\n  next  set the clock of the host in its name right",
                    redact(self._folder),
                    left_s,
                )
                return
            time.sleep(min(left_s, 0.05))
