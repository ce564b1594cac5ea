"""Bugs in the copy of a state that a save makes while the next step computes.

In their runs the first save is beside training, small tensors are lent, too, and the copy's thread gets no processor:
what is left to the last moment is all of it.
"""

from __future__ import annotations

from typing import Any

from tests.kit.planted.bug import Act, Bug, planted


def _late(bug: Bug) -> Bug:
    """No bug: so that there is a copy under way at all, and how far it is does not depend on the machine."""
    bug.also("elastic.loop.storage.saver:_WARM_AFTER_S")(lambda right, act: 0.0)
    bug.also("elastic_checkpoint.save.copying:_SMALL_BYTES")(lambda right, act: 1)
    bug.also("elastic_checkpoint.save.copying:_WORTH_BYTES")(lambda right, act: 1)
    bug.also("elastic_checkpoint.save.copying:BackgroundCopy._work_aside")(lambda right, act: lambda self: None)
    return bug


def _nothing_is_noticed(right: Any, act: Act) -> Any:
    return lambda self: ()


_UPDATED: list[Any] = []


@_late
@planted("elastic.loop.steps.update:Update._begin", plan="resumed", caught_by={"reference", "state"})
def join_a_copy_after_the_update(right: Any, act: Act) -> Any:
    """An update writes to weights that a save is still copying, and no versions are compared."""

    def begin(self: Any) -> None:
        staging = self._session.train_state.staging
        _UPDATED[:], staging._saving = [staging._saving], None  # an optimizer's step has nothing to join, either
        if _UPDATED[0] is not None:
            act()
        right(self)

    return begin


@join_a_copy_after_the_update.also("elastic.loop.steps.update:Update._close")
def _(right: Any, act: Act) -> Any:
    def close(self: Any, step: Any, agreed: Any) -> None:
        right(self, step, agreed)
        staging = self._session.train_state.staging
        staging._saving = _UPDATED.pop() if _UPDATED else None
        staging.join()

    return close


join_a_copy_after_the_update.also("elastic_checkpoint.save.copying:Filling.written")(_nothing_is_noticed)
