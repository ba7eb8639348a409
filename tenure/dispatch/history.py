"""What became of each launch of a job, put together from what the store keeps: for people only.

Nothing is decided from it. Every record was written by whoever acted: the intent says why a launch was
made, the settlement how its bill ended, the ledger what it cost, the observations what it did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tenure.dispatch import ledger
from tenure.dispatch.ladder import Rung
from tenure.dispatch.rows import RUNNING, Place, merge
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    Intent,
    LedgerEntry,
    Observation,
    Observations,
    Refusal,
    SettlementRecord,
    Witness,
    load,
)
from tenure_protocol.store.api import Missing, Store

OPEN = "open"  # a bill that nobody has settled yet


@dataclass
class History:
    """What the store keeps of a job's launches, oldest first; ``troubles`` are unreadable keys."""

    intents: list[Intent] = field(default_factory=list)
    settlements: dict[int, SettlementRecord] = field(default_factory=dict)  # newest, by launch
    refusals: list[Refusal] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchRow:
    """One launch of a job: where, why, how it ended, and what it cost."""

    job: str
    launch: int
    rung: str
    runner: str
    by: str
    at_s: float  # Unix time by the dispatcher's clock
    reason: str
    end: str | None  # running, finished, lost, ...: None where nobody has observed it
    bill: str  # closed, bounded, pending or open
    bill_reason: str | None
    bill_at_s: float | None  # Unix time of the settlement by the dispatcher's clock
    card: str | None = None
    start_s: float | None = None  # from its reservation to its claim
    seen_s: float | None = None  # from its reservation to its last milestone, or to its end
    per_s: float | None = None  # work done per second in steps
    work: str | None = None
    paid_s: float | None = None  # of the whole machine
    amount: float | None = None  # of ``currency``, this job's share
    currency: str | None = None


def read_history(store: Store, job: str) -> History:
    """Intents, newest settlements and refusals. Raises StoreSilent."""
    history = History()
    launches = f"jobs/{job}/launches/"
    rows = [*store.list(launches), *store.list(keys.refusals(job))]
    for row in sorted(rows, key=lambda row: row.key):
        name = row.key.rpartition("/")[2]
        refused = row.key.startswith(keys.refusals(job))
        if not (refused or name == "intent.json" or name.startswith("settlement-")):
            continue  # a receipt, or an envelope: what the machine was told
        body = store.read(row.key)
        if isinstance(body, Missing):
            continue
        try:
            if refused:
                history.refusals.append(load(Refusal, body.body, row.key))
            elif name == "intent.json":
                history.intents.append(load(Intent, body.body, row.key))
            else:
                record = load(SettlementRecord, body.body, row.key)
                old = history.settlements.get(record.launch)
                if old is None or record.at_s >= old.at_s:
                    history.settlements[record.launch] = record
        except Corrupt as error:
            history.troubles.append(str(error))
    return history


def read_observations(
    store: Store, known: Iterable[tuple[Place, Observation]] = ()
) -> dict[Place, list[Observation]]:
    """What launches came to by (runner, card): as the store has it, and as a dispatcher knows it.

    One listing, and a read for each (runner, card). What cannot be read is left out: a dispatcher
    names it. Raises StoreSilent.
    """
    found: dict[Place, list[Observation]] = {}
    for row in store.list(keys.OBSERVATIONS):
        body = store.read(row.key)
        try:
            if not isinstance(body, Missing):
                stored = load(Observations, body.body, row.key)
                found[stored.runner, stored.card] = list(stored.rows)
        except Corrupt:
            continue
    more: dict[Place, list[Observation]] = {}
    for place, observation in known:
        more.setdefault(place, []).append(observation)
    for place, rows in more.items():
        found[place] = list(merge(found.get(place, ()), rows).values())
    return found


def launch_rows(
    history: History,
    entries: Iterable[LedgerEntry],
    observed: Mapping[Place, Iterable[Observation]],
    w: Witness | None,
) -> list[LaunchRow]:
    """A row for every launch of one job, the oldest first; what nobody knows is ``None``.

    Observations are a minute old, or of a dispatcher that is gone: ``w``, its witness, has the last word.
    """
    costs = {(each.job, each.launch): each for each in entries}
    refused = {each.launch for each in history.refusals}
    seen = {(o.job, o.launch): (place[1], o) for place, rows in observed.items() for o in rows}
    found = []
    for intent in history.intents:
        key = intent.job, intent.launch
        cost, settled = costs.get(key), history.settlements.get(intent.launch)
        card, what = seen.get(key, (None, None))
        shown = what is not None and what.busy_s > 0
        end = what.end if what else None
        if intent.launch in refused and end in (None, RUNNING, "unclaimed"):
            end = "refused"
        elif w and end in (None, RUNNING):
            end = _end_by(w, intent.launch, end)
        found.append(
            LaunchRow(
                job=intent.job,
                launch=intent.launch,
                rung=intent.rung,
                runner=intent.runner,
                by=intent.by,
                at_s=intent.at_s,
                reason=intent.reason,
                end=end,
                bill=settled.outcome if settled else OPEN,
                bill_reason=settled.reason if settled else None,
                bill_at_s=settled.at_s if settled else None,
                card=card or (cost.card if cost else None),
                start_s=what.start_s if what else None,
                seen_s=what.paid_s if what and what.paid_s > 0 else None,
                per_s=what.done / what.busy_s if what and shown else None,
                work=what.work if what and shown else None,
                paid_s=cost.paid_s if cost else None,
                amount=cost.amount if cost else None,
                currency=cost.currency if cost else None,
            )
        )
    return found


def _end_by(w: Witness, launch: int, end: str | None) -> str | None:
    """How a launch ended that nobody saw the end of, as far as the witness shows it."""
    if launch < w.launched:
        return "lost" if end == RUNNING else end
    if w.phase == "released":
        return f"released:{w.exit_code or 0}"
    return w.phase if w.phase in ("finished", "cancelled", "revoked") else end


@dataclass(frozen=True)
class Running:
    """What one launch that is not settled has cost so far, by the clock of whoever asks."""

    job: str
    launch: int
    name: str  # of the machine
    rung: str
    runner: str
    currency: str
    machine_h: float  # hours of the machine, this job's share of them
    amount: float


def running_costs(
    history: History,
    entries: Iterable[LedgerEntry],
    rungs: Mapping[str, Rung],
    now_s: float,
) -> list[Running]:
    """What the launches of one job cost so far that are in no ledger yet; ``now_s`` is Unix time."""
    noted = {(each.job, each.launch) for each in entries}
    found = []
    for intent in history.intents:
        settled = history.settlements.get(intent.launch)
        rung = rungs.get(intent.rung)
        if (intent.job, intent.launch) in noted or (settled and settled.outcome == "closed"):
            continue
        if not intent.name or rung is None or rung.price is None:
            continue
        hours = max(0.0, now_s - intent.at_s) / 3600.0 * ledger.share(intent, None)
        found.append(
            Running(
                intent.job,
                intent.launch,
                intent.name,
                intent.rung,
                intent.runner,
                rung.price.currency,
                hours,
                hours * rung.price.per_h,
            )
        )
    return found
