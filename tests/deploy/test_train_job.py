"""Nodes as Kubeflow's operator starts them: PET_* in each, and a server that takes the run's progress."""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from elastic.drill.end import End
from elastic.drill.faults.plan import Plan
from elastic.drill.folder import DrillFolder
from elastic.drill.hosts.network import until
from elastic.drill.judge.review import review
from elastic.events.reading import read_events
from elastic.launch.node.kubeflow import TrainJobStatus
from tests.kit.deploy_tools import tool
from tests.kit.host_runs import ROOT, SCRIPT

STEPS, NODES, WITHIN_S = 40, 2, 240.0
TOKEN = "of-this-pod"
MODEL = """
import json, sys
from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest as Request
for line in sys.stdin:
    print(json.dumps(Request.from_dict(json.loads(line)).to_dict(), default=lambda t: t.strftime("%Y-%m-%dT%H:%M:%SZ")))
"""


@dataclass
class Operator:
    """Answers with the first of `answers`, then with 200.

    told  (path, authorization, body) of each request
    """

    folder: Path
    answers: list[int] = field(default_factory=list)
    told: list[tuple[str, str | None, dict[str, Any]]] = field(default_factory=list)
    port: int = 0

    def has_been_told(self, times: int) -> bool:
        return len(self.told) == times

    def files(self, path: str) -> tuple[str, str, str]:
        return f"https://127.0.0.1:{self.port}{path}", str(self.folder / "ca.crt"), str(self.folder / "token")

    def env(self, path: str) -> dict[str, str]:
        url, certificate, token = self.files(path)
        names = ("URL", "CA_CERT", "TOKEN")
        return {f"KUBEFLOW_TRAINER_STATUS_{name}": value for name, value in zip(names, (url, certificate, token))}  # noqa: B905


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    made = Operator(tmp_path)
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    certificate, key = _certificate(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            made.told.append((self.path, self.headers["Authorization"], body))
            self.send_response(made.answers.pop(0) if made.answers else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """Of its own issuer, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "operator")])
    now = datetime.now(timezone.utc)
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([host]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = folder / "ca.crt", folder / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, private


@contextmanager
def node(rank: int, command: list[str], output: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A pod's process, with what the operator sets in every pod of a TrainJob."""
    of_operator = {
        "PET_NNODES": str(NODES),
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": "digits-node-0-0.digits",
        "PET_MASTER_PORT": "29400",
    }
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "ELASTIC_SECRET": "of-these-two-nodes-of-one-run"}
    with output.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "elastic", "run", *command],
            cwd=ROOT, stdout=said, stderr=said, env={**os.environ, **of_operator, **own, **env},
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_nodes_of_a_train_job_are_one_run_and_its_progress_is_told(
    tmp_path: Path, operator: Operator, elastic_undisturbed: Callable[..., End]
) -> None:
    """By the node that has the coordinator alone, each in a form that Kubeflow's own model takes whole."""
    url, outputs = tmp_path / "run", [tmp_path / f"node-{rank}" for rank in range(NODES)]
    flags = ["--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint={url}", f"--rdzv-id={url}", "--leave-status=75"]
    command = [*flags, str(SCRIPT), str(url), f"--steps={STEPS}", "--unhurried=2"]
    drill = DrillFolder(tmp_path / "drill")
    drill.begin_launch()
    drill.plan.write_text(Plan().to_json())
    observed = {"ELASTIC_OBSERVER": f"elastic.drill.inject.injector:observer:{drill.path}"}
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node(rank, command, output, **observed, **operator.env(f"/node-{rank}")))
            for rank, output in enumerate(outputs)
        ]
        assert [one.wait(WITHIN_S) for one in nodes] == [0, 0], "".join(output.read_text() for output in outputs)
    events = read_events(url)
    assert max(len(one["workers"]) for one in events if one["event"] == "view_formed") == NODES
    verdict = review(str(url), events, steps=STEPS, reference=elastic_undisturbed(steps=STEPS).events, lost_max=0)
    assert verdict.ok, str(verdict)
    assert "PET_NODE_RANK=0" in outputs[0].read_text()

    paths, tokens, bodies = zip(*operator.told)  # noqa: B905
    assert len(set(paths)) == 1
    assert set(tokens) == {f"Bearer {TOKEN}"}
    shares = [body["trainerStatus"]["progressPercentage"] for body in bodies]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert {one["name"] for one in bodies[-1]["trainerStatus"]["metrics"]} >= {"step", "loss", "world_size"}
    told = tool("python", "-c", MODEL, text="".join(json.dumps(body) + "\n" for body in bodies))
    assert [json.loads(line) for line in told.stdout.splitlines()] == list(bodies), told.stderr


def status(step: int) -> dict[str, Any]:
    return {"step": step, "total_steps": 40, "t": 1.8e9 + step, "value": ["loss", 0.25], "step_s": 0.5}


def test_an_operator_that_fails_is_said_once_and_told_again(operator: Operator) -> None:
    said: list[str] = []
    operator.answers = [500, 302, 403]
    told = TrainJobStatus(operator.files("/status"), say=said.append, every_s=0.0)
    for step in range(5):
        told.show(status(step))
        until(partial(operator.has_been_told, step + 1), f"status {step}", within_s=WITHIN_S)
    told.close()
    assert [body["trainerStatus"]["metrics"][0]["value"] for _, _, body in operator.told] == list("01234")
    assert len(said) == 1
    assert "it answers 500" in said[0]


def test_the_last_status_is_told_at_the_end(operator: Operator) -> None:
    told = TrainJobStatus(operator.files("/status"), say=lambda line: None, every_s=WITHIN_S)
    told.show(status(1))
    until(partial(operator.has_been_told, 1), "the first status", within_s=WITHIN_S)
    told.show(status(2))
    told.show(status(40))
    told.close()
    assert [body["trainerStatus"]["progressPercentage"] for _, _, body in operator.told] == [2, 100]


@pytest.mark.parametrize("wrong", ["http://127.0.0.1/status", "https:///status"])
def test_a_token_goes_to_nobody_without_tls(operator: Operator, wrong: str) -> None:
    said: list[str] = []
    _, certificate, token = operator.files("/status")
    told = TrainJobStatus((wrong, certificate, token), say=said.append)
    told.show(status(1))
    told.close()
    assert "expected https://HOST" in said[0]


def test_another_servers_certificate_is_not_believed(operator: Operator, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "other").mkdir()
    url, _, token = operator.files("/status")
    other, _ = _certificate(tmp_path / "other")
    told = TrainJobStatus((url, str(other), token), say=said.append)
    told.show(status(1))
    told.close()
    assert "CERTIFICATE_VERIFY_FAILED" in said[0]
    assert operator.told == []
