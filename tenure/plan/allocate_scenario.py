"""What an allocation is asked: jobs, rungs, and what limits them; a YAML file, or records made in code.

The file is read strictly: an unknown key, a negative price or a number that is none is one sentence with
file, line and dotted key. ``tenure allocate --schema`` prints the JSON schema; docs/allocate.md has the words.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)

from tenure.bad_input import KeyPath, Place, did_you_mean, read_text
from tenure.errors import UsageError
from tenure.plan.advise import LONGEST_H as LONGEST_H
from tenure.plan.yaml_lines import parse

USD = "usd"
WEEK_H = 168.0
LEAST_H = 1e-6
#: Renewals of one quota within the horizon: each is a period of the model.
MOST_RENEWALS = 60
#: A price, a rate, a budget, a quota; and dollars for an hour of a launch. With ten years of hours it makes
#: 1e14, which a double still tells from a tenth of a dollar more; HiGHS takes a cost of 1e20 to be infinite.
MOST = 1e9
MOST_COUNT = 1_000_000  # cards, and launches at once
LEAST_SPEED, MOST_SPEED = 1e-6, 1e6
MOST_FLOPS = 1e30

Kind = Literal["train", "evaluate", "backtest", "dataset"]
Text = Annotated[str, Field(min_length=1)]
Hours = Annotated[float, Field(ge=LEAST_H, le=LONGEST_H)]
Amount = Annotated[float, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Flops = Annotated[float, Field(ge=1, le=MOST_FLOPS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Price(_Strict):
    """What an hour of one launch costs: a machine with all its cards."""

    currency: Text = USD
    per_h: Annotated[Amount, Field(description="of one launch, in `currency`")]


class Quota(_Strict):
    """What is left of a rung's weekly hours, or of a balance, and when it is renewed."""

    left: Annotated[Amount, Field(description="what is left now, in `unit`")]
    unit: Annotated[
        Text,
        Field(description="`h`: hours of launches; else the currency of the rung's price"),
    ] = "h"
    renews_in_h: Annotated[
        Hours | None, Field(description="when it is renewed; none: never within the horizon")
    ] = None
    granted: Annotated[
        Amount | None,
        Field(description="what a renewal brings it to, whatever was left; default: `left`"),
    ] = None
    every_h: Annotated[
        float, Field(ge=0.01, le=LONGEST_H, description="from one renewal to the next")
    ] = WEEK_H


class Job(_Strict):
    """What is to be done. Its work is given in one of three ways: `hours`, `hours_on` or `flops`."""

    name: Text
    kind: Kind = "train"
    hours: Annotated[Hours | None, Field(description="on its cards, at `speed` 1")] = None
    hours_on: Annotated[
        dict[str, Hours] | None,
        Field(description="by rung, as it takes there; a rung that is not named cannot take it"),
    ] = None
    flops: Annotated[Flops | None, Field(description="by all its cards together")] = None
    cards: Annotated[Count, Field(description="of one launch")] = 1
    environment: Annotated[
        Text | None, Field(description="the environment class it is pinned to; none: any will do")
    ] = None
    critical: Annotated[
        bool | None,
        Field(description="only on rungs that are sure, not on spot; none: if it is pinned"),
    ] = None
    deadline_h: Annotated[Hours | None, Field(description="from now; none: the horizon")] = None
    budget: Annotated[
        dict[str, Amount], Field(description="the most it may cost, by currency")
    ] = {}
    milestone_h: Annotated[
        Hours, Field(description="between its milestones: what a lost machine loses is half of it")
    ] = 0.5

    @property
    def sure_only(self) -> bool:
        """Whether it is critical. A pinned job is a retrain that is to be deployed: it is, unless it says no."""
        return self.environment is not None if self.critical is None else self.critical

    @field_validator("hours_on")
    @classmethod
    def _names_a_rung(cls, hours_on: dict[str, float] | None) -> dict[str, float] | None:
        if hours_on == {}:
            raise ValueError("names no rung; give the hours on one, or `hours` alone")
        return hours_on

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Job:
        given = [name for name in ("hours", "hours_on", "flops") if getattr(self, name) is not None]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of hours, hours_on and flops"
            raise ValueError(
                f"has {said}; give exactly one of the three, which says how long it is"
            )
        return self


class Rung(_Strict):
    """Where a job may run: one (runner, card, price class)."""

    name: Text
    runner: Annotated[str, Field(description="for people")] = ""
    card: Annotated[str, Field(description="for people")] = ""
    price: Price
    spot: Annotated[bool, Field(description="true: may be taken away; false: sure")] = False
    cards: Annotated[Count, Field(description="of one launch, paid for whole")] = 1
    per_launch: Annotated[
        Count | None, Field(description="jobs of one launch at most; none: as its cards allow")
    ] = None
    concurrency: Annotated[
        Count | None, Field(description="launches at once; none: as many as are wanted")
    ] = None
    quota: Quota | None = None
    quota_of: Annotated[
        Text | None, Field(description="the rung whose quota this one draws on as well")
    ] = None
    wall_h: Annotated[
        Hours | None, Field(description="how long a launch lives; a longer job goes on in the next")
    ] = None
    speed: Annotated[
        float,
        Field(ge=LEAST_SPEED, le=MOST_SPEED, description="against `hours`, or the part of a peak"),
    ] = 1.0
    flops_per_s: Annotated[
        Flops | None, Field(description="of one card at speed 1; for jobs with `flops`")
    ] = None
    useful_share: Annotated[
        float, Field(ge=1e-6, le=1, description="hours of work in a paid hour, losses apart")
    ] = 1.0
    hazard_per_h: Annotated[
        float, Field(ge=0, le=60, description="machines that are lost, per hour of one")
    ] = 0.0
    start_h: Annotated[
        float, Field(ge=0, le=LONGEST_H, description="paid at each launch before work begins")
    ] = 0.0
    kinds: Annotated[list[Kind], Field(min_length=1, description="of jobs that it takes")] = [
        "train",
        "evaluate",
        "backtest",
        "dataset",
    ]
    environments: Annotated[
        list[Text], Field(description="environment classes that it can prove")
    ] = []


class Scenario(_Strict):
    """One allocation: which job runs where, for the least money, by its deadline."""

    horizon_h: Annotated[
        Hours | None,
        Field(
            description="everything has ended by then; default: the latest deadline, and a week "
            "at least where a job has none"
        ),
    ] = None
    budget: Annotated[dict[str, Amount], Field(description="of all jobs, by currency")] = {}
    rates: Annotated[
        dict[str, Amount],
        Field(
            description="usd that a unit of a currency costs you; default 0: you have it already"
        ),
    ] = {}
    jobs: Annotated[list[Job], Field(min_length=1)]
    rungs: Annotated[list[Rung], Field(min_length=1)]
    _place: Place = PrivateAttr(default_factory=lambda: Place("the scenario", {}))

    @property
    def until_h(self) -> float:
        """When everything has ended."""
        if self.horizon_h is not None:
            return self.horizon_h
        latest_h = max((job.deadline_h or 0.0 for job in self.jobs), default=0.0)
        open_ended = any(job.deadline_h is None for job in self.jobs)
        return max(WEEK_H, latest_h) if open_ended else latest_h

    def usd_per_unit(self, currency: str) -> float:
        """What a unit of a currency costs in dollars: 0 of what one has already."""
        return 1.0 if currency == USD else self.rates.get(currency, 0.0)

    def error(self, path: KeyPath, sentence: str) -> UsageError:
        """A mistake found later: file, line, key and sentence."""
        return self._place.error(path, sentence)


def read_scenario(path: Path) -> Scenario:
    """Read and check one scenario. Raises :class:`UsageError`: one sentence with file, line and key."""
    data, place = parse(read_text(path, "scenario"), str(path))
    if not isinstance(data, dict):
        raise place.error((), "a scenario is a section with the keys 'jobs:' and 'rungs:'")
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise place.first_mistake(error, Scenario) from None
    scenario._place = place
    check(scenario)
    return scenario


def check(scenario: Scenario) -> None:
    """What no single key shows: names that stand twice, or that nothing bears. Raises UsageError."""
    _check_names(scenario, "jobs", [job.name for job in scenario.jobs])
    rungs = {rung.name: rung for rung in scenario.rungs}
    _check_names(scenario, "rungs", [rung.name for rung in scenario.rungs])
    if USD in scenario.rates:
        raise scenario.error(("rates", USD), "a dollar costs one dollar; remove it")
    for n, rung in enumerate(scenario.rungs):
        _check_quota(scenario, n, rung, rungs)
    currencies = {rung.price.currency for rung in scenario.rungs}
    _check_currencies(scenario, ("budget",), scenario.budget, currencies)
    _check_currencies(scenario, ("rates",), scenario.rates, currencies)
    for n, job in enumerate(scenario.jobs):
        _check_currencies(scenario, ("jobs", n, "budget"), job.budget, currencies)
        for name in job.hours_on or ():
            if name not in rungs:
                hint = did_you_mean(name, rungs)
                raise scenario.error(
                    ("jobs", n, "hours_on", name), f"there is no such rung; {hint}"
                )
    _check_dollars(scenario)
    _check_limits(scenario)


def _check_names(scenario: Scenario, key: str, names: Iterable[str]) -> None:
    first: dict[str, int] = {}
    for n, name in enumerate(names):
        if name in first:
            line = scenario._place.line((key, first[name], "name"))
            raise scenario.error(
                (key, n, "name"), f"{name!r} stands on line {line} too; rename one of them"
            )
        first[name] = n


def _check_quota(scenario: Scenario, n: int, rung: Rung, rungs: dict[str, Rung]) -> None:
    at: KeyPath = ("rungs", n)
    if rung.quota_of is not None:
        if rung.quota is not None:
            raise scenario.error((*at, "quota_of"), "stands beside quota; leave out one of them")
        if rung.quota_of == rung.name or rung.quota_of not in rungs:
            hint = did_you_mean(rung.quota_of, set(rungs) - {rung.name})
            raise scenario.error((*at, "quota_of"), f"there is no other rung of that name; {hint}")
        if rungs[rung.quota_of].quota is None:
            raise scenario.error(
                (*at, "quota_of"), f"rung {rung.quota_of!r} has no quota; give it one"
            )
    owner = rungs[rung.quota_of] if rung.quota_of is not None else rung
    quota = owner.quota
    if quota is None:
        return
    if quota.unit not in ("h", rung.price.currency):
        raise scenario.error(
            (*at, "quota", "unit"),
            f"is {quota.unit!r} and rung {rung.name!r} is paid in {rung.price.currency!r}; "
            "it must be 'h' or that currency",
        )
    if quota.renews_in_h is not None:
        renewals = (scenario.until_h - quota.renews_in_h) / quota.every_h + 1
        if renewals > MOST_RENEWALS:
            raise scenario.error(
                (*at, "quota", "every_h"),
                f"has it renewed {renewals:.0f} times before {scenario.until_h:g} h, and "
                f"{MOST_RENEWALS} are the most; shorten horizon_h",
            )


def _check_currencies(
    scenario: Scenario, path: KeyPath, named: Iterable[str], known: set[str]
) -> None:
    for currency in named:
        if currency not in known:  # it would never be spent, so it would limit nothing
            hint = did_you_mean(currency, known)
            raise scenario.error((*path, currency), f"no rung is paid in {currency!r}; {hint}")


def _check_dollars(scenario: Scenario) -> None:
    for n, rung in enumerate(scenario.rungs):
        currency = rung.price.currency
        usd_per_h = rung.price.per_h * scenario.usd_per_unit(currency)
        if usd_per_h > MOST:
            raise scenario.error(
                ("rungs", n, "price", "per_h"),
                f"comes to {usd_per_h:.4g} usd with rates.{currency}, and {MOST:g} are the most; "
                "give a smaller price or rate",
            )


def _check_limits(scenario: Scenario) -> None:
    """A currency that costs no dollars and that nothing limits would make every answer 'all of it'."""
    for n, rung in enumerate(scenario.rungs):
        currency = rung.price.currency
        limited = rung.quota is not None or rung.quota_of is not None
        if currency in (USD, *scenario.rates, *scenario.budget) or limited or not rung.price.per_h:
            continue
        raise scenario.error(
            ("rungs", n, "price", "currency"),
            f"nothing says what {currency!r} costs or how much of it there is; give the rung a quota, "
            f"or set budget.{currency} or rates.{currency}",
        )
