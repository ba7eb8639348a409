"""What do intervals between snapshots waste, beside the best fixed one that a search finds afterwards?

    python bench/interval.py

Lives of machines are drawn from known laws, or are the up-times of the recorded preemption series
($TENURE_TRACES, by default ../shared/data beside the checkout). A machine pays its start, loads, trains and
takes snapshots until it is lost; what no snapshot holds is lost with it. *Waste* is paid seconds that were
useless per useful second; *waste / best* compares it with the fixed interval that a search over 400 of them
(10,000 where lives are few) finds on the very lives that are judged, which no rule knows. *Empirical* is the
numeric optimum for Kaplan and Meier's curve, *smooth* for the hazard in bands of ages, *by age* has an interval
for each age.

Each rule learns from other lives than those it is judged on, except in the rows "known whole", where it is
given the series that it is judged on, as the search is. Seeds are fixed: the table is the same on every machine.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.instruments.report import Report, arguments
from tenure.plan import interval, survival
from tenure.plan.interval import Costs, Schedule
from tenure.plan.survival import Life

Values = NDArray[np.float64]
Law = Callable[[np.random.Generator, int], Values]

TRACES = Path(
    os.environ.get("TENURE_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "data"
)
HOUR_S = 3600.0
START_S, LOAD_S = 240.0, 60.0
SAVES_S = (5.0, 30.0, 120.0)
LEARNT, JUDGED, QUICK_JUDGED = 200, 50_000, 2_000
WALL_S = 12 * HOUR_S
SEED = 20_261
TRIALS, FINE_TRIALS = 400, 10_000
OF_LAW, OF_SERIES = "smooth at most 1.02", "empirical at most 1.02"


def exponential(rng: np.random.Generator, n: int) -> Values:
    return rng.exponential(4 * HOUR_S, n)


def bathtub(rng: np.random.Generator, n: int) -> Values:
    """Many are lost while young, the rest wear out: the shortest of two Weibull lives, shapes 0.5 and 4."""
    return np.minimum(12 * HOUR_S * rng.weibull(0.5, n), 10 * HOUR_S * rng.weibull(4.0, n))


def heavy(rng: np.random.Generator, n: int) -> Values:
    """The older the safer, as spot machines are: log-normal, coefficient of variation 2.9."""
    return HOUR_S * rng.lognormal(0.0, 1.5, n)


def session(rng: np.random.Generator, n: int) -> Values:
    """A free session: rarely lost, and at 12 h it ends for certain."""
    return np.minimum(rng.exponential(30 * HOUR_S, n), WALL_S)


@dataclass(frozen=True)
class Judged:
    """Lives that intervals are judged on, in seconds, and the wall that they end at."""

    lives_s: Values
    wall_s: float | None = None


def kept_s(judged: Judged, save_s: float, marks_s: Values, held_s: Values) -> float:
    """Training seconds left in snapshots, which are done at ages ``marks_s`` and then hold ``held_s``."""
    at = np.searchsorted(marks_s, judged.lives_s, side="right")
    kept = np.concatenate([[0.0], held_s])[at]
    if judged.wall_s is not None:  # the last one is done just at the wall
        walled = judged.lives_s >= judged.wall_s
        before = np.searchsorted(marks_s, judged.wall_s, side="right")
        since = marks_s[before - 1] if before else LOAD_S
        more = max(judged.wall_s - since - save_s, 0.0)
        kept = kept + np.where(walled, more, 0.0)
    return float(kept.sum())


def waste(judged: Judged, save_s: float, marks_s: Values, held_s: Values) -> float:
    kept = kept_s(judged, save_s, marks_s, held_s)
    paid = float((judged.lives_s + START_S).sum())
    return paid / kept - 1 if kept > 0 else math.inf


def fixed(tau_s: float, save_s: float, longest_s: float) -> tuple[Values, Values]:
    """Ages at which snapshots are done, and what each holds."""
    count = max(int((longest_s - LOAD_S) / (tau_s + save_s)) + 1, 1)
    numbers = np.arange(1, count + 1)
    return LOAD_S + numbers * (tau_s + save_s), numbers * tau_s


def by_age(found: Schedule, save_s: float, longest_s: float) -> tuple[Values, Values]:
    age, marks, held = LOAD_S, [], []
    done = 0.0
    while age < longest_s:
        tau = found.at(age)
        if tau <= 0:  # the wall is nearer than a snapshot
            break
        age, done = age + tau + save_s, done + tau
        marks.append(age)
        held.append(done)
    return np.array(marks or [math.inf]), np.array(held or [0.0])


def searched(judged: Judged, save_s: float) -> tuple[float, float]:
    """The fixed interval that wastes least on these lives, and what it wastes."""
    lives = judged.lives_s - LOAD_S
    paid = float((judged.lives_s + START_S).sum())
    trials = np.geomspace(
        save_s / 4,
        max(float(lives.max()), 40 * save_s),
        FINE_TRIALS if len(lives) < 1_000 else TRIALS,
    )
    found = [(_wasted(judged, lives, paid, save_s, float(tau)), float(tau)) for tau in trials]
    least, tau = min(found)
    return tau, least


def _wasted(judged: Judged, lives: Values, paid: float, save_s: float, tau_s: float) -> float:
    """The same as :func:`waste` of :func:`fixed`, quickly."""
    kept = tau_s * np.maximum(np.floor(lives / (tau_s + save_s)), 0.0)
    if judged.wall_s is not None:
        usable = judged.wall_s - LOAD_S
        rest = usable - (tau_s + save_s) * math.floor(usable / (tau_s + save_s)) - save_s
        kept += np.where(judged.lives_s >= judged.wall_s, max(rest, 0.0), 0.0)
    return paid / float(kept.sum()) - 1 if kept.any() else math.inf


def plans(
    learnt: Sequence[Life], save_s: float, longest_s: float, wall_s: float | None
) -> dict[str, tuple[tuple[Values, Values], float]]:
    """What each rule would do after these lives: its snapshots, and the interval it begins with."""
    costs = Costs(save_s, START_S, LOAD_S)
    bands = survival.banded(learnt, wall_s=wall_s)
    between_s = 1 / survival.pooled_per_s(learnt)
    found = {
        "Young": interval.young_s(save_s, between_s),
        "Daly": interval.daly_s(save_s, between_s),
        "empirical": interval.best(survival.kaplan_meier(learnt, wall_s), costs).interval_s,
        "smooth": interval.best(bands, costs).interval_s,
    }
    made = {name: (fixed(tau, save_s, longest_s), tau) for name, tau in found.items()}
    ages = interval.schedule(bands, costs)
    made["by age"] = by_age(ages, save_s, longest_s), ages.at(LOAD_S)
    return made


def lives_of(ages_s: Values, wall_s: float | None) -> list[Life]:
    return [Life(float(age), wall_s is None or age < wall_s) for age in ages_s]


def laws(report: Report) -> None:
    table: dict[str, tuple[Law, float | None]] = {
        "exponential, mean 4 h": (exponential, None),
        "bathtub": (bathtub, None),
        "heavy tail": (heavy, None),
        "a session of 12 h": (session, WALL_S),
    }
    for name, (law, wall_s) in table.items():
        rng = np.random.default_rng(SEED)
        learnt = lives_of(law(rng, LEARNT), wall_s)
        judged = Judged(law(rng, QUICK_JUDGED if report.quick else JUDGED), wall_s)
        for save_s in SAVES_S:
            show(report, f"{name}, save {save_s:.0f} s", judged, learnt, save_s, OF_LAW)


def show(
    report: Report,
    name: str,
    judged: Judged,
    learnt: Sequence[Life],
    save_s: float,
    target: str = "",
) -> None:
    best_s, least = searched(judged, save_s)
    longest = float(judged.lives_s.max())
    ratios, overheads = {}, {}
    for method, (marks, tau) in plans(learnt, save_s, longest, judged.wall_s).items():
        ratios[method] = waste(judged, save_s, *marks) / least
        overheads[method] = save_s / (tau + save_s)
    _line(report, name, best_s, least, ratios, overheads["smooth"], target)


def _line(
    report: Report,
    name: str,
    best_s: float,
    least: float,
    ratios: dict[str, float],
    overhead: float,
    target: str = "",
) -> None:
    words = ", ".join(f"{method} {ratio:.3f}" for method, ratio in ratios.items())
    report.line(
        f"{name}: waste / best",
        f"{words}; best {best_s:.0f} s wastes {100 * least:.1f} %; "
        f"smooth takes {100 * overhead:.1f} % of the loop",
        target,
        best_interval_s=best_s,
        best_waste=least,
        overhead=overhead,
        **{f"ratio_{method.replace(' ', '_').lower()}": ratio for method, ratio in ratios.items()},
    )


def few(report: Report) -> None:
    """What a series of 22 lives can tell: learnt from so few, and judged on so few.

    *Learnt* is judged on many lives: what learning from 22 costs. *Oracle* is the best interval of the law
    itself, judged on 22 lives against the best for those very lives: what their luck is worth.
    """
    rounds = 10 if report.quick else 100
    for name, law in {
        "exponential, mean 4 h": exponential,
        "bathtub": bathtub,
        "heavy tail": heavy,
    }.items():
        rng = np.random.default_rng(SEED)
        many = Judged(law(rng, QUICK_JUDGED if report.quick else JUDGED))
        save_s = SAVES_S[1]
        oracle_s, least = searched(many, save_s)
        learnt: dict[str, list[float]] = {}
        lucky = []
        for _ in range(rounds):
            short = law(rng, 22)
            longest = float(many.lives_s.max())
            for method, (marks, _tau) in plans(
                lives_of(short, None), save_s, longest, None
            ).items():
                learnt.setdefault(method, []).append(waste(many, save_s, *marks) / least)
            few_judged = Judged(short)
            _, best = searched(few_judged, save_s)
            lucky.append(waste(few_judged, save_s, *fixed(oracle_s, save_s, longest)) / best)
        report.line(
            f"{name}, save {save_s:.0f} s, 22 lives: median of {rounds} waste / best",
            ", ".join(f"{method} {np.median(each):.3f}" for method, each in learnt.items())
            + f"; the oracle judged on 22 {np.median(lucky):.3f}",
            oracle_on_22=float(np.median(lucky)),
            **{
                f"ratio_{method.replace(' ', '_').lower()}": float(np.median(each))
                for method, each in learnt.items()
            },
        )


# ------------------------------------------------------------------------------- recorded


def ups(file: Path) -> list[Life]:
    """The up-times of a series in order; one that touches an end of it is censored."""
    trace = json.loads(file.read_text())
    gap_s, data = float(trace["metadata"]["gap_seconds"]), trace["data"]
    found: list[Life] = []
    at = 0
    for up, run in itertools.groupby(value > 0 for value in data):
        ticks = len(list(run))
        inside = at > 0 and at + ticks < len(data)
        if up:
            found.append(Life(ticks * gap_s, inside))
        at += ticks
    return found


def recorded(report: Report) -> None:
    files = sorted((TRACES / "spot-traces" / "preemption").rglob("*.json"))
    if not files:
        report.note(f"there are no preemption series in {TRACES}: only known laws are played")
    for file in files:
        seen = ups(file)
        whole = Judged(np.array([life.age_s for life in seen]))
        half = len(seen) // 2
        later = Judged(whole.lives_s[half:])
        for save_s in SAVES_S:
            name = f"{file.stem}, save {save_s:.0f} s"
            show(report, f"{name}, known whole", whole, seen, save_s, OF_SERIES)
            show(report, f"{name}, learnt on the first half", later, seen[:half], save_s)
            online(report, f"{name}, learnt online, second half", seen, half, save_s)


def online(report: Report, name: str, seen: Sequence[Life], first: int, save_s: float) -> None:
    """Each life is played by what the lives before it say."""
    judged = Judged(np.array([life.age_s for life in seen[first:]]))
    best_s, least = searched(judged, save_s)
    longest = float(judged.lives_s.max())
    kept: dict[str, float] = {}
    taus: list[float] = []
    for at in range(first, len(seen)):
        one = Judged(np.array([seen[at].age_s]))
        for method, (marks, tau) in plans(seen[:at], save_s, longest, None).items():
            kept[method] = kept.get(method, 0.0) + kept_s(one, save_s, *marks)
            taus += [tau] if method == "smooth" else []
    paid = float((judged.lives_s + START_S).sum())
    ratios = {method: (paid / useful - 1) / least for method, useful in kept.items()}
    _line(report, name, best_s, least, ratios, save_s / (float(np.mean(taus)) + save_s))


def main() -> None:
    report = Report("interval", arguments(__doc__).parse_args())
    laws(report)
    few(report)
    recorded(report)
    report.end()


if __name__ == "__main__":
    main()
