"""What was lost on the way: work done again, time to start again, time until a loss was seen, and saves.

Read from what every attempt left under its own prefix: the manifests of its milestones, and the last events
that it recorded. A step of which neither tells was done by nobody that anyone knows of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from tenure.dispatch.history import LaunchRow
from tenure.dispatch.rows import MOST_SECONDS, believable
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import Lifetime, Manifest, load
from tenure_protocol.store.api import Missing, Store

LOST = "lost"


@dataclass(frozen=True)
class Attempt:
    """What one attempt of a job left behind."""

    number: int
    began_at: int | None  # the step that it went on from; None: it has no milestone
    reached: int  # the last step of which it left a word
    saves: int
    save_s: float  # that its loop stood still for all of them, by the last one
    busy_s: float  # in steps, up to its last milestone
    step_s: float | None = None  # median


@dataclass(frozen=True)
class Progress:
    """What the attempts of some jobs came to."""

    finished: int  # jobs
    without_loss: int  # of them: no attempt did anything that had to be done again
    attempts: int
    lost_steps: int  # done again
    lost_s: float  # that they took, or that a lost holder lived on after its last milestone
    restarts: int  # launches after the first of a job that came to a first step
    restart_s: float  # from their reservation to their first step, as far as it was seen
    saves: int
    save_s: float  # that loops stood still to write snapshots
    busy_s: float  # in steps
    delays_s: tuple[float, ...]  # from the last sign of a lost holder to the next reservation

    @property
    def share_without_loss(self) -> float | None:
        """Of the jobs that finished; ``None`` where none did."""
        return self.without_loss / self.finished if self.finished else None

    @property
    def save_share(self) -> float | None:
        """Of the time that loops worked and saved; ``None`` where none did."""
        whole = self.busy_s + self.save_s
        return self.save_s / whole if whole > 0 else None

    @property
    def move_share(self) -> float | None:
        """Work done again and time to start again, of that and the work; ``None`` without any work."""
        extra = self.lost_s + self.restart_s
        whole = self.busy_s + extra
        return extra / whole if whole > 0 else None

    @property
    def delay_s(self) -> float | None:
        """Median time until a loss was acted on; ``None`` where nothing was seen to be lost."""
        return median(self.delays_s) if self.delays_s else None


def read_attempts(store: Store, job: str) -> tuple[list[Attempt], list[str]]:
    """What every attempt of a job left, the oldest first, and what cannot be read.

    One listing and two reads an attempt: its last manifest and its last chunk of events. Raises StoreSilent.
    """
    manifests: dict[int, list[tuple[int, int, str]]] = {}  # by attempt: save, step, key
    chunks: dict[int, list[str]] = {}
    prefix = keys.attempts(job)
    for row in store.list(prefix):
        number, _, rest = row.key.removeprefix(prefix).partition("/")
        parts = rest.split("/")
        if not number.isdigit():
            continue
        if len(parts) == 3 and parts[0] == "milestones" and parts[2] == "manifest.json":
            step, _, save = parts[1].partition("-")
            if step.isdigit() and save.isdigit():
                manifests.setdefault(int(number), []).append((int(save), int(step), row.key))
        elif len(parts) == 2 and parts[0] == "events" and parts[1].endswith(".jsonl"):
            chunks.setdefault(int(number), []).append(row.key)
    found, troubles = [], []
    for attempt in sorted(manifests.keys() | chunks.keys()):
        saves = manifests.get(attempt, [])
        newest, wrong = _manifest(store, max(saves)[2]) if saves else (None, "")
        troubles += [wrong] if wrong else []
        said = _last_step(store, max(chunks[attempt])) if attempt in chunks else 0
        reached = max([said, *(step for _, step, _ in saves)])
        found.append(_attempt(attempt, newest, len(saves), reached))
    return found, troubles


def _manifest(store: Store, key: str) -> tuple[Manifest | None, str]:
    body = store.read(key)
    try:
        return (
            (None, "")
            if isinstance(body, Missing)
            else (believable(load(Manifest, body.body, key)), "")
        )
    except Corrupt as error:
        return None, str(error)


def _attempt(number: int, newest: Manifest | None, saves: int, reached: int) -> Attempt:
    if newest is None:
        return Attempt(number, None, reached, saves, 0.0, 0.0)
    return Attempt(
        number,
        newest.from_step,
        reached,
        saves,
        min(saves * (newest.save_s or 0.0), MOST_SECONDS),
        newest.busy_s,
        newest.median_step_s,
    )


def _last_step(store: Store, key: str) -> int:
    """The last step that a chunk of events names; 0 for one that names none."""
    body = store.read(key)
    if isinstance(body, Missing):
        return 0
    for line in reversed(body.body.decode("utf-8", "replace").splitlines()):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        step = event.get("step") if isinstance(event, dict) else None
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            return step
    return 0


def lost_steps(attempts: Sequence[Attempt]) -> list[tuple[int, float]]:
    """Steps of each attempt that a later one did again, and the seconds they took, where they are known.

    An attempt that left no milestone began where the one before it left off at the latest.

    >>> first, second = Attempt(1, 0, 130, 1, 0.0, 0.0, 2.0), Attempt(2, 100, 200, 1, 0.0, 0.0)
    >>> lost_steps([first, second])
    [(30, 60.0), (0, 0.0)]
    """
    found = []
    for place, each in enumerate(attempts):
        later = [other.began_at for other in attempts[place + 1 :] if other.began_at is not None]
        again = max(0, each.reached - min(later)) if later else 0
        found.append((again, again * (each.step_s or 0.0)))
    return found


def progress_of(
    attempts: Mapping[str, Sequence[Attempt]],
    finished: Iterable[str],
    launches: Mapping[str, Sequence[LaunchRow]],
    lifetimes: Iterable[Lifetime],
) -> Progress:
    """Over the jobs of ``attempts``; rows of lifetimes of other jobs are left out."""
    lives = {(row.job, row.launch): row for row in lifetimes}
    done = set(finished) & attempts.keys()
    total = Progress(len(done), 0, 0, 0, 0.0, 0, 0.0, 0, 0.0, 0.0, ())
    for job, found in attempts.items():
        lost = lost_steps(found)
        rows = launches.get(job, ())
        restarts = [s for row in rows[1:] if (s := _restart_s(row, lives)) is not None]
        steps = sum(again for again, _ in lost)
        after_s = sum(_lost_s(row, lives) for row in rows)
        total = replace(
            total,
            without_loss=total.without_loss + (job in done and steps == 0 and after_s == 0),
            attempts=total.attempts + len(found),
            lost_steps=total.lost_steps + steps,
            lost_s=total.lost_s + max(after_s, sum(seconds for _, seconds in lost)),
            restarts=total.restarts + len(restarts),
            restart_s=total.restart_s + sum(restarts),
            saves=total.saves + sum(each.saves for each in found),
            save_s=total.save_s + sum(each.save_s for each in found),
            busy_s=total.busy_s + sum(each.busy_s for each in found),
            delays_s=(*total.delays_s, *_delays_s(rows, lives)),
        )
    return total


def _restart_s(row: LaunchRow, lives: Mapping[tuple[str, int], Lifetime]) -> float | None:
    """From a launch's reservation to its first step; ``None`` where it was not seen to claim."""
    if row.start_s is None:
        return None
    life = lives.get((row.job, row.launch))
    return row.start_s + ((life.load_s or 0.0) if life else 0.0)


def _lost_s(row: LaunchRow, lives: Mapping[tuple[str, int], Lifetime]) -> float:
    """Seconds that a holder that was lost worked on after its last milestone, by its last sign of life.

    It renews between two steps, so that a sign of life is one of work.
    """
    life = lives.get((row.job, row.launch))
    if row.end != LOST or life is None or life.held_s is None or row.start_s is None:
        return 0.0
    kept_s = (row.seen_s or 0.0) - row.start_s if life.milestones else life.load_s or 0.0
    return max(0.0, life.held_s - max(kept_s, 0.0))


def _delays_s(
    rows: Sequence[LaunchRow], lives: Mapping[tuple[str, int], Lifetime]
) -> Iterable[float]:
    """For each holder that was lost: from its last sign of life to the next launch of its job.

    Both are times of the dispatchers that saw and made them.
    """
    for row, following in pairwise(rows):
        life = lives.get((row.job, row.launch))
        if row.end != LOST or row.start_s is None or life is None or life.held_s is None:
            continue
        yield max(0.0, following.at_s - (row.at_s + row.start_s + life.held_s))
