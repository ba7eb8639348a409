"""The agent of one own machine: it admits, refuses and takes back by itself, within a quota that expires.

It reads orders and its quota from the store and asks nobody. Admitted is written before anything is
started, so that an order is either withdrawn or run and never both. Once its quota has expired it takes
nothing on, and what runs goes on: that a dispatcher is gone proves nothing about a job. Where the quota
has become smaller than what runs, the launches that began last are asked to yield, and after their time
ended with SIGTERM and, later, SIGKILL.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

from runners.own_process import OwnProcessRunner, live_worker
from runners.pool import TELLS_EVERY_S, PoolConfig, checked
from runners.pool_mail import Answer, End, MachineLoad, MachineQuota, Mail, Order
from tenure.dispatch.contract import Closed, Job, LaunchFailed, Receipt, Site
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import change, read_witness
from tenure_protocol.lease.machine import Ask
from tenure_protocol.records import JobSpec, load
from tenure_protocol.store.api import Missing, Store, StoreSilent

_LOG = logging.getLogger("tenure.runners")
EVERY_S = 0.5
_GB = 1e9
#: Read again so often where no order comes: a quota may have become smaller.
_QUOTA_EVERY_S = 10.0
_EPSILON = 1e-9  # sums of tenths of a core
Needs = tuple[int, float, float]  # cards, cores, GB


@dataclass
class _Aboard:
    """A launch that this machine has admitted."""

    order: Order
    receipt: Receipt
    since_s: float  # monotonic, for this agent
    asked_s: float | None = None  # when it was asked to yield
    over: bool = False  # its process is gone


@dataclass
class _Quota:
    """The quota in force: ``ends_s`` is monotonic, reckoned from the age that the store told."""

    cards: int = 0
    cpus: float = 0.0
    memory_gb: float = 0.0
    ends_s: float = float("-inf")


@dataclass
class Agent:
    """Steps once at a time; whoever runs it repeats :meth:`step`."""

    store: Store
    pool: str
    machine: str
    config: Mapping[str, object]
    site: Site
    aboard: dict[str, _Aboard] = field(default_factory=dict)
    _quota: _Quota = field(default_factory=_Quota)
    _quota_s: float = float("-inf")
    _told_s: float = float("-inf")
    _load_etag: str | None = None

    def __post_init__(self) -> None:
        self._settings: PoolConfig = checked(self.config)
        if self.machine not in self._settings.machines:
            known = ", ".join(sorted(self._settings.machines))
            raise ValueError(f"pool {self.pool} has no machine {self.machine!r}; known: {known}")
        self._mail = Mail(self.store, self.pool, self.site.clock)
        worker = self._settings.worker.model_dump(exclude_unset=True)
        slots = self._settings.machines[self.machine].cards
        self._own = OwnProcessRunner(
            f"{self.pool}-{self.machine}", {**worker, "slots": max(slots, 1)}, self.site
        )
        self._by = f"agent {self.machine} {self.site.clock.nonce()}"

    # ----------------------------------------------------------------------------------- rounds

    def step(self) -> None:
        """One round: admit or refuse what is new, end what must end, tell the load. Raises StoreSilent."""
        self._look_at_ends()
        known = list(self._mail.names("orders", self.machine))
        if any(name not in self.aboard for _, name, _ in known) or self._due(_QUOTA_EVERY_S):
            self._read_quota()
        for _, name, _ in known:  # the oldest first
            if name not in self.aboard:
                self._take(name)
        self._note_gone()
        self._shrink()
        if self.site.clock.monotonic_s() - self._told_s >= TELLS_EVERY_S:
            self._tell()

    def _due(self, every_s: float) -> bool:
        return self.site.clock.monotonic_s() - self._quota_s >= every_s

    def _read_quota(self) -> None:
        read_s = self.site.clock.monotonic_s()
        found = self._mail.told("quota", self.machine, "", MachineQuota)
        self._quota_s = read_s
        if found is None:
            self._quota = _Quota()
            return
        told, _, age_s = found
        # reckoned from before the read, so that it never lasts longer than it was given for
        self._quota = _Quota(told.cards, told.cpus, told.memory_gb, read_s + told.lasts_s - age_s)

    # ------------------------------------------------------------------------------- admission

    def _take(self, name: str) -> None:
        """Answer an order, or find again what an agent before this one had admitted."""
        order = self._mail.read("orders", self.machine, name, Order)
        if order is None:
            return
        answer = self._mail.read("answers", self.machine, name, Answer)
        if answer is None:
            answer = self._decided(order)
            if not self._mail.write("answers", self.machine, name, answer):
                answer = self._mail.read("answers", self.machine, name, Answer)
            elif answer.verdict == "admitted":
                self._start(order)
                return
        elif answer.verdict == "admitted":
            self._find_again(order)
            return
        if answer is None or answer.verdict != "admitted":
            self._mail.delete("orders", self.machine, name)

    def _decided(self, order: Order) -> Answer:
        short = self.refusal(order)
        if short:
            return Answer("refused", short, self._by)
        return Answer("admitted", f"{order.cards} cards are its own", self._by)

    def refusal(self, order: Order) -> str | None:
        """Why this machine has no room for an order, or ``None``: its own word, which nobody can overrule."""
        quota, now_s = self._quota, self.site.clock.monotonic_s()
        if now_s >= quota.ends_s:
            ago = (
                f"its quota ended {now_s - quota.ends_s:.0f} s ago"
                if quota.cards
                else "it has none"
            )
            return f"no quota is in force: {ago}"
        for what, asked, taken, most in zip(
            ("cards", "cores", "GB"), _needs(order), self._taken(), self._most(), strict=True
        ):
            if asked and (most or what == "cards") and taken + asked > most + _EPSILON:
                return f"no room: {taken:g} of {most:g} {what} are taken, and it asks for {asked:g}"
        free_gb = psutil.virtual_memory().available / _GB
        if order.memory_gb > free_gb:
            return (
                f"no room: {free_gb:.1f} GB of memory are free, and it asks for {order.memory_gb:g}"
            )
        return None

    def _taken(self) -> Needs:
        return _sum(each.order for each in self.aboard.values() if not each.over)

    def _most(self) -> Needs:
        """What may be given away: by the quota, and by this machine's own file; 0 cores or GB: no limit."""
        own, quota = self._settings.machines[self.machine], self._quota
        return (
            min(quota.cards, own.cards),
            min(quota.cpus or own.cpus, own.cpus or quota.cpus),
            min(quota.memory_gb or own.memory_gb, own.memory_gb or quota.memory_gb),
        )

    def _job(self, order: Order) -> Job:
        return Job(
            order.job, order.kind, order.launch, order.name, self.store.url, order.cards,
            window_s=order.window_s, wall_s=order.wall_s,
        )  # fmt: skip

    def _start(self, order: Order) -> None:
        try:
            receipt = self._own.launch([self._job(order)])
        except LaunchFailed as error:
            # It was admitted; what came of it is told where its end is looked for.
            _LOG.warning("%s did not start: %s", order.name, error)
            self._close(order.name, f"it did not start: {error}")
            return
        self.aboard[order.name] = _Aboard(order, receipt, self.site.clock.monotonic_s())

    def _find_again(self, order: Order) -> None:
        """An agent before this one has admitted it: it lives, or never will again."""
        if self._mail.read("closed", self.machine, order.name, End) is not None:
            self._mail.delete("orders", self.machine, order.name)
            return
        receipt = Receipt((order.job,), self._own_name, order.name, "cpu", 0.0)
        if live_worker(receipt) is None:
            self._close(order.name, "its process was gone when the agent began anew")
            return
        self.aboard[order.name] = _Aboard(order, receipt, self.site.clock.monotonic_s())

    @property
    def _own_name(self) -> str:
        return f"{self.pool}-{self.machine}"

    # ------------------------------------------------------------------------------------ ends

    def _look_at_ends(self) -> None:
        for _, name, _ in list(self._mail.names("ends", self.machine)):
            each = self.aboard.get(name)
            if each is None:
                order = self._mail.read("orders", self.machine, name, Order)
                closed = self._mail.read("closed", self.machine, name, End)
                if order is None or closed is not None:
                    self._mail.delete("ends", self.machine, name)
                continue  # it is found again, or closed, when its order is looked at
            self._end(each)

    def _end(self, each: _Aboard) -> None:
        settlement = self._own.release(each.receipt)
        each.over = isinstance(settlement, Closed)
        if isinstance(settlement, Closed):
            self._close(each.order.name, settlement.reason)

    def _close(self, name: str, reason: str) -> None:
        """Its end is written down before it is forgotten; an order that is seen again is a late echo."""
        self._mail.write("closed", self.machine, name, End(reason, self._by))
        self._mail.delete("orders", self.machine, name)
        self._mail.delete("ends", self.machine, name)
        self.aboard.pop(name, None)

    def _note_gone(self) -> None:
        """A process that has ended frees its room at once; its bill is closed when somebody asks."""
        for each in self.aboard.values():
            each.over = each.over or live_worker(each.receipt) is None

    # -------------------------------------------------------------------------------- taking back

    def _shrink(self) -> None:
        """Where the quota in force is smaller than what runs, the youngest launches make room."""
        now_s = self.site.clock.monotonic_s()
        if now_s >= self._quota.ends_s:
            return  # nobody says that there is less
        leaving = [each for each in self.aboard.values() if each.asked_s is not None]
        for each in leaving:
            if each.asked_s is not None and now_s - each.asked_s >= self._settings.yield_s:
                self._end(each)
        staying = [e for e in self.aboard.values() if not e.over and e.asked_s is None]
        staying.sort(key=lambda each: (each.since_s, each.order.name))
        while staying and not _fits(_sum(each.order for each in staying), self._most()):
            each = staying.pop()
            each.asked_s = now_s
            self._ask(each.order)

    def _ask(self, order: Order) -> None:
        """Ask the holder for a last milestone, through its witness; the time it has runs either way."""
        key = keys.job(order.job)
        try:
            found = self.store.read(key)
            if isinstance(found, Missing):
                return
            witness = keys.witness_of(load(JobSpec, found.body, key))
            stored = read_witness(self.store, witness)
            w = stored.witness
            if (
                w is None
                or w.phase != "held"
                or w.holder is None
                or w.holder.launch != order.launch
            ):
                return
            event = Ask("yield", self._settings.yield_s, self._by)
            change(self.store, witness, order.job, stored, event, self.site.clock)
        except (StoreSilent, Corrupt) as error:
            _LOG.warning("%s was not asked to yield: %s", order.name, error)

    def _tell(self) -> None:
        cards, cpus, memory_gb = self._taken()
        now_s = self.site.clock.monotonic_s()
        of_cards = self._quota.cards if now_s < self._quota.ends_s else 0
        live = tuple(sorted(name for name, each in self.aboard.items() if not each.over))
        record = MachineLoad(cards, cpus, memory_gb, of_cards, live, self.site.clock.nonce())
        if self._load_etag is None:
            found = self._mail.told("load", self.machine, "", MachineLoad)
            self._load_etag = found[1] if found else None
        self._load_etag = self._mail.put("load", self.machine, record, self._load_etag)
        self._told_s = now_s


def _needs(order: Order) -> Needs:
    return order.cards, order.cpus, order.memory_gb


def _sum(orders: Iterable[Order]) -> Needs:
    cards, cpus, memory_gb = 0, 0.0, 0.0
    for each in orders:
        cards, cpus, memory_gb = cards + each.cards, cpus + each.cpus, memory_gb + each.memory_gb
    return cards, cpus, memory_gb


def _fits(taken: Needs, most: Needs) -> bool:
    """Whether it is within the limits, of which 0 cores or GB are none."""
    pairs = zip(taken[1:], most[1:], strict=True)
    return taken[0] <= most[0] and all(not limit or it <= limit + _EPSILON for it, limit in pairs)
