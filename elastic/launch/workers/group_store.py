"""Where torch.distributed's default group would meet on this node, and what a worker finds of its world as of torchrun.

A port is listened on from the beginning, for as long as the agent lives. Only when a worker comes to it is there a
store of torch's: so the agent knows that a group forms before it can have formed, and an elastic.Run, which needs none,
has none. Each world has a store of its own: in one that an earlier world had used its workers would find the dead.

Promises  the store is reached under this node's address alone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from collections.abc import Callable

from torch.distributed import DistError, TCPStore

from elastic.launch.node_rules import NodeRules
from elastic.membership.environment import WORLD
from elastic.membership.messages.messages import World
from elastic_checkpoint.net.event_loop import EventLoop
from elastic_checkpoint.net.port import listen

_ENDS_S = 5.0  # a store ends within milliseconds


class GroupStore:
    """The store of one node, for the worlds of which it is the first node; its port stays."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._listener = listen(address)
        self.port: int = self._listener.getsockname()[1]
        self._loop: EventLoop | None = None
        self._forms: Callable[[], None] | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, loop: EventLoop, forms: Callable[[], None]) -> None:
        """Wait for a worker, of a new world, to come; then call `forms`, and have a store there."""
        self._end_store()
        self._forms = forms
        if self._loop is None:
            self._loop = loop
            loop.register(self._listener, selectors.EVENT_READ, self._comes)

    def close(self) -> None:
        """Wait for nobody any more, and end the store."""
        self._stop_waiting()
        self._end_store()
        self._listener.close()

    def _stop_waiting(self) -> None:
        if self._loop is not None:
            self._loop.unregister(self._listener)
            self._loop = None

    def _comes(self) -> None:
        assert self._forms is not None
        self._stop_waiting()
        # in a thread, as torch's store asks for the names of those who connect, and that may take seconds
        fd, closed = os.dup(self._listener.fileno()), self._closed
        self._thread = threading.Thread(target=self._serve, args=[fd, closed], name="elastic-group", daemon=True)
        self._thread.start()
        self._forms()

    def _serve(self, fd: int, closed: threading.Event) -> None:
        """Hold the store until it is closed; where none can be had, its workers cannot connect, and say so."""
        with contextlib.suppress(DistError):
            store = TCPStore(
                self._address,
                self.port,
                is_master=True,
                wait_for_workers=False,
                use_libuv=True,
                master_listen_fd=fd,
            )
            closed.wait()
            del store

    def _end_store(self) -> None:
        self._closed.set()
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
