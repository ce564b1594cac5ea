"""Which rank a process is, by the variables that each launcher was seen to set; and what is no launch at all."""

from __future__ import annotations

from itertools import combinations

import pytest

from elastic.errors import ConfigError
from elastic.membership.launchers import LAUNCHERS, Ranks, find

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "947257345",
    "PMIX_RANK": "3",
}
BATCH_SHELL = {
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_JOB_ID": "7",
    "SLURM_TASKS_PER_NODE": "2(x2)",
}
SLURM = BATCH_SHELL | {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "6"}
SETS = {"torchrun": TORCHRUN, "Open MPI": OPEN_MPI, "Slurm's srun": SLURM, "MPICH's mpiexec": MPICH}
JOBS = {"Open MPI": "947257345", "Slurm's srun": "7.2"}


def expected(name: str) -> Ranks:
    return Ranks(launcher=name, rank=3, world_size=4, local_rank=1, local_world_size=2, job=JOBS.get(name))


@pytest.mark.parametrize("name", SETS)
def test_each_launcher_says_which_rank_it_is(name: str) -> None:
    assert find(SETS[name]) == expected(name)


def test_who_is_nearest_is_asked_first() -> None:
    assert [one.name for one in LAUNCHERS] == list(SETS)
    for one, other in combinations(SETS, 2):
        assert find(SETS[other] | SETS[one]) == expected(one)


@pytest.mark.parametrize("env", [{}, BATCH_SHELL, {"PATH": "/"}, {"PMI_FD": "3"}])
def test_without_one_a_process_is_alone(env: dict[str, str]) -> None:
    """A batch script has Slurm's variables, too, and is no task."""
    assert find(env) is None


@pytest.mark.parametrize(("tasks", "node", "size"), [("3", 0, 3), ("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("1,2", 1, 2)])
def test_how_many_tasks_a_node_has_is_read_of_slurms_list(tasks: str, node: int, size: int) -> None:
    found = find(SLURM | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": str(node), "SLURM_LOCALID": "0"})
    assert found is not None
    assert found.local_world_size == size


@pytest.mark.parametrize(
    ("name", "lacking"),
    [(name, variable) for name, one in zip(SETS, LAUNCHERS, strict=True) for variable in one.variables],
)
def test_half_a_set_is_refused_by_name(name: str, lacking: str) -> None:
    if (name, lacking) == ("Slurm's srun", "SLURM_STEP_NUM_TASKS"):
        return  # what says that it is a step at all
    env = {variable: value for variable, value in SETS[name].items() if variable != lacking}
    with pytest.raises(ConfigError, match=f"half a launch: {name} says .*, but {lacking} is missing"):
        find(env)


@pytest.mark.parametrize(
    ("name", "variable"), [(name, one.variables[0]) for name, one in zip(SETS, LAUNCHERS, strict=True)]
)
@pytest.mark.parametrize("value", ["x", "-1", "4", ""])
def test_what_is_no_rank_is_refused(name: str, variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"describes no launch: .*{variable}={value}"):
        find(SETS[name] | {variable: value})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (TORCHRUN, SLURM | {"SLURM_PROCID": "2"}),
        (TORCHRUN, MPICH | {"PMI_SIZE": "8"}),
        (SLURM, MPICH | {"PMI_RANK": "0"}),
    ],
    ids=["by hand and Slurm", "by hand and PMI", "Slurm and PMI"],
)
def test_two_that_contradict_each_other_are_refused_with_both_named(one: dict[str, str], other: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"two launchers contradict each other: (.*) says .*, and (.*) says "):
        find(other | one)


@pytest.mark.parametrize("inner", [TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, OPEN_MPI])
def test_a_launcher_that_another_one_has_started_is_the_one_that_is_meant(inner: dict[str, str]) -> None:
    """`srun torchrun`, and mpiexec, which starts its daemons so."""
    found = find(SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"} | inner)
    assert found is not None
    assert (found.rank, found.world_size) == (3, 4)
