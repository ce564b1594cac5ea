"""What a script may do in and around the loop changes nothing, or is refused with a reason; nothing torn is saved.

One process and real runs. Where a second worker matters, the same rules are held in tests/processes/test_endings.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint as recomputed
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.errors import ConfigError, IdentityMismatch, StepError
from elastic.events.log import EventLog
from elastic.events.reading import read_events
from elastic.report.report import report
from tests.kit.arguments import grouped

STEPS = 4
Share = tuple[torch.Tensor, torch.Tensor]


class Small:
    """A run of four steps of three shares, not started yet: `run`. `options` are Run's, over those given here."""

    def __init__(self, url: Path | str, model: nn.Module | None = None, **options: Any) -> None:
        elastic.seed(1)
        self.model = model or nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))
        halves = list(self.model.parameters())
        half = len(halves) // 2
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "first": torch.optim.SGD(halves[:half], lr=0.1, momentum=0.9),
            "second": torch.optim.AdamW(halves[half:], lr=0.01),
        }
        self.data = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
        given: dict[str, Any] = {"dataset": self.data, "batch_size": 12, "virtual_workers": 3, "epochs": 1}
        given |= {"save_every": 1, "optimizer": self.optimizers}
        self.run = elastic.Run(url, model=self.model, **grouped(given | options))

    def backward(self, step: elastic.Step, share: Share) -> None:
        x, y = share
        step.backward(F.cross_entropy(self.model(x), y, reduction="sum"), count=len(y))

    def train(
        self,
        body: Callable[[elastic.Step, Share], None] | None = None,
        after: Callable[[elastic.Step], None] | None = None,
    ) -> Small:
        """To its end. body: instead of `backward`; after: what follows the inner loop."""
        with self.run as run:
            for step in run:
                for share in step:
                    (body or self.backward)(step, share)
                if after is not None:
                    after(step)
        return self

    @property
    def state(self) -> str:
        return elastic_checkpoint.digest({"model": self.model, "optimizers": self.optimizers})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return Small(tmp_path_factory.mktemp("undisturbed")).train().state


def commits(url: Path) -> list[str]:
    return sorted(path.name for path in (url / "commits").iterdir())


def steps_saved(url: Path) -> list[int]:
    return [event["step"] for event in read_events(url) if event["event"] == "saved"]


def happened(url: Path, event: str) -> bool:
    return any(found["event"] == event for found in read_events(url))


def goes_on_to(url: Path, expected: str, *, after: int) -> None:
    """The same command starts where the last boundary was, and ends with the bits that it should have."""
    resumed = Small(url)
    with resumed.run as run:
        assert (run.step_index, run.finished, run.stopped) == (after, False, None)
        for step in run:
            for share in step:
                resumed.backward(step, share)
    assert resumed.run.step_index == STEPS
    assert resumed.state == expected


# exceptions that a script catches, and loops that it leaves


def test_what_no_run_has_saved_is_refused_by_name(tmp_path: Path) -> None:
    """It was a KeyError of ours, `identity`."""
    with elastic_checkpoint.Checkpointer(tmp_path / "run") as alone:
        alone.save(5, {"w": torch.zeros(3)})
    with pytest.raises(IdentityMismatch, match=r"checkpoint step 5 in \S* is not an elastic.Run's(.|\n)*next"):
        Small(tmp_path / "run").train()
    with elastic_checkpoint.Checkpointer(tmp_path / "run") as alone:
        assert [one.step for one in alone.verify() if one.ok] == [5]


def test_an_update_that_raised_and_was_caught_is_not_saved_as_the_end(tmp_path: Path, undisturbed: str) -> None:
    """A `try` around the loop must not turn a model that is torn between two optimizers into a finished run."""

    def torn(run: elastic.Run, step: elastic.Step) -> None:
        failing.optimizers["first"].step()
        if step.index == 2:
            raise ZeroDivisionError("between two optimizers")
        failing.optimizers["second"].step()

    failing = Small(tmp_path / "run", apply=torn)

    def script() -> None:
        with failing.run as run, suppress(ZeroDivisionError):
            for step in run:
                for share in step:
                    failing.backward(step, share)

    with pytest.raises(StepError, match=r"step 2 was left before its update was complete(.|\n)*torn by that update"):
        script()
    assert steps_saved(tmp_path / "run") == [0, 1, 2]
    assert not happened(tmp_path / "run", "finished")
    goes_on_to(tmp_path / "run", undisturbed, after=2)


@pytest.mark.parametrize("share_that_raises", [0, 1, 2])
def test_a_body_that_raised_and_was_caught_is_not_the_end_of_the_run(
    tmp_path: Path, undisturbed: str, share_that_raises: int
) -> None:
    """One broken example must not end a run as finished at the step before it."""
    failing = Small(tmp_path / "run")

    def script() -> None:
        with failing.run as run, suppress(ZeroDivisionError):
            for step in run:
                for number, share in enumerate(step):
                    failing.backward(step, share)
                    if (step.index, number) == (1, share_that_raises):
                        raise ZeroDivisionError("a broken example")

    with pytest.raises(
        StepError, match=r"step 1 was left before its inner loop ended(.|\n)*as it was before this step"
    ):
        script()
    assert steps_saved(tmp_path / "run") == [0, 1]
    assert not happened(tmp_path / "run", "finished")
    goes_on_to(tmp_path / "run", undisturbed, after=1)


# gradients


@pytest.mark.parametrize("when", ["before", "after"])
def test_backward_passes_of_the_script_itself_change_no_bit(tmp_path: Path, when: str) -> None:
    """A body may look at gradients of its own; those of the step are the ones that step.backward makes."""

    def look() -> None:
        torch.autograd.backward([parameter.square().sum() for parameter in looking.model.parameters()])

    def body(step: elastic.Step, share: Share) -> None:
        if when == "before":
            look()
        looking.backward(step, share)
        if when == "after":
            look()
            assert all(torch.equal(p.grad, 2 * p) for p in looking.model.parameters() if p.grad is not None)

    looking = Small(tmp_path / "looking")
    looking.train(body)
    assert looking.state == Small(tmp_path / "plain").train().state


class Twice(nn.Module):
    """Uses one layer outside a recomputed part and in it: reentrant checkpointing gives it two gradients in a pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        elastic.seed(2)
        self.layer = nn.Linear(4, 4)
        self.out = nn.Linear(4, 2)
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = recomputed(self.layer, self.layer(x).tanh(), use_reentrant=self._reentrant)
        scores: torch.Tensor = self.out(hidden)
        return scores


@pytest.mark.parametrize("micro_batch_size", [None, 2], ids=["whole-shares", "micro-batches"])
def test_reentrant_checkpointing_is_refused_by_a_worker_on_its_own_too(
    tmp_path: Path, micro_batch_size: int | None
) -> None:
    """Otherwise a script that was tried out alone would fail, or train on other bits, on its first fleet."""
    overlapping = Small(tmp_path / "run", Twice(reentrant=True), micro_batch_size=micro_batch_size)
    before = overlapping.state
    with pytest.raises(
        StepError, match=r"a second gradient for layer\.(.|\n)*use_reentrant=False\), or compute=Compute\(overlap"
    ):
        overlapping.train()
    assert overlapping.state == before


# what an update changes beside the parameters


class Counting(nn.Module):
    """Its forward pass reads buffers that only the update writes."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: torch.Tensor
        self.temperature: torch.Tensor
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("temperature", torch.tensor(1.0))
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.out(self.norm(x)) / self.temperature * (1 + 0.1 * self.steps)
        return scores


def test_buffers_that_the_update_changes_keep_their_change(tmp_path: Path) -> None:
    """Integer and float ones, in the next step's shares, in the checkpoint, and on top of what BatchNorm has done."""

    def update(run: elastic.Run, step: elastic.Step) -> None:
        model: Any = run.model
        model.steps += 1
        model.temperature.mul_(0.5)
        model.norm.running_mean.zero_()
        for optimizer in run.optimizers.values():
            optimizer.step()

    seen = []

    def body(step: elastic.Step, share: Share) -> None:
        seen.append((int(model.steps), float(model.temperature), float(model.norm.running_mean.abs().sum())))
        made.backward(step, share)

    for steps in (2, None):  # the second goes on with the first
        model: Any = Counting()
        made = Small(tmp_path / "run", model, apply=update, steps=steps)
        made.train(body)

    assert [*dict.fromkeys(seen)] == [(step, 0.5**step, 0.0) for step in range(STEPS)]
    assert (int(model.steps), float(model.temperature)) == (STEPS, 0.5**STEPS)
    assert int(model.norm.num_batches_tracked) == STEPS
    assert bool((model.norm.running_var != 1).all())


# evaluation


def test_an_evaluation_inside_a_step_is_refused(tmp_path: Path, undisturbed: str) -> None:
    """Its exchange would mix with the step's, and its draws would move the share's stream."""

    def body(step: elastic.Step, share: Share) -> None:
        if step.index == 1:
            evaluating.run.evaluate(evaluating.data, lambda x, y: {"n": len(y)})
        evaluating.backward(step, share)

    evaluating = Small(tmp_path / "run")
    with pytest.raises(StepError, match=r"evaluate was called inside step 1(.|\n)*after the inner loop"):
        evaluating.train(body)
    goes_on_to(tmp_path / "run", undisturbed, after=1)


def test_what_is_drawn_after_an_evaluation_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """Two evaluations and the draws behind them, in a run that lost its process in between and one that did not."""

    def drawn(url: Path, steps: int | None) -> list[tuple[float, ...]]:
        def after(step: elastic.Step) -> None:
            draws = [torch.rand(()).item()]
            for _ in range(2):
                made.run.evaluate(made.data, lambda x, y: {"n": len(y) * torch.rand(()).item()})
                draws.append(torch.rand(()).item())
            found.append(tuple(draws))

        found: list[tuple[float, ...]] = []
        made = Small(url, steps=steps)
        made.train(after=after)
        return found

    whole = drawn(tmp_path / "whole", None)
    assert drawn(tmp_path / "parts", 2) + drawn(tmp_path / "parts", None) == whole
    assert len({draw for draws in whole for draw in draws}) == 3 * STEPS


def test_models_in_extra_are_evaluated_in_eval_mode_and_get_their_own_mode_back(tmp_path: Path) -> None:
    """Averaged weights are what gets evaluated: with dropout on, their accuracy is another model's."""
    averaged = AveragedModel(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)))
    next(averaged.module.children()).eval()
    modes: list[list[bool]] = []

    def measure(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        modes.append([module.training for module in averaged.modules()])
        return {"scores": averaged(x).sum()}

    with Small(tmp_path / "run", extra={"averaged": averaged}).run as run:
        before = [module.training for module in averaged.modules()]
        run.evaluate(TensorDataset(torch.ones(8, 4), torch.zeros(8)), measure)
        assert not any(mode for share in modes for mode in share)
        assert [module.training for module in averaged.modules()] == before
        assert any(before)
        assert not all(before)


# what a run may go on with


def test_a_carried_run_may_not_be_made_longer(tmp_path: Path) -> None:
    """The end cuts its last step short: a longer run has another step there, and would train on that tail twice."""
    options: dict[str, Any] = {"last_batch": "carry", "batch_size": 20}
    Small(tmp_path / "run", **options).train()
    before = commits(tmp_path / "run")
    with pytest.raises(IdentityMismatch, match="epochs: 2 here, 1 there") as refused:
        Small(tmp_path / "run", **options, epochs=2).train()

    assert refused.value.fields == {"epochs": (2, 1)}
    assert "accept=" not in str(refused.value)
    assert commits(tmp_path / "run") == before


@pytest.mark.parametrize("field", ["batch_size", "seed", "dataset_length", "last_batch", "epochs"])
def test_what_says_which_examples_a_step_reads_cannot_be_accepted(tmp_path: Path, field: str) -> None:
    """A run that goes on with another order skips some examples and repeats others, whoever allowed it."""
    Small(tmp_path / "run", steps=2).train()
    before = commits(tmp_path / "run")
    with pytest.raises(ConfigError, match=rf"take a list of field names, not {field}; they are .*torch"):
        Small(tmp_path / "run", accept=[field]).train()
    assert commits(tmp_path / "run") == before


def test_a_run_of_which_no_checkpoint_is_whole_does_not_begin_anew(tmp_path: Path) -> None:
    """A first commit would bury what someone may still rescue, and train from nothing without a word."""
    url = tmp_path / "run"
    Small(url).train()
    manifests = [path for path in (url / "commits").rglob("*") if path.is_file()]
    for path in manifests:
        path.write_bytes(path.read_bytes()[:-7] + b"damage!")
    damaged = {path: path.read_bytes() for path in manifests}

    with pytest.raises(elastic_checkpoint.NoCheckpoint) as none:
        Small(url).train()
    assert len(none.value.rejected) == len(manifests) > 1
    assert {path: path.read_bytes() for path in (url / "commits").rglob("*") if path.is_file()} == damaged


# arguments


@pytest.mark.parametrize("named", [False, True], ids=["alone", "in-a-dict"])
def test_a_scheduler_that_wants_a_metric_is_refused_with_the_way_to_have_it(tmp_path: Path, named: bool) -> None:
    """Stepped without its metric it raises deep inside torch, after the first update."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = ReduceLROnPlateau(optimizer)
    with pytest.raises(ConfigError, match=r"ReduceLROnPlateau, which wants a metric(.|\n)*extra="):
        Small(tmp_path / "run", model, optimizer=optimizer, scheduler={"lr": plateau} if named else plateau)

    metered = Small(tmp_path / "run", model, optimizer=optimizer, extra={"plateau": plateau})
    metered.train(after=lambda step: plateau.step(1.0))
    assert plateau.last_epoch == STEPS


# the report


def test_a_report_follows_the_run_that_took_over(tmp_path: Path) -> None:
    """The worker that lost its claim trains on until its next save; what it does there is no longer the run's."""
    clock = iter(range(1000))
    logs = []
    for claim, begun in ((1, 0), (2, 4)):
        log = EventLog(tmp_path, worker_id=f"w{claim}", clock=lambda: next(clock))
        log.context(rank=0)
        log.emit_named("view_formed", workers=[f"w{claim}"], shares=[0, 2])
        log.context(claim=claim)
        log.emit_named("claimed", resumed_from=None)
        log.emit_named("loaded", step=begun, epoch=begun // 4, from_claim=claim - 1 or None, digest="d", accepted=[])
        logs.append(log)
        for step in range(begun, begun + 6 // claim):
            log.emit_named("step_applied", step=step, epoch=step // 4)
    old, new = logs
    for step in range(6, 12):
        old.emit_named("step_applied", step=step, epoch=step // 4)
    old.emit_named("error", error="Evicted: claim 2 is newer")

    found = report(read_events(tmp_path))
    assert (found.steps, found.epoch, found.state, found.claims) == (7, 1, "unfinished", 2)
    new.emit_named("finished", step=7, digest="new")
    old.emit_named("finished", step=12, digest="old")
    found = report(read_events(tmp_path))
    assert (found.steps, found.state, found.weights_sha256) == (7, "finished", "new")
    for log in logs:
        log.close()


@pytest.mark.parametrize(("save_every", "ends_at", "told"), [(100, 1, True), (1, 1, True), (100, None, False)])
def test_a_script_that_ends_in_the_loop_is_told_that_its_steps_are_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], save_every: int, ends_at: int | None, told: bool
) -> None:
    """It ended with status 0 and without a word, and what was done since the newest save was gone."""

    def ends(step: elastic.Step) -> None:
        if step.index == ends_at:
            sys.exit()

    small = Small(tmp_path / "run", save_every=save_every)
    with suppress(SystemExit) if ends_at is not None else nullcontext():
        small.train(after=ends)
    assert ("ended by sys.exit() in the loop, with 2 of 4 steps applied" in capsys.readouterr().err) == told
    assert len(commits(tmp_path / "run")) >= 1
