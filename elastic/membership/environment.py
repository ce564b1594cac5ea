"""Who started this process, and as which worker? What a launcher tells training is read here, and only here.

Whoever else looks at the environment looks for what is its own, and tests/pure/test_environment.py names them all:
launch/ hands it on to workers, which find their agent and their channel in it before they are any; drill/ keeps words
of its own there; integrations/accelerate.py hides the launcher from a library; plan/ and group/nccl.py set what gloo
and NCCL read; checkpoint reads the run's secret, and hands the rest on to the process that writes.

`elastic run`, torchrun, `srun`, mpiexec (launchers.py) and a process on its own are understood.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from elastic.errors import ConfigError
from elastic.membership import launchers
from elastic_checkpoint import linux

if TYPE_CHECKING:
    from elastic.events.observer import Observer

PORTABLE_INSTRUCTION_SETS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}
"""What pins the instruction set of ATen, oneDNN and MKL to AVX2, which every x86-64 cloud machine has. MKL has two
settings, of which the second could bound the first: with SSE4_2 in it a Sapphire Rapids gave other bits (measured)."""

_OF_PROCESSOR = (
    "ATEN_CPU_CAPABILITY",
    *("ONEDNN_MAX_CPU_ISA", "ONEDNN_CPU_ISA_HINTS", "ONEDNN_DEFAULT_FPMATH_MODE"),
    *("DNNL_MAX_CPU_ISA", "DNNL_CPU_ISA_HINTS", "DNNL_DEFAULT_FPMATH_MODE"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "OPENBLAS_CORETYPE"),
)
_OF_COMPILER = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_", "TORCH_DYNAMO_", "AOT_")
_WITHOUT_EFFECT = ("CACHE", "THREADS", "WORKER", "LOG", "DEBUG", "TRACE", "VERBOSE", "PROGRESS", "SAVE_ARGS")
_STDERR = 2
NOTICES, GRACE = "ELASTIC_NOTICES", "ELASTIC_GRACE_S"
ACCEPT, RESCUE = "ELASTIC_ACCEPT", "ELASTIC_RESCUE"
REPLICA = "ELASTIC_REPLICA"  # SIZE:NAME
WORLD = "ELASTIC_WORLD"  # the variables that this worker has of torchrun's world, with commas
_TORCHRUNS_GRACE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
_TORCHRUNS_FLAG = re.compile(rb"\0--shutdown[-_]timeout[=\0](\d+)\0")
_OF_TRAIN_JOB = ("KUBEFLOW_TRAINER_STATUS_URL", "KUBEFLOW_TRAINER_STATUS_CA_CERT", "KUBEFLOW_TRAINER_STATUS_TOKEN")
_left: dict[str, str] = {}  # this worker's place in torchrun's world, until it entered a run
_DESCRIPTORS = ("ELASTIC_CHANNEL", "ELASTIC_PROGRESS")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One worker's launch, as its launcher describes it in the environment.

    launcher                  who has started it, in words; None: `elastic run`, or nobody
    master_addr, master_port  where torchrun's ranks meet; None: at the run's URL, if there are several
    agent_hosts_store         torchrun's agent listens there; otherwise rank 0 must
    job                       the launcher's name of this launch: torchrun's --rdzv-id where it tells jobs apart
    restart                   how often this node's agent has restarted its workers
    observer                  "module:factory:argument", for drills
    channel                   descriptor of the way to the agent of `elastic run`: ranks come from views, not from here
    progress                  descriptor of the memory in which that agent reads where this worker is
    address                   what a view's group listens on
    token                     the end of the worker's id, where its agent has chosen one
    ordered                   unix seconds, when that agent asked for this worker
    status                    that agent takes the run's status
    shown                     and shows it on its terminal
    metrics                   that agent serves figures of its workers
    terminal                  this worker shows it itself, on stderr: rank 0 under torchrun, on a terminal
    several_nodes             the agent's run may have some
    node                      the agent's name for its own
    notices                   which sources of notices its node has, see preemption/setting.py; under an agent no
                              concern of its workers
    grace_s                   from a signal to leave to SIGKILL, as far as the launcher, or ELASTIC_GRACE_S, says
    rescue                    folder for a copy of what cannot be saved; None: nobody says
    replica_size              so many workers of one node hold one copy of the state together, under `elastic run`
    replica                   the name of this worker's, another one each time that it is started; "": it is its own
    replica_rank              this worker's place in it
    placed                    rank and world size are those of torchrun's world, which this worker of `elastic run` has
                              not left for a run
    hang_s                    how long a worker may compute without a step's end before it counts as hung, at least
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    launcher: str | None = None
    master_addr: str | None = None
    master_port: int | None = None
    agent_hosts_store: bool = False
    job: str | None = None
    restart: int = 0
    observer: str | None = None
    channel: int | None = None
    progress: int | None = None
    address: str | None = None
    token: str | None = None
    ordered: float | None = None
    status: bool = False
    shown: bool = False
    metrics: bool = False
    terminal: bool = False
    several_nodes: bool = False
    node: str = ""
    notices: str = "auto"
    grace_s: float | None = None
    hang_s: float = 30.0
    rescue: str | None = None
    replica_size: int = 1
    replica: str = ""
    replica_rank: int = 0
    placed: bool = False

    @property
    def one_node(self) -> bool:
        """Return whether all workers of the launch run on one node."""
        return self.local_world_size == self.world_size


def read(environ: Mapping[str, str] | None = None) -> Launch:
    """Return the launch that `environ` (default: this process's) describes. Raises ConfigError if it is half of one."""
    env = os.environ if environ is None else environ
    observer = env.get("ELASTIC_OBSERVER") or None
    if "ELASTIC_CHANNEL" in env:
        size, _, replica = env.get(REPLICA, "").partition(":")
        placed = WORLD in env and "RANK" in env  # a script may hide it from a library
        return Launch(
            rank=int(env["RANK"]) if placed else 0,
            world_size=int(env["WORLD_SIZE"]) if placed else 1,
            placed=placed,
            local_rank=int(env.get("LOCAL_RANK", "0")),
            local_world_size=int(env.get("LOCAL_WORLD_SIZE", "1")),
            job=env.get("ELASTIC_JOB"),
            restart=int(env.get("ELASTIC_RESTART", "0")),
            observer=observer,
            channel=int(env["ELASTIC_CHANNEL"]),
            progress=int(env["ELASTIC_PROGRESS"]) if "ELASTIC_PROGRESS" in env else None,
            address=env.get("ELASTIC_ADDRESS"),
            token=env.get("ELASTIC_TOKEN"),
            ordered=float(env["ELASTIC_ORDERED"]) if "ELASTIC_ORDERED" in env else None,
            status=env.get("ELASTIC_STATUS") == "1",
            shown=env.get("ELASTIC_SHOWN") == "1",
            metrics=env.get("ELASTIC_METRICS") == "1",
            several_nodes=env.get("ELASTIC_SEVERAL_NODES") == "1",
            node=env.get("ELASTIC_NODE", ""),
            notices="none",  # its agent watches for them
            grace_s=grace_s(env),
            hang_s=float(env.get("ELASTIC_HANG_S", "30")),
            rescue=env.get(RESCUE) or None,
            replica_size=int(size or "1"),
            replica=replica,
            replica_rank=int(env["RANK"]) if replica else 0,
        )
    ranks = launchers.find(env)
    if ranks is None:
        return Launch(observer=observer, notices=notices(env), grace_s=grace_s(env), rescue=env.get(RESCUE) or None)
    of_torchrun = ranks.launcher == launchers.Torchrun.name
    return Launch(
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        world_size=ranks.world_size,
        local_world_size=ranks.local_world_size,
        launcher=ranks.launcher,
        master_addr=env["MASTER_ADDR"] if of_torchrun else None,
        master_port=int(env["MASTER_PORT"]) if of_torchrun else None,
        agent_hosts_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        job=ranks.job,
        restart=int(env.get("TORCHELASTIC_RESTART_COUNT", "0")),
        observer=observer,
        notices=notices(env),
        grace_s=grace_s(env),
        rescue=env.get(RESCUE) or None,
        terminal=ranks.rank == 0 and env.get("ELASTIC_STATUS") != "0" and _is_terminal(_STDERR, env),
    )


def leave_world() -> None:
    """Forget this worker's place in torchrun's world, as it enters a run: its rank follows from views from here on."""
    names = os.environ.get(WORLD)
    for name in (WORLD, *names.split(",")) if names else ():
        _left[name] = os.environ.pop(name, "")


def launcher(environ: Mapping[str, str] | None = None) -> launchers.Ranks | None:
    """Return which task of another launcher than torchrun `elastic run` is itself; None: none. Raises ConfigError."""
    env = dict(os.environ if environ is None else environ)
    for name in launchers.Torchrun.variables:
        env.pop(name, None)
    return launchers.find(env)


def notices(environ: Mapping[str, str] | None = None) -> str:
    """Return which sources of notices are to be watched, as the environment says; see preemption/setting.py."""
    env = os.environ if environ is None else environ
    return env.get(NOTICES) or "auto"


def accept(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the names of identity fields that may differ, beside those that the script says."""
    env = os.environ if environ is None else environ
    return names_in(env.get(ACCEPT, ""))


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas, each once."""
    return tuple(dict.fromkeys(name for one in text.split(",") if (name := one.strip())))


def grace_s(environ: Mapping[str, str] | None = None, parent: bytes | None = None) -> float | None:
    """Return the seconds from a signal to leave to SIGKILL; None: nobody says. Raises ConfigError.

    parent  the command line of this process's parent, with a NUL after each argument; default: as the kernel has it
    """
    env = os.environ if environ is None else environ
    of_torchrun = None
    if (
        "TORCHELASTIC_RUN_ID" in env and "ELASTIC_CHANNEL" not in env
    ):  # torchrun says it by its flag, its variable or its default; others do not
        flag = _TORCHRUNS_FLAG.search(linux.command_line(os.getppid()) if parent is None else parent)
        of_torchrun = flag[1].decode() if flag is not None else env.get(_TORCHRUNS_GRACE, "30")
    for name, said in ((GRACE, env.get(GRACE)), (_TORCHRUNS_GRACE, of_torchrun)):
        if said:
            try:
                seconds = float(said)
            except ValueError:
                seconds = math.nan
            if not 0 <= seconds < math.inf:
                raise ConfigError(f"{name}={said!r}; expected seconds from the signal to leave to SIGKILL")
            return seconds
    return None


def local_rank(environ: Mapping[str, str] | None = None) -> int:
    """Return this process's number among those of its node that a launcher has started; 0 where none says."""
    env = os.environ if environ is None else environ
    names = (one.variables[2] for one in launchers.LAUNCHERS)
    return int(next((env[name] for name in names if env.get(name, "").isdigit()), "0"))


def is_launchers_child(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a launcher reaps this process, and takes every exit status but 0 for a failure."""
    env = os.environ if environ is None else environ
    return "TORCHELASTIC_RUN_ID" in env or "ELASTIC_CHANNEL" in env


def is_one_of_several(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether a launcher has started workers beside this one, or may start some."""
    env = os.environ if environ is None else environ
    # `elastic run` tells of its own node's workers alone
    workers = int(env.get("WORLD_SIZE") or env.get("LOCAL_WORLD_SIZE") or "1")
    if "WORLD_SIZE" not in env and "ELASTIC_CHANNEL" not in env and (ranks := launchers.find(env)) is not None:
        workers = ranks.world_size
    return workers > 1 or env.get("ELASTIC_SEVERAL_NODES") == "1"


def url_and_virtual_workers(environ: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Return (URL, virtual workers) of a run whose script names it by a word alone; "" and 0 where nobody says."""
    env = os.environ if environ is None else environ
    return env.get("ELASTIC_URL", ""), int(env.get("ELASTIC_VIRTUAL_WORKERS", "0"))


def train_job(environ: Mapping[str, str] | None = None) -> tuple[str, str, str] | None:
    """Return the URL that takes a Kubeflow TrainJob's progress, and the files of its certificate and of a token.

    None: there is no TrainJob, or one that takes no progress.
    """
    env = os.environ if environ is None else environ
    url, certificate, token = (env.get(name, "") for name in _OF_TRAIN_JOB)
    return (url, certificate, token) if url else None


def beginning_with(names: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables whose names begin with one of `names`."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in env.items() if name.startswith(tuple(names))}


def named_values(
    launch: Launch, *commands: Sequence[str], environ: Mapping[str, str] | None = None
) -> list[tuple[str, str]]:
    """Return names and values of the environment and of command lines: some may be confidential by their names."""
    from elastic_checkpoint.storage.redact import words_of  # with fsspec, for which who starts workers does not wait

    named = [*beginning_with([""], environ).items(), *(one for command in commands for one in words_of(command))]
    # A worker's name ends with what its agent has called its token, which opens nothing.
    return [(name, value) for name, value in named if value != launch.token]


def _is_terminal(fd: int, env: Mapping[str, str]) -> bool:
    if not os.isatty(fd):
        return False
    from elastic.status.terminal import wanted

    return wanted(fd, env)


def observer(launch: Launch) -> Observer:
    """Return the observer that the launcher asked for; the null observer where it asked for none."""
    from elastic.events.observer import Observer

    if launch.observer is None:
        return Observer()
    module, _, rest = launch.observer.partition(":")
    factory, _, argument = rest.partition(":")
    made = getattr(import_module(module), factory)(argument)
    assert isinstance(made, Observer)
    return made


def missing_portable_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that `portable=True` needs and that are not set as it needs them."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in PORTABLE_INSTRUCTION_SETS.items() if env.get(name) != value}


def with_portable_settings() -> dict[str, str]:
    """Return this process's environment with the settings that `portable=True` needs."""
    return {**os.environ, **_left, **PORTABLE_INSTRUCTION_SETS}


def processor_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables by which the libraries beneath torch choose other code."""
    env = os.environ if environ is None else environ
    return {name: value for name, value in sorted(env.items()) if name.startswith(_OF_PROCESSOR)}


def compiler_settings(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that torch's compiler reads, but for those that change no kernel."""
    env = os.environ if environ is None else environ
    return {
        name: value
        for name, value in sorted(env.items())
        if name.startswith(_OF_COMPILER) and not any(word in name for word in _WITHOUT_EFFECT)
    }


def descriptors_of_agent(environ: Mapping[str, str] | None = None) -> list[int]:
    """Return the descriptors of its agent's that a worker of `elastic run` has open."""
    env = os.environ if environ is None else environ
    return [int(env[name]) for name in _DESCRIPTORS if name in env]
