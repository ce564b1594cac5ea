"""`elastic check`: does a script give the same bits whatever happens to its workers? A short drill with a fixed plan.

    some steps on one worker, without faults  ->  the same ones on three: one is killed, another one joins, all is lost,
    two go on from what was saved  ->  a verdict

All shares are cross-checked (loop/cross_check.py), so that a script that keeps something the run was not handed is
named with the first step, share and parameters that differ, and not by its end alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elastic.drill import command
from elastic.drill.plan.flags import parsed, script_parser

if TYPE_CHECKING:
    from elastic.drill.both_runs import Drill

STEPS, WORKERS = 12, 3
_STEPS_MIN = 8  # for three faults, one after the other
_DESCRIPTION = (
    "Runs some steps of a training script on one worker, and again on three of which one is killed, where another one "
    "joins, and all are lost, so that two go on from what was saved. Each share is passed by two workers. Says whether "
    "all is the same, or the first step, share and parameters that differ. The script is not changed, and what its URL "
    "names is not touched."
)
_EPILOG = """\
  elastic check train.py
  elastic check train.py --workers 2 -- --model small
  elastic check -m package.train

exit status  0 all is the same   1 it is not   2 it could not be run as asked   130 interrupted
"""


def main(argv: Sequence[str], *, drill: type[Drill] | None = None) -> int:
    """Drill a script with the fixed plan, and return the exit status. See command.main."""
    made = script_parser("elastic check", description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("--workers", type=int, default=WORKERS, metavar="N", help=f"(default {WORKERS})")
    made.add_argument("--steps", type=_steps, default=STEPS, metavar="N", help=f"of the run (default {STEPS})")
    made.add_argument("--keep", action="store_true", help="keep both runs; those that differ are kept anyway")
    made.add_argument("--within", type=float, default=300.0, metavar="SECONDS", help="for each run (default 300)")
    given = parsed(made, [*argv])
    steps, workers = given.steps, given.workers
    asked = [f"--workers={workers}", f"--resume-workers={max(1, workers - 1)}", f"--stop-after={steps}"]
    asked += ["--cross-check=1", f"--within={given.within:g}", *["--keep"] * given.keep, *["--module"] * given.module]
    asked += [f"--kill={workers - 1}@step={1 + steps // 8}"] * (workers > 1)
    asked += [f"--join=@step={2 + steps // 4}", f"--lose-all=@step={steps // 2 + 2}", given.script]
    return command.main([*asked, "--", *given.args], drill=drill, name="elastic check")


def _steps(given: str) -> int:
    """Return what --steps asks for. Raises ArgumentTypeError below _STEPS_MIN."""
    if not given.isdecimal() or int(given) < _STEPS_MIN:
        raise argparse.ArgumentTypeError(f"expected {_STEPS_MIN} or more; found {given}")
    return int(given)
