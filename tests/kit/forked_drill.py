"""`elastic drill`, whose nodes are forks where they can be: forkserver.py says which those are."""

from __future__ import annotations

from elastic.drill.both_runs import Drill
from tests.kit.forkserver import ForkedMachine
from tests.kit.hosts import Hosts


class ForkedDrill(Drill):
    this_machine = ForkedMachine
    hosts = Hosts
