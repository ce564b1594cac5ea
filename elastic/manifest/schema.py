"""Every field of a manifest: its type, and what it means. The JSON schema and the table for people are made from here.

Fields may be added; none is renamed, and none changes its meaning without another `VERSION` (files.py). A reader passes
over what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType


def _means(meaning: str) -> Meta:
    return Meta(description=meaning)


class File(Struct, kw_only=True):
    """An object below the run's URL."""

    file: Annotated[str, _means("its key")]
    sha256: Annotated[str, _means("of its bytes")]
    bytes: Annotated[int, _means("how many")]
    whole: Annotated[bool, _means("false: cut at 1 MiB")]
    altered: Annotated[bool, _means("true: something confidential was replaced by `***`")]


class Run(Struct, kw_only=True):
    """The launch."""

    url: Annotated[str, _means("where the run lives")]
    claim: Annotated[int, _means("the number under which this launch writes the run's storage")]
    resumed_from: Annotated[dict[str, Any] | None, _means("{claim, step} of the checkpoint that it goes on from")]
    t: Annotated[float, _means("unix seconds, when this was collected")]
    worker: Annotated[str, _means("the coordinator's id, whose machine and process are described")]
    world_size: Annotated[int, _means("workers in its view then; `elastic manifest` has later views from events")]
    workers: Annotated[list[str], _means("their ids, by rank: host, process id and a token")]


class Arguments(Struct, kw_only=True):
    """The arguments of `elastic.Run`; what JSON cannot hold is `{"class": its name}`, with a dataclass's fields."""

    given: Annotated[dict[str, Any], _means("as the script, or its trainer, gave them; of storage options the names")]
    resolved: Annotated[dict[str, Any], _means("what they came to on the coordinator")]


class Data(Struct, kw_only=True):
    """The data set."""

    kind: Annotated[str, _means("its class")]
    length: Annotated[int, _means("how many examples it has")]
    order: Annotated[Any, _means("which order an epoch has")]
    identity: Annotated[Any, _means("what it says of its content; absent: it says nothing")] = UNSET


class Script(Struct, kw_only=True):
    """The script."""

    path: Annotated[str, _means("where it lay")]
    sha256: Annotated[str, _means("of its bytes")]
    module: Annotated[str | None, _means("its name, where it was started by `-m`")]
    arguments: Annotated[list[str], _means("what stood behind it on the command line")]
    folder: Annotated[str, _means("the current folder")]
    copy: Annotated[File | UnsetType, _means("its text")] = UNSET


class Command(Struct, kw_only=True):
    """Command lines, word by word."""

    worker: Annotated[list[str], _means("python's own, of the worker")]
    launcher: Annotated[list[str] | None, _means("of the process above it; null: nothing has launched it")]


class Git(Struct, kw_only=True):
    """The repository in which the script lies."""

    root: Annotated[str, _means("its folder")]
    script: Annotated[str | None, _means("the script's path in it; null: it lies elsewhere")]
    commit: Annotated[str | None, _means("that is checked out; null: there is none")]
    branch: Annotated[str | None, _means("that is checked out; null: none is")]
    remote: Annotated[str | None, _means("the URL of `origin`")]
    dirty: Annotated[bool, _means("tracked files differ from the commit")]
    untracked: Annotated[list[str], _means("files that it does not know, 100 at most")]
    diff: Annotated[File | UnsetType, _means("`git diff HEAD`, where it is dirty")] = UNSET


class Packages(Struct, kw_only=True):
    """What is installed."""

    lock: Annotated[File, _means("for `pip install --requirement`")]
    versions: Annotated[dict[str, str | None], _means("by name; null: a distribution that does not say")]


class Python(Struct, kw_only=True):
    """The interpreter."""

    version: Annotated[str, _means("such as 3.11.4")]
    implementation: Annotated[str, _means("such as CPython")]
    executable: Annotated[str, _means("its file")]
    flags: Annotated[dict[str, Any], _means("sys.flags that are not 0, and hash_seed: PYTHONHASHSEED")]


class Torch(Struct, kw_only=True):
    """Torch, and what is beneath it."""

    version: Annotated[str, _means("with its build")]
    git: Annotated[str | None, _means("its commit")]
    cuda: Annotated[str | None, _means("that it was built for")]
    hip: Annotated[str | None, _means("that it was built for")]
    cudnn: Annotated[int | None, _means("its version")]
    nccl: Annotated[str | None, _means("its version")]
    threads: Annotated[int, _means("intra-op")]
    interop_threads: Annotated[int, _means("inter-op")]


class Machine(Struct, kw_only=True):
    """The coordinator's machine."""

    host: Annotated[str, _means("its name")]
    system: Annotated[str, _means("the kernel")]
    distribution: Annotated[str | None, _means("such as Debian GNU/Linux 12")]
    libc: Annotated[str | None, _means("its version")]
    processor: Annotated[str | None, _means("its model")]
    processors: Annotated[int, _means("that this process may use")]
    memory_bytes: Annotated[int, _means("of the machine")]
    gpus: Annotated[list[str], _means("models of NVIDIA's, as the driver has them")]
    driver: Annotated[str | None, _means("version of NVIDIA's")]


class Launcher(Struct, kw_only=True):
    """Who has started the workers."""

    name: Annotated[str | None, _means("`elastic run`, `torchrun`, ...; null: the script was started by itself")]
    job: Annotated[str | None, _means("its name of this launch")]
    restart: Annotated[int, _means("how often it has started this worker's slot again")]
    replica_size: Annotated[int, _means("workers that hold one copy of the state together")]
    variables: Annotated[dict[str, str], _means("what it has set")]


class Container(Struct, kw_only=True):
    """The container, as far as the environment says; absent: it says nothing."""

    image: Annotated[str | None, _means("from ELASTIC_IMAGE, APPTAINER_CONTAINER, or /run/.containerenv")]
    digest: Annotated[str | None, _means("behind the image's @, or its id")]


class Manifest(Struct, kw_only=True):
    """A manifest. In `launches.jsonl` a part that is neither there nor in `absent` is as in `manifest.json`."""

    format: Annotated[str, _means("elastic-manifest")]
    version: Annotated[int, _means("1")]
    run: Annotated[Run, _means("this launch")]
    absent: Annotated[dict[str, str], _means("part or field that could not be had -> why")]
    arguments: Annotated[Arguments | UnsetType, _means("of `elastic.Run`")] = UNSET
    identity: Annotated[
        dict[str, Any] | UnsetType,
        _means("the run's identity: what must be equal for equal bits, with seed, virtual_workers, order and threads"),
    ] = UNSET
    data: Annotated[Data | UnsetType, _means("the data set")] = UNSET
    script: Annotated[Script | UnsetType, _means("the script")] = UNSET
    command: Annotated[Command | UnsetType, _means("command lines")] = UNSET
    git: Annotated[Git | UnsetType, _means("the script's repository")] = UNSET
    packages: Annotated[Packages | UnsetType, _means("what is installed")] = UNSET
    python: Annotated[Python | UnsetType, _means("the interpreter")] = UNSET
    torch: Annotated[Torch | UnsetType, _means("torch, and what is beneath it")] = UNSET
    machine: Annotated[Machine | UnsetType, _means("the coordinator's machine")] = UNSET
    launcher: Annotated[Launcher | UnsetType, _means("who has started the workers")] = UNSET
    container: Annotated[Container | UnsetType, _means("the container")] = UNSET
    environment: Annotated[
        dict[str, str] | UnsetType, _means("variables that torch, its libraries, python and elastic read")
    ] = UNSET


_PARTS = (
    Manifest, Run, Arguments, Data, Script, Command, Git, Packages, Python, Torch, Machine, Launcher, Container, File,
)  # fmt: skip


def json_schema() -> str:
    """Return the JSON schema of a manifest, and of a line of launches.jsonl."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Manifest)}
    return json.dumps(schema, indent=1)


def table() -> str:
    """Return the table of fields, as Markdown."""
    lines: list[str] = []
    for part in _PARTS:
        name = "manifest" if part is Manifest else part.__name__.lower()
        lines += ["", f"### {name}", "", (part.__doc__ or "").strip(), ""]
        lines += ["| field | type | meaning |", "|---|---|---|"]
        lines += [f"| `{field}` | {kind} | {meaning} |" for field, kind, meaning in _fields(part)]
    return "\n".join(lines[1:]) + "\n"


def _fields(part: type[Struct]) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and meaning of a part's fields."""
    hints = get_type_hints(part, include_extras=True)
    for field in part.__struct_fields__:
        of_type, meta = get_args(hints[field])[:2]
        yield field, " or ".join(_kinds(of_type)), meta.description


def _kinds(of_type: Any) -> list[str]:
    """Return the words for a type."""
    if of_type is UnsetType:
        return ["absent"]
    if of_type is Any:
        return ["any JSON"]
    if of_type is type(None):
        return ["null"]
    if (origin := get_origin(of_type)) in (dict, list):
        return [str(origin.__name__)]
    if origin is not None:
        return [word for one in get_args(of_type) for word in _kinds(one)]
    return [of_type.__name__.lower()]
