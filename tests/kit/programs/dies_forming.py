"""`elastic`, of which the first process that comes to a moment, as a run forms, is killed there.

dies_forming MOMENT FILE run ...   FILE: of this run's, by which the others know that one was
"""

from __future__ import annotations

import os
import pydoc
import signal
import sys
from pathlib import Path
from typing import Any

from elastic.__main__ import main

BEFORE, AFTER = "before", "after"

STORE = "has opened the store"
MOMENTS = {
    STORE: ("elastic.launch.rendezvous.written_meeting.MeetingSearch", "_opens", AFTER),
    "has met the others": ("elastic.launch.meeting._Meets", "_publishes", BEFORE),
    "has published the hub": ("elastic.launch.meeting._Meets", "_publishes", AFTER),
    "serves": ("elastic.launch.hub.link.HubLink", "_serve", AFTER),
    "has welcomed one": ("elastic.launch.hub.server.HubServer", "takes", AFTER),
    "publishes the first view": ("elastic.membership.hub.hub.Hub", "_publish", BEFORE),
}


def dies_at(moment: str, file: Path) -> None:
    where, name, when = MOMENTS[moment]
    of = pydoc.locate(where)
    method = getattr(of, name)

    def dies() -> None:
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(*args: Any, **facts: Any) -> Any:
        if when == BEFORE:
            dies()
        result = method(*args, **facts)
        if when == AFTER and result is not False:
            dies()
        return result

    setattr(of, name, wrapped)


if __name__ == "__main__":
    _, moment, file, *argv = sys.argv
    dies_at(moment, Path(file))
    sys.argv[1:] = argv
    sys.exit(main())
