"""``tenure status``: every job, what it is doing, and what it waits for."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer
from rich.live import Live

from tenure.cli import outlook, screen
from tenure.cli.workplace import (
    Config,
    Json,
    Workplace,
    book_of,
    jobs_of_plan,
    known_jobs,
    open_workplace,
)
from tenure.dispatch.decide import JobView, Snapshot
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.quality import Pace
from tenure.dispatch.quota import span
from tenure.dispatch.registry import build_dispatcher
from tenure.dispatch.worth import Worth
from tenure.errors import StoreOutOfReach
from tenure.report.costs import CostRow, job_ends, of_jobs
from tenure.report.likes import kind_of, left_by_likes_s
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.lease.machine import ABSENT, Vacant, Watched, vacancy
from tenure_protocol.records import FINAL, JobSpec, Witness
from tenure_protocol.store.api import StoreSilent
from tenure_worker.claim import read_spec

_EVERY_S = 2.0
#: For the platforms that are asked what is left of a quota: what one does not tell by then is not known.
QUOTA_WAIT_S = 5.0
LOOK_EVERY_S = 0.25
_COLUMNS = ("job", "experiment", "stage", "phase", "attempt", "rung", "step", "eta", "reason")
_COSTS = (
    "of",
    "name",
    "finished",
    "in time",
    "hours",
    "paid",
    "a finished job",
    "one in time",
    "for lost attempts",
)
_LEAST_SHOWN = 8  # characters of an id

STOPPED = "stopped"  # by a corrupt object, which the reason names
UNKNOWN = "unknown"  # the store does not say
VACANT = "vacant"


@dataclass(frozen=True)
class Row:
    """One job as INTERFACES shows it."""

    job: str
    experiment: str
    stage: str | None  # None: its spec cannot be read
    phase: str
    attempt: int
    launch: int
    rung: str | None
    step: int | None  # of the stored pointer
    eta_s: float | None  # None: neither its length and speed are known, nor how long its like took
    reason: str
    exit_code: int | None = None  # of the last attempt, where it ended
    steps_total: int | None = None  # that the job takes, where its experiment told it
    eta_by: str | None = None  # 'steps': from its last milestone on; 'likes': by what its like took


@dataclass(frozen=True)
class Progress:
    """How far the attempt that holds a job is, by its newest manifest that was read."""

    steps_total: int | None = None
    eta_s: float | None = None

    @classmethod
    def of(cls, pace: Pace, step: int) -> Progress:
        """What ``pace`` says, whose manifest is of ``step``. Where the length is a guess, nothing.

        >>> pace = Pace("spot", "FLOPs of bf16", 4e12, 20.0, 30.0, 5.0, 40, 6e12)
        >>> Progress.of(pace, 100)
        Progress(steps_total=160, eta_s=37.5)
        >>> Progress.of(replace(pace, guessed=True), 100)
        Progress(steps_total=None, eta_s=None)
        """
        if pace.guessed or pace.done <= 0:
            return cls()
        return cls(step + round(pace.left * pace.steps / pace.done), pace.left_s)


class Overview:
    """Looks again and again with one watch, so that a silent holder can be told from a slow one."""

    def __init__(self, place: Workplace) -> None:
        self._place = place
        self._dispatcher: Dispatcher = build_dispatcher(place.settings, place.store)
        self._specs: dict[str, JobSpec] = {}
        self._likes: dict[tuple[object, ...], set[str]] = {}  # jobs that take about as long
        self._rungs: dict[tuple[str, int], str | None] = {}
        self._progress: dict[str, tuple[int, Pace, Progress]] = {}  # by job: attempt, its pace
        self._ledger = book_of(place)
        self.hints: list[str] = []  # of the last look: why nothing may happen to what waits

    def worths(self) -> list[Worth]:
        """The quotas of the ladder, as far as their platforms tell them soon, and their worth now."""
        until_s = SYSTEM.monotonic_s() + QUOTA_WAIT_S
        while is_awaited(self._dispatcher.snapshot()) and SYSTEM.monotonic_s() < until_s:
            SYSTEM.sleep(LOOK_EVERY_S)
            self._dispatcher.look()
        return self._dispatcher.quota_worths()

    def costs(self, only: set[str] | None = None) -> list[CostRow]:
        """What the jobs of the last look cost (those of ``only``), all attempts counted.

        Raises StoreSilent.
        """
        store, dispatcher = self._place.store, self._dispatcher
        self._ledger.look()
        entries = self._ledger.entries
        running = dispatcher.spending.open_costs(entries)
        ends = job_ends(store, dispatcher, SYSTEM)
        return of_jobs(ends if only is None else only, ends, entries, running)

    def look(self, only: set[str] | None = None) -> tuple[list[Row], dict[str, str]]:
        """Every job (or those of ``only``), and what is wrong with which key.

        Raises StoreOutOfReach when the store does not even list its plans.
        """
        tick = self._dispatcher.look()
        if keys.PLANS in tick.troubles:
            raise StoreOutOfReach(
                f"the store at {self._place.store.url} does not answer: {tick.troubles[keys.PLANS]}"
            )
        views = sorted(self._dispatcher.snapshot().jobs, key=lambda view: view.order)
        said = {action.job: outlook.wish(action, reason) for action, reason in tick.decisions}
        hints = (
            outlook.no_room(self._place.store.url),
            outlook.no_dispatcher(self._dispatcher, tick),
        )
        self.hints = [hint for hint in hints if hint]
        views = [view for view in views if only is None or view.job in only]
        for view in views:
            self._stage(view.job)  # those of all are read before likes are looked for
        rows = [self._row(view, said.get(view.job, tick.reason(view.job))) for view in views]
        if only is None:
            rows += self._local({view.job for view in views})
        return rows, dict(tick.troubles)

    def _row(self, view: JobView, reason: str) -> Row:
        stage, problem = self._stage(view.job)
        if problem and not view.broken:
            reason = f"{reason}; {problem}"
        phase = phase_of(view.witness, view.age_s, view.watched)
        if view.broken:
            phase = STOPPED
        elif view.silent:
            phase = UNKNOWN
        elif view.witness and view.witness.phase in FINAL:
            reason = _last_words(view.witness)
        row = self._made(view.job, view.experiment, stage, phase, view.witness, reason)
        if phase != "held":
            return row
        found = self._progress_of(view)
        eta_s, by = found.eta_s, "steps"
        if eta_s is None:
            eta_s, by = self._left_by_likes_s(view.job), "likes"
        told_by = None if eta_s is None else by
        return replace(row, steps_total=found.steps_total, eta_s=eta_s, eta_by=told_by)

    def _left_by_likes_s(self, job: str) -> float | None:
        """By the jobs of its configuration that are over; ``None`` where none of them took so long."""
        spec = self._specs.get(job)
        if spec is None:
            return None
        likes = self._likes[kind_of(spec)]
        lives = [row for _, row in self._dispatcher.observatory.lifetimes.rows()]
        return left_by_likes_s(job, likes, lives)

    def _progress_of(self, view: JobView) -> Progress:
        """From what the dispatcher's look has read anyway: this costs the store nothing.

        A pace is new at the very look that read its manifest, which is that of the pointer seen by it.
        Later the pointer may have moved on: what was made of the pace stands until the next one.
        """
        w, pace = view.witness, self._dispatcher.observatory.pace(view.job)
        if w is None or w.pointer is None or pace is None:
            return Progress()
        old = self._progress.get(view.job)
        if (
            old is None
            or old[0] != w.attempt
            or (old[1].steps, old[1].left) != (pace.steps, pace.left)
        ):
            old = self._progress[view.job] = w.attempt, pace, Progress.of(pace, w.pointer.step)
        return old[2]

    def _made(
        self,
        job: str,
        experiment: str,
        stage: str | None,
        phase: str,
        w: Witness | None,
        reason: str,
    ) -> Row:
        launch = w.launched if w else 0
        return Row(
            job=job,
            experiment=experiment,
            stage=stage,
            phase=phase,
            attempt=w.attempt if w else 0,
            launch=launch,
            rung=self._rung(job, launch),
            step=w.pointer.step if w and w.pointer else None,
            eta_s=None,
            reason=reason,
            exit_code=w.exit_code if w else None,
        )

    def _rung(self, job: str, launch: int) -> str | None:
        if launch and (job, launch) not in self._rungs:
            self._rungs[job, launch] = self._dispatcher.world.rung_of(job, launch)
        return self._rungs.get((job, launch))

    def _stage(self, job: str) -> tuple[str | None, str | None]:
        """The stage of a job, or what is wrong with its spec."""
        if job not in self._specs:
            memory = self._dispatcher.world.jobs.get(job)
            try:
                spec = memory.spec if memory and memory.spec else read_spec(self._place.store, job)
            except (Corrupt, StoreSilent) as error:
                return None, str(error)
            self._specs[job] = spec
            self._likes.setdefault(kind_of(spec), set()).add(job)
        return self._specs[job].stage, None

    def _local(self, named: set[str]) -> list[Row]:
        """Jobs that no plan names: scripts that claimed one by themselves."""
        rows = []
        for job, experiment in sorted(known_jobs(self._place.store).items()):
            if job in named:
                continue
            try:
                stored = read_witness(self._place.store, keys.witness(experiment, job))
                w, phase = stored.witness, phase_of(stored.witness, stored.age_s)
                reason = (
                    _last_words(w) if w and w.phase in FINAL else "local mode: no plan names it"
                )
            except (Corrupt, StoreSilent) as error:
                w, reason = None, str(error)
                phase = STOPPED if isinstance(error, Corrupt) else UNKNOWN
            rows.append(self._made(job, experiment, self._stage(job)[0], phase, w, reason))
        return rows


def is_awaited(seen: Snapshot, only: str | None = None) -> bool:
    """Whether a platform that an open job, or the one of ``only``, may go to is about to tell its quota."""
    used = {
        name
        for view in seen.jobs
        if only in (None, view.job) and not (view.witness and view.witness.phase in FINAL)
        for name in view.rungs
    }
    return any(rung.awaited for name, rung in seen.rungs.items() if name in used)


def phase_of(w: Witness | None, age_s: float, watched: Watched | None = None) -> str:
    """The stored phase, ``absent`` without a witness, or ``vacant`` as a dispatcher derives it."""
    if w is None:
        return ABSENT
    open_phase = w.phase in ("expected", "held")
    if open_phase and isinstance(vacancy(w, age_s, watched or Watched(0.0, 0.0)), Vacant):
        return VACANT
    return w.phase


def _last_words(w: Witness) -> str:
    """How a job ended, in one line: of a traceback its last."""
    if w.phase == "cancelled":
        return f"cancelled by {w.by or 'an operator'}: {w.reason or 'no reason given'}"
    if w.exit_code == 0:
        return "finished"
    lines = (w.reason or "no reason given").strip().splitlines()
    return f"ended with code {w.exit_code}: {lines[-1]}"


def status(
    plan: Annotated[str | None, typer.Option(help="Only the jobs of this plan.")] = None,
    as_json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again until every job is over, or Ctrl-C.")
    ] = False,
    config: Config = None,
) -> None:
    """Show every job: its phase, its step, and what it waits for."""
    place = open_workplace(config)
    only = jobs_of_plan(place.store, plan) if plan else None
    overview = Overview(place)
    with screen.working("reading the witnesses"):
        rows, troubles = overview.look(only)
        worths = overview.worths()
        costs = overview.costs(only)
    if watch and not as_json and sys.stdout.isatty():
        _watch_terminal(overview, only, rows)
        return
    _show(rows, as_json, worths, costs)
    said = _warned(troubles, set())
    hinted = overview.hints
    _hint(hinted)
    while watch and not _over(rows):
        SYSTEM.sleep(_EVERY_S)
        before = [(row.job, row.phase, row.attempt, row.step) for row in rows]
        rows, troubles = overview.look(only)
        if before != [(row.job, row.phase, row.attempt, row.step) for row in rows]:
            _show(rows, as_json, overview.worths(), overview.costs(only))
        said = _warned(troubles, said)
        if overview.hints != hinted and not hinted:
            _hint(overview.hints)
        hinted = overview.hints


def _watch_terminal(overview: Overview, only: set[str] | None, rows: Sequence[Row]) -> None:
    with Live(screen.table(_COLUMNS, _cells(rows)), auto_refresh=False) as live:
        while not _over(rows):
            SYSTEM.sleep(_EVERY_S)
            rows, _ = overview.look(only)
            live.update(screen.table(_COLUMNS, _cells(rows)), refresh=True)


def _over(rows: Sequence[Row]) -> bool:
    return all(row.phase in FINAL or row.phase == STOPPED for row in rows)


def _warned(troubles: dict[str, str], said: set[str]) -> set[str]:
    """Say once what is wrong with a key."""
    for key, trouble in troubles.items():
        if trouble not in said:
            screen.warn(trouble if key in trouble else f"{key}: {trouble}")
    return said | set(troubles.values())


def _hint(hints: Sequence[str]) -> None:
    for hint in hints:
        screen.warn(hint)


def _show(
    rows: Sequence[Row], as_json: bool, worths: Sequence[Worth], costs: Sequence[CostRow]
) -> None:
    if as_json:
        answer = {
            "jobs": [asdict(row) for row in rows],
            "quotas": [asdict(each) for each in worths],
            "costs": [asdict(each) for each in costs],
        }
        typer.echo(json.dumps(answer))
        return
    if not rows:
        typer.echo("no job has been enlisted yet; `tenure enlist PLAN` does that")
    else:
        screen.show(_COLUMNS, _cells(rows))
    for worth in worths:
        left = f"quota of {worth.rung}: {span(3600.0 * worth.left_h)} left; {worth.reason}"
        typer.echo(screen.plain(left))
    if paid := [each for each in costs if each.amount + each.amount_so_far > 0]:
        typer.echo("")
        screen.show(_COSTS, [_cost_cells(each) for each in paid])


def _cost_cells(row: CostRow) -> list[str]:
    of_jobs = f"{row.finished} of {row.jobs}"
    return [
        row.by,
        row.name,
        of_jobs,
        "-" if row.in_time is None else str(row.in_time),
        f"{row.paid_h:.3f}",
        f"{row.amount + row.amount_so_far:.4f} {row.currency}",
        "-" if row.per_finished is None else f"{row.per_finished:.4f}",
        "-" if row.per_in_time is None else f"{row.per_in_time:.4f}",
        f"{row.unfinished:.4f}",
    ]


def _cells(rows: Sequence[Row]) -> list[list[str]]:
    shown = _shown_chars([row.job for row in rows])
    return [
        [
            row.job[:shown],
            row.experiment,
            row.stage or "?",
            row.phase,
            str(row.attempt),
            row.rung or "-",
            _steps(row),
            "-" if row.eta_s is None else span(row.eta_s),
            row.reason,
        ]
        for row in rows
    ]


def _steps(row: Row) -> str:
    if row.step is None:
        return "-"
    return f"{row.step} of {row.steps_total}" if row.steps_total else str(row.step)


def _shown_chars(jobs: Sequence[str]) -> int:
    """How much of the ids tells them apart.

    >>> _shown_chars(["aaaaaaaaaab", "aaaaaaaaaac"]), _shown_chars(["abc"])
    (11, 8)
    """
    shown = _LEAST_SHOWN
    while len({job[:shown] for job in jobs}) < len(set(jobs)):
        shown += 1
    return shown
