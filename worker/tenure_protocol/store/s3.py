"""An S3 bucket, or anything that speaks its protocol and honours conditional writes.

Two clients: one for conditional writes that never retries (a retry turns our own success into a 412,
shown 12 times out of 12), one for everything else that retries eight times. A call of the first has a
total deadline, because a timeout per read lets a server that drips bytes hold it six times longer.
An answer of 200 alone confirms nothing, since a proxy's page is one too: of each kind of answer we
demand what only S3 would have sent.
"""

from __future__ import annotations

import builtins
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast
from urllib.parse import parse_qsl, urlsplit

from tenure_protocol.clock import SYSTEM, Clock, beside
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
    shown,
)

if TYPE_CHECKING:
    from boto3.session import Session
    from botocore.client import BaseClient
    from botocore.loaders import Loader

T = TypeVar("T")

_CONNECT_S = 3.0
_READ_S = 9.0
_BULK_READ_S = 60.0
_BULK_ATTEMPTS = 9
_TELL_EVERY_S = 0.25
_OPTIONS = {"endpoint_url", "region", "etags", "opened_by"}
_ELSEWHERE = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")  # as boto3 reads them
_GONE = {"NoSuchKey", "404", "NotFound"}
_REFUSED = {"PreconditionFailed", "412"}
_SKEWED = "RequestTimeTooSkewed"
#: What an answer holds if it is S3's: a stray page has none of it, and Python takes half a head of an
#: answer for a whole one.
_DEMANDED: Mapping[str, tuple[str, ...]] = {
    "GetObject": ("ETag", "LastModified", "ContentLength"),
    "HeadObject": ("ETag", "LastModified", "ContentLength"),
    "ListObjectsV2": ("Name", "KeyCount"),
    "PutObject": ("ETag",),
    "UploadPart": ("ETag",),
    "CreateMultipartUpload": ("UploadId",),
    "CompleteMultipartUpload": ("ETag",),
}
_USELESS = {
    "NoSuchBucket": "there is no such bucket; create it, or correct [store] url",
    "InvalidAccessKeyId": "the access key is not known there; check AWS_ACCESS_KEY_ID",
    "SignatureDoesNotMatch": "the secret key does not fit the access key; check both",
    "ExpiredToken": "the temporary credentials have expired; renew them",
    "NoSuchKey": "the key that its option opened_by names is not there",
    "AccessDenied": "these credentials may not use it; check their policy",
    "403": "these credentials may not use it; check them and their policy",
    "404": "there is no such bucket; create it, or correct [store] url",
}


@dataclass(frozen=True)
class Credentials:
    """Other credentials than those boto3 finds: a profile's, or a key. No repr shows a secret."""

    profile: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


class S3Store:
    """Objects under ``prefix`` of one bucket, with boto3's own credentials or with others."""

    deadline_s = DEADLINE_S["s3"]

    def __init__(
        self, url: str, clock: Clock = SYSTEM, credentials: Credentials | None = None
    ) -> None:
        self._bucket, prefix, options = parse_url(url)
        if unknown := sorted(set(options) - _OPTIONS):
            raise StoreUnusable(
                f"the store URL has the unknown option {unknown[0]!r}; "
                f"there are {', '.join(sorted(_OPTIONS))}"
            )
        if options.get("etags", "quoted") not in ("quoted", "unquoted"):
            raise StoreUnusable("the option etags of the store URL is 'quoted' or 'unquoted'")
        # Hetzner takes an ETag without its quotes alone; `tenure store check` tells.
        self._unquoted = options.get("etags") == "unquoted"
        self._opened_by = options.get("opened_by", "")
        if self._opened_by and not is_key(self._opened_by):
            raise StoreUnusable("the option opened_by of the store URL is no key")
        self.url = url
        if prefix and {"", ".", ".."} & set(prefix.split("/")):
            raise StoreUnusable(
                f"the prefix {prefix!r} of the store URL has an empty part, '.' or '..' in it, which "
                "some servers tidy away and others do not"
            )
        self._prefix = f"{prefix}/" if prefix else ""
        self._endpoint = options.get("endpoint_url", "AWS")
        self._clock = clock
        self._torn: set[str] = set()  # keys whose last upload did not succeed
        try:
            make = _maker(options, credentials or Credentials())
            self._strict = make(1, _READ_S)
            self._bulk = make(_BULK_ATTEMPTS, _BULK_READ_S)
        except ImportError as error:
            raise StoreUnusable(
                f"the store {self._name()} needs boto3; install the extra: tenure-worker[s3]"
            ) from error
        except Exception as error:
            raise StoreUnusable(f"the store {self._name()} cannot be opened: {error}") from error
        if "endpoint_url" not in options:
            self._demand_aws(make)
        self._check_bucket()

    def _name(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _demand_aws(self, make: _Make) -> None:
        """Raise StoreUnusable where this machine's environment sends a URL without an endpoint elsewhere.

        Other machines are told the URL alone, and would find another store, or none, under it.
        """
        here = str(self._strict.meta.endpoint_url)
        if here == make(1, _READ_S, True).meta.endpoint_url:
            return
        set_here = [f"${name}" for name in _ELSEWHERE if os.environ.get(name)]
        source, asked = [*set_here, "your AWS configuration"][0], shown(here)
        raise StoreUnusable(
            f"the store {self._name()} names no endpoint and {source} sends it to {asked}, which no other "
            f"machine is told; write it into the URL, as endpoint_url={asked}"
        )

    def _check_bucket(self) -> None:
        """One listing. Raises StoreUnusable for what no waiting mends, StoreSilent for the rest.

        Credentials of one job may not list: the option ``opened_by`` names a key to read instead.
        Within the total deadline: a server that takes connections and says nothing would hold a
        command for the nine minutes of its client.
        """
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            NoCredentialsError,
            ParamValidationError,
        )

        def ask() -> Mapping[str, object]:
            if self._opened_by:
                answer = self._call("get_object", Key=self._full(self._opened_by))
                cast("_Readable", answer["Body"]).read()
                return answer
            return self._call("list_objects_v2", Prefix=self._prefix, MaxKeys=1)

        words = ""
        try:
            if self._within(ask, self._prefix) is None:
                words = f"does not answer at {self._endpoint} within {self.deadline_s:.0f} s"
                raise StoreSilent(f"{self._name()} {words}")
            return
        except NoCredentialsError as error:
            raise StoreUnusable(
                f"the store {self._name()} needs credentials; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from error
        except ClientError as error:
            raise self._refusal(error) from error
        except ParamValidationError:
            words = f"{self._bucket!r} is no name of a bucket"
        except _Stray as error:
            words = (
                f"what answers at {self._endpoint} is no S3 server ({error}); check endpoint_url"
            )
        except (BotoCoreError, RecursionError) as error:
            if not _unsendable(error):
                words = f"does not answer at {self._endpoint} ({self._told(error)})"
                raise StoreSilent(f"{self._name()} {words}") from error
            words = "the credentials hold a character that no request can, such as a line's end"
        raise StoreUnusable(f"the store {self._name()}: {words}")

    def _refusal(self, error: Exception) -> StoreUnusable | StoreSilent:
        """What an answer of 4xx or 5xx to the first listing means."""
        code, name = _code(error), self._name()
        metadata = cast("Mapping[str, object]", _response(error).get("ResponseMetadata", {}))
        headers = cast("Mapping[str, str]", metadata.get("HTTPHeaders", {}))
        status = cast(int, metadata.get("HTTPStatusCode", 500))
        passing = status >= 500 or status in (408, 429) or code == "RequestTimeout"
        words = _USELESS.get(code) or f"{self._endpoint} refuses to list it ({code}); check the URL"
        if code == _SKEWED:
            words = self._skew(error)
        elif headers.get("content-type", "").startswith("text/html"):
            words = f"{self._endpoint} answers {status} and a page, not as S3; check endpoint_url"
        elif passing:
            words = f"it answered {code}"
        kind = StoreSilent if passing else StoreUnusable
        return kind(f"the store {name}: {words}")

    def _skew(self, error: Exception) -> str:
        """How far this machine's clock is off, by the Date of the very answer that refused it."""
        headers = cast(
            "Mapping[str, Mapping[str, str]]", _response(error).get("ResponseMetadata", {})
        ).get("HTTPHeaders", {})
        if "date" not in headers:
            return "this machine's clock is too far from the store's; set it"
        there_s = parsedate_to_datetime(headers["date"]).timestamp()
        minutes = (self._clock.wall_s() - there_s) / 60.0
        side = "ahead of" if minutes > 0 else "behind"
        return f"this machine's clock is {abs(minutes):.0f} minutes {side} the store's; set it"

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
                return Unknown(f"{key}: {self._told(error)}")
            except Exception as error:  # no answer, or one that is none
                return Unknown(f"{key}: {self._told(error)}")
            return Written(_etag(answer))

        outcome = self._within(put, key)
        return outcome or Unknown(f"{key}: no answer within {self.deadline_s:.0f} s")

    def _within(self, call: Callable[[], T], key: str) -> T | None:
        """Run a call in a thread of its own; ``None`` when it has not ended by the deadline."""
        ended = beside(self._clock, call, "tenure-s3").get(self.deadline_s)
        return ended.result() if ended else None

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        """Upload in parts where it is large, and look afterwards that all of it is there."""
        size, full = path.stat().st_size, self._full(key)

        def put(told: Callable[[int], None]) -> None:
            self._bulk.upload_file(str(path), self._bucket, full, Callback=told)

        def confirm() -> int:
            return cast(int, self._call("head_object", Key=full)["ContentLength"])

        if full in self._torn:
            self._abort_parts(full)
        self._torn.add(full)
        self._transfer(key, "written", put, size, progress)
        self._torn.discard(full)
        found = self._asked(key, "confirmed", confirm)
        if found != size:
            words = "nothing" if isinstance(found, Missing) else f"{found} bytes"
            raise StoreSilent(f"{key} was uploaded, and {words} of {size} are there")

    def _abort_parts(self, full: str) -> None:
        """Remove the parts that uploads of this key left behind, which nothing shows and all pay for.

        A key has one writer, so they are its own; a server that was gone has not heard boto3 do it.
        """
        try:
            found = self._call("list_multipart_uploads", self._strict, Prefix=full)
            for row in cast("Sequence[Mapping[str, object]]", found.get("Uploads", [])):
                if row["Key"] == full:
                    which = {"Key": full, "UploadId": row["UploadId"]}
                    self._call("abort_multipart_upload", self._strict, **which)
        except Exception:  # it knows no such call, or allows none: they cost space and harm nobody
            return

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

        boto3 tells it from several threads at once; a training loop renews and stops by it. A part
        that is sent or fetched again is taken back first: what was told stands.
        """
        moved: list[int] = []
        furthest = 0

        def work() -> None:
            run(moved.append)

        box = beside(self._clock, work, "tenure-s3-transfer")
        while True:
            ended = box.get(_TELL_EVERY_S)
            furthest = max(furthest, sum(moved))
            if progress:
                progress(furthest, size)
            if ended is not None:
                break
        error = ended.error
        if isinstance(error, OSError):
            raise error  # a disk of this machine
        if error is not None:
            raise StoreSilent(f"{key} could not be {verb} ({self._told(error)})") from error

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
            raise StoreSilent(f"{key} could not be {verb} ({self._told(error)})") from error
        except Exception as error:  # no connection, a page of a proxy, a header that is missing
            raise StoreSilent(f"{key} could not be {verb} ({self._told(error)})") from error

    def _told(self, error: BaseException) -> str:
        """What went wrong, without addresses: they may carry a signature."""
        from botocore.exceptions import ClientError

        if isinstance(error, _Stray):
            return str(error)
        if not isinstance(error, ClientError):
            return type(error).__name__
        code = _code(error)
        if code == "AccessDenied":
            return f"{code}: these credentials have no right to it"
        return f"{code}: {self._skew(error)}" if code == _SKEWED else code


def parse_url(url: str) -> tuple[str, str, dict[str, str]]:
    """Bucket, prefix without slashes at its ends, and options of a store's URL.

    Raises StoreUnusable for one that cannot be read or that holds credentials.

    >>> parse_url("s3://b/p/q/?region=eu-west-1")
    ('b', 'p/q', {'region': 'eu-west-1'})
    """
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        endpoint = urlsplit(options.get("endpoint_url", ""))
    except ValueError as error:  # a bracket that is not closed
        raise StoreUnusable(
            f"the store URL {shown(url)!r} cannot be read; write s3://BUCKET/PREFIX"
        ) from error
    if "@" in parts.netloc + parts.path + endpoint.netloc:
        raise StoreUnusable(
            f"the store URL {shown(url)!r} has an '@' in it; credentials do not belong in a URL, "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return parts.netloc, parts.path.strip("/"), options


class _Stray(Exception):
    """An answer that S3 would not have sent."""


def _unsendable(error: Exception) -> bool:
    """Whether a request could not even be built: a header with a line's end in it."""
    from botocore.exceptions import HTTPClientError

    kwargs = cast("Mapping[str, object]", getattr(error, "kwargs", {}))
    return type(error) is HTTPClientError and isinstance(kwargs.get("error"), ValueError)


def _refuse_redirect(response_dict: Mapping[str, object] | None = None, **_: object) -> None:
    """Raise :class:`_Stray` for a redirect that is none of S3's, which names a region or is XML.

    boto3 takes each for a bucket of another region, asks for that region, and is redirected again.
    """
    if response_dict is None or response_dict["status_code"] not in (301, 302, 303, 307, 308):
        return
    headers = cast("Mapping[str, str]", response_dict["headers"])
    if "x-amz-bucket-region" not in headers and "xml" not in headers.get("content-type", ""):
        raise _Stray("it sends elsewhere by a redirect")


def _demand(parsed: Mapping[str, object], model: object, **_: object) -> None:
    """Raise :class:`_Stray` for an answer of success without what only S3 sends.

    Of an ETag half a one is none: the head of the answer was cut in its middle.
    """
    metadata = cast("Mapping[str, int]", parsed["ResponseMetadata"])
    if metadata["HTTPStatusCode"] >= 300:
        return
    for name in _DEMANDED.get(str(getattr(model, "name", "")), ()):
        value = parsed.get(name)
        cut = isinstance(value, str) and value.startswith('"') and not value[1:].endswith('"')
        if value in (None, "") or cut:
            raise _Stray(f"the answer has no {name}")


class _Readable(Protocol):
    def read(self) -> bytes: ...


class _Make(Protocol):
    def __call__(self, attempts: int, read_s: float, by_url_alone: bool = False) -> BaseClient: ...


@functools.lru_cache(maxsize=8)
def _data_files(path: str | None) -> Loader:
    """The descriptions of services in botocore's folder and below ``path``, each of which it reads once.

    A session of its own would read and parse them again: 75 ms of CPU for S3 alone.
    """
    from botocore.loaders import create_loader

    return create_loader(path)


def new_session(credentials: Credentials) -> Session:
    """A session of boto3: its own where nothing is named. Raises what boto3 raises."""
    import boto3
    import botocore.session

    own = botocore.session.Session(profile=credentials.profile)
    loader = _data_files(own.get_config_variable("data_path"))
    own.register_component("data_loader", loader)
    made = boto3.session.Session(
        profile_name=credentials.profile,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        aws_session_token=credentials.token,
        botocore_session=own,
    )
    # Each session of boto3 adds its own folder, which is there already but for the first.
    loader.search_paths[:] = dict.fromkeys(loader.search_paths)
    return made


def _maker(options: Mapping[str, str], credentials: Credentials) -> _Make:
    """Makes clients for a number of attempts and the seconds of one read; ``by_url_alone`` they ask where
    the URL says, whatever the environment does.

    They share a session; it is not shared between stores, since its clients may be made in several
    threads at once.
    """
    from botocore.config import Config

    session = new_session(credentials)

    def make(attempts: int, read_s: float, by_url_alone: bool = False) -> BaseClient:
        config = Config(
            ignore_configured_endpoint_urls=by_url_alone or None,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            connect_timeout=_CONNECT_S,
            read_timeout=read_s,
            max_pool_connections=32,
            signature_version="s3v4",  # links too: boto3's own choice is one that few servers take
        )
        client = session.client(
            "s3",
            endpoint_url=options.get("endpoint_url"),
            region_name=options.get("region"),
            config=config,
        )
        client.meta.events.register("response-received.s3", _refuse_redirect)
        client.meta.events.register("after-call.s3", _demand)
        return client

    return make


def _etag(answer: Mapping[str, object]) -> str:
    return str(answer["ETag"])


def _age_s(answer: Mapping[str, object], modified: object) -> float:
    """Date of the answer minus LastModified, both the store's, in whole seconds; never negative."""
    metadata = cast("Mapping[str, Mapping[str, str]]", answer["ResponseMetadata"])
    now = parsedate_to_datetime(metadata["HTTPHeaders"]["date"])
    written = cast(datetime, modified).astimezone(UTC)
    return max(0.0, (now - written).total_seconds())


def _response(error: BaseException) -> Mapping[str, object]:
    return cast("Mapping[str, object]", getattr(error, "response", {}))


def _code(error: BaseException) -> str:
    found = cast("Mapping[str, object]", _response(error).get("Error", {}))
    return str(found.get("Code", "?"))
