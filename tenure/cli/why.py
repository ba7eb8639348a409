"""``tenure why``: the last decision about a job, what it was made from, and what became of its launches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import typer

from tenure.cli import outlook, screen
from tenure.cli.grounds import Grounds, cards_line, look, milestones_line, moved, numbers_of
from tenure.cli.status import STOPPED, UNKNOWN
from tenure.cli.workplace import Config, JobName, Json, Workplace, find_job, open_workplace
from tenure.dispatch import copies
from tenure.dispatch.decide import (
    Action,
    AskToYield,
    Cancel,
    EnlistCopy,
    JobView,
    Launch,
    ReleaseBill,
    TakeAway,
    Wait,
)
from tenure.dispatch.history import History, LaunchRow, launch_rows
from tenure.dispatch.history import read_history as read_history
from tenure.dispatch.loop import Tick
from tenure.dispatch.quota import span
from tenure.dispatch.registry import build_dispatcher
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.records import FINAL, Witness
from tenure_protocol.store.api import Store, StoreSilent
from tenure_worker.exits import EXIT_CODES

_WORDS: Mapping[type[Action], str] = {
    Launch: "launch",
    Cancel: "cancel",
    AskToYield: "yield",
    EnlistCopy: "copy",
    TakeAway: "revoke",
    Wait: "wait",
}


@dataclass(frozen=True)
class Answer:
    """The JSON of INTERFACES, and the launches. ``reason`` may have several lines."""

    job: str
    action: str
    reason: str
    numbers: dict[str, object]
    history: tuple[LaunchRow, ...] = ()

    def json(self) -> str:
        """As scripts read it."""
        return json.dumps({**vars(self), "history": [asdict(row) for row in self.history]})


def why(job: JobName, as_json: Json = False, config: Config = None) -> None:
    """Tell the last decision about a job, and what it waits for."""
    place = open_workplace(config)
    with screen.working("reading the job"):
        answer = explain(place, find_job(place, job))
    if as_json:
        typer.echo(answer.json())
        return
    typer.echo(screen.plain(f"{answer.job}: {answer.action}"))
    for line in answer.reason.splitlines():
        typer.echo(screen.plain(f"  {line}"))
    for name, value in _flat(answer.numbers):
        shown = f"{value:.6g}" if isinstance(value, float) else value
        typer.echo(screen.plain(f"    {name} = {shown}"))
    for row in answer.history:
        typer.echo(screen.plain(f"  {story(row)}"))


def explain(place: Workplace, job: str) -> Answer:
    """Look without acting. Raises StoreSilent where nothing at all is answered."""
    dispatcher = build_dispatcher(place.settings, place.store)
    tick = look(dispatcher, job, SYSTEM)
    view = next((v for v in dispatcher.snapshot().jobs if v.job == job), None)
    if view is None:
        return _of_local(place.store, job)
    history = read_history(place.store, job)
    rung = _rung(tick, view, history)
    grounds = Grounds.of(place.store, dispatcher, view, history, rung, SYSTEM)
    action, now = _decided(tick, view, history)
    pair = copies.told(dispatcher.world, job)
    hints = [pair, outlook.no_room(place.store.url), milestones_line(dispatcher, view, grounds)]
    hints.append(cards_line(dispatcher, view, rung, SYSTEM))
    if action == "launch" and any(
        isinstance(a, Launch) and a.job == job for a, _ in tick.decisions
    ):
        hints.append(outlook.no_dispatcher(dispatcher, tick))
    told = [*(hint for hint in hints if hint), *moved(place.store, grounds.manifest)]
    reason = "\n".join([*now, *told, *_history_lines(history)])
    rows = launch_rows(history, grounds.entries, grounds.observed, view.witness)
    return Answer(job, action, reason, numbers_of(dispatcher, view, grounds, SYSTEM), tuple(rows))


def _rung(tick: Tick, view: JobView, history: History) -> str:
    """Where a job would be launched next; else where it is, or was last; else where it may begin."""
    wanted = [a.rung for a, _ in tick.decisions if isinstance(a, Launch) and a.job == view.job]
    made = [intent.rung for intent in history.intents if intent.rung]
    return next(iter([*wanted, *made[::-1], *view.rungs]), "")


def story(row: LaunchRow) -> str:
    """One launch in a line: where and why, how it ended, and what it cost."""
    why = f"launch {row.launch} on rung {row.rung} by {row.by}: {row.reason}"
    end = f"it is {row.end}" if row.end == "running" else row.end or "how it ended was not observed"
    cost = "no cost is noted"
    if row.amount is not None and row.paid_s is not None:
        cost = f"{row.amount:.4f} {row.currency} for {span(row.paid_s)} of its machine"
    return f"{why}; {end}; its bill is {row.bill}, {cost}"


def _flat(numbers: Mapping[str, object], path: str = "") -> Iterator[tuple[str, object]]:
    """Numbers within numbers on lines of their own.

    >>> list(_flat({"left": 2.0, "budget": {"usd": {"amount": 5.0}}}))
    [('left', 2.0), ('budget.usd.amount', 5.0)]
    """
    for name, value in numbers.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield path + name, value


def _decided(tick: Tick, view: JobView, history: History) -> tuple[str, list[str]]:
    """The last decision, and sentences from it to what is waited for now."""
    w = view.witness
    if view.broken:
        return STOPPED, [view.broken, "nothing is done with this job until that is mended"]
    if view.silent:
        return UNKNOWN, [f"the store does not say: {view.silent}"]
    if w and w.phase in FINAL:
        return w.phase, _ending(w)
    decided = [(a, r) for a, r in tick.decisions if a.job == view.job]
    acts = [(a, r) for a, r in decided if not isinstance(a, ReleaseBill)]
    action = _WORDS[type(acts[-1][0])] if acts else "wait"
    now = [f"now: {outlook.wish(act, reason)}" for act, reason in decided] or [
        "now: no dispatcher has a reason"
    ]
    intent = history.intents[-1] if history.intents else None
    if intent is None:
        return action, now
    if w and w.phase in ("expected", "held") and action == "wait":
        action = "launch"
    made = f"launch {intent.launch} on rung {intent.rung} by {intent.by}: {intent.reason}"
    return action, [made, *now]


def _ending(w: Witness) -> list[str]:
    if w.phase == "cancelled":
        return [f"cancelled by {w.by or 'an operator'}: {w.reason or 'no reason given'}"]
    words = EXIT_CODES.get(w.exit_code or 0, "unknown")
    if w.exit_code == 0:
        return [f"attempt {w.attempt} finished: {json.dumps(w.result)}"]
    tail = (w.reason or "no reason given").strip().splitlines()
    return [f"attempt {w.attempt} ended with code {w.exit_code} ({words}):", *tail]


def _history_lines(history: History) -> list[str]:
    """Refusals and bills, as the reason has always told them."""
    refused = [f"launch {each.launch} was refused: {each.reason}" for each in history.refusals]
    bills = [
        f"the bill of launch {each.launch} is {each.outcome}: {each.reason}"
        for _, each in sorted(history.settlements.items())
    ]
    return [*refused, *bills, *history.troubles]


def _of_local(store: Store, job: str) -> Answer:
    """A job that no plan names: nobody decides about it."""
    reason = "no plan names it, so no dispatcher decides about it"
    for row in store.list(keys.WITNESSES):
        if not row.key.endswith(f"/{job}.json"):
            continue
        try:
            stored = read_witness(store, row.key)
        except Corrupt as error:
            return Answer(job, STOPPED, str(error), {})
        except StoreSilent as error:
            return Answer(job, UNKNOWN, str(error), {})
        w = stored.witness
        if w and w.phase in FINAL:
            return Answer(job, w.phase, "\n".join(_ending(w)), {"attempt": w.attempt})
        if w:
            numbers: dict[str, object] = {"attempt": w.attempt, "age_s": round(stored.age_s, 1)}
            return Answer(job, "wait", f"{reason}; it is {w.phase}", numbers)
    return Answer(job, "wait", reason, {})
