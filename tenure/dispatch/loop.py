"""Observe, decide, act. Many dispatchers may run at once: every action that matters is conditional."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING

from tenure.dispatch import copies, decide
from tenure.dispatch.billing import Billing
from tenure.dispatch.billing import receipt_of as receipt_of
from tenure.dispatch.contract import (
    Environment,
    Job,
    KnowsEnds,
    LaunchFailed,
    NoSlots,
    ProtocolError,
    Receipt,
    Rejected,
    Settlement,
    Unreachable,
)
from tenure.dispatch.decide import Snapshot
from tenure.dispatch.ladder import Rung as Rung
from tenure.dispatch.ladder import launch_name as launch_name
from tenure.dispatch.ladder import pack_name
from tenure.dispatch.queueing import Queue, Sharing
from tenure.dispatch.sight import Sight
from tenure.dispatch.sweep import Sweeper
from tenure.dispatch.world import Bill, JobMemory, PendingLaunch
from tenure.dispatch.worth import Worth
from tenure.errors import StoreOutOfReach
from tenure_protocol.clock import Clock
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Stored, Unsettled, change
from tenure_protocol.lease.machine import Ask, Cancel, Reserve, Revoke
from tenure_protocol.records import Aboard, Intent, JobSpec, LaunchReceipt, Witness
from tenure_protocol.store.api import Store, StoreSilent
from tenure_protocol.store.settle import create_once

if TYPE_CHECKING:
    from tenure.notify.notifier import Notifier

WATCH_EVERY_S = 1.0
_NO_SLOTS_PARK_S = 15.0
_FIRST_BACKOFF_S = 5.0
_LONGEST_BACKOFF_S = 600.0
_MOST_DOUBLINGS = 20  # a platform may refuse for weeks
_WATCH = "the watch"
_REJECTED_PARK_S = 60.0
_YIELD_WITHIN_S = 600.0  # for the step under way and a last milestone
_LEFT_FOR_S = 3600.0  # so long a job does not go back to a rung that it was taken from
_SLOW_S = 5.0  # a release that takes longer keeps others of its runner out of the round


@dataclass
class _Parking:
    until_s: float = 0.0
    reason: str = ""
    failures: int = 0


@dataclass(frozen=True)
class _Reserved:
    """A launch that is announced in the witness of its job, and not made yet."""

    memory: JobMemory
    spec: JobSpec
    launch: int
    reason: str

    @property
    def job(self) -> str:
        return self.memory.job


@dataclass(frozen=True)
class Tick:
    """What one round saw and did, for people."""

    decisions: tuple[tuple[decide.Action, str], ...]
    troubles: Mapping[str, str] = field(default_factory=dict)
    unmade: Mapping[str, str] = field(default_factory=dict)  # job: why its launch was not made now
    orphans: int = 0  # machines without a bill that this dispatcher has found so far

    def reason(self, job: str) -> str:
        """The last reason given for a job, or why it could not be acted on."""
        if job in self.unmade:
            return f"not launched: {self.unmade[job]}"
        return self._last_of.get(job, "no plan names it")

    @cached_property
    def _last_of(self) -> Mapping[str, str]:
        """The last reason by job: a table of 10,000 jobs asks for each of them."""
        return {action.job: why for action, why in self.decisions}


class Dispatcher:
    """One ladder of rungs over one store."""

    def __init__(
        self,
        store: Store,
        rungs: Sequence[Rung],
        clock: Clock,
        name: str = "",
        troubles: Mapping[str, str] | None = None,
        moves: bool = True,
        plans: bool = True,
        rates: Mapping[str, float] | None = None,
        notifier: Notifier | None = None,
        backups: bool = False,
        sharing: Sharing | None = None,
    ) -> None:
        """``troubles`` are told at every tick: what is wrong for as long as this dispatcher lives.

        Without ``moves`` no holder is asked to yield for a better machine; without ``plans`` deadlines
        are not looked at. ``rates``: dollars for one unit of another currency, for the planner; ``backups``:
        whether it enlists copies of stragglers. Where ``sharing`` names several teams, their shares say
        whose job goes next.
        """
        self._store = store
        self.rungs: Mapping[str, Rung] = {rung.name: rung for rung in rungs}
        self._clock = clock
        self.name = name or f"dispatcher-{clock.nonce()}"
        self._parked = {rung.name: _Parking() for rung in rungs}
        self._knowing: dict[str, KnowsEnds] = {
            rung.name: rung.runner for rung in rungs if isinstance(rung.runner, KnowsEnds)
        }
        self._watching: list[bool] = []  # emptied to end the thread it was made for
        self._lock = RLock()  # one round at a time: Dagster may cut a tick and begin another
        self._slow: set[str] = set()  # runners that let this round wait
        self._no_answer: set[str] = set()  # rungs that were silent or full in this round
        self._decided: dict[str, str] = {}  # by job, the ETag of the body last decided from
        self._standing = dict(troubles or {})
        self.notifier = notifier
        self._sight = Sight(
            store,
            self.rungs,
            clock,
            self.name,
            moves,
            plans and moves,
            rates or {},
            sharing or Sharing(),
            backups,
        )
        self.world, self.observatory = self._sight.world, self._sight.observatory
        self.spending = self._sight.spending
        self._billing = Billing(store, self.rungs, clock, self.name, self.world)
        self.sweeper = Sweeper(rungs, store.url, clock, self.world)

    # -------------------------------------------------------------------------------- rounds

    def tick(self) -> Tick:
        """One round. Raises nothing for a silent store or a platform that fails."""
        with self._lock:
            return self._tick()

    def _tick(self) -> Tick:
        self._observe()
        self._make_pending()
        seen = self.snapshot()
        decisions = decide.decide(seen, self._clock.monotonic_s())
        unmade: dict[str, str] = {}
        aboard = {
            action.job: (action, reason)
            for action, reason in decisions
            if isinstance(action, decide.Launch)
        }
        for action, reason in decisions:
            if isinstance(action, decide.Launch):
                if action.job == (action.pack or (action.job,))[0]:  # the others go with the first
                    unmade |= self._launch([aboard[job] for job in action.pack or (action.job,)])
            elif isinstance(action, decide.Cancel):
                self._write(action.job, Cancel(self.name, reason))
            elif isinstance(action, decide.AskToYield):
                self._move(action)
            elif isinstance(action, decide.EnlistCopy):
                self._enlist_copy(action, reason)
            elif isinstance(action, decide.TakeAway):
                self._write(action.job, Revoke(action.by, reason, action.held_back))
            elif isinstance(action, decide.ReleaseBill):
                self._release(action, reason)
        self.sweeper.sweep()
        self.observatory.write()
        tick = self._told(decisions, unmade)
        if self.notifier is None:
            return tick
        left = {rung.account: rung.quota for rung in seen.rungs.values() if rung.quota}
        self.notifier.tell(tick, self.world, seen.spent, left)
        return replace(tick, troubles={**tick.troubles, **self.notifier.troubles})

    def _told(
        self,
        decisions: Sequence[tuple[decide.Action, str]],
        unmade: Mapping[str, str] | None = None,
    ) -> Tick:
        troubles = {
            **self._standing,
            **self._sight.troubles,
            **self.sweeper.troubles,
        }
        return Tick(tuple(decisions), troubles, unmade or {}, self.sweeper.found)

    def look(self) -> Tick:
        """Observe and decide, and do nothing: what ``tenure why`` and ``status`` show."""
        with self._lock:
            self._observe()
            return self._told(decide.decide(self.snapshot(), self._clock.monotonic_s()))

    def _observe(self) -> None:
        """A round begins."""
        self._slow.clear()
        self._no_answer.clear()
        self._sight.observe()
        if self._knowing:
            self._sight.note_ends(self._knowing)

    def snapshot(self) -> Snapshot:
        """Everything a decision depends on, as seen by the last observation.

        The bodies it is decided from are noted: the background watch may read newer ones before the
        decision is acted on, and a decision holds for the body it was made from alone.
        """
        seen = self._sight.snapshot({n: (p.until_s, p.reason) for n, p in self._parked.items()})
        self._decided = {view.job: view.etag for view in seen.jobs}
        return seen

    def team_queue(self) -> Queue | None:
        """Everybody's place as of the last look, or ``None`` where there is one team."""
        teams = self._sight.queue
        return teams.queue(self.world.job_views()) if teams.shared else None

    def quota_worths(self) -> list[Worth]:
        """What one more hour of each quota that a platform has told would save now, in dollars."""
        return self._sight.quota_worths(self.snapshot())

    def follow(
        self,
        jobs: Sequence[str],
        every_s: float = 0.5,
        for_s: float | None = None,
        report: Callable[[Tick], None] | None = None,
    ) -> dict[str, Witness]:
        """Step until every one of ``jobs`` is final or stopped, or ``for_s`` seconds have passed.

        Returns the final witnesses; a job that is missing from them is stopped by a corrupt object
        (``world.jobs[job].broken`` names it) or was not final in time. Run again, it attaches.
        """
        end_s = None if for_s is None else self._clock.monotonic_s() + for_s
        wanted = set(jobs)
        while True:
            tick = self.tick()
            if report:
                report(tick)
            done = self._final(jobs)
            known = self.world.jobs
            broken = {job for job in wanted if job in known and known[job].broken}
            if wanted <= broken | set(done):
                return done
            if end_s is not None and self._clock.monotonic_s() >= end_s:
                return done
            self._clock.sleep(every_s)

    def drain(
        self,
        for_s: float = 60.0,
        every_s: float = 0.5,
        experiment: str | None = None,
        report: Callable[[Tick], None] | None = None,
    ) -> bool:
        """Close bills until none is open (of one experiment, if named), at most ``for_s`` seconds.

        Launches nothing. At the end whatever still runs without a bill is ended as well, within the
        same time. Returns whether no bill is left, and no machine that was to be ended.
        """
        try:
            return self._drain(for_s, every_s, experiment, report)
        finally:
            self.observatory.settle()

    def _drain(
        self,
        for_s: float,
        every_s: float,
        experiment: str | None,
        report: Callable[[Tick], None] | None,
    ) -> bool:
        end_s = self._clock.monotonic_s() + for_s
        swept = False
        while True:
            tick = self.look()
            if report:
                report(tick)
            for action, reason in tick.decisions:
                if isinstance(action, decide.ReleaseBill):
                    self._release(action, reason)
            settled = self._settled(experiment)
            if settled:
                self.sweeper.sweep(at_once=not swept)
                swept = True
                if report and self.sweeper.troubles:
                    report(self._told(()))
                if self.sweeper.clean:
                    return True
            if self._clock.monotonic_s() >= end_s:
                return settled and not self.sweeper.orphans
            self._clock.sleep(every_s)

    def _settled(self, experiment: str | None) -> bool:
        """Whether no bill is open (of one experiment, if named) and none may be hidden."""
        jobs = self.world.jobs
        return self.world.whole and not any(
            experiment is None or (job in jobs and jobs[job].experiment == experiment)
            for job, _ in self.world.bills
        )

    def _final(self, jobs: Sequence[str]) -> dict[str, Witness]:
        found = {}
        for job in jobs:
            memory = self.world.jobs.get(job)
            if memory and memory.witness and memory.final:
                found[job] = memory.witness
        return found

    def keep_watching(self) -> None:
        """List in a background thread, where the pause between ticks is longer than a gap may be."""
        if self._watching:
            return
        watching = self._watching = [True]

        def run() -> None:
            while watching:
                try:
                    self.world.watch()
                    self.world.troubles.pop(_WATCH, None)
                except Exception as error:  # a bug must not end the watch without a word
                    self.world.troubles[_WATCH] = f"it failed: {type(error).__name__}: {error}"
                self._clock.sleep(WATCH_EVERY_S)

        self._clock.spawn(run, "tenure-watch")

    def stop_watching(self) -> None:
        """Let the background watch end."""
        self._watching.clear()

    def leave(self) -> None:
        """The last words of a dispatcher: the watch ends, and what it has seen is written at once.

        What others foretold of jobs that are over is scored first. A silent store costs knowledge and
        nothing else. Workers go on.
        """
        self.stop_watching()
        with self._lock:
            self.observatory.settle()

    # -------------------------------------------------------------------------------- actions

    def _launch(self, pack: Sequence[tuple[decide.Launch, str]]) -> dict[str, str]:
        """Reserve each job of one machine, write its intent, launch, keep the receipt: in this order.

        Whoever is lost to a race falls out, and the others go on without it. Returns why a job was not
        launched, in words, by job.
        """
        rung = self.rungs[pack[0][0].rung]
        if rung.name in self._no_answer:
            words = f"rung {rung.name} has just been parked ({self._parked[rung.name].reason})"
            return {action.job: words for action, _ in pack}
        reserved, unmade = [], {}
        for action, reason in pack:
            got = self._reserve(action, rung, reason)
            if isinstance(got, str):
                unmade[action.job] = got
            else:
                reserved.append(got)
        return unmade | self._make(reserved, rung)

    def _reserve(self, action: decide.Launch, rung: Rung, reason: str) -> _Reserved | str:
        """Announce the next launch of a job in its witness; or why it is not announced, in words."""
        memory = self.world.jobs[action.job]
        if memory.spec is None:
            return "its spec has not been read yet"  # an unreadable one is named in troubles
        stored = self._reread(memory)
        if stored is None:
            return "its witness changed or could not be read; decided anew"
        # a window that ran out again and again was too short for what goes on there
        missed = memory.no_shows.get(rung.name)
        doubled = min(missed.count, decide.FRUITLESS_BUDGET) if missed else 0
        event = self._reservation(rung, action.evidence, stored, 2.0**doubled)
        key = keys.witness(memory.experiment, memory.job)
        outcome = change(self._store, key, memory.job, stored, event, self._clock)
        if isinstance(outcome, Unsettled):
            launched = stored.witness.launched if stored.witness else 0
            memory.pending = PendingLaunch(launched + 1, rung.name, reason)
            if action.evidence == "vacant" and outcome.locked:
                self._thaw(memory, outcome.reason)
            return outcome.reason
        if not isinstance(outcome, Applied):
            return "somebody else wrote its witness; decided anew"
        w = stored.witness
        if action.evidence == "vacant" and w and w.phase == "expected":
            self.world.note_no_show(memory, w)
        self.world.adopt(memory, outcome.witness, outcome.etag)
        return _Reserved(memory, memory.spec, outcome.witness.launched, reason)

    def _reservation(
        self, rung: Rung, evidence: decide.Evidence, stored: Stored, doubled: float
    ) -> Reserve:
        """What is announced: the claim window, and what the worker chooses its leases by."""
        default_s, seen = rung.capacity.window_s, self.observatory.risks(rung)
        w, lapsed_s = stored.witness, None
        if evidence == "vacant" and w and w.phase == "held" and w.announced is None:
            lapsed_s = min(stored.age_s, w.silence_allowed_s)  # what follows is our own delay
        return Reserve(
            rung.runner_name,
            seen.window_s * doubled,
            self.name,
            evidence,
            first_silence_s=default_s * doubled,
            restart_s=seen.restart_s,
            death_per_h=seen.death_per_h,
            lapsed_s=lapsed_s,
            ratios=seen.ratios.to_json() if seen.ratios.total else None,
        )

    def _thaw(self, memory: JobMemory, reason: str) -> None:
        """Close the bill of a lapsed holder that the reservation could not be written over.

        A process frozen inside a conditional write of a directory store holds the key's lock for as
        long as it is frozen; ending it frees the lock, and its lease has run out anyway.
        """
        w = memory.witness
        launch = w.holder.launch if w and w.holder else 0
        bill = self.world.bills.get((memory.job, launch))
        if bill and not bill.beside and self._clock.monotonic_s() >= bill.retry_at_s:
            words = f"its lease ran out and the store did not take the next launch ({reason})"
            self._release(decide.ReleaseBill(memory.job, launch, bill.rung), words)

    def _make_pending(self) -> None:
        """Launch what we reserved without an answer and now read as written."""
        for memory in self.world.jobs.values():
            pending, w = memory.pending, memory.witness
            if pending is None or w is None or memory.etag != memory.read_etag:
                continue
            if w.launched < pending.launch:
                continue  # not written, or not read since: an older body says nothing about it
            if w.launched > pending.launch or w.phase != "expected" or w.by != self.name:
                memory.pending = None  # somebody else's reservation came first
            elif memory.spec is not None:
                alone = _Reserved(memory, memory.spec, pending.launch, pending.reason)
                self._make([alone], self.rungs[pending.rung])

    def _reread(self, memory: JobMemory) -> Stored | None:
        """The witness as it is now, unless it is no longer what the decision was made from."""
        stored = self.world.read(memory)
        if stored is None or stored.etag != self._decided.get(memory.job):
            return None
        return stored

    def _make(self, reserved: Sequence[_Reserved], rung: Rung) -> dict[str, str]:
        """Make one machine for launches that are reserved; why one was not made, by job."""
        for each in reserved:
            each.memory.pending = None
        made, unmade = self._open_bills(reserved, rung)
        if not made:
            return unmade
        jobs = [self._job(each, bill, rung) for each, bill in made]
        try:
            receipt = rung.runner.launch(jobs)
        except LaunchFailed as error:
            return unmade | self._failed_pack(made, rung, error)
        except Exception as error:  # a bug of a plug-in: what it did is not known
            words = f"the runner failed: {type(error).__name__}: {error}"
            return unmade | self._failed_pack(made, rung, Unreachable(words, sent=True))
        self._parked[rung.name] = _Parking()
        for each in reserved:
            each.memory.moving_to = ""
        together = tuple(job.job_id for job in jobs)
        for each, bill in made:
            each.memory.rejected.pop(rung.name, None)
            self._keep_receipt(bill, receipt, together)
            now_s = self._clock.monotonic_s()
            self._sight.foreteller.launched(each.spec, each.launch, rung, bill.since_s, now_s)
        return unmade

    def _job(self, each: _Reserved, bill: Bill, rung: Rung) -> Job:
        """A launch as a runner is told of it: its own number, and the name of its machine."""
        assert bill.intent is not None
        requires, w = each.spec.requires, each.memory.witness
        return Job(
            each.job,
            each.spec.kind,
            each.launch,
            bill.intent.name,
            self._store.url,
            each.spec.cards,
            Environment(requires) if requires is not None else None,
            w.launch.window_s if w and w.launch else 0.0,
            self._sight.quota_wall_s(rung),
        )

    def _open_bills(
        self, reserved: Sequence[_Reserved], rung: Rung
    ) -> tuple[list[tuple[_Reserved, Bill]], dict[str, str]]:
        """The bill and the intent of every launch: all bills before the first intent.

        So whoever reads an intent finds the bills of all that its machine was made for.
        """
        opened, unmade = [], {}
        for each in reserved:
            try:
                create_once(self._store, keys.unsettled(each.job, each.launch), b"{}", self._clock)
                opened.append(each)
            except StoreSilent as error:  # reserved and not launched: its window runs out
                unmade[each.job] = _no_bill(each, error)
        if not opened:
            return [], unmade
        name = pack_name(self._store.url, [(each.job, each.launch) for each in opened])
        pack = tuple(Aboard(each.job, each.launch, each.spec.cards) for each in opened)
        made = []
        for each in opened:
            intent = Intent(
                each.job,
                each.launch,
                rung.runner_name,
                rung.name,
                name,
                self.name,
                each.reason,
                self._clock.wall_s(),
                pack if len(pack) > 1 else None,
            )
            key = keys.intent(each.job, each.launch)
            try:
                if not create_once(self._store, key, encode(intent), self._clock):
                    words = "another dispatcher found this launch unmade and has closed its bill"
                    unmade[each.job] = words
                    continue
            except StoreSilent as error:
                unmade[each.job] = _no_bill(each, error)
                continue
            bill = Bill(each.job, each.launch, intent, since_s=self._clock.monotonic_s())
            self.world.bills[each.job, each.launch] = bill
            made.append((each, bill))
        return made, unmade

    def _keep_receipt(self, bill: Bill, receipt: Receipt, jobs: tuple[str, ...]) -> None:
        """Keep what the platform told of a machine, for one launch on it."""
        assert bill.intent is not None
        record = LaunchReceipt(
            bill.job,
            bill.launch,
            bill.intent.runner,
            bill.intent.rung,
            bill.intent.name,
            receipt.card,
            receipt.at_s,
            dict(receipt.handle),
            jobs if bill.intent.pack else None,
        )
        bill.receipt = record
        key = keys.receipt(bill.job, bill.launch)
        try:
            create_once(self._store, key, encode(record), self._clock)
            # Where we were frozen before the launch, another dispatcher may have found nothing to
            # pay for and closed the bill: it is open again, or it was never gone.
            create_once(self._store, keys.unsettled(bill.job, bill.launch), b"{}", self._clock)
        except StoreSilent as error:
            # the bill stays open and is found by its name
            self.world.troubles[key] = str(error)

    def _failed_pack(
        self, made: Sequence[tuple[_Reserved, Bill]], rung: Rung, error: LaunchFailed
    ) -> dict[str, str]:
        """What a failed launch costs its rung, and each of its jobs; in words by job."""
        parking = self._parked[rung.name]
        parking.failures += 1
        backoff_s = min(
            _FIRST_BACKOFF_S * 2.0 ** min(parking.failures - 1, _MOST_DOUBLINGS), _LONGEST_BACKOFF_S
        )
        if isinstance(error, NoSlots):
            backoff_s = max(_NO_SLOTS_PARK_S, backoff_s)
        if isinstance(error, (NoSlots, Unreachable)):
            self._no_answer.add(rung.name)  # the other jobs of this round would hear the same
        elif isinstance(error, Rejected):
            backoff_s = min(backoff_s, _REJECTED_PARK_S)  # it may be about these jobs alone
        parking.until_s = self._clock.monotonic_s() + backoff_s
        parking.reason = f"{type(error).__name__}: {error}"
        for each, bill in made:
            self._failed(each.memory, rung, each.launch, error)
            bill.failed = each.memory.failed_launch >= each.launch
        return {each.job: f"launch {each.launch} failed: {parking.reason}" for each, _ in made}

    def _failed(self, memory: JobMemory, rung: Rung, launch: int, error: LaunchFailed) -> None:
        """What a failure class costs a job.

        Where a machine may have been made all the same, the bill stays open and the launch may still
        claim: the job goes on elsewhere only after its window.
        """
        if isinstance(error, (NoSlots, Rejected)):
            known = True
        else:
            known = isinstance(error, Unreachable) and not error.sent
        if known:
            memory.failed_launch = max(memory.failed_launch, launch)
        # A job with work behind it is never ended for a platform's sake: a person may mend a key.
        ends = memory.witness is None or memory.witness.pointer is None
        if isinstance(error, ProtocolError) and ends:
            memory.excluded[rung.name] = f"protocol error: {error}"
        elif isinstance(error, Rejected):
            memory.rejections += 1
            times = memory.rejected[rung.name] = memory.rejected.get(rung.name, 0) + 1
            if times >= decide.REJECTED_BUDGET and ends:
                words = f"{times} launches in a row were rejected there; last: {error}"
                memory.excluded[rung.name] = words

    def _write(self, job: str, event: Cancel | Revoke | Ask) -> bool:
        """Change a witness, if it still is what the decision was made from; whether it was written."""
        memory = self.world.jobs[job]
        stored = self._reread(memory)
        if stored is None:
            return False
        key = keys.witness(memory.experiment, job)
        outcome = change(self._store, key, job, stored, event, self._clock)
        return isinstance(outcome, Applied)

    def _move(self, action: decide.AskToYield) -> None:
        """Ask the holder to yield. The rung that it leaves is passed over for a while by this job."""
        memory = self.world.jobs[action.job]
        pace = self.observatory.pace(action.job)
        asked = self._write(action.job, Ask("yield", _YIELD_WITHIN_S, self.name))
        if not asked or not action.rung:
            return
        memory.moves += 1
        memory.moving_to = action.rung
        if pace and action.slow and pace.rung != action.rung:
            memory.left[pace.rung] = self._clock.monotonic_s() + _LEFT_FOR_S * memory.moves

    def _enlist_copy(self, action: decide.EnlistCopy, reason: str) -> None:
        key = keys.job(action.job)
        try:
            copies.enlist(self._store, self.world, action.job, reason, self._clock)
            self.world.troubles.pop(key, None)
        except StoreOutOfReach as error:  # it is wanted anew in the next round
            self.world.troubles[key] = str(error)

    def _release(self, action: decide.ReleaseBill, reason: str) -> None:
        """Close the bills of one machine, if everything about it still is as it was decided from."""
        bill = self.world.bills.get((action.job, action.launch))
        began_s = self._clock.monotonic_s()
        if bill is None or began_s < bill.retry_at_s:
            return  # settled with another launch of its machine
        runner = bill.intent.runner if bill.intent else ""
        if runner in self._slow:
            return  # it has just let us wait: the others' turn comes first
        try:
            aboard = self._billing.aboard(bill)
            if all(map(self._may_end, aboard)):
                self._billing.close(bill, reason, aboard)
        except StoreSilent as error:
            self.world.troubles[keys.unsettled(bill.job, bill.launch)] = str(error)
        if self._clock.monotonic_s() - began_s > _SLOW_S:
            self._slow.add(runner)

    def _may_end(self, bill: Bill) -> bool:
        """Whether a launch's machine may end, by a body read just now.

        Either that is the body it was decided from, or nothing can come of the launch by it either: a
        holder elsewhere may have renewed while a platform let us wait.
        """
        memory = self.world.jobs.get(bill.job)
        if memory is None or (bill.job, bill.launch) not in self.world.bills:
            return False
        return self._reread(memory) is not None or self.world.bill_over(bill) is not None

    def close(self, bill: Bill, reason: str) -> Settlement:
        """Settle the machine of one bill, and keep what came of it for all that were launched on it.

        Raises StoreSilent.
        """
        return self._billing.close(bill, reason)


def _no_bill(each: _Reserved, error: StoreSilent) -> str:
    return f"launch {each.launch} is reserved, but the store took no bill of it: {error}"
