"""Which rank of how many is this process, as the launcher says that has started it? One class for each; pure.

    Torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    OpenMPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
    Slurm      SLURM_PROCID, SLURM_LOCALID and others, in a step
    PMI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS: MPICH's mpiexec

Where the ranks meet, torchrun alone says; others meet by the run's URL (worker/rendezvous.py).

Checked with torch 2.13, Open MPI 4.1, Slurm 22.05, MPICH 4.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic.errors import ConfigError

_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """A process's place in its launch. job: tells launches apart; None: the launcher has no name for them."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    job: str | None = None


class Launcher(Protocol):
    """A launcher, known by the variables that it sets.

    variables  the rank, the world size, the local rank, and others: all of them, or none
    """

    @property
    def name(self) -> str: ...

    @property
    def variables(self) -> tuple[str, ...]: ...

    def speaks(self, env: Mapping[str, str]) -> bool:
        """Return whether a process with these variables is one of its own."""

    def ranks(self, env: Mapping[str, str]) -> Ranks:
        """Return the place of a process of its own. Raises ValueError for what is no number."""


class Torchrun:
    name = "torchrun"
    variables = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

    def speaks(self, env: Mapping[str, str]) -> bool:
        return "RANK" in env or "WORLD_SIZE" in env

    def ranks(self, env: Mapping[str, str]) -> Ranks:
        job = env.get("TORCHELASTIC_RUN_ID", "none")
        return _ranks(self, env, job=None if job == "none" else job)


class OpenMPI:
    name = "Open MPI"
    variables = tuple(f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"))

    def speaks(self, env: Mapping[str, str]) -> bool:
        return any(name in env for name in self.variables)

    def ranks(self, env: Mapping[str, str]) -> Ranks:
        return _ranks(self, env, job=env.get("PMIX_NAMESPACE"))


class Slurm:
    name = "Slurm's srun"
    variables = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")

    def speaks(self, env: Mapping[str, str]) -> bool:
        return "SLURM_STEP_NUM_TASKS" in env  # a batch script, too, has SLURM_PROCID=0; only a step has this

    def ranks(self, env: Mapping[str, str]) -> Ranks:
        rank, size, local_rank, tasks, node = (env[name] for name in self.variables)
        counts: list[int] = []  # of each node: "2(x3),1" is 2 tasks on each of three nodes, then 1
        for count, nodes in _TASKS.findall(tasks):
            counts += [int(count)] * int(nodes or 1)
        return Ranks(
            launcher=self.name,
            rank=int(rank),
            world_size=int(size),
            local_rank=int(local_rank),
            local_world_size=counts[int(node)],
            job=".".join(env[name] for name in ("SLURM_JOB_ID", "SLURM_STEP_ID") if name in env) or None,
        )


class PMI:
    name = "MPICH's mpiexec"
    variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")

    def speaks(self, env: Mapping[str, str]) -> bool:
        return any(name in env for name in self.variables[:2])

    def ranks(self, env: Mapping[str, str]) -> Ranks:
        return _ranks(self, env, job=None)


# The first that speaks is meant: Open MPI starts its processes on other nodes by `srun`, whose variables they have,
# too; `srun --mpi=pmi2` sets some of PMI's.
LAUNCHERS: tuple[Launcher, ...] = (Torchrun(), OpenMPI(), Slurm(), PMI())


def find(env: Mapping[str, str]) -> Ranks | None:
    """Return this process's place, as its launcher says it; None: no launcher has started it, or it says nothing.

    Raises ConfigError for half a set of variables, and where a rank set by hand, or by PMI, is not the one that another
    launcher says.
    """
    speaking = [one for one in LAUNCHERS if one.speaks(env)]
    if not speaking:
        return None
    launcher = speaking[0]
    found = _of(launcher, env)
    # torchrun and mpiexec may themselves have been started by another launcher, a task on each node.
    if isinstance(launcher, OpenMPI) or "TORCHELASTIC_RUN_ID" in env:
        return found
    for other in speaking[1:]:
        there = _of(other, env) if all(name in env for name in other.variables) else None
        if there is not None and (there.rank, there.world_size) != (found.rank, found.world_size):
            raise ConfigError(
                f"two launchers contradict each other: {_said(launcher, env)}, and {_said(other, env)}\n"
                "  state  nothing was started\n"
                "  next   start the script with one of them, or unset the variables of the one that did not start it"
            )
    return found


def _of(launcher: Launcher, env: Mapping[str, str]) -> Ranks:
    """Return the place that this launcher says. Raises ConfigError for half a launch, and for ranks that cannot be."""
    if missing := [name for name in launcher.variables if name not in env]:
        raise ConfigError(
            f"the environment describes half a launch: {_said(launcher, env)}, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing.\n"
            f"  next  start the script with {launcher.name}, or unset {' and '.join(launcher.variables[:2])} to run it "
            "alone"
        )
    try:
        found = launcher.ranks(env)
        if not 0 <= found.rank < found.world_size or not 0 <= found.local_rank < found.local_world_size:
            raise ValueError
    except (ValueError, IndexError):
        said = ", ".join(f"{name}={env[name]}" for name in launcher.variables)
        raise ConfigError(
            f"the environment describes no launch: {said}\n"
            "  next  expected numbers as torchrun or another launcher sets them, each rank below its world's size"
        ) from None
    return found


def _said(launcher: Launcher, env: Mapping[str, str]) -> str:
    return f"{launcher.name} says " + " ".join(f"{name}={env.get(name)}" for name in launcher.variables[:2])


def _ranks(launcher: Launcher, env: Mapping[str, str], *, job: str | None) -> Ranks:
    rank, size, local_rank, local_size = (env[name] for name in launcher.variables[:4])
    return Ranks(
        launcher=launcher.name,
        rank=int(rank),
        world_size=int(size),
        local_rank=int(local_rank),
        local_world_size=int(local_size),
        job=job,
    )
