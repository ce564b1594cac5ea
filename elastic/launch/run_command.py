"""`elastic run`: from the command line to an agent that has what it needs. Returns the exit status.

The flags are arguments.py's, the meeting of nodes nodes.py's, everything that follows the agent's.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Sequence

from elastic.errors import ConfigError
from elastic.observe.console import Console

_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """2 for what cannot be done as asked; else the agent's status: 0, 1 for a run that failed, 130."""
    # Before torch is loaded: torchrun's machinery reads the second one, and warns where the first is missing.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    from elastic.launch.arguments import parse

    try:
        arguments = parse(argv)
    except ConfigError as wrong:
        print(f"elastic run: {wrong}", file=sys.stderr)
        return _USAGE

    from checkpoint.beacon import Beacon
    from elastic.launch.agent import Agent, NodeRules
    from elastic.launch.hubs import HubHere
    from elastic.launch.logs import Logs
    from elastic.membership.hub import Hub

    say = Console(quiet=False).warn
    node = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
    nonce = secrets.token_hex(16)
    beacon = Beacon(nonce=nonce, job=arguments.run_id)
    try:
        hub = HubHere(
            Hub(
                nodes_min=arguments.nodes_min,
                nodes_max=arguments.nodes_max,
                restarts_max=arguments.restarts_max,
                beacon={"nonce": nonce, "endpoint": beacon.endpoint()},
            ),
            node,
        )
        rules = NodeRules(
            node=node,
            address="127.0.0.1",
            workers=arguments.workers,
            job=arguments.run_id,
            hang_s=arguments.hang_s,
            leave_s=arguments.leave_s,
            leave_on=arguments.leave_on,
        )
        logs = Logs(arguments.logs, say=say)
        return Agent(arguments.script, rules, hub, logs, os.environ, fresh=arguments.fresh, say=say).run()
    finally:
        beacon.close()
