"""Which examples of a program's data cannot be read: some alone, and all of one share of a step."""

from __future__ import annotations

from typing import Any

from elastic.data.data_plan import DataPlan


def torn(
    length: int, *, batch_size: int, shares: int, seed: int, whole: tuple[tuple[int, int], ...], every: int
) -> frozenset[int]:
    """Those at each `every`th index, and of each (step, share) of `whole` all that it reads."""
    plan = DataPlan(
        dataset_length=length, batch_size=batch_size, virtual_workers=shares, seed=seed, steps=1 + max(whole)[0]
    )
    lost = [index for step, share in whole for index in plan.step(step).examples(share).indices.tolist()]
    return frozenset((*range(0, length, every), *lost))


class Torn:
    """A dataset of which these raise."""

    def __init__(self, dataset: Any, raising: frozenset[int]) -> None:
        self.dataset, self.raising = dataset, raising

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if index in self.raising:
            raise OSError(f"record {index} is torn")
        return self.dataset[index]
