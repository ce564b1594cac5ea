"""A small GPT, sharded by fully_shard over this worker's replica, in either loop: tied and odd shapes, dropout, AdamW.

Weights of one row leave most parts empty. With --whole it is not sharded: what its bits are without any of this. With
--unused, a layer is used in some shares only, and one never. Each worker prints one line: the digest of the whole
weights and moments, and what it held of them; the same for drills, as "took part: …".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, Subset

import elastic
import elastic_checkpoint
from elastic.data.data_plan import StepPlan
from elastic.errors import PeerLost
from elastic.group.replica_group import ReplicaGroup
from elastic.group.sums import Agreed
from elastic.loop.gradient_sync import GradientSync
from elastic.loop.session import Session
from elastic.loop.steps.current_step import BatchInHand, CurrentStep
from elastic.loop.storage.saver import Saver
from elastic_checkpoint.testing import Faults, Plan, TornWrite

VOCABULARY, WIDTH, LENGTH = 61, 20, 16
MOMENTS = ("forward", "second", "held", "word", "applied")
"""Of a step: its first pass; another one; it is exchanged; this worker has heard that all hold it; it is applied.

Noted, too: it is applied, and what the step before it computed lies beside the save that it follows.
"""


class Block(nn.Module):
    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 50), nn.Linear(50, WIDTH)
        self.gain = nn.Parameter(torch.ones(1, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (one.view(batch, length, 4, -1).transpose(1, 2) for one in self.qkv(self.norms[0](x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + F.dropout(self.out(y), 0.1, self.training) * self.gain
        if self.recomputes:
            mlp: torch.Tensor = checkpoint(self.mlp, x, use_reentrant=False)
            return mlp
        return self.mlp(x)

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norms[1](x)))), 0.1, self.training)


class GPT(nn.Module):
    """checkpointed: "blocks" are recomputed whole, or the half of "each"."""

    def __init__(self, unused: bool, checkpointed: str | None) -> None:
        super().__init__()
        self.recomputes = checkpointed == "blocks"
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(recomputes=checkpointed == "each") for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        self.sometimes = nn.Linear(WIDTH, WIDTH) if unused else None
        self.never = nn.Linear(3, 5) if unused else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        if self.sometimes is not None and int(tokens.sum()) % 2:
            x = x + self.sometimes(x)
        logits: torch.Tensor = self.head(self.batch(self.norm(x).transpose(1, 2)).transpose(1, 2))
        return logits


class Text(Dataset[Any]):
    """Sequences of tokens."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.randint(VOCABULARY, (LENGTH + 1,), generator=torch.Generator().manual_seed(index))
        return drawn[:-1], drawn[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--virtual-workers", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--short", type=int, default=0, help="how many examples the last batch of an epoch lacks")
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--num-workers", type=int, default=0)
    parser.add_argument("--unhurried", type=int, default=0, help="goes slowly while fewer workers than this share it")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--unused", action="store_true")
    parser.add_argument("--checkpointed", choices=["blocks", "each"], help="see GPT")
    parser.add_argument("--compiled", action="store_true", help="each block")
    parser.add_argument("--plain", action="store_true", help="the loop over run.batches()")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds, in each body")
    parser.add_argument("--clip", type=float, help="the norm that gradients are clipped to")
    parser.add_argument("--sgd", action="store_true", help="an optimizer that shows how large a gradient is")
    parser.add_argument("--fast", action="store_true", help="a worker's shares as one batch")
    parser.add_argument("--on-bad", choices=["skip", "rollback"])
    parser.add_argument("--bad", default="-1:1", help="STEP:FACTOR, that the losses of that step are multiplied by")
    parser.add_argument("--torn", action="store_true", help="half of the first commit is written")
    parser.add_argument("--kill", help="STEP:MOMENT:RANK,RANK:SIGNAL, in the run's first view; see MOMENTS")
    parser.add_argument("--deaf", help="STEP:RANK,RANK do not hear that all hold the step, once they have said it")
    parser.add_argument("--lacks", help="STEP:RANK,RANK lose a peer as they take the step's sums")
    parser.add_argument("--misses", help="STEP:RANK,RANK lose a peer as they are to meet it for the exchange")
    parser.add_argument("--finds-out", help="STEP:RANK,RANK find a peer lost before another pass")
    parser.add_argument("--wrong", default="-1:-1", help="STEP:RANK, in the first view: other losses")
    parser.add_argument("--held", type=int, help="the rank that takes for saved what is not")
    parser.add_argument("--bug", choices=["no vote", "word first"], help="planted in the run")
    options = parser.parse_args()
    if options.deaf:
        _make_deaf(options.deaf, options.url)
    if options.misses:
        _make_miss(options.misses)
    if options.lacks:
        _make_lack(options.lacks, options.url)
    if options.finds_out:
        _find_out(options.finds_out)
    if options.held is not None:
        _take_for_held(options.held)
    if options.bug:
        _plant(options.bug, options.url)
    elastic.seed(0)
    torch.manual_seed(0)
    model = GPT(options.unused, options.checkpointed)
    for block in model.blocks if options.compiled else ():
        block.compile()
    if not options.whole:
        from torch.distributed.fsdp import fully_shard

        mesh = elastic.device_mesh()
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    if options.sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    data = Text()
    bad, factor = int(options.bad.partition(":")[0]), float(options.bad.partition(":")[2])
    if options.short:
        data.__class__.__len__ = lambda _: 3 * options.batch_size - options.short  # type: ignore[method-assign]
    url, storage = options.url, None
    if options.torn:
        plan = Plan(TornWrite(path="*/commits/*", times=1))
        url, around = Faults(plan).around(options.url, {"auto_mkdir": True})
        storage = {**around, "faults": plan.document(), "record": f"{options.url}.faults"}
    with elastic.Run(
        url,
        model=model,
        optimizer=optimizer,
        dataset=data,
        batch_size=options.batch_size,
        virtual_workers=options.virtual_workers,
        epochs=100,
        steps=options.steps,
        save_every=options.save_every,
        update=elastic.Update(
            clip_grad_norm=None if options.plain else options.clip,
            on_bad=elastic.OnBad(options.on_bad, spike=20, window=8) if options.on_bad else None,
        ),
        compute=elastic.Compute(mode="fast" if options.fast else "exact"),
        data=elastic.Data(
            last_batch="short", micro_batch_size=options.micro_batch_size, num_workers=options.num_workers
        ),
        saving=elastic.Saving(storage_options=storage),
        checks=elastic.Checks(accept=["norm"]),  # of a model that is not sharded, whose run a sharded one resumes
    ) as run:
        if options.kill:
            _kill_at_word(options, run)
        if options.plain:
            for _ in run.epochs():
                for x, y in run.batches():
                    time.sleep(options.pause)
                    _die(options, run, run.step_index, "forward")
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
                    loss = loss * (factor if run.step_index == bad else 1) * _error(options, run, run.step_index)
                    loss.backward()  # type: ignore[no-untyped-call]
                    if options.clip:
                        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
                    optimizer.step()
                    if run.stepped:
                        _die(options, run, run.step_index - 1, "applied")
                        _rest(options, run)
        else:
            for step in run:
                for number, (x, y) in enumerate(step):
                    time.sleep(options.pause)
                    _die(options, run, step.index, "forward" if number == 0 else "second")
                    loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
                    loss = loss * (factor if step.index == bad else 1) * _error(options, run, step.index)
                    step.backward(loss, count=y.numel())
                    step.add(loss=loss)
                _die(options, run, step.index, "applied")
                _rest(options, run)
        told = run.evaluate(
            Subset(data, range(40)),
            lambda x, y: {"loss": F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")},
        )
    moments = {
        name: {key: value for key, value in optimizer.state[one].items() if key != "step"}
        for name, one in model.named_parameters()
    }
    found = {
        "rank": run.rank,
        "replica": [run.replica.index, run.replica.count, run.replica.rank, run.replica.size],
        "weights": elastic_checkpoint.digest(model),
        "moments": elastic_checkpoint.digest(moments),
        "evaluated": float(told["loss"]).hex(),
        "steps": run.step_index,
    }
    state = f"{found['weights']} {found['moments']} {found['evaluated']}, {found['steps']} steps"
    os.write(1, f"{json.dumps(found)}\ntook part: {state}\n".encode())  # at once: print writes piece by piece


def _error(options: argparse.Namespace, run: elastic.Run, step: int) -> float:
    """What a loss is multiplied by, where this worker computes wrongly."""
    since, rank = map(int, options.wrong.split(":"))
    return 1 + 1e-6 if run.rank == rank and run.generation <= 1 and step >= since else 1


def _rest(options: argparse.Namespace, run: elastic.Run) -> None:
    """Let a run of few steps see its lost workers replaced."""
    if run.world_size < options.unhurried:
        time.sleep(0.1)


def _take_for_held(rank: int) -> None:
    """Have this rank find that storage holds what it is about to save, which the others do not find."""
    holds = Saver.holds

    def is_told(self: Saver, step: int, stopped: str | None) -> bool:
        return holds(self, step, stopped) or (step > 0 and torch.distributed.get_rank() == rank)

    Saver.holds = is_told  # type: ignore[method-assign]


def _make_deaf(planned: str, url: str) -> None:
    """Have these ranks lose the word of that step, once it has come to all."""
    at, ranks = planned.split(":")
    all_hold = GradientSync.all_hold

    def deaf(self: GradientSync, step: int) -> None:
        all_hold(self, step)
        if step != int(at) or heard:
            return
        heard.append(step)
        Path(f"{url}.heard.{self._group.rank}").touch()
        if str(self._group.rank) in ranks.split(","):
            while not all(Path(f"{url}.heard.{rank}").exists() for rank in range(self._group.world_size)):
                time.sleep(0.001)
            raise PeerLost("this worker is made deaf", step=step, phase="word of all")

    heard: list[int] = []
    GradientSync.all_hold = deaf  # type: ignore[method-assign]


def _make_lack(planned: str, url: str) -> None:
    """Have these ranks lose a peer in the exchange of that step, the sums of which the others have."""
    at, ranks = planned.split(":")
    exchange = CurrentStep._exchange

    def lacks(self: CurrentStep, unit: int) -> Agreed:
        agreed = exchange(self, unit)
        if (self.index, self.attempt) == (int(at), 0):
            group = self.session.group
            _wait_for_all(f"{url}.summed", group.rank, range(group.world_size))
            if str(group.rank) in ranks.split(","):
                raise PeerLost("this worker is made to lack sums", step=self.index, phase="sums")
        return agreed

    CurrentStep._exchange = lacks  # type: ignore[method-assign]


def _make_miss(planned: str) -> None:
    """Have these ranks lose a peer before anything of that step is exchanged, while others go into the exchange."""
    at, ranks = planned.split(":")
    meet, plan = GradientSync.meet, GradientSync.plan

    def notes(self: GradientSync, step: StepPlan) -> None:
        steps.append(step.index)
        plan(self, step)

    def misses(self: GradientSync) -> None:
        meet(self)
        if steps[-1] == int(at) and str(self._group.rank) in ranks.split(",") and not missed:
            missed.append(steps[-1])
            raise PeerLost("this worker is made to miss a peer", step=steps[-1], phase="meeting")

    steps: list[int] = []
    missed: list[int] = []
    GradientSync.meet, GradientSync.plan = misses, notes  # type: ignore[method-assign]


def _find_out(planned: str) -> None:
    """Have these ranks find a peer lost as they are about to pass another share of that step."""
    at, ranks = planned.split(":")
    read = CurrentStep._read

    def finds(self: CurrentStep, shares: range, current: BatchInHand) -> Any:
        here = (self.index, self.attempt) == (int(at), 0) and str(self.session.group.rank) in ranks.split(",")
        if here and shares[0] != self.session.gradient_sync.assignment.shares[0]:
            raise PeerLost("this worker finds a peer lost", step=self.index, phase="reading")
        return read(self, shares, current)

    CurrentStep._read = finds  # type: ignore[method-assign]


def _plant(bug: str, url: str) -> None:
    if bug == "no vote":
        go_on, read, hand = Session.mates_go_on, CurrentStep._read, CurrentStep._hand

        def alone(self: Session, lost: PeerLost | None) -> None:
            """Vote on a loss alone, and not before a pass."""
            if lost is not None:
                go_on(self, lost)

        def hands(self: CurrentStep, batch: Any, driver: Any) -> Iterator[Any]:
            """Note that a worker is in a later pass of the step, of which nothing but a vote holds it back."""
            for one in hand(self, batch, driver):
                if self.attempt == 0 and self.batch.share not in (
                    None,
                    self.session.gradient_sync.assignment.shares[0],
                ):
                    Path(f"{url}.passes.{self.index}.{self.session.group.rank}").touch()
                yield one

        def finds(self: CurrentStep, shares: range, current: BatchInHand) -> Any:
            """A loss before a second pass is found once the mate is in it."""
            try:
                return read(self, shares, current)
            except PeerLost:
                mate, deadline = Path(f"{url}.passes.{self.index}.{self.session.group.rank ^ 1}"), time.monotonic() + 60
                while not mate.exists():
                    assert time.monotonic() < deadline, "the mate does not begin its second pass"
                    time.sleep(0.001)
                raise

        Session.mates_go_on = alone  # type: ignore[method-assign]
        CurrentStep._read, CurrentStep._hand = finds, hands  # type: ignore[method-assign]
        return

    def word_first(self: CurrentStep, mates: ReplicaGroup, unit: int) -> Agreed:
        """Say that all hold the step before it is summed."""
        self.session.gradient_sync.all_hold(self.index)
        return self._exchange(unit)

    CurrentStep._exchange_with_mates = word_first  # type: ignore[method-assign]


def _kill_at_word(options: argparse.Namespace, run: elastic.Run) -> None:
    """Have a planned end come right before this worker says that it holds the step, or once all have said it."""
    all_hold = GradientSync.all_hold

    def dies(self: GradientSync, step: int) -> None:
        _die(options, run, step, "held")
        all_hold(self, step)
        _die(options, run, step, "word")

    GradientSync.all_hold = dies  # type: ignore[method-assign]


def _die(options: argparse.Namespace, run: elastic.Run, step: int, moment: str) -> None:
    """End here if it is planned, together with the others of whom that is planned."""
    if options.kill is None or run.generation > 1:
        return
    at, what, together, number = options.kill.split(":")
    ranks = together.split(",")
    if moment == "applied" and what == "noted":
        moment = "noted"
    if (int(at), what) == (step, moment) and str(run.rank) in ranks:
        if what == "noted":
            _wait_until(lambda: _is_noted(options.url, step - 1), f"nothing is noted of step {step - 1}")
        _wait_for_all(f"{options.url}.dies", run.rank, ranks)
        os.kill(os.getpid(), signal.Signals[number])


def _is_noted(url: str, step: int) -> bool:
    """Return whether what the step behind a save had computed lies beside that save."""
    notes = (path.read_bytes() for path in Path(url).glob("data/*/*/note.json"))
    return any(json.loads(note)["step"] == step for note in notes)


def _wait_for_all(named: str, rank: int, ranks: Iterable[object]) -> None:
    """Return once all of these ranks have come here."""
    Path(f"{named}.{rank}").touch()
    _wait_until(lambda: all(Path(f"{named}.{one}").exists() for one in ranks), f"not all of {ranks} come")


def _wait_until(done: Callable[[], bool], else_said: str) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, else_said
        time.sleep(0.001)


if __name__ == "__main__":
    main()
