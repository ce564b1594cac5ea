"""Checks Kubernetes manifests without a cluster: python -m tests.deploy.check_manifests FILE…, each problem a line.

    core kinds      kubernetes-validate's schemas, strictly: unknown fields, wrong types
    other kinds     the published definitions in crds, strictly, and their own CEL rules
    words           the values that kubeflow-trainer-api's descriptions list ("Possible enum values"): schemas list none
    between fields  pod_rules.py

Runs with the Python of build/deploy-tools. A CEL rule on what a value was before cannot be asked of a file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import celpy
import jsonschema
import kubernetes_validate
import yaml
from celpy.adapter import json_to_cel
from kubeflow_trainer_api import models
from pydantic import BaseModel

from tests.deploy.pod_rules import pod_templates, problems_between_fields

Manifest = dict[str, Any]

_KUBERNETES = "1.37"
_CORE = ("batch/v1", "v1")
_MODELS: dict[str, type[BaseModel]] = {
    "Job": models.IoK8sApiBatchV1Job,
    "JobSet": models.JobsetV1alpha2JobSet,
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
}
_WORDS = {
    "medium": {"", "Memory"},
    "onPodConditions.type": {"DisruptionTarget"},
    "onPodConditions.status": {"True", "False", "Unknown"},
    "Worker.restartPolicy": {"Always", "OnFailure", "Never", "ExitCode"},
    "cleanPodPolicy": {"Running", "All", "None"},
    "rdzvBackend": {"c10d", "etcd", "etcd-v2"},
}
"""Which no description lists, by the ends of their paths."""
_LISTED = re.compile(r'`"([^`"]*)"`')


def problems(manifest: Manifest) -> Iterator[str]:
    yield from _of_schema(manifest)
    if (model := _MODELS.get(manifest["kind"])) is not None:
        yield from _of_words(model, manifest, "")
    else:
        for template in pod_templates(manifest):
            yield from _of_words(models.IoK8sApiCoreV1PodTemplateSpec, template, "template")
    yield from _of_own_words(manifest, "")
    yield from problems_between_fields(manifest)


def _of_schema(manifest: Manifest) -> Iterator[str]:
    if manifest["apiVersion"] in _CORE:
        try:
            kubernetes_validate.validate(manifest, _KUBERNETES, strict=True)
        except jsonschema.ValidationError as wrong:
            yield f"{'.'.join(map(str, wrong.path))}: {wrong.message}"
        return
    definition = _definitions()[manifest["apiVersion"], manifest["kind"]]
    for found in jsonschema.Draft7Validator(_strict(definition)).iter_errors(manifest):
        yield f"{'.'.join(map(str, found.path))}: {found.message}"
    yield from _of_cel(definition, manifest, "")


def _definitions() -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for path in (Path(__file__).parent / "crds").glob("*.json"):
        spec = json.loads(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _strict(schema: Any, *, is_top: bool = True) -> Any:
    """It refuses unknown fields, as an API server does that is asked to."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {name: _strict(inner, is_top=False) for name, inner in made["properties"].items()}
        if not made.get("x-kubernetes-preserve-unknown-fields"):
            made.setdefault("additionalProperties", False)
    if is_top:
        made["properties"]["metadata"] = {"type": "object"}  # core's, which a definition does not repeat
    for name in ("items", "additionalProperties"):
        if name in made:
            made[name] = _strict(made[name], is_top=False)
    return made


def _of_cel(schema: Any, value: Any, path: str) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            environment = celpy.Environment()
            program = environment.program(environment.compile(rule["rule"]))
            if not program.evaluate({"self": json_to_cel(value)}):
                yield f"{path or '.'}: {rule.get('message', rule['rule'])}"
    if isinstance(value, dict):
        for name, inner in value.items():
            below = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            yield from _of_cel(below, inner, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _of_cel(schema.get("items"), inner, path)


def _of_words(model: type[BaseModel], value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _of_words(model, inner, path)
    elif isinstance(value, dict):
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        for name in value.keys() & fields.keys():
            field, below = fields[name], f"{path}.{name}".lstrip(".")
            words = _LISTED.findall((field.description or "").partition("Possible enum values")[2])
            if words and value[name] not in words:
                yield f"{below}: {value[name]!r} is none of {', '.join(words)}"
            for inner in _models_in(field.annotation):
                yield from _of_words(inner, value[name], below)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _of_own_words(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _of_own_words(inner, path)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _of_own_words(inner, f"{path}.{name}".lstrip("."))
    else:
        for end, words in _WORDS.items():
            if f".{path}".endswith(f".{end}") and value not in words:
                yield f"{path}: {value!r} is none of {', '.join(sorted(words))}"


def main(files: Sequence[str]) -> int:
    status = 0
    for file in files:
        for manifest in yaml.safe_load_all(Path(file).read_text()):
            for problem in problems(manifest):
                print(f"{file}: {manifest['kind']} {manifest['metadata']['name']}: {problem}")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
