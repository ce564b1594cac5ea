"""A recipe that says, as lines of JSON, how many bytes its worker has sent over TCP: by each step, in inner steps.

elastic run --nproc-per-node=2 -m tests.kit.programs.sending diloco URL [FLAGS]
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from elastic.events.observer import ObservedRun, Observer
from elastic_checkpoint import linux

RECIPES = Path(__file__).parents[3] / "recipes"
BYTES_SENT = 200  # where struct tcp_info of linux/tcp.h has it, an unsigned 64-bit number


def sent_bytes() -> int:
    """Return how many bytes this process has sent over the TCP connections that are open, sent again or not."""
    sent = 0
    for link, number in {link: number for number, link in linux.descriptors().items()}.items():
        if link.startswith("socket:["):
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:  # another thread may have closed it
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    sent += struct.unpack_from(
                        "Q", copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 208), BYTES_SENT
                    )[0]
    return sent


class Sending(Observer):
    def __init__(self, _: str) -> None:
        """Take the observer's argument, which says nothing."""

    def at(self, moment: str, run: ObservedRun, share: int | None = None) -> None:
        if moment == "applied":
            say(step=run.step_index, rank=run.rank, sent=sent_bytes())


def measured(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which says what is sent while it runs."""

    def measuring(*args: Any) -> Any:
        before = sent_bytes()
        result = function(*args)
        say(inner=sent_bytes() - before)
        return result

    return measuring


def say(**facts: int) -> None:
    os.write(1, f"\n{json.dumps(facts)}\n".encode())  # in one piece: the ranks share a pipe


def main() -> None:
    os.environ["ELASTIC_OBSERVER"] = "tests.kit.programs.sending:Sending:"
    sys.path.insert(0, str(RECIPES))
    recipe: Any = importlib.import_module(sys.argv.pop(1))
    if hasattr(recipe, "inner_steps"):
        recipe.inner_steps = measured(recipe.inner_steps)
    recipe.main()


if __name__ == "__main__":
    main()
