"""What does a team gain by playing tricks on the queue, against an honest twin with the same work?

    python bench/queue_tricks.py
    python bench/queue_tricks.py --seeds 200 --markdown     # the tables of docs/queue.md

Seeded months (``tenure/sim/queue_tricks.py``) under Tenure's queue and in the system of the seed, which takes jobs as
they come and lets a team's urgent job take the place of its lesser one. A seed is the same month for the squatter
and for its twin. The gain is that of the mean wait over all real work of all months; its bounds are from redrawing
the months. Counts do not depend on the machine that this runs on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.instruments.report import Report, arguments
from tenure.queue.play import play
from tenure.queue.policies import Name
from tenure.sim.queue_tricks import SETTINGS, TRICKS, Setting, month, real_waits

SEEDS, QUICK_SEEDS = 8, 2
THEIRS: Name = "fifo-local-preemption"
#: Where the seed's system has something to gain; elsewhere it is first come first served.
THEIR_TRICKS = ("placeholder", "placeholder, replaced by name", "long low-priority fillers")
MOST_GAIN = 0.02

Month = tuple[float, int]  # seconds waited, pieces of work


def months(
    setting: Setting, seeds: int, trick: str | None, policy: Name
) -> tuple[list[Month], float]:
    """Per month; and penalties a month."""
    found, penalties = [], 0
    for seed in range(seeds):
        played = play(month(setting, seed, trick), policy)
        waits = real_waits(played)
        found.append((sum(waits), len(waits)))
        penalties += len(played.penalties)
    return found, penalties / seeds


def gain(twin: Sequence[Month], squatter: Sequence[Month]) -> tuple[float, float, float]:
    """How much shorter the squatter's mean wait is, and 95 % bounds: months are redrawn as pairs."""
    first, second = np.array(twin, dtype=float), np.array(squatter, dtype=float)
    rows = np.random.default_rng(0).integers(0, len(twin), (2000, len(twin)))

    def part(at: np.ndarray) -> np.ndarray:
        mine, its = second[at].sum(axis=-2), first[at].sum(axis=-2)
        return 1 - (mine[..., 0] / mine[..., 1]) / (its[..., 0] / its[..., 1])

    low, high = np.quantile(part(rows), [0.025, 0.975])
    return float(part(np.arange(len(twin)))), float(low), float(high)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, help=f"months; instead of {SEEDS}")
    parser.add_argument("--settings", default="all", help="all, or names with ';' between them")
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/queue.md too")
    options = parser.parse_args()
    report = Report("queue_tricks", options)
    seeds = options.seeds or (QUICK_SEEDS if report.quick else SEEDS)
    wanted = [s for s in SETTINGS if options.settings == "all" or s.name in options.settings]
    rows = []
    worst = -1.0
    for setting in wanted[: 1 if report.quick else None]:
        policies: tuple[Name, ...] = ("ours", THEIRS)
        twins = {policy: months(setting, seeds, None, policy)[0] for policy in policies}
        for trick in TRICKS:
            cells = [setting.name, trick]
            for policy in policies if trick in THEIR_TRICKS else policies[:1]:
                squatter, penalties = months(setting, seeds, trick, policy)
                found, low, high = gain(twins[policy], squatter)
                honest_h = sum(w for w, _ in twins[policy]) / sum(n for _, n in squatter) / 3600
                tricky_h = sum(w for w, _ in squatter) / sum(n for _, n in squatter) / 3600
                if policy == "ours":
                    worst = max(worst, found)
                report.line(
                    f"{setting.name}, {trick}: {policy}",
                    f"{tricky_h:.2f} h for {honest_h:.2f} h: {found:+.1%} ({low:+.1%} to {high:+.1%}), "
                    f"{penalties:.1f} penalties a month",
                    f"at most {MOST_GAIN:+.0%}" if policy == "ours" else "",
                    gain=found, low=low, high=high, honest_h=honest_h, tricky_h=tricky_h,
                    penalties=penalties,
                )  # fmt: skip
                cells.append(f"{honest_h:.2f} / {tricky_h:.2f} | {found:+.0%}")
            rows.append("| " + " | ".join(cells) + " |")
    report.line(
        f"the largest gain of a trick over {seeds} months",
        f"{worst:+.2%}",
        f"at most {MOST_GAIN:+.0%}",
        worst=worst,
    )
    if options.markdown:
        print("\n".join(rows))
    report.end()


if __name__ == "__main__":
    main()
