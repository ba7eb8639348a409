"""The queue as it is kept from one change to the next: what :func:`tenure.queue.rank.order` decides, and more.

Beside whose job goes next it knows which cards have just come free, keeps cards for gangs and for jobs whose wait
comes to the bound, lets shorter ones pass before those, and takes cards away where that gains more than it
loses. docs/queue.md has every rule and what it is for. The same changes in the same order give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from math import inf

from tenure.queue.floor import Floor, Parcel, Running
from tenure.queue.line import Line
from tenure.queue.misuse import Watch
from tenure.queue.preempt import Victim, cheapest, worth_it
from tenure.queue.rank import NEAR, may_go_first, team_order
from tenure.queue.records import HALF_LIFE_S, MAX_WAIT_S, Need, Penalty, Pool, Submission, Team
from tenure.queue.share import Account, entitlements, rate, weight_now

_RESERVE = "reserve"
#: So many of the oldest jobs have cards kept for them at once, as far as they fit together.
_BOOKS = 32
#: So many of a team's overdue jobs are looked at, by age, before its others.
_LATE = 8


@dataclass(frozen=True)
class Rules:
    """The guards, each of which a test takes out."""

    own_cards_go_round: bool = True  # cards that a team gives back are offered to the others first
    takes_back: bool = True  # cards beyond a team's share may be taken by one that is below its own
    charges_ahead: bool = True  # a job is charged when it starts, and settled when it ends
    charges_reserves: bool = True  # cards that are kept for a team are charged to it
    bounds_waiting: bool = True  # a job whose wait comes to the bound goes first
    limits_overdue: bool = True  # ... as far as its team's entitlement reaches
    punishes: bool = True  # misuse lowers a team's weight for a while


@dataclass(frozen=True)
class Book:
    """Cards that are kept for a job from ``at_s`` on; ``spare`` ones are free for longer jobs even then."""

    job: Submission
    at_s: float
    spare: int
    on_credit: bool = False  # beyond the cards that its team is entitled to


@dataclass(frozen=True)
class Pick:
    """A job that starts now, whom it takes cards from, and why."""

    job: Submission
    why: str
    victims: tuple[str, ...] = ()
    on_credit: bool = False


class Fair:
    """One pool's queue."""

    name = "ours"

    def __init__(
        self,
        pool: Pool,
        teams: Sequence[Team],
        half_life_s: float = HALF_LIFE_S,
        max_wait_s: float = MAX_WAIT_S,
        rules: Rules | None = None,
    ) -> None:
        self.pool, self.near_s, self.rules = pool, NEAR * max_wait_s, rules or Rules()
        self.line = Line()
        self.penalties: list[Penalty] = []
        self._of = {team.name: team.part_of or team.name for team in teams}
        self._teams = {team.name: team for team in teams if team.part_of is None}
        self._entitled = entitlements(teams)
        self._accounts = {name: Account(half_life_s) for name in self._teams}
        self._penalised: dict[str, list[Penalty]] = {}
        self._cards = dict.fromkeys(self._teams, 0)  # that a team's jobs run on
        self._runs: dict[str, dict[str, int]] = {
            name: {} for name in self._teams
        }  # their priorities
        self._debts: dict[str, tuple[float, float]] = {}  # card-seconds, and as of when
        self._back: list[Parcel] = []  # given back at this instant
        self._preempted: dict[str, int] = {}
        self._kept: tuple[str, str] | None = (
            None  # team and tie of the job that idle cards are kept for
        )
        self._watch = Watch()

    # ------------------------------------------------------------------ what happens

    def add(self, job: Submission, now_s: float) -> None:
        """A job comes to wait; one that was preempted comes back with its age."""
        del now_s
        self.line.add(job, self._of[job.team])

    def withdraw(self, job: Submission, now_s: float) -> None:
        """A waiting job leaves."""
        del now_s
        self.line.remove(job, self._of[job.team])

    def ended(self, run: Running, now_s: float) -> None:
        """A running job leaves its cards, however that came: it is settled, and they are offered round."""
        team = self._of[run.job.team]
        self._accounts[team].end(run.job.tie, now_s)
        self._cards[team] -= run.job.need.cards
        del self._runs[team][run.job.tie]
        self._back += run.parcels

    def submitted(self, job: Submission, now_s: float) -> None:
        """For the watch over misuse: a job was handed in."""
        team = self._of[job.team]
        self._punish(self._watch.submitted(team, job.job, _content(job), job.priority, now_s))

    def cancelled(self, job: Submission, had_cards: bool, now_s: float) -> None:
        """... was cancelled by its team."""
        self._given_up(job, _content(job), had_cards, now_s)

    def held(self, job: Submission, had_cards: bool, now_s: float) -> None:
        """... is held by its team."""
        self._given_up(job, None, had_cards, now_s)

    def _given_up(
        self, job: Submission, content: str | None, had_cards: bool, now_s: float
    ) -> None:
        team, had = self._of[job.team], had_cards or self._is_kept_for(job)
        self._punish(self._watch.given_up(team, job.job, content, job.priority, had, now_s))

    def replaced(self, job: Submission, had_cards: bool, now_s: float) -> None:
        """... had another one put in its place."""
        team, had = self._of[job.team], had_cards or self._is_kept_for(job)
        self._punish(self._watch.replaced(team, job.job, had, now_s))

    def _is_kept_for(self, job: Submission) -> bool:
        return self._kept is not None and self._kept[1] == job.tie

    def _punish(self, found: Iterable[Penalty]) -> None:
        for each in found if self.rules.punishes else ():
            self.penalties.append(each)
            self._penalised.setdefault(each.team, []).append(each)

    # ------------------------------------------------------------------ who goes next

    def round(self, now_s: float, floor: Floor) -> Iterator[Pick]:
        """The jobs that start now, one after another.

        The caller ends the victims of a pick, starts its job and tells :meth:`started` before it asks for more.
        """
        self._keep_no_longer(now_s)
        while (found := self._pick(now_s, floor)) is not None:
            yield found
        self._back.clear()

    def started(self, pick: Pick, now_s: float) -> tuple[Parcel, ...]:
        """A pick was started: it is charged. Returns whose cards it has, for :meth:`Floor.start`."""
        job, team = pick.job, self._of[pick.job.team]
        self.line.remove(job, team)
        expected_s = job.expected_s if self.rules.charges_ahead else None
        self._accounts[team].begin(job.tie, rate(job.need, self.pool), now_s, expected_s)
        self._cards[team] += job.need.cards
        self._runs[team][job.tie] = job.priority
        if pick.on_credit:
            debt = self._debt(team, now_s) + rate(job.need, self.pool) * job.expected_s
            self._debts[team] = (debt, now_s)
        return self._parcels(job, team, now_s)

    def preempted(self, tie: str) -> None:
        """A victim lost its cards; the next time it is dearer."""
        self._preempted[tie] = self._preempted.get(tie, 0) + 1

    @property
    def keeps_for(self) -> str | None:
        """The tie of the job that idle cards are kept for, though others could use them."""
        return self._kept[1] if self._kept else None

    def charged(self, team: str, now_s: float) -> float:
        """Card-seconds that a team is charged."""
        return self._accounts[self._of[team]].charged(now_s)

    def _weight(self, name: str, now_s: float) -> float:
        mine = self._penalised.get(name)
        return weight_now(self._teams[name], mine, now_s) if mine else self._teams[name].weight

    def heads(self, now_s: float) -> list[tuple[str, Submission]]:
        """The teams that wait, in their order, each with the next of its jobs."""
        found = []
        for name in self.line.teams():
            late = self._late(name, now_s)
            head = late[0] if late else self.line.head(name)
            key = team_order(self._accounts[name].charged(now_s), self._weight(name, now_s), head)
            found.append((key, name, head))
        return [(name, head) for _, name, head in sorted(found, key=lambda each: each[:2])]

    def _pick(self, now_s: float, floor: Floor) -> Pick | None:
        if not self.line.waiting:
            return None
        books: list[Book] = []
        if floor.free:
            books = self._due_books(now_s, floor)
            for at, book in enumerate(books):
                if book.at_s <= now_s and self._fits_before(at, books, now_s, floor):
                    why = "its wait is near the bound"
                    return Pick(book.job, why, on_credit=book.on_credit)
        heads = self.heads(now_s)
        name, head = heads[0]
        if head.need.cards > floor.free:
            taken = self._taken_back(name, head, now_s, floor)
            if taken is not None:
                return taken
            if floor.free:
                # Cards that its team had are not kept for it before the others were asked.
                cards = head.need.cards + self._barred(head)
                books = [*books, self._booked(head, 0.0, head.need.cards, now_s, floor, cards)]
        if floor.free:
            found = self._fitting(heads, books, now_s, floor)
            if found is not None:
                return found
            self._keep(books, heads, now_s, floor)
        return self._of_its_own(heads, now_s, floor)

    def _fitting(
        self, heads: list[tuple[str, Submission]], books: list[Book], now_s: float, floor: Floor
    ) -> Pick | None:
        """The first job in the order of teams that fits; first without cards that its own team gave back."""
        ways = (False, True) if self._back and self.rules.own_cards_go_round else (True,)
        for own_too in ways:
            for name, _ in heads:
                found = self._first_of(name, own_too, books, now_s, floor)
                if found is not None:
                    return found
        return None

    def _first_of(
        self, name: str, own_too: bool, books: list[Book], now_s: float, floor: Floor
    ) -> Pick | None:
        """What the turn of one team comes to: its first job that fits, or one whose bound that would break."""
        endangered: set[int] = set()

        def ok(job: Submission) -> bool:
            against = self._against(job, books, now_s)
            if against is not None:
                endangered.add(against)
            return against is None and (own_too or self._others(job, floor))

        late = (job for job in self._late(name, now_s) if job.need.cards <= floor.free and ok(job))
        usual = next(late, None) or self.line.fitting(name, floor.free, ok)
        for at in sorted(endangered):  # it goes before those that would endanger it
            if self._fits_before(at, books, now_s, floor):
                why = "its wait would come to the bound behind a longer one"
                return Pick(books[at].job, why, on_credit=books[at].on_credit)
        if usual is None:
            return None
        return Pick(usual, "its team is charged the least for its weight")

    # ------------------------------------------------------------------ cards that were just given back

    def _others(self, job: Submission, floor: Floor) -> bool:
        """Whether it fits without the cards that its own team had when it was submitted, and has just given back."""
        return job.need.cards <= floor.free - self._barred(job)

    def _barred(self, job: Submission) -> int:
        if not self.rules.own_cards_go_round:
            return 0
        team = self._of[job.team]
        return sum(p.cards for p in self._back if p.team == team and p.since_s < job.submitted_s)

    def _shares(self, now_s: float) -> dict[str, float]:
        """Cards that each team is due while all that wait or run share the pool by their weights."""
        active = {each for each, cards in self._cards.items() if cards}
        active.update(self.line.teams())
        weights = {each: self._weight(each, now_s) for each in sorted(active)}
        part = self.pool.cards / sum(weights.values())
        return {each: weight * part for each, weight in weights.items()}

    def _parcels(self, job: Submission, team: str, now_s: float) -> tuple[Parcel, ...]:
        """Takes a job's cards: of its own team's those that it may have, of nobody, of others, then its own."""
        wanted = job.need.cards
        mine = [p for p in self._back if p.team == team and p.since_s >= job.submitted_s]
        barred = [p for p in self._back if p.team == team and p.since_s < job.submitted_s]
        others = [p for p in self._back if p.team != team]
        kept: list[Parcel] = []
        found: list[Parcel] = []
        for part in sorted(mine, key=lambda p: p.since_s):
            took = min(wanted, part.cards)
            wanted -= took
            if took:
                found.append(replace(part, cards=took))
            if took < part.cards:
                kept.append(replace(part, cards=part.cards - took))
        if wanted:
            found.append(Parcel(team, now_s, wanted))
        for part in (*others, *barred):
            took = min(wanted, part.cards)
            wanted -= took
            if took < part.cards:
                kept.append(replace(part, cards=part.cards - took))
        self._back = kept
        return tuple(found)

    # ------------------------------------------------------------------ the bound

    def _debt(self, team: str, now_s: float) -> float:
        debt, at_s = self._debts.get(team, (0.0, now_s))
        return max(0.0, debt - self._entitled[team] * self.pool.size * (now_s - at_s))

    def _due_books(self, now_s: float, floor: Floor) -> list[Book]:
        """Cards for the oldest jobs, as many as fit together, at the time when each must start."""
        if not self.rules.bounds_waiting:
            return []
        found: list[Book] = []
        cards = 0
        for job, on_credit in self._oldest(now_s + self.line.longest_s - self.near_s, now_s):
            cards += job.need.cards
            if cards > self.pool.cards or len(found) >= _BOOKS:
                break
            due_s = job.submitted_s + self.near_s
            found.append(
                replace(self._booked(job, due_s, cards, now_s, floor), on_credit=on_credit)
            )
        return found

    def _oldest(self, until_s: float, now_s: float) -> Iterator[tuple[Submission, bool]]:
        """Jobs submitted before ``until_s`` by age, as far as the bound holds for each team; and if on credit."""
        jobs = {name: self.line.oldest(name) for name in self.line.teams()}
        running = {name: self._cards[name] for name in jobs}
        heap = [entry for name in jobs if (entry := self._next_of(name, jobs[name], until_s))]
        heapify(heap)
        credited: set[str] = set()
        while heap:
            _, _, name, job = heappop(heap)
            entitled = self._entitled[name] * self.pool.cards
            debt = 1.0 if name in credited else self._debt(name, now_s)
            if self.rules.limits_overdue and not may_go_first(
                job.need.cards, running[name], entitled, debt
            ):
                continue  # and none of its team that are younger
            on_credit = job.need.cards > entitled
            if on_credit:
                credited.add(name)
            running[name] += job.need.cards
            yield job, on_credit
            if entry := self._next_of(name, jobs[name], until_s):
                heappush(heap, entry)

    @staticmethod
    def _next_of(
        name: str, jobs: Iterator[Submission], until_s: float
    ) -> tuple[float, str, str, Submission] | None:
        job = next(jobs, None)
        if job is None or job.submitted_s >= until_s:
            return None
        return (job.submitted_s, job.tie, name, job)

    def _late(self, name: str, now_s: float) -> list[Submission]:
        """The oldest of a team's overdue jobs."""
        if not self.rules.bounds_waiting:
            return []
        late_s = now_s - self.near_s
        return list(
            takewhile(lambda job: job.submitted_s <= late_s, islice(self.line.oldest(name), _LATE))
        )

    @staticmethod
    def _booked(
        job: Submission, due_s: float, cards: int, now_s: float, floor: Floor, wait_for: int = 0
    ) -> Book:
        """``cards``: of the job and of those that are booked before it; kept once ``wait_for`` are free."""
        at_s = max(due_s, floor.earliest_s(max(cards, min(wait_for, floor.cards)), now_s))
        return Book(job, at_s, floor.free_at(at_s) - cards)

    @staticmethod
    def _against(job: Submission, books: list[Book], now_s: float) -> int | None:
        """Which booking a job would break first if it started now; it breaks none that it ends before."""
        cards, end_s = job.need.cards, now_s + job.expected_s
        for at, book in enumerate(books):
            if book.job.tie == job.tie:
                return None  # what is booked after it reckons with it
            if cards > book.spare and end_s > book.at_s:
                return at
        return None

    def _fits_before(self, at: int, books: list[Book], now_s: float, floor: Floor) -> bool:
        """Whether a booked job can start now, for all that is booked before it."""
        job = books[at].job
        fits = job.need.cards <= floor.free
        return fits and self._against(job, books[:at], now_s) is None

    # ------------------------------------------------------------------ cards that are kept

    def _keep(
        self, books: list[Book], heads: list[tuple[str, Submission]], now_s: float, floor: Floor
    ) -> None:
        """Idle cards that somebody could use are kept for whoever is booked there, and charged to its team."""
        if not self.rules.charges_reserves:
            return
        broken: list[int] = []

        def stopped(job: Submission) -> bool:
            against = self._against(job, books, now_s)
            if against is not None:
                broken.append(against)
            return False

        for name, _ in heads:
            self.line.fitting(name, floor.free, stopped)
        if broken:
            first = books[min(broken)].job
            need = Need(min(floor.free, first.need.cards))
            self._kept = (self._of[first.team], first.tie)
            self._accounts[self._kept[0]].begin(_RESERVE, rate(need, self.pool), now_s, None)

    def _keep_no_longer(self, now_s: float) -> None:
        if self._kept is not None:
            self._accounts[self._kept[0]].end(_RESERVE, now_s)
            self._kept = None

    # ------------------------------------------------------------------ taking cards away

    def _victim(self, run: Running, now_s: float) -> Victim:
        again = self._preempted.get(run.job.tie, 0)
        team, cards = self._of[run.job.team], run.job.need.cards
        return Victim(
            run.job.tie, team, cards, run.loss_s(now_s), preemptions=again, tie=run.job.tie
        )

    def _taken_back(self, name: str, head: Submission, now_s: float, floor: Floor) -> Pick | None:
        """Cards for a team below its share from teams beyond theirs, where that gains more than it loses."""
        if not self.rules.takes_back:
            return None
        shares = self._shares(now_s)
        if self._cards[name] + head.need.cards > shares[name]:
            return None
        saved_s = floor.earliest_s(head.need.cards, now_s) - now_s
        over = {each: self._cards[each] - share for each, share in shares.items()}
        if max(over.values()) < 1:
            return None
        may = [
            self._victim(floor.running[tie], now_s)
            for each, surplus in over.items()
            if surplus >= 1
            for tie in self._runs[each]
            # What has only just begun is no cheaper a victim for that: its cards were another's a moment ago.
            if floor.running[tie].job.need.cards <= surplus and floor.running[tie].from_s < now_s
        ]
        victims = self._within_surplus(may, over, head.need.cards - floor.free)
        if not worth_it(victims, head.need.cards, saved_s):
            return None
        return Pick(
            head,
            f"its team is below its share, and would wait {saved_s:.0f} s",
            tuple(v.tie for v in victims),
        )

    @staticmethod
    def _within_surplus(
        may: Sequence[Victim], over: dict[str, float], cards: int
    ) -> tuple[Victim, ...]:
        """The cheapest victims of whom no team is brought below its share."""
        left = dict(over)
        allowed = []
        for each in sorted(may, key=lambda v: (v.price / v.cards, v.tie)):
            if left[each.team] >= each.cards:
                left[each.team] -= each.cards
                allowed.append(each)
        return cheapest(allowed, cards)

    def _of_its_own(
        self, heads: list[tuple[str, Submission]], now_s: float, floor: Floor
    ) -> Pick | None:
        """A team's urgent job in the place of a lesser one of its own, where nobody else would want the cards."""
        if not self.rules.takes_back:
            return None
        for name, head in heads:
            lesser = [
                self._victim(floor.running[tie], now_s)
                for tie, priority in self._runs[name].items()
                if priority < head.priority
            ]
            if not lesser or head.need.cards <= floor.free:
                continue
            victims = cheapest(lesser, head.need.cards - floor.free)
            if not victims:
                continue
            freed = floor.free + sum(v.cards for v in victims)
            others = any(
                self.line.fitting(each, freed, lambda _: True) for each, _ in heads if each != name
            )
            saved_s = floor.earliest_s(head.need.cards, now_s) - now_s
            if not others and saved_s < inf and worth_it(victims, head.need.cards, saved_s):
                why = (
                    "it goes before a lesser job of its own team, and no other team waits for cards"
                )
                return Pick(head, why, tuple(v.tie for v in victims))
        return None


def _content(job: Submission) -> str:
    """What tells equal work: here, what it asks for."""
    return f"{job.need.cards} {job.duration_s}"
