"""Everything that a report of a plan is made of, gathered from the store; nothing is written.

What cannot be known yet, or cannot be read, is a note in words: a plan that is still running has a report
of this moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from assets import verdicts
from assets.chain import Chain, Incomplete
from assets.curves import backtest_series, equity_series
from assets.facts import point_words
from assets.launches import MOST_JOBS
from assets.standing import Standing, standing
from gates.slots import current
from gates.verdict import Verdict
from tenure.cli.workplace import Workplace, book_of
from tenure.dispatch.history import (
    LaunchRow,
    Running,
    launch_rows,
    read_history,
    read_observations,
)
from tenure.dispatch.lifetimes import LifetimeBook
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.registry import build_dispatcher
from tenure.dispatch.rows import Place
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.plan.file import Plan
from tenure.report.costs import CostRow, JobEnd, job_ends, of_jobs
from tenure.report.figures import Curve
from tenure.report.progress import Attempt, Progress, progress_of, read_attempts
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, LedgerEntry, Lifetime, ModelRecord, Observation
from tenure_protocol.store.api import Store, StoreSilent
from tenure_worker.claim import read_spec

MOST_POINTS = 120  # of a curve: the eye sees no more of them
T = TypeVar("T")


@dataclass
class PlanFacts:
    """One plan, as the store tells of it now."""

    name: str
    store: str  # its address
    at_s: float  # Unix time by our clock
    ends: Mapping[str, JobEnd]  # by job, in the order of the plan
    specs: dict[str, JobSpec] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # what a job waits for, or how it ended
    launches: dict[str, list[LaunchRow]] = field(default_factory=dict)
    entries: Sequence[LedgerEntry] = ()
    running: Sequence[Running] = ()
    costs: Sequence[CostRow] = ()
    progress: Progress | None = None
    observed: Mapping[Place, Sequence[Observation]] = field(default_factory=dict)
    lifetimes: Sequence[Lifetime] = ()
    standing: Standing | None = None
    verdicts: Sequence[Verdict] = ()
    points: Sequence[ModelRecord] = ()  # one for each point of the grid
    retrained: ModelRecord | None = None
    equity: Sequence[Curve] = ()
    live: str | None = None  # the record that is deployed under the plan's name
    notes: list[str] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        """Jobs that are not over."""
        return [job for job, end in self.ends.items() if not end.over]

    def line(self, job: str) -> str:
        """A job in a figure: its stage, its seed, what differs in its point, and a part of its id."""
        spec = self.specs.get(job)
        if spec is None:
            return job[:6]
        own = {key: value for key, value in spec.config.items() if key in self.varied}
        point = f", {point_words(own)}" if own else ""
        return f"{spec.stage}, seed {spec.seed}{point} ({job[:6]})"

    @cached_property
    def varied(self) -> frozenset[str]:
        """The keys of the configurations that are not the same for all jobs."""
        values: dict[str, set[str]] = {}
        for spec in self.specs.values():
            for key, value in spec.config.items():
                values.setdefault(key, set()).add(repr(value))
        return frozenset(key for key, found in values.items() if len(found) > 1)


def gather(place: Workplace, plan: str, file: Plan | None, clock: Clock) -> PlanFacts:
    """Read it all. Without its ``file`` nothing is known of gates, seeds and curves.

    Raises UsageError for a plan that was never enlisted, StoreOutOfReach.
    """
    try:
        dispatcher = build_dispatcher(place.settings, place.store, clock)
        tick = dispatcher.look()
        if keys.PLANS in tick.troubles:
            raise StoreOutOfReach(
                f"the store at {place.store.url} does not answer: {tick.troubles[keys.PLANS]}"
            )
        ends = {
            job: end
            for job, end in job_ends(place.store, dispatcher, clock).items()
            if end.plan == plan
        }
        facts = PlanFacts(plan, place.store.url, clock.wall_s(), ends)
        facts.reasons = {job: tick.reason(job) for job in ends}
        _read_costs(facts, place, dispatcher)
        _read_jobs(facts, place.store, dispatcher, clock)
        if file is None:
            facts.notes.append(
                f"gates, seeds and equity: no plan file of [plans] paths is named {plan!r}; name the file"
            )
        else:
            _read_chain(facts, place, file, clock)
    except StoreSilent as error:
        raise StoreOutOfReach(f"the store at {place.store.url} does not answer: {error}") from error
    return facts


def _read_costs(facts: PlanFacts, place: Workplace, dispatcher: Dispatcher) -> None:
    book = book_of(place)
    book.look()
    facts.notes += [f"{trouble}; what it cost is in no sum" for trouble in book.troubles.values()]
    facts.entries = [each for each in book.entries if each.job in facts.ends]
    facts.running = [
        each for each in dispatcher.spending.open_costs(book.entries) if each.job in facts.ends
    ]
    facts.costs = of_jobs(facts.ends, facts.ends, facts.entries, facts.running)


def _read_jobs(facts: PlanFacts, store: Store, dispatcher: Dispatcher, clock: Clock) -> None:
    """Specs, launches and attempts, of the first MOST_JOBS jobs."""
    jobs = list(facts.ends)
    if len(jobs) > MOST_JOBS:
        facts.notes.append(
            f"attempts of {len(jobs) - MOST_JOBS} more jobs: the first {MOST_JOBS} are shown, and the costs "
            "are those of all"
        )
    facts.observed = read_observations(store, dispatcher.observatory.rows())
    book = LifetimeBook(store, clock, "tenure report")
    book.read()
    facts.notes += list(book.troubles.values())
    facts.lifetimes = [row for _, row in book.rows() if row.job in facts.ends]
    attempts: dict[str, Sequence[Attempt]] = {}
    for job in jobs[:MOST_JOBS]:
        try:
            facts.specs[job] = read_spec(store, job)
        except Corrupt as error:
            facts.notes.append(str(error))
        history = read_history(store, job)
        w = dispatcher.world.jobs[job].witness
        facts.launches[job] = launch_rows(history, facts.entries, facts.observed, w)
        attempts[job], wrong = read_attempts(store, job)
        facts.notes += [*history.troubles, *wrong]
    done = {job for job, end in facts.ends.items() if end.finished}
    facts.progress = progress_of(attempts, done, facts.launches, facts.lifetimes)


def _read_chain(facts: PlanFacts, place: Workplace, file: Plan, clock: Clock) -> None:
    """Where the plan stands, what the gates say, the seeds and the curves, as far as there are any."""
    try:
        chain = Chain(place.store, file, place.settings, clock, keep_records=False)
    except UsageError as error:
        facts.notes.append(f"gates, seeds and equity: {error}")
        return
    facts.standing = _known(facts, "stages", lambda: standing(chain))
    facts.verdicts = _known(facts, "gates", lambda: verdicts.so_far(chain)) or ()
    facts.points = _known(facts, "seeds of the grid", chain.evaluated) or ()
    if facts.standing and "seed_spread" in facts.standing.finished:
        facts.retrained = _known(
            facts, "seeds of the retrain", lambda: chain.retrained(with_backtests=False)
        )
    curves: list[Curve] = []
    for stage in ("backtest", "pinned_backtest"):
        if facts.standing and stage in facts.standing.finished:
            curves += _known(facts, f"equity of {stage}", lambda s=stage: _equity(chain, s)) or ()  # type: ignore[misc]
    facts.equity = curves
    live = _known(facts, "deployment", lambda: current(place.store, file.name))
    facts.live = live.record if live else None


def _known(facts: PlanFacts, what: str, ask: Callable[[], T]) -> T | None:
    """What is asked, or ``None`` and a note why it is not known."""
    try:
        return ask()
    except (Incomplete, Blocked, Corrupt) as error:
        facts.notes.append(f"{what}: {error}")
        return None


def _equity(chain: Chain, stage: str) -> list[Curve]:
    found: list[Curve] = []
    for done in chain.done(stage):
        for name, values in equity_series(backtest_series(chain.store, done)).items():
            own = name == "equity"
            if not own and any(curve.group == name for curve in found):
                continue  # the same for every seed
            group = f"{stage}: {point_words(done.spec.config)}" if own else name
            label = f"{group}, seed {done.spec.seed}" if own else name
            days = _thinned(len(values))
            found.append(
                Curve(label, group, tuple(map(float, days)), tuple(values[day] for day in days))
            )
    return found


def _thinned(count: int) -> list[int]:
    """At most so many places of a series, its ends among them.

    >>> _thinned(5), len(_thinned(1000)), _thinned(1000)[-1]
    ([0, 1, 2, 3, 4], 120, 999)
    """
    if count <= MOST_POINTS:
        return list(range(count))
    return sorted({round(n * (count - 1) / (MOST_POINTS - 1)) for n in range(MOST_POINTS)})
