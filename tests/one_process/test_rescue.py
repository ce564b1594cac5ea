"""A run that cannot save its end puts what it holds elsewhere, and says how to load it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import elastic
from elastic.loop.storage import failed_saves, saver
from elastic_checkpoint import Checkpointer, digest


def train(url: Path, *, breaks: bool = False, epochs: int = 2) -> nn.Module:
    """breaks: before the last save the folder of the run's data becomes a file."""
    elastic.seed(0)
    inputs = torch.randn(80, 8)
    model = nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with elastic.Run(
        url, model=model, optimizer=optimizer, dataset=TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=20,
        virtual_workers=4, epochs=epochs, save_every=1000,
    ) as run:  # fmt: skip
        for x, y in run.batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if breaks and not (url / "kept").exists():
                os.rename(url / "data", url / "kept")
                (url / "data").write_text("a file")
    return model


def test_a_last_save_that_keeps_failing_leaves_a_rescue_copy_from_which_the_script_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ELASTIC_RESCUE", str(tmp_path / "rescued"))
    monkeypatch.setattr(saver, "PATIENCE_S", 0.0)
    monkeypatch.setattr(saver, "_LAST_S", {True: 1.5, False: 0.0})
    with pytest.raises(elastic.SavesFailed) as failed:
        train(tmp_path / "run", breaks=True)
    (copy,) = (tmp_path / "rescued").iterdir()
    assert f"rescue   {copy}\n" in str(failed.value)
    assert str(failed.value).startswith("the last save failed, ")
    said = capsys.readouterr().err
    assert said.index(f"rescue   {copy}") < said.index("is tried again in 1 s: as before")
    assert "training goes on" not in said

    undisturbed = train(tmp_path / "other", epochs=3)
    assert digest(train(copy, epochs=3)) == digest(undisturbed)
    assert "resuming after step 8 of 12" in capsys.readouterr().err
    assert Checkpointer(copy).verify()[0].ok


def test_where_nothing_takes_a_copy_the_error_says_that_it_is_in_memory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ELASTIC_RESCUE")
    (tmp_path / "file").write_text("")
    file = str(tmp_path / "file")
    monkeypatch.setattr(failed_saves.os, "getcwd", lambda: file)
    monkeypatch.setattr(failed_saves.tempfile, "gettempdir", lambda: file)
    monkeypatch.setattr(saver, "PATIENCE_S", 0.0)
    monkeypatch.setattr(saver, "_LAST_S", {True: 0.0, False: 0.0})
    with pytest.raises(elastic.SavesFailed, match="which is nowhere but in memory"):
        train(tmp_path / "run", breaks=True)
