"""What the bits of a result depend on is recorded; a difference on resume or between workers is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import elastic
import elastic_checkpoint
from elastic.errors import ConfigError, IdentityMismatch
from elastic.events.reading import read_events
from elastic.state.identity import NEVER_ACCEPTED, Identity, check, identity
from tests.kit.arguments import grouped
from tests.kit.launch import Launch
from tests.kit.ranks import as_worker_of_torchrun, returned, run_ranks

pytestmark = pytest.mark.nightly(sample=6, of="what belongs to a run's identity")


class Trained:
    """A small run to its end. `changes` are Run's arguments, or of the script around it: lr, width, kind, length."""

    def __init__(self, url: Path | str, **changes: Any) -> None:
        elastic.seed(1)
        self.model = nn.Sequential(nn.Linear(4, changes.pop("width", 6)), nn.BatchNorm1d(6), nn.Linear(6, 2))
        kind = changes.pop("kind", torch.optim.SGD)
        optimizer = kind(self.model.parameters(), lr=changes.pop("lr", 0.1))
        self.model[0].requires_grad_(changes.pop("trained", True))
        if changes.pop("scheduled", False):
            changes["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        length = changes.pop("length", 48)
        chosen = torch.randperm(64, generator=torch.Generator().manual_seed(0))[:length]
        data = TensorDataset(torch.randn(64, 4)[chosen], (torch.arange(64) % 2)[chosen])
        given: dict[str, Any] = {"dataset": data, "batch_size": 12, "virtual_workers": 3, "epochs": 1}
        with elastic.Run(url, model=self.model, optimizer=optimizer, **grouped(given | changes)) as run:
            for step in run:
                for x, y in step:
                    step.backward(F.cross_entropy(self.model(x), y, reduction="sum"), count=len(y))
        self.steps = run.step_index

    @property
    def digest(self) -> str:
        return elastic_checkpoint.digest(self.model)


DIFFERENCES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "batch_size": {"batch_size": 16},
    "virtual_workers": {"virtual_workers": 4},
    "micro_batch_size": {"micro_batch_size": 2},
    "last_batch": {"last_batch": "drop"},
    "dataset_length": {"length": 60},
    "order": {"order": elastic.orders.Sequential()},
    "clip_grad_norm": {"clip_grad_norm": 1.0},
    "buffers": {"buffers": {"1.running_mean": "keep"}},
    "mode": {"mode": "fast"},
    "threads": {"threads": 2},
    "trained": {"trained": False},
    "optimizer": {"lr": 0.2},
}


@pytest.mark.parametrize("field", DIFFERENCES)
def test_a_difference_is_refused_by_name_and_accepted_by_name(tmp_path: Path, field: str) -> None:
    """Refused, it has written nothing: the run still goes on as it was. Accepted, it goes on, and says so.

    What decides which examples a step reads is not to be had: some would never be applied.
    """
    first = Trained(tmp_path / "run", steps=2)
    commits = sorted(path.name for path in (tmp_path / "run" / "commits").iterdir())

    with pytest.raises(IdentityMismatch) as refused:
        Trained(tmp_path / "run", **DIFFERENCES[field])
    assert refused.value.fields.keys() == {field}
    assert (f"checks=Checks(accept=['{field}'])" in str(refused.value)) == (field not in NEVER_ACCEPTED)
    assert "nothing was loaded or written" in str(refused.value)
    assert sorted(path.name for path in (tmp_path / "run" / "commits").iterdir()) == commits
    assert Trained(tmp_path / "run", steps=2).digest == first.digest

    if field in NEVER_ACCEPTED:
        with pytest.raises(ConfigError, match=f"not {field}; they are"):
            Trained(tmp_path / "run", accept=[field], **DIFFERENCES[field])
        return
    assert Trained(tmp_path / "run", accept=[field], **DIFFERENCES[field]).steps >= 3
    accepted = [event["accepted"] for event in read_events(tmp_path / "run") if event["event"] == "loaded"]
    assert accepted[-1] == [field]


def test_a_difference_is_accepted_by_the_environment_as_by_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Trained(tmp_path / "run", steps=2)
    with pytest.raises(IdentityMismatch, match="`elastic run --accept=mode,threads`, or ELASTIC_ACCEPT=mode,threads "):
        Trained(tmp_path / "run", threads=2, mode="fast")
    monkeypatch.setenv("ELASTIC_ACCEPT", "threads, mode")
    assert Trained(tmp_path / "run", threads=2, mode="fast").steps >= 3
    accepted = [event["accepted"] for event in read_events(tmp_path / "run") if event["event"] == "loaded"]
    assert accepted[-1] == ["mode", "threads"]
    monkeypatch.setenv("ELASTIC_ACCEPT", "processors")
    with pytest.raises(ConfigError, match="ELASTIC_ACCEPT take a list of field names, not processors; they are"):
        Trained(tmp_path / "run")


def test_the_process_s_own_settings_belong_to_it(tmp_path: Path) -> None:
    Trained(tmp_path / "run", steps=2)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(IdentityMismatch, match="deterministic_algorithms: true here, false there"):
            Trained(tmp_path / "run")
    finally:
        torch.use_deterministic_algorithms(False)
    assert Trained(tmp_path / "run").steps == 4


def test_another_processor_of_the_same_capability_is_refused_by_name() -> None:
    """oneDNN and MKL choose code by the maker, each extension and the caches: "AVX512" is one word for all of them."""
    here = of_here(portable=False)
    there = {**here, "processor": {**here["processor"], "maker": "another", "extensions": ["amx_bf16"]}}
    with pytest.raises(IdentityMismatch, match=r"processor.extensions: .*\n *processor.maker: .*\"another\" there"):
        check(here, there, accept=(), where="a checkpoint")
    assert check(here, there, accept=["processor"], where="a checkpoint").keys() == {"processor"}

    pinned = of_here(portable=True)["processor"]
    assert pinned.keys() == here["processor"].keys() - {"model", "extensions"}
    assert {"maker", "l2_bytes"} < pinned.keys()


def test_an_order_of_another_version_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that computes another order must not go on with half an epoch of this one's."""
    with monkeypatch.context() as later:
        later.setattr("elastic.data.order.VERSION", 2)
        Trained(tmp_path / "run", steps=2)
    with pytest.raises(IdentityMismatch, match=r"order\.version: 1 here, 2 there"):
        Trained(tmp_path / "run")
    with pytest.raises(IdentityMismatch, match=r"order: .*version.* here, null there"):
        check({"order": {"kind": "shuffled", "version": 1}}, {}, accept=["order"], where="a checkpoint")
    equal, rising = ([1.0] * 48, [*range(48)])
    Trained(tmp_path / "weighted", steps=2, order=elastic.orders.Weighted(equal, replacement=True))
    with pytest.raises(IdentityMismatch, match=r"order\.weights: \"[0-9a-f]{16}\" here, \"[0-9a-f]{16}\" there"):
        Trained(tmp_path / "weighted", order=elastic.orders.Weighted(rising, replacement=True))


def test_an_identity_of_an_earlier_version_is_still_read() -> None:
    """It says nothing of what was not looked at then; what it does say must be the same."""
    here = of_here(portable=False)
    before = {name: value for name, value in here.items() if name not in ("processor", "libraries", "compiler")}
    assert check(here, before, accept=(), where="a checkpoint") == {}
    with pytest.raises(IdentityMismatch, match="cpu_capability"):
        check(here, before | {"cpu_capability": "NO"}, accept=(), where="a checkpoint")


def of_here(*, portable: bool) -> Identity:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return identity({"portable": portable}, {"model": model}, {"optimizer": optimizer}, {}, torch.device("cpu"))


def test_a_run_may_be_made_longer(tmp_path: Path) -> None:
    """Where it ends, how often it saves and how data is loaded change when a run finishes, never what a step does."""
    parts = Trained(tmp_path / "parts", epochs=1)
    assert parts.steps == 4
    parts = Trained(tmp_path / "parts", epochs=3, save_every=1, num_workers=1, keep=5, timeout_s=60)

    assert parts.steps == 12
    assert parts.digest == Trained(tmp_path / "whole", epochs=3).digest


def differ(rank: int, world_size: int, port: int, url: str, what: str) -> tuple[str, list[str]]:
    as_worker_of_torchrun(rank, world_size, port)
    changed = 3 if rank == 1 else 0
    try:
        Trained(f"{url}-{changed}") if what == "url" else Trained(url, **{what: changed})
    except IdentityMismatch as refused:
        return str(refused), list(refused.fields)
    return "it trained", []


@pytest.mark.parametrize(
    ("what", "field", "said"),
    [
        ("seed", "seed", "seed: 3 here, 0 there"),
        ("url", "url", "give all workers one URL"),
    ],
    ids=["seed", "url"],
)
def test_workers_that_differ_from_one_another_all_refuse_to_start(
    tmp_path: Path, port: int, what: str, field: str, said: str
) -> None:
    """Another configuration file: nobody is left waiting, all say which rank it is."""
    same, different, third = returned(run_ranks(differ, 3, port, str(tmp_path / "run"), what))

    assert different[1] == [field]
    assert said in different[0]
    for text, _ in (same, third):
        assert text.startswith("rank 1: ")
        assert said in text
    assert not any(run.joinpath("commits").exists() for run in tmp_path.glob("run*"))


def test_a_run_may_be_moved(tmp_path: Path) -> None:
    first = Trained(tmp_path / "here", steps=2)
    (tmp_path / "here").rename(tmp_path / "there")
    assert first.steps == 2
    assert Trained(tmp_path / "there").digest == Trained(tmp_path / "whole").digest


NO_AVX512 = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL"


def found(output: str) -> list[str]:
    return next(line.split()[1:] for line in output.splitlines() if line.startswith("found "))


@pytest.mark.nightly(sample=1, of="what is compiled")
def test_portable_runs_agree_across_launchers_and_pin_what_the_cpu_may_do(tmp_path: Path) -> None:
    """The libraries read their settings when they are loaded, so the process starts itself again, torchrun or not."""
    program = "tests.kit.programs.portable"
    found_by = {}
    for name, workers, flags in (("plain", None, []), ("alone", None, ["--portable"]), ("two", 2, ["--portable"])):
        with Launch(program, [tmp_path / name, *flags], workers=workers) as launch:
            found_by[name] = found(launch.succeed(within_s=240))

    pretended: tuple[dict[str, str], ...] = (
        {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
        {"ONEDNN_CPU_ISA_HINTS": "PREFER_YMM", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "GLIBC_TUNABLES": NO_AVX512},
    )
    for number, env in enumerate(pretended):
        with Launch(program, [tmp_path / f"pretended-{number}", "--portable"], env=env) as launch:
            assert found(launch.succeed(within_s=240)) == found_by["alone"], env

    assert found_by["alone"] == found_by["two"]
    assert found_by["alone"][0] == "AVX2"
    assert (found_by["plain"] == found_by["alone"]) == (found_by["plain"][0] == "AVX2")
