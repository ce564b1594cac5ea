"""A script that asks in a run for what torchrun gives is told what the run has in its place."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.kit.launch import Launch

pytestmark = pytest.mark.nightly(sample=2, of="what torchrun gives")

SCRIPT = """
    import os, sys
    import torch
    import torch.distributed as dist

    import elastic

    if "alone" not in sys.argv:
        model = torch.nn.Linear(2, 1)
        elastic.Run(
            sys.argv[2],
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            dataset=torch.utils.data.TensorDataset(torch.ones(8, 2)),
            batch_size=4,
            virtual_workers=2,
            epochs=1,
        )

    def shown(kind, error, trace):
        sys.stderr.write(f"its own hook: {error!r}\\n")

    match sys.argv[1]:
        case "a variable":
            int(os.environ["WORLD_SIZE"])
        case "a variable, with a hook of its own":
            sys.excepthook = shown
            int(os.environ["WORLD_SIZE"])
        case "a group":
            dist.init_process_group("gloo")
        case "a rank":
            dist.get_rank()
        case "a wrapper":
            torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        case "another variable":
            os.environ["DATA"]
"""
A_VARIABLE = "elastic: WORLD_SIZE is not set: it changes while a worker lives\n  next   run.rank, run.world_size"
A_GROUP = "elastic: there is no default group of torch.distributed: it would end with the first worker that is lost\n"
ASKED = {
    "a variable": A_VARIABLE,
    "a variable, with a hook of its own": A_VARIABLE,
    "a group": A_GROUP,
    "a rank": A_GROUP,
    "a wrapper": A_GROUP,
    "another variable": "",
}


@pytest.mark.parametrize(("what", "said"), ASKED.items(), ids=ASKED)
def test_what_torchrun_gives_and_a_run_does_not_is_told_once(tmp_path: Path, what: str, said: str) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = ["run", "--standalone", "--no-status", "--max-restarts=0", "--nproc-per-node=2"]
    with Launch("elastic", [*command, tmp_path / "script.py", what, tmp_path / "run"]) as launch:
        assert launch.finish(within_s=240) == 1, launch.output
        output = launch.output
    if "hook" in what:  # each worker speaks for itself, until the first failure has ended both
        assert "its own hook: KeyError('WORLD_SIZE')" in output, output
        assert 1 <= output.count(said) <= 2, output
    elif said:
        assert output.count(said) == 1, output
    else:
        assert "\nelastic: " not in output
        assert "  next   " not in output
    assert "the run failed: the same failure once within 3600 s" in output, output


def test_a_worker_in_no_run_is_told_what_torch_says_alone(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    with Launch("elastic", ["run", "--standalone", "--no-status", tmp_path / "script.py", "a rank", "alone"]) as launch:
        assert launch.finish(within_s=240) == 1, launch.output
        output = launch.output
    assert "Default process group has not been initialized" in output
    assert "\nelastic: " not in output
