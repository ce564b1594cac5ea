"""What a drill says when both runs have ended: what each fault cost, and which bug in a script looks like this."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from elastic.drill.faults import At, Fault, Kill, KillAll, Slow, Terminate
from elastic.drill.judge.verdict import Verdict
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.report.costs import Cost, costs
from elastic.drill.report.diagnosis import Diagnosis, diagnose
from elastic.drill.report.findings import PROMISES, Findings
from elastic.drill.report.show import show
from elastic.events.event import Event
from tests.kit.story import Story


def told(*workers: int, steps: int = 4, content: Any, initial: str = "begin") -> list[Event]:
    """A run of `steps` steps of 8 examples, read by so many workers in turn; content(index, step, rank, read) is what
    an example was when rank `rank` had read `read` examples."""
    events: list[Event] = []
    size = len(workers)
    reads = dict.fromkeys(workers, 0)
    for rank, worker in enumerate(workers):
        common = {"worker": f"w{worker}", "rank": rank, "world_size": size, "generation": 1, "claim": 1, "t": 0.0}
        events.append({**common, "event": "loaded", "step": 0, "from_claim": None, "digest": initial})
    for step in range(steps):
        for rank, worker in enumerate(workers):
            mine = range(8 * step + 8 * rank // size, 8 * step + 8 * (rank + 1) // size)
            contents = []
            for index in mine:
                contents.append(str(content(index, step, rank, reads[worker])))
                reads[worker] += 1
            common = {"worker": f"w{worker}", "rank": rank, "world_size": size, "generation": 1, "claim": 1}
            at = {"t": step + rank / 10, "step": step, "share": rank, "attempt": 0}
            events.append({**common, **at, "event": "reads", "indices": list(mine), "contents": contents})
    return events


def only(found: list[Diagnosis]) -> Diagnosis:
    (one,) = found
    return one


def test_a_dataset_that_depends_on_the_rank_is_told_from_one_that_counts_and_one_that_draws() -> None:
    """The remedy is another one for each, so the words must not be the same."""
    kinds = {
        "depends on which worker reads it": lambda index, step, rank, read: index + 100 * rank,
        "a counter, a cache": lambda index, step, rank, read: (index, read),
    }
    for says, content in kinds.items():
        found = diagnose(told(9, content=content), told(1, 2, content=content))
        assert says in only(found).what, says
    baseline = told(9, content=lambda index, *_: (index, "one run"))
    faulted = told(1, 2, content=lambda index, *_: (index, "another"))
    assert "no seed of the run decides" in only(diagnose(baseline, faulted)).what


def test_a_dataset_is_told_with_the_line_where_it_is_read() -> None:
    at = {"worker": "w9", "t": 0.0, "event": "dataset", "dataset": "Points", "file": "train.py", "line": 22}
    baseline = [at, *told(9, content=lambda index, *_: index)]
    found = only(diagnose(baseline, told(1, 2, content=lambda index, step, rank, read: index + rank)))

    assert "what Points gives for an index" in found.what
    assert "  look  train.py:22  __getitem__" in str(found).splitlines()


def test_weights_that_differ_from_the_beginning_lack_a_seed() -> None:
    def content(index: int, *_: int) -> int:
        return index

    baseline, faulted = told(9, content=content, initial="a"), told(1, 2, content=content, initial="b")
    assert "initialised without a seed" in only(diagnose(baseline, faulted)).what


def test_an_exception_of_the_script_s_own_is_told() -> None:
    """The run goes on without that worker, and the verdict once said that the records show no cause in the script."""
    baseline, faulted = (told(9, content=lambda index, *_: index), told(1, 2, content=lambda index, *_: index))
    error = {"worker": "w2", "t": 1.0, "event": "error", "rank": 1, "world_size": 2, "step": 3}
    found = only(diagnose(baseline, [*faulted, {**error, "error": "ValueError: odd world"}]))

    assert "ValueError: odd world" in found.what
    assert "step 3" in found.seen
    for ours in ("OnPurpose: by a drill", "elastic_checkpoint.errors.ClaimHeld: ...", "OSError: [Errno 28] no space"):
        assert diagnose(baseline, [*faulted, {**error, "error": ours}]) == [], ours


def test_what_the_run_refused_is_told_in_its_words_and_not_guessed_from_the_weights() -> None:
    """A worker that was not let in was said to be lost, and the update to have state."""
    baseline, faulted = (told(9, content=lambda index, *_: index), told(1, 2, content=lambda index, *_: index))
    said = (
        "NotLetIn: this worker is not let in: share 2 was passed twice\n  found  what is kept\n  state  nothing was "
        "applied\n  next   extra="
    )
    error = {"worker": "w2", "t": 1.0, "event": "error", "rank": 1, "world_size": 2, "step": 3, "error": said}
    found = only(diagnose(baseline, [*faulted, error]))

    assert found.what.endswith("NotLetIn: this worker is not let in: share 2 was passed twice")
    assert found.seen == "worker 1 of 2 was refused at step 3\n  found  what is kept"
    assert found.next == "extra="


def test_a_loss_costs_the_step_in_flight_and_the_time_to_the_next() -> None:
    story = Story().launch(4).train(2).read()
    died = len(story.events)
    events = [dict(event) for event in story.regroup([0, 1, 2]).train(4).finish().events]
    fault: Event = {**events[died - 1], "event": "fault", "index": 0, "fault": "…", "step": 2, "phase": "backward"}
    for at, event in enumerate(events):
        event["t"] = float(at)
    fault["t"] = died - 0.5
    (cost,) = costs(sorted([*events, fault], key=lambda event: event["t"]), [Kill(3, At(2, "backward"))])

    assert (cost.step, cost.phase, cost.redone, cost.resumed, cost.workers) == (2, "backward", 1, 2, 3)
    assert cost.after_s is not None
    assert cost.after_s > 0
    (slow,) = costs(sorted([*events, fault], key=lambda event: event["t"]), [Slow(3, At(2, "backward"))])
    assert (slow.after_s, slow.redone) == (None, 0)


def test_every_invariant_of_the_judge_belongs_to_one_promise() -> None:
    """A violation that no line of the verdict stands for would be an exit status without a word."""
    from elastic.drill.judge import invariants

    listed = {line.split()[0] for line in (invariants.__doc__ or "").splitlines() if line.startswith("    ")}
    promised = [invariant for names in PROMISES.values() for invariant in names]
    assert len(promised) == len(set(promised))
    assert listed <= set(promised)


@pytest.mark.parametrize(
    ("sizes", "fault", "replaced"),
    [
        ((3, 2), Kill(1, At(2, "data")), False),
        ((3, 2, 3), Kill(1, At(2, "data")), True),
        ((3, 3), Kill(1, At(2, "data")), True),
        ((4, 3, 4, 3), Kill(1, At(2, "data")), True),
        ((3, 2), Terminate(1, At(2, "data")), True),
        ((3, 2), KillAll(At(2, "data")), True),
    ],
)
def test_a_run_that_ends_before_anybody_came_in_a_lost_worker_s_place_is_known(
    sizes: tuple[int, ...], fault: Fault, replaced: bool
) -> None:
    """It has not shown that a script which begins from its first line finds its state."""
    verdict = Verdict(
        violations=(), steps=8, redone=1, discarded=0, world_sizes=sizes, examples_applied=Counter(), weights_sha256="a"
    )
    struck = Cost(
        index=0, fault=fault, at_s=1.0, step=2, phase="data", after_s=0.1, redone=1, resumed=2, workers=sizes[-1]
    )
    found = Findings(
        plan=DrillPlan(workers=sizes[0], faults=(fault,)),
        baseline=verdict,
        faulted=verdict,
        events=((), ()),
        struck=[struck],
        never=(),
        storage="",
        checkpoints=1,
        sizes=(64, 8),
        exact=True,
        diagnoses=(),
        replay="",
        kept=None,
    )
    assert found.replaced is replaced
    console = Console(file=StringIO(), width=200)
    show(console, found)
    assert ("nobody came in a lost worker's place" in console.file.getvalue()) is not replaced  # type: ignore[attr-defined]
