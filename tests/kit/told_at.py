"""A process of a run waits at a named moment, for its node to be told there.

    (folder / AT).write_text("forward")       somebody asks for it
    (folder / HOLDS).read_text()              "forward": the process is there
    (folder / GOES).touch()                   it may go on

FOLDER names the folder, to all processes of a node. The moments are the observer's (elastic/events/observer.py), by
ELASTIC_OBSERVER=tests.kit.told_at:ToldAt: and those at which a script calls `hold`.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from elastic.events.observer import ObservedRun, Observer

FOLDER = "TOLD_AT"
OBSERVER = "tests.kit.told_at:ToldAt:"
AT, HOLDS, GOES = "at", "holds", "goes"
_POLL_S = 0.02


class ToldAt(Observer):
    def __init__(self, _: str) -> None:
        """It takes no argument."""

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        hold(moment)


def asked_for(moment: str) -> bool:
    """Whether somebody wants this process to wait there."""
    folder = os.environ.get(FOLDER)
    try:
        return folder is not None and (Path(folder) / AT).read_text() == moment
    except FileNotFoundError:
        return False


def hold(moment: str) -> None:
    """Waits, where it is asked for: one process, once."""
    if not asked_for(moment):
        return
    folder = Path(os.environ[FOLDER])
    try:
        (folder / AT).rename(folder / HOLDS)
    except FileNotFoundError:
        return  # another process was faster
    while not (folder / GOES).exists():
        time.sleep(_POLL_S)
    for name in (HOLDS, GOES):  # another one may be asked for
        (folder / name).unlink()
