"""Who reads the environment: what a launcher says reaches training by one file, so that there is one place to ask."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_NAMES = {"environ", "getenv", "putenv", "unsetenv"}
LOOKS = {
    "elastic/membership/environment.py": "what a launcher tells training",
    "elastic/launch/arguments.py": "torchrun's own defaults for its flags",
    "elastic/launch/run_command.py": "what the workers get",
    "elastic/launch/string_hashes.py": "whether this process begins anew",
    "elastic/launch/fork_server/importing.py": "which variables an import reads",
    "elastic/launch/fork_server/process.py": "what the workers get",
    "elastic/launch/processes/worker.py": "the agent and the channel to it",
    "elastic/launch/processes/quiet_torch.py": "what torch is to print, as the user has said",
    "elastic/integrations/accelerate.py": "hides the launcher from a library",
    "elastic/group/nccl.py": "sets what NCCL reads",
    "elastic/plan/measure.py": "sets what gloo reads, for processes of its own",
    "elastic/drill/environment.py": "what a drill tells the processes of its run",
    "elastic/reproduce/launch.py": "what a run that is made again gets",
    "elastic/reproduce/observer.py": "where it is made",
    "elastic/drill/hosts/hosts.py": "what the processes of a drill get",
    "elastic/drill/hosts/machine.py": "the same",
    "elastic/drill/inject/node_starter.py": "the same",
    "checkpoint/elastic_checkpoint/net/secret.py": "the run's secret, which is nowhere else",
    "checkpoint/elastic_checkpoint/save/writer/process.py": "what the process that writes gets",
}


def touches(source: str) -> Iterator[int]:
    """Lines that touch the environment."""
    if not any(name in source for name in _NAMES):
        return
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _NAMES:
                yield node.lineno
            case ast.ImportFrom(module="os", names=names) if _NAMES & {alias.name for alias in names}:
                yield node.lineno


def test_only_these_files_touch_the_environment() -> None:
    """The head of membership/environment.py says so, and who asks where a variable is read looks there alone."""
    found = {
        path.relative_to(ROOT).as_posix()
        for room in ("elastic", "checkpoint")
        for path in (ROOT / room).rglob("*.py")
        if any(touches(path.read_text()))
    }
    assert found == set(LOOKS)


@pytest.mark.parametrize("source", ["os.environ['A']", "x = os.getenv('A')", "from os import environ as e"])
def test_each_way_to_touch_it_is_found(source: str) -> None:
    assert list(touches(source)) == [1]


def test_training_does_not_know_the_words_of_a_drill() -> None:
    """A drill hurts a run from outside: were training to know it, what is tested would not be what runs."""
    knows = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "elastic").rglob("*.py")
        if "ELASTIC_DRILL" in path.read_text() and (ROOT / "elastic/drill") not in path.parents
    ]
    assert knows == []
