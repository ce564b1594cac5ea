"""Which sources of notices there are. A new one is a file in this folder and its name here."""

from __future__ import annotations

from elastic.preemption.sources.azure import Azure
from elastic.preemption.sources.command import Command
from elastic.preemption.sources.ec2 import Ec2
from elastic.preemption.sources.file import File
from elastic.preemption.sources.gcp import Gcp
from elastic.preemption.sources.slurm import Slurm
from elastic.preemption.sources.source import Source

_KINDS: tuple[type[Source], ...] = (Ec2, Gcp, Azure, Slurm, File, Command)
KINDS = {kind.name: kind for kind in _KINDS}
"""By the name in the setting; in this order they are looked for, and named in the help."""
VARIABLES = tuple(beginning for kind in _KINDS for beginning in kind.variables)
"""How the names of the environment's variables begin that they read."""
