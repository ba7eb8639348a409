"""What is worth a line, from what a dispatcher saw: pure but for the memory of since when.

Words of a job or of a platform come from machines that anybody may rent: they are made one harmless
line before they stand in a notice.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tenure.dispatch.copies import spare
from tenure.dispatch.decide import Action, Launch, ReleaseBill
from tenure.settings import NoticeKind
from tenure_protocol.codec import short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import FINAL

if TYPE_CHECKING:  # the dispatcher imports the notifier
    from tenure.dispatch.loop import Tick
    from tenure.dispatch.quota import Left
    from tenure.dispatch.world import JobMemory, World

MAX_CHARS = 300
#: A plan whose jobs are all over is told of after this: the chain enlists its next stage meanwhile.
SETTLE_S = 60.0
#: What ended longer ago, by the store's clock, when it is first seen is no news.
NEWS_S = 24 * 3600.0
#: What lasts is told again after this.
AGAIN_S = 24 * 3600.0
#: Nothing worth a launch is trained in what is left of a quota below this.
QUOTA_LEFT_H = 0.1

_WORDS_CHARS = 160  # of others
_NUMBER = re.compile(r"\d+(\.\d+)?")
_JOB = re.compile(r"\b[a-z2-7]{26}\b")
_OCCUPIED = re.compile(
    r"attempt \d+ (renewed|is silent for \d+ s, but our own watch)|launch \d+ may claim"
)
_NO_SLOT = re.compile(r"slots of rung \S+ (are taken|go to jobs before it)")
_LINK = re.compile(r"\b(ht)tp(s?)(?=://)", re.IGNORECASE)

State = Literal["finished", "over", "held", "paused", "queued", "launched", "waiting", "stopped"]


@dataclass(frozen=True)
class Notice:
    """One line for people. ``about`` and ``key`` name its event: every dispatcher finds the same."""

    kind: NoticeKind
    about: str  # a plan's name, or 'runner=NAME', or 'store=all'
    key: str
    line: str
    again_s: float | None = None  # after which it is told again while it lasts; None: never


@dataclass(frozen=True)
class JobSeen:
    """What one look saw of a job."""

    job: str
    plan: str
    state: State
    reason: str = ""
    age_s: float = 0.0  # of its witness
    rungs: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether anything can still happen to it."""
        return self.state not in ("finished", "over")


@dataclass(frozen=True)
class Look:
    """What one round of a dispatcher saw."""

    jobs: tuple[JobSeen, ...] = ()
    silent: str = ""  # why not even the plans could be listed
    whole: bool = True  # whether no plan may be missing
    spent: Mapping[tuple[str, str, float], str] = field(default_factory=dict)  # see _budgets
    left: Mapping[str, Left] = field(default_factory=dict)  # of quotas, by runner


@dataclass(frozen=True)
class Runs:
    """Which runs of their specs the jobs are that ended without a result."""

    number: Mapping[str, int] = field(default_factory=dict)
    retried: frozenset[str] = frozenset()  # they go on as the next one
    unread: frozenset[str] = frozenset()  # not known: nothing is told about them yet


def one_line(words: str, most: int = _WORDS_CHARS) -> str:
    """Words of others: one line, of ``most`` characters at most, that commands no terminal or chat.

    Nobody is called by '@', nothing that is invisible or turns the direction of writing stays, and no
    link can be clicked.

    >>> one_line("lost\\x1b[2J\\n @everyone: see https://x.example")
    'lost [2J (at)everyone: see hxxps://x.example'
    >>> one_line("abcdef", 5)
    'ab...'
    """
    plain = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in words)
    plain = _LINK.sub(r"hxxp\2", plain).replace("@", "(at)").replace("<!", "< !")
    text = " ".join(plain.split())
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def shape(words: str) -> str:
    """What tells two reasons apart: not their numbers, nor the job that they are about.

    >>> shape("rung t4 is parked for 12.5 s (NoSlots: none)")
    'rung t# is parked for # s (NoSlots: none)'
    """
    return _NUMBER.sub("#", _JOB.sub("*", words))


def digest(*parts: str) -> str:
    """
    >>> digest("a", "b") == digest("a", "b") != digest("ab")
    True
    """
    return short_id("\0".join(parts).encode())[:16]


# --------------------------------------------------------------------------------- looking


def look(
    tick: Tick,
    world: World,
    spent: Mapping[tuple[str, str], str] | None = None,
    left: Mapping[str, Left] | None = None,
) -> Look:
    """What a round says about every job, without its bodies. Costs a pass over the jobs.

    ``spent`` says of (plan, currency) in words that its budget is; ``left`` is by runner.
    """
    decided: dict[str, tuple[Action, str]] = {
        action.job: (action, reason)
        for action, reason in tick.decisions
        if not isinstance(action, ReleaseBill)
    }
    seen = []
    for job, memory in list(world.jobs.items()):
        if spare(world.jobs, job):
            continue  # the other of its pair has the result
        action, reason = decided.get(job, (None, ""))
        made = isinstance(action, Launch) and job not in tick.unmade
        state, reason = _state(memory, made, tick.unmade.get(job, reason))
        plan = memory.plan or memory.experiment
        seen.append(JobSeen(job, plan, state, reason, memory.age_s, memory.rungs))
    budgets = {
        (plan, currency, world.budgets.get(plan, {}).get(currency, 0.0)): words
        for (plan, currency), words in (spent or {}).items()
    }
    silent = tick.troubles.get(keys.PLANS, "")
    return Look(tuple(seen), silent, world.whole, budgets, left or {})


def _state(memory: JobMemory, made: bool, reason: str) -> tuple[State, str]:
    """``made``: this round has launched it. The words are those of :mod:`tenure.dispatch.decide`."""
    w = memory.witness
    if memory.broken:
        return "stopped", memory.broken
    if w and w.phase in FINAL:
        if w.phase == "finished" and w.exit_code == 0:
            return "finished", ""
        end = f"ended with code {w.exit_code}" if w.phase == "finished" else "cancelled"
        return "over", f"{end}: {_last_line(w.reason)}"
    if reason.startswith("unknown: "):  # the store is silent about it
        return "stopped", reason
    if w and w.held_back:
        return "paused", reason
    if made:
        return "launched", reason
    if _OCCUPIED.match(reason):
        return "held" if w and w.phase == "held" else "launched", reason
    if _NO_SLOT.search(reason):
        return "queued", reason  # others have the slots, or go before it
    return "waiting", reason or "no reason given"


def _last_line(words: str | None) -> str:
    """Of a traceback, what was raised."""
    lines = (words or "").strip().splitlines()
    return lines[-1] if lines else "no reason given"


# --------------------------------------------------------------------------------- telling


class Teller:
    """Since when a job waits, and since when a plan is over: what a single look cannot say."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._waits: dict[str, float] = {}  # since when nobody could take it, by job
        self._over: dict[str, tuple[str, float]] = {}  # a plan's jobs at its end, and since when
        #: Plans whose end was told by who played them, until they have an open job again.
        self.told_end: set[str] = set()

    def notices(self, seen: Look, runs: Runs, now_s: float, closing: bool = False) -> list[Notice]:
        """All that is worth telling now, told before or not; the same event has the same key.

        ``now_s`` is monotonic. At a dispatcher's end (``closing``) a plan that is over needs not have
        been so for a while.
        """
        self._note_waits(seen, now_s)
        found = [*self._of_store(seen, now_s), *_budgets(seen), *_quotas(seen)]
        plans: dict[str, list[JobSeen]] = {}
        for each in sorted(seen.jobs, key=lambda each: each.job):
            plans.setdefault(each.plan, []).append(each)
        for plan, jobs in plans.items():
            found += _without_result(plan, jobs, runs)
            found += self._stuck(plan, jobs, now_s)
            if seen.whole:
                found += self._ended(plan, jobs, runs, now_s, closing)
        return found

    def _note_waits(self, seen: Look, now_s: float) -> None:
        for each in seen.jobs:
            if each.state in ("waiting", "stopped"):
                self._waits.setdefault(each.job, now_s)
            elif each.state != "launched":  # a launch that nobody claims is no end of waiting
                self._waits.pop(each.job, None)
        if seen.silent:
            self._waits.setdefault("", now_s)
        else:
            self._waits.pop("", None)

    def _of_store(self, seen: Look, now_s: float) -> list[Notice]:
        """That the store says nothing at all."""
        if not seen.silent or (for_s := now_s - self._waits[""]) < self._stuck_s:
            return []
        words = f"the store has not answered for {_span(for_s)}: {one_line(seen.silent)}"
        return [Notice("stuck", "store=all", "silent", _line(words, "tenure doctor"), AGAIN_S)]

    def _stuck(self, plan: str, jobs: Sequence[JobSeen], now_s: float) -> list[Notice]:
        groups: dict[str, list[JobSeen]] = {}
        for each in jobs:
            if each.state not in ("waiting", "stopped"):
                continue
            if now_s - self._waits[each.job] >= self._stuck_s:
                groups.setdefault(shape(each.reason), []).append(each)
        found = []
        for form, group in groups.items():
            longest_s = max(now_s - self._waits[each.job] for each in group)
            words = (
                f"{_of(len(group), len(jobs))} of plan {plan} "
                f"{'has' if len(group) == 1 else 'have'} waited for {_span(longest_s)}: "
                f"{one_line(group[0].reason)}"
            )
            line = _line(words, f"tenure why {group[0].job}")
            found.append(Notice("stuck", plan, digest(form), line, AGAIN_S))
        return found

    def _ended(
        self,
        plan: str,
        jobs: Sequence[JobSeen],
        runs: Runs,
        now_s: float,
        closing: bool,
    ) -> list[Notice]:
        """That every job of a plan is over, well or not."""
        counted = [each for each in jobs if each.job not in runs.retried]
        if any(each.open or each.job in runs.unread for each in jobs):
            self._over.pop(plan, None)
            self.told_end.discard(plan)
            return []
        if plan in self.told_end:
            return []
        ids = digest(*(each.job for each in jobs))
        if self._over.get(plan, ("", 0.0))[0] != ids:
            self._over[plan] = ids, now_s
        lasted = closing or now_s - self._over[plan][1] >= SETTLE_S
        if not lasted or min(each.age_s for each in jobs) > NEWS_S:
            return []
        well = sum(each.state == "finished" for each in counted)
        look_closer = f"tenure status --plan {plan}"
        if well == len(counted):
            words = f"plan {plan}: {_all(well)} finished"
            return [Notice("done", plan, ids, _line(words, look_closer))]
        lacking = len(counted) - well
        words = (
            f"plan {plan} is over: {_of(well, len(counted))} finished, {lacking} without a result"
        )
        return [Notice("blocked", plan, digest("over", ids), _line(words, look_closer))]


def _without_result(plan: str, jobs: Sequence[JobSeen], runs: Runs) -> list[Notice]:
    """Jobs that ended without a result: one notice for all that ended alike.

    A retry that ends alike is another event, for a person has done something in between.
    """
    groups: dict[tuple[str, int], list[JobSeen]] = {}
    for each in jobs:
        if each.job in runs.retried | runs.unread:
            continue
        if each.state == "over" and each.age_s <= NEWS_S:
            alike = shape(each.reason), runs.number.get(each.job, 0)
            groups.setdefault(alike, []).append(each)
    found = []
    for (form, run), group in groups.items():
        words = (
            f"{_of(len(group), len(jobs))} of plan {plan} ended without a result: "
            f"{one_line(group[0].reason)}"
        )
        line = _line(words, f"tenure why {group[0].job}")
        found.append(Notice("blocked", plan, digest("job", form, str(run)), line))
    return found


def gate_blocks(plan: str, reason: str) -> Notice:
    """A gate, or the chain itself, said no."""
    words = f"plan {plan} is blocked: {one_line(reason)}"
    line = _line(words, f"tenure status --plan {plan}")
    return Notice("blocked", plan, digest("gate", shape(reason)), line)


def is_deployed(name: str, record: str, seed: int, warrant: int) -> Notice:
    """A model was made current."""
    words = f"{name} is deployed: record {record}, seed {seed}, by warrant {warrant}"
    line = _line(words, f"tenure gate check {record}")
    return Notice("deployed", name, digest(record, str(warrant)), line)


def is_rolled_back(name: str, record: str, seed: int, warrant: int, move: int) -> Notice:
    """An earlier model was made current again, by the ``move`` of this number."""
    words = f"{name} is rolled back to record {record}, seed {seed}, by warrant {warrant}"
    line = _line(words, f"tenure verify {name}")
    return Notice("deployed", name, digest(record, str(warrant), str(move)), line)


def _budgets(seen: Look) -> list[Notice]:
    """The budgets that are spent, of plans that are in the news. More money, spent again, is another."""
    plans = {each.plan for each in seen.jobs if each.open or each.age_s <= NEWS_S}
    return [
        Notice(
            "budget", plan, digest(currency, f"{most:g}"), _line(words, f"tenure costs {plan}")
        )
        for (plan, currency, most), words in seen.spent.items()
        if plan in plans
    ]  # fmt: skip


def _quotas(seen: Look) -> list[Notice]:
    """The quotas that are spent, once until they are renewed."""
    found = []
    for runner, left in seen.left.items():
        if left.hours > QUOTA_LEFT_H:
            continue
        renews_at_s = left.renews_at_s
        # It is told to the second or so, hence the hour.
        period = "" if renews_at_s is None else f"{renews_at_s / 3600.0:.0f}"
        again_s = AGAIN_S if renews_at_s is None else None
        line = _line(f"the quota of runner {runner} is spent: {left.reason}", "tenure doctor")
        found.append(Notice("quota", f"runner={runner}", digest(period), line, again_s))
    return found


# ------------------------------------------------------------------------------------ words


def _line(words: str, command: str) -> str:
    """One sentence with what to type to look closer, which is never cut off."""
    end = f"; `{command}`"
    return one_line(words, MAX_CHARS - len(end)) + end


def _of(count: int, number: int) -> str:
    """
    >>> _of(1, 1), _of(1, 5)
    ('1 of 1 job', '1 of 5 jobs')
    """
    return f"{count} of {number} job{'' if number == 1 else 's'}"


def _all(number: int) -> str:
    return "its one job is" if number == 1 else f"all {number} jobs are"


def _span(seconds: float) -> str:
    """
    >>> _span(59), _span(3720), _span(200_000)
    ('59 s', '62 min', '56 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} h"
