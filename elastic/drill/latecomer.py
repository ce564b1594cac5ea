"""A node that stands ready beside a run and joins when it is called: python -m elastic.drill.latecomer FILE ARGUMENTS…

What a machine does before its job starts (booting, importing torch) is done, so that in a short run it still comes in
time. Once FILE is there this process is `elastic run ARGUMENTS…`. It ends with the drill that started it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

_LOOK_S = 0.02
_IMPORTS = ("arguments", "agent", "hubs", "logs", "nodes")


def main(argv: Sequence[str]) -> int:
    called, *arguments = argv
    drill = os.getppid()
    for name in _IMPORTS:
        import_module(f"elastic.launch.{name}")
    from elastic.launch import run_command

    while not Path(called).exists():
        if os.getppid() != drill:
            return 1
        time.sleep(_LOOK_S)
    return run_command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
