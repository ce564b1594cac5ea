"""What is planted in environment, URL, storage options and command line is in nothing that a run writes or shows.

Not even where the script itself says it, in the exception that a worker fails with.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import s3fs

from elastic import watch_command
from elastic.manifest import command as manifest_command
from elastic.report import command as report_command
from tests.kit.launch import Launch
from tests.kit.s3 import S3Server, s3_server

WITHIN_S = 240.0
PLANTED = "planted"
SCRIPT = """
import json, os, sys
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset
import elastic
from elastic.logging import CSV, TensorBoard

url, folder, options = sys.argv[1], sys.argv[2], json.loads(os.environ["OPTIONS"])
elastic.seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(48, 4), torch.arange(48) % 2)
with elastic.Run(
    url, model=model, optimizer=optimizer, dataset=data, batch_size=12, virtual_workers=4, epochs=4, save_every=4,
    saving=elastic.Saving(storage_options=options),
    loggers=[CSV("s3://" + url.split("/")[2] + "/curves.csv", options), TensorBoard(folder)],
) as run:
    for x, y in run.batches():
        if run.step_index == 5 and run.rank == 1 and not os.path.exists(folder + "/failed"):
            open(folder + "/failed", "w").close()
            raise RuntimeError(f"cannot ask {sys.argv[3:]} with {os.environ['MY_SERVICE_TOKEN']}, {options}")
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if run.stepped:
            run.log(loss=loss)
"""


def test_no_secret_is_written_or_shown(tmp_path: Path) -> None:
    script, folder = tmp_path / "script.py", tmp_path / "curves"
    script.write_text(SCRIPT)
    folder.mkdir()
    words = ["--api-key", "planted-in-flag", "--from=s3://me:planted-in-url@bucket/x?sig=planted-in-query"]
    with s3_server() as started:
        server = S3Server(started.endpoint_url, secret="planted-in-options")
        url = f"{server.new_bucket('runs')}/mine"
        environ = {
            "OPTIONS": json.dumps(server.options),
            "MY_SERVICE_TOKEN": "planted-in-environment",
            "TORCH_HUB_URL": "https://me:planted-in-variable@host/hub",
        }
        flags = ["run", "--standalone", "--nproc-per-node=2"]
        with Launch("elastic", [*flags, script, url, folder, *words], env=environ) as launch:
            assert "planted-in-environment" in launch.succeed(within_s=WITHIN_S), "the script's own traceback"
        store = s3fs.S3FileSystem(**server.options)
        written = {name: store.cat_file(name) for name in store.find("runs")}
        written |= {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path != script}
        assert any("/events/" in name and b"cannot ask" in data for name, data in written.items())
        for part in ("manifest.json", "launches.jsonl", "curves.csv", "/record/", "tfevents"):
            assert any(part in name for name in written), part
        assert [name for name, data in written.items() if PLANTED.encode() in data] == []

        options = [f"--storage-option={key}={value}" for key, value in server.options.items()]
        page = tmp_path / "page.html"
        for shown in (
            said_by(report_command.main, [url, *options]),
            said_by(report_command.main, [url, "--json", *options]),
            said_by(report_command.main, [url, "--html", os.fspath(page), *options]) + page.read_text(),
            said_by(watch_command.main, [url, "--once", *options]),
            said_by(watch_command.main, [url, "--once", "--json", *options]),
            said_by(manifest_command.main, [url, *options]),
            said_by(manifest_command.main, [url, "--json", *options]),
        ):
            assert PLANTED not in shown


def said_by(main: Callable[[list[str]], int], argv: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(argv) == 0, err.getvalue()
    return out.getvalue() + err.getvalue()
