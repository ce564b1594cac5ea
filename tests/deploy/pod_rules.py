"""What holds between the fields of a manifest, and no schema says. Pure.

An API server refuses a pod that mounts a volume which it lacks, a podFailurePolicy beside another restartPolicy than
Never, and a PET_* in a TrainJob. Nobody refuses a grace below what the run believes: it would be killed as it saves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Manifest = dict[str, Any]

_GRACE_S = 30  # Kubernetes' own


def problems_between_fields(manifest: Manifest) -> Iterator[str]:
    jobs = list(_job_specs(manifest))
    for template in pod_templates(manifest):
        yield from _of_pod(template)
    for job in jobs:
        yield from _of_job(job)
    for env in _found(manifest, "env"):
        for variable in env:
            if variable["name"].startswith("PET_"):
                yield f"env: {variable['name']} is torchrun's, which Kubeflow's operators set, and refuse from others"
            if variable["name"] == "ELASTIC_GRACE_S" and manifest["kind"] == "TrainJob":
                yield "env: ELASTIC_GRACE_S is the runtime's, whose grace it is"
    yield from _of_counts(manifest)


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    for template in _found(manifest, "template"):
        if "containers" in template.get("spec", {}):
            yield template


def _job_specs(manifest: Manifest) -> Iterator[Manifest]:
    if manifest["kind"] == "Job":
        yield manifest["spec"]
    for jobs in _found(manifest, "replicatedJobs"):
        for job in jobs:
            yield job["template"]["spec"]


def _of_pod(template: Manifest) -> Iterator[str]:
    pod = template["spec"]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"{container['name']} mounts {mount['name']}, and there is no such volume"
        shared = [mount["name"] for mount in container.get("volumeMounts", ()) if mount["mountPath"] == "/dev/shm"]
        if not shared or volumes.get(shared[0], {}).get("emptyDir", {}).get("medium") != "Memory":
            yield f"{container['name']}: /dev/shm is no volume in memory, and has 64 MB otherwise"
        env = {variable["name"]: variable for variable in container.get("env", ())}
        grace = env.get("ELASTIC_GRACE_S", {}).get("value")
        given = pod.get("terminationGracePeriodSeconds", _GRACE_S)
        if grace != str(given):
            yield f"terminationGracePeriodSeconds is {given}, and ELASTIC_GRACE_S {grace}; expected the same"
        if "valueFrom" not in env.get("ELASTIC_SECRET", {}):
            yield f"{container['name']}: ELASTIC_SECRET comes from no Secret"
        yield from _of_rights(container, pod)
    labels = template["metadata"]["labels"]
    apart = [
        term["labelSelector"]["matchLabels"].items() <= labels.items()
        for term in pod.get("affinity", {})
        .get("podAntiAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", ())
        if term["topologyKey"] == "kubernetes.io/hostname"
    ]
    if apart != [True]:
        yield "nothing keeps two pods off one machine: no podAntiAffinity by hostname to this pod's own labels"


def _of_rights(container: Manifest, pod: Manifest) -> Iterator[str]:
    expected = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    if container.get("securityContext") != expected:
        yield f"{container['name']}: securityContext is {container.get('securityContext')}; expected {expected}"
    user = pod.get("securityContext", {})
    if user.get("runAsNonRoot") is not True or not user.get("runAsUser"):
        yield "the pod may run as root: no runAsNonRoot, or no number for its user"


def _of_job(job: Manifest) -> Iterator[str]:
    pod = job["template"]["spec"]
    allowed = ("Never",) if "podFailurePolicy" in job else ("Never", "OnFailure")
    if pod.get("restartPolicy") not in allowed:
        yield f"restartPolicy is {pod.get('restartPolicy')}; expected {' or '.join(allowed)} in this Job"
    if "podFailurePolicy" not in job:
        return
    if job.get("podReplacementPolicy", "Failed") != "Failed":
        yield "beside a podFailurePolicy, podReplacementPolicy is Failed"
    if "backoffLimitPerIndex" in job and job.get("completionMode") != "Indexed":
        yield "backoffLimitPerIndex needs completionMode: Indexed"
    names = {container["name"] for container in pod["containers"]}
    ignored: set[int] = set()
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {})
        if codes.get("containerName", min(names)) not in names:
            yield f"podFailurePolicy: there is no container {codes['containerName']}"
        if rule["action"] == "Ignore" and codes.get("operator") == "In":
            ignored.update(codes["values"])
    if ignored != {75}:
        yield f"podFailurePolicy ignores the statuses {sorted(ignored)}; expected 75, of a node that has left"


def _of_counts(manifest: Manifest) -> Iterator[str]:
    """The most nodes that the command line allows are as many as the pods that there are."""
    said = {int(most) for args in _found(manifest, "args") for arg in args for most in _most(arg)}
    said |= {int(one["value"]) for env in _found(manifest, "env") for one in env if one["name"] == "NODES_MAX"}
    names = ("completions", "parallelism", "maxReplicas", "numNodes") + ("replicas",) * (
        manifest["kind"] == "PyTorchJob"
    )
    if manifest["kind"] != "TrainingRuntime":
        said |= {count for name in names for count in _found(manifest, name)}
        if len(said) != 1:
            yield f"the most nodes are {', '.join(sorted(map(str, said)))}; expected one number"


def _most(arg: str) -> list[str]:
    return re.findall(r"^--nnodes=1:(\d+)$", arg)


def _found(value: Any, name: str) -> Iterator[Any]:
    """What stands under this name, anywhere."""
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        for inner in value.values():
            yield from _found(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _found(inner, name)
