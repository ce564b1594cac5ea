"""The flags that `elastic plan` and `elastic simulate` share: the model, the cluster, the fleet, measured figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from elastic.errors import ConfigError
from elastic.plan import figures as measured
from elastic.plan import trace as recorded
from elastic.plan import units
from elastic.plan.communication import Link
from elastic.plan.figures import Figures
from elastic.plan.job import ADAM, Job

T = TypeVar("T")
_HOURS = 200.0
WORKERS_MAX = 20_000  # beyond it a plan takes minutes, and its figures were never compared with anything
SHARES_MAX = 10 * WORKERS_MAX
_GRADIENTS = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}


def quantity(read: Callable[[str], T]) -> Callable[[str], T]:
    """Make a reader of units.py one for argparse, which shows its errors."""

    def typed(text: str) -> T:
        try:
            return read(text)
        except ConfigError as wrong:
            raise argparse.ArgumentTypeError(str(wrong)) from None

    return typed


def link(text: str) -> Link:
    """Read a link such as 300GB/s:1us. Raises ConfigError."""
    bandwidth, _, latency = text.partition(":")
    found = Link(units.rate(bandwidth), units.seconds(latency) if latency else 0.0)
    if found.bandwidth < 1:
        raise ConfigError(f"{text!r}: a link of no bandwidth; expected 1B/s or more, such as 300GB/s:1us")
    return found


def upload(text: str) -> float:
    """Read a rate of uploads, in bytes per second. Raises ConfigError where it is too low to save anything."""
    found = units.rate(text)
    if found < 1:
        raise ConfigError(f"{text!r}: nothing is ever saved at that; expected 1B/s or more, such as 1GB/s")
    return found


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe the model, the cluster and the fleet."""
    what = parser.add_argument_group("the model")
    size, time = quantity(units.above_0(units.count)), quantity(units.seconds)
    lasts = quantity(units.above_0(units.seconds))
    what.add_argument("--parameters", type=size, metavar="N", help="124M, 1.5B")
    what.add_argument(
        "--batch-time",
        type=lasts,
        metavar="T",
        help="in which one worker computes a whole batch, forward and backward (default: as --measure found)",
    )
    what.add_argument(
        "--gradients", choices=_GRADIENTS, default="fp32", help="as they travel (default fp32, which exact mode sums)"
    )
    what.add_argument(
        "--state",
        type=quantity(units.above_0(units.nbytes)),
        metavar="BYTES",
        help="of a checkpoint (default: fp32 with AdamW's two)",
    )
    what.add_argument("--virtual-workers", type=int, metavar="V", help="(default: what `elastic plan` suggests)")
    where = parser.add_argument_group("the cluster")
    where.add_argument("--nodes", type=int, default=8, metavar="N", help="the most that take part (default 8)")
    where.add_argument("--per-node", type=int, default=1, metavar="G", help="workers of a node (default 1)")
    where.add_argument("--nodes-min", type=int, default=1, metavar="N", help="below it the run waits (default 1)")
    where.add_argument(
        "--inside", type=quantity(link), metavar="RATE:LATENCY", help="between workers of a node: 300GB/s:1us"
    )
    where.add_argument(
        "--across", type=quantity(link), metavar="RATE:LATENCY", help="of a node's adapter: 100Gbit/s:5us"
    )
    where.add_argument("--adapters", type=int, default=1, metavar="N", help="of a node (default 1)")
    where.add_argument(
        "--overlap",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="of computing, while which gradients travel: 0 (default) to 1",
    )
    where.add_argument("--upload", type=quantity(upload), metavar="RATE", help="of a save to the run's storage")
    fleet = parser.add_argument_group("the fleet")
    fleet.add_argument(
        "--trace",
        action="append",
        metavar="NAME",
        help=f"a CSV file with the columns t_s,op,node, or a recorded one: {', '.join(recorded.recorded_names())}",
    )
    fleet.add_argument(
        "--lifetime",
        type=quantity(units.above_0(units.lifetime)),
        metavar="T",
        help="instead: a fleet is drawn whose machines live for so long on average",
    )
    fleet.add_argument(
        "--replaced", type=time, default=300.0, metavar="T", help="until the next comes, on average (default 5min)"
    )
    fleet.add_argument("--seed", type=int, default=0, metavar="N", help="of that fleet (default 0)")
    fleet.add_argument(
        "--arrive", type=time, default=0.0, metavar="T", help="from a machine's coming to its first process"
    )
    fleet.add_argument("--notice", type=time, default=0.0, metavar="T", help="before a machine goes (default: none)")
    parser.add_argument("--sources", action="store_true", help="also say where each measured figure is from")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="measured times instead of this package's own")


def add_output(parser: argparse.ArgumentParser, *, drawn: str) -> None:
    """Add --json and --plot. drawn: what --plot shows."""
    parser.add_argument("--json", action="store_true", help="print the facts as JSON; keys stay as they are")
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"write a page that draws {drawn}: .html")


def check_plot(given: argparse.Namespace) -> None:
    """Raise ConfigError for a file that a browser would not show."""
    if given.plot is not None and given.plot.suffix != ".html":
        raise ConfigError(f"--plot {given.plot}; expected a file that ends in .html; nothing was planned")


def figures_of(given: argparse.Namespace) -> Figures:
    """Return the measured figures, and what was given instead. Raises ConfigError."""
    found = dict(measured.read(given.figures))
    if given.upload is not None:
        found["upload_bytes_per_s"] = measured.Figure(given.upload, "--upload", "given")
    return found


def job_of(given: argparse.Namespace, figures: Figures, *, virtual_workers: int) -> Job:
    """Return the job that the flags describe. Raises ConfigError for what is missing, and for what cannot be."""
    for name in ("nodes", "per_node", "nodes_min", "adapters"):
        if getattr(given, name) < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(given, name)}; expected 1 or more")
    if not 0 <= given.overlap <= 1:
        raise ConfigError(f"--overlap {given.overlap:g}; expected a share from 0 to 1")
    if given.nodes_min > given.nodes:
        raise ConfigError(
            f"--nodes-min {given.nodes_min} is above --nodes {given.nodes}: the run would never begin; "
            f"expected 1 to {given.nodes}, or more --nodes"
        )
    if given.parameters is not None and given.parameters < 1:
        raise ConfigError(f"--parameters {given.parameters:g}; expected 1 or more, such as 124M")
    batch_s = given.batch_time or (figures["batch_s"].value if "batch_s" in figures else 0.0)  # never 0, if given
    links_known = "link_bytes_per_s" in figures
    lacking = [
        expected
        for expected, is_lacking in (
            ("--parameters 124M, how many the model has", given.parameters is None),
            ("--batch-time 8s, in which one worker computes a whole batch", not batch_s),
            ("--inside 300GB/s:1us", given.per_node > 1 and given.inside is None and not links_known),
            ("--across 100Gbit/s:5us", given.nodes > 1 and given.across is None and not links_known),
        )
        if is_lacking
    ]
    if lacking:
        raise ConfigError(
            f"missing: {'; '.join(lacking)}\n"
            "  next  give yours; all but --parameters are measured by elastic plan --measure here.json, on such a "
            "machine, for --figures here.json"
        )
    return Job(
        parameters=given.parameters,
        gradient_bytes=_GRADIENTS[given.gradients],
        state_bytes=given.state or 4.0 * ADAM * given.parameters,
        batch_s=batch_s,
        nodes=given.nodes,
        per_node=given.per_node,
        virtual_workers=virtual_workers,
        inside=_link(given.inside, figures),
        across=_link(given.across, figures),
        adapters=given.adapters,
        overlap=given.overlap,
    )


def fleets_of(given: argparse.Namespace, names: Sequence[str]) -> list[recorded.Trace]:
    """Return fleets as they were recorded, or one drawn. Raises ConfigError."""
    if given.lifetime is None:
        return [recorded.read(name) for name in given.trace or names]
    if given.trace:
        raise ConfigError("--lifetime draws a fleet, and --trace names one; expected one of them: leave the other out")
    length_s = min(max(_HOURS * 3600, 20 * given.lifetime), units.YEAR_S)
    return [
        recorded.draw(
            seed=given.seed,
            nodes=given.nodes,
            lifetime_s=given.lifetime,
            replaced_s=given.replaced,
            length_s=length_s,
        )
    ]


def _link(given: Link | None, figures: Figures) -> Link:
    """Return the link that is given, or measured; else one that costs nothing."""
    if given is not None:
        return given
    if "link_bytes_per_s" in figures:
        return Link(figures["link_bytes_per_s"].value, figures["link_latency_s"].value)
    return Link(float("inf"), 0.0)
