"""``tenure why``: the last decision about a job, with its numbers, and what is waited for now."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import typer

from tenure.cli import outlook, screen
from tenure.cli.status import STOPPED, UNKNOWN, phase_of
from tenure.cli.workplace import Config, JobName, Json, Workplace, find_job, open_workplace
from tenure.dispatch.decide import Cancel, JobView, Launch, ReleaseBill, Wait
from tenure.dispatch.loop import Tick
from tenure.dispatch.registry import build_dispatcher
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import fruitless, read_witness
from tenure_protocol.records import FINAL, Intent, Refusal, SettlementRecord, Witness, load
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_worker.exits import EXIT_CODES

_WORDS = {Launch: "launch", Cancel: "cancel", Wait: "wait"}


@dataclass
class History:
    """What the store keeps of a job's launches, oldest first; ``troubles`` are unreadable keys."""

    intents: list[Intent] = field(default_factory=list)
    settlements: dict[int, SettlementRecord] = field(default_factory=dict)  # newest, by launch
    refusals: list[Refusal] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """The JSON of INTERFACES. ``reason`` may have several lines."""

    job: str
    action: str
    reason: str
    numbers: dict[str, object]


def why(job: JobName, as_json: Json = False, config: Config = None) -> None:
    """Tell the last decision about a job, and what it waits for now."""
    place = open_workplace(config)
    with screen.working("reading the job"):
        answer = explain(place, find_job(place, job))
    if as_json:
        typer.echo(json.dumps(vars(answer)))
        return
    typer.echo(screen.plain(f"{answer.job}: {answer.action}"))
    for line in answer.reason.splitlines():
        typer.echo(screen.plain(f"  {line}"))
    for name, value in answer.numbers.items():
        typer.echo(screen.plain(f"    {name} = {value}"))


def explain(place: Workplace, job: str) -> Answer:
    """Look without acting. Raises StoreSilent where nothing at all is answered."""
    dispatcher = build_dispatcher(place.settings, place.store)
    tick = dispatcher.look()
    view = next((v for v in dispatcher.snapshot().jobs if v.job == job), None)
    if view is None:
        return _of_local(place.store, job)
    history = read_history(place.store, job)
    action, now = _decided(tick, view, history)
    hints = [outlook.no_room(place.store.url)]
    if action == "launch" and any(
        isinstance(a, Launch) and a.job == job for a, _ in tick.decisions
    ):
        hints.append(outlook.no_dispatcher(dispatcher, tick))
    reason = "\n".join([*now, *(hint for hint in hints if hint), *_history_lines(history)])
    return Answer(job, action, reason, _numbers(view, history))


def read_history(store: Store, job: str) -> History:
    """Intents, newest settlements and refusals. Raises StoreSilent."""
    history = History()
    launches = f"jobs/{job}/launches/"
    rows = [*store.list(launches), *store.list(keys.refusals(job))]
    for row in sorted(rows, key=lambda row: row.key):
        body = store.read(row.key)
        if isinstance(body, Missing):
            continue
        name = row.key.rpartition("/")[2]
        try:
            if row.key.startswith(keys.refusals(job)):
                history.refusals.append(load(Refusal, body.body, row.key))
            elif name == "intent.json":
                history.intents.append(load(Intent, body.body, row.key))
            elif name.startswith("settlement-"):
                record = load(SettlementRecord, body.body, row.key)
                old = history.settlements.get(record.launch)
                if old is None or record.at_s >= old.at_s:
                    history.settlements[record.launch] = record
        except Corrupt as error:
            history.troubles.append(str(error))
    return history


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
    refused = [f"launch {each.launch} was refused: {each.reason}" for each in history.refusals]
    bills = [
        f"the bill of launch {each.launch} is {each.outcome}: {each.reason}"
        for _, each in sorted(history.settlements.items())
    ]
    return [*refused, *bills, *history.troubles]


def _numbers(view: JobView, history: History) -> dict[str, object]:
    """Numbers with their unit in the key; what is not known is left out."""
    w = view.witness
    closed = {n for n, each in history.settlements.items() if each.outcome == "closed"}
    numbers: dict[str, object] = {
        "launches": len(history.intents),
        "open_bills": len({intent.launch for intent in history.intents} - closed),
        "refusals": len(history.refusals),
        "rejections": view.rejections or None,
    }
    if w:
        numbers |= {
            "phase": phase_of(w, view.age_s, view.watched),
            "launch": w.launched,
            "attempt": w.attempt,
            "attempts_without_a_milestone": fruitless(w),
            "step": w.pointer.step if w.pointer else None,
            "age_s": round(view.age_s, 1),
            "silence_s": round(w.silence_allowed_s, 1) if w.phase == "held" else None,
            "window_s": w.launch.window_s if w.launch and w.phase == "expected" else None,
            "barrier": w.barrier or None,
            "exit_code": w.exit_code,
        }
    return {name: value for name, value in numbers.items() if value is not None}


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
