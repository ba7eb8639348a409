"""One plan over all five platforms at once: real SDKs, workers and S3 with STS; the services are emulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tenure.dispatch.ladder import Price, Rung, name_prefix
from tenure.dispatch.ledger import by_rung, read_ledger
from tenure.dispatch.loop import Dispatcher
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, Manifest, Pointer
from tenure_protocol.store.api import Store
from tenure_protocol.store.open import open_store
from tenure_worker import code
from tenure_worker.snapshot import read_manifest
from tests.emulators.accounts import ACCOUNTS, Account, opened
from tests.seaweed_iam import ROLE, SeaweedIam

CHECKOUT = Path(__file__).resolve().parents[2]
ENTRY = "tests.e2e.quick.experiment:Quick"
LEASE_S = 8.0  # so that a lost machine costs seconds
STEPS = 60
_PATIENCE_S = 400.0


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[list[Account]]:
    with ExitStack() as stack:
        made = [stack.enter_context(opened(kind, tmp_path / kind.kind)) for kind in ACCOUNTS]
        try:
            yield made
        finally:
            for account in made:
                print(account.kind, account.alive())
                for machine in account.machines.all:
                    print(machine.folder, machine.name, machine.exit_code, machine.output()[-1500:])


def enlisted(store: Store, account: Account, count: int, until: Path) -> list[JobSpec]:
    """Jobs that run on one platform if it has room, and on any other one if not; all last until a
    file is there."""
    digest, data = code.code_digest(ENTRY), code.data_digest(object())  # type: ignore[arg-type]
    kinds = [kind.kind for kind in ACCOUNTS]
    first = kinds.index(account.kind)
    specs = [
        JobSpec(
            account.kind, "train", "training", ENTRY,
            {"level": 1.0, "steps": STEPS, "pause_s": 0.1, "until": str(until)}, seed, 1, digest,
            data, 4,
            max_silence_s=LEASE_S,
        )
        for seed in range(count)
    ]  # fmt: skip
    rungs = kinds[first:] + kinds[:first]
    enlist(store, account.kind, account.kind, specs, {"rungs": rungs}, SYSTEM)
    return specs


def ladder(accounts: list[Account], machines: int) -> list[Rung]:
    made = []
    for account in accounts:
        config = account.config(machines=machines, claim_window_s=45.0, role=ROLE)
        runner = account.make(CHECKOUT, **config)
        made.append(
            Rung(
                account.kind, account.kind, runner, account.runner.capacity(config),
                account.card.lower().replace(" ", "-"), "spot", Price(account.currency, 3.6),
            )
        )  # fmt: skip
    return made


def line_of(store: Store, job: str, pointer: Pointer) -> list[Manifest]:
    line = [read_manifest(store, job, pointer)]
    while line[-1].parent is not None:
        line.append(read_manifest(store, job, line[-1].parent))
    return line[::-1]


def check_no_later_word(store: Store, job: str, attempts: int) -> None:
    """Nothing of an attempt was written after the next one's first word; S3's times are whole seconds."""
    ages: dict[int, list[float]] = {}
    for row in store.list(keys.attempts(job)):
        ages.setdefault(int(row.key.split("/")[3]), []).append(row.age_s)
    for number in range(1, attempts):
        if number in ages and number + 1 in ages:
            assert min(ages[number]) >= max(ages[number + 1]) - 2.0, (job, number)


def test_one_plan_over_all_five_with_every_kind_of_trouble(
    iam: SeaweedIam, accounts: list[Account], tmp_path: Path
) -> None:
    store, enough = open_store(iam.url("five")), tmp_path / "enough"
    wanted = [spec.id for account in accounts for spec in enlisted(store, account, 3, enough)]
    for account in accounts:
        account.ghost()  # the first create of each is done, and its answer lost
    dispatcher = Dispatcher(store, ladder(accounts, machines=2), SYSTEM)
    prefix = name_prefix(store.url)
    preempted: dict[str, str] = {}
    broke: set[str] = set()
    end_s = SYSTEM.monotonic_s() + _PATIENCE_S
    while not all(
        job in dispatcher.world.jobs and dispatcher.world.jobs[job].final for job in wanted
    ):
        assert SYSTEM.monotonic_s() < end_s, [str(v) for v in dispatcher.tick().decisions]
        dispatcher.tick()
        for account in accounts:
            trouble(account, dispatcher, preempted, broke)
        if len(preempted) == len(accounts):
            enough.touch()  # before that none ends, so that each platform has one to take away
        SYSTEM.sleep(0.2)
    for account in accounts:
        account.funds(True)
    assert dispatcher.drain(240.0)

    assert set(preempted) == broke == {account.kind for account in accounts}
    for job in wanted:
        w = dispatcher.world.jobs[job].witness
        assert w and w.phase == "finished" and w.exit_code == 0 and w.pointer, w
        line = line_of(store, job, w.pointer)
        assert [m.ordinal for m in line] == list(range(1, w.pointer.ordinal + 1))
        assert [m.step for m in line] == sorted({m.step for m in line}) and line[-1].step >= STEPS
        check_no_later_word(store, job, w.attempt)

    entries, troubles = read_ledger(store)
    assert not troubles
    costs = {cost.rung: cost for cost in by_rung(entries)}
    for account in accounts:
        assert account.alive() == [] and account.machines.all_end()
        assert all(name.startswith(prefix) for name in account.billed())
        cost = costs[account.kind]
        assert cost.currency == account.currency and cost.amount > 0
        assert cost.launches >= 2  # one of them was taken away
        noted = {entry.name for entry in entries if entry.rung == account.kind}
        assert noted == set(account.billed()), "every machine that was charged for, and no other"
    assert {entry.job for entry in entries} == set(wanted)
    assert not [p for p in psutil.process_iter(["environ"]) if _of(p, prefix)]


def trouble(
    account: Account, dispatcher: Dispatcher, preempted: dict[str, str], broke: set[str]
) -> None:
    """On each platform: one machine is taken away in its work, then the quota ends for a while."""
    if account.kind not in preempted:
        for bill in list(dispatcher.world.bills.values()):
            memory = dispatcher.world.jobs.get(bill.job)
            w = memory.witness if memory else None
            running = w and w.phase == "held" and w.pointer and w.holder
            if not running or bill.rung != account.kind or w.holder.launch != bill.launch:  # type: ignore[union-attr]
                continue
            name = bill.intent.name if bill.intent else ""
            if name in account.alive():
                account.preempt(name)
                preempted[account.kind] = name
                account.funds(False)
                broke.add(account.kind)
                return
    elif preempted[account.kind] not in account.alive():
        account.funds(True)


def _of(process: psutil.Process, prefix: str) -> bool:
    environ = process.info["environ"] or {}
    return str(environ.get("TENURE_NAME", "")).startswith(prefix)
