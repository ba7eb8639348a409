"""Three answers to "stay or move", over one dispatcher: its own, and two that people use instead.

``ours`` is the product's dispatcher, which follows the ladder: its plans have no deadlines to look at.
``planner`` is the same with its planner, which has. The other two are the same dispatcher, with the same
leases, timers, retries and exclusions, which judges no speed and is told which rungs a job may use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tenure.dispatch.decide import JobView, Snapshot
from tenure.dispatch.loop import Dispatcher, Rung
from tenure_protocol.clock import Clock
from tenure_protocol.records import FINAL
from tenure_protocol.store.api import Store

Policy = Literal["ours", "planner", "three", "stay"]
POLICIES: tuple[Policy, ...] = ("ours", "three", "stay")
PRODUCT: tuple[Policy, ...] = ("ours", "planner")
FAILURES = 3  # on one rung, after which a count of failures goes on to the next


@dataclass
class Home:
    """The rung of a job, and what went wrong there."""

    rung: str
    since: int  # the launch that first took it
    good: int = 0  # the newest launch that ended in good order: it is no failure
    goods: int = 0  # how many of those since


class Rooted(Dispatcher):
    """Keeps each job on the rung that first took it: for ever, or until it has failed there often.

    A rung takes a job when its platform has accepted a launch of it; one on which the job cannot run
    at all (out of memory) has not taken it after all. Every launch there that ended and did not finish
    the job is a failure, a refusal for want of room or quota included; only an attempt that was released
    in good order with a milestone behind it (a wall, a notice) is none. Who stays for ever waits.
    """

    def __init__(
        self, store: Store, rungs: Sequence[Rung], clock: Clock, name: str, failures: int | None
    ) -> None:
        """``failures``: how many of them make a job leave a rung; ``None``: it never leaves."""
        super().__init__(store, rungs, clock, name, moves=False)
        self._failures = failures
        self._homes: dict[str, Home] = {}

    def snapshot(self) -> Snapshot:
        """What is decided from, with the rungs of each job cut down to those it may use."""
        for (job, launch), bill in self.world.bills.items():
            if bill.receipt is not None:
                self._took(job, launch, bill.rung)
        seen = super().snapshot()
        return replace(seen, jobs=tuple(map(self._cut_down, seen.jobs)))

    def _cut_down(self, view: JobView) -> JobView:
        if view.witness is not None and view.witness.phase in FINAL:
            return view
        allowed = self._allowed(view)
        return view if allowed == view.rungs else _with_rungs(view, allowed)

    def _took(self, job: str, launch: int, rung: str) -> None:
        home = self._homes.get(job)
        if home is None or (home.rung != rung and launch >= home.since):
            self._homes[job] = Home(rung, launch)

    def _allowed(self, view: JobView) -> tuple[str, ...]:
        home, w = self._homes.get(view.job), view.witness
        if home is None or w is None:
            return view.rungs
        if self._failures is None:
            if home.rung not in view.excluded:
                return (home.rung,)
            del self._homes[view.job]
            return view.rungs
        fruitful = w.pointer is not None and w.pointer.attempt == w.attempt
        if w.phase == "released" and fruitful and w.launched > home.good:
            home.good, home.goods = w.launched, home.goods + 1
        # As if the newest had ended: while it may go on, nobody asks where to launch the next.
        failed = w.launched - home.since + 1 - home.goods
        later = view.rungs[view.rungs.index(home.rung) + 1 :]
        usable = tuple(name for name in later if name not in view.excluded)
        if not usable or (failed < self._failures and home.rung not in view.excluded):
            return (home.rung,)
        return usable


def _with_rungs(view: JobView, rungs: tuple[str, ...]) -> JobView:
    """What ``replace`` gives; that takes a tenth of a long week, for it goes through every field."""
    made = object.__new__(JobView)
    vars(made).update(vars(view), rungs=rungs)
    return made


def dispatcher_of(
    policy: Policy, store: Store, rungs: Sequence[Rung], clock: Clock, name: str
) -> Dispatcher:
    """The dispatcher of a policy."""
    if policy in PRODUCT:
        return Dispatcher(store, rungs, clock, name, plans=policy == "planner")
    return Rooted(store, rungs, clock, name, FAILURES if policy == "three" else None)
