"""Two dispatchers on one store: is anything ever launched twice, and what does a second one cost?

    python bench/dispatchers.py

1,000 jobs on two rungs, in virtual time over a store in memory whose conditional writes are real:
jobs are launched, claimed, released, lost, finished and launched again all the time. Any two calls
of one dispatcher have calls of the other between them; each of them freezes inside a call for
longer than a lease, is killed before or after a call and replaced, and has calls that are not
answered. ``bench/instruments/rivals.py`` says what is demanded at every write; a broken rule ends
this with its words. Afterwards all faults stop, and every job must end, every bill be closed and
every launch have its cost.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from bench.instruments.report import Report, arguments
from bench.instruments.rivals import Story, Weather, World
from tenure_protocol.clock import SYSTEM
from tests.fake_clock import FakeClock

JOBS, QUICK_JOBS = 1_000, 60
SLOTS, QUICK_SLOTS = 60, 8  # of each of two rungs
TICKS, QUICK_TICKS = 10_000, 100  # of both dispatchers together
DISPATCHERS = 2
#: Whoever takes a dead one's place reads four objects of each job: 4,000 calls, in which it may die too.
STORM = replace(Weather(), freeze=1 / 20_000, kill=1 / 20_000, silent=1 / 5_000)


def play(jobs: int, slots: int, ticks: int, seed: int) -> tuple[Story, float]:
    """One history, and how many real seconds it took."""
    began_s = SYSTEM.monotonic_s()
    with FakeClock() as clock:
        world = World(seed, jobs, slots, clock, STORM, DISPATCHERS)
        story = world.play(-(-ticks // DISPATCHERS))
    return story, SYSTEM.monotonic_s() - began_s


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, help=f"instead of {JOBS}")
    parser.add_argument("--ticks", type=int, help=f"of both together, instead of {TICKS}")
    parser.add_argument("--seed", type=int, default=1, help="another history")
    options: argparse.Namespace = parser.parse_args()
    report = Report("dispatchers", options)
    jobs = options.jobs or (QUICK_JOBS if report.quick else JOBS)
    ticks = options.ticks or (QUICK_TICKS if report.quick else TICKS)
    slots = QUICK_SLOTS if report.quick else SLOTS
    report.note(f"seed {options.seed}; {slots} slots of each of two rungs; {DISPATCHERS} at once")
    story, took_s = play(jobs, slots, ticks, options.seed)
    report.line(
        f"{jobs:,} jobs, {story.ticks:,} ticks of {DISPATCHERS} dispatchers: launches made twice",
        f"0 of {story.launches:,} (every rule held; {story.virtual_s / 3600:.1f} h of virtual time "
        f"in {took_s:.0f} s); {story.races} decided at once by both, {story.kills} dispatchers "
        f"killed",
        "0",
        twice=0, launches=story.launches, ticks=story.ticks, races=story.races, kills=story.kills,
        virtual_s=story.virtual_s, took_s=took_s,
    )  # fmt: skip
    most = max(story.most.values())
    report.line(
        "the most slots of a rung that were taken at once",
        f"{most} of {story.slots}",
        f"at most {DISPATCHERS * story.slots}: what one has opened the other sees at its next look",
        most_slots=most, slots=story.slots,
    )  # fmt: skip
    ends = ", ".join(f"{count} {end}" for end, count in sorted(story.ends.items()))
    report.line(
        "what became of the jobs once the faults had stopped",
        f"{ends}; every bill is closed, and {story.costs:,} launches have their cost",
        f"{jobs} over, no bill open",
        **{f"{end}_jobs": count for end, count in story.ends.items()}, costs=story.costs,
    )  # fmt: skip
    report.end()


if __name__ == "__main__":
    main()
