"""Credentials of a rented machine: for one job, for as long as its machine lives.

A machine of strangers gets a session of a role (STS AssumeRole) with a policy of its own, which names the
keys that one worker reads and writes and nothing else. A server may take that policy and ignore it, as
some ignore conditions of writes, and a role may have fewer rights than a worker needs; both are looked
for before a machine is paid for. What a worker may is told in docs/credentials.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Protocol, cast
from urllib.parse import urlencode, urlsplit

from runners.order import RentedConfig
from runners.sdk import ask
from tenure.dispatch.contract import LaunchFailed, Rejected, Unreachable
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, load
from tenure_protocol.store import probe
from tenure_protocol.store.api import StoreUnusable, check_key
from tenure_protocol.store.s3 import Credentials, new_session, parse_url
from tenure_worker.cargo import NO_DATA, DataIndex

MAX_POLICY = 2048  # characters of a session policy, by AWS
MAX_SESSION_S = 12 * 3600  # of any role, by AWS
CHAINED_SESSION_S = 3600  # of a role that a session assumes, or whose own limit nobody raised
MIN_SESSION_S = 900

_CONNECT_S = 3.0
_SHORT_BY_S = 60.0  # a session that is shorter than asked by less than this is not worth a word
_PASSING = {
    "InternalError", "RequestLimitExceeded", "RequestTimeout", "ServiceUnavailable", "SlowDown",
    "Throttling", "ThrottlingException", "TooManyRequestsException",
}  # fmt: skip
_OTHERWISE = 'see docs/credentials.md, or write trust = "full" to hand over your own keys'
_READABLE = re.compile(r"[A-Za-z0-9._/=+@,:-]*")  # a policy takes '*', '?' and '${' for patterns


class _Session(Protocol):
    """What is used of boto3, which is imported late and has no types."""

    region_name: str | None

    def get_credentials(self) -> _Credentials | None: ...

    def client(self, service: str, **how: object) -> object: ...


class _Credentials(Protocol):
    def get_frozen_credentials(self) -> _Frozen: ...


class _Frozen(Protocol):
    access_key: str
    secret_key: str
    token: str | None


class _Readable(Protocol):
    def read(self) -> bytes: ...


class _Store(Protocol):
    def get_object(self, *, Bucket: str, Key: str) -> Mapping[str, object]: ...


class _Sts(Protocol):
    def assume_role(self, **what: object) -> Mapping[str, object]: ...


class _Maker(Protocol):
    def __call__(
        self, service: str, endpoint: str | None, variables: Mapping[str, str] | None = None
    ) -> object: ...


@dataclass(frozen=True)
class Grant:
    """What one machine is given for one job. Its values are in ``variables``, and in no repr."""

    variables: Mapping[str, str] = field(repr=False)
    store: str  # the store's URL for this machine: with these credentials it may not list
    until_s: float  # Unix time by the STS's clock; infinite where nothing tells
    warning: str = ""  # what the operator should hear, in words


def grant(store_url: str, spec: JobSpec, config: RentedConfig, clock: Clock) -> Grant:
    """Credentials for one job's worker, within ``config.deadline_s`` seconds.

    With ``trust = "session"`` they open that job's keys alone and end with the machine's session, or
    earlier where the STS allows no more, which ``warning`` says. With ``trust = "full"`` they are the
    operator's own. Raises :class:`Rejected` where that cannot be done as configured, and
    ``Unreachable(sent=False)`` where the STS or the store did not answer: nothing was rented.
    """
    secrets: list[str] = []
    try:
        place = _Place.of(store_url, config)
        if config.trust == "full":
            what = "your own credentials"
            hand_over = partial(_full, place, spec, secrets)
            return ask(clock, config.deadline_s, what, hand_over, _failure, secrets)
        if not config.role:
            raise Rejected(f"no role is configured that a machine could assume; {_OTHERWISE}")
        issuer = _Issuer(place, spec, config, secrets)
        what = f"temporary credentials for job {spec.id}"
        return ask(clock, config.deadline_s, what, issuer.issue, _failure, secrets)
    except Unreachable as error:
        raise Unreachable(str(error), sent=False) from None


@dataclass(frozen=True)
class _Place:
    """The parts of a store's URL, and who issues sessions for it."""

    url: str
    bucket: str
    prefix: str  # '' or with its slash
    endpoint: str | None  # None: AWS
    sts: str | None  # None: AWS
    region: str | None  # None: as the environment says

    @classmethod
    def of(cls, url: str, config: RentedConfig) -> _Place:
        """Raises Rejected for a store that no rented machine could use."""
        if not url.startswith("s3:"):
            kind = url.partition(":")[0]
            raise Rejected(
                f"a rented machine cannot reach a {kind}: store; use an s3:// store ([store] url)"
            )
        try:
            bucket, prefix, options = parse_url(url)
        except StoreUnusable as error:
            raise Rejected(str(error)) from None
        endpoint = options.get("endpoint_url")
        host = urlsplit(endpoint or "").hostname or ""
        on_aws = endpoint is None or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        return cls(
            url,
            bucket,
            f"{prefix}/" if prefix else "",
            endpoint,
            config.sts_endpoint or (None if on_aws else endpoint),
            options.get("region"),
        )

    @property
    def issuer(self) -> str:
        """Who issues sessions, for people."""
        return self.sts or "AWS"

    def for_worker(self, job: str) -> str:
        """The URL of a worker that may not list: it opens the store by reading its own spec."""
        joined = "&" if "?" in self.url else "?"
        return f"{self.url}{joined}{urlencode({'opened_by': keys.job(job)}, safe='/')}"


# ------------------------------------------------------------------------------------- the policy


def session_policy(
    bucket: str, prefix: str, spec: JobSpec, data: Sequence[str] = (), partition: str = "aws"
) -> str:
    """What the worker of one job may do, as the policy of its session: all else is refused.

    ``prefix`` is the store's, empty or with its slash; ``data`` the SHA-256 of the job's data files. Where
    their names do not fit into ``MAX_POLICY`` characters, every content under ``data/`` may be read by who
    knows its digest, since nothing may be listed. Raises :class:`Rejected` for what no policy can say.
    """
    own = [keys.witness_of(spec), keys.attempts(spec.id) + "*", keys.refusals(spec.id) + "*"]
    reads = [keys.job(spec.id), keys.code(spec.code)]
    if spec.model is not None:
        reads.append(keys.snapshot(spec.model.job, spec.model.pointer) + "*")
    exact = [] if spec.data == NO_DATA else [keys.data_index(spec.data), *map(keys.data, data)]
    base = f"arn:{partition}:s3:::{bucket}/{prefix}"
    if not _READABLE.fullmatch(base):
        raise Rejected(
            f"the store {bucket}/{prefix} has a character in its name that a policy may read as a "
            "pattern; use another prefix ([store] url)"
        )
    for rows in (exact, [f"{keys.DATA}*"]):
        policy = _document(base, own, reads + rows)
        if len(policy) <= MAX_POLICY:
            return policy
    raise Rejected(
        f"the policy of one job's session has {len(policy)} characters, AWS takes {MAX_POLICY}; "
        "use a shorter prefix ([store] url)"
    )


def _document(base: str, own: Sequence[str], reads: Sequence[str]) -> str:
    def resources(rows: Sequence[str]) -> list[str]:
        for row in rows:
            check_key(row.removesuffix("*").removesuffix("/"))
        return [base + row for row in rows]

    write = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    try:
        statements = [
            {"Effect": "Allow", "Action": write, "Resource": resources(own)},
            {"Effect": "Allow", "Action": "s3:GetObject", "Resource": resources(reads)},
        ]
    except ValueError as error:  # a digest with a '*' in it would open more than itself
        raise Rejected(f"the job's spec cannot be put into a policy: {error}") from None
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))


# -------------------------------------------------------------------------------------- a session


@dataclass(frozen=True)
class _Issuer:
    """One session, asked for and tried out."""

    place: _Place
    spec: JobSpec
    config: RentedConfig
    secrets: list[str] = field(repr=False)  # what no failure may repeat, as far as known by now

    def issue(self) -> Grant:
        session = _operator(self.secrets)
        place, role = self.place, self.config.role
        region = place.region or session.region_name
        make = _maker(session, region, self.config.deadline_s)
        store = cast(_Store, make("s3", place.endpoint))
        partition = role.split(":")[1] if role.startswith("arn:aws") else "aws"
        data = _data_files(store, place, self.spec)
        policy = session_policy(place.bucket, place.prefix, self.spec, data, partition)
        variables, until_s, lasts_s = self._assume(
            cast(_Sts, make("sts", place.sts)), policy, region
        )
        self._try_out(cast(_Store, make("s3", place.endpoint, variables)))
        return Grant(variables, place.for_worker(self.spec.id), until_s, self._shortness(lasts_s))

    @property
    def _wanted_s(self) -> int:
        """From the launch to the wall of a machine that came up at the end of its claim window."""
        return max(MIN_SESSION_S, math.ceil(self.config.session_s + self.config.claim_window_s))

    def _assume(
        self, sts: _Sts, policy: str, region: str | None
    ) -> tuple[dict[str, str], float, float]:
        """Variables, when they end (Unix time) and how long that is (seconds)."""
        from botocore.exceptions import ClientError

        def assume(seconds: int) -> Mapping[str, object]:
            return sts.assume_role(
                RoleArn=self.config.role,
                RoleSessionName=f"tenure-{self.spec.id}",
                Policy=policy,
                DurationSeconds=seconds,
            )

        try:
            try:
                answer = assume(min(self._wanted_s, MAX_SESSION_S))
            except ClientError as error:
                # AWS: MaxSessionDuration of the role, or the one hour of a chained role.
                if "duration" not in _message(error).lower() or self._wanted_s <= CHAINED_SESSION_S:
                    raise
                answer = assume(CHAINED_SESSION_S)
        except ClientError as error:
            raise self._refusal(error) from None
        except (KeyError, TypeError, AttributeError):  # botocore's parser on a page of a web server
            answer = {}
        return self._credentials(answer, region)

    def _credentials(
        self, answer: Mapping[str, object], region: str | None
    ) -> tuple[dict[str, str], float, float]:
        found = cast("Mapping[str, object]", answer.get("Credentials") or {})
        values = [found.get(name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
        end = found.get("Expiration")
        if not all(isinstance(value, str) and value for value in values) or not isinstance(
            end, datetime
        ):
            raise Rejected(
                f"what answers at {self.place.issuer} is no STS: it sent no credentials; {_OTHERWISE}"
            )
        access, secret, token = cast("list[str]", values)
        self.secrets.extend((secret, token))
        # Both times are the STS's own: no clock of ours is compared with one of theirs.
        metadata = cast("Mapping[str, Mapping[str, str]]", answer.get("ResponseMetadata", {}))
        date = metadata.get("HTTPHeaders", {}).get("date")
        lasts_s = (end - parsedate_to_datetime(date)).total_seconds() if date else math.inf
        return _variables(access, secret, token, region), end.timestamp(), lasts_s

    def _refusal(self, error: Exception) -> LaunchFailed:
        """What the STS's refusal means, in one sentence."""
        if _is_passing(error):
            return Unreachable(f"the STS at {self.place.issuer} answered {_code(error)}")
        said = _message(error)
        words = f"{_code(error)}: {said}" if said else _code(error)
        return Rejected(
            f"{self.place.issuer} issues no session of the role {self.config.role} ({words}); "
            f"{_OTHERWISE}"
        )

    def _try_out(self, store: _Store) -> None:
        """Raise Rejected unless these credentials open the job's keys, and no others.

        The key that they must not open is the store's own mark, which no worker reads. A store that
        answered that it is missing would have looked, so that is a right to read it as well.
        """
        if not _opens(store, self.place, keys.job(self.spec.id)):
            raise Rejected(
                f"a session of the role {self.config.role} may not read its own job; give the role "
                "the rights that docs/credentials.md names"
            )
        if _opens(store, self.place, probe.KEY):
            raise Rejected(
                f"{self.place.issuer} ignores the policy of a session: a machine could read the "
                f"whole store; {_OTHERWISE}"
            )

    def _shortness(self, lasts_s: float) -> str:
        if lasts_s >= self._wanted_s - _SHORT_BY_S:
            return ""
        return (
            f"the machine's credentials end {lasts_s / 3600:.1f} h after the launch, its session only "
            f"after {self._wanted_s / 3600:.1f} h: a worker that lives longer stops as if its store were "
            "gone, and the job goes on elsewhere from its last milestone"
        )


def _data_files(store: _Store, place: _Place, spec: JobSpec) -> list[str]:
    """SHA-256 of each content that the job's data index names; none before it is published."""
    from botocore.exceptions import ClientError

    if spec.data == NO_DATA:
        return []
    key = keys.data_index(spec.data)
    try:
        found = store.get_object(Bucket=place.bucket, Key=place.prefix + key)
        index = load(DataIndex, cast("_Readable", found["Body"]).read(), key)
    except ClientError as error:
        if _code(error) in ("NoSuchKey", "404"):
            return []
        raise
    except Corrupt as error:
        raise Rejected(str(error)) from None
    return sorted(index.contents)


def _opens(store: _Store, place: _Place, key: str) -> bool:
    """Whether a key may be read: of a missing one, too, that it is missing."""
    from botocore.exceptions import ClientError

    try:
        found = store.get_object(Bucket=place.bucket, Key=place.prefix + key)
        cast("_Readable", found["Body"]).read()
    except ClientError as error:
        if _code(error) in ("NoSuchKey", "404"):
            return True
        if _status(error) == 403:
            return False
        raise
    return True


# --------------------------------------------------------------------------------- the operator's own


def _full(place: _Place, spec: JobSpec, secrets: list[str]) -> Grant:
    session = _operator(secrets)
    frozen = cast(_Credentials, session.get_credentials()).get_frozen_credentials()
    region = place.region or session.region_name
    return Grant(
        _variables(frozen.access_key, frozen.secret_key, frozen.token, region),
        place.url,
        math.inf,
        f'trust = "full": the machine of job {spec.id} gets your own keys, with which whoever runs that '
        "machine can read, change and delete all that you can; see docs/credentials.md",
    )


def _operator(secrets: list[str]) -> _Session:
    """boto3's own way to credentials: the environment, a profile, a role. Raises Rejected."""
    try:
        session = cast(_Session, new_session(Credentials()))
    except ImportError:
        raise Rejected("credentials for machines need boto3; pip install boto3") from None
    found = session.get_credentials()
    if found is None:
        raise Rejected(
            "there are no credentials here; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    frozen = found.get_frozen_credentials()
    secrets += [frozen.secret_key, frozen.token or ""]
    return session


def _variables(access: str, secret: str, token: str | None, region: str | None) -> dict[str, str]:
    """boto3 reads AWS_DEFAULT_REGION, other SDKs AWS_REGION."""
    found = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
    if token:
        found["AWS_SESSION_TOKEN"] = token
    if region:
        found |= {"AWS_REGION": region, "AWS_DEFAULT_REGION": region}
    return found


def _maker(session: _Session, region: str | None, deadline_s: float) -> _Maker:
    """Makes clients that try once, with the operator's credentials or with those in ``variables``."""
    from botocore.config import Config

    config = Config(
        ignore_configured_endpoint_urls=True,  # a machine has the store's URL and no variable of ours
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=min(_CONNECT_S, deadline_s),
        read_timeout=deadline_s,
    )

    def make(
        service: str, endpoint: str | None, variables: Mapping[str, str] | None = None
    ) -> object:
        given = (
            {
                "aws_access_key_id": variables["AWS_ACCESS_KEY_ID"],
                "aws_secret_access_key": variables["AWS_SECRET_ACCESS_KEY"],
                "aws_session_token": variables["AWS_SESSION_TOKEN"],
            }
            if variables
            else {}
        )
        where = region or "us-east-1"  # AWS answers there for every region
        return session.client(
            service, endpoint_url=endpoint, region_name=where, config=config, **given
        )

    return make


# ---------------------------------------------------------------------------------------- failures


def _failure(error: BaseException) -> LaunchFailed | None:
    """An exception of boto3 as a failure of ours."""
    from botocore import exceptions as boto

    if isinstance(error, boto.ClientError):
        words = f"{_code(error)}: {_message(error)}".removesuffix(": ")
        return Unreachable(words) if _is_passing(error) else Rejected(f"{words}; {_OTHERWISE}")
    if isinstance(
        error, (boto.ConnectionError, boto.HTTPClientError)
    ):  # no connection, no answer, TLS, a proxy
        return Unreachable(type(error).__name__)
    if type(error).__name__ == "ResponseParserError":
        return Rejected(f"what answers is no STS and no S3 server; {_OTHERWISE}")
    if isinstance(error, (boto.BotoCoreError, ValueError)):
        return Rejected(f"{' '.join(str(error).split())}; {_OTHERWISE}")
    return None


def _is_passing(error: Exception) -> bool:
    """Whether the same request may be answered otherwise later. 501 is an answer: it has no STS."""
    status = _status(error)
    return status in (408, 429) or (status >= 500 and status != 501) or _code(error) in _PASSING


def _answer(error: Exception) -> Mapping[str, Mapping[str, object]]:
    return cast("Mapping[str, Mapping[str, object]]", getattr(error, "response", {}))


def _code(error: Exception) -> str:
    return str(_answer(error).get("Error", {}).get("Code") or _status(error))


def _message(error: Exception) -> str:
    """The server's own words on one line."""
    return " ".join(str(_answer(error).get("Error", {}).get("Message") or "").split())[:200]


def _status(error: Exception) -> int:
    found = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return found if isinstance(found, int) else 0
