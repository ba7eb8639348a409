"""What an experiment's pages tell of its launches, and how the sensor keeps to its time."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assets import launches as pages
from assets import materialize
from assets.chain import Chain, Done
from assets.facts import Facts, Picture, Table, member_table
from assets.launches import cost_rows, experiment_costs, launches, quality_rows
from assets.materialize import REPORT_EVERY_S, materialized
from assets.seed_spread import metric_table
from assets.stage import Context
from assets.timeline import MOST_LINES, Bar, bar, timeline_picture
from gates.evidence import Evidence
from gates.spread import spread
from pipelines.plays import PAUSE_S, step
from pipelines.sensors import MOST_TROUBLES, TICK_S, dispatch, tick_seconds, together
from tenure.dispatch.history import LaunchRow, Running
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.errors import StoreOutOfReach
from tenure.plan.file import load_plan
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import (
    JudgedMetric,
    LedgerEntry,
    Manifest,
    Observation,
    Observations,
    load,
)
from tenure_protocol.store.api import Found, Store
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.record_builders import METRIC, TERMS, Other, losses_of, research, retrain
from tests.unit.test_dispatcher import Bench, ListingRunner
from tests.unit.test_observations import FLOPS, T4, Pool, Worker

PNG = b"\x89PNG"


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed, although another test may have imported it."""
    for name in [*sys.modules, "matplotlib"]:
        if name.partition(".")[0] == "matplotlib":
            monkeypatch.setitem(sys.modules, name, None)


# --------------------------------------------------------------------------- a stage that ended


@dataclass
class Stage:
    """Three trainings of a pool, brought to their ends by dispatchers; the second lost a machine."""

    pool: Pool
    done: list[Done] = field(default_factory=list)

    @classmethod
    def played(cls, clock: FakeClock, drained: bool = True, store: Store | None = None) -> Stage:
        pool = Pool(clock, store=store)
        workers = pool.started(delay_s=50.0)
        clock.sleep(600.0)
        for worker in workers:
            worker.train(300, 2.0, slept=True)
        pool.tick()
        workers[1].release(10)
        pool.tick()  # its second launch
        pool.tick(40.0)
        workers[1] = Worker(pool, pool.specs[1], 2)
        pool.tick()
        for worker in workers:
            worker.train(100, 2.0)
            worker.finish()
        if drained:
            assert pool.dispatcher.drain()
        return cls(pool, [done(pool.store, pool, n) for n in range(3)])

    def context(self, dispatcher: Dispatcher | None = None, store: Store | None = None) -> Context:
        """As a stage has it, but for its chain, which no page of launches asks."""
        chain = cast(Chain, None)
        return Context(
            store or self.pool.store, chain, dispatcher or self.pool.dispatcher, self.pool.clock
        )


def done(store: Store, pool: Pool, number: int) -> Done:
    """A finished job as the chain reads it."""
    spec = pool.specs[number]
    w = read_witness(store, keys.witness_of(spec)).witness
    assert w is not None and w.pointer is not None and w.phase == "finished"
    key = keys.manifest(spec.id, w.pointer)
    found = store.read(key)
    assert isinstance(found, Found)
    return Done(spec, w, load(Manifest, found.body, key))


def rows(facts: Facts, name: str) -> list[dict[str, object]]:
    table = facts[name]
    assert isinstance(table, Table)
    return [dict(row) for row in table.rows]


def test_a_page_tells_what_every_launch_did_and_cost(clock: FakeClock) -> None:
    stage = Stage.played(clock)
    facts = launches(stage.context(), stage.done)
    history = rows(facts, "launch_history")
    second = stage.pool.specs[1].id
    assert [
        (row["launch"], row["rung"], row["end"]) for row in history if row["job"] == second
    ] == [
        (1, "spot", "released:10"),
        (2, "spot", "finished"),
    ]
    assert len(history) == 4 and {row["bill"] for row in history} == {"closed"}
    assert all("slots of rung spot left" in str(row["why"]) for row in history)
    assert all(row["start_s"] is not None and row["amount"] for row in history)
    (costs,) = rows(facts, "costs")
    assert (costs["rung"], costs["currency"], costs["machines"]) == ("spot", "usd", 4)
    assert costs["amount"] == pytest.approx(sum(float(str(row["amount"])) for row in history))
    assert (costs["not_settled"], costs["amount_so_far"]) == (0, 0.0)
    per_job = rows(facts, "cost_of_a_job")
    assert [row["by"] for row in per_job] == ["plan", "team", "rung"]
    lost = next(float(str(row["amount"])) for row in history if row["end"] == "released:10")
    for row in per_job:
        assert (row["jobs"], row["finished"], row["machines"]) == (3, 3, 4)
        assert row["per_finished"] == pytest.approx(float(str(costs["amount"])) / 3)
        assert row["unfinished"] == pytest.approx(lost)
    (found,) = rows(facts, "quality")
    assert (found["rung"], found["card"], found["work"]) == ("spot", T4, "FLOPs of fp16")
    assert (found["launches"], found["seen"], found["lost"]) == (4, 4, 0)
    assert found["speed_per_s"] == pytest.approx(FLOPS / 2.0)
    assert found["speed_of_peak"] == pytest.approx(FLOPS / 2.0 / 65e12, rel=0.01)
    assert found["quality"] == pytest.approx(
        float(str(found["speed_of_peak"])) * float(str(found["useful_share"]))
    )
    assert found["usual_speed_per_s"] is None and found["usual_seen"] == 0
    assert facts["launch_notes"] is None
    timeline = facts["timeline"]
    assert isinstance(timeline, Picture) and timeline.png.startswith(PNG)
    assert timeline.words == "4 launches of 3 jobs, 0 of them lost"
    assert len(timeline.png) < 60_000


def test_a_page_is_made_of_the_store_alone(clock: FakeClock) -> None:
    """Another process, a week later, whose dispatcher has seen nothing: the same page."""
    stage = Stage.played(clock)
    before = launches(stage.context(), stage.done)
    stranger = stage.pool.another()
    assert not stranger.observatory.rows()
    clock.sleep(600_000.0 / 4)
    after = launches(stage.context(stranger), stage.done)
    for name in ("quality", "costs", "launch_history"):
        assert rows(after, name) == rows(before, name)
    assert isinstance(after["timeline"], Picture)


def test_what_no_dispatcher_has_written_is_known_by_the_manifests(clock: FakeClock) -> None:
    """The stage has just ended: no bill is closed, and the observations are as old as the loss."""
    stage = Stage.played(clock, drained=False)
    for entry in stage.pool.store.list(keys.OBSERVATIONS):
        stage.pool.store.delete(entry.key)
    facts = launches(stage.context(stage.pool.another()), stage.done)
    ends = [row["end"] for row in rows(facts, "launch_history")]
    assert sorted(map(str, ends)) == ["finished", "finished", "finished", "not observed"]
    (found,) = rows(facts, "quality")
    assert (found["seen"], found["card"]) == (3, T4)
    assert found["speed_per_s"] == pytest.approx(FLOPS / 2.0)
    assert 0 < float(str(found["useful_share"])) <= 1
    (costs,) = rows(facts, "costs")
    assert costs["not_settled"] and float(str(costs["amount_so_far"])) > 0


def test_a_launch_that_ended_between_two_looks_has_its_work(clock: FakeClock) -> None:
    """Its dispatcher saw it expected, and then finished: it knows the end and nothing else."""
    pool = Pool(clock, 1)
    pool.tick()
    worker = Worker(pool, pool.specs[0])
    worker.train(100, 2.0)
    worker.finish()
    assert pool.dispatcher.drain()
    (row,) = rows(launches(Stage(pool).context(), [done(pool.store, pool, 0)]), "quality")
    assert (row["launches"], row["seen"]) == (1, 1)
    assert row["speed_per_s"] == pytest.approx(FLOPS / 2.0)


def test_a_stage_is_compared_with_what_others_did(clock: FakeClock) -> None:
    stage = Stage.played(clock)
    others = tuple(
        Observation(f"other-{n}", 1, "spot", "finished", "FLOPs of fp16", 50.0, 300.0, 200.0,
                    200.0 * FLOPS)
        for n in range(3)
    )  # fmt: skip
    (entry,) = stage.pool.store.list(keys.OBSERVATIONS)
    found = stage.pool.store.read(entry.key)
    assert isinstance(found, Found)
    stored = load(Observations, found.body, entry.key)
    stored = replace(stored, rows=(*stored.rows, *others))
    stage.pool.store.replace(entry.key, encode(stored), found.etag)
    (row,) = rows(launches(stage.context(), stage.done), "quality")
    assert (row["usual_seen"], row["slow_below"]) == (3, 0.7)
    assert row["speed_of_usual"] == pytest.approx(0.5)
    (first, *_) = rows(launches(stage.context(), stage.done), "launch_history")
    assert 0.5 <= float(str(first["speed_of_usual"])) <= 1.0


def test_many_jobs_are_said_to_be_cut(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage.played(clock)
    monkeypatch.setattr(pages, "MOST_JOBS", 1)
    facts = launches(stage.context(), stage.done)
    assert {row["job"] for row in rows(facts, "launch_history")} == {stage.done[0].spec.id}
    assert "2 more jobs are not in the history" in str(facts["launch_notes"])
    (costs,) = rows(facts, "costs")
    assert costs["machines"] == 4, "the ledger has them all"


def test_a_corrupt_record_costs_its_row_and_is_named(clock: FakeClock) -> None:
    stage = Stage.played(clock)
    key = keys.intent(stage.done[0].spec.id, 1)
    found = stage.pool.store.read(key)
    assert isinstance(found, Found)
    stage.pool.store.replace(key, b"no JSON", found.etag)
    facts = launches(stage.context(), stage.done)
    assert key in str(facts["launch_notes"])
    assert len(rows(facts, "launch_history")) == 3


@pytest.mark.parametrize("prefix", [keys.LEDGER, keys.OBSERVATIONS, "jobs/"])
def test_a_silent_store_is_out_of_reach(clock: FakeClock, prefix: str) -> None:
    store = FaultyStore(clock)
    stage = Stage.played(clock, store=store)
    store.silent = lambda key: key.startswith(prefix)
    with pytest.raises(StoreOutOfReach):
        launches(stage.context(), stage.done)


def test_facts_of_launches_become_metadata(clock: FakeClock) -> None:
    """As Dagster keeps them: every column has one type, and what is not known has no entry."""
    stage = Stage.played(clock)
    facts = {"summary": "done", **launches(stage.context(), stage.done)}
    shown = materialized(facts, ["job"]).metadata
    assert shown is not None and set(shown) == {
        "summary", "quality", "costs", "cost_of_a_job", "launch_history", "timeline",
    }  # fmt: skip
    table = shown["quality"]
    assert isinstance(table, dg.TableMetadataValue)
    assert {c.name: c.type for c in table.schema.columns}["speed_per_s"] == "float"
    assert isinstance(shown["timeline"], dg.MarkdownMetadataValue)


# ------------------------------------------------------------------------------------ the sums


def entry(job: str, launch: int, rung: str, currency: str, amount: float) -> LedgerEntry:
    return LedgerEntry(
        job, launch, "e", "here", rung, f"m-{job}-{launch}", "cpu", "spot", currency, amount, 3600.0,
        1.0, amount, "closed", 0.0,
    )  # fmt: skip


def running(job: str, launch: int, rung: str, currency: str, amount: float) -> Running:
    return Running(job, launch, f"m-{job}-{launch}", rung, "here", currency, 1.0, amount)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["usd", "h"]), st.floats(0, 1e6))))
def test_sums_are_never_taken_across_currencies(
    launched: list[tuple[str, str, float]],
) -> None:
    settled = [entry("j", n, *each) for n, each in enumerate(launched) if n % 2]
    still = [running("j", n, *each) for n, each in enumerate(launched) if n % 2 == 0]
    found = cost_rows(settled, still)
    keys_of = [(row["rung"], row["currency"]) for row in found]
    assert keys_of == sorted(set(keys_of)) and set(keys_of) == {each[:2] for each in launched}
    for row in found:
        mine = [
            (n, e[2]) for n, e in enumerate(launched) if e[:2] == (row["rung"], row["currency"])
        ]
        assert row["amount"] == pytest.approx(sum(amount for n, amount in mine if n % 2))
        assert row["amount_so_far"] == pytest.approx(sum(a for n, a in mine if n % 2 == 0))
        assert row["machines"] == sum(n % 2 for n, _ in mine)
        assert row["not_settled"] == sum(n % 2 == 0 for n, _ in mine)


def test_work_of_two_kinds_is_never_compared() -> None:
    one = Observation("a", 1, "spot", "finished", "FLOPs of fp16", 1.0, 20.0, 10.0, 100.0)
    two = replace(one, job="b", work="FLOPs of fp32", done=1000.0)
    other = replace(one, job="c", work="FLOPs of fp32", done=500.0)
    observed = {("r", "cpu"): [one, two, other], ("r", "another"): [replace(other, done=9.0)]}
    first, second = quality_rows(observed, {"a", "b"})
    assert (first["work"], first["usual_seen"]) == ("FLOPs of fp16", 0)
    assert (second["work"], second["speed_of_usual"]) == ("FLOPs of fp32", 2.0)


def test_an_experiment_has_one_bill(tmp_path: Path) -> None:
    """All jobs that any version of its plan names, whichever stage they are of."""
    store = FaultyStore(SYSTEM)
    bench = Bench(2, store)
    for n, spec in enumerate(bench.specs):
        made = entry(spec.id, 1, "local", "usd", 1.0 + n)
        bench.store.create(keys.ledger("d", spec.id, 1, "closed"), encode(made))
    stranger = entry("a" * 26, 1, "local", "usd", 100.0)
    bench.store.create(keys.ledger("d", "a" * 26, 1, "closed"), encode(stranger))
    (plan,) = {row.key.split("/")[1] for row in bench.store.list(keys.PLANS)}
    context = Context(bench.store, chain_of(tmp_path, bench.store, plan), bench.dispatcher, SYSTEM)
    (row,) = rows(experiment_costs(context), "experiment_costs")
    assert (row["amount"], row["machines"]) == (3.0, 2)
    bench.dispatcher.look()
    (whole, *_) = rows(experiment_costs(context), "experiment_cost_of_a_job")
    assert (whole["name"], whole["amount"], whole["per_finished"]) == (plan, 3.0, None)
    store.silent = lambda key: True
    said = experiment_costs(context)["experiment_costs"]
    assert isinstance(said, str) and said.startswith("not known: ")


def chain_of(folder: Path, store: Store, plan: str) -> Chain:
    """The chain of a plan of that name."""
    (folder / "tenure.toml").write_text('[plans]\npaths = ["*.yaml"]\n')
    (folder / "plan.yaml").write_text(
        f"name: {plan}\nexperiment: tests.e2e.quick.experiment:Quick\ngrid: {{level: [0.5]}}\n"
        "seeds: [1, 2]\nretrain_seeds: [11, 12]\nmilestone_every: 5\nrungs: [local]\n"
        "promote: {metric: loss, direction: minimize, margin: 0.2, min_score: 0.1}\n"
    )
    settings = load_settings(folder / "tenure.toml", environ={})
    return Chain(store, load_plan(folder / "plan.yaml", settings), settings, SYSTEM)


# -------------------------------------------------------------------------------- the timeline


def launch_row(**known: object) -> LaunchRow:
    made = LaunchRow("j", 1, "spot", "r", "d", 1000.0, "why", None, "open", None, None)
    return replace(made, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("known", "claim_s", "end_s", "lost"),
    [
        ({}, None, 5000.0, False),  # nobody has seen its end
        ({"end": "running", "start_s": 50.0, "seen_s": 300.0}, 1050.0, 5000.0, False),
        ({"end": "lost", "start_s": 50.0, "seen_s": 300.0}, 1050.0, 1300.0, True),
        ({"end": "unclaimed", "bill": "closed", "bill_at_s": 1700.0}, None, 1700.0, True),
        ({"end": "finished", "bill": "pending", "bill_at_s": 1700.0}, None, 5000.0, False),
        ({"end": "finished", "start_s": 9e9, "bill": "closed", "bill_at_s": 1700.0},
         1700.0, 1700.0, False),
        ({"bill": "bounded", "bill_at_s": 9e9}, None, 5000.0, False),  # a clock that jumped
        ({"bill": "closed", "bill_at_s": 5.0}, None, 1000.0, False),
    ],
)  # fmt: skip
def test_where_a_launch_stands_in_the_picture(
    known: dict[str, object], claim_s: float | None, end_s: float, lost: bool
) -> None:
    found = bar("a", launch_row(**known), 5000.0)
    assert found == Bar("a", "spot", 1000.0, claim_s, end_s, lost)


def test_a_timeline_without_matplotlib_is_a_sentence(without_matplotlib: None) -> None:
    found = timeline_picture({"a": [bar("a", launch_row(), 5000.0)]})
    assert isinstance(found, str) and "\n" not in found
    assert "matplotlib cannot be imported" in found and "1 launches of 1 jobs" in found


def test_a_timeline_of_nothing_and_of_too_many() -> None:
    assert timeline_picture({}) is None and timeline_picture({"a": []}) is None
    many = {str(n): [bar(str(n), launch_row(end="lost"), 1000.0)] for n in range(MOST_LINES + 6)}
    found = timeline_picture(many)
    assert isinstance(found, Picture) and found.png.startswith(PNG)
    assert f"{MOST_LINES} launches of {MOST_LINES} jobs, {MOST_LINES} of them lost" in found.words
    assert "6 more jobs are not drawn" in found.words and len(found.png) < 75_000


# --------------------------------------------------------------------------------- the sensor


class Counted(Dispatcher):
    """A dispatcher whose rounds take a time of their own, and are noted."""

    takes_s = 0.0

    def tick(self) -> Tick:
        self.began_s.append(self._clock.monotonic_s())
        self._clock.sleep(self.takes_s)
        return super().tick()

    @property
    def began_s(self) -> list[float]:
        return cast(list[float], self.__dict__.setdefault("_began_s", []))


def open_forever(clock: FakeClock, takes_s: float) -> Counted:
    """A dispatcher over a job that is launched and never claimed."""
    bench = Bench(1, MemoryStore(clock), clock)
    rung = Rung("local", "here", ListingRunner(), ListingRunner.capacity({}))
    dispatcher = Counted(bench.store, [rung], clock)
    dispatcher.takes_s = takes_s
    return dispatcher


@pytest.mark.parametrize("takes_s", [0.0, 0.3, 7.0, 19.9])
def test_no_round_of_a_tick_begins_after_its_time(clock: FakeClock, takes_s: float) -> None:
    dispatcher, began_s = open_forever(clock, takes_s), clock.monotonic_s()
    step(dispatcher, [], TICK_S, clock)
    rounds = dispatcher.began_s
    assert rounds[-1] - began_s <= TICK_S
    assert clock.monotonic_s() - began_s <= TICK_S + takes_s
    assert len(rounds) >= TICK_S / (takes_s + PAUSE_S) - 1, "the time is used"


def test_a_tick_makes_one_round_however_late_it_is(clock: FakeClock) -> None:
    dispatcher = open_forever(clock, 60.0)
    step(dispatcher, [], TICK_S, clock)
    step(dispatcher, [], 0.0, clock)
    assert len(dispatcher.began_s) == 2


def test_a_tick_with_nothing_to_do_ends_at_once(clock: FakeClock) -> None:
    dispatcher = Counted(MemoryStore(clock), [], clock)
    step(dispatcher, [], TICK_S, clock)
    assert len(dispatcher.began_s) == 1


def test_a_tick_is_twenty_seconds_and_the_next_is_soon() -> None:
    assert tick_seconds({}) == 20.0
    assert dispatch.minimum_interval_seconds == 5


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=50))
def test_the_troubles_of_many_keys_are_told_together(troubles: dict[str, str]) -> None:
    said = together(troubles)
    assert len(said) <= MOST_TROUBLES + 1
    assert said[:MOST_TROUBLES] == [f"{k}: {v}" for k, v in troubles.items()][:MOST_TROUBLES]
    if len(troubles) > MOST_TROUBLES:
        assert said[-1].startswith(f"{len(troubles) - MOST_TROUBLES} more keys have troubles")


class Log:
    """What a run's log is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, words: str) -> None:
        self.lines.append(words)


@dataclass
class Executing:
    """Of Dagster's context, what a report uses."""

    log: Log = field(default_factory=Log)


def ended(dispatcher: Dispatcher, jobs: Sequence[str]) -> None:
    for job in jobs:
        memory = dispatcher.world.jobs[job]
        w = memory.witness
        assert w is not None
        memory.witness = replace(w, phase="finished", exit_code=0, launch=w.launch)


def test_a_run_tells_of_many_jobs_in_one_line_and_not_too_often(clock: FakeClock) -> None:
    """Of 97 jobs one ends in each round: there is a line in ten seconds, and one at the end."""

    bench = Bench(97, MemoryStore(clock), clock)
    capacity = replace(ListingRunner.capacity({}), launches=97)
    rung = Rung("local", "here", ListingRunner(), capacity, price=Price("usd", 0.0))
    dispatcher = Dispatcher(bench.store, [rung], clock)
    tick = dispatcher.tick()
    jobs = [spec.id for spec in bench.specs]
    executing = Executing()
    context = Context(bench.store, cast(Chain, None), dispatcher, clock)
    report = materialize._reporting(context, cast(dg.AssetExecutionContext, executing)).report
    assert report is not None
    began_s = clock.monotonic_s()
    for job in jobs:
        report("training", jobs, tick)
        clock.sleep(0.5)
        ended(dispatcher, [job])
    report("training", jobs, tick)
    lines = executing.log.lines
    passed_s = clock.monotonic_s() - began_s
    assert len(lines) <= passed_s / REPORT_EVERY_S + 2
    assert lines[0].startswith("training: 0 of 97 jobs finished; ")
    assert lines[-1] == "training: 97 of 97 jobs finished"
    report("training", jobs, tick)
    assert executing.log.lines[-1] == lines[-1] and len(executing.log.lines) == len(lines)


def test_the_numbers_of_every_judged_metric_are_on_the_page() -> None:
    store = MemoryStore()
    terms = replace(TERMS, also=(JudgedMetric("hits", "maximize", 0.07, examples=False),))
    other = {"hits": Other("maximize", "share", lambda seed: losses_of(seed + 500), kept=False)}
    parent = research(store, terms=terms, others=other)
    record = retrain(store, parent, terms=terms, others=other)
    verdicts = spread(Evidence(store, record))
    first, second = metric_table(parent.promote.judged, verdicts).rows
    assert (first["metric"], second["metric"]) == (METRIC, "hits")
    assert (second["direction"], second["unit"], second["margin"]) == ("maximize", "share", 0.07)
    numbers = {verdict.gate: verdict.numbers for verdict in verdicts}
    assert second["worse_by"] == numbers["spread_mean"]["hits.worse_by"] != first["worse_by"]
    assert second["worst_seed_bound"] == numbers["spread_worst_seed"]["hits.bound"]
    assert second["variance_p"] == numbers["spread_variance"]["hits.p"]
    assert first["examples_upper_bound"] == numbers["spread_examples"]["upper_bound"]
    assert second["examples_upper_bound"] is None  # the terms say that there are none
    values = [member.metrics["hits"].value for member in record.members]
    assert [row["hits"] for row in member_table(record).rows] == values
