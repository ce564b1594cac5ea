"""`elastic plan`: how far a model scales, which V suits a fleet, how often to save, what it takes and costs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from elastic.errors import ConfigError
from elastic.events import words
from elastic.plan import arguments, units
from elastic.plan.estimate import Bill, Estimate, estimate
from elastic.plan.memory import ReplicaMemory, memory
from elastic.plan.policies import USES
from elastic.plan.scaling import has_knee, table_rows
from elastic.plan.simulate_command import fleet_facts, fleet_in_words, job_on, of_fleet, show_figures
from elastic_checkpoint.command_line import USAGE, Parser

_EPILOG = """\
  elastic plan --parameters 1B --gradients fp16 --batch-time 16s --nodes 8 --per-node 8 --adapters 8 \\
      --inside 300GB/s:1us --across 100Gbit/s:5us --trace aws-p3-2020 --steps 100k --spot-price 3.67 --price 12.24
  elastic plan --measure here.json --model package.module:function --workers 4
  elastic plan --figures here.json --parameters 10.6M --nodes 4

It is a model: it knows what it was given and what --sources lists, not your storage, your network, your cloud.
"""


def main(argv: Sequence[str]) -> int:
    """Plan, or measure, and print what was found; return the exit status: 0, or 2 for what cannot be done as asked."""
    given = _parser().parse_args(argv)
    try:
        if given.measure is not None:
            from elastic.plan.measure import measure  # loads torch

            found = measure(given.measure, model=given.model, workers=given.workers, storage=given.storage)
            show_figures(Console(highlight=False), found, list(found))
            return 0
        return _plan(given)
    except ConfigError as wrong:
        print(f"elastic plan: {wrong}", file=sys.stderr)
        return USAGE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="elastic plan",
        description="Before money is spent: how far a model scales, which V suits a fleet, how often to save, and what "
        "a run takes and costs on machines that come and go.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    arguments.add_job(parser)
    money = parser.add_argument_group("the run and its price")
    size, price = arguments.quantity(units.count), arguments.quantity(units.price)
    money.add_argument("--steps", type=size, default=1e5, metavar="N", help="of the run (default 100k)")
    money.add_argument("--spot-price", type=price, metavar="PRICE", help="of a node, an hour")
    money.add_argument("--price", type=price, metavar="PRICE", help="the same of one that stays: on demand")
    money.add_argument(
        "--save-price", type=price, default=0.0, metavar="PRICE", help="of one save's requests (default 0)"
    )
    money.add_argument(
        "--at-risk",
        type=arguments.quantity(units.above_0(units.seconds)),
        default=1800.0,
        metavar="T",
        help="of work, the most (default 30min)",
    )
    room = parser.add_argument_group("how large a model fits")
    room.add_argument(
        "--memory",
        type=arguments.quantity(units.above_0(units.nbytes)),
        metavar="BYTES",
        help="of a worker, for its state and sums: 60GB of an 80 GB GPU, if activations take 20 GB",
    )
    arguments.add_output(parser, drawn="efficiency and speed-up")
    measuring = parser.add_argument_group("measuring a step, an all-reduce and saves here, instead of planning")
    measuring.add_argument(
        "--measure", type=Path, metavar="FILE", help="time a step, an all-reduce and saves; for --figures"
    )
    measuring.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        default="elastic.plan.measured_step:perceptron",
        help="FUNCTION() gives (model, loss), and loss() computes a whole batch's (default: a small perceptron)",
    )
    measuring.add_argument("--workers", type=int, default=2, metavar="N", help="processes that measure (default 2)")
    measuring.add_argument("--storage", metavar="FOLDER", help="where saves are measured (default: a temporary folder)")
    return parser


def _plan(given: argparse.Namespace) -> int:
    """Plan as asked, and print, draw or write it."""
    figures = arguments.figures_of(given)
    (fleet, *others) = arguments.fleets_of(given, ["aws-p3-2020"])
    if others:
        raise ConfigError(
            f"--trace names {1 + len(others)} fleets, and a plan is for one; `elastic simulate` compares several"
        )
    steps = round(given.steps)
    if steps < 1 or abs(given.steps - steps) > 1e-9 * steps:  # 2.01k is not quite 2010
        raise ConfigError(f"--steps {given.steps:g}; expected a whole number, 1 or more, such as 100k")
    arguments.check_plot(given)
    fleet = fleet.limited(given.nodes)
    job = job_on(given, figures, fleet)
    found = estimate(
        job,
        fleet,
        of_fleet(fleet, given.nodes, given.per_node),
        figures,
        steps=steps,
        spot_price=given.spot_price,
        on_demand_price=given.price,
        save_price=given.save_price,
        at_risk_max_s=given.at_risk,
        waits={"arrive_s": given.arrive, "notice_s": given.notice, "nodes_min": given.nodes_min},
    )
    held = list(memory(job, nodes=given.nodes_min, worker_bytes=given.memory))
    if given.plot is not None:
        from elastic.plan.plot import plot_plan

        plot_plan(found, given.plot)
    if given.json:
        print(json.dumps({**facts(found), "memory": [vars(one) for one in held]}))
    else:
        console = Console(highlight=False)
        _show(console, found, steps=steps)
        console.print(
            "\n[bold]Memory[/bold] of a worker, beside activations and, of a sharded model, four of its units\n"
        )
        console.print(_memory(held, given.memory))
        if given.sources:
            print()
            show_figures(Console(highlight=False), figures, USES)
        if given.plot is not None:
            print(given.plot)
    return 0


def facts(found: Estimate) -> dict[str, Any]:
    """Return a plan as JSON has it."""
    return {
        "virtual_workers": found.job.virtual_workers,
        "state_bytes": found.job.state_bytes,
        "sizes": [vars(size) for size in found.sizes],
        "knee": found.knee.workers,
        "candidates": [vars(one) for one in found.shares],
        "save_every": {
            "seconds": found.interval.seconds,
            "bound": found.interval.bound.value,
            "reason": found.interval.reason,
            "waste": found.waste,
        },
        "fleet": fleet_facts(found.fleet),
        "goodput": found.outcome.goodput,
        "seconds": dict(found.outcome.parts),
        "spot": found.spot.facts() if found.spot is not None else None,
        "on_demand": found.on_demand.facts(),
    }


def _show(console: Console, found: Estimate, *, steps: int) -> None:
    job = found.job
    sums = words.size(job.parameters * job.gradient_bytes)
    console.print(f"\n[bold]{_many(job.parameters)} parameters[/bold]: gradients {sums}", end="")
    console.print(f", a checkpoint {words.size(job.state_bytes)}; V = {job.virtual_workers}\n")
    console.print(_scaling(found))
    most = found.sizes[-1].workers
    knee = f"The knee is at {words.workers(found.knee.workers)}: more gain less speed than they cost."
    console.print(f"\n{knee if has_knee(found.sizes) else f'Up to {words.workers(most)} there is no knee.'}\n")
    console.print(f"[bold]The fleet[/bold]  {found.fleet.name}: {fleet_in_words(found.fleet)}\n")
    console.print(_candidates(found))
    console.print(f"\n[bold]Saves[/bold]  {found.interval.reason};")
    console.print(f"       they and the loss of all take {words.percent(found.waste)} of the time")
    console.print(f"[bold]Goodput[/bold]  {words.percent(found.outcome.goodput)} of what the fleet could do\n")
    console.print(_bills(found, steps))


def _many(count: float) -> str:
    """Write a number as --parameters takes it: 124 M, 1.5 B."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def _scaling(found: Estimate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("workers", "all-reduce", "step", "speed-up", "efficiency", "balance of shares"):
        table.add_column(column, justify="right")
    for size in table_rows(found.sizes, found.job.per_node):
        style = "bold" if size.workers == found.knee.workers else ""
        table.add_row(
            f"{size.workers}",
            f"{1e3 * size.communication_s:,.2f} ms",
            words.seconds(size.step_s),
            f"{size.speedup:,.1f}",
            words.percent(size.efficiency),
            words.percent(size.balance),
            style=style,
        )
    return table


def _candidates(found: Estimate) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("V", "balance of shares on this fleet", "at its worst size"):
        table.add_column(column, justify="right")
    for one in found.shares:
        style = "bold" if one.virtual_workers == found.job.virtual_workers else ""
        table.add_row(f"{one.virtual_workers}", words.percent(one.balance), words.percent(one.worst), style=style)
    return table


def _memory(held: Sequence[ReplicaMemory], worker_bytes: float | None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    fits = [] if worker_bytes is None else [f"fits into {words.size(worker_bytes)}"]
    for column in ("workers of a replica", "bytes a parameter", "of this model", *fits):
        table.add_column(column, justify="right")
    for one in held:
        largest = [] if one.largest is None else [_many(one.largest)]
        row = (f"{one.replica_size}", f"{one.bytes_a_parameter:.1f}", words.size(one.model_bytes))
        table.add_row(*row, *largest)
    return table


def _bills(found: Estimate, steps: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in (f"{steps:,} steps", "take", "node-hours", "cost"):
        table.add_column(column, justify="left" if "steps" in column else "right")
    _bill_row(table, "on this spot fleet", found.spot)
    _bill_row(table, f"on {words.counted(found.job.nodes, 'node')} that stay", found.on_demand)
    return table


def _bill_row(table: Table, where: str, bill: Bill | None) -> None:
    if bill is None:
        table.add_row(where, "no step lasts", "", "")
        return
    cost = "no price given" if bill.cost is None else f"{bill.cost:,.2f}"
    table.add_row(where, words.seconds(bill.seconds), f"{bill.node_hours:,.1f}", cost)
