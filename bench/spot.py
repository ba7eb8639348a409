"""What does a job with a deadline cost on recorded spot markets: the baselines, ours, several markets?

    python bench/spot.py [--quick] [--json] [--markdown FILE] [--prior]

Plays what `tenure rehearse spot` plays on the recorded traces ($TENURE_TRACES, by default ../shared/data
beside the checkout): 48 h of work, 0.2 h per start, $3.06 and $0.9731 an hour. Intervals are 95 % of a
paired bootstrap: windows in the order of their start, in blocks of ten (neighbours overlap), all series of
a window together. --prior prints the counts that tenure/plan/spot_market.py starts from.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.clairvoyant import least_usd
from bench.instruments.report import Report, arguments
from tenure.plan.deadline import Greedy, Market, Played, Policy, Terms, UniformProgress, replay
from tenure.plan.deadline_dp import Ours
from tenure.plan.spot_market import FINE, History
from tenure.plan.spot_traces import even_starts, read_trace

TRACES = (
    Path(os.environ.get("TENURE_TRACES") or Path(__file__).resolve().parents[2] / "shared" / "data")
    / "spot-traces"
)
SERIES_2022 = TRACES / "availability" / "1-node" / "aws-10-26-2022"
SERIES_2023 = TRACES / "availability" / "1-node" / "aws-02-15-2023"
DEADLINES_H = (52, 60, 70)
#: Published means in dollars per series, greedy and Uniform Progress.
PUBLISHED = {
    52: {"k80_1": (72.71, 65.39), "k80_8": (133.24, 125.34), "v100_1": (119.37, 107.04)}
    | {"v100_8": (144.03, 141.86)},
    60: {"k80_1": (48.65, 53.10), "k80_8": (112.44, 99.13), "v100_1": (104.68, 83.72)}
    | {"v100_8": (138.37, 131.66)},
    70: {"k80_1": (48.65, 50.15), "k80_8": (97.36, 85.98), "v100_1": (91.78, 72.97)}
    | {"v100_8": (135.48, 121.92)},
}
TARGET = {52: 28.2, 60: 39.4, 70: 44.2}
PAIRS = (
    ("us-west-2a", "us-west-2b"),
    ("us-east-1c", "us-east-1d"),
    ("us-west-2a", "us-east-2b"),
    ("us-east-1c", "us-east-2b"),
    ("us-east-1a", "us-east-1c"),
)
RESAMPLES, BLOCK = 2000, 10
Costs = NDArray[np.float64]


@dataclass
class Markdown:
    """The tables as they stand in docs/spot.md."""

    lines: list[str]

    def table(self, title: str, columns: list[str], rows: list[list[str]]) -> None:
        self.lines += [
            "",
            title,
            "",
            "| " + " | ".join(columns) + " |",
            "|---" * len(columns) + "|",
        ]
        self.lines += ["| " + " | ".join(row) + " |" for row in rows]


def terms(deadline_h: float) -> Terms:
    return Terms(48, deadline_h, 0.2, 3.06, 0.9731)


def saving(costs: Costs) -> float:
    """Percent of 48 h on demand."""
    return 100 * (1 - float(costs.mean()) / terms(52).on_demand_usd)


def interval(differences: Costs) -> tuple[float, float]:
    """95 % of the mean of ``differences``, (windows in order, series), by resampling blocks of windows."""
    rng = np.random.default_rng(0)
    n = len(differences)
    per_window = differences.reshape(n, -1).mean(1)
    firsts = rng.integers(0, n, (RESAMPLES, -(-n // BLOCK)))
    index = (firsts[:, :, None] + np.arange(BLOCK)).reshape(RESAMPLES, -1)[:, :n] % n
    low, high = np.quantile(per_window[index].mean(1), (0.025, 0.975))
    return float(low), float(high)


def play_2022(report: Report, text: Markdown) -> None:
    """The published windows: baselines beside the published means, ours beside Uniform Progress."""
    markets = [read_trace(file) for file in sorted(SERIES_2022.glob("*.json"))]
    windows = json.loads((TRACES / "windows-2022.json").read_text())
    base_rows, our_rows, sums = [], [], []
    for deadline_h in DEADLINES_H[: 1 if report.quick else None]:
        job = terms(deadline_h)
        begun = time.process_time()
        costs: dict[str, list[Costs]] = {"greedy": [], "up": [], "ours": []}
        late = 0
        for market in markets:
            starts = sorted(windows[market.name])[:: 10 if report.quick else 1]
            policies: dict[str, Policy] = {"greedy": Greedy(), "up": UniformProgress()}
            policies["ours"] = Ours([market], job)
            for name, policy in policies.items():
                played = replay([market], starts, job, policy)
                costs[name].append(played.cost_usd)
                late += int(played.late.sum())
        cpu_s = time.process_time() - begun
        whole = {name: np.array(each).T for name, each in costs.items()}
        for i, market in enumerate(markets):
            name = market.name.removeprefix("us-west-2a_")
            mean = {each: float(whole[each][:, i].mean()) for each in whole}
            old = PUBLISHED[deadline_h][name]
            base_rows.append(
                [
                    f"{deadline_h} h",
                    name,
                    f"{mean['greedy']:.2f}",
                    f"{old[0]:.2f}",
                    f"{mean['up']:.2f}",
                    f"{old[1]:.2f}",
                ]
            )
            low, high = interval(whole["ours"][:, [i]] - whole["up"][:, [i]])
            our_rows.append(
                [
                    f"{deadline_h} h",
                    name,
                    f"{mean['up']:.2f}",
                    f"{mean['ours']:.2f}",
                    f"{100 * (mean['ours'] / mean['up'] - 1):+.1f} %",
                    f"{low:+.2f} to {high:+.2f}",
                ]
            )
        gain = (whole["up"] - whole["ours"]) / job.on_demand_usd * 100
        low, high = interval(gain)
        row = [f"{saving(whole[each]):.1f} %" for each in ("greedy", "up", "ours")]
        sums.append(
            [
                f"{deadline_h} h",
                *row,
                f"{TARGET[deadline_h]} %",
                f"{gain.mean():.1f} ({low:.1f} to {high:.1f})",
                str(late),
            ]
        )
        report.line(
            f"spot, {deadline_h} h, ours",
            f"saves {saving(whole['ours']):.1f} %, Uniform Progress {saving(whole['up']):.1f} %; "
            f"late {late}; {cpu_s:.0f} s of CPU",
            f"{TARGET[deadline_h]} %, late 0",
            saving_percent=saving(whole["ours"]),
            uniform_progress_percent=saving(whole["up"]),
            greedy_percent=saving(whole["greedy"]),
            gain_points=float(gain.mean()),
            gain_low_points=low,
            gain_high_points=high,
            late_runs=late,
            cpu_s=cpu_s,
        )
    columns = ["deadline", "greedy", "Uniform Progress", "ours", "target", "points gained", "late"]
    text.table("Overall, savings:", columns, sums)
    columns = [
        "deadline",
        "series",
        "Uniform Progress $",
        "ours $",
        "change",
        "95 % of the change, $",
    ]
    text.table("Per series:", columns, our_rows)
    columns = ["deadline", "series", "greedy $", "published", "Uniform Progress $", "published"]
    text.table("Baselines beside the published means:", columns, base_rows)


def play_2023(report: Report, text: Markdown) -> None:
    """Two markets for one job, 52 h, beside each alone."""
    job, rows = terms(52), []
    alone: dict[str, Played] = {}
    for pair in PAIRS[:1] if report.quick else PAIRS:
        markets = [read_trace(SERIES_2023 / f"{zone}_v100_1.json") for zone in pair]
        starts = even_starts(min(len(m.there) for m in markets), job.ticks(markets[0].gap_s))
        starts = starts[:: 20 if report.quick else 1]
        for zone, market in zip(pair, markets, strict=True):
            if zone not in alone:
                alone[zone] = replay([market], starts, job, Ours([market], job))
        both = replay(markets, starts, job, Ours(markets, job))
        uniform = replay(markets, starts, job, UniformProgress())
        best = min((alone[zone] for zone in pair), key=lambda played: float(played.cost_usd.mean()))
        low, high = interval((both.cost_usd - best.cost_usd)[:, None])
        singles = [f"{alone[zone].cost_usd.mean():.2f}" for zone in pair]
        ratio = float(both.cost_usd.mean() / best.cost_usd.mean())
        least = float(least_usd(markets, starts, job).mean())
        late = int(both.late.sum())
        rows.append(
            [
                " + ".join(pair),
                " / ".join(singles),
                f"{uniform.cost_usd.mean():.2f}",
                f"{both.cost_usd.mean():.2f}",
                f"{ratio:.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{both.moves.mean():.1f}",
                str(late),
                f"{least:.2f}",
            ]
        )
        report.line(
            f"spot, markets {'+'.join(pair)}",
            f"${both.cost_usd.mean():.2f}, alone ${' and $'.join(singles)}; late {late}",
            "",
            mean_cost_usd=float(both.cost_usd.mean()),
            ratio_to_best_alone=ratio,
            least_usd=least,
            late_runs=late,
        )
    columns = ["markets", "ours, each alone $", "Uniform Progress on both $", "ours on both $"]
    columns += ["of the better one alone", "95 % of the difference, $", "moves", "late"]
    columns += ["with the future known $"]
    text.table("Several markets, 48 h of work within 52 h, 2023:", columns, rows)


def prior() -> None:
    """The counts of the six series of 2023, every third tick, as the module holds them."""
    steps, changes = np.zeros(FINE.states, int), np.zeros(FINE.states, int)
    for file in sorted(SERIES_2023.glob("*.json")):
        trace = read_trace(file)
        thin = Market(trace.name, 600.0, trace.there[::3])
        state = History(thin, FINE).state[:-1]
        steps += np.bincount(state, minlength=FINE.states)
        changed = thin.there[1:] != thin.there[:-1]
        changes += np.bincount(state[changed], minlength=FINE.states)
    for name, counts in (("EXPOSURE", steps), ("CHANGES", changes)):
        print(name, "=", counts.reshape(FINE.shape).tolist())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--markdown", type=Path, help="write the tables there")
    parser.add_argument("--prior", action="store_true", help="print the prior's counts, no more")
    chosen = parser.parse_args()
    report = Report("spot", chosen)
    if not SERIES_2022.exists():
        report.note(f"there are no spot traces at {TRACES}: nothing was measured")
        report.end()
        return
    if chosen.prior:
        prior()
        return
    text = Markdown([])
    for part in (play_2022, play_2023):
        part(report, text)
        if chosen.markdown:
            chosen.markdown.write_text("\n".join(text.lines).strip() + "\n")
    report.end()


if __name__ == "__main__":
    main()
