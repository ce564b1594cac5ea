"""A plan as a picture: efficiency and speed-up by the number of workers, the knee, and what the fleet has for how long.

matplotlib is the extra `plan`'s, and is loaded here alone.
"""

from __future__ import annotations

from pathlib import Path

from elastic.errors import ConfigError
from elastic.plan.estimate import Estimate
from elastic.plan.scaling import has_knee


def plot(found: Estimate, file: Path) -> None:
    """Raises ConfigError where it cannot be drawn, or not be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed; nothing was drawn\n"
            "  next  pip install matplotlib, or leave --plot out"
        ) from missing
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    workers = [size.workers for size in found.sizes]
    efficiency = figure.subplots()
    efficiency.plot(workers, [100 * size.efficiency for size in found.sizes], color="tab:blue")
    efficiency.set(xlabel="workers", ylabel="efficiency, %", ylim=(0, 112), xlim=(0.5, workers[-1] + 0.5))
    if has_knee(found.sizes):
        efficiency.axvline(found.knee.workers, color="tab:gray", linestyle=":", label=f"knee: {found.knee.workers}")
    total_s = found.fleet.length_s
    held = {nodes * found.job.per_node: seconds for nodes, seconds in found.fleet.seconds_by_size().items()}
    shares = [100 * held[count] / total_s for count in held]
    efficiency.bar(list(held), shares, color="tab:green", alpha=0.3, label="of the time, the fleet has so many, %")
    speedup = efficiency.twinx()
    speedup.plot(workers, [size.speedup for size in found.sizes], color="tab:orange")
    speedup.set(ylabel="speed-up", ylim=(0, None))
    efficiency.yaxis.label.set_color("tab:blue")
    speedup.yaxis.label.set_color("tab:orange")
    efficiency.legend(loc="upper center", ncols=2, frameon=False)
    figure.suptitle(f"V = {found.job.virtual_workers}, {found.fleet.name}")
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as refused:
        raise ConfigError(
            f"--plot {file}: {refused}\n  next  name a file in a folder that can be written, or leave --plot out"
        ) from refused
