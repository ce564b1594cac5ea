"""A real Slurm of two nodes on one host of tests/kit/hosts.py: nobody else reaches it, and it ends with its machine.

Both nodes are daemons of that host. So it asks nobody who they are (auth/none): whoever could reach it is the test.
Needs Debian's slurmctld, slurmd and slurm-client. Checked with Slurm 22.05.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from elastic.drill.hosts.network import address, name, until
from tests.kit.hosts import Hosts

HOST = 1
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
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
NodeName=n1 NodeHostname={host} NodeAddr={address} Port=17011 CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr={address} Port=17012 CPUs=2 State=UNKNOWN
PartitionName=spot Nodes=n[1-2] Default=YES MaxTime=60 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=urgent Nodes=n[1-2] MaxTime=60 PriorityTier=10 PreemptMode=OFF
"""
_MACHINE = """
slurmctld -D -c &
slurmd -D -N n1 &
slurmd -D -N n2 &
wait
"""


def missing() -> str | None:
    """Why there can be no Slurm here."""
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    return f"no {', '.join(lacking)}: apt-get install slurmctld slurmd slurm-client" if lacking else None


class Slurm:
    """Up when it is made. grace_s: from the SIGTERM of a preemption to SIGKILL"""

    def __init__(self, hosts: Hosts, folder: Path, *, grace_s: int = 60) -> None:
        self._hosts = hosts
        self._folder = folder
        self._configuration = folder / "slurm.conf"
        for made in (folder / "state", folder / "spool-n1", folder / "spool-n2"):
            made.mkdir(parents=True)
        says = {"host": name(HOST), "address": address(HOST), "folder": folder}
        self._configuration.write_text(_CONFIGURATION.format(again_s=_QUEUED_AGAIN_S, grace_s=grace_s, **says))
        env = {"SLURM_CONF": str(self._configuration)}
        hosts.start(HOST, ["bash", "-c", _MACHINE], env=env, output=folder / "machine")
        until(self._is_up, "two idle nodes of Slurm")

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands says."""
        return self._hosts.on(HOST, "env", f"SLURM_CONF={self._configuration}", *command).strip()

    def submit(self, script: str, *flags: str) -> str:
        """A job of the script's lines. Returns its number."""
        path = self._folder / f"job-{len(list(self._folder.glob('job-*')))}.sh"
        path.write_text(f"#!/bin/bash\n{script}\n")
        return self.ask("sbatch", "--parsable", "--open-mode=append", f"--output={path}.out", *flags, str(path))

    def states(self) -> list[str]:
        """Of the jobs that are not over: "1 RUNNING"."""
        return self.ask("squeue", "--noheader", "--format=%i %T").splitlines()

    def said(self) -> str:
        """By all jobs, and where there is trouble by Slurm."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._folder.glob("job-*.out")))

    def _is_up(self) -> bool:
        try:
            return self.ask("sinfo", "--noheader", "--partition=spot", "--format=%D %t") == "2 idle"
        except Exception:  # it does not answer yet
            return False
