"""Five platforms as they behave: what they charge, when they take a machine back, what they lie about.

Every number of a machine is drawn by (seed of the world, rung, slot, number of its launch there), and
every number of a market by (seed, rung), never in the order of calls: so the policies that are compared
meet the same machines. Behaviours are those of the emulators in tests/emulators and of the reports
they were written from; prices and cards are of the right size, not of a day.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import exp, inf, log, sqrt
from random import Random

HOUR_S = 3600.0
WEEK_S = 7 * 24 * HOUR_S
#: What the usual card does of a job, in FLOPs a second: 35 % of the 121e12 of an L4.
USUAL_FLOPS_PER_S = 42e12


@dataclass(frozen=True)
class Grant:
    """Hours that a platform gives for each period; what runs when they are spent is ended."""

    hours: float
    period_s: float


@dataclass(frozen=True)
class Market:
    """One rung of the pool: its card, its price, and what may happen there."""

    name: str
    platform: str
    card: str
    memory_gib: float
    speed: float  # of a good host, against the usual card
    currency: str
    per_h: float
    slots: int
    start_s: float  # median; log-normal
    window_s: float = 1800.0
    price_class: str = "on_demand"
    open_h: float = 0.0  # mean time until nothing can be had; 0: there is always something
    closed_h: float = 0.0
    lives_h: float = 0.0  # mean time until a machine is taken back; 0: it is not
    lives_cv: float = 2.0  # standard deviation over mean of that time
    noticed: float = 0.0  # share of the machines that are told before
    wall_h: float = 0.0  # a machine lives no longer; 0: as long as it likes
    grant: Grant | None = None
    slow: float = 0.0  # share of hosts at half of the speed
    never: float = 0.0  # share of launches whose host never starts
    bad: float = 0.0  # share of hosts that fail with a CUDA error, beside the clusters of such
    clusters: int = 0  # of bad hosts in a week
    sleeps: float = 0.0  # share of machines that are suspended for hours
    lies: float = 0.0  # share of machines that are called closed and run on
    cut: float = 0.01  # share of launches whose answer is lost
    ends_itself: bool = True  # with its process, else only when it is asked to
    tells_paid: bool = True  # how many seconds it charged for
    tells_running: bool = False
    billed_from_order: bool = False  # else from the start of its host


#: In the order in which a plan prefers them: free first, then cheap, then sure.
POOL: tuple[Market, ...] = (
    Market(
        "quota",
        "notebooks",
        "NVIDIA Tesla T4",
        16.0,
        0.5,
        "quota_h",
        1.0,
        slots=2,
        start_s=120.0,
        open_h=30.0,
        closed_h=3.0,
        wall_h=12.0,
        grant=Grant(30.0, WEEK_S),
    ),
    Market(
        "spot-a",
        "hosts",
        "NVIDIA GeForce RTX 4090",
        24.0,
        1.4,
        "usd",
        0.30,
        slots=6,
        start_s=150.0,
        price_class="spot",
        open_h=20.0,
        closed_h=1.5,
        lives_h=5.7,
        lives_cv=2.6,
        noticed=0.2,
        slow=0.18,
        never=0.08,
        bad=0.02,
        clusters=2,
        lies=0.02,
        cut=0.02,
        ends_itself=False,
        tells_paid=False,
        tells_running=True,
        billed_from_order=True,
    ),
    Market(
        "spot-b",
        "pods",
        "NVIDIA A40",
        48.0,
        1.2,
        "usd",
        0.34,
        slots=4,
        start_s=120.0,
        price_class="spot",
        open_h=40.0,
        closed_h=4.0,
        lives_h=9.7,
        lives_cv=1.8,
        noticed=0.6,
        slow=0.06,
        never=0.03,
        bad=0.01,
        clusters=1,
        lies=0.02,
        tells_running=True,
    ),
    Market(
        "credits",
        "studios",
        "NVIDIA L4",
        24.0,
        1.0,
        "credits",
        1.0,
        slots=2,
        start_s=200.0,
        grant=Grant(60.0, 30 * 24 * HOUR_S),
        sleeps=0.15,
    ),
    Market(
        "serverless",
        "functions",
        "NVIDIA L4",
        24.0,
        1.0,
        "usd",
        0.80,
        slots=4,
        start_s=40.0,
        open_h=60.0,
        closed_h=1.0,
        wall_h=8.0,
        slow=0.02,
    ),
    Market(
        "dear",
        "pods",
        "NVIDIA A100-SXM4-80GB",
        80.0,
        2.6,
        "usd",
        2.60,
        slots=6,
        start_s=100.0,
        cut=0.005,
        tells_running=True,
    ),
)


def drawn(*names: object) -> Random:
    """Numbers of one thing, whoever asks for them and when.

    >>> drawn(7, "spot-a", 0, 1).random() == drawn(7, "spot-a", 0, 1).random()
    True
    """
    return Random("/".join(map(str, names)))


def log_normal(rng: Random, mean: float, cv: float) -> float:
    """A log-normal number by its mean and its standard deviation over mean.

    Spot machines are lost early or last: the ratio of their up-times is 1.4 to 4.8 in the measured
    traces, and that of an exponential one is 1.

    >>> lives = [log_normal(Random(seed), 6.0, 2.0) for seed in range(4000)]
    >>> 5.5 < sum(lives) / 4000 < 6.5
    True
    """
    variance = log(1.0 + cv * cv)
    return mean * exp(sqrt(variance) * rng.gauss(0.0, 1.0) - variance / 2.0)


@dataclass(frozen=True)
class Host:
    """What one launch gets, drawn before anybody asks for it. Times are seconds from its start."""

    speed: float  # against the usual card
    start_s: float  # from the launch
    starts: bool
    lives_s: float  # inf: it is never taken back
    notice_s: float  # 0: nobody is told
    fails_after_s: float  # with a CUDA error; inf: it does not
    in_cluster_s: float  # the same, if it is launched while bad hosts are about
    sleeps_after_s: float
    sleeps_for_s: float
    lies: bool
    cut: bool
    slow_release: bool
    seed: int = 0  # of whatever else is drawn for it


def host_of(seed: int, market: Market, slot: int, number: int) -> Host:
    """The host of one launch."""
    rng = drawn(seed, market.name, slot, number)
    speed = market.speed * exp(rng.gauss(0.0, 0.04))
    slow, starts = rng.random() < market.slow, rng.random() >= market.never
    start_s = market.start_s * exp(0.5 * rng.gauss(0.0, 1.0))
    lives_s = log_normal(rng, market.lives_h * HOUR_S, market.lives_cv) if market.lives_h else inf
    told, fails_s = rng.random() < market.noticed, rng.uniform(60.0, 900.0)
    bad, worse = rng.random() < market.bad, rng.random() < _CLUSTER_SHARE
    sleeps, after_s = rng.random() < market.sleeps, rng.uniform(1.0, 8.0) * HOUR_S
    return Host(
        speed=0.5 * speed if slow else speed,
        start_s=min(start_s, 0.8 * market.window_s),
        starts=starts,
        lives_s=max(lives_s, 60.0),
        notice_s=_NOTICE_S if told else 0.0,
        fails_after_s=fails_s if bad else inf,
        in_cluster_s=fails_s if bad or worse else inf,
        sleeps_after_s=after_s if sleeps else inf,
        sleeps_for_s=rng.uniform(2.0, 8.0) * HOUR_S,
        lies=rng.random() < market.lies,
        cut=rng.random() < market.cut,
        slow_release=rng.random() < 0.1,
        seed=rng.getrandbits(48),
    )


#: Platforms give 5 to 120 s, of steps of a second; steps are minutes here, so it is as many steps.
_NOTICE_S = 900.0
_CLUSTER_SHARE = 0.6  # of the hosts launched while bad ones are about


@dataclass
class Season:
    """When a market has nothing to give, and when its bad hosts are about: spans of (from, to)."""

    closed: list[tuple[float, float]] = field(default_factory=list)
    bad: list[tuple[float, float]] = field(default_factory=list)
    renews_s: float = 0.0  # the first renewal of its grant

    @classmethod
    def of(cls, seed: int, market: Market, until_s: float) -> Season:
        """The season of one market."""
        rng = drawn(seed, market.name, "season")
        season = cls(renews_s=rng.random() * market.grant.period_s if market.grant else 0.0)
        at_s = log_normal(rng, market.open_h * HOUR_S, 1.5) * rng.random() if market.open_h else inf
        while at_s < until_s:
            ends_s = at_s + log_normal(rng, market.closed_h * HOUR_S, 1.0)
            season.closed.append((at_s, ends_s))
            at_s = ends_s + log_normal(rng, market.open_h * HOUR_S, 1.5)
        weeks = int(until_s / WEEK_S) + 1
        season.bad = sorted(
            (at_s, at_s + rng.uniform(2.0, 10.0) * HOUR_S)
            for week in range(weeks)
            for _ in range(market.clusters)
            for at_s in [(week + rng.random()) * WEEK_S]
        )
        return season

    def is_open(self, now_s: float) -> bool:
        """Whether something can be had.

        >>> season = Season(closed=[(10.0, 20.0)])
        >>> [season.is_open(at_s) for at_s in (9.0, 10.0, 19.0, 20.0)]
        [True, False, False, True]
        """
        return not _within(self.closed, now_s)

    def is_bad(self, now_s: float) -> bool:
        """Whether many hosts are bad."""
        return any(since_s <= now_s < until_s for since_s, until_s in self.bad)

    def period(self, grant: Grant, now_s: float) -> tuple[float, float]:
        """Since when the grant of now counts, and when the next one comes.

        >>> Season(renews_s=100.0).period(Grant(30.0, 1000.0), 250.0)
        (100.0, 1100.0)
        """
        since_s = self.renews_s + ((now_s - self.renews_s) // grant.period_s) * grant.period_s
        return since_s, since_s + grant.period_s


def _within(spans: list[tuple[float, float]], now_s: float) -> bool:
    at = bisect_right(spans, (now_s, inf)) - 1
    return at >= 0 and now_s < spans[at][1]
