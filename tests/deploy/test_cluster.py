"""deploy/kubernetes on a real cluster of two nodes, at night: pods are deleted, drained and lost, and come again."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.hosts import hosts as drill_hosts
from elastic.drill.hosts.network import name
from elastic.events.event import Event
from elastic.events.reading import read_events
from elastic_checkpoint.net.secret import generated_secret
from tests.kit import containers, kubernetes
from tests.kit.containers import Containers
from tests.kit.deploy_tools import DEPLOY, ROOT
from tests.kit.hosts import Hosts
from tests.kit.kubernetes import Kubernetes
from tests.processes.test_docs import run

SCRIPT = ROOT / "tests/kit/programs/small.py"
IMAGE, STEPS, GRACE_S = "localhost/elastic:tried", 600, 120
FLAGS = [f"--steps={STEPS}", "--save-every=50"]
LEFT = 75
UNKNOWN = 255  # of what ended with its machine
WITHIN_S, POLL_S = 600.0, 0.5
_PAUSE = 'ARG BASE\nFROM ${BASE}\nENTRYPOINT ["sleep", "infinity"]\n'
_VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: runs}}
spec:
  capacity: {{storage: 1Gi}}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  hostPath: {{path: {folder}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: runs}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  resources: {{requests: {{storage: 1Gi}}}}
"""


@pytest.fixture
def engine() -> Iterator[Containers]:
    if (why := containers.missing()) is not None:
        pytest.skip(f"containers: {why}")
    with containers.containers() as made:
        yield made


@pytest.fixture
def cluster_hosts(tmp_path: Path) -> Iterator[Hosts]:
    if (why := drill_hosts.missing() or kubernetes.missing()) is not None:
        pytest.skip(f"kubernetes: {why}")
    with ExitStack() as running:
        yield running.enter_context(Hosts(3, tmp_path / "hosts"))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_job_goes_through_a_deletion_a_drain_and_a_lost_machine(
    cluster_hosts: Hosts, engine: Containers, tmp_path: Path
) -> None:
    """overlays/1.20 with overlays/folder, as a user of both writes them."""
    runs = folder_of_runs(tmp_path)
    images = built(engine, tmp_path)
    cluster = Kubernetes(cluster_hosts, tmp_path / "kubernetes", images)
    cluster.watch("pods", tmp_path / "pods")
    submit(cluster, deployed(tmp_path / "deploy", [*FLAGS, "--slow-until=/runs/hurry"]), runs)
    story = Story(cluster, runs / "digits", tmp_path / "pods")

    story.until("steps of both nodes", lambda: len(story.trained()) == 2)
    deleted = story.pod_on(2)
    cluster.ask("delete", "pod", deleted)
    story.until("steps of the pod that took its place", lambda: story.pod_on(2) in story.trained())

    drained = story.pod_on(3)
    cluster.ask("drain", name(3), "--ignore-daemonsets", "--delete-emptydir-data")
    story.until("a step of the other one", lambda: story.worlds()[-1] == 1)
    cluster.ask("uncordon", name(3))
    early = story.pod_on(3)
    cluster.ask("delete", "pod", early)  # it has hardly begun, and is process 1 of its container
    story.until("steps of the pod after it", lambda: story.pod_on(3) in story.trained())

    lost = story.pod_on(3)
    cluster_hosts.lose_power(3)
    story.until("a step of the survivor", lambda: story.worlds()[-1] == 1)
    cluster_hosts.heal(3)
    cluster.boot_node(3)
    story.until("steps of the pod that came back", lambda: story.pod_on(3) in story.trained() - {lost})
    (runs / "hurry").touch()
    story.until("the end of the Job", story.is_complete)

    assert story.statuses(deleted) | story.statuses(drained) <= {LEFT}  # 1.20 at times removes one, and has not said
    assert story.statuses(lost) == {UNKNOWN}
    assert story.statuses() <= {0, LEFT, UNKNOWN}, "one was killed, or failed"
    assert story.pods_that("left") - {early} == {deleted, drained}
    assert len(story.trained() - {early}) == 5
    flags = [f"--volume={runs}:/runs", "--network=none", IMAGE, "--standalone", "/runs/small.py", "/runs/alone", *FLAGS]
    engine.run("--read-only", "--tmpfs=/tmp", *flags)
    became, undisturbed = report(runs / "digits"), report(runs / "alone")
    assert (became["state"], became["steps"], became["peers_lost"]) == ("finished", STEPS, 1), story.said()
    assert became["redone"] <= 1
    assert became["counted"] == undisturbed["counted"]
    assert became["weights_sha256"] == undisturbed["weights_sha256"]


def report(url: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(run([sys.executable, "-m", "elastic", "report", str(url), "--json"], ROOT))
    return said


class Story:
    """What becomes of the Job. watched: the file in which the states of all pods are written down"""

    def __init__(self, cluster: Kubernetes, url: Path, watched: Path) -> None:
        self.url = str(url)
        self._cluster = cluster
        self._watched = watched

    def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}\n{self.said()}"
            time.sleep(POLL_S)

    def trained(self) -> set[str]:
        """The pods whose worker has applied a step."""
        return self.pods_that("step_applied")

    def pods_that(self, event: str) -> set[str]:
        """Pods have a worker each, whose id begins with the pod's name."""
        return {record["worker"].rsplit("-", 2)[0] for record in self._events() if record["event"] == event}

    def worlds(self) -> list[int]:
        """How many workers each step was shared by, in the order in which they were applied."""
        return [event["world_size"] for event in self._events() if event["event"] == "step_applied"]

    def pod_on(self, host: int) -> str:
        """The one there that is not over, nor told to end; it is waited for."""
        found: list[str] = []

        def is_there() -> bool:
            for pod in self._cluster.items("pods"):
                over = pod["status"]["phase"] in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
                if pod["spec"].get("nodeName") == name(host) and not over:
                    found.append(pod["metadata"]["name"])
            return bool(found)

        self.until(f"a pod on {name(host)}", is_there)
        return found[0]

    def is_complete(self) -> bool:
        (job,) = self._cluster.items("jobs")
        said = [(condition["type"], condition["status"]) for condition in job["status"].get("conditions", ())]
        return ("Complete", "True") in said

    def statuses(self, pod: str | None = None) -> set[int]:
        """With which this pod's container, or all, have ended, as far as Kubernetes has heard."""
        whole, _, _ = self._watched.read_text().rpartition("\n")
        states = [json.loads(line) for line in whole.splitlines()]
        return {
            container["state"]["terminated"]["exitCode"]
            for state in states
            if pod in (None, state["metadata"]["name"])
            for container in state["status"].get("containerStatuses", ())
            if "terminated" in container["state"]
        }

    def said(self) -> str:
        pods = self._cluster.ask("get", "pods,jobs,nodes", "--output=wide")
        logs = self._cluster.ask("logs", "--selector=app.kubernetes.io/name=elastic", "--prefix", "--ignore-errors")
        return f"{pods}\n{logs}\n{self._cluster.said()}"

    def _events(self) -> list[Event]:
        return read_events(self.url)


def folder_of_runs(folder: Path) -> Path:
    """With the script in it. Pods are no root."""
    runs = folder / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    shutil.copy(SCRIPT, runs)
    return runs


def built(engine: Containers, folder: Path) -> Path:
    """An archive of deploy/container's image, and of the one that Kubernetes has a pod held by."""
    engine.make_base("localhost/base")
    engine.build(DEPLOY / "container/Dockerfile", ROOT, IMAGE, base="localhost/base")
    (folder / "pause").mkdir()
    (folder / "pause/Dockerfile").write_text(_PAUSE)
    engine.build(folder / "pause/Dockerfile", folder / "pause", kubernetes.PAUSE, base="localhost/base")
    engine.ask("save", "--multi-image-archive", f"--output={folder / 'images.tar'}", IMAGE, kubernetes.PAUSE)
    return folder / "images.tar"


def deployed(folder: Path, flags: list[str]) -> Path:
    """deploy/kubernetes with its knobs turned: the folder to apply."""
    shutil.copytree(DEPLOY / "kubernetes", folder)
    knobs = {"RUN": "/runs/digits", "IMAGE": IMAGE, "NODES_MAX": "2", "WORKERS": "1", "GRACE_S": str(GRACE_S)}
    (folder / "base/knobs.env").write_text("".join(f"{knob}={value}\n" for knob, value in knobs.items()))
    job = folder / "base/job.yaml"
    script = "".join(f"            - {argument}\n" for argument in ("/runs/small.py", "$(RUN)", *flags))
    job.write_text(replaced(job.read_text(), "            - digits.py\n            - $(RUN)\n", script))
    overlay = folder / "overlays/folder/kustomization.yaml"
    overlay.write_text(replaced(overlay.read_text(), "resources: [../../base]", "resources: [../1.20]"))
    return overlay.parent


def replaced(text: str, was: str, is_: str) -> str:
    assert text.count(was) == 1
    return text.replace(was, is_)


def submit(cluster: Kubernetes, overlay: Path, runs: Path) -> None:
    cluster.ask("apply", "--filename=-", text=_VOLUME.format(folder=runs))
    cluster.ask("create", "secret", "generic", "elastic", f"--from-literal=secret={generated_secret()}")
    cluster.ask("apply", "--kustomize", overlay)
