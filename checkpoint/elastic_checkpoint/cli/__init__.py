"""The command `elastic checkpoint`: what lies at a URL, whether it is whole, what it is, and what may go.

    elastic checkpoint ls URL                           the commits, newest first
    elastic checkpoint verify URL [--step N]            reads every byte and names what is damaged
    elastic checkpoint digest URL [--step N]            SHA-256 of the tensors, and of each part of the state
    elastic checkpoint diff URL_A[@STEP] URL_B[@STEP]   what differs between two, to the bit
    elastic checkpoint export URL --to FORMAT OUT       for other tools: safetensors, or torch's own format
    elastic checkpoint sweep URL [--keep N]             removes what nothing needs any more

Only `sweep` changes anything at a URL, and only where no job holds it. The exit status is what a script
asks for: 0 yes, 1 no, 2 it could not be found out (usage.py says what that is for each command).

usage         how it is called, and what each exit status means; screen: how answers reach people and scripts
commands      what each command does; comparisons: digest and diff
opened_run    the URL that a person gave
export        for other tools; export_dcp: in torch's format; new_folder: that it appears whole
housekeeping  sweeping by a person
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from elastic_checkpoint.cli.screen import Screen
from elastic_checkpoint.cli.usage import NO, UNKNOWN, parse
from elastic_checkpoint.errors import CheckpointError, CorruptCheckpoint, NoCheckpoint
from elastic_checkpoint.storage import redact

INTERRUPTED, BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    asked = parse(arguments)
    screen = Screen()
    try:
        from elastic_checkpoint.cli.commands import COMMANDS

        status = COMMANDS[asked.command](asked, screen)
        sys.stdout.flush()
        return status
    except CheckpointError as error:
        screen.fail(f"{type(error).__name__}: {error}")
        damaged = isinstance(error, CorruptCheckpoint) or (isinstance(error, NoCheckpoint) and bool(error.rejected))
        return NO if damaged and asked.command != "diff" else UNKNOWN
    except KeyboardInterrupt:
        screen.fail("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `elastic checkpoint ls | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception:  # a defect of ours must not end as an answer does: 1 would say "they differ"
        screen.fail(f"this is a defect of `elastic checkpoint`; please report it\n{redact(traceback.format_exc())}")
        return UNKNOWN
