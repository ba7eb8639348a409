"""Links that S3Store signs for others, used by a plain HTTP client on a real server.

Nothing in Tenure hands links out yet; these are the promises that whoever does will rest on.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import Found, Missing, Written
from tenure_protocol.store.s3 import S3Store
from tests.seaweed import SECRET_KEY, Seaweed

EXPIRED = "Request has expired"


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    etag: str | None = None

    @property
    def words(self) -> str:
        return self.body.decode(errors="replace")


def ask(
    link: str, method: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """What a client says that knows nothing of S3."""
    request = urllib.request.Request(link, body, dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Answer(answer.status, answer.read(), answer.headers.get("ETag"))
    except HTTPError as error:
        return Answer(error.code, error.read())


@pytest.fixture
def store(seaweed: Callable[[], Seaweed]) -> S3Store:
    return S3Store(seaweed().url(f"links-{SYSTEM.nonce()}"))


def signed(store: S3Store, key: str, method: str, expires_s: int = 300) -> str:
    link = store.presign(key, method, expires_s)  # type: ignore[arg-type]
    assert link is not None
    return link


def test_a_link_reads_and_writes_one_object(store: S3Store) -> None:
    put = ask(signed(store, "a/file", "PUT"), "PUT", b"content")
    found = store.read("a/file")
    assert isinstance(found, Found) and found.body == b"content"
    assert (put.status, put.etag) == (200, found.etag)
    got = ask(signed(store, "a/file", "GET"), "GET")
    assert (got.status, got.body, got.etag) == (200, b"content", found.etag)
    part = ask(signed(store, "a/file", "GET"), "GET", headers={"Range": "bytes=3-5"})
    assert (part.status, part.body) == (206, b"ten")
    assert ask(signed(store, "a/other", "GET"), "GET").status == 404


def test_a_link_holds_no_secret_and_is_signed_as_every_region_takes(store: S3Store) -> None:
    link = signed(store, "k", "GET", 77)
    said = parse_qs(urlsplit(link).query)
    assert said["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"] and said["X-Amz-Expires"] == ["77"]
    assert SECRET_KEY not in link


def test_a_link_is_for_its_method_and_its_key_alone(store: S3Store) -> None:
    assert isinstance(store.create("mine", b"mine"), Written)
    assert isinstance(store.create("theirs", b"theirs"), Written)
    read, write = signed(store, "mine", "GET"), signed(store, "mine", "PUT")
    tried = [
        ask(read, "PUT", b"x"),
        ask(read, "DELETE"),
        ask(write, "GET"),
        ask(write, "DELETE"),
        ask(read.replace("/mine?", "/theirs?"), "GET"),
        ask(write.replace("/mine?", "/theirs?"), "PUT", b"x"),
        ask(read.replace("X-Amz-Expires=300", "X-Amz-Expires=9999"), "GET"),
    ]
    assert [answer.status for answer in tried] == [403] * len(tried)
    assert not any(EXPIRED in answer.words for answer in tried), "it never was allowed"
    for key in ("mine", "theirs"):
        found = store.read(key)
        assert isinstance(found, Found) and found.body == key.encode()


def test_an_expired_link_says_so_and_changes_nothing(store: S3Store) -> None:
    """A status of 403, as for a lack of rights: the message alone tells them apart."""
    assert isinstance(store.create("old", b"old"), Written)
    read = signed(store, "old", "GET", 1)
    writes = [signed(store, key, "PUT", 1) for key in ("old", "new")]
    end_s = SYSTEM.monotonic_s() + 240.0
    while ask(read, "GET").status == 200:
        assert SYSTEM.monotonic_s() < end_s, "it does not expire"
        SYSTEM.sleep(0.2)
    told = [ask(read, "GET"), *(ask(link, "PUT", b"late") for link in writes)]
    assert [answer.status for answer in told] == [403] * 3
    assert all(EXPIRED in answer.words for answer in told), told
    found = store.read("old")
    assert isinstance(found, Found) and found.body == b"old"
    assert isinstance(store.read("new"), Missing)


def test_a_condition_added_to_a_link_is_honoured(store: S3Store) -> None:
    link = signed(store, "k", "PUT")
    assert ask(link, "PUT", b"first", {"If-None-Match": "*"}).status == 200
    assert ask(link, "PUT", b"second", {"If-None-Match": "*"}).status == 412
    first = store.read("k")
    assert isinstance(first, Found) and first.body == b"first"
    assert ask(link, "PUT", b"second", {"If-Match": first.etag}).status == 200
    assert ask(link, "PUT", b"third", {"If-Match": first.etag}).status == 412
    second = store.read("k")
    assert isinstance(second, Found) and second.body == b"second"


def test_one_of_eight_wins_by_one_link(store: S3Store) -> None:
    for n in range(3):
        link = signed(store, f"race-{n}", "PUT")

        def put(racer: int, link: str = link) -> int:
            return ask(link, "PUT", b"%d" % racer, {"If-None-Match": "*"}).status

        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(put, range(8)))
        assert sorted(told) == [200] + [412] * 7
        found = store.read(f"race-{n}")
        assert isinstance(found, Found) and found.body == b"%d" % told.index(200)
