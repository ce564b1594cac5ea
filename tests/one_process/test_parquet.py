"""Parquet files as streams: rows that go on from any of them, what is refused, and what would disturb a fork."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.data.streams import Streams
from elastic.errors import ConfigError, DataFileError, IdentityMismatch
from tests.kit.stream_runs import train_on

pa = pytest.importorskip("pyarrow", reason="needs the extra: pip install -e '.[parquet]'")
pq = pytest.importorskip("pyarrow.parquet")


def rows_of(name: str, count: int) -> list[dict[str, Any]]:
    return [
        {"id": f"{name}{number}", "x": number / 7 if number % 3 else float("nan"), "tags": [number] * (number % 3)}
        for number in range(count)
    ]


def packed(path: Path, rows: list[dict[str, Any]], group: int = 4, **options: Any) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group, **options)
    return str(path)


def opened(urls: Sequence[str], columns: Sequence[str] | None = None) -> Any:
    from elastic.data.parquet_rows import Rows

    return Rows(urls, dict, None, columns)


def test_rows_go_on_from_any_of_them(tmp_path: Path) -> None:
    """Across row groups and files; one without rows, too. The text of rows is compared: nan is not equal to itself."""
    empty = pa.Table.from_pylist(rows_of("b", 1)).slice(0, 0)
    pq.write_table(empty, tmp_path / "1.parquet")
    urls = [
        packed(tmp_path / "0.parquet", rows_of("a", 11)),
        str(tmp_path / "1.parquet"),
        packed(tmp_path / "2.parquet", rows_of("c", 300), group=200, compression="zstd"),
    ]
    whole = [*rows_of("a", 11), *rows_of("c", 300)]
    assert str(list(opened(urls))) == str(whole)
    one = opened(urls)
    for number, _ in enumerate(iter(one), start=1):
        other = opened(urls)
        other.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert str(list(other)) == str(whole[number:])


def test_a_row_is_read_from_its_row_group_on(tmp_path: Path) -> None:
    """By position, and never by skipping through: what lies before may be gone."""
    url = packed(tmp_path / "0.parquet", rows_of("a", 12), compression="none", use_dictionary=False)
    one = opened([url])
    reading = iter(one)
    for _ in range(6):
        next(reading)
    assert one.state_dict() == {"file": 0, "group": 1, "row": 2}
    begins = pq.ParquetFile(url).metadata.row_group(1).column(0).data_page_offset
    with open(url, "r+b") as file:
        file.write(b"PAR1" + b"?" * (begins - 4))

    other = opened([url])
    other.load_state_dict(one.state_dict())
    assert [row["id"] for row in other] == [f"a{number}" for number in range(6, 12)]


@pytest.mark.parametrize("damage", ["cut short", "empty", "other bytes", "something else"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    url = packed(tmp_path / "0.parquet", rows_of("a", 12))
    data = Path(url).read_bytes()
    Path(url).write_bytes(
        {
            "cut short": data[:-9],
            "empty": b"",
            "other bytes": data[:4] + bytes(300) + data[304:],
            "something else": b'{"id": 1}\n' * 99,
        }[damage]
    )
    with pytest.raises(DataFileError, match=r"0\.parquet: it cannot be read as Parquet: .*\n.*read to row"):
        list(opened([url]))


def test_a_page_whose_checksum_does_not_fit_is_found_out(tmp_path: Path) -> None:
    """Where the writer gave them: a flipped bit of a number is a number, too."""
    url = packed(
        tmp_path / "0.parquet", [{"n": 7}] * 8, compression="none", use_dictionary=False, write_page_checksum=True
    )
    data = Path(url).read_bytes()
    at = data.index((7).to_bytes(8, "little") * 2)
    Path(url).write_bytes(data[:at] + b"\x08" + data[at + 1 :])
    with pytest.raises(DataFileError, match=r"0\.parquet: it cannot be read as Parquet: .*CRC"):
        list(opened([url]))


@pytest.mark.parametrize("at", [{"group": 1, "row": 4}, {"group": 3, "row": 1}, {"group": 4, "row": 0}])
def test_a_position_that_a_file_has_no_more_is_refused(tmp_path: Path, at: dict[str, int]) -> None:
    stream = opened([packed(tmp_path / "0.parquet", rows_of("a", 12))])
    stream.load_state_dict({"file": 0, **at})
    with pytest.raises(DataFileError, match=r"0\.parquet: the position is row .* and it has no such row"):
        list(stream)


def test_a_run_goes_on_in_the_middle_of_row_groups(tmp_path: Path) -> None:
    """And nothing that is no number is taken for a stream that goes on elsewhere."""
    (tmp_path / "data").mkdir()
    urls = [packed(tmp_path / "data" / name, rows_of(name, 9)) for name in "bcd"]

    def text(row: dict[str, Any]) -> str:
        return str(row)

    whole = train_on(tmp_path / "whole", Streams.parquet(urls, text))
    train_on(tmp_path / "run", Streams.parquet(urls, text), until=2)  # of which the first is saved
    assert sorted(whole) == sorted(str(row) for name in "bcd" for row in rows_of(name, 8))
    assert train_on(tmp_path / "run", Streams.parquet(urls, text)) == whole[6:]
    train_on(tmp_path / "numbers", Streams.parquet(urls), until=1)

    packed(tmp_path / "data" / "b", rows_of("b", 10))
    with pytest.raises(IdentityMismatch, match=r"dataset\.bytes"):
        train_on(tmp_path / "run", Streams.parquet(urls, text))
    (tmp_path / "data" / "b").unlink()
    with pytest.raises(ConfigError, match="data/b"):
        train_on(tmp_path / "run", Streams.parquet(urls, text))


def test_without_pyarrow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("pyarrow", "elastic.data.parquet_rows"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"needs pyarrow.*\n  next  pip install pyarrow"):
        Streams.parquet(["a.parquet"])


@pytest.mark.parametrize("said", [100, 400])
def test_a_count_of_rows_that_is_wrong_loses_none_in_silence(tmp_path: Path, said: int) -> None:
    """No checksum covers the footer. Each of the places that say 300 there is changed, in turn."""
    whole = packed(tmp_path / "0.parquet", [{"id": number} for number in range(300)], group=300, use_dictionary=False)
    data = Path(whole).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    right, wrong = zigzag(300), zigzag(said)
    found = at = data.find(right, footer)
    refused: dict[str, str] = {}
    while at >= 0:
        path = tmp_path / f"{at}.parquet"
        path.write_bytes(data[:at] + wrong + data[at + len(right) :])
        try:
            assert [row["id"] for row in opened([str(path)])] == [*range(300)]
        except DataFileError as error:
            refused[path.name] = str(error)
        at = data.find(right, at + 1)
    assert found > 0
    assert all(name in text for name, text in refused.items())
    assert len(refused) >= 2, "of the row group's count and the column's"


def zigzag(number: int) -> bytes:
    """As Thrift's compact protocol has it, of two bytes."""
    double = 2 * number
    return bytes([double & 0x7F | 0x80, double >> 7])
