"""When a job ends of which nobody has told how long it is: by how long its like took."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tenure.capacity.longtail import expected_remaining_s
from tenure_protocol.records import JobSpec, Lifetime


def kind_of(spec: JobSpec) -> tuple[object, ...]:
    """What jobs have in common that take about as long: all but the seed and the run.

    >>> one = JobSpec("e", "train", "training", "m:C", {"lr": 0.1}, 1, 1, "c", "d", 10)
    >>> other = JobSpec("e", "train", "training", "m:C", {"lr": 0.1}, 2, 1, "c", "d", 10)
    >>> kind_of(one) == kind_of(other)
    True
    """
    config = repr(sorted(spec.config.items()))
    return spec.kind, spec.stage, spec.entry_point, spec.code, spec.data, spec.cards, config


def left_by_likes_s(job: str, likes: Collection[str], lives: Iterable[Lifetime]) -> float | None:
    """Seconds that a job still holds machines, by those of its ``likes`` that finished.

    ``E[S - e | S > e]``: those that were over by then say nothing of one that is not; ``None`` where none took longer.
    A life counts from the claim of a launch to its last sign; a job's are added up, those that were lost too.

    >>> lives = [
    ...     Lifetime("a", 1, "r", "lost", held_s=60.0), Lifetime("a", 2, "r", "finished", held_s=100.0),
    ...     Lifetime("b", 1, "r", "finished", held_s=10.0), Lifetime("c", 1, "r", "running", held_s=40.0),
    ... ]
    >>> left_by_likes_s("c", {"a", "b", "c"}, lives), left_by_likes_s("c", {"b", "c"}, lives)
    (120.0, None)
    """
    held_s: dict[str, float] = {}
    done: set[str] = set()
    for row in lives:
        if row.job not in likes and row.job != job:
            continue
        held_s[row.job] = held_s.get(row.job, 0.0) + (row.held_s or 0.0)
        if row.end == "finished":
            done.add(row.job)
    return expected_remaining_s([held_s[like] for like in sorted(done)], held_s.get(job, 0.0))
