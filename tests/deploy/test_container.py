"""deploy/container: its files are checked, and at night the image is built and runs, as two nodes of one run."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.hosts import hosts as drill_hosts
from elastic.events.reading import read_events
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit import containers
from tests.kit.containers import Containers
from tests.kit.deploy_tools import DEPLOY, ROOT, lacks, program, tool
from tests.kit.hosts import Hosts
from tests.processes.test_docs import run

FOLDER = DEPLOY / "container"
DOCKERFILE, COMPOSE, SCRIPT = FOLDER / "Dockerfile", FOLDER / "compose.yaml", ROOT / "tests/kit/programs/small.py"
WITHIN_S, POLL_S, STEPS = 600.0, 0.5, 160
LEFT = 75
UID = 1000
ENTRYPOINT = 'ENTRYPOINT ["env", "--block-signal=TERM", "--block-signal=USR1", "elastic", "run"]'
_CHECK = """
import json, jsonschema, sys, yaml
jsonschema.validate(yaml.safe_load(sys.stdin), json.load(open(sys.argv[1])))
"""
_TO_JSON = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    said = tool("hadolint", DOCKERFILE)
    assert said.returncode == 0, said.stdout


def test_an_image_has_no_root_no_shell_and_no_invented_digest() -> None:
    text = DOCKERFILE.read_text()
    assert re.findall(r"^USER (.*)$", text, re.M) == [f"{UID}:{UID}"]
    assert re.findall(r"^(?:ENTRYPOINT|CMD) .*$", text, re.M) == [ENTRYPOINT]
    assert "sha256:" not in text
    assert re.findall(r"^FROM (\S+)", text, re.M) == ["${BASE}"] * 2


def test_compose_takes_its_file() -> None:
    said = compose_says(composed())
    assert said == "", said


def test_a_node_is_told_how_long_its_container_is_waited_for() -> None:
    node = composed()["services"]["node"]
    assert node["stop_grace_period"] == f"{node['environment']['ELASTIC_GRACE_S']}s"
    assert node["tmpfs"] == ["/tmp"]
    assert node["read_only"] is True


def composed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tool("python", "-c", _TO_JSON, text=COMPOSE.read_text()).stdout)
    return found


def compose_says(file: dict[str, Any]) -> str:
    """Empty: nothing is wrong."""
    schema = Path(__file__).with_name("compose-spec.json")
    return tool("python", "-c", _CHECK, schema, text=json.dumps(file)).stderr


@pytest.fixture
def engine() -> Iterator[Containers]:
    if (why := containers.missing()) is not None:
        lacks(f"containers: {why}")
    with containers.containers() as made:
        yield made


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Hosts]:
    if (why := drill_hosts.missing()) is not None:
        lacks(f"hosts: {why}")
    with ExitStack() as running:
        yield running.enter_context(Hosts(2, tmp_path / "hosts"))


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_an_image_from_its_build_to_finished_runs(engine: Containers, two_hosts: Hosts, tmp_path: Path) -> None:
    """One test, for an image takes minutes to build."""
    engine.make_base("localhost/base")
    engine.build(DOCKERFILE, ROOT, "localhost/elastic", base="localhost/base")
    holds_what_it_is_made_of(engine, tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    runs.chmod(0o777)
    trains_with_1_mb_of_shared_memory(engine, runs)
    leaves_before_it_has_loaded(engine, runs, tmp_path / "pid")
    leaves_and_comes_back(engine, two_hosts, runs)
    is_what_compose_starts(engine)


def holds_what_it_is_made_of(engine: Containers, folder: Path) -> None:
    """What the build is given: no history, no environment, no runs."""
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM localhost/base\nCOPY . /src\n")
    (context / "Dockerfile.dockerignore").write_bytes((FOLDER / "Dockerfile.dockerignore").read_bytes())
    engine.build(context / "Dockerfile", ROOT, "localhost/context", base="")
    found = set(engine.run("--network=none", "localhost/context", "ls", "-A", "/src").split())
    assert {".git", ".venv", "build", "tests"}.isdisjoint(found)
    assert {"elastic", "checkpoint", "recipes", "docs", "setup.py"} <= found


def node(runs: Path, *more: str) -> list[str]:
    """Flags of a container that may write to its run's folder alone."""
    volumes = [f"--volume={runs}:/runs", f"--volume={SCRIPT}:/app/small.py:ro"]
    return ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", *volumes, *more, "localhost/elastic"]


def trains_with_1_mb_of_shared_memory(engine: Containers, runs: Path) -> None:
    """Though its state is 13 MB, and two DataLoader processes hand their batches over."""
    flags = node(runs, "--network=none", "--shm-size=1m")
    script = ["small.py", "/runs/small", "--steps=12", "--width=100000", "--num-workers=2"]
    said = engine.run(*flags, "--standalone", "--nproc-per-node=2", "--leave-status=75", *script)
    assert "accuracy" in said


def leaves_before_it_has_loaded(engine: Containers, runs: Path, told: Path) -> None:
    """A pod that is drained as it starts hears SIGTERM when Python has hardly begun, and the kernel would drop it."""
    flags = node(runs, "--network=none", f"--pidfile={told}")
    command = ["--standalone", "--leave-status=75", "small.py", "/runs/early", "--steps=12"]
    with ThreadPoolExecutor(1) as beside:
        started = beside.submit(engine.start, "early", *flags, *command)
        wait("a process", lambda: (told.exists() and told.read_text().strip()) or started.done(), poll_s=0.001)
        program = Path("/proc", told.read_text().strip(), "exe")
        wait("Python", lambda: "python" in os.readlink(program), poll_s=0.001)
        os.kill(int(program.parent.name), signal.SIGTERM)
        started.result()
    wait("its end", lambda: engine.status("early") is not None)
    assert engine.status("early") == LEFT, engine.ask("logs", "early")
    assert not (runs / "early/events").exists(), "it trained"


def wait(what: str, holds: Callable[[], object], *, poll_s: float = POLL_S) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}"
        time.sleep(poll_s)


def leaves_and_comes_back(engine: Containers, two_hosts: Hosts, runs: Path) -> None:
    """SIGTERM to its first process, which sees to its own children, and to those that others leave it."""
    command = ["--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=/runs/digits", "--rdzv-id=/runs/digits"]
    script = ["small.py", "/runs/digits", f"--steps={STEPS}", "--save-every=50"]
    told = ["--env=ELASTIC_GRACE_S=120", f"--env={VARIABLE}={generated_secret()}", "--stop-timeout=120"]
    for host in two_hosts.numbers:
        flags = node(runs, *told, f"--network=ns:{two_hosts.network(host)}")
        engine.start(f"node-{host}", *flags, *command, "--leave-status=75", *script, "--slow-until=/runs/hurry")

    def until(what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            logs = "\n".join(engine.ask("logs", f"node-{host}") for host in two_hosts.numbers)
            assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}\n{logs}"
            time.sleep(POLL_S)

    until("steps of both nodes", lambda: trained_by(runs / "digits") == 2)
    orphan = engine.ask("exec", "node-2", "sh", "-c", "sleep 1 >&- 2>&- & echo $!")  # its parent is gone before it
    looks = ["exec", "node-2", "sh", "-c", f"test -e /proc/{orphan} || echo gone"]
    until("its first process to reap an orphan", lambda: engine.ask(*looks) == "gone")
    engine.ask("stop", "node-2")
    assert engine.status("node-2") == LEFT, engine.ask("logs", "node-2")
    engine.ask("start", "node-2")
    until("steps of the node that came back", lambda: trained_by(runs / "digits") == 3)
    (runs / "hurry").touch()
    until("both to end", lambda: None not in [engine.status(f"node-{host}") for host in two_hosts.numbers])
    assert [engine.status(f"node-{host}") for host in two_hosts.numbers] == [0, 0]

    became = json.loads(run([sys.executable, "-m", "elastic", "report", str(runs / "digits"), "--json"], ROOT))
    assert (became["state"], became["steps"], became["redone"]) == ("finished", STEPS, 0)
    alone = ["--standalone", "small.py", "/runs/alone", f"--steps={STEPS}", "--save-every=50"]
    engine.run(*node(runs, "--network=none"), *alone)
    undisturbed = json.loads(run([sys.executable, "-m", "elastic", "report", str(runs / "alone"), "--json"], ROOT))
    assert became["weights_sha256"] == undisturbed["weights_sha256"]


def is_what_compose_starts(engine: Containers) -> None:
    """Two nodes of it, on a network of their own, with a volume that is new."""
    limits = f"--podman-run-args={' '.join(containers.LIMITS)}"
    compose = [
        str(program("podman-compose", of="tools")),
        "--podman-path",
        str(engine.podman),
        limits,
        "--project-name=tried",
    ]
    told = f"{VARIABLE}={generated_secret()}"
    run(["env", "IMAGE=localhost/elastic", told, *compose, "up", "--no-build", "--scale=node=2"], FOLDER, within_s=900)
    asks = [*compose, "run", "--rm", "--entrypoint=elastic", "node", "report", "/runs/digits", "--json"]
    said = run(["env", "IMAGE=localhost/elastic", told, *asks], FOLDER, within_s=300)
    became = json.loads(said[said.index("{") : said.rindex("}") + 1])
    assert became["state"] == "finished"
    assert max(became["world_sizes"]) == 2


def trained_by(url: Path) -> int:
    """How many workers have applied three steps."""
    events = read_events(str(url)) if (url / "events").exists() else []
    return len({event["worker"] for event in events if event["event"] == "step_applied" and event["step"] >= 2})
