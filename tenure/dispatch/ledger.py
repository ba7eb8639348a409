"""What launches cost: one create-only entry for each, and their sums, never across currencies."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenure.dispatch.contract import Bounded, Closed
from tenure.dispatch.ladder import Rung
from tenure.dispatch.world import Bill
from tenure_protocol.codec import Corrupt, encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import Intent, LaunchReceipt, LedgerEntry, load
from tenure_protocol.store.api import Missing, Store


def share(intent: Intent, receipt: LaunchReceipt | None) -> float:
    """The part of its machine that a launch is charged for, by cards: over 0, at most 1.

    Of a pack that lost somebody before the machine was made, those who are on it share it.
    """
    started = receipt.jobs if receipt and receipt.jobs else None
    cards = {
        each.job: each.cards
        for each in intent.pack or ()
        if started is None or each.job in started or each.job == intent.job
    }
    return cards[intent.job] / sum(cards.values()) if cards else 1.0


def entry(
    bill: Bill,
    rung: Rung,
    settlement: Closed | Bounded,
    now_s: float,
    since_s: float,
    experiment: str,
    team: str | None = None,
) -> LedgerEntry | None:
    """What a launch cost that is settled at ``now_s`` (Unix time); ``None`` if it cost nothing.

    It costs nothing where no machine came of it, or where its rung has no price. A machine is paid for
    ``since_s`` seconds, from its receipt to the settlement by the store's times (a wall clock of ours
    may jump by a day between them), unless its platform tells how long.
    """
    intent, receipt, price = bill.intent, bill.receipt, rung.price
    told_s = settlement.paid_s if isinstance(settlement, Closed) else None
    if intent is None or not intent.name or price is None or not (bill.cost or told_s):
        return None
    ahead_s = settlement.until_s - now_s if isinstance(settlement, Bounded) else 0.0
    paid_s = max(0.0, since_s + ahead_s if told_s is None else told_s)
    part = share(intent, receipt)
    return LedgerEntry(
        job=bill.job,
        launch=bill.launch,
        experiment=experiment,
        runner=intent.runner,
        rung=intent.rung,
        name=intent.name,
        card=receipt.card if receipt else rung.card,
        price_class=rung.price_class,
        currency=price.currency,
        per_h=price.per_h,
        paid_s=paid_s,
        share=part,
        amount=price.per_h * paid_s / 3600.0 * part,
        outcome="closed" if isinstance(settlement, Closed) else "bounded",
        at_s=now_s,
        told=told_s is not None,
        team=team,
    )


def once(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """Each launch once, since two dispatchers may both have noted it.

    What it came to goes before a bound of it, what the platform told before what our clocks counted,
    and who saw its end first before who saw it later.
    """
    best: dict[tuple[str, int], LedgerEntry] = {}
    for each in entries:
        old = best.setdefault((each.job, each.launch), each)
        if _doubt(each) < _doubt(old):
            best[each.job, each.launch] = each
    return [best[launch] for launch in sorted(best)]


def _doubt(each: LedgerEntry) -> tuple[bool, bool, float]:
    return each.outcome == "bounded", not each.told, each.paid_s


class LedgerBook:
    """The ledger as it was read so far: an entry is create-only, so that none is read twice.

    With a ``folder`` the entries are kept there as well, for the next process: a ledger in a bucket costs
    one GET an entry. The file is a cache and decides nothing: whatever it lacks, or whose ETag is
    another one by now, is read from the store.
    """

    def __init__(self, store: Store, folder: Path | None = None) -> None:
        self._store = store
        self._file = folder / f"{short_id(store.url.encode())}.jsonl" if folder else None
        self._kept: dict[str, tuple[str, LedgerEntry]] | None = None  # by key: ETag and entry
        self._entries: dict[str, LedgerEntry | None] = {}  # by key; None: it cannot be read
        self.troubles: dict[str, str] = {}  # by key

    def look(self, jobs: Collection[str] | None = None) -> None:
        """Read what was settled since the last look (of ``jobs`` alone, if given).

        One listing, and a read for each entry that is not known. Raises StoreSilent.
        """
        wanted = None if jobs is None else set(jobs)
        fresh: list[tuple[str, str, LedgerEntry]] = []
        try:
            for row in self._store.list(keys.LEDGER):
                job = row.key.rpartition("/")[2].partition("-")[0]
                if row.key in self._entries or (wanted is not None and job not in wanted):
                    continue
                etag, entry = self._cached.get(row.key, ("", None))
                if entry is None or etag != row.etag:
                    entry = self._read(row.key)
                    if entry is not None:
                        fresh.append((row.key, row.etag, entry))
                self._entries[row.key] = entry
        finally:
            self._keep(fresh)

    def _read(self, key: str) -> LedgerEntry | None:
        found = self._store.read(key)
        try:
            return None if isinstance(found, Missing) else load(LedgerEntry, found.body, key)
        except Corrupt as error:
            self.troubles[key] = str(error)
            return None

    @property
    def entries(self) -> list[LedgerEntry]:
        """Each launch that was settled, once."""
        return once(entry for entry in self._entries.values() if entry)

    @property
    def _cached(self) -> Mapping[str, tuple[str, LedgerEntry]]:
        if self._kept is None:
            self._kept = dict(_kept(self._file)) if self._file else {}
        return self._kept

    def _keep(self, fresh: Sequence[tuple[str, str, LedgerEntry]]) -> None:
        """Add to the file. One that cannot be written is none: the store has it all."""
        if self._file is None or not fresh:
            return
        lines = [
            json.dumps({"key": key, "etag": etag, "entry": encode(entry).decode()}) + "\n"
            for key, etag, entry in fresh
        ]
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
        except OSError:
            return


def _kept(file: Path) -> Iterator[tuple[str, tuple[str, LedgerEntry]]]:
    """What an earlier process kept; a line that is none, half of one or of another version, is left out."""
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            said = json.loads(line)
            key = str(said["key"])
            yield key, (str(said["etag"]), load(LedgerEntry, said["entry"].encode(), key))
        except (ValueError, TypeError, KeyError, AttributeError, Corrupt):
            continue


def read_ledger(
    store: Store, jobs: Collection[str] | None = None
) -> tuple[list[LedgerEntry], list[str]]:
    """Each launch that was settled (of ``jobs`` alone, if given), once, and what could not be read.

    One listing, and a read for each of those launches. Raises StoreSilent.
    """
    book = LedgerBook(store)
    book.look(jobs)
    return book.entries, list(book.troubles.values())


@dataclass(frozen=True)
class RungCost:
    """What the launches of one rung cost, in one currency."""

    rung: str
    runner: str
    currency: str
    launches: int  # machines
    paid_h: float  # hours of machines
    amount: float


@dataclass(frozen=True)
class JobCost:
    """What all launches of a job cost, in one currency."""

    job: str
    currency: str
    amount: float


def by_rung(entries: Iterable[LedgerEntry]) -> list[RungCost]:
    """Sums over entries of which each launch has one; a machine that is shared counts once."""
    groups: dict[tuple[str, str, str], list[LedgerEntry]] = {}
    for each in entries:
        groups.setdefault((each.rung, each.runner, each.currency), []).append(each)
    return [
        RungCost(
            *names,
            launches=len({each.name for each in group}),
            paid_h=sum(each.paid_s * each.share for each in group) / 3600.0,
            amount=sum(each.amount for each in group),
        )
        for names, group in sorted(groups.items())
    ]


def by_job(entries: Iterable[LedgerEntry]) -> list[JobCost]:
    """Sums over entries of which each launch has one."""
    sums: dict[tuple[str, str], float] = {}
    for each in entries:
        sums[each.job, each.currency] = sums.get((each.job, each.currency), 0.0) + each.amount
    return [JobCost(job, currency, amount) for (job, currency), amount in sorted(sums.items())]


def per_job(costs: Iterable[JobCost], finished: int) -> Mapping[str, float]:
    """What one of ``finished`` jobs cost on average, by currency: all that was paid, over them.

    >>> per_job([JobCost("a", "usd", 3.0), JobCost("b", "usd", 1.0), JobCost("b", "h", 4.0)], 2)
    {'usd': 2.0, 'h': 2.0}
    """
    sums: dict[str, float] = {}
    for each in costs:
        sums[each.currency] = sums.get(each.currency, 0.0) + each.amount
    return {currency: amount / finished for currency, amount in sums.items()} if finished else {}
