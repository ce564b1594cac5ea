"""However a worker ends, what is saved is a boundary's state, and nobody waits for the one that is gone.

Torchrun where restarts matter; elsewhere ranks that torchrun could have started, beside the store of its agent. What
one process can show of the same rules is in tests/one_process/test_loop_rules.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.drill.faults import At
from elastic.drill.machine.processes import describe
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic.membership.exit_statuses import AGAIN
from tests.kit.arguments import grouped
from tests.kit.launch import ROOT, Launch
from tests.kit.ranks import Died, Raised, as_worker_of_torchrun, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=3, of="how workers end")

LONG, PATIENT = "tests.kit.programs.long", "tests.kit.programs.patient"
AT_ONCE_S = 120.0  # against a timeout_s of 600: whoever waits for a peer that is gone misses it by far
Share = tuple[torch.Tensor, torch.Tensor]


class Small:
    """A run of four steps of four shares, not started yet: `run`. `options` are Run's, over those given here."""

    def __init__(self, url: str, model: Any = None, **options: Any) -> None:
        elastic.seed(1)
        self.model: Any = model or nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2))
        self.data = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
        given: dict[str, Any] = {"dataset": self.data, "batch_size": 12, "virtual_workers": 4, "epochs": 1}
        if "optimizer" not in options:
            given["optimizer"] = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.run = elastic.Run(url, model=self.model, **grouped(given | options))

    def backward(self, step: elastic.Step, share: Share) -> None:
        x, y = share
        step.backward(F.cross_entropy(self.model(x), y, reduction="sum"), count=len(y))

    def train(self, body: Callable[[elastic.Step, Share], None] | None = None) -> str:
        """To its end; the digest of all that was trained."""
        with self.run as run:
            for step in run:
                for share in step:
                    (body or self.backward)(step, share)
        return elastic_checkpoint.digest({"model": self.model, "optimizers": dict(run.optimizers)})


def wait_for(path: Path, *, within_s: float = AT_ONCE_S) -> None:
    deadline = time.monotonic() + within_s
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} within {within_s} s"
        time.sleep(0.01)


def all_gone(launch: Launch, *, within_s: float = AT_ONCE_S) -> None:
    deadline = time.monotonic() + within_s
    while left := launch.pids:
        running = "\n".join(map(describe, left))
        assert time.monotonic() < deadline, f"still there after {within_s} s\n{running}\n{launch.output[-4000:]}"
        time.sleep(0.05)


def named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["event"] == name]


# a boundary's state, and no other, is saved


@pytest.mark.nightly(sample=1, of="losses around the loop")
def test_a_worker_lost_in_an_evaluation_leaves_history_and_patience_as_they_would_have_been(
    elastic_cluster: Callable[..., Any], tmp_path: Path
) -> None:
    """The survivor holds an applied step whose own code has not run: saved like that, the restart would skip that code,
    and the history would lack a line."""
    script = ROOT / "tests" / "kit" / "programs" / "patient.py"
    found = {}
    for name, workers in (("undisturbed", None), ("killed", 2)):
        out = tmp_path / f"{name}.json"
        run = elastic_cluster(
            script=script, url=tmp_path / name, workers=workers, env={"PYTHONPATH": str(ROOT)}, out=out
        )
        if name == "killed":
            run.kill(worker=1, when=At(step=4, phase="evaluate"))
        end = run.finish(within_s=240)
        assert (end.exit_code, end.not_reached) == (0, ()), end.output
        found[name] = json.loads(out.read_text())

    assert [event["step"] for event in named(end.events, "loaded")] == [0, 0, 4, 4]
    assert len(found["undisturbed"]["history"]) == found["undisturbed"]["steps"] > 5
    assert found["killed"] == found["undisturbed"]


# nobody waits for a worker that ended


def broken(rank: int, world_size: int, port: int, url: str, who: tuple[int, ...], after_shares: int) -> None:
    """Leaves both loops in step 1, after so many of this rank's two shares."""
    as_worker_of_torchrun(rank, world_size, port)
    small = Small(url)
    with small.run as run:
        for step in run:
            for number, share in enumerate(step, start=1):
                small.backward(step, share)
                if step.index == 1 and rank in who and number == after_shares:
                    break
            if step.index == 1 and rank in who:
                break


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("after_shares", [1, 2], ids=["first-share", "last-share"])
@pytest.mark.parametrize("who", [(0, 1), (1,)], ids=["all", "one"])
def test_breaking_out_of_both_loops_inside_a_step_is_refused_at_once(
    tmp_path: Path, port: int, who: tuple[int, ...], after_shares: int
) -> None:
    """After the last share, gradients are under way, and gloo would wait for them until its deadline of 600 s."""
    answers = run_ranks(broken, 2, port, str(tmp_path / "run"), who, after_shares, within_s=AT_ONCE_S)

    refused = [answer for answer in answers if isinstance(answer, Raised)]
    assert refused
    for answer in refused:
        assert answer.kind == "StepError"
        assert "step 1 was left before its inner loop ended" in answer.text
        assert answers.index(answer) in who
    for answer in answers:  # of two that break, the slower may learn of the other's end first
        assert answer in refused or answer == Died(AGAIN)
    events = read_events(tmp_path / "run")
    assert [event["step"] for event in named(events, "saved")] in ([0], [0, 1])
    assert not named(events, "finished")


def raises_beside_a_slow_one(rank: int, world_size: int, port: int, url: str, folder: str, late: bool) -> None:
    """Rank 1 raises in step 1, before or after its last share has sent its gradients; rank 0 is in the body of step 1
    until it has."""
    as_worker_of_torchrun(rank, world_size, port)
    small = Small(url)
    ended = Path(folder) / "rank-1-ended"
    done = 0

    def body(step: elastic.Step, share: Share) -> None:
        nonlocal done
        done += 1
        if step.index == 1 and rank == 0:
            wait_for(ended)
        if step.index == 1 and rank == 1 and not late:
            raise ValueError("in the user's own code")
        small.backward(step, share)
        if step.index == 1 and rank == 1 and done == 4:
            raise ValueError("in the user's own code")

    try:
        small.train(body)
    finally:
        if rank == 1:
            ended.touch()


@pytest.mark.parametrize("late", [False, True], ids=["before-its-exchange", "with-gradients-under-way"])
def test_a_worker_that_raises_ends_at_once_and_so_does_the_next_exchange_of_its_peer(
    tmp_path: Path, port: int, late: bool
) -> None:
    """The traceback is what someone is waiting for, and the peer's slow code, of minutes perhaps, is no reason to."""
    arguments = (port, str(tmp_path / "run"), str(tmp_path), late)
    slow, raising = run_ranks(raises_beside_a_slow_one, 2, *arguments, within_s=AT_ONCE_S)

    assert isinstance(raising, Raised), raising
    assert (raising.kind, raising.text) == ("ValueError", "in the user's own code")
    assert slow == Died(AGAIN), slow
    events = read_events(tmp_path / "run")
    assert [event["error"] for event in named(events, "error")] == ["ValueError: in the user's own code"]
    assert [event["step"] for event in named(events, "peer_lost")] == [1]


# what must be the same bits with two workers


def zeroes(rank: int, world_size: int, port: int, folder: str) -> list[str]:
    """Digests of a run that zeroes nothing, and of those that zero before or after backward; whole, then in pieces."""
    if world_size > 1:
        as_worker_of_torchrun(rank, world_size, port)

    def train(when: str, micro_batch_size: int | None) -> str:
        def body(step: elastic.Step, share: Share) -> None:
            if when == "before":
                small.model.zero_grad(set_to_none=step.index % 2 == 0)
            small.backward(step, share)
            if when == "after":
                small.model.zero_grad(set_to_none=step.index % 2 == 0)

        url = f"{folder}/{when}-{micro_batch_size}"
        small = Small(url, batch_size=16, micro_batch_size=micro_batch_size, clip_grad_norm=0.5, save_every=100)
        return small.train(body)

    return [train(when, size) for size in (None, 2) for when in ("never", "before", "after")]


def test_zeroing_gradients_in_the_body_changes_no_bit_with_two_workers(tmp_path: Path, port: int) -> None:
    """There, gradients leave during the last backward pass, and what follows it comes too late or too early."""
    first, second = returned(run_ranks(zeroes, 2, port, str(tmp_path / "two")))
    (alone,) = returned(run_ranks(zeroes, 1, port, str(tmp_path / "one")))

    assert first == second == alone
    assert len(set(alone[:3])) == len(set(alone[3:])) == 1


class Pair(nn.Module):
    """Two of these share a layer, and have a head each."""

    def __init__(self, shared: nn.Linear) -> None:
        super().__init__()
        self.shared = shared
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.shared(x).tanh())
        return scores


def shares_a_parameter(rank: int, world_size: int, port: int, url: str) -> str:
    if world_size > 1:
        as_worker_of_torchrun(rank, world_size, port)
    torch.manual_seed(2)
    shared = nn.Linear(4, 4)
    models = {"a": Pair(shared), "b": Pair(shared)}
    unique = {id(p): p for model in models.values() for p in model.parameters()}
    optimizer = torch.optim.SGD(unique.values(), lr=0.5)
    small = Small(url, models, optimizer=optimizer, clip_grad_norm=0.1)

    def body(step: elastic.Step, share: Share) -> None:
        x, y = share
        loss = F.cross_entropy(models["a"](x), y, reduction="sum") + models["b"](x).square().sum()
        step.backward(loss, count=len(y))

    return small.train(body)


def test_a_parameter_of_two_models_trains_to_the_same_bits_at_every_world_size(tmp_path: Path, port: int) -> None:
    """Tied embeddings of a generator and a critic, say: exchanged twice, its gradient would be doubled."""
    first, second = returned(run_ranks(shares_a_parameter, 2, port, str(tmp_path / "two")))
    (alone,) = returned(run_ranks(shares_a_parameter, 1, port, str(tmp_path / "one")))
    assert first == second == alone


def scales(rank: int, world_size: int, port: int, url: str, steps: int) -> tuple[str, dict[str, Any], int]:
    """The digest, the scaler's state, and how many shares this rank had: a batch of three examples is one share."""
    if world_size > 1:
        as_worker_of_torchrun(rank, world_size, port)
    scaler: Any = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    data = TensorDataset(torch.arange(12.0).view(3, 4), torch.arange(3) % 2)
    elastic.seed(2)
    options: dict[str, Any] = {
        "dataset": data,
        "epochs": 100,
        "steps": steps,
        "clip_grad_norm": 0.5,
        "cross_check": None,
    }
    small = Small(url, nn.Linear(4, 2), scaler=scaler, **options)
    shares = 0

    def body(step: elastic.Step, share: Share) -> None:
        nonlocal shares
        shares += 1
        small.backward(step, share)

    return small.train(body), dict(scaler.state_dict()), shares


def test_a_rank_without_work_has_the_scale_right_after_a_restart(tmp_path: Path, port: int) -> None:
    """Nothing that it computes makes a scale there, and its update unscales the gradients of the others."""
    run_ranks(scales, 2, port, str(tmp_path / "two"), 3, within_s=AT_ONCE_S)
    idle, with_work = returned(run_ranks(scales, 2, port, str(tmp_path / "two"), 5, within_s=AT_ONCE_S))
    (alone,) = returned(run_ranks(scales, 1, port, str(tmp_path / "one"), 5, within_s=AT_ONCE_S))

    assert (with_work[2], idle[2], alone[2]) == (2, 0, 5)
    assert with_work[:2] == idle[:2] == alone[:2]
    assert alone[1]["scale"] > 8.0


# workers whose torchrun is killed


@pytest.mark.nightly(sample=1, of="signals")
def test_workers_whose_torchrun_is_killed_save_and_leave_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Out of memory takes the launcher, too. Its workers would train on, with nobody to restart them."""
    with Launch(LONG, [tmp_path / "run", 1_000_000, tmp_path], workers=2) as launch:
        launch.wait_for((tmp_path / "step-5").exists, "step 5", within_s=240)
        launch.send(signal.SIGKILL)
        all_gone(launch)
        output = launch.output

    events = read_events(tmp_path / "run")
    (step,) = {event["step"] for event in named(events, "left")}
    assert len(named(events, "left")) == 2, output
    assert [event["step"] for event in named(events, "saved")] == [0, step]
    assert not named(events, "peer_lost")
    with Launch(LONG, [tmp_path / "run", step + 4, tmp_path], workers=2) as again:
        assert f"resuming after step {step}" in again.succeed(within_s=240)


@pytest.mark.nightly(sample=1, of="signals")
def test_workers_whose_torchrun_is_killed_while_they_start_end(tmp_path: Path) -> None:
    """One waits for the others, and one has not come to its Run yet: it finds nobody, and must not look for minutes."""
    go = tmp_path / "go"
    with Launch(PATIENT, [tmp_path / "run", "--go", go], workers=2) as launch:
        launch.wait_for(lambda: bool(named(read_events(tmp_path / "run"), "run_started")), "rank 0", within_s=240)
        launch.wait_for((tmp_path / "go.awaited").exists, "rank 1", within_s=240)
        launch.send(signal.SIGKILL)
        go.touch()
        all_gone(launch)
        output = launch.output

    assert [path.name for path in (tmp_path / "run").iterdir()] == ["events"], output  # no claim in the way


GOES_ON = """
import threading
from elastic.launch.processes import ending

ending._PATIENCE_S = 0.1
print("ends")
release = threading.Event()
threading.Thread(target=release.wait, name="uploader").start()
threading.Timer(2.0, release.set).start()
ending.end(3)
"""


def test_a_worker_whose_script_left_a_thread_that_goes_on_says_whom_it_waits_for() -> None:
    """It waits, as python does: the thread may write what nobody should miss."""
    worker = subprocess.run(
        [sys.executable, "-c", GOES_ON], capture_output=True, text=True, timeout=AT_ONCE_S, check=False
    )
    assert worker.returncode == 3
    assert "waits for threads that go on, as python does: uploader, Thread-1" in worker.stderr
    assert worker.stdout == "ends\n"
