"""`elastic doctor [URL]`: a line for each thing that a run needs, with what to do where it is not as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from elastic.doctor import machine, network, storage
from elastic.doctor.finding import Finding, Verdict, of_error
from elastic.errors import ConfigError
from elastic.launch.net.addresses import port_range
from elastic.membership import environment
from elastic_checkpoint.cli.screen import escaped
from elastic_checkpoint.command_line import Parser, add_storage_option, storage_options
from elastic_checkpoint.storage.reads import answer_within

WRONG, USAGE = 1, 2
_ANSWER_S = 60.0  # for one look; client libraries wait as long as they like
_STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.WRONG: "bold red"}
_EPILOG = (
    "Exit status: 0 nothing is wrong, 1 something is, 2 it cannot be done as asked. Run it on each machine, as the run "
    "would be started there: under srun, in the container, with the same environment."
)


def main(argv: Sequence[str]) -> int:
    """Look at what a run needs, print what was found, and return the exit status."""
    parser = Parser(
        prog="elastic doctor",
        description="Look at what a run needs: of this machine, of its network, and of the run's URL, where one object "
        "is written and removed again. Each line says what was found, and what to do about it.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="of the run, or a folder. Default: ELASTIC_URL")
    parser.add_argument("--rdzv-endpoint", default="", metavar="WHERE", help="as `elastic run` is given it")
    parser.add_argument("--local-addr", metavar="ADDRESS", help="the same")
    parser.add_argument("--port-range", metavar="FIRST-LAST", help="the same")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    add_storage_option(parser.add_argument)
    asked = parser.parse_args(argv)
    options = storage_options(asked)
    try:
        hosts, url = _places(asked)
        named = port_range(asked.port_range) if asked.port_range else None
    except ConfigError as wrong:
        parser.error(str(wrong))
    found = []
    console = Console(highlight=False)
    for finding in _findings(url, options, hosts, asked.local_addr, named):
        found.append(finding)
        if not asked.json:
            _show(console, finding)
    is_wrong = any(one.verdict is Verdict.WRONG for one in found)
    if asked.json:
        print(json.dumps({"ok": not is_wrong, "findings": [one.facts() for one in found]}))
    return WRONG if is_wrong else 0


def _places(asked: Any) -> tuple[list[tuple[str, int]], str | None]:
    """Return the hosts that are named, and the run's URL. Raises ConfigError."""
    url = asked.url or environment.url_and_virtual_workers()[0] or None
    if not asked.rdzv_endpoint.strip(" ,"):
        return [], url
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    from elastic.launch.rendezvous.store import DEFAULT_PORT, rendezvous_endpoints

    found = rendezvous_endpoints(asked.rdzv_endpoint)
    hosts = [parse_rendezvous_endpoint(host, DEFAULT_PORT) for host in found.hosts if host]
    return hosts, asked.url or found.url or url


def _findings(
    url: str | None,
    options: dict[str, Any],
    hosts: list[tuple[str, int]],
    local_addr: str | None,
    named: range | None,
) -> Iterator[Finding]:
    """Look at one thing after the other, and yield what was found."""
    yield from _looked("python", machine.python)
    torch = [*_looked("torch", machine.torch)]
    yield from torch
    if torch[0].verdict is not Verdict.WRONG:
        yield from _looked("devices", machine.devices)
    yield from _looked("memory", machine.memory)
    yield from _looked("/dev/shm", machine.shared_memory)
    yield from _looked("open files", machine.open_files)
    try:
        chosen = network.chosen(hosts[0][0] if hosts else "", local_addr)
    except ConfigError as wrong:
        yield of_error("interface", wrong)
    else:
        yield network.interface(chosen, local_addr)
        yield from _looked("ports", lambda: network.ports(chosen.address, named))
    if hosts or url is not None:
        yield from _looked("other nodes", lambda: network.others(url, options, hosts))
    if url is None:
        advice = "give the run's URL: elastic doctor s3://bucket/runs/mine, or a folder that all machines see"
        yield Finding("storage", Verdict.NOTE, "not looked at", advice)
    else:
        yield from _looked("storage", lambda: list(storage.looks(url, options)))
    yield from _looked("launcher", lambda: machine.launcher(url))


def _looked(name: str, look: Callable[[], Finding | Iterable[Finding]]) -> Iterator[Finding]:
    """Take one look: yield what it finds, or that it failed or took too long. One that fails hides no other."""
    try:
        found = answer_within(_ANSWER_S, look)
    except TimeoutError as late:
        yield Finding(name, Verdict.WRONG, str(late), "see what this process waits for: a resolver, a mount, a proxy")
    except Exception as failure:
        yield of_error(name, failure, f"{type(failure).__name__} is nothing that was expected here; please report it")
    else:
        yield from [found] if isinstance(found, Finding) else found


def _show(console: Console, finding: Finding) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(width=max(map(len, Verdict)))
    table.add_column(width=len("exclusive creation"))
    table.add_column(overflow="fold")
    verdict = Text(finding.verdict.value, _STYLES[finding.verdict])
    table.add_row(verdict, finding.name, Text(escaped(finding.found)))
    if finding.next:
        table.add_row("", "", Text.assemble(("next  ", "dim"), escaped(finding.next)))
    console.print(table)
