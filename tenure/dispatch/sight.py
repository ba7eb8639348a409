"""What one dispatcher sees in a round, from all that it keeps: the snapshot that is decided from."""

from __future__ import annotations

from collections.abc import Mapping

from tenure.dispatch.billing import receipt_of
from tenure.dispatch.contract import ALL_KINDS, KnowsEnds
from tenure.dispatch.copies import Stragglers
from tenure.dispatch.decide import RungView, Snapshot
from tenure.dispatch.foretell import Foreseen, Foreteller
from tenure.dispatch.ladder import Rung
from tenure.dispatch.observations import Observatory
from tenure.dispatch.planner import Planner
from tenure.dispatch.quality import Shown
from tenure.dispatch.queueing import Sharing, TeamQueue
from tenure.dispatch.quota import QuotaBook, ends_in_s
from tenure.dispatch.spending import Spending
from tenure.dispatch.world import World
from tenure.dispatch.worth import Worth, quota_worths
from tenure_protocol.clock import Clock
from tenure_protocol.store.api import Store

PLANNER = "the planner"
QUEUE = "the queue"


class Sight:
    """Jobs and bills, what launches came to, what was spent, and what is left of quotas."""

    def __init__(
        self,
        store: Store,
        rungs: Mapping[str, Rung],
        clock: Clock,
        name: str,
        moves: bool,
        plans: bool,
        rates: Mapping[str, float],
        sharing: Sharing,
        backups: bool = False,
    ) -> None:
        """``plans``: whether jobs with a deadline are planned; ``rates``: dollars for a unit of others.

        ``sharing``: the teams, where there are several of them. ``backups``: whether stragglers among the
        planned jobs have copies.
        """
        self._rungs = rungs
        self._clock = clock
        self._moves = moves
        self.world = World(store, clock)
        self.observatory = Observatory(store, rungs, clock, name, self.world)
        self.spending = Spending(store, rungs, clock, self.world)
        self.quotas = QuotaBook(list(rungs.values()), clock)
        self._plans = plans
        self._trouble: dict[str, str] = {}  # of the planner
        self._no_turns: dict[str, str] = {}  # why the queue gave none
        foreseen = Foreseen(rungs, self.observatory)
        stragglers = Stragglers(rungs, self.observatory, self.world) if backups else None
        self._planner = Planner(rungs, self.observatory, rates, foreseen, stragglers)
        self.queue = TeamQueue(store, rungs, clock, self.world, sharing)
        self.foreteller = Foreteller(self.observatory, foreseen)

    def observe(self) -> None:
        """Look at everything once. Raises nothing for a silent store or platform."""
        self.world.observe()
        self.observatory.look()
        self.spending.look()
        self.queue.look()
        if not self.quotas.empty:
            open_jobs = (m for m in self.world.jobs.values() if not m.final)
            in_use = {rung for memory in open_jobs for rung in memory.rungs}
            self.quotas.look(in_use, self._machines())

    def note_ends(self, knowing: Mapping[str, KnowsEnds]) -> None:
        """Ask the runners that know it how the processes of open launches ended: for people only.

        Nothing is decided from it, because a worker may live on where its runner does not look.
        """
        for memory in self.world.jobs.values():
            w = memory.witness
            launch = w.holder.launch if w and w.holder else w.launched if w else 0
            bill = self.world.bills.get((memory.job, launch))
            memory.ended = ""
            if bill is None or bill.receipt is None or w is None:
                continue
            if w.phase not in ("expected", "held"):
                continue
            if runner := knowing.get(bill.receipt.rung):
                memory.ended = runner.ended(receipt_of(bill.receipt)) or ""

    @property
    def troubles(self) -> dict[str, str]:
        """What is wrong with which key or platform."""
        return {
            **self.world.troubles,
            **self.observatory.troubles,
            **self.observatory.lifetimes.troubles,
            **self.spending.troubles,
            **self.quotas.troubles,
            **self.queue.troubles,
            **self._trouble,
            **self._no_turns,
        }

    def snapshot(self, parked: Mapping[str, tuple[float, str]]) -> Snapshot:
        """Everything a decision depends on; ``parked`` says of rungs until when (monotonic), and why."""
        rungs = {
            name: RungView(
                name,
                rung.runner.JOB_KINDS & ALL_KINDS,
                rung.capacity,
                *parked[name],
                rung.price.currency if rung.price and rung.price.per_h > 0 else "",
                rung.runner_name,
                self.quotas.left_h(name),
                self.quotas.awaited(name) or "",
                self.observatory.start_s(name) or 0.0,
            )
            for name, rung in self._rungs.items()
        }
        seen = Snapshot(
            self.world.job_views(self._shown),
            self.world.bill_views(),
            rungs,
            self.queue.unread if self.world.bills_seen else "the open launches cannot be read yet",
            self.spending.spent(),
            self._clock.wall_s(),
        )
        return self._in_turn(self._planned(seen) if self._plans else seen)

    def _in_turn(self, seen: Snapshot) -> Snapshot:
        """With everybody's place; a bug of the queue must not end the rounds."""
        try:
            queued = self.queue.advised(seen)
        except Exception as error:
            words = f"it failed, and the order of the plans holds: {type(error).__name__}: {error}"
            self._no_turns = {QUEUE: words}
            return seen
        self._no_turns = {}
        return queued

    def _planned(self, seen: Snapshot) -> Snapshot:
        """With the planner's advice; a bug of it must not end the rounds: then the user's order holds."""
        try:
            planned = self._planner.advised(seen, self._clock.monotonic_s())
        except Exception as error:
            self._trouble = {
                PLANNER: f"it failed, and the order of the plan holds: {type(error).__name__}: {error}"
            }
            return seen
        self._trouble = {}
        return planned

    def quota_worths(self, seen: Snapshot) -> list[Worth]:
        """What an hour of each quota would save now, over the open jobs of a snapshot."""
        if self.quotas.empty:
            return []
        now_s = self._clock.monotonic_s()
        prospects = self._planner.prospects(seen, now_s)
        return quota_worths(seen, self._rungs, prospects, self._planner.rates, now_s)

    def quota_wall_s(self, rung: Rung) -> float | None:
        """When the quota that a new machine draws on ends, if all that are there go on."""
        left = self.quotas.left_h(rung.name)
        if left is None:
            return None
        mates = [other.name for other in self._rungs.values() if other.runner is rung.runner]
        machines = self._machines()
        drawing = max(1, sum(machines.get(name, 0) for name in mates))  # its own bill is open
        return ends_in_s(left, drawing, self._clock.wall_s())

    def _machines(self) -> Mapping[str, int]:
        """How many machines of each rung are open."""
        return Snapshot((), self.world.bill_views(), {}).taken

    def _shown(self, job: str) -> Shown:
        """What the attempt of a job has shown, and what is expected of every rung that it may use."""
        work = self.observatory.flops_left(job)
        pace = self.observatory.pace(job) if self._moves else None
        if pace is None:
            return Shown(work)
        options = self.observatory.options(job, pace, self.world.jobs[job].rungs)
        return Shown(work, pace, self.observatory.usual_of(job), options)
