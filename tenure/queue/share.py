"""Who has had how much: use that decays, in card-seconds, and what a team is entitled to.

A hold of rate r from a to b weighs, at time t, the integral of r 2^-((t - s) / half-life) over s: a closed
form, so that use does not depend on how often anybody looked. What a running hold is still going to use
is charged when it starts, discounted in the same way, and settled to the second when it ends.

Sources: Ghodsi et al. 2011 (dominant resource fairness); Narayanan et al. 2020 (Gavel: cards of several
speeds are weighed by what they deliver); the multifactor priority of Slurm (decayed use over shares).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log

from tenure.queue.records import UNKNOWN_S, Hold, Need, Penalty, Pool, Submission, Team

#: Steps of the clock after which sums are taken anew, in half-lives: 2^60 is far from an overflow.
_FAR = 60.0


def rate(need: Need, pool: Pool) -> float:
    """What a need takes of a pool, in its reference cards: its dominant share times the pool's size.

    >>> rate(Need(cards=2), Pool(cards=8))
    2.0
    >>> rate(Need(cards=1, cpus=48), Pool(cards=8, cpus=96))
    4.0
    >>> rate(Need(cards=2, speed=0.5), Pool(cards=8))
    1.0
    """
    shares = [need.cards * need.speed / pool.size]
    if pool.cpus:
        shares.append(need.cpus / pool.cpus)
    if pool.memory_gib:
        shares.append(need.memory_gib / pool.memory_gib)
    return max(shares) * pool.size


def decayed(rate: float, from_s: float, to_s: float, now_s: float, half_life_s: float) -> float:
    """What use at ``rate`` over [from_s, to_s] still weighs at ``now_s``, in card-seconds.

    >>> round(decayed(1.0, 0.0, 100.0, 100.0, 1e9), 3)
    100.0
    >>> once = decayed(1.0, 0.0, 100.0, 100.0, 50.0)
    >>> round(once / decayed(1.0, 0.0, 100.0, 150.0, 50.0), 9)
    2.0
    """
    if to_s <= from_s:
        return 0.0
    decay = log(2.0) / half_life_s
    newest, oldest = _left(now_s - to_s, half_life_s), _left(now_s - from_s, half_life_s)
    return rate / decay * (newest - oldest)


def ahead(rate: float, left_s: float, half_life_s: float) -> float:
    """What a hold is still going to use in ``left_s``, discounted as use is, in card-seconds.

    >>> round(ahead(2.0, 10.0, 1e9), 3)
    20.0
    >>> ahead(1.0, 1e9, 100.0) < 145
    True
    """
    if left_s <= 0:
        return 0.0
    return rate * half_life_s / log(2.0) * (1.0 - _left(left_s, half_life_s))


def _left(age_s: float, half_life_s: float) -> float:
    return float(2.0 ** (-age_s / half_life_s)) if age_s < 1000 * half_life_s else 0.0


def owner(team: str, teams: Iterable[Team]) -> str:
    """The team whose entitlement and use an account draws on: itself, or what it is a part of."""
    of = {each.name: each.part_of or each.name for each in teams}
    return of.get(team, team)


def charge(hold: Hold, pool: Pool, now_s: float, half_life_s: float) -> float:
    """What one hold weighs at ``now_s``: what it used, decayed, and what it has ahead of it while it is open.

    >>> pool = Pool(cards=4)
    >>> round(charge(Hold("a", "j", 0.0, None, Need(2), 100.0), pool, 40.0, 1e9), 3)  # charged at its start
    200.0
    >>> round(charge(Hold("a", "j", 0.0, 40.0, Need(2), 100.0), pool, 40.0, 1e9), 3)  # settled
    80.0
    """
    r = rate(hold.need, pool)
    if hold.to_s is not None and hold.to_s <= now_s:
        return decayed(r, hold.from_s, hold.to_s, now_s, half_life_s)
    used = decayed(r, hold.from_s, now_s, now_s, half_life_s)
    if hold.kind == "reserve":
        return used  # nobody says how long it is kept
    expected_s = UNKNOWN_S if hold.expected_s is None else hold.expected_s
    return used + ahead(r, hold.from_s + expected_s - now_s, half_life_s)


def charges(
    holds: Sequence[Hold], teams: Sequence[Team], pool: Pool, now_s: float, half_life_s: float
) -> dict[str, float]:
    """Card-seconds charged to each team at ``now_s``; accounts are charged to their team.

    Summed in an order of their own, so that the order of the records changes no last digit.
    """
    of = {each.name: each.part_of or each.name for each in teams}
    found = dict.fromkeys(of.values(), 0.0)
    for hold in sorted(holds, key=lambda hold: (hold.from_s, hold.team, hold.job, hold.kind)):
        name = of.get(hold.team, hold.team)
        found[name] = found.get(name, 0.0) + charge(hold, pool, now_s, half_life_s)
    return found


def entitlements(teams: Sequence[Team]) -> dict[str, float]:
    """The weight over the sum of weights, of each team that is not an account of another.

    >>> entitlements([Team("a", 3), Team("b", 1), Team("b2", 9, part_of="b")])
    {'a': 0.75, 'b': 0.25}
    """
    weights = {each.name: each.weight for each in teams if each.part_of is None}
    total = sum(weights[name] for name in sorted(weights))
    return {name: weight / total for name, weight in weights.items()}


def weight_now(team: Team, penalties: Iterable[Penalty], now_s: float) -> float:
    """A team's weight with the penalties in force; never less than :data:`LEAST_FACTOR` of it.

    >>> late = Penalty("a", 0.0, 100.0, 0.5, "swaps")
    >>> [weight_now(Team("a", 4), [late, late], t) for t in (50.0, 100.0)]
    [1.0, 4.0]
    """
    factor = 1.0
    for each in penalties:
        if each.team == team.name and each.from_s <= now_s < each.until_s:
            factor *= each.factor
    return team.weight * max(factor, LEAST_FACTOR)


#: What penalties leave of a weight at least: a penalised team is slowed, never shut out.
LEAST_FACTOR = 0.125


class Account:
    """One team's use, kept up to date: the same closed forms, O(1) to read and O(open holds) to change."""

    def __init__(self, half_life_s: float, at_s: float = 0.0) -> None:
        self._half_life_s = half_life_s
        self._at_s = at_s  # when the sums below were taken
        self._settled = 0.0  # card-seconds at that time
        self._open: dict[str, tuple[float, float, float | None]] = {}  # rate, from, end if known
        self._rates = self._past = self._future = self._known = 0.0
        self._next_end_s = float("inf")

    def begin(self, key: str, rate: float, now_s: float, expected_s: float | None) -> None:
        """A hold starts. ``expected_s`` None: nothing is charged ahead, as for a reserve."""
        self._move_to(now_s)
        self._open[key] = (rate, now_s, None if expected_s is None else now_s + expected_s)
        self._sum()

    def end(self, key: str, now_s: float) -> None:
        """A hold ends: settled to the second."""
        self._move_to(now_s)
        r, from_s, _ = self._open.pop(key)
        self._settled += decayed(r, from_s, now_s, now_s, self._half_life_s)
        self._sum()

    def charged(self, now_s: float) -> float:
        """Card-seconds at ``now_s``, used and ahead; not before the last change."""
        if now_s >= self._next_end_s or now_s - self._at_s > _FAR * self._half_life_s:
            self._move_to(now_s)
            self._sum()
        left = _left(now_s - self._at_s, self._half_life_s)
        scale = self._half_life_s / log(2.0)
        used = self._rates - self._past * left
        coming = self._known - self._future / left
        return self._settled * left + scale * (used + coming)

    def _move_to(self, now_s: float) -> None:
        if now_s < self._at_s:
            raise ValueError(f"use was asked for {now_s} s, after {self._at_s} s")
        self._settled *= _left(now_s - self._at_s, self._half_life_s)
        self._at_s = now_s

    def _sum(self) -> None:
        """The sums over open holds, each in the order of its key: no history in their last digits."""
        self._rates = self._past = self._future = self._known = 0.0
        self._next_end_s = float("inf")
        for key in sorted(self._open):
            r, from_s, end_s = self._open[key]
            self._rates += r
            self._past += r * _left(self._at_s - from_s, self._half_life_s)
            if end_s is not None and end_s > self._at_s:
                self._known += r
                self._future += r * _left(end_s - self._at_s, self._half_life_s)
                self._next_end_s = min(self._next_end_s, end_s)


def job_charge(job: Submission, pool: Pool, half_life_s: float) -> float:
    """What starting a job charges its team at once, in card-seconds."""
    return ahead(rate(job.need, pool), job.expected_s, half_life_s)
