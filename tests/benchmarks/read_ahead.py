"""How long until a resume from S3 has its state and its first step, its checkpoint read ahead and not?

    python -m tests.benchmarks.read_ahead [--mib 24] [--mb-per-s 12] [--import-s 3] [--turns 3]

The server is moto's, behind a relay that gives so many bytes per second and no more; the script imports a module that
takes so many seconds of a processor. Both ways in turns; medians, and the extremes.

to a step  from the command until two workers have applied one
the state  of that, from their entering the run until they hold it: a view, the claim, the reading, the broadcast
ratio      of what is read ahead to what is not, in the same turn
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from elastic.launch.workers.start_times import APPLIED, HELD, IN_RUN
from tests.benchmarks import harness
from tests.benchmarks.harness import interruptible, progress
from tests.benchmarks.shared_save import Way
from tests.kit.s3 import S3Server, s3_server

WORKERS = 2
_WITHIN_S = 240
_SCRIPT = str(Path(__file__).with_name("read_ahead_script.py"))
_ROOT = Path(__file__).parents[2]
_URL = "s3://runs/resumed"


class Resumes:
    """Of one run, each of a step more."""

    def __init__(self, server: S3Server, folder: Path, mib: int, import_s: float) -> None:
        self._server, self._folder, self._mib, self._steps = server, folder, mib, 0
        source = f"import time\nend = time.process_time() + {import_s}\nwhile time.process_time() < end: pass\n"
        (folder / "slow_import.py").write_text(f"{source}done = True\n")

    def taken(self, port: int, *flags: str) -> tuple[float, float]:
        """Seconds until all workers have applied a step, and until they hold the state since they were in the run."""
        self._steps += 1
        run = ["run", "--no-status", "--timing", f"--nproc-per-node={WORKERS}", *flags]
        ended = subprocess.run(
            [sys.executable, "-m", "elastic", *run, _SCRIPT, _URL, str(self._mib), str(self._steps)],
            capture_output=True,
            text=True,
            cwd=_ROOT,
            env=self._environment(port),
            timeout=_WITHIN_S,
            check=True,
        )
        rows = re.findall(r"^ +([\d.]+) s  (.+)$", ended.stderr, re.MULTILINE)
        at_s = {
            moment: float(text) for text, what in rows for moment in (IN_RUN, HELD, APPLIED) if what.startswith(moment)
        }
        return at_s[APPLIED], at_s[HELD] - at_s[IN_RUN]

    def _environment(self, port: int) -> dict[str, str]:
        s3 = {"AWS_ACCESS_KEY_ID": self._server.key, "AWS_SECRET_ACCESS_KEY": self._server.secret}
        own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "PYTHONPATH": f"{self._folder}:{_ROOT}"}
        return {**os.environ, **s3, **own, "OMP_NUM_THREADS": "1", "ELASTIC_NOTICES": "none"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=24)
    parser.add_argument("--mb-per-s", type=float, default=12.0)
    parser.add_argument("--import-s", type=float, default=3.0)
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args()
    ways = {"not": (), "read ahead": (f"--rdzv-endpoint={_URL}",)}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder, s3_server() as server, interruptible():
        server.new_bucket("runs")
        port = int(server.endpoint_url.rpartition(":")[2])
        resumes = Resumes(server, Path(folder), chosen.mib, chosen.import_s)
        with contextlib.closing(Way(port, chosen.mb_per_s * 1e6, down=True)) as way:
            resumes.taken(way.port)  # what is resumed, and what is read for the first time
            for _ in progress("turns", range(chosen.turns)):
                for name, flags in ways.items():
                    found[name].append(resumes.taken(way.port, *flags))
    if all(found.values()):
        reading_s = chosen.mib * 2**20 / chosen.mb_per_s / 1e6
        print(f"{chosen.mib} MiB at {chosen.mb_per_s:g} MB/s: {reading_s:.1f} s; imports: {chosen.import_s:g} s")
        _show(found)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def _show(found: dict[str, list[tuple[float, float]]]) -> None:
    for name, taken in found.items():
        to_a_step, the_state = (_in_words(column, " s") for column in zip(*taken, strict=True))
        print(f"{name:10}   to a step {to_a_step}   the state {the_state}")
    pairs = list(zip(*found.values(), strict=False))
    ratios = (_in_words([ahead[at] / other[at] for other, ahead in pairs], "") for at in (0, 1))
    print("{:10}   to a step {}   the state {}".format("ratio", *ratios))


def _in_words(values: Sequence[float], unit: str) -> str:
    return f"{statistics.median(values):5.2f}{unit} ({min(values):.2f} … {max(values):.2f})"


if __name__ == "__main__":
    harness.run(main)
