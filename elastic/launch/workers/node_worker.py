"""One worker of this node as its agent has it: its process, what it is started with, and how it is ended.

A worker holds on to one end of a socket pair, its channel; to a piece of memory where it writes what it is doing
(membership/progress.py), with a mutex that says when it ends (robust_mutex.py); and to its streams. All that is here of
them is closed at its end, and not before: what it had said before it died is still to be read.
Why one is told, ended or killed is agent.py's to say.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable

from elastic.launch.node_rules import NodeRules
from elastic.launch.processes import children, robust_mutex
from elastic.launch.processes.robust_mutex import RobustMutex
from elastic.launch.processes.worker import SHARED_STDERR
from elastic.launch.workers import group_store
from elastic.launch.workers.logs import Streams
from elastic.launch.workers.memory import OomKills, oom_kills, sentence, struck
from elastic.launch.workers.replica_world import ReplicaWorld
from elastic.launch.workers.starter import Request
from elastic.membership.messages.messages import ToWorker, World, as_message
from elastic.membership.messages.wire import Message
from elastic.membership.progress import BYTES, Record
from elastic_checkpoint import linux
from elastic_checkpoint.net.connection import Connection
from elastic_checkpoint.net.event_loop import EventLoop

TERM_S = 5.0  # from SIGTERM to SIGKILL
_LOOK_S = 1.0  # between two looks at its memory


class NodeWorker:
    """One worker of this node.

    pid, id   0 and "" until its process is there
    ready     its script has come to its Run
    expected  it was told to end
    useless   what it holds does not count: the run has gone on without it, or has no place for it
    late      it has not ended when it had to
    leaves, finished  as it has said: its end is one in order
    with_replica  it is ended because another of its replica has ended, or fails
    world     of its replica; None: it is one by itself
    peak_bytes  the most memory that it had when it was looked at
    """

    def __init__(
        self,
        loop: EventLoop,
        local_rank: int,
        streams: Streams,
        world: ReplicaWorld | None = None,
        *,
        heard: Callable[[NodeWorker, Message], None],
        channel_ended: Callable[[NodeWorker, str | None], None],
    ) -> None:
        self.token = secrets.token_hex(3)
        self.local_rank = local_rank
        self.streams = streams
        self.world = world
        ours, self._its_end = socket.socketpair()
        self._progress = os.memfd_create("elastic-progress", os.MFD_CLOEXEC)
        os.ftruncate(self._progress, BYTES + robust_mutex.BYTES)
        self.mutex: RobustMutex | None = RobustMutex.make(self._progress, BYTES)
        self.channel = Connection(
            loop, ours, lambda message: heard(self, message), lambda why: channel_ended(self, why)
        )
        self.pid, self.id = 0, ""
        self.ready = self.expected = self.useless = self.late = False
        self.leaves = self.finished = self.with_replica = False
        self.peak_bytes: int | None = None
        self._looked_s = -math.inf
        self._kill_at_s: float | None = None
        self._oom_kills: OomKills | None = None  # when it was started

    @property
    def called(self) -> str:
        """Return how people know the worker."""
        return f"worker {self.id or self.token} (local rank {self.local_rank})"

    def request(self, rules: NodeRules, restart: int, *, status: bool, world: World | None) -> Request:
        """Return what it is started with.

        restart  how many workers had its slot before
        status   somebody here takes a status
        world    as torchrun has it; None: its replica has one of its own
        """
        env = {
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(rules.workers),
            "ELASTIC_TOKEN": self.token,
            "ELASTIC_NODE": rules.node,
            "ELASTIC_RESTART": str(restart),
            "ELASTIC_HANG_S": str(rules.hang_s),
            "ELASTIC_ORDERED": str(time.time()),
        }
        if status:
            env["ELASTIC_STATUS"] = "1"
        if rules.status:
            env["ELASTIC_SHOWN"] = "1"
        if rules.metrics:
            env["ELASTIC_METRICS"] = "1"
        if rules.several_nodes:
            env["ELASTIC_SEVERAL_NODES"] = "1"
        if rules.address is not None:
            env["ELASTIC_ADDRESS"] = rules.address
        if rules.job is not None:
            env["ELASTIC_JOB"] = rules.job
        if "stderr" not in self.streams.fds:
            env[SHARED_STDERR] = "1"
        if self.world is not None:
            env |= self.world.environment(self.local_rank % rules.replica_size)
        elif world is not None:
            env |= group_store.environment(world, self.local_rank, rules)
        fds = {"ELASTIC_CHANNEL": self._its_end.fileno(), "ELASTIC_PROGRESS": self._progress, **self.streams.fds}
        return Request(self.token, env, fds)

    def started(self, pid: int, hostname: str) -> None:
        """Take its process, which has its descriptors."""
        self.pid, self.id = pid, f"{hostname}-{pid}-{self.token}"
        self._oom_kills = oom_kills()
        self._its_end.close()
        self.streams.given()

    def record(self) -> Record:
        """Return what it says that it is doing."""
        return Record.read(self._progress)

    def look_at_memory(self, now_s: float) -> None:
        """Look at its peak, which nobody can tell once it is dying."""
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self.peak_bytes = linux.peak_bytes(self.pid) or self.peak_bytes

    def memory(self, peak_bytes: int | None) -> tuple[str | None, bool]:
        """Return what became of its memory, now that it was killed, and whether the out-of-memory killer struck."""
        now = oom_kills()
        return sentence(self._oom_kills, now, peak_bytes), struck(self._oom_kills, now)

    def tell(self, said: ToWorker) -> None:
        self.channel.say(as_message(said))

    def terminate(self, within_s: float = TERM_S) -> None:
        """Send it SIGTERM, and SIGKILL so much later; from here on its end is expected."""
        self.expected = True
        if self.pid:
            os.kill(self.pid, signal.SIGTERM)  # not reaped yet, so still this process
            self.kill_in(within_s)

    def kill_in(self, within_s: float) -> None:
        """Kill it after so long, unless it ends before."""
        self._kill_at_s = time.monotonic() + within_s

    def is_in_run(self) -> None:
        """Kill it no more for being late at its start: it leaves in order when it is told to."""
        self._kill_at_s = None

    def kill_if_due(self, now_s: float) -> None:
        if self._kill_at_s is not None and now_s >= self._kill_at_s:
            self.kill()

    def kill(self) -> None:
        """Kill it and its children."""
        if self.pid:
            children.kill_group(self.pid)

    def close(self) -> None:
        self.channel.close()
        self._its_end.close()
        self.streams.close()
        self.mutex = None  # whoever waits for it has it
        if self.world is not None:
            self.world.left()
        os.close(self._progress)
