"""A run that is scraped: its script, and what its port answers."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.kit.launch import Launch

_ANSWER_S = 60.0
TRAINS = """
import os, sys, time
from pathlib import Path
import torch
from torch.utils.data import TensorDataset
import elastic

url, enough = sys.argv[1], Path(sys.argv[2])
sys.stdout.write(f"here {os.environ['LOCAL_RANK']} {os.getpid()} {os.environ['ELASTIC_RESTART']}\\n")
sys.stdout.flush()
elastic.seed(0)
model = torch.nn.Linear(4, 2)
data = TensorDataset(torch.randn(4000, 4), torch.arange(4000) % 2)
with elastic.Run(
    url,
    model=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    dataset=data,
    batch_size=4,
    virtual_workers=4,
    epochs=100,
    save_every=10,
) as run:
    for step in run:
        for x, y in step:
            step.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="sum"), count=len(y))
        time.sleep(0.02)
        if enough.exists():
            run.stop("enough")
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def get(port: int, path: str) -> tuple[int, str]:
    """0: nobody is there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=_ANSWER_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


def scrape(port: int) -> dict[str, float]:
    """Each sample, as Prometheus calls it: elastic_worker_seconds_total{part="redone"}."""
    status, text = get(port, "/metrics")
    assert status == 200
    return {
        sample.name + "".join(f'{{{key}="{value}"}}' for key, value in sample.labels.items()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def here(launch: Launch) -> list[tuple[int, int]]:
    """(local rank, pid) of each worker that has begun."""
    found = re.findall(r"^(?:\[.*?\]:)?here (\d+) (\d+) \d+$", launch.output, re.M)
    return [(int(local_rank), int(pid)) for local_rank, pid in found]
