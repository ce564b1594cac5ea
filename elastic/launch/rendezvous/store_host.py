"""The stores of the rendezvous that this node hosts: each in a process of its own, opened again when that ends.

A store that has ended, for somebody has filled it (store_process.py), leaves its port open, for the agent has that:
who comes meanwhile waits for the next store, a moment, and finds the words in it that are to be there.

Promises  what strangers send to a store's port takes no memory of this process.
          After `close`, and after this process's end, nobody listens at those ports.
Leaves    all else that stands in a store to those who write it there, and see that it is gone.
"""

from __future__ import annotations

import contextlib
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping

from elastic.launch.processes import early_signals
from elastic.launch.rendezvous import store_process
from elastic.launch.rendezvous.store_process import PACKET_MAX, OpenStore
from elastic_checkpoint import linux
from elastic_checkpoint.net.port import listen

# As a run begins, each of N nodes may be sending what is known of all, twice 350 bytes of each: N MB do up to N = 1500.
_BYTES, _BYTES_A_NODE = 32 << 20, 1 << 20
_CONNECTIONS, _CONNECTIONS_A_NODE = 256, 8
_BACKLOG = 4096
_PAUSE_S = 0.2
_SAID_AGAIN_S = 60.0


class StoreHost:
    """The stores of this node; made while a process that has loaded torch has one thread, as the keeper is its fork."""

    def __init__(self, nodes_max: int, *, preloaded: bool, say: Callable[[str], None]) -> None:
        self._nodes_max = nodes_max
        self._say = say
        self._stores: dict[int, _Hosted] = {}
        self._changing = threading.RLock()
        self._keeper = _start_keeper(forked=preloaded)

    def open(self, ports: range | None, words: Mapping[str, str] | None = None) -> int:
        """Open a store at the first of these ports that is free, None: at any; return the port. Raises OSError.

        words  what stands in it from the beginning
        """
        store = _Hosted(listen("", ports, backlog=_BACKLOG), words or {})
        self._stores[store.port] = store
        threading.Thread(target=self._keep, args=[store], name="elastic-host", daemon=True).start()
        return store.port

    def hosts(self, port: int) -> bool:
        return port in self._stores

    def remember(self, key: str, word: str) -> None:
        """Have this stand in each of the stores when it is opened again."""
        for store in list(self._stores.values()):
            store.words[key] = word

    def close_one(self, port: int) -> None:
        """Close the store at this port, if there is one."""
        with self._changing:
            if (store := self._stores.pop(port, None)) is not None:
                store.close()

    def all_open(self) -> None:
        """Keep nothing for stores where there is none: no other one will be wanted."""
        if not self._stores:
            self._keeper.close()

    def close(self) -> None:
        for port in list(self._stores):
            self.close_one(port)
        self._keeper.close()

    def _keep(self, store: _Hosted) -> None:
        """Open this store again each time that its process ends, until it is closed."""
        said_s = -math.inf
        while True:
            try:
                why = self._until_end(store)
            except OSError as refused:  # no process, or no file, can be had
                why = str(refused)
            if store.is_closed:
                return
            if time.monotonic() - said_s > _SAID_AGAIN_S:
                said_s = time.monotonic()
                self._say(
                    f"the rendezvous' store at port {store.port} is opened anew: {why or 'its process was killed'}\n"
                    "  state  nodes meet, and find the run, there as before\n"
                    "  next   let nobody but the run's nodes reach that port"
                )
            time.sleep(_PAUSE_S)

    def _until_end(self, store: _Hosted) -> str:
        """Return why a store's process has ended, as far as it has said so. Raises OSError."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, its:
            with self._changing:
                if store.is_closed:
                    return ""
                store.channel = ours
                ours.send(
                    OpenStore(
                        words=store.words,
                        bytes_max=_BYTES + self._nodes_max * _BYTES_A_NODE,
                        connections_max=_CONNECTIONS + self._nodes_max * _CONNECTIONS_A_NODE,
                    ).packet()
                )
                self._hand_over(store.listening, its)
            its.close()
            return ours.recv(PACKET_MAX).decode()

    def _hand_over(self, *sockets: socket.socket) -> None:
        """Have the keeper fork a store for these sockets; start another keeper if it was killed."""
        descriptors = [one.fileno() for one in sockets]
        try:
            socket.send_fds(self._keeper, [b"fork"], descriptors)
        except OSError:  # it was killed
            self._keeper.close()
            self._keeper = _start_keeper(forked=False)
            socket.send_fds(self._keeper, [b"fork"], descriptors)


class _Hosted:
    """A store of this node's; channel: to its process; words: of the next one."""

    def __init__(self, listening: socket.socket, words: Mapping[str, str]) -> None:
        self.listening = listening
        self.port: int = listening.getsockname()[1]
        self.words = dict(words)
        self.channel: socket.socket | None = None
        self.is_closed = False

    def close(self) -> None:
        """Refuse newcomers from here on, whoever has the socket, too."""
        self.is_closed = True
        for one in (self.listening, self.channel):
            with contextlib.suppress(OSError):
                if one is not None:
                    one.shutdown(socket.SHUT_RDWR)
        self.listening.close()


def _start_keeper(*, forked: bool) -> socket.socket:
    """Start a keeper, as a fork or as a new interpreter, and return our end of the connection to it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        if not forked:
            process = subprocess.Popen(
                [sys.executable, "-m", store_process.__name__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                **linux.leading_group(),
            )
            process.returncode = 0  # whoever buries all children of this process waits for it
        elif early_signals.fork() == 0:
            store_process.in_fork(its)
    return ours
