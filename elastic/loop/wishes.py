"""What each worker wishes for, sent with a step's exchange, so that all know it at the boundary behind it."""

from __future__ import annotations

from enum import IntFlag


class Wish(IntFlag):
    """What a worker asks of all others; it may ask for several things at once.

    LEAVE    a notice has come to that worker
    STOP     somebody has called run.stop
    SAVE     the cadence of time says so, or a node may be taken soon
    REGROUP  somebody waits to join
    CHECK    a save is due behind the next step, which is cross-checked
    """

    LEAVE, STOP, SAVE, REGROUP, CHECK = 1, 2, 4, 8, 16
