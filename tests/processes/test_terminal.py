"""The last lines of a terminal are the status, and it is given back. A process beside it sees to that."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from elastic.status.terminal import StatusTerminal, wanted
from elastic.status.tracker import Status


class Terminal:
    """A real one, of so many rows and columns: what is written to it so far."""

    def __init__(self, rows: int, columns: int) -> None:
        self.master, self.fd = os.openpty()
        os.set_blocking(self.master, False)
        self.resize(rows, columns)
        self.written = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self) -> bytes:
        with contextlib.suppress(BlockingIOError):
            self.written += os.read(self.master, 1 << 16)
        return self.written.replace(b"\r\n", b"\n")

    def wait_for(self, text: bytes) -> None:
        deadline = time.monotonic() + 20
        while text not in self.read():
            assert time.monotonic() < deadline, self.written
            time.sleep(0.02)

    def close(self) -> None:
        os.close(self.master)
        os.close(self.fd)


@pytest.fixture
def terminal() -> Iterator[Callable[[int, int], Terminal]]:
    made: list[Terminal] = []

    def make(rows: int, columns: int) -> Terminal:
        made.append(Terminal(rows, columns))
        return made[-1]

    yield make
    for one in made:
        one.close()


def drawn(status: Status, _: float, columns: int) -> list[str]:
    return [f"first {status['n']} {columns}", "second"]


def test_a_terminal_s_last_lines_are_kept_and_given_back(terminal: Callable[[int, int], Terminal]) -> None:
    """What a script prints scrolls above them, wherever the cursor is, and afterwards nothing is left."""
    there = terminal(20, 80)
    panel = StatusTerminal(there.fd, draw=drawn)
    panel.show({"n": 1})
    there.wait_for(b"second")
    os.write(there.fd, b"the script's\n")
    there.resize(30, 100)
    panel.show({"n": 2})
    there.wait_for(b"first 2 100")
    panel.close()

    text = there.read()
    assert text.startswith(
        b"\n\n\x1b[2A\x1b7\x1b[1;18r\x1b8\x1b7\x1b[19;1H\x1b[2Kfirst 1 80\x1b[20;1H\x1b[2Ksecond\x1b8"
    )
    assert b"\x1b[1;28r" in text
    assert text.endswith(b"\x1b7\x1b[r\x1b[29;1H\x1b[2K\x1b[30;1H\x1b[2K\x1b8")
    assert b"the script's\n" in text


def test_a_terminal_that_is_too_small_or_has_nothing_to_show_is_left_alone(
    terminal: Callable[[int, int], Terminal],
) -> None:
    small, quiet = terminal(6, 80), terminal(24, 80)
    panels = [StatusTerminal(small.fd, draw=drawn), StatusTerminal(quiet.fd, draw=drawn)]
    panels[0].show({"n": 1})
    time.sleep(1.2)  # two drawings
    for panel in panels:
        panel.close()
    assert small.read() == quiet.read() == b""


def test_a_terminal_that_takes_nothing_holds_up_nobody(terminal: Callable[[int, int], Terminal]) -> None:
    """Ctrl-S must not keep an agent from seeing a death."""
    there = terminal(24, 80)
    os.set_blocking(there.fd, False)
    try:
        while True:
            os.write(there.fd, b"x" * 1024)
    except BlockingIOError:
        os.set_blocking(there.fd, True)
    panel = StatusTerminal(there.fd, draw=drawn)
    panel.show({"n": 1})
    time.sleep(0.8)  # its thread is in the middle of a write
    panel.show({"n": 2})
    panel.close()
    assert b"first" not in there.read()
    there.wait_for(b"first")  # the thread goes on, and ends


def test_only_a_terminal_that_knows_a_region_gets_one(terminal: Callable[[int, int], Terminal]) -> None:
    there = terminal(24, 80)
    assert wanted(there.fd, {"TERM": "xterm-256color"})
    assert not wanted(there.fd, {"TERM": "dumb"})
    assert not wanted(there.fd, {})
    read, write = os.pipe()
    assert not wanted(write, {"TERM": "xterm"})
    os.close(read)
    os.close(write)
