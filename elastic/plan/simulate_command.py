"""`elastic simulate`: what real spot fleets make of a run, under `elastic run` and under other ways of running."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from elastic.errors import ConfigError
from elastic.events import words
from elastic.plan import arguments, scaling, units
from elastic.plan import trace as recorded
from elastic.plan.figures import MEANINGS, Figures
from elastic.plan.job import Job
from elastic.plan.policies import IN_WORDS, USES, policies
from elastic.plan.simulation import PARTS, Outcome, simulate
from elastic.plan.trace import Trace
from elastic_checkpoint.command_line import USAGE, Parser

_COLUMNS = ("lost", "saving", "recover", "start", "wait")  # of PARTS
_EPILOG = """\
  elastic simulate --parameters 124M --batch-time 16s --nodes 16 --across 25Gbit/s:20us
  elastic simulate --parameters 1.5B --batch-time 60s --nodes 8 --across 100Gbit/s:5us --lifetime 4h --seed 7

It is a model: it knows what the figures that --sources lists say, and not your storage, your network or your cloud.
"""


def main(argv: Sequence[str]) -> int:
    """Simulate and print what was found; return the exit status: 0, or 2 for what cannot be done as asked."""
    parser = Parser(
        prog="elastic simulate",
        description="What becomes of a run on machines that come and go, by a discrete-event model on recorded traces.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    arguments.add_job(parser)
    parser.add_argument(
        "--fixed",
        type=arguments.quantity(units.above_0(units.seconds)),
        default=600.0,
        metavar="T",
        help="between saves, where nobody tunes it (default 10min)",
    )
    parser.add_argument(
        "--price",
        type=arguments.quantity(units.price),
        metavar="PRICE",
        help="of a node, an hour, the spot price where it is one; for the price of steps",
    )
    arguments.add_output(parser, drawn="where the time goes, and the goodput, by fleet and policy")
    given = parser.parse_args(argv)
    try:
        arguments.check_plot(given)
        figures = arguments.figures_of(given)
        found = [_on_fleet(given, figures, fleet) for fleet in arguments.fleets_of(given, recorded.recorded_names())]
        if given.plot is not None:
            from elastic.plan.plot import plot_fleets

            plot_fleets([(fleet, outcomes) for fleet, _, outcomes in found], given.plot)
    except ConfigError as wrong:
        print(f"elastic simulate: {wrong}", file=sys.stderr)
        return USAGE
    if given.json:
        documents = [
            {**fleet_facts(fleet), "outcomes": [_facts(one, given.price) for one in of]} for fleet, _, of in found
        ]
        print(json.dumps({"fleets": documents, "figures": _sources(figures)}))
    else:
        console = Console(highlight=False)
        _show(console, found, given.price)
        if given.sources:
            console.print()
            show_figures(console, figures, USES)
        if given.plot is not None:
            print(given.plot)
    return 0


def _on_fleet(given: argparse.Namespace, figures: Figures, fleet: Trace) -> tuple[Trace, Job, list[Outcome]]:
    """Simulate all policies on one fleet."""
    fleet = fleet.limited(given.nodes)
    job = job_on(given, figures, fleet)
    compared = policies(
        figures,
        state_bytes=job.state_bytes,
        fixed_s=given.fixed,
        arrive_s=given.arrive,
        notice_s=given.notice,
        nodes_min=given.nodes_min,
    )
    return fleet, job, [simulate(fleet, policy, job.step_of_nodes_s) for policy in compared]


def job_on(given: argparse.Namespace, figures: Figures, fleet: Trace) -> Job:
    """Return the job with the V that was given, else with the one that suits the fleet. Raises ConfigError."""
    if given.virtual_workers is not None and given.virtual_workers < 1:
        raise ConfigError(f"--virtual-workers {given.virtual_workers}; expected 1 or more")
    workers_max = given.nodes * given.per_node
    if workers_max > arguments.WORKERS_MAX:
        of = f"--nodes {given.nodes} --per-node {given.per_node}"
        raise ConfigError(
            f"{of}: {workers_max:,} workers; expected at most {arguments.WORKERS_MAX:,}, so fewer of either"
        )
    if given.virtual_workers is not None and given.virtual_workers > arguments.SHARES_MAX:
        raise ConfigError(f"--virtual-workers {given.virtual_workers}; expected at most {arguments.SHARES_MAX:,}")
    shares = (
        given.virtual_workers
        or scaling.suggest(of_fleet(fleet, given.nodes, given.per_node), workers_max).virtual_workers
    )
    return arguments.job_of(given, figures, virtual_workers=shares)


def of_fleet(fleet: Trace, nodes_max: int, per_node: int) -> list[scaling.Candidate]:
    """Return candidates for V over the sizes that a fleet visits. Raises ConfigError."""
    if nodes_max < 1 or per_node < 1:
        raise ConfigError(f"--nodes {nodes_max} --per-node {per_node}; expected 1 or more of each")
    seconds = {nodes * per_node: seconds for nodes, seconds in fleet.seconds_by_size().items()}
    if not any(workers and seconds[workers] for workers in seconds):
        raise ConfigError(
            f"{fleet.name}: nobody is ever there; expected an add that comes before the trace's last time"
        )
    return scaling.candidates(seconds, nodes_max * per_node)


def _show(console: Console, found: Sequence[tuple[Trace, Job, list[Outcome]]], price: float | None) -> None:
    for fleet, job, outcomes in found:
        console.print(f"\n[bold]{fleet.name}[/bold]  {fleet_in_words(fleet)}; V = {job.virtual_workers}")
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
        table.add_column("policy", no_wrap=True)
        for column in ("goodput", *_COLUMNS, "again", "saves", *["price"] * (price is not None)):
            table.add_column(column, justify="right", no_wrap=True)
        for one in outcomes:
            total_s = sum(one.parts.values())
            shares = [words.percent(one.parts[part] / total_s) if one.parts[part] else "·" for part in PARTS[1:]]
            cost = [] if price is None else [_price(one, price)]
            every = f"{one.intervals[1]:.0f} s" if one.saves else "never"
            table.add_row(one.policy, words.percent(one.goodput), *shares, f"{one.restarts or '·'}", every, *cost)
        console.print(table)
    console.print("\n[bold]Goodput[/bold]: steps that last, of those that the fleet could do were changes free;")
    console.print("lost … wait: shares of the time, whose rest became steps that last. An hour counts here the same")
    console.print("whatever the number of nodes, and in goodput by its steps: so the two need not add to 100 %;")
    console.print("again: how often all started again; saves: the last interval between two")
    if price is not None:
        console.print("price: of 1,000 such steps, of all nodes that were there")
    for name, what in IN_WORDS.items():
        console.print(f"  {name:<16} [dim]{what}[/dim]", soft_wrap=True)


def show_figures(console: Console, figures: Figures, names: Sequence[str]) -> None:
    """Print each figure with its meaning, and where it is from."""
    console.print("[bold]Measured[/bold]")
    for name in names:
        one = figures[name]
        value = words.size(one.value) + "/s" if name.endswith("bytes_per_s") else f"{one.value:.3g}"
        console.print(f"  {value:>10}  {MEANINGS[name]} [dim]({one})[/dim]", soft_wrap=True)


def fleet_in_words(fleet: Trace) -> str:
    mean = fleet.node_s / fleet.length_s
    full = f", {words.counted(fleet.full_losses, 'time')} of all" if fleet.full_losses else ""
    return f"{words.seconds(fleet.length_s)}, {mean:.1f} of {fleet.most} nodes, lost {fleet.losses} times{full}"


def fleet_facts(fleet: Trace) -> dict[str, Any]:
    return {
        "trace": fleet.name,
        "seconds": fleet.length_s,
        "nodes_mean": fleet.node_s / fleet.length_s,
        "nodes_most": fleet.most,
        "losses": fleet.losses,
        "full_losses": fleet.full_losses,
    }


def _facts(one: Outcome, price: float | None) -> dict[str, Any]:
    finite = [None if every == float("inf") else every for every in one.intervals]
    cost = {} if price is None else {"price_of_1000_steps": 1000 * price_of_step(one, price) if one.steps else None}
    return {
        "policy": one.policy,
        "goodput": one.goodput,
        "steps": one.steps,
        "seconds": dict(one.parts),
        "restarts": one.restarts,
        "saves": one.saves,
        "interval_s": {"first": finite[0], "last": finite[1]},
        **cost,
    }


def _sources(figures: Figures) -> dict[str, Any]:
    return {name: {"value": figures[name].value, "source": str(figures[name])} for name in USES}


def price_of_step(one: Outcome, price: float) -> float:
    """Return the price of a step that lasts. price: of a node, an hour."""
    return one.node_s / 3600 * price / one.steps


def _price(one: Outcome, price: float) -> str:
    return f"{1000 * price_of_step(one, price):,.2f}" if one.steps else "·"
