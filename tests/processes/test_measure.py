"""`elastic plan --measure` times this machine in processes of its own, and what it writes is what plans rest on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from elastic.__main__ import main
from elastic.errors import ConfigError
from elastic.plan import figures
from elastic.plan.measure import measure

MODEL = "elastic.plan.measured_step:perceptron"
JOB = ["--parameters", "1B", "--batch-time", "16s", "--nodes", "8", "--across", "100Gbit/s:5us"]


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Beside those that earlier tests in this process keep."""
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before


def test_what_is_measured_here_is_what_a_plan_then_rests_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "here.json"
    found = measure(file, model=MODEL, workers=2, storage=str(tmp_path), state_bytes=8 << 20)
    assert figures.parse(file.read_text(), "here.json") == found
    assert set(found) == set(figures.MEANINGS) - {
        "loss_s",
        "join_s",
        "start_s",
        "torchrun_restart_s",
        "torchft_stall_s",
    }
    assert all(one.value > 0 for one in found.values())
    assert "2 processes" in found["link_bytes_per_s"].source
    assert main(["plan", "--figures", str(file), "--parameters", "1M", "--nodes", "2", "--sources"]) == 0
    assert found["batch_s"].date in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("math:nothing", "has no attribute 'nothing'"),
        ("no_such_module:model", "No module named 'no_such_module'"),
        ("os:getcwd", "gives str; expected (model, loss)"),
    ],
)
def test_a_model_that_is_none_is_named_without_a_traceback_and_no_process_is_left(
    tmp_path: Path, model: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=r"process \d of 2 failed") as refused:
        measure(tmp_path / "x", model=model, workers=2, storage=str(tmp_path), state_bytes=8 << 20)
    assert f"--model {model}" in str(refused.value)
    assert said in str(refused.value)
    assert "Traceback" not in str(refused.value)
