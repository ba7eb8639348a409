"""A dispatcher dies before each of its writes in turn, and nothing is lost or done twice.

One history in which everything happens that a dispatcher does: three jobs are launched, one machine is
slow, its job is asked to yield, yields and goes on elsewhere; all finish, bills are closed, costs and
observations are kept. It is played once undisturbed. Then it is played again for every write and
every call of the platform in it: the dispatcher is gone just before that one, which is just after the
one before. Reads and listings between two of these change nothing, so this is every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import ClassVar

import pytest

from tenure.dispatch import billing, ledger
from tenure.dispatch.contract import ALL_KINDS, Capacity, Closed, Job, Receipt, Settlement, Site
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.plan.enlist import enlist
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Confirmed, Lease, acquire, read_witness
from tenure_protocol.lease.machine import Finish, Hold, Move, Release
from tenure_protocol.records import FINAL, JobSpec, Manifest, Observations, load
from tenure_protocol.store.api import Found, Outcome, Written
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock

FLOPS = 1e12  # of a step
SILENCE_S = 36_000.0  # nobody is ever written off here: what is lost is a dispatcher's fault
EVERY_S = 20.0
AWAY_S = 100.0  # from the end of a dispatcher to the beginning of the next
STEPS = 200  # of an attempt until its job is finished
ROUNDS = 200
PRICE_USD = 1.0
RUNGS = ("spot", "demand")


class Killed(BaseException):
    """What SIGKILL does to whoever makes a call."""


@dataclass
class Doom:
    """Counts the calls that change something; the dispatcher dies before the one with this number."""

    number: int | None = None
    calls: list[str] = field(default_factory=list)

    def change(self, what: str) -> None:
        """A call is about to be made."""
        self.calls.append(what)
        if len(self.calls) - 1 == self.number:
            raise Killed


class Mortal(MemoryStore):
    """The way of a doomed dispatcher to the store of everybody."""

    def __init__(self, store: MemoryStore, clock: FakeClock, doom: Doom) -> None:
        super().__init__(clock)
        self._objects = store._objects
        self._doom = doom

    def create(self, key: str, body: bytes) -> Outcome:
        self._doom.change(f"create {key}")
        return super().create(key, body)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        self._doom.change(f"replace {key}")
        return super().replace(key, body, etag)

    def delete(self, key: str) -> None:
        self._doom.change(f"delete {key}")
        super().delete(key)


@dataclass
class Machine:
    """What the platform runs under one name."""

    job: str
    launch: int
    rung: str
    at_s: float
    ended_s: float | None = None
    worker: Lease | None = None
    steps: int = 0
    busy_s: float = 0.0


class Account:
    """The platform of all dispatchers."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.machines: dict[str, Machine] = {}
        self.asked_for: list[tuple[str, int]] = []


class Desk:
    """A runner of one dispatcher for one rung of the account."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        raise AssertionError("it is made without a configuration")

    account: Account
    doom: Doom
    rung: str

    @classmethod
    def of(cls, account: Account, rung: str, doom: Doom) -> Desk:
        made = object.__new__(cls)
        made.account, made.rung, made.doom = account, rung, doom
        return made

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, 3, 60.0)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        (job,) = jobs
        self.doom.change(f"launch {job.name}")
        self.account.asked_for.append((job.job_id, job.launch))
        now_s = self.account.clock.now_s
        self.account.machines[job.name] = Machine(job.job_id, job.launch, self.rung, now_s)
        return Receipt((job.job_id,), self.rung, job.name, "t4", 0.0, {"name": job.name})

    def release(self, receipt: Receipt) -> Settlement:
        self.doom.change(f"release {receipt.name}")
        machine = self.account.machines.get(receipt.name)
        if machine is None:
            return Closed("nothing runs under its name")
        if machine.ended_s is None:
            machine.ended_s = self.account.clock.now_s
        return Closed("it is gone")


class Play:
    """The whole history, with one dispatcher, or with another one beside it that lives."""

    def __init__(self, clock: FakeClock, doom: Doom, beside: bool) -> None:
        self.clock = clock
        self.doom = doom
        self.account = Account(clock)
        self.store = MemoryStore(clock)
        self.specs = [
            JobSpec("e", "train", "training", "m:C", {"lr": 1}, seed, 1, "c", "d", 100,
                    max_silence_s=SILENCE_S)
            for seed in range(3)
        ]  # fmt: skip
        enlist(self.store, "p", "e", self.specs, {"rungs": list(RUNGS)}, clock)
        self.yields = Counter[str]()
        self.beside = self.dispatcher(Doom()) if beside else None

    def dispatcher(self, doom: Doom) -> Dispatcher:
        capacity = Desk.capacity({})
        rungs = [
            Rung(name, name, Desk.of(self.account, name, doom), capacity, "t4", name, price)
            for name, price in zip(RUNGS, map(partial(Price, "usd"), (PRICE_USD, 1.5)), strict=True)
        ]
        return Dispatcher(Mortal(self.store, self.clock, doom), rungs, self.clock)

    def to_the_end(self) -> None:
        """Rounds of workers and dispatchers, until every job is final and every bill closed."""
        dispatcher: Dispatcher | None = self.dispatcher(self.doom)
        back_s = 0.0
        for _ in range(ROUNDS):
            for machine in list(self.account.machines.values()):
                self.work(machine)
            if dispatcher is None and self.clock.now_s >= back_s:
                dispatcher = self.dispatcher(Doom())
            try:
                if dispatcher:
                    dispatcher.tick()
            except Killed:
                dispatcher, back_s = None, self.clock.now_s + AWAY_S
            if self.beside:
                self.beside.tick()
            if dispatcher and self.over():
                try:
                    dispatcher.drain(for_s=1.0)  # and writes what it has observed
                except Killed:
                    dispatcher, back_s = None, self.clock.now_s
                else:
                    return
            self.clock.sleep(EVERY_S)
        raise AssertionError(f"it did not end: {sorted(self.phases().items())}")

    def phases(self) -> dict[str, str]:
        found = {}
        for spec in self.specs:
            witness = read_witness(self.store, keys.witness_of(spec)).witness
            found[spec.id] = witness.phase if witness else "absent"
        return found

    def over(self) -> bool:
        final = all(phase in FINAL for phase in self.phases().values())
        return final and not list(self.store.list(keys.UNSETTLED))

    # ------------------------------------------------------------------------------ workers

    def work(self, machine: Machine) -> None:
        """One round of the worker of a machine, if it has one that still has something to do."""
        if machine.ended_s is not None:
            return
        spec = next(spec for spec in self.specs if spec.id == machine.job)
        if machine.worker is None:
            key = keys.witness_of(spec)
            got = acquire(self.store, key, spec.id, machine.launch, SILENCE_S, 1.0, self.clock)
            if isinstance(got, Lease):
                machine.worker = got
            return
        lease = machine.worker
        if lease.witness.phase != "held":
            return
        if lease.witness.asked:
            ended = Release(lease.holder, lease.attempt, 10, "asked to yield")
            assert isinstance(lease.write(ended), Confirmed)
            self.yields[spec.id] += 1
        elif machine.steps >= STEPS:
            done = Finish(lease.holder, lease.attempt, 0, "finished", {})
            assert isinstance(lease.write(done), Confirmed)
        else:
            self.train(spec, machine, lease)

    def train(self, spec: JobSpec, machine: Machine, lease: Lease) -> None:
        """A milestone. The first machine of the first job does a third of what the others do."""
        slow = spec is self.specs[0] and machine.launch == self.first(spec.id)
        machine.steps += 5 if slow else 15
        machine.busy_s += EVERY_S
        old = lease.witness.pointer
        steps = machine.steps
        manifest = Manifest(
            spec.id, lease.attempt, steps + 1000 * lease.attempt, 1, old.ordinal + 1 if old else 1,
            {}, {"card": "t4"}, old, EVERY_S / 15, machine.busy_s, 1000 * lease.attempt, FLOPS,
            "fp16", 40_000,
        )  # fmt: skip
        body = encode(manifest)
        pointer = manifest.pointer(body)
        assert isinstance(self.store.create(keys.manifest(spec.id, pointer), body), Written)
        hold = Hold(lease.holder, lease.attempt, SILENCE_S, None, Move(pointer, old))
        assert isinstance(lease.write(hold), Confirmed), "whoever holds it is left alone"

    def first(self, job: str) -> int:
        return min(m.launch for m in self.account.machines.values() if m.job == job)

    # -------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """What a dispatcher's death must not change."""
        asked_for = self.account.asked_for
        assert len(asked_for) == len(set(asked_for)), f"launched twice: {asked_for}"
        for spec in self.specs:
            witness = read_witness(self.store, keys.witness_of(spec)).witness
            assert witness and witness.phase == "finished", witness
            assert witness.attempt == self.yields[spec.id] + 1, "no attempt ended but by a request"
            assert self.yields[spec.id] <= 1, "a job moves once at most"
        for name, machine in self.account.machines.items():
            assert machine.ended_s is not None, f"{name} still runs"
        self.check_costs()
        self.check_observations()

    def check_costs(self) -> None:
        """Each machine that was ever claimed is paid for once, from its launch to its end or later."""
        entries, troubles = ledger.read_ledger(self.store)
        assert not troubles, troubles
        paid_s = {(entry.job, entry.launch): entry.paid_s for entry in entries}
        for machine in self.account.machines.values():
            assert machine.ended_s is not None
            lived_s = machine.ended_s - machine.at_s
            cost_s = paid_s.get((machine.job, machine.launch))
            assert cost_s is not None, f"launch {machine.launch} of {machine.job} has no cost"
            assert lived_s - 1e-6 <= cost_s <= lived_s + AWAY_S + EVERY_S, (lived_s, cost_s)

    def check_observations(self) -> None:
        """They can be read, and no launch shows more than it did."""
        did = {(m.job, m.launch): m.steps * FLOPS for m in self.account.machines.values()}
        rows = []
        for entry in self.store.list(keys.OBSERVATIONS):
            found = self.store.read(entry.key)
            assert isinstance(found, Found)
            rows += load(Observations, found.body, entry.key).rows
        assert {row.job for row in rows} == {spec.id for spec in self.specs}
        assert all(row.done <= did.get((row.job, row.launch), 0.0) for row in rows)


def play(number: int | None, beside: bool = False) -> Doom:
    """The history with the end of a dispatcher before its call of that number."""
    with FakeClock() as clock:
        doom = Doom(number)
        history = Play(clock, doom, beside)
        history.to_the_end()
        try:
            history.check()
        except AssertionError as error:
            moment = doom.calls[number] if number is not None else "nothing"
            raise AssertionError(f"killed before {moment}: {error}") from error
        return doom


@cache
def calls(beside: bool) -> tuple[str, ...]:
    """Every call of the doomed dispatcher that changes something, where it is let live."""
    return tuple(play(None, beside).calls)


def moments(beside: bool) -> Iterator[int]:
    """The number of each; and of none of those that would come after the end."""
    return iter(range(len(calls(beside))))


def test_the_history_has_every_moment_that_matters() -> None:
    made = calls(beside=False)
    for beginning in (
        "replace witness/", "create witness/", "create unsettled/", "launch ", "release ",
        "create ledger/", "delete unsettled/", "create observations/", "replace observations/",
    ):  # fmt: skip
        assert any(call.startswith(beginning) for call in made), beginning
    for kind in ("intent", "receipt", "settlement-1"):
        assert any(call.endswith(f"/{kind}.json") for call in made), kind
    order = [call.split("/")[0] for call in made]
    asked = order.index(
        "replace witness"
    )  # the first replace of a witness: all launches create one
    assert "launch" in "".join(order[asked:]), "between the request and the next launch"
    entry = order.index("create ledger")
    assert made[entry - 1].endswith("/settlement-1.json") and order[entry + 1] == "delete unsettled"


SHARES = 4


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_dispatcher_killed_at_any_moment_costs_nothing(beside: bool, share: int) -> None:
    for number in list(moments(beside))[share::SHARES]:
        play(number, beside)


# ------------------------------------------------------------------------------------- mutants


def _caught(play_on: Callable[[int], object]) -> str:
    for number in moments(False):
        try:
            play_on(number)
        except AssertionError as error:
            return str(error)
    raise AssertionError("no moment notices it")


def test_a_cost_that_is_noted_after_the_bill_is_gone_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls(False)
    record, note = billing.Billing._record, billing.Billing._note_cost

    def late(self: billing.Billing, bill: object, settlement: object, reason: str) -> None:
        record(self, bill, settlement, reason)  # type: ignore[arg-type]
        note(self, bill, settlement)  # type: ignore[arg-type]

    monkeypatch.setattr(billing.Billing, "_note_cost", lambda *_: None)
    monkeypatch.setattr(billing.Billing, "_record", late)
    assert "has no cost" in _caught(play)


def test_a_bill_that_is_opened_after_the_launch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls(False)
    real = Mortal.create

    def create(self: Mortal, key: str, body: bytes) -> Outcome:
        job, _, number = key.removeprefix(keys.UNSETTLED).rpartition("-")
        if key.startswith(keys.UNSETTLED) and not isinstance(
            self.read(keys.receipt(job, int(number))), Found
        ):
            return Written("")
        return real(self, key, body)

    monkeypatch.setattr(Mortal, "create", create)
    assert "still runs" in _caught(play) or "has no cost" in _caught(play)


def test_the_history_moves_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the request there is one launch less."""
    calls(False)
    monkeypatch.setattr(Dispatcher, "_move", lambda self, action: None)
    assert sum(call.startswith("launch ") for call in calls(False)) == 4
    assert sum(call.startswith("launch ") for call in play(None).calls) == 3
