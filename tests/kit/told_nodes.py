"""Nodes of one run of tests/kit/programs/told.py, each with a folder, a metadata service and a file of its own: they
are told to leave at a moment at which their worker is held.

One run goes on from notice to notice; see random_notices.py for what becomes of whom.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from elastic.drill.machine.hosting import free_port
from elastic.drill.machine.processes import WRITER
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic_checkpoint import linux
from tests.kit.launch import Launch
from tests.kit.metadata import SAYS, MetadataServer
from tests.kit.random_notices import VIEWS, Told, Who
from tests.kit.told_at import AT, FOLDER, GOES, HOLDS, OBSERVER

PROGRAM = "tests.kit.programs.told"
LEFT = 75
WITHIN_S = 240.0
_PACE_S = 0.1


class ToldNode:
    """One `elastic run`."""

    def __init__(
        self, folder: Path, flags: list[str], script: list[str], stack: ExitStack, *, workers: int, at: str | None
    ) -> None:
        self._folder, self._workers = folder, workers
        self._at = ""
        folder.mkdir()
        if at is not None:
            self.is_to_hold(at)
        self._says = folder / "says"
        self._server = stack.enter_context(MetadataServer())
        clouds = (f"{cloud}:{self._server.endpoint}" for cloud in SAYS)
        notices = "--notices=" + ",".join((f"file:{self._says}", *clouds))
        flags = [f"--nproc-per-node={workers}", f"--leave-status={LEFT}", notices, *flags]
        command = ["run", "--no-status", *flags, "-m", PROGRAM, *script]
        env = {FOLDER: str(folder), "ELASTIC_OBSERVER": OBSERVER}
        self.launch = stack.enter_context(Launch("elastic", command, env=env))

    def is_to_hold(self, at: str, *, after: bool = False) -> None:
        """after: the one at which it is held, and goes on from now"""
        self._at = at
        (self._folder / AT).write_text(at)
        if after:
            self.goes_on()

    def wait_until_held(self) -> None:
        self._wait(self._is_held, f"its worker at {self._at!r}")

    def _is_held(self) -> bool:
        holds = self._folder / HOLDS
        return holds.exists() and holds.read_text() == self._at

    def goes_on(self) -> None:
        (self._folder / GOES).touch()

    def says(self, line: str) -> None:
        """Its file does."""
        self._says.write_text(line)

    def tell(self, source: str) -> None:
        match source:
            case "SIGTERM":
                self.launch.send(signal.SIGTERM)
            case "file":
                self.says("leave 60")
            case cloud:
                SAYS[cloud](self._server)

    def wait_until_told(self) -> None:
        """Its agent has heard it, and said so."""
        self._wait(lambda: "of this node leave" in self.launch.output or self._has_ended, "word of the notice")

    def wait_for_steps(self, nodes: int) -> None:
        """A new one, of all workers of so many."""
        stepped = self._folder / f"steps-{nodes * self._workers}"
        stepped.unlink(missing_ok=True)
        self._wait(stepped.exists, f"a step of {nodes}")

    def departs(self) -> None:
        status = self.launch.finish(within_s=WITHIN_S)
        assert status == LEFT, f"exit status {status}\n{self.launch.output}"

    def writers(self) -> list[int]:
        return [pid for pid in self.launch.pids if WRITER in linux.command_line(pid)]

    @property
    def _has_ended(self) -> bool:
        return self.launch.process.poll() is not None

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        if not holds():
            self.launch.wait_for(holds, what, within_s=WITHIN_S)


class ToldNodes:
    """
    workers  of each
    stays    the node that trains, between two notices; None: none does
    """

    def __init__(self, folder: Path, stack: ExitStack, *, workers: int = 1) -> None:
        self.url = folder / "run"
        self._workers = workers
        self._folder, self._stack = folder, stack
        self._started = 0
        endpoint = (
            f"127.0.0.1:{free_port()},{self.url}"  # who comes after the first node is gone finds the run by its URL
        )
        self._meet = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=told"]
        self.stays: ToldNode | None = None

    @property
    def events(self) -> list[Event]:
        return read_events(self.url) if self.url.exists() else []

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event["event"] == name]

    def start(self, at: str | None = None) -> ToldNode:
        self._started += 1
        script = [str(self.url), f"--stop-when={self._folder / 'stop'}", f"--pace-s={_PACE_S}"]
        folder = self._folder / f"node-{self._started}"
        return ToldNode(folder, self._meet, script, self._stack, workers=self._workers, at=at)

    def finish(self) -> None:
        """The run ends in order."""
        stays = self._that_stays()
        (self._folder / "stop").touch()
        stays.launch.succeed(within_s=WITHIN_S)

    def give(self, told: Told) -> None:
        """This notice; those whom it names leave, and the others train on. Fails where anything else becomes of it."""
        match told.who:
            case Who.ALONE:
                self._all_leave()
                alone = self.start(told.moment)
                self._tell_held(alone, told)
                alone.departs()
            case Who.NEWCOMER:
                stays = self._that_stays()
                newcomer = self.start(told.moment)
                self._tell_held(newcomer, told)
                newcomer.departs()
                stays.wait_for_steps(1)
            case Who.COORDINATOR:
                coordinator, newcomer = self._held_coordinator(told)
                self._tell_held(coordinator, told)
                coordinator.departs()
                newcomer.wait_for_steps(1)
                self.stays = newcomer
            case Who.BOTH if told.of_newcomer:
                other, held = self._that_stays(), self.start(told.moment)
                self._tell_both(held, other, told)
            case Who.BOTH:
                held, other = self._held_coordinator(told)
                self._tell_both(held, other, told)

    def _that_stays(self) -> ToldNode:
        if self.stays is None:
            self.stays = self.start()
            self.stays.wait_for_steps(1)
        return self.stays

    def _held_coordinator(self, told: Told) -> tuple[ToldNode, ToldNode]:
        """It is to be held; and the one that comes."""
        coordinator = self._that_stays()
        if told.moment in VIEWS:
            coordinator.is_to_hold(told.moment)
            return coordinator, self.start()
        newcomer = self.start()
        newcomer.wait_for_steps(2)
        coordinator.is_to_hold("save" if told.moment == "saving" else told.moment)
        return coordinator, newcomer

    def _tell_both(self, held: ToldNode, other: ToldNode, told: Told) -> None:
        self._tell_held(held, told, other)
        for node in (held, other):
            node.departs()
        self.stays = None

    def _tell_held(self, held: ToldNode, told: Told, *others: ToldNode) -> None:
        held.wait_until_held()
        writers = held.writers() if told.moment == "saving" else []
        for pid in writers:
            os.kill(pid, signal.SIGSTOP)
        if writers:
            held.goes_on()  # the save begins, and does not get on
        for node in (held, *others):
            node.tell(told.source)
        for node in (held, *others):
            node.wait_until_told()
        for pid in writers:
            os.kill(pid, signal.SIGCONT)
        if not writers:
            held.goes_on()

    def _all_leave(self) -> None:
        if self.stays is not None:
            self.stays.launch.send(signal.SIGTERM)
            self.stays.departs()
            self.stays = None
