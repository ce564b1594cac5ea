"""What a drill says when both runs have ended: what each fault cost, and which bug in a script looks like this."""

from __future__ import annotations

from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from elastic.data.example_digest import digest_of
from elastic.drill.faults import At, Fault, Join, Kill, KillAll, Slow, Terminate
from elastic.drill.inject.recording_dataset import RecordingDataset, dataset_source
from elastic.drill.judge.contents import conflicts
from elastic.drill.judge.verdict import Verdict
from elastic.drill.plan.drill_plan import DrillPlan
from elastic.drill.report import source_hints
from elastic.drill.report.costs import Cost, costs
from elastic.drill.report.diagnosis import Diagnosis, diagnose
from elastic.drill.report.findings import PROMISES, Findings
from elastic.drill.report.follow import Follow
from elastic.drill.report.show import show
from elastic.events.event import Event
from elastic.events.log import EventLog
from tests.kit.story import Story

BUGGY = Path(__file__).parents[1] / "kit" / "programs"


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
        found = diagnose(told(9, content=content), told(1, 2, content=content), script=None)
        assert says in only(found).what, says
    baseline = told(9, content=lambda index, *_: (index, "one run"))
    faulted = told(1, 2, content=lambda index, *_: (index, "another"))
    assert "no seed of the run decides" in only(diagnose(baseline, faulted, script=None)).what


def test_equal_runs_have_no_diagnosis() -> None:
    def content(index: int, *_: int) -> int:
        return index

    baseline, faulted = told(9, content=content), told(1, 2, 3, content=content)
    assert list(conflicts(faulted, baseline)) == []
    assert diagnose(baseline, faulted, script=None) == []


def test_weights_without_a_seed_lead_to_where_the_model_is_made() -> None:
    def content(index: int, *_: int) -> int:
        return index

    baseline, faulted = told(9, content=content, initial="a"), told(1, 2, content=content, initial="b")
    found = only(diagnose(baseline, faulted, script=str(BUGGY / "unseeded.py")))

    assert "initialised without a seed" in found.what
    assert "seeds only after line" in found.seen
    assert [line.text for line in found.look] == ["model = nn.Linear(8, 2)", "elastic.seed(0)"]


def test_sums_that_differ_over_equal_examples_are_the_loop_s() -> None:
    def content(index: int, *_: int) -> int:
        return index

    def with_sums(events: list[Event], wrong_from: int) -> list[Event]:
        common = {"worker": "w9", "rank": 0, "generation": 1, "claim": 1, "event": "step_applied"}
        sums = [{**common, "t": step + 0.5, "step": step, "sums": step < wrong_from} for step in range(4)]
        return [*events, *sums]

    baseline, faulted = with_sums(told(9, content=content), 99), with_sums(told(1, 2, content=content), 2)
    found = only(diagnose(baseline, faulted, script=str(BUGGY / "global_counter.py")))

    assert "the loop's body" in found.what
    assert "step 2 is the first" in found.seen
    assert any(line.text == "reads += 1" for line in found.look)


@pytest.mark.parametrize(
    ("program", "find", "text"),
    [
        ("rank_sampler", source_hints.rank, 'random.Random(7 + int(os.environ.get("LOCAL_RANK", "0")))'),
        ("global_counter", source_hints.counters, "reads += 1"),
        ("rank_sampler", source_hints.randomness, ".shuffle(order)"),
    ],
)
def test_suspicious_lines_are_found_in_the_source(program: str, find: Any, text: str) -> None:
    assert any(text in line.text for line in find(str(BUGGY / f"{program}.py")))


LOOP = """
import random
import torch

SEEN = {}


class Points:
    def __init__(self):
        self.kept = {}
        self.kept[0] = 1

    def __getitem__(self, index):
        drawn = torch.Generator().manual_seed(index)
        words = {"red", "green"}
        self.kept[index] = torch.randn(4, generator=drawn)
        return self.kept[index] + list(words).index("red")


def mix(batch, means):
    SEEN[len(SEEN)] = batch
    return torch.randn(4, generator=torch.Generator().manual_seed(int(time.time())))


def main():
    model = torch.nn.Linear(4, 1)
    means = [p.clone() for p in model.parameters()]
    with elastic.Run("run", model=model, dataset=Points()) as run:
        for step in run:
            mix(step, means)
"""


def test_lines_that_are_sound_are_no_leads(tmp_path: Path) -> None:
    """A generator seeded from the index, and what __init__ fills, once stood first among the lines to look at."""
    file = str(tmp_path / "loop.py")
    Path(file).write_text(LOOP)
    getitem = 1 + LOOP[: LOOP.index("def __getitem__")].count("\n")

    assert [line.text for line in source_hints.counters(file, getitem)] == [
        "self.kept[index] = torch.randn(4, generator=drawn)"
    ]
    assert source_hints.randomness(file, getitem) == []
    assert [line.text for line in source_hints.hashed(file, getitem)] == ['words = {"red", "green"}']
    assert any("time.time()" in line.text for line in source_hints.randomness(file))
    of_the_loop = source_hints.without(source_hints.counters(file), file, getitem)
    assert [line.text for line in of_the_loop] == ["SEEN[len(SEEN)] = batch"]


def test_an_exception_of_the_script_s_own_is_told_with_the_line_that_raises_it(tmp_path: Path) -> None:
    """The run goes on without that worker, and the verdict once said that the records show no cause in the script."""
    file = tmp_path / "loop.py"
    file.write_text("if size == 2:\n    raise ValueError('odd world')\n")
    baseline, faulted = (told(9, content=lambda index, *_: index), told(1, 2, content=lambda index, *_: index))
    error = {"worker": "w2", "t": 1.0, "event": "error", "rank": 1, "world_size": 2, "step": 3}
    found = only(diagnose(baseline, [*faulted, {**error, "error": "ValueError: odd world"}], script=str(file)))

    assert "ValueError: odd world" in found.what
    assert "step 3" in found.seen
    assert [line.number for line in found.look] == [2]
    for ours in ("OnPurpose: by a drill", "elastic_checkpoint.errors.ClaimHeld: ...", "OSError: [Errno 28] no space"):
        assert diagnose(baseline, [*faulted, {**error, "error": ours}], script=str(file)) == [], ours


def test_what_the_run_refused_is_told_in_its_words_and_not_guessed_from_the_weights() -> None:
    """A worker that was not let in was said to be lost, and the update to have state."""
    baseline, faulted = (told(9, content=lambda index, *_: index), told(1, 2, content=lambda index, *_: index))
    said = (
        "NotLetIn: this worker is not let in: share 2 was passed twice\n  found  what is kept\n  state  nothing was "
        "applied\n  next   extra="
    )
    error = {"worker": "w2", "t": 1.0, "event": "error", "rank": 1, "world_size": 2, "step": 3, "error": said}
    found = only(diagnose(baseline, [*faulted, error], script=None))

    assert found.what.endswith("NotLetIn: this worker is not let in: share 2 was passed twice")
    assert found.seen == "worker 1 of 2 was refused at step 3\n  found  what is kept"
    assert found.next == "extra="


def test_a_cache_that_worker_0_fills_as_before_is_not_called_a_matter_of_the_rank(tmp_path: Path) -> None:
    file = tmp_path / "loop.py"
    file.write_text(LOOP)
    getitem = 1 + LOOP[: LOOP.index("def __getitem__")].count("\n")
    where = {"event": "dataset", "dataset": "Points", "file": str(file), "line": getitem, "worker": "w9", "t": 0.0}

    def content(index: int, step: int, rank: int, read: int) -> int:
        return index + 100 * rank

    found = only(diagnose([where, *told(9, content=content)], told(1, 2, content=content), script=str(file)))

    assert "a counter, a cache" in found.what
    assert [line.text for line in found.look] == ["self.kept[index] = torch.randn(4, generator=drawn)"]


def test_a_source_that_is_none_has_no_suspects(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (")
    assert source_hints.rank(str(tmp_path / "broken.py")) == []
    assert source_hints.counters(str(tmp_path / "absent.py")) == []


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


def test_events_are_followed_as_they_are_written(tmp_path: Path) -> None:
    follow = Follow(tmp_path)
    assert follow.new() == []
    log = EventLog(tmp_path, worker_id="w1")
    log.emit_named("one")
    log.emit_named("two")
    assert [event["event"] for event in follow.new()] == ["one", "two"]
    with (tmp_path / "events" / "w1.jsonl").open("a") as file:
        file.write('{"t": 1, "worker": "w1", "ev')
    assert follow.new() == []
    log.emit_named("three")
    log.close()
    assert follow.new() == []  # its line began in the torn one's
    assert follow.new() == []


def test_a_digest_tells_contents_apart_and_gives_up_on_what_it_does_not_know() -> None:
    import numpy as np
    import torch

    one = (torch.arange(3), {"label": 1, "name": "x"}, np.float32(2))
    same = (torch.arange(3), {"label": 1, "name": "x"}, np.float32(2))
    others = [
        (torch.arange(3).float(), {"label": 1, "name": "x"}, np.float32(2)),
        (torch.tensor([0, 1, 3]), {"label": 1, "name": "x"}, np.float32(2)),
        (torch.arange(3), {"label": 2, "name": "x"}, np.float32(2)),
        (torch.arange(3), {"label": 1, "name": "x"}, np.float32(3)),
        torch.tensor(1, dtype=torch.bfloat16),
        None,
        [],
    ]
    digests = [digest_of(other) for other in others]
    assert digest_of(one) == digest_of(same)
    assert digest_of(one) not in digests
    assert len(set(digests)) == len(others)
    assert None not in digests
    assert digest_of(object()) is None


def test_where_a_dataset_s_code_stands_is_known() -> None:
    from torch.utils.data import Subset

    class Mine:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

    mine: Any = Mine()
    found = dataset_source(Subset(mine, [0, 2])).facts()
    assert found["dataset"].endswith("Mine")
    assert found["file"] == str(Path(__file__).absolute())
    assert RecordingDataset(mine)[2].example == 2


def test_a_node_has_joined_when_a_worker_of_its_own_agent_applies_a_step() -> None:
    """A replacement that comes meanwhile, or the agents of a later launch, are not the node that was called."""

    def placed(t: float, worker: str, agent: int) -> Event:
        return {"t": t, "worker": worker, "event": "placed", "agent": agent}

    def applied(t: float, worker: str, generation: int, size: int, claim: int = 1) -> Event:
        common = {"t": t, "worker": worker, "generation": generation, "claim": claim, "world_size": size}
        return {**common, "event": "step_applied", "step": int(t), "attempt": 0}

    called: Event = {**applied(2.5, "w1", 1, 2), "event": "fault", "index": 0, "step": 3, "phase": "forward"}
    begin = [placed(0, "w1", 7), placed(0, "w2", 7), applied(1, "w1", 1, 2), called]
    replaced = [placed(3, "w3", 7), applied(4, "w1", 2, 2), applied(4, "w3", 2, 2)]
    relaunched = [placed(8, "w9", 9), applied(9, "w9", 1, 2, claim=2)]
    joined = [placed(5, "w4", 8), applied(6, "w1", 3, 3), applied(6.5, "w4", 3, 3)]
    plan = [Join(At(3, "forward"), workers=1)]

    (cost,) = costs([*begin, *replaced, *joined, *relaunched], plan)
    assert (cost.after_s, cost.workers, cost.redone) == (4.0, 3, 0)
    (late,) = costs([*begin, *replaced, *relaunched], plan)
    assert late.after_s is None


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
