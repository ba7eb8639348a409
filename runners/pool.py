"""A pool of own machines: a launch is offered to one of them, whose agent admits or refuses it at once.

The dispatcher gives each machine a quota that expires; within it the machine's own agent
(:mod:`runners.pool_agent`) decides. What the dispatcher knows of the loads is as old as the agents' last
word, so it looks at two machines drawn by chance, counts what it has just placed itself, and goes on to
another one when it is refused (:mod:`tenure.queue.bursts`). That nobody has room is no failure of a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runners.own_process import OwnProcessConfig
from runners.pool_mail import Answer, End, MachineLoad, MachineQuota, Mail, Order
from tenure.dispatch.contract import (
    ALL_KINDS,
    Capacity,
    Closed,
    Job,
    JobKind,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Settlement,
    Site,
    Unreachable,
)
from tenure.queue.bursts import Load, View, send
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease.keys import part
from tenure_protocol.store.api import StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store

_ASK_EVERY_S = 0.1
#: An agent tells its load so often; one that has been silent for longer is not asked.
TELLS_EVERY_S = 5.0
SILENT_S = 6 * TELLS_EVERY_S


class MachineConfig(BaseModel):
    """``machines.NAME`` of a pool: what may be given away there; 0 cores or GB: not counted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    cards: int = Field(1, ge=1, le=1024)
    cpus: float = Field(0.0, ge=0)
    memory_gb: float = Field(0.0, ge=0)


class PoolConfig(BaseModel):
    """Further keys of a ``[runners.<name>]`` section with ``kind = "pool"``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    machines: dict[str, MachineConfig] = Field(min_length=1)
    cpus: float = Field(0.0, ge=0)  # that a job takes for each of its cards
    memory_gb: float = Field(0.0, ge=0)  # the same
    card: str = ""  # the official name of their cards, where it is to be promised
    choices: int = Field(2, ge=1, le=1024)  # machines that are looked at for a launch
    answer_s: float = Field(5.0, gt=0)  # that one may take to answer
    quota_s: float = Field(600.0, ge=10)  # that a quota lasts; it is given anew at a launch
    yield_s: float = Field(120.0, ge=0)  # for a last milestone, where an agent takes a machine back
    claim_window_s: float = Field(60.0, gt=0)
    worker: OwnProcessConfig = OwnProcessConfig()  # how an agent runs jobs: keys of own_process


class PoolRunner:
    """Orders through the store; the agents do the rest."""

    JOB_KINDS: ClassVar[frozenset[JobKind]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self._name = name
        self._config = checked(config)
        self._clock: Clock = site.clock
        self._url = site.store
        self._opened: Mail | None = None
        self._by = f"runner {name} {site.clock.nonce()}"
        self._draw = Random(site.clock.nonce())
        self._view = View()

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        """As many launches as there are cards; the largest machine bounds one job."""
        pool = checked(config)
        cards = [machine.cards for machine in pool.machines.values()]
        return Capacity(1, sum(cards), pool.claim_window_s, max(cards), pool.card)

    # ---------------------------------------------------------------------------------- launch

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        """Offer the job to machines until one admits it. Raises NoSlots when every one has refused."""
        (job,) = jobs
        with _silence(sent=True):
            mail = self._mail()
            where = self._machine_of(mail, job.name)
            if where is None or not self._stands(mail, where, job.name):
                where = self._offered(mail, job)
        return self._receipt(job, where)

    def _receipt(self, job: Job, machine: str) -> Receipt:
        handle = {"machine": machine, "host": machine}
        card = self._config.card or "cpu"
        return Receipt((job.job_id,), self._name, job.name, card, self._clock.wall_s(), handle)

    def _stands(self, mail: Mail, machine: str, name: str) -> bool:
        """Whether an earlier try under this name was admitted; it is waited for, or withdrawn."""
        answer = self._answer(mail, machine, name)
        if answer.verdict == "admitted":
            return True
        raise NoSlots(f"{machine}: {answer.reason}")  # a name is never ordered twice

    def _offered(self, mail: Mail, job: Job) -> str:
        self._look(mail)
        refused: list[str] = []

        def admits(machine: str, _: float) -> bool:
            self._give_quota(mail, machine)
            if not mail.write("orders", machine, job.name, self._order(job)):
                raise ProtocolError(f"another order is called {job.name} on {machine}")
            answer = self._answer(mail, machine, job.name)
            if answer.verdict != "admitted":
                refused.append(f"{machine}: {answer.reason}")
            return answer.verdict == "admitted"

        now_s = self._clock.monotonic_s()
        sent = send(self._view, job.cards, self._config.choices, self._draw, now_s, admits)
        if sent.machine is None:
            raise NoSlots("; ".join(refused) or f"no agent of pool {self._name} has shown itself")
        return sent.machine

    def _order(self, job: Job) -> Order:
        cpus, memory_gb = self._config.cpus * job.cards, self._config.memory_gb * job.cards
        return Order(
            job.name, job.job_id, job.kind, job.launch, job.cards, cpus, memory_gb, job.window_s,
            job.wall_s,
        )  # fmt: skip

    def _answer(self, mail: Mail, machine: str, name: str) -> Answer:
        """What the machine says, or that it said nothing in time, which nobody can answer any more."""
        until_s = self._clock.monotonic_s() + self._config.answer_s
        while (found := mail.read("answers", machine, name, Answer)) is None:
            if self._clock.monotonic_s() >= until_s:
                words = f"no answer in {self._config.answer_s:g} s"
                mail.write("answers", machine, name, Answer("withdrawn", words, self._by))
                continue  # what stands there now is the answer, whoever wrote it
            self._clock.sleep(_ASK_EVERY_S)
        return found

    def _look(self, mail: Mail) -> None:
        """The loads as the agents last told them; of those that still tell."""
        loads: dict[str, Load] = {}
        oldest_s = 0.0
        for machine in self._config.machines:
            found = mail.told("load", machine, "", MachineLoad)
            if found is not None and found[2] <= SILENT_S:
                told, _, age_s = found
                of_cards = told.of_cards or self._config.machines[machine].cards
                loads[machine] = Load(told.cards, of_cards)
                oldest_s = max(oldest_s, age_s)
        self._view.gathered(loads, self._clock.monotonic_s() - oldest_s)
        self._view.full.clear()  # room may have come since; asking costs an order

    def _give_quota(self, mail: Mail, machine: str) -> None:
        """Before a third of it has passed nothing is written; another dispatcher's will do as well."""
        given = self._config.machines[machine]
        found = mail.told("quota", machine, "", MachineQuota)
        fresh = MachineQuota(
            given.cards, given.cpus, given.memory_gb, self._config.quota_s, self._clock.nonce()
        )
        if found is not None:
            old, etag, age_s = found
            same = (old.cards, old.cpus, old.memory_gb) == (
                fresh.cards, fresh.cpus, fresh.memory_gb,
            )  # fmt: skip
            if same and age_s < old.lasts_s / 3:
                return
            mail.put("quota", machine, fresh, etag)
        else:
            mail.put("quota", machine, fresh, None)

    # --------------------------------------------------------------------------------- release

    def release(self, receipt: Receipt) -> Settlement:
        """Order the end; Closed once the agent has written that nothing is left."""
        try:
            with _silence(sent=False):
                mail = self._mail()
                told = receipt.handle.get("machine")
                where = str(told) if told else self._machine_of(mail, receipt.name)
                if where is None:
                    return Closed("no machine of the pool was asked for it")
                return self._released(mail, where, receipt.name)
        except (Unreachable, ProtocolError) as error:
            return Pending(str(error), seen=False)

    def _released(self, mail: Mail, machine: str, name: str) -> Settlement:
        if over := mail.read("closed", machine, name, End):
            return Closed(f"{machine}: {over.reason}")
        answer = self._answer(mail, machine, name)
        if answer.verdict != "admitted":
            self._forget(mail, machine, name)
            return Closed(f"{machine}: {answer.reason}", paid_s=0.0)
        if machine not in self._config.machines:
            return Closed(f"{machine} is not in the pool any more")
        mail.write("ends", machine, name, End("its bill is to be closed", self._by))
        load = mail.told("load", machine, "", MachineLoad)
        if load is None or load[2] > SILENT_S:
            since = f" for {load[2]:.0f} s" if load else ""
            return Pending(f"the agent of {machine} has said nothing{since}: nobody can look there")
        return Pending(f"{machine} was told to end it")

    def _forget(self, mail: Mail, machine: str, name: str) -> None:
        mail.delete("orders", machine, name)

    def running(self, prefix: str) -> Sequence[Receipt]:
        """Every launch that a machine has admitted and whose end is not written down."""
        with _silence(sent=False):
            mail, found = self._mail(), []
            machines = {part(name): name for name in self._config.machines}
            for where, name, _ in list(mail.names("orders")):
                machine = machines.get(where, where)
                if not name.startswith(prefix):
                    continue
                answer = mail.read("answers", machine, name, Answer)
                over = mail.read("closed", machine, name, End)
                if (answer is None or answer.verdict == "admitted") and over is None:
                    handle = {"machine": machine, "host": machine}
                    card = self._config.card or "cpu"
                    found.append(Receipt((), self._name, name, card, 0.0, handle))
            return found

    def examine(self) -> Sequence[tuple[str, str | None]]:
        """Whether each machine's agent has shown itself, for ``tenure doctor``."""
        rows: list[tuple[str, str | None]] = []
        for machine in self._config.machines:
            try:
                with _silence(sent=False):
                    load = self._mail().told("load", machine, "", MachineLoad)
            except (Unreachable, ProtocolError) as error:
                rows.append((machine, str(error)))
                continue
            late = load is None or load[2] > SILENT_S
            words = f"its agent does not run: start `tenure agent {self._name} {machine}` there"
            rows.append((machine, words if late else None))
        return rows

    # ---------------------------------------------------------------------------------- inside

    def _mail(self) -> Mail:
        if self._opened is None:
            try:
                self._opened = Mail(open_store(self._url), self._name, self._clock)
            except StoreUnusable as error:
                raise ProtocolError(str(error)) from error
        return self._opened

    def _machine_of(self, mail: Mail, name: str) -> str | None:
        """Where a launch is: on the machine that admitted it, else where it may still be, else where it was refused.

        Machines are asked one after the other, so at most one has not answered.
        """
        open_at = refused_at = None
        for machine in self._config.machines:
            answer = mail.read("answers", machine, name, Answer)
            if answer is not None and answer.verdict == "admitted":
                return machine
            if answer is not None:
                refused_at = machine
            elif mail.read("orders", machine, name, Order) is not None:
                open_at = machine
        return open_at or refused_at


@contextmanager
def _silence(sent: bool) -> Iterator[None]:
    """A store that does not answer is a platform that does not."""
    try:
        yield
    except StoreSilent as error:
        raise Unreachable(f"the store does not answer: {error}", sent=sent) from error
    except Corrupt as error:
        raise ProtocolError(str(error)) from error


def checked(config: Mapping[str, object]) -> PoolConfig:
    """The configuration of a pool. Raises ValueError with one sentence per problem."""
    try:
        return PoolConfig.model_validate(dict(config))
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors()
        )
        raise ValueError(f"pool: {problems}") from error
