"""A plan of faults is a value: it says itself, survives JSON, and decides alone what is due."""

from __future__ import annotations

import pytest

from elastic.drill.faults import (
    BEFORE_STEPS,
    KINDS,
    PHASES,
    At,
    Fault,
    Hold,
    Join,
    Kill,
    KillAgent,
    KillAll,
    KillTogether,
    LeaveNode,
    Plan,
    Raise,
    Stop,
    Terminate,
    due,
)
from elastic.errors import ConfigError

PLAN = Plan(
    (
        Kill(3, At(5, "in_backward", share=7)),
        Kill(0, At(None, "load")),
        KillAll(At(8, "save", worker=0)),
        Terminate(1, At(9, "exchange")),
        KillTogether((2, 1), At(None, "in_transfer", world_size=4)),
        Stop(2, At(12, "forward")),
        Raise(3, At(13, "data")),
        LeaveNode(1, At(14, "applied")),
        Join(At(15, "applied", worker=1)),
        KillAgent(0, At(None, "saved")),
        Hold(1, At(16, "data")),
    ),
    seed=41,
)


def test_a_plan_comes_back_from_json_equal() -> None:
    """The launcher writes it, the workers read it; what they carry out must be what was printed."""
    assert Plan.from_json(PLAN.to_json()) == PLAN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"faults": []}',
        '{"seed": null, "faults": [{"kind": "explode"}]}',
        '{"seed": null, "faults": [{"kind": "kill", "worker": 1, "when": {"step": 1, "phase": "lunch"}}]}',
        '{"seed": null, "faults": [{"kind": "kill", "worker": 1, "when": {"step": 1}, "how": "gently"}]}',
    ],
)
def test_what_is_no_plan_is_refused(text: str) -> None:
    """A plan that is half understood would injure something else than it says."""
    with pytest.raises(ConfigError, match="not a fault plan"):
        Plan.from_json(text)


def test_a_misspelt_phase_is_answered_with_the_nearest() -> None:
    """A fault at a moment that never comes is a test that tests nothing."""
    with pytest.raises(ConfigError, match="did you mean 'backward'"):
        At(3, "backwards")


@pytest.mark.parametrize("phase", PHASES)
def test_a_moment_may_have_a_step_exactly_if_it_belongs_to_one(phase: str) -> None:
    At(None, phase)
    if phase in BEFORE_STEPS:
        with pytest.raises(ConfigError, match=f"phase '{phase}'"):
            At(3, phase)
    else:
        At(3, phase)


def test_an_exception_of_the_script_comes_where_the_script_has_code() -> None:
    """Raised in the forming of a view it would be the engine's own, and prove nothing about scripts."""
    Plan((Raise(1, At(3, "in_update")),))
    with pytest.raises(ConfigError, match=r"code runs at .*; not form"):
        Plan((Raise(1, At(None, "form")),))


def test_a_fault_is_due_at_its_moment_and_nowhere_else() -> None:
    """Every other rank, step, share and phase goes by unharmed."""
    where = {
        (phase, step, rank, share)
        for phase in PHASES
        for step in range(12)
        for rank in range(4)
        for share in range(5, 9)
        if due(PLAN, phase, step=step, rank=rank, share=share, done=[1, *range(4, 10)])
    }
    assert where == {
        ("in_backward", 5, 3, 7),
        *(("save", 8, 0, share) for share in range(5, 9)),
        *(("exchange", 9, 1, share) for share in range(5, 9)),
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_of_fault_says_what_it_is(kind: type[Fault]) -> None:
    """There is no default, and a drill would find out in minutes, when it prints what struck."""
    fields = kind.flags[0].fields if kind.flags else {}
    fault = kind.make(1, At(3, kind.usual_phase or "forward"), **fields)
    assert str(fault)
    assert fault.in_words()
