"""Loops of one's own, in real processes that are killed and come back as others: the data goes on where it stood."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import Dataset

from elastic import ElasticLoader, LoaderError, LoaderTimeout
from elastic.data.elastic_loader import TIMEOUT_S
from tests.kit.launch import Launch
from tests.kit.programs import own_loop, stock_trainer
from tests.kit.ranks import Died, returned, run_ranks

WITHIN_S = 240.0


def steps(folder: Path, launches: list[str]) -> dict[int, tuple[str, list[int]]]:
    """Of the weights at the end: each step's examples, of all ranks together, and the launch that did it last."""
    found: dict[int, tuple[str, list[int]]] = {}
    for name in launches:
        read: dict[int, list[int]] = {}
        for path in sorted(folder.glob(f"{name}-*")):
            for line in path.read_text().splitlines():
                step, indices = json.loads(line)
                read.setdefault(step, []).extend(indices)
        found.update({step: (name, indices) for step, indices in read.items()})
    return found


def noted(folder: Path, name: str, ranks: int, step: int) -> bool:
    """Whether all ranks have come to that step."""
    notes = [folder / f"{name}-{rank}" for rank in range(ranks)]
    return all(path.exists() and path.read_text().count("\n") and f"\n[{step}, " in path.read_text() for path in notes)


def same_weights(folder: Path, one: str, other: str) -> None:
    a, b = (torch.load(folder / f"{name}.pt") for name in (one, other))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


@pytest.mark.nightly(sample=1, of="loaders and recipes of loops that stay")
def test_a_ddp_run_that_is_killed_and_resized_trains_on_every_example_once(tmp_path: Path) -> None:
    """SIGKILL to all, twice, once in the middle of each epoch, two steps after a save; more ranks than a batch has
    examples; and the weights are those of one process that nobody touched."""
    for name, ranks, stop in (("a", 3, 8), ("b", 2, 14), ("c", 4, 0)):
        with Launch("tests.kit.programs.own_loop", [tmp_path, name, stop], workers=ranks) as launch:
            if stop:
                launch.wait_for(lambda: noted(tmp_path, name, ranks, stop), f"step {stop}", within_s=WITHIN_S)  # noqa: B023
            else:
                launch.succeed(within_s=WITHIN_S)
    (tmp_path / "alone").mkdir()
    with Launch("tests.kit.programs.own_loop", [tmp_path / "alone", "alone", 0], workers=1) as launch:
        launch.succeed(within_s=WITHIN_S)

    every_example_was_trained_on_once(tmp_path)


def every_example_was_trained_on_once(folder: Path) -> None:
    """By launches a, b and c, which went on from each other's saves, as by one process that nobody touched."""
    disturbed, alone = steps(folder, ["a", "b", "c"]), steps(folder / "alone", ["alone"])
    assert [name for name, _ in disturbed.values()] == ["a"] * 6 + ["b"] * 6 + ["c"] * 8
    assert {step: indices for step, (_, indices) in disturbed.items()} == {
        step: indices for step, (_, indices) in alone.items()
    }
    read = Counter(i for _, indices in disturbed.values() for i in indices)
    assert read == Counter([*range(own_loop.EXAMPLES)] * own_loop.EPOCHS)
    assert Counter(len(indices) for _, indices in disturbed.values()) == {own_loop.BATCH: 18, 3: 2}
    (folder / "alone" / "alone.pt").rename(folder / "alone.pt")
    same_weights(folder, "c", "alone")


def sharded(rank: int, size: int, folder: str, name: str, stop: int) -> None:
    """own_loop.py under FSDP2; all ranks are killed after step `stop`."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks-of-{name}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))

    def killed() -> None:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)

    def wrap(net: torch.nn.Module) -> torch.nn.Module:
        fully_shard(net, mesh=mesh)
        return net

    own_loop.train(Path(folder), name, stop, wrap, killed, num_workers=0)
    dist.destroy_process_group()


@pytest.mark.nightly(sample=1, of="loaders and recipes of loops that stay")
def test_an_fsdp2_run_that_is_killed_and_resized_trains_on_every_example_once(tmp_path: Path) -> None:
    """Weights and optimizer lie in parts on all ranks, and are cut anew for each number of them."""
    for name, ranks, stop in (("a", 3, 8), ("b", 2, 14), ("c", 4, 0)):
        answers = run_ranks(sharded, ranks, str(tmp_path), name, stop)
        if stop:
            assert Died(-signal.SIGKILL) in answers, answers
            assert None not in answers
        else:
            returned(answers)
    (tmp_path / "alone").mkdir()
    returned(run_ranks(sharded, 1, str(tmp_path / "alone"), "alone", 0))
    every_example_was_trained_on_once(tmp_path)


@pytest.mark.nightly(sample=1, of="loaders and recipes of loops that stay")
@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_stock_trainers_take_it(tmp_path: Path, trainer: str) -> None:
    pytest.importorskip(trainer)
    for name, ranks, stop in (("a", 2, 5), ("b", 3, 9), ("c", 1, 0)):
        with Launch("tests.kit.programs.stock_trainer", [trainer, tmp_path, name, stop], workers=ranks) as launch:
            assert bool(launch.finish(within_s=WITHIN_S)) == bool(stop), launch.output
    (tmp_path / "alone").mkdir()
    with Launch("tests.kit.programs.stock_trainer", [trainer, tmp_path / "alone", "alone", 0], workers=1) as launch:
        launch.succeed(within_s=WITHIN_S)

    disturbed, alone = steps(tmp_path, ["a", "b", "c"]), steps(tmp_path / "alone", ["alone"])
    assert [name for name, _ in disturbed.values()] == ["a"] * 3 + ["b"] * 3 + ["c"] * 4
    assert [indices for _, indices in disturbed.values()] == [indices for _, indices in alone.values()]
    read = Counter(i for _, indices in disturbed.values() for i in indices)
    assert read == Counter([*range(stock_trainer.EXAMPLES)] * stock_trainer.EPOCHS)
    (tmp_path / "alone" / "alone.pt").rename(tmp_path / "alone.pt")
    same_weights(tmp_path, "c", "alone")


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("right", ["'nothing'"] * 3),
        ("own", ["'nothing'"] * 3),
        ("same", [r"'AuditFailed 3 ranks.*same_data: ranks 0, 1, 2 of 3 read the same 99 examples"] * 3),
        ("raises", ["'ConfigError rank 1.s loader failed: OSError: no such shard", "'OSError no such shard'"]),
        ("absent", ["'AuditTimeout an audit of 3 ranks.*missing  rank 2"]),
    ],
)
def test_ranks_audit_their_loaders_together(how: str, said: list[str]) -> None:
    """All of them learn the same; none waits for ever for one that does not come, or whose data fails."""
    with Launch("tests.kit.programs.audited", [how], workers=3) as launch:
        output = launch.succeed(within_s=WITHIN_S)
    found = dict(re.findall(r"rank (\d): (['\"].*)$", output, re.MULTILINE))
    assert len(found) == 3, output
    expected = (said * 3)[:3] if how != "raises" else [said[0], said[1], said[0]]
    for rank, pattern in enumerate(expected):
        if how == "absent" and rank == 2:
            assert found["2"] == "'nothing'"
        else:
            assert re.match(pattern.replace("'", "['\"]"), found[str(rank)]), output


class Rows(Dataset[int]):
    """Example i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def step() -> None:
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0).step()


def trained_epoch(loader: ElasticLoader) -> Iterator[int]:
    for batch in loader:
        step()
        yield from batch.tolist()


def test_what_loader_processes_read_ahead_is_not_trained_on() -> None:
    loader = ElasticLoader(Rows(40), 4, num_workers=1, prefetch_factor=4)
    for count, _ in enumerate(loader):
        assert loader.state_dict()["step"] == count
        step()
        assert loader.state_dict()["step"] == count + 1
        if count == 2:
            break
    again = ElasticLoader(Rows(40), 4)
    again.load_state_dict(loader.state_dict())
    assert len(list(again)) == 7


def test_processes_that_persist_read_the_next_epoch() -> None:
    loader = ElasticLoader(Rows(40), 4, num_workers=1, persistent_workers=True)
    epochs = [list(trained_epoch(loader)) for _ in range(2)]
    assert list(map(sorted, epochs)) == [list(range(40))] * 2
    assert epochs[0] != epochs[1]


class Hanging(Rows):
    def __getitem__(self, index: int) -> int:
        threading.Event().wait()
        return index


def test_a_loader_process_that_hangs_is_not_waited_for_for_ever() -> None:
    loader = ElasticLoader(Hanging(40), 4, num_workers=1, timeout=1)
    with pytest.raises(LoaderTimeout, match="gave no batch within timeout = 1 s") as timeout:
        next(iter(loader))
    assert timeout.value.request == next(iter(loader.shares(0)))
    assert ElasticLoader(Rows(40), 4, num_workers=1).timeout == TIMEOUT_S


def kill_children() -> None:
    """And wait until they are gone."""
    victims = multiprocessing.active_children()
    for victim in victims:
        victim.kill()
    for victim in victims:
        victim.join()


@pytest.mark.timeout(TIMEOUT_S / 4)
def test_a_process_that_is_killed_in_the_midst_of_a_batch_is_an_error_where_the_next_one_is_asked_for() -> None:
    """A pipe holds 64 KiB: the rest of the batch dies with its writer, and the other process holds the pipe open."""
    loader = ElasticLoader(Texts(40), 4, num_workers=2, collate_fn=list)
    batches = iter(loader)
    next(batches)
    time.sleep(0.5)  # a message is begun, and nobody reads on
    kill_children()
    with pytest.raises(LoaderError, match="2 of 2 died"):
        list(batches)


class Texts(Rows):
    def __getitem__(self, index: int) -> Any:
        return "x" * 100_000
