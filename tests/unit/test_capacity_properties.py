"""What holds for every scenario, whatever its numbers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.capacity.batch import first_come
from tenure.capacity.buy import BuyScenario
from tenure.capacity.demand import DemandScenario, demand
from tenure.capacity.retries import RetriesScenario
from tenure.capacity.routes import Service, break_even_hit, cost_per_success, in_time_share
from tenure.capacity.scenario import KINDS, ask
from tenure.capacity.terms import Scenario
from tenure.capacity.timeline import Folded, Use, timeline

numbers = st.one_of(st.just(0.0), st.integers(0, 100).map(float), st.floats(1e-3, 1e5))
positive = st.one_of(st.integers(1, 100).map(float), st.floats(1e-3, 1e5))
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.001, 1))
counts = st.integers(1, 30)
few = settings(max_examples=50)


@st.composite
def parts_of_one(draw: st.DrawFn, most: int = 4) -> list[float]:
    """Shares that sum to 1."""
    weights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=most))
    return [weight / sum(weights) for weight in weights]


def tasks() -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries(
        {"rounds": st.integers(0, 5), "model_s": numbers, "tool_s": positive},
        optional={"tool_cpu_s": numbers},
    )
    return parts_of_one().flatmap(
        lambda each: st.tuples(*(one.map(lambda task, p=p: task | {"share": p}) for p in each)).map(  # type: ignore[misc]
            list
        )
    )


prices = st.fixed_dictionaries({"cpu_s": numbers, "gib_s": numbers})
environments = st.fixed_dictionaries(
    {"memory_gib": numbers, "policy": st.sampled_from(["resident", "recreate"])},
    optional={"prepare_s": positive},
)
demands = st.fixed_dictionaries(
    {
        "kind": st.just("demand"),
        "arrivals_per_s": st.one_of(st.just(0.0), st.floats(1e-3, 1e3)),
        "tasks": tasks(),
        "environment": environments,
        "capacity": st.fixed_dictionaries(
            {"cpu_cores": numbers, "memory_gib": numbers, "model_slots": numbers}
        ),
    },
    optional={"prices": prices, "deadline_s": positive, "success": shares},
)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Any]:
    """Attempts that lead to later ones only."""
    size = draw(st.integers(1, 5))
    nodes = {}
    for n in range(size):
        later = [f"n{m}" for m in range(n + 1, size)] + ["success", "fail"]
        ps = draw(parts_of_one(3))
        nodes[f"n{n}"] = {
            "cost_usd": draw(numbers),
            "seconds": draw(numbers),
            "outcomes": [{"p": p, "to": draw(st.sampled_from(later))} for p in ps],
        }
    return {"kind": "retries", "start": "n0", "nodes": nodes}


services = st.fixed_dictionaries(
    {
        "name": st.just("x"),
        "cost_hit": numbers,
        "cost_miss": numbers,
        "success_hit": shares,
        "success_miss": shares,
        "time_hit_s": numbers,
        "time_miss_s": numbers,
    }
)
samples = st.lists(st.fixed_dictionaries({"arrives_s": numbers, "service_s": numbers}), max_size=12)
calls = st.fixed_dictionaries(
    {},
    optional={
        "input_tokens": numbers, "read_tokens": numbers, "reasoning_tokens": numbers, "output_tokens": numbers,
        "queue_s": numbers, "token_s": numbers, "retry_share": shares,
        "replica": st.fixed_dictionaries({"cards": counts, "sessions": counts, "usd_per_card_h": numbers}),
    },
)  # fmt: skip


def kind(name: str, keys: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"kind": st.just(name), **keys}, optional=optional)


def named(one: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    many = st.lists(one, min_size=1, max_size=3)
    return many.map(lambda all_: [each | {"name": f"s{n}"} for n, each in enumerate(all_)])


QUESTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "demand": demands,
    "residency": kind(
        "residency",
        {"idle_s": numbers, "tool_s": numbers, "memory_gib": numbers, "prices": prices},
        pause=st.fixed_dictionaries({"save_s": numbers, "restore_s": numbers}),
        recreate=st.fixed_dictionaries({"prepare_s": numbers, "prepare_cpu_s": numbers}),
    ),
    "prewarm": kind(
        "prewarm",
        {"prepare_s": numbers, "hit": shares, "leads_s": st.lists(numbers), "memory_gib": numbers},
    ),
    "move": kind(
        "move",
        {"wait_s": numbers, "run_s": numbers},
        move_s=numbers,
        victim_extra_s=numbers,
        spread=st.fixed_dictionaries({"ready_s": numbers, "run_s": numbers}),
    ),
    "window": kind("window", {"prepare_s": numbers, "rate": numbers, "lifetimes_s": st.lists(numbers)}),
    "batch": kind(
        "batch",
        {"samples": samples, "workers": counts, "mode": st.sampled_from(["each", "all_together"])},
    ),
    "longtail": kind("longtail", {"durations_s": st.lists(numbers), "elapsed_s": numbers}),
    "routes": kind(
        "routes", {"services": named(services), "deadline_s": positive, "target": shares}
    ),
    "buy": kind(
        "buy",
        {"fixed_usd": numbers, "extra_per_task_usd": numbers, "api_per_task_usd": numbers},
        success_own=shares,
        success_api=shares,
        capacity_tasks=positive,
    ),
    "retries": trees().flatmap(
        lambda tree: st.lists(positive, max_size=3).map(lambda each: tree | {"deadlines_s": each})
    ),
    "commit": kind(
        "commit",
        {"requests": st.integers(0, 100), "service_s": numbers, "fixed_s": numbers, "per_item_s": numbers, "batch": counts},
    ),
    "load": kind(
        "load",
        {"environments": counts, "template_mib": st.just(1e5), "touched_mib": numbers, "changed_mib": st.just(0)},
        link_gbit_per_s=positive,
        prepare_s=numbers,
    ),
    "cache": kind(
        "cache",
        {
            "calls": counts, "prefix_tokens": numbers, "new_tokens": numbers,
            "prices": st.fixed_dictionaries({"input": numbers, "write": numbers, "read": numbers}),
        },
        requests=st.lists(st.fixed_dictionaries({"prefix_tokens": numbers, "hit": st.booleans()}), max_size=3),
    ),
    "call": kind("call", {"calls": named(calls)}, calls_per_s=numbers),
    "amdahl": kind("amdahl", {"parts_s": st.fixed_dictionaries({"a": positive, "b": numbers}), "faster": st.fixed_dictionaries({"a": positive}, optional={"b": positive})}),
    "rollout": kind(
        "rollout",
        {"saved_tokens": st.lists(numbers, min_size=1)},
        stages=st.fixed_dictionaries({"generate_s": numbers, "verify_s": numbers, "update_s": numbers, "publish_s": numbers, "faster": st.lists(positive)}),
        weights=st.fixed_dictionaries({"gb": positive, "receivers": counts, "sender_gbit_per_s": positive, "receiver_gbit_per_s": positive}),
        expansion=st.fixed_dictionaries({"base_usd_per_h": positive, "extra": counts, "extra_usd_per_h": numbers, "throughput": st.lists(positive)}),
        postponed=st.fixed_dictionaries({"saved_card_s": numbers, "waiting_s": numbers, "waiting_cards": st.lists(counts)}),
        filler=st.fixed_dictionaries({"batch_ends_s": numbers, "work_s": numbers, "prepare_s": numbers}),
    ),
}  # fmt: skip


def asked(data: dict[str, Any]) -> Any:
    return ask(data).answer().as_json()


@pytest.mark.parametrize("name", list(KINDS))
@settings(max_examples=40)
@given(data=st.data())
def test_every_valid_scenario_has_an_answer_in_json_and_in_words(
    name: str, data: st.DataObject
) -> None:
    question = ask(data.draw(QUESTIONS[name]))
    found = question.answer()
    json.dumps(found.as_json(), allow_nan=False)
    assert found.words and "None" not in found.words
    assert found == question.answer()


# -------------------------------------------------------------------------------------------------- demand


def made(data: dict[str, Any]) -> DemandScenario:
    found: Scenario = ask(data)
    assert isinstance(found, DemandScenario)
    return found


@few
@given(demands, st.sampled_from(["cpu_cores", "memory_gib", "model_slots"]), numbers)
def test_more_capacity_never_lowers_what_may_arrive(
    data: dict[str, Any], name: str, more: float
) -> None:
    before = demand(made(data))
    grown = data["capacity"] | {name: data["capacity"][name] + more}
    after = demand(made(data | {"capacity": grown}))
    if before.max_arrivals_per_s is None:
        assert after.max_arrivals_per_s is None
    else:
        assert after.max_arrivals_per_s is not None
        assert after.max_arrivals_per_s >= before.max_arrivals_per_s
    assert all(after.short[key] <= before.short[key] for key in before.short)


@few
@given(demands)
def test_at_the_most_that_may_arrive_the_bottleneck_is_full_and_nothing_is_short(
    data: dict[str, Any],
) -> None:
    for name in data["capacity"]:
        data["capacity"][name] += 1
    for task in data["tasks"]:
        task["rounds"] += 1
    told = demand(made(data))
    most = told.max_arrivals_per_s
    if most is None:  # tasks that need nothing
        assert not any((told.cpu_cores, told.memory_gib, told.model_concurrency))
        return
    assert most > 0
    told = demand(made(data | {"arrivals_per_s": most}))
    assert told.bottleneck is not None
    assert told.utilisation[told.bottleneck] == pytest.approx(1)
    assert all(share is not None and share <= 1 + 1e-9 for share in told.utilisation.values())
    assert set(told.short.values()) == {0}
    assert any(demand(made(data | {"arrivals_per_s": most * 1.01})).short.values())


@few
@given(demands, positive)
def test_what_is_short_is_enough_when_it_is_added(data: dict[str, Any], rate: float) -> None:
    told = demand(made(data | {"arrivals_per_s": rate}))
    grown = {name: data["capacity"][name] + told.short[name] for name in told.short}
    after = demand(made(data | {"arrivals_per_s": rate, "capacity": grown}))
    assert set(after.short.values()) == {0}


@few
@given(demands, positive, positive)
def test_a_longer_deadline_never_lowers_the_share_in_time(
    data: dict[str, Any], first_s: float, second_s: float
) -> None:
    low, high = sorted((first_s, second_s))
    in_time = [demand(made(data | {"deadline_s": each})).in_time_share for each in (low, high)]
    assert in_time[0] <= in_time[1] <= data.get("success", 1.0) + 1e-9


@few
@given(demands)
def test_recreating_holds_no_more_memory_than_keeping_where_preparation_fits(
    data: dict[str, Any],
) -> None:
    data["environment"] |= {"policy": "recreate", "prepare_s": 0.5}
    for task in data["tasks"]:
        task["model_s"] += 0.5
    kept = demand(made(data | {"environment": data["environment"] | {"policy": "resident"}}))
    anew = demand(made(data))
    assert anew.memory_gib <= kept.memory_gib * (1 + 1e-9) + 1e-9
    assert anew.task_s == pytest.approx(kept.task_s)


# ------------------------------------------------------------------------------------------------ timeline


@few
@given(demands, st.one_of(st.none(), st.integers(1, 50)))
def test_the_timeline_has_the_means_of_the_formulas_and_no_lower_peaks(
    data: dict[str, Any], burst: int | None
) -> None:
    data["arrivals_per_s"] += 0.01
    scenario = made(data)
    told = demand(scenario)
    drawn = timeline(scenario, "burst" if burst else "even", burst)
    means = {"cpu": told.cpu_cores, "memory": told.memory_gib, "model": told.model_concurrency}
    for name, peak in drawn.peaks.items():
        assert peak.mean == pytest.approx(means[name], rel=1e-6, abs=1e-6)
        assert peak.peak >= peak.mean * (1 - 1e-6) - 1e-6


@few
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 3)), max_size=5),
    st.integers(1, 12),
    st.integers(1, 4),
)
def test_folding_is_laying_all_tasks_over_one_another(
    spans: list[tuple[int, int, int]], period: int, weight: int
) -> None:
    uses = [Use(min(a, b), max(a, b), n) for a, b, n in spans]
    folded = Folded(uses, period, weight)
    levels = []
    before = -(-60 // period)  # tasks last 60 s at most: earlier ones are over
    for moment in range(period):  # all starts are whole, so the use changes at whole seconds alone
        level = sum(
            weight * use.amount
            for use in uses
            for k in range(before + 1)
            if use.from_s <= moment + 0.5 + k * period < use.to_s
        )
        levels.append(level)
        assert folded.at(moment + 0.5) == pytest.approx(level)
    assert folded.peak == pytest.approx(max(levels))


# -------------------------------------------------------------------------- residency, prewarm, move, batch


@few
@given(QUESTIONS["residency"])
def test_the_best_option_costs_least_and_recreating_pays_from_the_break_even_on(
    data: dict[str, Any],
) -> None:
    told = asked(data)
    costs = {name: option["cost_usd"] for name, option in told["options"].items()}
    assert costs[told["best"]] == min(costs.values())
    even_s = told["break_even_idle_s"]
    if even_s is None or even_s > 1e9:
        return
    for idle_s, cheaper in ((even_s * 1.01 + 0.01, True), (even_s * 0.99, False)):
        options = asked(data | {"idle_s": idle_s})["options"]
        keep, anew = options["keep"]["cost_usd"], options["recreate"]["cost_usd"]
        assert (anew <= keep * (1 + 1e-9)) if cheaper else (keep <= anew * (1 + 1e-9))


@few
@given(QUESTIONS["prewarm"], numbers, numbers)
def test_a_longer_lead_waits_no_longer_and_wastes_no_less(
    data: dict[str, Any], first_s: float, second_s: float
) -> None:
    low, high = asked(data | {"leads_s": sorted((first_s, second_s))})["leads"]
    assert high["expected_wait_s"] <= low["expected_wait_s"]
    assert high["early_gib_s"] >= low["early_gib_s"]
    assert high["wasted_gib_s"] >= low["wasted_gib_s"]


@few
@given(QUESTIONS["move"])
def test_a_move_is_the_earliest_exactly_below_its_bound(data: dict[str, Any]) -> None:
    bound_s = asked(data)["move_s_below_for_earliest"]
    if bound_s > 1e-6:
        assert asked(data | {"move_s": bound_s * 0.999})["best"] == "move"
    assert asked(data | {"move_s": bound_s + 1e-3})["best"] != "move"


@few
@given(samples, counts, counts)
def test_batches(data: list[dict[str, float]], first: int, second: int) -> None:
    few, many = sorted((first, second))
    question = {"kind": "batch", "samples": data, "mode": "each"}
    slow, fast = (asked(question | {"workers": workers}) for workers in (few, many))
    late = asked(question | {"workers": few, "mode": "all_together"})
    for n, sample in enumerate(data):
        assert slow["start_s"][n] >= fast["start_s"][n] >= sample["arrives_s"]
        assert late["start_s"][n] >= slow["start_s"][n] - 1e-9
        assert slow["finish_s"][n] == slow["start_s"][n] + sample["service_s"]
    if data:
        bound_s = max(sample["arrives_s"] + sample["service_s"] for sample in data)
        assert bound_s <= fast["completed_s"] <= slow["completed_s"] <= late["completed_s"] + 1e-9


@few
@given(samples, counts)
def test_no_more_are_served_at_once_than_there_are_workers(
    data: list[dict[str, float]], workers: int
) -> None:
    jobs = [(sample["arrives_s"], sample["service_s"]) for sample in data]
    spans = first_come(jobs, workers)
    for span in spans:
        at_once = sum(other.start_s <= span.start_s < other.finish_s for other in spans)
        assert at_once <= workers


# ---------------------------------------------------------------------------------------------- routes, buy


def service(data: dict[str, Any]) -> Service:
    return Service.model_validate(data)


@few
@given(services, services)
def test_at_the_break_even_both_cost_the_same_and_without_one_the_order_never_changes(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    first, second = service(one), service(two)
    hit = break_even_hit(first, second)
    if hit is not None:
        costs = [cost_per_success(each, hit) for each in (first, second)]
        assert costs[0] == pytest.approx(costs[1], rel=1e-5, abs=1e-9)
        return
    signs = set()
    for n in range(101):
        a, b = cost_per_success(first, n / 100), cost_per_success(second, n / 100)
        if a is not None and b is not None and not math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-9):
            signs.add(a > b)
    assert len(signs) <= 1


@few
@given(services, positive, st.floats(0.01, 1))
def test_the_share_of_hits_for_the_target_is_the_least(
    one: dict[str, Any], deadline_s: float, target: float
) -> None:
    question = {"kind": "routes", "services": [one], "deadline_s": deadline_s, "target": target}
    hit = asked(question)["services"][0]["hit_for_target"]
    shares_ = [in_time_share(service(one), n / 200, deadline_s) for n in range(201)]
    if hit is None:
        assert max(shares_) < target + 1e-9
    else:
        assert in_time_share(service(one), hit, deadline_s) >= target - 1e-9
        assert all(share < target + 1e-9 for n, share in enumerate(shares_) if n / 200 < hit)


@few
@given(QUESTIONS["buy"], positive, st.floats(0.01, 1), st.floats(0.01, 1), positive)
def test_owning_is_cheaper_above_the_break_even_and_dearer_below(
    data: dict[str, Any], fixed_usd: float, own: float, api: float, saved_usd: float
) -> None:
    dear = (data["extra_per_task_usd"] + saved_usd) * api / own
    data |= {"fixed_usd": fixed_usd, "success_own": own, "success_api": api}
    data["api_per_task_usd"] = dear
    question = ask(data)
    assert isinstance(question, BuyScenario)
    tasks_ = asked(data)["break_even_tasks"]
    # saved_usd a task are left of the larger price, with as many digits as the difference has
    assert tasks_ == pytest.approx(fixed_usd / saved_usd, rel=1e-3)

    def gain(n: float) -> float:
        own = (question.fixed_usd + n * question.extra_per_task_usd) / (n * question.success_own)
        return question.api_per_task_usd / question.success_api - own

    assert gain(tasks_ * 1.01) > 0 > gain(tasks_ * 0.99)


# ------------------------------------------------------------------------------------------------- retries


def by_equations(tree: dict[str, Any]) -> tuple[float, float]:
    """Success and expected cost, as solutions of ``x = P x + r``."""
    order = list(tree["nodes"])
    matrix, wins, costs = np.eye(len(order)), np.zeros(len(order)), np.zeros(len(order))
    for row, name in enumerate(order):
        costs[row] = tree["nodes"][name]["cost_usd"]
        for outcome in tree["nodes"][name]["outcomes"]:
            if outcome["to"] in tree["nodes"]:
                matrix[row, order.index(outcome["to"])] -= outcome["p"]
            elif outcome["to"] == "success":
                wins[row] += outcome["p"]
    return float(np.linalg.solve(matrix, wins)[0]), float(np.linalg.solve(matrix, costs)[0])


@few
@given(trees())
def test_the_paths_are_the_solution_of_the_linear_equations(tree: dict[str, Any]) -> None:
    told = asked(tree)
    success, cost_usd = by_equations(tree)
    assert told["success"] == pytest.approx(success, abs=1e-12)
    assert told["expected_cost_usd"] == pytest.approx(cost_usd)
    assert sum(path["p"] for path in told["paths"]) == pytest.approx(1)


@few
@given(trees(), positive)
def test_stopping_what_would_be_late_loses_no_success_in_time_and_costs_no_more(
    tree: dict[str, Any], deadline_s: float
) -> None:
    free = asked(tree | {"deadlines_s": [deadline_s]})
    stopped = asked(tree | {"deadlines_s": [deadline_s], "stop_if_late": True})
    in_time = stopped["deadlines"][0]["in_time"]
    assert in_time == pytest.approx(free["deadlines"][0]["in_time"])
    assert stopped["success"] == pytest.approx(in_time)  # a late success is never begun
    assert stopped["expected_cost_usd"] <= free["expected_cost_usd"] * (1 + 1e-9)


@few
@given(trees(), positive, positive)
def test_more_time_never_lowers_the_share_in_time(
    tree: dict[str, Any], first_s: float, second_s: float
) -> None:
    told = asked(tree | {"deadlines_s": sorted((first_s, second_s))})
    low, high = (each["in_time"] for each in told["deadlines"])
    assert low <= high <= told["success"] + 1e-9


def played(question: RetriesScenario, plays: int, seed: int) -> list[tuple[bool, float, float]]:
    """Success, cost and seconds of tasks that walk the tree by chance."""
    chance = random.Random(seed)
    found = []
    for _ in range(plays):
        name, cost_usd, seconds = question.start, 0.0, 0.0
        while name in question.nodes:
            node = question.nodes[name]
            cost_usd, seconds = cost_usd + node.cost_usd, seconds + node.seconds
            ps = [outcome.p for outcome in node.outcomes]
            name = chance.choices([outcome.to for outcome in node.outcomes], ps)[0]
        found.append((name == "success", cost_usd, seconds))
    return found


@settings(max_examples=8)
@given(trees(), st.integers(0, 9))
def test_the_paths_are_what_chance_comes_to(tree: dict[str, Any], seed: int) -> None:
    question = ask(tree | {"deadlines_s": [30.0]})
    assert isinstance(question, RetriesScenario)
    told = question.answer()
    plays = 4000
    seen = played(question, plays, seed)

    def near(expected: float, of: Callable[[tuple[bool, float, float]], float]) -> None:
        values = np.array([of(each) for each in seen])
        slack = 6 * float(values.std()) / math.sqrt(plays) + 6 / plays
        scale = max(1.0, float(np.abs(values).max()))
        assert abs(float(values.mean()) - expected) <= slack + scale * 6 / plays

    near(told.success, lambda each: each[0])
    near(told.expected_cost_usd, lambda each: each[1])
    near(told.deadlines[0].in_time, lambda each: each[0] and each[2] <= 30)


# ------------------------------------------------------------------------------------------ commit, longtail


@few
@given(QUESTIONS["commit"], counts)
def test_larger_commits_save_less_often_and_repeat_more(data: dict[str, Any], more: int) -> None:
    small, large = asked(data), asked(data | {"batch": data["batch"] * more})
    assert large["save_s"] <= small["save_s"]
    assert large["redo_s"] >= small["redo_s"]


@few
@given(st.lists(numbers, min_size=1), numbers)
def test_what_is_left_is_the_mean_over_those_that_took_longer(
    durations_s: list[float], elapsed_s: float
) -> None:
    told = asked({"kind": "longtail", "durations_s": durations_s, "elapsed_s": elapsed_s})
    longer = [each for each in durations_s if each > elapsed_s]
    if not longer:
        assert told["expected_remaining_s"] is None
    else:
        mean = sum(longer) / len(longer)
        assert told["expected_remaining_s"] == pytest.approx(mean - elapsed_s, abs=1e-6)
