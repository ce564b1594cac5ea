"""The rows of Parquet files, read one after another from any row on.

It needs pyarrow, which is imported when rows are asked for.

Promises  a position is a row of a row group: whoever goes on from it reads that row group, and none of those before.
          Nothing here starts a thread, which a fork would lack: rows are read and decoded in the thread that asks.
          A file that is damaged, or has other rows than the position says, is found out, by name.
Leaves    which files, and where a stream stands among others, to file_streams.py and streams.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from elastic.data.file_streams import Files
from elastic.errors import ConfigError, DataFileError
from elastic_checkpoint.storage import redact

_ROWS = 128  # decoded at a time


class Rows(Files):
    """The rows of Parquet files. A position is a row group of the file, and a row in it."""

    BEGIN: ClassVar[dict[str, int]] = {"group": 0, "row": 0}

    def __init__(
        self,
        urls: Sequence[str],
        decode: Callable[[dict[str, Any]], Any],
        storage_options: Mapping[str, Any] | None,
        columns: Sequence[str] | None,
    ) -> None:
        super().__init__(urls, decode, storage_options)
        self._columns = None if columns is None else list(columns)

    def found(
        self, opened: IO[bytes], url: str, at: Mapping[str, int]
    ) -> Iterator[tuple[dict[str, Any], dict[str, int]]]:
        group, row = at["group"], at["row"]
        try:
            # Without a thread, which a fork would lack: rows are read and decoded in the thread that asks.
            file = pq.ParquetFile(opened, pre_buffer=False, page_checksum_verification=True)
            self._check(file, url, group, row)
            while group < file.num_row_groups:
                count = self._rows_of(file, url, group)
                for found in self._rows(file, group, row):
                    row += 1
                    yield found, {"group": group, "row": row} if row < count else {"group": group + 1, "row": 0}
                group, row = group + 1, 0
        except (pa.ArrowException, OSError, UnicodeError, ArithmeticError) as error:
            raise DataFileError(
                f"{redact(url)}: it cannot be read as Parquet: {' '.join(str(error).split())}\n"
                f"  state  it was read to row {row:,} of its row group {group}, counted from 0\n"
                "  next   if its storage is well, write or copy it again"
            ) from error

    def _rows_of(self, file: Any, url: str, group: int) -> int:
        """Count the rows of a row group. Raises DataFileError where its columns have other numbers of values."""
        # No checksum covers what the file's end says of a row group, and rows would be missing.
        described = file.metadata.row_group(group)
        for number in range(described.num_columns):
            values = described.column(number).num_values
            if file.schema.column(number).max_repetition_level == 0 and values != described.num_rows:
                raise DataFileError(
                    f"{redact(url)}: its row group {group} is said to have {described.num_rows:,} rows, and its column "
                    f"{described.column(number).path_in_schema!r} {values:,} values\n"
                    "  state  nothing was read of that row group\n  next   write or copy the file again"
                )
        return int(described.num_rows)

    def _rows(self, file: Any, group: int, begin: int) -> Iterator[dict[str, Any]]:
        """Yield a row group's rows, from row `begin` on."""
        for batch in file.iter_batches(_ROWS, row_groups=[group], columns=self._columns, use_threads=False):
            if begin < batch.num_rows:
                yield from batch.slice(begin).to_pylist()
            begin = max(0, begin - batch.num_rows)

    def _check(self, file: Any, url: str, group: int, row: int) -> None:
        """Raise ConfigError for columns that are missing or twice, DataFileError for a row that is not there."""
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"{redact(url)} has two columns {twice!r}\n  next  write it with names of their own")
        missing = [name for name in self._columns or () if name not in file.schema_arrow.names]
        if missing:
            raise ConfigError(
                f"{redact(url)} has no column {missing[0]!r}; it has {', '.join(file.schema_arrow.names)}\n"
                "  next  correct columns="
            )
        if row == 0 and group <= file.num_row_groups:
            return
        if group >= file.num_row_groups or row >= file.metadata.row_group(group).num_rows:
            raise DataFileError(
                f"{redact(url)}: the position is row {row:,} of its row group {group}, and it has no such row\n"
                "  state  nothing was read of it\n"
                "  next   a file must stay as it is while a run reads it: write other data under another name"
            )
