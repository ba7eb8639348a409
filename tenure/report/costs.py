"""What a finished job really costs: all that was paid, for every attempt, over the jobs that finished.

A job that was lost four times is paid for five times, and one that never finished is paid for as well:
both stand in the sum above the line, and only finished jobs below it. Sums never cross a currency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tenure.dispatch.history import Running
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.world import JobMemory
from tenure_protocol.clock import Clock
from tenure_protocol.lease import keys
from tenure_protocol.records import LedgerEntry
from tenure_protocol.store.api import Store

By = Literal["plan", "team", "rung"]
NO_TEAM = "no team"
NO_PLAN = "no plan"


@dataclass(frozen=True)
class JobEnd:
    """One job, and how it ended as far as it did."""

    job: str
    plan: str
    team: str
    experiment: str
    launched: int  # number of its newest launch
    over: bool
    finished: bool  # with a result
    deadline: bool  # whether its plan has one
    in_time: bool  # it finished by it


@dataclass(frozen=True)
class CostRow:
    """What the launches of one plan, team or rung cost, in one currency."""

    by: By
    name: str
    currency: str
    jobs: int  # of the plan or the team; of a rung, those that were launched there
    finished: int  # of them; of a rung, those whose last launch it had
    in_time: int | None  # None: none of them has a deadline
    machines: int
    paid_h: float  # hours of machines
    amount: float  # settled
    amount_so_far: float  # of launches that are not settled yet
    unfinished: float  # of ``amount``: for launches that did not finish their job
    counted: (
        float  # of ``amount``: by our clocks, since the platform does not tell: at most so much
    )
    per_finished: float | None  # None: none has finished
    per_in_time: float | None


def job_ends(store: Store, dispatcher: Dispatcher, clock: Clock) -> dict[str, JobEnd]:
    """Every job of the dispatcher's last look. A LIST for each experiment. Raises StoreSilent.

    When a job ended is told by the age of its last witness, and when it was enlisted by that of its plan's
    record: both are the store's own times.
    """
    memories = dispatcher.world.jobs.values()
    ages_s: dict[str, float] = {}
    for experiment in sorted({memory.experiment for memory in memories}):
        prefix = keys.experiment_witnesses(experiment)
        for row in store.list(prefix):
            ages_s[row.key.removeprefix(prefix).removesuffix(".json")] = row.age_s
    now_s = clock.monotonic_s()
    return {memory.job: _end(memory, ages_s.get(memory.job), now_s) for memory in memories}


def _end(memory: JobMemory, age_s: float | None, now_s: float) -> JobEnd:
    w, due_s = memory.witness, memory.deadline_s
    finished = w is not None and w.phase == "finished" and w.exit_code == 0
    in_time = finished and due_s is not None and age_s is not None and now_s - age_s <= due_s
    return JobEnd(
        memory.job,
        memory.plan or NO_PLAN,
        memory.team or NO_TEAM,
        memory.experiment,
        w.launched if w else 0,
        memory.final,
        finished,
        due_s is not None,
        in_time,
    )


def cost_table(
    ends: Mapping[str, JobEnd], entries: Sequence[LedgerEntry], running: Sequence[Running]
) -> list[CostRow]:
    """A row for every plan, team and rung with a cost, by currency; ``entries`` have each launch once."""
    plan_of = {job: end.plan for job, end in ends.items()}
    team_of = {job: end.team for job, end in ends.items()}
    rows = _rows("plan", ends, entries, running, lambda job, _: plan_of.get(job, NO_PLAN))
    rows += _rows("team", ends, entries, running, lambda job, _: team_of.get(job, NO_TEAM))
    return rows + _rows("rung", ends, entries, running, lambda _, rung: rung)


def _rows(
    by: By,
    ends: Mapping[str, JobEnd],
    entries: Sequence[LedgerEntry],
    running: Sequence[Running],
    name_of: Callable[[str, str], str],
) -> list[CostRow]:
    """The rows of one kind; ``name_of`` tells of a job and a rung to which group a launch belongs."""
    members = _members(by, ends, entries, running, name_of)
    settled: dict[tuple[str, str], list[LedgerEntry]] = {}
    for entry in entries:
        settled.setdefault((name_of(entry.job, entry.rung), entry.currency), []).append(entry)
    so_far: dict[tuple[str, str], list[Running]] = {}
    for each in running:
        so_far.setdefault((name_of(each.job, each.rung), each.currency), []).append(each)
    return [
        _row(by, key, members[key[0]], settled.get(key, ()), so_far.get(key, ()), ends)
        for key in sorted(settled.keys() | so_far.keys())
    ]


@dataclass(frozen=True)
class _Members:
    """The jobs of a group, and those of them that it finished."""

    jobs: frozenset[str]
    ended_here: frozenset[str]


def _members(
    by: By,
    ends: Mapping[str, JobEnd],
    entries: Sequence[LedgerEntry],
    running: Sequence[Running],
    name_of: Callable[[str, str], str],
) -> Mapping[str, _Members]:
    """Of a rung, the jobs that were launched there, and those whose last launch was."""
    launches = [(each.job, each.launch, each.rung) for each in entries]
    launches += [(each.job, each.launch, each.rung) for each in running]
    jobs: dict[str, set[str]] = {}
    last: dict[str, set[str]] = {}
    for job, launch, rung in launches:
        name, end = name_of(job, rung), ends.get(job)
        jobs.setdefault(name, set()).add(job)
        here = last.setdefault(name, set())
        if end is not None and (by != "rung" or launch == end.launched):
            here.add(job)
    if by != "rung":
        for job in ends:
            name = name_of(job, "")
            if name in jobs:
                jobs[name].add(job)
                last[name].add(job)
    return {name: _Members(frozenset(found), frozenset(last[name])) for name, found in jobs.items()}


def _row(
    by: By,
    key: tuple[str, str],
    members: _Members,
    settled: Sequence[LedgerEntry],
    so_far: Sequence[Running],
    ends: Mapping[str, JobEnd],
) -> CostRow:
    name, currency = key
    here = [ends[job] for job in members.ended_here]
    finished = sum(end.finished for end in here)
    timed = any(end.deadline for end in here)
    in_time = sum(end.in_time for end in here) if timed else None
    amount = sum(entry.amount for entry in settled)
    running = sum(each.amount for each in so_far)
    whole = amount + running
    return CostRow(
        by,
        name,
        currency,
        len(members.jobs),
        finished,
        in_time,
        len({entry.name for entry in settled} | {each.name for each in so_far}),
        sum(entry.paid_s * entry.share for entry in settled) / 3600.0
        + sum(each.machine_h for each in so_far),
        amount,
        running,
        sum(entry.amount for entry in settled if not _finished_by(entry, ends)),
        sum(entry.amount for entry in settled if not entry.told),
        whole / finished if finished else None,
        whole / in_time if in_time else None,
    )


def _finished_by(entry: LedgerEntry, ends: Mapping[str, JobEnd]) -> bool:
    end = ends.get(entry.job)
    return end is not None and end.finished and end.launched == entry.launch


def of_jobs(
    jobs: Iterable[str],
    ends: Mapping[str, JobEnd],
    entries: Iterable[LedgerEntry],
    running: Iterable[Running],
) -> list[CostRow]:
    """The table of these jobs alone."""
    wanted = set(jobs)
    return cost_table(
        {job: end for job, end in ends.items() if job in wanted},
        [entry for entry in entries if entry.job in wanted],
        [each for each in running if each.job in wanted],
    )
