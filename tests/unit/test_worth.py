"""What an hour of a quota is worth: what it saves over the open jobs, and nothing where it would be left over."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tenure.cli import status as command
from tenure.dispatch.contract import ALL_KINDS, Capacity
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.quota import Left
from tenure.dispatch.views import JobView, RungView, Snapshot
from tenure.dispatch.worth import Worth, quota_worths
from tenure.plan.advise import Prospect
from tests.unit.test_dispatcher import ListingRunner

H = 3600.0
UNIX_S = 1.7e9
CAPACITY = Capacity(1, 2, 60.0)


def rung(name: str, price: Price) -> Rung:
    return Rung(name, f"{name}'s", ListingRunner(), CAPACITY, price=price)


RUNGS = {
    "kaggle": rung("kaggle", Price("quota_h", 1.0)),
    "spot": rung("spot", Price("usd", 0.4)),
}


def seen(left_h: float, renews_in_h: float | None = None, due_h: float | None = 40.0) -> Snapshot:
    renews_at_s = None if renews_in_h is None else UNIX_S + renews_in_h * H
    left = Left(left_h, renews_at_s, "as told", 0.0, 30.0)
    views = {
        "kaggle": RungView("kaggle", ALL_KINDS, CAPACITY, account="k", quota=left),
        "spot": RungView("spot", ALL_KINDS, CAPACITY, account="s"),
    }
    due_s = None if due_h is None else due_h * H
    jobs = tuple(JobView(name, "e", ("kaggle", "spot"), deadline_s=due_s) for name in "abc")
    return Snapshot(jobs, (), views, unix_s=UNIX_S)


def prospects(hours: float = 10.0) -> dict[str, list[Prospect]]:
    rows = [Prospect("kaggle", 2 * hours * H, 0.0, 0.0), Prospect("spot", hours * H, 0.0, 0.4)]
    return dict.fromkeys("abc", rows)


def worth(snapshot: Snapshot, known: dict[str, list[Prospect]]) -> Worth:
    (found,) = quota_worths(snapshot, RUNGS, known, {}, 0.0)
    assert found.rung == "kaggle"
    return found


def test_an_hour_saves_what_the_work_would_cost_elsewhere() -> None:
    """Two hours there do what one hour for 0.40 USD does."""
    found = worth(seen(30.0), prospects())
    assert found.usd_per_h == pytest.approx(0.2)
    assert found.reason == "one more hour would save 0.2 USD over 3 open jobs; as told"
    assert (found.left_h, found.renews_in_s) == (30.0, None)


def test_more_than_can_be_used_is_worth_nothing() -> None:
    found = worth(seen(90.0), prospects())
    assert found.usd_per_h == 0.0 and "would not be cheaper with more of it" in found.reason


def test_what_is_renewed_unused_is_worth_nothing_until_then() -> None:
    assert worth(seen(25.0, 1.0), prospects()).usd_per_h == 0.0
    assert worth(seen(25.0, 39.0), prospects()).usd_per_h == pytest.approx(0.2)


def test_jobs_that_fit_nowhere_and_no_jobs_at_all() -> None:
    found = worth(seen(120.0), prospects(50.0))
    assert found.usd_per_h == pytest.approx(0.2), "a deadline that nothing keeps is left out"
    found = worth(seen(30.0, due_h=20.0), prospects(15.0))
    assert found.usd_per_h is None and "do not fit" in found.reason
    found = worth(seen(30.0), {})
    assert found.usd_per_h == 0.0 and "no open job is known to need it" in found.reason


def test_two_rungs_of_one_runner_share_a_quota() -> None:
    snapshot = seen(30.0)
    two = {**snapshot.rungs, "kaggle-2": replace(snapshot.rungs["kaggle"], name="kaggle-2")}
    rungs = {**RUNGS, "kaggle-2": rung("kaggle-2", Price("quota_h", 1.0))}
    rows = {name: [*each, replace(each[0], rung="kaggle-2")] for name, each in prospects().items()}
    (found,) = quota_worths(replace(snapshot, rungs=two), rungs, rows, {}, 0.0)
    assert found.rung == "kaggle" and found.usd_per_h == pytest.approx(0.2)


def test_without_a_quota_there_is_nothing_to_tell() -> None:
    snapshot = seen(30.0)
    rungs = {name: replace(view, quota=None) for name, view in snapshot.rungs.items()}
    assert quota_worths(replace(snapshot, rungs=rungs), RUNGS, prospects(), {}, 0.0) == []


def test_status_tells_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Worth("kaggle", 12.25, None, 0.2, "one more hour would save 0.2 USD over 3 open jobs")]
    command._show([], True, rows, [])
    told = json.loads(capsys.readouterr().out)["quotas"]
    assert told == [
        {
            "rung": "kaggle",
            "left_h": 12.25,
            "renews_in_s": None,
            "usd_per_h": 0.2,
            "reason": "one more hour would save 0.2 USD over 3 open jobs",
        }
    ]
    command._show([], False, rows, [])
    assert (
        "quota of kaggle: 12.2 h left; one more hour would save 0.2 USD" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("left_h", "renews_in_h", "due_h", "hours", "usd_per_h"),
    [
        (1e12, None, 40.0, 10.0, 0.4),
        (30.0, 1e6, 40.0, 10.0, 0.4),
        (30.0, None, 1e6, 10.0, 0.4),
        (30.0, None, None, 1e6, 0.4),
        (30.0, None, 1e-6, 1e-9, 0.4),
        (30.0, None, 40.0, 10.0, 1e12),
    ],
)
def test_numbers_beyond_what_a_scenario_takes_are_cut_and_end_no_round(
    left_h: float, renews_in_h: float | None, due_h: float | None, hours: float, usd_per_h: float
) -> None:
    """A platform's answer and ``tenure.toml`` have no such bounds."""
    capacity = Capacity(1, 10**9, 60.0)
    spot = Rung("spot", "s", ListingRunner(), capacity, price=Price("credits", usd_per_h))
    rungs = RUNGS | {"spot": spot}
    rates = {"credits": 1e12}
    found = quota_worths(seen(left_h, renews_in_h, due_h), rungs, prospects(hours), rates, 0.0)
    assert [each.rung for each in found] == ["kaggle"]
