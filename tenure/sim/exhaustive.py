"""Every history of one job in a small world, searched breadth first over the real table.

``explore`` follows every order of steps of ``small_actors``, checks the invariants of DESIGN section 5
at every step and in every state, and that from every state an end is reachable without a further fault.
``python -m tenure.sim.exhaustive --world small`` prints what it found.
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from tenure.sim.small_actors import REAL, Actors, Label, State
from tenure.sim.small_world import Behaviour, Transition, World
from tenure_protocol.lease.machine import transition


@dataclass(frozen=True)
class Violation:
    """A broken rule, and a shortest history that breaks it."""

    rule: str
    trace: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What an exploration found; ``complete`` unless it stopped at its first violation."""

    world: World
    states: int
    edges: int
    depth: int
    complete: bool
    violations: tuple[Violation, ...]


# ------------------------------------------------------------------------------------ the search


class _Search:
    """States by number in the order they are found, and how each was first reached."""

    def __init__(self, actors: Actors, first_only: bool) -> None:
        self._actors = actors
        self._first_only = first_only
        start = actors.start()
        self._states = [start]
        self._number = {start: 0}
        self._from = array("l", [0])
        self._label: list[Label] = [("", "", "")]
        self._labels: dict[Label, Label] = {}
        self._free_from, self._free_to = array("l"), array("l")
        self._found: dict[str, Violation] = {}
        self.edges = 0
        self.depth = 0

    def run(self) -> Report:
        """Explore everything, or up to the first violation."""
        level_end = 1
        for number in _counting(self._states):
            if number == level_end:
                self.depth, level_end = self.depth + 1, len(self._states)
            self._expand(number)
            if self._found and self._first_only:
                break
        complete = not (self._found and self._first_only)
        if not self._found:
            self._judge_ends()
        found = tuple(self._found.values())
        states = len(self._states)
        return Report(self._actors.world, states, self.edges, self.depth, complete, found)

    def _expand(self, number: int) -> None:
        state = self._states[number]
        for label, to, free, why in self._actors.steps(state):
            if to == state and not why:
                continue
            self.edges += 1
            if why:
                self._violated(why, number, label, to)
                continue
            at = self._number.get(to)
            if at is None:
                at = self._number[to] = len(self._states)
                self._states.append(to)
                self._from.append(number)
                self._label.append(self._labels.setdefault(label, label))
                if broken := self._actors.broken(to):
                    self._violated(broken, number, label, to)
            if free:
                self._free_from.append(number)
                self._free_to.append(at)

    def _violated(self, rule: str, number: int, label: Label, to: State) -> None:
        if rule not in self._found:
            last = self._line(label, to)
            self._found[rule] = Violation(rule, (*self._trace(number), last))

    def _judge_ends(self) -> None:
        """From every state an end is reachable by free edges; while there is room, a finished one."""
        actors = self._actors
        over = [actors.over(s) for s in self._states]
        self._first_stuck(bytearray(over), [True] * len(over), "7: no end can be reached")
        facts = actors.bodies.facts
        finished = bytearray(facts[s.body].phase == "finished" for s in self._states)
        roomy = [actors.roomy(s) for s in self._states]
        self._first_stuck(finished, roomy, "7: with launches left, it can no longer finish")

    def _first_stuck(self, reaches: bytearray, asked: list[bool], rule: str) -> None:
        changed = True
        while changed:  # edges lead mostly to later states: few sweeps from the back suffice
            changed = False
            for source, to in zip(reversed(self._free_from), reversed(self._free_to), strict=True):
                if reaches[to] and not reaches[source]:
                    reaches[source] = changed = True
        stuck = (n for n, wanted in enumerate(asked) if wanted and not reaches[n])
        first = next(stuck, None)
        if first is not None:
            self._found[rule] = Violation(rule, tuple(self._trace(first)))

    def _trace(self, number: int) -> list[str]:
        lines: list[str] = []
        while number:
            lines.append(self._line(self._label[number], self._states[number]))
            number = self._from[number]
        return ["nothing is stored  [absent]", *lines[::-1]]

    def _line(self, label: Label, to: State) -> str:
        who, act, outcome = label
        what = f"{who} {act}" + (f": {outcome}" if outcome else "")
        return f"{what}  [{self._actors.bodies.words(to.body)}]"


def _counting(growing: Sequence[object]) -> Iterator[int]:
    """Indices of a sequence that grows meanwhile."""
    number = 0
    while number < len(growing):
        yield number
        number += 1


def explore(
    world: World,
    machine: Transition = transition,
    behaviour: Behaviour = REAL,
    first_only: bool = False,
) -> Report:
    """Explore every history of ``world``; ``first_only`` stops at the first violation.

    >>> tiny = World("tiny", launches=1, workers=1, attempts=1, milestones=1, revokes=0)
    >>> report = explore(tiny)
    >>> report.complete, report.violations
    (True, ())
    """
    return _Search(Actors(world, machine, behaviour), first_only).run()


SMALL = World("small")
#: Complete but for those with a fault budget.
WORLDS = {
    world.name: world
    for world in (
        SMALL,
        replace(SMALL, name="two-dispatchers", dispatchers=2),
        replace(SMALL, name="asked", asks=1),
        replace(SMALL, name="scripted", scripts=1, workers=3, faults=3),
        World(
            "operated", milestones=2, asks=1, notices=1, errors=1, cancels=1, rewinds=1, faults=2
        ),
        World("large", 2, launches=3, workers=3, attempts=3, milestones=3, faults=3),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore one of ``WORLDS`` and print what was found; 1 when a rule is broken."""
    parser = argparse.ArgumentParser(prog="python -m tenure.sim.exhaustive", description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), default="small")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    chosen = parser.parse_args(arguments)
    report = explore(WORLDS[chosen.world])
    if chosen.json:
        print(json.dumps(asdict(report)))
    else:
        print(f"world {report.world.name}: {report.states} states, {report.edges} edges, ", end="")
        print(f"depth {report.depth}, {len(report.violations)} violations")
        for violation in report.violations:
            print(f"\n{violation.rule}", *violation.trace, sep="\n  ")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
