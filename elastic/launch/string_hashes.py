"""Strings hash alike in all workers of `elastic run`, on every node and at every start.

Python seeds the hashes of strings anew in every process: `hash(word) % buckets` as a feature, and a vocabulary numbered
in the order of a set, would be others on each node and after each resume, and nothing would show it.

Promises  PYTHONHASHSEED is 0 in this process and in all that it starts, unless the user has set it.
Leaves    workers that torchrun or the user starts: theirs is the user's to set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

VARIABLE = "PYTHONHASHSEED"


def hash_alike(argv: Sequence[str]) -> None:
    """Start this process anew, as the same command, if its hashes are random; to be called before anything else.

    argv  the command's arguments; a process that was started as anything else is left as it is: a fork, a script that
          calls the command, one that reads its program from stdin

    Workers are forks of this process, and nothing changes the hashes of one that runs.
    """
    program, arguments = sys.orig_argv[: -len(argv)], sys.orig_argv[-len(argv) :]
    is_command = arguments == list(argv) and (program[-2:] == ["-m", "elastic"] or Path(program[-1]).name == "elastic")
    is_set = bool(os.environ.get(VARIABLE)) or sys.flags.ignore_environment or not sys.flags.hash_randomization
    if is_set or not is_command:
        return
    os.environ[VARIABLE] = "0"
    with suppress(OSError):  # or the hashes stay what they are
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
