"""K: how many median steps a live holder may be silent, chosen by least expected cost.

A lease of K medians errs in two ways. A worker that is dead is noticed only after K steps: that costs
``death_per_h * K * step_s`` lost seconds per hour of training. A worker that lives and whose step
lasts longer than K medians is written off: that costs a restart and, on average, half a milestone
interval, ``P(step > K medians) * 3600 / step_s`` times an hour. K is the whole number from 2 to 50
where the sum is smallest.

All depends on the chance of steps longer than any that was seen. Every step seen stands for a kind of
step, and one of its kind may last longer the next time: by a factor of 1 + E, where E is exponential.
(Of all laws with a given mean the exponential one assumes least: Jaynes 1957.) Its mean is what this
job's own steps vary by: the mean excess of the longer half over the median, or that of the longest
sqrt(n) steps over the shortest of them, whichever is smaller. Both are the spread of a kind where all
steps are of one. Where a few odd steps stand among even ones, the second also holds how far the odd
ones are from the rest; where steps vary widely but end early, the first does. So a job whose steps are
all alike is believed to stay so, and one whose steps vary is given room beyond its longest.

Each mean is itself learnt: it starts from :data:`PRIOR_STEPS` steps with the mean excess
:data:`PRIOR_EXCESS` (a gamma prior of the exponential's rate; with the rate integrated out, E is Lomax
distributed), which makes K generous while steps are few. A censored step that no seen step outlasted
may last as long again as it had lasted, on average: nothing is known about it but its age, and a
write-off says that the law above was wrong about this job. ``docs/timers.md`` has what the rule
reaches on measured and on generated series, and what no rule can.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tenure_protocol.ratios import Ratios, upper_edge

LEAST_K = 2  # a lease shorter than two steps cannot be renewed at the boundary of one
MOST_K = 50  # also the K of a job without any steps, on a platform without any
LEAST_STEPS = 20  # below so many steps nothing is learnt from them
KNOWN_STEPS = 200  # a job with so many of its own no longer asks its platform's
PRIOR_STEPS = 10.0  # of the longer half, that the prior is worth
PRIOR_EXCESS = 0.25  # of them over the median, on average
MOST_COST = 1e9  # of any number that goes into a cost; far beyond, costs are no longer finite
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Choice:
    """A K, its expected cost in lost seconds per hour of training, and why."""

    k: int
    cost_s_per_h: float
    reason: str


class Tail:
    """How likely a step is to last longer than k medians, from the steps seen so far.

    ``prior`` are the ratios of the platform: they fill what a job lacks of
    :data:`KNOWN_STEPS` of its own.

    >>> calm = Ratios()
    >>> calm.add_many([1.0, 1.01, 1.02, 1.03] * 500, median=1.01)
    >>> tail = Tail(calm)
    >>> tail.chance(1.5) > tail.chance(2) > tail.chance(3) > 0
    True
    """

    def __init__(self, own: Ratios, prior: Ratios | None = None) -> None:
        self.own_steps = own.total
        masses, self._left, cut = own.masses()
        self._cut = upper_edge(cut)
        self.total = float(self.own_steps)
        lacking = max(KNOWN_STEPS - self.own_steps, 0)
        self.lent = float(min(lacking, prior.total)) if prior else 0.0
        if prior and self.lent:
            share = self.lent / prior.total
            lent, left, cut = prior.masses()
            for index, mass in lent.items():
                masses[index] = masses.get(index, 0.0) + share * mass
            if left:
                self._left += share * left
                self._cut = max(self._cut, upper_edge(cut))
            self.total += self.lent
        self._kinds = [(upper_edge(index), masses[index]) for index in sorted(masses)]
        self._shape, self._scale = min(
            _posterior(self.total / 2, self._excess(1.0)[1]),  # half of all exceed the median
            _posterior(*self._excess(self._high())),
            key=lambda law: law[1] / law[0],
        )

    def _high(self) -> float:
        """The ratio that sqrt(n) of the steps seen reach, as its bin tells."""
        count = 0.0
        for edge, mass in reversed(self._kinds):
            count += mass
            if count >= math.sqrt(self.total):
                return max(_middle(edge), 1.0)
        return 1.0

    def _excess(self, over: float) -> tuple[float, float]:
        """How many steps reach a ratio, and the sum of what they exceed it by, relative to it."""
        reaching = [(_middle(edge), mass) for edge, mass in self._kinds if _middle(edge) >= over]
        return (
            math.fsum(mass for _, mass in reaching),
            math.fsum(mass * (ratio / over - 1.0) for ratio, mass in reaching),
        )

    @property
    def known(self) -> bool:
        """Whether there are steps enough to choose K by."""
        return self.total >= LEAST_STEPS

    @property
    def longest(self) -> float:
        """The longest step, in medians, as its bin tells; censored ones count."""
        seen = self._kinds[-1][0] if self._kinds else 1.0
        return max(seen, self._cut) if self._left else seen

    @property
    def mean_excess(self) -> float:
        """By what factor - 1 a step is believed to outlast those of its kind, on average."""
        return self._scale / self._shape

    def chance(self, k: float) -> float:
        """P(step > k medians); 1 where no step has been seen."""
        if not self.total:
            return 1.0
        mass = 0.0
        for edge, count in self._kinds:
            beyond = max(k / edge - 1.0, 0.0)
            mass += count * (1.0 + beyond / self._scale) ** -self._shape
        if self._left:
            mass += self._left * math.exp(-max(k / self._cut - 1.0, 0.0))
        return min(mass / self.total, 1.0)


def _posterior(steps: float, excess: float) -> tuple[float, float]:
    """Shape and scale of the Lomax law of E, from so many steps with this sum of excesses."""
    return PRIOR_STEPS + steps, PRIOR_STEPS * PRIOR_EXCESS + excess


def _middle(edge: float) -> float:
    """Of the bin below this edge, in logarithms."""
    return edge / math.sqrt(upper_edge(1))


@dataclass(frozen=True)
class Costs:
    """What a lease of one K is expected to cost per hour of training."""

    k: int
    false_per_h: float  # workers written off that live
    lease_s_per_h: float  # until a dead one is noticed


def costs(tail: Tail, step_s: float, death_per_h: float) -> Iterator[Costs]:
    """Both sides of the balance for every K, from the shortest lease to the longest."""
    for k in range(LEAST_K, MOST_K + 1):
        yield Costs(k, tail.chance(k) * _HOUR_S / step_s, death_per_h * k * step_s)


def best_k(
    ratios: Ratios,
    step_s: float,
    restart_s: float,
    death_per_h: float,
    milestone_s: float = 0.0,
    prior: Ratios | None = None,
) -> Choice:
    """The K of least expected cost for steps of ``step_s`` (their median).

    A false write-off costs ``restart_s + milestone_s / 2``. With fewer than :data:`LEAST_STEPS` steps,
    the platform's ``prior`` included, K is :data:`MOST_K`. Raises ValueError for costs that are none.

    >>> calm = Ratios()
    >>> calm.add_many([1.0, 1.01, 1.02, 1.03] * 500, median=1.01)
    >>> best_k(calm, step_s=0.5, restart_s=300, death_per_h=0.05).k
    2
    >>> calm.add(4.0)
    >>> best_k(calm, step_s=0.5, restart_s=300, death_per_h=0.05).k
    5
    >>> best_k(Ratios(), step_s=0.5, restart_s=300, death_per_h=0.05).k
    50
    """
    check_costs(
        step_s=step_s, restart_s=restart_s, death_per_h=death_per_h, milestone_s=milestone_s
    )
    tail = Tail(ratios, prior)
    loss_s = restart_s + milestone_s / 2
    if not tail.known:
        lease_s = death_per_h * MOST_K * step_s
        return Choice(
            MOST_K, lease_s, f"{tail.total:.0f} steps are known, {LEAST_STEPS} are needed"
        )
    best: Costs | None = None
    least = math.inf
    for each in costs(tail, step_s, death_per_h):
        if each.lease_s_per_h >= least:
            break  # longer leases alone cost more already
        total = each.false_per_h * loss_s + each.lease_s_per_h
        if total < least:
            best, least = each, total
    assert best is not None  # the first one costs less than infinity
    return Choice(best.k, least, _reason(tail, best, loss_s))


def check_costs(**named: float) -> None:
    """Raise ValueError, one sentence, for a number that no cost can be counted with."""
    for name, value in named.items():
        if not 0 <= value <= MOST_COST or (name == "step_s" and value == 0):
            least = "above 0" if name == "step_s" else "from 0"
            raise ValueError(f"{name} is {value}; it must be a number {least} to {MOST_COST:g}")


def _reason(tail: Tail, best: Costs, loss_s: float) -> str:
    whose = f", {tail.lent:.0f} of them its platform's" if tail.lent else ""
    return (
        f"of {tail.total:.0f} steps{whose} the longest lasted {tail.longest:.1f} medians, and steps "
        f"are believed to outlast others of their kind by {100 * tail.mean_excess:.1f} % on average: "
        f"a lease of {best.k} medians writes a live worker off {best.false_per_h:.1e} times an hour, "
        f"{loss_s:.0f} s each, and loses {best.lease_s_per_h:.2g} s an hour to dead ones"
    )


def first_silence_s(
    step_flops: float | None,
    peak_flops: float | None,
    speed: float,
    k: float,
    default_s: float = 60.0,
) -> tuple[float, str]:
    """The lease of a worker whose steps are not measured yet, and why.

    A step is predicted to last its FLOPs / (the card's peak FLOPs per second * ``speed``), the share
    of the peak that this kind of card reaches. Where either is not known, the default holds.

    >>> first_silence_s(2e12, 1e13, speed=0.5, k=50)
    (20.0, 'a step is predicted to last 0.4 s (2e+12 FLOPs at 50 % of 1e+13 a second), times K 50')
    >>> first_silence_s(None, 1e13, speed=0.5, k=50)
    (60.0, 'the FLOPs of a step are not known: the default')
    """
    if step_flops is None or peak_flops is None:
        what = "the FLOPs of a step are" if step_flops is None else "the card's peak is"
        return default_s, f"{what} not known: the default"
    for name, value in (
        ("step_flops", step_flops),
        ("peak_flops", peak_flops),
        ("speed", speed),
        ("k", k),
    ):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}; it must be a finite number above 0")
    step_s = step_flops / (peak_flops * speed)
    return (
        k * step_s,
        f"a step is predicted to last {step_s:.3g} s ({step_flops:.3g} FLOPs at {100 * speed:.0f} % of "
        f"{peak_flops:.3g} a second), times K {k:g}",
    )
