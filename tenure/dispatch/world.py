"""What one dispatcher remembers of the store: jobs, witnesses, bills, and its own gapless watch.

A listing is a hint: a changed residue is read, an unchanged one with a new ETag is a renewal, and
whatever matters is read again before it is acted on. Nothing here is truth; a restart rebuilds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import cycle, islice
from math import inf
from threading import RLock

from tenure.dispatch.decide import FRUITLESS_BUDGET, BillView, JobView, NoShows, bill_is_over
from tenure.dispatch.faults import Fault
from tenure.dispatch.memory import FIRST_REFUSAL_LOOK_S
from tenure.dispatch.memory import Bill as Bill
from tenure.dispatch.memory import JobMemory as JobMemory
from tenure.dispatch.memory import PendingLaunch as PendingLaunch
from tenure.dispatch.quality import NOTHING_SHOWN, Shown
from tenure.dispatch.terms import budget_of, copies_of, deadline_of
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, NewerProtocol
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Stored
from tenure_protocol.lease.machine import SLACK_S, Watched
from tenure_protocol.lease.watch import Watch
from tenure_protocol.records import (
    FINAL,
    ID_LETTERS,
    Intent,
    JobSpec,
    LaunchReceipt,
    PlanRecord,
    Refusal,
    Witness,
    load,
)
from tenure_protocol.store.api import Entry, Missing, Store, StoreSilent, shortest_lease_s
from tenure_worker import exits
from tenure_worker.claim import read_spec

#: Reads of one attempt's renewals at its beginning, while its lease is still being measured.
_YOUNG_READS = 4
#: An attempt that is lost within this time without a milestone costs budget; after it, none.
EARLY_S = 1800.0
#: Pause before a job is launched again that was lost early more than once, doubled each time.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 600.0
#: Rows of one LIST.
PAGE = 1000
_MOST_REFUSALS = 20  # read of one launch
_MOST_WITNESS_BYTES = 1 << 16  # a result has 4 KiB at most, a reason 2,000 characters


class World:
    """Observes; decides nothing and writes nothing. Safe to observe from two threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = RLock()
        self._plans: dict[str, PlanRecord] = {}  # by key
        self._born_s: dict[str, float] = {}  # by key, monotonic: when it was stored
        self._watches: dict[str, Watch] = {}  # by experiment
        self._silent: dict[str, str] = {}  # experiment: why its listing failed
        self._letters = cycle(ID_LETTERS)  # the part of many open bills that is looked at next
        self.jobs: dict[str, JobMemory] = {}
        self.budgets: dict[str, dict[str, float]] = {}  # plan: currency: amount
        self.bills: dict[tuple[str, int], Bill] = {}
        self.bills_seen = False  # whether every open bill was read once since the start
        self.troubles: dict[str, str] = {}  # key: what is wrong with it
        self._floor_s = shortest_lease_s(store.deadline_s) + SLACK_S

    @property
    def whole(self) -> bool:
        """Whether every plan and every open bill was seen at the last look: else none may be missing."""
        return not {keys.PLANS, keys.UNSETTLED} & self.troubles.keys()

    # ------------------------------------------------------------------------------ observing

    def observe(self) -> None:
        """Look at everything once. A silent store is remembered, never raised."""
        with self._lock:
            self._observe_plans()
            self._observe_bills()
            self.watch()
            for memory in self.jobs.values():
                if not memory.final or memory.refusal_look_s:
                    self._look_closer(memory)

    def watch(self) -> None:
        """List the witnesses of every open experiment; what a background watcher repeats."""
        with self._lock:
            open_ones = {m.experiment for m in self.jobs.values() if not m.final}
            # One that did not answer is listed until it does: its bills wait for that.
            for experiment in sorted(open_ones | self._silent.keys()):
                watch = self._watches.setdefault(experiment, Watch(self._clock))
                try:
                    rows = list(self._store.list(keys.experiment_witnesses(experiment)))
                except StoreSilent as error:
                    watch.broke()
                    self._silent[experiment] = str(error)
                    continue
                watch.saw(rows)
                self._silent.pop(experiment, None)
                self._note(experiment, rows)

    def _note(self, experiment: str, rows: Iterable[Entry]) -> None:
        prefix = keys.experiment_witnesses(experiment)
        for key, etag, size, age_s in rows:
            memory = self.jobs.get(key.removeprefix(prefix).removesuffix(".json"))
            if memory is None:
                continue  # a witness of local mode, or of a plan not read yet
            memory.etag, memory.age_s = etag, age_s
            # most are as they were read, and nothing more is asked of those
            if etag != memory.read_etag and self._worth_reading(memory, size % 8):
                self.read(memory)
            memory.residue = size % 8

    def _worth_reading(self, memory: JobMemory, residue: int) -> bool:
        if memory.etag == memory.broken_etag:
            return False
        w = memory.witness
        # One who was asked to end is judged by the newest body, however often he renews.
        if w is None or residue != memory.residue or w.phase != "held" or w.asked:
            return True
        if memory.young_reads < _YOUNG_READS:
            memory.young_reads += 1
            return True
        # It is no renewal any more but a silence, by the lease that was last read. That lease may
        # have become shorter since: at the next milestone, which shows in the residue, it is read.
        return memory.age_s > max(self._floor_s, w.silence_allowed_s + SLACK_S)

    def read(self, memory: JobMemory) -> Stored | None:
        """Read one witness anew; ``None`` when the store was silent or the body is corrupt."""
        with self._lock:
            return self._read(memory)

    def _read(self, memory: JobMemory) -> Stored | None:
        key = keys.witness(memory.experiment, memory.job)
        try:
            found = self._store.read(key)
        except StoreSilent as error:
            self._silent[memory.experiment] = str(error)
            return None
        if isinstance(found, Missing):
            return Stored(None, "")
        memory.etag, memory.age_s = found.etag, found.age_s
        try:
            witness = _decoded(memory, found.body, key)
        except Corrupt as error:
            memory.broken, memory.broken_etag = str(error), found.etag
            if memory.broken_s is None and not isinstance(error, NewerProtocol):
                memory.broken_s = self._clock.monotonic_s()
            self.troubles[key] = str(error)
            return None
        self._took(memory, witness)
        memory.broken, memory.broken_etag, memory.broken_s = None, "", None
        memory.read_etag = found.etag
        self.troubles.pop(key, None)
        return Stored(witness, found.etag, found.age_s)

    def _took(self, memory: JobMemory, witness: Witness) -> None:
        old = memory.witness
        memory.witness = _lawful(witness, memory.spec)
        memory.residue = witness.residue
        if old is not None:
            self._count_losses(memory, old, witness)
        if old is None or old.attempt != witness.attempt:
            memory.young_reads = 0
            memory.since_s, memory.claim_seen = self._clock.monotonic_s(), old is not None
        memory.took_s = self._clock.monotonic_s()
        if witness.phase == "held":
            memory.unclaimed = 0
            if memory.no_shows and witness.holder:
                memory.no_shows.pop(self.rung_of(memory.job, witness.holder.launch) or "", None)
        launch = witness.holder.launch if witness.holder else witness.launched
        if witness.phase in ("held", "released", "finished") and (memory.job, launch) in self.bills:
            self.bills[memory.job, launch].worked = True
        if witness.asked is None or (old and old.attempt != witness.attempt):
            memory.asked_s = None
        if witness.asked and memory.asked_s is None:
            memory.asked_s = self._clock.monotonic_s()
        if witness.phase == "released":
            self._note_failure(memory, old, witness)

    def _note_failure(self, memory: JobMemory, old: Witness | None, witness: Witness) -> None:
        """A card that was too small takes this job no more; a fault may be the machine's or the code's."""
        fault = exits.fault_of(witness.reason)
        if fault is None and witness.exit_code != exits.OUT_OF_MEMORY:
            return
        launch = old.holder.launch if old and old.holder else witness.launched
        rung = self.rung_of(memory.job, launch)
        if rung and fault:
            words, step = fault
            memory.faults.setdefault(words, {})[witness.attempt] = Fault(rung, step)
        elif rung:
            memory.excluded.setdefault(rung, f"out of memory there: {witness.reason}")

    def _count_losses(self, memory: JobMemory, old: Witness, new: Witness) -> None:
        """What the attempts that ended since the last read cost the job's budget.

        A milestone, a long life, a revocation and a wish to have the job back cost nothing. A person
        who points the job at an earlier milestone, or at its start, begins the count anew.
        """
        if new.pointer != old.pointer:
            memory.strikes = memory.unreadable = 0
            memory.strikes_on.clear()
            memory.faults.clear()
        first = old.attempt if old.phase == "held" else old.attempt + 1
        last = new.attempt - 1 if new.phase == "held" else new.attempt
        if new.phase in ("revoked", *FINAL) or new.asked or old.asked:
            return
        if new.phase == "released" and new.exit_code == exits.OUT_OF_MEMORY:
            return  # it takes the rung away, of which there are so many
        # A rented machine may write any number into its witness: beyond the budget none is counted.
        for attempt in range(max(first, last - FRUITLESS_BUDGET), last + 1):
            # an attempt that began and ended between two reads lived no longer than between them
            since_s = memory.since_s if attempt == old.attempt else memory.took_s
            lived_s = self._clock.monotonic_s() - since_s
            fruitful = new.pointer is not None and new.pointer.attempt == attempt
            if not fruitful and lived_s < EARLY_S:
                memory.strikes += 1
                holder = old.holder if attempt == old.attempt else new.holder
                rung = (self.rung_of(memory.job, holder.launch) if holder else None) or ""
                memory.strikes_on[rung] = memory.strikes_on.get(rung, 0) + 1
        if first <= last and memory.strikes > 1:
            pause_s = min(FIRST_PAUSE_S * 2.0 ** (memory.strikes - 2), LONGEST_PAUSE_S)
            memory.not_before_s = self._clock.monotonic_s() + pause_s
        if new.phase == "released" and first <= last:
            unreadable = new.exit_code == exits.PROTOCOL
            memory.unreadable = memory.unreadable + 1 if unreadable else 0

    def note_no_show(self, memory: JobMemory, expected: Witness) -> None:
        """A launch did not claim within its window, and another one takes its place."""
        memory.unclaimed += 1
        launch, rung = memory.launched_on
        if expected.launch and rung and launch == expected.launched:
            before, window_s = memory.no_shows.get(rung), expected.launch.window_s
            now_s = self._clock.monotonic_s()
            memory.no_shows[rung] = NoShows.one_more(before, memory.age_s, window_s, now_s)

    def _launched_on(self, memory: JobMemory) -> str:
        """The rung of a launch that has not claimed in time; '' while nothing depends on it."""
        w = memory.witness
        if w is None or w.phase != "expected" or not w.launch or memory.age_s < w.launch.window_s:
            return ""
        if memory.launched_on[0] != w.launched and (rung := self.rung_of(memory.job, w.launched)):
            memory.launched_on = w.launched, rung
        return memory.launched_on[1] if memory.launched_on[0] == w.launched else ""

    def adopt(self, memory: JobMemory, witness: Witness, etag: str) -> None:
        """Remember a body that this dispatcher has just written."""
        with self._lock:
            self._took(memory, witness)
            memory.etag = memory.read_etag = etag
            memory.age_s = 0.0

    def _look_closer(self, memory: JobMemory) -> None:
        """Read the spec once, and the refusals of a launch that should have claimed by now."""
        w = memory.witness
        waits = w is not None and w.phase == "expected" and memory.failed_launch < w.launched
        if memory.refusal_look_s and not waits:
            memory.refusal_look_s, memory.refusal_pause_s = 0.0, FIRST_REFUSAL_LOOK_S
            self.troubles.pop(keys.refusals(memory.job), None)
        if memory.final or memory.broken:
            return
        if memory.spec is None:
            self._read_spec(memory)
        now_s = self._clock.monotonic_s()
        if w is None or not waits:
            return
        if not memory.refusal_look_s:
            memory.refusal_look_s = now_s + memory.refusal_pause_s
        elif now_s >= memory.refusal_look_s:
            memory.refusal_pause_s = min(2 * memory.refusal_pause_s, 60.0)
            memory.refusal_look_s = now_s + memory.refusal_pause_s
            self._read_refusals(memory, w.launched)

    def _read_spec(self, memory: JobMemory) -> None:
        try:
            memory.spec = read_spec(self._store, memory.job)
            if memory.witness:
                memory.witness = _lawful(memory.witness, memory.spec)
        except StoreSilent:
            return
        except Corrupt as error:
            memory.broken = str(error)
            self.troubles[error.key] = str(error)

    def _read_refusals(self, memory: JobMemory, launch: int) -> None:
        try:
            rows = self._store.list(f"{keys.refusals(memory.job)}{launch:05d}-")
            for row in islice(rows, _MOST_REFUSALS):  # one says it; a machine may write thousands
                found = self._store.read(row.key)
                if isinstance(found, Missing):
                    continue
                refusal = load(Refusal, found.body, row.key)
                memory.failed_launch = max(memory.failed_launch, launch)
                rung = self.rung_of(memory.job, launch)
                if rung:
                    memory.excluded[rung] = refusal.reason
            self.troubles.pop(keys.refusals(memory.job), None)
        except (StoreSilent, Corrupt) as error:
            self.troubles[keys.refusals(memory.job)] = str(error)

    def rung_of(self, job: str, launch: int) -> str | None:
        """The rung a launch was made on, from its intent."""
        bill = self.bills.get((job, launch))
        if bill and bill.intent:
            return bill.intent.rung
        try:
            found = self._store.read(keys.intent(job, launch))
            if isinstance(found, Missing):
                return None
            return load(Intent, found.body, keys.intent(job, launch)).rung
        except (StoreSilent, Corrupt):
            return None

    # -------------------------------------------------------------------------- plans and bills

    def _observe_plans(self) -> None:
        try:
            rows = list(self._store.list(keys.PLANS))
        except StoreSilent as error:
            self.troubles[keys.PLANS] = str(error)
            return
        self.troubles.pop(keys.PLANS, None)
        fresh = [row.key for row in rows if row.key not in self._plans]
        now_s = self._clock.monotonic_s()
        for row in rows:
            self._born_s.setdefault(row.key, now_s - row.age_s)
        for key in fresh:
            try:
                found = self._store.read(key)
                if not isinstance(found, Missing):
                    self._plans[key] = load(PlanRecord, found.body, key)
            except StoreSilent as error:
                self.troubles[keys.PLANS] = str(error)  # its jobs are not known: never "no jobs"
            except Corrupt as error:
                self.troubles[key] = str(error)
        if fresh:
            self._adopt_plans()

    def plan_versions(self) -> list[tuple[float, PlanRecord]]:
        """Every version that was read, the oldest first, and when it was stored (monotonic)."""
        rows = [(self._born_s[key], record) for key, record in sorted(self._plans.items())]
        return sorted(rows, key=lambda row: row[1].version)

    def _adopt_plans(self) -> None:
        """Jobs of every version, with the terms of the newest."""
        newest: dict[str, PlanRecord] = {}
        enlisted_s: dict[
            tuple[str, str], float
        ] = {}  # by (plan, job), the first record that names it
        for key, record in sorted(self._plans.items()):
            for job in record.jobs:
                first_s = enlisted_s.get((record.plan, job), inf)
                enlisted_s[record.plan, job] = min(first_s, self._born_s[key])
            best = newest.get(record.plan)
            if best is None or record.version >= best.version:
                newest[record.plan] = record
        for record in sorted(self._plans.values(), key=lambda record: record.version):
            terms = newest[record.plan].terms
            self.budgets[record.plan] = budget_of(terms.get("budget"))
            rungs, priority = terms.get("rungs"), terms.get("priority")
            team = terms.get("team")
            for job in record.jobs:
                memory = self.jobs.get(job) or JobMemory(
                    job, record.experiment, (), 0, len(self.jobs)
                )
                memory.rungs = tuple(str(r) for r in rungs) if isinstance(rungs, list) else ()
                memory.priority = priority if isinstance(priority, int) else 0
                memory.team = team if isinstance(team, str) else None
                memory.plan = record.plan
                memory.enlisted_s = enlisted_s[record.plan, job]
                memory.deadline_s = deadline_of(memory.enlisted_s, terms)
                self.jobs[job] = memory
        for record in self._plans.values():
            for twin, (original, why) in copies_of(record.terms).items():
                self._pair(self.jobs.get(twin), self.jobs.get(original), why)

    def _pair(self, twin: JobMemory | None, original: JobMemory | None, why: str) -> None:
        """A backup copy and its original, whose deadline it is to keep."""
        if twin is not None and original is not None:
            twin.copy_of, original.copied_as = original.job, twin.job
            twin.copied_for = why
            twin.enlisted_s, twin.deadline_s = original.enlisted_s, original.deadline_s

    def _excluded(self, m: JobMemory) -> dict[str, str]:
        """The rungs where a job cannot run; a copy does not run where its original does."""
        found, original = dict(m.excluded), self.jobs.get(m.copy_of)
        w = original.witness if original else None
        if original is None or w is None or w.phase not in ("held", "expected"):
            return found
        launch = w.holder.launch if w.holder else w.launched
        if bill := self.bills.get((original.job, launch)):
            words = f"job {original.job}, whose backup copy it is, is there"
            found.setdefault(bill.rung, words)
        return found

    def _observe_bills(self) -> None:
        prefix = keys.UNSETTLED
        if len(self.bills) > PAGE and not self._bills_matter():
            prefix += next(self._letters)  # all of them cost a LIST for each thousand
        self._list_bills(prefix)

    def see_bills(self) -> str:
        """List every open bill now; why one may be missing or not known, or '' when all are."""
        with self._lock:
            self._list_bills(keys.UNSETTLED)
            if keys.UNSETTLED in self.troubles:
                return self.troubles[keys.UNSETTLED]
            for bill in self.bills.values():
                trouble = self.troubles.get(keys.launch(bill.job, bill.launch))
                if bill.intent is None and trouble:
                    return trouble
            return ""

    def _list_bills(self, prefix: str) -> None:
        try:
            rows = [row.key for row in self._store.list(prefix)]
        except StoreSilent as error:
            self.troubles[keys.UNSETTLED] = str(error)
            return
        self.troubles.pop(keys.UNSETTLED, None)
        seen, answered = set(), True
        for key in rows:
            job, _, number = key.removeprefix(keys.UNSETTLED).rpartition("-")
            if not number.isdigit():
                continue
            launch = int(number)
            seen.add((job, launch))
            bill = self.bills.get((job, launch))
            if bill is None:
                bill = self.bills[job, launch] = Bill(job, launch)
            answered = self.read_bill(bill) and answered
        self.bills_seen = self.bills_seen or answered
        for job, launch in set(self.bills) - seen:
            if keys.unsettled(job, launch).startswith(prefix):
                self.forget(job, launch)  # closed, by us or by another dispatcher

    def _bills_matter(self) -> bool:
        """Whether a job may be launched now, which takes a slot, or a bill may be closed.

        They do not while every job is over, held back, or renewed by the launch of its one bill. One
        in the second half of its lease may be replaced soon: no watch without a gap can miss it there.
        """
        working: dict[str, int] = {}
        for m in self.jobs.values():
            w = m.witness
            if w is None or m.broken:
                return True
            if w.holder and not w.asked and 2 * m.age_s <= w.silence_allowed_s:
                working[m.job] = w.holder.launch
            elif not m.final and not w.held_back:
                return True
        return any(working.get(job) != launch for job, launch in self.bills)

    def forget(self, job: str, launch: int) -> None:
        """A bill is closed, and what could not be read or written about it is over."""
        self.bills.pop((job, launch), None)
        for key in (keys.launch, keys.receipt, keys.unsettled):
            self.troubles.pop(key(job, launch), None)

    def read_bill(self, bill: Bill) -> bool:
        """Read what is not known of it yet; whether the store answered."""
        if bill.intent and bill.receipt and not self.troubles:
            return True
        try:
            if bill.intent is None:
                key = keys.intent(bill.job, bill.launch)
                found = self._store.read(key)
                bill.unmade = isinstance(found, Missing)
                if not isinstance(found, Missing):
                    bill.intent = load(Intent, found.body, key)
                    bill.since_s = self._clock.monotonic_s() - found.age_s
            if bill.receipt is None and bill.intent is not None:
                key = keys.receipt(bill.job, bill.launch)
                found = self._store.read(key)
                if not isinstance(found, Missing):
                    bill.receipt = load(LaunchReceipt, found.body, key)
                    bill.since_s = self._clock.monotonic_s() - found.age_s
            self.troubles.pop(keys.launch(bill.job, bill.launch), None)
        except (StoreSilent, Corrupt) as error:
            self.troubles[keys.launch(bill.job, bill.launch)] = str(error)
            return isinstance(error, Corrupt)
        return True

    # ---------------------------------------------------------------------------------- views

    def watched(self, memory: JobMemory) -> Watched:
        """Our own watch of a job's witness, for the lease it holds."""
        watch = self._watches.get(memory.experiment)
        if watch is None or memory.witness is None:
            return Watched(0.0, 0.0)
        key = keys.witness(memory.experiment, memory.job)
        return watch.of(key, memory.read_etag, memory.witness.silence_allowed_s)

    def job_views(
        self, shown: Callable[[str], Shown] = lambda _: NOTHING_SHOWN
    ) -> tuple[JobView, ...]:
        """Every job as :func:`decide` wants it, with what is ``shown`` of each that is not over."""
        with self._lock:
            return tuple(
                self._over(m) if m.final and not m.broken else self._view(m, shown(m.job))
                for m in self.jobs.values()
            )

    def _over(self, m: JobMemory) -> JobView:
        """A job of which nothing is decided but that it is over: thousands of them cost no round anything.

        So its age is that of the first look at its end.
        """
        terms, silent = (m.rungs, m.priority, m.plan), self._silent.get(m.experiment)
        kept = m.over
        if (
            kept is None
            or kept.witness is not m.witness
            or kept.silent != silent
            or ((kept.rungs, kept.priority, kept.plan) != terms)
        ):
            kept = m.over = self._view(m)
        return kept

    def _view(self, m: JobMemory, shown: Shown = NOTHING_SHOWN) -> JobView:
        unread = m.witness is not None and m.etag != m.read_etag
        return JobView(
            job=m.job,
            experiment=m.experiment,
            rungs=m.rungs,
            priority=m.priority,
            order=m.order,
            plan=m.plan,
            kind=m.spec.kind if m.spec else None,
            cards=m.spec.cards if m.spec else 1,
            critical=m.spec is not None and m.spec.generation > 1,
            work=shown.work,
            witness=m.witness,
            etag=m.read_etag,
            # a body that was renewed since it was read is judged by the age of the renewal
            age_s=m.age_s,
            watched=Watched(0.0, 0.0) if unread else self.watched(m),
            silent=self._silent.get(m.experiment),
            broken=m.broken,
            broken_for_s=0.0 if m.broken_s is None else self._clock.monotonic_s() - m.broken_s,
            failed_launch=m.failed_launch,
            excluded=self._excluded(m),
            rejections=m.rejections,
            unclaimed=m.unclaimed,
            no_shows=dict(m.no_shows),
            rejected=dict(m.rejected),
            launched_on=self._launched_on(m),
            strikes=m.strikes,
            strikes_on=dict(m.strikes_on),
            unreadable=m.unreadable,
            faults={words: tuple(seen.values()) for words, seen in m.faults.items()},
            ended=m.ended,
            pace=shown.pace,
            usual=shown.usual,
            options=shown.options,
            moves=m.moves,
            moving_to=m.moving_to,
            left=dict(m.left),
            since_s=m.enlisted_s,
            deadline_s=m.deadline_s,
            not_before_s=m.not_before_s,
            copy_of=m.copy_of,
            copied_as=m.copied_as,
            held_for_s=self._held_for_s(m),
            asked_for_s=0.0 if m.asked_s is None else self._clock.monotonic_s() - m.asked_s,
        )

    def _held_for_s(self, m: JobMemory) -> float:
        """How long its holder has had a job, at the least: a dispatcher that starts later knows its launch."""
        w = m.witness
        if w is None or w.phase != "held":
            return 0.0
        now_s = self._clock.monotonic_s()
        bill = self.bills.get((m.job, w.holder.launch if w.holder else 0))
        if m.claim_seen or bill is None or bill.intent is None or w.launch is None:
            return now_s - m.since_s
        return max(now_s - m.since_s, now_s - bill.since_s - w.launch.window_s)

    def bill_over(self, bill: Bill) -> str | None:
        """Why nothing can come of a launch, by the body that was read last; ``None`` if it may."""
        with self._lock:
            memory = self.jobs.get(bill.job)
            view = self._view(memory) if memory else None
        return bill_is_over(BillView(bill.job, bill.launch, bill.rung), view)

    def bill_views(self) -> tuple[BillView, ...]:
        """Every open bill as :func:`decide` wants it."""
        with self._lock:
            return tuple(
                BillView(
                    bill.job,
                    bill.launch,
                    bill.rung,
                    bill.retry_at_s,
                    bill.settlements,
                    bill.intent.name if bill.intent else "",
                    bill.beside,
                )
                for bill in self.bills.values()
            )


def _decoded(memory: JobMemory, body: bytes, key: str) -> Witness:
    """The witness of a body. Raises Corrupt also for what no worker of ours can have written."""
    if len(body) > _MOST_WITNESS_BYTES:
        raise Corrupt(f"it has {len(body)} bytes", key)
    witness = Witness.decode(body, key)
    if memory.witness and memory.final and witness.phase != memory.witness.phase:
        raise Corrupt(f"it was {memory.witness.phase}, and is {witness.phase} now", key)
    return witness


def _lawful(w: Witness, spec: JobSpec | None) -> Witness:
    """A witness with the longest silence that its job allows: a rented machine may write any."""
    if spec is None or w.silence_allowed_s <= spec.max_silence_s:
        return w
    most_s = spec.max_silence_s
    told = w.announced and replace(w.announced, silence_s=min(w.announced.silence_s, most_s))
    return replace(w, silence_s=min(w.silence_s, most_s), announced=told)
