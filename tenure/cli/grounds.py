"""What a decision about one job is made from, as numbers with their units in the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tenure.cli.status import LOOK_EVERY_S, QUOTA_WAIT_S, Progress, is_awaited, phase_of
from tenure.dispatch.decide import JobView
from tenure.dispatch.foretell import Foreseen
from tenure.dispatch.history import History, read_observations, running_costs
from tenure.dispatch.ledger import read_ledger
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.dispatch.quality import UNKNOWN_START_S, Pace, Usual
from tenure.dispatch.quota import Left
from tenure.dispatch.rows import Place, believable
from tenure.dispatch.spending import Spent
from tenure.dispatch.timers import Milestones, milestone_interval_s
from tenure.plan.advise import Advice
from tenure.plan.learn import rescale
from tenure.plan.objective import Limits, Weights
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.fingerprint import compare, refusing, telling
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import fruitless
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import FINAL, LedgerEntry, Manifest, Observation, Witness, load
from tenure_protocol.store.api import Missing, Store
from tenure_worker.pacing import DEATH_PER_H, RESTART_S

_MOST_MILESTONES = 64  # of an attempt, each of which is a read
_MOST_CHANGES = 10

Numbers = dict[str, object]


@dataclass(frozen=True)
class Grounds:
    """What was read of one job beside the dispatcher's look."""

    history: History
    rung: str  # where it is, was last, or would be launched next; '' where its plan names none
    entries: Sequence[LedgerEntry] = ()  # its settled launches
    observed: Mapping[Place, Sequence[Observation]] = field(default_factory=dict)
    running: Mapping[str, float] = field(default_factory=dict)  # by currency: of open launches
    manifest: Manifest | None = None  # of its pointer
    budget: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by currency
    quota: Mapping[str, Left] = field(default_factory=dict)  # by rung

    @classmethod
    def of(
        cls,
        store: Store,
        dispatcher: Dispatcher,
        view: JobView,
        history: History,
        rung: str,
        clock: Clock,
    ) -> Grounds:
        """Read them. Raises StoreSilent."""
        entries, troubles = read_ledger(store, [view.job])
        history.troubles.extend(troubles)
        running: dict[str, float] = {}
        for each in running_costs(history, entries, dispatcher.rungs, clock.wall_s()):
            running[each.currency] = running.get(each.currency, 0.0) + each.amount
        return cls(
            history,
            rung,
            entries,
            read_observations(store, dispatcher.observatory.rows()),
            running,
            _manifest(store, view, history),
            _budget(dispatcher, view.plan),
            _quota(dispatcher, view),
        )


def _over(view: JobView) -> bool:
    """Whether nothing is decided about it any more."""
    return view.witness is not None and view.witness.phase in FINAL


def _manifest(store: Store, view: JobView, history: History) -> Manifest | None:
    w = view.witness
    if w is None or w.pointer is None:
        return None
    key = keys.manifest(view.job, w.pointer)
    found = store.read(key)
    try:
        return None if isinstance(found, Missing) else load(Manifest, found.body, key)
    except Corrupt as error:
        history.troubles.append(str(error))
        return None


def moved(store: Store, manifest: Manifest | None) -> list[str]:
    """What changed in the environment when the newest attempt with a milestone went on, in words.

    Looks back over as many milestones of that attempt as :data:`_MOST_MILESTONES`. Raises StoreSilent.
    """
    now = before = manifest
    for _ in range(_MOST_MILESTONES):
        if now is None or before is None or before.attempt != now.attempt or before.parent is None:
            break
        key = keys.manifest(before.job, before.parent)
        found = store.read(key)
        try:
            before = None if isinstance(found, Missing) else load(Manifest, found.body, key)
        except Corrupt:  # whoever resumes from it names it
            before = None
    if now is None or before is None or before.attempt == now.attempt:
        return []
    told = telling(refusing(compare(before.fingerprint, now.fingerprint)))
    more = [f"and {len(told) - _MOST_CHANGES} fields more"] if len(told) > _MOST_CHANGES else []
    head = f"attempt {now.attempt} went on in another environment than attempt {before.attempt}: "
    lines = [head + each.change() for each in told[:_MOST_CHANGES]]
    return [*lines, *more]


def _budget(dispatcher: Dispatcher, plan: str) -> dict[str, dict[str, float]]:
    """Amount, settled and running sums of a plan's budget, as the dispatcher counts them."""
    sums = dispatcher.spending.sums()
    found = {}
    for currency, amount in dispatcher.world.budgets.get(plan, {}).items():
        spent = sums.get((plan, currency), Spent())
        found[currency] = {"amount": amount, "settled": spent.settled, "running": spent.running}
    return found


def look(dispatcher: Dispatcher, job: str, clock: Clock) -> Tick:
    """One look; more of them while a platform is about to tell what is left on a rung of the job.

    A dispatcher launches nothing there until then, and this is to tell what it would do.
    """
    until_s = clock.monotonic_s() + QUOTA_WAIT_S
    while True:
        tick = dispatcher.look()
        if not is_awaited(dispatcher.snapshot(), job) or clock.monotonic_s() >= until_s:
            return tick
        clock.sleep(LOOK_EVERY_S)


def _quota(dispatcher: Dispatcher, view: JobView) -> dict[str, Left]:
    """What is left on its rungs, as far as their platforms have told it."""
    if _over(view):
        return {}
    seen = dispatcher.snapshot().rungs
    known = {name: seen[name].quota for name in view.rungs if name in seen}
    return {name: left for name, left in known.items() if left}


def numbers_of(dispatcher: Dispatcher, view: JobView, grounds: Grounds, clock: Clock) -> Numbers:
    """All of them, with their unit in the key; what is not known is left out."""
    w = view.witness
    numbers = _of_launches(view, grounds)
    if w:
        numbers |= _of_witness(view, w, grounds.manifest)
    numbers["rung"] = grounds.rung or None
    if not _over(view):
        numbers |= _of_rung(dispatcher, grounds.rung)
    if pace := dispatcher.observatory.pace(view.job):
        numbers |= _of_pace(pace, dispatcher.observatory.usual_of(view.job), w)
        options = dispatcher.observatory.options(view.job, pace, view.rungs)
        numbers["options"] = {
            name: {key: value for key, value in asdict(each).items() if key != "rung"}
            for name, each in options.items()
        }
    if view.advice and not _over(view):
        numbers["deadline"] = _of_deadline(view, view.advice, clock.monotonic_s())
    if best := best_milestones(dispatcher, view, grounds):
        numbers["milestones"] = best[1]
    numbers["budget"] = {currency: dict(sums) for currency, sums in grounds.budget.items()}
    numbers["quota"] = {
        name: _known({"left_h": left.hours, "renews_at_s": left.renews_at_s, "reason": left.reason})
        for name, left in grounds.quota.items()
    }
    return {name: value for name, value in _known(numbers).items() if value != {}}


def best_milestones(
    dispatcher: Dispatcher, view: JobView, grounds: Grounds
) -> tuple[Milestones, Numbers] | None:
    """How far milestones of a job would be apart at least cost, and what that is judged by.

    ``None`` while no milestone has told how long its steps and its saves are, or for one that cannot be.
    """
    m, rung = grounds.manifest, dispatcher.rungs.get(grounds.rung)
    spec = dispatcher.world.jobs[view.job].spec
    if _over(view) or m is None or rung is None or spec is None:
        return None
    m = believable(m)
    if m.ratios is None or m.save_s is None or not m.median_step_s:
        return None
    risks = dispatcher.observatory.risks(rung)
    restart_s = RESTART_S if risks.restart_s is None else risks.restart_s
    deaths = DEATH_PER_H if risks.death_per_h is None else risks.death_per_h
    try:
        own = Ratios.from_json(m.ratios)
        best = milestone_interval_s(
            own, m.save_s, m.median_step_s, restart_s, deaths, prior=risks.ratios
        )
    except ValueError:  # numbers that no cost can be counted with
        return None
    return best, {
        "best_s": best.interval_s,
        "best_steps": max(1, round(best.interval_s / m.median_step_s)),
        "best_k": best.k,
        "cost_s_per_h": best.cost_s_per_h,
        "every_steps": spec.milestone_every,
        "every_s": spec.milestone_every * m.median_step_s,
        "save_s": m.save_s,
        "restart_s": restart_s,
        "death_per_h": deaths,
    }


def milestones_line(dispatcher: Dispatcher, view: JobView, grounds: Grounds) -> str:
    """The same in words; '' where it is not known."""
    found = best_milestones(dispatcher, view, grounds)
    if found is None:
        return ""
    best, told = found
    return (
        f"milestones: its plan has one in {told['every_steps']} steps ({told['every_s']:.0f} s), one in "
        f"{told['best_steps']} ({best.interval_s:.0f} s) would cost least: {best.reason}"
    )


def cards_line(dispatcher: Dispatcher, view: JobView, rung_name: str, clock: Clock) -> str:
    """How many cards of a machine would pay for what is left, in words; '' where nothing can be said.

    Of a job that runs on several, and has told how long it is: what it takes on n of them is by alpha, as such
    work on such machines has shown it. Its cards are in its id, so nobody changes them under way.
    """
    pace, rung = view.pace, dispatcher.rungs.get(rung_name)
    if pace is None or pace.guessed or pace.left_s is None or rung is None or view.cards < 2:
        return ""
    foreseen = Foreseen(dispatcher.rungs, dispatcher.observatory)
    foreseen.at(clock.monotonic_s())
    law = foreseen.law((rung.runner_name, dispatcher.observatory.card_of(rung)), pace.work)
    counts = range(1, max(rung.capacity.cards, view.cards) + 1)
    if law is None or len(counts) < 2:
        return ""
    per_h = rung.price.per_h / len(counts) if rung.price else 0.0
    due_s = None if view.deadline_s is None else max(1.0, view.deadline_s - clock.monotonic_s())
    start_s = dispatcher.observatory.start_s(rung.name) or UNKNOWN_START_S
    best = rescale(
        view.cards,
        counts,
        law.alpha,
        pace.left_s,
        per_h,
        start_s,
        Weights(1.0, 1.0, 0.0),
        Limits(deadline_s=due_s),
    )
    if best.cards == view.cards:
        return f"cards: {best.reason}"
    words = f"`cards: {best.cards}` in its plan is for jobs that are enlisted later"
    return f"cards: {best.reason}; {words}"


def _known(numbers: Numbers) -> Numbers:
    return {name: value for name, value in numbers.items() if value is not None}


def _of_launches(view: JobView, grounds: Grounds) -> Numbers:
    history = grounds.history
    closed = {n for n, each in history.settlements.items() if each.outcome == "closed"}
    paid: dict[str, float] = {}
    for entry in grounds.entries:
        paid[entry.currency] = paid.get(entry.currency, 0.0) + entry.amount
    return {
        "launches": len(history.intents),
        "open_bills": len({intent.launch for intent in history.intents} - closed),
        "refusals": len(history.refusals),
        "rejections": view.rejections or None,
        "unclaimed": view.unclaimed or None,
        "early_losses": view.strikes or None,
        "moves": view.moves or None,
        "paid": paid,
        "running": dict(grounds.running),
    }


def _of_witness(view: JobView, w: Witness, manifest: Manifest | None) -> Numbers:
    """The lease in force too: in seconds, and in median steps, which is what K was when it was chosen."""
    silence_s = w.silence_allowed_s if w.phase == "held" else None
    step_s = manifest.median_step_s if manifest else None
    return {
        "phase": phase_of(w, view.age_s, view.watched),
        "launch": w.launched,
        "attempt": w.attempt,
        "attempts_without_a_milestone": fruitless(w),
        "step": w.pointer.step if w.pointer else None,
        "steps_total": manifest.steps_total if manifest else None,
        "age_s": round(view.age_s, 1),
        "silence_s": None if silence_s is None else round(silence_s, 1),
        "median_step_s": step_s,
        "silence_steps": silence_s / step_s if silence_s and step_s else None,
        "window_s": w.launch.window_s if w.launch and w.phase == "expected" else None,
        "barrier": w.barrier or None,
        "exit_code": w.exit_code,
    }


def _of_rung(dispatcher: Dispatcher, name: str) -> Numbers:
    """What a launch there would be given now, and what it costs."""
    rung = dispatcher.rungs.get(name)
    if rung is None:
        return {}
    risks = dispatcher.observatory.risks(rung)
    return {
        "price_per_h": rung.price.per_h if rung.price else None,
        "currency": rung.price.currency if rung.price else None,
        "claim_window_s": risks.window_s,
        "claim_window_reason": risks.reason,
        "restart_s": risks.restart_s,
        "death_per_h": risks.death_per_h,
    }


def _of_deadline(view: JobView, advice: Advice, now_s: float) -> Numbers:
    """When it is due, when it must be on the sure rung, and what the planner expects of each rung."""
    return _known(
        {
            "due_s": None if view.deadline_s is None else view.deadline_s - now_s,
            "sure_rung": advice.sure,
            "latest_start_s": advice.latest_s - now_s,
            "late_s": advice.late_s or None,
            "rungs": {
                each.rung: _known(
                    {
                        "takes_s": each.takes_s,
                        "usd": each.usd,
                        "death_per_h": each.death_per_h,
                        "sure": each.sure,
                        "held_s": until_s - now_s
                        if (until_s := advice.held.get(each.rung))
                        else None,
                    }
                )
                for each in view.prospects
            },
        }
    )


def _of_pace(pace: Pace, common: Usual | None, w: Witness | None) -> Numbers:
    """What the attempt that holds the job has shown up to its newest milestone."""
    step = w.pointer.step if w and w.pointer else 0
    return {
        "work": pace.work,
        "speed_per_s": pace.per_s,
        "useful_share": pace.share,
        "steps_measured": pace.steps,
        "left": pace.left,
        "left_guessed": pace.guessed,
        "left_s": pace.left_s,
        "eta_s": Progress.of(pace, step).eta_s,
        "usual_speed_per_s": common.per_s if common else None,
        "speed_of_usual": pace.per_s / common.per_s if common and common.per_s > 0 else None,
        "floor": common.floor if common else None,
        "seen": common.count if common else None,
        "usual_useful_share": common.share if common else None,
    }
