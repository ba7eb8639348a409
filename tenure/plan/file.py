"""A plan: which experiment over which grid and seeds, where it may run, and when it may be deployed.

A plan is a YAML file that people write. It is read strictly; every mistake is one sentence with
file, line and dotted key. Job specs take from it what to compute; :meth:`Plan.terms` is the rest.
"""

from __future__ import annotations

import glob
import itertools
import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tenure.bad_input import KeyPath, Place, did_you_mean, read_text, shown
from tenure.errors import UsageError
from tenure.plan.advise import LONGEST_H
from tenure.plan.experiment import check_experiment
from tenure.plan.pinning import read_wish
from tenure.plan.yaml_lines import parse
from tenure.settings import Settings
from tenure_protocol.records import check_name
from tenure_protocol.store.api import DEADLINE_S, shortest_lease_s

_ENTRY_POINT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
MAX_SEED = 2**32 - 1  # the largest that numpy.random.seed takes

Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]
Name = Annotated[str, AfterValidator(lambda name: check_name(name, "the name"))]
Axis = Annotated[list[object], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True
    )


class _Judged(_Strict):
    metric: Annotated[str, Field(min_length=1)]  # a name in Evaluation.metrics
    direction: Literal["minimize", "maximize"]
    margin: float  # in the unit of the metric: the largest loss of quality that is accepted

    @field_validator("margin")
    @classmethod
    def _margin_is_positive(cls, margin: float) -> float:
        if margin <= 0:
            raise ValueError(
                f"is {margin:g} and must be positive, in the unit of the metric: it is the largest "
                "loss of quality you accept, and no number of seeds can show a difference below zero"
            )
        return margin


class Pin(_Strict):
    """Which measured environment a retrain is pinned to (:mod:`tenure.plan.pinning`).

    Paths are relative to the plan's folder.
    """

    card: Annotated[str, Field(min_length=1)] | None = None  # as its driver reports it, or "cpu"
    lock: Annotated[str, Field(min_length=1)] | None = None  # a requirements file: name==version
    fingerprint: Annotated[str, Field(min_length=1)] | None = None  # of `tenure fingerprint --json`

    @model_validator(mode="after")
    def _one_way(self) -> Pin:
        if self.fingerprint is not None and (self.card or self.lock):
            raise ValueError(
                "names a fingerprint, which is a whole environment, beside a card or a lock; "
                "leave out one or the other"
            )
        if not (self.card or self.lock or self.fingerprint):
            raise ValueError("is empty; name a card, a lock or a fingerprint, or leave it out")
        return self


class Also(_Judged):
    """A further metric that must not get worse; it does not decide which point is promoted."""

    examples: bool = True  # false: it has no per-example losses, and only its seeds are judged


class Promote(_Judged):
    """When a retrained model counts as not worse than its parent, stated beforehand."""

    min_score: float  # the least score of a backtest that is deployable
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05  # level of the one-sided test
    also: list[Also] = Field(default_factory=list)  # each at the same alpha, all must pass

    @field_validator("also")
    @classmethod
    def _metrics_are_distinct(cls, also: list[Also], info: ValidationInfo) -> list[Also]:
        seen = {info.data.get("metric")}
        for entry in also:
            if entry.metric in seen:
                raise ValueError(
                    f"holds {shown(entry.metric)}, which is judged already: one metric has one margin"
                )
            seen.add(entry.metric)
        return also


class Plan(_Strict):
    """One plan file. ``promote.metric`` decides which point of the grid is promoted."""

    name: Name
    experiment: str  # module:Class, importable from the settings' root, as on a worker
    grid: dict[str, Axis] = Field(default_factory=dict)  # cartesian; empty is one point, {}
    seeds: Annotated[list[Seed], Field(min_length=2)]
    retrain_seeds: Annotated[list[Seed], Field(min_length=2)]  # disjoint from seeds
    baseline: dict[str, object] = Field(default_factory=dict)  # a point of the grid
    milestone_every: Annotated[int, Field(ge=1)] = 100  # steps
    team: Name = "me"
    priority: int = 0
    deadline_h: Annotated[float, Field(gt=0, le=LONGEST_H)] | None = None
    budget: dict[Name, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)  # by currency
    rungs: Annotated[list[str], Field(min_length=1)]  # in order of preference
    nightly: bool = False
    cards: Annotated[int, Field(ge=1)] = 1
    patience_s: Annotated[float, Field(gt=0)] = 1800.0
    max_silence_s: Annotated[float, Field(gt=0)] = 3600.0
    promote: Promote
    pin: Pin | None = None  # of the retrain; none: where most seeds of the promoted point ran
    _file: Path | None = PrivateAttr(default=None)
    _place: Place = PrivateAttr(default_factory=lambda: Place("the plan", {}))

    @property
    def file(self) -> Path | None:
        """The file it was read from."""
        return self._file

    def error(self, path: KeyPath, sentence: str) -> UsageError:
        """A mistake found later: file, line, key and sentence."""
        return self._place.error(path, sentence)

    def points(self) -> list[dict[str, object]]:
        """Every point of the grid, in the order of the file: the last key varies fastest."""
        return [
            dict(zip(self.grid, values, strict=True))
            for values in itertools.product(*self.grid.values())
        ]

    def terms(self) -> dict[str, object]:
        """JSON of what is in no job spec: who pays, where it may run, how it is judged."""
        names = {
            "team", "priority", "deadline_h", "budget", "rungs", "nightly", "promote", "baseline",
            "retrain_seeds", "pin",
        }  # fmt: skip
        found = self.model_dump(mode="json", include=names)
        if not self.promote.also:  # the terms of a plan with one metric are the same as ever
            del found["promote"]["also"]
        return found

    @field_validator("experiment")
    @classmethod
    def _names_a_class(cls, experiment: str) -> str:
        if not _ENTRY_POINT.fullmatch(experiment):
            raise ValueError(f"must be written 'module:Class', not {shown(experiment)}")
        return experiment

    @field_validator("grid")
    @classmethod
    def _axes_are_distinct(cls, grid: dict[str, list[object]]) -> dict[str, list[object]]:
        for key, axis in grid.items():
            if not _finite(axis):
                raise ValueError(f"{key} holds {shown(axis)}, which JSON cannot carry")
            try:
                _check_distinct(axis)
            except ValueError as error:
                raise ValueError(f"{key} {error}") from None
        return grid

    @field_validator("seeds", "rungs")
    @classmethod
    def _entries_are_distinct(cls, entries: list[int] | list[str]) -> list[int] | list[str]:
        _check_distinct(entries)
        return entries

    @field_validator("retrain_seeds")
    @classmethod
    def _retrain_seeds_are_fresh(cls, seeds: list[int], info: ValidationInfo) -> list[int]:
        shared = sorted(set(seeds) & set(info.data.get("seeds", [])))
        if shared:
            raise ValueError(
                f"shares {', '.join(map(str, shared))} with seeds; the seeds of the deployed model "
                "must not be those it was chosen by"
            )
        _check_distinct(seeds)
        return seeds

    @field_validator("baseline")
    @classmethod
    def _baseline_is_a_point(
        cls, baseline: dict[str, object], info: ValidationInfo
    ) -> dict[str, object]:
        grid: dict[str, list[object]] | None = info.data.get("grid")
        if grid is None:  # wrong by itself, and reported already
            return baseline
        if not baseline and all(len(axis) == 1 for axis in grid.values()):
            return {key: axis[0] for key, axis in grid.items()}
        if not baseline:
            first = {key: axis[0] for key, axis in grid.items()}
            raise ValueError(
                "this key is missing or empty, and is needed when the grid has more than one point: "
                f"it names the point that the others are compared with, such as {shown(first)}"
            )
        for key in baseline:
            if key not in grid:
                raise ValueError(f"{key!r} is no key of the grid; {did_you_mean(key, grid)}")
        for key in grid:
            if key not in baseline:
                raise ValueError(f"must be a point of the grid, and {key!r} is missing")
        return {key: _entry(axis, baseline[key], key) for key, axis in grid.items()}


def load_plan(
    path: Path, settings: Settings, *, check_import: bool = False, check_rungs: bool = True
) -> Plan:
    """Read and check one plan; with ``check_import`` its experiment is imported as well.

    Without ``check_rungs`` its rungs need not exist: whoever names others (``--rungs``) uses none of
    them. Raises :class:`UsageError` with file, line and dotted key.
    """
    path = path.absolute()
    data, place = parse(read_text(path, "plan"), str(path))
    if not isinstance(data, dict):
        raise place.error((), "a plan is a section of keys and values, beginning with 'name:'")
    try:
        plan = Plan.model_validate(data)
    except ValidationError as error:
        raise place.first_mistake(error, Plan) from None
    plan._file, plan._place = path, place
    if check_rungs:
        _check_rungs(settings, plan)
    _check_against(settings, plan)
    read_wish(plan)
    if check_import:
        reason = check_experiment(plan.experiment, [settings.root])
        if reason:
            raise place.error(("experiment",), reason)
    return plan


def load_plans(settings: Settings, *, check_rungs: bool = True) -> list[Plan]:
    """Every plan that ``[plans] paths`` finds below the settings' root, in the order of its paths."""
    files: list[Path] = []
    for pattern in settings.plans.paths:
        found = glob.glob(os.path.expanduser(pattern), root_dir=settings.root, recursive=True)
        files += [settings.root / name for name in sorted(found)]
    plans: dict[str, Plan] = {}
    seen: set[Path] = set()
    for file in files:
        if not file.is_file() or file.resolve() in seen:
            continue
        seen.add(file.resolve())
        plan = load_plan(file, settings, check_rungs=check_rungs)
        if plan.name in plans:
            first = plans[plan.name].file
            raise plan.error(("name",), f"{plan.name!r} is the name of {first} too; rename one")
        plans[plan.name] = plan
    return list(plans.values())


def demand_own_name(plan: Plan, settings: Settings) -> None:
    """Refuse a second plan of the same name: both would own the same jobs, records and deployment.

    Raises :class:`UsageError` with file and line.
    """
    for other in load_plans(settings, check_rungs=False):
        same = other.file and plan.file and other.file.resolve() == plan.file.resolve()
        if other.name == plan.name and not same:
            raise plan.error(
                ("name",), f"{plan.name!r} is the name of {other.file} too; rename one"
            )


def _check_rungs(settings: Settings, plan: Plan) -> None:
    for position, rung in enumerate(plan.rungs):
        if rung not in settings.rungs:
            raise plan.error(
                ("rungs", position), f"there is no rung {rung!r}; {_choices(rung, settings.rungs)}"
            )


def _check_against(settings: Settings, plan: Plan) -> None:
    if plan.team not in settings.teams:
        hint = _choices(plan.team, settings.teams)
        raise plan.error(("team",), f"there is no team {plan.team!r}; {hint}")
    shortest_s = shortest_lease_s(DEADLINE_S[settings.store_url.partition(":")[0]])
    if plan.max_silence_s < shortest_s:
        raise plan.error(
            ("max_silence_s",),
            f"is {plan.max_silence_s:g} and must be at least {shortest_s:g} on this store: it caps the "
            "lease, and a shorter one ends while a live worker waits for a single answer",
        )
    currencies = {rung.price.currency for rung in settings.rungs.values()}
    for currency in plan.budget:
        if currency not in currencies:
            # It would never be spent from, so it would limit nothing.
            raise plan.error(
                ("budget", currency),
                f"no rung is paid in {currency!r}; {_choices(currency, currencies)}",
            )


def _choices(word: str, known: Iterable[str]) -> str:
    """Settings hold few names: all of them, and the closest first where one is close.

    >>> _choices("locl", ["local", "spot"])
    "did you mean 'local'? known: 'local', 'spot'"
    """
    names = sorted(known)
    listed = "known: " + ", ".join(repr(name) for name in names)
    hint = did_you_mean(word, names)
    return hint if hint == listed else f"{hint} {listed}"


def _check_distinct(entries: Iterable[object]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if _identity(entry) in seen:
            raise ValueError(f"holds {shown(entry)} twice; remove one")
        seen.add(_identity(entry))


def _entry(axis: Iterable[object], value: object, key: str) -> object:
    """The entry of a grid's axis that equals ``value``, as the axis writes it (1.0 for 1)."""
    for entry in axis:
        if _identity(entry) == _identity(value):
            return entry
    raise ValueError(f"{key} is {shown(value)}, and the grid has {shown(axis)}")


def _identity(value: object) -> str:
    """Equal for equal JSON values: 1 and 1.0 are one number, true is none.

    >>> _identity([1.0, {"a": 2}]) == _identity([1, {"a": 2.0}]), _identity(1) == _identity(True)
    (True, False)
    """
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: object) -> object:
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _whole(entry) for key, entry in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _finite(value: object) -> bool:
    """Whether JSON can carry a value read from YAML: neither infinite nor 'not a number'."""
    if isinstance(value, list):
        return all(map(_finite, value))
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    return not isinstance(value, float) or math.isfinite(value)
