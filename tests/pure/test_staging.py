"""What a save copies while the next step computes is lent by those who own it, and joined by whoever writes to it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import elastic_checkpoint
from elastic.state.data_access import watch
from elastic.state.staging import Staging
from elastic.state.trained import Trained
from elastic.state.weights import Weights


def staging_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Staging:
    trained = Trained({"model": model}, {"optimizer": optimizer}, check=lambda: None)
    return Staging(Weights({"optimizer": optimizer}, trained), lambda: {"model": model})


class UnderWay:
    """A save whose copy is whole when it is asked for the `copied`-th time, or waited for."""

    def __init__(self, copied: int = 10**6, error: elastic_checkpoint.CheckpointError | None = None) -> None:
        self.saving = elastic_checkpoint.Saving(4)
        self.asked: list[bool] = []
        self.told = 0

        def stage(wait: bool) -> bool:
            self.asked.append(wait)
            staged = wait or len(self.asked) >= copied
            if staged and error is not None:
                self.saving.fail(error)
            return staged

        self.saving.stages(stage)

    def tell(self) -> None:
        self.told += 1


def test_weights_and_momentum_are_lent_and_no_buffer() -> None:
    """A forward pass moves BatchNorm's averages long before the next update."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    lent = {one.data_ptr() for one in staging_of(model, optimizer).lend()}
    moments = [one["momentum_buffer"] for one in optimizer.state.values()]
    assert lent == {one.data_ptr() for one in (*model.parameters(), *moments)}
    assert not lent & {one.data_ptr() for one in model.buffers()}


@pytest.mark.parametrize("fused", [False, True])
def test_an_optimizer_of_the_script_s_own_joins_before_it_steps(fused: bool) -> None:
    """A fused one counts no version, so that nobody would know afterwards."""
    model = nn.Linear(2, 1)
    staging, one = staging_of(model, torch.optim.SGD(model.parameters(), 0.1)), UnderWay()
    own = torch.optim.SGD(model.parameters(), 0.1, fused=fused)
    model(torch.ones(1, 2)).sum().backward()
    unwatch = staging.watched()
    try:
        staging.follow(one.saving, one.tell)
        before = model.weight.detach().clone()
        one.saving.stages(lambda wait: wait and bool((model.weight == before).all()))
        own.step()
    finally:
        unwatch()
    assert one.told == 1


def test_a_look_does_not_wait_and_a_join_does() -> None:
    model = nn.Linear(2, 1)
    staging, one = staging_of(model, torch.optim.SGD(model.parameters(), 0.1)), UnderWay()
    staging.follow(one.saving, one.tell)
    staging.poll()
    assert (one.asked, one.told) == ([False, False], 0)
    staging.join()
    assert (one.asked, one.told) == ([False, False, True], 1)
    staging.join()
    staging.poll()
    assert (len(one.asked), one.told) == (3, 1)


def test_a_copy_that_is_whole_is_told_once_at_the_next_look() -> None:
    """So that a worker that dies in the rest of the step costs no save."""
    model = nn.Linear(2, 1)
    staging, one = staging_of(model, torch.optim.SGD(model.parameters(), 0.1)), UnderWay(copied=2)
    staging.follow(one.saving, one.tell)
    staging.poll()
    staging.poll()
    assert (one.asked, one.told) == ([False, False], 1)


def test_what_is_reached_through_data_is_joined_before_it_is_handed_out() -> None:
    model = nn.Linear(2, 1)
    staging, one = staging_of(model, torch.optim.SGD(model.parameters(), 0.1)), UnderWay()
    staging.follow(one.saving, one.tell)
    unwatch = staging.watched()
    other = watch(lambda _: None)
    try:
        assert one.told == 0
        model.weight.data.zero_()
        assert one.told == 1
    finally:
        other()
        unwatch()


def test_once_the_script_has_written_to_what_was_lent_nothing_is_lent_any_more() -> None:
    """It would lose a save each time."""
    model = nn.Linear(2, 1)
    staging = staging_of(model, torch.optim.SGD(model.parameters(), 0.1))
    assert len(staging.lend()) == 2
    one = UnderWay(error=elastic_checkpoint.StateChanged("step 4 was not saved", step=4, tensors=("model.weight",)))
    staging.follow(one.saving, one.tell)
    staging.join()
    assert staging.lend() == []
    other = UnderWay(error=elastic_checkpoint.SaveDropped("another took its place", step=4))
    fresh = staging_of(model, torch.optim.SGD(model.parameters(), 0.1))
    fresh.follow(other.saving, other.tell)
    fresh.join()
    assert len(fresh.lend()) == 2
