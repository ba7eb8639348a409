"""What is left of a quota: read again, counted down, never taken for more than it can mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.dispatch import quota as book
from tenure.dispatch.contract import (
    ALL_KINDS,
    RENEWAL_SLACK_S,
    Capacity,
    Closed,
    Job,
    JobKind,
    Quota,
    Receipt,
    Rejected,
    Settlement,
    Unreachable,
)
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.quota import (
    HANGS_AFTER_S,
    READ_EVERY_S,
    Left,
    QuotaBook,
    past_quota,
    past_wall,
)
from tests.fake_clock import FakeClock
from tests.unit.test_dispatcher import ListingRunner

HOUR_S = 3600.0


def fits(
    need_s: float, left: Left | None, machines_open: int, wall_s: float | None, now_s: float
) -> str | None:
    """Why a launch cannot reach a milestone that is so far away, or ``None``."""
    return past_wall(need_s, wall_s) or past_quota(need_s, left, machines_open, now_s)


@dataclass
class Platform:
    """A runner whose platform answers what it is told to, after a while."""

    clock: FakeClock
    answer: Callable[[], Quota | None]
    takes_s: float = 0.0
    asked: list[float] = field(default_factory=list)
    JOB_KINDS: ClassVar[frozenset[JobKind]] = ALL_KINDS

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, 9, 60.0)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        raise Rejected("not in these tests")

    def release(self, receipt: Receipt) -> Settlement:
        return Closed("gone")

    def quota(self) -> Quota | None:
        self.asked.append(self.clock.now_s)
        self.clock.sleep(self.takes_s)
        return self.answer()


class Account:
    """One runner, its rungs, and the book of them."""

    def __init__(
        self,
        clock: FakeClock,
        answer: Quota | Exception | None,
        prices: Mapping[str, Price | None] | None = None,
        takes_s: float = 0.0,
    ) -> None:
        self.clock = clock
        self.answer = answer
        self.platform = Platform(clock, self._said, takes_s)
        rungs = [
            Rung(name, "k", self.platform, Capacity(1, 9, 60.0), price=price)  # type: ignore[arg-type]
            for name, price in (prices or {"a": None}).items()
        ]
        self.book = QuotaBook(rungs, clock)

    def _said(self) -> Quota | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def go(self, seconds: float, used: Sequence[str] = ("a",), **machines: int) -> None:
        """Rounds of a second, in which so many machines are open."""
        until_s = self.clock.now_s + seconds
        while True:
            self.book.look(used, machines)
            if self.clock.now_s >= until_s:
                return
            self.clock.sleep(1.0)

    def left(self, rung: str = "a") -> Left:
        found = self.book.left_h(rung)
        assert found is not None
        return found

    @property
    def trouble(self) -> str:
        assert list(self.book.troubles) == ["the quota of runner k"]
        return self.book.troubles["the quota of runner k"]


# ----------------------------------------------------------------------------- what is left


def test_what_the_platform_tells_is_counted_down_by_the_machines_that_are_open(
    clock: FakeClock,
) -> None:
    renews_s = clock.wall_s() + 50 * HOUR_S
    account = Account(clock, Quota(26.5, 30.0, renews_s))
    assert account.book.left_h("a") is None
    account.go(2, a=0)
    assert account.left().hours == 3.5 and account.left().renews_at_s == renews_s
    account.go(200, a=2)
    assert account.left().hours == pytest.approx(3.5 - 2 * 200 / HOUR_S, abs=0.001)
    assert account.left().stale_s == pytest.approx(202, abs=1)
    assert account.left().reason == (
        "3.5 of 30 h were left 3 min ago, our machines took 0.111 since, renewed in 49.9 h"
    )
    assert account.book.troubles == {} and account.book.left_h("no such rung") is None


def test_a_new_answer_starts_the_count_anew(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 30.0))
    account.go(READ_EVERY_S - 2, a=4)
    assert account.left().hours < 29.7
    account.answer = Quota(1.0, 30.0)
    account.go(4, a=4)
    assert account.left().hours == pytest.approx(29.0, abs=0.01)
    assert account.left().stale_s < 5


def test_between_looks_it_goes_on(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 30.0))
    account.go(2, a=3)
    clock.sleep(HOUR_S)
    assert account.left().hours == pytest.approx(27.0, abs=0.01)


def test_a_machine_that_closed_since_the_last_look_is_counted(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 30.0))
    account.go(2, a=3)
    account.platform.takes_s = 9 * HOUR_S  # the next answer is not there yet
    clock.sleep(HOUR_S)
    account.go(2, a=0)
    clock.sleep(HOUR_S)
    assert account.left().hours == pytest.approx(27.0, abs=0.01)


def test_what_was_taken_while_the_platform_was_asked_is_not_forgotten(clock: FakeClock) -> None:
    """Its word may be from before or after: it counts as from before."""
    account = Account(clock, Quota(0.0, 10.0), takes_s=100.0)
    account.go(101, a=9)
    assert account.left().hours == pytest.approx(10.0 - 9 * 101 / HOUR_S, abs=0.01)


def test_nothing_is_left_and_not_less(clock: FakeClock) -> None:
    account = Account(clock, Quota(29.99, 30.0))
    account.go(200, a=9)
    assert account.left().hours == 0.0


def test_the_rungs_of_one_runner_draw_on_one_quota(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 10.0), {"a": None, "b": None})
    account.go(2)
    account.go(100, a=1, b=2)
    for rung in "ab":
        assert account.left(rung).hours == pytest.approx(10.0 - 3 * 100 / HOUR_S, abs=0.01)


def test_a_balance_is_hours_at_the_price_of_the_rung(clock: FakeClock) -> None:
    prices = {"a": Price("usd", 2.0), "b": Price("usd", 0.5)}
    account = Account(clock, Quota(0.0, 12.0, None, "USD"), prices)
    account.go(2)
    assert (account.left("a").hours, account.left("b").hours) == (6.0, 24.0)
    account.go(180, a=1, b=4)
    assert account.left("a").hours == pytest.approx((12.0 - 4.0 * 180 / HOUR_S) / 2, abs=0.01)
    assert "12 of 12 USD were left" in account.left("a").reason


def test_a_rung_that_costs_nothing_has_no_end(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 12.0, None, "usd"), {"a": Price("usd", 0.0)})
    account.go(2)
    assert account.book.left_h("a") is None and account.book.troubles == {}


@pytest.mark.parametrize("price", [None, Price("credits", 1.0), Price("usd", math.nan)])
def test_a_balance_without_a_price_says_what_to_do(clock: FakeClock, price: Price | None) -> None:
    account = Account(clock, Quota(0.0, 12.0, None, "usd"), {"a": price})
    account.go(2)
    assert account.book.left_h("a") is None
    assert account.trouble == (
        "12.00 usd are left and rung a has no price in usd, so nobody can say for how long; "
        "set price under [rungs.a]"
    )


def test_an_account_without_a_quota_holds_nobody_up(clock: FakeClock) -> None:
    account = Account(clock, None)
    account.go(2 * READ_EVERY_S, a=1)
    assert account.book.left_h("a") is None and account.book.troubles == {}
    assert account.book.awaited("a") is None


def test_a_runner_that_tells_no_quota_is_not_asked(clock: FakeClock) -> None:
    quotas = QuotaBook([Rung("a", "here", ListingRunner(), Capacity(1, 2, 60.0))], clock)
    assert quotas.empty and not Account(clock, None).book.empty
    quotas.look(["a"], {"a": 1})
    assert quotas.left_h("a") is None and quotas.awaited("a") is None


# ---------------------------------------------------------------------------- who is asked


def test_a_platform_is_asked_once_in_300_s_and_only_for_a_rung_in_use(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 30.0))
    account.go(1000, used=())
    assert account.platform.asked == []
    account.go(1000)
    gaps = [b - a for a, b in zip(account.platform.asked, account.platform.asked[1:], strict=False)]
    assert len(gaps) == 3 and all(READ_EVERY_S <= gap <= READ_EVERY_S + 1 for gap in gaps)
    account.go(1000, used=(), a=1)
    assert len(account.platform.asked) == 7, "an open machine is a use, too"


@pytest.mark.parametrize("answer", [Unreachable("down"), Quota(-1.0, 30.0), None])
def test_no_answer_makes_it_ask_more_often(clock: FakeClock, answer: Exception | None) -> None:
    account = Account(clock, answer)
    account.go(3 * READ_EVERY_S)
    assert 3 <= len(account.platform.asked) <= 4


def test_a_platform_that_hangs_keeps_no_round_waiting(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 30.0), takes_s=4000.0)
    before_s = clock.now_s
    account.book.look(["a"], {})
    assert clock.now_s == before_s
    account.go(HANGS_AFTER_S - 5)
    assert account.book.troubles == {} and account.book.awaited("a") == (
        "the quota of runner k was asked for 115 s ago and is not told yet"
    )
    account.go(1000)
    assert account.trouble == "its platform has not answered for 19 min"
    assert account.book.awaited("a") is None and account.book.left_h("a") is None
    assert len(account.platform.asked) == 1, "no second call beside it"
    account.go(3000)
    assert account.left().hours == 30.0 and account.book.troubles == {}


def test_the_first_word_is_waited_for_and_no_other(clock: FakeClock) -> None:
    account = Account(clock, Quota(0.0, 30.0), takes_s=5.0)
    assert account.book.awaited("a") is None
    account.go(2)
    assert account.book.awaited("a") == (
        "the quota of runner k was asked for 2 s ago and is not told yet"
    )
    account.go(10)
    assert account.book.awaited("a") is None
    account.go(READ_EVERY_S - 10)
    assert len(account.platform.asked) == 2 and account.book.awaited("a") is None


# --------------------------------------------------------------------- what cannot be believed


NONSENSE = {
    "negative use": Quota(-5.0, 30.0),
    "negative grant": Quota(0.0, -30.0),
    "both": Quota(-40.0, -30.0),
    "no number used": Quota(math.nan, 30.0),
    "no number granted": Quota(1.0, math.nan),
    "without end": Quota(0.0, math.inf),
    "minus infinity": Quota(-math.inf, 30.0),
    "more than granted": Quota(31.0, 30.0),
}


@pytest.mark.parametrize("told", NONSENSE.values(), ids=NONSENSE)
def test_what_cannot_be_is_told_once_and_counts_as_nothing_left(
    clock: FakeClock, told: Quota
) -> None:
    account = Account(clock, told)
    account.go(2)
    assert account.left().hours == 0.0
    assert account.trouble.endswith("nothing counts as left") and "\n" not in account.trouble
    assert fits(1.0, account.left(), 0, None, clock.wall_s())
    account.answer = Quota(1.0, 30.0)
    account.go(READ_EVERY_S)
    assert account.left().hours == 29.0 and account.book.troubles == {}


@pytest.mark.parametrize("renews_s", [-1e9, -RENEWAL_SLACK_S - 60, math.nan, math.inf, -math.inf])
def test_a_renewal_that_cannot_be_is_unknown(clock: FakeClock, renews_s: float) -> None:
    account = Account(clock, Quota(26.0, 30.0, clock.wall_s() + renews_s))
    account.go(2)
    assert account.left().hours == 4.0 and account.left().renews_at_s is None
    assert "its renewal is said to be" in account.trouble


@pytest.mark.parametrize("ago_s", [-1.0, RENEWAL_SLACK_S - 60])
def test_a_renewal_that_was_a_moment_ago_is_no_lie(clock: FakeClock, ago_s: float) -> None:
    """Two clocks differ, and a platform takes a while to begin a new week."""
    account = Account(clock, Quota(26.0, 30.0, clock.wall_s() - ago_s))
    account.go(10)
    assert account.left().renews_at_s is None and account.book.troubles == {}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unreachable("no answer in 60 s"), "(no answer in 60 s)"),
        (KeyError("gpu"), "(the runner failed: KeyError: 'gpu')"),
    ],
)
def test_a_platform_that_fails_is_named_and_its_last_word_counted_down(
    clock: FakeClock, error: Exception, words: str
) -> None:
    account = Account(clock, error)
    account.go(2)
    assert account.book.left_h("a") is None and account.book.awaited("a") is None
    assert words in account.trouble and account.trouble.endswith("launches go on")
    account.answer = Quota(0.0, 30.0)
    account.go(READ_EVERY_S)
    assert account.left().hours == 30.0 and account.book.troubles == {}
    account.answer = error
    account.go(2 * HOUR_S, a=1)
    assert account.trouble.endswith("what it last said is counted down")
    assert account.left().hours == pytest.approx(28.0, abs=0.2)
    assert account.left().stale_s > HOUR_S


NUMBERS = st.floats() | st.sampled_from([-1.0, 0.0, 30.0, math.nan, math.inf])


@settings(deadline=None)
@given(NUMBERS, NUMBERS, st.none() | NUMBERS, st.floats(0, 1e6))
def test_no_word_of_a_platform_is_more_than_it_can_mean(
    used: float, granted: float, renews_s: float | None, need_s: float
) -> None:
    with FakeClock() as clock:
        account = Account(clock, Quota(used, granted, renews_s))
        account.go(2)
        left = account.left()
        assert 0.0 <= left.hours < math.inf
        if used >= 0 and granted >= used and math.isfinite(granted):
            assert left.hours == granted - used
        else:
            assert left.hours == 0.0 and account.trouble
        fits(need_s, left, 3, None, clock.wall_s())


# ------------------------------------------------------------------------------- what fits


def test_a_launch_waits_that_would_not_reach_its_milestone() -> None:
    left = Left(2.0, None, "2 of 30 h were left 60 s ago", 60.0)
    assert fits(2 * HOUR_S, left, 0, 12 * HOUR_S, 0.0) is None
    assert fits(2 * HOUR_S, left, 1, 12 * HOUR_S, 0.0) == (
        "its next milestone is 2.0 h away, and the quota ends in 1.0 h with 2 machines "
        "(2 of 30 h were left 60 s ago)"
    )
    assert fits(2 * HOUR_S + 60, left, 0, None, 0.0) == (
        "its next milestone is 2.0 h away, and the quota ends in 2.0 h with 1 machine "
        "(2 of 30 h were left 60 s ago)"
    )
    assert fits(13 * HOUR_S, None, 0, 12 * HOUR_S, 0.0) == (
        "its next milestone is 13.0 h away, and a launch lives 12.0 h there"
    )


@settings(deadline=None)
@given(st.floats(0, 100), st.none() | st.floats(-1e5, 1e6), st.integers(0, 9), st.floats(0, 1e6))
def test_a_quota_is_enough_exactly_if_it_does_not_end_first(
    hours: float, renews_s: float | None, machines_open: int, need_s: float
) -> None:
    """Checked against a walk through the time in which each machine takes its share."""
    left = Left(hours, renews_s, "so", 0.0)
    lasts_s = hours * HOUR_S / (machines_open + 1)
    renewed = renews_s is not None and 0.0 < renews_s <= lasts_s
    assert (fits(need_s, left, machines_open, None, 0.0) is None) == (renewed or need_s <= lasts_s)
    more = fits(need_s, left, machines_open + 1, None, 0.0)
    less_time = Left(hours / 2, renews_s, "so", 0.0)
    if fits(need_s, left, machines_open, None, 0.0):
        assert more and fits(need_s, less_time, machines_open, None, 0.0)
        assert fits(need_s + 1, left, machines_open, None, 0.0)


def test_where_the_quota_ends_is_the_wall_of_a_launch() -> None:
    left = Left(3.0, 10 * HOUR_S, "so", 0.0)
    assert book.ends_in_s(left, 1, 0.0) == 3 * HOUR_S
    assert book.ends_in_s(left, 3, 0.0) == HOUR_S
    assert book.ends_in_s(left, 1, 8 * HOUR_S) is None, "it is renewed before"
    assert book.ends_in_s(left, 1, 11 * HOUR_S) == 3 * HOUR_S, "a renewal that was is none to come"
    assert book.ends_in_s(None, 1, 0.0) is None
