"""Several dispatchers on one store in virtual time, and a referee who sees every write and launch.

The dispatchers, the leases and the conditional writes are the product's own. The store keeps
everything in memory, the platform keeps a list of machines, and a fleet plays their workers: each
claims its job in time, late or never, renews, moves its pointer, and is released, goes silent,
comes back from a silence, or finishes. Every call takes a drawn time, so another dispatcher acts
between any two calls of one. A dispatcher may freeze inside a call for longer than a lease, its
calls may go unanswered, and it may be killed before or after any of them; another one then takes
its place. The same seed gives the same history.

What the referee demands at every write and launch:

1. a launch number of a job is reserved once, and passed to a platform once, by whomever;
2. launch numbers of a job follow each other without a gap, attempts grow by one, and nothing
   follows a final phase;
3. no reservation is written over a holder that was confirmed within its lease;
4. a machine is asked for only when its bill and its intent are stored;
5. no dispatcher takes more slots of a rung than there are, by the bills that it had seen: those of
   its last good listing whose intent it has read, and its own since. Beyond that a rung is
   oversold by what others have opened since that listing, and by reservations whose write was not
   answered; so never by more than its slots for each further dispatcher.

And when all faults have stopped and every job is over (:meth:`World.close`):

6. every launch that was reserved was made or has another one in its place, or its job is over;
7. every bill is closed, no machine runs, and every launch that had a machine has its cost, but
   for one that began after a dispatcher was told that there is none of its name (whoever launched it was
   frozen until then): the sweep ends its machine where its dispatcher died before it told of it.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

from tenure.dispatch import ledger
from tenure.dispatch.contract import (
    ALL_KINDS,
    Capacity,
    Closed,
    Job,
    NoSlots,
    Pending,
    Receipt,
    Settlement,
    Site,
    Unreachable,
)
from tenure.dispatch.ladder import Price
from tenure.dispatch.loop import Dispatcher, Rung
from tenure.plan.enlist import enlist
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Deposed, Lease, change, read_witness
from tenure_protocol.lease.machine import Claim, Finish, Hold, Move, Release
from tenure_protocol.records import (
    FINAL,
    Intent,
    JobSpec,
    Manifest,
    Witness,
    load,
)
from tenure_protocol.store.api import (
    DEADLINE_S,
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Progress,
    StoreSilent,
    Unknown,
    Written,
)
from tests.fake_clock import FakeClock

EXPERIMENT = "rivals"
RUNGS = ("first", "second")
SILENCE_S = 20.0
WINDOW_S = 15.0
_TOGETHER_S = 3.0
_LONGEST_CALM_S = 3_000.0

Launch = tuple[str, int]  # job, number
T = TypeVar("T")


class Killed(BaseException):
    """Ends a dispatcher as SIGKILL does: nothing of it runs after this."""


class Broken(BaseException):
    """What the referee does not allow. No dispatcher takes it for the bug of a plug-in."""


@dataclass(frozen=True)
class Weather:
    """How hostile a history is; each number is a probability of one call, one tick or one launch."""

    freeze: float = 1 / 3000  # of a call: it lasts up to FREEZE_S
    kill: float = 1 / 4000  # of a call: the dispatcher dies before or after it
    silent: float = 1 / 800  # of a call: no answer; a write is applied or not
    refuse: float = 0.03  # of a launch: no slots, or no answer with or without a machine
    no_claim: float = 0.06  # of a launch
    late_claim: float = 0.04  # likewise: after its window
    finish: float = 0.02  # of an attempt; the others are released or lost
    freeze_s: float = 60.0
    call_s: float = 0.02  # a call takes up to so long
    life_s: float = 25.0  # of an attempt, the mean


CALM = Weather(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, life_s=10.0)


# ------------------------------------------------------------------------------------ the store


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    etag: str
    at_s: float


class Shelf:
    """Keys and bodies, found by what a dispatcher lists; conditional writes as on a real store."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._parts: dict[str, dict[str, _Kept]] = {}
        self.referee: Referee | None = None

    def get(self, key: str) -> _Kept | None:
        """What is kept under a key."""
        return self._parts.get(_part(key), {}).get(key)

    def read(self, key: str) -> Found | Missing:
        kept = self.get(key)
        return Found(kept.body, kept.etag, self._clock.now_s - kept.at_s) if kept else Missing()

    def list(self, prefix: str) -> list[Entry]:
        now_s = self._clock.now_s
        return [
            Entry(key, kept.etag, len(kept.body), now_s - kept.at_s)
            for key, kept in sorted(self._parts.get(_part(prefix), {}).items())
            if key.startswith(prefix)
        ]

    def create(self, key: str, body: bytes, who: str) -> Outcome:
        return Lost() if self.get(key) else self._put(key, body, who, None)

    def replace(self, key: str, body: bytes, etag: str, who: str) -> Outcome:
        kept = self.get(key)
        return self._put(key, body, who, kept) if kept and kept.etag == etag else Lost()

    def delete(self, key: str) -> None:
        if self._parts.get(_part(key), {}).pop(key, None) and self.referee:
            self.referee.deleted(key)

    def _put(self, key: str, body: bytes, who: str, old: _Kept | None) -> Outcome:
        if self.referee:
            self.referee.wrote(key, body, who, old is not None, self._clock.now_s)
        etag = hashlib.sha256(body).hexdigest()[:32]
        self._parts.setdefault(_part(key), {})[key] = _Kept(body, etag, self._clock.now_s)
        return Written(etag)


def _part(key: str) -> str:
    """Where a key or a prefix is kept: all of one job's objects together, else by the first word.

    >>> _part("jobs/abc/launches/00001/intent.json"), _part("witness/e/abc.json"), _part("plans/")
    ('jobs/abc', 'witness', 'plans')
    """
    first, _, rest = key.partition("/")
    return f"{first}/{rest.partition('/')[0]}" if first == "jobs" else first


class OpenWay:
    """A Store: the way of workers and of whoever enlists. A call takes no time and never fails."""

    url = "memory:rivals"
    deadline_s = DEADLINE_S["memory"]
    _WHO = "a worker"

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def read(self, key: str) -> Found | Missing:
        return self._shelf.read(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(self._shelf.list(prefix))

    def create(self, key: str, body: bytes) -> Outcome:
        return self._shelf.create(key, body, self._WHO)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._shelf.replace(key, body, etag, self._WHO)

    def delete(self, key: str) -> None:
        raise AssertionError(f"a worker deletes {key}")

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        raise AssertionError(f"nobody reads a part of {key}")

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        raise AssertionError(f"nobody uploads {key}")

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        raise AssertionError(f"nobody downloads {key}")

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return None


class Way(OpenWay):
    """A Store: the way of one dispatcher, on which calls take time and go wrong."""

    def __init__(self, world: World, who: str) -> None:
        super().__init__(world.shelf)
        self._world = world
        self._who = who

    def read(self, key: str) -> Found | Missing:
        found = self._call(key, lambda: self._shelf.read(key))
        if isinstance(found, Found):
            self._world.referee.has_read(self._who, key)
        return found

    def list(self, prefix: str) -> Iterator[Entry]:
        rows = self._call(prefix, lambda: self._shelf.list(prefix))
        self._world.referee.has_listed(self._who, prefix, rows)
        return iter(rows)

    def create(self, key: str, body: bytes) -> Outcome:
        return self._write(key, lambda: self._shelf.create(key, body, self._who))

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._write(key, lambda: self._shelf.replace(key, body, etag, self._who))

    def delete(self, key: str) -> None:
        self._call(key, lambda: self._shelf.delete(key))

    def _call(self, key: str, ask: Callable[[], T]) -> T:
        if self._world.before_call():
            raise StoreSilent(f"{key} was not answered")
        found = ask()
        self._world.after_call()
        return found

    def _write(self, key: str, send: Callable[[], Outcome]) -> Outcome:
        lost = self._world.before_call()
        if lost == "request":
            return Unknown("the request was lost")
        outcome = send()
        self._world.after_call()
        if lost == "answer":
            if isinstance(outcome, Written):
                self._world.referee.unanswered(self._who, key)
            return Unknown("the answer was lost")
        return outcome


# ---------------------------------------------------------------------------------- the referee


class Referee:
    """Sees every applied write and every call of the platform; raises :class:`Broken`."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.broken = ""
        self._stands: dict[str, tuple[Witness, float]] = {}  # job: its witness, when written
        self.reserved: dict[Launch, str] = {}  # by whom
        self.asked_for: dict[Launch, str] = {}  # the rung
        self._intents: dict[Launch, tuple[Intent, str]] = {}  # and by whom it was written
        self.open: set[Launch] = set()  # bills
        self._seen: dict[str, set[Launch]] = {}  # by dispatcher: its last listing and its own since
        self._known: dict[str, set[Launch]] = {}  # whose intent it has read or written
        self._looking: set[str] = set()  # dispatchers that read the intents of what they listed
        self._unanswered: dict[str, set[Launch]] = {}
        self.most: Counter[str] = Counter()  # by rung: the most slots that were taken at once
        self.phases: Counter[str] = Counter()  # every change of phase

    def _break(self, words: str) -> Broken:
        self.broken = self.broken or words
        return Broken(words)

    # ------------------------------------------------------------------------------ writes

    def wrote(self, key: str, body: bytes, who: str, again: bool, now_s: float) -> None:
        """A write is about to be applied."""
        if key.startswith(keys.WITNESSES):
            self._witness(Witness.decode(body, key), who, now_s)
        elif again and not key.startswith((keys.OBSERVATIONS, keys.LIFETIMES)):  # they are merged
            raise self._break(f"{key} is written once, and {who} writes it again")
        elif key.startswith(keys.UNSETTLED):
            self.open.add(_launch_of(key))
            self._of(self._seen, who).add(_launch_of(key))
        elif key.endswith("/intent.json"):
            intent = load(Intent, body, key)
            self._intents[intent.job, intent.launch] = intent, who
            self._of(self._known, who).add((intent.job, intent.launch))

    def deleted(self, key: str) -> None:
        """A bill is closed."""
        if not key.startswith(keys.UNSETTLED):
            raise self._break(f"{key} is deleted, which only a closed bill may be")
        self.open.discard(_launch_of(key))

    def _witness(self, new: Witness, who: str, now_s: float) -> None:
        old, at_s = self._stands.get(new.job, (None, now_s))
        self._stands[new.job] = new, now_s
        launched, attempt, phase = (
            (old.launched, old.attempt, old.phase) if old else (0, 0, "absent")
        )
        if phase != new.phase:
            self.phases[new.phase] += 1
        if phase in FINAL:
            raise self._break(f"job {new.job} was {phase}, and {who} makes it {new.phase}")
        if new.attempt - attempt not in (0, 1) or new.launched - launched not in (0, 1):
            raise self._break(
                f"job {new.job} goes from launch {launched} and attempt {attempt} to launch "
                f"{new.launched} and attempt {new.attempt}, by {who}"
            )
        if new.phase != "expected":
            return
        if (launch := (new.job, new.launched)) in self.reserved:
            raise self._break(
                f"launch {new.launched} of job {new.job} is reserved twice, now by {who}"
            )
        self.reserved[launch] = who
        if old and phase == "held" and now_s - at_s <= old.silence_allowed_s:
            raise self._break(
                f"{who} passes over attempt {attempt} of job {new.job}, which was confirmed "
                f"{now_s - at_s:.0f} s ago under a lease of {old.silence_allowed_s:.0f} s"
            )

    # --------------------------------------------------------------------- what a dispatcher saw

    def has_listed(self, who: str, prefix: str, rows: Sequence[Entry]) -> None:
        """A dispatcher has listed something; after the bills it reads the intents of new ones."""
        self._looking.discard(who)
        if prefix == keys.UNSETTLED:
            self._looking.add(who)
            self._seen[who] = {_launch_of(row.key) for row in rows}

    def has_read(self, who: str, key: str) -> None:
        """A dispatcher has read an object. An intent that it reads for another reason fills no slot."""
        if who in self._looking and key.endswith("/intent.json"):
            _, job, _, number, _ = key.split("/")
            self._of(self._known, who).add((job, int(number)))

    def unanswered(self, who: str, key: str) -> None:
        """A write was applied, and its sender does not know it."""
        if key.startswith(keys.WITNESSES):
            witness, _ = self._stands[key.rpartition("/")[2].removesuffix(".json")]
            self._of(self._unanswered, who).add((witness.job, witness.launched))

    @staticmethod
    def _of(sets: dict[str, set[Launch]], who: str) -> set[Launch]:
        return sets.setdefault(who, set())

    # ---------------------------------------------------------------------------- the platform

    def asks(self, who: str, rung: str, job: Job) -> None:
        """A dispatcher passes a launch to the platform."""
        launch = job.job_id, job.launch
        if launch in self.asked_for:
            raise self._break(
                f"launch {job.launch} of job {job.job_id} is made twice, now by {who}"
            )
        if self.reserved.get(launch) != who:
            by = self.reserved.get(launch, "nobody")
            raise self._break(
                f"{who} makes launch {job.launch} of job {job.job_id}, reserved by {by}"
            )
        intent, by = self._intents.get(launch, (None, ""))
        if intent is None or by != who or intent.name != job.name:
            raise self._break(
                f"{who} makes launch {job.launch} of job {job.job_id}, whose intent is "
                f"{'of ' + by if by else 'not written'}"
            )
        self.asked_for[launch] = rung
        taken = self.open & self._of(self._seen, who) & self._of(self._known, who)
        mine = sum(self._rung(each) == rung for each in taken | {launch})
        excused = len(self._of(self._unanswered, who) & self.open)
        if mine > self._slots + excused:
            raise self._break(
                f"{who} takes slot {mine} of {self._slots} of rung {rung} by the bills it has seen"
            )
        everybody = sum(self._rung(each) == rung for each in self.open | {launch})
        self.most[rung] = max(self.most[rung], everybody)

    def _rung(self, launch: Launch) -> str:
        intent, _ = self._intents.get(launch, (None, ""))
        return intent.rung if intent else ""

    def phase(self, job: str) -> str:
        """The phase of a job's witness."""
        return self._stands[job][0].phase if job in self._stands else "absent"

    def replaced(self, launch: Launch) -> bool:
        """Whether a reserved launch has another one in its place, or its job is over or held."""
        witness, _ = self._stands[launch[0]]
        return witness.launched > launch[1] or witness.phase != "expected"


def _launch_of(key: str) -> Launch:
    """
    >>> _launch_of("unsettled/abc-00012")
    ('abc', 12)
    """
    job, _, number = key.removeprefix(keys.UNSETTLED).rpartition("-")
    return job, int(number)


# --------------------------------------------------------------------------------- the platform


@dataclass(slots=True)
class Machine:
    """One launch that the platform made, and the worker on it."""

    name: str
    job: str
    launch: int
    rung: str
    at_s: float
    ended_s: float | None = None
    fate: str = ""
    lease: Lease | None = None
    until_s: float = 0.0  # of its work
    moved: int = 0
    late: bool = False  # it began after somebody had been told that there is none of that name

    @property
    def runs(self) -> bool:
        """Whether it costs money."""
        return self.ended_s is None


class Platform:
    """A runner of which each dispatcher has its own: their machines are in one account."""

    JOB_KINDS: ClassVar[frozenset[str]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        raise AssertionError("it is made without a configuration")

    @classmethod
    def of(cls, world: World, who: str, rung: str) -> Platform:
        """The runner of one rung in one dispatcher."""
        made = object.__new__(cls)
        made._world, made._who, made._rung = world, who, rung
        return made

    _world: World
    _who: str
    _rung: str

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, int(str(config["slots"])), WINDOW_S)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        world, (job,) = self._world, jobs
        world.referee.asks(self._who, self._rung, job)
        world.before_call(may_be_silent=False)
        trouble = world.draw_trouble()
        if trouble == "full":
            raise NoSlots("no machine is free")
        if trouble == "unsent":
            raise Unreachable("no connection")
        if trouble != "lost":
            world.fleet.start(job, self._rung)
        world.after_call()
        if trouble:
            raise Unreachable("no answer", sent=True)
        return Receipt((job.job_id,), self._rung, job.name, "cpu", 0.0, {"name": job.name})

    def release(self, receipt: Receipt) -> Settlement:
        world = self._world
        if world.before_call():
            return Pending("no answer", seen=False)
        machine = world.fleet.machines.get(receipt.name)
        if machine is None:
            world.fleet.denied.add(receipt.name)
            return Closed("there is none of that name", 0.0)
        if machine.runs:
            machine.ended_s = world.clock.now_s
        world.after_call()
        assert machine.ended_s is not None
        return Closed("it is gone", machine.ended_s - machine.at_s)

    def running(self, prefix: str) -> Sequence[Receipt]:
        """Whatever costs money on this rung, so that the sweep finds what no bill tells of."""
        world = self._world
        if world.before_call():
            raise Unreachable("no answer")
        found = [
            Receipt((), self._rung, machine.name, "cpu", 0.0)
            for machine in world.fleet.machines.values()
            if machine.runs and machine.rung == self._rung and machine.name.startswith(prefix)
        ]
        world.after_call()
        return found


class Fleet:
    """The workers on all machines: what each does and when is drawn as it starts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.machines: dict[str, Machine] = {}
        self.denied: set[str] = set()  # names of which a dispatcher was told that there are none
        self._events: list[tuple[float, int, Callable[[Machine], None], Machine]] = []
        self._numbers = itertools.count()

    def start(self, job: Job, rung: str) -> None:
        """A machine begins, and its worker claims the job some time later, if at all."""
        world, rng = self._world, self._world.rng
        machine = Machine(job.name, job.job_id, job.launch, rung, world.clock.now_s)
        machine.late = job.name in self.denied
        assert job.name not in self.machines, f"{job.name} is made twice"
        self.machines[job.name] = machine
        after_s = rng.expovariate(1 / 2.0)
        drawn = rng.random()
        if drawn < world.weather.no_claim:
            return
        if drawn < world.weather.no_claim + world.weather.late_claim:
            after_s = rng.uniform(1.0, 3.0) * job.window_s
        self._at(after_s, self._claim, machine)

    def play(self) -> None:
        """Let every worker do what is due, until the world ends."""
        clock = self._world.clock
        while not self._world.over:
            while self._events and self._events[0][0] <= clock.now_s:
                _, _, act, machine = heapq.heappop(self._events)
                if machine.runs:
                    act(machine)
            next_s = self._events[0][0] if self._events else clock.now_s + 1.0
            clock.sleep(min(1.0, max(0.0, next_s - clock.now_s)))

    def running(self) -> list[str]:
        """The names of all machines that cost money."""
        return [machine.name for machine in self.machines.values() if machine.runs]

    def _at(self, after_s: float, act: Callable[[Machine], None], machine: Machine) -> None:
        at_s = self._world.clock.now_s + after_s
        heapq.heappush(self._events, (at_s, next(self._numbers), act, machine))

    def _claim(self, machine: Machine) -> None:
        world, rng = self._world, self._world.rng
        key, store = keys.witness(EXPERIMENT, machine.job), world.open_way
        stored = read_witness(store, key)
        event = Claim(machine.launch, world.clock.nonce(), SILENCE_S)
        got = change(store, key, machine.job, stored, event, world.clock)
        if not isinstance(got, Applied):
            return  # its worker exits; the machine is paid for until somebody ends it
        now_s = world.clock.now_s
        machine.lease = Lease(store, key, world.clock, got.witness, got.etag, now_s)
        machine.until_s = now_s + rng.expovariate(1 / world.weather.life_s)
        drawn = rng.random()
        finish = world.weather.finish
        machine.fate = (
            "finish" if drawn < finish else rng.choice(["lost", "back", "yield", "yield"])
        )
        self._at(rng.uniform(0.1, 0.3) * SILENCE_S, self._beat, machine)

    def _beat(self, machine: Machine) -> None:
        """One renewal, or the end of the attempt."""
        world, lease = self._world, machine.lease
        assert lease is not None
        if world.clock.now_s >= machine.until_s:
            self._end(machine, lease)
            return
        move = None
        if not machine.moved or world.rng.random() < 0.2:
            move = self._move(machine, lease)
        answer = lease.write(Hold(lease.holder, lease.attempt, SILENCE_S, move=move))
        if not isinstance(answer, Deposed):
            self._at(world.rng.uniform(0.2, 0.4) * SILENCE_S, self._beat, machine)

    def _end(self, machine: Machine, lease: Lease) -> None:
        if machine.fate == "finish":
            lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
        elif machine.fate == "yield":
            lease.write(Release(lease.holder, lease.attempt, 10, "the machine is reclaimed"))
        elif machine.fate == "back":  # frozen for about a lease, and then it goes on
            machine.fate, machine.until_s = "yield", machine.until_s + 3 * SILENCE_S
            self._at(self._world.rng.uniform(0.8, 2.0) * SILENCE_S, self._beat, machine)

    def _move(self, machine: Machine, lease: Lease) -> Move:
        machine.moved += 1
        old, attempt = lease.witness.pointer, lease.attempt
        ordinal = old.ordinal + 1 if old else 1
        manifest = Manifest(
            machine.job, attempt, ordinal * 10, 1, ordinal, {}, {"card": "cpu"}, old
        )
        return Move(manifest.pointer(encode(manifest)), old)


# ------------------------------------------------------------------------------------ the world


@dataclass(frozen=True)
class Story:
    """What came of a history."""

    ticks: int  # of all dispatchers, while there were faults
    launches: int
    virtual_s: float
    kills: int
    most: Mapping[str, int]  # by rung: the most slots that were taken at once
    slots: int  # of each rung
    phases: Mapping[str, int]
    races: int  # launches that were decided and not made, since another dispatcher was first
    ends: Mapping[str, int]
    costs: int  # launches that the ledger has


class World:
    """Jobs, dispatchers, a platform and a store."""

    def __init__(
        self,
        seed: int,
        jobs: int,
        slots: int,
        clock: FakeClock,
        weather: Weather | None = None,
        dispatchers: int = 2,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.weather = weather or Weather()
        self.slots = slots
        self.over = False
        self.kills = self._lives = 0
        self.dispatchers = dispatchers
        self.shelf = Shelf(clock)
        self.referee = self.shelf.referee = Referee(slots)
        self.open_way = OpenWay(self.shelf)
        self.fleet = Fleet(self)
        self.ticks = self.races = 0
        specs = [
            JobSpec(EXPERIMENT, "train", "training", "m:C", {}, seed, 1, "c", "d", 10)
            for seed in range(jobs)
        ]
        terms: dict[str, object] = {"rungs": list(RUNGS)}
        self.jobs = enlist(self.open_way, "plan", EXPERIMENT, specs, terms, clock)

    # -------------------------------------------------------------------------------- faults

    def before_call(self, may_be_silent: bool = True) -> Literal["", "request", "answer"]:
        """Let the time of a call pass; what of it is lost, if anything."""
        self._mortal()
        weather, rng = self.weather, self.rng
        frozen = rng.random() < weather.freeze
        self.clock.sleep(rng.uniform(0.0, weather.freeze_s if frozen else weather.call_s))
        if may_be_silent and rng.random() < weather.silent:
            return "request" if rng.random() < 0.5 else "answer"
        return ""

    def after_call(self) -> None:
        """A call was carried out; whether its sender lives to hear of it."""
        self._mortal()

    def _mortal(self) -> None:
        if self.rng.random() < self.weather.kill / 2:
            self.kills += 1
            raise Killed

    def draw_trouble(self) -> Literal["", "full", "unsent", "lost", "made"]:
        """What is wrong with a launch."""
        if self.rng.random() >= self.weather.refuse:
            return ""
        return self.rng.choice(("full", "unsent", "lost", "made"))

    # ------------------------------------------------------------------------------- playing

    def play(self, ticks: int) -> Story:
        """So many ticks of each dispatcher, and then a calm in which everything ends.

        Raises AssertionError with what the referee does not allow.
        """
        began_s = self.clock.now_s
        fleet = self.clock.spawn(self.fleet.play, "fleet")
        self._all(lambda number: self._live(number, lambda: ticks))
        stormy = self.ticks, len(self.referee.asked_for), self.clock.now_s - began_s
        self.weather = CALM
        until_s = self.clock.now_s + _LONGEST_CALM_S
        self._all(lambda number: self._live(number, lambda: 0 if self._ended(until_s) else 1 << 30))
        self.over = True
        fleet.join()
        costs = self.close()
        ends = Counter(self.referee.phase(job) for job in self.jobs)
        return Story(
            *stormy, self.kills, dict(self.referee.most), self.slots,
            dict(self.referee.phases), self.races, dict(ends), costs,
        )  # fmt: skip

    def _all(self, live: Callable[[int], None]) -> None:
        tasks = [
            self.clock.spawn(lambda number=number: live(number), f"dispatcher {number}")  # type: ignore[misc]
            for number in range(self.dispatchers)
        ]
        for task in tasks:
            task.join()
        assert not self.referee.broken, self.referee.broken

    def _live(self, number: int, ticks: Callable[[], int]) -> None:
        """A dispatcher, and whoever takes its place when it is killed."""
        made, dispatcher = 0, None
        while made < ticks() and not self.referee.broken:
            try:
                if dispatcher is None:
                    self._lives += 1
                    dispatcher = self._dispatcher(f"d{number}-{self._lives}")
                tick = dispatcher.tick()
                self.races += sum("somebody else" in why for why in tick.unmade.values())
            except Killed:
                dispatcher = None
            except Broken:
                return
            made += 1
            self.ticks += 1
            self.clock.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Most rounds begin at the same moments for everybody, so that they are about the same jobs."""
        if self.rng.random() < 0.3:
            return self.rng.uniform(0.2, 4.0)
        return _TOGETHER_S - self.clock.now_s % _TOGETHER_S

    def _dispatcher(self, who: str) -> Dispatcher:
        capacity = Platform.capacity({"slots": self.slots})
        price = Price("usd", 1.0)
        rungs = [
            Rung(name, name, Platform.of(self, who, name), capacity, price=price) for name in RUNGS
        ]
        return Dispatcher(Way(self, who), rungs, self.clock, who)

    def _ended(self, until_s: float) -> bool:
        if self.clock.now_s > until_s:
            return True  # :meth:`close` says what is left
        return not self.referee.open and all(self.referee.phase(job) in FINAL for job in self.jobs)

    def close(self) -> int:
        """What must hold at the end; returns how many launches the ledger has."""
        referee = self.referee
        left = [job for job in self.jobs if referee.phase(job) not in FINAL]
        assert not left, f"{len(left)} jobs are not over: {left[0]} is {referee.phase(left[0])}"
        lost = [
            each for each in referee.reserved
            if each not in referee.asked_for and not referee.replaced(each)
        ]  # fmt: skip
        assert not lost, f"launch {lost[0][1]} of job {lost[0][0]} was reserved and never made"
        assert not referee.open, f"bills are open: {sorted(referee.open)[:3]}"
        running = self.fleet.running()
        assert not running, f"machines run without a bill: {running[:3]}"
        entries, troubles = ledger.read_ledger(self.open_way)
        assert not troubles, troubles
        paid = {(entry.job, entry.launch) for entry in entries}
        machines = self.fleet.machines.values()
        made = {(machine.job, machine.launch) for machine in machines if not machine.late}
        assert made <= paid, f"launches without their cost: {sorted(made - paid)[:3]}"
        return len(paid)
