"""An error that names who is missing saves the person on call a search over all logs."""

from __future__ import annotations

from pathlib import Path

from elastic.membership.view import View
from elastic.membership.worker.missing import missing, sentence


def view_of(*workers: str) -> View:
    return View(generation=0, workers=workers)


def test_of_other_machines_only_their_names_are_said(tmp_path: Path) -> None:
    """A process id means nothing on another host, whatever runs under it here."""
    view = view_of("node-a-1-aa", "node-b-999999-bb")
    assert missing(view, host="node-c") == {}
    assert sentence(view, {}, own_rank=0).endswith("look at the logs of node-b")


def test_without_a_proc_file_system_nobody_is_accused(tmp_path: Path) -> None:
    """macOS has none; "dead" must be proof and never a guess."""
    assert missing(view_of("node-a-999999-aa"), host="node-a", proc=tmp_path) == {}
