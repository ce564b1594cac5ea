"""A collective is looked at while it is in flight, and a look proves nothing about what ends just then."""

from __future__ import annotations

from datetime import timedelta

import pytest

from elastic.errors import PeerLost
from elastic.group.form import Work


class GlooWork:
    """torch's Work of gloo: a look times out, and by the time that one asks it has ended."""

    def __init__(self, *, succeeds: bool) -> None:
        self._succeeds = succeeds

    def wait(self, timeout: timedelta | None = None) -> None:
        if timeout is not None:
            raise RuntimeError("Operation timed out!")
        if not self._succeeds:
            raise RuntimeError("Connection closed by peer")

    def is_completed(self) -> bool:
        return True


def test_a_collective_that_ends_while_it_is_looked_at_has_ended() -> None:
    """Others may take longer than a look: a coordinator that saves, say. Taken for a loss, that would redo a step."""
    Work(GlooWork(succeeds=True), "all-gather", lambda: False).wait()


def test_a_collective_that_fails_while_it_is_looked_at_has_failed() -> None:
    with pytest.raises(PeerLost, match="the all-gather failed: Connection closed by peer"):
        Work(GlooWork(succeeds=False), "all-gather", lambda: False).wait()
