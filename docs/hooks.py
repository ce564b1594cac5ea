"""What the pages take from the code while they are built: the text of `--help`, and the table of events."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any

_HELP = re.compile(r"^<!-- output: (\w+) (.*?)-->$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces `<!-- output: elastic run --help -->` by what that command prints."""
    return _HELP.sub(lambda found: f"```text\n{_printed(found[1], found[2].split())}\n```", markdown)


def _printed(command: str, arguments: list[str]) -> str:
    from checkpoint.cli import main as checkpoint
    from elastic.__main__ import main as elastic

    os.environ["COLUMNS"] = "88"
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        {"elastic": elastic, "checkpoint": checkpoint}[command](arguments)
    if not text.getvalue():
        raise ValueError(f"{command} {' '.join(arguments)} prints nothing")
    return text.getvalue().rstrip()
