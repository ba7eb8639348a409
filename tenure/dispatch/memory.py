"""What one dispatcher remembers of one job, and of one bill. Nothing here is truth; a restart rebuilds it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tenure.dispatch.faults import Fault
from tenure.dispatch.views import JobView, NoShows
from tenure_protocol.records import FINAL, Intent, JobSpec, LaunchReceipt, Witness

FIRST_REFUSAL_LOOK_S = 2.0


@dataclass(frozen=True)
class PendingLaunch:
    """A launch this dispatcher reserved without an answer; made if it turns out written."""

    launch: int
    rung: str
    reason: str


@dataclass
class JobMemory:
    """What is remembered of one job."""

    job: str
    experiment: str
    rungs: tuple[str, ...]
    priority: int
    order: int
    team: str | None = None
    plan: str = ""
    spec: JobSpec | None = None
    witness: Witness | None = None
    etag: str = ""  # as last listed
    read_etag: str = ""  # of the body that ``witness`` was decoded from
    residue: int = -1
    age_s: float = 0.0
    young_reads: int = 0
    broken: str | None = None
    broken_etag: str = ""
    broken_s: float | None = None  # since when its witness is no witness any more
    failed_launch: int = 0
    excluded: dict[str, str] = field(default_factory=dict)
    rejections: int = 0
    rejected: dict[str, int] = field(default_factory=dict)  # in a row, by rung
    unclaimed: int = 0
    no_shows: dict[str, NoShows] = field(default_factory=dict)  # by rung
    launched_on: tuple[int, str] = (0, "")  # a launch whose claim window is over, and its rung
    strikes: int = 0
    strikes_on: dict[str, int] = field(default_factory=dict)  # by rung
    unreadable: int = 0
    #: Of machines since its last milestone, by their words and the attempt.
    faults: dict[str, dict[int, Fault]] = field(default_factory=dict)
    since_s: float = 0.0  # when this dispatcher first saw the attempt that holds it
    claim_seen: bool = False  # whether that was its claim
    took_s: float = 0.0  # when the witness was last read or written
    asked_s: float | None = None  # when it first saw the request to that attempt
    not_before_s: float = 0.0  # a job that a machine failed is not launched at once
    pending: PendingLaunch | None = None
    ended: str = ""  # how the process of its open launch ended, in the words of its runner
    moves: int = 0  # how often it was asked to yield for a better machine
    moving_to: str = ""  # the rung that it was asked to yield for; '' once it is launched again
    left: dict[str, float] = field(default_factory=dict)  # rung: monotonic, passed over until then
    enlisted_s: float = 0.0  # monotonic, by the age of the first record that names it
    deadline_s: float | None = None  # monotonic; that and the plan's deadline_h
    copy_of: str = ""  # the job whose backup copy it is
    copied_for: str = ""  # and why, in the words of who enlisted it
    copied_as: str = ""  # its backup copy
    refusal_look_s: float = 0.0
    refusal_pause_s: float = FIRST_REFUSAL_LOOK_S
    over: JobView | None = None  # the view of a job that is final, made once

    @property
    def final(self) -> bool:
        """Whether nothing can happen to it any more."""
        w = self.witness
        return w is not None and w.phase in FINAL


@dataclass
class Bill:
    """One launch whose bill is not known to be closed."""

    job: str
    launch: int
    intent: Intent | None = None
    receipt: LaunchReceipt | None = None
    unmade: bool = False  # the store has said that there is no intent
    failed: bool = False  # the platform is known to have made no machine
    worked: bool = False  # there was a machine, though its receipt may be missing
    since_s: float = 0.0  # monotonic, when its machine was launched, as far as is known
    settlements: int = 0
    bound_s: float | None = None  # when its platform ends it at the latest, as last recorded
    retry_at_s: float = 0.0
    pause_s: float = 0.25

    @property
    def rung(self) -> str:
        """The rung it was launched on; '' while its intent has not been read."""
        return self.intent.rung if self.intent else ""

    @property
    def beside(self) -> tuple[tuple[str, int], ...]:
        """The (job, launch) that were launched on the same machine, as far as is known."""
        return self.intent.beside if self.intent else ()

    @property
    def cost(self) -> bool:
        """Whether there was anything to pay for, as far as is known."""
        return self.worked or (self.receipt is not None and not self.failed)
