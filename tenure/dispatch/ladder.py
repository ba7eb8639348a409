"""One step of the ladder, and what platforms know our launches by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tenure.dispatch.contract import Capacity, Runner
from tenure_protocol.codec import canonical, short_id


@dataclass(frozen=True)
class Price:
    """What an hour of one machine costs."""

    currency: str  # sums are never taken across currencies
    per_h: float

    def usd_per_h(self, rates: Mapping[str, float]) -> float:
        """What it is worth in dollars, at so many for one unit of another currency; 0 where not named.

        >>> Price("usd", 2.0).usd_per_h({}), Price("credits", 2.0).usd_per_h({"credits": 0.5})
        (2.0, 1.0)
        """
        return self.per_h * (1.0 if self.currency == "usd" else rates.get(self.currency, 0.0))


@dataclass(frozen=True)
class Rung:
    """One (runner, card, price class), with the runner behind it."""

    name: str
    runner_name: str
    runner: Runner
    capacity: Capacity
    card: str = "cpu"
    price_class: str = "on_demand"
    price: Price | None = None  # None: nothing is noted in the ledger


@lru_cache(maxsize=16)  # a round asks for the names of all open launches
def name_prefix(store_url: str) -> str:
    """How the name of every launch of a store begins.

    The store is part of it: two projects on one account may hold the very same job.

    >>> name_prefix("file:/a") != name_prefix("file:/b")
    True
    """
    return f"tenure-{short_id(store_url.encode())[:8]}-"


def launch_name(store_url: str, job: str, launch: int) -> str:
    """What a platform knows the launch of one job by."""
    return f"{name_prefix(store_url)}{job}-{launch:05d}"


def pack_name(store_url: str, launches: Sequence[tuple[str, int]]) -> str:
    """What a platform knows a machine by that takes these (job, number of its launch).

    No longer than the name of one launch, since a platform may cut longer ones. A launch is made
    once and for one machine, so no two machines ever bear one name.

    >>> pack_name("file:/a", [("j", 1)]) == launch_name("file:/a", "j", 1)
    True
    >>> pack_name("file:/a", [("j", 1), ("k", 1)]).endswith("-pack")
    True
    """
    if len(launches) == 1:
        ((job, launch),) = launches
        return launch_name(store_url, job, launch)
    return f"{name_prefix(store_url)}{short_id(canonical([list(each) for each in launches]))}-pack"
