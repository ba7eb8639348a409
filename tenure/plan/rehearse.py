"""A plan played many times before a cent is spent: when it ends, what it costs, where its time goes.

Pure: a script (:mod:`tenure.plan.rehearse_script`) and a seed in, distributions out. ``docs/rehearse.md`` says
what is played and what is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tenure.plan.amdahl import Phases
from tenure.plan.rehearse_play import play
from tenure.plan.rehearse_script import Script
from tenure.plan.rehearse_world import Play

_HOUR_S = 3600.0
#: A deadline or a budget is said to be enough where so many plays keep it.
KEPT_BY = 0.9
#: Plays by which a looser deadline is looked for, and how finely: 4 halvings leave a sixteenth.
_TRIED_BY, _HALVINGS, _STRETCHES = 50, 4, 12


@dataclass(frozen=True)
class Spread:
    """A distribution by its mean and three quantiles; infinite where so many plays never end."""

    mean: float
    p10: float
    p50: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; a quantile is the least value that so many do not exceed.

        >>> Spread.of([float(n) for n in range(1, 11)])
        Spread(mean=5.5, p10=1.0, p50=5.0, p90=9.0)
        """
        ranked = sorted(values)
        cut = (ranked[math.ceil(level * len(ranked) - 1e-9) - 1] for level in (0.1, 0.5, 0.9))
        return cls(fmean(ranked), *cut)


@dataclass(frozen=True)
class RungUse:
    """What one rung did, as means over the plays."""

    rung: str
    card: str
    hours: float  # that its machines are paid for
    share: float  # of the hours of all rungs
    launches: float
    losses: float


@dataclass(frozen=True)
class Outcome:
    """How the plays under one rule ended."""

    script: Script
    plays: tuple[Play, ...]

    @property
    def finish_h(self) -> Spread:
        """From the enlisting to the end of the last job."""
        return Spread.of([each.finish_s / _HOUR_S for each in self.plays])

    @property
    def cost(self) -> dict[str, Spread]:
        """By currency, what is paid; currencies are never summed."""
        names = dict.fromkeys(station.currency for station in self.script.stations)
        return {
            name: Spread.of([each.spent.get(name, 0.0) for each in self.plays]) for name in names
        }

    @property
    def on_time(self) -> float | None:
        """P(every job is done by the deadline of its stage); ``None`` without a deadline.

        A deadline counts from the enlisting of a stage, so the pinned retrain has its own.
        """
        due_s = self.script.deadline_s
        if due_s is None:
            return None
        return fmean(each.training_s <= due_s and each.retrain_s <= due_s for each in self.plays)

    @property
    def budget_kept(self) -> float | None:
        """P(all is done before a budget is spent); ``None`` where the plan has none."""
        if not self.script.budget:
            return None
        return fmean(not each.broke and math.isfinite(each.finish_s) for each in self.plays)

    @property
    def never(self) -> float:
        """The share of the plays that never end."""
        return fmean(not math.isfinite(each.finish_s) for each in self.plays)

    @property
    def moves(self) -> float:
        """Mean number of holders that were asked to yield so as to be on time."""
        return fmean(each.moves for each in self.plays)

    @property
    def rungs(self) -> list[RungUse]:
        """What each rung did, in the user's order."""
        whole_h = math.fsum(used.paid_s for each in self.plays for used in each.used.values()) / (
            _HOUR_S * len(self.plays)
        )
        found = []
        for station in self.script.stations:
            used = [each.used[station.name] for each in self.plays]
            hours = fmean(each.paid_s for each in used) / _HOUR_S
            found.append(
                RungUse(
                    station.name,
                    station.card,
                    hours,
                    hours / whole_h if whole_h else 0.0,
                    fmean(each.launches for each in used),
                    fmean(each.lost for each in used),
                )
            )
        return found

    @property
    def phases(self) -> Phases | None:
        """Seconds of all jobs on machines, as means over the plays; ``None`` where nothing was done."""
        parts = [each.parts for each in self.plays]
        compute_s = fmean(each.work_s for each in parts)
        if compute_s <= 0:
            return None
        return Phases(
            compute_s,
            start_s=fmean(each.start_s for each in parts),
            restart_s=fmean(each.again_s + each.twice_s for each in parts),
            checkpoint_s=fmean(each.save_s for each in parts),
        )

    @property
    def wait_h(self) -> float:
        """Hours that jobs waited for a machine, summed over them; mean over the plays."""
        return fmean(each.parts.wait_s for each in self.plays) / _HOUR_S


def rehearse(script: Script, plays: int, seed: int, planned: bool = True) -> Outcome:
    """Play a plan so many times. ``planned``: by the planner where there is a deadline, else by the user's order.

    >>> from tenure.plan.rehearse_script import Kind, Station
    >>> from tenure.plan.survival import exponential
    >>> from tenure.plan.throughput import known
    >>> calm = Station("local", "cpu", 2, (60.0,), exponential(1e-9), exponential(1e-9), save_s=10.0, load_s=30.0)
    >>> hour = Kind("hour", 36_000, 6_000, {"local": known(10, 0.9)})
    >>> told = rehearse(Script((hour,) * 4, (calm,)), plays=5, seed=0)
    >>> round(told.finish_h.mean * 3600), told.cost["usd"].mean  # two of (60 + 30 + 3600 + 60) s each
    (7500, 0.0)
    """
    if plays < 1:
        raise ValueError(f"{plays} plays; there is at least 1")
    return Outcome(script, tuple(play(script, seed, number, planned) for number in range(plays)))


@dataclass(frozen=True)
class Relaxation:
    """What no play kept, by how much, and the least that most of them would keep."""

    what: str  # deadline_h, or budget.CURRENCY
    asked: float
    short: float  # by how much even the best play missed it
    enough: float | None  # kept by nine plays in ten; ``None``: none was found
    cost: dict[str, Spread]  # of it
    reason: str


def relax(outcome: Outcome, seed: int, planned: bool = True) -> Relaxation | None:
    """The cheapest way out where no play keeps its deadline, or none its budget; else ``None``.

    A budget comes first: what it stops is late too.
    """
    count = min(len(outcome.plays), _TRIED_BY)
    if outcome.budget_kept == 0.0 and any(each.broke for each in outcome.plays):
        return _budget(outcome, count, seed, planned)
    if outcome.on_time == 0.0:
        return _deadline(outcome, count, seed, planned)
    return None


def _budget(outcome: Outcome, count: int, seed: int, planned: bool) -> Relaxation:
    script = outcome.script
    currency = next(each.broke for each in outcome.plays if each.broke)
    asked = script.budget[currency]
    others = {name: amount for name, amount in script.budget.items() if name != currency}
    free = rehearse(replace(script, budget=others), count, seed, planned)
    ended = [each.spent[currency] for each in free.plays if math.isfinite(each.finish_s)]
    whole = [each.spent[currency] for each in free.plays]
    least = min(ended, default=math.inf)
    words = f"no play is done before the budget of {asked:g} {currency} is spent"
    if len(ended) < KEPT_BY * count:
        reason = f"{words}, and without it most plays do not end either"
        return Relaxation(f"budget.{currency}", asked, least - asked, None, free.cost, reason)
    enough = Spread.of(whole).p90
    reason = (
        f"{words}: the cheapest of {count} plays takes {least:.4g} {currency}, {least - asked:.4g} "
        f"more; a budget of {enough:.4g} {currency} would do in nine of ten"
    )
    return Relaxation(f"budget.{currency}", asked, least - asked, enough, free.cost, reason)


def _deadline(outcome: Outcome, count: int, seed: int, planned: bool) -> Relaxation:
    """The least deadline that nine in ten plays keep, by halving: each try is played under that deadline."""
    script = outcome.script
    due_s = script.deadline_s or 0.0
    best_s = min(max(each.training_s, each.retrain_s) for each in outcome.plays)
    asked, short = due_s / _HOUR_S, (best_s - due_s) / _HOUR_S
    words = f"no play keeps the deadline of {asked:.4g} h"
    if not math.isfinite(best_s):
        why = next(each.stuck for each in outcome.plays if each.stuck)
        reason = f"{words}, and none would keep a later one: {why}"
        return Relaxation("deadline_h", asked, math.inf, None, outcome.cost, reason)

    def under(deadline_s: float) -> Outcome:
        return rehearse(replace(script, deadline_s=deadline_s), count, seed, planned)

    low_s, high_s = due_s, best_s
    for _ in range(_STRETCHES):
        found = under(high_s)
        if (found.on_time or 0.0) >= KEPT_BY:
            break
        low_s, high_s = high_s, 1.15 * high_s
    else:
        reason = f"{words}: the best play is {short:.3g} h late, and most are later than {high_s / _HOUR_S:.4g} h"
        return Relaxation("deadline_h", asked, short, None, outcome.cost, reason)
    for _ in range(_HALVINGS):
        middle_s = (low_s + high_s) / 2
        tried = under(middle_s)
        if (tried.on_time or 0.0) >= KEPT_BY:
            high_s, found = middle_s, tried
        else:
            low_s = middle_s
    enough = math.ceil(high_s / _HOUR_S * 100) / 100
    costs = " and ".join(f"{each.mean:.4g} {name}" for name, each in found.cost.items())
    reason = (
        f"{words}: the best of {len(outcome.plays)} is {short:.3g} h late; the cheapest way out is "
        f"deadline_h: {enough:g}, which nine of ten plays keep, for {costs} on average"
    )
    return Relaxation("deadline_h", asked, short, enough, found.cost, reason)
