"""Thousands of objects that are nobody's beside a run: it begins, saves, resumes and sweeps as without them.

Their names nearly fit: another program's, an editor's copies, a tool's temporary files. None of them is read, counted
or removed, and a listing is all that they cost. How many there are: `make counts STRAYS=10000`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic
from elastic.events.reading import read_events
from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.cli import main
from elastic_checkpoint.storage import open_storage
from tests.kit.s3 import S3Server
from tests.kit.sampling import NIGHTLY
from tests.kit.traffic import watched

pytestmark = pytest.mark.nightly(sample=3, of="counts")

STRAYS = int(os.environ.get("STRAYS") or (1000 if NIGHTLY else 200))
OLD_S = 1_000_000_000.0  # when they were last written: no grace spares them
PAGE = 1000  # keys that S3 lists in one answer
FEW = 20  # requests more or less, as the moments of looks fall
STEPS = 8

NEARLY = {
    "claims": (
        "{n:07d}.json", "{n:013d}.json", "{n:08d}.JSON", "{n:08d}.json~", "{n:08d}.json.bak", "x{n:08d}.json", "{n}",
        "{n:08d}.withdrawn.json", "{n:08d}.beacons", "old/{n:08d}.json", "probe/{n}", "{arabic}.json",
        "{arabic}.withdrawn", " {n:08d}.json", ".{n:08d}.json.tmp", "-{n:08d}.json",
    ),
    "commits": (
        "c{n:013d}.s000000003-{nonce}.json", "c{n:08d}.s00000003-{nonce}.json", "c{n:08d}.s000000003-{nonce}.json.tmp",
        "c{n:08d}.s000000003-{nonce}0.json", "c{n:08d}.s000000003-{NONCE}.json", "c{n:08d}.s000000003.json",
        "C{n:08d}.S000000003-{nonce}.json", "old/c{n:08d}.s000000003-{nonce}.json", "c{arabic}.s000000003-{nonce}.json",
        "c{n:08d}.s{arabic}9-{nonce}.json", "c{n:08d}-s000000003-{nonce}.json", "{n}.json",
    ),
    "data": (
        "c{n:08d}/s000000003-{nonce}/0000.safetensors", "c{n:08d}/s000000003-{nonce}/00000.safetensors.part",
        "c{n:08d}/s000000003-{nonce}/note.jsonl", "c{n:08d}/s000000003-{nonce}/{n}.txt", "c{n:07d}/00000.safetensors",
        "c{arabic}/s000000003-{nonce}/00000.safetensors", "c{n:08d}/s000000003-{nonce}/{arabic}.safetensors",
        "{n:05d}.safetensors", "c{n:08d}/.s000000003-{nonce}.tmp", "S{n:09d}-{nonce}/00000.safetensors",
    ),
    "events": ("{n}.json", "{n}.jsonl.gz", "{n}.jsonl~", ".{n}.jsonl.swp", "old/{n}.txt", "{n}"),
    "elastic": ("hub-{n}.json", "hub.json.{n}", "hub.json~{n}", "meeting{n}", "compiled-{n}/x", "{n}"),
    "leases": ("{n:07d}", "{n:08d}.bak", "x{n}"),
}  # fmt: skip
BESIDE = (
    "{n}.txt",
    "claims.{n}",
    "commits-{n}/c{n:08d}.s000000003-{nonce}.json",
    "Data/c{n:08d}",
    ".{n}.tmp",
    "{n:08d}.json",
)


def strays(count: int) -> list[str]:
    """Their keys below the run's folder; the same each time."""
    draw, found = random.Random(f"{count} strays"), list[str]()
    forms = [f"{folder}/{name}" for folder, names in NEARLY.items() for name in names] + list(BESIDE)
    for number, form in zip(range(count), itertools.cycle(forms), strict=False):
        n = 1 + number // len(forms)
        nonce = f"{draw.randrange(16**20):020x}"
        arabic = "".join(chr(0x660 + int(digit)) for digit in f"{90_000_000 + n}")
        found.append(form.format(n=n, nonce=nonce, NONCE=f"A{nonce[1:].upper()}", arabic=arabic))
    return found


def litter(url: str, options: dict[str, Any]) -> list[str]:
    """Puts them there, with what some program may have written; returns their keys."""
    draw, keys = random.Random(7), strays(STRAYS)
    contents = (b"", b"{}", b'{"worker": "a", "event": "x", "t": 1}\n', draw.randbytes(300), b"\xff" * 40)
    if "://" not in url:
        for key in keys:
            path = Path(url, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(draw.choice(contents))
            os.utime(path, (OLD_S, OLD_S))
        return keys
    storage = open_storage(url, options)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: storage.put(key, contents[hash(len(key)) % len(contents)]), keys))
    storage.close()
    return keys


@pytest.fixture(params=["folder", "ceph"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], tuple[str, dict[str, Any]]]:
    """place(name): a URL and its storage options."""
    if request.param == "folder":
        return lambda name: (str(tmp_path / name), {})
    server: S3Server = request.getfixturevalue("rgw")
    return lambda name: (f"s3://runs/strays/{name}", server.options)


def train(url: str, options: dict[str, Any], *, until: int = STEPS) -> str:
    """Goes on with the run, as far as Ctrl-C after step `until`, if not to its end; the digest of what it has then."""
    elastic.seed(5)
    model = torch.nn.Linear(4, 2)
    data = [(torch.randn(4, generator=torch.Generator().manual_seed(one)), one % 2) for one in range(32)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with contextlib.suppress(KeyboardInterrupt), elastic.Run(
        url, model=model, optimizer=optimizer, dataset=data, batch_size=8, virtual_workers=4, steps=STEPS,
        save_every=1, saving=elastic.Saving(keep=2, storage_options=options or None),
        checks=elastic.Checks(cross_check=None),
    ) as run:  # fmt: skip
        for step in run:
            for points, labels in step:
                step.backward(torch.nn.functional.cross_entropy(model(points), labels, reduction="sum"), len(labels))
            if step.index + 1 == until < STEPS:
                raise KeyboardInterrupt
    return digest({"model": model, "optimizer": optimizer})


def flags(options: dict[str, Any]) -> list[str]:
    return [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]


def test_a_run_among_strays_is_the_run_without_them(
    place: Callable[[str], tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Begun twice, for what is among them before a run's first claim is looked at, too."""
    ends: dict[str, tuple[Any, ...]] = {}
    for name in ("alone", "among-strays"):
        url, options = place(name)
        stray = litter(url, options) if name == "among-strays" else []
        first, second = train(url, options, until=3), train(url, options)
        capsys.readouterr()
        assert [main([command, url, *flags(options)]) for command in ("ls", "verify", "sweep")] == [0, 0, 0]
        said = capsys.readouterr().out
        assert said.count("\n") < STRAYS
        newest, below = (commit.step for commit in Checkpointer(url, storage_options=options).list())
        assert newest == STEPS > below
        begun = Counter(event["event"] for event in read_events(url, storage_options=options))["run_started"]
        ends[name] = first, second, begun
        storage = open_storage(url, options)
        gone = sorted(set(stray) - set(storage.list("")))
        storage.close()
        assert gone == [], f"{len(gone)} of {len(stray)} strays were removed"
    print(f"{STRAYS} strays beside a run: {ends['alone']}")
    assert len(set(ends["alone"])) == 3
    assert ends["alone"] == ends["among-strays"]


def test_strays_cost_no_request_each(rgw: S3Server) -> None:
    """On S3, where each is paid for: what begins, saves, resumes, lists, sweeps and verifies asks as often as before,
    but for the pages of its listings."""
    state = {"w": torch.arange(6.0)}
    asked: dict[str, Counter[str]] = {}
    for name in ("alone", "among-strays"):
        url = f"s3://runs/counted/{name}"
        if name == "among-strays":
            litter(url, rgw.options)
        asked[name] = Counter()
        for begins in (0, 10):
            with watched(url) as traffic, Checkpointer(url, keep=2, storage_options=rgw.options, job="one") as runs:
                if begins:
                    runs.load(state)
                for step in range(begins, begins + 4):
                    runs.save(step, state)
                assert len(runs.list()) == 2
                assert all(one.ok for one in runs.verify())
                runs.sweep()
            asked[name].update({what: number for what, number in traffic.requests.items() if "leases" not in what})
    alone, among = asked["alone"], asked["among-strays"]
    print(f"{STRAYS} strays: {alone.total()} requests without them, {among.total()} with them")
    listings = {what for what in {*alone, *among} if what.startswith("LIST")}
    grown = sum(among[what] - alone[what] for what in {*alone, *among} - listings)
    assert grown < FEW, f"{alone}\n{among}"
    pages = 1 + STRAYS // PAGE
    assert all(among[what] <= alone[what] * pages + FEW for what in listings), f"{alone}\n{among}"
