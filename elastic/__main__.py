"""The command `elastic`, also `python -m elastic`. `elastic run` is run_command.py's, with torchrun's flags.

Each command imports what it needs itself: workers wait for the imports of `elastic run`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from elastic.launch.string_hashes import hash_alike

EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for what cannot be done as asked; `elastic run` has others, too."""
    is_command, argv = argv is None, sys.argv[1:] if argv is None else argv
    if argv[:1] == ["run"]:
        if is_command:
            hash_alike(argv)
        from elastic.launch import run_command

        return run_command.main(argv[1:])
    if argv[:1] == ["drill"]:
        from elastic.drill import command as drill_command

        return drill_command.main(argv[1:])
    if argv[:1] == ["report"]:
        from elastic.report import command as report_command

        return report_command.main(argv[1:])
    if argv[:1] == ["plan"]:
        from elastic.plan import plan_command

        return plan_command.main(argv[1:])
    if argv[:1] == ["simulate"]:
        from elastic.plan import simulate_command

        return simulate_command.main(argv[1:])
    if argv[:1] == ["checkpoint"]:
        from elastic_checkpoint import cli

        return cli.main(argv[1:])
    parser = argparse.ArgumentParser(
        prog="elastic", description="Training runs whose result does not depend on what happens to their workers."
    )
    parser.add_argument("--version", action="version", version=f"elastic {version('elastic-exact')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("run", help="runs a training script, and recovers live (torchrun's flags)", add_help=False)
    drill = "runs a script with faults and without, and judges that nothing was lost"
    commands.add_parser("drill", help=drill, add_help=False)
    commands.add_parser("report", help="what became of a run, from its events", add_help=False)
    plan = "what a run would take and cost on a fleet, how far it scales, how often to save"
    commands.add_parser("plan", help=plan, add_help=False)
    simulate = "what recorded spot fleets make of a run, under several ways of running"
    commands.add_parser("simulate", help=simulate, add_help=False)
    checkpoint = "looks at a run's checkpoints: ls, verify, digest, diff, export, import, sweep"
    commands.add_parser("checkpoint", help=checkpoint, add_help=False)
    parser.parse_args(argv)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
