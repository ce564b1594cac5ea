"""What becomes of saves that fail: a copy of what is held is put elsewhere, and people learn what is at risk.

A run whose storage takes nothing any more ends before more work is at risk. What it holds then is nowhere but in
memory, so it is put into a folder of this machine, as a run of its own from which the same script goes on.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from typing import Any

import xxhash

import elastic_checkpoint
from elastic.errors import SavesFailed

_RECENT_S = 600.0  # since a rescue copy of the same step was written: it is of this launch


class Rescue:
    """Puts a copy of what a worker holds elsewhere.

    where    the run's URL
    folder   that the launch names for it; None: it names none
    """

    def __init__(self, where: str, folder: str | None, log: Callable[[str], None]) -> None:
        self._where = where
        self._folders = [*filter(None, [folder]), os.getcwd(), tempfile.gettempdir()]
        self._log = log

    def copy(self, step: int, objects: Any, meta: dict[str, Any]) -> str | None:
        """Write a copy, as a run of its own, unless another worker of this machine has.

        Returns where it lies, and how it is loaded; None: nothing takes it.
        """
        run = xxhash.xxh3_64_hexdigest(self._where.encode())[:6]
        name = f"{os.path.basename(self._where.rstrip('/')) or 'run'}-{run}-step-{step}"
        for folder in self._folders:
            where = os.path.join(os.path.abspath(folder), name)
            is_new = not os.path.lexists(where)
            try:
                with elastic_checkpoint.Checkpointer(where, log=self._log) as copy:
                    there = copy.latest()
                    if there is None or there.saved_at < time.time() - _RECENT_S:
                        copy.save(step, objects, meta=meta)
            except (elastic_checkpoint.CheckpointError, OSError):
                if is_new:
                    shutil.rmtree(where, ignore_errors=True)  # half of a copy fills the disk
            else:
                return (
                    f"a rescue copy lies on {socket.gethostname()}\n"
                    f"  rescue   {where}\n"
                    f"  load     it is a run of its own: the same script with that as its URL has it, and goes on from "
                    f"step {step};\n"
                    f"           elastic checkpoint export {where} --to safetensors OUT gives its weights\n"
                )
        return None


def saves_failed(
    what: str,
    *,
    step: int,
    saved: int | None,
    since_s: float,
    reason: object,
    rescued: str | None,
    failures_max: object,
) -> SavesFailed:
    """Return the error that says what is at risk.

    what     has happened
    saved    the newest step that is saved, so long ago
    rescued  see Rescue.copy
    """
    since = "everything since the newest checkpoint there" if saved is None else f"steps {saved} to {step}"
    goes_on = "its newest checkpoint" if saved is None else f"step {saved}"
    why = str(reason).replace("\n", "\n    ")
    first, _, rescue = ("which is nowhere but in memory" if rescued is None else rescued).partition("\n")
    where = first if rescued is None else f"of which {first}"
    return SavesFailed(
        f"{what}\n"
        f"  at risk  {since}, {_human(since_s)} of training, {where}\n{rescue}"
        f"  reason   {why}\n"
        "  state    what was committed before is whole\n"
        f"  next     repair the storage, then start the same command again: the run goes on from {goes_on}.\n"
        f"           Saving(failures_max=) ({failures_max} now) says how many failures are borne; None: any number",
        saved=saved,
        step=step,
    )


def _human(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
