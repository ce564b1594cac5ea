"""Plans and simulations as pages of charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic.errors import ConfigError
from elastic.events import words
from elastic.pages import Figure, render, text_of
from elastic.plan.estimate import Estimate
from elastic.plan.scaling import has_knee
from elastic.plan.simulation import PARTS, Outcome
from elastic.plan.trace import Trace

_COLOURS = ("productive", "redone", "detecting", "loading", "transferring", "unknown")


def plot_plan(found: Estimate, file: Path) -> None:
    """Write efficiency and speed-up by the number of workers, the knee, and what the fleet has for how long.

    Raises:
        ConfigError: The file cannot be written.
    """
    workers = [size.workers for size in found.sizes]
    held = {nodes * found.job.per_node: seconds for nodes, seconds in found.fleet.seconds_by_size().items()}
    shares = [100 * seconds / found.fleet.length_s for seconds in held.values()]
    name = "share of the time in which the fleet has so many, %"
    traces: list[dict[str, Any]] = [
        {"type": "bar", "name": name, "x": list(held), "y": shares, "marker": {"color": "--band"}}
    ]
    efficiency, speedup = [100 * size.efficiency for size in found.sizes], [size.speedup for size in found.sizes]
    for name, y, axis, colour in (
        ("efficiency, %", efficiency, "y", "--line"),
        ("speed-up", speedup, "y2", "--second"),
    ):
        line = {"x": workers, "y": y, "yaxis": axis, "name": name, "line": {"color": colour}}
        traces.append(line | {"hovertemplate": "%{x} workers: %{y:.3~g}"})
    right = {"overlaying": "y", "side": "right", "tickmode": "auto", "showgrid": False, "rangemode": "tozero"}
    layout: dict[str, Any] = {
        "xaxis": {"title": {"text": "workers"}, "tickformat": ",d"},
        "yaxis": {"title": {"text": "efficiency, %"}, "range": [0, 105]},
        "yaxis2": {"title": {"text": "speed-up"}, **right},
    }
    note = ""
    if has_knee(found.sizes):
        knee = found.knee.workers
        note = f"The dotted line is the knee, at {knee} workers."
        layout["shapes"] = [{"x0": knee, "x1": knee, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot"}}]
    said = f"Efficiency and speed-up of {workers[0]} to {workers[-1]} workers."
    title = f"V = {found.job.virtual_workers}, {found.fleet.name}"
    _write("A plan", [Figure(title=title, said=said, note=note, height=440, traces=traces, layout=layout)], file)


def plot_fleets(found: Sequence[tuple[Trace, Sequence[Outcome]]], file: Path) -> None:
    """Write a bar for each policy on each fleet: where its time goes, and its goodput.

    Raises:
        ConfigError: The file cannot be written.
    """
    _write("What fleets make of a run", [_of_fleet(fleet, outcomes) for fleet, outcomes in found], file)


def _of_fleet(fleet: Trace, outcomes: Sequence[Outcome]) -> Figure:
    names = [text_of(f"{one.policy}  {words.percent(one.goodput)}") for one in outcomes]
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "marker": {"color": f"--{colour}"},
            "y": names,
            "x": [100 * one.parts[part] / fleet.length_s for one in outcomes],
            "hovertemplate": "%{x:.1f} %",
        }
        for part, colour in zip(PARTS, _COLOURS, strict=True)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "of the time, %"}, "range": [0, 100]},
        "yaxis": {"autorange": "reversed"},
    }
    said = ", ".join(f"{one.policy} {words.percent(one.goodput)}" for one in outcomes)
    note = "Behind each policy its goodput: of the steps that the fleet could have done."
    height = 110 + 28 * len(outcomes)
    return Figure(title=fleet.name, said=f"Goodput: {said}.", note=note, height=height, traces=traces, layout=layout)


def _write(title: str, figures: Sequence[Figure], file: Path) -> None:
    try:
        file.write_text(render("charts.html.j2", title=title, figures=figures), encoding="utf-8")
    except OSError as refused:
        raise ConfigError(
            f"--plot {file}: {refused}\n  next  name a file in a folder that can be written, or leave --plot out"
        ) from refused
