"""What `tenure queue simulate` is asked: a pool, teams, and what they do when; YAML or JSON, read strictly.

An unknown key, team or job, a time that runs backwards or a gang that never fits is one sentence with file,
line and key. ``tenure queue simulate --schema`` prints the JSON schema; docs/queue.md has the words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from tenure.bad_input import KeyPath, Place, did_you_mean, read_text
from tenure.errors import UsageError
from tenure.plan.yaml_lines import parse
from tenure.queue.rank import check_teams
from tenure.queue.records import Team

MOST_CARDS = 1_000_000
LONGEST_H = 24.0 * 366 * 10
LONGEST_S = LONGEST_H * 3600

Text = Annotated[str, Field(min_length=1)]
Hours = Annotated[float, Field(gt=0, le=LONGEST_H)]
Cards = Annotated[int, Field(ge=1, le=MOST_CARDS)]
Seconds = Annotated[float, Field(ge=1e-3, le=LONGEST_S)]
Action = Literal["submit", "cancel", "replace", "hold", "release"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class TeamIn(_Strict):
    """A team, or an account of one."""

    weight: Annotated[
        float, Field(gt=0, le=1e9, description="its entitlement is weight / sum of weights")
    ] = 1.0
    part_of: Annotated[
        Text | None,
        Field(description="an account of that team: one entitlement and one use for both"),
    ] = None


class Event(_Strict):
    """What a team does at a time."""

    t_s: Annotated[float, Field(ge=0, le=LONGEST_S)]
    team: Text
    action: Action
    job: Text
    replaces: Annotated[
        Text | None, Field(description="of `replace`: whose place; none: the job is edited")
    ] = None
    cards: Annotated[
        Cards | None, Field(description="start together; default 1, of `replace` as it was")
    ] = None
    duration_s: Annotated[
        Seconds | None, Field(description="of `submit` and `replace`: how long it runs")
    ] = None
    priority: Annotated[int | None, Field(description="among its team's own jobs; default 0")] = (
        None
    )
    deadline_s: Annotated[
        Seconds | None, Field(description="by when it should be done: orders its team's own jobs")
    ] = None
    budget_card_h: Annotated[
        float | None, Field(gt=0, description="a job that needs more is refused")
    ] = None
    milestone_s: Annotated[
        Seconds | None, Field(description="between its milestones; default 600")
    ] = None
    restart_s: Annotated[
        float | None,
        Field(ge=0, le=LONGEST_S, description="what going on after a preemption costs; default 60"),
    ] = None


class Scenario(_Strict):
    """A pool, its teams, and what they do."""

    cards: Cards
    half_life_h: Annotated[Hours, Field(description="of use")] = 168.0
    max_wait_h: Annotated[Hours, Field(description="the bound on waiting")] = 168.0
    horizon_h: Annotated[
        Hours | None, Field(description="the end; default: when all that was submitted is done")
    ] = None
    teams: Annotated[dict[Text, TeamIn], Field(min_length=1)]
    events: list[Event] = []
    _place: Place = PrivateAttr(default_factory=lambda: Place("the scenario", {}))

    def error(self, path: KeyPath, sentence: str) -> UsageError:
        """A mistake found later: file, line, key and sentence."""
        return self._place.error(path, sentence)

    def team_records(self) -> tuple[Team, ...]:
        """The teams as the queue knows them."""
        return tuple(
            Team(name, each.weight, part_of=each.part_of)
            for name, each in sorted(self.teams.items())
        )


def read_scenario(path: Path) -> Scenario:
    """Read and check one scenario. Raises :class:`UsageError`: one sentence with file, line and key."""
    text = read_text(path, "scenario")
    quick = _json(text)
    if quick is not None:
        try:
            scenario = Scenario.model_validate(quick)
            check(scenario)
            return scenario
        except (ValidationError, UsageError):
            pass  # read again, with the lines that the sentence needs
    data, place = parse(text, str(path))
    if not isinstance(data, dict):
        raise place.error((), "a scenario is a section with the keys 'cards:', 'teams:', 'events:'")
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise place.first_mistake(error, Scenario) from None
    scenario._place = place
    check(scenario)
    return scenario


def _json(text: str) -> object:
    """The value of a JSON text, fast; None where it is none, or where a key stands twice."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError
        return found

    try:
        return json.loads(text, object_pairs_hook=once) if text.lstrip()[:1] == "{" else None
    except ValueError:
        return None


def check(scenario: Scenario) -> None:
    """What no single key shows: who does what to whose job, and when. Raises UsageError."""
    wrong = check_teams(scenario.team_records())
    if wrong:
        raise scenario.error(("teams",), wrong)
    _check_cycles(scenario)
    past = _Past(scenario)
    for n, event in enumerate(scenario.events):
        if event.team not in scenario.teams:
            hint = did_you_mean(event.team, scenario.teams)
            raise scenario.error(("events", n, "team"), f"there is no team {event.team!r}; {hint}")
        if n and event.t_s < scenario.events[n - 1].t_s:
            before_s = scenario.events[n - 1].t_s
            raise scenario.error(
                ("events", n, "t_s"),
                f"{event.t_s:g} s comes after {before_s:g} s, and time does not run backwards; "
                "put the events in the order of their times",
            )
        past.check(n, event)


def _check_cycles(scenario: Scenario) -> None:
    """Two jobs cannot each take the other's place."""
    of: dict[str, tuple[str, int]] = {}
    for n, event in enumerate(scenario.events):
        if event.action != "replace" or event.replaces is None:
            continue
        of[event.job] = (event.replaces, n)
        chain = [event.job]
        while chain[-1] in of:
            chain.append(of[chain[-1]][0])
            if chain[-1] == event.job:
                words = " replaces ".join(repr(job) for job in chain)
                raise scenario.error(
                    ("events", n, "replaces"), f"{words}: a cycle; replace a job by a new one"
                )


class _Past:
    """The jobs that the events so far have named: whose they are, and whether they were taken back."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._team: dict[str, str] = {}
        self._line: dict[str, int] = {}
        self._gone: set[str] = set()
        self._held: set[str] = set()

    def check(self, n: int, event: Event) -> None:
        """One event against those before it."""
        if event.action == "submit":
            self._new(n, event)
        elif event.action == "replace":
            old = event.job if event.replaces is None else event.replaces
            self._known(n, event, old, "job" if event.replaces is None else "replaces")
            self._gone.add(old)
            self._new(n, event)
        else:
            self._known(n, event, event.job, "job")
            if event.action == "release" and event.job not in self._held:
                raise self._error(n, "job", f"{event.job!r} is not held; hold it first")
            if event.action == "cancel":
                self._gone.add(event.job)
            if event.action == "hold":
                self._held.add(event.job)
            else:
                self._held.discard(event.job)

    def _error(self, n: int, key: str, sentence: str) -> UsageError:
        return self._scenario.error(("events", n, key), sentence)

    def _new(self, n: int, event: Event) -> None:
        if event.action == "submit" and event.replaces is not None:
            raise self._error(
                n, "replaces", "belongs to `replace`; use that action, or leave it out"
            )
        if event.action == "submit" and event.duration_s is None:
            raise self._error(n, "duration_s", "this key is missing, add it")
        if event.job in self._team and event.job not in self._gone:
            raise self._error(
                n,
                "job",
                f"{event.job!r} was submitted by event {self._line[event.job]} already; "
                "give this one another name, or cancel that one first",
            )
        if event.cards is not None and event.cards > self._scenario.cards:
            raise self._error(
                n,
                "cards",
                f"{event.job!r} asks for {event.cards} cards at once and the pool has "
                f"{self._scenario.cards}; {self._scenario.cards} would fit",
            )
        needs_h = (event.cards or 1) * (event.duration_s or 0.0) / 3600
        if event.budget_card_h is not None and needs_h > event.budget_card_h:
            raise self._error(
                n,
                "budget_card_h",
                f"{event.job!r} needs {needs_h:.4g} card-hours and its budget is "
                f"{event.budget_card_h:.4g}; raise the budget or shorten the job",
            )
        self._team[event.job] = event.team
        self._line[event.job] = n
        self._gone.discard(event.job)
        self._held.discard(event.job)

    def _known(self, n: int, event: Event, job: str, key: str) -> None:
        owner = self._team.get(job)
        if owner is None:
            hint = did_you_mean(job, self._team)
            if not hint.startswith("did"):
                hint = "submit it first"  # and not the names of ten thousand others
            raise self._error(n, key, f"no job {job!r} was submitted before; {hint}")
        if owner != event.team:
            raise self._error(
                n,
                key,
                f"{job!r} is a job of team {owner!r}, and {event.team!r} cannot {event.action} it; "
                "a team changes its own jobs only",
            )
