"""What the credentials of a rented machine open, on a real server with STS: one job, and nothing else.

Every forbidden thing is tried with plain boto3, which knows no rule of Tenure, and twice: with the
credentials of one job it must be refused, with nothing in the bucket changed, and with those of an
administrator (in a bucket of its own) it must not be, or the refusal would prove nothing but a request
that nobody could make.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, quote

import boto3
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from runners import cargo, grants
from runners.grants import MAX_POLICY, Grant, grant, session_policy
from runners.order import RentedConfig
from tenure.dispatch.contract import Rejected, Unreachable
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Reserve
from tenure_protocol.records import JobSpec, Pointer, SnapshotRef, Witness
from tenure_protocol.store import probe
from tenure_protocol.store.api import Found, Lost, StoreUnusable, Written
from tenure_protocol.store.s3 import S3Store
from tenure_worker import code, exits
from tenure_worker.cargo import NO_DATA, DataFile, DataIndex, encode_index
from tests import seaweed_iam as server
from tests.seaweed import BUCKET
from tests.without_torch import without_torch

CHECKOUT = Path(__file__).parents[2]
TOY = "tests.toy.experiment:Toy"
PREFIX = "team/store"
TWIN = "tenure-twins"  # where an administrator does the same things
DATA = DataIndex((DataFile(hashlib.sha256(b"rows").hexdigest(), "rows.csv", 4, "rows.csv"),))
ROWS = keys.data(DATA.files[0].sha256)
SHOT = Pointer(attempt=1, step=3, save=1, ordinal=1, digest="0" * 64)
CONFIG = RentedConfig(card="cpu", role=server.ROLE, session_s=1800.0, deadline_s=20.0)

Client = Any  # boto3's clients are made at run time


def spec_of(**fields: object) -> JobSpec:
    plain: dict[str, Any] = {
        "experiment": "toy", "kind": "train", "stage": "training", "entry_point": TOY,
        "config": {"steps": 40}, "seed": 1, "generation": 1, "code": code.code_digest(TOY),
        "data": DATA.digest, "milestone_every": 20,
    }  # fmt: skip
    return JobSpec(**{**plain, **fields})


@dataclass(frozen=True)
class World:
    """One store as one holder of credentials sees it; ``own`` is the job that they are for."""

    endpoint: str
    bucket: str
    credentials: Mapping[str, str]
    own: JobSpec
    other: JobSpec

    def client(self, service: str = "s3", **credentials: str) -> Client:
        return client(self.endpoint, service, credentials or self.credentials)

    @property
    def s3(self) -> Client:
        return self.client()

    def at(self, key: str) -> dict[str, str]:
        """A key of the store, for a call."""
        return {"Bucket": self.bucket, "Key": f"{PREFIX}/{key}"}

    def put(self, key: str, **more: object) -> object:
        return self.s3.put_object(**self.at(key), Body=b"mine now", **more)

    def get(self, key: str, **more: object) -> object:
        return self.s3.get_object(**self.at(key), **more)

    def raw(self, path: str, method: str = "GET", body: bytes | None = None) -> object:
        """A signed request whose path is sent as it stands, which boto3 would encode."""
        url = f"{self.endpoint}/{self.bucket}/{path}"
        request = AWSRequest(method, url, data=body, headers={})
        S3SigV4Auth(Credentials(*self.credentials.values()), "s3", "us-east-1").add_auth(request)
        return over_http(url, method, dict(request.headers.items()), body)


def client(endpoint: str, service: str, credentials: Mapping[str, str]) -> Client:
    return _client(endpoint, service, tuple(credentials.values()))


@lru_cache  # a client takes longer to make than all that it is asked here
def _client(endpoint: str, service: str, credentials: tuple[str, ...]) -> Client:
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    how = {"signature_version": "s3v4"} if service == "s3" else {}
    config = Config(retries={"total_max_attempts": 1}, connect_timeout=3, **how)
    return _session().client(
        service,
        endpoint_url=endpoint,
        region_name="us-east-1",
        config=config,
        **dict(zip(names, credentials, strict=False)),
    )


@cache
def _session() -> Client:
    return boto3.session.Session()


def over_http(
    url: str,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> object:
    """Raises as boto3 does, so that one judge serves both."""
    request = urllib.request.Request(url, body, dict(headers or {}), method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.read()
    except HTTPError as error:
        words = error.read().decode(errors="replace")
        parsed: Any = {
            "Error": {"Code": str(error.code), "Message": words},
            "ResponseMetadata": {"HTTPStatusCode": error.code},
        }
        raise ClientError(parsed, method) from None


@pytest.fixture(scope="module")
def iam(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.SeaweedIam]:
    with server.running(tmp_path_factory.mktemp("iam") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def operator(iam: server.SeaweedIam) -> Iterator[S3Store]:
    """The operator's own store, and the operator's keys in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", server.OPERATOR[0])
        patch.setenv("AWS_SECRET_ACCESS_KEY", server.OPERATOR[1])
        yield S3Store(iam.url(PREFIX))


def enlisted(store: S3Store, spec: JobSpec) -> JobSpec:
    """A job with its first launch announced."""
    assert isinstance(store.create(keys.job(spec.id), encode(spec)), Written)
    reserved = change(
        store,
        keys.witness_of(spec),
        spec.id,
        read_witness(store, keys.witness_of(spec)),
        Reserve("rented", 600.0, "dispatcher"),
        SYSTEM,
    )
    assert isinstance(reserved, Applied), reserved
    return spec


# ------------------------------------------------------------------------- what is in the store

OUTSIDE = (  # keys that no worker touches, whatever its job
    probe.KEY,
    "deployments/prod/current",
    "deployments/prod/shadow",
    "models/toy/record.json",
    "warrants/log/00000001.json",
    "plans/nightly/digest.json",
    "unsettled/x-00001",
    "ledger/dispatcher/x-00001.json",
    "closed/old",
    "submissions/team/1",
    "dispatchers/d.json",
    "observations/r/cpu/w",
    "lifetimes/r/cpu.json",
    "code/other.tar",
    f"code/{'f' * 64}.lock",
    f"data/{'e' * 26}.json",
    f"data/{'f' * 64}",
)


def beside(own: JobSpec, other: JobSpec) -> tuple[str, ...]:
    """Keys near those that the job's own credentials open."""
    model = own.model
    assert model is not None
    return (
        keys.intent(own.id, 1),
        keys.envelope(own.id, 1),
        keys.job(f"{own.id}x"),
        f"{keys.attempt(own.id + 'x', 1)}log/000001.txt",
        f"jobs/{own.id}",
        f"jobs/{own.id}/attempts",
        f"jobs/{own.id}/attemptsx/1",
        f"jobs/{own.id}/job.json.old",
        f"{keys.witness_of(own)}.old",
        keys.witness("toy2", own.id),
        keys.witness_of(other),
        keys.job(other.id),
        f"{keys.attempt(other.id, 1)}milestones/3-1/model.bin",
        f"{keys.refusals(other.id)}00001-a.json",
        keys.job(model.job),
        f"{keys.attempt(model.job, 1)}log/000001.txt",
        f"{keys.attempt(model.job, 1)}milestones/6-2/model.bin",
        f"{keys.attempt(model.job, 1)}milestones/3-10/model.bin",
        f"{keys.attempt(model.job, 2)}milestones/3-1/model.bin",
        f"code/{own.code}.tar.old",
        f"code/{own.code}",
    )


def furnish(s3: Client, bucket: str, own: JobSpec, other: JobSpec) -> None:
    assert own.model is not None
    mine = (
        keys.code(own.code),
        keys.data_index(own.data),
        ROWS,
        f"{keys.attempt(own.id, 1)}milestones/1-1/mine.bin",
        f"{keys.snapshot(own.model.job, own.model.pointer)}model.bin",
        *((keys.job(own.id), keys.witness_of(own)) if bucket == TWIN else ()),
    )
    for key in (*OUTSIDE, *beside(own, other), *mine):
        body = encode_index(DATA) if key == keys.data_index(own.data) else key.encode()
        if not key.endswith((own.id, "/attempts")):  # this server takes a key for a folder
            s3.put_object(Bucket=bucket, Key=f"{PREFIX}/{key}", Body=body)
    s3.put_object(Bucket=bucket, Key="elsewhere/x", Body=b"another store of the same bucket")


@dataclass(frozen=True)
class Scene:
    worker: World
    admin: World
    granted: Grant


@pytest.fixture(scope="module")
def scene(iam: server.SeaweedIam, operator: S3Store) -> Scene:
    model = SnapshotRef(spec_of(seed=90).id, SHOT)
    own = enlisted(operator, spec_of(kind="evaluate", stage="metrics", model=model))
    other = spec_of(seed=91)
    keys_of = dict(zip(("access", "secret"), server.OPERATOR, strict=True))
    by_operator = client(iam.endpoint, "s3", keys_of)
    by_operator.create_bucket(Bucket=TWIN)
    for bucket in (BUCKET, TWIN):
        furnish(by_operator, bucket, own, other)
    granted = grant(iam.url(PREFIX), own, CONFIG, SYSTEM)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    session = {name: granted.variables[name] for name in names}
    return Scene(
        World(iam.endpoint, BUCKET, session, own, other),
        World(iam.endpoint, TWIN, keys_of, own, other),
        granted,
    )


# ------------------------------------------------------------------------------------- forbidden

Deed = Callable[[World], object]


@cache
def deeds() -> dict[str, Deed]:
    model = SnapshotRef(spec_of(seed=90).id, SHOT)
    own, other = spec_of(kind="evaluate", stage="metrics", model=model), spec_of(seed=91)
    found: dict[str, Deed] = {}
    for key in (*OUTSIDE, *beside(own, other)):
        shown = key.replace(own.id, "OWN").replace(other.id, "OTHER").replace(model.job, "MODEL")
        found[f"read {shown}"] = lambda w, key=key: w.get(key)  # type: ignore[misc]
        found[f"write {shown}"] = lambda w, key=key: w.put(key)  # type: ignore[misc]
        found[f"delete {shown}"] = lambda w, key=key: w.s3.delete_object(**w.at(key))  # type: ignore[misc]
    return {**found, **READS, **WRITES, **LISTS, **COPIES, **PARTS, **BUCKETS, **IDENTITIES}


def batch_delete(w: World, *names: str) -> None:
    rows = [{"Key": w.at(name)["Key"]} for name in names]
    answer = w.s3.delete_objects(Bucket=w.bucket, Delete={"Objects": rows})
    errors = answer.get("Errors", [])
    if errors and {row["Code"] for row in errors} == {"AccessDenied"} and len(errors) == len(rows):
        parsed: Any = {"Error": errors[0], "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(parsed, "DeleteObjects")


def witness(w: World) -> str:
    return keys.witness_of(w.own)


def mine(w: World, name: str = "new.bin") -> str:
    return f"{keys.attempt(w.own.id, 1)}milestones/1-1/{name}"


def model_file(w: World) -> str:
    assert w.own.model is not None
    return f"{keys.snapshot(w.own.model.job, w.own.model.pointer)}model.bin"


def theirs(w: World) -> str:
    return f"{keys.attempt(w.other.id, 1)}milestones/3-1/model.bin"


def link(w: World, method: str, key: str) -> object:
    url = w.s3.generate_presigned_url(method, Params=w.at(key), ExpiresIn=60)
    put = method == "put_object"
    return over_http(url, "PUT" if put else "GET", None, b"mine now" if put else None)


def up_and_over(w: World, dots: str) -> str:
    """From under the job's own prefix to another job's spec."""
    return f"{PREFIX}/jobs/{w.own.id}/attempts/{dots}/{dots}/{w.other.id}/job.json"


READS: dict[str, Deed] = {
    "head another job's spec": lambda w: w.s3.head_object(**w.at(keys.job(w.other.id))),
    "read a range of another job's snapshot": lambda w: w.get(theirs(w), Range="bytes=0-3"),
    "read a version of another job's spec": lambda w: w.get(keys.job(w.other.id), VersionId="null"),
    "read the attributes of another job's spec": lambda w: w.s3.get_object_attributes(
        **w.at(keys.job(w.other.id)), ObjectAttributes=["ETag"]
    ),
    "read the access list of another job's spec": lambda w: w.s3.get_object_acl(
        **w.at(keys.job(w.other.id))
    ),
    "read the tags of another job's spec": lambda w: w.s3.get_object_tagging(
        **w.at(keys.job(w.other.id))
    ),
    "read another store of the bucket": lambda w: w.s3.get_object(
        Bucket=w.bucket, Key="elsewhere/x"
    ),
    "read another bucket": lambda w: w.s3.get_object(
        Bucket=TWIN, Key=f"{PREFIX}/{keys.job(w.own.id)}"
    ),
    "read another job's spec by a link that the session signs": lambda w: link(
        w, "get_object", keys.job(w.other.id)
    ),
    "read another job's spec by '..'": lambda w: w.raw(up_and_over(w, "..")),
    "read another job's spec by '%2e%2e'": lambda w: w.raw(up_and_over(w, "%2e%2e")),
    "read another job's spec by '%2e%2e%2f'": lambda w: w.raw(
        f"{PREFIX}/jobs/{w.own.id}/attempts/%2e%2e%2f%2e%2e%2f{w.other.id}/job.json"
    ),
    "read another job's spec by a doubled slash": lambda w: w.raw(
        f"{PREFIX}/jobs//{w.other.id}/job.json"
    ),
    "read another job's spec by capitals": lambda w: w.raw(f"{PREFIX}/JOBS/{w.other.id}/job.json"),
    "read what of own keys there is no right to: tags": lambda w: w.s3.get_object_tagging(
        **w.at(mine(w, "mine.bin"))
    ),
    "read what of own keys there is no right to: access list": lambda w: w.s3.get_object_acl(
        **w.at(mine(w, "mine.bin"))
    ),
    "read by anonymous request": lambda w: (
        over_http(f"{w.endpoint}/{BUCKET}/{PREFIX}/{keys.job(w.own.id)}")
        if w.bucket == BUCKET
        else None
    ),
}
WRITES: dict[str, Deed] = {
    "overwrite the own spec": lambda w: w.put(keys.job(w.own.id)),
    "create the own spec again": lambda w: w.put(keys.job(w.own.id), IfNoneMatch="*"),
    "overwrite the code of the job": lambda w: w.put(keys.code(w.own.code)),
    "overwrite the data of the job": lambda w: w.put(ROWS),
    "overwrite the index of the data": lambda w: w.put(keys.data_index(w.own.data)),
    "overwrite the model that it reads": lambda w: w.put(model_file(w)),
    "write a receipt for itself": lambda w: w.put(keys.receipt(w.own.id, 1)),
    "create another job's witness": lambda w: w.put(keys.witness("toy", "a" * 26), IfNoneMatch="*"),
    "replace another job's witness on its ETag": lambda w: w.put(
        keys.witness_of(w.other), IfMatch=f'"{hashlib.md5(b"x").hexdigest()}"'
    ),
    "write beside the store": lambda w: w.s3.put_object(Bucket=w.bucket, Key="x", Body=b"x"),
    "write to another bucket": lambda w: w.s3.put_object(Bucket=TWIN, Key="x", Body=b"x"),
    "write by a link that the session signs": lambda w: link(
        w, "put_object", "deployments/prod/current"
    ),
    "write by '..'": lambda w: w.raw(up_and_over(w, ".."), "PUT", b"x"),
    "write by '%2e%2e'": lambda w: w.raw(up_and_over(w, "%2e%2e"), "PUT", b"x"),
    "tag an own file": lambda w: w.s3.put_object_tagging(
        **w.at(mine(w, "mine.bin")), Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}
    ),
    "tag another job's spec": lambda w: w.s3.put_object_tagging(
        **w.at(keys.job(w.other.id)), Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}
    ),
    "give an own file an access list": lambda w: w.s3.put_object_acl(
        **w.at(mine(w, "mine.bin")), ACL="public-read"
    ),
    "write a public file": lambda w: w.put(mine(w, "public.bin"), ACL="public-read"),
    "write a file with tags": lambda w: w.put(mine(w, "tagged.bin"), Tagging="a=b"),
    "delete the own witness": lambda w: w.s3.delete_object(**w.at(witness(w))),
    "delete an own file": lambda w: w.s3.delete_object(**w.at(mine(w, "mine.bin"))),
    "delete a version of an own file": lambda w: w.s3.delete_object(
        **w.at(mine(w, "mine.bin")), VersionId="null"
    ),
    "delete many of others": lambda w: batch_delete(w, keys.job(w.other.id), *OUTSIDE),
    "delete many of its own": lambda w: batch_delete(w, witness(w), mine(w, "mine.bin")),
}
LISTS: dict[str, Deed] = {
    f"list {shown!r}": lambda w, prefix=prefix: w.s3.list_objects_v2(
        Bucket=w.bucket, Prefix=prefix, MaxKeys=1
    )
    for shown, prefix in {
        "": "", "the store": PREFIX, "jobs": f"{PREFIX}/jobs/", "data": f"{PREFIX}/data/",
        "deployments": f"{PREFIX}/deployments/", "elsewhere": "elsewhere/",
        "witnesses": f"{PREFIX}/witness/toy/",
    }.items()
} | {
    "list its own job": lambda w: w.s3.list_objects_v2(
        Bucket=w.bucket, Prefix=f"{PREFIX}/jobs/{w.own.id}/"
    ),
    "list by the first version": lambda w: w.s3.list_objects(Bucket=w.bucket),
    "list versions": lambda w: w.s3.list_object_versions(Bucket=w.bucket),
    "list uploads": lambda w: w.s3.list_multipart_uploads(Bucket=w.bucket),
    "look at the bucket": lambda w: w.s3.head_bucket(Bucket=w.bucket),
}  # fmt: skip
COPIES: dict[str, Deed] = {
    "copy another job's spec to an own key": lambda w: w.s3.copy_object(
        **w.at(mine(w)), CopySource=w.at(keys.job(w.other.id))
    ),
    "copy the own envelope to an own key": lambda w: w.s3.copy_object(
        **w.at(mine(w)), CopySource=w.at(keys.envelope(w.own.id, 1))
    ),
    "copy by '..' to an own key": lambda w: w.s3.copy_object(
        **w.at(mine(w)), CopySource=quote(f"{w.bucket}/{up_and_over(w, '..')}")
    ),
    "copy from another bucket to an own key": lambda w: w.s3.copy_object(
        **w.at(mine(w)), CopySource={"Bucket": TWIN, "Key": f"{PREFIX}/{keys.job(w.other.id)}"}
    ),
    "copy an own file to a deployment": lambda w: w.s3.copy_object(
        **w.at("deployments/prod/current"), CopySource=w.at(mine(w, "mine.bin"))
    ),
    "copy an own file to another bucket": lambda w: w.s3.copy_object(
        Bucket=TWIN, Key="x", CopySource=w.at(mine(w, "mine.bin"))
    ),
    "copy a part of another job's snapshot": lambda w: part_copy(w, w.at(theirs(w))),
    "copy a part of the own envelope": lambda w: part_copy(w, w.at(keys.envelope(w.own.id, 1))),
}


def part_copy(w: World, source: Mapping[str, str]) -> object:
    where = w.at(mine(w, "parts.bin"))
    upload = w.s3.create_multipart_upload(**where)["UploadId"]
    try:
        return w.s3.upload_part_copy(**where, CopySource=source, PartNumber=1, UploadId=upload)
    finally:
        w.s3.abort_multipart_upload(**where, UploadId=upload)


def uploaded(w: World) -> dict[str, str]:
    """An upload that another job began."""
    where = w.at(theirs(w))
    keys_of = dict(zip(("access", "secret"), server.OPERATOR, strict=True))
    upload = client(w.endpoint, "s3", keys_of).create_multipart_upload(**where)["UploadId"]
    return {**where, "UploadId": upload}


def of_theirs(call: str, **more: object) -> Deed:
    def do(w: World) -> object:
        where = uploaded(w)
        try:
            return getattr(w.s3, call)(**where, **more)
        finally:
            keys_of = dict(zip(("access", "secret"), server.OPERATOR, strict=True))
            if call != "abort_multipart_upload" or w.bucket == BUCKET:
                client(w.endpoint, "s3", keys_of).abort_multipart_upload(**where)

    return do


PARTS: dict[str, Deed] = {
    "begin an upload to a deployment": lambda w: w.s3.create_multipart_upload(
        **w.at("deployments/prod/current")
    ),
    "begin an upload to another job": lambda w: w.s3.create_multipart_upload(**w.at(theirs(w))),
    "add a part to another job's upload": of_theirs("upload_part", PartNumber=1, Body=b"x"),
    "list the parts of another job's upload": of_theirs("list_parts"),
    "abort another job's upload": of_theirs("abort_multipart_upload"),
    "complete another job's upload": of_theirs(
        "complete_multipart_upload", MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": '"x"'}]}
    ),
}


def of_bucket(call: str, **more: object) -> Deed:
    return lambda w: getattr(w.s3, call)(Bucket=w.bucket, **more)


_RULE = {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
_CORS = {"CORSRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"]}]}
_OPEN = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": "*",
            "Action": "s3:*",
            "Resource": f"arn:aws:s3:::{BUCKET}/*",
        }
    ],
}
_SSE = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
BUCKETS: dict[str, Deed] = {
    "create a bucket": lambda w: w.s3.create_bucket(Bucket=f"strangers-{w.bucket}"),
    "delete a bucket": lambda w: w.s3.delete_bucket(
        Bucket=BUCKET if w.bucket == BUCKET else f"strangers-{TWIN}"
    ),
    "read the bucket's policy": of_bucket("get_bucket_policy"),
    "open the bucket by a policy": of_bucket("put_bucket_policy", Policy=json.dumps(_OPEN)),
    "delete the bucket's policy": of_bucket("delete_bucket_policy"),
    "read the bucket's access list": of_bucket("get_bucket_acl"),
    "open the bucket by an access list": of_bucket("put_bucket_acl", ACL="public-read-write"),
    "read the lifecycle": of_bucket("get_bucket_lifecycle_configuration"),
    "expire everything by a lifecycle": of_bucket(
        "put_bucket_lifecycle_configuration", LifecycleConfiguration={"Rules": [_RULE]}
    ),
    "delete the lifecycle": of_bucket("delete_bucket_lifecycle"),
    "read the versioning": of_bucket("get_bucket_versioning"),
    "set the versioning": of_bucket(
        "put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"}
    ),
    "read the cors": of_bucket("get_bucket_cors"),
    "set the cors": of_bucket("put_bucket_cors", CORSConfiguration=_CORS),
    "read the bucket's tags": of_bucket("get_bucket_tagging"),
    "set the bucket's tags": of_bucket(
        "put_bucket_tagging", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}
    ),
    "read the encryption": of_bucket("get_bucket_encryption"),
    "set the encryption": of_bucket(
        "put_bucket_encryption", ServerSideEncryptionConfiguration=_SSE
    ),
    "read the location": of_bucket("get_bucket_location"),
    "read the ownership": of_bucket("get_bucket_ownership_controls"),
    "read the lock": of_bucket("get_object_lock_configuration"),
    "list buckets": lambda w: w.s3.list_buckets(),
}
IDENTITIES: dict[str, Deed] = {
    "assume the role again": lambda w: w.client("sts").assume_role(
        RoleArn=server.ROLE, RoleSessionName="again"
    ),
    "assume the role again with a wider policy": lambda w: w.client("sts").assume_role(
        RoleArn=server.ROLE, RoleSessionName="again", Policy=json.dumps(_OPEN)
    ),
    "ask for a session token": lambda w: w.client("sts").get_session_token(),
    "ask for a federation token": lambda w: w.client("sts").get_federation_token(
        Name="again", Policy=json.dumps(_OPEN)
    ),
    "create a user": lambda w: w.client("iam").create_user(UserName="mallory"),
    "create a key for the operator": lambda w: w.client("iam").create_access_key(
        UserName="operator"
    ),
    "list users": lambda w: w.client("iam").list_users(),
    "give a user a policy": lambda w: w.client("iam").put_user_policy(
        UserName="stranger", PolicyName="all", PolicyDocument=json.dumps(_OPEN)
    ),
}


def everything(w: World) -> dict[str, str]:
    """Every key of the bucket and its ETag, as the operator sees them."""
    by = client(w.endpoint, "s3", dict(zip("ab", server.OPERATOR, strict=True)))
    rows = by.list_objects_v2(Bucket=BUCKET)["Contents"]
    return {row["Key"]: row["ETag"] for row in rows}


#: What this server takes from a session although its policy has no right for it, and what comes of it.
CANNOT = {
    "write a public file": "PutObject with an access list asks for no right to set one; what it wrote "
    "stays closed to everybody else all the same (test_a_public_file_is_not_public)",
    "write a file with tags": "PutObject with tags asks for no right to tag; nothing reads the tags",
    "list buckets": "answered with those that the session may list, which are none",
}
#: What it refuses to everybody alike, so that the refusal says nothing of the policy.
NOBODY = dict.fromkeys(
    (
        "read another job's spec by '..'", "read another job's spec by '%2e%2e'",
        "read another job's spec by '%2e%2e%2f'", "write by '..'", "write by '%2e%2e'",
        "copy by '..' to an own key",
    ),
    "400: it takes no path with '..' in it",
)  # fmt: skip


def judged(w: World, deed: Deed) -> str:
    """'refused', or what came of it."""
    try:
        answer = deed(w)
    except ClientError as error:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        return "refused" if status == 403 else f"{status} {error.response['Error']['Code']}"
    return f"done: {answer!r}"[:200]


@pytest.mark.parametrize("name", [n for n in deeds() if n not in {**CANNOT, **NOBODY}])
def test_forbidden(scene: Scene, name: str) -> None:
    before = everything(scene.worker)
    assert judged(scene.worker, deeds()[name]) == "refused"
    assert everything(scene.worker) == before
    assert judged(scene.admin, deeds()[name]) != "refused"


@pytest.mark.parametrize("name", NOBODY)
def test_refused_to_everybody(scene: Scene, name: str) -> None:
    before = everything(scene.worker)
    found = judged(scene.worker, deeds()[name])
    assert found.startswith(("refused", "400 ")) and everything(scene.worker) == before
    assert judged(scene.admin, deeds()[name]) == found


@pytest.mark.parametrize("name", CANNOT)
def test_not_refused_by_this_server(scene: Scene, name: str) -> None:
    """Known gaps: the test fails on the day that one is closed."""
    assert judged(scene.worker, deeds()[name]).startswith("done")


def test_a_public_file_is_not_public(scene: Scene) -> None:
    worker = scene.worker
    worker.put(mine(worker, "public.bin"), ACL="public-read")
    where = worker.at(mine(worker, "public.bin"))
    with pytest.raises(ClientError, match="403"):
        over_http(f"{worker.endpoint}/{where['Bucket']}/{where['Key']}")
    assert worker.s3.list_buckets()["Buckets"] == []


# --------------------------------------------------------------------------------------- allowed


def test_what_a_worker_does_is_allowed(scene: Scene, tmp_path: Path) -> None:
    """Each right of the policy, so that none stands there in vain; the process below uses them all."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scene.granted.variables.items():
            patch.setenv(name, value)
        store = S3Store(scene.granted.store)
    own = scene.worker.own
    found = store.read(keys.witness_of(own))
    assert isinstance(found, Found)
    assert isinstance(store.replace(keys.witness_of(own), found.body, found.etag), Written)
    assert isinstance(store.replace(keys.witness_of(own), b"late", '"0"'), Lost)
    assert isinstance(store.create(keys.refusal(own.id, 1, "aa"), b"no"), Written)
    assert isinstance(store.create(keys.refusal(own.id, 1, "aa"), b"no"), Lost)
    large = tmp_path / "large"
    large.write_bytes(b"0123456789abcdef" * (9 << 16))  # 9 MiB: in parts
    store.put_file(mine(scene.worker, "large.bin"), large)
    assert store.get_file(mine(scene.worker, "large.bin"), tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == large.read_bytes()
    for key in (
        keys.job(own.id), keys.code(own.code), keys.data_index(own.data), ROWS,
        model_file(scene.worker),
    ):  # fmt: skip
        assert isinstance(store.read(key), Found)
    where = scene.worker.at(mine(scene.worker, "torn.bin"))
    upload = scene.worker.s3.create_multipart_upload(**where)["UploadId"]
    scene.worker.s3.abort_multipart_upload(**where, UploadId=upload)


def test_a_store_that_may_not_be_listed_is_opened_by_a_key(
    scene: Scene, iam: server.SeaweedIam
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in scene.granted.variables.items():
            patch.setenv(name, value)
        S3Store(scene.granted.store)
        with pytest.raises(StoreUnusable, match="check their policy"):
            S3Store(iam.url(PREFIX))
        others = iam.url(PREFIX) + f"&opened_by={keys.job(scene.worker.other.id)}"
        with pytest.raises(StoreUnusable, match="check their policy"):
            S3Store(others)
        with pytest.raises(StoreUnusable, match="that its option opened_by names is not there"):
            S3Store(iam.url(PREFIX) + f"&opened_by={mine(scene.worker, 'missing')}")
        with pytest.raises(StoreUnusable, match="opened_by of the store URL is no key"):
            S3Store(iam.url(PREFIX) + "&opened_by=../x")


# ---------------------------------------------------------------------------------- a real worker

EXPERIMENT = """
import json
from pathlib import Path
from tenure_worker.experiment import Evaluation, Metric

class Job:
    def data_files(self):
        return [Path("rows.csv")]

    def train(self, tenure, config, seed):
        rows = Path("rows.csv").read_text()
        while tenure.step_number < 4:
            tenure.step()
            if tenure.milestone_due:
                tenure.milestone(lambda folder: (folder / "model.json").write_text(json.dumps(rows)))
        return {"rows": rows}

    def evaluate(self, tenure, config, model_dir):
        rows = json.loads((model_dir / "model.json").read_text())
        return Evaluation({"loss": Metric(float(len(rows)), "minimize", "1")}, {"loss": [0.5]})

    def backtest(self, tenure, config, model_dir):
        raise NotImplementedError
"""


@dataclass(frozen=True)
class Rented:
    """A project, and a machine that has nothing but what it is granted and what the store has."""

    url: str
    store: S3Store
    project: Path
    machine: Path

    def enlisted(self, **fields: object) -> JobSpec:
        code.add_code_path(self.project)
        digest = code.code_digest("rented_job:Job")
        rows = (self.project / "rows.csv").read_bytes()
        data = f"{hashlib.sha256(rows).hexdigest()}  rows.csv\n"
        spec = spec_of(
            entry_point="rented_job:Job", code=digest, data=short_id(data.encode()),
            config={}, milestone_every=2, **fields,
        )  # fmt: skip
        cargo.publish(self.store, spec, self.project, SYSTEM)
        return enlisted(self.store, spec)

    def run(self, spec: JobSpec, granted: Grant) -> tuple[int, str]:
        self.machine.mkdir(exist_ok=True)
        found = subprocess.run(
            [sys.executable, "-m", "tenure_worker"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.machine),
                "PYTHONPATH": os.pathsep.join(
                    [str(without_torch(self.machine)), str(CHECKOUT / "worker")]
                ),
                "TENURE_STORE": granted.store,
                "TENURE_JOB": spec.id,
                "TENURE_LAUNCH": "1",
                "TENURE_FETCH": "1",
                **granted.variables,
            },
            cwd=self.machine,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return found.returncode, found.stdout + found.stderr

    def witness(self, spec: JobSpec) -> Witness:
        found = read_witness(self.store, keys.witness_of(spec)).witness
        assert found is not None
        return found


@pytest.fixture(scope="module")
def rented(
    iam: server.SeaweedIam, operator: S3Store, tmp_path_factory: pytest.TempPathFactory
) -> Rented:
    folder = tmp_path_factory.mktemp("rented")
    (folder / "project").mkdir()
    (folder / "project" / "rented_job.py").write_text(EXPERIMENT)
    (folder / "project" / "rows.csv").write_text("1,2,3")
    url = iam.url("work")
    return Rented(url, S3Store(url), folder / "project", folder / "machine")


def test_a_worker_finishes_with_them(rented: Rented) -> None:
    """Training, and an evaluation that reads the model: code, data and all from the store."""
    train = rented.enlisted()
    granted = grant(rented.url, train, CONFIG, SYSTEM)
    assert granted.warning == ""
    assert rented.run(train, granted) == (0, "")
    done = rented.witness(train)
    assert (done.phase, done.attempt, done.result) == ("finished", 1, {"rows": "1,2,3"})
    assert done.pointer is not None
    evaluate = rented.enlisted(
        kind="evaluate", stage="metrics", model=SnapshotRef(train.id, done.pointer)
    )
    assert rented.run(evaluate, grant(rented.url, evaluate, CONFIG, SYSTEM)) == (0, "")
    assert rented.witness(evaluate).phase == "finished"


def test_a_worker_can_say_no_with_them(rented: Rented) -> None:
    spec = rented.enlisted(seed=2, requires={"cpu_model": "another processor"})
    found, words = rented.run(spec, grant(rented.url, spec, CONFIG, SYSTEM))
    assert found == exits.REFUSED, words
    (refusal,) = rented.store.list(keys.refusals(spec.id))
    assert refusal.size > 0 and rented.witness(spec).phase == "expected"


def test_a_worker_with_another_jobs_credentials_does_nothing(rented: Rented) -> None:
    one, other = rented.enlisted(seed=3), rented.enlisted(seed=4)
    granted = grant(rented.url, other, CONFIG, SYSTEM)
    stolen = replace(granted, store=granted.store.replace(other.id, one.id))
    found, words = rented.run(one, stolen)
    assert found == exits.USAGE and "check their policy" in words, (found, words)
    assert rented.witness(one).phase == "expected"


# ---------------------------------------------------------------------------- how a session ends


def forged(
    token: str, claims: Mapping[str, object] | None = None, key: bytes = server.SIGNING_KEY
) -> str:
    """The session's token with other claims, signed anew: by the server's own key, or by another."""
    head, body, _ = token.split(".")
    said = json.dumps({**claims_of(token), **claims}).encode() if claims else unpadded(body)
    signed = f"{head}.{padless(said)}"
    mac = hmac.new(key, signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{padless(mac)}"


def padless(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def claims_of(token: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(unpadded(token.split(".")[1]))
    return found


def read_with(scene: Scene, token: str | None, key: str = "", **credentials: str) -> str:
    """What comes of reading a key, by default the job's own spec, with another token."""
    plain = {**scene.worker.credentials, **credentials}
    changed = (
        {**plain, "AWS_SESSION_TOKEN": token}
        if token is not None
        else dict(list(plain.items())[:2])
    )
    world = replace(scene.worker, credentials=changed)
    return judged(world, lambda w: w.get(key or keys.job(w.own.id)))


def test_a_session_ends_when_it_says(scene: Scene) -> None:
    """STS issues none of under 900 s, so time is not waited for: the token's end is moved instead."""
    token = scene.granted.variables["AWS_SESSION_TOKEN"]
    claims = claims_of(token)
    assert claims["exp"] == scene.granted.until_s
    assert claims["exp"] - claims["iat"] == CONFIG.session_s + CONFIG.claim_window_s
    assert read_with(scene, forged(token)).startswith("done")  # it is forged well
    now = int(SYSTEM.wall_s())
    for ended in ({"exp": now - 1}, {"exp": now - 1, "iat": now - 901, "nbf": now - 901}):
        assert read_with(scene, forged(token, ended)) in ("refused", "400 ExpiredToken")


def test_a_token_that_was_tampered_with_opens_nothing(scene: Scene, iam: server.SeaweedIam) -> None:
    token = scene.granted.variables["AWS_SESSION_TOKEN"]
    head, body, mac = token.split(".")
    wide = {"spol": json.dumps(_OPEN)}
    secret = keys.job(scene.worker.other.id)
    none = padless(b'{"alg":"none","typ":"JWT"}')
    wider = forged(token, wide, b"another key of 32 bytes, a guess")
    assert read_with(scene, forged(token, wide), secret).startswith("done")  # it would, if it knew
    for tampered in (
        wider, f"{none}.{wider.split('.')[1]}.", f"{none}.{body}.", f"{head}.{body}.",
        f"{head}.{wider.split('.')[1]}.{mac}", f"{head}.{body}.{mac[::-1]}", token[:-4], "x", None,
    ):  # fmt: skip
        assert read_with(scene, tampered, secret) == "refused", tampered
        assert read_with(scene, tampered) == "refused", tampered


def test_the_keys_of_one_session_do_not_fit_the_token_of_another(
    scene: Scene, iam: server.SeaweedIam
) -> None:
    other = grant(iam.url(PREFIX), scene.worker.own, CONFIG, SYSTEM).variables
    mixed = {name: other[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    assert read_with(scene, other["AWS_SESSION_TOKEN"], **mixed).startswith("done")
    assert read_with(scene, scene.granted.variables["AWS_SESSION_TOKEN"], **mixed) == "refused"


def test_the_link_of_an_envelope_ends(
    scene: Scene, operator: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rented machine opens its envelope by a link, with no right of its own to it."""
    key = keys.envelope(scene.worker.own.id, 1)
    fresh = operator.presign(key, "GET", 600)
    then = datetime.fromtimestamp(SYSTEM.wall_s() - 601, UTC)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: then)
    late = operator.presign(key, "GET", 600)
    assert fresh and late
    assert over_http(fresh) == key.encode()
    with pytest.raises(ClientError, match="403") as refused:
        over_http(late)
    assert "expired" in str(refused.value)


# ------------------------------------------------------------------------------------ no session


@dataclass
class Sts:
    """An STS that is none, or a bad one: a loopback server that answers every request in one way.

    ``forgetful`` passes a request on to the real one without its policy. Answers are as AWS documents
    them; none of them was seen on AWS.
    """

    answer: str
    iam: server.SeaweedIam
    asked: list[dict[str, list[str]]] = field(default_factory=list)

    def reply(self, form: dict[str, list[str]]) -> tuple[int, str, str]:
        self.asked.append(form)
        seconds = int(form["DurationSeconds"][0])
        if self.answer == "forgetful":
            return 200, "text/xml", self.issued(seconds)
        if self.answer == "one hour at most":
            if seconds <= 3600:
                return 200, "text/xml", self.issued(seconds, form["Policy"][0])
            words = (
                "The requested DurationSeconds exceeds the MaxSessionDuration set for this role."
            )
            return 400, "text/xml", failure("ValidationError", words)
        status, kind, body = {
            "page": (200, "text/html", "<html><body>Welcome</body></html>"),
            "empty": (200, "text/xml", "<AssumeRoleResponse/>"),
            "no such thing": (501, "text/xml", failure("NotImplemented", "no STS here")),
            "not found": (404, "text/html", "<html>404</html>"),
            "method": (405, "application/xml", failure("MethodNotAllowed", "not allowed")),
            "too long": (
                400, "text/xml", failure("PackedPolicyTooLarge", "Packed policy consumes 102%"),
            ),
            "echo": (403, "text/xml", failure("AccessDenied", f"who signs with {OPERATOR_SECRET}?")),
            "busy": (503, "text/xml", failure("ServiceUnavailable", "later")),
            "slow down": (429, "text/html", "<html>slow down</html>"),
            "throttled": (400, "text/xml", failure("Throttling", "Rate exceeded")),
        }[self.answer]  # fmt: skip
        return status, kind, body

    def issued(self, seconds: int, policy: str | None = None) -> str:
        by = client(self.iam.endpoint, "sts", dict(zip("ab", server.OPERATOR, strict=True)))
        how = {"Policy": policy} if policy else {}
        found = by.assume_role(
            RoleArn=server.ROLE, RoleSessionName="x1", DurationSeconds=seconds, **how
        )["Credentials"]
        rows = {**found, "Expiration": found["Expiration"].astimezone(UTC).isoformat()}
        inside = "".join(f"<{name}>{value}</{name}>" for name, value in rows.items())
        return (
            f"<AssumeRoleResponse><AssumeRoleResult><Credentials>{inside}</Credentials>"
            "</AssumeRoleResult></AssumeRoleResponse>"
        )


OPERATOR_SECRET = server.OPERATOR[1]


def failure(code_: str, words: str) -> str:
    return f"<ErrorResponse><Error><Code>{code_}</Code><Message>{words}</Message></Error></ErrorResponse>"


@pytest.fixture
def bad_sts(iam: server.SeaweedIam) -> Iterator[Callable[[str], tuple[str, Sts]]]:
    with ExitStack() as stack:

        def start(answer: str) -> tuple[str, Sts]:
            sts = Sts(answer, iam)

            class Handler(BaseHTTPRequestHandler):
                def do_POST(self) -> None:
                    text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                    status, kind, body = sts.reply(parse_qs(text))
                    self.send_response(status)
                    self.send_header("Content-Type", kind)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body.encode())

                def log_message(self, *_: object) -> None:
                    return

            http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            stack.callback(http.server_close)
            stack.callback(http.shutdown)
            SYSTEM.spawn(lambda: http.serve_forever(0.02), "bad-sts")
            return f"http://127.0.0.1:{http.server_port}", sts

        yield start


def asked(scene: Scene, **changed: Any) -> Grant:
    """A grant for the scene's job by a changed configuration."""
    url = f"s3://{BUCKET}/{PREFIX}?endpoint_url={scene.worker.endpoint}&region=us-east-1"
    return grant(url, scene.worker.own, CONFIG.model_copy(update=changed), SYSTEM)


@pytest.mark.parametrize(
    ("answer", "words"),
    {
        "page": "is no STS",
        "empty": "is no STS: it sent no credentials",
        "no such thing": "NotImplemented: no STS here",
        "not found": "404",
        "method": "MethodNotAllowed",
        "too long": "PackedPolicyTooLarge",
        "forgetful": "ignores the policy of a session: a machine could read the whole store",
        "echo": "who signs with \\*\\*\\*",
    }.items(),
)
def test_rejected(
    scene: Scene, bad_sts: Callable[[str], tuple[str, Sts]], answer: str, words: str
) -> None:
    url, sts = bad_sts(answer)
    with pytest.raises(Rejected, match=words) as failed:
        asked(scene, sts_endpoint=url)
    assert len(sts.asked) == 1  # tried once: the dispatcher alone tries again
    said = str(failed.value)
    assert "docs/credentials.md" in said and 'trust = "full"' in said
    assert OPERATOR_SECRET not in said and "\n" not in said
    assert failed.value.__cause__ is None


@pytest.mark.parametrize("answer", ["busy", "slow down", "throttled"])
def test_busy(scene: Scene, bad_sts: Callable[[str], tuple[str, Sts]], answer: str) -> None:
    url, sts = bad_sts(answer)
    with pytest.raises(Unreachable) as failed:
        asked(scene, sts_endpoint=url)
    assert failed.value.sent is False and len(sts.asked) == 1


def test_silent_and_gone(scene: Scene) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Unreachable) as failed:
            asked(scene, sts_endpoint=url, deadline_s=0.5)
        assert failed.value.sent is False
    with pytest.raises(Unreachable, match="EndpointConnectionError") as failed:
        asked(scene, sts_endpoint=url)
    assert failed.value.sent is False


def test_an_hour_where_the_sts_gives_no_more_and_it_is_said(
    scene: Scene, bad_sts: Callable[[str], tuple[str, Sts]]
) -> None:
    url, sts = bad_sts("one hour at most")
    granted = asked(scene, sts_endpoint=url, session_s=20_000.0)
    assert [form["DurationSeconds"] for form in sts.asked] == [["20600"], ["3600"]]
    assert "end 1.0 h after the launch, its session only after 5.7 h" in granted.warning
    assert claims_of(granted.variables["AWS_SESSION_TOKEN"])["exp"] == granted.until_s


def test_twelve_hours_are_the_most(scene: Scene) -> None:
    granted = asked(scene, session_s=86_400.0)
    claims = claims_of(granted.variables["AWS_SESSION_TOKEN"])
    assert claims["exp"] - claims["iat"] == 43_200
    assert "end 12.0 h after the launch, its session only after 24.2 h" in granted.warning
    short = claims_of(
        asked(scene, session_s=1.0, claim_window_s=1.0).variables["AWS_SESSION_TOKEN"]
    )
    assert short["exp"] - short["iat"] == 900


def test_a_role_that_is_none_or_trusts_somebody_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Rejected, match=r"no role is configured .* docs/credentials.md"):
        asked(scene, role="")
    with pytest.raises(Rejected, match="min length: 20"):
        asked(scene, role="worker")
    with pytest.raises(
        Rejected, match="issues no session of the role arn:aws:iam::000000000000:role/x"
    ):
        asked(scene, role="arn:aws:iam::000000000000:role/x")
    with pytest.raises(Rejected, match=r"may not read its own job; give the role the rights"):
        asked(scene, role=server.ROLE_WITHOUT_RIGHTS)
    for who in (server.STRANGER, server.NEIGHBOUR):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", who[0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", who[1])
        with pytest.raises(Rejected, match="AccessDenied"):
            asked(scene)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a wrong secret")
    with pytest.raises(Rejected, match="SignatureDoesNotMatch") as failed:
        asked(scene)
    assert "a wrong secret" not in str(failed.value)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(Rejected, match="there are no credentials here; set AWS_ACCESS_KEY_ID"):
        asked(scene)


@pytest.mark.parametrize("url", ["file:/tmp/x", "memory:x", "s3://key:word@bucket/x"])
def test_a_store_that_no_machine_could_use(scene: Scene, url: str) -> None:
    for trust in ("session", "full"):
        with pytest.raises(Rejected) as failed:
            grant(url, scene.worker.own, CONFIG.model_copy(update={"trust": trust}), SYSTEM)
        assert "word" not in str(failed.value)


# ----------------------------------------------------------------- an endpoint of this machine alone

ELSEWHERE = {
    "AWS_ENDPOINT_URL": {"AWS_ENDPOINT_URL": "{}"},
    "AWS_ENDPOINT_URL_S3": {"AWS_ENDPOINT_URL_S3": "{}", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
    "your AWS configuration": {"AWS_CONFIG_FILE": "profile"},
}


@pytest.mark.parametrize("source", ELSEWHERE)
def test_a_store_whose_url_says_less_than_this_machine_knows_is_refused(
    source: str, iam: server.SeaweedIam, operator: S3Store, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A machine would be told s3://bucket/prefix and go to AWS; two such stores would be one by name."""
    (tmp_path / "profile").write_text(f"[default]\nendpoint_url = {iam.endpoint}\n")
    for name, value in ELSEWHERE[source].items():
        found = str(tmp_path / value) if value == "profile" else value.format(iam.endpoint)
        monkeypatch.setenv(name, found)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(StoreUnusable) as refused:
        S3Store(f"s3://{BUCKET}/{PREFIX}?region=us-east-1")
    words = str(refused.value)
    assert (
        f"names no endpoint and {source.replace('AWS_', '$AWS_', source[0] == 'A')} sends" in words
    )
    assert words.endswith(f"write it into the URL, as endpoint_url={iam.endpoint}")
    assert "\n" not in words
    S3Store(f"s3://{BUCKET}/{PREFIX}?region=us-east-1&{words.rpartition(' as ')[2]}")


def test_an_endpoint_in_the_url_counts_whatever_else_is_set(
    scene: Scene, iam: server.SeaweedIam, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert S3Store(iam.url(PREFIX)).url == iam.url(PREFIX)
    assert grant(iam.url(PREFIX), scene.worker.own, CONFIG, SYSTEM).variables
    # As a machine will, and as docs/credentials.md says: on AWS, what no option names is AWS's own.
    make: Any = grants._maker(grants._operator([]), "eu-west-1", 5.0)
    found = {make(service, None).meta.endpoint_url for service in ("s3", "sts")}
    assert found == {"https://s3.eu-west-1.amazonaws.com", "https://sts.eu-west-1.amazonaws.com"}


# --------------------------------------------------------------------------------- words and text


def test_no_value_shows(scene: Scene) -> None:
    shown = f"{scene.granted!r} {scene.granted}"
    assert "until_s" in shown
    for name, value in scene.granted.variables.items():
        assert name.endswith("REGION") or value not in shown + scene.granted.store


def test_full_trust_is_said_each_time(scene: Scene) -> None:
    for _ in range(2):
        granted = asked(scene, trust="full", role="")
        assert 'trust = "full"' in granted.warning and scene.worker.own.id in granted.warning
    assert granted.until_s == math.inf
    assert "opened_by" not in granted.store
    assert granted.variables == {
        "AWS_ACCESS_KEY_ID": server.OPERATOR[0],
        "AWS_SECRET_ACCESS_KEY": server.OPERATOR[1],
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    assert OPERATOR_SECRET not in f"{granted!r}{granted.warning}"


def test_the_policy_names_what_a_worker_touches() -> None:
    model = SnapshotRef("m" * 26, SHOT)
    spec = spec_of(kind="evaluate", model=model)
    policy = json.loads(session_policy("b", "p/", spec, [DATA.files[0].sha256], "aws-cn"))
    own, reads = policy["Statement"]
    base = "arn:aws-cn:s3:::b/p/"
    assert own["Action"] == ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    assert own["Resource"] == [
        f"{base}witness/toy/{spec.id}.json",
        f"{base}jobs/{spec.id}/attempts/*",
        f"{base}jobs/{spec.id}/refusals/*",
    ]
    assert reads["Action"] == "s3:GetObject"
    assert reads["Resource"] == [
        f"{base}jobs/{spec.id}/job.json",
        f"{base}code/{spec.code}.tar",
        f"{base}jobs/{'m' * 26}/attempts/00001/milestones/3-1/*",
        f"{base}data/{DATA.digest}.json",
        f"{base}{ROWS}",
    ]
    without = json.loads(session_policy("b", "", spec_of(data=NO_DATA)))
    assert not any("/data/" in row for row in without["Statement"][1]["Resource"])


def test_the_policy_fits_or_says_why_not() -> None:
    many = [hashlib.sha256(bytes([n])).hexdigest() for n in range(100)]
    spec = spec_of()
    few = session_policy("b", "p/", spec, many[:5])
    assert all(digest in few for digest in many[:5]) and len(few) <= MAX_POLICY
    wide = session_policy("b", "p/", spec, many)
    assert "arn:aws:s3:::b/p/data/*" in wide and many[0] not in wide and len(wide) <= MAX_POLICY
    with pytest.raises(Rejected, match=r"characters, AWS takes 2048; use a shorter prefix"):
        session_policy("b" * 63, "p" * 300 + "/", spec)


@pytest.mark.parametrize("name", ["*", "a/../b", "x?", "${aws:username}", "", "a b"])
def test_a_name_that_a_policy_would_read_as_a_pattern(name: str) -> None:
    for spec in (
        spec_of(code=name), spec_of(data=name), spec_of(model=SnapshotRef(name, SHOT)),
    ):  # fmt: skip
        with pytest.raises(Rejected, match="cannot be put into a policy"):
            session_policy("b", "p/", spec)
    if name not in ("", "a/../b"):
        with pytest.raises(Rejected, match="use another prefix"):
            session_policy("b", f"{name}/", spec_of())
