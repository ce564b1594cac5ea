"""A rendezvous' store in a process of its own, which holds so much and no more: whoever reaches its port may fill it.

    agent -> keeper   a socket that listens, and a channel: fork a store for these
    agent -> store    OpenStore, by the channel
    store -> agent    why it ends, before it does

torch's store knows no bound: its keys, queues and half-read messages grow with what anybody sends, and where memory is
refused it drops that connection and stays as full as it is. So a store looks at itself, and ends when it has grown;
between two looks the kernel gives it no more than twice as much. Its agent has it opened again (store_host.py).

Promises  a store ends with its agent, however that ends, and takes nothing of it along.
          Signals to leave, which some launchers send to every process of a node, end neither it nor its keeper.
Leaves    what a store says to its agent.

Of torch 2.13: `master_listen_fd` is public. Of glibc: `__nss_configure_lookup` is declared in nss.h; without it, names
are asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

from torch.distributed import TCPStore

from elastic_checkpoint import linux
from elastic_checkpoint.net.codec import Facts, Int, as_message, decode, encode, made

KEEPER, NAME = "elastic-keeper", "elastic-store"  # as `top` shows them
PACKET_MAX = 1 << 16
_LOOK_S = 0.25
_OWN_FILES = 64  # of a store that nobody is connected to there are some ten
_PASSED_OVER = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class OpenStore(Facts):
    """What a store is opened with.

    words  what stands in it from the beginning, by key
    bytes_max, connections_max  beyond which it ends
    """

    words: dict[str, str]
    bytes_max: Int
    connections_max: Int

    def packet(self) -> bytes:
        return encode(as_message(self))


def in_fork(agent: socket.socket) -> NoReturn:
    """Be the keeper, in a process that the agent, which has one thread and has loaded torch, has just forked."""
    try:
        linux.lead_group()
        linux.keep_only(agent.fileno())
        main(agent.detach())
    finally:
        os._exit(0)


def main(fd: int) -> None:
    """Fork stores until the agent closes its end; a keeper has one thread, so that it can."""
    linux.name_process(KEEPER)
    linux.signal_at_parents_end(signal.SIGKILL)
    for number in (*_PASSED_OVER, signal.SIGCHLD):  # the last: the kernel buries stores
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)  # torch says there what strangers do
    os.dup2(null, 1)
    os.dup2(null, 2)
    _ask_no_name_server()
    with socket.socket(fileno=fd) as agent:
        while len(fds := socket.recv_fds(agent, PACKET_MAX, 2)[1]) == 2:
            with contextlib.suppress(OSError):  # no process can be forked: the agent sees its channel's end
                if os.fork() == 0:
                    _in_store(*fds)
            for one in fds:
                os.close(one)


def _in_store(listening: int, channel: int) -> NoReturn:
    """Be a store until it ends, and tell the agent why."""
    try:
        linux.name_process(NAME)
        linux.signal_at_parents_end(signal.SIGKILL)
        linux.keep_only(listening, channel)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000")  # should memory lack, it goes first
        with socket.socket(fileno=channel) as agent:
            why = _serve(listening, agent, made(OpenStore, decode(agent.recv(PACKET_MAX))))
            agent.send(why.encode())
    finally:
        os._exit(0)


def _serve(listening: int, agent: socket.socket, asked: OpenStore) -> str:
    """Serve until the store has grown too large or its agent closes; return why it ends."""
    before = linux.data_bytes()
    _limit(resource.RLIMIT_CORE, 0)
    if before:
        _limit(resource.RLIMIT_DATA, before + 2 * asked.bytes_max)
    files = _limit(resource.RLIMIT_NOFILE, asked.connections_max + 2 * _OWN_FILES)
    failures: list[Exception] = []
    threading.Thread(target=_open, args=[listening, asked.words, failures], name="elastic-open", daemon=True).start()
    while not select.select([agent], [], [], _LOOK_S)[0]:
        if _has_open(files - _OWN_FILES):
            return f"it has {files - 2 * _OWN_FILES} connections"
        if linux.data_bytes() - before > asked.bytes_max:
            return f"what it holds has grown by {asked.bytes_max >> 20} MB"
        if failures:
            return str(failures[0])
    return ""


def _has_open(files_max: int) -> bool:
    """Return whether this process has more than so many files open."""
    try:
        return len(os.listdir("/proc/self/fd")) > files_max
    except OSError as refused:
        return refused.errno == errno.EMFILE


def _open(listening: int, words: dict[str, str], failures: list[Exception]) -> None:
    """Open torch's store, and hold it; what goes wrong is put into `failures`."""
    try:
        with socket.socket(fileno=os.dup(listening)) as there:
            port = there.getsockname()[1]
        store = TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, use_libuv=True, master_listen_fd=listening
        )
        for key, word in words.items():
            store.set(key, word)
        threading.Event().wait()  # it is closed where nobody holds it
    except Exception as failure:
        failures.append(failure)


def _ask_no_name_server() -> None:
    """Have names looked up in files only."""
    # torch asks for the name of whoever connects, and nobody else is served until it has an answer: 5 s, where a
    # question is lost (51 of 600 strangers were let in, in the first of them: measured, 2026-11-29).
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")


def _limit(what: int, value: int) -> int:
    """Limit this process to `value`, or to less where it may have no more; return that."""
    _, hard = resource.getrlimit(what)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (value, hard))
    return value


if __name__ == "__main__":
    main(int(sys.argv[1]))
