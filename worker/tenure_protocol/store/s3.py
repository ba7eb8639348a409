"""An S3 bucket, or anything that speaks its protocol and honours conditional writes.

Two clients: one for conditional writes that never retries (a retry turns our own success into a 412,
shown 12 times out of 12), one for everything else that retries eight times. A call of the first has a
total deadline, because a timeout per read lets a server that drips bytes hold it six times longer.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from tenure_protocol.clock import SYSTEM, Clock, Mailbox
from tenure_protocol.store.api import (
    DEADLINE_S,
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Progress,
    StoreSilent,
    StoreUnusable,
    Unknown,
    Written,
    check_key,
    is_key,
)

if TYPE_CHECKING:
    from botocore.client import BaseClient

T = TypeVar("T")

_CONNECT_S = 3.0
_READ_S = 9.0
_BULK_READ_S = 60.0
_BULK_ATTEMPTS = 9
_TELL_EVERY_S = 0.25
_OPTIONS = {"endpoint_url", "region", "etags"}
_GONE = {"NoSuchKey", "404", "NotFound"}
_REFUSED = {"PreconditionFailed", "412"}
_USELESS = {
    "NoSuchBucket": "there is no such bucket; create it, or correct [store] url",
    "InvalidAccessKeyId": "the access key is not known there; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key does not fit the access key; check both",
    "AccessDenied": "these credentials may not use it; check their policy",
    "403": "these credentials may not use it; check them and their policy",
    "404": "there is no such bucket; create it, or correct [store] url",
}


class S3Store:
    """Objects under ``prefix`` of one bucket."""

    deadline_s = DEADLINE_S["s3"]

    def __init__(self, url: str, clock: Clock = SYSTEM) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        if unknown := sorted(set(options) - _OPTIONS):
            raise StoreUnusable(
                f"the store URL has the unknown option {unknown[0]!r}; "
                f"there are {', '.join(sorted(_OPTIONS))}"
            )
        if options.get("etags", "quoted") not in ("quoted", "unquoted"):
            raise StoreUnusable("the option etags of the store URL is 'quoted' or 'unquoted'")
        # Hetzner takes an ETag without its quotes alone; `tenure store check` tells.
        self._unquoted = options.get("etags") == "unquoted"
        self.url = url
        self._bucket = parts.netloc
        prefix = parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._clock = clock
        try:
            self._strict = _client(options, attempts=1, read_s=_READ_S)
            self._bulk = _client(options, attempts=_BULK_ATTEMPTS, read_s=_BULK_READ_S)
        except ImportError as error:
            raise StoreUnusable(
                f"the store {self._name()} needs boto3; install the extra: tenure-worker[s3]"
            ) from error
        except Exception as error:
            raise StoreUnusable(f"the store {self._name()} cannot be opened: {error}") from error
        self._check_bucket()

    def _name(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _check_bucket(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            self._call("list_objects_v2", Prefix=self._prefix, MaxKeys=1)
        except NoCredentialsError as error:
            raise StoreUnusable(
                f"the store {self._name()} needs credentials; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from error
        except ClientError as error:
            code = _code(error)
            words = _USELESS.get(code)
            if words:
                raise StoreUnusable(f"the store {self._name()}: {words}") from error
            raise StoreSilent(f"{self._name()} answered {code}") from error
        except BotoCoreError as error:
            raise StoreSilent(f"{self._name()} does not answer ({_words(error)})") from error

    # ---------------------------------------------------------------------------- reading

    def read(self, key: str) -> Found | Missing:
        """Small bodies, by the client that does not retry and within the total deadline.

        A holder settles its writes by reads: one that hangs would keep it from its next renewal.
        """

        full = self._full(key)

        def get() -> Found:
            answer = self._call("get_object", self._strict, Key=full)
            body = cast("_Readable", answer["Body"]).read()
            return Found(body, _etag(answer), _age_s(answer, answer["LastModified"]))

        answer = self._within(lambda: self._asked(key, "read", get), key)
        if answer is None:
            raise StoreSilent(f"{key} could not be read (no answer in {self.deadline_s:.0f} s)")
        return answer

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        full = self._full(key)

        def get() -> bytes:
            span = f"bytes={start}-{start + length - 1}"
            answer = self._call("get_object", Key=full, Range=span)
            return cast("_Readable", answer["Body"]).read()

        if length <= 0:
            return b""
        return self._asked(key, "read", get, beyond=b"")

    def list(self, prefix: str) -> Iterator[Entry]:
        if prefix and not is_key(prefix.removesuffix("/")):
            return  # no key begins like this; some servers would tidy it up and list others
        token: dict[str, object] = {}
        while True:
            rows, token = self._page(prefix, token)
            yield from (row for row in rows if is_key(row.key))
            if not token:
                return

    def _page(
        self, prefix: str, token: Mapping[str, object]
    ) -> tuple[builtins.list[Entry], dict[str, object]]:
        """One page within the total deadline, and what asks for the next one."""

        def ask() -> tuple[builtins.list[Entry], dict[str, object]]:
            full = self._prefix + prefix
            answer = self._call("list_objects_v2", self._strict, Prefix=full, **token)
            if "Name" not in answer or "KeyCount" not in answer:
                raise StoreSilent(f"{prefix}* got an answer that is no listing")
            rows = [
                Entry(
                    str(row["Key"]).removeprefix(self._prefix),
                    str(row["ETag"]),
                    cast(int, row["Size"]),
                    _age_s(answer, row["LastModified"]),
                )
                for row in cast("Sequence[Mapping[str, object]]", answer.get("Contents", []))
            ]
            if answer.get("IsTruncated"):
                return rows, {"ContinuationToken": answer["NextContinuationToken"]}
            return rows, {}

        page = self._within(lambda: self._asked(prefix, "listed", ask), prefix)
        if page is None or isinstance(page, Missing):
            why = "no such bucket" if page else f"no answer in {self.deadline_s:.0f} s"
            raise StoreSilent(f"{prefix}* could not be listed ({why})")
        return page

    # ---------------------------------------------------------------------------- writing

    def create(self, key: str, body: bytes) -> Outcome:
        return self._conditional(key, body, {"IfNoneMatch": "*"})

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        sent = etag.strip('"') if self._unquoted else etag
        return self._conditional(key, body, {"IfMatch": sent})

    def _conditional(self, key: str, body: bytes, condition: Mapping[str, str]) -> Outcome:
        full = self._full(key)

        def put() -> Outcome:
            from botocore.exceptions import ClientError

            try:
                answer = self._call("put_object", self._strict, Key=full, Body=body, **condition)
            except ClientError as error:
                code = _code(error)
                if code in _REFUSED or (code in _GONE and "IfMatch" in condition):
                    return Lost()
                return Unknown(f"{key}: {code}")
            except Exception as error:  # no answer, or one that is none
                return Unknown(f"{key}: {_words(error)}")
            if not answer.get("ETag"):
                return Unknown(f"{key}: an answer without an ETag confirms nothing")
            return Written(_etag(answer))

        outcome = self._within(put, key)
        return outcome or Unknown(f"{key}: no answer within {self.deadline_s:.0f} s")

    def _within(self, call: Callable[[], T], key: str) -> T | None:
        """Run a call in a thread of its own; ``None`` when it has not ended by the deadline."""
        box: Mailbox[T | Exception] = self._clock.mailbox(1)

        def run() -> None:
            try:
                box.put(call())
            except Exception as error:
                box.put(error)

        self._clock.spawn(run, "tenure-s3")
        answer = box.get(self.deadline_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        """Upload in parts where it is large, and look afterwards that all of it is there.

        An answer of 200 alone confirms nothing: a proxy's page is one too.
        """
        size, full = path.stat().st_size, self._full(key)

        def put(told: Callable[[int], None]) -> None:
            self._bulk.upload_file(str(path), self._bucket, full, Callback=told)

        def confirm() -> int:
            return cast(int, self._call("head_object", Key=full)["ContentLength"])

        self._transfer(key, "written", put, size, progress)
        found = self._asked(key, "confirmed", confirm)
        if found != size:
            words = "nothing" if isinstance(found, Missing) else f"{found} bytes"
            raise StoreSilent(f"{key} was uploaded, and {words} of {size} are there")

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        full = self._full(key)

        def look() -> int:
            return cast(int, self._call("head_object", Key=full)["ContentLength"])

        size = self._asked(key, "fetched", look)
        if isinstance(size, Missing):
            return False

        def get(told: Callable[[int], None]) -> None:
            self._bulk.download_file(self._bucket, full, str(path), Callback=told)

        self._transfer(key, "fetched", get, size, progress)
        return True

    def _transfer(
        self,
        key: str,
        verb: str,
        run: Callable[[Callable[[int], None]], None],
        size: int,
        progress: Progress | None,
    ) -> None:
        """Run a transfer beside the caller, and tell its progress in the caller's own thread.

        boto3 tells it from several threads at once; a training loop renews and stops by it.
        """
        moved: list[int] = []
        box: Mailbox[Exception | bool] = self._clock.mailbox(1)

        def work() -> None:
            try:
                run(moved.append)
                box.put(True)
            except Exception as error:
                box.put(error)

        self._clock.spawn(work, "tenure-s3-transfer")
        while True:
            ended = box.get(_TELL_EVERY_S)
            if progress:
                progress(sum(moved), size)
            if ended is not None:
                break
        if isinstance(ended, OSError):
            raise ended  # a disk of this machine
        if isinstance(ended, Exception):
            raise StoreSilent(f"{key} could not be {verb} ({_words(ended)})") from ended

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        name = {"GET": "get_object", "PUT": "put_object"}[method]
        parameters = {"Bucket": self._bucket, "Key": self._full(key)}
        return str(self._bulk.generate_presigned_url(name, parameters, ExpiresIn=expires_s))

    def delete(self, key: str) -> None:
        full = self._full(key)
        self._asked(key, "deleted", lambda: self._call("delete_object", Key=full))

    # ----------------------------------------------------------------------------- inside

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _call(
        self, name: str, client: BaseClient | None = None, **parameters: object
    ) -> Mapping[str, object]:
        method = getattr(client or self._bulk, name)
        return cast(Mapping[str, object], method(Bucket=self._bucket, **parameters))

    def _asked(
        self, key: str, verb: str, ask: Callable[[], T], beyond: T | None = None
    ) -> T | Missing:
        """An answer, or Missing; every failure is a silent store."""
        from botocore.exceptions import ClientError

        try:
            return ask()
        except StoreSilent:
            raise
        except ClientError as error:
            code = _code(error)
            if code in _GONE:
                return Missing()
            if code == "InvalidRange" and beyond is not None:
                return beyond
            raise StoreSilent(f"{key} could not be {verb} ({code})") from error
        except Exception as error:  # no connection, a page of a proxy, a header that is missing
            raise StoreSilent(f"{key} could not be {verb} ({_words(error)})") from error


class _Readable(Protocol):
    def read(self) -> bytes: ...


def _client(options: Mapping[str, str], attempts: int, read_s: float) -> BaseClient:
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": attempts, "mode": "standard"},
        connect_timeout=_CONNECT_S,
        read_timeout=read_s,
        max_pool_connections=32,
    )
    return boto3.session.Session().client(
        "s3",
        endpoint_url=options.get("endpoint_url"),
        region_name=options.get("region"),
        config=config,
    )


def _etag(answer: Mapping[str, object]) -> str:
    return str(answer["ETag"])


def _age_s(answer: Mapping[str, object], modified: object) -> float:
    """Date of the answer minus LastModified, both the store's, in whole seconds; never negative."""
    metadata = cast("Mapping[str, Mapping[str, str]]", answer["ResponseMetadata"])
    now = parsedate_to_datetime(metadata["HTTPHeaders"]["date"])
    written = cast(datetime, modified).astimezone(UTC)
    return max(0.0, (now - written).total_seconds())


def _code(error: Exception) -> str:
    response = cast("Mapping[str, Mapping[str, object]]", getattr(error, "response", {}))
    return str(response.get("Error", {}).get("Code", "?"))


def _words(error: Exception) -> str:
    """The kind of failure without addresses, which may carry a signature."""
    return type(error).__name__
