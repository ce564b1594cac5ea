"""The few lines that a run says by itself, on standard error, so that a script's own output stays its own."""

from __future__ import annotations

import sys
import time


class Console:
    """Speaks for one worker; `quiet` ones (all but the coordinator) say nothing but bad news."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet

    def say(self, line: str) -> None:
        if not self.quiet:
            self.warn(line)

    def warn(self, line: str) -> None:
        if sys.stderr is None:  # it was closed as this process began
            return
        sys.stderr.write(f"{time.strftime('%H:%M:%S')}  elastic: {line}\n")
        sys.stderr.flush()
