"""Whose job goes next where several teams share the rungs: what :mod:`tenure.queue` needs, from the store.

A job's team and age are those of its submission record, whose prefix only that team may write
(:mod:`tenure.plan.submit`); what a team has had is what its launches held, from their intents to their
settlements, all of it by the store's times. With one team nothing of this is read, and the order of the
plans is the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tenure.dispatch import ledger
from tenure.dispatch.decide import is_free
from tenure.dispatch.deeds import Deed, given_up, judged
from tenure.dispatch.ladder import Rung
from tenure.dispatch.rows import LIKELY_DTYPES, peak_ratio
from tenure.dispatch.views import JobView, Snapshot, Turn
from tenure.dispatch.world import Bill, World
from tenure.plan.submit import SubmissionRecord, read_submission
from tenure.queue.rank import order, standing
from tenure.queue.records import (
    HALF_LIFE_S,
    MAX_WAIT_S,
    UNKNOWN_S,
    Decision,
    Hold,
    Need,
    Pool,
    State,
    Submission,
    Team,
)
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import FINAL, JobSpec, LedgerEntry, load
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_worker.claim import read_spec

#: The ledger is listed again after so long, or as soon as a bill was closed.
_READ_EVERY_S = 60.0
#: What keeps jobs of one record in the order of their plan, in seconds: they were submitted together.
_APART_S = 1e-6
#: Who shares where no submission is known yet; it never gets a place.
NOBODY = ""


@dataclass(frozen=True)
class Sharing:
    """Who shares the rungs, how fast use is forgotten, and how long anybody waits at most."""

    teams: tuple[Team, ...] = ()
    half_life_s: float = HALF_LIFE_S
    max_wait_s: float = MAX_WAIT_S


@dataclass(frozen=True)
class Asked:
    """Who asked for a job, and since when it waits; times are the queue's own."""

    team: str
    since_s: float


@dataclass
class _Row:
    """One submission record as it was read."""

    etag: str
    born_s: float  # monotonic, when it was stored
    record: SubmissionRecord | None


@dataclass(frozen=True)
class Queue:
    """The queue as one look shows it, for people and for the round."""

    state: State
    decisions: tuple[Decision, ...]
    now_s: float
    teams: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # numbers of each


class TeamQueue:
    """What one dispatcher knows of the teams. It reads nothing where there is one team."""

    def __init__(
        self,
        store: Store,
        rungs: Mapping[str, Rung],
        clock: Clock,
        world: World,
        sharing: Sharing,
    ) -> None:
        self._store = store
        self._rungs = rungs
        self._clock = clock
        self._world = world
        self._sharing = sharing
        self._teams = tuple(sorted(sharing.teams, key=lambda team: team.name))
        self._rows: dict[str, _Row] = {}  # submissions, by key
        self._ended: dict[
            str, tuple[float, LedgerEntry]
        ] = {}  # by key: monotonic, and what it cost
        self._specs: dict[str, JobSpec | None] = {}  # of jobs that are over
        self._given_up_s: dict[str, float] = {}  # by job, monotonic
        self._read_s: float | None = None
        self._seen_rows = False  # whether what teams asked for was read once since the start
        self._seen_open: set[tuple[str, int]] = set()
        self.troubles: dict[str, str] = {}

    @property
    def shared(self) -> bool:
        """Whether there is anybody to share with."""
        return len(self._teams) > 1

    @property
    def unread(self) -> str:
        """Why nobody's place is known yet, or ''; until it is, nothing is launched."""
        if self.shared and not (self._seen_rows and self._read_s is not None):
            return "what teams have asked for and had cannot be read yet"
        return ""

    # --------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """Read what teams have asked for, and what their launches held. Raises nothing."""
        if not self.shared:
            return
        try:
            self._look_for_submissions()
            self.troubles.pop(keys.SUBMISSIONS, None)
            self._seen_rows = True
        except StoreSilent as error:
            self.troubles[keys.SUBMISSIONS] = str(error)
        try:
            self._look_for_ends()
            self.troubles.pop(keys.LEDGER, None)
        except StoreSilent as error:
            self.troubles[keys.LEDGER] = str(error)

    def _look_for_submissions(self) -> None:
        now_s, seen = self._clock.monotonic_s(), set()
        for row in self._store.list(keys.SUBMISSIONS):
            seen.add(row.key)
            kept = self._rows.get(row.key)
            if kept and kept.etag == row.etag:
                continue
            # Written over it is another record, as old as that: no age is gained so.
            self._rows[row.key] = _Row(row.etag, now_s - row.age_s, self._submission(row.key))
        for key in self._rows.keys() - seen:
            del self._rows[key]

    def _submission(self, key: str) -> SubmissionRecord | None:
        team = key.removeprefix(keys.SUBMISSIONS).partition("/")[0]
        if team not in {each.name for each in self._teams}:
            self.troubles[key] = f"there is no [teams.{team}] in tenure.toml: it counts for nothing"
            return None
        try:
            return read_submission(self._store, key)
        except Corrupt as error:
            self.troubles[key] = str(error)
            return None

    def _look_for_ends(self) -> None:
        now_s = self._clock.monotonic_s()
        closed = self._seen_open - self._world.bills.keys()
        if self._read_s is not None and now_s - self._read_s < _READ_EVERY_S and not closed:
            return
        for row in self._store.list(keys.LEDGER):
            if row.key in self._ended:
                continue
            found = self._store.read(row.key)
            try:
                if not isinstance(found, Missing):
                    entry = load(LedgerEntry, found.body, row.key)
                    self._ended[row.key] = now_s - row.age_s, entry
            except Corrupt as error:
                self.troubles[row.key] = str(error)
        self._read_s, self._seen_open = now_s, set(self._world.bills)

    # ----------------------------------------------------------------------------------- asked

    def asked(self) -> dict[str, Asked]:
        """By job: the team that asked first, since when by its newest record; monotonic."""
        rows = [row for row in self._rows.values() if row.record is not None]
        owner: dict[str, tuple[float, str]] = {}
        since: dict[tuple[str, str], float] = {}
        for row in rows:
            record = row.record
            assert record is not None
            for n, job in enumerate(record.jobs):
                owner[job] = min(
                    owner.get(job, (row.born_s, record.team)), (row.born_s, record.team)
                )
                at_s = row.born_s + n * _APART_S
                since[record.team, job] = max(since.get((record.team, job), at_s), at_s)
        return {job: Asked(team, since[team, job]) for job, (_, team) in owner.items()}

    def _edited_s(self) -> dict[str, float]:
        """By plan: when it last allowed other rungs, monotonic. Its jobs could not be had before as now."""
        found: dict[str, float] = {}
        before: dict[str, object] = {}
        for born_s, record in self._world.plan_versions():
            rungs = record.terms.get("rungs")
            if record.plan in before and before[record.plan] != rungs:
                found[record.plan] = born_s
            before[record.plan] = rungs
        return found

    def _epoch_s(self) -> float:
        """Where the queue's time begins (monotonic): the first record, which every dispatcher knows."""
        return min((row.born_s for row in self._rows.values()), default=0.0)

    # -------------------------------------------------------------------------------- deciding

    def queue(self, views: Collection[JobView]) -> Queue:
        """Everybody's place now, with the reasons."""
        now_s, epoch_s = self._clock.monotonic_s(), self._epoch_s()
        asked, edited_s = self.asked(), self._edited_s()
        holds = self._holds(asked, epoch_s)
        held_s: dict[str, float] = {}
        for hold in holds:
            to_s = now_s - epoch_s if hold.to_s is None else hold.to_s
            held_s[hold.job] = held_s.get(hold.job, 0.0) + max(0.0, to_s - hold.from_s)
        waiting = tuple(
            self._waiting(
                view,
                asked.get(view.job),
                max(view.since_s, edited_s.get(view.plan, view.since_s)) - epoch_s,
                epoch_s,
                held_s.get(view.job, 0.0),
            )
            for view in views
            if waits(view)
        )
        at_s = now_s - epoch_s
        penalties = judged(
            self._deeds(asked, epoch_s), self._world.jobs, self._spec_of, holds, at_s
        )
        state = State(
            self.pool(),
            self._teams,
            waiting,
            holds,
            penalties,
            self._sharing.half_life_s,
            self._sharing.max_wait_s,
        )
        return Queue(state, tuple(order(state, at_s)), at_s, standing(state, at_s))

    def advised(self, seen: Snapshot) -> Snapshot:
        """The snapshot with everybody's turn, where teams share; else as it is."""
        if not self.shared:
            return seen
        found = self.queue(seen.jobs)
        last = len(found.decisions) + 1
        turns = {
            each.job: Turn(
                last if each.place is None else each.place, each.team, said(each, last - 1)
            )
            for each in found.decisions
        }
        return replace(seen, turns=turns)

    def _deeds(self, asked: Mapping[str, Asked], epoch_s: float) -> Iterator[Deed]:
        """What teams handed in and gave up; to let a held job go costs its age, and is no misuse."""
        now_s = self._clock.monotonic_s()
        for row in self._rows.values():
            if row.record is not None and row.record.why == "enlisted":
                for job in row.record.jobs:
                    yield Deed(row.born_s - epoch_s, row.record.team, "enlisted", job)
        gone = {m.job: m for m in self._world.jobs.values() if given_up(m) and m.job in asked}
        for job in self._given_up_s.keys() - gone.keys():
            del self._given_up_s[job]
        for job, memory in gone.items():
            # as first seen: the witnesses of a closed experiment are not listed again
            at_s = self._given_up_s.setdefault(job, now_s - memory.age_s)
            yield Deed(at_s - epoch_s, asked[job].team, "given up", job)

    def _waiting(
        self, view: JobView, asked: Asked | None, planned_s: float, epoch_s: float, held_s: float
    ) -> Submission:
        """A job in the queue: as old as the youngest of what it needs. What it ran is no waiting."""
        since_s = max(planned_s, asked.since_s - epoch_s if asked else planned_s)
        return Submission(
            view.job,
            asked.team if asked else NOBODY,
            round(since_s + held_s, 6),
            Need(view.cards),
            priority=view.priority,
            plan=view.plan,
            deadline_s=None if view.deadline_s is None else view.deadline_s - epoch_s,
            held=view.witness is not None and view.witness.held_back,
        )

    def pool(self) -> Pool:
        """All rungs together: cards that may be had at once, and what they deliver."""
        cards = {
            name: rung.capacity.launches * rung.capacity.cards for name, rung in self._rungs.items()
        }
        delivered = sum(self._speed(name) * cards[name] for name in sorted(cards))
        return Pool(sum(cards.values()), reference_cards=delivered or 1.0)

    def _speed(self, rung: str) -> float:
        """FLOPs of a card over those of the fastest known one of the rungs, by their datasheets."""
        known = self._rungs.get(rung)
        if known is None:
            return 1.0
        for dtype in LIKELY_DTYPES:
            ratios = [peak_ratio(known.card, other.card, dtype) for other in self._rungs.values()]
            found = [ratio for ratio in ratios if ratio is not None]
            if found:
                return min(1.0, *found)
        return 1.0

    def _holds(self, asked: Mapping[str, Asked], epoch_s: float) -> tuple[Hold, ...]:
        """What every team had and has: settled launches to the second, open ones from their intent."""
        now_s = self._clock.monotonic_s() - epoch_s
        ended_s = {entry: at_s for at_s, entry in self._ended.values()}
        settled = ledger.once(entry for _, entry in self._ended.values())
        rows: list[tuple[str, float, float | None, Need]] = []
        for entry in settled:
            if entry.job in asked:
                to_s = ended_s[entry] - epoch_s
                need = self._need(entry.job, entry.rung, entry.share)
                rows.append((entry.job, to_s - entry.paid_s, to_s, need))
        known = {(entry.job, entry.launch) for entry in settled}
        for bill in self._world.bills.values():
            if (bill.job, bill.launch) not in known and _begun(bill) and bill.job in asked:
                share = ledger.share(bill.intent, bill.receipt) if bill.intent else 1.0
                need = self._need(bill.job, bill.rung, share)
                rows.append((bill.job, bill.since_s - epoch_s, None, need))
        rows.sort(key=lambda row: (row[1], row[0]))
        return tuple(
            self._hold(job, from_s, to_s, need, asked[job], now_s, epoch_s)
            for job, from_s, to_s, need in rows
        )

    def _hold(
        self,
        job: str,
        from_s: float,
        to_s: float | None,
        need: Need,
        asked: Asked,
        now_s: float,
        epoch_s: float,
    ) -> Hold:
        """One launch; it was overdue where its job had waited for the bound, and then its length counts."""
        if from_s - (asked.since_s - epoch_s) < self._sharing.max_wait_s:
            return Hold(asked.team, job, from_s, to_s, need)
        lasts_s = max(UNKNOWN_S, now_s - from_s) if to_s is None else None
        return Hold(asked.team, job, from_s, to_s, need, lasts_s, overdue=True)

    def _need(self, job: str, rung: str, share: float) -> Need:
        """The cards of a launch; where machines are rented whole, its part of all their cards."""
        known = self._rungs.get(rung)
        cards = self._cards_of(job)
        if known is not None and known.capacity.per_launch > 1:
            cards = max(cards, round(known.capacity.cards * share))
        return Need(cards, speed=self._speed(rung))

    def _cards_of(self, job: str) -> int:
        spec = self._spec_of(job)
        return spec.cards if spec else 1

    def _spec_of(self, job: str) -> JobSpec | None:
        """A job's spec, read once; ``None`` where it cannot be read, or not now."""
        memory = self._world.jobs.get(job)
        if memory is not None and memory.spec is not None:
            return memory.spec
        if job not in self._specs:
            try:
                self._specs[job] = read_spec(self._store, job)
            except StoreSilent:
                return None
            except Corrupt:
                self._specs[job] = None
        return self._specs[job]


def _begun(bill: Bill) -> bool:
    return bill.intent is not None and not bill.failed


def waits(view: JobView) -> bool:
    """Whether a job wants a place, or is held back from wanting one."""
    w = view.witness
    if view.broken or view.silent or (w and w.phase in FINAL):
        return False
    return is_free(view)


def said(decision: Decision, waiting: int) -> str:
    """Its place in a sentence.

    >>> said(Decision("j", "a", "waits", 3, "team a is charged 2 card-hours"), 9)
    'place 3 of 9 in the queue: team a is charged 2 card-hours'
    """
    if decision.place is None and decision.team == NOBODY:
        return "no team has submitted it: it goes after all others (`tenure enlist` submits it)"
    if decision.place is None:
        return f"it has no place in the queue: {decision.reason}"
    return f"place {decision.place} of {waiting} in the queue: {decision.reason}"
