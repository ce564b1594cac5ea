"""small.py, whose lines on how far it is come after each step, and not once a minute."""

from __future__ import annotations

from functools import partial

from elastic.loop import session
from tests.kit.programs.small import main

if __name__ == "__main__":
    session.StatusTracker = partial(session.StatusTracker, say_every_s=0.0)  # type: ignore[assignment, misc]
    main()
