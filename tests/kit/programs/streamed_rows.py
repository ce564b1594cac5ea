"""streamed.py on rows of Parquet files. pyarrow is imported where scripts import it: before a fork server forks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401
import torch
from streamed import main  # type: ignore[import-not-found]  # beside this script

import elastic


def decode(row: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """With noise, as an augmentation has."""
    point = torch.tensor(row["point"])
    return point + 0.1 * torch.randn(len(point)), (point.sum() > 0).long()


def of_rows(folder: Path) -> elastic.Streams:
    return elastic.Streams.parquet([str(file) for file in folder.glob("rows-*.parquet")], decode, columns=["point"])


if __name__ == "__main__":
    main(of_rows)
