"""How often can a lease be renewed, and what does one renewal cost?

    python bench/renew.py

The product's own lease over a directory and over SeaweedFS on loopback: first one lease that is
renewed without a pause, then fifty of them, sixteen at a time, which is what a server has to bear
from so many workers. Prints renewals per second, the processor time of this process for each, and
the p50 and p99 of one conditional write. The p99 that the lease's floor is made of is the target; a
lease needs one renewal in a third of that floor, so the last line says how many leases that is.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from bench.instruments import stores
from bench.instruments.intervals import quantile
from bench.instruments.report import Report, arguments
from bench.instruments.stores import CountingStore
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Confirmed, Lease, acquire
from tenure_protocol.lease.machine import Hold
from tenure_protocol.store.api import P99_S, Store

RUN_S, QUICK_RUN_S = 10.0, 1.0
MANY, AT_ONCE = 50, 16


@dataclass(frozen=True)
class Run:
    """What a number of renewals took."""

    renewals: int
    wall_s: float
    cpu_s: float  # of this process, the server's not included
    write_s: list[float]


def claimed(store: Store, number: int) -> Lease:
    job = f"job{number}"
    got = acquire(store, keys.witness("bench", job), job, 0, 3600.0, 60.0, SYSTEM)
    assert isinstance(got, Lease), got
    return got


def renew(store: CountingStore, leases: list[Lease], at_once: int, for_s: float) -> Run:
    """Renew every lease again and again, ``at_once`` at a time."""
    store.calls.clear()
    began_s, cpu_before_s = SYSTEM.monotonic_s(), time.process_time()

    def some(mine: list[Lease]) -> int:
        count = 0
        while SYSTEM.monotonic_s() - began_s < for_s:
            for lease in mine:
                answer = lease.write(Hold(lease.holder, lease.attempt, lease.witness.silence_s))
                assert isinstance(answer, Confirmed), answer
                count += 1
        return count

    with ThreadPoolExecutor(at_once) as pool:
        renewals = sum(pool.map(some, [leases[n::at_once] for n in range(at_once)]))
    wall_s, cpu_s = SYSTEM.monotonic_s() - began_s, time.process_time() - cpu_before_s
    return Run(renewals, wall_s, cpu_s, [call.seconds for call in store.of("write")])


def tell(what: str, run: Run, needs_s: float, report: Report) -> None:
    rate = run.renewals / run.wall_s
    cpu_ms = run.cpu_s / run.renewals * 1e3
    report.line(
        what,
        f"{rate:.0f} renewals a second, {cpu_ms:.2f} ms of this process's time each; with one in "
        f"{needs_s:.0f} s, {cpu_ms / needs_s / 10:.3f} % of a core for a lease, and "
        f"{rate * needs_s:.0f} leases on this server",
        renewals_per_s=rate, cpu_s_per_renewal=run.cpu_s / run.renewals, renewals=run.renewals,
        leases=rate * needs_s, renewal_due_s=needs_s,
    )  # fmt: skip
    p50_s, p99_s = quantile(run.write_s, 0.5), quantile(run.write_s, 0.99)
    report.line(
        f"{what}, one conditional write",
        f"p50 {p50_s * 1e3:.1f} ms, p99 {p99_s * 1e3:.1f} ms, "
        f"the slowest of {len(run.write_s)} {max(run.write_s) * 1e3:.0f} ms",
        f"p99 at most {P99_S:g} s",
        p50_s=p50_s, p99_s=p99_s, slowest_s=max(run.write_s), writes=len(run.write_s),
    )  # fmt: skip


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("renew", options)
    for_s = QUICK_RUN_S if report.quick else RUN_S
    with closing(stores.each()) as each:
        for name, store in each:
            counting = CountingStore(store)
            leases = [claimed(counting, number) for number in range(MANY)]
            needs_s = store.deadline_s + P99_S  # a third of the shortest lease
            renew(counting, leases, AT_ONCE, for_s / 10)  # connections are open after it
            tell(f"{name}, one lease", renew(counting, leases[:1], 1, for_s), needs_s, report)
            many = renew(counting, leases, AT_ONCE, for_s)
            tell(f"{name}, {MANY} leases, {AT_ONCE} at a time", many, needs_s, report)
    report.end()


if __name__ == "__main__":
    main()
