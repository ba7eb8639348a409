"""The deployment step's own credentials: where they may be named, and who never sees them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tenure.dispatch.deploy_store import open_deploy_store
from tenure.dispatch.registry import open_settings_store, secret_variables
from tenure.errors import UsageError
from tenure.notify.post import NOTICES
from tenure.settings import Settings, load_settings
from tenure_protocol.lease import keys
from tenure_protocol.store import probe

POLICIES = Path(__file__).parents[2] / "docs" / "policies"


def settings(folder: Path, gates: str, url: str = "file:store") -> Settings:
    (folder / "tenure.toml").write_text(f'[store]\nurl = "{url}"\n[gates]\n{gates}\n')
    return load_settings(start=folder, environ={})


@pytest.mark.parametrize(
    "value", ["'AKIA123'", "'env:'", "'env:A-B'", "'file:x'", "'profile:'", "7"]
)
def test_credentials_say_where_they_are_and_are_never_shown(tmp_path: Path, value: str) -> None:
    with pytest.raises(
        UsageError, match=r"tenure.toml:4: gates.credentials: must say where"
    ) as caught:
        settings(tmp_path, f"credentials = {value}")
    assert "AKIA123" not in str(caught.value)


def test_without_any_the_step_uses_the_store_that_is_open(tmp_path: Path) -> None:
    plain = settings(tmp_path, "")
    store = open_settings_store(plain)
    assert open_deploy_store(plain, store) is store
    assert open_deploy_store(plain).url == store.url


def test_a_folder_has_no_credentials(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tenure.toml:4: .* for a store in a bucket"):
        open_deploy_store(settings(tmp_path, 'credentials = "env:MINE"'))


def test_no_worker_sees_them(tmp_path: Path) -> None:
    hidden, _ = secret_variables(settings(tmp_path, 'credentials = "env:MINE"'))
    assert hidden >= {
        "MINE_AWS_ACCESS_KEY_ID", "MINE_AWS_SECRET_ACCESS_KEY", "MINE_AWS_SESSION_TOKEN",
    }  # fmt: skip
    plain, _ = secret_variables(settings(tmp_path, 'credentials = "profile:deploy"'))
    assert not any("AWS_" in name for name in plain)


# ----------------------------------------------------------------------- docs/policies, as JSON

FILES = sorted(path.name for path in POLICIES.glob("*.json"))
IAM = ("researcher.json", "deployer.json", "live-reader.json")
PLACEHOLDERS = {"BUCKET", "PREFIX", "ACCOUNT", "PARENT_ACCESS_KEY_ID", "TEAM"}


@pytest.mark.parametrize("name", FILES)
def test_a_ready_policy_is_json_with_known_placeholders(name: str) -> None:
    text = (POLICIES / name).read_text()
    json.loads(text)
    assert set(re.findall(r"\b[A-Z_]{3,}\b", text)) <= PLACEHOLDERS
    assert f"policies/{name}" in (POLICIES.parent / "rights.md").read_text()


@pytest.mark.parametrize("name", IAM)
def test_a_policy_fits_where_it_is_put(name: str) -> None:
    value = json.loads((POLICIES / name).read_text())
    assert len(json.dumps(value, separators=(",", ":"))) < 2048  # MinIO's limit, AWS's for a user's
    assert value["Version"] == "2012-10-17"
    assert all(row.keys() == {"Sid", "Effect", "Action", "Resource"} for row in value["Statement"])


def resources(name: str, effect: str, action: str) -> set[str]:
    rows = json.loads((POLICIES / name).read_text())["Statement"]
    found: set[str] = set()
    for row in rows:
        if row["Effect"] == effect and action in row["Action"]:
            found |= {row["Resource"]} if isinstance(row["Resource"], str) else set(row["Resource"])
    return found


def test_what_the_deployer_writes_is_what_the_others_are_denied() -> None:
    mine = resources("deployer.json", "Allow", "s3:PutObject")
    assert mine == resources("researcher.json", "Deny", "s3:PutObject")
    assert mine == resources("aws-bucket.json", "Deny", "s3:Put*")
    prefix = "arn:aws:s3:::BUCKET/PREFIX/"
    for key in (keys.deployment("vol"), keys.warrant(1)):
        assert any(f"{prefix}{key}".startswith(row.removesuffix("*")) for row in mine)
    assert resources("live-reader.json", "Allow", "s3:PutObject") == set()


def test_on_r2_a_researcher_has_every_prefix_but_the_deployers() -> None:
    roots = set(re.findall(r"\"([a-z]+)/", Path(str(keys.__file__)).read_text()))
    roots |= {NOTICES.rstrip("/"), probe.KEY.partition("/")[0], "scratch", "dagster"}
    roots -= {"deployments", "warrants"}
    value = json.loads((POLICIES / "r2-researcher.json").read_text())
    assert set(value["prefixes"]) == {f"PREFIX/{root}/" for root in roots}
