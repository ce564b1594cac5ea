"""What a process has recorded is there, and can be read, however it or its reader ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from elastic.events.reading import read_events
from tests.kit.story import Story


def test_a_sigkill_loses_nothing_that_was_emitted(tmp_path: Path) -> None:
    """The judge's evidence comes from workers that are killed."""
    script = (
        "import os, signal, sys\n"
        "from elastic.events.log import EventLog\n"
        "log = EventLog(sys.argv[1], worker_id='w0')\n"
        "for step in range(100): log.emit_named('step_applied', step=step)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], timeout=60, check=False)

    assert ended.returncode == -9
    assert [event["step"] for event in read_events(tmp_path)] == list(range(100))


def report(*arguments: str, encoding: str = "utf-8", piped_to: str | None = None) -> subprocess.CompletedProcess[str]:
    command = f'"{sys.executable}" -m elastic report {" ".join(arguments)}'
    whole = command if piped_to is None else f"set -o pipefail; {command} | {piped_to}"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONIOENCODING": encoding, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        ["bash", "-c", whole], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_reader_that_has_read_enough_and_a_terminal_without_our_characters(tmp_path: Path) -> None:
    lines = [json.dumps(event) + "\n" for event in Story().launch(1).train(2).finish().events]
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "w0.jsonl").write_text("".join(lines))
    read_little = report(str(tmp_path), "--json", piped_to="true")
    assert (read_little.returncode, read_little.stderr) == (0, "")
    poor = report(str(tmp_path), encoding="ascii")
    assert (poor.returncode, poor.stderr) == (0, "")
    assert "steps" in poor.stdout
