"""Ranks that audit their loaders; each says what came of it.

torchrun --nproc-per-node=3 -m tests.kit.programs.audited right|same|own|raises|absent
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

import elastic

TIMEOUT_S = 5.0


class Stream(IterableDataset[int]):
    """That raises on rank 1."""

    def __iter__(self) -> Iterator[int]:
        yield from range(10)
        if dist.get_rank() == 1:
            raise OSError("no such shard")


def main(how: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dataset = TensorDataset(torch.arange(99))
    torch.manual_seed(7)  # the same on every rank, as it should be for the weights
    set_epoch, loader = None, DataLoader[Any](dataset, batch_size=8, shuffle=True)
    if how == "right":
        sampler: DistributedSampler[Any] = DistributedSampler(dataset)
        loader, set_epoch = DataLoader(dataset, batch_size=8, sampler=sampler), sampler.set_epoch
    elif how == "own":
        loader = DataLoader(TensorDataset(torch.arange(99) + 99 * rank), batch_size=8, shuffle=True)
    elif how == "raises":
        loader = DataLoader(Stream(), batch_size=2)
    try:
        if how == "absent" and rank == 2:
            time.sleep(3 * TIMEOUT_S)
        else:
            elastic.audit(loader, set_epoch=set_epoch, timeout_s=TIMEOUT_S).check()
        said = "nothing"
    except (elastic.ElasticError, OSError) as error:
        said = f"{type(error).__name__} {error}"
    sys.stdout.write(f"rank {rank}: {said!r}\n")
    sys.stdout.flush()
    if how == "absent":
        time.sleep(TIMEOUT_S)  # torchrun's agent would end the others
    os._exit(0)  # gloo's threads, still waiting for a rank that has gone, would abort an orderly end


if __name__ == "__main__":
    main(sys.argv[1])
