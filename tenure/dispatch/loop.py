"""Observe, decide, act. Many dispatchers may run at once: every action that matters is conditional."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

from tenure.dispatch import decide
from tenure.dispatch.contract import (
    ALL_KINDS,
    Bounded,
    Capacity,
    Closed,
    Environment,
    Job,
    KnowsEnds,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Rejected,
    Runner,
    Settlement,
    Unreachable,
)
from tenure.dispatch.decide import RungView, Snapshot
from tenure.dispatch.world import Bill, JobMemory, PendingLaunch, World
from tenure_protocol.clock import Clock
from tenure_protocol.codec import encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Stored, Unsettled, change
from tenure_protocol.lease.machine import Cancel, Reserve, Revoke
from tenure_protocol.records import Intent, LaunchReceipt, SettlementRecord, Witness
from tenure_protocol.store.api import Store, StoreSilent
from tenure_protocol.store.settle import create_once

WATCH_EVERY_S = 1.0
_NO_SLOTS_PARK_S = 15.0
_FIRST_BACKOFF_S = 5.0
_LONGEST_BACKOFF_S = 600.0
_LONGEST_RELEASE_PAUSE_S = 60.0


@dataclass(frozen=True)
class Rung:
    """One step of the ladder, with the runner behind it."""

    name: str
    runner_name: str
    runner: Runner
    capacity: Capacity
    card: str = "cpu"
    price_class: str = "on_demand"


@dataclass
class _Parking:
    until_s: float = 0.0
    reason: str = ""
    failures: int = 0


@dataclass(frozen=True)
class Tick:
    """What one round saw and did, for people."""

    decisions: tuple[tuple[decide.Action, str], ...]
    troubles: Mapping[str, str] = field(default_factory=dict)
    unmade: Mapping[str, str] = field(default_factory=dict)  # job: why its launch was not made now

    def reason(self, job: str) -> str:
        """The last reason given for a job, or why it could not be acted on."""
        if job in self.unmade:
            return f"not launched: {self.unmade[job]}"
        reasons = [why for action, why in self.decisions if action.job == job]
        return reasons[-1] if reasons else "no plan names it"


def launch_name(store_url: str, job: str, launch: int) -> str:
    """What a platform knows a launch by.

    The store is part of it: two projects on one account may hold the very same job.
    """
    return f"tenure-{short_id(store_url.encode())[:8]}-{job}-{launch:05d}"


def receipt_of(record: LaunchReceipt) -> Receipt:
    """What a runner gave for a launch, as it is stored."""
    return Receipt(
        (record.job,), record.runner, record.name, record.card, record.at_s, record.handle
    )


class Dispatcher:
    """One ladder of rungs over one store."""

    def __init__(self, store: Store, rungs: Sequence[Rung], clock: Clock, name: str = "") -> None:
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
        self._decided: dict[str, str] = {}  # by job, the ETag of the body last decided from
        self.world = World(store, clock)

    # -------------------------------------------------------------------------------- rounds

    def tick(self) -> Tick:
        """One round. Raises nothing for a silent store or a platform that fails."""
        with self._lock:
            return self._tick()

    def _tick(self) -> Tick:
        self._observe()
        self._make_pending()
        decisions = decide.decide(self.snapshot(), self._clock.monotonic_s())
        unmade: dict[str, str] = {}
        for action, reason in decisions:
            if isinstance(action, decide.Launch):
                if problem := self._launch(action, reason):
                    unmade[action.job] = problem
            elif isinstance(action, decide.Cancel):
                self._write(action.job, Cancel(self.name, reason))
            elif isinstance(action, decide.TakeAway):
                self._write(action.job, Revoke(action.by, reason, action.held_back))
            elif isinstance(action, decide.ReleaseBill):
                self._release(action, reason)
        return Tick(tuple(decisions), dict(self.world.troubles), unmade)

    def look(self) -> Tick:
        """Observe and decide, and do nothing: what ``tenure why`` and ``status`` show."""
        with self._lock:
            self._observe()
            decisions = decide.decide(self.snapshot(), self._clock.monotonic_s())
            return Tick(tuple(decisions), dict(self.world.troubles))

    def _observe(self) -> None:
        self.world.observe()
        if self._knowing:
            self._note_ends()

    def snapshot(self) -> Snapshot:
        """Everything a decision depends on, as seen by the last observation.

        The bodies it is decided from are noted: the background watch may read newer ones before the
        decision is acted on, and a decision holds for the body it was made from alone.
        """
        rungs = {
            name: RungView(
                name,
                rung.runner.JOB_KINDS & ALL_KINDS,
                rung.capacity,
                self._parked[name].until_s,
                self._parked[name].reason,
            )
            for name, rung in self.rungs.items()
        }
        views = self.world.job_views()
        self._decided = {view.job: view.etag for view in views}
        unseen = "" if self.world.bills_seen else "the open launches cannot be read yet"
        return Snapshot(views, self.world.bill_views(), rungs, unseen)

    def _note_ends(self) -> None:
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
            if runner := self._knowing.get(bill.receipt.rung):
                memory.ended = runner.ended(receipt_of(bill.receipt)) or ""

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

        Launches nothing. Returns whether none is left.
        """
        end_s = self._clock.monotonic_s() + for_s
        while True:
            tick = self.look()
            if report:
                report(tick)
            for action, reason in tick.decisions:
                if isinstance(action, decide.ReleaseBill):
                    self._release(action, reason)
            jobs = self.world.jobs
            if self.world.whole and not any(
                experiment is None or (job in jobs and jobs[job].experiment == experiment)
                for job, _ in self.world.bills
            ):
                return True
            if self._clock.monotonic_s() >= end_s:
                return False
            self._clock.sleep(every_s)

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
                self.world.watch()
                self._clock.sleep(WATCH_EVERY_S)

        self._clock.spawn(run, "tenure-watch")

    def stop_watching(self) -> None:
        """Let the background watch end."""
        self._watching.clear()

    # -------------------------------------------------------------------------------- actions

    def _launch(self, action: decide.Launch, reason: str) -> str | None:
        """Reserve, write the intent, launch, keep the receipt: in this order.

        Returns why it was not launched, in words, or ``None`` for a launch.
        """
        memory = self.world.jobs[action.job]
        rung = self.rungs[action.rung]
        if memory.spec is None:
            return "its spec has not been read yet"  # an unreadable one is named in troubles
        stored = self._reread(memory)
        if stored is None:
            return "its witness changed or could not be read; decided anew"
        # a window that ran out again and again was too short for what goes on there
        window_s = rung.capacity.window_s * 2.0**memory.unclaimed
        event = Reserve(rung.runner_name, window_s, self.name, action.evidence)
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
        if action.evidence == "vacant" and stored.witness and stored.witness.phase == "expected":
            memory.unclaimed += 1
        self.world.adopt(memory, outcome.witness, outcome.etag)
        return self._make(memory, rung, outcome.witness.launched, reason)

    def _thaw(self, memory: JobMemory, reason: str) -> None:
        """Close the bill of a lapsed holder that the reservation could not be written over.

        A process frozen inside a conditional write of a directory store holds the key's lock for as
        long as it is frozen; ending it frees the lock, and its lease has run out anyway.
        """
        w = memory.witness
        launch = w.holder.launch if w and w.holder else 0
        bill = self.world.bills.get((memory.job, launch))
        if bill and self._clock.monotonic_s() >= bill.retry_at_s:
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
            else:
                self._make(memory, self.rungs[pending.rung], pending.launch, pending.reason)

    def _reread(self, memory: JobMemory) -> Stored | None:
        """The witness as it is now, unless it is no longer what the decision was made from."""
        stored = self.world.read(memory)
        if stored is None or stored.etag != self._decided.get(memory.job):
            return None
        return stored

    def _make(self, memory: JobMemory, rung: Rung, launch: int, reason: str) -> str | None:
        """Make a launch that is reserved; returns why it was not made, or ``None``."""
        assert memory.spec is not None
        memory.pending = None
        name = launch_name(self._store.url, memory.job, launch)
        now_s = self._clock.wall_s()
        intent = Intent(
            memory.job, launch, rung.runner_name, rung.name, name, self.name, reason, now_s
        )
        job = Job(
            memory.job,
            memory.spec.kind,
            launch,
            name,
            self._store.url,
            memory.spec.cards,
            Environment(memory.spec.requires) if memory.spec.requires is not None else None,
        )
        bill = Bill(memory.job, launch, intent)
        try:
            create_once(self._store, keys.unsettled(memory.job, launch), b"{}", self._clock)
            if not create_once(
                self._store, keys.intent(memory.job, launch), encode(intent), self._clock
            ):
                return "another dispatcher found this launch unmade and has closed its bill"
        except StoreSilent as error:  # reserved and not launched: its window runs out
            return f"launch {launch} is reserved, but the store took no bill of it: {error}"
        self.world.bills[(memory.job, launch)] = bill
        try:
            receipt = rung.runner.launch([job])
        except LaunchFailed as error:
            return self._failed(memory, rung, launch, error)
        except Exception as error:  # a bug of a plug-in: what it did is not known
            words = f"the runner failed: {type(error).__name__}: {error}"
            return self._failed(memory, rung, launch, Unreachable(words, sent=True))
        self._parked[rung.name] = _Parking()
        record = LaunchReceipt(
            memory.job, launch, rung.runner_name, rung.name, name, receipt.card, receipt.at_s,
            dict(receipt.handle),
        )  # fmt: skip
        bill.receipt = record
        try:
            create_once(self._store, keys.receipt(memory.job, launch), encode(record), self._clock)
            # Where we were frozen before the launch, another dispatcher may have found nothing to
            # pay for and closed the bill: it is open again, or it was never gone.
            create_once(self._store, keys.unsettled(memory.job, launch), b"{}", self._clock)
        except StoreSilent as error:
            # the bill stays open and is found by its name
            self.world.troubles[keys.receipt(memory.job, launch)] = str(error)
        return None

    def _failed(self, memory: JobMemory, rung: Rung, launch: int, error: LaunchFailed) -> str:
        """What a failure class costs; returns it in words."""
        parking = self._parked[rung.name]
        parking.failures += 1
        backoff_s = min(_FIRST_BACKOFF_S * 2.0 ** (parking.failures - 1), _LONGEST_BACKOFF_S)
        known = not (isinstance(error, Unreachable) and error.sent)
        if known:
            memory.failed_launch = max(memory.failed_launch, launch)
        if isinstance(error, NoSlots):
            backoff_s = max(_NO_SLOTS_PARK_S, backoff_s)
        elif isinstance(error, ProtocolError):
            memory.excluded[rung.name] = f"protocol error: {error}"
        elif isinstance(error, Rejected):
            memory.rejections += 1
        parking.until_s = self._clock.monotonic_s() + backoff_s
        parking.reason = f"{type(error).__name__}: {error}"
        return f"launch {launch} failed: {parking.reason}"

    def _write(self, job: str, event: Cancel | Revoke) -> None:
        """Change a witness, if it still is what the decision was made from."""
        memory = self.world.jobs[job]
        stored = self._reread(memory)
        if stored is not None:
            key = keys.witness(memory.experiment, job)
            change(self._store, key, job, stored, event, self._clock)

    def _release(self, action: decide.ReleaseBill, reason: str) -> None:
        bill = self.world.bills.get((action.job, action.launch))
        memory = self.world.jobs.get(action.job)
        if bill is None or memory is None or self._reread(memory) is None:
            return  # decided anew from what is there: it may hold the job again
        try:
            self.close(bill, reason)
        except StoreSilent as error:
            self.world.troubles[keys.unsettled(bill.job, bill.launch)] = str(error)

    def close(self, bill: Bill, reason: str) -> Settlement:
        """Settle one bill and keep what came of it. Raises StoreSilent."""
        settlement = self.settle(bill)
        self._record(bill, settlement, reason)
        return settlement

    def settle(self, bill: Bill) -> Settlement:
        """Ask the platform to close one bill; a launch without a receipt is looked for by name."""
        if bill.intent is None:
            return self._void(bill) if bill.unmade else Pending("its intent cannot be read yet")
        if not bill.intent.name:
            return Closed(bill.intent.reason)
        rung = self.rungs.get(bill.intent.rung)
        if rung is None:
            return Pending(f"tenure.toml has no rung {bill.intent.rung} to close it with")
        made = bill.receipt
        receipt = (
            receipt_of(made)
            if made
            else Receipt(
                (bill.job,), bill.intent.runner, bill.intent.name, rung.card, bill.intent.at_s
            )
        )
        try:
            return rung.runner.release(receipt)
        except Exception as error:  # a failure of the platform, or a bug of a plug-in
            return Pending(f"{type(error).__name__}: {error}")

    def _void(self, bill: Bill) -> Settlement:
        """Take the create-only key of an intent that was never written, so that it never will be."""
        words = "never launched: its dispatcher was gone before it wrote what it meant to do"
        intent = Intent(
            bill.job, bill.launch, "", "", "", self.name, words, self._clock.wall_s()
        )  # fmt: skip
        try:
            if create_once(
                self._store, keys.intent(bill.job, bill.launch), encode(intent), self._clock
            ):
                return Closed(words)
        except StoreSilent as error:
            return Pending(str(error))
        return Pending("its intent has just been written")

    def _record(self, bill: Bill, settlement: Settlement, reason: str) -> None:
        """Keep the settlement; a closed bill is forgotten only after that."""
        bill.retry_at_s = self._clock.monotonic_s() + bill.pause_s
        bill.pause_s = min(2 * bill.pause_s, _LONGEST_RELEASE_PAUSE_S)
        bill.settlements += 1
        outcome = {Closed: "closed", Pending: "pending", Bounded: "bounded"}[type(settlement)]
        if outcome == "pending" and bill.settlements > 1:
            return  # said once; only a change is worth a record
        record = SettlementRecord(
            bill.job,
            bill.launch,
            outcome,  # type: ignore[arg-type]
            f"{reason}; {settlement.reason}",
            self._clock.wall_s(),
            settlement.until_s if isinstance(settlement, Bounded) else None,
        )
        number = bill.settlements
        while not create_once(
            self._store,
            keys.settlement(bill.job, bill.launch, number),
            encode(record),
            self._clock,
        ):
            number += 1  # an earlier dispatcher has settled part of it
        bill.settlements = number
        if isinstance(settlement, Closed):
            self._store.delete(keys.unsettled(bill.job, bill.launch))
            self.world.forget(bill.job, bill.launch)
