"""Several readers of one process's signals, which begin and end in any order."""

from __future__ import annotations

import os
import select
import signal

import pytest

from elastic.membership.signal_pipe import SignalPipe


def arrives_at(pipe: SignalPipe) -> bool:
    """Whether SIGTERM, sent to this process, is in that pipe."""
    os.kill(os.getpid(), signal.SIGTERM)
    there, _, _ = select.select([pipe.fd], [], [], 5)
    return bool(there) and signal.SIGTERM in pipe.read()


@pytest.mark.parametrize("first_to_end", ["older", "newer"])
def test_signals_go_back_to_whom_they_belonged_in_any_order(first_to_end: str) -> None:
    """Two runs are open in one process; the fd of a pipe that is closed may be another file's by now."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    older, newer = SignalPipe([signal.SIGTERM, signal.SIGINT]), SignalPipe([signal.SIGTERM])
    ends, stays = (older, newer) if first_to_end == "older" else (newer, older)
    try:
        ends.restore()
        ends.close()
        assert arrives_at(stays)
    finally:
        stays.restore()
        stays.close()

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    wakeup = signal.set_wakeup_fd(-1)
    assert wakeup == -1
