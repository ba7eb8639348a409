"""Closes the bills of launches, a machine at a time, and notes how they ended and what they cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.dispatch import ledger
from tenure.dispatch.contract import Bounded, Closed, Pending, Receipt, Settlement
from tenure.dispatch.ladder import Rung
from tenure.dispatch.world import Bill, World
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.lease import keys
from tenure_protocol.records import Intent, LaunchReceipt, SettlementRecord
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_worker.claim import read_spec

_LONGEST_RELEASE_PAUSE_S = 60.0


def receipt_of(record: LaunchReceipt) -> Receipt:
    """What a runner gave for a launch, as it is stored."""
    return Receipt(
        record.jobs or (record.job,),
        record.runner,
        record.name,
        record.card,
        record.at_s,
        record.handle,
    )


class Billing:
    """The bills of one dispatcher."""

    def __init__(
        self, store: Store, rungs: Mapping[str, Rung], clock: Clock, name: str, world: World
    ) -> None:
        self._store = store
        self._rungs = rungs
        self._clock = clock
        self._name = name
        self._world = world

    def aboard(self, bill: Bill) -> list[Bill]:
        """This bill, and every other open one of its machine. Raises StoreSilent."""
        found = [bill]
        for job, launch in bill.beside:
            if isinstance(self._store.read(keys.unsettled(job, launch)), Missing):
                continue
            other = self._world.bills.get((job, launch)) or Bill(job, launch)
            if not self._world.read_bill(other):
                raise StoreSilent(f"{keys.launch(job, launch)} cannot be read yet")
            if other.intent and bill.intent and other.intent.name == bill.intent.name:
                found.append(other)
        return found

    def close(self, bill: Bill, reason: str, aboard: Sequence[Bill] | None = None) -> Settlement:
        """Settle a machine, and keep what came of it for each launch on it. Raises StoreSilent."""
        aboard = self.aboard(bill) if aboard is None else aboard
        settlement = self._settle(bill, aboard)
        for each in aboard:
            words = f"its machine ended with launch {bill.launch} of job {bill.job}: {reason}"
            self._record(each, settlement, reason if each is bill else words)
        return settlement

    def _settle(self, bill: Bill, aboard: Sequence[Bill]) -> Settlement:
        """Ask the platform to end one machine; without a receipt it is looked for by its name."""
        intent = bill.intent
        if intent is None:
            return self._void(bill) if bill.unmade else Pending("its intent cannot be read yet")
        if not intent.name:
            return Closed(intent.reason)
        rung = self._rungs.get(intent.rung)
        if rung is None:
            return Pending(f"tenure.toml has no rung {intent.rung} to close it with")
        made = next((each.receipt for each in aboard if each.receipt), None)
        jobs = tuple(each.job for each in intent.pack or ()) or (bill.job,)
        receipt = (
            receipt_of(made)
            if made
            else Receipt(jobs, intent.runner, intent.name, rung.card, intent.at_s)
        )
        try:
            settlement = rung.runner.release(receipt)
        except Exception as error:  # a failure of the platform, or a bug of a plug-in
            settlement = Pending(f"{type(error).__name__}: {error}", seen=False)
        unseen = isinstance(settlement, Pending) and not settlement.seen
        if unseen and made is None and all(b.failed for b in aboard):
            # Else whoever cannot sign in there, and was refused for that, would owe it for ever. Should
            # there be a machine all the same, the sweep finds it without a bill and ends it.
            words = f"the launch was refused, so there is nothing to end ({settlement.reason})"
            return Closed(words, 0.0)
        if isinstance(settlement, Bounded) or settlement.seen:
            for each in aboard:  # of what never was, there is nothing to wait for or to pay
                each.worked = each.worked or not each.failed
        return settlement

    def _void(self, bill: Bill) -> Settlement:
        """Take the create-only key of an intent that was never written, so that it never will be."""
        words = "never launched: its dispatcher was gone before it wrote what it meant to do"
        intent = Intent(bill.job, bill.launch, "", "", "", self._name, words, self._clock.wall_s())
        try:
            if create_once(
                self._store, keys.intent(bill.job, bill.launch), encode(intent), self._clock
            ):
                return Closed(words)
        except StoreSilent as error:
            return Pending(str(error))
        return Pending("its intent has just been written")

    def _record(self, bill: Bill, settlement: Settlement, reason: str) -> None:
        """Keep the settlement; a closed bill is forgotten only after that, and after its cost."""
        bill.retry_at_s = self._clock.monotonic_s() + bill.pause_s
        bill.pause_s = min(2 * bill.pause_s, _LONGEST_RELEASE_PAUSE_S)
        bill.settlements += 1
        outcome = {Closed: "closed", Pending: "pending", Bounded: "bounded"}[type(settlement)]
        if outcome == "pending" and bill.settlements > 1:
            return  # said once; only a change is worth a record
        until_s = settlement.until_s if isinstance(settlement, Bounded) else None
        if until_s is not None and until_s == bill.bound_s:
            return
        record = SettlementRecord(
            bill.job,
            bill.launch,
            outcome,  # type: ignore[arg-type]
            f"{reason}; {settlement.reason}",
            self._clock.wall_s(),
            until_s,
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
        if not isinstance(settlement, Pending):
            self._note_cost(bill, settlement)
        bill.bound_s = until_s
        if isinstance(settlement, Closed):
            self._store.delete(keys.unsettled(bill.job, bill.launch))
            self._world.forget(bill.job, bill.launch)

    def _note_cost(self, bill: Bill, settlement: Closed | Bounded) -> None:
        rung = self._rungs.get(bill.rung)
        if rung is None or rung.price is None:
            return
        memory = self._world.jobs.get(bill.job)
        entry = ledger.entry(
            bill,
            rung,
            settlement,
            self._clock.wall_s(),
            self._since_s(bill),
            memory.experiment if memory else self._experiment(bill.job),
            memory.team if memory else None,
        )
        if entry is not None:
            key = keys.ledger(self._name, bill.job, bill.launch, entry.outcome)
            create_once(self._store, key, encode(entry), self._clock)

    def _since_s(self, bill: Bill) -> float:
        """Seconds since the receipt was written, or the intent: by the store's times, not by ours."""
        for key in (keys.receipt(bill.job, bill.launch), keys.intent(bill.job, bill.launch)):
            found = self._store.read(key)
            if not isinstance(found, Missing):
                return found.age_s
        return 0.0

    def _experiment(self, job: str) -> str:
        try:
            return read_spec(self._store, job).experiment
        except Corrupt:
            return "?"  # what it cost is known all the same
