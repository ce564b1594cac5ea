"""Lightning's TensorBoardLogger and CSVLogger in a run: their rows come by the run, to where they would write them.

Without a version, a logger of these gets a folder that is named after the run's URL. Others are the coordinator's, as
they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lightning.fabric.loggers import CSVLogger as FabricCSVLogger
from lightning.fabric.loggers import TensorBoardLogger as FabricTensorBoardLogger
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from elastic.integrations.placing import has_tensorboard, place_of
from elastic.logging import CSV, TensorBoard
from elastic.logging.base import Logger


def rows_of(
    loggers: list[Any], url: str, log: Callable[[Callable[..., None], Mapping[str, Any], int | None], None]
) -> list[Logger]:
    """Have the loggers hand their rows to `log`; return what writes the run's rows to their places.

    log  gets how the logger would write by itself, the values and the step
    """
    made: list[Logger] = []
    for one in loggers:
        writes = type(one).log_metrics
        if isinstance(one, TensorBoardLogger) and writes is FabricTensorBoardLogger.log_metrics and has_tensorboard():
            one._version = place_of(url) if one._version is None else one._version
            place: Logger = _EventFiles(one)
        elif isinstance(one, CSVLogger) and writes is FabricCSVLogger.log_metrics:
            one._version = place_of(url) if one._version is None else one._version
            one._experiment = _Settings(one.log_dir)
            place = CSV(os.path.join(one.log_dir, ExperimentWriter.NAME_METRICS_FILE))
        else:
            continue
        made.append(_AsLightning(place, prefix=f"{one._prefix}{one.LOGGER_JOIN_CHAR}" if one._prefix else ""))
        one.log_metrics = partial(log, one.log_metrics)
    return made


class _AsLightning(Logger):
    """Numbers steps from 0, as Lightning does, and puts the prefix of one of its loggers before names."""

    def __init__(self, place: Logger, *, prefix: str) -> None:
        self._place, self._prefix = place, prefix

    def open(self, run: str, *, after: int) -> None:
        self._place.open(run, after=after - 1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._place.write(step - 1, {f"{self._prefix}{name}": value for name, value in values.items()})

    def missing(self, step: int, values: Mapping[str, float]) -> Mapping[str, float]:
        found = self._place.missing(step - 1, {f"{self._prefix}{name}": value for name, value in values.items()})
        return {name.removeprefix(self._prefix): value for name, value in found.items()}

    def flush(self) -> None:
        self._place.flush()

    def close(self) -> None:
        self._place.close()


class _EventFiles(TensorBoard):
    """Writes rows to the files to which a script adds pictures, by `logger.experiment`: readers cut others' off."""

    def __init__(self, logger: Any) -> None:
        super().__init__(logger.log_dir)
        self._logger = logger
        self._writes, logger.log_hyperparams = logger.log_hyperparams, self._log_hyperparams
        self._hyperparams: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def make(self, **named: Any) -> Any:
        logger = self._logger
        logger._experiment = writer = super().make(**{**logger._kwargs, **named})
        if named["purge_step"] <= 0 and self._hyperparams is not None:  # what was there of them is cut off, too
            given, named_too = self._hyperparams
            self._writes(*given, **named_too)
        return writer

    def _log_hyperparams(self, *given: Any, **named: Any) -> None:
        """Log hyperparameters, which a Trainer does in each `fit` and `test`, once; all workers note them."""
        before, self._hyperparams = self._hyperparams, (given, named)
        if repr(before) != repr(self._hyperparams):  # tensors among them have no truth
            self._writes(*given, **named)


class _Settings(ExperimentWriter):  # type: ignore[misc]  # it has no types
    """Writes a table's settings, and leaves its rows, which Lightning removes where a process begins, as they are."""

    def _check_log_dir_exists(self) -> None:
        """Do nothing."""
