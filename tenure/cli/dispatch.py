"""``tenure dispatch``: a dispatcher in the foreground."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Annotated

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config, open_workplace
from tenure.dispatch.copies import spare
from tenure.dispatch.decide import Action, Cancel, EnlistCopy, Launch, ReleaseBill, Wait
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.dispatch.registry import build_dispatcher
from tenure.errors import Blocked, StoreOutOfReach
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import FINAL
from tenure_protocol.store.api import Store
from tenure_worker.claim import read_spec

_EVERY_S = 0.5
_ANSWER_S = 60.0  # for platforms to tell what they still run, once nothing is left to do
_SHOWN_CHARS = 10  # of an id
_NAMED = 6  # jobs in one sentence
_NUMBER = re.compile(r"\d+")


def dispatch(
    for_s: Annotated[
        float | None, typer.Option("--for-s", min=0.0, help="End after so many seconds.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One round.")] = False,
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done",
            help="End once no job is open, no bill either, and no machine runs without one; with 1 "
            "if a job has no result.",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Launch and watch jobs until Ctrl-C; print new decisions."""
    place = open_workplace(config)
    dispatcher = build_dispatcher(place.settings, place.store)
    story = Story(dispatcher)
    end_s = None if for_s is None else SYSTEM.monotonic_s() + for_s
    last = _LastSweep(dispatcher, story)
    dispatcher.keep_watching()
    try:
        while True:
            tick = dispatcher.tick()
            story.tell(tick)
            if once:
                _answered(tick, place.store.url)
                return
            if until_done and last.over():
                _demand_results(dispatcher, place.store)
                return
            if end_s is not None and SYSTEM.monotonic_s() >= end_s:
                break
            SYSTEM.sleep(_EVERY_S)
    finally:
        dispatcher.leave()
        if dispatcher.notifier:
            dispatcher.notifier.close()
    if until_done:
        raise Blocked(
            f"jobs, bills or machines are still open after {for_s:g} s; `tenure status` lists them"
        )


class _LastSweep:
    """Whether everything is over, the machines that nobody keeps a bill of too.

    Not ``Dispatcher.drain``: a job that is stopped by a corrupt object keeps its bill open, and what a
    person has to mend is nothing to wait for.
    """

    def __init__(self, dispatcher: Dispatcher, story: Story) -> None:
        self._dispatcher = dispatcher
        self._story = story
        self._began_s: float | None = None

    def over(self) -> bool:
        """Looked at after each round: rounds end what the sweep has found, and ask again."""
        sweeper = self._dispatcher.sweeper
        if not _nothing_left(self._dispatcher):
            self._began_s = None
            return False
        if self._began_s is None:
            sweeper.sweep(at_once=True)
            self._story.tell(Tick((), dict(sweeper.troubles)))
            self._began_s = SYSTEM.monotonic_s()
        silent = SYSTEM.monotonic_s() - self._began_s >= _ANSWER_S  # a runner that does not tell
        return sweeper.clean or (silent and not sweeper.orphans)


class Story:
    """Prints a decision when it is another than the last about its job; numbers alone are no news."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._world = dispatcher.world
        self._told: dict[str, str] = {}

    def tell(self, tick: Tick) -> None:
        """Print what is new in this round."""
        for action, reason in tick.decisions:
            if self._over_before(action):
                continue
            bill = action.launch if isinstance(action, ReleaseBill) else ""
            words = f"{_verb(action)}: {reason}"
            if action.job in tick.unmade and isinstance(action, Launch):
                words = f"not launched on {action.rung}: {tick.unmade[action.job]}"
            if self._new(f"{action.job} {bill}", words):
                typer.echo(screen.plain(f"{action.job[:_SHOWN_CHARS]}  {words}"))
        for key, trouble in tick.troubles.items():
            if self._new(key, trouble):
                screen.warn(trouble if key in trouble else f"{key}: {trouble}")

    def _over_before(self, action: Action) -> bool:
        """Whether a job was over when we first saw it: old news, and in an old store a lot of it."""
        memory = self._world.jobs.get(action.job)
        return (
            isinstance(action, Wait)
            and memory is not None
            and memory.final
            and f"{action.job} " not in self._told
        )

    def _new(self, subject: str, words: str) -> bool:
        shape = _NUMBER.sub("#", words)
        if self._told.get(subject) == shape:
            return False
        self._told[subject] = shape
        return True


def _verb(action: Action) -> str:
    if isinstance(action, Launch):
        return f"launch on {action.rung}"
    if isinstance(action, ReleaseBill):
        return f"close the bill of launch {action.launch}"
    if isinstance(action, EnlistCopy):
        return f"enlist a backup copy for {action.rung}"
    return "cancel" if isinstance(action, Cancel) else "wait"


def _answered(tick: Tick, url: str) -> None:
    if keys.PLANS in tick.troubles:
        raise StoreOutOfReach(f"the store at {url} does not answer: {tick.troubles[keys.PLANS]}")


def _demand_results(dispatcher: Dispatcher, store: Store) -> None:
    """Raises Blocked for jobs that are over without a result, or stopped, and were not retried."""
    jobs = dispatcher.world.jobs
    lacking = []
    for job, each in jobs.items():
        w = each.witness
        if spare(jobs, job):
            continue
        if each.broken or (w and w.phase in FINAL and w.exit_code != 0):
            try:
                spec = read_spec(store, job)
                retried = replace(spec, run=spec.run + 1).id in jobs
            except Corrupt:
                retried = False
            if not retried:
                lacking.append(job)
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise Blocked(
            f"{len(lacking)} of {len(jobs)} jobs ended without a result or are stopped: "
            f"{', '.join(lacking[:_NAMED])}{more}; `tenure why JOB` says why, `tenure retry JOB` "
            "runs one again"
        )


def _nothing_left(dispatcher: Dispatcher) -> bool:
    """Whether every job is over or stopped by a corrupt object, and every bill is closed."""
    world = dispatcher.world
    if not world.whole:
        return False
    open_bills = [
        bill
        for (job, _), bill in world.bills.items()
        if not (job in world.jobs and world.jobs[job].broken)
    ]
    return not open_bills and all(each.final or each.broken for each in world.jobs.values())
