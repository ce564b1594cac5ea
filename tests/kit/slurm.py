"""A real Slurm, a node on each host of tests/kit/hosts.py: nobody else reaches it, and it ends with its machines.

The first host has the controller, too. A node is lost with its machine (Slurm.lose), all at once, and comes back by
itself (Slurm.bring_back). Nobody is asked who they are (auth/none): whoever could reach it is the test.
Needs Debian's slurmctld, slurmd and slurm-client. Checked with Slurm 22.05.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from elastic.drill.hosts.network import address, name, until
from tests.kit.hosts import Hosts

HOST = 1
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
_LOST_S = 20  # for so long Slurm waits for the word of a node
_QUEUED_AGAIN_S = 5  # for so long Slurm keeps a job that is queued again; two minutes unless it is told
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire={again_s}
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
SlurmdTimeout={lost_s}
ReturnToService=2
{nodes}
PartitionName=spot Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""
_NODE = "NodeName=n{number} NodeHostname={host} NodeAddr={address} Port=17010 CPUs=2 State=UNKNOWN"


def missing() -> str | None:
    """Why there can be no Slurm here."""
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"no {', '.join(lacking)}: apt-get install slurmctld slurmd slurm-client" if lacking else None


class Slurm:
    """Up when it is made, of all hosts that there are: node n1 is on the first. grace_s: from the SIGTERM of a
    preemption to SIGKILL"""

    def __init__(self, hosts: Hosts, folder: Path, *, grace_s: int = 60) -> None:
        self._hosts = hosts
        self._folder = folder
        self._configuration = folder / "slurm.conf"
        self._submitted = 0
        (folder / "state").mkdir(parents=True)
        nodes = (_NODE.format(number=host, host=name(host), address=address(host)) for host in hosts.numbers)
        says = {"host": name(HOST), "address": address(HOST), "folder": folder, "nodes": "\n".join(nodes)}
        times = {"again_s": _QUEUED_AGAIN_S, "lost_s": _LOST_S, "grace_s": grace_s}
        self._configuration.write_text(_CONFIGURATION.format(**says, **times))
        for node in hosts.numbers:
            self.bring_back(node)
        until(lambda: self._idle() == len(hosts.numbers), f"{len(hosts.numbers)} idle nodes of Slurm")

    def lose(self, node: int) -> None:
        """All that runs there is killed, Slurm's own daemons, too. (The first one has the controller.)"""
        self._hosts.crash(node)

    def bring_back(self, node: int) -> None:
        (self._folder / f"spool-n{node}").mkdir(exist_ok=True)
        controller = "slurmctld -D -c & " if node == HOST else ""
        command = ["bash", "-c", f"{controller}exec slurmd -D -N n{node}"]
        env = {"SLURM_CONF": str(self._configuration)}
        self._hosts.start(node, command, env=env, output=self._folder / f"machine-n{node}")

    def ask(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        """What one of Slurm's commands says. env: for it, beside this process's"""
        given = {**(env or {}), "SLURM_CONF": str(self._configuration)}
        return self._hosts.on(HOST, "env", *(f"{key}={value}" for key, value in given.items()), *command).strip()

    def submit(self, script: str, *flags: str) -> str:
        """A job of the script's lines. Returns its number."""
        path = self._folder / f"job-{self._submitted}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.submit_file(path, [*flags, "--open-mode=append"])

    def submit_file(
        self, path: Path, flags: Sequence[str], *, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> str:
        """A job as its file has it, with arguments for it. Returns its number."""
        output = self._folder / f"job-{self._submitted}.out"
        self._submitted += 1
        command = ["sbatch", "--parsable", f"--output={output}", *flags, str(path), *arguments]
        return self.ask(*command, env=env)

    def states(self) -> list[str]:
        """Of the jobs that are not over: "1 RUNNING"."""
        return self.ask("squeue", "--noheader", "--format=%i %T").splitlines()

    def ended(self) -> set[str]:
        """In which states, all jobs that are over: {"COMPLETED"}."""
        return set(re.findall(r"\bJobState=(\w+)", self.ask("scontrol", "show", "jobs")))

    def said(self) -> str:
        """By all jobs, in the order in which they were submitted."""
        paths = [self._folder / f"job-{number}.out" for number in range(self._submitted)]
        return "\n".join(path.read_text(errors="replace") for path in paths if path.exists())

    def _idle(self) -> int:
        """How many nodes are."""
        try:
            return int(self.ask("sinfo", "--noheader", "--partition=spot", "--states=idle", "--format=%D") or 0)
        except Exception:  # it does not answer yet
            return 0
