"""deploy/kubernetes: every manifest is strictly checked, and in each a mistake of each kind is planted, and found.

check_manifests.py asks published schemas, the words that they do not list, and pod_rules.py what holds between fields.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.pod_rules import pod_templates
from tests.kit.deploy_tools import DEPLOY, tool

Manifest = dict[str, Any]
Change = Callable[[Manifest], None]

KUBERNETES = DEPLOY / "kubernetes"
JOBS = ["base", "overlays/spot", "overlays/folder", "jobset.yaml", "kubeflow/runtime.yaml"]
"""Which have a podFailurePolicy."""
MANIFESTS = [*JOBS, "overlays/1.20", "pytorchjob.yaml", "kubeflow/trainjob.yaml"]
UNKNOWN_TO_1_20 = {
    *("completionMode", "backoffLimitPerIndex", "maxFailedIndexes", "podReplacementPolicy", "podFailurePolicy")
}
_TO_JSON = "import json, sys, yaml; print(json.dumps(yaml.safe_load(sys.stdin)))"


@cache
def manifest(name: str) -> Manifest:
    is_file = name.endswith(".yaml")
    text = (KUBERNETES / name).read_text() if is_file else tool("kubectl", "kustomize", KUBERNETES / name).stdout
    found = json.loads(tool("python", "-c", _TO_JSON, text=text).stdout)
    assert isinstance(found, dict)
    return found


def checked(folder: Path, manifests: dict[str, Manifest]) -> dict[str, list[str]]:
    """What is said of each, by its name."""
    files = {name: folder / f"{number}.json" for number, name in enumerate(manifests)}
    for name, path in files.items():
        path.write_text(json.dumps(manifests[name]))
    said = tool("python", "-m", "tests.deploy.check_manifests", *files.values())
    assert said.stderr == ""
    lines = {name: [one for one in said.stdout.splitlines() if one.startswith(f"{files[name]}:")] for name in files}
    assert said.returncode == any(lines.values())
    return lines


def everywhere(field: str, value: object) -> Change:
    def change(changed: Manifest) -> None:
        for holder in holders(changed, field):
            holder[field] = value

    return change


def beside(field: str, other: str, value: object) -> Change:
    def change(changed: Manifest) -> None:
        for holder in holders(changed, field):
            holder[other] = value

    return change


def holders(value: object, field: str) -> list[Manifest]:
    found = list(_holders(value, field))
    assert found, f"nothing here has {field}"
    return found


def _holders(value: object, field: str) -> Iterator[Manifest]:
    if isinstance(value, dict):
        if field in value:
            yield value
        for inner in value.values():
            yield from _holders(inner, field)
    elif isinstance(value, list):
        for inner in value:
            yield from _holders(inner, field)


def variable(name: str) -> Change:
    def change(changed: Manifest) -> None:
        for holder in holders(changed, "env"):
            holder["env"] = [*holder["env"], {"name": name, "value": "4"}]

    return change


def in_clear(changed: Manifest, name: str) -> None:
    for holder in holders(changed, "valueFrom"):
        if holder["name"] == name:
            del holder["valueFrom"]
            holder["value"] = "in clear"


OF_ALL: dict[str, tuple[Change, str]] = {
    "a reserved variable": (variable("PET_NNODES"), "PET_NNODES is torchrun's"),
}
OF_PODS: dict[str, tuple[Change, str]] = {
    "an unknown field": (beside("containers", "hostNetwrok", True), "hostNetwrok"),
    "another type": (everywhere("tolerationSeconds", "ten"), "is not of type 'integer'"),
    "another word": (everywhere("effect", "NoExec"), "'NoExec' is none of"),
    "another word, which no description lists": (everywhere("medium", "RAM"), "'RAM' is none of"),
    "a mount without a volume": (everywhere("volumes", []), "mounts shm, and there is no such volume"),
    "a shared memory of 64 MB": (everywhere("mountPath", "/tmp"), "/dev/shm is no volume in memory"),
    "a grace below the run's": (everywhere("terminationGracePeriodSeconds", 60), "ELASTIC_GRACE_S 120"),
    "Kubernetes' grace": (lambda changed: pod(changed).pop("terminationGracePeriodSeconds"), "is 30"),
    "a secret in clear": (lambda changed: in_clear(changed, "ELASTIC_SECRET"), "ELASTIC_SECRET comes from no Secret"),
    "a writable root": (everywhere("readOnlyRootFilesystem", False), "readOnlyRootFilesystem"),
    "root": (everywhere("runAsUser", 0), "may run as root"),
    "two pods on one machine": (everywhere("matchLabels", {"app": "other"}), "two pods off one machine"),
}
OF_JOBS: dict[str, tuple[Change, str]] = {
    "a restart in place": (everywhere("restartPolicy", "OnFailure"), "restartPolicy is OnFailure; expected Never"),
    "another action": (everywhere("action", "Ingore"), "'Ingore' is none of"),
    "a status that counts": (everywhere("values", [76]), "ignores the statuses [76]"),
    "a container that is not there": (everywhere("containerName", "main"), "there is no container main"),
    "another condition": (everywhere("onPodConditions", [{"type": "Disruption", "status": "True"}]), "'Disruption'"),
    "tries of each, counted together": (everywhere("completionMode", "NonIndexed"), "completionMode: Indexed"),
}
OF_ONE: dict[str, dict[str, tuple[Change, str]]] = {
    "base": {"fewer pods than nodes": (everywhere("completions", 3), "the most nodes are 3, 4")},
    "overlays/1.20": {"no Job's policy": (everywhere("restartPolicy", "Always"), "restartPolicy is Always")},
    "jobset.yaml": {"fewer pods than nodes": (everywhere("parallelism", 3), "the most nodes are 3, 4")},
    "pytorchjob.yaml": {
        "another policy": (everywhere("restartPolicy", "OnFail"), "'OnFail' is none of"),
        "fewer pods than nodes": (everywhere("maxReplicas", 3), "the most nodes are 3, 4"),
    },
    "kubeflow/trainjob.yaml": {
        "an unknown field": (beside("numNodes", "numNode", 4), "numNode"),
        "a grace above the runtime's": (variable("ELASTIC_GRACE_S"), "ELASTIC_GRACE_S is the runtime's"),
        "another type": (everywhere("numNodes", "four"), "is not of type 'integer'"),
        "another word": (beside("runtimeRef", "managedBy", "nobody"), "spec.managedBy: ManagedBy must be"),
        "a name that its rule refuses": (everywhere("metadata", {"name": "Elastic"}), "metadata.name must match"),
        "fewer nodes than it allows": (everywhere("numNodes", 3), "the most nodes are 3, 4"),
    },
}


def mistakes(name: str) -> dict[str, tuple[Change, str]]:
    of_pods = OF_PODS if name != "kubeflow/trainjob.yaml" else {}
    return {**OF_ALL, **of_pods, **(OF_JOBS if name in JOBS else {}), **OF_ONE.get(name, {})}


def pod(changed: Manifest) -> Manifest:
    (template,) = pod_templates(changed)
    found = template["spec"]
    assert isinstance(found, dict)
    return found


def test_every_manifest_passes(tmp_path: Path) -> None:
    files = {path.relative_to(KUBERNETES).as_posix() for path in KUBERNETES.rglob("*.yaml")}
    built = {f"{name}/kustomization.yaml" for name in MANIFESTS} | {"base/job.yaml"}
    assert files - built == {name for name in MANIFESTS if name.endswith(".yaml")}
    assert checked(tmp_path, {name: manifest(name) for name in MANIFESTS}) == {name: [] for name in MANIFESTS}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_mistake_of_each_kind_is_found_in(name: str, tmp_path: Path) -> None:
    planted = {}
    for mistake, (change, _) in mistakes(name).items():
        planted[mistake] = copy.deepcopy(manifest(name))
        change(planted[mistake])
    said = checked(tmp_path, planted)
    missed = [mistake for mistake, (_, words) in mistakes(name).items() if words not in "\n".join(said[mistake])]
    assert missed == [], said


def test_1_20_is_given_no_field_that_it_does_not_know() -> None:
    base, old = manifest("base")["spec"], manifest("overlays/1.20")["spec"]
    assert base.keys() - old.keys() == UNKNOWN_TO_1_20
    assert {name: old[name] for name in old.keys() & base.keys()} == {
        name: base[name] for name in base.keys() & old.keys()
    }


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name != "kubeflow/trainjob.yaml"])
def test_a_pod_is_the_same_in_every_manifest(name: str) -> None:
    """What is mended in one of them is mended in all."""

    def same(of: str) -> Manifest:
        found = copy.deepcopy(pod(manifest(of)))
        (container,) = found["containers"]
        for its_own in ("name", "args"):
            container.pop(its_own, None)
        container["env"] = [one for one in container["env"] if one["name"].startswith("ELASTIC_")]
        found.pop("restartPolicy", None)
        if of == "overlays/folder":
            assert found["volumes"].pop()["name"] == container["volumeMounts"].pop()["name"] == "runs"
        if of == "overlays/spot":
            found["tolerations"] = found["tolerations"][:2]
            del found["affinity"]["nodeAffinity"]
        return found

    assert same(name) == same("base")


def test_command_lines_differ_in_what_their_operators_say_alone() -> None:
    base = pod(manifest("base"))["containers"][0]["args"]
    for name in ("jobset.yaml", "pytorchjob.yaml"):
        assert pod(manifest(name))["containers"][0]["args"] == base
    job = manifest("kubeflow/trainjob.yaml")["spec"]["trainer"]
    assert job["args"][0] == f"--nnodes=1:{job['numNodes']}"
    assert job["args"][1:] == [arg for arg in base[1:] if "WORKERS" not in arg]


def test_the_port_that_a_node_is_told_to_serve_its_figures_at_is_named() -> None:
    """deploy/monitoring has Prometheus find the port by this name."""
    for name in MANIFESTS:
        args = [arg for holder in _holders(manifest(name), "args") for arg in holder["args"]]
        if args:
            assert [arg for arg in args if arg.startswith("--metrics-port")] == ["--metrics-port=9464"], name
        if name != "kubeflow/trainjob.yaml":  # whose pod is the runtime's
            assert pod(manifest(name))["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 9464}], name
