"""When caching a common prefix pays, and which hits count (11.4.2, example 11-6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tenure.capacity.terms import Answer, Number, Scenario, Several, Strict, Usd, brief, percent

_MILLION = 1e6


class InputPrices(Strict):
    """Usd of a million tokens of input."""

    input: Annotated[Usd, Field(description="neither written to the cache nor read from it")]
    write: Annotated[Usd, Field(description="written to the cache")]
    read: Annotated[Usd, Field(description="read from it")]


class Request(Strict):
    """A call that found its prefix in the cache, or did not."""

    prefix_tokens: Number
    hit: bool


@dataclass(frozen=True)
class Costs:
    """Of input, in usd."""

    without_cache: float
    with_cache: float


@dataclass(frozen=True)
class Cache(Answer):
    """Input alone: what is generated costs the same with and without a cache."""

    first_call_usd: Costs
    later_call_usd: Costs
    all_calls_usd: Costs
    saved_usd: float
    calls_to_pay_off: int | None  # the least number of calls with which the cache is cheaper
    request_hit_share: float | None  # of the requests; None: none are given
    token_hit_share: float | None  # of their prefixes' tokens, which is what is paid for

    @property
    def words(self) -> str:
        """Whether it pays."""
        pays = (
            "the cache never pays"
            if self.calls_to_pay_off is None
            else f"the cache pays from call {self.calls_to_pay_off} on"
        )
        shares = (
            ""
            if self.request_hit_share is None
            else f"; {percent(self.request_hit_share)} of requests hit, and {percent(self.token_hit_share)} of tokens"
        )
        return f"input costs {brief(self.all_calls_usd.with_cache)} usd instead of {brief(self.all_calls_usd.without_cache)}; {pays}{shares}"


def calls_to_pay_off(prices: InputPrices) -> int | None:
    """The least ``n`` with ``n p_u > p_w + (n - 1) p_h``; None where there is none (11.4.2).

    >>> calls_to_pay_off(InputPrices(input=2, write=2.5, read=0.2))
    2
    >>> calls_to_pay_off(InputPrices(input=1, write=2, read=1)) is None
    True
    """
    if prices.input > prices.write:
        return 1
    gain, extra = prices.input - prices.read, prices.write - prices.input
    return math.floor(extra / gain * (1 + 1e-12)) + 2 if gain > 0 else None


class CacheScenario(Scenario):
    """Calls with a common prefix: the first writes it to the cache, all others read it there."""

    kind: Literal["cache"]
    calls: Several
    prefix_tokens: Number
    new_tokens: Annotated[Number, Field(description="of each call, used once")]
    prices: InputPrices
    requests: Annotated[
        list[Request],
        Field(default_factory=list, description="to tell hits by request and by token"),
    ]

    def answer(self) -> Cache:
        """Example 11-6, and the shares after it."""
        prices = self.prices
        new_usd = self.new_tokens * prices.input / _MILLION
        plain_usd = self.prefix_tokens * prices.input / _MILLION + new_usd
        first = Costs(plain_usd, self.prefix_tokens * prices.write / _MILLION + new_usd)
        later = Costs(plain_usd, self.prefix_tokens * prices.read / _MILLION + new_usd)
        every = Costs(
            self.calls * plain_usd, first.with_cache + (self.calls - 1) * later.with_cache
        )
        hits = [request.prefix_tokens for request in self.requests if request.hit]
        tokens = math.fsum(request.prefix_tokens for request in self.requests)
        return Cache(
            first,
            later,
            every,
            every.without_cache - every.with_cache,
            calls_to_pay_off(prices) if self.prefix_tokens else None,
            len(hits) / len(self.requests) if self.requests else None,
            math.fsum(hits) / tokens if tokens else None,
        )
