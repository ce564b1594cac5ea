"""The flags of `elastic drill`, and its help; and what any command has that drills a script. Meanings: options.py."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.drill.faults.moments import PHASES
from elastic.drill.faults.registry import NAMED
from elastic.plan.trace import recorded_names
from elastic_checkpoint.command_line import Parser, add_storage_option

DEFAULT_FAULTS, DEFAULT_RATE = "kill,stop,leave,lose-all", 0.05
DEFAULT_HOST_FAULTS = "crash-host,power-off,cut,kill"
WITHIN_S = 900.0
_DESCRIPTION = (
    "Runs a training script twice, without faults and with faults, each in fresh storage of its own whatever URL the "
    "script names, and judges: the same weights, every example applied exactly once, nothing done twice, nothing left "
    "behind. The script is not changed. Arguments of the script that begin with a dash follow after --."
)
_EPILOG = """\
A moment is WORKER@step=N, or WORKER@step=N,phase=PHASE[,share=K]: the worker that has this rank when it passes that
phase of that step, or of the first step after it in which it can. PHASE is one of
  {phases}
(in_… is in the midst of it). Without a phase it is the beginning of a backward pass.
With --torchrun it is WORKER@step=N, or WORKER@output=TEXT: once a line of the script's output has this text.

  elastic drill train.py --workers 4 --kill 2@step=30 --lose-all @step=70 --resume-workers 2
  elastic drill train.py --workers 4 --nodes 2 --seed 41 --faults kill,stop,leave,join,lose-all --rate 0.05
  elastic drill train.py --kill 1@step=30,phase=in_update --storage-errors 0.05 -- --epochs 3
  elastic drill train.py --workers 4 --trace aws-p3-2020
  elastic drill train.py --hosts 4 --cut 2@step=30 --heal @step=60 --crash-host 0@step=80
  elastic drill train.py --torchrun --kill '1@output=epoch 2' -- --output {{run}}
  elastic drill -m package.train --plan plan.json

exit status  0 every invariant holds   1 one is broken   130 interrupted
             2 the drill could not be run as asked, or not every fault struck
"""


def script_parser(command: str, **said: Any) -> Parser:
    """Return the parser of a command that drills a script."""
    made = Parser(
        prog=command,
        usage=f"{command} [options] SCRIPT [-- arguments of the script]\n       {command} [options] -m MODULE …",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        hint="the script's own flags follow after --",
        **said,
    )
    made.add_argument("script", metavar="SCRIPT", help="a training script, or with -m a module")
    made.add_argument("args", nargs="*", default=[], metavar="ARG", help=argparse.SUPPRESS)
    made.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for python -m")
    return made


def parsed(parser: Parser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line: everything behind `--` is the script's."""
    cut = argv.index("--") if "--" in argv else len(argv)
    given = parser.parse_intermixed_args(argv[:cut])
    given.args += argv[cut + 1 :]
    return given


def parser() -> Parser:
    """Return the parser of `elastic drill`."""
    phases = ", ".join(PHASES)
    epilog = _EPILOG.format(phases=phases.replace("loaded, ", "loaded,\n  "))
    made = script_parser("elastic drill", description=_DESCRIPTION, epilog=epilog)

    # fmt: off
    add = made.add_argument_group("on how many workers").add_argument
    add("--workers", type=int, metavar="N",
        help="in the run with faults (default 4, or two replicas; with --hosts one on each)")
    add("--nodes", type=int, metavar="N",
        help="agents, all on this machine (default 1; with --trace one for each worker)")
    add("--hosts", type=int, metavar="N",
        help="agents, each on a host of its own: Linux namespaces on a network of the drill's. Root only")
    add("--replica-size", type=int, metavar="K", help="so many of a node's workers hold one copy of the state "
        "together, of a model that fully_shard shards over them: as for elastic run (default 1)")
    add("--resume-workers", type=int, metavar="N", help="after everything was lost (default: --workers)")
    add("--undisturbed-workers", type=int, metavar="N", help="in the run without faults (default 1)")

    add = made.add_argument_group("faults drawn from a seed").add_argument
    add("--seed", type=int, metavar="S", help="(default: one that is drawn, and printed)")
    add("--faults", metavar="KINDS", help=f"of {', '.join(NAMED)}, with commas between (where no fault is named: "
        f"{DEFAULT_FAULTS}; on hosts {DEFAULT_HOST_FAULTS})")
    add("--rate", type=float, metavar="R", help=f"faults per step (default {DEFAULT_RATE})")

    add = made.add_argument_group("machines that went and came, as they were recorded").add_argument
    add("--trace", metavar="NAME", help="agents of nodes are killed, and nodes join; a CSV file with the columns "
        f"t_s,op,node, or one of {', '.join(recorded_names())}")
    add("--speedup", type=float, metavar="N", help="seconds of it in a second of the run (default: all of it fits)")

    named = made.add_argument_group("faults at moments that you name (each may be given several times)")
    of_hosts = made.add_argument_group("faults of the whole host that a worker is on, likewise; with --hosts")
    for name, one in NAMED.items():
        group, shape = of_hosts if one.kind.needs_hosts else named, "W@…" if one.flag.of_worker else "@…"
        group.add_argument(f"--{name}", action="append", default=[], metavar=shape, help=one.flag.what)
    named.add_argument("--grace", type=float, metavar="SECONDS", help="for --leave (default 30)")

    add = made.add_argument_group("storage, and what it suffers: probabilities, per operation").add_argument
    add("--storage-errors", type=float, metavar="P", help="it fails, and may work when tried again")
    add("--storage-stalls", type=float, metavar="P", help="it takes 2 s longer")
    add("--torn-writes", type=float, metavar="P", help="a write leaves half of the object")
    add("--stale-listings", type=float, metavar="P", help="a listing shows what the last one showed")
    add("--storage", metavar="URL", help="both runs live below it, in folders of their own that go")
    add_storage_option(add)
    add("--save-every", metavar="N|TIME|script", help="steps, a time such as 5s, or script: what the script says "
        "(default, unless all is lost before its first save)")

    add = made.add_argument_group("the drill").add_argument
    add("--torchrun", action="store_true", help="SCRIPT enters no elastic.Run and is run as torchrun runs it: what do "
        "faults do to it? {run} in its arguments is a folder of each run's own")
    add("--plan", type=Path, metavar="FILE", help="replay a plan: it says workers, nodes and all faults")
    add("--folder", type=Path, help="where both runs go: absent or empty (default: a temporary folder)")
    add("--keep", action="store_true", help="keep both runs; those of a failed drill are kept anyway")
    add("--within", type=float, default=WITHIN_S, metavar="SECONDS", help=f"for each run (default {WITHIN_S:g})")
    add("--stop-after", type=int, metavar="N", help="both runs are stopped after so many steps")
    add("--cross-check", type=float, metavar="PART",
        help="so large a part of all shares is passed by two workers, 1 for all (default: as the script says)")
    add("--hang-limit", type=float, metavar="SECONDS", help="as for elastic run (default 30)")
    # fmt: on
    return made
