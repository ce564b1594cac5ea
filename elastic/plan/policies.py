"""The ways of running on machines that come and go which a simulation compares, with measured times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic.plan.figures import Figures
from elastic.plan.simulation import Policy

TORCHRUN, OURS = "torchrun", "elastic run"
IN_WORDS = {
    TORCHRUN: "all start again, from the newest save, whenever a node goes or comes",
    "restarts": "all start again when a node goes; those who come are taken in after the next save",
    "restarts, tuned": "the same, saving at the interval that would have been best",
    "stalls": "survivors keep their state and stand still for as long as torchft's do",
    OURS: "survivors keep their state; the interval between saves is found while it runs",
}
USES = (
    *("loss_s", "join_s", "start_s", "torchrun_restart_s", "torchft_stall_s"),
    *("copy_bytes_per_s", "stall_copies", "write_bytes_per_s", "upload_bytes_per_s", "read_bytes_per_s"),
)
"""The figures that policies rest on."""


def policies(
    figures: Figures,
    *,
    state_bytes: float,
    fixed_s: float,
    arrive_s: float = 0.0,
    notice_s: float = 0.0,
    nodes_min: int = 1,
) -> Sequence[Policy]:
    """Return the ways of running that are compared; ours comes last.

    state_bytes  of a checkpoint
    fixed_s      seconds of training between saves, where nobody tunes it
    arrive_s     from a machine's coming until its processes begin to start: its boot, its image
    notice_s     see Policy
    """
    value = {name: figures[name].value for name in USES}
    read_s = state_bytes / value["read_bytes_per_s"]
    written_s = state_bytes / value["write_bytes_per_s"]
    blocking: dict[str, Any] = {"stall_s": written_s, "durable_s": written_s}
    restart: dict[str, Any] = {
        "start_s": value["torchrun_restart_s"] + read_s,
        "arrive_s": arrive_s,
        "nodes_min": nodes_min,
    }
    background: dict[str, Any] = {
        "stall_s": value["stall_copies"] * state_bytes / value["copy_bytes_per_s"],
        "durable_s": state_bytes / value["upload_bytes_per_s"],
        "start_s": value["start_s"] + read_s,
        "arrive_s": arrive_s + value["start_s"],
        "nodes_min": nodes_min,
        "auto": True,
    }
    stall_s = value["torchft_stall_s"]
    lose_s, join_s = value["loss_s"], value["join_s"]
    return [
        Policy(name=TORCHRUN, survives=False, interval_s=fixed_s, **blocking, **restart),
        Policy(
            name="restarts",
            survives=False,
            joins=False,
            interval_s=fixed_s,
            **blocking,
            **restart,
        ),
        Policy(name="restarts, tuned", survives=False, joins=False, **blocking, **restart),
        Policy(name="stalls", survives=True, loss_s=stall_s, join_s=stall_s, **background),
        Policy(name=OURS, survives=True, loss_s=lose_s, join_s=join_s, notice_s=notice_s, **background),
    ]
