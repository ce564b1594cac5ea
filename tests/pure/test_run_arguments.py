"""`elastic run` takes torchrun's flags; none of them is silently ignored."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
import torch

from elastic.errors import ConfigError
from elastic.launch.arguments import parse
from elastic.launch.workers.logs import Logs


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_one_node_needs_no_rendezvous(script: str) -> None:
    found = parse(["--nproc-per-node=4", script, "--lr", "0.1", "-m"])
    assert (found.workers, found.nodes_min, found.nodes_max) == (4, 1, 1)
    assert found.script.target == script
    assert found.script.args == ("--lr", "0.1", "-m")
    assert (found.run_id, found.restarts_max, found.hang_s, found.fresh) == (None, 3, 30.0, False)
    assert signal.SIGTERM in found.leave_on


@pytest.mark.parametrize("flag", ["--log", "--n", "--run", "--sig", "--standalone", "--hang-limit"])
def test_behind_the_script_a_flag_is_the_scripts(script: str, flag: str) -> None:
    """What begins as several of ours do was refused as ambiguous, as by torchrun."""
    assert parse([script, flag, "3"]).script.args == (flag, "3")


def test_before_it_torchruns_abbreviations_are_taken(script: str) -> None:
    found = parse(["--nproc-per", "2", "--stand", "--max-restart=7", "-m", "train", "--log", "-m"])
    assert (found.workers, found.restarts_max, found.script.args) == (2, 7, ("--log", "-m"))
    assert (found.script.target, found.script.module) == ("train", True)
    with pytest.raises(SystemExit):
        parse(["--n", "2", script])


def test_several_nodes_are_torchruns(script: str) -> None:
    found = parse(
        [
            "--nnodes=2:4",
            "--nproc-per-node=8",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=host1:29400",
            "--rdzv-id=digits",
            "--rdzv-conf=join_timeout=60,last_call_timeout=2",
            "--max-restarts=7",
            "--local-addr=10.0.0.3",
            "--hang-limit=5",
            script,
        ]
    )
    assert (found.nodes_min, found.nodes_max, found.restarts_max) == (2, 4, 7)
    assert (found.rdzv_endpoint, found.run_id, found.local_addr) == ("host1:29400", "digits", "10.0.0.3")
    assert found.rdzv["join_timeout"] == "60"
    assert found.hang_s == 5.0


@pytest.mark.parametrize("endpoint", ["", " ", ","])
def test_a_place_to_meet_that_is_no_text_is_refused(script: str, endpoint: str) -> None:
    """As of a variable that is not set: each machine of a fleet would have trained by itself."""
    several = ["--nnodes=1:4", "--rdzv-backend=c10d"]
    with pytest.raises(ConfigError, match="--rdzv-endpoint is empty"):
        parse([*several, f"--rdzv-endpoint={endpoint}", script])
    assert parse([*several, script]).rdzv_endpoint == "", "left out, it is a port of this machine, as torchrun's"
    assert parse(["--rdzv-endpoint=", script]).nodes_max == 1


def test_standalone_ignores_the_rendezvous_as_torchrun_does(script: str) -> None:
    found = parse(["--standalone", "--rdzv-id=x", "--rdzv-endpoint=nowhere:1", script])
    assert (found.nodes_max, found.run_id) == (1, None)


def test_who_says_that_a_node_is_taken_is_the_flags_or_the_environments_word(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTIC_NOTICES", raising=False)
    found = parse([script])
    assert (found.notices, found.on_notice, found.leave_status, found.grace_s) == ("auto", None, 0, None)
    monkeypatch.setenv("ELASTIC_NOTICES", "gcp")
    monkeypatch.setenv("ELASTIC_GRACE_S", "60")
    assert (parse([script]).notices, parse([script]).grace_s) == ("gcp", 60.0)
    found = parse(["--notices=ec2,file:/leave", "--leave-status=75", "--on-notice=page me", script])
    assert (found.notices, found.leave_status, found.on_notice) == ("ec2,file:/leave", 75, "page me")


def test_what_may_differ_is_said_by_the_flag_and_the_environment_together(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody edits a script for a machine of another kind."""
    monkeypatch.delenv("ELASTIC_ACCEPT", raising=False)
    assert parse([script]).accept == ()
    assert parse(["--accept=processor,libraries", "--accept", "torch", script]).accept == (
        *("processor", "libraries", "torch"),
    )
    monkeypatch.setenv("ELASTIC_ACCEPT", "processor, threads")
    assert parse(["--accept=torch,processor", script]).accept == ("processor", "threads", "torch")


def test_how_long_a_run_waits_for_nodes_may_be_for_ever(script: str) -> None:
    assert parse([script]).wait_s == 600
    assert parse(["--wait-for-nodes=inf", script]).wait_s == math.inf
    with pytest.raises(ConfigError, match="--wait-for-nodes"):
        parse(["--wait-for-nodes=nan", script])


@pytest.mark.parametrize(
    "flags",
    [
        ["--no-python"],
        ["--node-rank=1"],
        ["--master-addr=host1"],
        ["--master-port=29500"],
        ["--event-log-handler=console"],
        ["--logs-specs=mine"],
        ["--numa-binding=node"],
        ["--virtual-local-rank"],
        ["--duplicate-stdout-filters=loss"],
        ["--nnodes=2"],
        ["--nnodes=1:2", "--rdzv-backend=etcd"],
        ["--standalone", "--nnodes=2"],
        ["--hang-limit=0"],
        ["--notices=aws"],
        ["--leave-status=256"],
        ["--nproc-per-node=0"],
        ["--max-restarts=-1"],
        ["--nnodes=0"],
        ["--signals-to-handle=SIGNONE"],
        ["--signals-to-handle=SIGTERM,SIGKILL"],
        ["--signals-to-handle=SIGSTOP"],
    ],
    ids=" ".join,
)
def test_what_has_no_meaning_here_is_refused(flags: list[str], script: str) -> None:
    """Ignoring a flag that somebody relies on is worse than an error."""
    with pytest.raises(ConfigError):
        parse([*flags, script])


@pytest.mark.parametrize("nodes", ["0", "-1", "2:1", "x", ":", "1:", "1:2:3", "1.5", "nan", "\u0663"])
def test_a_number_of_nodes_that_is_none_is_refused_by_its_flag(nodes: str, script: str) -> None:
    """Where torch's own words were "invalid literal for int() with base 10"."""
    with pytest.raises(ConfigError, match=f"--nnodes={nodes}; expected a number of nodes, or MIN:MAX"):
        parse([f"--nnodes={nodes}", script])


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "-1", "0", "1e300"])
def test_a_timeout_that_is_none_is_refused_by_its_name(value: str, script: str) -> None:
    """It ended in a traceback once the nodes were to meet."""
    meet = ["--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=host1"]
    with pytest.raises(ConfigError, match=f"--rdzv-conf join_timeout={value}; expected seconds, above 0"):
        parse([*meet, f"--rdzv-conf=join_timeout={value}", script])


def test_a_folder_for_logs_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    """It was a traceback."""
    (tmp_path / "file").touch()
    rules = parse([f"--log-dir={tmp_path / 'file' / 'logs'}", "-r", "3", str(tmp_path / "file")]).logs
    with pytest.raises(ConfigError, match=r"--log-dir (.|\n)*no worker was started"):
        Logs(rules, say=print).open(0, 0)


def test_more_workers_than_an_agent_can_speak_of_are_refused(script: str) -> None:
    """It ended in a traceback, once it had begun."""
    with pytest.raises(ConfigError, match="at least 1 and at most 4096, found 999999"):
        parse(["--nproc-per-node=999999", script])


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no script .*nothing\.py"):
        parse([str(tmp_path / "nothing.py")])


def test_torchruns_environment_variables_set_flags_too(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "9")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    found = parse([script])
    assert (found.restarts_max, found.workers) == (9, 2)


TASK = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}  # fmt: skip
TRAIN_JOB = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "job-node-0-0.job",
             "PET_MASTER_PORT": "29400"}  # fmt: skip
URL = {"ELASTIC_URL": "s3://bucket/run"}


@pytest.mark.parametrize(
    ("env", "flags", "nodes", "endpoint", "passed_over"),
    [
        (TASK | URL, [], (1, 3), "s3://bucket/run", 0),
        (TASK | URL, ["--nnodes=2:9"], (2, 9), "s3://bucket/run", 0),
        (TASK | URL, ["--nnodes=1:1"], (1, 1), "", 0),
        (TASK | URL, ["--standalone"], (1, 1), "", 0),
        (TASK, ["--rdzv-backend=c10d", "--rdzv-endpoint=host1:29500"], (1, 3), "host1:29500", 0),
        (TASK | URL | {"PET_NNODES": "1:8"}, [], (1, 8), "s3://bucket/run", 0),
        (TRAIN_JOB, [], (2, 2), "job-node-0-0.job:29400", 1),
        (TRAIN_JOB, ["--nnodes=1:2"], (1, 2), "job-node-0-0.job:29400", 1),
        (TRAIN_JOB | URL, ["--nnodes=1:2"], (1, 2), "s3://bucket/run", 3),
        (TRAIN_JOB | {"PET_NNODES": "1"}, [], (1, 1), "", 3),
        (URL, [], (1, 1), "", 0),
        (URL, ["--nnodes=1:2"], (1, 2), "s3://bucket/run", 0),
    ],
)
def test_what_the_command_line_leaves_open_is_found_where_a_launcher_or_an_operator_says_it(
    script: str,
    env: dict[str, str],
    flags: list[str],
    nodes: tuple[int, int],
    endpoint: str,
    passed_over: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flag wins over PET_*, and that over what is detected; what means nothing here is passed over, by name."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    found = parse([*flags, script])
    assert (found.nodes_min, found.nodes_max) == nodes
    assert (found.rdzv_endpoint if found.rdzv else "") == endpoint
    assert len(found.passed_over) == passed_over
    assert {*found.passed_over} <= {f"{name}={value}" for name, value in env.items()}


def test_agents_that_a_launcher_has_started_do_not_train_each_by_itself(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"Open MPI has started 3 of these.*\n.*\n.*ELASTIC_URL=URL"):
        parse([script])


def test_a_replica_is_so_many_workers_of_one_node(script: str) -> None:
    assert parse([script]).replica_size == 1
    assert parse(["--nproc-per-node=8", "--replica-size=4", script]).replica_size == 4
    for size in (0, -2, 3, 16):
        with pytest.raises(ConfigError, match=rf"--replica-size={size} does not divide --nproc-per-node=8"):
            parse(["--nproc-per-node=8", f"--replica-size={size}", script])


def test_no_gpu_is_asked_for(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's LaunchConfig asks whether there is one: on a machine with GPUs no fork of the agent could use them."""
    asked: list[None] = []
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: asked.append(None), raising=False)
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    before = torch.cuda.is_available
    parse([script])
    assert asked == []
    assert torch.cuda.is_available is before


@pytest.mark.parametrize("given", ["--rdzv-endpoint", "ELASTIC_URL"])
@pytest.mark.parametrize("nodes", ["--standalone", "--nnodes=1", "--nnodes=1:2"])
def test_a_url_that_nothing_opens_is_refused_by_the_name_of_what_gave_it(
    script: str, given: str, nodes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one node it was passed over without a word."""
    if given == "ELASTIC_URL":
        monkeypatch.setenv("ELASTIC_URL", "foo://x")
    flags = ["--rdzv-endpoint=foo://x"] if given == "--rdzv-endpoint" else ["--rdzv-endpoint=host1"]
    with pytest.raises(ConfigError, match=rf"{given}=foo://x: nothing here opens foo://"):
        parse([nodes, "--rdzv-backend=c10d", *flags, script])
    monkeypatch.setenv("ELASTIC_URL", "s3://bucket/run")
    parse([nodes, "--rdzv-backend=c10d", "--rdzv-endpoint=host1", script])


@pytest.mark.parametrize("nodes", ["--standalone", "--nnodes=1", "--nnodes=1:2"])
def test_two_urls_for_one_run_are_refused_by_the_names_of_both(
    script: str, nodes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them lost without a word: nodes met by the one, and `Trainer(strategy="elastic")` trained at the other."""
    meet = [nodes, "--rdzv-backend=c10d"]
    monkeypatch.setenv("ELASTIC_URL", "s3://bucket/other")
    with pytest.raises(
        ConfigError, match=r"--rdzv-endpoint=s3://bucket/run and ELASTIC_URL=s3://bucket/other (.|\n)*next"
    ):
        parse([*meet, "--rdzv-endpoint=host1,s3://bucket/run", script])
    monkeypatch.setenv("ELASTIC_URL", "s3://key:hidden@bucket/other")
    with pytest.raises(ConfigError) as refused:
        parse([*meet, "--rdzv-endpoint=/runs/lm7", script])
    assert "hidden" not in str(refused.value)

    alike = {"s3://bucket/run": "s3://bucket/run/", str(tmp_path): f"file://{tmp_path}/", "runs": "./runs/"}
    alike["~/runs"] = str(Path("~/runs").expanduser())
    alike[alike["~/runs"]] = "~/runs"  # no shell expands a tilde behind the `=` of a flag
    for variable, endpoint in alike.items():
        monkeypatch.setenv("ELASTIC_URL", variable)
        parse([*meet, f"--rdzv-endpoint={endpoint}", script])
