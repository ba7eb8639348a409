"""What a success costs with all attempts counted: a finite tree of retries (11.5.2, example 11-8).

A node is an attempt; an outcome ends the task well or badly, or leads to the next attempt. The probabilities of a
node hold for tasks that have come to it. Two attempts that may lead to the same third one share its node, if its
probabilities are the same for both. A loop is refused: the attempts of a task are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tenure.bad_input import MistakeAt, did_you_mean
from tenure.capacity.terms import (
    Answer,
    Positive,
    Scenario,
    Seconds,
    Share,
    Strict,
    Text,
    Usd,
    brief,
    in_time,
    percent,
    sums_to_one,
)

SUCCESS, FAIL = ENDS = "success", "fail"
MOST_PATHS = 100_000

End = Literal["success", "fail", "not_started"]


class Outcome(Strict):
    """Where an attempt leads, and how often."""

    p: Annotated[Share, Field(description="among the tasks that came to this node")]
    to: Annotated[Text, Field(description="success, fail, or the next node")]


class Node(Strict):
    """One attempt."""

    cost_usd: Usd
    seconds: Seconds
    outcomes: Annotated[list[Outcome], Field(min_length=1)]


@dataclass(frozen=True)
class Path:
    """One way through the tree, with the costs of every attempt on it."""

    path: list[str]
    outcome: End
    p: float
    cost_usd: float
    seconds: float
    in_time: list[bool]  # a success by each deadline


@dataclass(frozen=True)
class Deadline:
    """What is done by a deadline."""

    deadline_s: float
    in_time: float  # share of all tasks that succeed by then
    cost_per_in_time: float | None  # all costs over them; None: there are none


@dataclass(frozen=True)
class Retries(Answer):
    """Over all tasks that are sent in."""

    success: float
    expected_cost_usd: float
    cost_per_success: float | None  # None: nothing succeeds
    deadlines: list[Deadline]
    paths: list[Path]  # the first outcome of each node first

    @property
    def words(self) -> str:
        """Success, and its price."""
        late = "".join(
            f"; {percent(each.in_time)} succeed within {brief(each.deadline_s)} s, at "
            f"{brief(each.cost_per_in_time)} usd each"
            for each in self.deadlines
        )
        return (
            f"{percent(self.success)} succeed and cost {brief(self.cost_per_success)} usd each, all attempts "
            f"counted{late}"
        )


def paths(
    nodes: Mapping[str, Node], start: str, deadlines_s: Sequence[float], stop_late: bool = False
) -> Iterator[Path]:
    """Every way from ``start`` to an end, depth first: ``p`` and ``c`` of ``E[C] = sum p c`` (11.5.2).

    With ``stop_late`` an attempt that cannot end by the first deadline is not started, and the task ends there.
    """
    open_: list[tuple[list[str], str, float, float, float]] = [([], start, 1.0, 0.0, 0.0)]
    while open_:
        before, name, p, cost_usd, seconds = open_.pop()
        node = nodes.get(name)
        late = stop_late and node and not in_time(seconds + node.seconds, deadlines_s[0])
        if node is None or late:
            end: End = "not_started" if late else "success" if name == SUCCESS else "fail"
            succeeds = end == SUCCESS
            punctual = [succeeds and in_time(seconds, deadline_s) for deadline_s in deadlines_s]
            yield Path(before, end, p, cost_usd, seconds, punctual)
            continue
        for outcome in reversed(node.outcomes):
            total_usd, total_s = cost_usd + node.cost_usd, seconds + node.seconds
            open_.append(([*before, name], outcome.to, p * outcome.p, total_usd, total_s))


def find_loop(nodes: Mapping[str, Node]) -> list[str] | None:
    """The nodes of a loop, the first one again at the end; None where there is none.

    >>> again = Node(cost_usd=1, seconds=1, outcomes=[Outcome(p=1, to="b")])
    >>> back = Node(cost_usd=1, seconds=1, outcomes=[Outcome(p=1, to="a")])
    >>> find_loop({"a": again, "b": back}), find_loop({"a": again})
    (['a', 'b', 'a'], None)
    """
    done: set[str] = set()
    for root in nodes:
        trail: dict[str, Iterator[str]] = {}
        here: str | None = root
        while here is not None:
            if here in trail:
                names = list(trail)
                return [*names[names.index(here) :], here]
            if here in nodes and here not in done:
                trail[here] = iter([outcome.to for outcome in nodes[here].outcomes])
            here = None
            while trail and here is None:
                last = next(reversed(trail))
                here = next(trail[last], None)
                if here is None:
                    done.add(last)
                    del trail[last]
    return None


def count_paths(nodes: Mapping[str, Node], start: str) -> int:
    """How many ways there are, without walking them; the tree has no loop.

    >>> twice = Node(cost_usd=1, seconds=1, outcomes=[Outcome(p=0.5, to="b"), Outcome(p=0.5, to="b")])
    >>> count_paths({"a": twice, "b": twice.model_copy(update={"outcomes": [Outcome(p=1, to="fail")]})}, "a")
    2
    """
    known: dict[str, int] = {}
    open_ = [start]
    while open_:
        name = open_[-1]
        after = [outcome.to for outcome in nodes[name].outcomes] if name in nodes else []
        wanted = [other for other in after if other not in known]
        if wanted:
            open_.extend(wanted)
            continue
        known[name] = sum(known[other] for other in after) if after else 1
        open_.pop()
    return known[start]


class RetriesScenario(Scenario):
    """A strategy for what fails."""

    kind: Literal["retries"]
    nodes: Annotated[dict[Text, Node], Field(min_length=1)]
    start: Text
    deadlines_s: Annotated[list[Positive], Field(default_factory=list)]
    stop_if_late: Annotated[
        bool, Field(description="start no attempt that cannot end by the one deadline")
    ] = False

    @model_validator(mode="after")
    def _is_a_tree(self) -> RetriesScenario:
        known = [*self.nodes, *ENDS]
        for name, node in self.nodes.items():
            if name in ENDS:
                raise MistakeAt(("nodes", name), "is the name of an end; rename the node")
            total = math.fsum(outcome.p for outcome in node.outcomes)
            if not sums_to_one([outcome.p for outcome in node.outcomes]):
                raise MistakeAt(
                    ("nodes", name, "outcomes"),
                    f"the probabilities sum to {total:.6g}, they must sum to 1",
                )
            for n, outcome in enumerate(node.outcomes):
                if outcome.to not in known:
                    hint = did_you_mean(outcome.to, known)
                    raise MistakeAt(
                        ("nodes", name, "outcomes", n, "to"),
                        f"there is no node {outcome.to!r}; {hint}",
                    )
        if self.start not in self.nodes:
            hint = did_you_mean(self.start, self.nodes)
            raise MistakeAt(("start",), f"there is no node {self.start!r}; {hint}")
        if loop := find_loop(self.nodes):
            raise MistakeAt(
                ("nodes", loop[0]),
                f"leads back to itself ({' -> '.join(loop)}), and a tree of retries ends; "
                "write each further attempt as a node of its own",
            )
        if self.stop_if_late and len(self.deadlines_s) != 1:
            raise MistakeAt(
                ("stop_if_late",),
                f"needs exactly one deadline in deadlines_s, there are {len(self.deadlines_s)}",
            )
        if (ways := count_paths(self.nodes, self.start)) > MOST_PATHS:
            raise MistakeAt(
                ("nodes",),
                f"make {brief(float(ways))} paths, {MOST_PATHS:,} are the most; merge some",
            )
        return self

    def answer(self) -> Retries:
        """Sums over the paths; every cost stands in the numerator, of failures too."""
        ways = list(paths(self.nodes, self.start, self.deadlines_s, self.stop_if_late))
        cost_usd = math.fsum(way.p * way.cost_usd for way in ways)
        success = math.fsum(way.p for way in ways if way.outcome == SUCCESS)
        deadlines = []
        for n, deadline_s in enumerate(self.deadlines_s):
            punctual = math.fsum(way.p for way in ways if way.in_time[n])
            deadlines.append(
                Deadline(deadline_s, punctual, cost_usd / punctual if punctual > 0 else None)
            )
        return Retries(
            success, cost_usd, cost_usd / success if success > 0 else None, deadlines, ways
        )
