"""A file of scenarios: YAML or JSON, one of them or a list.

It is read strictly: an unknown key, a share above 1 or a number that is none is one sentence with file, line,
scenario and dotted key. ``tenure capacity --schema`` prints the JSON schema, docs/capacity.md has the words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tenure.bad_input import Place, did_you_mean, read_text, shown
from tenure.capacity.amdahl import Amdahl, AmdahlScenario
from tenure.capacity.batch import Batch, BatchScenario
from tenure.capacity.buy import Buy, BuyScenario
from tenure.capacity.cache import Cache, CacheScenario
from tenure.capacity.call import Calls, CallScenario
from tenure.capacity.commit import Commit, CommitScenario
from tenure.capacity.demand import Demand, DemandScenario
from tenure.capacity.load import Load, LoadScenario
from tenure.capacity.longtail import LongTail, LongTailScenario
from tenure.capacity.move import Move, MoveScenario
from tenure.capacity.prewarm import Prewarm, PrewarmScenario
from tenure.capacity.residency import Residency, ResidencyScenario
from tenure.capacity.retries import Retries, RetriesScenario
from tenure.capacity.rollout import Rollout, RolloutScenario
from tenure.capacity.routes import Routes, RoutesScenario
from tenure.capacity.terms import Answer, JsonValue, Scenario
from tenure.capacity.window import Window, WindowScenario
from tenure.errors import UsageError
from tenure.plan.yaml_lines import Yaml, parse

_ANSWER = "#/$defs/answer_{model}"  # where an answer is described

#: What is asked and what comes back, by kind.
KINDS: Mapping[str, tuple[type[Scenario], type[Answer]]] = {
    "demand": (DemandScenario, Demand),
    "residency": (ResidencyScenario, Residency),
    "prewarm": (PrewarmScenario, Prewarm),
    "move": (MoveScenario, Move),
    "window": (WindowScenario, Window),
    "batch": (BatchScenario, Batch),
    "longtail": (LongTailScenario, LongTail),
    "routes": (RoutesScenario, Routes),
    "buy": (BuyScenario, Buy),
    "retries": (RetriesScenario, Retries),
    "commit": (CommitScenario, Commit),
    "load": (LoadScenario, Load),
    "cache": (CacheScenario, Cache),
    "call": (CallScenario, Calls),
    "amdahl": (AmdahlScenario, Amdahl),
    "rollout": (RolloutScenario, Rollout),
}


@dataclass(frozen=True)
class Asked:
    """One scenario of a file, with the place that its mistakes are told at."""

    kind: str
    scenario: Scenario
    place: Place

    def answer(self) -> Answer:
        """Its answer. Raises :class:`UsageError` where a number left what floating point holds."""
        try:
            found = self.scenario.answer()
            found.as_json()
        except (OverflowError, ZeroDivisionError):  # of numbers beside 1e-300
            raise self.place.error(
                (), "numbers so small or so large have no answer; give other units"
            ) from None
        except UsageError as error:
            raise self.place.error((), str(error)) from None
        return found


@dataclass(frozen=True)
class Questions:
    """All scenarios of a file."""

    asked: list[Asked]
    listed: bool  # the file holds a list, so a list comes back

    def as_json(self, answers: list[dict[str, JsonValue]]) -> JsonValue:
        """One object, or the list of them."""
        return answers if self.listed else answers[0]


def read_questions(path: Path) -> Questions:
    """Read and check a file. Raises :class:`UsageError`: one sentence with file, line, scenario and key."""
    data, place = _parse(read_text(path, "scenario").removeprefix("\ufeff"), str(path))
    if data is None:
        raise UsageError(f"{path}: is empty; a scenario has a 'kind:' and its keys")
    if not isinstance(data, list):
        return Questions([_asked(data, place, "")], listed=False)
    parts = [place.part((n,), f"scenario {n + 1}") for n in range(len(data))]
    return Questions(
        [_asked(each, part, part.within) for each, part in zip(data, parts, strict=True)],
        listed=True,
    )


def ask(data: Mapping[str, object]) -> Scenario:
    """A scenario made in code. Raises :class:`UsageError` as for a file."""
    return _asked(dict(data), Place("the scenario", {}), "").scenario


def schema() -> dict[str, object]:
    """The JSON schema of a file; each kind names the schema of its answer under ``answer``."""
    definitions: dict[str, object] = {}
    for question, answer in KINDS.values():
        section = question.model_json_schema()
        told: TypeAdapter[object] = TypeAdapter(answer)
        told_section = told.json_schema(mode="serialization", ref_template=_ANSWER)
        definitions |= section.pop("$defs", {})
        inner = told_section.pop("$defs", {})
        definitions |= {f"answer_{name}": each for name, each in inner.items()}
        definitions[f"answer_{answer.__name__}"] = told_section
        section["answer"] = {"$ref": _ANSWER.format(model=answer.__name__)}
        definitions[question.__name__] = section
    names = [question.__name__ for question, _ in KINDS.values()]
    definitions["scenario"] = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A file for tenure capacity: one scenario, or a list of them",
        "anyOf": [
            {"$ref": "#/$defs/scenario"},
            {"type": "array", "items": {"$ref": "#/$defs/scenario"}},
        ],
        "$defs": definitions,
    }


def _asked(data: object, place: Place, within: str) -> Asked:
    if not isinstance(data, dict):
        raise place.error(
            (), f"a scenario is a section with a 'kind:' and its keys, not {shown(data)}"
        )
    kind = data.get("kind")
    if not isinstance(kind, str):
        what = "is missing, add it" if kind is None else f"must be text, not {shown(kind)}"
        raise place.error(("kind",), f"this key {what}; {did_you_mean('', KINDS)}")
    if kind not in KINDS:
        raise place.error(("kind",), f"there is no kind {kind!r}; {did_you_mean(kind, KINDS)}")
    here = place.part((), f"{within} ({kind})" if within else kind)
    model, _ = KINDS[kind]
    try:
        return Asked(kind, model.model_validate(data), here)
    except ValidationError as error:
        raise here.first_mistake(error, model) from None


def _parse(text: str, file: str) -> tuple[Yaml, Place]:
    """YAML, which most JSON is; JSON that YAML does not take, such as with tabs, is read as such."""
    try:
        return parse(text, file)
    except RecursionError:
        raise UsageError(f"{file}: is nested too deeply; a scenario is not") from None
    except UsageError:
        try:
            return json.loads(text, object_pairs_hook=_once_each), Place(file, {})
        except (ValueError, RecursionError):
            pass
        raise


def _once_each(pairs: list[tuple[str, Yaml]]) -> dict[str, Yaml]:
    """An object of JSON; a key that stands twice is an error, as it is in YAML."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found
