"""Iterations of reinforcement learning, weights to many receivers, and whether expansion pays (11.3.3, 11.3.4).

Every section of a scenario may be left out; at least one is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tenure.capacity.terms import (
    Answer,
    Count,
    Number,
    Positive,
    Scenario,
    Seconds,
    Several,
    Strict,
    Usd,
    brief,
)

_BITS_PER_GB = 8.0


class Stages(Strict):
    """One iteration, stage after stage."""

    generate_s: Seconds
    verify_s: Seconds
    update_s: Seconds
    publish_s: Seconds
    faster: Annotated[
        list[Positive],
        Field(default_factory=list, description="how many times as fast generation might be"),
    ]


class Weights(Strict):
    """A full copy of the weights to each receiver, all through one link of the sender."""

    gb: Annotated[Positive, Field(description="of one copy, 10^9 bytes")]
    receivers: Several
    sender_gbit_per_s: Positive
    receiver_gbit_per_s: Annotated[Positive, Field(description="of each")]


class Expansion(Strict):
    """Machines added for a while, paid for all of the time."""

    base_usd_per_h: Annotated[Positive, Field(description="of what is there")]
    extra: Annotated[Several, Field(description="machines")]
    extra_usd_per_h: Annotated[Usd, Field(description="of each")]
    throughput: Annotated[
        list[Positive],
        Field(default_factory=list, description="how many times as much work is done with them"),
    ]


class Postponed(Strict):
    """Verification put off: it takes fewer card seconds, and a training group waits for it."""

    saved_card_s: Number
    waiting_s: Seconds
    waiting_cards: Annotated[list[Count], Field(description="of the group that waits")]


class Filler(Strict):
    """Work that fits before something that ends late anyway."""

    batch_ends_s: Annotated[Seconds, Field(description="no sooner than that")]
    work_s: Annotated[Seconds, Field(description="at most")]
    prepare_s: Seconds = 0.0


@dataclass(frozen=True)
class Iteration:
    """One iteration with generation so many times as fast."""

    faster: float
    iteration_s: float
    speedup: float | None  # None: it took no time before


@dataclass(frozen=True)
class Iterations:
    """As it is, with faster generation, and with generation that takes no time."""

    iteration_s: float
    faster: list[Iteration]
    most_speedup: float | None  # None: generation is all there is


@dataclass(frozen=True)
class FanOut:
    """The least times until the weights are there."""

    one_s: float  # a receiver alone
    all_s: float
    total_gb: float
    limited_by: Literal["sender", "receiver"]


@dataclass(frozen=True)
class Pays:
    """What a unit of work costs against before."""

    throughput: float
    cost_factor: float
    pays: bool


@dataclass(frozen=True)
class Expanded:
    """An hour of all machines, and the throughput from which on a unit of work is cheaper."""

    usd_per_h: float
    pays_above: float
    throughput: list[Pays]


@dataclass(frozen=True)
class Prefixes:
    """Answers of one group, cut to the shortest of them."""

    reused_tokens: float
    regenerated_tokens: float


@dataclass(frozen=True)
class Waiting:
    """Card seconds of all together; below 0 they are saved."""

    waiting_cards: int
    net_card_s: float
    pays: bool


@dataclass(frozen=True)
class Latest:
    """The latest moments that delay nothing; below 0: it no longer fits."""

    work_start_s: float
    prepare_start_s: float


@dataclass(frozen=True)
class Rollout(Answer):
    """One part for each section of the scenario."""

    iteration: Iterations | None
    weights: FanOut | None
    expansion: Expanded | None
    prefixes: Prefixes | None
    postponed: list[Waiting] | None
    filler: Latest | None

    @property
    def words(self) -> str:
        """What there is to say of each."""
        told = []
        if self.iteration:
            told.append(
                f"an iteration takes {brief(self.iteration.iteration_s)} s, and generation alone can make it "
                f"{brief(self.iteration.most_speedup)} times as fast at most"
            )
        if self.weights:
            told.append(
                f"the weights are everywhere after {brief(self.weights.all_s)} s at least, limited by the "
                f"{self.weights.limited_by}"
            )
        if self.expansion:
            told.append(
                f"expansion pays above {brief(self.expansion.pays_above)} times the throughput"
            )
        if self.prefixes:
            told.append(f"{brief(self.prefixes.reused_tokens)} tokens are used again")
        for each in self.postponed or ():
            verb = "saves" if each.pays else "costs"
            told.append(
                f"putting off {verb} {brief(abs(each.net_card_s))} card seconds where {each.waiting_cards} wait"
            )
        if self.filler:
            told.append(f"preparation begins by {brief(self.filler.prepare_start_s)} s")
        return "; ".join(told)


def iteration_s(stages: Stages, faster: float = 1.0) -> float:
    """``T_generate / s + T_verify + T_update + T_publish`` (11.3.3).

    >>> stages = Stages(generate_s=40, verify_s=10, update_s=30, publish_s=5)
    >>> iteration_s(stages), iteration_s(stages, 2)
    (85.0, 65.0)
    """
    return stages.generate_s / faster + stages.verify_s + stages.update_s + stages.publish_s


def fan_out(weights: Weights) -> FanOut:
    """``max(V / B_receiver, n V / B_sender)`` (11.3.3, example 11-4).

    >>> found = fan_out(Weights(gb=16.38147072, receivers=6, sender_gbit_per_s=200, receiver_gbit_per_s=50))
    >>> round(found.one_s, 2), round(found.all_s, 2), found.limited_by
    (2.62, 3.93, 'sender')
    """
    one_s = weights.gb * _BITS_PER_GB / min(weights.receiver_gbit_per_s, weights.sender_gbit_per_s)
    total_gb = weights.receivers * weights.gb
    sent_s = total_gb * _BITS_PER_GB / weights.sender_gbit_per_s
    return FanOut(one_s, max(one_s, sent_s), total_gb, "sender" if sent_s > one_s else "receiver")


def cut(saved_tokens: Sequence[float]) -> Prefixes:
    """All answers of a group go on from the shortest one (11.3.3).

    >>> cut([4000, 1000])
    Prefixes(reused_tokens=2000, regenerated_tokens=3000.0)
    """
    reused = len(saved_tokens) * min(saved_tokens)
    return Prefixes(reused, math.fsum(saved_tokens) - reused)


class RolloutScenario(Scenario):
    """Generation of samples, and training on them."""

    kind: Literal["rollout"]
    stages: Stages | None = None
    weights: Weights | None = None
    expansion: Expansion | None = None
    saved_tokens: Annotated[
        list[Number] | None, Field(min_length=1, description="of each answer of one group")
    ] = None
    postponed: Postponed | None = None
    filler: Filler | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> RolloutScenario:
        sections = [name for name in type(self).model_fields if name != "kind"]
        if all(getattr(self, name) is None for name in sections):
            raise ValueError(f"asks nothing; give one of {', '.join(sections)}")
        return self

    def answer(self) -> Rollout:
        """Each section by itself."""
        return Rollout(
            None if self.stages is None else _iterations(self.stages),
            None if self.weights is None else fan_out(self.weights),
            None if self.expansion is None else _expanded(self.expansion),
            None if self.saved_tokens is None else cut(self.saved_tokens),
            None if self.postponed is None else _postponed(self.postponed),
            None if self.filler is None else _latest(self.filler),
        )


def _iterations(stages: Stages) -> Iterations:
    before_s = iteration_s(stages)
    rest_s = before_s - stages.generate_s
    rows = [
        Iteration(factor, after_s, before_s / after_s if after_s else None)
        for factor, after_s in ((each, iteration_s(stages, each)) for each in stages.faster)
    ]
    return Iterations(before_s, rows, before_s / rest_s if rest_s > 0 else None)


def _expanded(expansion: Expansion) -> Expanded:
    """Cheaper above ``(base + n extra) / base`` times the throughput (11.3.3)."""
    usd_per_h = expansion.base_usd_per_h + expansion.extra * expansion.extra_usd_per_h
    even = usd_per_h / expansion.base_usd_per_h
    return Expanded(
        usd_per_h, even, [Pays(each, even / each, each > even) for each in expansion.throughput]
    )


def _postponed(postponed: Postponed) -> list[Waiting]:
    """Cards that wait times their wait, less what verification saves (11.3.4)."""
    return [
        Waiting(cards, net, net < 0)
        for cards, net in (
            (each, each * postponed.waiting_s - postponed.saved_card_s)
            for each in postponed.waiting_cards
        )
    ]


def _latest(filler: Filler) -> Latest:
    """Backwards from the end of the batch (11.3.4)."""
    start_s = filler.batch_ends_s - filler.work_s
    return Latest(start_s, start_s - filler.prepare_s)
