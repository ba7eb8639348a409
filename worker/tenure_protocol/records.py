"""Every object Tenure stores, and the version of the protocol they speak.

Invariants stand beside the field they bind. Bodies are canonical JSON; a witness is padded so that
its length tells a listing what changed (see :func:`Witness.encode`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeVar

from tenure_protocol.codec import decode, encode, parse
from tenure_protocol.codec import sha256_hex as sha256_hex
from tenure_protocol.codec import short_id as short_id
from tenure_protocol.snapshots import PROTOCOL_VERSION as PROTOCOL_VERSION
from tenure_protocol.snapshots import FileEntry as FileEntry
from tenure_protocol.snapshots import Pointer as Pointer
from tenure_protocol.snapshots import SnapshotRef as SnapshotRef
from tenure_protocol.snapshots import check_name as check_name
from tenure_protocol.snapshots import demand_protocol as demand_protocol
from tenure_protocol.snapshots import environment_digest as environment_digest

MAX_RESULT_BYTES = 4096

Phase = Literal["expected", "held", "released", "finished", "revoked", "cancelled"]
Kind = Literal["train", "evaluate", "backtest", "dataset"]
Direction = Literal["minimize", "maximize"]
FINAL: frozenset[str] = frozenset({"finished", "cancelled"})

#: What a job's id is made of: base32.
ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"

_JOB_ID = re.compile(rf"[{ID_LETTERS}]{{26}}")
_RESIDUES = {"expected": 0, "released": 4, "finished": 5, "revoked": 6, "cancelled": 7}
_TO_READ = 3  # held, and its lease is another one, or its holder is asked to end

R = TypeVar("R")


def load(kind: type[R], body: bytes, key: str) -> R:
    """Decode a stored record; :class:`Corrupt` or :class:`NewerProtocol` name the key."""
    value = parse(body, key)
    demand_protocol(value, key)
    return decode(kind, value, key)


# ------------------------------------------------------------------------------------ job


@dataclass(frozen=True)
class JobSpec:
    """What to compute; immutable, and its id is a digest of it, ``run`` included."""

    experiment: str  # part of the key of the witness: one job, one witness
    kind: Kind
    stage: str
    entry_point: str  # module:Class
    config: dict[str, object]
    seed: int
    generation: int
    code: str  # digest of the experiment's code
    data: str  # digest of its data files
    milestone_every: int  # steps
    parent: str | None = None  # id of the generation-1 record this retrains
    model: SnapshotRef | None = None  # what an evaluate or backtest job reads
    requires: dict[str, object] | None = None  # the environment a worker must measure
    cards: int = 1
    patience_s: float = 1800.0
    max_silence_s: float = 3600.0
    run: int = 0
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        check_name(self.experiment, "experiment")
        check_name(self.stage, "stage")
        if self.milestone_every < 1:
            raise ValueError(
                f"milestone_every is {self.milestone_every}, it counts steps from 1 up"
            )
        if self.generation not in (1, 2):
            raise ValueError(f"generation is {self.generation}, there are 1 and 2")
        if self.run < 0 or self.cards < 1:
            raise ValueError("run counts from 0 and cards from 1")
        if self.patience_s <= 0 or self.max_silence_s <= 0:
            raise ValueError("patience_s and max_silence_s are positive seconds")

    @cached_property
    def id(self) -> str:
        """First 26 characters of lowercase base32 of SHA-256 over the canonical JSON."""
        return short_id(encode(self))

    @property
    def pinned(self) -> bool:
        """Whether the job names the environment it must run in."""
        return self.requires is not None


# -------------------------------------------------------------------------------- witness


@dataclass(frozen=True)
class Launch:
    """The newest launch a dispatcher announced."""

    number: int
    runner: str
    window_s: float  # how long a dispatcher waits for its claim
    first_silence_s: float | None = (
        None  # the lease from the claim to the first step; None: window_s
    )
    restart_s: float | None = (
        None  # from a loss to the next attempt's first step, as observed there
    )
    death_per_h: float | None = None  # losses per hour, as observed there
    lapsed_s: float | None = None  # how long the attempt before was silent when it was written off
    ratios: dict[str, object] | None = None  # how long steps were there, in medians, as observed


@dataclass(frozen=True)
class Holder:
    """Who holds the tenure; the nonce is new per process."""

    launch: int  # 0 in local mode
    nonce: str


@dataclass(frozen=True)
class Announced:
    """A long step the holder told of before it began; ends at the next renewal."""

    reason: str
    silence_s: float


@dataclass(frozen=True)
class Asked:
    """A request to the holder; one per attempt."""

    what: Literal["yield", "pause"]
    within_s: float  # from the holder's first read of it
    by: str


@dataclass(frozen=True)
class Witness:
    """The one small object per job that proves a worker holds it."""

    job: str
    phase: Phase
    write_id: str  # fresh per conditional write: equal bodies would give equal ETags
    seq: int = 1
    launch: Launch | None = None
    barrier: int = 0  # launches up to this number may no longer claim
    attempt: int = 0  # strictly increases, never restarts
    holder: Holder | None = None
    silence_s: float = 0.0  # how long a live holder may be silent
    announced: Announced | None = None
    asked: Asked | None = None
    held_back: bool = False
    pointer: Pointer | None = None
    exit_code: int | None = None
    reason: str | None = None
    by: str | None = None
    result: dict[str, object] | None = None
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        if (self.phase == "held") != (self.holder is not None):
            raise ValueError("a holder belongs to the phase held and to no other")
        if self.phase == "expected" and self.launch is None:
            raise ValueError("the phase expected names its launch")
        if self.announced is not None and self.phase != "held":
            raise ValueError("only a holder announces")
        if min(self.barrier, self.attempt, self.seq) < 0:
            raise ValueError("barrier, attempt and seq count from 0")

    @property
    def launched(self) -> int:
        """Number of the newest launch, 0 before the first."""
        return self.launch.number if self.launch else 0

    @property
    def silence_allowed_s(self) -> float:
        """The lease in force: the announced one while a long step lasts."""
        return max(self.silence_s, self.announced.silence_s if self.announced else 0.0)

    @property
    def residue(self) -> int:
        """What ``len(body) % 8`` tells a listing: the phase, and that a pointer moved.

        Also that a holder announced a long step or was asked to end: who watches must know that one
        who renews and does not obey is to be revoked.
        """
        if self.phase != "held":
            return _RESIDUES[self.phase]
        if self.announced or self.asked:
            return _TO_READ
        return 1 + (self.pointer.ordinal % 2 if self.pointer else 0)

    def encode(self) -> bytes:
        """Canonical JSON padded with spaces to the residue."""
        body = encode(self)
        return body + b" " * ((self.residue - len(body)) % 8)

    @classmethod
    def decode(cls, body: bytes, key: str) -> Witness:
        """Read a witness; :class:`Corrupt` names ``key``."""
        return load(cls, body, key)

    def stamped(self, write_id: str) -> Witness:
        """The same statement as the next write."""
        return replace(self, write_id=write_id)


# ------------------------------------------------------------------------------- snapshot


@dataclass(frozen=True)
class Manifest:
    """Written last of a snapshot, after the previous pointer write was settled.

    ``parent`` is the pointer that was stored when this was written: the line of pointers.
    """

    job: str
    attempt: int
    step: int
    save: int
    ordinal: int
    files: dict[str, FileEntry]
    fingerprint: dict[str, object]  # the environment the worker measured
    parent: Pointer | None = None
    median_step_s: float | None = None
    busy_s: float = 0.0  # seconds in steps since the attempt's first step
    from_step: int = 0  # at which the attempt began: it has done ``step - from_step`` of them
    flops_per_step: float | None = None  # as the experiment told it
    dtype: str | None = None  # that those are done in
    steps_total: int | None = None  # that the job takes in all, where the experiment told it
    save_s: float | None = None  # how long the loop stood still to write this snapshot's files
    ratios: dict[str, object] | None = None  # how long its steps were, in medians
    protocol: int = PROTOCOL_VERSION

    def pointer(self, body: bytes) -> Pointer:
        """The pointer to this manifest, whose stored bytes are ``body``."""
        return Pointer(self.attempt, self.step, self.save, self.ordinal, sha256_hex(body))


# ----------------------------------------------------------------------------- dispatcher


@dataclass(frozen=True)
class Aboard:
    """One launch on a machine that takes several."""

    job: str
    launch: int
    cards: int  # of the machine that are its own


@dataclass(frozen=True)
class Intent:
    """Written before a launch: whatever the platform then does can be found by ``name``."""

    job: str
    launch: int
    runner: str
    rung: str
    name: str  # of the machine, unique; the platform is asked for it after a failure
    by: str  # dispatcher
    reason: str  # why it was launched, in words and numbers
    at_s: float  # Unix time by the dispatcher's clock, for people
    pack: tuple[Aboard, ...] | None = None  # all launches on the machine; None: this one alone
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        mine = [(each.job, each.launch) for each in self.pack or ()]
        if self.pack is not None and mine.count((self.job, self.launch)) != 1:
            raise ValueError("the pack of a launch names that launch once")

    @property
    def beside(self) -> tuple[tuple[str, int], ...]:
        """The other (job, launch) on the same machine."""
        every = ((each.job, each.launch) for each in self.pack or ())
        return tuple(each for each in every if each != (self.job, self.launch))


@dataclass(frozen=True)
class LaunchReceipt:
    """Facts of one launch, as the platform told them."""

    job: str
    launch: int
    runner: str
    rung: str
    name: str
    card: str
    at_s: float
    handle: dict[str, object]  # what the runner needs to release it
    jobs: tuple[str, ...] | None = None  # all that the machine was started with; None: this one
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class SettlementRecord:
    """How the bill of one launch ended, or why it has not yet."""

    job: str
    launch: int
    outcome: Literal["closed", "pending", "bounded"]
    reason: str
    at_s: float
    until_s: float | None = None
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class LedgerEntry:
    """What one launch cost, by one dispatcher. Two may both write one: sums take each launch once."""

    job: str
    launch: int
    experiment: str
    runner: str
    rung: str
    name: str  # of the machine, which other jobs may share
    card: str
    price_class: str
    currency: str  # sums are never taken across currencies
    per_h: float  # in ``currency``, of the whole machine
    paid_s: float  # of the whole machine
    share: float  # of the machine that this job is charged for: over 0, at most 1
    amount: float  # in ``currency``: per_h * paid_s / 3600 * share
    outcome: Literal["closed", "bounded"]  # bounded: ``paid_s`` is the most it can come to
    at_s: float  # Unix time of the settlement, by the dispatcher's clock
    told: bool = False  # the platform itself told ``paid_s``; else it is counted by our clock
    team: str | None = None
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}, it is over 0 and at most 1")
        if min(self.per_h, self.paid_s, self.amount) < 0:
            raise ValueError("per_h, paid_s and amount are not negative")


@dataclass(frozen=True)
class Observation:
    """What one launch on a rented machine came to, as far as is known."""

    job: str
    launch: int
    rung: str
    end: str  # running, finished, lost, released:<code>, revoked, unclaimed, refused
    work: str  # what ``done`` counts: FLOPs of a dtype, or steps of one configuration
    start_s: float | None = None  # from its reservation to its claim
    paid_s: float = 0.0  # from its reservation to the last milestone, or to its end without one
    busy_s: float = 0.0  # in steps, up to the last milestone
    done: float = 0.0  # units of ``work`` in its artifacts
    median_step_s: float | None = None
    ratios: dict[str, object] | None = None  # how long its steps were, in medians

    def __post_init__(self) -> None:
        if min(self.paid_s, self.busy_s, self.done, self.start_s or 0.0) < 0:
            raise ValueError("start_s, paid_s, busy_s and done are not negative")


@dataclass(frozen=True)
class Observations:
    """The newest launches that one dispatcher saw on one (runner, card); bounded, one writer."""

    runner: str
    card: str
    writer: str
    rows: tuple[Observation, ...]
    write_id: str
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Lifetime:
    """How long one launch held its machine, and what was predicted when it was made.

    Beside :class:`Observation` and not in it, so that an older Tenure goes on reading those.
    """

    job: str
    launch: int
    rung: str
    end: (
        str  # as of an observation, and 'taken': released without having been asked to, by a notice
    )
    cards: int = 1
    held_s: float | None = None  # from its claim to its last sign of life; None: it never claimed
    load_s: float | None = None  # from its claim to its first step
    milestones: int = 0  # that it wrote
    predicted_s: tuple[float, ...] | None = None  # deciles 1 to 9 of the time to the job's end
    took_s: float | None = None  # that the job then took, from that prediction

    def __post_init__(self) -> None:
        if min(self.held_s or 0.0, self.load_s or 0.0, self.milestones, self.took_s or 0.0) < 0:
            raise ValueError("held_s, load_s, milestones and took_s are not negative")
        if self.cards < 1:
            raise ValueError("cards counts from 1")
        if self.predicted_s is not None and list(self.predicted_s) != sorted(self.predicted_s):
            raise ValueError("predicted_s does not fall")


@dataclass(frozen=True)
class Lifetimes:
    """The newest launches on one (runner, card), by whoever wrote last; bounded, changed by replace."""

    runner: str
    card: str
    writer: str
    rows: tuple[Lifetime, ...]
    write_id: str
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Refusal:
    """A worker that would not start, and why."""

    job: str
    launch: int
    reason: str
    differences: tuple[str, ...] = ()
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class Discard:
    """The files of one snapshot are deleted, or are about to be; its manifest stays. Create-only."""

    job: str
    attempt: int
    step: int
    save: int
    by: str
    at_s: float  # Unix time by the clock of who deleted, for people
    archive: str | None = None  # where they were copied to first, for people
    protocol: int = PROTOCOL_VERSION

    def words(self) -> str:
        """What a reader of one of them is told."""
        where = f"; a copy is in {self.archive}" if self.archive else ", and nobody kept a copy"
        return (
            f"`tenure gc` has deleted the files of step {self.step} of attempt {self.attempt}, which the job "
            f"no longer needed{where}"
        )


@dataclass(frozen=True)
class PlanRecord:
    """One version of a plan: its jobs, and what is not in their specs."""

    plan: str
    experiment: str
    jobs: tuple[str, ...]
    terms: dict[str, object]  # team, priority, deadline_h, budget, rungs, promote, ...
    version: int = 0
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        check_name(self.experiment, "experiment")
        for job in self.jobs:
            if not _JOB_ID.fullmatch(job):
                raise ValueError(f"{job!r} is no job id")


# ---------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class MetricValue:
    """One measured number with what makes it comparable."""

    value: float
    direction: Direction
    unit: str


@dataclass(frozen=True)
class BacktestValue:
    """What the backtest of one member said. ``deployable`` is set by the stage alone."""

    score: float
    passed: bool
    deployable: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Member:
    """One trained model of a record: one seed."""

    seed: int
    train: SnapshotRef
    files: dict[str, FileEntry]
    measured: tuple[str, ...]  # digests of every environment its attempts measured, in order
    requires: str | None = None  # digest of the pinned environment, under ``environments``
    evaluation: SnapshotRef | None = None
    metrics: dict[str, MetricValue] = field(default_factory=dict)
    losses: dict[str, FileEntry] = field(default_factory=dict)  # files of the evaluation snapshot
    backtest_job: SnapshotRef | None = None
    backtest: BacktestValue | None = None
    repetition: SnapshotRef | None = None  # the same training once more; of the deployed one alone

    def jobs(self) -> tuple[tuple[str, SnapshotRef | None], ...]:
        """What it rests on, by what each job did; ``None`` for one that every member needs and it lacks."""
        again = (("repetition", self.repetition),) if self.repetition else ()
        return (
            ("train", self.train),
            ("evaluate", self.evaluation),
            ("backtest", self.backtest_job),
            *again,
        )

    def refs(self) -> tuple[SnapshotRef, ...]:
        """The snapshots of those jobs that there are."""
        return tuple(ref for _, ref in self.jobs() if ref is not None)


@dataclass(frozen=True)
class JudgedMetric:
    """A metric that a retrain must not be worse in."""

    metric: str
    direction: Direction
    margin: float  # in the metric's unit
    examples: bool = True  # whether its per-example losses are judged too


@dataclass(frozen=True)
class Promote:
    """What the plan demanded, fixed before the retrain."""

    metric: str
    direction: Direction
    margin: float  # in the metric's unit
    min_score: float
    alpha: float = 0.05
    also: tuple[JudgedMetric, ...] | None = None  # in the plan's order; None: no other metric

    def __post_init__(self) -> None:
        if self.also == ():
            raise ValueError("also is empty; without another metric it is left out")

    @property
    def judged(self) -> tuple[JudgedMetric, ...]:
        """Every metric that is judged, the promoted one first."""
        return (JudgedMetric(self.metric, self.direction, self.margin), *(self.also or ()))


@dataclass(frozen=True)
class ModelRecord:
    """A model with one member per seed; content-addressed, so editing one breaks its references."""

    experiment: str
    generation: int
    entry_point: str
    config: dict[str, object]
    code: str
    data: str
    seeds: tuple[int, ...]
    members: tuple[Member, ...]
    environments: dict[str, dict[str, object]]  # by digest
    promote: Promote
    parent: str | None = None
    passed_metrics: bool = False
    passed_backtest: bool = False
    reasons: tuple[str, ...] = ()
    protocol: int = PROTOCOL_VERSION

    @cached_property
    def id(self) -> str:
        """Digest of the record's canonical JSON."""
        return short_id(encode(self))


__all__ = [name for name in dir() if not name.startswith("_")]
