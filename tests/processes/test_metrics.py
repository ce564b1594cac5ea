"""`elastic run --metrics-port`: a scrape during a run says what happens in it, and nothing is served unasked."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from elastic.events.account import BADPUT, PARTS
from tests.kit.agents import WITHIN_S, Run
from tests.kit.scraped import TRAINS, free_port, get, here, scrape

pytestmark = pytest.mark.nightly(sample=3, of="figures that are served")


def seconds(figures: dict[str, float], part: str) -> float:
    return figures[f'elastic_worker_seconds_total{{part="{part}"}}']


def lost(figures: dict[str, float], to: str) -> float:
    return figures[f'elastic_badput_seconds_total{{type="{to}"}}']


def test_a_scrape_during_a_run_with_a_kill_and_a_notice(run: Run, tmp_path: Path) -> None:
    """World size 2, 1, 2; one recovery; saves; and then the node leaves, and is not ready any more."""
    port, enough = free_port(), tmp_path / "enough"
    flags = ["--standalone", "--nproc-per-node=2", f"--metrics-port={port}"]
    launch = run(TRAINS, *flags, args=(str(tmp_path / "run"), str(enough)))
    launch.wait_for(lambda: get(port, "/healthz")[0] == 200, "a port that is served", within_s=WITHIN_S)
    assert get(port, "/readyz")[0] in (200, 503)  # it begins
    launch.wait_for(lambda: get(port, "/readyz")[0] == 200, "workers that train", within_s=WITHIN_S)
    launch.wait_for(lambda: scrape(port)["elastic_saves_total"] >= 2, "two saves", within_s=WITHIN_S)

    before = scrape(port)
    assert before["elastic_world_size"] == before["elastic_node_workers"] == 2
    assert before["elastic_coordinator"] == 1
    assert before["elastic_steps_planned"] == 100_000
    assert before["elastic_steps_applied"] > 0
    assert before["elastic_recovery_seconds_count"] == before["elastic_workers_lost_total"] == 0
    assert before["elastic_save_stall_seconds_total"] > 0
    assert before["elastic_save_bytes_total"] > 0
    assert time.time() - 600 < before["elastic_save_timestamp_seconds"] <= time.time() + 1
    assert seconds(before, "productive") > 0
    assert seconds(before, "starting") > 0
    assert seconds(before, "redone") == seconds(before, "detecting") == 0
    assert {name for name in before if "worker_seconds" in name} == {
        f'elastic_worker_seconds_total{{part="{part}"}}' for part in PARTS
    }

    assert {name for name in before if "badput_seconds" in name} == {
        f'elastic_badput_seconds_total{{type="{name}"}}' for name in BADPUT
    }
    assert lost(before, "program_startup") == seconds(before, "starting")
    assert lost(before, "training_prep") == seconds(before, "forming")

    victim = next(pid for local_rank, pid in here(launch) if local_rank == 1)
    sizes = [2.0]
    os.kill(victim, signal.SIGKILL)

    def back() -> bool:
        figures = scrape(port)
        if figures["elastic_world_size"] != sizes[-1]:
            sizes.append(figures["elastic_world_size"])
        return figures["elastic_world_size"] == 2 and figures["elastic_recovery_seconds_count"] >= 1

    launch.wait_for(back, "a recovery, and a replacement", within_s=WITHIN_S)
    # Workers tell once a second.
    launch.wait_for(lambda: seconds(scrape(port), "transferring") > 0, "its transfer", within_s=WITHIN_S)
    after = scrape(port)
    assert sizes in ([2, 1, 2], [2])  # the view of one may begin and end between two looks
    assert after["elastic_generation"] == before["elastic_generation"] + 2
    assert after["elastic_recovery_seconds_count"] == after["elastic_workers_lost_total"] == 1
    assert 0 < after["elastic_recovery_seconds_sum"] < WITHIN_S
    assert after['elastic_recovery_seconds_bucket{le="+Inf"}'] == 1
    assert seconds(after, "redone") + seconds(after, "detecting") > 0
    assert lost(after, "wasted_progress_from_disruption") == seconds(after, "redone")
    assert lost(after, "elastic_slice_down") > 0
    assert lost(after, "elastic_scale_up") >= seconds(after, "transferring") > 0
    assert after["elastic_steps_applied"] >= before["elastic_steps_applied"]
    assert get(port, "/nothing") == (404, "/metrics, /healthz, /readyz\n")

    launch.send(signal.SIGTERM)
    launch.wait_for(
        lambda: (
            get(port, "/readyz")[1] == "this node leaves\n" or get(port, "/metrics")[0] == 0  # it has left
        ),
        "a node that leaves",
        within_s=WITHIN_S,
    )
    launch.succeed(within_s=WITHIN_S)
    assert get(port, "/healthz")[0] == 0


def test_a_node_that_waits_for_others_is_alive_and_not_ready(run: Run, tmp_path: Path) -> None:
    port = free_port()
    meets = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path / 'run'}", f"--metrics-port={port}"]
    launch = run("", *meets)
    launch.wait_for(lambda: get(port, "/healthz")[0] == 200, "a port that is served", within_s=WITHIN_S)
    status, why = get(port, "/readyz")
    assert status == 503
    assert why == "no worker of this node has applied a step in its view\n"
    assert scrape(port)["elastic_world_size"] == 0

    with contextlib.ExitStack() as mute:  # who connects and says nothing keeps nobody out
        for _ in range(100):
            mute.enter_context(contextlib.suppress(OSError))
            mute.enter_context(socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S))
    launch.wait_for(lambda: get(port, "/healthz")[0] == 200, "a port that is served", within_s=WITHIN_S)
    launch.send(signal.SIGTERM)
    launch.succeed(within_s=WITHIN_S)


def elastic_run(*flags: str, isolated: bool = False) -> tuple[int, str]:
    """isolated: of a Python without prometheus_client"""
    hides = "import sys; sys.modules['prometheus_client'] = None; " if isolated else "import sys; "
    program = f"{hides}from elastic.launch.run_command import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--standalone", *flags, os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    return said.returncode, said.stderr


@pytest.mark.parametrize("port", ["0", "70000"])
def test_what_is_no_port_is_refused(port: str) -> None:
    status, said = elastic_run(f"--metrics-port={port}")
    assert status == 2
    assert f"found {port}" in said


def test_without_its_package_it_says_what_to_install() -> None:
    status, said = elastic_run("--metrics-port=24001", isolated=True)
    assert status == 2
    assert "pip install prometheus-client" in said


def test_a_port_that_is_taken_is_named_before_anything_runs(run: Run) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        port = taken.getsockname()[1]
        launch = run("print('ran')", "--standalone", f"--metrics-port={port}")
        assert launch.finish(within_s=WITHIN_S) == 2
    assert f"--metrics-port={port}: something listens there already" in launch.output
    assert "ran" not in launch.output.split()
