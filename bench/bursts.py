"""How long do short calls wait when they come in bursts over many machines, by how many a scheduler looks at?

    python bench/bursts.py

Section 11.3.2: 160 machines of 30 cores, calls of one second, 4,800 a second for four seconds, which is all
that the machines can do. *k* machines are drawn for each call and the least loaded of them takes it; *all*
looks at every one of them. Views are as old as the column says; each of the schedulers corrects its own by
what it has placed itself, or does not. A machine admits two calls a core and refuses more. Everything is
seeded virtual time, so the numbers are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench.instruments.report import Report, arguments
from tenure.queue.burst_play import Burst, Played, play

FULL = Burst(calls=19_200, machines=160, cores=30, within_s=4.0)
QUICK = replace(FULL, calls=960, machines=8)
KS = (1, 2, 3)
VIEWS_S = (0.1, 1.0)
SCHEDULERS = (1, 8)


def words(played: Sequence[Played]) -> str:
    """Means over the seeds; the tail and the largest number aboard are the worst of them."""
    count = len(played)
    mean_ms = 1000 * sum(each.mean_wait_s for each in played) / count
    tail_ms = 1000 * max(each.wait_s(0.99) for each in played)
    refused = sum(each.refusals for each in played) / count
    return f"mean wait {mean_ms:.1f} ms, p99 {tail_ms:.0f} ms, {refused:.0f} refusals"


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    told = parser.parse_args()
    report = Report("bursts", told)
    base = QUICK if told.quick else FULL
    for corrects in (True, False):
        for schedulers in SCHEDULERS:
            for view_s in VIEWS_S:
                for k in (*KS, base.machines):
                    burst = replace(
                        base, corrects=corrects, schedulers=schedulers, gathered_every_s=view_s, k=k
                    )
                    played = [play(burst, seed) for seed in range(told.seeds)]
                    what = f"{schedulers} schedulers, views of {view_s:g} s"
                    how = "corrected" if corrects else "as gathered"
                    report.line(
                        f"{what}, {how}, k = {'all' if k == base.machines else k}",
                        words(played),
                        mean_wait_s=sum(each.mean_wait_s for each in played) / len(played),
                        p99_wait_s=max(each.wait_s(0.99) for each in played),
                        refusals=sum(each.refusals for each in played) / len(played),
                    )
    report.end()


if __name__ == "__main__":
    main()
