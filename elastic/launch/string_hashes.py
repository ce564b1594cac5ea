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

VARIABLE = "PYTHONHASHSEED"


def hash_alike(argv: Sequence[str]) -> None:
    """Begins this process anew, as the same command, where the hashes are random. It is to be called before anything
    else: the workers are forks of this process, and nothing changes the hashes of one that runs.

    argv  the command's arguments; where this process was started with others (it is a fork, say), it is left as it is
    """
    if VARIABLE in os.environ or not sys.flags.hash_randomization or sys.orig_argv[-len(argv) :] != list(argv):
        return
    os.environ[VARIABLE] = "0"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
