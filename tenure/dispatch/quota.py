"""What is left of each runner's quota, read again from its platform, and what no longer fits into it.

A quota is a currency: hours of a week, or money of a balance. The platform has the last word and is
asked beside the round, since it may hang; between two answers the book counts down what our own
machines take. A platform that fails or says what cannot be is named in one sentence, and what it said
is never taken for more than it can mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

from tenure.dispatch.contract import LaunchFailed, Quota, TellsQuota
from tenure.dispatch.ladder import Rung
from tenure_protocol.clock import Clock, Ended, Mailbox, beside

READ_EVERY_S = 300.0
#: A call that is out for so long is told of. No second one is made beside it.
HANGS_AFTER_S = 120.0
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Left:
    """What is left of a rung's quota now."""

    hours: float  # of one machine; of a balance, what it buys at the rung's price
    renews_at_s: float | None  # Unix time; None: unknown
    reason: str  # how that is known, in words
    stale_s: float  # since the platform was asked for it
    granted_h: float | None = None  # what a renewal brings it to; None: unknown

    def __post_init__(self) -> None:
        assert 0 <= self.hours < inf and self.stale_s >= 0


def past_wall(need_s: float, wall_s: float | None) -> str | None:
    """Why a launch that lives ``wall_s`` seconds cannot reach its milestone: it never will there.

    >>> past_wall(7200.0, 3600.0)
    'its next milestone is 2.0 h away, and a launch lives 1.0 h there'
    """
    if wall_s is None or need_s <= wall_s:
        return None
    return f"its next milestone is {span(need_s)} away, and a launch lives {span(wall_s)} there"


def past_quota(need_s: float, left: Left | None, machines_open: int, now_s: float) -> str | None:
    """Why what is left of a quota does not last to a launch's milestone: until it is renewed.

    ``need_s`` is its start delay, the time to that milestone and the upload. ``machines_open`` are
    those that draw on the same quota already; ``now_s`` is Unix time, as renewals are.

    >>> past_quota(7200.0, Left(3.0, None, "30 of 33 h are used", 0.0), 1, 0.0)
    'its next milestone is 2.0 h away, and the quota ends in 1.5 h with 2 machines (30 of 33 h are used)'
    >>> past_quota(7200.0, Left(3.0, 3600.0, "renewed in 1.0 h", 0.0), 1, 0.0) is None
    True
    """
    ends_s = ends_in_s(left, machines_open + 1, now_s)
    if left is None or ends_s is None or need_s <= ends_s:
        return None
    several = "1 machine" if machines_open == 0 else f"{machines_open + 1} machines"
    return (
        f"its next milestone is {span(need_s)} away, and the quota ends in {span(ends_s)} "
        f"with {several} ({left.reason})"
    )


def ends_in_s(left: Left | None, machines: int, now_s: float) -> float | None:
    """After how many seconds a quota ends if so many machines draw on it; ``None``: no end is known.

    One that is renewed before does not end. So this is the wall of a launch there, too.

    >>> left = Left(3.0, 7200.0, "", 0.0)
    >>> ends_in_s(left, 1, 0.0), ends_in_s(left, 2, 0.0), ends_in_s(left, 2, 7200.0)
    (None, 5400.0, 5400.0)
    """
    if left is None or machines < 1:
        return None
    ends_s = left.hours * _HOUR_S / machines
    renewed = left.renews_at_s is not None and now_s < left.renews_at_s <= now_s + ends_s
    return None if renewed else ends_s


def span(seconds: float) -> str:
    """A duration in words.

    >>> span(45.0), span(1800.0), span(5400.0)
    ('45 s', '30 min', '1.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / _HOUR_S:.1f} h"


@dataclass(frozen=True)
class _Reading:
    """What a platform told, and how much our machines had taken when it was asked."""

    quota: Quota
    asked_s: float  # monotonic
    burnt_h: Mapping[str, float]  # by rung of its runner


@dataclass
class _Account:
    """The quota of one runner."""

    name: str
    runner: TellsQuota
    rungs: tuple[Rung, ...]
    asked_s: float = -inf  # monotonic
    box: Mailbox[Ended[Quota | None]] | None = None  # of a call that is out
    burnt_h: Mapping[str, float] = field(default_factory=dict)  # by rung, when it was made
    answered: bool = False  # if only by a failure
    reading: _Reading | None = None  # the newest answer; None: none so far, or there is no quota

    @property
    def trouble(self) -> str:
        """The key of what is wrong with it."""
        return f"the quota of runner {self.name}"


class QuotaBook:
    """The quotas of a ladder, kept from round to round. Of the thread that makes the rounds alone.

    Two runners over one account have a line each, and each counts down its own machines; the next
    answer of the platform has both.
    """

    def __init__(self, rungs: Sequence[Rung], clock: Clock) -> None:
        self._clock = clock
        self._accounts = _accounts(rungs)
        self._of = {rung.name: each for each in self._accounts for rung in each.rungs}
        self._rungs = {rung.name: rung for rung in rungs}
        self._burnt_h: dict[str, float] = defaultdict(float)  # by rung: hours of machines so far
        self._open: Mapping[str, int] = {}  # machines by rung, as last seen
        self._looked_s = clock.monotonic_s()
        self.troubles: dict[str, str] = {}  # what is wrong with an account's word, by its name

    @property
    def empty(self) -> bool:
        """Whether no runner of the ladder tells a quota: there is nothing to look at."""
        return not self._accounts

    def look(self, in_use: Collection[str], machines_open: Mapping[str, int]) -> None:
        """Once a round: count, take answers, and ask where that is due. Waits for nobody.

        ``in_use`` are the rungs that a job may go to or is on; nobody asks for any other.
        """
        now_s = self._clock.monotonic_s()
        for rung, burnt_h in self._since(now_s, machines_open).items():
            self._burnt_h[rung] += burnt_h
        self._open, self._looked_s = dict(machines_open), now_s
        for account in self._accounts:
            self._take_answer(account, now_s)
            used = any(rung.name in in_use or self._open.get(rung.name) for rung in account.rungs)
            if used and account.box is None and now_s - account.asked_s >= READ_EVERY_S:
                account.asked_s = now_s
                account.burnt_h = {each.name: self._burnt_h[each.name] for each in account.rungs}
                words = f"tenure-quota {account.name}"
                account.box = beside(self._clock, account.runner.quota, words)

    def left_h(self, rung: str) -> Left | None:
        """What is left on a rung now; ``None`` where there is no quota, or no word of it so far."""
        account = self._of.get(rung)
        reading = account.reading if account else None
        if account is None or reading is None:
            return None
        rate, now_s = _per_h(self._rungs[rung], reading.quota.unit), self._clock.monotonic_s()
        if not rate:
            return None
        since = self._since(now_s, self._open)
        taken = sum(
            (self._burnt_h[each.name] + since.get(each.name, 0.0) - reading.burnt_h[each.name])
            * (_per_h(each, reading.quota.unit) or 0.0)
            for each in account.rungs
        )
        hours = max(0.0, reading.quota.left - taken) / rate
        stale_s, wall_s = now_s - reading.asked_s, self._clock.wall_s()
        renews_at_s = _renewal(reading.quota, wall_s)
        words = _words(reading.quota, taken, stale_s, wall_s)
        return Left(hours, renews_at_s, words, stale_s, reading.quota.granted / rate)

    def awaited(self, rung: str) -> str | None:
        """Why a launch on a rung waits for the first word of its quota, which is a moment away."""
        account = self._of.get(rung)
        if account is None or account.answered or account.box is None:
            return None
        out_s = self._clock.monotonic_s() - account.asked_s
        if out_s >= HANGS_AFTER_S:
            return None
        return f"{account.trouble} was asked for {span(out_s)} ago and is not told yet"

    def _since(self, now_s: float, machines_open: Mapping[str, int]) -> dict[str, float]:
        """Hours that machines took since the last look: of those that were there, or are."""
        hours = max(0.0, now_s - self._looked_s) / _HOUR_S
        rungs = self._open.keys() | machines_open.keys()
        seen = {rung: max(self._open.get(rung, 0), machines_open.get(rung, 0)) for rung in rungs}
        return {rung: count * hours for rung, count in seen.items()}

    def _take_answer(self, account: _Account, now_s: float) -> None:
        if account.box is None:
            return
        ended = account.box.get(0.0)
        if ended is None:
            if now_s - account.asked_s >= HANGS_AFTER_S:
                waits = span(now_s - account.asked_s)
                self.troubles[account.trouble] = f"its platform has not answered for {waits}"
            return
        account.box, account.answered = None, True
        if ended.error is not None:
            self.troubles[account.trouble] = self._no_answer(account, ended.error)
            return
        self.troubles.pop(account.trouble, None)
        quota = ended.value
        if quota is None:
            account.reading = None
            return
        account.reading = _Reading(quota, account.asked_s, account.burnt_h)
        wrong = quota.doubt(self._clock.wall_s()) or _unpriced(account, quota)
        if wrong:
            self.troubles[account.trouble] = wrong

    @staticmethod
    def _no_answer(account: _Account, error: BaseException) -> str:
        known = isinstance(error, LaunchFailed)
        words = str(error) if known else f"the runner failed: {type(error).__name__}: {error}"
        counted = "what it last said is counted down" if account.reading else "launches go on"
        return f"its platform does not tell it ({words}); until it does {counted}"


def _accounts(rungs: Sequence[Rung]) -> tuple[_Account, ...]:
    """The runners that tell a quota, each with its rungs."""
    by_runner: dict[str, list[Rung]] = {}
    for rung in rungs:
        by_runner.setdefault(rung.runner_name, []).append(rung)
    return tuple(
        _Account(name, each[0].runner, tuple(each))
        for name, each in by_runner.items()
        if isinstance(each[0].runner, TellsQuota)
    )


def _per_h(rung: Rung, unit: str) -> float | None:
    """What an hour of a machine takes of a quota; ``None`` where that is not known."""
    if unit == "h":
        return 1.0
    price = rung.price
    known = price is not None and price.currency.lower() == unit.lower() and price.per_h >= 0
    return price.per_h if price is not None and known and isfinite(price.per_h) else None


def _unpriced(account: _Account, quota: Quota) -> str | None:
    """That a balance cannot be counted in hours, where it cannot."""
    rungs = [rung.name for rung in account.rungs if _per_h(rung, quota.unit) is None]
    if not rungs:
        return None
    return (
        f"{quota.left:.2f} {quota.unit} are left and rung {rungs[0]} has no price in {quota.unit}, so "
        f"nobody can say for how long; set price under [rungs.{rungs[0]}]"
    )


def _renewal(quota: Quota, now_s: float) -> float | None:
    """When a quota is renewed, if that can be; Unix time."""
    at_s = quota.renews_at_s
    return at_s if at_s is not None and isfinite(at_s) and at_s > now_s else None


def _words(quota: Quota, taken: float, stale_s: float, now_s: float) -> str:
    """How it is known what is left.

    >>> _words(Quota(26.5, 30.0, 7200.0), 0.25, 60.0, 0.0)
    '3.5 of 30 h were left 60 s ago, our machines took 0.25 since, renewed in 2.0 h'
    >>> _words(Quota(0.0, 12.5, None, "usd"), 0.0, 60.0, 0.0)
    '12.5 of 12.5 usd were left 60 s ago'
    """
    said = f"{quota.left:.4g} of {quota.granted:.4g} {quota.unit} were left {span(stale_s)} ago"
    since = f", our machines took {taken:.3g} since" if taken > 0 else ""
    at_s = _renewal(quota, now_s)
    return f"{said}{since}{f', renewed in {span(at_s - now_s)}' if at_s else ''}"
