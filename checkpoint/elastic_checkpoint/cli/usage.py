"""How the command `elastic checkpoint` is called: arguments, help, and what each exit status means."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from elastic_checkpoint.command_line import Parser, add_storage_option

YES, NO, UNKNOWN = 0, 1, 2  # exit statuses

_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([kMGT]i?)?B?")
_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}

_TROUBLE = """2  it could not be found out (arguments, URL, rights, storage), or there is no
   checkpoint; the reason is on standard error"""

_STATUS = {
    "ls": "0  there is a checkpoint to load\n1  there are only ones that are never loaded",
    "verify": "0  every byte is as it was written\n1  something is damaged",
    "digest": "0  the digest was printed\n1  what was asked for is damaged",
    "diff": "0  they are equal, or differ in absolute paths and URLs alone\n1  they differ",
    "export": "0  OUT is there\n1  what was asked for is damaged; OUT is as it was",
    "sweep": "0  what may go is gone, or was listed (--dry-run)\n1  it stopped early, since another job took the URL",
}

_ABOUT = {
    "ls": "List the checkpoints at URL, newest first: step, size, age, workers that saved it, claim, and whether it "
    "belongs to the run's lineage. What lies outside was saved by a job that the run had moved on from, and is never "
    "loaded.",
    "verify": "Read every byte of every checkpoint at URL (or of one step) and name what is damaged.",
    "digest": "Print the SHA-256 of the newest whole checkpoint's tensors (names, dtypes, shapes, bytes), and of each "
    "part of the state. It does not depend on sharding or world size: that of a part equals "
    "elastic_checkpoint.digest(model) of the model that was saved.",
    "diff": "Compare two checkpoints, bit by bit: what B lacks (missing), what only B has (extra), what is of another "
    "kind, shape or dtype (other), and whose values differ (how many elements, and the largest absolute difference of "
    "two finite ones). How a state was sharded or held in containers does not count, nor do values or keys that are "
    "absolute paths or URLs on both sides (path). Without a step, the newest is compared.",
    "export": "Write a checkpoint for other tools. It is read and verified first, then read again tensor by tensor, so "
    "that memory is needed for one object of it (128 MiB) or one tensor. Of what lies at a URL as much is kept instead "
    "as fits into a quarter of the free memory. OUT is a new local folder, which appears "
    "whole or not at all.",
    "sweep": "Remove what nothing needs any more: the remains of saves that never finished, checkpoints outside the "
    "lineage and, with --keep, older ones: what is kept in their place is verified first, byte by byte. A run sweeps "
    "by itself after each save; this is for runs that ended. It takes the run's next claim, so it refuses while a job "
    "holds the URL.",
}

_MORE = {
    "ls": "",
    "verify": "",
    "digest": "",
    "diff": "examples:\n  elastic checkpoint diff runs/a runs/b\n  elastic checkpoint diff runs/a@1200 s3://bucket/b@1200\n"
    "  elastic checkpoint diff runs/a 1100 1200\n"
    "  elastic checkpoint diff runs/a runs/b --only model --only optimizer\n\n",
    "export": "formats:\n"
    "  safetensors  as on the Hugging Face hub: model.safetensors or, beyond\n"
    "               --max-shard-size, numbered files and an index beside them.\n"
    "               Tensors only, named as in the part's state_dict. Of tied tensors\n"
    "               the first is written; the metadata maps the other names to it.\n"
    "  dcp          for torch.distributed.checkpoint.load: tensors and plain values,\n"
    "               below the parts' names. It holds pickles, unlike our own.\n\n"
    "examples:\n  elastic checkpoint export runs/a --to safetensors out\n"
    "  elastic checkpoint export runs/a --to dcp --part model --part optimizer out\n\n",
    "sweep": "Never below two whole checkpoints. What the run itself was told to keep is not\n"
    "known here: repeat its keep and keep_every. Interrupted, it may be run again.\n\n"
    "example:\n  elastic checkpoint sweep runs/a --keep 3 --keep-every 1000 --dry-run\n\n",
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what was asked, with the command's name in `command`. Exits with status 2 where it makes no sense."""
    parser = Parser(
        prog="elastic checkpoint",
        description="Looks at a run's checkpoints, in a folder or at any fsspec URL. Only sweep changes any.",
        epilog="exit status:\n  0  yes: there is one, it is whole, they are equal, it is done\n  1  no\n"
        "  2  it could not be found out, or there is no checkpoint\n"
        "elastic checkpoint COMMAND --help says more. With --json, one JSON document goes\n"
        "to standard output. Reasons, and a bar on a terminal, go to standard error.",
        formatter_class=_Formatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command", parser_class=Parser)
    ls = _command(commands, "ls", "list the checkpoints, newest first")
    ls.add_argument("-l", "--long", action="store_true", help="also when it was saved, its objects and its name")
    for name, summary in (
        ("verify", "read every byte and name what is damaged"),
        ("digest", "SHA-256 of the tensors, and of each part of the state"),
    ):
        _add_step(_command(commands, name, summary))
    _add_diff(_command(commands, "diff", "what differs between two checkpoints", url=False))
    _add_export(_command(commands, "export", "write safetensors, or torch's own format"))
    _add_sweep(_command(commands, "sweep", "remove what nothing needs any more"))
    asked = parser.parse_args(arguments)
    if asked.command == "sweep" and asked.keep_every is not None and asked.keep is None:
        parser.error("--keep-every says what stays beside the newest: give --keep, too")
    return asked


def _command(
    commands: argparse._SubParsersAction[Parser], name: str, summary: str, *, url: bool = True
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=_ABOUT[name],
        epilog=f"{_MORE[name]}exit status:\n"
        + "\n".join(f"  {line}" for line in f"{_STATUS[name]}\n{_TROUBLE}".splitlines()),
        formatter_class=_Formatter,
    )
    if url:
        command.add_argument("url", metavar="URL", help="a folder or any fsspec URL")
    command.add_argument("--json", action="store_true", help="print one JSON document")
    add_storage_option(command.add_argument)
    command.add_argument(
        "--retry-s", type=float, default=30.0, metavar="S", help="how long a failing storage is tried again (30)"
    )
    return command


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Fills the description, and leaves the epilog as it is."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def _add_step(command: argparse.ArgumentParser) -> None:
    newest = "all" if command.prog.endswith("verify") else "the newest whole one"
    command.add_argument("--step", type=int, metavar="N", help=f"the checkpoint of this step (default: {newest})")


def _add_diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", metavar="URL_A[@STEP]", help="a folder or any fsspec URL")
    command.add_argument("b", metavar="URL_B[@STEP]", help="another one; or, after a URL, two steps of it")
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="compare this part of the state, such as model or model.head; may be given several times",
    )
    command.add_argument("c", metavar="STEP", nargs="?", type=int, help=argparse.SUPPRESS)


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument("out", metavar="OUT", help="a folder that is absent or empty")
    command.add_argument("--to", required=True, choices=("safetensors", "dcp"), help="the format")
    _add_step(command)
    command.add_argument(
        "--part",
        action="append",
        metavar="NAME",
        help="a top-level part of the state (default: model); may be given several times",
    )
    command.add_argument(
        "--max-shard-size",
        type=_size,
        default=5 * 10**9,
        metavar="SIZE",
        help="the most tensor bytes in one safetensors file, such as 500MB or 2GiB (5GB)",
    )


def _add_sweep(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--keep", type=_keep, metavar="N", help="of the run's checkpoints keep only the N newest whole"
    )
    command.add_argument(
        "--keep-every",
        type=_keep_every,
        metavar="N",
        help="beside those, of every N steps (0 to N-1, N to 2N-1, ...) the first checkpoint stays; only with --keep, "
        "without which all stay",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="list what would go (but for unfinished uploads), and change nothing"
    )
    command.add_argument(
        "--grace-s",
        type=float,
        default=3600.0,
        metavar="S",
        help="what is unfinished or outside the lineage stays until it is this old (3600)",
    )
    command.add_argument(
        "--take-over",
        action="store_true",
        help="also where the job that held the URL is silent: if it lives on, it can save nothing more",
    )


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _FACTORS[found[2] or ""]) if found else 0
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write 500MB or 2GiB")
    return size


def _keep(text: str) -> int:
    try:
        keep = int(text)
    except ValueError:
        keep = 0
    if keep < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: at least 2 checkpoints are kept")
    return keep


def _keep_every(text: str) -> int:
    try:
        every = int(text)
    except ValueError:
        every = 0
    if every < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of steps")
    return every
