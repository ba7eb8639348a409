"""What the page of a deployment shows, and what its check believes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from assets.chain import Chain
from assets.deployment import deploy as deploy_step
from assets.deployment import deployment_facts, warranted
from assets.facts import Facts, Table
from assets.materialize import materialized
from assets.stage import Context
from gates.deploy import current as gate_current
from gates.deploy import deploy
from gates.rollback import rollback
from gates.trust import Trust
from gates.warrant import DeployKey, make_key
from tenure.dispatch.loop import Dispatcher
from tenure.errors import UsageError
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import overwrite, research, retrain


@pytest.fixture
def key(tmp_path: Path) -> DeployKey:
    return make_key(tmp_path / "deploy.pem")


def rows(facts: Facts, name: str) -> list[dict[str, object]]:
    table = facts[name]
    assert isinstance(table, Table)
    return [dict(row) for row in table.rows]


def two(store: MemoryStore) -> tuple[ModelRecord, ModelRecord]:
    parent = research(store)
    return retrain(store, parent), retrain(store, parent, seeds=(31, 32, 33, 34, 35))


def test_the_page_shows_slots_history_key_and_gates(key: DeployKey) -> None:
    store, trust = MemoryStore(), Trust.only(key.public)
    first, second = two(store)
    deploy(store, first, key, "vol", by="ann")
    deploy(store, second, key, "vol", slot="shadow")
    deploy(store, second, key, "vol")
    rollback(store, "vol", trust, reason="it drifts")
    facts = deployment_facts(store, "vol", trust)
    shown = [
        (row["slot"], row["record"], row["warrant"], row["warranted"])
        for row in rows(facts, "slots")
    ]
    assert shown == [("live", first.id, 1, "yes"), ("shadow", second.id, 2, "yes")]
    moves = [(row["slot"], row["what"], row["from"], row["to"], row["by"], row["reason"])
             for row in rows(facts, "history")]  # fmt: skip
    assert moves == [
        ("live", "deploy", "-", "1", "ann", "-"),
        ("live", "deploy", "1", "3", "-", "-"),
        ("live", "rollback", "3", "1", "-", "it drifts"),
        ("shadow", "deploy", "-", "2", "-", "-"),
    ]
    assert facts["key"] == key.public.id
    gates = rows(facts, "gates")
    assert len(gates) == 14 and {row["verdict"] for row in gates} == {"PASS"}
    assert materialized(facts, ["x"]).metadata


def test_the_page_says_what_is_not_believed(key: DeployKey) -> None:
    store = MemoryStore()
    first, second = two(store)
    for record in (first, second):
        deploy(store, record, key, "vol")
    revoked = Trust((key.public,), {key.public.id: 1})
    (row,) = rows(deployment_facts(store, "vol", revoked), "slots")
    assert row["key"] == "-" and "revoked here" in str(row["warranted"])
    store.delete(keys.moved("vol", "live", 1))
    facts = deployment_facts(store, "vol", revoked)
    assert (
        "lacks deployments/vol/history" in str(facts["live_trouble"]) and rows(facts, "slots") == []
    )
    overwrite(store, keys.deployment("vol"), b"{}")
    assert "is corrupt" in str(deployment_facts(store, "vol", revoked)["live_trouble"])


def test_the_check_believes_trusted_keys_and_reads_no_private_one(key: DeployKey) -> None:
    store = MemoryStore()
    record, _ = two(store)
    chain = SimpleNamespace(plan=SimpleNamespace(name="vol"), second_generation=lambda: record)
    context = Context(store, cast(Chain, chain), cast(Dispatcher, None), SYSTEM)
    deploy(store, record, key, "vol")
    trust = Trust.only(key.public)
    assert warranted(replace(context, trust=lambda: trust)).verdict == "PASS"
    revoked = Trust((key.public,), {key.public.id: 0})
    said = warranted(replace(context, trust=lambda: revoked))
    assert said.verdict == "BLOCK" and "revoked here" in said.reason
    with pytest.raises(UsageError, match="told of no trusted key"):
        warranted(context)


def test_the_step_writes_into_the_store_that_it_alone_opens(key: DeployKey) -> None:
    """Which is the same store with other credentials; here another one, so that it shows."""
    store, own = MemoryStore(), MemoryStore()
    record, _ = two(store)
    two(own)
    chain = SimpleNamespace(plan=SimpleNamespace(name="vol"), second_generation=lambda: record)
    dispatcher = cast(Dispatcher, SimpleNamespace(notifier=None))
    trust = Trust.only(key.public)
    context = Context(
        store,
        cast(Chain, chain),
        dispatcher,
        SYSTEM,
        deploy_key=lambda: key,
        trust=lambda: trust,
        deploy_store=lambda: own,
    )
    done = deploy_step(context)
    assert gate_current(own, "vol") == done and gate_current(store, "vol") is None
