"""Deployments and rollbacks that race on real stores: each pair stands at the line before either writes.

A racer has read the slot, decided, and signed; then all wait for each other, so that every conditional
write names the same state. What the stores make of it must be one line of moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from gates.deploy import deploy
from gates.rollback import rollback
from gates.slots import Deployment, current, history
from gates.trust import Trust
from gates.verification import verify_deployment
from gates.warrant import DeployKey, make_key, read_log
from tenure.errors import Blocked
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.api import Outcome, Store
from tenure_protocol.store.open import open_store
from tests.record_builders import research, retrain
from tests.seaweed import Seaweed

WAIT_S = 240.0
Act = Callable[[Store], Deployment]
SEEDS = ((11, 12, 13, 14, 15), (31, 32, 33, 34, 35), (41, 42, 43, 44, 45), (51, 52, 53, 54, 55))


@pytest.fixture(scope="module", params=["directory", "s3"])
def url(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    seaweed: Callable[[], Seaweed],
) -> str:
    if request.param == "directory":
        return f"file:{tmp_path_factory.mktemp('races') / 'store'}"
    return seaweed().url("deployment-races")


@pytest.fixture(scope="module")
def records(url: str) -> list[ModelRecord]:
    """Models that may be deployed, in the store."""
    store = open_store(url)
    parent = research(store)
    return [retrain(store, parent, seeds=seeds) for seeds in SEEDS]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeployKey:
    return make_key(tmp_path_factory.mktemp("keys") / "deploy.pem")


def at_the_line(url: str, name: str, line: threading.Barrier) -> Store:
    """A store of one racer, whose first write of the slot waits for the first of all others."""
    store = open_store(url)
    slot, waits = keys.deployment(name), [True]

    def waiting(write: Callable[..., Outcome]) -> Callable[..., Outcome]:
        def go(key: str, *args: object) -> Outcome:
            if key == slot and waits:
                waits.clear()
                line.wait(WAIT_S)
            return write(key, *args)

        return go

    store.create = waiting(store.create)  # type: ignore[method-assign]
    store.replace = waiting(store.replace)  # type: ignore[method-assign]
    return store


def race(url: str, name: str, acts: Sequence[Act]) -> list[Deployment | str]:
    """What came of each: what it made live, or the sentence of why it did not."""
    line = threading.Barrier(len(acts))

    def run(act: Act) -> Deployment | str:
        try:
            return act(at_the_line(url, name, line))
        except Blocked as error:
            return str(error)

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(run, acts))


@pytest.mark.parametrize("live_before", [False, True])
def test_of_deployments_that_race_the_latest_warrant_is_live(
    url: str, records: list[ModelRecord], key: DeployKey, live_before: bool
) -> None:
    name, store = f"deploys-{live_before}".lower(), open_store(url)
    if live_before:
        deploy(store, records[3], key, name)
    before = len(read_log(store))
    ended = race(
        url,
        name,
        [lambda its, record=record: deploy(its, record, key, name) for record in records[:3]],
    )
    newest = before + 3
    assert len(read_log(store)) == newest
    live = current(store, name)
    assert live is not None and live.warrant == newest
    states = history(store, name)
    for outcome in ended:
        if isinstance(outcome, str):
            assert "was deployed as" in outcome and "is logged and not current" in outcome
        else:
            assert outcome == states[outcome.move - 1]
    assert sum(isinstance(outcome, Deployment) for outcome in ended) == len(states) - live_before
    assert verify_deployment(store, name, Trust.only(key.public)).ok


def test_of_a_rollback_and_a_deployment_exactly_one_is_done(
    url: str, records: list[ModelRecord], key: DeployKey
) -> None:
    trust, store = Trust.only(key.public), open_store(url)
    for count in range(2):
        name = f"both-{count}"
        for record in records[:2]:
            deploy(store, record, key, name)
        acts: list[Act] = [
            lambda its, name=name: rollback(its, name, trust),
            lambda its, name=name: deploy(its, records[2], key, name),
        ]
        back, forth = race(url, name, acts)
        live = current(store, name)
        assert live is not None and live.move == 3
        if isinstance(back, Deployment):
            assert isinstance(forth, str) and "was rolled back meanwhile (move 3;" in forth
            assert live == back and live.record == records[0].id
        else:
            assert live == forth and live.record == records[2].id
            assert "(move 3) meanwhile, so nothing was rolled back" in back
        assert verify_deployment(store, name, trust).ok


def test_of_rollbacks_that_race_exactly_one_is_done(
    url: str, records: list[ModelRecord], key: DeployKey
) -> None:
    trust, store, name = Trust.only(key.public), open_store(url), "backs"
    for record in records[:3]:
        deploy(store, record, key, name)
    ended = race(url, name, [lambda its: rollback(its, name, trust)] * 3)
    (done,) = [outcome for outcome in ended if isinstance(outcome, Deployment)]
    assert current(store, name) == done and done.record == records[1].id
    sentences = [outcome for outcome in ended if isinstance(outcome, str)]
    assert len(sentences) == 2 and all("nothing was rolled back" in one for one in sentences)
    assert [state.what for state in history(store, name)] == ["deploy"] * 3 + ["rollback"]
