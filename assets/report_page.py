"""From the facts of a plan, or of two, to the sections of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from statistics import median

from assets.chain import STAGES
from assets.facts import point_words
from assets.plan_facts import PlanFacts
from assets.verdicts import GATES
from gates.verdict import deployable
from tenure.dispatch.history import LaunchRow
from tenure.dispatch.quota import span
from tenure.report.attempts import Bar, bar, unit
from tenure.report.costs import CostRow
from tenure.report.drawing import Drawing, number
from tenure.report.figures import (
    Curve,
    Stack,
    Strip,
    Told,
    curves,
    predictions,
    stacks,
    strips,
    timeline,
)
from tenure.report.page import Figure, Mood, Page, Row, Section, Tile
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.api import shown

MOST_LINES = 40  # jobs of a timeline: more cannot be told apart
MOST_TOLD = 40  # predictions of a figure


def page(facts: PlanFacts) -> Page:
    """The report of one plan."""
    state, mood = state_of(facts)
    return Page(
        f"Report of {facts.name}",
        state,
        mood,
        _tiles(facts),
        [
            _outcome(facts),
            _gates(facts),
            _costs(facts),
            _timeline(facts),
            _quality(facts),
            _predictions(facts),
            _seeds(facts),
            _equity(facts),
        ],
        _distinct(facts.notes),
        _made(facts),
    )


def compared(one: PlanFacts, other: PlanFacts) -> Page:
    """The report of two plans side by side."""
    both = (one, other)
    running = [facts.name for facts in both if facts.open]
    state = (
        f"{' and '.join(running)}: still running, so the numbers are those of this moment."
        if running
        else "Both plans are over."
    )
    return Page(
        f"{one.name} against {other.name}",
        state,
        "open" if running else "good",
        [],
        [
            Section("Outcome", tables={"Of each plan; times are seconds.": _side_by_side(both)}),
            _compared_costs(both),
            _compared_gates(both),
            _compared_seeds(both),
            _compared_equity(both),
        ],
        _distinct([f"{facts.name}: {note}" for facts in both for note in facts.notes]),
        " · ".join(_made(facts) for facts in both),
    )


def state_of(facts: PlanFacts) -> tuple[str, Mood]:
    """Is it over, and how: one sentence."""
    if facts.open:
        return (
            f"This plan is still running: {len(facts.open)} of {len(facts.ends)} jobs are not over, and "
            "every number here is one of this moment.",
            "open",
        )
    where = facts.standing
    if where is None:
        return f"All {len(facts.ends)} jobs that were enlisted are over.", "open"
    if where.blocked:
        return f"The plan ended at {where.stage}: {where.blocked}", "bad"
    if where.stage is None:
        passed = deployable([v for v in facts.verdicts if v.gate in GATES[2:]])
        record = where.finished["deployment"][0]
        if not passed:
            return f"Every stage is done, and record {record} may not be deployed.", "bad"
        live = " and is deployed" if facts.live == record else ""
        return f"Every stage is done: record {record} passed every gate{live}.", "good"
    return (
        f"This plan is still running: its stage {where.stage} is not finished, and every number here is one "
        "of this moment.",
        "open",
    )


def _made(facts: PlanFacts) -> str:
    when = datetime.fromtimestamp(facts.at_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{facts.name}: made {when} from the store {shown(facts.store)}"


def _distinct(notes: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(notes))


# -------------------------------------------------------------------------------- the outcome


def _tiles(facts: PlanFacts) -> list[Tile]:
    finished = sum(end.finished for end in facts.ends.values())
    timed = [end for end in facts.ends.values() if end.deadline]
    progress = facts.progress
    tiles = [Tile("Jobs finished", f"{finished} of {len(facts.ends)}")]
    if timed:
        in_time = sum(end.in_time for end in timed)
        tiles.append(Tile("Finished in time", f"{in_time} of {len(timed)}"))
    for row in facts.costs:
        if row.by == "plan" and row.amount + row.amount_so_far > 0:
            each = "none finished" if row.per_finished is None else number(row.per_finished)
            words = "a finished job, all attempts counted"
            detail = f"{each} {row.currency} {words}" if row.per_finished is not None else each
            paid = number(row.amount + row.amount_so_far)
            tiles.append(Tile("Paid", f"{paid} {row.currency}", detail))
    if progress is None:
        return tiles
    kept, delay_s = progress.share_without_loss, progress.delay_s
    tiles.append(
        Tile(
            "Finished without lost work",
            "-" if kept is None else f"{100 * kept:.0f} %",
            f"{progress.lost_steps:,} recorded steps were done again",
        )
    )
    tiles.append(
        Tile(
            "Moves cost",
            "-" if progress.move_share is None else f"{100 * progress.move_share:.1f} %",
            f"starting again took {span(progress.restart_s)}, lost work {span(progress.lost_s)}",
        )
    )
    tiles.append(
        Tile(
            "Snapshots cost",
            "-" if progress.save_share is None else f"{100 * progress.save_share:.1f} %",
            f"{progress.saves:,} saves, {span(progress.save_s)} of the loops' time",
        )
    )
    words = (
        f"median of {len(progress.delays_s)} losses" if progress.delays_s else "no loss was seen"
    )
    tiles.append(Tile("Losses acted on", "-" if delay_s is None else f"in {span(delay_s)}", words))
    return tiles


def _outcome(facts: PlanFacts) -> Section:
    tables: dict[str, Sequence[Row]] = {}
    where = facts.standing
    if where is not None:
        tables["The stages of the plan, in order."] = [
            {
                "stage": stage,
                "state": "finished"
                if stage in where.finished
                else "open"
                if stage == where.stage and not where.blocked
                else "blocked"
                if stage == where.stage
                else "not begun",
                "jobs": len(where.finished.get(stage, where.jobs if stage == where.stage else ()))
                if stage != "deployment"
                else None,
            }
            for stage in STAGES
        ]
    late = [
        {"job": job, "what": facts.line(job), "reason": facts.reasons.get(job, "")}
        for job, end in facts.ends.items()
        if not end.finished
    ]
    tables["Jobs without a result, and what they wait for or how they ended."] = late
    return Section("Outcome", tables=tables)


def _gates(facts: PlanFacts) -> Section:
    rows: list[Row] = [
        {"gate": v.gate, "verdict": v.verdict, "reason": v.reason} for v in facts.verdicts
    ]
    missing = len(GATES) - len(rows)
    words = (
        [f"{missing} of {len(GATES)} gates cannot be asked yet, or are asked only of later stages."]
        if missing
        else []
    )
    return Section("Gates", words, tables={"What every gate said.": rows})


# ---------------------------------------------------------------------------------- the costs


def _cost_parts(row: CostRow) -> tuple[tuple[str, str, float], ...]:
    return (
        ("c0", "for launches that finished their job", row.amount - row.unfinished),
        ("c1", "for launches that did not", row.unfinished),
        ("c3", "not settled yet", row.amount_so_far),
    )


def _cost_figure(
    key: str, rows: Sequence[CostRow], names: Sequence[str], currency: str, caption: str
) -> Figure:
    free = all(row.amount + row.amount_so_far == 0 for row in rows)
    units = "hours of machines" if free else currency
    if free:
        caption = f"{caption} They are free, so what they took is drawn."
    stacked = [
        Stack(name, (("c0", "used", row.paid_h),) if free else _cost_parts(row))
        for name, row in zip(names, rows, strict=True)
    ]

    def draw(width: float) -> Drawing:
        return stacks(stacked, units, width)

    return Figure(
        key,
        caption,
        f"{units}, of every attempt",
        draw,
        [{"of": name, **asdict(row)} for name, row in zip(names, rows, strict=True)],
    )


def _costs(facts: PlanFacts) -> Section:
    currencies = sorted({row.currency for row in facts.costs})
    figures = []
    for place, currency in enumerate(currencies):
        rows = [row for row in facts.costs if row.by == "rung" and row.currency == currency]
        caption = (
            f"What each rung cost in {currency}. A launch that was lost is paid for like one that finished "
            "its job; what platforms told goes before what our clocks counted."
        )
        figures.append(
            _cost_figure(f"cost-{place}", rows, [r.name for r in rows], currency, caption)
        )
    table_rows: list[Row] = [asdict(row) for row in facts.costs]
    words = [] if table_rows else ["No launch on a rung with a price has been settled or is open."]
    said = (
        "A finished job costs all that was paid, for lost attempts and jobs without a result too, over the "
        "jobs that finished. Sums never cross a currency."
    )
    return Section("Cost by currency and rung", words, figures, {said: table_rows})


# ------------------------------------------------------------------------------- the attempts


def _bars(facts: PlanFacts) -> dict[str, list[Bar]]:
    return {
        facts.line(job): [bar(facts.line(job), row, facts.at_s) for row in rows]
        for job, rows in facts.launches.items()
        if rows
    }


def _timeline(facts: PlanFacts) -> Section:
    lines = _bars(facts)
    drawn = dict(list(lines.items())[:MOST_LINES])
    if not drawn:
        return Section("Attempts", ["Nothing has been launched yet."])
    lost = sum(each.lost for bars in lines.values() for each in bars)
    count = sum(map(len, lines.values()))
    more = (
        f" {len(lines) - len(drawn)} more jobs are in the table." if len(lines) > MOST_LINES else ""
    )
    caption = (
        f"Every launch of a job from its order to the end of its bill, by rung: pale until its worker had "
        f"claimed the job, a cross where it was lost. {count} launches of {len(lines)} jobs, {lost} of "
        f"them lost.{more}"
    )
    last_s = max(each.end_s for bars in drawn.values() for each in bars)
    first_s = min(each.begin_s for bars in drawn.values() for each in bars)
    figure = Figure(
        "timeline",
        caption,
        f"{unit(last_s - first_s)[1]}; in the table seconds",
        lambda width: timeline(drawn, width),
        [_launch(facts, row) for rows in facts.launches.values() for row in rows],
    )
    return Section("Attempts", figures=[figure])


def _launch(facts: PlanFacts, row: LaunchRow) -> Row:
    return {
        "job": facts.line(row.job),
        "launch": row.launch,
        "rung": row.rung,
        "end": row.end or "not observed",
        "start_s": row.start_s,
        "paid_s": row.paid_s,
        "amount": row.amount,
        "currency": row.currency,
        "why": row.reason,
        "bill": f"{row.bill}: {row.bill_reason}" if row.bill_reason else row.bill,
    }


def _quality(facts: PlanFacts) -> Section:
    usual: dict[tuple[str, str | None, str | None], float] = {}
    for (runner, card), seen in facts.observed.items():
        for work in {each.work for each in seen}:
            speeds = [
                r.done / r.busy_s for r in seen if r.work == work and r.busy_s > 0 and r.done > 0
            ]
            if speeds:
                usual[runner, card, work] = median(speeds)
    groups: dict[tuple[str, str], list[tuple[float, str]]] = {}
    table: list[Row] = []
    for rows in facts.launches.values():
        for row in rows:
            common = usual.get((row.runner, row.card, row.work))
            if not row.per_s or not common:
                continue
            ratio = row.per_s / common
            name = f"{facts.line(row.job)}, launch {row.launch}"
            groups.setdefault((row.rung, row.card or "?"), []).append((ratio, name))
            table.append(
                {
                    "launch": name,
                    "rung": row.rung,
                    "card": row.card,
                    "work": row.work,
                    "per_s": row.per_s,
                    "median_per_s": common,
                    "of_median": ratio,
                    "end": row.end,
                }
            )
    if not table:
        return Section("Quality", ["No launch has shown work to judge its machine by."])
    rows_of = [
        Strip(f"{rung}, {card}", rung, tuple(values)) for (rung, card), values in groups.items()
    ]
    figure = Figure(
        "quality",
        "How fast each launch worked against the median of its kind of work on the same card of the same "
        "platform, over all launches that are known. The dashed line is the median, the short one the mean "
        "of the row.",
        "times the median speed; in the table FLOPs or steps a second",
        lambda width: strips(rows_of, "of the median", width, 1.0),
        table,
    )
    return Section("Quality against the median", figures=[figure])


def _predictions(facts: PlanFacts) -> Section:
    told = [row for row in facts.lifetimes if row.predicted_s is not None]
    came = [row for row in told if row.took_s is not None]
    if not came:
        words = (
            f"{len(told)} launches foretold when their jobs would be done, and none of those jobs was seen to "
            "finish yet."
            if told
            else "No launch of this plan foretold when its job would be done: one does where the length and the "
            "speed of such a job are known."
        )
        return Section("Predictions against reality", [words])
    longest_s = max(max(row.predicted_s[-1], row.took_s or 0.0) for row in came if row.predicted_s)
    in_one_s, name = unit(longest_s)
    rows = [
        Told(
            f"{facts.line(row.job)}, launch {row.launch}",
            row.predicted_s[0] / in_one_s,
            row.predicted_s[len(row.predicted_s) // 2] / in_one_s,
            row.predicted_s[-1] / in_one_s,
            (row.took_s or 0.0) / in_one_s,
        )
        for row in came
        if row.predicted_s
    ]
    inside = sum(row.low <= row.came <= row.high for row in rows)
    drawn = rows[:MOST_TOLD]
    figure = Figure(
        "predictions",
        f"When each launch foretold the end of its job, from the first to the ninth decile, and when it came: "
        f"{inside} of {len(rows)} within, of which 80 % are promised.{_waiting(len(told) - len(came))} The time of "
        "a launch that was lost counts to the end of its job all the same.",
        f"{name} from the launch to the end of its job",
        lambda width: predictions(drawn, name, width),
        [
            {
                "launch": row.name,
                f"decile_1_{name}": row.low,
                f"median_{name}": row.middle,
                f"decile_9_{name}": row.high,
                f"came_{name}": row.came,
                "inside": row.low <= row.came <= row.high,
            }
            for row in rows
        ],
    )
    return Section("Predictions against reality", figures=[figure])


def _waiting(count: int) -> str:
    """
    >>> _waiting(0), _waiting(2)
    ('', ' 2 more have no outcome yet.')
    """
    return f" {count} more have no outcome yet." if count else ""


# --------------------------------------------------------------------------- seeds and equity


def _records(facts: PlanFacts, prefix: str = "") -> list[tuple[str, str, ModelRecord]]:
    """(name, group, record) of every point and of the retrain."""
    found = [(f"{prefix}{point_words(r.config)}", f"{prefix}grid", r) for r in facts.points]
    if facts.retrained is not None:
        words = f"{prefix}retrain of {point_words(facts.retrained.config)}"
        found.append((words, f"{prefix}retrain", facts.retrained))
    return found


def _metric_figure(records: Sequence[tuple[str, str, ModelRecord]], metric: str) -> Figure | None:
    rows: list[Strip] = []
    table: list[Row] = []
    metric_unit = ""
    for name, group, record in records:
        values = []
        for member in record.members:
            if (found := member.metrics.get(metric)) is None:
                continue
            metric_unit = found.unit
            values.append((found.value, f"seed {member.seed}"))
            table.append({"of": name, "seed": member.seed, metric: found.value, "unit": found.unit})
        if values:
            rows.append(Strip(name, group, tuple(values)))
    if not rows:
        return None
    return Figure(
        f"seeds-{metric}",
        f"{metric} of every seed, a row for each point of the grid and one for the retrain; the short line is "
        "the mean of its row. What a seed alone changes is what no difference smaller than it can show.",
        metric_unit or "as the experiment tells it",
        lambda width: strips(rows, metric_unit or metric, width),
        table,
    )


def _seeds(facts: PlanFacts) -> Section:
    records = _records(facts)
    if not records:
        return Section("Spread of the seeds", ["No point of the grid is evaluated yet."])
    judged = records[0][2].promote.judged
    figures = [_metric_figure(records, terms.metric) for terms in judged]
    return Section("Spread of the seeds", figures=[each for each in figures if each])


def _equity_figure(rows: Sequence[Curve]) -> Figure:
    table: list[Row] = []
    for row in rows:
        places = range(0, len(row.x), max(1, len(row.x) // 12))
        for place in sorted({*places, len(row.x) - 1}):
            table.append({"of": row.name, "day": row.x[place], "equity": row.y[place]})
    return Figure(
        "equity",
        f"Equity of {len(rows)} backtests by seed, and what they are compared with; of each at most 120 days "
        "are drawn.",
        "times what was there on the first day; the scale below counts days",
        lambda width: curves(rows, "day", "equity", width),
        table,
    )


def _equity(facts: PlanFacts) -> Section:
    if not facts.equity:
        return Section("Equity", ["No backtest is finished yet."])
    return Section("Equity", figures=[_equity_figure(facts.equity)])


# ---------------------------------------------------------------------------------- two plans


def _side_by_side(both: Sequence[PlanFacts]) -> list[Row]:
    rows: list[Row] = []
    for facts in both:
        progress = facts.progress
        rows.append(
            {
                "plan": facts.name,
                "state": state_of(facts)[0],
                "jobs": len(facts.ends),
                "finished": sum(end.finished for end in facts.ends.values()),
                "in_time": sum(end.in_time for end in facts.ends.values())
                if any(end.deadline for end in facts.ends.values())
                else None,
                "attempts": progress.attempts if progress else None,
                "without_lost_work": progress.share_without_loss if progress else None,
                "lost_steps": progress.lost_steps if progress else None,
                "moves_cost_share": progress.move_share if progress else None,
                "snapshots_cost_share": progress.save_share if progress else None,
                "losses_acted_on_s": progress.delay_s if progress else None,
                "live": facts.live,
            }
        )
    return rows


def _compared_costs(both: Sequence[PlanFacts]) -> Section:
    figures = []
    currencies = sorted({row.currency for facts in both for row in facts.costs})
    for place, currency in enumerate(currencies):
        found = [
            (f"{facts.name}: {row.name}", row)
            for facts in both
            for row in facts.costs
            if row.by == "rung" and row.currency == currency
        ]
        caption = f"What each rung of both plans cost in {currency}, of every attempt."
        names, rows = [name for name, _ in found], [row for _, row in found]
        figures.append(_cost_figure(f"cost-{place}", rows, names, currency, caption))
    table = [asdict(row) for facts in both for row in facts.costs if row.by == "plan"]
    return Section(
        "Cost", figures=figures, tables={"What a finished job cost in each plan.": table}
    )


def _compared_gates(both: Sequence[PlanFacts]) -> Section:
    said: Mapping[str, Mapping[str, str]] = {
        facts.name: {v.gate: v.verdict for v in facts.verdicts} for facts in both
    }
    rows: list[Row] = [
        {"gate": gate, **{name: found.get(gate) for name, found in said.items()}}
        for gate in GATES
        if any(gate in found for found in said.values())
    ]
    return Section("Gates", tables={"What every gate said of each plan.": rows})


def _compared_seeds(both: Sequence[PlanFacts]) -> Section:
    records = [each for facts in both for each in _records(facts, f"{facts.name}: ")]
    metrics = dict.fromkeys(
        terms.metric for _, _, record in records for terms in record.promote.judged
    )
    figures = [_metric_figure(records, metric) for metric in metrics]
    words = [] if records else ["No point of either grid is evaluated yet."]
    return Section("Spread of the seeds", words, [each for each in figures if each])


def _compared_equity(both: Sequence[PlanFacts]) -> Section:
    rows = [
        Curve(f"{facts.name}: {row.name}", f"{facts.name}: {row.group}", row.x, row.y)
        for facts in both
        for row in facts.equity
    ]
    if not rows:
        return Section("Equity", ["No backtest of either is finished yet."])
    return Section("Equity", figures=[_equity_figure(rows)])
