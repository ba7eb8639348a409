"""``tenure verify`` and ``tenure rollback``, of a store in a folder; each refusal has its sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gates.head import KnownHead
from gates.warrant import make_key
from tenure.settings import load_settings
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.directory import DirectoryStore
from tests.record_builders import research, retrain
from tests.tenure_command import complaint, tenure

SETTINGS = '[store]\nurl = "file:store"\n[gates]\ndeploy_key = "file:deploy.pem"\n'


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelRecord, ModelRecord]:
    """Two models that may be deployed, in the store of the working folder's settings."""
    monkeypatch.chdir(tmp_path)
    for name in ("TENURE_STORE", "TENURE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "tenure.toml").write_text(SETTINGS)
    make_key(tmp_path / "deploy.pem")
    store = DirectoryStore(tmp_path / "store")
    parent = research(store)
    return retrain(store, parent), retrain(store, parent, seeds=(31, 32, 33, 34, 35))


def test_deploy_shadow_live_and_back(
    records: tuple[ModelRecord, ModelRecord], tmp_path: Path
) -> None:
    first, second = records
    nothing = tenure("verify", "vol")
    assert (
        nothing.code == 1 and nothing.err == "tenure: vol: history: nothing is deployed as 'vol'\n"
    )
    assert tenure("deploy", first.id).code == 0
    shadow = tenure("deploy", second.id, "--shadow")
    assert shadow.code == 0 and "is in the shadow slot by warrant 2 (deployments/vol/shadow," in (
        shadow.out
    )
    assert f"record {second.id}, seed 31, is deployed" in tenure("deploy", second.id).out
    (tmp_path / "deploy.pem").unlink()  # what follows takes public keys alone
    before = (tmp_path / "store" / keys.deployment("vol")).read_bytes()
    verified = tenure("verify", "vol", "--json", "--bom", "bom.json")
    assert verified.code == 0 and verified.json["ok"] is True
    assert verified.json["slots"]["live"]["to"] == 3  # type: ignore[index, call-overload]
    checks = verified.json["checks"]
    assert isinstance(checks, list)
    assert [row["check"] for row in checks if row["slot"] != "shadow"] == [
        "log", "history", "warrant", "signature", "revocation", "slot", "record", "files",
    ]  # fmt: skip
    bom = json.loads((tmp_path / "bom.json").read_bytes())
    assert bom["metadata"]["component"]["version"] == f"{second.id}/31"
    assert (tmp_path / "store" / keys.deployment("vol")).read_bytes() == before
    assert (tmp_path / ".tenure" / "warrants.json").exists()
    back = tenure("rollback", "vol", "--by", "ann", "--reason", "it drifts")
    assert back.code == 0 and back.out == (
        f"vol: record {first.id}, seed 11, is live again by warrant 1, in place of warrant 3 "
        "(deployments/vol/history/00000003.json)\n"
    )
    table = tenure("verify", "vol")
    assert table.code == 0 and "vol is what was proved" in table.out
    history = tenure("verify", "vol", "--json").json["history"]
    assert isinstance(history, list)
    assert [
        (row["what"], row["by"], row["reason"]) for row in history if row["slot"] == "live"
    ] == [
        ("deploy", "tenure deploy", None),
        ("deploy", "tenure deploy", None),
        ("rollback", "ann", "it drifts"),
    ]


def test_each_refusal_is_a_sentence(
    records: tuple[ModelRecord, ModelRecord], tmp_path: Path
) -> None:
    assert tenure("deploy", records[0].id).code == 0
    assert "no other model was live" in complaint("rollback", "vol").err
    assert complaint("rollback", "vol", "--to", "7").code == 1
    for command in ("verify", "rollback"):
        assert complaint(command, "../vol").code == 2
    spoilt = tenure("verify", "vol", "--bom", "no/such/folder/bom.json")
    assert spoilt.code == 2 and "cannot be written" in spoilt.err
    store = tmp_path / "store"
    weights = next(store.glob("jobs/*/attempts/00001/milestones/20-1/weights.bin"))
    body = (store / keys.deployment("vol")).read_text()
    (store / keys.deployment("vol")).write_text("{}")
    for args in (("rollback", "vol"), ("deploy", records[1].id)):
        ended = complaint(*args)
        assert ended.code == 1 and f"{keys.deployment('vol')} is corrupt" in ended.err
    (store / keys.deployment("vol")).write_text(body)
    for each in store.glob("jobs/*/attempts/00001/milestones/20-1/weights.bin"):
        each.write_bytes(each.read_bytes()[::-1])  # one of them is the deployed one
    ended = tenure("verify", "vol", "--bom", "bom.json")
    assert ended.code == 1 and "files: the bytes of" in ended.err and weights.name in ended.err
    assert not (tmp_path / "bom.json").exists()
    (tmp_path / "deploy.pem.pub").unlink()
    assert "trusted_keys" in complaint("verify", "vol").err


def test_a_key_that_is_not_believed_signs_nothing(
    records: tuple[ModelRecord, ModelRecord], tmp_path: Path
) -> None:
    make_key(tmp_path / "own.pem")
    settings = SETTINGS.replace("deploy.pem", "own.pem")
    (tmp_path / "tenure.toml").write_text(f'{settings}trusted_keys = ["deploy.pem.pub"]\n')
    ended = complaint("deploy", records[0].id)
    assert ended.code == 2 and "is not among the trusted keys" in ended.err
    (tmp_path / "own.pem").chmod(0o644)
    assert "can be read by others (mode 0644)" in complaint("deploy", records[0].id).err
    assert not list((tmp_path / "store").glob("warrants/**/*.json"))


def test_a_store_that_ends_with_the_process_leaves_no_memory(
    records: tuple[ModelRecord, ModelRecord], tmp_path: Path
) -> None:
    """Its log begins anew each time, which is no cut."""
    settings = load_settings(tmp_path / "tenure.toml", environ={"TENURE_STORE": "memory:x"})
    assert KnownHead.of(settings) is None
    assert KnownHead.of(load_settings(tmp_path / "tenure.toml", environ={})) is not None


def test_who_deploys_and_rolls_back_uses_the_deployment_steps_own_credentials(
    records: tuple[ModelRecord, ModelRecord], tmp_path: Path
) -> None:
    """Named for a store that is no bucket they cannot be used, so nothing goes on without them."""
    first, second = records
    for record in (first, second):
        assert tenure("deploy", record.id).code == 0
    settings = tmp_path / "tenure.toml"
    text = settings.read_text()
    settings.write_text(text.replace("[gates]\n", '[gates]\ncredentials = "env:MINE"\n'))
    before = (tmp_path / "store" / keys.deployment("vol")).read_bytes()
    for command in (("deploy", first.id), ("rollback", "vol")):
        ended = tenure(*command)
        assert ended.code == 2
        assert "credentials of its own are for a store in a bucket" in ended.err
    assert (tmp_path / "store" / keys.deployment("vol")).read_bytes() == before
