"""Nodes of one secret train together; those of another, or of none, are kept out and told; and nobody else sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.events.reading import read_events
from elastic_checkpoint.net.secret import VARIABLE, generated_secret
from tests.kit.agents import meet
from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=2, of="secrets")

WITHIN_S = 240.0
REFUSED_S = 60.0  # on a busy machine: 5 s, and the start
PROGRAM = Path(__file__).parents[1] / "kit" / "programs" / "small.py"
STAY = """
import os, time
print("here", os.getpid(), flush=True)
time.sleep(600)
"""

Run = Callable[..., Launch]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """run(secret, *flags): `elastic run` in an environment with that secret. program: instead of it"""
    monkeypatch.delenv(VARIABLE, raising=False)
    with contextlib.ExitStack() as stack:

        def start(secret: str | None, *flags: object, program: str = "elastic") -> Launch:
            env = {} if secret is None else {VARIABLE: secret}
            return stack.enter_context(Launch(program, ["run", *flags], env=env))

        yield start


def test_two_nodes_of_one_secret_train_and_survive_a_kill_and_show_it_nowhere(run: Run, tmp_path: Path) -> None:
    secret, url, hurry = generated_secret(), tmp_path / "run", tmp_path / "hurry"
    script = [PROGRAM, url, "--steps=300", f"--slow-until={hurry}"]
    nodes = [run(secret, *(meeting := meet("2:2")), f"--log-dir={tmp_path / 'logs'}", *script)]
    nodes.append(run(secret, *meeting, f"--log-dir={tmp_path / 'logs'}", *script))

    def together() -> dict[int, list[str]]:
        """The views of two workers in which a step was applied, by generation."""
        events = read_events(url)
        applied = {event["generation"] for event in events if event["event"] == "step_applied"}
        formed = [event for event in events if event["event"] == "view_formed" and len(event["workers"]) == 2]
        return {event["generation"]: event["workers"] for event in formed if event["generation"] in applied}

    nodes[0].wait_for(lambda: len(together()) > 0, "a step of both nodes", within_s=WITHIN_S)
    first = max(together())
    pids = [int(worker.rsplit("-", 2)[1]) for worker in together()[first]]
    victim = next(pid for pid in pids if pid in nodes[1].pids)
    assert seen_in_command_lines(secret, [pid for node in nodes for pid in node.pids]) == []
    os.kill(victim, signal.SIGKILL)
    nodes[0].wait_for(lambda: max(together()) > first, "a step with the replacement", within_s=WITHIN_S)
    hurry.touch()
    for node in nodes:
        assert secret not in node.succeed(within_s=WITHIN_S)
        assert VARIABLE not in node.output, "there is nothing to say of it"
    assert seen_in_files(secret, tmp_path) == []


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("theirs", ["another", None], ids=["another", "none"])
def test_a_node_of_another_secret_stays_out_and_both_sides_say_why(
    run: Run, theirs: str | None, tmp_path: Path
) -> None:
    """It cannot be told from here which of them is right, and a stranger must not end a run: one stays, one goes."""
    script = tmp_path / "script.py"
    script.write_text(STAY)
    meeting, ours = meet("1:2"), generated_secret()
    stays = run(ours, *meeting, script)
    stays.wait_for(lambda: "here " in stays.output, "its worker", within_s=WITHIN_S)
    began_s = time.monotonic()
    refused = run(theirs and generated_secret(), *meeting, script)
    assert refused.finish(within_s=WITHIN_S) == 1
    assert time.monotonic() - began_s < REFUSED_S
    why = "it has another ELASTIC_SECRET" if theirs else "it has an ELASTIC_SECRET, and this process has none"
    assert why in refused.output
    assert "let this one not in" in refused.output
    assert "give all nodes of the run the same ELASTIC_SECRET" in refused.output
    assert refused.output.count("several nodes and no ELASTIC_SECRET") == (theirs is None)
    assert "here " not in refused.output
    assert "is refused: it has " in stays.output
    assert stays.output.count("give all nodes of the run the same ELASTIC_SECRET") == 1, "of one host once"
    assert ours not in stays.output + refused.output
    stays.send(signal.SIGTERM)
    assert stays.finish(within_s=WITHIN_S) == 0


@pytest.mark.parametrize("theirs", ["elastic", "tests.kit.programs.held_up"])
def test_nodes_of_different_secrets_do_not_meet_and_who_waits_is_told(run: Run, tmp_path: Path, theirs: str) -> None:
    """Before there is a hub: in torch's rendezvous. Whoever of them is there first, stays. A refusal that came between
    two looks of one turn was handed on to nobody, and both waited for ten minutes."""
    script = tmp_path / "script.py"
    script.write_text(STAY)
    meeting = meet("2:2")
    waits = run(generated_secret(), *meeting, script)
    waits.wait_for(lambda: "waiting at" in waits.output, "the first node", within_s=WITHIN_S)
    refused = run(generated_secret(), *meeting, script, program=theirs)
    both = (waits, refused)
    deadline = time.monotonic() + REFUSED_S
    while all(node.process.poll() is None for node in both):
        assert time.monotonic() < deadline, [node.output for node in both]
        time.sleep(0.1)
    gone, stays = sorted(both, key=lambda node: node.process.poll() is None)
    assert gone.process.poll() == 1, gone.output
    assert "it has another ELASTIC_SECRET" in gone.output
    stays.wait_for(lambda: "was refused: it has another ELASTIC_SECRET" in stays.output, "a word", within_s=WITHIN_S)
    assert "here " not in gone.output + stays.output


def test_a_secret_that_could_be_guessed_starts_nothing(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STAY)
    launch = run("letmein", "--standalone", script)
    assert launch.finish(within_s=WITHIN_S) == 2
    assert "ELASTIC_SECRET has 7 characters, and needs at least 20" in launch.output
    assert "letmein" not in launch.output


def test_one_node_makes_a_secret_of_its_own_and_tells_its_workers_alone(
    run: Run, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    known, script = tmp_path_factory.mktemp("elsewhere") / "secret", tmp_path / "train.py"
    script.write_text(
        f"import os, pathlib, runpy\nwritten = pathlib.Path({str(known)!r} + '.new')\n"
        f"written.write_text(os.environ[{VARIABLE!r}])\nwritten.rename({str(known)!r})\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    launch = run(None, "--standalone", f"--log-dir={tmp_path / 'logs'}", script, tmp_path / "run", "--steps=6")
    launch.wait_for(known.exists, "a secret", within_s=WITHIN_S)
    secret = known.read_text()
    assert len(secret) >= 20
    assert seen_in_command_lines(secret, launch.pids) == []
    assert secret not in launch.succeed(within_s=WITHIN_S)
    assert VARIABLE not in launch.output
    assert seen_in_files(secret, tmp_path) == []


def seen_in_command_lines(secret: str, pids: list[int]) -> list[int]:
    """Of these and all other processes."""
    found = []
    for pid in {*pids, *(int(name) for name in os.listdir("/proc") if name.isdigit())}:
        with contextlib.suppress(OSError):
            if secret.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def seen_in_files(secret: str, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if secret.encode() in path.read_bytes()]
