"""What a script's modules see while they are imported is the same in `python train.py` and in workers of `elastic run`.

Workers are forked from one process that has imported for all of them. Settings are read at import by many: from the
command line, the environment, `__main__`, or what the script did before. Other settings are other weights.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.kit.forkserver import FRESH
from tests.kit.launch import ROOT, Launch

pytestmark = pytest.mark.nightly(sample=1, of="what imports see")

WITHIN_S = 240.0

SEEN = """
    import __main__, os, random, sys, warnings
    import numpy, torch
    random.seed(3), numpy.random.seed(3), torch.manual_seed(3)
    spec, loader = __main__.__spec__, __main__.__loader__
    SEEN = [
        sys.argv, sys.path[:2], len(sys.path), os.getcwd(), __main__.__name__, __main__.__file__, __main__.__package__,
        spec and spec.name, type(loader).__name__, getattr(__main__, "LR", None), os.environ.get("SET_BEFORE"),
        warnings.filters[0], sys.flags,
    ]
    PID = os.getpid()
"""

SCRIPT = """
    import os
    import sys
    LR = 0.1
    os.environ["SET_BEFORE"] = "yes"
    sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "more"))
    import seen
    import plain
    plain.LR = 0.04
    import doubled
    import random, numpy, torch
    drawn = random.random(), numpy.random.rand(), torch.rand(1).item()
    sys.stdout.write(f"seen {seen.SEEN} {len(sys.path)} {doubled.LR} {drawn}\\n")
    sys.stdout.write(f"ahead {seen.PID != os.getpid()}\\n")
"""


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(source))


@pytest.mark.parametrize("module", [False, True], ids=["script", "module"])
def test_modules_see_the_script_s_command_line_and_what_it_did_before(tmp_path: Path, module: bool) -> None:
    package, more = tmp_path / "package", tmp_path / "package" / "more"
    more.mkdir(parents=True)
    write(package, __init__="", train=SCRIPT)
    write(tmp_path if module else more, seen=SEEN, plain="LR = 0.2", doubled="import plain; LR = 2 * plain.LR")
    what = ["-m", "package.train"] if module else [str(package / "train.py")]
    command = [*what, "--lr", "0.07", "-m", "x"]
    env = {"PYTHONPATH": str(tmp_path), FRESH: "1", "PYTHONHASHSEED": "0"}  # which a run sets, and sys.flags shows

    environ = {**os.environ, **env}
    alone = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    (seen,) = re.findall("^seen .*", alone.stdout, re.M)
    with Launch("elastic", ["run", "--nproc-per-node=2", *command], env=env) as launch:
        output = launch.succeed(within_s=WITHIN_S)
    assert "0.08 (" in seen
    assert re.findall("^seen .*", output, re.M) == [seen, seen]
    assert output.count("ahead True") == 2


@pytest.mark.parametrize(
    "first",
    [
        "os.environ['OMP_NUM_THREADS'] = '2'",
        "os.environ['OMP_NUM_THREADS'] = str(abs(-2))",
        "sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + '/own')",
    ],
    ids=["variable", "computed", "folder"],
)
def test_torch_is_as_a_script_has_it_that_does_something_before_its_import(tmp_path: Path, first: str) -> None:
    """On one node the agent has loaded torch already, and forks the process that imports for the workers."""
    (tmp_path / "own").mkdir()
    write(tmp_path / "own", tqdm="OWN = tqdm = True")  # torch loads the one that is installed
    write(
        tmp_path,
        train=f"""
            import os, sys
            {first}
            import torch
            import tqdm
            sys.stdout.write(f"seen {{torch.get_num_threads()}} {{hasattr(tqdm, 'OWN')}}\\n")
        """,
    )
    environ = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, str(tmp_path / "train.py")]
    alone = subprocess.run(command, env={**environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=True)
    with Launch("elastic", ["run", "--nproc-per-node=1", tmp_path / "train.py"], env={FRESH: "1"}) as launch:
        output = launch.succeed(within_s=WITHIN_S)
    assert alone.stdout in ("seen 2 False\n", "seen 1 True\n")
    assert alone.stdout in output


@pytest.mark.parametrize("start", [[str(Path(sys.executable).parent / "elastic")], [sys.executable, "-m", "elastic"]])
def test_torch_is_loaded_once_however_the_command_is_started(tmp_path: Path, start: list[str]) -> None:
    """A worker that is a fork of its agent has the agent's command line; a fresh interpreter has one of its own. Of the
    installed command, whose own file is `__main__`, each worker's process loaded torch anew."""
    write(
        tmp_path,
        train="""
            import pathlib
            import sys
            import torch
            sys.stdout.write(pathlib.Path("/proc/self/cmdline").read_text().replace("\\0", " ") + "\\n")
        """,
    )
    command = [*start, "run", "--nproc-per-node=1", str(tmp_path / "train.py")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=WITHIN_S)
    assert " run --nproc-per-node=1 " in ended.stdout


def test_what_reads_a_rank_variable_is_imported_afresh_by_each_worker(tmp_path: Path) -> None:
    """What the script imports before it stays shared: only the rest is waited for by others."""
    write(
        tmp_path,
        early="import os\nPID = os.getpid()\n",
        settings="import os\nRANK = int(os.environ.get('LOCAL_RANK', '-1'))\nPID = os.getpid()\n",
        train="""
            import sys
            import early
            import settings
            import os
            me = os.getpid()
            sys.stdout.write(f"rank {settings.RANK} {settings.PID == me} {early.PID == me}\\n")
        """,
    )
    with Launch("elastic", ["run", "--nproc-per-node=2", tmp_path / "train.py"], env={FRESH: "1"}) as launch:
        output = launch.succeed(within_s=WITHIN_S)
    assert sorted(re.findall("^rank .*", output, re.M)) == ["rank 0 True False", "rank 1 True False"]
    assert output.count("reads LOCAL_RANK while it is imported") == 1
    assert f"settings ({tmp_path / 'settings.py'}, line 2)" in output
    assert "what train.py does from line 4 on, each worker does afresh" in output
