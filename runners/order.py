"""What the two families of rented machines share with a provider's own code.

A provider is a :class:`RentedConfig` of its own, a table of its cards, and a :class:`Platform`: three or
four calls of its SDK. Everything else (what travels, credentials, names, adoption after a failure,
several jobs on one machine) is in :mod:`runners.rented` and written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tenure.dispatch.contract import LaunchFailed, Quota, Settlement
from tenure_protocol.clock import Clock

Handle = Mapping[str, object]  # JSON: what a platform needs to find a machine again


class RentedConfig(BaseModel):
    """Keys that every ``[runners.<name>]`` section of a rented platform may have."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    card: str  # the card's official name, such as "NVIDIA T4"; or "cpu"
    cards: int = Field(1, ge=1, le=16)  # of one machine
    machines: int = Field(1, ge=1, le=1024)  # at once
    claim_window_s: float = Field(600.0, gt=0)  # from the launch to the claim
    session_s: float = Field(12 * 3600.0, gt=0)  # the wall: a machine lives no longer
    deadline_s: float = Field(60.0, gt=0)  # of one call of the SDK
    lock: Path | None = None  # a pip requirements file, installed before the job; below tenure.toml
    secrets: tuple[str, ...] = ()  # names in the platform's own secret store
    variables: dict[str, str] = Field(default_factory=dict)  # the user's own; never secrets
    trust: Literal["session", "full"] = (
        "session"  # "full": the machine gets the operator's own keys
    )
    role: str = ""  # ARN of the role that a session of one job assumes
    sts_endpoint: str = ""  # empty: the store's endpoint

    @field_validator("lock", mode="before")
    @classmethod
    def _path(cls, value: object) -> object:
        return Path(value) if isinstance(value, str) else value

    @field_validator("secrets", mode="before")
    @classmethod
    def _tuple(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


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
    and is judged by what the answer says, not by the absence of an exception (``runners.sdk``).
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
    CARDS: Mapping[str, str]  # official name: the platform's own word for it
    BUILDS: bool  # whether it builds an image by the lock; else the machine installs it
    Config: type[RentedConfig]

    def __call__(self, config: RentedConfig, clock: Clock) -> Platform: ...


__all__ = ["Handle", "LaunchFailed", "Order", "Platform", "PlatformKind", "RentedConfig"]
