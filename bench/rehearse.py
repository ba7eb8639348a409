"""How long does a rehearsal take, and how many rounds of the dispatcher's rule are in it?

    python bench/rehearse.py

Plans of some tens of jobs on a sure rung and two cheap ones whose machines are lost, with a deadline that
makes the planner work. Counts do not depend on the machine; the seconds do, so each is also given over those
of the same plays by the user's order in the same run. They are of one processor, whatever else the machine does.
"""

from __future__ import annotations

import psutil

from bench.instruments.report import Report, arguments
from tenure.plan import rehearse_play
from tenure.plan.rehearse import rehearse
from tenure.plan.rehearse_script import Kind, Script, Station
from tenure.plan.survival import exponential
from tenure.plan.throughput import known

H = 3600.0
PLAYS, QUICK_PLAYS = 200, 5


def script(jobs: int, due_h: float) -> Script:
    starts_s = (60.0, 120.0, 400.0)
    stations = tuple(
        Station(
            name, name, slots, starts_s, exponential(death / H), exponential(death / H), per_h=price, usd_per_h=price,
            on_demand=sure, load_s=30.0, save_s=10.0, silence_s=60.0,
        )
        for name, slots, death, price, sure in (
            ("sure", 2, 0.005, 2.6, True), ("spot", 6, 0.2, 0.3, False), ("host", 4, 0.1, 0.4, False),
        )
    )  # fmt: skip
    laws = {
        "sure": known(2.0, 0.9, 0.1),
        "spot": known(1.0, 0.9, 0.1),
        "host": known(1.2, 0.9, 0.1),
    }
    return Script((Kind("job", 10 * H, 1800.0, laws),) * jobs, stations, deadline_s=due_h * H)


def timed(plan: Script, plays: int, planned: bool) -> tuple[float, float]:
    """Seconds of this process's processor, and launches of a play."""
    began_s = cpu_s()
    told = rehearse(plan, plays, 0, planned)
    launches = sum(each.launches for each in told.rungs)
    return cpu_s() - began_s, launches


def cpu_s() -> float:
    return float(psutil.Process().cpu_times().user)


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("rehearse", options)
    plays = QUICK_PLAYS if report.quick else PLAYS
    advise, rounds = rehearse_play.advise, [0]

    def counted(*args: object) -> object:
        rounds[0] += 1
        return advise(*args)  # type: ignore[arg-type]

    for jobs, due_h in ((10, 30.0), (30, 40.0), (60, 80.0)):
        plan = script(jobs, due_h)
        order_s, _ = timed(plan, plays, planned=False)
        planned_s, launches = timed(plan, plays, planned=True)
        rounds[0] = 0
        rehearse_play.advise = counted  # type: ignore[assignment]
        rehearse(plan, min(plays, 10), 0)
        rehearse_play.advise = advise
        each = rounds[0] / min(plays, 10)
        report.line(
            f"{jobs} jobs due in {due_h:g} h, {plays} plays",
            f"{planned_s:.1f} s of one processor by the planner, {order_s:.1f} s by the user's order; a play has "
            f"{launches:.0f} launches and {each:.0f} rounds",
            planned_s=planned_s, order_s=order_s, ratio=planned_s / order_s, launches=launches, rounds=each,
        )  # fmt: skip
    report.end()


if __name__ == "__main__":
    main()
