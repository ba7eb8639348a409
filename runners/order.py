"""What the two families of rented machines share with a provider's own code.

A provider is a :class:`RentedConfig` of its own, a table of its cards, and a :class:`Platform`: three or
four calls of its SDK. Everything else (what travels, credentials, names, adoption after a failure,
several jobs on one machine) is in :mod:`runners.rented` and written once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import ClassVar, Literal, Protocol, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tenure.dispatch.contract import LaunchFailed, Quota, Settlement
from tenure_protocol.clock import Clock

Handle = Mapping[str, object]  # JSON: what a platform needs to find a machine again

#: With the claim window it makes the 12 hours that an STS's credentials may last, in seconds.
USUAL_SESSION_S = 12 * 3600.0 - 600.0
_MAKERS = frozenset({"nvidia", "geforce", "tesla", ""})  # in so many names that they tell nothing


class RentedConfig(BaseModel):
    """Keys that every ``[runners.<name>]`` section of a rented platform may have.

    A provider's own says also which cards there are and how many of one a machine has: one sentence
    about a card that is not there, with the likeliest one that is, serves all of them.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    TITLE: ClassVar[str] = ""  # the platform's name, for people
    CARDS: ClassVar[Mapping[str, str]] = {}  # official name: the platform's own word; empty: any
    GONE: ClassVar[Mapping[str, str]] = {}  # part of a card's name: what became of it
    COUNTS: ClassVar[Sequence[int]] = range(1, 17)  # how many cards of a kind a machine may have
    COUNTS_OF: ClassVar[Mapping[str, Sequence[int]]] = {}  # the same, of a card that is otherwise

    card: str  # the card's official name, such as "Tesla T4"; or "cpu"
    cards: int = Field(1, ge=1, le=16)  # of one machine; else the fewest that the card comes by
    machines: int = Field(1, ge=1, le=1024)  # at once
    claim_window_s: float = Field(600.0, gt=0)  # from the launch to the claim
    # The wall: a machine lives no longer, and less where its credentials end before.
    session_s: float = Field(USUAL_SESSION_S, gt=0)
    deadline_s: float = Field(60.0, gt=0)  # of one call of the SDK
    unlisted_s: float = Field(60.0, ge=0)  # in which a new machine may not be known everywhere
    lock: Path | None = None  # a pip requirements file, installed before the job; below tenure.toml
    secrets: tuple[str, ...] = ()  # names in the platform's own secret store
    variables: dict[str, str] = Field(default_factory=dict)  # the user's own; never secrets
    trust: Literal["session", "full"] = (
        "session"  # "full": the machine gets the operator's own keys
    )
    role: str = ""  # ARN of the role that a session of one job assumes
    sts_endpoint: str = ""  # empty: the store's endpoint

    @model_validator(mode="before")
    @classmethod
    def _fewest(cls, keys: object) -> object:
        """A section that does not say how many cards means as few as there are on a machine."""
        if isinstance(keys, Mapping) and (counts := cls.COUNTS_OF.get(str(keys.get("card")))):
            return {"cards": counts[0], **keys}
        return keys

    @field_validator("*", mode="before")
    @classmethod
    def _from_toml(cls, value: object, info: ValidationInfo) -> object:
        """TOML knows lists and no tuples, and no paths."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, list) and get_origin(kind) is tuple:
            return tuple(value)
        return Path(value) if isinstance(value, str) and kind == Path | None else value

    @field_validator("card")
    @classmethod
    def _there_is_such_a_card(cls, card: str) -> str:
        if cls.CARDS and card not in cls.CARDS:
            gone = "".join(f" ({words})" for part, words in cls.GONE.items() if part in card)
            raise ValueError(
                f"{cls.TITLE} has no {card!r}{gone}; did you mean {likeliest(card, cls.CARDS)!r}? "
                f"It has {', '.join(sorted(cls.CARDS))}"
            )
        return card

    @field_validator("cards")
    @classmethod
    def _there_are_so_many(cls, cards: int, info: ValidationInfo) -> int:
        card = info.data.get("card")
        counts = cls.COUNTS_OF.get(str(card), cls.COUNTS)
        if card is not None and cards not in counts:
            if len(counts) > 2 and counts[-1] - counts[0] == len(counts) - 1:
                several = f"{counts[0]} to {counts[-1]}"
            else:
                several = " or ".join(map(str, counts))
            raise ValueError(f"{cls.TITLE} rents {card} by {several}, not {cards}")
        return cards


def likeliest(card: str, cards: Mapping[str, str]) -> str:
    """The official name that was meant by ``card``: by the words they share, then by their letters.

    An H100 is no H200, however alike the letters are. What the platform itself calls a card counts too.

    >>> likeliest("H100", {"NVIDIA H200": "H200", "NVIDIA H100 80GB HBM3": "H100 SXM"})
    'NVIDIA H100 80GB HBM3'
    """

    def alike(name: str) -> tuple[int, float]:
        words = [set(re.split("[^a-z0-9]+", one.lower())) - _MAKERS for one in (card, name)]
        letters = SequenceMatcher(None, card.lower(), name.lower()).ratio()
        return len(words[0] & words[1]), letters

    return max(cards, key=lambda name: max(alike(name), alike(cards[name])))


@dataclass(frozen=True)
class Order:
    """One machine to rent: all that a platform is told.

    Nothing in it is secret but for the links in ``packet``, which open what one launch needs for as long
    as its claim window lasts. ``shell`` and ``packet`` hold letters, digits and ``+/=| -_`` alone, so
    that no platform's quoting can change them; what the user gave travels by the store.
    """

    name: str  # unique: a machine under it is this launch and no other
    program: str  # Python source that starts the jobs; reads $TENURE_START, or ``packet`` put there
    packet: str  # base64: the value of $TENURE_START
    shell: str  # one line of POSIX shell that runs ``program`` with what is in $TENURE_START
    cards: int  # cards of the machine
    lock: Path | None = (
        None  # a pip requirements file here, for a platform that builds an image by it
    )
    secrets: tuple[str, ...] = ()  # names in the platform's secret store, to become variables


class Platform(Protocol):
    """A provider's own code. Every method raises a :class:`LaunchFailed` when it fails.

    Each call is bounded by ``deadline_s`` of the configuration, is tried once (one retry layer, ours),
    and is judged by what the answer says, not by the absence of an exception. What that needs is in
    :class:`runners.sdk.SdkPlatform`, and ``None`` for the last two.
    """

    def create(self, order: Order) -> Handle:
        """Rent one machine and return its handle as soon as there is an id; waits for nothing.

        ``Unreachable(sent=True)`` and ``ProtocolError`` mean that the machine may exist all the same.
        """

    def find(self, name: str) -> Handle | None:
        """The machine under a name that may still cost money; ``None`` only on a well-formed answer."""

    def end(self, handle: Handle) -> Settlement:
        """Ask for the end and say how it stands; asked again until it is Closed. Idempotent."""

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        """Name and handle of all that may still cost money, of names that begin with ``prefix``."""

    def quota(self) -> Quota | None:
        """What is left of a quota; ``None`` where the platform has none."""

    def ending(self) -> Mapping[str, object] | None:
        """How a machine ends itself when its jobs have ended; ``None`` where it ends with its program.

        ``{"method", "url", "headers", "body"}`` of one HTTP request, in which ``${NAME}`` stands for a
        variable that the platform itself sets on the machine: no secret of ours is in it.
        """


class PlatformKind(Protocol):
    """What :class:`runners.rented.RentedRunner` needs to know of a provider: its class."""

    KIND: str  # the registry's name
    EXTRA: str  # the extra that brings its SDK
    MODULE: str  # what is imported, such as "runpod"
    VARIABLES: tuple[str, ...]  # variables that hold its credentials, hidden from workers
    BUILDS: bool  # whether it builds an image by the lock; else the machine installs it
    Config: type[RentedConfig]

    def __call__(self, config: RentedConfig, clock: Clock) -> Platform: ...


__all__ = ["Handle", "LaunchFailed", "Order", "Platform", "PlatformKind", "RentedConfig"]
