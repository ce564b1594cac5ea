"""Ranks whose scripts go different ways find out at once, each is told where all of them were, and the run ends."""

from __future__ import annotations

import re
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Subset, TensorDataset

import elastic
from elastic.events.reading import read_events
from elastic.membership.exit_statuses import AGAIN
from tests.kit.arguments import grouped
from tests.kit.launch import Launch
from tests.kit.ranks import Died, Raised, as_worker_of_torchrun, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=5, of="scripts that go different ways")

AT_ONCE_S = 30.0  # against a timeout_s of 600
Way = Callable[[elastic.Run, int, int], None]
"""(run, index of the step that was just applied, rank): the script's own code after each step"""


def count(*batch: Any) -> dict[str, int]:
    return {"n": len(batch[0])}


def data() -> TensorDataset:
    return TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)


def one_evaluates(run: elastic.Run, index: int, rank: int) -> None:
    if index == 1 and run.is_coordinator:
        run.evaluate(data(), count)


def one_evaluates_twice(run: elastic.Run, index: int, rank: int) -> None:
    for _ in range(2 if index == 1 and rank == 1 else 1):
        run.evaluate(data(), count)


def other_lengths(run: elastic.Run, index: int, rank: int) -> None:
    run.evaluate(Subset(data(), range(40 + rank)), count)


def other_batch_sizes(run: elastic.Run, index: int, rank: int) -> None:
    run.evaluate(data(), count, batch_size=4 + rank)


def one_evaluates_after_the_loop(run: elastic.Run, index: int, rank: int) -> None:
    if run.finished and rank == 1:
        run.evaluate(data(), count)


def one_evaluates_after_the_last_step(run: elastic.Run, index: int, rank: int) -> None:
    if index == 3 and run.is_coordinator:
        run.evaluate(data(), count)


def other_cadences(run: elastic.Run, index: int, rank: int) -> None:
    """See `goes`, which gives the ranks their own save_every."""


WAYS: dict[Way, tuple[str, str]] = {
    one_evaluates: ("run.evaluate after step 1 (the first there, of 48 examples in batches of 3)", "step 2"),
    one_evaluates_twice: ("step 2", "run.evaluate after step 1 (the second there, of 48 examples in batches of 3)"),
    other_lengths: ("of 40 examples in batches of 3", "of 41 examples in batches of 3"),
    other_batch_sizes: ("of 48 examples in batches of 4", "of 48 examples in batches of 5"),
    one_evaluates_after_the_last_step: (
        "run.evaluate after step 3 (the first there, of 48 examples in batches of 3)",
        "the end of the loop, after step 3",
    ),
    one_evaluates_after_the_loop: ("the end of the with-block, after step 3", "run.evaluate after step 3"),
    other_cadences: ("a save after step 1", "step 2"),
}


def goes(rank: int, world_size: int, port: int, url: str, way: Way, overlap: bool) -> None:
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2))
    with elastic.Run(
        url,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        dataset=data(),
        batch_size=12,
        virtual_workers=4,
        epochs=1,
        save_every=2 if way is other_cadences and rank == 0 else 100,
        compute=elastic.Compute(overlap=overlap),
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            if not run.finished:
                way(run, step.index, rank)
        way(run, -1, rank)


@pytest.mark.nightly(sample=2)
@pytest.mark.parametrize(
    ("way", "world_size", "overlap"),
    [(way, 2, True) for way in WAYS] + [(one_evaluates, 3, True), (one_evaluates, 2, False)],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_ranks_that_go_different_ways_are_told_at_once_where_all_of_them_were(
    tmp_path: Path, port: int, way: Way, world_size: int, overlap: bool
) -> None:
    """They were in collectives that wait for each other, 600 s long, and called it a lost peer."""
    answers = run_ranks(goes, world_size, port, str(tmp_path / "run"), way, overlap, within_s=AT_ONCE_S)

    for answer in answers:
        assert isinstance(answer, Raised), answer
        assert answer.kind == "CollectiveMismatch", answer.traceback
        for (rank, doing), line in zip(enumerate(WAYS[way]), answer.text.splitlines()[1:], strict=False):
            ranks = "ranks 1, 2" if rank == 1 and world_size == 3 else f"rank {rank}"
            assert line.startswith(f"  {ranks}: "), answer.text
            assert doing in line
            assert re.search(r", at /.*/test_mismatch\.py:\d+$", line), line
    assert len({answer.text for answer in answers}) == 1, "the same everywhere"


def small_run(url: str, model: nn.Module) -> elastic.Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data(), batch_size=12, virtual_workers=4, epochs=1
    )


def odd_but_right(rank: int, world_size: int, port: int, url: str) -> list[dict[str, Any]]:
    """From other lines of the script, with sums of other names: it is one evaluation all the same."""
    as_worker_of_torchrun(rank, world_size, port)
    found = []
    model = nn.Linear(4, 2)
    with small_run(url, model) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
                step.add(**{f"rank {rank}": 1, "all": 1})
            if run.is_coordinator:
                found.append(run.evaluate(data(), count))
            else:
                found.append(run.evaluate(data(), lambda x, y: {"n": len(x), f"only on {rank}": 1}))
            found.append(dict(step.sums))
    return found


def test_what_only_looks_different_is_carried_out_together(tmp_path: Path, port: int) -> None:
    one, other = returned(run_ranks(odd_but_right, 2, port, str(tmp_path / "run")))
    assert one == other
    assert one[0]["n"] == 48
    assert one[1] == {"all": 4, "rank 0": 2, "rank 1": 2}


def breaks(rank: int, world_size: int, port: int, url: str) -> str | None:
    as_worker_of_torchrun(rank, world_size, port)
    model = nn.Linear(4, 2)
    with small_run(url, model) as run:
        for step in run:
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y, reduction="sum"), count=len(y))
            if step.index == rank:
                break
    return run.stopped


def test_one_that_breaks_off_leaves_as_soon_as_it_knows_that_others_do_not(tmp_path: Path, port: int) -> None:
    """It waited a minute for them, and they for it, in the exchange of the next step."""
    answers = run_ranks(breaks, 2, port, str(tmp_path / "run"), within_s=AT_ONCE_S)
    assert answers == [None, Died(AGAIN)]
    (lost,) = [event for event in read_events(tmp_path / "run") if event["event"] == "peer_lost"]
    assert "rank 0: out of the loop by `break` after step 0, at " in lost["error"]


SCRIPT = """
    import os, signal, sys, time, torch, elastic
    from elastic.loop.run_state import Request

    def newcomer_waits(run):
        return any(requests & Request.REGROUP for requests in run._state.agreed.requests)

    elastic.seed(0)
    model = torch.nn.Linear(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    with elastic.Run(
        sys.argv[1], model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01), dataset=data, batch_size=16,
        virtual_workers=4, steps=int(sys.argv[3]) if len(sys.argv) > 3 else 6,
    ) as run:
        for step in run:
            for x, y in step:
                step.backward(((model(x) - y) ** 2).sum(), len(y))
            if sys.argv[2] == "evaluates" and run.is_coordinator and step.index == 2:
                run.evaluate(data, lambda x, y: {"e": ((model(x) - y) ** 2).sum()})
            if sys.argv[2] == "breaks" and step.index == 2 + run.rank:
                break
            if sys.argv[2] in ("all break", "all but the lost break"):
                time.sleep(0.05)
                if step.index == 2 and run.rank == 1 and run.world_size == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                if newcomer_waits(run):
                    if sys.argv[2] == "all but the lost break" and run.rank == 1:
                        os.kill(os.getpid(), signal.SIGKILL)
                    break
    sys.stdout.write(f"stopped {run.step_index} {run.stopped}\\n")  # in one piece: several workers write there
"""


@pytest.fixture
def elastic_run(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    script, launches = tmp_path / "script.py", []
    script.write_text(textwrap.dedent(SCRIPT))

    def start(workers: int, what: str, *more: object) -> Launch:
        flags = ["run", "--standalone", "--no-status", f"--nproc-per-node={workers}"]
        launches.append(Launch("elastic", [*flags, script, tmp_path / "run", what, *more]))
        return launches[-1].__enter__()

    yield start
    for launch in launches:
        launch.__exit__(None, None, None)


def test_under_elastic_run_it_is_the_scripts_bug_and_shown_once(
    elastic_run: Callable[..., Launch], tmp_path: Path
) -> None:
    """Nobody is replaced, no other view is tried, and the run does not wait for a deadline."""
    launch = elastic_run(3, "evaluates")
    assert launch.finish(within_s=240) == 1, launch.output
    assert re.search(r"^  ranks 1, 2: step 3, at .*script\.py:16$", launch.output, re.M), launch.output
    assert re.search(r"^  rank 0: run\.evaluate after step 2 .*, at .*script\.py:19$", launch.output, re.M)
    assert launch.output.count("Traceback (most recent call last)") == 1, launch.output
    assert "the run failed: the script does not do the same on all workers" in launch.output
    views = [event["generation"] for event in read_events(tmp_path / "run") if event["event"] == "view_formed"]
    assert set(views) == {1}


def test_ctrl_c_while_it_is_reported_ends_the_run_as_the_failure_that_it_is(elastic_run: Callable[..., Launch]) -> None:
    """Workers that are about to raise are told to leave: neither word makes them wait for the other."""
    launch = elastic_run(2, "evaluates")
    launch.wait_for(lambda: "errors.CollectiveMismatch" in launch.output, "the report", within_s=240)
    launch.send(signal.SIGINT)
    assert launch.finish(within_s=240) in (1, 130), launch.output  # 130: the agent was past its signals by then
    assert re.search(r"^  rank 1: step 3, at .*script\.py:16$", launch.output, re.M), launch.output


def test_under_elastic_run_one_that_breaks_off_leaves_and_the_others_go_on(elastic_run: Callable[..., Launch]) -> None:
    output = elastic_run(3, "breaks").succeed(within_s=240)
    assert "rank 0 left the loop at step 3 and others did not" in output
    assert len(re.findall(r"^stopped ", output, re.M)) == 3


def in_a_plain_loop(rank: int, world_size: int, port: int, url: str, who: tuple[int, ...]) -> str | None:
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data(), batch_size=12, virtual_workers=6, epochs=3
    ) as run:
        for x, y in run.batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if run.stepped and run.step_index == 3 and rank in who:
                break
    return run.stopped


def test_one_that_breaks_off_a_loop_over_batches_ends_the_run_on_all(tmp_path: Path, port: int) -> None:
    """Its own loss had it leave: it ended with a line on the console, and the others trained on without it."""
    for end in run_ranks(in_a_plain_loop, 3, port, str(tmp_path / "run"), (1,), within_s=AT_ONCE_S):
        assert isinstance(end, Raised), end
        assert end.kind == "CollectiveMismatch"
        assert re.search(r"rank 1: out of the training loop after step 2, by .*, at .*test_mismatch", end.text)
        assert "run.stop(reason), and no `break` behind it, ends it for all" in end.text


@pytest.mark.parametrize("what", ["all break", "all but the lost break"])
def test_who_waits_to_join_a_run_whose_script_leaves_the_loop_ends_with_it(
    elastic_run: Callable[..., Launch], what: str
) -> None:
    """It was admitted at the boundary that the others broke off at, went on by itself, and trained further than they.

    Where one of them is lost in the act, the next view has newcomers, and they end where the others do.
    """
    output = elastic_run(3, what, 400).succeed(within_s=240)
    ends = re.findall(r"^stopped (\d+) (.*)$", output, re.M)
    assert len(set(ends)) == 1, output
    assert ends[0][1] == "the script left the loop"
    assert len(ends) >= (2 if what == "all break" else 1), output
    assert "others did not" not in output


def one_freezes(run: elastic.Run, index: int, rank: int) -> None:
    if index == 1 and run.is_coordinator:
        run.model[0].requires_grad_(False)


def test_ranks_that_train_different_parameters_are_told_which(port: int, tmp_path: Path) -> None:
    """Their gradients would be summed as if they were those of the same parameters, or wait for each other."""
    ended = run_ranks(goes, 2, port, str(tmp_path / "run"), one_freezes, True)

    for end in ended:
        assert isinstance(end, Raised), end
        assert "the workers train different parameters" in end.text
        assert re.search(r"0\.weight is (frozen|trained) here and (frozen|trained) there", end.text)


def tells_a_plateau(rank: int, step: int, rates: dict[str, Any], plateau: Any) -> None:
    """What this worker alone has seen, as `running += loss.item()` has it: of one it rises, of the other it falls."""
    plateau.step(step * (1 if rank == 1 else -1))


def lowers_the_rate(rank: int, step: int, rates: dict[str, Any], plateau: Any) -> None:
    rates["lr"] *= 0.1 if rank == 1 else 1.0


OwnSettings = Callable[[int, int, dict[str, Any], Any], None]


def lowers_it_in_a_body(rank: int, step: int, group: dict[str, Any], plateau: Any) -> None:
    if step == 1:
        group["lr"] = 0.01 / (1 + rank)


def sets_its_own(rank: int, world_size: int, port: int, url: str, settles: OwnSettings) -> int:
    as_worker_of_torchrun(rank, world_size, port)
    elastic.seed(1)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    given: dict[str, Any] = {"dataset": data(), "batch_size": 12, "virtual_workers": 4, "epochs": 1}
    with elastic.Run(url, model=model, optimizer=optimizer, extra={"plateau": plateau}, **grouped(given)) as run:
        for x, y in run.batches():
            if settles is lowers_it_in_a_body:
                settles(rank, run.step_index, optimizer.param_groups[0], plateau)
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if run.stepped and settles is not lowers_it_in_a_body:
                settles(rank, run.step_index, optimizer.param_groups[0], plateau)
    return run.step_index


@pytest.mark.parametrize(
    ("settles", "said"),
    [
        (tells_a_plateau, r"best of 'extra\.plateau': -?\d here and -?\d there"),  # both have one rate yet
        (lowers_the_rate, r"lr of 'optimizer', group 0: 0\.0\d+ here and 0\.0\d+ there"),
        (lowers_it_in_a_body, r"lr of 'optimizer', group 0: 0\.0\d+ here and 0\.0\d+ there"),
    ],
)
def test_settings_that_go_different_ways_are_told_before_the_weights_do(
    port: int, tmp_path: Path, settles: OwnSettings, said: str
) -> None:
    """Each rank would train weights of its own, unseen, and whoever joins get parts of different ones."""
    ended = run_ranks(sets_its_own, 2, port, str(tmp_path / "run"), settles)

    for end in ended:
        assert isinstance(end, Raised), end
        assert end.kind == "CollectiveMismatch", end.traceback
        assert "the workers' optimizers, or schedules, are set differently" in end.text
        assert re.search(said, end.text), end.text
    steps = [event["step"] for event in read_events(tmp_path / "run") if event["event"] == "step_applied"]
    assert max(steps) == 0
