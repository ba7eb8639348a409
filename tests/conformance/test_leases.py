"""Every store backend against every check of tenure.testing.lease_checks; every guard's mutant.

A further backend is one more line of BACKENDS.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import pytest

from tenure.testing import lease_checks
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tenure_protocol.store.s3 import S3Store
from tests.conformance.lease_mutants import MUTANTS
from tests.conformance.test_stores import Backend, Blind, Ground
from tests.faulty_store import FaultyStore
from tests.hostile_proxy import HostileProxy, Kind, Request, Weather
from tests.seaweed import Seaweed
from tests.sim.mutants import Mutant

CHECKS = lease_checks.all_checks()
Server = Callable[[], Seaweed]
Wire = Callable[[], HostileProxy]
_OPENED: dict[str, S3Store] = {}


def on_s3(endpoint: str, url: str) -> Store:
    """A fresh prefix of a bucket. Its clients are shared: they take a quarter of a second each."""
    if endpoint not in _OPENED:
        _OPENED[endpoint] = S3Store(url)
    fresh = copy.copy(_OPENED[endpoint])
    fresh._prefix = f"leases/{SYSTEM.nonce()}/"
    return fresh


def lossy() -> Store:
    """Memory that answers every second write of a witness well, and now and then no read."""
    store = FaultyStore(SYSTEM)
    faults = cycle(["ok", "lost_answer", "ok", "ghost", "ok", "lost_request", "ok", "conflict"])
    store.fail_writes(islice(faults, 2000))
    store.reads.extend(islice(cycle(["ok"] * 30 + ["silent"]), 5000))
    return store


#: What becomes of one conditional write in three on the way to SeaweedFS and back, and of one
#: read or listing of witnesses in five. The rest of the traffic is retried by boto3 anyway.
WRITES: Mapping[Kind, float] = {
    "drop": 0.04, "lose_answer": 0.04, "cut_head": 0.04, "twice_second": 0.04, "error_500": 0.04,
    "applied_500": 0.04, "html": 0.04, "late1": 0.04,
}  # fmt: skip
READS: Mapping[Kind, float] = dict.fromkeys(("drop", "lose_answer", "cut_body", "error_503"), 0.05)


def hostile_wire(ground: Ground) -> Store:
    """SeaweedFS behind a wire that is bad to witnesses, from the same seed for every check."""
    proxy = ground.hostile()
    store = on_s3(proxy.endpoint, ground.seaweed().url("", proxy.endpoint))
    writes, reads = Weather(5, WRITES), Weather(5, READS)

    def weather(request: Request) -> Kind:
        if request.conditional:
            return writes(request)
        return reads(request) if "witness" in request.target else "pass"

    proxy.weather = weather
    return store


IGNORES = "a write on an old ETag is applied"
BACKENDS = {
    "directory": Backend(lambda ground: DirectoryStore(ground.folder / SYSTEM.nonce())),
    "memory": Backend(lambda _: MemoryStore()),
    "lossy": Backend(lambda _: lossy()),
    "seaweedfs": Backend(lambda g: on_s3(g.seaweed().endpoint, g.seaweed().url())),
    "hostile wire": Backend(hostile_wire),
    "blind": Backend(
        lambda _: Blind(),
        cannot=dict.fromkeys(
            (
                "check_an_announced_launch_is_claimed_once",
                "check_a_job_held_back_is_not_claimed",
                "check_a_late_renewal_overwrites_nothing",
                "check_a_request_is_adopted",
                "check_a_pointer_moves_along_its_parent",
                "check_a_move_without_an_answer_is_stored_once",
                "check_a_verdict_is_what_is_stored",
                "check_a_revoked_holder_never_writes_again",
                "check_a_successor_is_never_overwritten",
                "check_the_end_is_final",
                "check_sixteen_dispatchers_make_one_launch",
                "check_sixteen_local_claims_give_one_holder",
                "check_a_dead_holder_is_succeeded",
                "check_a_worker_stops_on_proof",
                "check_a_deposed_workers_snapshot_changes_nothing",
            ),
            IGNORES,
        ),
    ),
}


#: What a wire breaks first.
ON_THE_WIRE = (
    "check_a_move_without_an_answer_is_stored_once",
    "check_a_verdict_is_what_is_stored",
    "check_any_unsettled_write_is_recognised",
)
IN_REAL_TIME = ("check_a_dead_holder_is_succeeded",)


def _case(backend: str, check: str) -> object:
    """For every day: all but what takes seconds and is news of a memory store or of a wire alone."""
    rare = {
        "hostile wire": check not in ON_THE_WIRE,
        "lossy": check in IN_REAL_TIME,
        "memory": check in IN_REAL_TIME,
    }
    marks = [pytest.mark.soak] if rare.get(backend) else []
    return pytest.param(backend, check, marks=marks)


@pytest.fixture
def ground(tmp_path: Path, seaweed: Server, hostile: Wire) -> Ground:
    return Ground(tmp_path, seaweed, hostile)


@pytest.mark.parametrize(
    ("backend", "check"), [_case(backend, check) for backend in BACKENDS for check in CHECKS]
)
def test_lease(backend: str, check: str, ground: Ground) -> None:
    under_test = BACKENDS[backend]
    expected = pytest.raises(AssertionError) if check in under_test.cannot else nullcontext()
    with expected:
        CHECKS[check](partial(under_test.fresh, ground))


def test_exceptions_name_checks_that_exist() -> None:
    for backend in BACKENDS.values():
        assert set(backend.cannot) <= set(CHECKS)
    assert set(ON_THE_WIRE + IN_REAL_TIME) <= set(CHECKS)


# ---------------------------------------------------------------------------------- mutants


@pytest.mark.parametrize(
    ("mutant", "check"),
    [(mutant, check) for mutant in MUTANTS for check in mutant.caught_by],
    ids=lambda it: it.name if isinstance(it, Mutant) else it,
)
def test_a_check_notices_the_missing_guard(
    mutant: Mutant, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant.remove(monkeypatch)
    with pytest.raises(AssertionError):
        CHECKS[check](MemoryStore)


def test_every_check_notices_some_mutant() -> None:
    assert set(CHECKS) == {check for mutant in MUTANTS for check in mutant.caught_by}
