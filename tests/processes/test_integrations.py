"""Scripts of other frameworks: the same bits, and the same trainer state, at every world size and after losses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.drill.cluster import Cluster
from elastic.drill.end import End
from elastic.drill.faults import At, Kill, KillAll, Plan
from elastic.errors import ConfigError
from tests.kit.needs import needs_transformers

MakeCluster = Callable[..., Cluster]
Undisturbed = Callable[..., End]

PROGRAMS = Path(__file__).parents[1] / "kit" / "programs"
LOST = Plan((Kill(2, At(5, "in_backward")), Kill(0, At(None, "in_update", world_size=3))))
SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "accelerate": ("accelerated.py", {}),
    "fabric": ("fabricated.py", {}),
    "transformers, a language model": ("trainer.py", {}),
    "transformers, a classifier": ("trainer.py", {"model": "bert", "best": True}),
    "transformers, examples that raise": ("trainer.py", {"torn": True}),
    "lightning": ("fit.py", {"check": 0.5}),
    "lightning, a schedule by epochs": ("fit.py", {"schedule": "epoch", "average": True}),
    "lightning, a cycle over the run's steps": ("fit.py", {"schedule": "cycle"}),
    "lightning, examples that raise": ("fit.py", {"torn": True, "check": 0.5}),
    "lightning, a plateau": ("fit.py", {"schedule": "plateau"}),
}
NAMES = [pytest.param(name, marks=needs_transformers if name.startswith("transformers") else ()) for name in SCRIPTS]


def ends(end: End) -> set[str]:
    assert (end.exit_code, end.left_behind, end.not_reached) == (0, (), ()), end.output
    return set(re.findall(r"took part: ([0-9a-f]{64} .*)", end.output))


@pytest.mark.nightly(sample=2, of="scripts of other frameworks")
@pytest.mark.parametrize("name", NAMES)
def test_workers_that_are_lost_leave_the_bits_alone(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, name: str
) -> None:
    program, options = SCRIPTS[name]
    script = PROGRAMS / program
    alone = elastic_undisturbed(script=script, steps=24, **options)
    assert len(ends(alone)) == 1
    run = elastic_cluster(script=script, steps=24, workers=3, launcher="elastic", plan=LOST, unhurried=3, **options)
    end = run.finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert ends(end) == ends(alone), end.output
    assert "before its inner loop" not in end.output, "what a trainer counts is no fault of the script"


@pytest.mark.nightly(sample=2, of="scripts of other frameworks")
@pytest.mark.parametrize("name", NAMES)
def test_a_worker_that_takes_a_step_over_knows_what_the_others_know(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, name: str
) -> None:
    """The step before something is logged, and at an epoch's end."""
    program, options = SCRIPTS[name]
    script = PROGRAMS / program
    alone = elastic_undisturbed(script=script, steps=24, **options)
    for step in (4, 7):
        run = elastic_cluster(script=script, steps=24, workers=3, launcher="elastic", lose=step, **options)
        end = run.finish(within_s=240, reference=alone.events)

        assert ends(end) == ends(alone), end.output


@pytest.mark.nightly(sample=2, of="scripts of other frameworks")
@pytest.mark.parametrize("name", NAMES)
def test_all_is_lost_and_goes_on_at_another_size(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, tmp_path: Path, name: str
) -> None:
    program, options = SCRIPTS[name][0], dict(SCRIPTS[name][1])
    script = PROGRAMS / program
    alone = elastic_undisturbed(script=script, steps=24, **options)
    options |= {"script": script, "steps": 24, "url": tmp_path / "run"}
    run = elastic_cluster(workers=3, launcher="elastic", plan=Plan((KillAll(At(10, "in_backward")),)), **options)
    assert run.finish(within_s=240).not_reached == ()
    end = elastic_cluster(workers=2, launcher="elastic", **options).finish(within_s=240, reference=alone.events)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert ends(end) == ends(alone), end.output


@pytest.mark.nightly(sample=2, of="scripts of other frameworks")
@pytest.mark.parametrize(
    ("program", "options"),
    [
        pytest.param("trainer.py", {"patience": 2}, marks=needs_transformers),
        ("fit.py", {"schedule": "plateau", "patience": 1}),
    ],
)
def test_early_stopping_counts_the_same_whoever_is_lost(
    elastic_cluster: MakeCluster, program: str, options: dict[str, Any]
) -> None:
    """It ends before the last step, so what is compared is what each worker says of its end."""
    script = PROGRAMS / program
    alone = elastic_cluster(script=script, steps=24, workers=1, launcher="elastic", **options).finish(within_s=240)
    run = elastic_cluster(script=script, steps=24, workers=3, launcher="elastic", plan=LOST, unhurried=3, **options)
    end = run.finish(within_s=240)

    assert len(ends(alone)) == 1
    assert ends(end) == ends(alone), end.output


@pytest.mark.nightly(sample=2, of="scripts of other frameworks")
@pytest.mark.parametrize(
    ("program", "options"),
    [
        pytest.param("trainer.py", {"model": "bert", "best": True}, marks=needs_transformers),
        ("fit.py", {"check": 0.5}),
    ],
)
def test_what_a_trainer_saves_is_written_though_its_writer_is_killed(
    elastic_cluster: MakeCluster, elastic_undisturbed: Undisturbed, program: str, options: dict[str, Any]
) -> None:
    """The next coordinator writes it, before anybody goes on; at the end the best model is loaded from there."""
    script = PROGRAMS / program
    alone = elastic_undisturbed(script=script, steps=24, **options)
    end = elastic_cluster(script=script, steps=24, workers=2, launcher="elastic", die=12, **options).finish(
        within_s=240
    )

    assert ends(end) == ends(alone), end.output
    written = r"^(?:saved: |the best model).*"
    assert re.findall(written, end.output, re.M) == re.findall(written, alone.output, re.M)


@pytest.mark.parametrize("program", ["accelerated.py", "fabricated.py"])
def test_one_worker_prints(elastic_cluster: MakeCluster, program: str) -> None:
    end = elastic_cluster(script=PROGRAMS / program, workers=3, launcher="elastic").finish(within_s=240)

    for line in ("it begins", "epoch 1 of 24 steps is over"):
        assert len(re.findall(f"^{line}$", end.output, re.M)) == 1, end.output


@pytest.mark.parametrize(
    ("program", "drawn"),
    [
        pytest.param("trainer.py", {r" 0/24 \[": 2, r" 24/24 \[": None}, marks=needs_transformers),
        ("fit.py", {"Sanity Checking DataLoader 0: 100%": 1, "Epoch 2: 100%": None}),
    ],
)
def test_one_worker_draws_and_when_it_is_lost_the_next_one(
    elastic_cluster: MakeCluster, program: str, drawn: dict[str, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each drew a bar of its own into one terminal, and opened a logger's run; so did who joined. None: at all."""
    monkeypatch.delenv("TQDM_DISABLE", raising=False)  # programs that are imported by other tests set it
    plan = Plan((Kill(0, At(9, "in_backward")),))
    options = {"script": PROGRAMS / program, "steps": 24, "unhurried": 3, "bars": True}
    end = elastic_cluster(workers=3, launcher="elastic", plan=plan, **options).finish(within_s=240)

    assert end.verdict.ok, f"{end.verdict}\n{end.output}"
    assert len(re.findall("^it begins$", end.output, re.M)) == 1, end.output
    for what, times in drawn.items():
        found = len(re.findall(what, end.output))
        assert found == times if times else found, f"{what} {found} times\n{end.output}"


def test_accelerate_is_refused_what_it_would_do_itself() -> None:
    from elastic.integrations.accelerate import Accelerator

    with pytest.raises(ConfigError, match="adds gradients up by itself"):
        Accelerator(cpu=True, gradient_accumulation_steps=4)


@needs_transformers
def test_the_state_of_a_trainer_is_read_under_its_earlier_name() -> None:
    from elastic.integrations.transformers import _of_trainer

    assert _of_trainer({"told": '{"loss": [1.5]}', "log": ""}) == {"loss": [1.5]}
    assert _of_trainer({"trainer": '{"loss": [2.5]}', "log": ""}) == {"loss": [2.5]}
