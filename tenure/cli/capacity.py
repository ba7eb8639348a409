"""``tenure capacity``: what a platform needs, what a success costs, and what to buy next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tenure.cli import screen
from tenure.errors import UsageError

if TYPE_CHECKING:
    from tenure.capacity.scenario import Asked
    from tenure.capacity.terms import JsonValue
    from tenure.capacity.timeline import Arrivals, Timeline

_PHASES = ("task", "round", "part", "from s", "to s", "at once", "cores")
_MOST_COLUMNS = 8  # of a section within a row
_PEAKS = ("use of", "mean", "peak", "there is", "peak, % of it")


def capacity(
    scenario: Annotated[
        Path | None, typer.Argument(metavar="SCENARIO.yaml", help="One scenario, or a list.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of scenarios and end.")
    ] = False,
    timeline: Annotated[
        Literal["even", "burst"] | None,
        typer.Option(help="Of demand: who uses what when, at most."),
    ] = None,
    burst: Annotated[
        int | None, typer.Option(min=1, help="Tasks that come at once (a second's).")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the timeline into this file.")] = None,
) -> None:
    """Tell what finished work costs, and what to buy next.

    Kinds of scenarios: demand, residency, prewarm, move, window, batch, longtail, routes, buy, retries,
    commit, load, cache, call, amdahl, rollout; docs/capacity.md has their keys.
    """
    from tenure.capacity.scenario import read_questions
    from tenure.capacity.scenario import schema as json_schema

    if schema:
        typer.echo(json.dumps(json_schema(), indent=2))
        return
    if scenario is None:
        raise UsageError("a scenario is missing: name its file, or ask for --schema")
    if timeline is None and (svg or burst):
        raise UsageError(f"{'--svg' if svg else '--burst'} is of a timeline; add --timeline burst")
    if burst and timeline != "burst":
        raise UsageError("--burst is of a timeline of bursts; write --timeline burst")
    questions = read_questions(scenario)
    answers = [asked.answer() for asked in questions.asked]
    timelines = _timelines(questions.asked, timeline, burst) if timeline else [None] * len(answers)
    if svg:
        _write_svg(svg, questions.asked, timelines, scenario)
    if as_json:
        made = [
            answer.as_json() | ({"timeline": drawn.as_json()} if drawn else {})
            for answer, drawn in zip(answers, timelines, strict=True)
        ]
        typer.echo(json.dumps(questions.as_json(made), indent=2))
        return
    for n, (asked, answer, drawn) in enumerate(
        zip(questions.asked, answers, timelines, strict=True)
    ):
        typer.echo(("\n" if n else "") + (asked.place.within if questions.listed else asked.kind))
        tell(answer.as_json())
        typer.echo(answer.words)
        if drawn:
            _tell_timeline(drawn)


def _timelines(
    asked: Sequence[Asked], arrivals: Arrivals, burst: int | None
) -> list[Timeline | None]:
    """Of each demand scenario. Raises UsageError where there is none, or one has no timeline."""
    from tenure.capacity.demand import DemandScenario
    from tenure.capacity.timeline import timeline

    found: list[Timeline | None] = []
    for each in asked:
        if not isinstance(each.scenario, DemandScenario):
            found.append(None)
            continue
        try:
            found.append(timeline(each.scenario, arrivals, burst))
        except UsageError as error:
            raise each.place.error((), str(error)) from None
    if not any(found):
        raise UsageError("--timeline is of demand scenarios, and there is none in this file")
    return found


def _write_svg(
    file: Path, asked: Sequence[Asked], timelines: Sequence[Timeline | None], source: Path
) -> None:
    """The one timeline of the file. Raises UsageError."""
    from tenure.capacity.demand import DemandScenario
    from tenure.capacity.timeline_svg import draw

    drawn = [(each, told) for each, told in zip(asked, timelines, strict=True) if told]
    if len(drawn) != 1:
        raise UsageError(
            f"{source}: --svg draws one demand scenario and there are {len(drawn)}; "
            "put it into a file of its own"
        )
    each, told = drawn[0]
    assert isinstance(each.scenario, DemandScenario)
    picture = draw(each.scenario, told, f"{source.stem}: {told.arrivals} arrivals")
    try:
        file.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror}") from None


def _tell_timeline(told: Timeline) -> None:
    typer.echo("\ntimeline")
    rows = [
        (
            str(phase.task),
            str(phase.round),
            phase.what,
            f"{phase.from_s:.6g}",
            f"{phase.to_s:.6g}",
            f"{phase.at_once:.6g}",
            f"{phase.cpu_cores:.6g}",
        )
        for phase in told.phases
    ]
    if rows:
        screen.show(_PHASES, rows)
    typer.echo("")
    names = {"cpu": "CPU, cores", "memory": "memory, GiB", "model": "model calls"}
    screen.show(
        _PEAKS,
        [
            (
                names[name],
                f"{peak.mean:.6g}",
                f"{peak.peak:.6g}",
                f"{peak.capacity:.6g}",
                "-" if peak.peak_share is None else f"{100 * peak.peak_share:.4g}",
            )
            for name, peak in told.peaks.items()
        ],
    )
    typer.echo(f"{told.environments_peak:.6g} environments at most; {told.words}")


# ------------------------------------------------------------------------------ any answer as tables


def tell(answer: Mapping[str, JsonValue]) -> None:
    """Plain numbers in one table, and one more for each key that holds rows."""
    plain: list[tuple[str, str]] = []
    tables: list[tuple[str, list[dict[str, JsonValue]]]] = []
    _sort_out(answer, "", plain, tables)
    if plain:
        screen.show(("key", "value"), plain)
    for name, rows in tables:
        cells = {
            column: [_cell(row.get(column)) for row in rows]
            for column in dict.fromkeys(column for row in rows for column in row)
        }
        # what no row has is not shown, nor a part of a sum that is 0 in all of them
        empty = {"-", "0"}
        shown = [
            column
            for column, each in cells.items()
            if not set(each) <= (empty if "." in column else {"-"})
        ]
        if plain or name != tables[0][0]:
            typer.echo("")
        screen.show(
            [name if column == "" else column for column in shown],
            list(zip(*(cells[column] for column in shown), strict=True)),
        )


def _sort_out(
    values: Mapping[str, JsonValue],
    within: str,
    plain: list[tuple[str, str]],
    tables: list[tuple[str, list[dict[str, JsonValue]]]],
) -> None:
    """What is one number, under its dotted key, and what is rows; the key of a row is its column ''."""
    for name, value in values.items():
        key = f"{within}{name}"
        rows = _rows(value)
        if rows is not None:
            tables += [(key, [_flat(row) for row in rows]), *_turned(key, rows)]
        elif isinstance(value, Mapping) and any(_rows(each) for each in value.values()):
            _sort_out(value, f"{key}.", plain, tables)
        else:
            plain.append((key, _cell(value)))


def _turned(
    key: str, rows: list[dict[str, JsonValue]]
) -> Iterator[tuple[str, list[dict[str, JsonValue]]]]:
    """Sections of too many keys for columns, as tables with a column for each row."""
    for name in rows[0]:
        if not _is_long(rows[0][name]):
            continue
        found: dict[str, dict[str, JsonValue]] = {}
        for row in rows:
            section = row[name]
            assert isinstance(section, Mapping)
            for inner, value in section.items():
                found.setdefault(inner, {"": inner})[str(row.get("name", row[""]))] = value
        yield f"{key}.{name}", list(found.values())


def _is_long(value: JsonValue) -> bool:
    return isinstance(value, Mapping) and len(value) > _MOST_COLUMNS


def _rows(value: JsonValue) -> list[dict[str, JsonValue]] | None:
    """The rows of sections by name, or of a list of sections; None where it is neither."""
    if isinstance(value, Mapping):
        named = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        named = [(str(n), each) for n, each in enumerate(value, 1)]
    else:
        return None
    if not named or not all(isinstance(each, Mapping) for _, each in named):
        return None
    return [{"": key, **row} for key, row in named if isinstance(row, Mapping)]


def _flat(row: Mapping[str, JsonValue], within: str = "") -> dict[str, JsonValue]:
    """A row whose sections are columns of their own, ``parts_usd.input``."""
    found: dict[str, JsonValue] = {}
    for name, value in row.items():
        key = f"{within}{name}"
        if _is_long(value):
            continue
        if isinstance(value, Mapping):
            found |= _flat(value, f"{key}.")
        else:
            found[key] = value
    return found


def _cell(value: JsonValue) -> str:
    """A value in a table.

    >>> _cell(None), _cell(True), _cell(30.0), _cell([1, 2.5]), _cell({"cpu": 0.625, "memory": None})
    ('-', 'yes', '30', '1, 2.5', 'cpu 0.625, memory -')
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(each)}" for name, each in value.items())
    return ", ".join(_cell(each) for each in value) or "-"
