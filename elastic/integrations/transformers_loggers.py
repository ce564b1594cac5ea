"""transformers' TensorBoardCallback in a run: its rows come by the run, to where it would write them.

Without TENSORBOARD_LOGGING_DIR it gets a folder that is named after the run's URL. Others are the coordinator's, as
they are.
"""

from __future__ import annotations

import os
from typing import Any

from transformers.integrations import TensorBoardCallback

from elastic.integrations.placing import has_tensorboard, place_of
from elastic.logging import TensorBoard
from elastic.logging.base import Logger


def rows_of(callbacks: list[Any], output_dir: str, url: str) -> list[Logger]:
    """Have the callbacks write no rows; return what writes the run's rows to their places."""
    made: list[Logger] = []
    of_tensorboard = [one for one in callbacks if isinstance(one, TensorBoardCallback)] if has_tensorboard() else []
    for one in of_tensorboard:
        if type(one).on_log is not TensorBoardCallback.on_log:
            continue
        if one.tb_writer is not None:
            one.logging_dir = one.tb_writer.log_dir
        one.logging_dir = one.logging_dir or os.path.join(output_dir, "runs", place_of(url))
        one.on_log = _writes_nothing
        made.append(_EventFiles(one))
    return made


def _writes_nothing(*_: Any, **__: Any) -> None:
    pass


class _EventFiles(TensorBoard):
    """Writes rows to the files to which the callback adds its settings: readers cut others' off."""

    def __init__(self, callback: Any) -> None:
        super().__init__(callback.logging_dir)
        self._callback = callback

    def make(self, **named: Any) -> Any:
        self._callback.tb_writer = writer = super().make(**named)
        return writer
