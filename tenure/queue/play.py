"""A scenario played under one policy: events, ends of jobs, and the policy's picks, in the order of time.

At one instant jobs end first, then what teams do counts, then the policy chooses, once; so neither the order of
keys in a file nor that of simultaneous events of different jobs makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from tenure.queue.floor import Floor, Running
from tenure.queue.policies import Name, Policy, make
from tenure.queue.records import Need, Penalty, Pool, Submission
from tenure.queue.scenario import Action, Event, Scenario

_HOUR_S = 3600.0

Stage = Literal["waits", "runs", "held", "finished", "gone"]


@dataclass
class Row:
    """One submission and what became of it."""

    job: str
    team: str
    submitted_s: float
    record: Submission
    stage: Stage = "waits"
    started_s: float | None = None  # the first time
    finished_s: float | None = None
    preemptions: int = 0
    why: str = ""


@dataclass(frozen=True)
class Spell:
    """A job on its cards, without a break."""

    job: str
    team: str
    cards: int
    from_s: float
    to_s: float


@dataclass
class Played:
    """What came of a scenario."""

    rows: list[Row] = field(default_factory=list)
    spells: list[Spell] = field(default_factory=list)
    penalties: list[Penalty] = field(default_factory=list)
    end_s: float = 0.0


#: Called after the policy has chosen: time, the cards, the rows so far.
Look = Callable[[float, Floor, Sequence[Row]], None]


def play(
    scenario: Scenario,
    policy: Name | Policy = "ours",
    look: Look | None = None,
) -> Played:
    """Play a scenario. ``policy``: a name, or a queue made for this one pool; ``look``: for whoever checks."""
    if isinstance(policy, str):
        policy = make(
            policy,
            Pool(scenario.cards),
            scenario.team_records(),
            scenario.half_life_h * _HOUR_S,
            scenario.max_wait_h * _HOUR_S,
        )
    return _Play(scenario, policy).to_the_end(look)


_RANK: dict[Action, int] = {"cancel": 0, "hold": 1, "release": 2, "submit": 3, "replace": 4}


def in_order(events: Sequence[Event]) -> list[Event]:
    """Events by time, those of one instant by what they are; a job's own in the order in which they stand.

    >>> a = Event(t_s=0, team="x", action="submit", job="b", duration_s=1)
    >>> b = Event(t_s=0, team="x", action="submit", job="a", duration_s=1)
    >>> in_order([a, b]) == in_order([b, a])
    True
    """
    keyed: list[tuple[tuple[float, int, str, int], Event]] = []
    touched: dict[str, float] = {}
    for n, event in enumerate(events):
        names = [event.job] if event.replaces is None else [event.job, event.replaces]
        again = any(touched.get(name) == event.t_s for name in names)
        for name in names:
            touched[name] = event.t_s
        rank, job = (len(_RANK), "") if again else (_RANK[event.action], event.job)
        keyed.append(((event.t_s, rank, job, n), event))
    return [event for _, event in sorted(keyed, key=lambda each: each[0])]


class _Play:
    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self.policy = policy
        self.floor = Floor(scenario.cards)
        self.events = in_order(scenario.events)
        self.horizon_s = inf if scenario.horizon_h is None else scenario.horizon_h * _HOUR_S
        self.out = Played()
        self.newest: dict[str, Row] = {}  # by the job's name
        self.of: dict[str, Row] = {}  # by the tie of the record in force
        self.now_s = 0.0

    def to_the_end(self, look: Look | None) -> Played:
        at = 0
        while True:
            next_s = self.events[at].t_s if at < len(self.events) else inf
            now_s = min(next_s, self.floor.next_end_s)
            if now_s == inf or now_s > self.horizon_s:
                break
            self.now_s = now_s
            for run in sorted(self.floor.due(now_s), key=lambda run: run.job.tie):
                self._off(run)
                row = self.of[run.job.tie]
                row.stage, row.finished_s = "finished", now_s
            while at < len(self.events) and self.events[at].t_s == now_s:
                self._does(self.events[at])
                at += 1
            self._choose()
            if look is not None:
                look(now_s, self.floor, self.out.rows)
        self._close()
        return self.out

    def _choose(self) -> None:
        for pick in self.policy.round(self.now_s, self.floor):
            back = []
            for tie in pick.victims:
                run = self.floor.running[tie]
                left = self.floor.stop(tie, self.now_s)
                self._off(run)
                self.policy.preempted(tie)
                row = self.of[tie]
                row.preemptions, row.stage = row.preemptions + 1, "waits"
                row.record = left
                back.append(left)
            parcels = self.policy.started(pick, self.now_s)
            self.floor.start(pick.job, self.now_s, parcels)
            row = self.of[pick.job.tie]
            row.stage, row.why = "runs", pick.why
            row.started_s = self.now_s if row.started_s is None else row.started_s
            for left in back:
                self.policy.add(left, self.now_s)

    def _off(self, run: Running) -> None:
        self.policy.ended(run, self.now_s)
        job = run.job
        self.out.spells.append(Spell(job.job, job.team, job.need.cards, run.from_s, self.now_s))

    def _close(self) -> None:
        """At the horizon what runs has used its cards until then."""
        end_s = self.horizon_s if self.horizon_s < inf else self.now_s
        for run in self.floor.running.values():
            job = run.job
            self.out.spells.append(Spell(job.job, job.team, job.need.cards, run.from_s, end_s))
        self.out.penalties = list(self.policy.penalties)
        self.out.end_s = end_s

    # ------------------------------------------------------------------ what teams do

    def _does(self, event: Event) -> None:
        if event.action == "submit":
            self._submit(event, None)
        elif event.action == "replace":
            old = self.newest[event.job if event.replaces is None else event.replaces]
            if old.stage in ("waits", "runs", "held"):
                had = self._take_off(old)
                old.stage = "gone"
                self.policy.replaced(old.record, had, self.now_s)
            self._submit(event, old.record)
        elif event.action == "release":
            row = self.newest[event.job]
            if row.stage == "held":
                self._release(row)
        else:
            row = self.newest[event.job]
            if row.stage in ("waits", "runs") or (row.stage == "held" and event.action == "cancel"):
                had = self._take_off(row)
                if event.action == "hold":
                    row.stage = "held"
                    self.policy.held(row.record, had, self.now_s)
                else:
                    row.stage = "gone"
                    self.policy.cancelled(row.record, had, self.now_s)

    def _take_off(self, row: Row) -> bool:
        """Out of the line or off its cards; whether it had cards."""
        if row.stage == "waits":
            self.policy.withdraw(row.record, self.now_s)
        if row.stage != "runs":
            return False
        run = self.floor.running[row.record.tie]
        row.record = self.floor.stop(row.record.tie, self.now_s)
        self._off(run)
        return True

    def _submit(self, event: Event, old: Submission | None) -> None:
        new = event.action == "submit" or old is None
        was = Submission(event.job, event.team, self.now_s) if new or old is None else old
        job = Submission(
            event.job,
            event.team,
            self.now_s,
            Need(was.need.cards if event.cards is None else event.cards),
            was.duration_s if event.duration_s is None else event.duration_s,
            was.priority if event.priority is None else event.priority,
            deadline_s=was.deadline_s if event.deadline_s is None else event.deadline_s,
            milestone_s=was.milestone_s if event.milestone_s is None else event.milestone_s,
            restart_s=was.restart_s if event.restart_s is None else event.restart_s,
        )
        self.floor.forget(job)
        row = Row(event.job, event.team, self.now_s, job)
        self.out.rows.append(row)
        self.newest[event.job] = self.of[job.tie] = row
        self.policy.add(job, self.now_s)
        if new:
            self.policy.submitted(job, self.now_s)

    def _release(self, row: Row) -> None:
        """It begins anew: its age too, unless it had cards before, when what it did is kept."""
        row.record = replace(row.record, submitted_s=self.now_s)
        if row.started_s is None:
            row.submitted_s = self.now_s
        row.stage = "waits"
        self.of[row.record.tie] = row
        self.policy.add(row.record, self.now_s)
