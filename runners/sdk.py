"""The edge to a provider's SDK: one deadline, one try, and no exception that is not ours.

SDKs exit the process (``kaggle``), wait for ever (``lightning_sdk``), retry on their own and print what
they were given. Whatever they do, a caller of :func:`ask` gets an answer or a ``LaunchFailed``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import TypeVar

from tenure.dispatch.contract import LaunchFailed, ProtocolError, Rejected, Unreachable
from tenure_protocol.clock import Clock, Mailbox

T = TypeVar("T")

Classify = Callable[[BaseException], LaunchFailed | None]
_MOST_WORDS = 500


def ask(
    clock: Clock,
    deadline_s: float,
    what: str,
    call: Callable[[], T],
    classify: Classify,
    secrets: Iterable[str] = (),
) -> T:
    """What ``call`` returns, within ``deadline_s`` seconds, in a thread of its own.

    ``what`` names the call in the failure's words. ``classify`` turns an exception of the SDK into a
    failure of ours, ``None`` for one it does not know: that is a ProtocolError, since what was done is
    not known. A call that does not end in time is ``Unreachable(sent=True)``. No value of ``secrets``
    is ever repeated, nor is the exception chained, which may hold a request with its headers.
    """
    box: Mailbox[tuple[T | None, BaseException | None]] = clock.mailbox(1)

    def run() -> None:
        try:
            box.put((call(), None))
        except (
            BaseException
        ) as error:  # SystemExit too: kaggle exits the process without credentials
            box.put((None, error))

    clock.spawn(run, f"tenure-sdk {what}")
    got = box.get(deadline_s)
    if got is None:
        raise Unreachable(f"{what}: no answer within {deadline_s:g} s", sent=True)
    answer, error = got
    if error is None:
        return answer  # type: ignore[return-value]
    failure = error if isinstance(error, LaunchFailed) else classify(error)
    if failure is None:
        failure = ProtocolError(f"{type(error).__name__}: {error}")
    words = f"{what}: {scrubbed(str(failure), secrets)}"
    if isinstance(failure, Unreachable):
        raise Unreachable(words, failure.sent) from None
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
