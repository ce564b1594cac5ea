"""The command `elastic`, also `python -m elastic`. `elastic run` is run_command.py's, with torchrun's flags.

Each command imports what it needs itself: workers wait for the imports of `elastic run`, and a signal that comes before
them is held only from here on.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from elastic.launch.processes import early_signals
from elastic.launch.string_hashes import hash_alike

BROKEN_PIPE = 141  # as a shell reports SIGPIPE

_COMMANDS = {
    "demo": ("elastic.demo", "loses workers on purpose, loses all, resumes, and compares the weights: a minute, here"),
    "run": ("elastic.launch.run_command", "runs a training script, and recovers live (torchrun's flags)"),
    "drill": ("elastic.drill.command", "runs a script with faults and without, and judges that nothing was lost"),
    "check": ("elastic.drill.check_command", "is the result the same whatever happens? some steps, with faults"),
    "report": ("elastic.report.command", "what became of a run, from its events"),
    "watch": ("elastic.watch_command", "how a run goes on, wherever it runs, from its storage; it only reads"),
    "manifest": ("elastic.manifest.command", "what a run was made with, and how that differs from another one"),
    "reproduce": ("elastic.reproduce.command", "makes a run again, at any size, and compares it step by step"),
    "replay": ("elastic.reproduce.replay_command", "computes one step of a run again, alone: its shares, its examples"),
    "checkpoint": ("elastic_checkpoint.cli", "a run's checkpoints: ls, verify, digest, diff, export, import, sweep"),
    "doctor": ("elastic.doctor.command", "what a run needs of this machine and of its URL, looked at, and what to do"),
    "docs": ("elastic.docs_command", "a page of the documentation, such as those that errors name"),
    "plan": (
        "elastic.plan.plan_command",
        "what a run would take and cost on a fleet, how far it scales, how often to save",
    ),
    "simulate": (
        "elastic.plan.simulate_command",
        "what recorded spot fleets make of a run, under several ways of running",
    ),
}
"""Command: the module whose `main` carries it out, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status: 0, or 2 for what cannot be done as asked; commands have others, too."""
    is_command, argv = argv is None, sys.argv[1:] if argv is None else argv
    if argv and argv[0] in _COMMANDS:
        if is_command and argv[0] == "run":
            early_signals.hold()
            hash_alike(argv)
        module, _ = _COMMANDS[argv[0]]
        try:
            status: int = importlib.import_module(module).main(argv[1:])
            sys.stdout.flush()
        except BrokenPipeError:  # `elastic docs | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return BROKEN_PIPE
        return status
    from importlib.metadata import version

    from elastic_checkpoint.command_line import USAGE, Parser

    parser = Parser(
        prog="elastic", description="Training runs whose result does not depend on what happens to their workers."
    )
    parser.add_argument("--version", action="version", version=f"elastic {version('elastic-exact')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, help_) in _COMMANDS.items():
        commands.add_parser(name, help=help_, add_help=False)
    parser.parse_args(argv)
    return USAGE


if __name__ == "__main__":
    sys.exit(main())
