"""Whose job goes next: a pure function of records and time, with a reason for every job.

Teams go by what they are charged over their weight, the least first; within a team its own priorities,
deadlines and ages decide, and nothing of that reaches beyond it. Each job that is placed charges its team
before the next one is chosen, so that jobs which start together are shared out by weight as well.
A job whose wait comes near the bound goes before its team's other jobs, and before those of all other teams as far
as its team's entitlement reaches (:func:`may_go_first`). docs/queue.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from tenure.queue.records import Decision, Hold, Pool, State, Submission, Team, Verdict
from tenure.queue.share import (
    charges,
    entitlements,
    job_charge,
    rate,
    weight_now,
)

_HOUR_S = 3600.0
#: Digits of a key that count: sums of the same numbers in another order differ after the fifteenth.
_DIGITS = 10

OwnOrder = tuple[int, float, float, str]
TeamOrder = tuple[float, float, str]
#: From this part of the bound on a job counts as near it; the rest is the time to find its cards.
NEAR = 0.875
#: Jobs near the bound by age before all others of their team.
_Rank = tuple[int, float, OwnOrder]


def own_order(job: Submission) -> OwnOrder:
    """The order of a team's own jobs: priority, then the latest start that keeps a deadline, then age.

    >>> soon = Submission("b", "x", 5.0, deadline_s=100.0, duration_s=50.0)
    >>> own_order(soon) < own_order(Submission("a", "x", 0.0))
    True
    """
    latest_s = inf if job.deadline_s is None else job.deadline_s - job.expected_s
    return (-job.priority, latest_s, job.submitted_s, job.job)


def team_order(charged: float, weight: float, head: Submission) -> TeamOrder:
    """The order between teams: charged use over weight; equal ones by the age of their next job.

    >>> team_order(10.0, 2.0, Submission("j", "x", 3.0))[:2]
    (5.0, 3.0)
    """
    return (rounded(charged / weight), head.submitted_s, head.tie)


def rounded(value: float) -> float:
    """A number to the digits that count, so that two sums of the same parts compare as equal.

    >>> rounded(0.1 + 0.2) == rounded(0.3)
    True
    """
    return float(f"{value:.{_DIGITS}g}")


def refusal(job: Submission, pool: Pool) -> str | None:
    """Why a job can never start in this pool, with what would do; None where it can.

    >>> from tenure.queue.records import Need
    >>> refusal(Submission("j", "x", 0.0, Need(16)), Pool(8))
    'asks for 16 cards at once and the pool has 8; 8 would fit'
    """
    for asked, there, what in (
        (job.need.cards, pool.cards, "cards at once"),
        (job.need.cpus, pool.cpus, "CPUs"),
        (job.need.memory_gib, pool.memory_gib, "GiB of memory"),
    ):
        if asked > there and (there or what == "cards at once"):
            return f"asks for {asked:g} {what} and the pool has {there:g}; {there:g} would fit"
    asked_s = rate(job.need, pool) * job.expected_s
    if job.budget_card_s is not None and asked_s > job.budget_card_s:
        return (
            f"needs {asked_s / _HOUR_S:.4g} card-hours and its budget is "
            f"{job.budget_card_s / _HOUR_S:.4g}; raise the budget or shorten the job"
        )
    return None


def overdue_debt(holds: Iterable[Hold], pool: Pool, entitlement: float, now_s: float) -> float:
    """What a team still owes for jobs that the bound started beyond its entitlement, in card-seconds.

    Each such start is charged its size, and the debt is paid off at the speed of the team's entitlement.

    >>> from tenure.queue.records import Need
    >>> held = [Hold("x", "j", 0.0, None, Need(4), 100.0, overdue=True)]
    >>> overdue_debt(held, Pool(8), 0.25, now_s=50.0)
    300.0
    """
    debt, at_s = 0.0, 0.0
    speed = entitlement * pool.size
    for hold in sorted((h for h in holds if h.overdue), key=lambda h: (h.from_s, h.job)):
        debt = max(0.0, debt - speed * (hold.from_s - at_s)) if debt else 0.0
        at_s = hold.from_s
        lasts_s = (hold.expected_s or 0.0) if hold.to_s is None else hold.to_s - hold.from_s
        debt += rate(hold.need, pool) * lasts_s
    return max(0.0, debt - speed * (now_s - at_s))


def may_go_first(cards: int, running: float, entitled: float, debt: float) -> bool:
    """Whether a job near the bound may go before all teams that have used less.

    It may within the cards that its team is entitled to. A gang that is wider than those may too, on credit;
    until that is paid off no other job of its team goes first.

    >>> may_go_first(2, running=1, entitled=3.2, debt=0.0), may_go_first(2, 2, 3.2, 0.0)
    (True, False)
    >>> may_go_first(8, running=3, entitled=3.2, debt=0.0), may_go_first(1, 0, 3.2, debt=1.0)
    (True, False)
    """
    return debt <= 0 and (running + cards <= entitled or cards > entitled)


def order(state: State, now_s: float, limit: int | None = None) -> list[Decision]:
    """Every waiting job with its place and reason; ``limit``: so many places, and then no more.

    Raises nothing for bad records: a job of no team, or one that can never start, is refused in words.
    """
    turn = _Turns(state, now_s)
    placed: list[Decision] = []
    while limit is None or len(placed) < limit:
        found = turn.next(len(placed) + 1)
        if found is None:
            break
        placed.append(found)
    return placed + turn.without_place


class _Turns:
    """One look at the queue: what each team is charged, and what placed jobs will charge it."""

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.of = {team.name: team.part_of or team.name for team in state.teams}
        self.teams = {team.name: team for team in state.teams if team.part_of is None}
        self.charged = charges(state.holds, state.teams, state.pool, now_s, state.half_life_s)
        self.entitled = entitlements(state.teams)
        self.without_place: list[Decision] = []
        able = [job for job in sorted(state.waiting, key=lambda j: j.tie) if self._able(job)]
        late_s = now_s - NEAR * state.max_wait_s
        self.jobs = _heaps(able, self.of, late_s)
        self.debts = {name: self._debt(name) for name in self.jobs}
        self.overdue = [
            (job.submitted_s, job.tie, job) for job in able if job.submitted_s <= late_s
        ]
        heapify(self.overdue)
        self.running = dict.fromkeys(self.jobs, 0)
        for hold in state.holds:
            name = self.of.get(hold.team, hold.team)
            if hold.to_s is None and hold.kind == "run" and name in self.running:
                self.running[name] += hold.need.cards
        self.gone: set[str] = set()
        self.barred: set[str] = set()  # teams with no more claim by the bound
        self.heap: list[tuple[TeamOrder, str]] = []
        for name in self.jobs:
            self._push(name)

    def _able(self, job: Submission) -> bool:
        team = self.teams.get(self.of.get(job.team, ""))
        if team is None:
            known = ", ".join(sorted(self.teams)) or "none"
            why: str | None = f"there is no team {job.team!r}; known: {known}"
        else:
            why = refusal(job, self.state.pool)
        if why is None and not job.held:
            return True
        said = Decision(job.job, job.team, "refused", None, why or "")
        if why is None:
            said = Decision(
                job.job, job.team, "held", None, "held; its age starts anew at its release"
            )
        self.without_place.append(said)
        return False

    def _debt(self, name: str) -> float:
        holds = [hold for hold in self.state.holds if self.of.get(hold.team, hold.team) == name]
        return overdue_debt(holds, self.state.pool, self.entitled[name], self.now_s)

    def _head(self, name: str) -> Submission | None:
        heap = self.jobs[name]
        while heap and heap[0][1].tie in self.gone:
            heappop(heap)
        return heap[0][1] if heap else None

    def _weight(self, name: str) -> float:
        return weight_now(self.teams[name], self.state.penalties, self.now_s)

    def _push(self, name: str) -> None:
        head = self._head(name)
        if head is not None:
            heappush(self.heap, (team_order(self.charged[name], self._weight(name), head), name))

    def next(self, place: int) -> Decision | None:
        """Who is at this place; charges it to its team."""
        late = self._next_overdue()
        if late is not None:
            said = self._said(late, place, self._why_overdue(late))
            self._take(late, self.of[late.team], overdue=True)
            self._push(self.of[late.team])
            return said
        while self.heap:
            key, name = heappop(self.heap)
            head = self._head(name)
            if head is None or key != team_order(self.charged[name], self._weight(name), head):
                continue  # an entry from before the team's last turn
            said = self._said(head, place, self._why(name, head))
            self._take(head, name, overdue=False)
            self._push(name)
            return said
        return None

    def _next_overdue(self) -> Submission | None:
        while self.overdue:
            job = heappop(self.overdue)[
                2
            ]  # one passed over has no claim this time: its team's cards and
            name = self.of[job.team]  # debt only grow within one look
            if job.tie not in self.gone and name not in self.barred:
                if may_go_first(job.need.cards, *self._first_terms(name)):
                    return job
                self.barred.add(name)  # the oldest first, also among a team's own
        return None

    def _first_terms(self, name: str) -> tuple[int, float, float]:
        return self.running[name], self.entitled[name] * self.state.pool.cards, self.debts[name]

    def _take(self, job: Submission, name: str, *, overdue: bool) -> None:
        self.gone.add(job.tie)
        self.charged[name] += job_charge(job, self.state.pool, self.state.half_life_s)
        entitled = self.entitled[name] * self.state.pool.cards
        if overdue and job.need.cards > entitled:
            self.debts[name] += rate(job.need, self.state.pool) * job.expected_s
        self.running[name] += job.need.cards

    def _said(self, job: Submission, place: int, reason: str) -> Decision:
        name = self.of[job.team]
        verdict: Verdict = "next" if place == 1 else "waits"
        return Decision(job.job, job.team, verdict, place, reason, self._numbers(name, job))

    def _numbers(self, name: str, job: Submission) -> dict[str, float]:
        total = sum(self.charged[each] for each in sorted(self.charged))
        return {
            "charged_card_h": self.charged[name] / _HOUR_S,
            "weight": self._weight(name),
            "share": self.charged[name] / total if total else 0.0,
            "entitlement": self.entitled[name],
            "waited_s": self.now_s - job.submitted_s,
            "priority": float(job.priority),
        }

    def _why_overdue(self, job: Submission) -> str:
        waited_h = (self.now_s - job.submitted_s) / _HOUR_S
        return (
            f"it has waited {waited_h:.1f} h and the bound is {self.state.max_wait_s / _HOUR_S:g} h, "
            "so it goes before those that have waited less"
        )

    def _why(self, name: str, job: Submission) -> str:
        weight = self._weight(name)
        words = (
            f"team {name} is charged {self.charged[name] / _HOUR_S:.4g} card-hours over weight "
            f"{weight:g}: {self.charged[name] / _HOUR_S / weight:.4g}, the least of the teams that wait"
        )
        full = self.teams[name].weight
        if weight < full:
            words += f" (its weight is {full:g} without its penalties)"
        if job.priority:
            words += f"; priority {job.priority} among its own jobs"
        return words


def _heaps(
    jobs: Sequence[Submission], of: Mapping[str, str], late_s: float
) -> dict[str, list[tuple[_Rank, Submission]]]:
    found: dict[str, list[tuple[_Rank, Submission]]] = {}
    for job in jobs:
        rank = (
            (0, job.submitted_s, own_order(job))
            if job.submitted_s <= late_s
            else (1, 0.0, own_order(job))
        )
        found.setdefault(of[job.team], []).append((rank, job))
    for entries in found.values():
        entries.sort(key=lambda entry: (entry[0], entry[1].tie))
    return dict(sorted(found.items()))


def standing(state: State, now_s: float) -> dict[str, dict[str, float]]:
    """Per team: weight, weight_now, entitlement, charged_card_h, share, running_cards, waiting_jobs."""
    of = {team.name: team.part_of or team.name for team in state.teams}
    charged = charges(state.holds, state.teams, state.pool, now_s, state.half_life_s)
    total = sum(charged[name] for name in sorted(charged))
    entitled = entitlements(state.teams)
    found: dict[str, dict[str, float]] = {}
    for team in sorted((t for t in state.teams if t.part_of is None), key=lambda t: t.name):
        mine = [h for h in state.holds if of.get(h.team) == team.name and h.kind == "run"]
        found[team.name] = {
            "weight": team.weight,
            "weight_now": weight_now(team, state.penalties, now_s),
            "entitlement": entitled[team.name],
            "charged_card_h": charged[team.name] / _HOUR_S,
            "share": charged[team.name] / total if total else 0.0,
            "running_cards": float(sum(h.need.cards for h in mine if h.to_s is None)),
            "waiting_jobs": float(sum(of.get(j.team) == team.name for j in state.waiting)),
        }
    return found


def check_teams(teams: Iterable[Team]) -> str | None:
    """What is wrong with a list of teams, in a sentence; None where nothing is.

    >>> check_teams([Team("a", 0.0)])
    "team 'a' has the weight 0; it must be greater than 0"
    """
    listed = {team.name: team for team in teams}
    for team in listed.values():
        if not 0 < team.weight < inf:
            return f"team {team.name!r} has the weight {team.weight:g}; it must be greater than 0"
        if team.part_of is None:
            continue
        whole = listed.get(team.part_of)
        if whole is None:
            return f"team {team.name!r} is part of {team.part_of!r}, and there is no such team"
        if whole.part_of is not None:
            return (
                f"team {team.name!r} is part of {team.part_of!r}, which is itself a part of a team"
            )
    return None
