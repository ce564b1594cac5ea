"""How fast are saves and loads on S3? Beside a plain loop of PUTs and GETs of the same bytes, in one run.

    python -m tests.benchmarks.checkpoints_s3 [--mb 256] [--rounds 5] [--json FILE]

The server is Ceph's RADOS Gateway on this machine, with its objects in memory: it takes processors that the client
would have elsewhere, from both sides alike. "raw" is boto3, one object of a shard's size after another, each a single
request, its bytes checked by nobody. The sides take turns; ratios are of medians.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import numpy as np
from botocore.config import Config
from rich.console import Console

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.format.shards import SHARD_BYTES
from tests.benchmarks import harness
from tests.benchmarks.checkpoints import build, timed
from tests.benchmarks.harness import interruptible, progress
from tests.kit.rgw import HOW_TO_INSTALL, missing, rgw_server
from tests.kit.s3 import S3Server

TENSORS = 300


class Raw:
    """The loop that anybody would write."""

    def __init__(self, server: S3Server, bucket: str, total: int) -> None:
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=server.endpoint_url,
            aws_access_key_id=server.key,
            aws_secret_access_key=server.secret,
            region_name="us-east-1",
            config=Config(request_checksum_calculation="when_required", response_checksum_validation="when_required"),
        )
        self._bucket = bucket
        data = np.random.default_rng(1).bytes(total)
        self._objects = [data[start : start + SHARD_BYTES] for start in range(0, total, SHARD_BYTES)]

    def put(self) -> None:
        for number, data in enumerate(self._objects):
            self._client.put_object(Bucket=self._bucket, Key=f"raw/{number}", Body=data)

    def get(self) -> None:
        for number, data in enumerate(self._objects):
            assert len(self._client.get_object(Bucket=self._bucket, Key=f"raw/{number}")["Body"].read()) == len(data)


def run(server: S3Server, mb: int, rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = defaultdict(list)
    state = build(mb, TENSORS)
    raw = Raw(server, "bench", mb * 2**20)
    expected = digest(state)
    with Checkpointer(server.new_bucket("bench"), storage_options=server.options, keep=2) as runs:
        runs.warm(state)
        runs.save(0, state, blocking=False).wait()
        raw.put()
        with interruptible():
            for step in progress("rounds", range(1, rounds + 1)):
                with timed(seconds["raw PUTs"]):
                    raw.put()
                with timed(seconds["save"]):
                    runs.save(step, state, blocking=False).wait()
                runs.wait()  # the sweep of older ones
                with timed(seconds["raw GETs"]):
                    raw.get()
                for tensor in state["model"].values():
                    tensor.zero_()
                with timed(seconds["load"]):
                    assert runs.load(state) == step
                assert digest(state) == expected
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Saves and loads on S3, beside a plain loop.")
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write all seconds and ratios there")
    asked = parser.parse_args(arguments)
    if absent := missing():
        parser.exit(2, f"{', '.join(absent)} not found; install them: {HOW_TO_INSTALL}\n")
    logging.disable(logging.WARNING)
    console, load = Console(), os.getloadavg()[0]
    begun_s = time.perf_counter()
    with rgw_server() as server:
        seconds = run(server, asked.mb, asked.rounds)
    median = {name: statistics.median(values) for name, values in seconds.items() if values}
    for name, value in median.items():
        console.print(f"{name:10} {value * 1000:7,.0f} ms   {asked.mb / value:6,.0f} MiB/s")
    compared = {
        "throughput of a save / raw PUTs": ("raw PUTs", "save"),
        "throughput of a verified load / raw GETs": ("raw GETs", "load"),
    }
    ratios = {name: median[raw] / median[ours] for name, (raw, ours) in compared.items() if ours in median}
    for name, value in ratios.items():
        console.print(f"{name:42} {value:.2f}")
    console.print(
        f"{asked.mb} MiB, {len(seconds['load'])} rounds, {time.perf_counter() - begun_s:.0f} s; "
        f"load of the machine {load:.1f} before, {os.getloadavg()[0]:.1f} after; {os.cpu_count()} processors"
    )
    if asked.json:
        asked.json.write_text(json.dumps({"seconds": seconds, "ratios": ratios, "load": load}))


if __name__ == "__main__":
    harness.run(main)
