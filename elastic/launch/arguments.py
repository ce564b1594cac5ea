"""The flags of `elastic run`: torchrun's own parser, with what differs said in --help and what cannot be kept refused.

Private interfaces of torch: `get_args_parser` and `config_from_args` are torchrun's own and not documented; that the
parser keeps its actions in `_actions` is argparse's. tests/pure/test_run_arguments.py notices a change.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.run import config_from_args, get_args_parser

from elastic.errors import ConfigError
from elastic.launch.net.addresses import is_url, port_range
from elastic.launch.processes.script import Script
from elastic.launch.workers.logs import PREFIX, LogRules
from elastic.membership import environment
from elastic.membership.messages.message_checks import SLOTS_MAX
from elastic.preemption.setting import found_by_auto, sources
from elastic.state.torch_release import check_torch
from elastic_checkpoint.command_line import Parser

HANG_LIMIT_S, RESTARTS_MAX, LEAVE_S, WAIT_S = 30.0, 3, 300, 600

_HELP = {
    "max_restarts": "How often one failure may repeat within an hour before the run ends with it. Unlike torchrun's, "
    "it counts no worker that was killed from outside, told to leave or lost with its node: those are always replaced "
    "(but for seven in a row that are killed at one step), and the other workers never restart. The same exception at "
    f"the same step, twice, ends the run at once. Default {RESTARTS_MAX}.",
    "nnodes": "Number of nodes, or the range <minimum>:<maximum>. Below the minimum the run waits; nodes that come "
    "later join at a step boundary, up to the maximum. Nothing restarts.",
    "rdzv_backend": "c10d, where there are several nodes. (On one node none is needed.)",
    "rdzv_endpoint": "Where nodes meet: the run's URL or folder, by which they find each other whichever of them comes "
    "first; or HOST:PORT, or several of them, which are tried in turn; or both, separated by commas: then nodes meet "
    "at those hosts, and by the URL later ones find the run when they are gone. On one node a URL says where the "
    "newest checkpoint is to be read while the script's modules are imported.",
    "standalone": "One node, without any rendezvous. --rdzv-backend, --rdzv-id and hosts in --rdzv-endpoint are "
    "ignored, as with torchrun; which of them were given is said.",
    "start_method": "forkserver or fork (default): workers are forked from a fork server that has made the script's "
    "imports. spawn: each worker is a fresh interpreter, for scripts whose modules must not share what they computed "
    "while they were imported. (Unlike torchrun's, which is multiprocessing's start method.)",
    "monitor_interval": "Accepted for torchrun's sake, without effect: deaths are noticed at once.",
    "run_path": "Accepted for torchrun's sake, without effect: the script runs in the worker's interpreter anyway.",
    "shutdown_timeout": "How long workers may take to leave, or to end after another one, in seconds, before they are "
    "killed; a machine that a notice says is there for longer gives them that. They leave at a step boundary, "
    f"so more than the longest step and a save. Default {LEAVE_S}.",
    "signals_to_handle": "Signals that make this node's workers leave at the next step boundary; SIGTERM, SIGUSR1 and "
    "SIGINT always do. ELASTIC_GRACE_S says how many seconds they have then.",
    "log_dir": "Folder for log files: LOG_DIR/<rdzv id>_<random>/attempt_<n>/<local rank>/stdout.log, where n counts "
    "how often the worker of that local rank was replaced before.",
    "local_addr": "This node's address, or the interface that has it: agents and workers listen on it. Default: the "
    "address from which packets to the rendezvous leave; which one that is, and why, is said at the start.",
}
_TIMEOUT_MAX_S = 1e9  # torch's are whole numbers of milliseconds
_REFUSED = {
    "no_python": ((False,), "workers are forked from an interpreter; give a Python script, or use torchrun"),
    "event_log_handler": (("null",), "a run's events are files in its own folder: `elastic report`"),
    "logs_specs": ((None,), "use --log-dir, --redirects and --tee"),
    "node_rank": ((0,), "ranks follow from the views that workers form; leave it out"),
    "master_addr": (("127.0.0.1",), "use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT"),
    "master_port": ((None,), "use --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT"),
    "numa_binding": ((None,), "start `elastic run` under numactl instead"),
    "virtual_local_rank": ((False,), "select the device by LOCAL_RANK"),
    "duplicate_stdout_filters": (([],), "use --tee and filter its output"),
    "duplicate_stderr_filters": (([],), "use --tee and filter its output"),
}
"""Flags of torchrun, with what they are where nobody gave them, in any torch from 2.11 on."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What the command line asks for, checked.

    replica_size  so many of a node's workers hold one copy of the state together
    run_id      --rdzv-id; None where it tells no jobs apart
    wait_s      how long the run waits for nodes while it has too few
    notices     which sources of notices are watched, see preemption/setting.py
    on_notice   a line for the shell, for each of them
    leave_status  the exit status of a node that leaves before the run is finished
    grace_s     from a signal to leave to SIGKILL; None: nobody has said
    fresh       each worker is a fresh interpreter
    metrics_port  where this node's figures are served; None: nowhere
    rescue      folder for a copy of what cannot be saved; None: nobody has said
    status      show the run's status, where stderr is a terminal
    timing      say where the time from the command to the first step went
    rdzv        torchrun's configuration of the rendezvous; empty where there is one node
    ignored     flags, as they were given, that --standalone makes void
    passed_over  variables of torchrun's that mean nothing here, as they are set
    """

    script: Script
    nodes_min: int = 1
    nodes_max: int = 1
    workers: int = 1
    replica_size: int = 1
    restarts_max: int = RESTARTS_MAX
    hang_s: float = HANG_LIMIT_S
    leave_s: float = LEAVE_S
    wait_s: float = WAIT_S
    leave_on: tuple[signal.Signals, ...] = (signal.SIGTERM,)
    run_id: str | None = None
    accept: tuple[str, ...] = ()
    notices: str = "auto"
    on_notice: str | None = None
    leave_status: int = 0
    grace_s: float | None = None
    fresh: bool = False
    rescue: str | None = None
    local_addr: str | None = None
    ports: range | None = None
    metrics_port: int | None = None
    status: bool = True
    timing: bool = False
    rdzv_endpoint: str = ""
    rdzv: Mapping[str, Any] = field(default_factory=dict)
    logs: LogRules = field(default_factory=LogRules)
    ignored: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()


_EPILOG = (
    "Exit status: 0 the run is finished, or this node left in order (then --leave-status); 1 it failed; 2 it cannot be "
    "done as asked; 75 the run had its most nodes for as long as --rdzv-conf join_timeout says, and may be "
    "joined later; 130 left in order on Ctrl-C, or interrupted twice, or before this node met the others."
)

_OF_A_MASTER = ("node_rank", "master_addr", "master_port")
_UNHEARD = {signal.SIGKILL, signal.SIGSTOP}


def parser() -> argparse.ArgumentParser:
    """Return torchrun's parser with our flags, descriptions and defaults."""
    made = Parser(
        prog="elastic run",
        description="Runs a training script on one or more nodes and recovers live: a lost worker is replaced, "
        "survivors go on in the same processes. The flags are torchrun's; where one means something else, its "
        "description says so.",
        epilog=_EPILOG,
        parents=[get_args_parser()],
        add_help=False,
    )
    if not any(action.dest == "shutdown_timeout" for action in made._actions):  # torch before 2.13
        made.add_argument("--shutdown-timeout", "--shutdown_timeout", type=int, metavar="SECONDS")
    for action in made._actions:
        if action.dest in _HELP:
            action.help = _HELP[action.dest]
        elif action.dest in _REFUSED:
            action.help = f"Refused: {_REFUSED[action.dest][1]}."
    made.add_argument(
        "--replica-size",
        type=int,
        default=1,
        metavar="K",
        help="How many workers of a node hold one copy of the state together, for models that torch's fully_shard cuts "
        "over them; it divides --nproc-per-node, and is the same on all nodes. Each K workers find RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT of a world of their own, whose size never changes: one that loses a worker is "
        "lost whole, and comes back whole. Default 1: each worker has a copy of its own.",
    )
    made.add_argument(
        "--hang-limit",
        type=float,
        default=HANG_LIMIT_S,
        metavar="SECONDS",
        help="How long a worker may compute without a sign of progress before it counts as stuck: the larger of this "
        f"and ten times the median step. It is then killed, with its stacks in the log. Default {HANG_LIMIT_S:.0f}.",
    )
    made.add_argument(
        "--rescue",
        metavar="DIR",
        help="Folder for a copy of what a worker holds and cannot save at the run's end, or as it stops, as the disk "
        "is full, say. Default --log-dir, else the current folder; where that takes none, the machine's temporary "
        "folder. ELASTIC_RESCUE says so where there is no flag.",
    )
    made.add_argument(
        "--no-status",
        action="store_true",
        help="Do not keep the terminal's last two lines for the run's status: step, loss, speed, workers, last fault, "
        "last save. Where stderr is no terminal, a line is written after each change of the view instead.",
    )
    made.add_argument(
        "--timing",
        action="store_true",
        help="Once this node's workers have applied a step, say where the time since the command went.",
    )
    made.add_argument(
        "--accept",
        action="append",
        type=environment.names_in,
        default=[],
        metavar="FIELDS",
        help="Fields of the run's identity that may differ, as Checks(accept=...) names them, such as "
        "processor,libraries on machines of several kinds: the bits of the result may differ, too, and reports say so. "
        "Those of ELASTIC_ACCEPT may as well.",
    )
    made.add_argument(
        "--notices",
        default=environment.notices(),
        metavar="SOURCES",
        help="Who is asked whether this machine is about to be taken, so that its workers leave in time: auto "
        f"(default), what this machine is found to have of {found_by_auto()}; none; or a list such as "
        "ec2,slurm:300,file:/run/leave,'command:test -e /drain && echo leave 90'. Default: ELASTIC_NOTICES.",
    )
    made.add_argument(
        "--on-notice",
        metavar="COMMAND",
        help="A line for the shell, run once for each notice and hint of --notices and each signal to leave but "
        "Ctrl-C: to order another machine, say. It finds ELASTIC_NOTICE_KIND (leave or hint), _SOURCE, _WHY, _LEFT_S "
        "and _HOST in its environment. Once the workers have left it has until the machine goes, 60 s at most.",
    )
    made.add_argument(
        "--leave-status",
        type=int,
        default=0,
        metavar="STATUS",
        help="Exit status of a node that leaves, by a signal or a notice, before the run is finished. Default 0, "
        "and 130 on Ctrl-C. 75 (try again later) is for schedulers that start again what did not end with 0.",
    )
    made.add_argument(
        "--wait-for-nodes",
        type=float,
        default=WAIT_S,
        metavar="SECONDS",
        help="How long the run waits, its state saved, while fewer nodes are there than --nnodes asks for; then it "
        f"ends, as failed. inf: for ever. The same on all nodes. Default {WAIT_S}.",
    )
    made.add_argument(
        "--port-range",
        metavar="FIRST-LAST",
        help="Ports on which this node's agent listens, for firewalls; it takes two, for other agents and for "
        "whoever asks whether the run is alive, and a third for the rendezvous where nodes meet by a URL alone (else "
        "that has the port of its endpoint). Default: any. Those of "
        "gloo are the system's (net.ipv4.ip_local_port_range).",
    )
    made.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="Serve this node's figures for Prometheus there: /metrics, and /healthz and /readyz. Needs "
        "prometheus-client (pip install prometheus-client). Default: nothing is served.",
    )
    own = {"max_restarts": RESTARTS_MAX, "start_method": "forkserver", "nnodes": None, "rdzv_endpoint": None}
    for name, value in own.items():
        if f"PET_{name.upper()}" not in os.environ:  # where torchrun's parser takes its defaults from
            made.set_defaults(**{name: value})
    for name in _OF_A_MASTER:  # an operator sets them for each node
        made.set_defaults(**{name: _REFUSED[name][0][0]})
    return made


def _meet_under_a_launcher(options: Any) -> tuple[str, ...]:
    """Complete what the command line leaves open, where a launcher or an operator says how many agents there are.

    A launcher has started one agent for each of its tasks. Returns those variables, as they are set, that mean nothing
    here. Raises ConfigError.
    """
    tasks = environment.launcher()
    if options.nnodes is None:
        options.nnodes = f"1:{tasks.world_size if tasks is not None and not options.standalone else 1}"
    unused = [f"PET_{name.upper()}" for name in _OF_A_MASTER]
    most = str(options.nnodes).rpartition(":")[2]
    if options.rdzv_endpoint is None and options.rdzv_backend in ("static", "c10d") and most != "1":
        master = [os.environ[name] for name in ("PET_MASTER_ADDR", "PET_MASTER_PORT") if name in os.environ]
        endpoint = environment.url_and_virtual_workers()[0]
        if not endpoint and len(master) == 2:
            endpoint, unused = ":".join(master), unused[:1]
        if endpoint:
            options.rdzv_endpoint, options.rdzv_backend = endpoint, "c10d"
        elif tasks is not None and tasks.world_size > 1:
            raise ConfigError(
                f"{tasks.launcher} has started {tasks.world_size} of these, and each would train by itself\n"
                "  state  nothing was started\n"
                "  next   say where they meet: ELASTIC_URL=URL in the environment, the run's own, in storage that all "
                "reach,\n         or --rdzv-backend=c10d --rdzv-endpoint=URL"
            )
    return tuple(f"{name}={os.environ[name]}" for name in unused if name in os.environ)


def _check_timeouts(conf: Mapping[str, Any]) -> None:
    """Raise ConfigError for a timeout in --rdzv-conf, whose values are texts, that is no number of seconds."""
    for name, value in conf.items():
        if name.endswith("timeout"):
            try:
                good = 0 < float(value) < _TIMEOUT_MAX_S
            except (TypeError, ValueError):
                good = False
            if not good:
                raise ConfigError(
                    f"--rdzv-conf {name}={value}; expected seconds, above 0 and below {_TIMEOUT_MAX_S:.0f}\n"
                    "  state  nothing was started"
                )


def _check_urls(endpoint: str) -> None:
    """Raise ConfigError for a URL that no storage opens: a run on one node would pass over it without a word."""
    named = [("--rdzv-endpoint", part.strip()) for part in endpoint.split(",")]
    for name, url in (*named, ("ELASTIC_URL", environment.url_and_virtual_workers()[0])):
        if "://" in url:
            from elastic_checkpoint.storage import redact
            from elastic_checkpoint.storage.urls import EXPECTED, unknown_protocol

            if (protocol := unknown_protocol(url)) is not None:
                raise ConfigError(
                    f"{name}={redact(url)}: nothing here opens {protocol}://; expected {EXPECTED}\n"
                    "  state  nothing was started\n"
                    "  next   correct the URL, or install the package that brings its filesystem to fsspec"
                )


def _check_one_url(endpoint: str) -> None:
    """Raise ConfigError if the nodes would meet by one run's URL, and a script that names none train another run."""
    urls = [part.strip() for part in endpoint.split(",") if is_url(part.strip())]
    run = environment.url_and_virtual_workers()[0]
    if run and urls and _canonical(urls[0]) != _canonical(run):
        from elastic_checkpoint.storage import redact

        raise ConfigError(
            f"--rdzv-endpoint={redact(urls[0])} and ELASTIC_URL={redact(run)} name two runs, and one command starts "
            "one\n"
            "  state  nothing was started\n"
            "  next   give both the run's URL, or unset ELASTIC_URL where the script names the URL itself"
        )


def _canonical(url: str) -> str:
    """Return one text for two ways to write a URL or folder."""
    protocol, separator, path = url.partition("://")
    if separator and protocol not in ("file", "local"):
        return url.rstrip("/")
    return os.path.realpath(path if separator else os.path.expanduser(url))


def _ignored(options: Any, hosts: str, nodes_max: int) -> tuple[str, ...]:
    """Return the flags that --standalone makes void, as they were given."""
    given = [f"--rdzv-endpoint={hosts}"] if hosts else []
    given += [f"--rdzv-id={options.rdzv_id}"] if options.rdzv_id != "none" else []
    given += [f"--nnodes={options.nnodes}"] if nodes_max > 1 else []
    return tuple(given) if options.standalone else ()


def _check_nodes(given: str) -> None:
    """Raise ConfigError for an --nnodes that is no range; torchrun's own words name no flag."""
    least, colon, most = str(given).partition(":")
    numbers = [int(one) if one.isascii() and one.isdecimal() else 0 for one in (least, most if colon else least)]
    if not 1 <= numbers[0] <= numbers[1]:
        raise ConfigError(
            f"--nnodes={given}; expected a number of nodes, or MIN:MAX, such as 2:8, with 1 or more for MIN\n"
            "  state  nothing was started"
        )


def _script_at(made: argparse.ArgumentParser, argv: Sequence[str]) -> int:
    """Return where the script is named: argparse would read on, and refuse the script's own --log as ambiguous."""
    takes_value = {name: action.nargs != 0 for action in made._actions for name in action.option_strings}
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        name, has_value, _ = argv[at].partition("=")
        meant = [name] if name in takes_value else [one for one in takes_value if one.startswith(name)]
        at += 2 if not has_value and any(takes_value[one] for one in meant) else 1
    return at


def parse(argv: Sequence[str]) -> Arguments:
    """Return what the command line asks for. Raises ConfigError; prints and raises SystemExit where argparse does."""
    check_torch()
    made = parser()
    own = _script_at(made, argv) + 1
    options = made.parse_args(argv[:own])
    options.training_script_args = list(argv[own:])
    for name, (defaults, instead) in _REFUSED.items():
        if getattr(options, name, defaults[0]) not in defaults:
            raise ConfigError(f"--{name.replace('_', '-')} is not supported under elastic run: {instead}")
    is_empty = options.rdzv_endpoint is not None and not options.rdzv_endpoint.strip(" ,")
    passed_over = _meet_under_a_launcher(options)
    options.rdzv_endpoint = options.rdzv_endpoint or ""
    log_dir, options.log_dir = options.log_dir, os.devnull  # torchrun would make a temporary folder for logs at once
    named = [part.strip() for part in options.rdzv_endpoint.split(",")]
    _check_nodes(options.nnodes)
    _check_urls(options.rdzv_endpoint)
    _check_one_url(options.rdzv_endpoint)
    try:
        options.nproc_per_node = _counted(options.nproc_per_node)
        with _nobody_asks_for_gpus():
            config, _, _ = config_from_args(options)
        leave_on = tuple(signal.Signals[name.strip()] for name in options.signals_to_handle.split(",") if name.strip())
    except KeyError as unknown:
        raise ConfigError(f"--signals-to-handle: there is no signal {unknown}") from None
    except (ValueError, AssertionError, RuntimeError) as wrong:
        raise ConfigError(str(wrong)) from wrong
    if unheard := _UNHEARD.intersection(leave_on):
        raise ConfigError(f"--signals-to-handle: no process hears {min(unheard).name}; name others, such as SIGTERM")
    one_node = options.standalone or config.max_nodes == 1
    if options.standalone and config.min_nodes > 1:
        raise ConfigError(f"--standalone is one node, and --nnodes asks for at least {config.min_nodes}")
    if not one_node and config.rdzv_backend != "c10d":
        raise ConfigError(
            "several nodes meet by --rdzv-backend=c10d --rdzv-endpoint=URL of the run, or HOST:PORT; found "
            f"{config.rdzv_backend!r}"
        )
    if not one_node and is_empty:  # in a unit's file, too, a variable that is not set is no text
        raise ConfigError(
            "--rdzv-endpoint is empty, so this node would meet nobody, and train by itself\n"
            "  state  nothing was started\n"
            "  next   set the variable that holds the run's URL; or leave the flag out, to meet on this machine"
        )
    if not 1 <= config.nproc_per_node <= SLOTS_MAX:
        raise ConfigError(f"--nproc-per-node must be at least 1 and at most {SLOTS_MAX}, found {config.nproc_per_node}")
    _check_replicas(options.replica_size, config.nproc_per_node)
    if not options.hang_limit > 0:
        raise ConfigError(f"--hang-limit must be a positive number of seconds, found {options.hang_limit}")
    if not options.wait_for_nodes >= 0:
        raise ConfigError(f"--wait-for-nodes must be a number of seconds, or inf; found {options.wait_for_nodes}")
    if not 0 <= options.leave_status <= 255:
        raise ConfigError(f"--leave-status must be within 0 and 255, found {options.leave_status}")
    if options.metrics_port is not None:
        if not 0 < options.metrics_port < 1 << 16:
            raise ConfigError(f"--metrics-port must be a port, from 1 to 65535, found {options.metrics_port}")
        _check_metrics()
    sources(options.notices)  # what is wrong is said before anything starts
    _check_timeouts(config.rdzv_configs)
    script = Script(options.training_script, options.module, tuple(options.training_script_args))
    if not script.module and not os.path.isfile(script.target):
        raise ConfigError(f"there is no script {script.target} (from {os.getcwd()}); for a module, use -m")
    specs: Any = config.logs_specs
    return Arguments(
        script=script,
        nodes_min=1 if one_node else config.min_nodes,
        nodes_max=1 if one_node else config.max_nodes,
        workers=config.nproc_per_node,
        replica_size=options.replica_size,
        restarts_max=config.max_restarts,
        hang_s=options.hang_limit,
        leave_s=float(options.shutdown_timeout if options.shutdown_timeout is not None else LEAVE_S),
        leave_on=leave_on,
        wait_s=options.wait_for_nodes,
        accept=tuple(dict.fromkeys((*environment.accept(), *(name for names in options.accept for name in names)))),
        notices=options.notices,
        on_notice=options.on_notice,
        leave_status=options.leave_status,
        grace_s=environment.grace_s(),
        run_id=None if options.standalone or config.run_id == "none" else config.run_id,
        fresh=options.start_method == "spawn",
        rescue=options.rescue or log_dir,
        status=not options.no_status,
        timing=options.timing,
        local_addr=config.local_addr,
        ports=port_range(options.port_range) if options.port_range is not None else None,
        metrics_port=options.metrics_port,
        rdzv_endpoint=config.rdzv_endpoint,
        ignored=_ignored(options, ",".join(one for one in named if one and not is_url(one)), config.max_nodes),
        passed_over=passed_over,
        rdzv={} if one_node else config.rdzv_configs,
        logs=LogRules(
            log_dir=log_dir,
            run_id="none" if options.standalone else config.run_id,
            role=config.role,
            prefix=config.log_line_prefix_template or PREFIX,
            redirects=_numbers(specs._redirects),
            tee=_numbers(specs._tee),
            shown=specs._local_ranks_filter,
        ),
    )


def _check_replicas(size: int, workers: int) -> None:
    """Raise ConfigError for a --replica-size that does not divide this node's workers."""
    if size < 1 or workers % size:
        fits = ", ".join(str(one) for one in range(1, workers + 1) if workers % one == 0)
        raise ConfigError(
            f"--replica-size={size} does not divide --nproc-per-node={workers}: a replica is workers of one node, and "
            "each worker is in one\n"
            "  state  nothing was started\n"
            f"  next   a size that divides {workers} ({fits}), or another number of workers"
        )


def _check_metrics() -> None:
    """Raise ConfigError where the package that serves metrics is not installed."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError(
            "--metrics-port needs the package prometheus-client, which is not installed\n"
            "  state  nothing was started\n"
            "  next   pip install prometheus-client, or leave the flag out"
        )


def _counted(workers: str) -> str:
    """Return --nproc-per-node; where it says auto or gpu and there are GPUs, their number."""
    if workers not in ("gpu", "auto") or torch.version.cuda is None:
        return workers
    child = os.fork()  # to ask there: a fork of a process that has asked cannot use the GPUs
    if child == 0:
        found = 0
        try:
            found = torch.cuda.device_count()
        finally:
            os._exit(found)
    gpus = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return str(gpus) if gpus > 0 else workers


@contextmanager
def _nobody_asks_for_gpus() -> Iterator[None]:
    """Keep torch's LaunchConfig from asking for GPUs, to bind its own workers: no fork could use them then."""
    asks = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        yield
    finally:
        torch.cuda.is_available = asks


def _numbers(streams: Any) -> int | dict[int, int]:
    """Return the numbers of torchrun's Std, for all workers or by local rank."""
    return {rank: int(std) for rank, std in streams.items()} if isinstance(streams, dict) else int(streams)
