"""What a script prints of its progress is right, though a worker passes several batches a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.errors import ConfigError
from tests.kit.arguments import grouped

EPOCHS, PER_EPOCH = 2, 3  # of 40 examples: two steps of four shares, and one of two
BODIES = 4 + 4 + 2


class Bar:
    """As tqdm's: an item counts as done when the next one is asked for."""

    def __init__(self, length: int) -> None:
        self.length, self.at, self.over = length, -1, False

    def __iter__(self) -> Iterator[int]:
        for self.at in range(self.length):  # noqa: B020
            yield self.at
        self.at, self.over = self.length, True


def trained(url: Path, loop: Callable[[elastic.Run, Callable[[], None]], None], **options: Any) -> None:
    elastic.seed(1)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(40, 2))
    given: dict[str, Any] = {"batch_size": 16, "virtual_workers": 4, "epochs": EPOCHS, "save_every": 1}
    with elastic.Run(url, model=model, optimizer=optimizer, dataset=data, **grouped(given | options)) as run:

        def body(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()

        loop(run, body)  # type: ignore[arg-type]


def test_a_bar_counts_an_epoch_s_steps_also_where_a_resume_begins_in_its_midst(tmp_path: Path) -> None:
    """tqdm(run.batches()) counted 480 of 40."""
    bars: list[Bar] = []

    def by_epochs(run: Any, body: Any) -> None:
        for _ in run.epochs():
            bars.append(Bar(run.steps_per_epoch))
            for (x,) in run.progress(bars[-1]):
                assert bars[-1].at == run.step_in_epoch
                if run.step_index == 4 and len(bars) == 2:
                    raise KeyboardInterrupt
                body(x)

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "run", by_epochs)
    assert [(bar.at, bar.over) for bar in bars] == [(PER_EPOCH, True), (1, False)]
    bars.clear()
    trained(tmp_path / "run", by_epochs)
    assert [(bar.at, bar.over) for bar in bars] == [(PER_EPOCH, True)]


@pytest.mark.parametrize("checks", [False, True])
def test_a_loop_knows_how_many_batches_it_passes(tmp_path: Path, checks: bool) -> None:
    """For `batch / len(loader)`, before, in the midst and behind; other calls of run.batches() disturb nothing."""

    def loop(run: Any, body: Any) -> None:
        assert (len(run.batches()), run.total_steps) == (EPOCHS * BODIES + checks, EPOCHS * PER_EPOCH)
        for epoch in run.epochs():
            batches, passed = run.batches(), 0
            bodies = len(batches)
            assert bodies - BODIES in ({1} if checks and epoch == 0 else {0, int(checks)})  # a share twice
            for (x,) in batches:
                assert len(batches) == len(run.batches()) == bodies
                body(x)
                passed += 1
            assert passed == len(batches) == bodies

    trained(tmp_path / "run", loop, cross_check=0.0 if checks else None)


def test_epochs_that_differ_have_no_number_of_steps(tmp_path: Path) -> None:
    def loop(run: Any, body: Any) -> None:
        with pytest.raises(ConfigError, match=r"epochs differ by a step(.|\n)*  next  run.total_steps"):
            run.steps_per_epoch  # noqa: B018
        passed, foreseen = [], []
        for _ in run.epochs():
            batches = run.batches()
            foreseen.append(len(batches))
            for (x,) in batches:
                body(x)
            passed.append(len(batches))
        assert passed == foreseen
        assert sum(passed) == run.total_steps * 4

    trained(tmp_path / "run", loop, last_batch="carry", epochs=4, cross_check=None)
