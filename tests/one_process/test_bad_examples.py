"""An example that raises is left out of its step on all counts, in both loops and modes; or ends the run, by name."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import elastic
from elastic.data.data_plan import DataPlan
from elastic.errors import ConfigError, ExampleError, IdentityMismatch, StepError
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.report import sentences, summary
from elastic.report.page import page
from elastic.report.report import report
from tests.kit.arguments import grouped

LENGTH, BATCH, SHARES, STEPS = 40, 16, 4, 6
PLAN = DataPlan(dataset_length=LENGTH, batch_size=BATCH, virtual_workers=SHARES, seed=0, epochs=2)
HERE_AND_THERE = (3, 17, 18, 31)


class Holed:
    """Points with labels, of which some cannot be read."""

    def __init__(self, bad: Collection[int] = (), error: Callable[[str], Exception] = ValueError) -> None:
        draw = torch.Generator().manual_seed(5)
        self.points = torch.randn(LENGTH, 6, generator=draw)
        self.labels = self.points[:, :3].argmax(dim=1)
        self.bad, self.error = frozenset(bad), error

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index in self.bad:
            raise self.error(f"record {index} is torn")
        return self.points[index], self.labels[index]


def share(step: int, number: int) -> list[int]:
    """The examples of a share, in order."""
    found: list[int] = PLAN.step(step).examples(number).indices.tolist()
    return found


def network(*, norm: bool = False) -> nn.Sequential:
    elastic.seed(3)
    first = [nn.BatchNorm1d(6)] if norm else []
    return nn.Sequential(*first, nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


Trained = tuple[nn.Module, list[float], list[float]]
Loop = Callable[..., Trained]


def _run(url: Path, model: nn.Module, dataset: Holed, options: dict[str, Any]) -> elastic.Run:
    given: dict[str, Any] = {"batch_size": BATCH, "virtual_workers": SHARES, "epochs": 2, "on_bad_example": "skip"}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    return elastic.Run(url, model=model, optimizer=optimizer, dataset=dataset, **grouped(given | options))


def over_steps(url: Path, dataset: Holed, *, norm: bool = False, **options: Any) -> Trained:
    """The model, what each step counted, and the sum of its losses."""
    model, counts, losses = network(norm=norm), list[float](), list[float]()
    with _run(url, model, dataset, options) as run:
        for step in run:
            for x, y in step:
                loss = F.cross_entropy(model(x), y, reduction="sum")
                step.add(loss=loss.detach(), seen=len(y))
                step.backward(loss, len(y))
            assert step.sums["seen"] == step.count
            counts.append(step.count)
            losses.append(step.sums["loss"])
    return model, counts, losses


def over_batches(url: Path, dataset: Holed, *, norm: bool = False, **options: Any) -> Trained:
    """Likewise, in a loop that knows of no steps."""
    model, counts, losses = network(norm=norm), list[float](), list[float]()
    with _run(url, model, dataset, options) as run:
        (optimizer,) = run.optimizers.values()
        for x, y in run.batches():
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(x), y)
            run.add(loss=loss.detach() * len(y), seen=len(y))
            loss.backward()
            optimizer.step()
            if run.stepped:
                assert run.sums["seen"] == run.count
                counts.append(run.count)
                losses.append(run.sums["loss"])
    return model, counts, losses


def without_elastic(bad: Collection[int]) -> Trained:
    """Whole batches of what can be read, in the run's order."""
    model, counts, losses = network(), list[float](), list[float]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    whole = Holed()
    for index in range(STEPS):
        chosen = [one for one in PLAN.step(index).indices.tolist() if one not in bad]
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(whole.points[chosen]), whole.labels[chosen])
        loss.backward()
        optimizer.step()
        counts.append(len(chosen))
        losses.append(float(loss.detach()) * len(chosen))
    return model, counts, losses


def close(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


IN_BOTH_LOOPS = pytest.mark.parametrize("loop", [over_steps, over_batches])


@IN_BOTH_LOOPS
@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("bad", [(), HERE_AND_THERE, share(1, 2), [*share(1, 0), *share(1, 3), 3]])
def test_what_is_left_out_counts_nowhere(loop: Loop, mode: str, bad: Collection[int], tmp_path: Path) -> None:
    """Gradients are means over what was read, as are losses; a share of which nothing is left, the last one too, counts
    nothing, though the body passes something forward and back for it."""
    model, counts, losses = loop(tmp_path, Holed(bad), mode=mode)
    expected, expected_counts, expected_losses = without_elastic(bad)

    assert counts == expected_counts
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert close(model, expected)


def test_what_counts_tokens_counts_none_of_a_share_that_is_gone(tmp_path: Path) -> None:
    model, seen = network(), list[float]()
    with _run(tmp_path, model, Holed(share(0, 0)), {"count": lambda batch: 3 * len(batch[1])}) as run:
        (optimizer,) = run.optimizers.values()
        for x, y in run.batches():
            loss: Any = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if run.stepped:
                seen.append(run.count)
    assert seen == [36, 48, 24, *seen[3:]]


def test_a_run_in_which_nothing_raises_is_the_run_without_the_rule(tmp_path: Path) -> None:
    """To the bit, in a loop over steps, which weighs all shares alike in both."""
    states = [over_steps(tmp_path / rule, Holed(), on_bad_example=rule)[0].state_dict() for rule in ("skip", "raise")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@IN_BOTH_LOOPS
def test_a_step_of_which_nothing_can_be_read_ends_the_run(loop: Loop, tmp_path: Path) -> None:
    """The storage is away, and not a few examples: nobody wants to find a run that has learnt nothing."""
    with pytest.raises(StepError, match=r"all 16 examples of step 1 raised as they were read"):
        loop(tmp_path, Holed(PLAN.step(1).indices.tolist()))


def test_without_the_rule_the_first_one_ends_the_run_and_says_that_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(ExampleError, match=r'dataset\[3\] in epoch 0 .*(\n.*)*on_bad_example="skip"'):
        over_steps(tmp_path, Holed([3]), on_bad_example="raise")


def no_memory(_: str) -> RuntimeError:
    """torch's own."""
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    return refused.value


@pytest.mark.parametrize("error", [MemoryError, no_memory, lambda _: OSError(errno.EMFILE, "too many open files")])
def test_lack_of_memory_or_descriptors_is_none_of_the_example_s(
    tmp_path: Path, error: Callable[[str], Exception]
) -> None:
    """It depends on the worker, and leaves out whatever is read then."""
    with pytest.raises(ExampleError, match="Error: ") as failed:
        over_steps(tmp_path, Holed([3], error))
    assert "on_bad_example" not in str(failed.value)  # which is set


def test_what_was_left_out_is_recorded_and_reported(tmp_path: Path) -> None:
    over_steps(tmp_path, Holed(HERE_AND_THERE))
    events = read_events(tmp_path)

    recorded = [e for e in events if e["event"] == "example_left_out"]
    assert sorted((e["epoch"], e["index"]) for e in recorded) == [(0, i) for i in HERE_AND_THERE] + [
        (1, i) for i in HERE_AND_THERE
    ]
    for event in recorded:
        assert share(event["step"], event["share"])[event["at"]] == event["index"]
    applied: list[Event] = [e for e in events if e["event"] == "step_applied"]
    assert sum(e.get("left_out", 0) for e in applied) == 8
    assert [e["count"] + e.get("left_out", 0) for e in applied] == [16, 16, 8] * 2
    found = report(events)
    assert dict(summary.facts(found))["left out"] == "8 examples that raised, 4 different ones"
    assert found.facts()["left_out"][0]["error"].startswith("ValueError: record")
    assert sentences.example_left_out(found.left_out[0]) in page("x", events).replace("&#x27;", "'")


def test_a_run_that_left_examples_out_is_another_one(tmp_path: Path) -> None:
    """The rule decides what is trained on, as on_bad does."""
    over_steps(tmp_path, Holed(), epochs=None, steps=2, on_bad_example="raise")
    with pytest.raises(IdentityMismatch, match="on_bad_example"):
        over_steps(tmp_path, Holed(HERE_AND_THERE))
    _, counts, _ = over_steps(tmp_path, Holed(HERE_AND_THERE), accept=["on_bad_example"])
    assert len(counts) == STEPS - 2


class Weighed(Holed):
    """Labels by how often they were read: a data set that remembers."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.reads = getattr(self, "reads", 0) + 1
        return self.points[index] / self.reads, self.labels[index]


@IN_BOTH_LOOPS
def test_a_data_set_that_remembers_is_refused_at_the_first_step(loop: Loop, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"share 3 of step 0 was read twice, by this worker, and the batches are not"):
        loop(tmp_path, Weighed(), on_bad_example="raise")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"on_bad_example": "ignore"}, "expected 'raise' or 'skip'"),
        ({"micro_batch_size": 2}, "micro_batch_size=2"),
        ({"dataset": elastic.Streams(lambda worker, workers: iter(())), "epochs": None, "steps": 3}, "elastic.Streams"),
    ],
)
def test_what_cannot_be_carried_exactly_is_refused(options: dict[str, Any], named: str, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    given: dict[str, Any] = {
        "dataset": Holed(),
        "batch_size": BATCH,
        "virtual_workers": SHARES,
        "epochs": 2,
        "on_bad_example": "skip",
    }
    with pytest.raises(ConfigError, match=named):
        elastic.Run(tmp_path, model=model, optimizer=optimizer, **grouped(given | options))
