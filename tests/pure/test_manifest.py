"""A manifest says what its schema says, a launch is added to it, and of two that differ the worst comes first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from elastic.config.argument_groups import Data, Saving
from elastic.manifest import files, machine, packages, schema
from elastic.manifest.arguments import described
from elastic.manifest.differences import Effect, differences, effect
from elastic_checkpoint.storage import TooLarge, open_storage

DOCS = Path(__file__).parents[2] / "docs"
MANIFEST: dict[str, Any] = {
    "format": "elastic-manifest",
    "version": 1,
    "run": {"url": "/runs/x", "claim": 1, "resumed_from": None, "t": 1.5, "worker": "host-1-a", "world_size": 1,
            "workers": ["host-1-a"]},
    "absent": {"git": "there is no git here"},
    "identity": {"seed": 0, "torch": "2.13.0", "threads": 1},
    "torch": {"version": "2.13.0", "git": None, "cuda": None, "hip": None, "cudnn": None, "nccl": None, "threads": 1,
              "interop_threads": 1},
    "environment": {"OMP_NUM_THREADS": "1"},
}  # fmt: skip


def of_claim(claim: int, **changes: Any) -> dict[str, Any]:
    return {**MANIFEST, "run": {**MANIFEST["run"], "claim": claim}, **changes}


def problems(manifest: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(json.loads(schema.json_schema()))
    return [error.message for error in validator.iter_errors(manifest)]


def test_the_published_schema_tells_a_manifest_from_others() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.json_schema()))
    assert problems(MANIFEST) == []
    assert problems({**MANIFEST, "run": {}}) != []
    assert problems({**MANIFEST, "torch": {**MANIFEST["torch"], "threads": "1"}}) != []
    assert problems({name: part for name, part in MANIFEST.items() if name != "absent"}) != []


def test_the_schema_that_the_pages_have_is_this_one() -> None:
    """`elastic manifest --schema > docs/reference/manifest.schema.json` writes it."""
    assert (DOCS / "reference" / "manifest.schema.json").read_text() == schema.json_schema() + "\n"


def test_every_field_is_in_the_table() -> None:
    table = schema.table()
    defined = json.loads(schema.json_schema())["$defs"]
    assert all(f"| `{name}` |" in table for part in defined.values() for name in part["properties"])


def test_the_first_launch_is_the_runs_and_later_ones_say_what_they_have_otherwise(tmp_path: Path) -> None:
    for url in (str(tmp_path / "run"), "memory://manifests-of-a-test"):
        storage = open_storage(url)
        assert files.read_manifest(storage) is None
        lock = {"manifest/ab.txt": b"torch==2.13.0\n"}
        other = of_claim(2, environment={}, absent={"torch": "planted"}, git={"commit": "c"})
        del other["torch"]
        for manifest in (MANIFEST, other):
            files.add(storage, url, manifest, lock)
        assert files.read_manifest(storage) == MANIFEST
        assert files.read_launches(storage, MANIFEST) == [MANIFEST, other]
        assert storage.get("manifest/ab.txt") == lock["manifest/ab.txt"]
        assert b"identity" not in storage.get("launches.jsonl"), "it is as in the run's manifest"


def test_a_line_that_was_torn_costs_no_other_one(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    files.add(storage, str(tmp_path), MANIFEST, {})
    with (tmp_path / "launches.jsonl").open("ab") as file:
        file.write(b'{"run": {"claim": 2, ')
    files.add(storage, str(tmp_path), of_claim(3), {})
    assert [launch["run"]["claim"] for launch in files.read_launches(storage, MANIFEST)] == [1, 3]


def test_launches_that_are_too_many_to_be_read_are_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://too-many-launches"
    storage = open_storage(url)
    files.add(storage, url, MANIFEST, {})
    before = storage.get("launches.jsonl")
    monkeypatch.setattr(files, "_LARGEST", len(before) - 1)
    with pytest.raises(TooLarge):
        files.add(storage, url, of_claim(2), {})
    assert storage.get("launches.jsonl") == before


def test_what_decides_bits_comes_first_and_each_fact_once() -> None:
    other = of_claim(
        2,
        identity={"seed": 1, "torch": "2.14.0", "threads": 1},
        torch={**MANIFEST["torch"], "version": "2.14.0"},
        environment={"OMP_NUM_THREADS": "2"},
        arguments={"given": {"seed": 1}, "resolved": {}},
    )
    found = [(each.path, each.effect) for each in differences(MANIFEST, other)]
    assert found[:2] == [("identity.seed", Effect.DECIDES), ("identity.torch", Effect.DECIDES)]
    assert ("environment.OMP_NUM_THREADS", Effect.MAY) in found
    assert found[-1] == ("run.claim", Effect.NOT)
    assert "torch.version" not in dict(found), "the identity says it"
    assert differences(MANIFEST, MANIFEST) == []


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("script.sha256", Effect.DECIDES),
        ("identity.optimizer.optimizer.groups[0].lr", Effect.DECIDES),
        ("arguments.given.epochs", Effect.DECIDES),
        ("git.commit", Effect.MAY),
        ("git.diff.sha256", Effect.MAY),
        ("packages.versions.numpy", Effect.MAY),
        ("script.arguments", Effect.MAY),
        ("a field of a later version", Effect.MAY),
        ("run.world_size", Effect.NOT),
        ("environment.ELASTIC_NOTICES", Effect.NOT),
        ("machine.host", Effect.NOT),
        ("machine.driver", Effect.MAY),
        ("script.folder", Effect.NOT),
    ],
)
def test_what_a_field_does_to_the_bits(path: str, expected: Effect) -> None:
    assert effect(path) is expected


def test_the_lock_names_what_is_installed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for name, direct in (
        ("Some_Thing-1.2.dist-info", None),
        ("torch-2.13.0+cpu.dist-info", None),
        ("mine-0.1.dist-info", {"url": "file:///home/me/mine", "dir_info": {"editable": True}}),
        ("theirs-3.dist-info", {"url": "https://host/theirs", "vcs_info": {"vcs": "git", "commit_id": "abc"}}),
    ):
        (first / name).mkdir(parents=True)
        if direct is not None:
            (first / name / "direct_url.json").write_text(json.dumps(direct))
    (second / "torch-1.0.dist-info").mkdir(parents=True)
    (second / "old.egg-info").mkdir()
    (second / "old.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: old\nVersion: 0.9\n")
    text, versions = packages.lock([str(first), str(tmp_path / "absent"), str(second)])
    assert text.splitlines()[2:] == [
        "# mine==0.1 was installed from file:///home/me/mine",
        "old==0.9",
        "some-thing==1.2",
        "theirs @ git+https://host/theirs@abc",
        "torch==2.13.0+cpu",
    ]
    assert versions["torch"] == "2.13.0+cpu"


def test_the_container_is_what_the_environment_says(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert machine.container({}, absent) is None
    assert machine.container({"ELASTIC_IMAGE": "host/image:1@sha256:ab"}, absent) == {
        "image": "host/image:1",
        "digest": "sha256:ab",
    }
    podman = tmp_path / "containerenv"
    podman.write_text('engine="podman-4"\nimage="docker.io/x:latest"\nimageid="12ab"\n')
    assert machine.container({}, podman) == {"image": "docker.io/x:latest", "digest": "12ab"}


def test_arguments_are_json_and_options_of_a_storage_only_names() -> None:
    given = {
        "url": Path("/runs/x"),
        "data": Data(num_workers=2),
        "saving": Saving(keep=5, storage_options={"secret": "planted", "anon": False}),
        "dataset": object(),
        "epochs": 2,
        "rate": float("nan"),
    }
    found = described(given)
    assert "planted" not in json.dumps(found, allow_nan=False)
    assert found["url"] == "/runs/x"
    assert found["data"]["num_workers"] == 2
    assert found["saving"]["storage_options"] == ["anon", "secret"]
    assert found["dataset"] == {"class": "builtins.object"}
