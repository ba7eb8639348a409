"""What teams did with their places, from the store, for :mod:`tenure.queue.misuse` to judge.

A submission record is a job handed in; a witness that a person cancelled or holds back is a job given up. All of them are timed by the store, so every dispatcher judges alike. What a
dispatcher itself ends is nobody's deed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tenure.dispatch.world import JobMemory
from tenure.queue.misuse import DAY_S, Watch
from tenure.queue.records import Hold, Penalty
from tenure_protocol.records import JobSpec

#: A strike counts for a day, and its penalty lasts for one: what is older changes nothing.
REACH_S = 2 * DAY_S
_PERSON = "operator"  # how `tenure cancel` and `tenure pause` sign

_What = Literal["enlisted", "given up"]
_TURN: dict[_What, int] = {"given up": 0, "enlisted": 1}  # at one time, in this order


@dataclass(frozen=True)
class Deed:
    """One of them; ``at_s`` is the queue's time."""

    at_s: float
    team: str
    what: _What
    job: str


def given_up(memory: JobMemory) -> bool:
    """Whether a person took a job back."""
    w = memory.witness
    if w is None or not (w.by or "").startswith(_PERSON):
        return False
    return w.phase == "cancelled" or bool(w.held_back)


def content(job: str, spec: JobSpec | None) -> str:
    """What tells equal work: the spec, whichever run of it; a job whose spec is not known is like no other."""
    return replace(spec, run=0).id if spec else job


def judged(
    deeds: Iterable[Deed],
    jobs: Mapping[str, JobMemory],
    spec_of: Callable[[str], JobSpec | None],
    holds: Sequence[Hold],
    now_s: float,
) -> tuple[Penalty, ...]:
    """The penalties that deeds of the last days come to and that are in force.

    Specs are asked for of teams alone that gave something up.
    """
    watch = Watch()
    found: list[Penalty] = []
    recent = [deed for deed in deeds if now_s - deed.at_s <= REACH_S]
    gave = {deed.team for deed in recent if deed.what == "given up"}
    recent = [deed for deed in recent if deed.team in gave]  # who gave nothing up swapped nothing
    of: dict[str, list[Hold]] = {}
    for hold in holds:
        of.setdefault(hold.job, []).append(hold)
    for deed in sorted(recent, key=lambda d: (d.at_s, _TURN[d.what], d.team, d.job)):
        memory = jobs.get(deed.job)
        if memory is None:
            continue
        priority = memory.priority
        same = content(deed.job, spec_of(deed.job))
        if deed.what == "enlisted":
            found += watch.submitted(deed.team, deed.job, same, priority, deed.at_s)
            continue
        had = _had_cards(of.get(deed.job, ()), deed.at_s)
        held = memory.witness is not None and memory.witness.held_back
        what = None if held else same  # what is held comes back as what it is
        found += watch.given_up(deed.team, deed.job, what, priority, had, deed.at_s)
    return tuple(each for each in found if each.until_s > now_s)


def _had_cards(holds: Iterable[Hold], at_s: float) -> bool:
    return any(hold.from_s <= at_s and (hold.to_s is None or at_s <= hold.to_s) for hold in holds)
