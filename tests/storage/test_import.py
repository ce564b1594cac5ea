"""`elastic checkpoint import` makes a checkpoint of what other tools wrote, to the bit, and runs nothing they name."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader

from elastic_checkpoint import Checkpointer, digest
from elastic_checkpoint.cli import main
from elastic_checkpoint.cli.importing import import_state
from elastic_checkpoint.cli.opened_run import OpenedRun, WatchedStorage
from elastic_checkpoint.cli.screen import Screen
from elastic_checkpoint.sources.find import open_source
from elastic_checkpoint.storage import Storage
from elastic_checkpoint.storage.local import LocalStorage
from tests.kit.ranks import returned, run_ranks
from tests.storage.cut import CutAfter, PowerCut

Capture = pytest.CaptureFixture[str]
Make = Callable[..., Checkpointer]

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:You are using torch.load")

ODD = {
    "bf16": torch.randn(3, 5).bfloat16(),
    "f8": torch.randn(4).to(torch.float8_e4m3fn),
    "f8e5": torch.randn(4).to(torch.float8_e5m2),
    "i64": torch.tensor(2**60),
    "bool": torch.tensor([True, False]),
    "empty": torch.empty(0, 3),
    "nan": torch.tensor([float("nan"), -0.0]),
}


def import_(source: object, url: object, *arguments: object) -> int:
    return main(["import", str(source), str(url), *map(str, arguments)])


def trained(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 9))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randint(9, (8,))).square().sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "epoch": seed, "history": [1, 2.5, None]}


def as_saved(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict()}


def loaded(url: object) -> dict[str, Any]:
    """A live state of another seed, filled from there: all of it must fit."""
    state = trained(99)
    with Checkpointer(str(url)) as runs:
        runs.load(state)
        assert all(one.ok for one in runs.verify())
    return state


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_of_torch_save_loads_into_the_live_objects(legacy: bool, tmp_path: Path, capsys: Capture) -> None:
    """What a script saved for itself: the parts come under their names, and what is tied stays one tensor."""
    state, run = trained(1), tmp_path / "run"
    torch.save(as_saved(state), tmp_path / "last.pt", _use_new_zipfile_serialization=not legacy)
    assert import_(tmp_path / "last.pt", run, "--step", 1200) == 0
    assert "last.pt (torch) -> step 1200 of" in capsys.readouterr().out
    found = loaded(run)
    assert digest(found) == digest(state)
    assert (found["epoch"], found["history"]) == (1, [1, 2.5, None])
    with Checkpointer(run) as runs:
        tree, commit = runs.read().tree, runs.list()[0]
    assert tree["model"]["0.weight"] is tree["model"]["2.weight"]
    assert commit.meta == {"imported": {"format": "torch", "from": "last.pt"}}


def test_a_state_dict_becomes_the_model_or_what_it_is_called(tmp_path: Path) -> None:
    torch.save(OrderedDict(ODD), tmp_path / "odd.bin")
    for number, (name, arguments) in enumerate([("model", []), ("ema", ["--as", "ema"])]):
        assert import_(tmp_path / "odd.bin", tmp_path / f"run{number}", *arguments) == 0
        with Checkpointer(tmp_path / f"run{number}") as runs:
            assert set(runs.read().tree) == {name}
            assert digest(runs.read().tree[name]) == digest(ODD)


class RunsCode:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch ran",)


class Settings:
    pass


@pytest.mark.parametrize(
    ("value", "named"), [(RunsCode(), "posix.system"), (Settings(), "tests.storage.test_import.Settings")]
)
@pytest.mark.parametrize("legacy", [False, True])
def test_what_a_pickle_names_is_refused_by_name_and_never_run(
    value: Any, named: str, legacy: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save({"w": torch.ones(2), "args": value}, "bad.pt", _use_new_zipfile_serialization=not legacy)
    assert import_("bad.pt", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert f"bad.pt: it holds more than tensors and plain values: {named}" in said
    assert "nothing was imported" in said
    assert sorted(os.listdir()) == ["bad.pt"]


def hugging_face(folder: Path) -> dict[str, torch.Tensor]:
    """Two files and an index, as save_pretrained writes them, beside files that are no tensors."""
    folder.mkdir()
    names = list(ODD)
    for number, some in ((1, names[:3]), (2, names[3:])):
        file = folder / f"model-0000{number}-of-00002.safetensors"
        safetensors.torch.save_file({name: ODD[name] for name in some}, file, metadata={"format": "pt"})
    weight_map = {name: f"model-0000{1 + (number > 2)}-of-00002.safetensors" for number, name in enumerate(names)}
    index = {"metadata": {"total_size": 99}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return ODD


def test_a_folder_of_hugging_face_arrives_bit_by_bit_and_goes_out_again(tmp_path: Path) -> None:
    expected = hugging_face(tmp_path / "hf")
    for source in (tmp_path / "hf", tmp_path / "hf" / "model.safetensors.index.json"):
        run = tmp_path / f"run-{source.name}"
        assert import_(source, run) == 0
        with Checkpointer(run) as runs:
            assert digest(runs.read().tree) == digest({"model": expected})
    assert main(["export", str(run), str(tmp_path / "out"), "--to", "safetensors"]) == 0
    assert digest(safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")) == digest(expected)


def test_what_is_tied_in_an_export_is_tied_again(tmp_path: Path, capsys: Capture) -> None:
    state = trained(1)
    with Checkpointer(tmp_path / "run") as runs:
        runs.save(3, {"model": state["model"]})
    for limit in ("1GB", "100B"):  # one file, and several with an index
        out, again = tmp_path / f"out{limit}", tmp_path / f"again{limit}"
        assert main(["export", str(tmp_path / "run"), str(out), "--to", "safetensors", "--max-shard-size", limit]) == 0
        assert import_(out, again) == 0
        assert "tied: 2.weight is 0.weight" in capsys.readouterr().out
        with Checkpointer(again) as runs:
            tree = runs.read().tree["model"]
        assert tree["2.weight"] is tree["0.weight"]
        assert digest(tree) == digest(state["model"])


def test_a_folder_of_dcp_gives_the_nested_state_and_goes_out_again(tmp_path: Path) -> None:
    """It is one flat table with the paths beside it; numbers of an optimizer's parameters are text there."""
    state = trained(1)
    dcp.save(as_saved(state), checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert import_(tmp_path / "dcp", tmp_path / "run", "--step", 7) == 0
    found = loaded(tmp_path / "run")
    assert digest(found) == digest(state)
    assert (found["epoch"], found["history"]) == (1, [1, 2.5, None])

    parts = ["--part", "model", "--part", "optimizer"]
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out"), "--to", "dcp", *parts]) == 0
    again = {part: value for part, value in as_saved(trained(98)).items() if part in ("model", "optimizer")}
    dcp.load(again, checkpoint_id=tmp_path / "out", no_dist=True)
    for part in ("model", "optimizer"):
        assert digest(again[part]) == digest(as_saved(state)[part])


def save_sharded(rank: int, size: int, folder: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    store = torch.distributed.FileStore(f"{folder}/store", size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    rows, columns = torch.arange(35.0).reshape(7, 5), torch.arange(35).reshape(5, 7)
    state = {
        "rows": distribute_tensor(rows, mesh, [Shard(0)]),
        "columns": distribute_tensor(columns, mesh, [Shard(1)]),
        "whole": torch.ones(3).bfloat16(),
    }
    dcp.save({"model": state}, checkpoint_id=f"{folder}/dcp")
    torch.distributed.destroy_process_group()


def test_what_several_ranks_saved_with_dcp_becomes_whole_tensors(tmp_path: Path) -> None:
    returned(run_ranks(save_sharded, 3, str(tmp_path)))
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 3
    assert import_(tmp_path / "dcp", tmp_path / "run") == 0
    with Checkpointer(tmp_path / "run") as runs:
        model = runs.read().tree["model"]
    assert torch.equal(model["rows"], torch.arange(35.0).reshape(7, 5))
    assert torch.equal(model["columns"], torch.arange(35).reshape(5, 7))
    assert torch.equal(model["whole"], torch.ones(3).bfloat16())


def test_dcps_metadata_runs_nothing_and_reads_nothing_outside(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle from whoever wrote the folder, which DCP itself would unpickle."""
    monkeypatch.chdir(tmp_path)
    dcp.save({"model": {"w": torch.ones(4)}, "settings": Settings()}, checkpoint_id="dcp", no_dist=True)
    assert import_("dcp", "run") == 2
    assert "the value settings holds more than tensors and plain values: tests.storage.test_import.Settings" in (
        capsys.readouterr().err
    )

    shutil.rmtree("dcp")
    dcp.save({"model": {"w": torch.ones(4)}, "epoch": 3}, checkpoint_id="dcp", no_dist=True)
    metadata = FileSystemReader("dcp").read_metadata()

    def refused(change: Callable[[Any], Any], says: str) -> None:
        bytes_ = pickle.dumps(change(copy.deepcopy(metadata)))
        Path("dcp", ".metadata").write_bytes(bytes_)
        assert import_("dcp", "run") == 2
        assert re.search(says, capsys.readouterr().err)

    def with_info(**fields: Any) -> Callable[[Any], Any]:
        def change(metadata: Any) -> Any:
            for info in metadata.storage_data.values():
                vars(info).update(fields)
            return metadata

        return change

    def with_size(size: tuple[int, ...]) -> Callable[[Any], Any]:
        def change(metadata: Any) -> Any:
            stored = metadata.state_dict_metadata["model.w"]
            stored.size = stored.chunks[0].sizes = torch.Size(size)
            return metadata

        return change

    def with_one_part_twice(metadata: Any) -> Any:
        stored = metadata.state_dict_metadata["model.w"]
        stored.chunks[0].sizes = torch.Size((2,))
        stored.chunks *= 2
        return metadata

    refused(lambda _: RunsCode(), "names more than DCP's own tables: posix.system")
    refused(lambda _: Settings(), r"names more than DCP's own tables: tests.storage.test_import.Settings")
    refused(lambda _: {"a": 1}, "is none of DCP's")
    refused(with_info(relative_path="../secret"), "is none of DCP's: ValueError: a file '../secret'")
    refused(with_info(relative_path="absent"), "absent: cannot be read")
    refused(with_info(length=10**6), "ends .* bytes early")
    refused(with_info(transform_descriptors=["zstd"]), "went through")
    refused(with_size((5,)), "is no torch.float32")
    refused(with_size((2**40,)), "hold no")
    refused(with_one_part_twice, "pieces of tensor 'model.w' overlap")
    Path("dcp", ".metadata").write_bytes(b"\x80\x04no pickle")
    assert import_("dcp", "run") == 2
    assert not [path for path in Path("run").rglob("*.json") if path.parent.name == "commits"]
    assert not Path("ran").exists()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "names files that are not there"),
        (lambda folder: os.truncate(folder / "model-00002-of-00002.safetensors", 300), "no whole safetensors file"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "is no index of files"),
        (lambda folder: (folder / "model.safetensors.index.json").unlink(), "has 2 of which one is meant"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "../x"}}'),
            "names files outside of its folder",
        ),
        (
            lambda folder: shutil.copy(
                folder / "model-00001-of-00002.safetensors", folder / "model-00002-of-00002.safetensors"
            ),
            "lacks tensors that the index says it holds: bool, empty, i64, nan",
        ),
        (lambda folder: [path.unlink() for path in folder.glob("*model*")], "a folder with config.json"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused_before_anything_is_claimed(
    damage: Callable[[Path], Any], says: str, tmp_path: Path, capsys: Capture
) -> None:
    hugging_face(tmp_path / "hf")
    damage(tmp_path / "hf")
    assert import_(tmp_path / "hf", tmp_path / "run") == 2
    said = capsys.readouterr().err
    assert says in said
    assert re.search(r"^  state  nothing was imported$", said, re.MULTILINE)
    assert not (tmp_path / "run").exists()


def test_what_cannot_be_a_checkpoint_or_is_no_source_is_said(tmp_path: Path, capsys: Capture) -> None:
    torch.save({"sparse": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    (tmp_path / "text").write_text("no tensors at all")
    (tmp_path / "cut.pt").write_bytes(b"PK" + bytes(99))
    with Checkpointer(tmp_path / "other") as runs:
        runs.save(1, {"w": torch.ones(1)})
    for source, says in (
        ("sparse.pt", "model.sparse is not a dense tensor"),
        ("text", "none of the known formats"),
        ("cut.pt", "cannot be read"),
        ("none", "no such file or folder"),
        ("other", "a run of this package already"),
    ):
        assert import_(tmp_path / source, tmp_path / "run") == 2
        assert says in capsys.readouterr().err
    assert import_("s3://user:word@bucket/x", tmp_path / "run") == 2
    assert "word" not in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_what_it_has_unless_it_is_told_and_a_live_job_its_url(
    tmp_path: Path, checkpointer: Make, capsys: Capture
) -> None:
    """What is imported would be the newest, and the run go on from it."""
    torch.save({"w": torch.full((2,), 7.0)}, tmp_path / "w.pt")
    live = checkpointer(tmp_path / "run")
    live.save(50, {"model": {"w": torch.zeros(2)}})
    assert import_(tmp_path / "w.pt", tmp_path / "run") == 2
    assert "has checkpoints: the newest is of step 50" in capsys.readouterr().err
    assert import_(tmp_path / "w.pt", tmp_path / "run", "--supersede") == 2
    assert "belongs to a live job" in capsys.readouterr().err
    live.close()
    assert import_(tmp_path / "w.pt", tmp_path / "run", "--supersede", "--step", 3) == 0
    with Checkpointer(tmp_path / "run") as runs:
        assert [commit.step for commit in runs.list()] == [3, 50]
        here = {"model": {"w": torch.zeros(2)}}
        assert runs.load(here) == 3
        assert here["model"]["w"].tolist() == [7.0, 7.0]


def test_one_tensor_after_another_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state larger than the machine's memory: of DCP's folders no two tensors are there at a time."""
    state = {f"w{number}": torch.full((64,), float(number)) for number in range(6)}
    dcp.save({"model": state}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    source = open_source(str(tmp_path / "dcp"))
    assert all(tensor.untyped_storage().nbytes() == 4 for tensor in source.tree["model"].values())
    assert torch.equal(source.fetch(source.tree["model"]["w3"]), state["w3"])


def test_cut_anywhere_an_import_leaves_the_run_as_it_was_or_is_there_whole(tmp_path: Path) -> None:
    """Power is lost after so many of its operations, for each number of them."""
    torch.save({"w": torch.full((40,), 7.0)}, tmp_path / "w.pt")
    source, seen = open_source(str(tmp_path / "w.pt")), []
    for operations in range(100):
        run = tmp_path / f"run{operations}"
        with Checkpointer(run) as runs:
            runs.save(50, {"model": {"w": torch.zeros(40)}})
        cut: Any = CutAfter(LocalStorage(run), operations)
        watched = WatchedStorage(cut)
        screen, finished = Screen(), False
        with (
            contextlib.suppress(PowerCut),
            Checkpointer(cast(Storage, watched), log=screen.warn, grace_s=0) as runs,
        ):
            opened = OpenedRun(str(run), watched, (), screen)
            import_state(opened, runs, source, step=3, part=None, supersede=True, screen=screen, origin="w.pt")
            finished = True
        with Checkpointer(run, grace_s=0) as runs:
            here = {"model": {"w": torch.zeros(40)}}
            seen.append(int(runs.load(here)))
            assert here["model"]["w"].tolist() == [7.0 if seen[-1] == 3 else 0.0] * 40
            assert seen[-1] == 3 or not finished
        if finished:
            break
    assert seen == sorted(seen, reverse=True)
    assert (seen[0], seen[-1]) == (50, 3)
    assert len(seen) > 8
