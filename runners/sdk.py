"""The edge to a provider's SDK: one deadline, one try, and no exception that is not ours.

SDKs exit the process (``kaggle``), wait for ever (``lightning_sdk``), retry on their own and print what
they were given. Whatever they do, a caller of :func:`ask` gets an answer or a ``LaunchFailed``.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar, Generic, TypeVar, cast

from runners.order import RentedConfig
from tenure.dispatch.contract import LaunchFailed, ProtocolError, Quota, Rejected, Unreachable
from tenure_protocol.clock import Clock, beside

T = TypeVar("T")
C = TypeVar("C", bound=RentedConfig)
S = TypeVar("S")

Classify = Callable[[BaseException], LaunchFailed | None]
_MOST_WORDS = 500
_MOST_PAGES = 1000


def ask(
    clock: Clock,
    deadline_s: float,
    what: str,
    call: Callable[[], T],
    classify: Classify,
    secrets: Iterable[str] = (),
    sent: bool = True,
) -> T:
    """What ``call`` returns, within ``deadline_s`` seconds, in a thread of its own.

    ``what`` names the call in the failure's words. ``classify`` turns an exception of the SDK into a
    failure of ours, ``None`` for one it does not know: that is a ProtocolError, since what was done is
    not known. A call that does not end in time is ``Unreachable(sent=True)``; with ``sent=False``, of a
    look that launches nothing, no failure says that something was. No value of ``secrets`` is ever
    repeated, nor is the exception chained, which may hold a request with its headers.
    """
    ended = beside(clock, call, f"tenure-sdk {what}").get(deadline_s)
    if ended is None:
        raise Unreachable(f"{what}: no answer within {deadline_s:g} s", sent)
    if ended.error is None:
        return ended.result()
    error = ended.error  # SystemExit too: kaggle exits the process without credentials
    failure = error if isinstance(error, LaunchFailed) else classify(error)
    if failure is None:
        failure = ProtocolError(f"{type(error).__name__}: {error}")
    words = f"{what}: {scrubbed(str(failure), secrets)}"
    if isinstance(failure, Unreachable):
        raise Unreachable(words, failure.sent and sent) from None
    raise type(failure)(words) from None


def scrubbed(words: str, secrets: Iterable[str]) -> str:
    """Text without the secrets, cut to a length that fits a record."""
    for secret in secrets:
        if secret:
            words = words.replace(secret, "***")
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}..."


def demand_sdk(module: str, extra: str, kind: str) -> None:
    """Raise :class:`Rejected` where an SDK is not installed; imports nothing."""
    if importlib.util.find_spec(module) is None:
        raise Rejected(
            f"the runner kind {kind!r} needs the package {module}, which is not installed; run: "
            f"pip install -c constraints.txt -e '.[{extra}]'"
        )


def pages(what: str, page: Callable[[str], tuple[Sequence[T], object]]) -> Iterator[T]:
    """Rows of all pages of a listing; ``page`` gets a token, '' first, and gives its rows and the next.

    A listing that goes round in circles is a ProtocolError: it would be neither whole nor over.
    """
    token, seen = "", set[str]()
    while token not in seen and len(seen) < _MOST_PAGES:
        seen.add(token)
        rows, after = page(token)
        yield from rows
        if not after:
            return
        token = str(after)
    raise ProtocolError(f"{what}: the same page twice, or over {_MOST_PAGES} of them")


class Newborns:
    """What was made here less than ``within_s`` seconds ago: that it is not listed proves nothing yet."""

    def __init__(self, clock: Clock, within_s: float) -> None:
        self._clock, self._within_s = clock, within_s
        self._since_s: dict[str, float] = {}

    def add(self, key: str) -> None:
        """It was made now, or may have been."""
        self._since_s[key] = self._clock.monotonic_s()

    def discard(self, key: str) -> None:
        """It was seen: from now on its absence is its end."""
        self._since_s.pop(key, None)

    def __contains__(self, key: str) -> bool:
        since_s = self._since_s.get(key)
        if since_s is None:
            return False
        young = self._clock.monotonic_s() - since_s < self._within_s
        if not young:
            self.discard(key)
        return young


class SdkPlatform(ABC, Generic[C, S]):
    """The half of a :class:`~runners.order.Platform` that all SDKs need: a configuration, and how to ask."""

    KIND: ClassVar[str]
    BUILDS: ClassVar[bool] = False
    Config: ClassVar[type[RentedConfig]]

    def __init__(self, config: RentedConfig, clock: Clock) -> None:
        assert isinstance(config, self.Config)
        self._config = cast(C, config)
        self._clock = clock
        self._secrets: list[str] = []  # of the account, never to be repeated; filled by ``_open``
        self._opened: S | None = None  # what is called; made when it is first asked for
        self._newborns = Newborns(clock, config.unlisted_s)

    def quota(self) -> Quota | None:
        """Most platforms count money, not hours."""
        return None

    def ending(self) -> Mapping[str, object] | None:
        """Most machines end with their program."""
        return None

    @abstractmethod
    def _open(self) -> S:
        """What the calls are made on, with credentials. Raises Rejected where there are none."""

    @staticmethod
    @abstractmethod
    def _classify(error: BaseException) -> LaunchFailed | None:
        """What an exception of the SDK means; ``None`` for one that must not happen."""

    def _talk(self, call: Callable[[S], T]) -> T:
        if self._opened is None:
            self._opened = self._open()
        return call(self._opened)

    def _ask(
        self, what: str, call: Callable[[S], T], sent: bool = False, hide: Sequence[str] = ()
    ) -> T:
        """:func:`ask` the SDK. ``sent`` for a call that may launch; ``hide`` is no more repeated than keys."""
        what, secrets = f"{self.KIND} {what}", chain(hide, self._secrets)
        limit_s = self._config.deadline_s
        return ask(
            self._clock, limit_s, what, lambda: self._talk(call), self._classify, secrets, sent
        )
