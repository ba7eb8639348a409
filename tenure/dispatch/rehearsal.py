"""From a plan, its rungs and what the store knows to the script of a rehearsal. Reads, and launches nothing.

How long a job is comes from the command line, else from manifests of jobs of the same configuration; how fast
rungs do it, how long machines start and last, from observations and lifetimes. What is not known is assumed, and
the assumption is named in a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from tenure.dispatch.contract import LaunchFailed, Quota, TellsQuota
from tenure.dispatch.foresight import Foresight
from tenure.dispatch.history import read_observations
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.lifetimes import LifetimeBook
from tenure.dispatch.planner import ON_DEMAND, UNKNOWN_MILESTONE_S
from tenure.dispatch.quality import UNKNOWN_START_S
from tenure.dispatch.rows import FLOPS_OF, LIKELY_DTYPES, Place, believable, peak_ratio, work_of
from tenure.errors import UsageError
from tenure.plan import throughput
from tenure.plan.enlist import plan_records
from tenure.plan.file import Plan
from tenure.plan.pinning import read_wish
from tenure.plan.rehearse_script import Allowance, Kind, Retrain, Script, Station, Trace
from tenure.plan.survival import Curve, exponential
from tenure.plan.throughput import PRIOR_NOISE, Throughput
from tenure_protocol.clock import Clock, beside
from tenure_protocol.codec import Corrupt, canonical
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.lease.machine import SLACK_S
from tenure_protocol.patience import best_k
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import JobSpec, Manifest, Observation, load
from tenure_protocol.store.api import Missing, Store, shortest_lease_s
from tenure_protocol.work import DTYPES
from tenure_worker.cargo import same_card
from tenure_worker.claim import read_spec
from tenure_worker.pacing import DEATH_PER_H, RESTART_S

_QUOTA_WAIT_S = 5.0  # for the platforms; what one does not tell by then is not played
_MOST_SPECS = 400  # of jobs that are looked at for one of the plan's configurations
_ALIKE = 3  # of which as many manifests are read
#: Beside its own spread, a speed that is taken from another card's by their peaks may be wrong by so much.
_BY_PEAKS_SD = 0.25
_LEAST_PER_H = 1e-9  # losses of a recorded market that has none


@dataclass(frozen=True)
class Hints:
    """How long a job is, as somebody says it."""

    work_flops: float | None = None
    dtype: str = "fp16"
    steps: int | None = None
    step_s: float | None = None  # on the plan's first rung
    step_s_on: Mapping[str, float] = field(default_factory=dict)  # by rung

    @property
    def any(self) -> bool:
        """Whether something is said."""
        return self.work_flops is not None or self.step_s is not None or bool(self.step_s_on)


@dataclass(frozen=True)
class Prepared:
    """What is played, what was assumed for it, and which rungs are not in it."""

    script: Script
    assumed: tuple[str, ...]
    excluded: Mapping[str, str]  # rung: why


@dataclass(frozen=True)
class _Length:
    """A whole job: what it counts, and how much of it in how many steps."""

    work: str
    amount: float
    steps: float | None


def prepare(
    plan: Plan,
    rungs: Sequence[Rung],
    store: Store,
    clock: Clock,
    hints: Hints,
    traces: Mapping[str, Trace],
    rates: Mapping[str, float],
    retrain: bool = False,
) -> Prepared:
    """The script of a plan. ``rungs`` are those of its ladder.

    Raises UsageError where nobody says how long a job is, or no rung can run it; StoreSilent.
    """
    known = _Known.read(plan, rungs, store, clock)
    assumed: list[str] = []
    ladder = [known.rungs[name] for name in plan.rungs]
    barred = {each.name: why for each in ladder if (why := _barred(each, plan.cards))}
    kinds = _kinds(plan, known, [e for e in ladder if e.name not in barred], hints, assumed)
    usable = [each for each in ladder if any(each.name in kind.laws for kind in kinds)]
    for each in ladder:
        if each not in usable:
            barred.setdefault(each.name, "nobody can say how fast it does this work")
    if not usable:
        raise UsageError(_no_rung(plan, barred))
    quotas, draws = _quotas(usable, clock, assumed)
    stations = [
        known.station(each, traces.get(each.name), draws.get(each.name), rates, plan, assumed)
        for each in usable
    ]
    script = Script(
        tuple(kind for kind in kinds for _ in plan.seeds),
        tuple(stations),
        plan.cards,
        None if plan.deadline_h is None else plan.deadline_h * 3600.0,
        dict(plan.budget),
        quotas,
        _retrain(plan, stations, kinds, assumed) if retrain else None,
    )
    return Prepared(script, tuple(dict.fromkeys(assumed)), barred)


def _barred(rung: Rung, cards: int) -> str | None:
    """Which declaration of a runner excludes the plan's jobs, or ``None``."""
    kinds = rung.runner.JOB_KINDS
    if "train" not in kinds:
        takes = ", ".join(sorted(kinds)) or "nothing"
        return f"its runner {rung.runner_name} takes no train jobs (JOB_KINDS: {takes})"
    if cards > rung.capacity.cards:
        return (
            f"a job needs {cards} cards, and a machine of its runner {rung.runner_name} has "
            f"{rung.capacity.cards} (capacity.cards)"
        )
    if rung.capacity.launches < 1:
        return f"its runner {rung.runner_name} has no slots (capacity.launches)"
    return None


def _no_rung(plan: Plan, barred: Mapping[str, str]) -> str:
    reasons = "; ".join(f"{name}: {why}" for name, why in barred.items())
    unknown = any("how fast" in why for why in barred.values())
    todo = (
        "say --step-s RUNG=SECONDS for one of them" if unknown else "name other rungs in the plan"
    )
    return f"{plan.file or plan.name}: no rung can run its jobs ({reasons}); {todo}"


# ----------------------------------------------------------------------------- what is known


@dataclass(frozen=True)
class _Known:
    """What the store tells of the rungs of a plan."""

    plan: Plan
    store: Store
    rungs: Mapping[str, Rung]
    foresight: Foresight

    @classmethod
    def read(cls, plan: Plan, rungs: Iterable[Rung], store: Store, clock: Clock) -> _Known:
        observed = [
            (place, row) for place, rows in read_observations(store).items() for row in rows
        ]
        book = LifetimeBook(store, clock, "rehearse")
        book.read()
        return cls(plan, store, {r.name: r for r in rungs}, Foresight(observed, book.rows()))

    def rows(self, rung: str) -> list[Observation]:
        return [row for _, row in self.foresight.observed if row.rung == rung]

    def place(self, rung: Rung) -> Place:
        """The runner, and the card that was measured there last, else that of tenure.toml."""
        measured = [
            card
            for (runner, card), row in self.foresight.observed
            if runner == rung.runner_name and row.rung == rung.name and row.done
        ]
        return rung.runner_name, measured[-1] if measured else rung.card

    def law(self, rung: Rung, work: str) -> tuple[Throughput, str] | None:
        """How fast a rung does a kind of work, and what was assumed for it; ``None``: nobody can say."""
        place, sight = self.place(rung), self.foresight
        if sight.speeds(place, work):
            return sight.law(place, work), ""
        places = {at for at, row in sight.observed if row.work == work and sight.speeds(at, work)}
        seen = max(places, key=lambda at: (len(sight.speeds(at, work)), at), default=None)
        if seen is not None and (ratio := _ratio(place[1], seen[1], work)):
            law, times = sight.law(seen, work), f"{ratio:.3g} times as fast as on {seen[1]}"
            return _scaled(
                law, ratio, place != seen
            ), f"rung {rung.name} does {work} {times}, by peaks"
        if start := sight.cold_start(place, work):
            return sight.law(place, work), f"rung {rung.name} reaches {start.reason}"
        return None

    def station(
        self,
        rung: Rung,
        trace: Trace | None,
        draws_per_h: float | None,
        rates: Mapping[str, float],
        plan: Plan,
        assumed: list[str],
    ) -> Station:
        """A rung as it is played."""
        name, wall_s, sight = rung.name, rung.capacity.wall_s, self.foresight
        like = [r.name for r in self.rungs.values() if r.price_class == rung.price_class]
        starts_s = sight.starts_s(name)
        if not any(row.start_s is not None for row in self.rows(name)):
            assumed.append(f"no start on rung {name} has been seen: it takes {UNKNOWN_START_S:g} s")
        if trace is None and not any(sight.lives(each) for each in like):
            words = f"a loss in {1 / DEATH_PER_H:g} h of a machine"
            assumed.append(f"no life on rung {name} or one like it has been seen: {words}")
        price = rung.price or Price("usd", 0.0)
        return Station(
            name,
            self.place(rung)[1],
            rung.capacity.launches,
            starts_s,
            sight.curve(name, wall_s, like),
            self._expected(name, wall_s, like, trace),
            price.currency,
            price.per_h,
            price.usd_per_h(rates),
            rung.price_class == ON_DEMAND,
            sight.load_s(name),
            sight.save_s(name),
            self._silence_s(name, plan),
            wall_s,
            rung.capacity.cards,
            rung.capacity.per_launch,
            rung.runner_name if draws_per_h else "",
            draws_per_h or 0.0,
            trace,
        )

    def _expected(
        self, name: str, wall_s: float | None, like: Sequence[str], trace: Trace | None
    ) -> Curve:
        """Lives as the dispatcher expects them: by what it has seen; of a recorded market by its rate, if nothing."""
        if trace is None or any(row.start_s is not None for row in self.rows(name)):
            return self.foresight.curve(name, wall_s, like)
        return exponential(max(trace.losses_per_h(), _LEAST_PER_H) / 3600.0, wall_s)

    def _silence_s(self, name: str, plan: Plan) -> float:
        """Until a loss is noticed: the lease by the steps that were seen there, and the dispatcher's slack."""
        floor_s = shortest_lease_s(self.store.deadline_s)
        rows = [row for row in self.rows(name) if row.median_step_s]
        if not rows:
            return min(floor_s, plan.max_silence_s) + SLACK_S
        ratios = Ratios()
        for row in rows:
            try:
                ratios.merge(Ratios.from_json(row.ratios) if row.ratios else Ratios())
            except ValueError:  # of a rented machine's making: those of the others count
                continue
        step_s = median(row.median_step_s or 0.0 for row in rows)
        k = best_k(ratios, step_s, RESTART_S, DEATH_PER_H).k
        return min(max(floor_s, k * step_s), plan.max_silence_s) + SLACK_S


def _ratio(there: str, here: str, work: str) -> float | None:
    """How many times as fast one card is as another, by their peaks; 1 for the same card."""
    if there == here or same_card(there, here):
        return 1.0
    dtype = work.removeprefix(FLOPS_OF)
    dtypes = LIKELY_DTYPES if dtype == work else (dtype,)
    return next((found for each in dtypes if (found := peak_ratio(there, here, each))), None)


def _scaled(law: Throughput, ratio: float, elsewhere: bool) -> Throughput:
    """The law of another card: the same times a ratio, and less sure."""
    more = (_BY_PEAKS_SD / law.noise) ** 2 if elsewhere and law.noise > 0 else 0.0
    ss, sa, aa = law.cov
    return replace(law, log_s=law.log_s + math.log(ratio), cov=(ss + more, sa, aa))


# ------------------------------------------------------------------------ how long a job is


def _kinds(
    plan: Plan, known: _Known, rungs: Sequence[Rung], hints: Hints, assumed: list[str]
) -> list[Kind]:
    """A kind of job for each point of the grid, in its order."""
    points = plan.points()
    if hints.any:
        kind = _hinted(plan, known, rungs, hints, assumed)
        return [replace(kind, name=_named(point)) for point in points]
    specs = _specs(known)
    lengths = [_length(known.store, [s for s in specs if s.config == each]) for each in points]
    told = [each for each in lengths if each is not None]
    if not told:
        raise UsageError(
            f"nobody has said yet how long a job of {plan.file or plan.name} is: no job of its "
            "configurations has a milestone in the store; say --step-s SECONDS --steps N (on the plan's "
            "first rung), or --work FLOPS of one job with --dtype"
        )
    longest = max(told, key=lambda each: (each.steps or 0.0, each.amount))
    unseen = sum(each is None for each in lengths)
    if unseen:
        assumed.append(
            f"{unseen} of {len(points)} points of the grid have not been seen: they are taken for as long as "
            f"the longest that was, {longest.amount:.4g} {longest.work}"
        )
    return [
        _kind(plan, known, rungs, _named(point), length or longest, assumed)
        for point, length in zip(points, lengths, strict=True)
    ]


def _kind(
    plan: Plan,
    known: _Known,
    rungs: Sequence[Rung],
    name: str,
    length: _Length,
    assumed: list[str],
) -> Kind:
    laws, excluded = {}, {}
    for rung in rungs:
        found = known.law(rung, length.work)
        if found is None:
            excluded[rung.name] = f"nobody can say how fast it does {length.work}"
            continue
        laws[rung.name] = found[0]
        if found[1]:
            assumed.append(found[1])
    steps = length.steps
    if steps:
        every = length.amount * min(1.0, plan.milestone_every / steps)
    else:
        first = next(iter(laws.values()), None)
        every = first.per_s(plan.cards) * UNKNOWN_MILESTONE_S if first else length.amount
        assumed.append(
            f"a milestone is written every {UNKNOWN_MILESTONE_S / 60:g} min on rung {next(iter(laws), '-')}"
        )
    return Kind(name, length.amount, every, laws, excluded)


def _hinted(
    plan: Plan, known: _Known, rungs: Sequence[Rung], hints: Hints, assumed: list[str]
) -> Kind:
    if hints.work_flops is not None:
        length = _Length(f"{FLOPS_OF}{hints.dtype}", hints.work_flops, hints.steps)
        return _kind(plan, known, rungs, "job", length, assumed)
    assert hints.steps is not None
    given = {name: 1.0 / seconds for name, seconds in hints.step_s_on.items()}
    if hints.step_s is not None:
        given.setdefault(plan.rungs[0], 1.0 / hints.step_s)
    laws: dict[str, Throughput] = {}
    for rung in rungs:
        per_s = given.get(rung.name)
        if per_s is None:
            per_s = _by_peaks(known, rung, given, assumed)
        if per_s is not None:
            one_card = per_s / plan.cards**throughput.PRIOR_ALPHA
            laws[rung.name] = throughput.known(one_card, throughput.PRIOR_ALPHA, PRIOR_NOISE)
    every = min(plan.milestone_every, hints.steps)
    return Kind("job", float(hints.steps), float(every), laws)


def _by_peaks(
    known: _Known, rung: Rung, given: Mapping[str, float], assumed: list[str]
) -> float | None:
    """Steps a second by the peaks of two cards, from the first rung that something is said of."""
    card = known.place(rung)[1]
    for name, per_s in given.items():
        other = known.place(known.rungs[name])[1]
        if ratio := _ratio(card, other, ""):
            if ratio != 1.0:
                assumed.append(f"rung {rung.name} is {ratio:.3g} times as fast as {name}, by peaks")
            return per_s * ratio
    return None


def _named(point: Mapping[str, object]) -> str:
    return canonical(point).decode()


def _length(store: Store, specs: Sequence[JobSpec]) -> _Length | None:
    """How long jobs of one configuration were, by the manifests of the newest that have one: the median."""
    lengths: list[_Length] = []
    for spec in specs:
        found = _read_length(store, spec)
        if found is not None:
            lengths.append(found)
        if len(lengths) == _ALIKE:
            break
    lengths.sort(key=lambda each: each.amount)
    return lengths[len(lengths) // 2] if lengths else None


def _specs(known: _Known) -> list[JobSpec]:
    """Jobs of the plan's experiment class, of its own name first, the newest version of each first."""
    store, plan = known.store, known.plan
    records = plan_records(store)
    records.sort(key=lambda record: (record.plan != plan.name, -record.version))
    jobs = list(dict.fromkeys(job for record in records for job in record.jobs))
    found = []
    for job in jobs[:_MOST_SPECS]:
        try:
            spec = read_spec(store, job)
        except Corrupt:
            continue
        if spec.entry_point == plan.experiment and spec.kind == "train":
            found.append(spec)
    return found


def _read_length(store: Store, spec: JobSpec) -> _Length | None:
    try:
        w = read_witness(store, keys.witness_of(spec)).witness
        if w is None or w.pointer is None:
            return None
        key = keys.manifest(spec.id, w.pointer)
        body = store.read(key)
        if isinstance(body, Missing):
            return None
        manifest = believable(load(Manifest, body.body, key))
    except Corrupt:
        return None
    ended = w.phase == "finished" and w.exit_code == 0
    steps = manifest.steps_total or (manifest.step if ended else None)
    if not steps:
        return None
    each = manifest.flops_per_step or 1.0
    return _Length(work_of(spec, manifest), steps * each, float(steps))


# ------------------------------------------------------------------------ quotas and the pin


def _quotas(
    rungs: Sequence[Rung], clock: Clock, assumed: list[str]
) -> tuple[dict[str, Allowance], dict[str, float]]:
    """What is left of each runner's quota now, and what an hour of each rung takes of it."""
    runners = {rung.runner_name: rung.runner for rung in rungs}
    boxes = {
        name: beside(clock, runner.quota, f"quota of {name}")
        for name, runner in runners.items()
        if isinstance(runner, TellsQuota)
    }
    until_s = clock.monotonic_s() + _QUOTA_WAIT_S
    quotas: dict[str, Allowance] = {}
    draws: dict[str, float] = {}
    for name, box in boxes.items():
        ended = box.get(max(0.0, until_s - clock.monotonic_s()))
        if ended is None or ended.error is not None:
            known = ended is not None and isinstance(ended.error, LaunchFailed)
            why = str(ended.error) if known and ended else "its platform does not tell it"
            assumed.append(f"the quota of runner {name} is not known ({why}): none is played")
            continue
        if ended.value is None:
            continue  # this account has none
        quotas[name] = _allowance(ended.value, clock)
        for rung in rungs:
            if rung.runner_name == name:
                per_h = _draws(rung, ended.value.unit)
                draws[rung.name] = per_h
                if not per_h:
                    assumed.append(
                        f"rung {rung.name} has no price in {ended.value.unit}: its quota is not played"
                    )
    return quotas, draws


def _allowance(quota: Quota, clock: Clock) -> Allowance:
    renews_in_s = None
    if quota.renews_at_s is not None and quota.renews_at_s > clock.wall_s():
        renews_in_s = quota.renews_at_s - clock.wall_s()
    granted = quota.granted if math.isfinite(quota.granted) else 0.0
    return Allowance(quota.left, max(0.0, granted), renews_in_s)


def _draws(rung: Rung, unit: str) -> float:
    """What an hour of a machine takes of a quota; 0 where that is not known."""
    if unit == "h":
        return 1.0
    price = rung.price
    return price.per_h if price and price.currency.lower() == unit.lower() else 0.0


def _retrain(
    plan: Plan, stations: Sequence[Station], kinds: Sequence[Kind], assumed: list[str]
) -> Retrain:
    """The pinned training: every retrain seed, and the first of them once more for the repetition."""
    wish = read_wish(plan)
    card = wish.card or (wish.environment or {}).get("card")
    jobs = len(plan.retrain_seeds) + 1
    if not isinstance(card, str):
        assumed.append(
            "the retrain is pinned to the card on which most seeds of the promoted point ended; which point "
            "that is is drawn"
        )
        return Retrain(jobs)
    pinned = tuple(s.name for s in stations if same_card(card, s.card))
    if not any(name in kind.laws for name in pinned for kind in kinds):
        cards = ", ".join(f"{s.name}: {s.card}" for s in stations)
        raise plan.error(
            ("pin",), f"no rung of the plan has the card {card!r} for the retrain ({cards})"
        )
    return Retrain(jobs, pinned)


def check_dtype(dtype: str) -> None:
    """Raise UsageError for a format that no work is told in."""
    if dtype not in DTYPES:
        raise UsageError(f"--dtype {dtype!r} is none of {', '.join(DTYPES)}")
