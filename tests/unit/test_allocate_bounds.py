"""``tenure allocate``: numbers at their bounds, horizons that cannot be kept, and pinned jobs."""

from __future__ import annotations

import json
import re
import warnings
from math import inf
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.errors import UsageError
from tenure.plan.allocate import Method, allocate
from tenure.plan.allocate_launches import Launch
from tenure.plan.allocate_mip import Solved
from tenure.plan.allocate_model import Problem
from tenure.plan.allocate_scenario import (
    LEAST_H,
    LONGEST_H,
    MOST,
    MOST_COUNT,
    MOST_FLOPS,
    Job,
    Price,
    Quota,
    Rung,
    Scenario,
    check,
)
from tests.tenure_command import tenure
from tests.unit.test_allocate_words import GOOD, says, written

# ------------------------------------------------------------------------- numbers at their bounds


TINY = """\
jobs: [{name: a, hours: 10, deadline_h: 100, milestone_h: 1, cards: 1, budget: {usd: 50}}, {name: f, flops: 1.0e+18}]
rungs:
  - name: r
    price: {per_h: 1}
    speed: 1
    useful_share: 1
    flops_per_s: 1.0e+14
    wall_h: 20
    cards: 1
    per_launch: 1
    concurrency: 3
    hazard_per_h: 0
    start_h: 0
    quota: {left: 70, renews_in_h: 50, granted: 20, every_h: 24}
  - {name: own, price: {currency: hours, per_h: 1}, kinds: [backtest]}
rates: {hours: 1}
budget: {usd: 80}
horizon_h: 100
"""


@pytest.mark.parametrize(
    ("old", "key", "wrong"),
    [
        ("hours: 10,", "jobs[0].hours", ["9e-7", "87601"]),
        ("deadline_h: 100", "jobs[0].deadline_h", ["9e-7", "87601"]),
        ("milestone_h: 1,", "jobs[0].milestone_h", ["9e-7", "87601"]),
        ("cards: 1, b", "jobs[0].cards", ["0", "1000001", "1" + 21 * "0"]),
        ("budget: {usd: 50}", "jobs[0].budget.usd", ["-1", "1.1e9", "1e308"]),
        ("flops: 1.0e+18", "jobs[1].flops", ["0.9", "1.1e30", "1e-300", "1e308"]),
        ("{per_h: 1}", "rungs[0].price.per_h", ["-1", "1.1e9", "1e16", "1e308"]),
        ("speed: 1\n", "rungs[0].speed", ["9e-7", "1.1e6", "1e-320"]),
        ("useful_share: 1", "rungs[0].useful_share", ["9e-7", "1.1"]),
        ("flops_per_s: 1.0e+14", "rungs[0].flops_per_s", ["0.9", "1.1e30", "1e300"]),
        ("wall_h: 20", "rungs[0].wall_h", ["9e-7", "87601"]),
        ("cards: 1\n", "rungs[0].cards", ["0", "1000001"]),
        ("per_launch: 1", "rungs[0].per_launch", ["0", "1000001"]),
        ("concurrency: 3", "rungs[0].concurrency", ["0", "1000001"]),
        ("hazard_per_h: 0", "rungs[0].hazard_per_h", ["-1", "61"]),
        ("start_h: 0", "rungs[0].start_h", ["-1", "87601"]),
        ("left: 70", "rungs[0].quota.left", ["-1", "1.1e9"]),
        ("renews_in_h: 50", "rungs[0].quota.renews_in_h", ["9e-7", "87601"]),
        ("granted: 20", "rungs[0].quota.granted", ["-1", "1.1e9"]),
        ("every_h: 24", "rungs[0].quota.every_h", ["9e-3", "87601", "1e-300"]),
        ("hours: 1}", "rates.hours", ["-1", "1.1e9", "1e308"]),
        ("usd: 80", "budget.usd", ["-1", "1.1e9"]),
        ("horizon_h: 100", "horizon_h", ["9e-7", "87601"]),
    ],
)
def test_every_number_has_bounds_and_beyond_them_it_is_one_sentence(
    tmp_path: Path, old: str, key: str, wrong: list[str]
) -> None:
    assert TINY.count(old) == 1
    assert tenure("allocate", written(tmp_path, TINY)).code == 0
    line = TINY[: TINY.index(old)].count("\n") + 1
    for number in wrong:
        new = re.sub(r": ?[\d.e+]+(?=\D*$)", f": {number}".replace("\\", ""), old)
        assert new != old
        found = says(tmp_path, TINY.replace(old, new))
        assert found.count("\n") == 1 and len(found) < 300
        assert re.search(
            rf":{line}: {re.escape(key)}: must be at (least|most) [-+.e\d]+, not", found
        )


def test_every_number_of_the_schema_has_both_bounds() -> None:
    """So that a key that comes later has them too."""

    def numbers(at: object, name: str) -> list[tuple[str, bool]]:
        if isinstance(at, list):
            return [it for each in at for it in numbers(each, name)]
        if not isinstance(at, dict):
            return []
        found = []
        if at.get("type") in ("number", "integer"):
            found.append((name, {"minimum", "maximum"} <= set(at)))
        return found + [it for key, each in at.items() for it in numbers(each, f"{name}.{key}")]

    found = numbers(json.loads(tenure("allocate", "--schema").out), "")
    assert len(found) > 20 and not [name for name, bounded in found if not bounded]


def test_a_price_and_a_rate_that_are_too_much_together_are_told(tmp_path: Path) -> None:
    text = TINY.replace("hours: 1}", "hours: 2.0e+5}").replace(
        "hours, per_h: 1", "hours, per_h: 1.0e+5"
    )
    found = says(tmp_path, text)
    assert ":15: rungs[1].price.per_h: comes to 2e+10 usd with rates.hours, and 1e+09 are" in found


def test_what_never_ends_says_whether_losses_or_walls_or_its_length_are_why() -> None:
    job = Job(name="a", hours=10.0, milestone_h=20.0)
    rung = Rung(name="r", price=Price(per_h=1.0), wall_h=30.0)

    def why(job: Job, **update: float) -> str:
        scenario = Scenario(jobs=[job], rungs=[rung.model_copy(update=update)])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Problem(scenario).launch_h[0, 0] == inf
        return Problem(scenario).refused(0, 0) or ""

    assert "so often are its machines lost" in why(job, hazard_per_h=60.0)
    assert "a launch lives 5 h there" in why(job, wall_h=5.0)
    # No file can say so: the bounds are for files and for records that are made, not for copies of them.
    assert "longer there than can be counted, though no machine is lost" in why(job, speed=1e-320)


def amounts(low: float, high: float, *usual: float) -> st.SearchStrategy[float]:
    near = [low, high, low + (high - low) * 1e-12, high * (1 - 1e-12)]
    return st.sampled_from([*usual, *usual, *near]) | st.floats(low, high)


HOURS = amounts(LEAST_H, LONGEST_H, 1.0, 5.0, 20.0)
MONEY = amounts(0.0, MOST, 0.5, 1.0, 40.0)
FLOPS = amounts(1.0, MOST_FLOPS, 1e15, 1e18)
COUNTS = st.sampled_from([1, 1, 2, 4, MOST_COUNT - 1, MOST_COUNT])


@st.composite
def at_the_bounds(draw: st.DrawFn) -> Scenario:
    currencies = st.sampled_from(["usd", "credits"])
    names = [f"r{n}" for n in range(draw(st.integers(1, 3)))]
    rungs = []
    for name in names:
        currency = draw(currencies)
        quota = st.builds(
            Quota, left=MONEY, unit=st.sampled_from(["h", currency]), renews_in_h=st.none() | HOURS,
            granted=st.none() | MONEY, every_h=amounts(0.01, LONGEST_H, 24.0),
        )  # fmt: skip
        rung = st.builds(
            Rung, name=st.just(name), price=st.builds(Price, currency=st.just(currency), per_h=MONEY),
            spot=st.booleans(), cards=COUNTS, per_launch=st.none() | COUNTS,
            concurrency=st.none() | COUNTS, quota=st.none() | quota, wall_h=st.none() | HOURS,
            speed=amounts(1e-6, 1e6, 1.0), flops_per_s=st.none() | FLOPS,
            useful_share=amounts(1e-6, 1.0, 1.0), hazard_per_h=amounts(0.0, 60.0, 0.0, 0.1),
            start_h=amounts(0.0, LONGEST_H, 0.0, 0.1),
        )  # fmt: skip
        rungs.append(draw(rung))
    used = sorted({rung.price.currency for rung in rungs})
    budget = st.dictionaries(st.sampled_from(used), MONEY, max_size=1)
    work = st.one_of(
        st.fixed_dictionaries({"hours": HOURS}),
        st.fixed_dictionaries({"flops": FLOPS}),
        st.fixed_dictionaries(
            {"hours_on": st.dictionaries(st.sampled_from(names), HOURS, min_size=1)}
        ),
    )
    jobs = [
        Job(
            name=f"j{n}", cards=draw(COUNTS), deadline_h=draw(st.none() | HOURS), budget=draw(budget),
            milestone_h=draw(HOURS), critical=draw(st.none() | st.booleans()), **draw(work),
        )
        for n in range(draw(st.integers(1, 4)))
    ]  # fmt: skip
    return Scenario(
        horizon_h=draw(st.none() | HOURS), budget=draw(budget), jobs=jobs, rungs=rungs,
        rates={"credits": draw(MONEY)} if "credits" in used else {},
    )  # fmt: skip


@given(scenario=at_the_bounds(), method=st.sampled_from(["mip", "greedy"]))
@settings(max_examples=150, deadline=None)
@example(  # within the slack of a deadline: the relaxation has to have that slack too
    Scenario(
        jobs=[Job(name="a", hours_on={"r": 1e-6}, deadline_h=1e-6)],
        rungs=[Rung(name="r", price=Price(per_h=1.0), hazard_per_h=60.0)],
    ),
    "mip",
)
@example(  # within the slack of HiGHS: two jobs on one place, each as long as they both have
    Scenario(
        jobs=[Job(name=name, hours=1e-6, deadline_h=1e-6) for name in "ab"],
        rungs=[Rung(name="r", price=Price(per_h=1.0), concurrency=1)],
    ),
    "mip",
)
@example(  # a millionth of an hour of a thousand million dollars is no rounding
    Scenario(
        jobs=[Job(name="a", hours=1e-6)],
        rungs=[Rung(name="r", price=Price(per_h=1e9), quota=Quota(left=0.0, unit="usd"))],
    ),
    "mip",
)
def test_numbers_at_their_bounds_never_end_in_a_traceback_or_a_warning(
    scenario: Scenario, method: Method
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check(scenario)
            found = allocate(scenario, method, limit_s=3.0)
        except UsageError as error:
            assert len(str(error)) < 600
            return
        json.dumps(found.as_json(), allow_nan=False)
    assert found.cost_usd >= found.prices.bound_usd - 1e-3 - 1e-6 * found.cost_usd


def test_one_that_has_a_launch_alone_pays_for_all_of_it() -> None:
    """Two cards, one job a launch: its budget has to be enough for both cards."""
    rung = Rung(name="r", price=Price(per_h=10.0), cards=2, per_launch=1)
    job = Job(name="a", hours=1.0, budget={"usd": 6.0})
    with pytest.raises(UsageError, match=r"costs 10 usd on r.*a budget of 10 usd"):
        allocate(Scenario(jobs=[job], rungs=[rung]))
    fits = Scenario(jobs=[job.model_copy(update={"budget": {"usd": 10.0}})], rungs=[rung])
    assert allocate(fits).cost_usd == 10.0


# ------------------------------------------------------------------------- horizons


def eased(scenario: Scenario, sentence: str, n: int) -> Scenario:
    """With the first relaxation of job n that a sentence names."""
    first = sentence.split("relaxation is ")[1].split(" (", maxsplit=1)[0]
    keys = {key: float(hours) for key, hours in re.findall(r"(\w+_h): ([\d.]+)", first)}
    assert keys, sentence
    if "deadline_h" in keys:
        jobs = list(scenario.jobs)
        jobs[n] = jobs[n].model_copy(update={"deadline_h": keys["deadline_h"]})
        scenario = scenario.model_copy(update={"jobs": jobs})
    if "horizon_h" in keys:
        scenario = scenario.model_copy(update={"horizon_h": keys["horizon_h"]})
    return scenario


@given(
    hours=st.floats(1, 300),
    horizon_h=st.none() | st.floats(1, 200),
    deadline_h=st.none() | st.floats(1, 200),
    quota=st.none()
    | st.builds(
        Quota, left=st.floats(0, 40), granted=st.floats(5, 40), renews_in_h=st.floats(1, 300)
    ),
    concurrency=st.none() | st.just(1),
)
@settings(max_examples=80, deadline=None)
def test_what_is_too_late_is_told_and_what_is_told_helps(
    hours: float,
    horizon_h: float | None,
    deadline_h: float | None,
    quota: Quota | None,
    concurrency: int | None,
) -> None:
    """One job: whichever of deadline and horizon is too early, by how much, and what would do."""
    rung = Rung(name="r", price=Price(per_h=1.0), quota=quota, concurrency=concurrency)
    job = Job(name="a", hours=hours, deadline_h=deadline_h)
    scenario = Scenario(jobs=[job], rungs=[rung], horizon_h=horizon_h)
    try:
        check(scenario)
        assert not allocate(scenario).left
        return
    except UsageError as error:
        assert "h too late" in str(error), error
        assert not allocate(eased(scenario, str(error), 0)).left


def test_a_horizon_that_a_job_cannot_keep_is_told_as_a_deadline_is(tmp_path: Path) -> None:
    text = GOOD.replace("hours: 2}", "hours: 44}")
    found = says(tmp_path, text)
    assert ":10: horizon_h: job 'b' cannot end by the horizon of 40 h: dear, the fastest" in found
    assert (
        "has it done after 44 h, 4 h too late; the cheapest relaxation is horizon_h: 44 (88 usd)"
        in found
    )
    assert tenure("allocate", written(tmp_path, text.replace("h: 40", "h: 44"))).code == 0
    week = says(tmp_path, text.replace("hours: 44", "hours: 170").replace("horizon_h: 40\n", ""))
    assert ":3: jobs[1]: job 'b' cannot end by the default horizon of 168 h" in week
    both = says(tmp_path, text.replace("hours: 44", "hours: 44, deadline_h: 30"))
    assert ":3: jobs[1].deadline_h: job 'b' cannot end by 30 h" in both
    assert "14 h too late; the cheapest relaxation is deadline_h: 44 and horizon_h: 44 (88" in both


def test_what_no_horizon_helps_is_an_unplaced_job(tmp_path: Path) -> None:
    for job, rung in (("hours: 80000", "speed: 0.5"), ("hours: 30", "quota: {left: 3}")):
        text = f"jobs: [{{name: a, {job}}}]\nrungs: [{{name: r, price: {{per_h: 1}}, {rung}}}]\n"
        ended = tenure("allocate", written(tmp_path, text))
        assert ended.code == 1 and "a has no place" in ended.out


def test_jobs_that_cannot_all_end_by_the_horizon_say_by_how_much(tmp_path: Path) -> None:
    text = """\
horizon_h: 9
jobs: [{name: a, hours: 4}, {name: b, hours: 4}, {name: c, hours: 3}]
rungs: [{name: only, price: {per_h: 1}, concurrency: 1}]
"""
    found = says(tmp_path, text)
    assert ":1: horizon_h: the jobs cannot all end by the horizon of 9 h" in found
    horizon = re.search(r"the cheapest relaxation is horizon_h: ([\d.]+)", found)
    assert horizon and float(horizon[1]) == pytest.approx(11.0, abs=0.011)
    assert tenure("allocate", written(tmp_path, text.replace("h: 9", f"h: {horizon[1]}"))).code == 0
    dated = says(tmp_path, text.replace("hours: 3", "hours: 3, deadline_h: 9"))
    assert re.search(r"every deadline 2[.\d]* h later and horizon_h: 11", dated)


# ------------------------------------------------------------------------- pinned jobs


@pytest.mark.parametrize(
    ("job", "rung"),
    [
        ("environment: e", "sure"),
        ("environment: e, critical: true", "sure"),
        ("environment: e, critical: false", "spot"),
        ("critical: true", "sure"),
        ("cards: 1", "spot"),
    ],
)
def test_a_pinned_job_is_critical_unless_it_says_no(tmp_path: Path, job: str, rung: str) -> None:
    text = f"""\
jobs: [{{name: a, hours: 4, {job}}}]
rungs:
  - {{name: sure, price: {{per_h: 2}}, environments: [e]}}
  - {{name: spot, price: {{per_h: 1}}, environments: [e], spot: true}}
"""
    for method in ("mip", "greedy"):
        ended = tenure("allocate", written(tmp_path, text), "--json", "--method", method)
        (row,) = json.loads(ended.out)["assignments"]
        assert row["rung"] == rung


def test_a_pinned_job_that_only_spot_would_take_is_told_what_lets_it_go_there(
    tmp_path: Path,
) -> None:
    text = """\
jobs: [{name: a, hours: 4, environment: e}]
rungs: [{name: r, price: {per_h: 1}, environments: [e], spot: true}]
"""
    ended = tenure("allocate", written(tmp_path, text))
    assert ended.code == 1
    assert (
        "the job is critical, since it is pinned to e; critical: false lets it go there"
        in ended.out
    )
    allowed = text.replace("environment: e", "environment: e, critical: false")
    assert tenure("allocate", written(tmp_path, allowed)).code == 0


def test_a_pinned_job_is_left_out_after_all_others(tmp_path: Path) -> None:
    text = """\
jobs: [{name: a, hours: 8, environment: e}, {name: b, hours: 4}, {name: c, hours: 4}]
rungs: [{name: kaggle, price: {currency: hours, per_h: 1}, quota: {left: 9}, environments: [e]}]
"""
    answer = json.loads(tenure("allocate", written(tmp_path, text), "--json").out)
    assert [row["job"] for row in answer["assignments"]] == ["a"]


def test_a_quota_of_money_is_not_overdrawn_by_the_slack_of_an_hour() -> None:
    rung = Rung(name="r", price=Price(per_h=1e9), quota=Quota(left=0.0, unit="usd"))
    problem = Problem(Scenario(jobs=[Job(name="a", hours=1e-6)], rungs=[rung]))
    assert problem.launch_h[0, 0] == inf and problem.excluded(0, 0) is not None


def test_no_relaxation_is_told_that_no_scenario_may_have() -> None:
    dear = Rung(name="r", price=Price(per_h=6e5))
    alone = Scenario(
        jobs=[Job(name="a", hours=2000.0, budget={"usd": 9.0})], rungs=[dear], horizon_h=3000.0
    )
    assert allocate(alone).left == (0,)
    jobs = [Job(name=name, hours=1000.0) for name in "ab"]
    together = Scenario(jobs=jobs, rungs=[dear], horizon_h=3000.0, budget={"usd": 1e9})
    assert len(allocate(together).left) == 1


def test_a_default_horizon_moves_with_a_deadline() -> None:
    job = Job(name="a", hours=10.0, deadline_h=5.0)
    with pytest.raises(UsageError, match=r"relaxation is deadline_h: 10 \(10 usd\)"):
        allocate(Scenario(jobs=[job], rungs=[Rung(name="r", price=Price(per_h=1.0))]))


def test_an_exact_answer_that_rounding_has_spoilt_gives_way_to_the_greedy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late = Solved(
        (Launch(0, 0, (0,), 5.0, ((0.0, 5.0),)), Launch(0, 0, (1,), 5.0, ((4.0, 9.0),))), True, 0.0
    )
    monkeypatch.setattr("tenure.plan.allocate.solve", lambda *_, **__: late)
    jobs = [Job(name=name, hours=5.0) for name in "ab"]
    rungs = [Rung(name="r", price=Price(per_h=1.0), concurrency=1)]
    found = allocate(Scenario(jobs=jobs, rungs=rungs), "mip")
    assert found.method == "greedy" and not found.left and not found.optimal
    assert "off by rounding: two launches are on place 0 of r" in found.why_method
