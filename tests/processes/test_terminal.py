"""The last lines of a terminal are the status, nothing that others print is lost, and the terminal is given back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from elastic.status.terminal import StatusTerminal, wanted
from tests.kit.screen import Screen

TALKS = """
import os, sys, time
for number in range(200):
    os.write(1, f"worker {sys.argv[1]} line {number}\\n".encode())
    time.sleep(0.01)
"""
COUNTS = """
import sys, time
for number in range(101):
    print(f"\\r{number} %", end="", flush=True)
    time.sleep(0.01)
print()
"""
SHOWS = """
import sys, time
from elastic.status.terminal import StatusTerminal
panel = StatusTerminal(sys.stderr.fileno())
panel.show({"step": 7, "total_steps": 70, "goodput": 0.5})
time.sleep(600)
"""


def status(step: int) -> dict[str, object]:
    return {"step": step, "total_steps": 70, "goodput": 0.5}


@pytest.fixture
def terminal() -> Iterator[Callable[[int, int], Screen]]:
    made: list[Screen] = []

    def make(rows: int, columns: int) -> Screen:
        made.append(Screen(rows, columns))
        return made[-1]

    yield make
    for one in made:
        one.close()


def child(there: Screen, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=there.fd, stderr=there.fd)


def test_what_other_processes_print_stands_whole_above_the_status(terminal: Callable[[int, int], Screen]) -> None:
    """Workers know nothing of it, whether they print lines, or a bar that comes back to its line's beginning."""
    there = terminal(20, 80)
    assert there.fd is not None
    panel = StatusTerminal(there.fd)
    panel.show(status(1))
    there.until(lambda: there.rows[-2].startswith("step 1 of 70"))
    programs = [child(there, TALKS, name) for name in "ab"]
    there.until(lambda: all(program.poll() is not None for program in programs))
    there.resize(30, 100)
    panel.show(status(2))
    there.until(lambda: there.rows[-2].startswith("step 2 of 70"))
    assert there.rows[-1].startswith("goodput 50.0 %")
    bar = child(there, COUNTS)
    there.until(lambda: bar.poll() is not None)
    panel.close()
    os.write(there.fd, b"the shell's\n")
    there.until(lambda: "the shell's" in there.rows)

    for name in "ab":
        mine = [row for row in there.all_rows if row.startswith(f"worker {name}")]
        assert mine == [f"worker {name} line {number}" for number in range(200)]
    printed = [row for row in there.all_rows if row]
    assert printed[-2:] == ["100 %", "the shell's"]
    assert there.scrolls_as_a_whole
    assert there.rows[-2:] == ["", ""]


def test_a_process_that_is_killed_gives_the_terminal_back(terminal: Callable[[int, int], Screen]) -> None:
    """What a person types next scrolls as ever, and nobody has to know of `reset`."""
    there = terminal(24, 80)
    shows = child(there, SHOWS)
    there.until(lambda: there.rows[-2].startswith("step 7 of 70"))
    assert not there.scrolls_as_a_whole
    shows.send_signal(signal.SIGKILL)
    shows.wait()
    there.until(lambda: there.scrolls_as_a_whole and not any(there.rows))


def test_a_terminal_that_is_too_small_or_has_nothing_to_show_is_left_alone(
    terminal: Callable[[int, int], Screen],
) -> None:
    small, quiet = terminal(6, 80), terminal(24, 80)
    assert small.fd is not None
    assert quiet.fd is not None
    panels = [StatusTerminal(small.fd), StatusTerminal(quiet.fd)]
    panels[0].show(status(1))
    time.sleep(1.2)  # two drawings
    for panel in panels:
        panel.close()
    assert small.look() == quiet.look() == b""


@pytest.mark.parametrize("columns", [9, 20, 40])
def test_a_narrow_terminal_has_two_lines_of_status_as_well(
    terminal: Callable[[int, int], Screen], columns: int
) -> None:
    there = terminal(10, columns)
    assert there.fd is not None
    panel = StatusTerminal(there.fd)
    panel.show({**status(1), "saved": {"step": 1, "t": 0.0}})
    there.until(lambda: there.rows[-1].startswith("goodput"[: columns - 2]))
    assert there.rows[-2].startswith("step 1"[: columns - 2])
    assert not any(there.rows[:-2])
    panel.close()


def test_a_terminal_that_takes_nothing_holds_up_nobody(terminal: Callable[[int, int], Screen]) -> None:
    """Ctrl-S must not keep an agent from seeing a death; once the terminal takes something, it is given back."""
    there = terminal(24, 80)
    assert there.fd is not None
    os.write(there.fd, b"a first line\n")
    panel = StatusTerminal(there.fd)
    panel.show(status(1))
    there.until(lambda: there.rows[-2].startswith("step 1 of 70"))
    os.set_blocking(there.fd, False)
    try:
        while True:
            os.write(there.fd, b"x" * 1024)
    except BlockingIOError:
        os.set_blocking(there.fd, True)
    panel.show(status(2))
    time.sleep(0.8)  # its thread is in the middle of a write
    begun_s = time.monotonic()
    panel.close()
    assert time.monotonic() - begun_s < 30
    there.until(lambda: there.scrolls_as_a_whole)


def test_only_a_terminal_that_knows_a_region_gets_one(terminal: Callable[[int, int], Screen]) -> None:
    there = terminal(24, 80)
    assert there.fd is not None
    assert wanted(there.fd, {"TERM": "xterm-256color"})
    assert not wanted(there.fd, {"TERM": "dumb"})
    assert not wanted(there.fd, {})
    read, write = os.pipe()
    assert not wanted(write, {"TERM": "xterm"})
    os.close(read)
    os.close(write)
