"""What one model call costs and how long it takes, by tokens or by cards (11.4.1 to 11.4.4, example 11-5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tenure.bad_input import MistakeAt
from tenure.capacity.terms import (
    Answer,
    Number,
    Scenario,
    Seconds,
    Several,
    Share,
    Strict,
    Text,
    Usd,
    brief,
    check_names,
)

_MILLION = 1e6
_HOUR_S = 3600.0


class TokenPrices(Strict):
    """Usd of a million tokens; what is left out costs nothing."""

    input: Annotated[Usd, Field(description="neither written to the cache nor read from it")] = 0.0
    write: Usd = 0.0
    read: Usd = 0.0
    output: Annotated[Usd, Field(description="reasoning, and what is to be seen")] = 0.0


class Replica(Strict):
    """Cards that serve several calls at once."""

    cards: Several
    sessions: Annotated[Several, Field(description="calls at once")]
    usd_per_card_h: Usd = 0.0


class Call(Strict):
    """One way of making the call."""

    name: Text
    input_tokens: Annotated[Number, Field(description="without those of the cache")] = 0.0
    write_tokens: Annotated[Number, Field(description="input written to the cache")] = 0.0
    read_tokens: Annotated[Number, Field(description="input read from the cache")] = 0.0
    reasoning_tokens: Number = 0.0
    output_tokens: Annotated[Number, Field(description="to be seen")] = 0.0
    prices: Annotated[TokenPrices | None, Field(description="none: those of the scenario")] = None
    storage_usd: Usd = 0.0
    tool_usd: Usd = 0.0
    replica: Annotated[Replica | None, Field(description="paid for by the card's time")] = None
    network_s: Seconds = 0.0
    queue_s: Seconds = 0.0
    prefill_s: Annotated[Seconds, Field(description="to process the input")] = 0.0
    token_s: Annotated[Seconds, Field(description="of each generated token")] = 0.0
    service_s: Annotated[
        Seconds | None, Field(description="of all generated tokens, instead of token_s")
    ] = None
    retry_share: Annotated[
        Share, Field(description="made again, by the first way of the scenario")
    ] = 0.0

    @model_validator(mode="after")
    def _one_measure(self) -> Call:
        if self.service_s is not None and self.token_s:
            raise MistakeAt(("service_s",), "stands beside token_s; leave out one of them")
        return self

    @property
    def generated(self) -> float:
        """Tokens that are paid for as output."""
        return self.reasoning_tokens + self.output_tokens

    @property
    def generation_s(self) -> float:
        """From the first token to the last."""
        return self.generated * self.token_s if self.service_s is None else self.service_s


@dataclass(frozen=True)
class Parts:
    """Where the money goes, in usd."""

    input: float
    write: float
    read: float
    reasoning: float
    output: float
    storage: float
    tool: float
    cards: float

    @property
    def total(self) -> float:
        """``C_call`` (11.4.2), and the cards where they are paid for by time (11.4.4)."""
        return math.fsum(vars(self).values())


@dataclass(frozen=True)
class Made:
    """What one way comes to."""

    name: str
    cost_usd: float
    parts_usd: Parts
    saved_share: float | None  # against the first way; the retries that would eat it up are as many
    with_retries_usd: float
    before_output_s: float
    total_s: float
    card_s: float | None  # None: no replica
    usd_per_million_output_tokens: float | None
    concurrent_calls: float | None  # None: no calls_per_s
    replicas: int | None
    cards: int | None


@dataclass(frozen=True)
class Calls(Answer):
    """Each way, in the order of the question."""

    calls: list[Made]
    cheapest: str  # with retries
    earliest: str  # before the first token
    first_queue_s_at_most: float | None  # of the first way, to begin no later than the second

    @property
    def words(self) -> str:
        """The cheapest and the earliest, as far as costs and waits are given."""
        found = {made.name: made for made in self.calls}
        cheap, early = found[self.cheapest], found[self.earliest]
        told = []
        if any(made.cost_usd for made in self.calls):
            told.append(
                f"{cheap.name} costs least, {cheap.with_retries_usd:.4g} usd, retries counted"
            )
        if any(made.before_output_s for made in self.calls):
            told.append(
                f"{early.name} begins first, after {brief(early.before_output_s)} s, and {self.calls[0].name} "
                f"may queue for {brief(self.first_queue_s_at_most)} s to begin no later than the next"
            )
        told += [
            f"{made.name} needs {made.replicas} replicas, {made.cards} cards"
            for made in self.calls
            if made.replicas is not None
        ]
        return "; ".join(told) or "no costs and no waits are given"


def parts_usd(call: Call, prices: TokenPrices) -> Parts:
    """``(I_u p_u + I_w p_w + I_h p_h + O p_o) / 10^6 + C_storage + C_tool``, and the cards (11.4.2).

    >>> prices = TokenPrices(input=2, output=10)
    >>> sonnet = Call(name="b", input_tokens=10_000, reasoning_tokens=1000, output_tokens=200)
    >>> round(parts_usd(sonnet, prices).total, 6)
    0.032
    """
    replica = call.replica
    return Parts(
        call.input_tokens * prices.input / _MILLION,
        call.write_tokens * prices.write / _MILLION,
        call.read_tokens * prices.read / _MILLION,
        call.reasoning_tokens * prices.output / _MILLION,
        call.output_tokens * prices.output / _MILLION,
        call.storage_usd,
        call.tool_usd,
        0.0 if replica is None else card_s(call, replica) * replica.usd_per_card_h / _HOUR_S,
    )


def card_s(call: Call, replica: Replica) -> float:
    """Card seconds of one call: ``cards x T / sessions`` (11.4.3).

    >>> card_s(Call(name="slow", service_s=9), Replica(cards=4, sessions=32))
    1.125
    """
    return replica.cards * call.generation_s / replica.sessions


class CallScenario(Scenario):
    """Ways of making one call."""

    kind: Literal["call"]
    calls: Annotated[list[Call], Field(min_length=1)]
    prices: TokenPrices = TokenPrices()
    calls_per_s: Annotated[Number | None, Field(description="to tell how many replicas")] = None

    @model_validator(mode="after")
    def _names_differ(self) -> CallScenario:
        check_names("calls", [call.name for call in self.calls])
        return self

    def answer(self) -> Calls:
        """Each way against the first."""
        parts = [parts_usd(call, call.prices or self.prices) for call in self.calls]
        first_usd = parts[0].total
        made = [
            self._made(call, each, first_usd) for call, each in zip(self.calls, parts, strict=True)
        ]
        at_most = None
        if len(made) > 1:
            without_queue_s = made[0].before_output_s - self.calls[0].queue_s
            at_most = max(made[1].before_output_s - without_queue_s, 0.0)
        return Calls(
            made,
            min(made, key=lambda each: each.with_retries_usd).name,
            min(made, key=lambda each: each.before_output_s).name,
            at_most,
        )

    def _made(self, call: Call, parts: Parts, first_usd: float) -> Made:
        before_s = call.network_s + call.queue_s + call.prefill_s
        at_once = None if self.calls_per_s is None else self.calls_per_s * call.generation_s
        replicas = None
        if call.replica is not None and at_once is not None:
            replicas = math.ceil(at_once / call.replica.sessions * (1 - 1e-12))
        return Made(
            call.name,
            parts.total,
            parts,
            1 - parts.total / first_usd if first_usd > 0 else None,
            parts.total + call.retry_share * first_usd,
            before_s,
            before_s + call.generation_s,
            None if call.replica is None else card_s(call, call.replica),
            parts.total / call.generated * _MILLION if call.generated > 0 else None,
            at_once,
            replicas,
            None if replicas is None or call.replica is None else replicas * call.replica.cards,
        )
