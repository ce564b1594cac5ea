"""What the pages take from the code while they are built: what a command prints."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
from typing import Any
from unittest.mock import patch

_OUTPUT = re.compile(r"^<!-- output: (\w+) (.*?)-->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces `<!-- output: elastic run --help -->` by what that command prints."""
    return _OUTPUT.sub(lambda found: f"```text\n{_printed(found[1], found[2].split())}\n```", markdown)


def _printed(command: str, arguments: list[str]) -> str:
    text = io.StringIO()
    with (
        patch.object(sys, "argv", [command, *arguments]),
        patch.dict(os.environ, COLUMNS="88"),
        contextlib.redirect_stdout(text),
        contextlib.suppress(SystemExit),
    ):
        runpy.run_module(command, run_name="__main__")
    if not text.getvalue():
        raise ValueError(f"{command} {' '.join(arguments)} prints nothing")
    return text.getvalue().rstrip()
