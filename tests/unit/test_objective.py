"""What a plan is chosen by: the least J, never over a limit, and how far off where nothing keeps them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.errors import UsageError
from tenure.plan.objective import Infeasible, Limits, Option, Weights, choose, j, option, scales
from tenure.plan.predict import Overheads, forecast
from tenure.plan.survival import exponential
from tenure.plan.throughput import known

H = 3600.0
SLOW = Option("slow", 10 * H, 2.0, 0.9, {"t4": 1})
FAST = Option("fast", 2 * H, 10.0, 0.9, {"h100": 1})
SURE = Option("sure", 6 * H, 6.0, 0.999, {"t4": 2})

options = st.lists(
    st.builds(
        Option,
        st.integers(0, 10**9).map(str),
        st.floats(1, 1e6),
        st.just(0.0) | st.floats(0.01, 1e3),
        st.floats(0, 1),
        st.dictionaries(st.sampled_from(["t4", "h100"]), st.integers(0, 8).map(float)),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.name,
)
limits = st.builds(
    Limits,
    st.none() | st.floats(1, 1e6),
    st.none() | st.floats(0, 1e3),
    st.sampled_from([0.0, 0.5, 0.9]),
    st.dictionaries(st.sampled_from(["t4", "h100"]), st.integers(0, 8).map(float)),
)


@given(options, limits)
def test_what_is_chosen_keeps_every_limit_and_no_kept_one_is_better(
    some: list[Option], held: Limits
) -> None:
    weights = Weights(1, 2, 3)

    def keeps(each: Option) -> bool:
        return (
            (held.deadline_s is None or each.time_s <= held.deadline_s)
            and (held.budget is None or each.cost <= held.budget)
            and each.reliability >= held.least_on_time
            and all(each.takes.get(name, 0) <= most for name, most in held.resources.items())
        )

    try:
        found = choose(some, weights, held)
    except Infeasible as error:
        assert not any(map(keeps, some))
        assert error.over and all(by > 0 for by in error.over.values())
        return
    assert keeps(found.option)
    scale = scales(some, held)
    assert found.j == min(j(each, weights, *scale) for each in some if keeps(each))
    assert set(found.refused) == {each.name for each in some if not keeps(each)}


def test_each_weight_alone_chooses_what_it_is_about() -> None:
    of = [SLOW, FAST, SURE]
    assert choose(of, Weights(1, 0, 0)).option is FAST
    assert choose(of, Weights(0, 1, 0)).option is SLOW
    assert choose(of, Weights(0, 0, 1)).option is SURE
    assert "J " in choose(of, Weights()).reason and "next is" in choose(of, Weights()).reason


@settings(max_examples=40)
@given(st.floats(0.1, 10), options)
def test_units_and_the_scale_of_weights_change_nothing(scale: float, some: list[Option]) -> None:
    """Without limits J is relative to the fastest and the cheapest."""
    weights = Weights(1, 2, 1)
    again = [
        Option(each.name, each.time_s * scale, each.cost * scale, each.reliability) for each in some
    ]
    one, two = choose(some, weights), choose(again, Weights(10, 20, 10))
    assert one.j == pytest.approx(two.j)


def test_an_infeasible_deadline_says_by_how_much_and_the_cheapest_way_out() -> None:
    with pytest.raises(Infeasible) as caught:
        choose([SLOW, FAST, SURE], Weights(), Limits(deadline_s=5 * H, budget=6.0))
    assert caught.value.over == {"deadline_s": pytest.approx(H)}
    assert caught.value.relaxation == "deadline_s"
    said = str(caught.value)
    assert "extend the deadline by 1.0 h, for sure (6.0 h, 6)" in said
    assert "or to raise the budget by 4, for fast (2.0 h, 10)" in said
    assert isinstance(caught.value, UsageError) and "\n" not in said


def test_an_infeasible_budget_and_cards_are_said_alike() -> None:
    with pytest.raises(Infeasible, match="raise the budget by 1, for slow"):
        choose([SLOW, SURE], Weights(), Limits(budget=1.0))
    with pytest.raises(Infeasible, match="find 1 more t4, for sure"):
        choose([SURE], Weights(), Limits(resources={"t4": 1}))
    with pytest.raises(Infeasible, match=r"lower by 0\.09, for slow"):
        choose([SLOW], Weights(), Limits(least_on_time=0.99))
    with pytest.raises(Infeasible, match=r"raise the budget by 5, for fast \(2.0 h, 10\)"):
        choose([SLOW, FAST], Weights(), Limits(deadline_s=3 * H, budget=5.0))


def test_an_option_is_made_of_a_forecast() -> None:
    found = forecast(
        7_200.0,
        known(1.0, 0.9),
        exponential(1 / H),
        Overheads((60.0,), 0.0, 10.0, 600.0),
        draws=500,
    )
    made = option("spot", found, per_h=2.0, deadline_s=3 * H)
    assert made.cost == pytest.approx(2.0 * found.mean_s / H)
    assert made.reliability == found.on_time(3 * H) and 0 < made.reliability < 1
    free = option("spot", found, per_h=0.0)
    assert free.cost == 0.0 and free.reliability == found.unscathed < made.reliability


def test_less_frequent_snapshots_make_a_plan_less_reliable() -> None:
    law, rates = known(1.0, 0.9), exponential(1 / H)
    often, seldom = (
        option(
            "spot",
            forecast(7_200.0, law, rates, Overheads((60.0,), 0.0, 10.0, every)),
            1.0,
            3 * H,
        )
        for every in (400.0, 4_000.0)
    )
    assert often.reliability > seldom.reliability + 0.2


@pytest.mark.parametrize(
    ("make", "words", "kind"),
    [
        (lambda: Weights(-1, 1, 1), "the weight of time is -1", UsageError),
        (lambda: Weights(1, float("nan"), 1), "the weight of cost is nan", UsageError),
        (lambda: Weights(0, 0, 0), "are all 0", UsageError),
        (lambda: Limits(deadline_s=0.0), "the deadline is in 0 s", UsageError),
        (lambda: Limits(budget=-1.0), "the budget is -1", UsageError),
        (lambda: Limits(least_on_time=1.0), "at least 1;", UsageError),
        (lambda: Limits(resources={"t4": -1.0}), "there are -1 t4", UsageError),
        (lambda: choose([], Weights()), "no option to choose from", ValueError),
        (lambda: Option("a", -1.0, 0.0, 0.5), "a: time and cost", ValueError),
        (lambda: Option("a", 1.0, 0.0, 1.5), "a: a reliability of 1.5", ValueError),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    make: Callable[[], object], words: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match=words):
        make()
