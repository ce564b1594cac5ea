"""A host hears its own cloud at the address that clouds have, and one without a cloud hears nothing, at no cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic.drill.end import End
from elastic.drill.hosts.network import host_of
from tests.kit.host_runs import ROOT, WITHIN_S, HostRun

STEPS = 240
ADDRESS = "169.254.169.254"


@contextmanager
def metadata(run: HostRun, host: int, says: Path) -> Iterator[None]:
    """On that host's network; of its machine it sees nothing."""
    run.hosts.on(host, "ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
    command = [*run.hosts.inside(host), sys.executable, "-m", "tests.kit.metadata", ADDRESS, "80", str(says)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield
        finally:
            server.kill()


@pytest.mark.nightly
def test_a_host_that_its_metadata_service_names_leaves_and_the_other_goes_on(
    host_run: Callable[..., HostRun], elastic_undisturbed: Callable[..., End], tmp_path: Path
) -> None:
    run = host_run(2, nodes="1:2", steps=STEPS, options=["--notices=azure,gcp,ec2"])
    says = tmp_path / "says.json"
    with metadata(run, 2, says):
        run.join(1, 2)
        run.wait_for_steps(1, 2)
        says.write_text('{"interrupt": 100}')
        assert run.wait_for_end(2, within_s=WITHIN_S).status == 0
    assert "EC2 terminates this Spot Instance, in " in run.output(2)
    assert run.output(1).count("notices from ec2 are not heard") == 1, "nobody is there, and that is said once"
    end = run.finish(reference=elastic_undisturbed(steps=STEPS, seed=7).events, lost=0)

    run.assert_kept(end, ended=[1, 2])
    assert [host_of(event["worker"]) for event in end.events if event["event"] == "left"] == [2]
    assert end.verdict.redone == 0
