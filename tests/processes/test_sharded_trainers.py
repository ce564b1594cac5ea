"""Sharded models in the loops of other frameworks: the bits of one plain process, and files that one can load."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import elastic_checkpoint
from elastic.errors import ConfigError
from elastic.events.reading import read_events
from tests.kit.launch import Launch
from tests.kit.needs import needs_transformers
from tests.kit.observed import assert_observed
from tests.kit.programs.sharded_trainers import Network, gpt

WITHIN_S = 300.0
STEPS = 5
PROGRAM = "tests.kit.programs.sharded_trainers"
SCRIPT = Path(__file__).parents[1] / "kit" / "programs" / "sharded_trainers.py"
FRAMEWORKS = ["accelerate", "fabric", pytest.param("transformers", marks=needs_transformers), "lightning"]

Run = Callable[..., set[tuple[str, int]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """run(workers, framework, *options, url=): the bits and steps of its workers; None: one plain process."""

    def to_its_end(workers: int | None, framework: str, *options: str, url: str = "run") -> set[tuple[str, int]]:
        given: Sequence[object] = [framework, tmp_path / url, f"--steps={STEPS}", *options]
        of_run = ["run", "--no-status", f"--nproc-per-node={workers}", "--replica-size=2", SCRIPT]
        module, arguments = ("elastic", [*of_run, *given]) if workers else (PROGRAM, given)
        with Launch(module, arguments, env={"OMP_NUM_THREADS": "1"}) as launch:
            output = launch.succeed(within_s=WITHIN_S)
        found: list[dict[str, Any]] = []
        for line in output.splitlines():
            with suppress(ValueError):
                found.append(json.loads(line[line.index('{"rank"') :]))
        assert_observed(read_events(tmp_path / url))
        lost = 0 if "ended: SIGKILL" not in output else 2  # whose place may be taken too late for the last step
        assert (workers or 1) - lost <= len(found) <= (workers or 1), output
        assert {one["steps"] for one in found} == {STEPS}
        return {(one["weights"], one["steps"]) for one in found}

    return to_its_end


def loaded(framework: str, saved: Path) -> torch.nn.Module:
    """The model that a framework has saved, as a plain process loads it."""
    if framework == "transformers":
        return type(gpt()).from_pretrained(saved)  # type: ignore[no-any-return]
    model = Network()
    if framework == "accelerate":
        from safetensors.torch import load_file

        model.load_state_dict(load_file(saved / "model.safetensors"))
    elif framework == "fabric":
        model.load_state_dict(torch.load(saved)["model"])
    else:
        state = torch.load(saved, weights_only=False)["state_dict"]
        model.load_state_dict({name.removeprefix("network."): one for name, one in state.items()})
    return model


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_sharded_model_has_the_bits_of_one_process_that_shards_nothing(
    run: Run, tmp_path: Path, framework: str
) -> None:
    whole = run(None, framework, "--whole", url="whole")
    assert run(2, framework, url="two") == whole
    assert run(4, framework, url="four") == whole

    saved, of_one = (
        elastic_checkpoint.digest(loaded(framework, tmp_path / url)) for url in ("four-saved", "whole-saved")
    )
    assert saved == of_one


@pytest.mark.nightly(sample=1)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_clipping_is_by_a_norm_that_is_the_same_at_every_size(run: Run, tmp_path: Path, framework: str) -> None:
    """And through the loss of a worker."""
    clipped = run(None, framework, "--clip=0.1", url="alone")
    assert clipped != run(None, framework, url="unclipped")
    assert run(4, framework, "--clip=0.1", "--kill=3", url="four") == clipped
    assert (tmp_path / "four-died").exists()


@needs_transformers
@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"fsdp_version": 1}, "version"),
        ({"cpu_offload": True}, "offload"),
        ({"cpu_ram_efficient_loading": True}, "cpu_ram_efficient_loading"),
        ({"activation_checkpointing": True}, "activation_checkpointing"),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "SHARDED_STATE_DICT"),
    ],
)
def test_options_of_fsdp_that_a_run_does_not_carry_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], found: str
) -> None:
    from transformers import TrainingArguments

    from elastic.integrations.transformers import ElasticTrainer

    arguments = TrainingArguments(str(tmp_path), optim="adamw_torch", fsdp=True, fsdp_config=config)
    with pytest.raises(ConfigError, match=found):
        ElasticTrainer(gpt(), arguments, elastic={"url": "unused", "virtual_workers": 2})
