"""What a port does where no descriptor is left: whoever waits at it would make each turn of its loop come at once."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.event_loop import EventLoop, run_once
from elastic_checkpoint.net.port import Port, listen

TURNS_S = 0.25


class Full:
    """A listener of a process that has no descriptor left."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.asked = 0

    def accept(self) -> Any:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_a_process_without_descriptors_does_not_turn_its_loop_for_nothing() -> None:
    listener: Any = Full(listen("127.0.0.1"))
    port = Port(listener, secret=None, patience_s=30, expected=0)
    loop, accepted = EventLoop(), list[Connection]()
    port.accept_in(loop, lambda *_: accepted[0])
    with socket.create_connection(listener.getsockname()):
        until_s, turns = time.monotonic() + TURNS_S, 0
        while (now_s := time.monotonic()) < until_s:
            due_s = port.next_s()
            run_once(loop, max(0.0, (until_s if due_s is None else min(due_s, until_s)) - now_s))
            port.tick(time.monotonic())
            turns += 1
    port.close()
    assert 2 <= listener.asked <= 4
    assert turns <= 10
