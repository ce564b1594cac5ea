"""Plans and simulations as pictures.

    plot_plan    efficiency and speed-up by the number of workers, the knee, and what the fleet has for how long
    plot_fleets  of each fleet a bar for each policy: where its time goes; and its goodput

matplotlib is the extra `plan`'s, and is loaded here alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.errors import ConfigError
from elastic.events import words
from elastic.plan.estimate import Estimate
from elastic.plan.scaling import has_knee
from elastic.plan.simulation import PARTS, Outcome
from elastic.plan.trace import Trace

_COLORS = dict(zip(PARTS, ("tab:green", "tab:red", "tab:orange", "tab:purple", "tab:blue", "lightgray"), strict=True))


def plot_plan(found: Estimate, file: Path) -> None:
    """Raises ConfigError where it cannot be drawn, or not be written."""
    figure = _figure(height=4.5)
    workers = [size.workers for size in found.sizes]
    efficiency = figure.subplots()
    efficiency.plot(workers, [100 * size.efficiency for size in found.sizes], color="tab:blue")
    beside = 0.5 * found.job.per_node
    efficiency.set(xlabel="workers", ylabel="efficiency, %", ylim=(0, 105))
    efficiency.set(xlim=(max(0, workers[0] - beside), workers[-1] + beside))
    efficiency.xaxis.get_major_locator().set_params(integer=True)
    if has_knee(found.sizes):
        efficiency.axvline(found.knee.workers, color="tab:gray", linestyle=":", label=f"knee: {found.knee.workers}")
    total_s = found.fleet.length_s
    held = {nodes * found.job.per_node: seconds for nodes, seconds in found.fleet.seconds_by_size().items()}
    shares = [100 * held[count] / total_s for count in held]
    label = "share of the time in which the fleet has so many, %"
    efficiency.bar(list(held), shares, width=1.6 * beside, color="tab:green", alpha=0.3, label=label)
    speedup = efficiency.twinx()
    speedup.plot(workers, [size.speedup for size in found.sizes], color="tab:orange")
    speedup.set(ylabel="speed-up", ylim=(0, None))
    efficiency.yaxis.label.set_color("tab:blue")
    speedup.yaxis.label.set_color("tab:orange")
    efficiency.set_title(f"V = {found.job.virtual_workers}, {found.fleet.name}")
    figure.legend(*efficiency.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    _write(figure, file)


def plot_fleets(found: Sequence[tuple[Trace, Sequence[Outcome]]], file: Path) -> None:
    """Raises ConfigError where it cannot be drawn, or not be written."""
    rows = sum(len(outcomes) for _, outcomes in found)
    figure = _figure(height=1 + 0.25 * rows + 0.4 * len(found))
    axes = figure.subplots(len(found), sharex=True, squeeze=False)[:, 0]
    for axis, (fleet, outcomes) in zip(axes, found, strict=True):
        policies = [one.policy for one in outcomes]
        ends = [0.0] * len(outcomes)
        for part in PARTS:
            shares = [100 * one.parts[part] / fleet.length_s for one in outcomes]
            axis.barh(policies, shares, left=ends, color=_COLORS[part], label=part)
            ends = [end + share for end, share in zip(ends, shares, strict=True)]
        for row, one in enumerate(outcomes):
            axis.text(101, row, words.percent(one.goodput), va="center")
        axis.set(xlim=(0, 100))
        axis.set_title(fleet.name, loc="left", fontsize="medium")
        axis.set_title("goodput", loc="right", fontsize="medium")
        axis.invert_yaxis()
    axes[-1].set_xlabel("of the time, %; goodput is of the steps that the fleet could have done")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(PARTS), frameon=False)
    _write(figure, file)


def _figure(*, height: float) -> Any:
    """height: in inches"""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; nothing was drawn\n"
            "  next  pip install matplotlib, or leave --plot out"
        ) from missing
    return Figure(figsize=(8, height), layout="constrained")


def _write(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as refused:
        raise ConfigError(
            f"--plot {file}: {refused}\n  next  name a file in a folder that can be written, or leave --plot out"
        ) from refused
