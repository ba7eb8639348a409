"""What the plans with a budget have spent: every launch that was settled, and those that still run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tenure.dispatch import ledger
from tenure.dispatch.history import Running
from tenure.dispatch.ladder import Rung
from tenure.dispatch.world import World
from tenure_protocol.clock import Clock
from tenure_protocol.lease import keys
from tenure_protocol.records import LedgerEntry
from tenure_protocol.store.api import Store, StoreSilent

_READ_EVERY_S = 60.0


@dataclass(frozen=True)
class Spent:
    """What a plan has paid in one currency."""

    settled: float = 0.0
    running: float = 0.0  # so far, by launches that are not settled

    @property
    def whole(self) -> float:
        """Both together."""
        return self.settled + self.running


class Spending:
    """The sums of one dispatcher. It reads nothing as long as no plan has a budget."""

    def __init__(self, store: Store, rungs: Mapping[str, Rung], clock: Clock, world: World) -> None:
        self._rungs = rungs
        self._clock = clock
        self._world = world
        self._book = ledger.LedgerBook(store)
        self._settled: list[LedgerEntry] = []  # each launch once
        self._read_s: float | None = None
        self._seen_open: set[tuple[str, int]] = set()  # bills, at the last reading
        self.troubles: dict[str, str] = {}

    def look(self) -> None:
        """Read what was settled since the last look, by whichever dispatcher. Raises nothing."""
        now_s = self._clock.monotonic_s()
        if not any(self._world.budgets.values()):
            return
        closed = self._seen_open - self._world.bills.keys()
        fresh = self._read_s is not None and now_s - self._read_s < _READ_EVERY_S
        if fresh and not closed:  # a bill that was closed has become an entry
            return
        try:
            self._book.look()
            self.troubles.pop(keys.LEDGER, None)
            self._read_s, self._seen_open = now_s, set(self._world.bills)
        except StoreSilent as error:  # what is known stands: a budget is never taken for unspent
            self.troubles[keys.LEDGER] = str(error)
        self.troubles |= self._book.troubles
        self._settled = self._book.entries

    def spent(self) -> dict[tuple[str, str], str]:
        """(plan, currency) of every budget that is spent, and in words how much of it."""
        budgets = {plan: budget for plan, budget in self._world.budgets.items() if budget}
        if not budgets:
            return {}
        sums = self.sums()
        return {
            (plan, currency): (
                f"the budget of plan {plan} is spent: {spent.whole:.2f} of {amount:.2f} {currency}"
            )
            for plan, budget in budgets.items()
            for currency, amount in budget.items()
            if (spent := sums.get((plan, currency), Spent())).whole >= amount
        }

    def sums(self) -> dict[tuple[str, str], Spent]:
        """What was paid and is being paid, by (plan, currency), as of the last look."""
        sums: dict[tuple[str, str], Spent] = {}
        for entry in self._settled:
            self._add(sums, entry.job, entry.currency, Spent(settled=entry.amount))
        for each in self.open_costs(self._settled):
            self._add(sums, each.job, each.currency, Spent(running=each.amount))
        return sums

    def open_costs(self, settled: Iterable[LedgerEntry]) -> list[Running]:
        """What the launches with an open bill cost so far that are not among those settled."""
        noted = {(entry.job, entry.launch) for entry in settled}
        found = []
        for bill in self._world.bills.values():
            rung = self._rungs.get(bill.rung)
            price = rung.price if rung else None
            if (bill.job, bill.launch) in noted or not bill.cost or not price or not bill.intent:
                continue
            hours = max(0.0, self._clock.monotonic_s() - bill.since_s) / 3600.0
            hours *= ledger.share(bill.intent, bill.receipt)
            intent = bill.intent
            found.append(
                Running(
                    bill.job,
                    bill.launch,
                    intent.name,
                    intent.rung,
                    intent.runner,
                    price.currency,
                    hours,
                    price.per_h * hours,
                )
            )
        return found

    def _add(
        self, sums: dict[tuple[str, str], Spent], job: str, currency: str, more: Spent
    ) -> None:
        memory = self._world.jobs.get(job)
        if memory is not None:
            old = sums.get((memory.plan, currency), Spent())
            sums[memory.plan, currency] = Spent(
                old.settled + more.settled, old.running + more.running
            )
