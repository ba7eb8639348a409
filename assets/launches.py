"""What the launches of a stage did and cost: quality, costs, history and timeline, all from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from assets.chain import Done
from assets.facts import Cell, Facts, Table, point_words
from assets.stage import Context
from assets.timeline import bar, timeline_picture
from tenure.cli.workplace import jobs_of_plan
from tenure.dispatch import ledger, quality
from tenure.dispatch.history import (
    LaunchRow,
    Running,
    launch_rows,
    read_history,
    read_observations,
    running_costs,
)
from tenure.dispatch.rows import FLOPS_OF, RUNNING, Place, believable, shown, work_of
from tenure.errors import StoreOutOfReach, UsageError
from tenure.report.costs import job_ends, of_jobs
from tenure_protocol import peaks
from tenure_protocol.records import LedgerEntry, Observation
from tenure_protocol.store.api import StoreSilent

#: Jobs whose launches are read one by one: each costs two listings and two reads a launch.
MOST_JOBS = 200


@dataclass(frozen=True)
class Launches:
    """What the store has of a stage's launches."""

    rows: Mapping[str, Sequence[LaunchRow]]  # by job, of the first MOST_JOBS
    entries: Sequence[LedgerEntry]  # of all
    running: Sequence[Running]  # not settled yet, of the first MOST_JOBS
    observed: Mapping[Place, Sequence[Observation]]  # of everybody
    troubles: Sequence[str]


def read_launches(context: Context, done: Sequence[Done]) -> Launches:
    """Read them. Raises StoreOutOfReach."""
    dispatcher, store, now_s = context.dispatcher, context.store, context.clock.wall_s()
    jobs = [one.spec.id for one in done]
    try:
        entries, troubles = ledger.read_ledger(store, jobs)
        observed = read_observations(store, dispatcher.observatory.rows())
        rows: dict[str, list[LaunchRow]] = {}
        running: list[Running] = []
        for one in done[:MOST_JOBS]:
            history = read_history(store, one.spec.id)
            troubles += history.troubles
            told = launch_rows(history, entries, observed, one.witness)
            if told and (last := told[-1]).launch == one.witness.launched:
                _complete(observed, one, last, now_s)
                told = launch_rows(history, entries, observed, one.witness)
            rows[one.spec.id] = told
            running += running_costs(history, entries, dispatcher.rungs, now_s)
    except StoreSilent as error:
        raise StoreOutOfReach(str(error)) from error
    return Launches(rows, entries, running, observed, troubles)


def _complete(
    observed: dict[Place, list[Observation]], done: Done, last: LaunchRow, now_s: float
) -> None:
    """Put the last launch of a finished job among the observations, by its last manifest.

    The dispatcher that saw it end may not have written it yet, or may never; one that looked away
    while it began and ended has seen no work.
    """
    m, spec = believable(done.manifest), done.spec
    busy_s, work_done = shown(spec, m)
    launch = spec.id, last.launch
    for every in observed.values():
        for old in [row for row in every if (row.job, row.launch) == launch]:
            if old.end != RUNNING and (old.done > 0 or not work_done):
                return
            every.remove(old)
    measured = m.fingerprint.get("card")
    place = last.runner, measured if isinstance(measured, str) else last.card or "?"
    paid_s = last.paid_s
    if paid_s is None:
        paid_s = max(0.0, (now_s if last.bill_at_s is None else last.bill_at_s) - last.at_s)
    observed.setdefault(place, []).append(
        Observation(
            *launch,
            last.rung,
            "finished",
            work_of(spec, m),
            start_s=last.start_s,
            paid_s=max(paid_s, m.busy_s),
            busy_s=busy_s,
            done=work_done,
        )
    )


def launches(context: Context, done: Sequence[Done]) -> Facts:
    """Quality and costs by rung, a row for every launch, and the timeline of a stage."""
    jobs = [one.spec.id for one in done]
    found = read_launches(context, done)
    now_s = context.clock.wall_s()
    lines = {
        _line(one): [bar(_line(one), row, now_s) for row in found.rows.get(one.spec.id, ())]
        for one in done
    }
    quality_of = quality_rows(found.observed, set(jobs))
    costs = cost_rows(found.entries, found.running)
    per_job = job_cost_rows(context, jobs, found.entries, found.running)
    rows = [_launch(row, found.observed) for each in found.rows.values() for row in each]
    notes = [*found.troubles]
    if len(jobs) > MOST_JOBS:
        notes.append(
            f"the launches of {len(jobs) - MOST_JOBS} more jobs are not in the history, and what is not "
            "settled of them is in no sum; `tenure why JOB` has them"
        )
    return {
        "quality": Table(quality_of) if quality_of else None,
        "costs": Table(costs) if costs else None,
        "cost_of_a_job": Table(per_job) if per_job else None,
        "launch_history": Table(rows) if rows else None,
        "timeline": timeline_picture(lines),
        "launch_notes": "; ".join(notes) or None,
    }


def experiment_costs(context: Context) -> Facts:
    """What every launch of the experiment that is settled has cost, in all versions of its plan.

    A sentence where the store is silent: what was deployed is deployed.
    """
    try:
        jobs = jobs_of_plan(context.store, context.chain.plan.name)
        entries = ledger.read_ledger(context.store, jobs)[0]
        rows = cost_rows(entries, ())
        per_job = job_cost_rows(context, sorted(jobs), entries, ())
    except (StoreSilent, StoreOutOfReach, UsageError) as error:
        return {"experiment_costs": f"not known: {error}"}
    return {
        "experiment_costs": Table(rows) if rows else None,
        "experiment_cost_of_a_job": Table(per_job) if per_job else None,
    }


def job_cost_rows(
    context: Context,
    jobs: Sequence[str],
    entries: Iterable[LedgerEntry],
    running: Iterable[Running],
) -> list[dict[str, Cell]]:
    """What a finished job cost, and one in time, with all attempts: by plan, team and rung.

    Raises StoreOutOfReach.
    """
    try:
        ends = job_ends(context.store, context.dispatcher, context.clock)
    except StoreSilent as error:
        raise StoreOutOfReach(str(error)) from error
    return [asdict(row) for row in of_jobs(jobs, ends, entries, running)]


def cost_rows(entries: Iterable[LedgerEntry], running: Iterable[Running]) -> list[dict[str, Cell]]:
    """A row for every rung and currency: what is settled, and what the rest has cost so far."""
    rows: dict[tuple[str, str, str], dict[str, Cell]] = {}
    for each in ledger.by_rung(entries):
        rows[each.rung, each.runner, each.currency] = {
            "rung": each.rung,
            "runner": each.runner,
            "currency": each.currency,
            "machines": each.launches,
            "hours": each.paid_h,
            "amount": each.amount,
            "not_settled": 0,
            "amount_so_far": 0.0,
        }
    still: dict[tuple[str, str, str], list[Running]] = {}
    for one in running:
        still.setdefault((one.rung, one.runner, one.currency), []).append(one)
    for key, group in still.items():
        empty: dict[str, Cell] = dict(zip(("rung", "runner", "currency"), key, strict=True))
        row = rows.setdefault(key, {**empty, "machines": 0, "hours": 0.0, "amount": 0.0})
        row["not_settled"] = len({one.name for one in group})
        row["amount_so_far"] = sum(one.amount for one in group)
    return [rows[key] for key in sorted(rows)]


def quality_rows(
    observed: Mapping[Place, Sequence[Observation]], jobs: set[str]
) -> list[dict[str, Cell]]:
    """A row for every rung, card and kind of work of a stage's launches, against what is usual there.

    Usual is what all others did with the same work on the same card of the same runner.
    """
    rows = []
    for (runner, card), every in sorted(observed.items()):
        mine = [row for row in every if row.job in jobs]
        for rung, work in sorted({(row.rung, row.work) for row in mine}):
            group = [row for row in mine if (row.rung, row.work) == (rung, work)]
            others = [row for row in every if row.job not in jobs and row.work == work]
            rows.append(
                {
                    "rung": rung,
                    "runner": runner,
                    "card": card,
                    "work": work,
                    **_ends(group),
                    **_quality(group, others, card, work),
                }
            )
    return rows


def _ends(group: Sequence[Observation]) -> dict[str, Cell]:
    return {
        "launches": len(group),
        "lost": sum(row.end == "lost" for row in group),
        "unclaimed": sum(row.end in ("unclaimed", "refused") for row in group),
    }


def _quality(
    group: Sequence[Observation], others: Sequence[Observation], card: str, work: str
) -> dict[str, Cell]:
    ours = quality.usual(group, card)
    common = quality.usual(others, card) if ours else None  # else there is nothing to compare
    top = peak_per_s(card, work)
    of_peak = ours.per_s / top if ours and top else None
    return {
        "seen": ours.count if ours else 0,
        "speed_per_s": ours.per_s if ours else None,
        "useful_share": ours.share if ours else None,
        "speed_of_peak": of_peak,
        "quality": of_peak * ours.share if ours and of_peak is not None else None,
        "usual_speed_per_s": common.per_s if common else None,
        "usual_useful_share": common.share if common else None,
        "speed_of_usual": ours.per_s / common.per_s if ours and common else None,
        "slow_below": common.floor if common else None,
        "usual_seen": common.count if common else 0,
    }


def peak_per_s(card: str, work: str) -> float | None:
    """What a card can do at most of a kind of work by its datasheet; ``None`` where nobody knows.

    >>> peak_per_s("NVIDIA H100 80GB HBM3", "FLOPs of bf16")
    989500000000000.0
    >>> peak_per_s("cpu", "FLOPs of fp32"), peak_per_s("Tesla T4", "steps of vol/ab12")
    (None, None)
    """
    if not work.startswith(FLOPS_OF):
        return None
    top = peaks.known_peak(card, work.removeprefix(FLOPS_OF))
    return top.flops_per_s if top else None


def _launch(row: LaunchRow, observed: Mapping[Place, Sequence[Observation]]) -> dict[str, Cell]:
    others = [
        each
        for (runner, card), every in observed.items()
        if (runner, card) == (row.runner, row.card)
        for each in every
        if each.work == row.work and (each.job, each.launch) != (row.job, row.launch)
    ]
    common = quality.usual(others, row.card or "") if row.per_s else None
    return {
        "job": row.job,
        "launch": row.launch,
        "rung": row.rung,
        "why": row.reason,
        "end": row.end or "not observed",
        "start_s": row.start_s,
        "speed_of_usual": row.per_s / common.per_s if row.per_s and common else None,
        "bill": row.bill,
        "bill_reason": row.bill_reason,
        "paid_h": row.paid_s / 3600.0 if row.paid_s is not None else None,
        "amount": row.amount,
        "currency": row.currency,
    }


def _line(done: Done) -> str:
    """One job in a picture: its point, its seed, and what tells it from its retries."""
    return f"{point_words(done.spec.config)}, seed {done.spec.seed} ({done.spec.id[:6]})"
