"""Nodes of one run have one elastic-exact: another one is refused by name before it has changed anything, and what
an earlier one has saved is gone on from, and said."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from elastic.errors import IdentityMismatch
from elastic.events.reading import read_events
from elastic.version import __version__
from tests.kit.launch import ROOT, Launch
from tests.kit.ranks import agent_store, as_worker_of_torchrun, returned, run_ranks
from tests.processes.test_identity import Trained

pytestmark = pytest.mark.nightly(sample=2, of="versions")

WITHIN_S = 120.0
OTHER = "9.9.9"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with another elastic-exact, in which a node is started."""
    package = tmp_path / "other" / "elastic"
    package.mkdir(parents=True)
    for part in (ROOT / "elastic").iterdir():
        if part.name not in ("version.py", "__pycache__"):
            (package / part.name).symlink_to(part)
    (package / "version.py").write_text(f'__version__ = "{OTHER}"\n')
    return package.parent


def node(folder: Path, nodes: str, endpoint: str, *args: str, of: Path = ROOT) -> Launch:
    meet = [f"--nnodes={nodes}", "--rdzv-backend=c10d", "--rdzv-id=job", f"--rdzv-endpoint={endpoint}"]
    launcher = ["run", "--no-status", *meet, "--rdzv-conf=join_timeout=60", "--wait-for-nodes=1"]
    script = ["-m", "tests.kit.programs.small", str(folder / "run"), "--steps=24", *args]
    return Launch("elastic", [*launcher, *script], env={"PYTHONPATH": f"{of}:{ROOT}"} if of != ROOT else {}, cwd=of)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("by", ["host", "url"])
def test_a_node_of_another_version_is_refused_by_name_and_the_run_goes_on(tmp_path: Path, other: Path, by: str) -> None:
    """It joined, and what became of it was left to which of the two had changed since."""
    endpoint = f"127.0.0.1:{free_port()}" if by == "host" else str(tmp_path / "run")
    go = tmp_path / "go"
    with node(tmp_path, "1:2", endpoint, f"--slow-until={go}") as first:
        first.wait_for(lambda: "step 1 loss" in first.output, "step", within_s=WITHIN_S)
        with node(tmp_path, "1:2", endpoint, of=other) as second:
            assert second.finish(within_s=WITHIN_S) == 1, second.output
            assert f"this node has elastic-exact {OTHER}, and run 'job' is of elastic-exact {__version__}" in (
                second.output
            )
            assert "nothing was started here" in second.output
        go.touch()
        first.succeed(within_s=WITHIN_S)
    views = [event for event in read_events(tmp_path / "run") if event["event"] == "view_formed"]
    assert [len(view["workers"]) for view in views] == [1]


def test_of_two_versions_that_meet_first_one_says_so_and_the_other_waits_for_its_like(
    tmp_path: Path, other: Path
) -> None:
    """They met in a round of torch's rendezvous, which knows nothing of versions."""
    endpoint = f"127.0.0.1:{free_port()}"
    with node(tmp_path, "2:2", endpoint) as one, node(tmp_path, "2:2", endpoint, of=other) as another:
        statuses = one.finish(within_s=WITHIN_S), another.finish(within_s=WITHIN_S)
        assert statuses == (1, 1)
        assert (one.output + another.output).count("nothing was started here, and the run goes on without") == 1
        assert "step 0 loss" not in one.output + another.output


def test_what_another_version_has_saved_is_gone_on_from_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Formats have versions of their own; which version wrote a state is on record."""
    with monkeypatch.context() as later:
        later.setattr("elastic.state.identity.__version__", OTHER)
        Trained(tmp_path / "run", steps=2)
    assert "was saved by" not in capfd.readouterr().err
    resumed = Trained(tmp_path / "run")
    said = f"checkpoint step 2 was saved by elastic-exact {OTHER}, and the run goes on with {__version__}"
    assert said in " ".join(capfd.readouterr().err.split())
    assert resumed.digest == Trained(tmp_path / "whole").digest


def of_another_version(rank: int, world_size: int, port: int, url: str) -> str:
    as_worker_of_torchrun(rank, world_size, port)
    with pytest.MonkeyPatch.context() as here:
        if rank == 1:
            here.setattr("elastic.state.identity.__version__", OTHER)
        try:
            Trained(url)
        except IdentityMismatch as refused:
            return str(refused)
    return "it trained"


def test_workers_of_two_versions_under_torchrun_do_not_train_together(tmp_path: Path) -> None:
    with agent_store() as port:
        texts = returned(run_ranks(of_another_version, 2, port, str(tmp_path / "run")))
    for text in texts:
        assert f'elastic: "{OTHER}" here, "{__version__}" there' in text
        assert "install one version of elastic-exact on all nodes" in text
        assert "accept" not in text
    assert not (tmp_path / "run" / "commits").exists()
