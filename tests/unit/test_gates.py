"""Every gate passes the valid record and blocks each variation with a sentence of its own."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.check import check_record
from gates.promotion import judge_backtest, judge_metrics, promote
from gates.verdict import Verdict, deployable
from tenure_protocol.codec import Corrupt, decode, encode
from tenure_protocol.fingerprint import PINNED_DETERMINISM, pin
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    BacktestValue,
    JudgedMetric,
    MetricValue,
    ModelRecord,
    Promote,
    environment_digest,
)
from tenure_protocol.store.api import Found, Missing, StoreSilent
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import (
    EXPERIMENT,
    MEASURED,
    METRIC,
    REQUIRED,
    SEEDS,
    TERMS,
    Losses,
    Other,
    losses_of,
    overwrite,
    put,
    research,
    retrain,
)

GATES = [
    "generation", "parent", "lineage", "integrity", "jobs", "pinned", "measured", "repetition",
    "spread_mean", "spread_variance", "spread_worst_seed", "spread_examples", "backtest", "score",
]  # fmt: skip


def by_gate(store: MemoryStore, record: ModelRecord) -> dict[str, Verdict]:
    return {verdict.gate: verdict for verdict in check_record(store, record)}


def sentence(store: MemoryStore, record: ModelRecord, gate: str) -> str:
    """The reason of a gate that must not pass, on a record that must not be deployable."""
    verdicts = by_gate(store, record)
    assert not deployable(verdicts.values())
    assert verdicts[gate].verdict != "PASS", verdicts[gate]
    return verdicts[gate].reason


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def parent(store: MemoryStore) -> ModelRecord:
    return research(store)


def test_a_valid_retrain_passes_every_gate(store: MemoryStore, parent: ModelRecord) -> None:
    verdicts = check_record(store, retrain(store, parent))
    assert [verdict.gate for verdict in verdicts] == GATES
    assert [v for v in verdicts if v.verdict != "PASS"] == []
    assert deployable(verdicts)


def test_the_builders_research_record_passed(parent: ModelRecord) -> None:
    assert parent.passed_metrics and parent.passed_backtest and parent.reasons == ()


# ------------------------------------------------------------------- generation and lineage


def test_a_research_model_is_never_deployed(store: MemoryStore, parent: ModelRecord) -> None:
    assert sentence(store, parent, "generation") == (
        "this is a generation-1 (research) model; only a generation-2 retrain can be deployed"
    )


def test_a_forged_generation_contradicts_its_jobs(store: MemoryStore, parent: ModelRecord) -> None:
    forged = put(store, replace(parent, generation=2, parent=parent.id))
    assert "generation is 1, the record says 2" in sentence(store, forged, "jobs")
    assert "a training of the parent is passed off" in sentence(store, forged, "lineage")


def test_a_parent_must_be_named_and_exist(store: MemoryStore, parent: ModelRecord) -> None:
    orphan = retrain(store, None)
    assert sentence(store, orphan, "parent") == "the record names no parent"
    lost = retrain(store, "a" * 26)
    assert "the parent " + "a" * 26 + " is not in the store" in sentence(store, lost, "parent")
    assert "no parent whose seeds" in sentence(store, lost, "spread_mean")


def test_an_edited_parent_is_named(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    edited = replace(parent, promote=replace(TERMS, margin=9.0))
    overwrite(store, keys.model(EXPERIMENT, parent.id), encode(edited))
    assert "was edited: its content has the id" in sentence(store, record, "parent")


def test_a_corrupt_parent_is_named_with_its_key(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    key = keys.model(EXPERIMENT, parent.id)
    overwrite(store, key, b"{}")
    assert f"{key} is corrupt" in sentence(store, record, "parent")


def test_a_newer_records_version_is_said(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    overwrite(store, keys.model(EXPERIMENT, parent.id), encode(replace(parent, protocol=99)))
    assert "speaks protocol 99" in sentence(store, record, "parent")


def test_a_parent_must_be_of_generation_1(store: MemoryStore, parent: ModelRecord) -> None:
    first = retrain(store, parent)
    second = retrain(store, first, seeds=(21, 22, 23, 24, 25))
    assert "is of generation 2, not 1" in sentence(store, second, "parent")


def test_a_parent_that_failed_its_backtest_blocks(store: MemoryStore) -> None:
    failed = research(store, score=0.1)
    record = retrain(store, failed)
    assert "did not pass its backtest (the mean score" in sentence(store, record, "parent")


def test_a_parent_whose_flag_was_set_by_hand_blocks(store: MemoryStore) -> None:
    failed = research(store, score=0.1)
    forged = put(store, replace(failed, passed_backtest=True, reasons=()))
    record = retrain(store, forged)
    assert "says it passed its backtest, its numbers do not" in sentence(store, record, "parent")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"lr": 0.1}}, "its config is {'lr': 0.1} and the parent's is {'lr': 0.003}"),
        ({"code": "code2"}, "its code is 'code2' and the parent's is 'code1'"),
        ({"data": "data2"}, "its data is 'data2' and the parent's is 'data1'"),
        ({"terms": replace(TERMS, margin=0.5)}, "promote.margin was 0.05 when the parent"),
        ({"terms": replace(TERMS, min_score=0.1)}, "promote.min_score was 0.5"),
        ({"terms": replace(TERMS, alpha=0.4)}, "promote.alpha was 0.05"),
        ({"seeds": (11, 12, 13, 14, SEEDS[0])}, "shares the seeds 1 with its parent"),
    ],
)
def test_nothing_but_the_seeds_may_change(
    store: MemoryStore, parent: ModelRecord, change: dict[str, object], words: str
) -> None:
    assert words in sentence(store, retrain(store, parent, **change), "lineage")


def test_members_are_those_of_the_seeds(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    reordered = put(store, replace(good, members=good.members[::-1]))
    assert "not those of its seeds" in sentence(store, reordered, "lineage")
    twice = put(store, replace(good, members=(good.members[0],) * 5))
    assert "two of its members are one training" in sentence(store, twice, "lineage")
    assert "it has no members" in sentence(store, put(store, replace(good, members=())), "lineage")


# ------------------------------------------------------------------------------- integrity


def test_a_record_that_is_not_stored_is_not_believed(
    store: MemoryStore, parent: ModelRecord
) -> None:
    loose = replace(retrain(store, parent), reasons=("edited",))
    assert "is not in the store" in sentence(store, loose, "integrity")


def test_one_byte_of_the_weights(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    ref = record.members[0].train
    key = keys.snapshot(ref.job, ref.pointer) + "weights.bin"
    overwrite(store, key, b"weights of 2/12")
    assert sentence(store, record, "integrity") == (
        f"the bytes of {key} are not those that the record names"
    )


def test_weights_of_another_model(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    first, second = good.members[:2]
    swapped = put(
        store, replace(good, members=(replace(first, files=second.files), *good.members[1:]))
    )
    assert "are not those of its manifest: weights.bin" in sentence(store, swapped, "integrity")


def test_a_missing_file_and_a_missing_manifest(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    ref = record.members[0].train
    store.delete(keys.snapshot(ref.job, ref.pointer) + "weights.bin")
    assert "weights.bin is missing" in sentence(store, record, "integrity")
    store.delete(keys.manifest(ref.job, ref.pointer))
    assert "the manifest of snapshot 20-1" in sentence(store, record, "integrity")


def test_an_edited_manifest(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    ref = record.members[2].train
    key = keys.manifest(ref.job, ref.pointer)
    found = store.read(key)
    assert isinstance(found, Found)
    overwrite(store, key, found.body + b" ")
    assert f"{key} does not have the digest" in sentence(store, record, "integrity")


def test_only_what_a_job_finished_with_counts(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    ref = record.members[0].train
    key = keys.witness(EXPERIMENT, ref.job)
    found = store.read(key)
    assert isinstance(found, Found)
    body = json.loads(found.body)
    overwrite(store, key, json.dumps({**body, "phase": "revoked"}).encode())
    assert f"job {ref.job} is revoked, not finished" in sentence(store, record, "integrity")
    overwrite(store, key, json.dumps({**body, "exit_code": 1}).encode())
    assert "ended with exit code 1" in sentence(store, record, "integrity")
    overwrite(store, key, json.dumps({**body, "pointer": {**body["pointer"], "step": 1}}).encode())
    assert "finished with another snapshot" in sentence(store, record, "integrity")


def test_an_edited_spec(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent)
    key = keys.job(record.members[0].train.job)
    found = store.read(key)
    assert isinstance(found, Found)
    overwrite(store, key, found.body.replace(b'"seed":11', b'"seed":99'))
    assert f"{key} was edited" in sentence(store, record, "jobs")


def test_a_member_without_an_evaluation(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    first = replace(good.members[0], evaluation=None)
    bare = put(store, replace(good, members=(first, *good.members[1:])))
    assert "seed 11 has no evaluate job" in sentence(store, bare, "jobs")


def test_an_evaluation_of_another_model(store: MemoryStore, parent: ModelRecord) -> None:
    """With its metrics and losses too, as somebody would who evaluates the best seed only."""
    good = retrain(store, parent)
    second = good.members[1]
    first = replace(
        good.members[0],
        evaluation=second.evaluation,
        metrics=second.metrics,
        losses=second.losses,
    )
    record = put(store, replace(good, members=(first, *good.members[1:])))
    assert "it is about another model than that of seed 11" in sentence(store, record, "jobs")


def test_a_reference_that_no_key_can_hold(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    train = replace(good.members[0].train, job="../../etc")
    odd = put(
        store, replace(good, members=(replace(good.members[0], train=train), *good.members[1:]))
    )
    assert "must be parts of" in sentence(store, odd, "integrity")


# ----------------------------------------------------------------------------- environment


def test_an_unpinned_retrain(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, requires=None)
    assert "seed 11 was not pinned: its job required no environment" in sentence(
        store, record, "pinned"
    )
    assert "nothing was required" in sentence(store, record, "measured")


def test_a_pin_that_leaves_something_open(store: MemoryStore, parent: ModelRecord) -> None:
    assert "leaves open" in sentence(store, retrain(store, parent, requires={}), "pinned")
    loose = copy.deepcopy(REQUIRED)
    del loose["card"]
    loose["determinism"]["threads"] = 8  # type: ignore[index]
    reason = sentence(store, retrain(store, parent, requires=loose), "pinned")
    assert "leaves open: card, determinism.threads" in reason


def test_an_unpinned_backtest(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, backtest_requires=None)
    assert "the backtest of seed 11 was not pinned" in sentence(store, record, "pinned")


@pytest.mark.parametrize("field", sorted(pin(MEASURED)))
def test_each_field_measured_differently(
    store: MemoryStore, parent: ModelRecord, field: str
) -> None:
    other = copy.deepcopy(MEASURED)
    place = other[field]
    if isinstance(place, dict):
        field, place[sorted(place)[0]] = f"{field}.{sorted(place)[0]}", "other"
    else:
        other[field] = "other"
    record = retrain(store, parent, measured=other)
    reason = sentence(store, record, "measured")
    assert f"seed 11 ran elsewhere: {field} is 'other' where " in reason
    assert "is required" in reason


@pytest.mark.parametrize("field", ["kernel", "lock", "cpu_flags", "gpu"])
def test_informative_differences_do_not_block(
    store: MemoryStore, parent: ModelRecord, field: str
) -> None:
    record = retrain(store, parent, measured={**MEASURED, field: "another"})
    assert deployable(check_record(store, record))


def test_an_environment_left_out_of_the_record(store: MemoryStore, parent: ModelRecord) -> None:
    """Members claim the required environment, their manifests tell another."""
    elsewhere = retrain(store, parent, measured={**MEASURED, "card": "another card"})
    honest = retrain(store, parent, seeds=(21, 22, 23, 24, 25))
    digest = honest.members[0].measured
    lying = put(
        store,
        replace(
            elsewhere,
            environments={**elsewhere.environments, **honest.environments},
            members=tuple(replace(member, measured=digest) for member in elsewhere.members),
        ),
    )
    assert "measured an environment that the record leaves out" in sentence(
        store, lying, "measured"
    )


def test_an_edited_environment(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    forged = {name: {**found, "card": "forged"} for name, found in good.environments.items()}
    record = put(store, replace(good, environments=forged))
    assert "was edited: its content has another digest" in sentence(store, record, "measured")


# ---------------------------------------------------------------------------------- spread


def test_a_worse_retrain(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, losses=lambda seed: losses_of(seed, 0.08))
    assert "qlike (minimize, in nats): not proved to be not worse" in sentence(
        store, record, "spread_mean"
    )
    assert "over 200 paired examples" in sentence(store, record, "spread_examples")


def test_an_impossible_margin_asks_for_seeds(store: MemoryStore) -> None:
    terms = replace(TERMS, margin=0.0005)
    record = retrain(store, research(store, terms=terms), terms=terms)
    verdict = by_gate(store, record)["spread_mean"]
    assert verdict.verdict == "NOT_ENOUGH_SEEDS"
    assert "not enough seeds to tell" in verdict.reason


def test_a_negative_margin_is_refused_in_words(store: MemoryStore) -> None:
    terms = replace(TERMS, margin=-0.1)
    record = retrain(store, research(store, terms=terms), terms=terms)
    assert "the margin is -0.1; it must be a positive number" in sentence(
        store, record, "spread_mean"
    )


def test_one_seed_is_not_enough(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, seeds=(11,))
    assert by_gate(store, record)["spread_mean"].verdict == "NOT_ENOUGH_SEEDS"
    assert not deployable(check_record(store, record))


def test_a_retrain_that_spreads_more(store: MemoryStore, parent: ModelRecord) -> None:
    wide = retrain(store, parent, losses=lambda seed: losses_of(seed, 0.04 * (seed - 13)))
    assert "the retrain spreads more" in sentence(store, wide, "spread_variance")


def test_a_seed_that_diverged(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, losses=lambda seed: losses_of(seed, 2.0 * (seed == 13)))
    assert "the worst new seed is" in sentence(store, record, "spread_worst_seed")


def test_equal_constants_are_no_spread(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, losses=lambda seed: losses_of(11))
    assert "all 5 seeds of the retrain gave" in sentence(store, record, "spread_mean")


def test_different_numbers_of_examples(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, losses=lambda seed: losses_of(seed)[:150])
    assert "different numbers of examples (150, 200)" in sentence(store, record, "spread_examples")


def test_losses_that_are_not_finite(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    bad = np.full(200, np.nan)
    ref = good.members[0].evaluation
    assert ref is not None
    body = bad.astype("<f8").tobytes()
    overwrite(store, keys.snapshot(ref.job, ref.pointer) + f"losses/{METRIC}.f64", body)
    assert "does not have the digest" in sentence(store, good, "spread_examples")


def test_losses_must_average_to_the_metric(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    flattered = tuple(
        replace(
            m, metrics={METRIC: replace(m.metrics[METRIC], value=m.metrics[METRIC].value - 0.2)}
        )
        for m in good.members
    )
    record = put(store, replace(good, members=flattered))
    assert "do not average to the metric" in sentence(store, record, "spread_examples")
    assert "finished with other metrics than the record" in sentence(store, record, "jobs")


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (None, "seed 11 has no metric 'qlike'"),
        (MetricValue(0.5, "maximize", "nats"), "says 'qlike' is to maximize"),
        (MetricValue(0.5, "minimize", "bits"), "comes in several units: bits, nats"),
    ],
)
def test_metrics_that_cannot_be_compared(
    store: MemoryStore, parent: ModelRecord, metric: MetricValue | None, words: str
) -> None:
    good = retrain(store, parent)
    first = replace(good.members[0], metrics={METRIC: metric} if metric else {})
    record = put(store, replace(good, members=(first, *good.members[1:])))
    assert words in sentence(store, record, "spread_mean")


# --------------------------------------------------------------------------- backtest, score


def test_a_score_below(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, score=0.4)
    assert sentence(store, record, "score") == "the score is 0.4, at least 0.5 is asked"


def test_a_backtest_without_the_flag(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, deployable=False)
    assert "does not bear the deployable flag" in sentence(store, record, "backtest")


def test_a_backtest_that_failed(store: MemoryStore, parent: ModelRecord) -> None:
    record = retrain(store, parent, passed=False)
    assert "did not pass: no reason given" in sentence(store, record, "backtest")


def test_a_backtest_of_another_model(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    first = replace(good.members[0], backtest_job=good.members[1].backtest_job)
    record = put(store, replace(good, members=(first, *good.members[1:])))
    assert "its backtest is of another model" in sentence(store, record, "backtest")


def test_an_evaluation_is_no_backtest(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    first = replace(good.members[0], backtest_job=good.members[0].evaluation)
    record = put(store, replace(good, members=(first, *good.members[1:])))
    assert "is of kind evaluate" in sentence(store, record, "backtest")


def test_no_backtest_at_all(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent)
    first = replace(good.members[0], backtest_job=None, backtest=None)
    record = put(store, replace(good, members=(first, *good.members[1:])))
    assert "has no backtest of its own" in sentence(store, record, "backtest")
    assert "no backtest that could have a score" in sentence(store, record, "score")


def test_a_score_edited_in_the_record(store: MemoryStore, parent: ModelRecord) -> None:
    good = retrain(store, parent, score=0.4)
    first = replace(good.members[0], backtest=BacktestValue(0.9, True, True))
    record = put(store, replace(good, members=(first, *good.members[1:])))
    assert "its score is 0.4, the record says 0.9" in sentence(store, record, "jobs")


# ------------------------------------------------------------------------------- promotion


def test_the_best_mean_is_promoted_and_the_first_of_equals(store: MemoryStore) -> None:
    one = research(store)
    other = research(store, config={"lr": 0.01}, losses=lambda seed: losses_of(seed, -0.1))
    twin = research(store, config={"lr": 0.02}, losses=lambda seed: losses_of(seed, -0.1))
    better_but_failed = research(
        store, config={"lr": 1}, losses=lambda seed: losses_of(seed, -0.5), score=0.1
    )
    assert promote([better_but_failed, one, other, twin]) is other
    assert promote([better_but_failed]) is None
    assert promote([]) is None


def test_a_maximised_metric_promotes_the_largest(store: MemoryStore) -> None:
    def up(record: ModelRecord, value: float) -> ModelRecord:
        return replace(
            record,
            promote=replace(TERMS, direction="maximize"),
            members=tuple(
                replace(m, metrics={METRIC: MetricValue(value, "maximize", "nats")})
                for m in record.members
            ),
        )

    one, other = up(research(store), 0.5), up(research(store), 0.7)
    assert promote([one, other]) is other


def test_half_of_the_backtests_is_not_more_than_half(store: MemoryStore) -> None:
    record = research(store, seeds=(1, 2, 3, 4))
    members = tuple(
        replace(member, backtest=BacktestValue(0.9, member.seed > 2, False))
        for member in record.members
    )
    passed, reasons = judge_backtest(replace(record, members=members))
    assert not passed
    assert reasons == ("2 of 4 backtests passed, more than half is asked",)


def test_a_metric_that_is_not_finite_fails(store: MemoryStore) -> None:
    record = research(store)
    first = replace(
        record.members[0], metrics={METRIC: MetricValue(float("nan"), "minimize", "nats")}
    )
    passed, reasons = judge_metrics(replace(record, members=(first, *record.members[1:])))
    assert not passed
    assert "qlike of seed 1 is nan" in reasons


def test_a_record_without_members_fails_everything(store: MemoryStore) -> None:
    empty = replace(research(store), members=())
    assert not judge_metrics(empty)[0]
    assert not judge_backtest(empty)[0]


# ---------------------------------------------------------------- where the parent ran


def test_where_the_parent_ran_otherwise_is_a_warning_with_its_class(
    store: MemoryStore, parent: ModelRecord
) -> None:
    verdict = by_gate(store, retrain(store, parent))["measured"]
    assert verdict.verdict == "PASS"
    words = "warning: the parent ran in another one: cpu_model was 'another processor' and is 'some cpu_model'"
    assert f"{words} (bitwise: math libraries choose" in verdict.reason
    assert verdict.numbers["parent_differs_in"] == "cpu_model"
    counts = {
        name: verdict.numbers[f"parent_{name}"] for name in ("bitwise", "numeric", "informative")
    }
    assert counts == {"bitwise": 1.0, "numeric": 0.0, "informative": 0.0}


def test_of_a_parent_that_ran_in_several_the_nearest_counts(store: MemoryStore) -> None:
    switches = {**PINNED_DETERMINISM, "threads": 8, "interop_threads": 2}
    ran = {**MEASURED, "determinism": switches, "kernel": "another"}
    del ran["driver"]
    parent = research(store, measured=ran)
    verdict = by_gate(store, retrain(store, parent))["measured"]
    assert "warning: the parent ran in another one, in" not in verdict.reason
    assert "driver was nothing and is 'some driver' (bitwise" in verdict.reason
    assert "and in 1 switches that a pin sets" in verdict.reason
    assert verdict.numbers["parent_differs_in"] == "determinism.threads, driver, kernel"
    assert verdict.numbers["parent_informative"] == 1.0
    near = {**MEASURED, "determinism": switches}
    digest = environment_digest(near)
    members = tuple(
        replace(member, measured=(*member.measured, digest)) for member in parent.members
    )
    both = put(
        store,
        replace(parent, members=members, environments={**parent.environments, digest: near}),
    )
    verdict = by_gate(store, retrain(store, both, seeds=(21, 22, 23, 24, 25)))["measured"]
    assert "the parent ran in the same but for 1 switches that a pin sets" in verdict.reason


def test_many_differences_from_the_parent_are_counted(store: MemoryStore) -> None:
    ran = {**MEASURED, **dict.fromkeys(("card", "cuda", "cudnn", "driver", "python"), "older")}
    verdict = by_gate(store, retrain(store, research(store, measured=ran)))["measured"]
    assert verdict.reason.count(" was 'older' and is ") == 3 and verdict.reason.endswith(
        "and 2 more"
    )
    assert (verdict.numbers["parent_bitwise"], verdict.numbers["parent_numeric"]) == (4.0, 1.0)


# ------------------------------------------------------------------------------ a silent store


def test_a_silent_store_is_no_verdict(store: MemoryStore, parent: ModelRecord) -> None:
    class Silent(MemoryStore):
        def read(self, key: str) -> Found | Missing:
            raise StoreSilent("timeout")

    with pytest.raises(StoreSilent):
        check_record(Silent(), parent)


# ------------------------------------------------------------------------- several metrics

ALSO = JudgedMetric("hits", "maximize", 0.05)
SEVERAL = replace(TERMS, also=(ALSO,))


def hits(shift: float = 0.0, kept: bool = True) -> dict[str, Other]:
    """One more metric; its losses have nothing to do with those of the first."""
    return {"hits": Other("maximize", "share", lambda seed: losses_of(seed + 500, shift), kept)}


def test_each_metric_is_named_with_direction_and_unit(store: MemoryStore) -> None:
    parent = research(store, terms=SEVERAL, others=hits())
    record = retrain(store, parent, terms=SEVERAL, others=hits())
    verdicts = by_gate(store, record)
    assert deployable(verdicts.values()), verdicts
    for gate in ("spread_mean", "spread_variance", "spread_worst_seed", "spread_examples"):
        first, second = verdicts[gate].reason.split("; hits (")
        assert first.startswith("qlike (minimize, in nats): ")
        assert second.startswith("maximize, in share): ")
    numbers = verdicts["spread_mean"].numbers
    assert numbers["metric"] == "qlike" and numbers["hits.metric"] == "hits"
    assert numbers["hits.alpha"] == numbers["alpha"] == 0.05


@pytest.mark.parametrize(
    ("gate", "other", "words"),
    [
        ("spread_mean", lambda seed: losses_of(seed + 500, 0.08), "not proved to be not worse"),
        ("spread_variance", lambda seed: losses_of(seed, 0.04 * (seed - 13)), "spreads more"),
        ("spread_worst_seed", lambda seed: losses_of(seed, 2.0 * (seed == 13)), "worst new seed"),
        ("spread_examples", lambda seed: losses_of(seed + 500, 0.08), "paired examples"),
    ],
)
def test_a_retrain_that_is_worse_in_another_metric_alone(
    store: MemoryStore, gate: str, other: Losses, words: str
) -> None:
    parent = research(store, terms=SEVERAL, others=hits())
    others = {"hits": Other("maximize", "share", other)}
    reason = sentence(store, retrain(store, parent, terms=SEVERAL, others=others), gate)
    assert reason.startswith("hits (maximize, in share): ") and words in reason
    assert "; qlike (minimize, in nats): " in reason


def test_losses_of_each_metric_are_needed_unless_the_terms_say_otherwise(
    store: MemoryStore,
) -> None:
    others = hits(kept=False)
    parent = research(store, terms=SEVERAL, others=others)
    record = retrain(store, parent, terms=SEVERAL, others=others)
    reason = sentence(store, record, "spread_examples")
    assert "hits: seed 1 has no per-example losses of 'hits'" in reason
    free = replace(TERMS, also=(replace(ALSO, examples=False),))
    parent = research(store, terms=free, others=others, config={"lr": 0.1})
    record = retrain(store, parent, terms=free, others=others, config={"lr": 0.1})
    verdict = by_gate(store, record)["spread_examples"]
    assert verdict.verdict == "PASS"
    assert "hits (maximize, in share): the plan says that it has no per-ex" in verdict.reason


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({}, "seed 1 has no metric 'hits'"),
        ({"hits": Other("minimize", "share", losses_of)}, "says 'hits' is to minimize"),
    ],
)
def test_a_parent_must_have_every_metric_as_the_terms_direct(
    store: MemoryStore, others: dict[str, Other], words: str
) -> None:
    parent = research(store, terms=SEVERAL, others=others)
    assert not parent.passed_metrics and any(words in reason for reason in parent.reasons)
    assert words in sentence(
        store, retrain(store, parent, terms=SEVERAL, others=others), "spread_mean"
    )


def test_a_retrain_must_have_every_metric_of_its_parent(store: MemoryStore) -> None:
    """With terms of its own, which the lineage refuses too, it cannot leave one out."""
    parent = research(store, terms=SEVERAL, others=hits())
    reason = sentence(store, retrain(store, parent), "spread_mean")
    assert "the retrain cannot be compared: seed 11 has no metric 'hits'" in reason


def test_the_number_of_seeds_counts_on_all_metrics_together(store: MemoryStore) -> None:
    def needed(terms: Promote) -> float:
        parent = research(store, terms=terms, others=hits())
        record = retrain(store, parent, terms=terms, others=hits())
        verdict = by_gate(store, record)["spread_mean"]
        assert verdict.verdict == "NOT_ENOUGH_SEEDS"
        return float(verdict.numbers["seeds_needed"])

    tight = replace(TERMS, margin=0.002)
    assert needed(replace(tight, also=(ALSO,))) > needed(tight)


OTHER = JudgedMetric("mae", "minimize", 1.0)


@pytest.mark.parametrize(
    ("also", "words"),
    [
        (
            (replace(ALSO, margin=0.5),),
            "had hits (maximize, margin 0.05) and has hits (maximize, m",
        ),
        (
            (replace(ALSO, examples=False),),
            "has hits (maximize, margin 0.05, without examples) now",
        ),
        (None, "promote.also had hits (maximize, margin 0.05) and lacks it now"),
        ((ALSO, OTHER), "promote.also has mae (minimize, margin 1) now and had no mae"),
    ],
)
def test_no_term_of_another_metric_changes_after_the_retrain(
    store: MemoryStore, also: tuple[JudgedMetric, ...] | None, words: str
) -> None:
    others = hits() | {"mae": Other("minimize", "points", losses_of)}
    parent = research(store, terms=SEVERAL, others=others)
    record = retrain(store, parent, terms=replace(TERMS, also=also), others=others)
    reason = sentence(store, record, "lineage")
    assert words in reason and "terms are fixed before the retrain" in reason
    assert sentence(store, record, "lineage").count("promote.") == 1


def test_another_order_of_the_metrics_is_a_change_too(store: MemoryStore) -> None:
    others = hits() | {"mae": Other("minimize", "points", losses_of)}
    parent = research(store, terms=replace(TERMS, also=(ALSO, OTHER)), others=others)
    record = retrain(store, parent, terms=replace(TERMS, also=(OTHER, ALSO)), others=others)
    assert "promote.also was hits (maximize" in sentence(store, record, "lineage")


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.tuples(st.floats(-0.1, 0.1), st.floats(0.001, 0.1)), max_size=3),
    st.sampled_from([0.0, 0.02, 0.06]),
)
@settings(max_examples=25, deadline=None)
def test_a_metric_more_never_turns_a_block_into_a_pass(
    seed: int, more: list[tuple[float, float]], worse: float
) -> None:
    store = MemoryStore()

    def passes(count: int) -> bool:
        also = tuple(
            JudgedMetric(f"m{n}", "minimize", margin) for n, (_, margin) in enumerate(more[:count])
        )
        terms = replace(TERMS, also=also or None)

        def others(shifted: bool) -> dict[str, Other]:
            return {
                f"m{n}": Other(
                    "minimize", "points",
                    lambda s, n=n, shift=shift * shifted: losses_of(seed % 9973 + 31 * n + s, shift),
                )
                for n, (shift, _) in enumerate(more[:count])
            }  # fmt: skip

        config = {"lr": count}
        parent = research(store, terms=terms, others=others(False), config=config)
        record = retrain(
            store, parent, terms=terms, others=others(True), config=config,
            losses=lambda s: losses_of(seed % 9973 + s, worse),
        )  # fmt: skip
        return deployable(v for v in check_record(store, record) if v.gate.startswith("spread"))

    answers = [passes(count) for count in range(len(more) + 1)]
    assert answers == sorted(answers, reverse=True)


def test_terms_with_an_empty_list_of_other_metrics_are_refused() -> None:
    body = json.loads(encode(TERMS)) | {"also": []}
    with pytest.raises(Corrupt, match="also is empty"):
        decode(Promote, body)
    assert decode(Promote, json.loads(encode(SEVERAL))) == SEVERAL
