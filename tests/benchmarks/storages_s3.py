"""What do S3's clients cost? s3fs, the default, beside obstore, on Ceph's gateway on this machine, in one run.

    python -m tests.benchmarks.storages_s3 [--rounds 5] [--json FILE]

Each operation through the interface that checkpoints use (elastic_checkpoint/storage/base.py). The sides take turns,
and swap who begins; ratios are of medians, obstore's over s3fs's: below 0.75 it wins by a quarter. Processor time is
this process's own, all of its threads; the server's is not in it. On a machine with other work only that ratio means
much."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from elastic_checkpoint.storage import AlreadyThere, Storage, delete_many, get_into, open_storage
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.kit.rgw import HOW_TO_INSTALL, missing, rgw_server

MIB = 2**20
LARGE = 128 * MIB
SMALL = 50

Times = dict[str, list[tuple[float, float]]]  # operation -> wall and processor seconds, of each round


class Side:
    """One client, below a URL of its own."""

    def __init__(self, storage: Storage, data: bytearray) -> None:
        self._storage = storage
        self._data = memoryview(data)
        self._target = memoryview(bytearray(LARGE))
        self._number = 0
        self.times: Times = defaultdict(list)
        assert storage.exclusive()

    def round(self) -> None:
        """Each operation once."""
        storage = self._storage
        self._timed("put of 128 MiB", lambda: storage.put("large", self._data))
        self._timed("get of 128 MiB", lambda: get_into(storage, "large", self._target))
        assert self._target == self._data
        self._timed("ranges of 1 MiB", lambda: self._each(lambda n: storage.get("large", n * MIB, MIB)))
        self._number += 1
        keys = [f"small-{self._number}/{n}" for n in range(SMALL)]
        self._timed("create if absent", lambda: self._each(lambda n: storage.put_new(keys[n], b"x" * 900)))
        self._timed("create, refused", lambda: self._each(lambda n: self._refused(keys[n])))
        self._timed("get of 900 bytes", lambda: [storage.get(key) for key in keys])
        self._timed("size", lambda: [storage.size(key) for key in keys])
        self._timed("list", lambda: self._each(lambda n: storage.list(f"small-{self._number}")))
        self._timed("delete of 50", lambda: delete_many(storage, keys))

    def _refused(self, key: str) -> None:
        try:
            self._storage.put_new(key, b"another")
        except AlreadyThere:
            return
        raise AssertionError(f"{key} was created twice")

    def _each(self, act: Callable[[int], object]) -> None:
        for number in range(SMALL):
            act(number)

    def _timed(self, name: str, act: Callable[[], object]) -> None:
        wall_s, processor_s = time.monotonic(), time.process_time()
        act()
        self.times[name].append((time.monotonic() - wall_s, time.process_time() - processor_s))


def ratios(ours: Times, theirs: Times) -> dict[str, tuple[float, float]]:
    """Operation -> ours over theirs: wall clock, processor."""

    def median(times: Times, name: str, which: int) -> float:
        return statistics.median(one[which] for one in times[name])

    return {
        name: (
            median(ours, name, 0) / median(theirs, name, 0),
            median(ours, name, 1) / max(median(theirs, name, 1), 1e-9),
        )
        for name in ours
        if theirs[name]  # it was not interrupted before
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if missing():
        parser.error(f"needs Ceph's RADOS Gateway: {HOW_TO_INSTALL}")
    data = bytearray(os.urandom(LARGE))
    with rgw_server() as server:
        url = server.new_bucket("bench")
        options: dict[str, Any] = server.options
        s3fs = Side(open_storage(f"{url}/s3fs", options), data)
        obstore = Side(open_storage(f"{url}/obstore", {**options, "client": "obstore"}), data)
        sides = [s3fs, obstore]
        with interruptible():
            for _ in progress("rounds", range(asked.rounds)):
                for side in sides:
                    side.round()
                sides.reverse()
    found = ratios(obstore.times, s3fs.times)
    table = Table("obstore / s3fs", "wall clock", "processor", title=f"medians of {asked.rounds}")
    for name, (wall, processor) in found.items():
        table.add_row(name, f"{wall:.2f}", f"{processor:.2f}")
    Console().print(table)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    harness.run(main)
