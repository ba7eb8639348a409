"""An S3 bucket, or anything that speaks its protocol and honours conditional writes.

Two clients: one for conditional writes that never retries (a retry turns our own success into a 412,
shown 12 times out of 12), one for everything else that retries eight times. A call of the first has a
total deadline, because a timeout per read lets a server that drips bytes hold it six times longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from tenure_protocol.clock import SYSTEM, Clock
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
        def get() -> Found:
            answer = self._call("get_object", Key=self._full(key))
            body = cast("_Readable", answer["Body"]).read()
            return Found(body, _etag(answer), _age_s(answer, answer["LastModified"]))

        return self._asked(key, "read", get)

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        def get() -> bytes:
            span = f"bytes={start}-{start + length - 1}"
            answer = self._call("get_object", Key=self._full(key), Range=span)
            return cast("_Readable", answer["Body"]).read()

        if length <= 0:
            return b""
        return self._asked(key, "read", get, beyond=b"")

    def list(self, prefix: str) -> Iterator[Entry]:
        if prefix and not is_key(prefix.removesuffix("/")):
            return  # no key begins like this; some servers would tidy it up and list others
        token: dict[str, object] = {}
        while True:
            page = self._page(prefix, token)
            for row in cast("list[Mapping[str, object]]", page.get("Contents", [])):
                key = str(row["Key"]).removeprefix(self._prefix)
                yield Entry(
                    key, str(row["ETag"]), cast(int, row["Size"]), _age_s(page, row["LastModified"])
                )
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, prefix: str, token: Mapping[str, object]) -> Mapping[str, object]:
        def ask() -> Mapping[str, object]:
            answer = self._call("list_objects_v2", Prefix=self._prefix + prefix, **token)
            if "Name" not in answer or "KeyCount" not in answer:
                raise StoreSilent(f"{prefix}* got an answer that is no listing")
            return answer

        page = self._asked(prefix, "listed", ask)
        if isinstance(page, Missing):
            raise StoreSilent(f"{prefix}* could not be listed (no such bucket)")
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
            from botocore.exceptions import BotoCoreError, ClientError

            try:
                answer = self._call("put_object", self._strict, Key=full, Body=body, **condition)
            except ClientError as error:
                code = _code(error)
                if code in _REFUSED or (code in _GONE and "IfMatch" in condition):
                    return Lost()
                return Unknown(f"{key}: {code}")
            except BotoCoreError as error:
                return Unknown(f"{key}: {_words(error)}")
            if not answer.get("ETag"):
                return Unknown(f"{key}: an answer without an ETag confirms nothing")
            return Written(_etag(answer))

        return self._within(put, self.deadline_s, key)

    def _within(self, call: Callable[[], Outcome], deadline_s: float, key: str) -> Outcome:
        """Run a call in a thread of its own, and give up on its answer after the deadline."""
        box = self._clock.mailbox(1)  # type: ignore[var-annotated]

        def run() -> None:
            try:
                box.put(call())
            except Exception as error:
                box.put(Unknown(f"{key}: {type(error).__name__}: {error}"))

        self._clock.spawn(run, "tenure-s3")
        outcome: Outcome | None = box.get(deadline_s)
        return outcome or Unknown(f"{key}: no answer within {deadline_s:.0f} s")

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            self._bulk.upload_file(
                str(path), self._bucket, self._full(key),
                Callback=_told(progress, path.stat().st_size),
            )  # fmt: skip
        except (Boto3Error, BotoCoreError, ClientError) as error:
            raise StoreSilent(f"{key} could not be written ({_words(error)})") from error

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        def get() -> bool:
            size = cast(int, self._call("head_object", Key=self._full(key))["ContentLength"])
            self._bulk.download_file(
                self._bucket, self._full(key), str(path), Callback=_told(progress, size)
            )
            return True

        return self._asked(key, "fetched", get) is True

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        name = {"GET": "get_object", "PUT": "put_object"}[method]
        parameters = {"Bucket": self._bucket, "Key": self._full(key)}
        return str(self._bulk.generate_presigned_url(name, parameters, ExpiresIn=expires_s))

    def delete(self, key: str) -> None:
        self._asked(key, "deleted", lambda: self._call("delete_object", Key=self._full(key)))

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
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return ask()
        except ClientError as error:
            code = _code(error)
            if code in _GONE:
                return Missing()
            if code == "InvalidRange" and beyond is not None:
                return beyond
            raise StoreSilent(f"{key} could not be {verb} ({code})") from error
        except (BotoCoreError, KeyError, OSError) as error:
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


def _told(progress: Progress | None, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    done = 0

    def tell(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    return tell
