"""Token files and files of records: any example by its number, and never one of another file."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset

import elastic
from elastic import DataFileError, IdentityMismatch, RecordDataset, TokenDataset
from tests.kit.arguments import grouped


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of indices go there."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture(params=["folder", "memory"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str, bytes], str]]:
    """Writes a file; returns its URL."""
    base = str(tmp_path) if request.param == "folder" else "memory://data-files"

    def write(name: str, data: bytes) -> str:
        with fsspec.open(f"{base}/{name}", "wb") as file:
            file.write(data)
        return f"{base}/{name}"

    yield write
    if request.param == "memory":
        fsspec.filesystem("memory").rm("/data-files", recursive=True)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def tar(files: list[tuple[str, bytes]], **options: Any) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u2", "<i4", "<i8"])
def test_windows_are_those_of_the_tokens(put: Callable[[str, bytes], str], dtype: str) -> None:
    """Every token is a target once but the first, and what is left at the end is no window."""
    tokens = np.arange(100, 203).astype(dtype)
    dataset = TokenDataset(put("tokens.npy", npy(tokens)), 10)

    assert len(dataset) == 10
    for i in (0, 9, 4):
        inputs, targets = dataset[i]
        assert (inputs.dtype, targets.dtype) == (torch.int64, torch.int64)
        assert inputs.tolist() == list(range(100 + 10 * i, 110 + 10 * i))
        assert targets.tolist() == list(range(101 + 10 * i, 111 + 10 * i))
    with pytest.raises(IndexError):
        dataset[10]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"\x00" * 500, "it is no .npy file"),
        (npy(np.zeros(500)), "it holds float64"),
        (npy(np.zeros((50, 10), np.uint8)), r"it holds uint8 of shape \(50, 10\)"),
        (npy(np.zeros(500, np.uint8))[:-1], "it has 627 bytes, and its header says 628: 500 tokens of uint8"),
        (npy(np.zeros(500, np.uint8)) + b"\n", "it has 629 bytes"),
        (npy(np.zeros(10, np.uint8)), "its 10 tokens are no window of 10 and the one that follows"),
    ],
)
def test_what_is_no_token_file_is_refused_by_its_name(put: Callable[[str, bytes], str], data: bytes, says: str) -> None:
    with pytest.raises(DataFileError, match=says) as refused:
        TokenDataset(put("wrong.npy", data), 10)
    assert "wrong.npy" in str(refused.value)
    assert "  next " in str(refused.value)


def test_a_token_file_that_was_cut_since_is_an_error_and_no_shorter_window(tmp_path: Path) -> None:
    """Of a bucket's; a mapped one is the kernel's to answer for."""
    url = "memory://cut/tokens.npy"
    with fsspec.open(url, "wb") as file:
        file.write(npy(np.zeros(200_000, np.uint8)))
    dataset = TokenDataset(url, 10)
    with fsspec.open(url, "wb") as file:
        file.write(npy(np.zeros(100_000, np.uint8)))
    assert len(dataset[9000][0]) == 10
    for index in (15_000, 9999, 19_998):
        with pytest.raises(DataFileError, match="it ends before byte"):
            dataset[index]


def read_all(dataset: RecordDataset) -> list[Any]:
    return [dataset[i] for i in range(len(dataset))]


def text_lines(url: str, **options: Any) -> RecordDataset:
    return RecordDataset.text_lines(url, **options)


def test_lines_that_cross_chunks_are_whole(put: Callable[[str, bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic.data.data_file._CHUNK_BYTES", 7)
    lines = [str(10**n) for n in range(30)] + ["", ""]
    assert read_all(text_lines(put("a.txt", "\n".join([*lines, ""]).encode()))) == lines
    values = [{"n": n} for n in range(40)]
    blanks = "\n\n\n".join(["", *map(json.dumps, values), ""])
    assert read_all(RecordDataset.json_lines(put("a.jsonl", blanks.encode()))) == values


def test_a_json_line_that_is_none_is_named(put: Callable[[str, bytes], str]) -> None:
    dataset = RecordDataset.json_lines(put("a.jsonl", b'{"a": 1}\n{"a": \n{"a": 3}\n'))
    assert (dataset[0], dataset[2]) == ({"a": 1}, {"a": 3})
    with pytest.raises(DataFileError, match=r"record 1, bytes 9 to 16, is none of kind json-lines: Expecting value"):
        dataset[1]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_of_one_stem_are_a_sample(put: Callable[[str, bytes], str], format: int) -> None:
    """With the names that WebDataset gives them, and folders, empty files and long names in between."""
    long = "x" * 90 if format == tarfile.USTAR_FORMAT else "ü" * 200
    files = [
        ("./a.jpg", b"J" * 1000),
        ("./a.cls", b"7"),
        (f"./{long}.jpg", b"K" * 512),
        (f"./{long}.seg.png", b""),
        ("./b.c/d.jpg", b"L" * 513),
    ]
    dataset = RecordDataset.tar(put("a.tar", tar(files, format=format)))
    assert read_all(dataset) == [
        {"__key__": "./a", "jpg": b"J" * 1000, "cls": b"7"},
        {"__key__": f"./{long}", "jpg": b"K" * 512, "seg.png": b""},
        {"__key__": "./b.c/d", "jpg": b"L" * 513},
    ]


def test_a_tar_that_is_not_whole_or_not_in_order_is_refused(put: Callable[[str, bytes], str]) -> None:
    whole = tar([("a.txt", b"1"), ("b.txt", b"2")])
    for at in (100, 700, 1024, 2048):
        with pytest.raises(DataFileError, match="it is no whole tar"):
            RecordDataset.tar(put(f"cut-{at}.tar", whole[:at]))
    with pytest.raises(DataFileError, match="files of a lie apart"):
        RecordDataset.tar(put("apart.tar", tar([("a.txt", b"1"), ("b.txt", b"2"), ("a.cls", b"3")])))
    with pytest.raises(DataFileError, match="it holds no record"):
        RecordDataset.tar(put("empty.tar", tar([])))


def test_what_is_compressed_is_refused_by_name(put: Callable[[str, bytes], str]) -> None:
    import gzip

    with pytest.raises(DataFileError, match=r"it is compressed \(gzip\)"):
        text_lines(put("a.txt.gz", gzip.compress(b"one\ntwo\n")))


def test_records_of_one_length_need_no_index(put: Callable[[str, bytes], str], tmp_path: Path) -> None:
    url = put("a.bin", b"HEAD" + bytes(range(60)))
    dataset = RecordDataset.fixed_length(url, 6, skip_bytes=4, transform=list)
    assert [dataset[i] for i in (0, 9, 3)] == [[0, 1, 2, 3, 4, 5], [*range(54, 60)], [*range(18, 24)]]
    assert len(dataset) == 10
    assert not list(tmp_path.rglob("*.index"))
    with pytest.raises(DataFileError, match=r"its 64 bytes, less 0, are no whole number of records of 6"):
        RecordDataset.fixed_length(url, 6)


# The index


class Scans:
    """How often files are read from beginning to end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from elastic.data.data_file import DataFile

        self.count = 0
        chunks = DataFile.chunks

        def counted(file: DataFile) -> Iterator[bytes]:
            self.count += 1
            return chunks(file)

        monkeypatch.setattr(DataFile, "chunks", counted)

    def during(self, act: Callable[[], Any]) -> int:
        before = self.count
        act()
        return self.count - before


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Scans:
    return Scans(monkeypatch)


def index_of(folder: Path) -> Path:
    (index,) = folder.rglob("*.index")
    return index


def test_the_index_is_made_once_with_eight_bytes_a_record(
    put: Callable[[str, bytes], str], tmp_path: Path, scans: Scans
) -> None:
    """Beside the file, or where that is no folder of this machine, in the cache."""
    url = put("a.txt", b"line\n" * 10_000)
    assert scans.during(lambda: text_lines(url)) == 1
    assert index_of(tmp_path).stat().st_size == 1024 + 8 * 10_001
    assert scans.during(lambda: text_lines(url)) == 0
    assert text_lines(url)[9_999] == "line"
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_index_of_another_version_of_the_file_is_made_again(tmp_path: Path, scans: Scans) -> None:
    """Even of as many bytes: its offsets would cut lines in two."""
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\ntwo\n")
    assert read_all(text_lines(str(file))) == ["one", "two"]
    file.write_bytes(b"o\ntwone\n")
    os.utime(file, ns=(1, 1))
    assert scans.during(lambda: text_lines(str(file))) == 1
    assert read_all(text_lines(str(file))) == ["o", "twone"]
    file.write_bytes(b"o\ntwone\nmore\n")
    assert read_all(text_lines(str(file))) == ["o", "twone", "more"]


@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "header", "end", "no index", "another kind"])
def test_an_index_that_is_not_whole_is_made_again(tmp_path: Path, scans: Scans, damage: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"one\n\ntwo\n")
    text_lines(str(file))
    index = index_of(tmp_path)
    data = index.read_bytes()
    if damage == "another kind":
        RecordDataset.json_lines(put_json(tmp_path))
        data_of_kind = (tmp_path / "b.jsonl.json-lines.index").read_bytes()
        os.utime(tmp_path / "b.jsonl", ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
        index.write_bytes(data_of_kind)
    else:
        changed = {
            "cut": data[:-8],
            "longer": data + bytes(8),
            "empty": b"",
            "header": data[:200],
            "end": data[:-8] + (1 << 40).to_bytes(8, "little"),
            "no index": b"null" + bytes(2000),
        }
        index.write_bytes(changed[damage])
    assert scans.during(lambda: text_lines(str(file))) == 1
    assert read_all(text_lines(str(file))) == ["one", "", "two"]
    assert index.read_bytes() == data


def put_json(folder: Path) -> str:
    (folder / "b.jsonl").write_bytes(b"[1]\n\n[2]\n")
    return str(folder / "b.jsonl")


def test_a_file_that_is_written_to_meanwhile_gets_no_index(tmp_path: Path) -> None:
    from elastic.data.data_file import DataFile
    from elastic.data.record_index import Offsets, record_index

    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n")

    def scan(chunks: Iterator[bytes]) -> Iterator[Offsets]:
        path.write_bytes(b"one\ntwo\n")
        yield np.array([0, 4])

    with pytest.raises(DataFileError, match="it was written to while its records were looked for"):
        record_index(DataFile(path), "lines", scan)
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["a.txt"]


# A run's identity


def start(url: Path, dataset: Any, **options: Any) -> elastic.Run:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"batch_size": 4, "virtual_workers": 2, "steps": 1, "save_every": 1}
    return elastic.Run(url, model=model, optimizer=optimizer, dataset=dataset, **grouped(given | options))


def train(url: Path, dataset: Any, **options: Any) -> None:
    with start(url, dataset, **options) as run:
        for step in run:
            for _ in step:
                step.backward(run.model(torch.ones(1)).sum(), count=1)


def wrap(dataset: Dataset[Any], how: str) -> Dataset[Any]:
    if how == "plain":
        return dataset
    return ConcatDataset([dataset, dataset]) if how == "parts" else Subset(dataset, list(range(4)))


@pytest.mark.parametrize("how", ["plain", "parts", "subset"])
@pytest.mark.parametrize("kind", ["tokens", "lines", "fixed"])
def test_a_run_goes_on_with_a_copy_and_refuses_another_file(tmp_path: Path, kind: str, how: str) -> None:
    """Of equal length, which is all that a run saw of its data; a copy, or the same under another name, is the same."""

    def put(name: str, begin: int) -> Any:
        path = tmp_path / name
        if kind == "tokens":
            np.save(tmp_path / f"{name}.npy", np.arange(begin, begin + 200, dtype=np.uint16))
            return wrap(TokenDataset(f"{path}.npy", 10), how)
        path.write_bytes(b"".join(b"%5d\n" % (begin + n) for n in range(30)))
        opened = RecordDataset.fixed_length(path, 6) if kind == "fixed" else RecordDataset.text_lines(path)
        return wrap(opened, how)

    train(tmp_path / "run", put("first", 0))
    train(tmp_path / "run", put("copy", 0), steps=2)
    with pytest.raises(IdentityMismatch, match="dataset") as refused:
        train(tmp_path / "run", put("other", 1), steps=3)
    assert set(refused.value.fields) == {"dataset"}
    train(tmp_path / "run", put("other", 1), steps=3, accept=["dataset"])
