"""A node that stands ready beside a run, and joins when it is called.

    python -m elastic.drill.inject.latecomer FILE ARGUMENTS…

What a machine does before it is of use (booting, importing torch and what the script imports) is done, so that in a
short run it still comes in time. Once FILE is there this process is `elastic run ARGUMENTS…`. It ends with the drill
that started it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic.launch.workers.starter import Starter

_LOOK_S = 0.02
_IMPORTS = ("agent", "hub.link", "meeting", "workers.logs")


def main(argv: Sequence[str], *, preloaded: bool | None = None) -> int:
    """Stand ready until FILE is there, then be `elastic run`. For `preloaded` see run_command.main."""
    called, *arguments = argv
    drill = os.getppid()
    from elastic.launch import run_command
    from elastic_checkpoint.net.event_loop import run_once

    def stand_ready(starter: Starter) -> None:
        for name in _IMPORTS:
            import_module(f"elastic.launch.{name}")
        while not Path(called).exists():
            if os.getppid() != drill:
                raise SystemExit(1)
            run_once(starter.loop, _LOOK_S)

    return run_command.main(arguments, waits=stand_ready, preloaded=preloaded)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
