"""`elastic run`: from the command line to an agent that has what it needs.

The flags are arguments.py's, the meeting of nodes meeting.py's, everything that follows the agent's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from elastic.errors import ConfigError
from elastic.launch.processes.early_signals import EarlySignals, LeftEarly
from elastic.membership.environment import ACCEPT, RESCUE, train_job
from elastic.membership.exit_statuses import INTERRUPTED
from elastic.status.console import Console
from elastic.status.unread_output import drop_unread_output
from elastic_checkpoint import linux
from elastic_checkpoint.errors import CheckpointError
from elastic_checkpoint.net.secret import VARIABLE, secret_of_one_launch, secret_of_run, without_secret
from elastic_checkpoint.net.transport import prepare

if TYPE_CHECKING:
    from elastic.launch.arguments import Arguments
    from elastic.launch.meeting import Meeting
    from elastic.launch.node.metrics import NodeMetrics
    from elastic.launch.node.notices import NoticeHook
    from elastic.launch.rendezvous.store_host import StoreHost
    from elastic.launch.workers.starter import Starter
    from elastic.membership.hub.hub import Hub
    from elastic_checkpoint.runs.liveness import LivenessServer

LOCAL = "127.0.0.1"
_FAILED, _USAGE = 1, 2
_LOOK_S = 0.05
_OPEN = without_secret(
    "several nodes",
    "whoever reaches their ports can join this run, evict its nodes, receive its weights and end it",
    give_to="`elastic run` on all nodes",
)

_NO_THREAD = "can't start new thread"  # Python's words
_NO_PROCESS = (
    "no further process or thread could be started: {}\n"
    "  state  this node has ended; what was committed before is whole\n"
    "  next   let this user have more processes and threads (`ulimit -u`, pids.max of its control group)"
)


def main(argv: Sequence[str], *, waits: Callable[[Starter], None] | None = None, preloaded: bool | None = None) -> int:
    """Run the command, and return 2 for what cannot be done as asked, else the agent's exit status.

    waits      called before this node meets others, while its fork server imports
    preloaded  this process has loaded torch as a worker would, and has one thread; None: look

    The agent's status is 0, 1 for a run that failed, 75 where the run has had its most nodes for join_timeout, or 130.
    Where there was a run, or nodes were to meet, it ends the process by itself: torch's rendezvous keeps its membership
    alive in a thread that may be inside torch's store, and the end of an interpreter aborts such a process (SIGABRT,
    after the run was done); and taking torch apart is 0.3 s of a processor, and of who waits for the command.
    """
    linux.open_standard_streams()
    drop_unread_output()
    early = EarlySignals()
    environ = dict(os.environ)  # the workers'
    alone = _prepare_torch()
    preloaded = alone if preloaded is None else preloaded
    from elastic.launch.arguments import parse
    from elastic.launch.processes.ending import end

    try:
        arguments = parse(argv)
        say = Console(quiet=False).warn
        if arguments.passed_over:
            say(f"of no effect here, where ranks follow from views: {', '.join(arguments.passed_over)}")
        if arguments.ignored:
            say(f"--standalone is one node, without a rendezvous; of no effect: {', '.join(arguments.ignored)}")
        if arguments.accept:
            environ[ACCEPT] = ",".join(arguments.accept)
        if arguments.rescue is not None:
            environ[RESCUE] = os.path.abspath(arguments.rescue)
        secret = _secret(arguments, environ, say)
        status = _run(arguments, environ, secret, waits or _at_once, say, early, preloaded=preloaded)
        end(status)
    except ConfigError as wrong:
        print(f"elastic run: {wrong}", file=sys.stderr)
        return _USAGE
    except (BlockingIOError, RuntimeError) as refused:  # the former of fork alone: nothing else here could block
        if isinstance(refused, RuntimeError) and str(refused) != _NO_THREAD:
            raise
        print(f"elastic run: {_NO_PROCESS.format(refused)}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:  # before the agent takes signals
        end(INTERRUPTED)


def _prepare_torch() -> bool:
    """Set torch's environment before it is loaded; return whether workers may be forks of this process."""
    alone = "torch" not in sys.modules and threading.active_count() == 1
    # torchrun's machinery reads this one, and warns where the next is missing; no other part of torch knows the first.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return alone


def _secret(arguments: Arguments, environ: dict[str, str], say: Callable[[str], None]) -> str | None:
    """Return the run's secret, which its workers find in `environ`. Raises ConfigError for one that cannot be used."""
    try:
        found = secret_of_run(environ)
        prepare(found)
    except CheckpointError as unfit:
        raise ConfigError(str(unfit)) from unfit
    if found is None and arguments.nodes_max == 1:  # nobody else needs to know it
        found = secret_of_one_launch()
        environ[VARIABLE] = os.environ[VARIABLE] = found
    elif found is None:
        say(_OPEN)
    return found


def _run(
    arguments: Arguments,
    environ: Mapping[str, str],
    secret: str | None,
    waits: Callable[[Starter], None],
    say: Callable[[str], None],
    early: EarlySignals,
    *,
    preloaded: bool,
) -> int:
    from elastic.launch.workers.start_times import LOADED, StartTimes
    from elastic.launch.workers.starter import Starter
    from elastic_checkpoint.net.event_loop import EventLoop

    node = f"{socket.gethostname()}-{os.getpid()}-{token_hex(2)}"
    timing = StartTimes(arguments.workers, say) if arguments.timing else None
    if timing is not None:
        timing.mark(LOADED)
    loop = EventLoop()
    starter = Starter(loop, arguments.script, environ, fresh=arguments.fresh, preloaded=preloaded, say=say)
    stores = _stores(arguments, say, preloaded=preloaded)

    # The rest of this process's imports, while the fork server makes the script's.
    from elastic.launch.agent import Agent
    from elastic.launch.hub.link import HubLink
    from elastic.launch.meeting import NodesMissing
    from elastic.launch.node.notices import NodeNotices, NoticeHook
    from elastic.launch.node_rules import NodeRules, ThisNode
    from elastic.launch.processes import children
    from elastic.launch.processes.quiet_torch import say_errors_only
    from elastic.launch.workers.group_store import GroupStore
    from elastic.launch.workers.logs import Logs
    from elastic.preemption.setting import sources
    from elastic.status.terminal import wanted

    hook = NoticeHook(arguments.on_notice, environ, say=say)
    notices = NodeNotices(sources(arguments.notices, environ), hook)
    with contextlib.ExitStack() as stack:
        end_stores = stores.close if stores is not None else lambda: None
        try:
            if arguments.nodes_max > 1:
                say_errors_only()
            early.also(arguments.leave_on)
            with early.interruptible():
                waits(starter)
                metrics = _metrics(arguments, stack)
                liveness = stack.enter_context(contextlib.closing(_liveness(arguments)))
                meeting = _meet(arguments, node, secret, stores, say)
        except LeftEarly as told:
            starter.close()
            end_stores()
            return _leave_early(told.number, arguments, hook, say)
        except BaseException as failure:
            starter.close()
            end_stores()
            children.end_all(within_s=0.0)
            if isinstance(failure, NodesMissing):
                print(f"elastic run: {failure}", file=sys.stderr)
                return _FAILED
            raise
        address = meeting.address if meeting else LOCAL
        group_store = GroupStore(address) if arguments.replica_size == 1 else None  # else each replica has one
        this_node = ThisNode(
            node=node,
            address=meeting.address if meeting else None,
            run=meeting.nonce if meeting else token_hex(16),
            group_port=group_store.port if group_store else None,
            replica_size=arguments.replica_size,
            secret=secret,
        )
        hub = HubLink(
            this_node,
            lambda takes_over: _hub(arguments, meeting, liveness, takes_over=takes_over),
            say=say,
            listener=meeting.listener if meeting else None,
            connected=meeting.connected if meeting else None,
            met=meeting.met if meeting else (),
            join_s=_join_s(arguments),
            expected=arguments.nodes_max,
            find_hub=meeting.find_hub if meeting else None,
            announcement=meeting.announcement if meeting else None,
        )
        rules = NodeRules(
            node=node,
            address=address,
            workers=arguments.workers,
            replica_size=arguments.replica_size,
            job=arguments.run_id,
            role=arguments.logs.role,
            restarts_max=arguments.restarts_max,
            hang_s=arguments.hang_s,
            leave_s=arguments.leave_s,
            leave_on=arguments.leave_on,
            leave_status=arguments.leave_status,
            grace_s=arguments.grace_s,
            several_nodes=arguments.nodes_max > 1,
            metrics=metrics is not None,
            status=arguments.status and wanted(sys.stderr.fileno(), environ),
            train_job=train_job(environ),
        )
        logs = Logs(arguments.logs, say=say)
        agent = Agent(
            rules,
            hub,
            logs,
            starter,
            notices,
            hook,
            say=say,
            timing=timing,
            metrics=metrics,
            group_store=group_store,
            end_stores=end_stores,
        )
        return agent.run(early.take)


def _metrics(arguments: Arguments, stack: contextlib.ExitStack) -> NodeMetrics | None:
    """Serve this node's metrics in a thread, if asked for; the fork server is forked before. Raises ConfigError."""
    if arguments.metrics_port is None:
        return None
    from elastic.launch.node.metrics import NodeMetrics

    return stack.enter_context(contextlib.closing(NodeMetrics(arguments.metrics_port)))


def _leave_early(number: signal.Signals, arguments: Arguments, hook: NoticeHook, say: Callable[[str], None]) -> int:
    """Leave before this node has met the others, and has anything of the run's; return the exit status."""
    from elastic.launch.node.node_end import left_status
    from elastic.launch.processes import children
    from elastic.preemption.notice import Notice

    by_s = None if arguments.grace_s is None else time.monotonic() + arguments.grace_s
    name = number.name
    hook.call(Notice(source=name, id=name, why=name, by_s=by_s, node=socket.gethostname()))
    while hook.is_waited_for(time.monotonic(), by_s):
        time.sleep(_LOOK_S)
        hook.reap()
    children.end_all(within_s=0.0)
    status = left_status(name, arguments.leave_status)
    say(f"this node has left ({name}) before it was in the run; the same command joins it (status {status})")
    return status


def _at_once(_: Starter) -> None:
    """Wait for nothing: a node that somebody starts is wanted now."""


def _join_s(arguments: Arguments) -> float:
    if arguments.nodes_max == 1:
        return 0.0
    from elastic.launch.meeting import join_s

    return join_s(arguments.rdzv)


def _stores(arguments: Arguments, say: Callable[[str], None], *, preloaded: bool) -> StoreHost | None:
    """Return the rendezvous' stores that this node may come to host; None on one node, which needs none."""
    if arguments.nodes_max == 1:
        return None
    from elastic.launch.rendezvous.store_host import StoreHost

    return StoreHost(arguments.nodes_max, preloaded=preloaded, say=say)


def _meet(
    arguments: Arguments, node: str, secret: str | None, stores: StoreHost | None, say: Callable[[str], None]
) -> Meeting | None:
    """Meet the other nodes; None on one node, which needs no rendezvous, no store and no port for other nodes."""
    if stores is None:
        return None
    from elastic.launch.meeting import meet

    meeting = meet(
        arguments.rdzv_endpoint,
        arguments.run_id or "none",
        node=node,
        nodes_min=arguments.nodes_min,
        nodes_max=arguments.nodes_max,
        conf=arguments.rdzv,
        stores=stores,
        local_addr=arguments.local_addr,
        ports=arguments.ports,
        secret=secret,
        say=say,
    )
    stores.all_open()
    return meeting


def _liveness(arguments: Arguments) -> LivenessServer:
    """Return what answers for whoever claims the run's storage, should the hub ever be here. Raises ConfigError."""
    from elastic.launch.net.addresses import none_free
    from elastic_checkpoint.runs.liveness import LivenessServer

    ports = arguments.ports
    if ports is not None and arguments.nodes_max > 1:
        ports = ports[1:]  # the first of them is for other agents
    try:  # at once: that there is a port for it is known before anybody relies on this node
        return LivenessServer(nonce=token_hex(16), job=arguments.run_id, ports=ports)
    except OSError as refused:
        if arguments.ports is None:
            raise
        raise none_free(arguments.ports, "all addresses", refused) from refused


def _hub(arguments: Arguments, meeting: Meeting | None, liveness: LivenessServer, *, takes_over: bool) -> Hub:
    """Return a hub of this node's, for the first view or, with `takes_over`, after another hub."""
    from elastic.membership.hub.hub import Hub
    from elastic.membership.stalls import STALL_LIMITS

    hub: dict[str, Any] | None = None
    if meeting is not None:
        port = meeting.listener.getsockname()[1]
        hub = {"host": meeting.address, "port": port, "nonce": meeting.nonce}
    return Hub(
        nodes_min=arguments.nodes_min,
        nodes_max=arguments.nodes_max,
        replica_size=arguments.replica_size,
        restarts_max=arguments.restarts_max,
        liveness={"nonce": liveness.nonce, "endpoint": liveness.endpoint(), "hub": hub},
        below_min_s=arguments.wait_s,
        stall_s=STALL_LIMITS * arguments.hang_s,
        takes_over=takes_over,
    )
