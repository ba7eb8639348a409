"""What an exception of an HTTP library means: one table for ``requests``, ``urllib3`` and generated clients.

Whether a machine may have been made after all hangs on it. A connection that never was carried nothing;
after one that was cut nobody knows. A status of the 400s is a refusal, 429 one that passes, and of the
500s says that something behind the answer failed, perhaps after it had done what was asked.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tenure.dispatch.contract import LaunchFailed, Rejected, Unreachable

_TOO_MANY = 429
_NOT_IN_TIME = 408
_MOST_TEXT = 200  # characters; more is a page for people, not a sentence


@dataclass(frozen=True)
class Answer:
    """What a service said beside a success."""

    status: int  # 0: none came
    told: Mapping[str, object]  # the JSON object in its body; empty where there is none
    words: str  # for people: the status, and what the body says

    @classmethod
    def to(cls, error: BaseException) -> Answer | None:
        """The answer that an exception is about; ``None`` where it is about none."""
        from requests import HTTPError

        if isinstance(error, HTTPError) and error.response is not None:
            response = error.response
            return cls.of(response.status_code, response.text, response.reason)
        status = getattr(error, "status", None)  # of a client that swagger generated
        if isinstance(status, int):
            return cls.of(status, getattr(error, "body", ""), getattr(error, "reason", ""))
        return None

    @classmethod
    def of(cls, status: int, body: object, reason: object = "") -> Answer:
        """An answer by its status and its body, as text, bytes or JSON that is parsed already."""
        if isinstance(body, bytes):
            body = body.decode(errors="replace")
        if isinstance(body, str):
            with suppress(ValueError):
                body = json.loads(body)
        if isinstance(body, dict):
            said = ": ".join(str(body[key]) for key in ("error", "msg", "message") if body.get(key))
            return cls(status, body, f"{status} {said or reason}".strip())
        short = isinstance(body, str) and len(body) <= _MOST_TEXT and "<" not in body
        return cls(status, {}, f"{status} {(short and body) or reason}".strip())


#: What a provider knows of its answers; ``None`` for all that is not its own.
Judge = Callable[[Answer], LaunchFailed | None]


def classify_http(error: BaseException, judge: Judge = lambda _: None) -> LaunchFailed | None:
    """What an exception of an SDK over HTTP means; ``None`` for one that must not happen.

    ``judge`` is asked first about a refusal. An answer that is no JSON where the SDK wants some is
    ``None``: whoever sent it, what was asked may have been done.
    """
    from requests import exceptions as requests
    from urllib3 import exceptions as urllib3

    if (answer := Answer.to(error)) is not None:
        return classify_answer(answer, judge)
    words = f"{type(error).__name__}: {error}"
    unusable = (
        requests.InvalidURL, requests.MissingSchema, requests.InvalidSchema, requests.InvalidHeader,
        urllib3.LocationValueError,
    )  # fmt: skip
    if isinstance(error, unusable):
        return Rejected(f"no request could be made: {words}")
    if isinstance(error, requests.JSONDecodeError):
        return None
    if isinstance(error, requests.RequestException | urllib3.HTTPError | OSError):
        return Unreachable(words, sent=not never_connected(error))
    return None


def classify_answer(answer: Answer, judge: Judge = lambda _: None) -> LaunchFailed | None:
    """What an answer beside a success means; ``None`` for a status that is no refusal."""
    if answer.status >= 500 or answer.status in (0, _NOT_IN_TIME):
        return Unreachable(answer.words, sent=True)
    if (judged := judge(answer)) is not None:
        return judged
    if answer.status == _TOO_MANY:
        return Unreachable(answer.words, sent=False)
    return Rejected(answer.words) if answer.status >= 400 else None


def never_connected(error: BaseException) -> bool:
    """Whether no connection was made, so that nothing was sent."""
    from requests import ConnectTimeout
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    inner = error.args[0] if error.args else None  # requests wraps urllib3's, which has a reason
    seen = (error, getattr(error, "reason", None), getattr(inner, "reason", None))
    kinds = (
        ConnectTimeout, ConnectTimeoutError, NewConnectionError, ConnectionRefusedError, socket.gaierror,
    )  # fmt: skip
    return any(isinstance(one, kinds) for one in seen)
