"""Windows of a token file: what a language model trains on, from a disk or a bucket.

The file is what `np.save` writes of a one-dimensional array of integers, so that anything can write it, and its header
says the numbers' type and how many there are:

    np.save("train.npy", np.array(tokens, dtype=np.uint16))
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch.utils.data import Dataset

from elastic.data.data_file import DataFile
from elastic.errors import ConfigError

_HEADER_BYTES_MAX = 4096  # of a one-dimensional array's some 128
_HOW = "np.save(file, np.asarray(tokens, dtype=np.uint16)), say"


class TokenDataset(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A token file as examples: `dataset[i]` is the i-th window of `length` tokens, and the same one token on.

    Args:
        url: A `.npy` file with one dimension, of integers; on any fsspec URL.
        length: Tokens in a window. Windows lie side by side; of what is left at the end nothing is read.
        storage_options: For fsspec's filesystem: endpoint, credentials.

    Raises:
        ConfigError: `length` is no whole number, or less than 1.
        DataFileError: There is no such file, or it is something else, or not whole, or shorter than one window.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        length: int,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ConfigError(f"length={length!r}; expected the tokens of a window, 1 or more")
        self._again = partial(TokenDataset, url, length, storage_options=storage_options)
        self.length = length
        self._file = DataFile(url, storage_options)
        self._start, self.dtype, self.tokens = _header(self._file)
        if self.tokens <= length:
            raise self._file.error(
                f"its {self.tokens} tokens are no window of {length} and the one that follows",
                f"length={self.tokens - 1} at most, or more text",
            )

    def __len__(self) -> int:
        return (self.tokens - 1) // self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and targets: int64[length] each."""
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}, counted from 0")
        width = self.dtype.itemsize
        data = self._file.read(self._start + index * self.length * width, (self.length + 1) * width)
        window = np.frombuffer(data, dtype=self.dtype)
        return torch.from_numpy(window[:-1].astype(np.int64)), torch.from_numpy(window[1:].astype(np.int64))

    def data_identity(self) -> dict[str, Any]:
        """Return what tells this data from other data, whatever the file's name: a run goes on with no other."""
        return {"tokens": self.tokens, "dtype": self.dtype.str, "length": self.length, "digest": self._digest}

    def __reduce__(self) -> tuple[Any, ...]:
        return self._again, ()

    @cached_property
    def _digest(self) -> str:
        return self._file.sampled_digest()


def _header(file: DataFile) -> tuple[int, np.dtype[Any], int]:
    """Return where the tokens begin, their type and how many there are. Raises DataFileError."""
    begin = io.BytesIO(file.read(0, min(_HEADER_BYTES_MAX, file.size)))
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(begin)]
        shape, _, dtype = read(begin)
    except (ValueError, KeyError) as error:
        raise file.error(f"it is no .npy file ({error})", f"write it with {_HOW}") from error
    if len(shape) != 1 or dtype.kind not in "iu":
        raise file.error(
            f"it holds {dtype} of shape {shape}; expected one dimension of integers", f"write it with {_HOW}"
        )
    expected = begin.tell() + shape[0] * dtype.itemsize
    if file.size != expected:
        raise file.error(
            f"it has {file.size:,} bytes, and its header says {expected:,}: {shape[0]:,} tokens of {dtype}",
            "copy or write it again; whoever wrote it was cut short, or wrote something behind it",
        )
    return begin.tell(), dtype, shape[0]
