"""What exceptions of HTTP libraries mean, with the libraries' own exceptions, raised by themselves where that is cheap."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import requests
import urllib3
from urllib3 import exceptions

from runners.http import Answer, classify_answer, classify_http, never_connected
from tenure.dispatch.contract import LaunchFailed, NoSlots, Rejected, Unreachable

POOL = urllib3.HTTPConnectionPool("here")


def refused(status: int, body: bytes = b"", reason: str = "") -> requests.HTTPError:
    """What ``raise_for_status`` raises."""
    response = requests.Response()
    response.status_code, response._content, response.reason = status, body, reason
    return requests.HTTPError(f"{status} of a url with a key", response=response)


class Generated(Exception):
    """As the clients that swagger generates."""

    def __init__(self, status: int, body: object, reason: str = "") -> None:
        self.status, self.body, self.reason = status, body, reason


@pytest.mark.parametrize("make", [refused, Generated])
@pytest.mark.parametrize(
    ("status", "kind", "sent"),
    [
        (400, Rejected, None),
        (401, Rejected, None),
        (403, Rejected, None),
        (404, Rejected, None),
        (409, Rejected, None),
        (408, Unreachable, True),
        (429, Unreachable, False),
        (500, Unreachable, True),
        (502, Unreachable, True),
        (503, Unreachable, True),
        (504, Unreachable, True),
    ],
)
def test_a_status_has_its_class(
    make: Callable[[int, bytes], Exception],
    status: int,
    kind: type[LaunchFailed],
    sent: bool | None,
) -> None:
    failure = classify_http(make(status, b'{"message": "as it is"}'))
    assert type(failure) is kind and getattr(failure, "sent", None) is sent
    assert str(failure) == f"{status} as it is"


def test_a_status_that_is_no_refusal_must_not_happen() -> None:
    assert classify_http(Generated(302, b"")) is None
    failure = classify_http(Generated(0, None, "SSLError"))
    assert isinstance(failure, Unreachable) and failure.sent


def get(url: str, **how: object) -> Callable[[], object]:
    return lambda: requests.get(url, timeout=5.0, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "kind", "sent"),
    [
        (get("http://127.0.0.1:9"), Unreachable, False),
        (get("http://no-such-host.invalid"), Unreachable, False),
        (get("not an address"), Rejected, None),
        (get("ftp://here"), Rejected, None),
        (get("http://"), Rejected, None),
        (get("http://127.0.0.1:9", headers={"a": "b\nc"}), Rejected, None),
        (lambda: urllib3.PoolManager(retries=False).request("GET", "http://127.0.0.1:9"), Unreachable, False),
        (lambda: urllib3.PoolManager(retries=1).request("GET", "http://127.0.0.1:9"), Unreachable, False),
        (lambda: socket.create_connection(("127.0.0.1", 9)), Unreachable, False),
    ],
)  # fmt: skip
def test_a_connection_that_never_was(
    call: Callable[[], object], kind: type[LaunchFailed], sent: bool | None
) -> None:
    with pytest.raises((requests.RequestException, exceptions.HTTPError, OSError)) as caught:
        call()
    failure = classify_http(caught.value)
    assert type(failure) is kind and getattr(failure, "sent", None) is sent


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError("Connection aborted."),
        requests.ReadTimeout(exceptions.ReadTimeoutError(POOL, "/", "")),
        requests.exceptions.ChunkedEncodingError(""),
        requests.TooManyRedirects(""),
        requests.RequestException(),
        exceptions.ProtocolError("cut"),
        exceptions.ReadTimeoutError(POOL, "/", ""),
        exceptions.MaxRetryError(POOL, "/", exceptions.ProtocolError("cut")),
        ConnectionResetError("reset"),
        TimeoutError("late"),
    ],
)
def test_after_a_cut_nobody_knows(error: Exception) -> None:
    failure = classify_http(error)
    assert isinstance(failure, Unreachable) and failure.sent
    assert not never_connected(error)


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectTimeout(""),
        requests.ConnectionError(
            exceptions.MaxRetryError(POOL, "/", exceptions.ConnectTimeoutError(POOL, ""))
        ),
        exceptions.ConnectTimeoutError(POOL, ""),
    ],
)
def test_a_connection_that_was_not_made_in_time_carried_nothing(error: Exception) -> None:
    failure = classify_http(error)
    assert isinstance(failure, Unreachable) and not failure.sent


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("y"), SystemExit(1)])
def test_what_is_not_of_http_is_not_known(error: BaseException) -> None:
    assert classify_http(error) is None


def test_what_is_no_json_is_not_known() -> None:
    response = requests.Response()
    response._content = b"<html>"
    with pytest.raises(requests.JSONDecodeError) as caught:
        response.json()
    assert classify_http(caught.value) is None


def test_a_provider_judges_a_refusal_but_no_failure_behind_it() -> None:
    def full(answer: Answer) -> LaunchFailed | None:
        return NoSlots(answer.words) if answer.told.get("code") == 8 else None

    body = b'{"code": 8, "message": "full"}'
    assert isinstance(classify_http(refused(429, body), full), NoSlots)
    assert isinstance(classify_http(refused(400, body), full), NoSlots)
    assert isinstance(classify_http(refused(503, body), full), Unreachable)
    assert isinstance(classify_answer(Answer.of(200, {"code": 8}), full), NoSlots)
    assert classify_answer(Answer.of(200, {}), full) is None


@pytest.mark.parametrize(
    ("body", "told", "words"),
    [
        (b'{"error": "e", "msg": "m", "message": null}', True, "400 e: m"),
        (b'{"other": 1}', True, "400 Bad"),
        (b"[1]", False, "400 Bad"),
        (b"slow down \xff", False, "400 slow down \ufffd"),
        ("slow down", False, "400 slow down"),
        ("<h1>no</h1>", False, "400 Bad"),
        ("x" * 201, False, "400 Bad"),
        ("", False, "400 Bad"),
        (None, False, "400 Bad"),
    ],
)
def test_the_words_of_an_answer_are_a_sentence(body: object, told: bool, words: str) -> None:
    answer = Answer.of(400, body, "Bad")
    assert bool(answer.told) is told and answer.words == words
