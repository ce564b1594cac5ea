"""Bugs in what becomes of bad steps."""

from __future__ import annotations

from typing import Any

from tests.kit.planted.bug import Act, planted


@planted("elastic.loop.steps.bad_steps:BadSteps.judge", plan="skips together", caught_by={"agreement"})
def skip_on_some_workers_alone(right: Any, act: Act) -> Any:
    """One worker applies a step that the others pass over."""

    def judge(self: Any, step: int, agreed: Any) -> Any:
        over = right(self, step, agreed)
        if over is not None and self._session.group.rank == 1:
            act()
            return None
        return over

    return judge


@planted("elastic.loop.steps.bad_steps:BadSteps.judge", plan="skips, resumed", caught_by={"reference", "repeat"})
def apply_after_a_resume_what_was_passed_over(right: Any, act: Act) -> Any:
    """A step that was passed over is applied when a resume comes to it again."""

    def judge(self: Any, step: int, agreed: Any) -> Any:
        over = right(self, step, agreed)
        if over is not None and self._session.restorer.position.step > 0:
            act()
            return None
        return over

    return judge


@planted("elastic.state.health:Health.step_passed_over", plan="goes back", caught_by={"passed"})
def forget_what_a_rollback_took_back(right: Any, act: Act) -> Any:
    """The state behind a rollback knows of the bad step, and not of those that were taken back with it."""

    def step_passed_over(self: Any, passed: Any) -> None:
        from dataclasses import replace

        act()
        right(self, replace(passed, first=passed.step))

    return step_passed_over
