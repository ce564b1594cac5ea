"""`elastic drill`: a script without faults, the same script with faults, and a verdict. The command and its status.

The options are options.py's, all that follows both_runs.py's, which loads torch: what is wrong with the options is said
before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastic.errors import ConfigError

if TYPE_CHECKING:
    from elastic.drill.both_runs import Drill

HOLDS, BROKEN, CANNOT = 0, 1, 2


def main(argv: Sequence[str], *, drill: type[Drill] | None = None, name: str = "elastic drill") -> int:
    """Run a drill; return 0 if every invariant holds, 1 if one is broken, 128 + n if signal n ended it.

    2: the drill could not be run as asked, or not every fault struck.

    drill  what is made of the options; None: Drill
    name   of the command
    """
    from elastic.drill.interruption import Interrupted, interruptible
    from elastic.drill.plan.options import parse

    try:
        with interruptible():
            options = parse(argv)
            from rich.console import Console

            if options.torchrun:
                from elastic.drill.torchrun.drill import TorchrunDrill

                return TorchrunDrill(options, Console(highlight=False)).run()
            from elastic.drill.both_runs import CannotRun, Drill, Refused

            try:
                found = (drill or Drill)(options, Console(highlight=False)).run()
            except Refused as refused:
                print(
                    f"{name}: the run refuses the script, on one worker and without faults\n{refused}", file=sys.stderr
                )
                return BROKEN
            except CannotRun as cannot:
                print(f"{name}: {cannot}", file=sys.stderr)
                return CANNOT
    except ConfigError as wrong:
        print(f"{name}: {wrong}", file=sys.stderr)
        return CANNOT
    except Interrupted as interrupted:
        print(f"{name}: ended by {interrupted}; nothing of it is left running", file=sys.stderr)
        return interrupted.status
    return BROKEN if found.broken else CANNOT if found.never else HOLDS
