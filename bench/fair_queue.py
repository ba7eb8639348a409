"""What does a fair queue cost a pool, and how fast does it decide?

    python bench/fair_queue.py
    python bench/fair_queue.py --seeds 8 --markdown     # the table of docs/queue.md

A month of 10,000 jobs (``tenure/sim/queue_load.py``) under Tenure's queue, first come first served with and without
backfill, and plain priority. A seed is the same month for all. Then decisions a second with 10,000 jobs waiting.
Counts do not depend on the machine that this runs on; the seconds do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import mean

from bench.instruments.report import Report, arguments
from tenure.queue.answer import quantile
from tenure.queue.fair import Fair
from tenure.queue.floor import Floor
from tenure.queue.play import Played, play
from tenure.queue.policies import Name
from tenure.queue.records import Need, Pool, Submission, Team
from tenure.sim.queue_load import jain, month, service

SEEDS, QUICK_SEEDS = 2, 1
JOBS, QUICK_JOBS = 10_000, 1_000
CARDS, QUICK_CARDS = 128, 32
DAY_S = 86400.0
POLICIES: tuple[Name, ...] = ("ours", "fifo", "fifo-backfill", "priority")
TEAMS = 50
ROUNDS = 1_000


@dataclass(frozen=True)
class Month:
    """One month under one policy."""

    mean_h: float
    p95_h: float
    p99_h: float
    most_h: float
    worst_team_h: float
    used: float
    fairness: float
    entitled_fairness: float
    entitled_least: float
    lost: float
    preemptions: int


def measured(played: Played, cards: int, asked_s: float) -> Month:
    waits = [row.started_s - row.submitted_s for row in played.rows if row.started_s is not None]
    teams = sorted({row.team for row in played.rows})
    of_team = [
        mean(
            row.started_s - row.submitted_s
            for row in played.rows
            if row.team == team and row.started_s is not None
        )
        for team in teams
    ]
    until_s = 30 * DAY_S
    used_s = sum(
        s.cards * max(0.0, min(s.to_s, until_s) - min(s.from_s, until_s)) for s in played.spells
    )
    entitled = _entitled_part(played, cards)
    all_s = sum(s.cards * (s.to_s - s.from_s) for s in played.spells)
    return Month(
        mean(waits) / 3600,
        quantile(waits, 0.95) / 3600,
        quantile(waits, 0.99) / 3600,
        max(waits) / 3600,
        max(of_team) / 3600,
        used_s / (cards * until_s),
        jain(list(service(played).values())),
        jain(entitled),
        min(entitled),
        (all_s - asked_s) / asked_s,
        sum(row.preemptions for row in played.rows),
    )


def _entitled_part(played: Played, cards: int) -> list[float]:
    """Per team: of the cards it was entitled to while it had demand for them, the part that it had."""
    teams = sorted({row.team for row in played.rows})
    changes: list[tuple[float, str, int, int]] = []
    width = {(row.job, row.team): row.record.need.cards for row in played.rows}
    for row in played.rows:
        size = width[row.job, row.team]
        changes.append((row.submitted_s, row.team, size, 0))
        changes.append((row.finished_s or played.end_s, row.team, -size, 0))
    for spell in played.spells:
        changes += [
            (spell.from_s, spell.team, 0, spell.cards),
            (spell.to_s, spell.team, 0, -spell.cards),
        ]
    share = cards / len(teams)
    demand, has = dict.fromkeys(teams, 0), dict.fromkeys(teams, 0)
    since = dict.fromkeys(teams, 0.0)
    due_s, had_s = dict.fromkeys(teams, 0.0), dict.fromkeys(teams, 0.0)
    for at_s, team, more, taken in sorted(changes):
        entitled = min(share, demand[team])
        due_s[team] += entitled * (at_s - since[team])
        had_s[team] += min(entitled, has[team]) * (at_s - since[team])
        since[team] = at_s
        demand[team] += more
        has[team] += taken
    return [had_s[team] / due_s[team] for team in teams if due_s[team]]


def decisions_per_s(waiting: int, cards: int) -> tuple[float, int]:
    """Ends and starts with so many jobs waiting all the time; per second of the processor."""
    fair = Fair(Pool(cards), [Team(f"team-{n:02d}", 1.0 + n % 3) for n in range(TEAMS)])
    floor = Floor(cards)

    def sent(n: int, now_s: float) -> None:
        team = f"team-{n % TEAMS:02d}"
        size = (1, 1, 2, 4)[n // TEAMS % 4]
        lasts_s = 600.0 + 37 * (n % 101)
        fair.add(Submission(f"job-{n}", team, now_s, Need(size), lasts_s, n % 3), now_s)

    for n in range(waiting):
        sent(n, n * 1e-3)
    now_s, count, made = float(waiting), waiting, 0
    began_s = time.process_time()  # of one core, whatever else the machine does
    for _ in range(ROUNDS):
        for pick in fair.round(now_s, floor):
            for tie in pick.victims:
                run = floor.running[tie]
                left = floor.stop(tie, now_s)
                fair.ended(run, now_s)
                fair.preempted(tie)
                fair.add(left, now_s)
            floor.start(pick.job, now_s, fair.started(pick, now_s))
            made += 1
        while len(fair.line.waiting) < waiting:
            sent(count, now_s)
            count += 1
        now_s = floor.next_end_s
        for run in floor.due(now_s):
            fair.ended(run, now_s)
    return made / (time.process_time() - began_s), made


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, help=f"months; instead of {SEEDS}")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/queue.md too")
    options = parser.parse_args()
    report = Report("fair_queue", options)
    jobs, cards = (QUICK_JOBS, QUICK_CARDS) if report.quick else (JOBS, CARDS)
    seeds = options.seeds or (QUICK_SEEDS if report.quick else SEEDS)
    rows = []
    for policy in POLICIES:
        found: list[Month] = []
        for seed in range(seeds):
            scenario = month(seed, jobs, cards)
            asked_s = sum((e.cards or 1) * (e.duration_s or 0.0) for e in scenario.events)
            found.append(measured(play(scenario, policy), cards, asked_s))
        means = {name: mean(getattr(m, name) for m in found) for name in Month.__dataclass_fields__}
        report.line(
            f"{policy}: {seeds} months of {jobs:,} jobs on {cards} cards",
            f"mean wait {means['mean_h']:.2f} h, p95 {means['p95_h']:.1f}, p99 {means['p99_h']:.1f}, "
            f"longest {means['most_h']:.1f}; the mean of the worst team {means['worst_team_h']:.2f} h; "
            f"{means['used']:.1%} of the cards used; Jain of waiting {means['fairness']:.3f}, of entitlements "
            f"{means['entitled_fairness']:.3f} (the least: {means['entitled_least']:.0%}); "
            f"{means['preemptions']:.0f} preemptions, {means['lost']:.2%} of the work done again",
            **means,
        )
        rows.append(
            f"| {policy} | {means['mean_h']:.2f} | {means['p95_h']:.1f} | {means['p99_h']:.1f} | "
            f"{means['most_h']:.0f} | {means['worst_team_h']:.2f} | {means['used']:.1%} | "
            f"{means['fairness']:.3f} | {means['entitled_fairness']:.3f} | {means['entitled_least']:.0%} | {means['preemptions']:.0f} | {means['lost']:.2%} |"
        )
    waiting = 1_000 if report.quick else 10_000
    per_s, made = decisions_per_s(waiting, CARDS)
    report.line(
        f"decisions a second with {waiting:,} jobs of {TEAMS} teams waiting",
        f"{per_s:.0f} ({made} made)",
        "500 or more on one core",
        per_s=per_s,
    )
    if options.markdown:
        print("\n".join(rows))
    report.end()


if __name__ == "__main__":
    main()
