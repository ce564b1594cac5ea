"""Which examples does a run train on that is killed and comes back with other ranks? One script, five ways to load.

    python -m tests.benchmarks.data_correctness [--json FILE] [--without-lightning]

Two epochs of 1,003 examples. Three ranks begin and are killed after 10 steps; two go on and are killed after 9, in the
middle of the epoch; four go on to the end. A checkpoint is saved every 4 steps, and what was done after it is lost
with the weights, so it does not count. Each library resumes as its documentation says:

    DistributedSampler    set_epoch, and the batches that the epoch had are skipped
    StatefulDataLoader    torchdata's, with its StatefulDistributedSampler: a state for each rank, and new ranks take
                          those of old ones in turn
    Accelerate            prepare, set_epoch, skip_first_batches
    Lightning             Trainer.fit(ckpt_path="last") with a DataLoader, in real processes
    ElasticLoader         load_state_dict; alone, and in Lightning's Trainer

each with 16 examples a rank, as scripts have it, and with 48 divided by the ranks, which takes a change of the script
for every number of ranks. Printed is how many of the two epochs' examples no update has seen, how often one was seen
again, and how large the updates' batches were. But for Lightning, ranks are simulated in one process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader, DistributedSampler

import elastic
from tests.benchmarks import harness
from tests.benchmarks.data_correctness_lightning import BATCH, EPOCHS, EXAMPLES, PER_RANK, PHASES, SAVE_EVERY, Rows
from tests.benchmarks.harness import interruptible, progress
from tests.kit.launch import Launch

Parts = list[list[int]]
Applied = list[tuple[int, list[int]]]
Saved = Any
Train = Callable[[int, int, Saved], Iterator[tuple[int, Parts, Callable[[], Saved]]]]
"""Of (ranks, examples a rank, what was saved): each step's epoch, what the ranks read, and what a save would hold."""


@dataclass(frozen=True)
class Figures:
    """lost and repeated: examples, of both epochs together; batches: sizes of the updates, and how many of each"""

    name: str
    a_step: str
    lost: int
    repeated: int
    batches: dict[int, int]


def sampler(ranks: int, per_rank: int, saved: Saved) -> Iterator[tuple[int, Parts, Callable[[], Saved]]]:
    first, done = saved or (0, 0)
    samplers: list[DistributedSampler[int]] = [DistributedSampler(Rows(), ranks, rank) for rank in range(ranks)]
    loaders = [DataLoader(Rows(), batch_size=per_rank, sampler=one) for one in samplers]
    for epoch in range(first, EPOCHS):
        for one in samplers:
            one.set_epoch(epoch)
        skipped = done if epoch == first else 0
        for batches, parts in islice(enumerate(zip(*loaders, strict=True), 1), skipped, None):
            yield epoch, lists(parts), lambda epoch=epoch, batches=batches: (epoch, batches)  # type: ignore[misc]


def stateful(ranks: int, per_rank: int, saved: Saved) -> Iterator[tuple[int, Parts, Callable[[], Saved]]]:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    first, states = saved or (0, [])
    samplers = [StatefulDistributedSampler(Rows(), ranks, rank) for rank in range(ranks)]
    loaders = [StatefulDataLoader(Rows(), batch_size=per_rank, sampler=one) for one in samplers]
    for rank, loader in enumerate(loaders):
        if states:
            loader.load_state_dict(states[rank % len(states)])
    for epoch in range(first, EPOCHS):
        for one in samplers:
            one.set_epoch(epoch)
        for parts in zip(*loaders, strict=True):
            yield epoch, lists(parts), lambda epoch=epoch: (epoch, [one.state_dict() for one in loaders])  # type: ignore[misc]


def accelerate(ranks: int, per_rank: int, saved: Saved) -> Iterator[tuple[int, Parts, Callable[[], Saved]]]:
    from accelerate import PartialState
    from accelerate.data_loader import prepare_data_loader, skip_first_batches

    PartialState(cpu=True)
    first, done = saved or (0, 0)
    prepared = [
        prepare_data_loader(
            DataLoader(Rows(), batch_size=per_rank, shuffle=True),
            num_processes=ranks,
            process_index=rank,
            use_seedable_sampler=True,
            data_seed=0,
        )
        for rank in range(ranks)
    ]
    for epoch in range(first, EPOCHS):
        for one in prepared:
            one.set_epoch(epoch)
        skipped = done if epoch == first else 0
        loaders = [skip_first_batches(one, skipped) for one in prepared] if skipped else prepared
        for batches, parts in enumerate(zip(*loaders, strict=True), skipped + 1):
            yield epoch, lists(parts), lambda epoch=epoch, batches=batches: (epoch, batches)  # type: ignore[misc]


def ours(ranks: int, per_rank: int, saved: Saved) -> Iterator[tuple[int, Parts, Callable[[], Saved]]]:
    del per_rank  # it is the batch of all ranks that is given, and they need not divide it
    loaders = [elastic.ElasticLoader(Rows(), BATCH, rank=rank, world_size=ranks) for rank in range(ranks)]
    update = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for loader in loaders:
        if saved:
            loader.load_state_dict(saved)
    for epoch in range(loaders[0].epoch, EPOCHS):
        for parts in zip(*loaders, strict=True):
            counted = [part for part, loader in zip(parts, loaders, strict=True) if loader.weight]
            update.step()
            yield epoch, lists(counted), loaders[0].state_dict


def lists(parts: Any) -> Parts:
    return [part.tolist() for part in parts]


def killed_and_resized(train: Train, constant: bool) -> Applied:
    """(epoch, examples) of each step that the weights at the end hold."""
    applied: Applied = []
    saved, kept = None, 0
    for ranks, until in PHASES:
        del applied[kept:]
        for epoch, parts, state in islice(train(ranks, BATCH // ranks if constant else PER_RANK, saved), until):
            applied.append((epoch, [index for part in parts for index in part]))
            if len(applied) % SAVE_EVERY == 0:
                saved, kept = state(), len(applied)
    return applied


def in_lightning(loader: str, constant: bool) -> Applied:
    """The same, by real processes under torchrun."""
    applied: dict[int, tuple[int, list[int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks, until in PHASES:
            batch = BATCH // ranks if constant else PER_RANK
            module = "tests.benchmarks.data_correctness_lightning"
            with Launch(module, [folder, loader, batch, until or 0], workers=ranks) as launch:
                status = launch.finish(within_s=300)
                assert bool(status) == bool(until), launch.output
            steps: dict[int, tuple[int, list[int]]] = {}
            for notes in Path(folder).glob("rank-*"):
                for line in notes.read_text().splitlines():
                    step, epoch, indices = json.loads(line)
                    steps.setdefault(step, (epoch, []))[1].extend(indices)
                notes.unlink()
            applied = {step: one for step, one in applied.items() if step < min(steps)} | steps
    return list(applied.values())


def figures(name: str, a_step: str, applied: Applied) -> Figures:
    seen = Counter((epoch, index) for epoch, indices in applied for index in indices)
    return Figures(
        name=name,
        a_step=a_step,
        lost=EPOCHS * EXAMPLES - len(seen),
        repeated=sum(seen.values()) - len(seen),
        batches=dict(sorted(Counter(len(indices) for _, indices in applied).items(), reverse=True)),
    )


def ways(with_lightning: bool) -> Iterator[tuple[str, str, Callable[[], Applied]]]:
    """(name, batch, what trains by it), in the order of the table."""
    each, of_all = f"{PER_RANK} a rank", f"{BATCH} / ranks"
    contenders = {"DistributedSampler": sampler, "StatefulDataLoader": stateful, "Accelerate": accelerate}
    for name, train in contenders.items():
        for constant in (False, True):
            yield name, of_all if constant else each, partial(killed_and_resized, train, constant)
    if with_lightning:
        for constant in (False, True):
            yield "Lightning", of_all if constant else each, partial(in_lightning, "DataLoader", constant)
    yield "ElasticLoader", f"{BATCH}", partial(killed_and_resized, ours, True)
    if with_lightning:
        yield "Lightning, ElasticLoader", f"{BATCH}", partial(in_lightning, "ElasticLoader", True)


def shown(found: Sequence[Figures]) -> Table:
    table = Table(title=f"{EPOCHS} epochs of {EXAMPLES:,} examples, at {' → '.join(str(n) for n, _ in PHASES)} ranks")
    for column in ("", "batch", "lost", "repeated", "examples in an update"):
        table.add_column(column, justify="left" if column in ("", "batch") else "right")
    for one in found:
        sizes = ", ".join(f"{size} ({count}×)" for size, count in one.batches.items())
        table.add_row(one.name, one.a_step, str(one.lost), str(one.repeated), sizes)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--without-lightning", action="store_true", help="a second instead of some minutes")
    options = parser.parse_args()

    found = []
    with interruptible():
        for name, a_step, train in progress("ways to load", list(ways(not options.without_lightning))):
            found.append(figures(name, a_step, train()))
    Console().print(shown(found))
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    harness.run(main)
