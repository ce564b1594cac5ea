"""Where torch.distributed's default group would meet on this node, and what a worker finds of its world as of torchrun.

A port is listened on from the beginning, for as long as the agent lives. Only when somebody comes to it is there a
store of torch's, since an elastic.Run needs none. A group forms once there is a key in it, as init_process_group writes
one first of all: a scanner of ports comes, too, and writes none. Each world has a store of its own: in one that an
earlier world had used its workers would find the dead.

Promises  the store is reached under this node's address alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import threading
from collections.abc import Callable

from torch.distributed import DistError, TCPStore

from elastic.launch.node_rules import NodeRules
from elastic.membership.environment import WORLD
from elastic.membership.messages.messages import World
from elastic_checkpoint.net.event_loop import EventLoop
from elastic_checkpoint.net.port import listen

_ENDS_S = 5.0  # a store ends within milliseconds
_LOOK_S = 0.02  # between two looks for a key
_ANSWERS_S = 0.3  # the thread does within a millisecond, but where torch waits for a name
_ASK, _NO_KEY, _KEY = b"?", b"0", b"1"


class GroupStore:
    """The store of one node, for the worlds of which it is the first node; its port stays."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._listener = listen(address)
        self.port: int = self._listener.getsockname()[1]
        self._loop: EventLoop | None = None
        self._waits = False
        self._forms: Callable[[], None] | None = None
        self._first_key: socket.socket | None = None  # readable once there is one, or as an answer to _ASK
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, loop: EventLoop, forms: Callable[[], None]) -> None:
        """Have a store for a new world once somebody comes, and call `forms` once there is a key in it."""
        self._end_store()
        self._forms, self._loop = forms, loop
        if not self._waits:
            self._waits = True
            loop.register(self._listener, selectors.EVENT_READ, self._comes)

    def look(self) -> None:
        """Look for a key now: a worker that has ended may have written the first one since the last look."""
        if self._first_key is not None:
            with contextlib.suppress(BrokenPipeError):
                self._first_key.send(_ASK)
            if select.select([self._first_key], [], [], _ANSWERS_S)[0]:
                self._has_key()

    def close(self) -> None:
        """Wait for nobody any more, and end the store."""
        self._stop_waiting()
        self._end_store()
        self._listener.close()

    def _stop_waiting(self) -> None:
        if self._waits and self._loop is not None:
            self._loop.unregister(self._listener)
            self._waits = False

    def _comes(self) -> None:
        assert self._loop is not None
        self._stop_waiting()
        self._first_key, its_end = socket.socketpair()
        self._loop.register(self._first_key, selectors.EVENT_READ, self._has_key)
        # in a thread, as torch's store asks for the names of those who connect, and that may take seconds
        of_thread = os.dup(self._listener.fileno()), self._closed, its_end
        self._thread = threading.Thread(target=self._serve, args=of_thread, name="elastic-group", daemon=True)
        self._thread.start()

    def _has_key(self) -> None:
        assert self._first_key is not None
        assert self._forms is not None
        came = self._first_key.recv(64)
        if came and _KEY not in came:
            return
        self._await_no_key()
        if came:
            self._forms()

    def _await_no_key(self) -> None:
        if self._first_key is not None and self._loop is not None:
            self._loop.unregister(self._first_key)
            self._first_key.close()
            self._first_key = None

    def _serve(self, fd: int, closed: threading.Event, first_key: socket.socket) -> None:
        """Hold the store until it is closed; where none can be had, its workers cannot connect, and say so."""
        with contextlib.closing(first_key), contextlib.suppress(DistError, OSError):
            store = TCPStore(
                self._address,
                self.port,
                is_master=True,
                wait_for_workers=False,
                use_libuv=True,
                master_listen_fd=fd,
            )
            asked = b""
            while not closed.is_set() and not store.num_keys():
                if asked:
                    first_key.send(_NO_KEY)
                asked = first_key.recv(64) if select.select([first_key], [], [], _LOOK_S)[0] else b""
            if not closed.is_set():
                first_key.send(_KEY)
            closed.wait()
            del store

    def _end_store(self) -> None:
        self._closed.set()
        self._await_no_key()
        self._closed = threading.Event()
        if self._thread is not None:
            self._thread.join(_ENDS_S)
            self._thread = None


def environment(world: World, local_rank: int, rules: NodeRules) -> dict[str, str]:
    """Return the variables that torchrun sets for a worker; WORLD names them, for who enters a run and has no rank."""
    rank = str(world.first_rank + local_rank)
    found = {
        "RANK": rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": rules.role,
        "GROUP_RANK": str(world.group_rank),
        "GROUP_WORLD_SIZE": str(world.group_world_size),
        "WORLD_SIZE": str(world.world_size),
        "ROLE_WORLD_SIZE": str(world.world_size),
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(world.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(rules.restarts_max),
        "TORCHELASTIC_RUN_ID": rules.job or "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    return {**found, WORLD: ",".join(found)}
