"""Where a plan stands in the chain, by what the store says now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from assets.chain import STAGES, Chain, Incomplete
from tenure.dispatch.loop import Dispatcher
from tenure.errors import Blocked
from tenure_protocol.codec import short_id


@dataclass(frozen=True)
class Standing:
    """The finished stages with the ids of their jobs, and the first that is not finished."""

    finished: dict[str, tuple[str, ...]] = field(default_factory=dict)
    stage: str | None = None  # the first unfinished one; None: all are finished
    jobs: tuple[str, ...] = ()  # its jobs, those that are finished too
    open: tuple[str, ...] = ()  # what it waits for: jobs of its own, or retries of them
    blocked: str | None = None  # why the chain ends here

    def __post_init__(self) -> None:
        assert list(self.finished) == list(STAGES[: len(self.finished)])


def standing(chain: Chain) -> Standing:
    """Follow the chain from its beginning to the first stage that is not finished.

    ``deployment`` has no jobs: it is finished when there is a record to deploy, whose id stands for
    them. Reads only, but for model records. Raises StoreOutOfReach.
    """
    finished: dict[str, tuple[str, ...]] = {}
    for stage in STAGES:
        ids: tuple[str, ...] = ()
        try:
            ids = tuple(spec.id for spec in chain.specs(stage))
            ids = tuple(done.spec.id for done in chain.done(stage))
            if stage == "deployment":
                ids = (chain.second_generation().id,)
        except Incomplete as error:
            return Standing(finished, stage, ids, error.jobs)
        except Blocked as error:
            return Standing(finished, stage, ids, blocked=str(error))
        finished[stage] = ids
    return Standing(finished)


def jobs_digest(jobs: Sequence[str]) -> str:
    """Names the exact jobs of a stage: other code, data, seeds or parent give another one."""
    return short_id("\n".join(jobs).encode())


@dataclass(frozen=True)
class Count:
    """How far the jobs of a stage are."""

    jobs: int
    finished: int
    attempts_lost: int
    ended: int = 0  # over without a result

    def words(self) -> str:
        """
        >>> Count(10, 4, 1).words(), Count(3, 0, 0).words()
        ('4 of 10 jobs finished, 1 attempt lost', '0 of 3 jobs finished')
        >>> Count(5, 4, 0, ended=1).words()
        '4 of 5 jobs finished, 1 ended otherwise'
        """
        lost = self.attempts_lost
        more = f", {lost} attempt{'s' if lost > 1 else ''} lost" if lost else ""
        other = f", {self.ended} ended otherwise" if self.ended else ""
        return f"{self.finished} of {self.jobs} jobs finished{other}{more}"


def count(dispatcher: Dispatcher, jobs: Sequence[str]) -> Count:
    """Count what the dispatcher saw last."""
    finished = ended = lost = 0
    for job in jobs:
        memory = dispatcher.world.jobs.get(job)
        if memory and memory.witness:
            good = memory.witness.phase == "finished" and memory.witness.exit_code == 0
            finished += good
            ended += memory.final and not good
            lost += max(0, memory.witness.attempt - 1)
    return Count(len(jobs), finished, lost, ended)


def first_open(dispatcher: Dispatcher, jobs: Sequence[str]) -> str | None:
    """The first of the jobs that the dispatcher knows and that is not final."""
    known = dispatcher.world.jobs
    return next((job for job in jobs if job in known and not known[job].final), None)
