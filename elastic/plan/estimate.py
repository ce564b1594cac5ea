"""What would a run take and cost: on a spot fleet that does as its trace did, and on machines that stay? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastic.plan.cadence import AT_RISK_MAX_S, Interval, Losses, decide, waste
from elastic.plan.figures import Figures
from elastic.plan.job import Job
from elastic.plan.policies import OURS, policies
from elastic.plan.scaling import Candidate, Size, knee, sizes
from elastic.plan.simulation import Outcome, simulate
from elastic.plan.trace import Trace


@dataclass(frozen=True)
class Bill:
    """The time and price of a run. seconds: from the begin to the last step; cost: None where no price is known."""

    seconds: float
    node_hours: float
    cost: float | None

    def facts(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "node_hours": self.node_hours, "cost": self.cost}


@dataclass(frozen=True)
class Estimate:
    """A plan's answers: candidates, the interval between saves, and bills on a spot fleet and on machines that stay.

    shares       candidates for V; the job has one of them, or another
    interval     between saves, with what the fleet's trace shows as seen
    waste        the share of the time that saves and the loss of all take then
    outcome      of `elastic run` on the trace
    spot         None: no step of it lasts
    on_demand    on as many nodes as take part, that stay
    """

    job: Job
    fleet: Trace
    sizes: tuple[Size, ...]
    knee: Size
    shares: tuple[Candidate, ...]
    interval: Interval
    waste: float
    outcome: Outcome
    spot: Bill | None
    on_demand: Bill


def estimate(
    job: Job,
    fleet: Trace,
    shares: list[Candidate],
    figures: Figures,
    *,
    steps: int,
    spot_price: float | None,
    on_demand_price: float | None,
    save_price: float = 0.0,
    at_risk_max_s: float = AT_RISK_MAX_S,
    waits: Mapping[str, Any] | None = None,
) -> Estimate:
    """Estimate what a job takes and costs on a spot fleet, and on machines that stay.

    fleet       limited to the nodes that take part
    prices      of a node, an hour; save_price: of a save's requests, in what the spot fleet costs, too
    waits       what else policies() takes: arrive_s, notice_s, nodes_min
    """
    compared = policies(figures, state_bytes=job.state_bytes, fixed_s=600.0, **(waits or {}))
    per_second = (spot_price or on_demand_price or 0.0) / 3600 * fleet.node_s / fleet.length_s
    save_costs_s = save_price / per_second if per_second else 0.0
    ours = next(policy for policy in compared if policy.name == OURS)
    ours = replace(ours, at_risk_max_s=at_risk_max_s, save_costs_s=save_costs_s)
    outcome = simulate(fleet, ours, job.step_of_nodes_s)
    seen = Losses(fleet.full_losses, fleet.length_s)
    interval = decide(
        stall_s=ours.stall_s,
        durable_s=ours.durable_s,
        losses=seen,
        at_risk_max_s=at_risk_max_s,
        save_costs_s=save_costs_s,
    )
    spot = None
    if outcome.steps:
        times = steps / outcome.steps
        saves = outcome.saves * times * save_price
        spot = _bill(fleet.length_s * times, fleet.node_s * times, spot_price, besides=saves)
    calm_s = steps * job.step_of_nodes_s(job.nodes) + ours.start_s
    found = tuple(sizes(job))
    return Estimate(
        job=job,
        fleet=fleet,
        sizes=found,
        knee=knee(found),
        shares=tuple(shares),
        interval=interval,
        waste=waste(
            interval.seconds,
            stall_s=ours.stall_s,
            mean_s=seen.mean_s,
            reload_s=ours.start_s,
            durable_s=ours.durable_s,
        ),
        outcome=outcome,
        spot=spot,
        on_demand=_bill(calm_s, calm_s * job.nodes, on_demand_price),
    )


def _bill(seconds: float, node_s: float, price: float | None, *, besides: float = 0.0) -> Bill:
    return Bill(seconds, node_s / 3600, None if price is None else node_s / 3600 * price + besides)
