"""Who may write what is deployed: the ready policies of docs/policies, on a real server with users.

Each role's own work is done with the product's code, and each forbidden deed is tried with plain boto3,
which knows no rule of Tenure: refused, it must leave the bucket as it was; and an administrator must be
able to do the same, or the refusal would prove nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from gates.deploy import deploy
from runners.grants import grant
from runners.order import RentedConfig
from tenure.dispatch.deploy_store import open_deploy_store
from tenure.dispatch.desks import desk_of
from tenure.dispatch.registry import open_settings_store
from tenure.errors import StoreOutOfReach, UsageError
from tenure.plan.enlist import enlist
from tenure.plan.submit import submissions
from tenure.settings import Settings, load_settings
from tenure_live import Refused, WrongCall, load_model
from tenure_protocol import fingerprint
from tenure_protocol.clock import SYSTEM, SystemClock
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, ModelRecord
from tenure_protocol.store import probe
from tenure_protocol.store.api import Missing, StoreSilent
from tenure_protocol.store.s3 import Credentials, S3Store, new_session
from tests import seaweed_iam as server
from tests.live_world import NAME, SHADOW, SLOT, model, new_key, put_live
from tests.record_builders import MEASURED, REQUIRED
from tests.seaweed import BUCKET

POLICIES = Path(__file__).parents[2] / "docs" / "policies"
ROLES = ("researcher", "deployer", "live-reader")
TEAM, RIVAL = "vision", "sound"
PREFIX = "team/store"
TWIN = "tenure-rights-twin"  # where an administrator does the same
WARRANT = keys.warrant(1)

Client = Any  # boto3's clients are made at run time
Deed = Callable[[Client, str], object]


def document(name: str) -> dict[str, Any]:
    text = (POLICIES / f"{'team' if name == TEAM else name}.json").read_text()
    text = text.replace("TEAM", TEAM)
    found: dict[str, Any] = json.loads(text.replace("BUCKET", BUCKET).replace("PREFIX", PREFIX))
    return found


@pytest.fixture(scope="module")
def iam(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.SeaweedIam]:
    policies = {name: document(name) for name in (*ROLES, TEAM)}
    with server.running(tmp_path_factory.mktemp("rights") / "data", policies) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """No credentials of anybody's, and the environment that the warrants demand."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setattr(fingerprint, "measure", lambda *_: MEASURED)
        yield


def as_(patch: pytest.MonkeyPatch, user: tuple[str, str]) -> None:
    """Be that user, by the environment alone, as every process is."""
    patch.setenv("AWS_ACCESS_KEY_ID", user[0])
    patch.setenv("AWS_SECRET_ACCESS_KEY", user[1])


@cache
def client(endpoint: str, *credentials: str) -> Client:
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, signature_version="s3v4"),
        **dict(zip(names, credentials, strict=False)),
    )


@dataclass(frozen=True)
class Scene:
    """A store in which one model was made by a researcher, deployed, and is read by a service."""

    iam: server.SeaweedIam
    settings: Settings
    environ: dict[str, str]  # the deployer's own variables
    record: ModelRecord
    public: bytes
    sessions: dict[str, tuple[str, ...]]  # credentials by role

    @property
    def url(self) -> str:
        return self.iam.url(PREFIX)

    def by(self, role: str) -> Client:
        return client(self.iam.endpoint, *self.sessions[role])


@pytest.fixture(scope="module")
def scene(iam: server.SeaweedIam, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("project")
    text = f'[store]\nurl = "{iam.url(PREFIX)}"\n[gates]\ncredentials = "env:TENURE_DEPLOY"\n'
    (folder / "tenure.toml").write_text(text)
    settings = load_settings(start=folder, environ={})
    deployer = server.keys_of("deployer")
    environ = {
        "TENURE_DEPLOY_AWS_ACCESS_KEY_ID": deployer[0],
        "TENURE_DEPLOY_AWS_SECRET_ACCESS_KEY": deployer[1],
    }
    key = new_key()
    with pytest.MonkeyPatch.context() as patch:
        as_(patch, server.keys_of("researcher"))
        research = open_settings_store(settings)  # probes it, too
        record = model(research, REQUIRED, MEASURED)
        deployment_step = open_deploy_store(settings, research, environ)
        assert deployment_step is not research
        deploy(deployment_step, record, key, NAME)
        put_live(deployment_step, record, key)
        put_live(deployment_step, record, key, slot=SHADOW)
        spec = JobSpec(
            experiment="toy", kind="train", stage="training", entry_point="tests.toy.experiment:Toy",
            config={}, seed=1, generation=1, code="0" * 64, data="0" * 26, milestone_every=20,
        )  # fmt: skip
        research.create(keys.job(spec.id), encode(spec))
        as_(patch, server.OPERATOR)
        rented = RentedConfig(card="cpu", role=server.ROLE, session_s=1800.0, deadline_s=20.0)
        given = grant(iam.url(PREFIX), spec, rented, SYSTEM).variables
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    sessions: dict[str, tuple[str, ...]] = {role: server.keys_of(role) for role in (*ROLES, TEAM)}
    sessions |= {"worker": tuple(given[name] for name in names), "admin": server.OPERATOR}
    admin = client(iam.endpoint, *server.OPERATOR)
    admin.create_bucket(Bucket=TWIN)
    for row in everything(admin, BUCKET):
        source = {"Bucket": BUCKET, "Key": row}
        admin.copy_object(Bucket=TWIN, Key=row, CopySource=source)
    return Scene(iam, settings, environ, record, key.public.pem(), sessions)


def everything(admin: Client, bucket: str) -> dict[str, str]:
    found = {}
    for page in admin.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        found |= {str(row["Key"]): str(row["ETag"]) for row in page.get("Contents", [])}
    return found


# ------------------------------------------------------------------------------------- forbidden


def at(key: str) -> str:
    return f"{PREFIX}/{key}"


def _batch(s3: Client, bucket: str, key: str) -> None:
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": at(key)}]})
    if errors := answer.get("Errors", []):
        parsed: Any = {"Error": errors[0], "ResponseMetadata": {"HTTPStatusCode": 403}}
        raise ClientError(parsed, "DeleteObjects")


def _etag(s3: Client, bucket: str, key: str) -> str:
    try:
        return str(s3.head_object(Bucket=bucket, Key=at(key))["ETag"])
    except ClientError:
        return '"0"'


DEEDS: dict[str, Callable[[Client, str, str], object]] = {
    "overwrite": lambda s3, b, k: s3.put_object(Bucket=b, Key=at(k), Body=b"mine"),
    "create beside": lambda s3, b, k: s3.put_object(
        Bucket=b, Key=at(f"{k}-new"), Body=b"mine", IfNoneMatch="*"
    ),
    "replace on its ETag": lambda s3, b, k: s3.put_object(
        Bucket=b, Key=at(k), Body=b"mine", IfMatch=_etag(s3, b, k)
    ),
    "upload in parts": lambda s3, b, k: s3.create_multipart_upload(Bucket=b, Key=at(k)),
    "copy onto": lambda s3, b, k: s3.copy_object(
        Bucket=b, Key=at(f"{k}-copy"), CopySource={"Bucket": b, "Key": at(k)}
    ),
    "delete": lambda s3, b, k: s3.delete_object(Bucket=b, Key=at(k)),
    "delete many": _batch,
}  # fmt: skip
DELETES = ("delete", "delete many")
DEPLOYED = (SLOT, SHADOW, WARRANT)


def own_files(scene: Scene) -> tuple[str, ...]:
    """One key of each kind that a researcher and no deployer or service writes."""
    train = scene.record.members[0].train
    weights = keys.snapshot(train.job, train.pointer) + "weights.bin"
    record = keys.model(scene.record.experiment, scene.record.id)
    return (
        keys.job(train.job),
        keys.witness(scene.record.experiment, train.job),
        weights,
        record,
        probe.KEY,
    )


def not_the_teams(scene: Scene) -> tuple[str, ...]:
    """What another team asked for, and what the shares of all of them are reckoned from."""
    job = scene.record.members[0].train.job
    return (
        keys.submission(RIVAL, "a" * 26),
        keys.ledger("somebody", job, 1, "closed"),
        keys.unsettled(job, 1),
        keys.intent(job, 1),
        keys.receipt(job, 1),
    )


def forbidden(scene: Scene) -> Iterator[tuple[str, str, str]]:
    """Who, what, and to which key."""
    for what in DEEDS:
        for role in ("researcher", "worker", "live-reader"):
            yield from ((role, what, key) for key in DEPLOYED)
        for role in ("deployer", "live-reader"):
            yield from ((role, what, key) for key in own_files(scene))
        yield from ((TEAM, what, key) for key in (*DEPLOYED, *not_the_teams(scene)))
    for what in DELETES:
        yield from (("deployer", what, key) for key in DEPLOYED)


def test_nobody_does_what_is_not_theirs(scene: Scene) -> None:
    admin = scene.by("admin")
    before = everything(admin, BUCKET)
    wrong = []
    for role, what, key in forbidden(scene):
        try:
            DEEDS[what](scene.by(role), BUCKET, key)
            wrong.append(f"{role} may {what} {key}")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
                wrong.append(f"{role}: {what} {key}: {error}")
    assert wrong == []
    assert everything(admin, BUCKET) == before
    assert admin.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []


def test_each_of_it_can_be_done_by_who_may(scene: Scene) -> None:
    admin = scene.by("admin")
    for what, deed in DEEDS.items():
        for key in (SLOT, WARRANT):
            admin.put_object(Bucket=TWIN, Key=at(key), Body=what.encode())
            deed(admin, TWIN, key)
            there = at(key) in everything(admin, TWIN)
            assert there == (what not in DELETES), what


class NoWaiting(SystemClock):
    """The real clock, whose sleep takes no time."""

    sleep = staticmethod(lambda seconds: None)


def test_a_researcher_with_the_deploy_key_deploys_nothing_and_is_told_why(scene: Scene) -> None:
    store = S3Store(scene.url, credentials=Credentials(None, *scene.sessions["researcher"]))
    words = r"^warrants/log/\d+\.json: AccessDenied: these credentials have no right to it"
    with pytest.raises(StoreSilent, match=words):
        deploy(store, scene.record, new_key(), "other", NoWaiting())
    assert isinstance(store.read(keys.deployment("other")), Missing)


def test_a_service_reads_what_it_loads_and_nothing_else(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_(monkeypatch, server.keys_of("live-reader"))
    how: Any = {"store": scene.url, "trusted_keys": [scene.public], "cache": tmp_path / "cache"}
    loaded = load_model(NAME, **how)
    assert loaded.record == scene.record.id and not loaded.stale()
    assert (loaded.path / "weights.bin").is_file()
    assert load_model(NAME, slot="shadow", **how).warrant == loaded.warrant + 1
    with pytest.raises((Refused, WrongCall), match="deployments/none/current"):
        load_model("none", **how)
    reader = scene.by("live-reader")
    with pytest.raises(ClientError, match="AccessDenied"):
        reader.list_objects_v2(Bucket=BUCKET, Prefix=f"{PREFIX}/")
    for key in set(own_files(scene)) - {own_files(scene)[2]}:
        with pytest.raises(ClientError, match="AccessDenied"):
            reader.get_object(Bucket=BUCKET, Key=at(key))


def test_a_service_is_refused_what_a_researcher_changed(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A researcher may write a model's files; a digest tells."""
    weights = own_files(scene)[2]
    researcher = scene.by("researcher")
    whole = researcher.get_object(Bucket=BUCKET, Key=at(weights))["Body"].read()
    researcher.put_object(Bucket=BUCKET, Key=at(weights), Body=b"X" + whole[1:])
    try:
        as_(monkeypatch, server.keys_of("live-reader"))
        with pytest.raises(Refused, match="are not those of the warrant"):
            load_model(NAME, store=scene.url, trusted_keys=[scene.public], cache=tmp_path / "cache")
    finally:
        researcher.put_object(Bucket=BUCKET, Key=at(weights), Body=whole)


# ------------------------------------------------------------------------ the step's credentials


def test_the_step_takes_a_profile_and_not_what_the_process_has(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, secret = server.keys_of("deployer")
    shared = tmp_path / "credentials"
    shared.write_text(f"[deploy]\naws_access_key_id = {access}\naws_secret_access_key = {secret}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    as_(monkeypatch, server.keys_of("live-reader"))
    settings = scene.settings.model_copy(
        update={"gates": scene.settings.gates.model_copy(update={"credentials": "profile:deploy"})}
    )
    store = open_deploy_store(settings)
    assert store.read(keys.job(scene.record.members[0].train.job))
    gone = settings.gates.model_copy(update={"credentials": "profile:gone"})
    with pytest.raises(UsageError, match=r"profile:gone\): .*gone"):
        open_deploy_store(settings.model_copy(update={"gates": gone}))


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "TENURE_DEPLOY_AWS_ACCESS_KEY_ID is not set"),
        ({"TENURE_DEPLOY_AWS_ACCESS_KEY_ID": "X"}, "SECRET_ACCESS_KEY is not set"),
        (
            {"TENURE_DEPLOY_AWS_ACCESS_KEY_ID": "X", "TENURE_DEPLOY_AWS_SECRET_ACCESS_KEY": "hush"},
            r"with \[gates\] credentials \(env:TENURE_DEPLOY\): .*access key is not known",
        ),
    ],
)
def test_credentials_that_are_none(scene: Scene, environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        open_deploy_store(scene.settings, environ=environ)
    assert "hush" not in str(caught.value)


def test_a_store_that_was_never_used_is_not_deployed_to(scene: Scene) -> None:
    other = scene.settings.model_copy(update={"store_url": scene.iam.url(f"{PREFIX}/other")})
    with pytest.raises(UsageError, match="was never used"):
        open_deploy_store(other, environ=scene.environ)


def test_credentials_are_in_no_repr() -> None:
    assert "hush" not in repr(Credentials(access_key="X", secret_key="hush", token="hush"))


# ---------------------------------------------------------------------------------------- teams


def test_a_team_enlists_in_its_own_name_and_in_no_other(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan claims; below whose prefix a record could be written is what counts."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    teams = f'[teams.{TEAM}]\ncredentials = "env:MINE"\n[teams.{RIVAL}]\ncredentials = "env:MINE"\n'
    (tmp_path / "tenure.toml").write_text(f'[store]\nurl = "{scene.url}"\n{teams}')
    settings = load_settings(start=tmp_path, environ={})
    access, secret = server.keys_of(TEAM)
    environ = {"MINE_AWS_ACCESS_KEY_ID": access, "MINE_AWS_SECRET_ACCESS_KEY": secret}
    as_(monkeypatch, server.keys_of(TEAM))
    store = open_settings_store(settings)  # was probed by somebody who may
    spec = JobSpec(
        experiment="toy", kind="train", stage="training", entry_point="tests.toy.experiment:Toy",
        config={"n": 1}, seed=2, generation=1, code="0" * 64, data="0" * 26, milestone_every=20,
    )  # fmt: skip
    ours, theirs = (desk_of(settings, store, team, environ) for team in (TEAM, RIVAL))
    with pytest.raises(StoreOutOfReach, match=rf"not submitted for team {RIVAL}: .*AccessDenied"):
        enlist(store, "p", "toy", [spec], {"team": RIVAL}, NoWaiting(), theirs)
    assert (
        list(store.list(f"{keys.PLANS}p/")) == []
    )  # refused before any dispatcher could learn of it
    enlist(store, "p", "toy", [spec], {"team": TEAM}, NoWaiting(), ours)
    assert [(each.team, each.jobs) for _, each in submissions(store)] == [(TEAM, (spec.id,))]
    with pytest.raises(UsageError, match=r"MINE_AWS_ACCESS_KEY_ID is not set"):
        desk_of(settings, store, TEAM, {})


def test_sessions_share_the_descriptions_of_services_and_nothing_else() -> None:
    """Each session of boto3 reads them again, and adds its own folder to where they are looked for."""
    key = Credentials(access_key="X", secret_key="hush")
    first, second = new_session(key), new_session(key)
    assert first is not second and first._session is not second._session
    ours, theirs = (one._session.get_component("data_loader") for one in (first, second))
    assert ours is theirs and len(ours.search_paths) == len(set(ours.search_paths))
