"""One sentence for each job that has a place: what it pays there, in money and in what others would pay."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from tenure.plan.allocate_launches import Launch, cost_shares
from tenure.plan.allocate_model import Problem
from tenure.plan.shadow import ShadowPrices


def reasons(problem: Problem, launches: Sequence[Launch], prices: ShadowPrices) -> dict[int, str]:
    """By job. Costs elsewhere are with a full launch, and with what scarce hours are worth to others."""
    import numpy as np

    hours = np.where(np.isfinite(problem.launch_h), problem.launch_h * problem.share, np.inf)
    per_h = np.array(prices.per_h).T[np.array(prices.last)]  # (jobs, rungs)
    usd = np.array(problem.usd_per_h)
    with np.errstate(invalid="ignore"):
        priced = np.where(np.isfinite(hours), hours * (usd[None, :] + per_h), np.inf)
    found: dict[int, str] = {}
    for launch in launches:
        others = priced[list(launch.jobs)].copy()
        others[:, launch.rung] = np.inf
        nexts = others.argmin(axis=1)
        shares = cost_shares(problem, launch)
        for n, job in enumerate(launch.jobs):
            scarce = float(per_h[job, launch.rung] * hours[job, launch.rung])
            own = _own(problem, launch, job, shares[n], scarce)
            found[job] = (
                f"{own}{_beside(problem, launch, job)}; {_next(problem, nexts[n], others[n])}"
            )
    return found


def _own(problem: Problem, launch: Launch, job: int, amount: float, scarce_usd: float) -> str:
    rung = problem.rungs[launch.rung]
    hours = float(problem.launch_h[job, launch.rung])
    spot = ", losses of spot counted in" if rung.hazard_per_h else ""
    scarce = (
        f", and its hours there are worth {scarce_usd:.4g} usd to others"
        if scarce_usd > 5e-5
        else ""
    )
    return (
        f"{hours:.4g} h on {rung.name}{spot} cost {amount:.4g} {rung.price.currency}{scarce}"
        f"; it ends at {launch.until_h(hours):.4g} of {problem.due_h[job]:g} h"
    )


def _beside(problem: Problem, launch: Launch, job: int) -> str:
    names = [problem.jobs[it].name for it in launch.jobs if it != job]
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f", on one launch with {', '.join(names[:3])}{more}"


def _next(problem: Problem, rung: int, priced: Sequence[float]) -> str:
    if not isfinite(priced[rung]):
        return "no other rung takes it"
    return f"the next best is {problem.rungs[rung].name} for {priced[rung]:.4g} usd"
