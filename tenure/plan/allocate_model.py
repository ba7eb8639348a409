"""The numbers of an allocation: how long a job takes on a rung, what excludes it, and what limits all of them.

Jobs and rungs are counted from 0 in the order of the scenario. A *launch* is one machine with all its
cards, paid for until the longest of its jobs has ended, as :mod:`tenure.dispatch.packing` has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, expm1, inf, isinf
from typing import TYPE_CHECKING

from tenure.plan.allocate_scenario import Job, Rung, Scenario

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Hours, dollars and units that rounding may be off by; the solver's own tolerance is of this size.
SLACK = 1e-6
#: What an answer may be off by: the slack of some of its jobs together.
TOLERANCE = 1e-4
_HOUR_S = 3600.0


def hazard_factor(hazard_per_h: float, milestone_h: float, start_h: float) -> float:
    """Expected paid hours for an hour of work where machines are lost at random.

    With a constant hazard L, milestones T apart and a restart of R hours, T hours of work take
    ``(1/L + R) (e^(L T) - 1)`` on average (Daly 2006, without the time to save, which is in the useful
    share). Half a milestone and a restart are lost at each loss, to the first order.

    >>> hazard_factor(0.0, 0.5, 0.1)
    1.0
    >>> round(hazard_factor(0.1, 0.5, 0.1), 4), round(1 + 0.1 * (0.5 / 2 + 0.1), 4)
    (1.0357, 1.035)
    """
    if hazard_per_h * milestone_h < 1e-12:
        return 1.0 + hazard_per_h * start_h
    exponent = hazard_per_h * milestone_h
    if exponent > 500.0:
        return inf  # nobody lives that long
    return (1.0 / hazard_per_h + start_h) * expm1(exponent) / milestone_h


def work_h(job: Job, rung: Rung) -> float | None:
    """Hours of work without any loss; ``None`` where nobody knows how long it takes there."""
    if job.hours is not None:
        return job.hours / rung.speed
    if job.hours_on is not None:
        return job.hours_on.get(rung.name)
    if job.flops is None or rung.flops_per_s is None:
        return None
    return job.flops / (rung.flops_per_s * rung.speed * job.cards * _HOUR_S)


def launch_hours(job: Job, rung: Rung) -> float:
    """Expected hours that a job keeps a launch of a rung; infinite where it never ends there.

    ``work / useful_share * hazard_factor``, and ``start_h`` for each launch: one, or as many as its wall
    makes necessary.

    >>> from tenure.plan.allocate_scenario import Price
    >>> kaggle = Rung(name="kaggle", price=Price(per_h=0), speed=0.5, wall_h=12.0, start_h=0.5)
    >>> launch_hours(Job(name="a", hours=10.0), kaggle)
    21.0
    """
    alone_h = work_h(job, rung)
    if alone_h is None:
        return inf
    factor = hazard_factor(rung.hazard_per_h, min(job.milestone_h, alone_h), rung.start_h)
    paid_h = alone_h / rung.useful_share * factor
    if rung.wall_h is None or isinf(paid_h):
        return paid_h + rung.start_h
    net_h = rung.wall_h - rung.start_h
    if net_h < min(job.milestone_h, alone_h):
        return inf
    return paid_h + rung.start_h * ceil(paid_h / net_h - 1e-9)


@dataclass(frozen=True)
class Window:
    """A stretch of time between two renewals of a quota, and what there is of it then."""

    from_h: float
    to_h: float
    amount: float

    @property
    def lasts_h(self) -> float:
        """Its length."""
        return self.to_h - self.from_h


@dataclass(frozen=True)
class Account:
    """A quota: the rungs that draw on it, and what there is of it from window to window."""

    name: str  # of the rung that has it
    unit: str
    rungs: tuple[int, ...]
    per_h: tuple[float, ...]  # units for an hour of one launch, beside `rungs`
    windows: tuple[Window, ...]

    def rate(self, rung: int) -> float:
        """Units that an hour of a launch of this rung takes."""
        return self.per_h[self.rungs.index(rung)]


def windows_until(rung: Rung, until_h: float) -> Iterator[Window]:
    """The windows of a rung's own quota up to a time."""
    quota = rung.quota
    assert quota is not None
    from_h, amount = 0.0, quota.left
    to_h = until_h if quota.renews_in_h is None else quota.renews_in_h
    while to_h < until_h:
        yield Window(from_h, to_h, amount)
        from_h, to_h = to_h, to_h + quota.every_h
        amount = quota.left if quota.granted is None else quota.granted
    yield Window(from_h, until_h, amount)


@dataclass(frozen=True)
class Problem:
    """A scenario in numbers."""

    scenario: Scenario

    @property
    def jobs(self) -> list[Job]:
        """In the order of the scenario."""
        return self.scenario.jobs

    @property
    def rungs(self) -> list[Rung]:
        """In the order of the scenario."""
        return self.scenario.rungs

    @cached_property
    def until_h(self) -> float:
        """The horizon."""
        return self.scenario.until_h

    @cached_property
    def due_h(self) -> list[float]:
        """By job: its deadline, and the horizon at the latest."""
        return [min(job.deadline_h or inf, self.until_h) for job in self.jobs]

    @cached_property
    def accounts(self) -> tuple[Account, ...]:
        """Every quota."""
        found = []
        for owner, rung in enumerate(self.rungs):
            if rung.quota is None:
                continue
            of = [n for n, it in enumerate(self.rungs) if n == owner or it.quota_of == rung.name]
            unit = rung.quota.unit
            per_h = [1.0 if unit == "h" else self.rungs[n].price.per_h for n in of]
            windows = tuple(windows_until(rung, self.until_h))
            found.append(Account(rung.name, unit, tuple(of), tuple(per_h), windows))
        return tuple(found)

    @cached_property
    def account_of(self) -> dict[int, Account]:
        """By rung; one without a quota has none."""
        return {rung: account for account in self.accounts for rung in account.rungs}

    @cached_property
    def usd_per_h(self) -> list[float]:
        """By rung: dollars for an hour of one launch."""
        rungs = self.rungs
        return [it.price.per_h * self.scenario.usd_per_unit(it.price.currency) for it in rungs]

    @cached_property
    def launch_h(self) -> NDArray[np.float64]:
        """Hours of each job on each rung, shape (jobs, rungs); infinite where something excludes it."""
        from tenure.plan.allocate_hours import hours_of_all

        return hours_of_all(self)

    @cached_property
    def share(self) -> NDArray[np.float64]:
        """The part of a launch that a job takes up at least, shape (jobs, rungs).

        Its cards over all; or one of as many jobs as go on a launch, where that is what limits it. Of
        the jobs of one launch these parts add up to 1 at most, so what they cost is a lower bound.
        """
        import numpy as np

        cards = np.array([float(job.cards) for job in self.jobs])[:, None]
        of = np.array([float(rung.cards) for rung in self.rungs])[None, :]
        most = np.array([float(rung.per_launch or rung.cards) for rung in self.rungs])[None, :]
        found: NDArray[np.float64] = np.where(most >= of, cards / of, 1.0 / most)
        return found

    def packs(self, rung: int) -> bool:
        """Whether several jobs may go together on one launch."""
        it = self.rungs[rung]
        return it.cards > 1 and it.per_launch != 1

    def windows(self, rung: int) -> tuple[Window, ...]:
        """Of the quota of a rung; of one without a quota the whole time, without a limit."""
        account = self.account_of.get(rung)
        return account.windows if account else (Window(0.0, self.until_h, inf),)

    def excluded(self, job: int, rung: int) -> str | None:
        """What excludes a job from a rung whatever the others do, in words; ``None``: nothing."""
        why = self.refused(job, rung)
        return why if why is not None else self.too_long(job, rung) or self.too_dear(job, rung)

    def refused(self, job: int, rung: int) -> str | None:
        """What excludes it there at any time and price."""
        it, at = self.jobs[job], self.rungs[rung]
        if it.kind not in at.kinds:
            return f"takes no {it.kind} jobs, only {', '.join(at.kinds)}"
        if it.environment is not None and it.environment not in at.environments:
            proves = ", ".join(at.environments) or "none"
            return f"cannot prove environment {it.environment} (it proves: {proves})"
        if it.sure_only and at.spot:
            return f"is spot, and the job is critical{self._why_critical(it)}"
        if it.cards > at.cards:
            return f"a launch has {at.cards} card{'s' * (at.cards > 1)}, the job needs {it.cards}"
        if work_h(it, at) is None:
            return "nobody knows how long it takes there"
        return self._endless(it, at) if isinf(launch_hours(it, at)) else None

    @staticmethod
    def _why_critical(job: Job) -> str:
        if job.critical:
            return ""
        return f", since it is pinned to {job.environment}; critical: false lets it go there"

    @staticmethod
    def _endless(job: Job, rung: Rung) -> str:
        """Why a job takes for ever on a rung."""
        if isinf(launch_hours(job, rung.model_copy(update={"wall_h": None}))):
            if rung.hazard_per_h:
                return "it would never end there, so often are its machines lost"
            return "it takes longer there than can be counted, though no machine is lost"
        assert rung.wall_h is not None, "nothing else is without an end"
        return (
            f"its milestones are {job.milestone_h:g} h apart, and a launch lives {rung.wall_h:g} h there, "
            f"{rung.start_h:g} of them to start"
        )

    def too_long(self, job: int, rung: int, due_h: float | None = None) -> str | None:
        """That it cannot end in time there, even alone."""
        hours = launch_hours(self.jobs[job], self.rungs[rung])
        due_h = self.due_h[job] if due_h is None else due_h
        whose = "deadline" if due_h < self.until_h else "horizon"
        if hours > due_h + SLACK:
            return (
                f"takes {hours:.4g} h, {hours - due_h:.4g} h longer than its {whose} of {due_h:g} h"
            )
        most_h = self.working_h(rung, due_h)
        if hours > most_h + self.quota_slack_h(rung):
            return f"takes {hours:.4g} h, and the quota has {most_h:.4g} h until its {whose} of {due_h:g} h"
        return None

    def too_dear(self, job: int, rung: int) -> str | None:
        """That it costs more there than it may, or than all of them may."""
        least = self.least_amount(job, rung)
        currency = self.rungs[rung].price.currency
        for budget, whose in ((self.jobs[job].budget, "its"), (self.scenario.budget, "the whole")):
            most = budget.get(currency)
            if most is not None and least > most + SLACK:
                return f"costs {least:.4g} {currency}, {least - most:.4g} more than {whose} budget of {most:g}"
        return None

    def least_amount(self, job: int, rung: int) -> float:
        """What a job costs at least, in the currency of the rung: its cards' part of its hours.

        What a launch costs is told to its jobs by their card-hours; a job that has it alone pays for all of it.
        """
        it = self.rungs[rung]
        hours = launch_hours(self.jobs[job], it)
        part = self.jobs[job].cards / it.cards if self.packs(rung) else 1.0
        return hours * it.price.per_h * part if it.price.per_h else 0.0

    def quota_slack_h(self, rung: int) -> float:
        """Hours that rounding may be off by, so that neither they nor their price come to more than the slack."""
        account = self.account_of.get(rung)
        return SLACK / max(1.0, account.rate(rung)) if account else SLACK

    def working_h(self, rung: int, until_h: float) -> float:
        """Hours that one launch after the other can work on a rung before ``until_h``, quota in mind."""
        account = self.account_of.get(rung)
        if account is None:
            return until_h
        rate = account.rate(rung)
        total = 0.0
        for window in account.windows:
            lasts_h = min(window.to_h, until_h) - window.from_h
            if lasts_h > 0:
                total += min(lasts_h, window.amount / rate if rate else inf)
        return total
