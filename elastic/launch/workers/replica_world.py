"""The world of a replica of several workers: a name, and a store where their torch.distributed meets.

Each time that a replica is started it has another one: in a store that an earlier one had used its workers would find
the keys of the dead. With it they find what torchrun's workers do, so that `init_process_group()` needs no argument.

Promises  the store can be reached from this machine alone, and is closed once the last of the workers has ended.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading

from torch.distributed import DistError, TCPStore

from elastic.membership.environment import REPLICA
from elastic_checkpoint.net.port import listen

_LOOPBACK = "127.0.0.1"


class ReplicaWorld:
    """One incarnation of a replica of `size` workers; restart: how many there were before, on this node.

    name  unlike that of any other
    """

    def __init__(self, node: str, size: int, restart: int) -> None:
        self.name = f"{node}-{secrets.token_hex(3)}"
        self._size = size
        self._restart = restart
        self._inside = size
        self._closed = threading.Event()
        listener = listen(_LOOPBACK)
        self._port: int = listener.getsockname()[1]
        # in a thread, as torch's store asks for the names of those who connect, and that may take seconds
        threading.Thread(target=self._serve, args=[listener], name="elastic-replica", daemon=True).start()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables of the worker that has this place."""
        return {
            REPLICA: f"{self._size}:{self.name}",
            "RANK": str(rank),
            "WORLD_SIZE": str(self._size),
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(self._port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(self._restart),
        }

    def left(self) -> None:
        """Note that one of its workers has ended, or will not come."""
        self._inside -= 1
        if self._inside == 0:
            self._closed.set()

    def _serve(self, listener: socket.socket) -> None:
        """Hold the store until it is closed; where none can be had, its workers cannot connect, and say so."""
        with contextlib.suppress(DistError):
            store = TCPStore(
                _LOOPBACK,
                self._port,
                is_master=True,
                wait_for_workers=False,
                use_libuv=True,
                master_listen_fd=listener.detach(),
            )
            self._closed.wait()
            del store
