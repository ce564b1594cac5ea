"""docs/how-to/run-a-spot-fleet.md, followed as it stands: its unit under real systemds, its job under a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic.__main__ import main
from elastic.drill.hosts.network import address
from elastic.events.reading import read_events
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit import slurm, systemd
from tests.kit.hosts import Hosts
from tests.processes.test_docs import HOW_TO, ROOT, blocks, run, without_numbers

PAGE = HOW_TO / "run-a-spot-fleet.md"  # which shows these files:
UNIT, USER_DATA, ARRAY = (
    ROOT / "deploy" / name for name in ("systemd/elastic.service", "systemd/user-data", "slurm/array.sbatch")
)
WITHIN_S, POLL_S = 240.0, 0.2
STEPS = 300
CLOUD, PORT = 4, 9000  # the host that has the bucket, and from which somebody watches
S3_SERVER = f"from moto.server import main; main(['--host', '{address(CLOUD)}', '--port', '{PORT}'])"
METADATA = "169.254.169.254"
UNHURRIED = """
            import pathlib, socket
            there = pathlib.Path({folder!r})
            (there / socket.gethostname()).write_text(str(run.step_index))
            time.sleep(0 if (there / "hurry").exists() else 0.2)
"""


def named(title: str) -> str:
    (found,) = (block.text for block in blocks(PAGE) if block.title == title)
    return found


def shown(beginning: str) -> str:
    """The block of commands that begins so."""
    (found,) = (block.text for block in blocks(PAGE, "bash") if block.text.startswith(beginning))
    return found


REHEARSALS = shown("elastic run --standalone").splitlines()


@pytest.mark.nightly(sample=1, of="drills of hosts")
@pytest.mark.parametrize("command", REHEARSALS)
def test_a_rehearsal(hosts: Callable[[int], Hosts], tmp_path: Path, command: str) -> None:
    if "--hosts" in command:
        hosts(0)  # or it is skipped
    (tmp_path / "train.py").write_text(named("train.py"))
    said = run(command, tmp_path, within_s=540)
    assert ("Every promise held" in said) == ("drill" in command), said


def test_what_a_fleet_costs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines that the page shows are among those that its commands print."""
    monkeypatch.setenv("COLUMNS", "120")
    for command in shown("elastic plan").replace("\\\n", "").splitlines():
        program, *argv = shlex.split(command)
        assert (program, main(argv)) == ("elastic", 0)
    printed = capsys.readouterr().out.splitlines()
    (excerpt,) = (block.text for block in blocks(PAGE, "text") if "a checkpoint" in block.text)
    assert [line for line in excerpt.splitlines() if line not in printed] == []


def test_the_unit_runs_the_command_that_the_page_shows() -> None:
    lines = UNIT.read_text().replace("\\\n", "").splitlines()
    (unit,) = (line for line in lines if line.startswith("ExecStart="))
    runs = re.sub(r"\$\{(\w+)\}", r"$\1", unit.removeprefix("ExecStart=/opt/train/.venv/bin/"))
    assert shlex.split(runs) == shlex.split(shown("elastic run --nnodes").replace("\\\n", ""))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze: apt-get install systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (tmp_path / "elastic.service").write_text(UNIT.read_text().replace("/opt/train/.venv/bin/elastic", "/bin/true"))
    assert run(["systemd-analyze", "verify", "./elastic.service"], tmp_path) == ""


def test_a_run_that_no_variable_names_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(named("train.py"))
    said = run(f"unset RUN; NODES_MAX=8 WORKERS=1; {shown('elastic run --nnodes')}", tmp_path, status=2)
    assert "--rdzv-endpoint is empty" in said


class Fleet:
    """Machines of the page's image, told what its user data says, beside a cloud that has a bucket."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.image = folder / "image"
        self.image.mkdir()
        (self.image / ".venv").symlink_to(sys.prefix)
        self.trained = folder / "trained"
        self.trained.mkdir()
        (self.image / "train.py").write_text(unhurried(self.trained))
        self._folder = folder
        self._secret = generated_secret()
        self._machines: dict[int, systemd.Machine] = {}  # the last one of each host
        self._booted = 0
        self.credentials = {
            "AWS_ACCESS_KEY_ID": "AKIATESTKEY",
            "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-tests",
            "AWS_ENDPOINT_URL": f"http://{address(CLOUD)}:{PORT}",
        }

    def boot(self, *hosts: int, untold: str = "", **environment: str) -> None:
        """untold: this variable is empty in their user data. environment: which the image has"""
        for host in hosts:
            self._booted += 1
            folder = self._folder / f"machine-{self._booted}"
            told = USER_DATA.read_text().replace("/etc/elastic.env", str(folder / "elastic.env"))
            told = re.sub(r"\$\(aws secretsmanager [^)]*\)", self._secret, told)
            told = re.sub(rf"^{untold}=.*", f"{untold}=", told, flags=re.M) if untold else told
            unit = UNIT.read_text().replace("/etc/elastic.env", str(folder / "elastic.env"))
            unit = unit.replace("/opt/train", str(self.image)).replace("RestartSec=30", "RestartSec=1")
            of_image = {**self.credentials, "TMPDIR": "/var/tmp", "PYTHONUNBUFFERED": "1", **environment}
            self._machines[host] = systemd.Machine(self.hosts, host, folder, unit, told, environment=of_image)

    def crash(self, *hosts: int) -> None:
        for host in hosts:
            self._machines[host].crash()

    def said(self, host: int) -> str:
        return self._machines[host].said()

    def all_said(self) -> str:
        """By all machines that there were."""
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("machine-*/output")))

    def are_off(self, *hosts: int) -> bool:
        return all(self._machines[host].switched_itself_off for host in hosts)

    def asked(self, command: str) -> str:
        """What one of the page's commands says, somewhere else in the cloud."""
        environment = [f"{key}={value}" for key, value in self.credentials.items()]
        program, *rest = shlex.split(command)
        return self.hosts.on(CLOUD, "env", *environment, str(self.image / ".venv/bin" / program), *rest)

    def until(self, what: str, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not holds():
            said = "\n".join(
                f"h{host}, {'up' if it.running else 'off'}:\n{it.said()}" for host, it in self._machines.items()
            )
            assert time.monotonic() < deadline, f"not within {WITHIN_S:g} s: {what}\n{said}"
            time.sleep(POLL_S)

    def until_trained(self, *hosts: int, steps: int = 2) -> None:
        """Until each of these has begun so many steps more."""
        begun = {host: step_of(self.trained, host) for host in hosts}
        self.until(f"steps of {hosts}", lambda: all(step_of(self.trained, h) >= begun[h] + steps for h in hosts))


def unhurried(folder: Path) -> str:
    """The page's script, with more steps, which go slowly until a file `hurry` is there, and say how far they are."""
    script = named("train.py").replace("epochs=12", f"epochs={STEPS // 5}")
    paced = script.replace(
        "            time.sleep(0.05)  # instead of a larger model\n", UNHURRIED.format(folder=str(folder))
    )
    assert paced.count("hurry") == 1
    return paced


def step_of(folder: Path, host: int) -> int:
    """-1: none. It may be read while it is written."""
    path = folder / f"h{host}"
    text = path.read_text() if path.exists() else ""
    return int(text) if text else -1


@pytest.fixture
def fleet(hosts: Callable[[int], Hosts], tmp_path: Path) -> Iterator[Fleet]:
    made = hosts(CLOUD)
    if (why := systemd.missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"systemd: {why}")
    fleet = Fleet(made, tmp_path)
    with bucket(fleet):
        yield fleet


@contextmanager
def bucket(fleet: Fleet) -> Iterator[None]:
    make = "import s3fs; s3fs.S3FileSystem().mkdir('bucket')"
    environment = {**os.environ, **fleet.credentials}
    inside = fleet.hosts.inside(CLOUD)
    with subprocess.Popen(
        [*inside, sys.executable, "-c", S3_SERVER], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            made = [*inside, sys.executable, "-c", make]
            fleet.until(
                "a bucket",
                lambda: subprocess.run(made, env=environment, capture_output=True, check=False).returncode == 0,
            )
            yield
        finally:
            server.kill()


@contextmanager
def ec2(fleet: Fleet, host: int, says: Path) -> Iterator[None]:
    """On that host's network, at the address that it has on EC2."""
    fleet.hosts.on(host, "ip", "address", "add", f"{METADATA}/32", "dev", "lo")
    command = [*fleet.hosts.inside(host), sys.executable, "-m", "tests.kit.metadata", METADATA, "80", str(says)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield
        finally:
            server.kill()


def undisturbed(folder: Path, script: str) -> Mapping[str, Any]:
    """The report of the same training on one worker."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    run("elastic run --standalone --nproc-per-node=1 train.py runs/toy", folder, within_s=540)
    return report(run("elastic report runs/toy --json", folder))


def report(printed: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(printed)
    return found


@pytest.mark.nightly(sample=1, of="drills of hosts")
@pytest.mark.timeout(1200)
def test_a_fleet_from_nothing_to_its_end(fleet: Fleet, tmp_path: Path) -> None:
    """Three machines, of which EC2 takes one and another crashes; all are lost, and two come again and end it."""
    says, watch = tmp_path / "says.json", shown("elastic report").splitlines()
    ask_report, ask_saves = watch
    with ec2(fleet, 2, says):
        fleet.boot(1, 3)
        fleet.boot(2, ELASTIC_NOTICES="ec2")
        fleet.until_trained(1, 2, 3)
        says.write_text('{"interrupt": 100}')
        fleet.until("h2 to leave twice", lambda: fleet.said(2).count("this node has left (EC2 terminates") >= 2)
        fleet.crash(2)
    fleet.until_trained(1, 3)
    fleet.crash(3)
    fleet.until_trained(1)
    fleet.until("a save", lambda: re.search(r"^[2-9]0\b", fleet.asked(ask_saves), re.MULTILINE))
    fleet.crash(1)

    fleet.boot(1, 3)
    fleet.until("it goes on", lambda: "resuming after step" in fleet.said(1) + fleet.said(3))
    assert re.search(r"resuming after step [1-9]", fleet.said(1) + fleet.said(3))
    (fleet.trained / "hurry").touch()
    fleet.until("both to switch themselves off", lambda: fleet.are_off(1, 3))
    fleet.boot(2)
    fleet.until("one that comes too late to switch itself off", lambda: fleet.are_off(2))
    assert "is finished" in fleet.said(2)
    (journal,) = (block.text for block in blocks(PAGE, "text") if "a new run" in block.text)
    said = without_numbers(fleet.all_said())
    lines = [line for line in journal.splitlines() if not line.startswith("elastic: step")]  # as it happens
    assert [line for line in lines if without_numbers(line) not in said] == []

    assert ask_report.startswith("elastic report")
    became = report(fleet.asked(f"{ask_report} --json"))
    alone = undisturbed(tmp_path / "alone", (fleet.image / "train.py").read_text())
    assert (became["state"], became["steps"]) == ("finished", STEPS)
    assert became["weights_sha256"] == alone["weights_sha256"]


@pytest.mark.nightly(sample=1, of="drills of hosts")
@pytest.mark.parametrize(
    ("untold", "error"), [("RUN", "--rdzv-endpoint is empty"), (VARIABLE, f"{VARIABLE} has 0 characters")]
)
def test_a_machine_that_is_told_too_little_switches_itself_off(fleet: Fleet, untold: str, error: str) -> None:
    """As where the secret could not be read: it would cost money, and train by itself, or not at all."""
    fleet.boot(1, untold=untold)
    fleet.until("it to switch itself off", lambda: fleet.are_off(1))
    assert fleet.said(1).count(error) == 6, fleet.said(1)


@pytest.mark.nightly(sample=1, of="drills of hosts")
def test_an_array_of_jobs(hosts: Callable[[int], Hosts], tmp_path: Path) -> None:
    """A job that matters more takes both machines; the tasks leave, queue again, and go on."""
    lab = hosts(2)
    if (why := slurm.missing()) is not None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"slurm: {why}")
    (tmp_path / "train.py").write_text(unhurried(tmp_path))
    url = tmp_path / "run"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {"RUN": str(url), VARIABLE: generated_secret(), "TMPDIR": "/var/tmp", "PATH": path}
    scheduler = slurm.Slurm(lab, tmp_path / "slurm")
    placed = ["--array=1-2", "--cpus-per-task=2", f"--chdir={tmp_path}"]
    scheduler.submit_file(ARRAY, placed, arguments=["train.py", str(url)], env=env)
    _until(scheduler, "steps of both", lambda: len(workers_that_trained(url)) == 2)
    scheduler.submit("sleep 1", "--partition=urgent", "--nodes=2", "--cpus-per-task=2")
    _until(scheduler, "both to have left", lambda: scheduler.said().count("this node has left (") == 2)
    _until(scheduler, "both to be queued again", lambda: len(workers_that_trained(url)) == 4)
    (tmp_path / "hurry").touch()
    _until(scheduler, "an empty queue", lambda: not scheduler.states())

    became = report(run(f"elastic report {url} --json", tmp_path))
    alone = undisturbed(tmp_path / "alone", (tmp_path / "train.py").read_text())
    assert (became["state"], became["steps"], became["redone"]) == ("finished", STEPS, 0)
    assert became["weights_sha256"] == alone["weights_sha256"]


def workers_that_trained(url: Path) -> set[str]:
    events = read_events(str(url)) if (url / "events").exists() else []
    return {event["worker"] for event in events if event["event"] == "step_applied"}


def _until(scheduler: slurm.Slurm, what: str, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, (
            f"not within {WITHIN_S:g} s: {what}\n{scheduler.states()}\n{scheduler.said()}"
        )
        time.sleep(POLL_S)
