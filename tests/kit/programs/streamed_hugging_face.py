"""streamed.py on Hugging Face's datasets, imported where scripts import it: before a fork server forks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import torch
from streamed import main  # type: ignore[import-not-found]  # beside this script

import elastic


def decode(example: dict[str, Any]) -> dict[str, Any]:
    """With noise, as an augmentation has."""
    point = torch.tensor(example["point"])
    return {"noisy": point + 0.1 * torch.randn(len(point)), "label": (point.sum() > 0).long()}


def of_dataset(folder: Path) -> elastic.Streams:
    files = sorted(str(file) for file in folder.glob("rows-*.parquet"))
    cache = str(folder / "cache")
    dataset: Any = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=cache)
    return elastic.Streams.hugging_face(dataset.map(decode, remove_columns=["id", "point"]))


def pairs(examples: list[dict[str, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([one["noisy"] for one in examples]), torch.stack([one["label"] for one in examples])


if __name__ == "__main__":
    main(of_dataset, pairs)
