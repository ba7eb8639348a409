"""Plans that are played unattended: where each stands, and its next stage enlisted when it can be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from assets.chain import STAGES
from assets.stage import Context, enlist_stage
from assets.standing import Standing, count, first_open, standing
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.store.api import StoreSilent

PAUSE_S = 0.5
#: A blocked plan is looked at again after so long: a corrupt object may have been put right.
LOOK_AGAIN_S = 60.0


@dataclass
class Play:
    """One plan, with what was last seen of it.

    Looking costs reads of the store, so it is done when every job that was waited for has ended,
    never because time has passed: 10,000 open jobs cost the dispatcher's LISTs and nothing here.
    """

    context: Context
    standing: Standing = field(default_factory=Standing)
    looked_s: float | None = None  # when the store was last asked where the plan stands
    stopped: str | None = None  # why it could not be asked

    @property
    def name(self) -> str:
        """The plan's name, which is its partition."""
        return self.context.chain.plan.name

    @cached_property
    def trainings(self) -> frozenset[str]:
        """Ids of the jobs it begins with, as its plan, code and data are now."""
        return frozenset(spec.id for spec in self.context.chain.specs("training"))

    def move_on(self) -> bool:
        """Look where the plan stands and enlist its next stage; whether anything was enlisted.

        Trainings are enlisted by a person or the night only: an edit of the code, which changes
        every id, must not start a training by itself.
        """
        known = self.context.dispatcher.world.jobs
        if not self._due() or not known.keys() >= self.trainings:
            return False
        self.looked_s = self.context.clock.monotonic_s()
        self.stopped = None
        try:
            self.standing = standing(self.context.chain)
            stage = self.standing.stage
            if stage is None or self.standing.blocked or known.keys() >= set(self.standing.open):
                return False
            enlist_stage(self.context, stage)
        except (StoreOutOfReach, StoreSilent, Blocked, Corrupt, UsageError) as error:
            self.stopped = str(error)
            return False
        return True

    def _due(self) -> bool:
        if self.looked_s is None:
            return True
        if self.standing.blocked or self.stopped:
            return self.context.clock.monotonic_s() - self.looked_s >= LOOK_AGAIN_S
        known = self.context.dispatcher.world.jobs
        waited = self.standing.open
        return bool(waited) and all(job in known and known[job].final for job in waited)

    def tell_blocked(self) -> None:
        """Notify that a gate ended the chain; of jobs that did, the dispatcher's rounds tell."""
        notifier, found = self.context.dispatcher.notifier, self.standing
        if notifier and found.blocked and not count(self.context.dispatcher, found.jobs).ended:
            notifier.blocked(self.name, found.blocked)

    def waits_for(self, tick: Tick) -> str:
        """What the plan waits for, with numbers."""
        found = self.standing
        if self.stopped or found.blocked:
            return f"{self.name}: {self.stopped or found.blocked}"
        if self.looked_s is None:
            return (
                f"{self.name}: its {len(self.trainings)} trainings are not enlisted as its plan, "
                "code and data are now; `tenure enlist` or the nightly schedule does that"
            )
        if found.stage is None:
            return f"{self.name}: all {len(STAGES)} stages are finished"
        words = count(self.context.dispatcher, found.jobs).words()
        waiting = first_open(self.context.dispatcher, found.open)
        reason = f" ({waiting}: {tick.reason(waiting)})" if waiting else ""
        return f"{self.name}: {found.stage}: {words}{reason}"


def step(dispatcher: Dispatcher, plays: Iterable[Play], for_s: float, clock: Clock) -> Tick:
    """Make rounds until nothing is open or the time is up, and move every plan on that can go on.

    No round begins after ``for_s`` seconds, but the first: what is over, Dagster must be told.
    """
    end_s = clock.monotonic_s() + for_s
    while True:
        tick = dispatcher.tick()
        moved = [play.move_on() for play in plays]
        is_open = [
            job
            for job in dispatcher.world.jobs.values()
            if not (job.final or job.broken or (job.witness and job.witness.held_back))
        ]
        late = clock.monotonic_s() + PAUSE_S > end_s
        if not (any(moved) or is_open or dispatcher.world.bills) or late:
            return tick
        clock.sleep(PAUSE_S)
