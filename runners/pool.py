"""A pool of own machines: a launch is offered to one of them, whose agent admits or refuses it at once.

The dispatcher gives each machine a quota that expires; within it the machine's own agent
(:mod:`runners.pool_agent`) decides. What the dispatcher knows of the loads is as old as the agents' last
word, so it counts what it has just placed itself, and goes on to another one when it is refused: by best fit
(:mod:`tenure.queue.placement`), or with ``place = "spread"`` by power of k choices (:mod:`tenure.queue.bursts`). That nobody has room is no failure of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import ClassVar, Literal

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
from tenure.queue.placement import Gang, Machine, Part, Placed, Size, place
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease.keys import part
from tenure_protocol.store.api import StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store

_ASK_EVERY_S = 0.1
#: An agent tells its load so often; one that has been silent for longer is not asked.
TELLS_EVERY_S = 5.0
SILENT_S = 6 * TELLS_EVERY_S
_UNCOUNTED = 1e9  # cores or GB of a machine where they are not counted
Admits = Callable[[str, float], bool]


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
    place: Literal["fit", "spread"] = "fit"  # best fit, or the least loaded of ``choices``
    choices: int = Field(2, ge=1, le=1024)  # of "fit": asked though they seem full
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
        #: By machine: when it was known to be admitted, its name, and what it takes.
        self._placed: dict[str, list[tuple[float, str, Size]]] = {}

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
        machines = self._seen(mail)
        if not machines:
            raise NoSlots(f"no agent of pool {self._name} has shown itself")
        refused: list[str] = []

        def admits(machine: str, _: float) -> bool:
            self._give_quota(mail, machine)
            if not mail.write("orders", machine, job.name, self._order(job)):
                raise ProtocolError(f"another order is called {job.name} on {machine}")
            answer = self._answer(mail, machine, job.name)
            if answer.verdict != "admitted":
                refused.append(f"{machine}: {answer.reason}")
                return False
            placed = self._clock.monotonic_s(), job.name, self._needs(job)
            self._placed.setdefault(machine, []).append(placed)
            return True

        choose = self._spread if self._config.place == "spread" else self._fitted
        found = choose(job, machines, admits)
        if found is None:
            raise NoSlots("; ".join(refused))
        return found

    def _fitted(self, job: Job, machines: Sequence[Machine], admits: Admits) -> str | None:
        """Best fit by what is known, so that large free pieces stay whole for large jobs.

        What is known is seconds old: where nobody has room by it, some are asked all the same.
        """
        left = {each.name: each for each in machines}
        gang = Gang(job.name, (Part(self._needs(job)),))
        while left and isinstance(found := place(gang, left.values()), Placed):
            (name,) = found.on
            if admits(name, job.cards):
                return name
            del left[name]
        likeliest = sorted(left, key=lambda name: (_share(left[name]), name))
        return next(
            (name for name in likeliest[: self._config.choices] if admits(name, job.cards)), None
        )

    def _spread(self, job: Job, machines: Sequence[Machine], admits: Admits) -> str | None:
        """The least loaded of a few drawn by chance, for bursts of short jobs by many dispatchers."""
        view, now_s = View(), self._clock.monotonic_s()
        loads = {
            each.name: Load(each.whole.cards - each.free.cards, each.whole.cards)
            for each in machines
        }
        view.gathered(loads, now_s)
        return send(view, job.cards, self._config.choices, self._draw, now_s, admits).machine

    def _needs(self, job: Job) -> Size:
        pool = self._config
        return Size(job.cards, pool.cpus * job.cards, pool.memory_gb * job.cards)

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

    def _seen(self, mail: Mail) -> list[Machine]:
        """The machines whose agents still tell, as they told last and with what was placed here since."""
        now_s, found = self._clock.monotonic_s(), []
        for name, given in self._config.machines.items():
            load = mail.told("load", name, "", MachineLoad)
            if load is None or load[2] > SILENT_S:
                continue
            told, _, age_s = load
            since = [row for row in self._placed.get(name, ()) if row[0] >= now_s - age_s]
            self._placed[name] = since
            taken = Size(told.cards, told.cpus, told.memory_gb)
            for _, launch, needs in since:
                taken = taken if launch in told.names else taken + needs
            whole = Size(given.cards, given.cpus or _UNCOUNTED, given.memory_gb or _UNCOUNTED)
            found.append(Machine(name, whole, _left(whole, taken)))
        return found

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


def _left(whole: Size, taken: Size) -> Size:
    """What is free; an agent may have taken more than the quota of today."""
    cards, cpus, memory_gb = (
        max(0.0, has - used) for has, used in zip(whole.each, taken.each, strict=True)
    )
    return Size(int(cards), cpus, memory_gb)


def _share(machine: Machine) -> float:
    return 1.0 - machine.free.cards / machine.whole.cards


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
