"""What an hour of a quota is worth in dollars now: the dual price of its limit, over all open jobs.

Nobody sells a Kaggle hour for dollars. It is worth what it saves: with one more of it, some job would not
have to be paid for elsewhere (docs/allocate.md). One that would be renewed unused is worth nothing until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tenure.dispatch.ladder import Rung
from tenure.dispatch.quota import Left
from tenure.dispatch.views import Snapshot
from tenure.plan.advise import LONGEST_H, Prospect

if TYPE_CHECKING:
    from tenure.plan.allocate_scenario import Quota

_HOUR_S = 3600.0
_LEAST_H = 1e-3


@dataclass(frozen=True)
class Worth:
    """One quota of the ladder, and what one more hour of it would save."""

    rung: str
    left_h: float
    renews_in_s: float | None
    usd_per_h: float | None  # None: the open jobs do not fit, or nobody knows how long they are
    reason: str


def quota_worths(
    seen: Snapshot,
    rungs: Mapping[str, Rung],
    prospects: Mapping[str, Sequence[Prospect]],
    rates: Mapping[str, float],
    now_s: float,
) -> list[Worth]:
    """Every quota that a platform has told, with its price; ``prospects`` are those of open jobs.

    ``rates`` are dollars for one unit of a currency, ``now_s`` is monotonic. Two rungs of one runner share a
    quota: the first of them stands for it.
    """
    owners: dict[str, str] = {}  # by account
    for name, view in seen.rungs.items():
        if view.quota is not None:
            owners.setdefault(view.account, name)
    if not owners:
        return []
    known = {job: rows for job, rows in prospects.items() if rows}
    prices = _prices(seen, rungs, owners, known, rates, now_s) if known else None
    found = []
    for name in owners.values():
        left = seen.rungs[name].quota
        assert left is not None
        usd_per_h = prices.get(name) if prices else None
        found.append(_worth(name, left, usd_per_h, len(known), seen.unix_s))
    return found


def _worth(name: str, left: Left, usd_per_h: float | None, jobs: int, unix_s: float) -> Worth:
    renews_in_s = None if left.renews_at_s is None else max(0.0, left.renews_at_s - unix_s)
    if not jobs:
        words = "no open job is known to need it"
    elif usd_per_h is None:
        words = f"the {jobs} open jobs do not fit into what there is, even in parts"
    elif usd_per_h > 0:
        words = f"one more hour would save {usd_per_h:.3g} USD over {jobs} open jobs"
    else:
        words = f"the {jobs} open jobs would not be cheaper with more of it"
    price = 0.0 if not jobs else usd_per_h
    return Worth(name, left.hours, renews_in_s, price, f"{words}; {left.reason}")


def _prices(
    seen: Snapshot,
    rungs: Mapping[str, Rung],
    owners: Mapping[str, str],
    known: Mapping[str, Sequence[Prospect]],
    rates: Mapping[str, float],
    now_s: float,
) -> dict[str, float] | None:
    """Dollars of one more hour now, by rung; ``None`` where the jobs do not fit."""
    # Inside: pydantic and scipy are slow to import, and few rounds ask.
    from tenure.plan.allocate_model import Problem
    from tenure.plan.allocate_scenario import MOST, MOST_COUNT, Job, Price, Scenario
    from tenure.plan.allocate_scenario import Rung as Way
    from tenure.plan.shadow import shadow_prices
    from tenure.quiet import stdout_kept

    used = {each.rung for rows in known.values() for each in rows}
    ways = []
    for name in used | set(owners.values()):
        view, rung = seen.rungs[name], rungs[name]
        owner = owners.get(view.account)
        quota = None
        if owner == name and view.quota is not None:
            quota = _quota(view.quota, seen.unix_s)
        price = rung.price
        per_h = min(price.per_h, MOST) if price else 0.0
        ways.append(
            Way(
                name=name,
                price=Price(currency=price.currency if price else "usd", per_h=per_h),
                concurrency=min(max(1, rung.capacity.launches), MOST_COUNT),
                quota=quota,
                quota_of=owner if owner not in (None, name) and view.quota is not None else None,
            )
        )
    jobs = []
    for job, rows in known.items():
        due_s = seen.view_of[job].deadline_s
        soonest_s = min(each.takes_s for each in rows)
        keeps = due_s is not None and due_s - now_s > soonest_s
        jobs.append(
            Job(
                name=job,
                hours_on={each.rung: _hours(each.takes_s) for each in rows},
                deadline_h=_hours(due_s - now_s) if keeps and due_s is not None else None,
            )
        )
    named = {way.price.currency for way in ways} - {"usd"}
    scenario = Scenario(
        jobs=jobs,
        rungs=sorted(ways, key=lambda way: way.name),
        rates={currency: min(rate, MOST) for currency, rate in rates.items() if currency in named},
    )
    with stdout_kept():
        found = shadow_prices(Problem(scenario))
    return None if found is None else {name: found.worth(name) for name in owners.values()}


def _hours(seconds: float) -> float:
    """As a scenario takes them: neither none nor beyond ten years."""
    return min(max(seconds / _HOUR_S, _LEAST_H), LONGEST_H)


def _quota(left: Left, unix_s: float) -> Quota:
    from tenure.plan.allocate_scenario import MOST, Quota

    renews_at_s = left.renews_at_s
    return Quota(
        left=min(left.hours, MOST),
        renews_in_h=None if renews_at_s is None else _hours(renews_at_s - unix_s),
        granted=None if left.granted_h is None else min(max(left.granted_h, 0.0), MOST),
    )
