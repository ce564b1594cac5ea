"""Workers want to go: who may, who saves first, and who is still needed? Pure.

Promises  the newest state is never thrown away by those who leave in order: one of them saves it, or hands it on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SAVED_NOTHING = -1


@dataclass(frozen=True, kw_only=True)
class Holding:
    """The state that a worker holds which is done with its view.

    step   how many steps are applied; below 0: it holds no state yet
    whole  what it holds is a boundary's state, and may be saved as it is
    torn   by an update: of no use to anybody
    joins  it can take part in another view; one whose script has left the loop cannot
    """

    worker: str
    step: int
    whole: bool = True
    torn: bool = False
    joins: bool = True


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The answers to all workers that want to leave.

    go     may go: what they hold is safe
    stays  takes part in the next view
    saves  saves first; until it has, or has failed, nobody goes on
    lost   may go, and what they hold is lost with them
    """

    go: tuple[str, ...] = ()
    stays: str | None = None
    saves: str | None = None
    lost: tuple[str, ...] = ()


def see_off(leavers: Sequence[Holding], stayers: Sequence[Holding], *, go_on: bool, saved: int) -> Parting:
    """Return what becomes of each worker that wants to leave.

    stayers  who do not leave
    go_on    they form the next view now; else they wait, and may themselves be told to leave
    saved    the newest step of which somebody has seen the commit, or SAVED_NOTHING
    """
    kept = [one.step for one in stayers if (not one.torn if go_on else one.whole)]
    safe = max((saved, *kept))
    go = tuple(one.worker for one in leavers if one.step <= safe or one.step < 0 or one.torn)
    held = sorted((one for one in leavers if one.worker not in go), key=lambda one: -one.step)
    # nobody who stays holds what these do, and nobody has seen it committed
    if go_on and stayers:
        needed = next((one for one in held if one.joins and one.step == held[0].step), None)
        if needed is not None:  # one more view, in which it hands the state to those who stand behind
            return Parting(go=go, stays=needed.worker)
    farthest = next((one for one in held if one.whole), None)
    if farthest is not None:
        return Parting(go=go, saves=farthest.worker)
    # it can be neither saved nor handed on: they are told so, and do not end as if all were well
    return Parting(go=go, lost=tuple(one.worker for one in held))
