"""How fast do bytes move between processes of this machine, if they do nothing else? What a join is measured against.

    python -m tests.benchmarks.recovery_loopback gloo|tcp RANK WORLD PORT BYTES

Rank 0 receives BYTES in all, an equal part from each of the others, and prints the seconds of each round: the way that
a newcomer receives its state. gloo: torch.distributed's send and recv; tcp: plain sockets, one thread for each.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.benchmarks.recovery_runs import ROOT

ROUNDS = 5
_WITHIN_S = 120


def seconds(kind: str, world: int, size: int) -> list[float]:
    """Of each round, measured by the receiver."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", __spec__.name, kind]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(port), str(size)], cwd=ROOT, env=env, stdout=subprocess.PIPE
        )
        for rank in range(world)
    ]
    try:
        told, _ = ranks[0].communicate(timeout=_WITHIN_S)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [float(word) for word in told.split()]


def _gloo(rank: int, world: int, port: int, size: int) -> None:
    within = timedelta(seconds=_WITHIN_S)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world, timeout=within)
    part = size // (world - 1)
    whole = torch.ones(part * (world - 1) if rank == 0 else part, dtype=torch.uint8)
    for _ in range(ROUNDS):
        dist.barrier()
        begun = time.perf_counter()
        if rank == 0:
            coming = [dist.irecv(piece, source) for source, piece in enumerate(torch.split(whole, part), start=1)]
            for pending in coming:
                assert pending is not None
                pending.wait()
            print(time.perf_counter() - begun, flush=True)
        else:
            dist.send(whole, 0)
    dist.barrier()
    dist.destroy_process_group()


def _tcp(rank: int, world: int, port: int, size: int) -> None:
    part = size // (world - 1)
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            senders = [server.accept()[0] for _ in range(world - 1)]
        whole = [bytearray(part) for _ in senders]
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            threads = [
                threading.Thread(target=_fill, args=(sender, memoryview(piece)))
                for sender, piece in zip(senders, whole, strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(time.perf_counter() - begun, flush=True)
        return
    piece = bytearray(part)
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    with connection:
        for _ in range(ROUNDS):
            connection.recv(1)
            connection.sendall(piece)


def _fill(sender: socket.socket, piece: memoryview) -> None:
    sender.sendall(b".")
    at = 0
    while at < len(piece):
        at += sender.recv_into(piece[at:])


if __name__ == "__main__":
    {"gloo": _gloo, "tcp": _tcp}[sys.argv[1]](*map(int, sys.argv[2:]))
