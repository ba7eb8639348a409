"""One HTML file: figures with captions, units and the tables behind them; nothing is fetched or run.

Readable on a phone, by day and by night, and printed. Whatever a user or a machine wrote is escaped where
it enters the page, in :func:`tenure.report.drawing.safe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tenure.report.drawing import Drawing, number, safe
from tenure.report.style import STYLE

Cell = str | int | float | bool | None
Row = Mapping[str, Cell]
Mood = Literal["good", "bad", "open"]

NARROW_PX, WIDE_PX = 340.0, 760.0
MOST_ROWS = 400  # of a table: a page of a week is read, one of a million lines is not


@dataclass(frozen=True)
class Figure:
    """A drawing, what it shows in which units, and the numbers behind it."""

    key: str  # its anchor
    caption: str  # what it shows, how to read it, and where the numbers come from
    units: str
    draw: Callable[[float], Drawing]  # for a width in pixels
    rows: Sequence[Row]


@dataclass(frozen=True)
class Tile:
    """One number of the summary."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, words, figures, and tables by their captions."""

    title: str
    words: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """Everything on one page, in order."""

    title: str
    state: str  # one sentence: is it over, and how
    mood: Mood
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    notes: Sequence[str] = ()  # what could not be read or shown, and why
    made: str = ""  # when and from what


def html(page: Page) -> str:
    """The whole file. The same page gives the same bytes."""
    body = [
        f"<header><h1>{safe(page.title)}</h1>",
        f'<p class="state {page.mood}">{safe(page.state)}</p>',
        f'<p class="made">{safe(page.made)}</p></header>',
        _tiles(page.tiles),
        *(_section(each) for each in page.sections),
    ]
    if page.notes:
        items = "".join(f"<li>{safe(note)}</li>" for note in page.notes)
        body.append(f"<section><h2>What is not here</h2><ul>{items}</ul></section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{safe(page.title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _tiles(tiles: Sequence[Tile]) -> str:
    shown = "".join(
        f"<div><dt>{safe(tile.name)}</dt><dd>{safe(tile.value)}"
        + (f"<small>{safe(tile.detail)}</small>" if tile.detail else "")
        + "</dd></div>"
        for tile in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _section(section: Section) -> str:
    words = "".join(f"<p>{safe(each)}</p>" for each in section.words)
    figures = "".join(map(_figure, section.figures))
    tables = "".join(
        f"<figure>{table(rows)}<figcaption>{safe(caption)}</figcaption></figure>"
        for caption, rows in section.tables.items()
        if rows
    )
    return f"<section><h2>{safe(section.title)}</h2>{words}{figures}{tables}</section>"


def _figure(figure: Figure) -> str:
    caption = figure.caption
    drawn = "".join(
        figure.draw(width).svg(caption, kind)
        for width, kind in ((NARROW_PX, "narrow"), (WIDE_PX, "wide"))
    )
    return (
        f'<figure id="{safe(figure.key)}" class="drawn">{drawn}'
        f'<figcaption>{safe(caption)} <span class="units">Units: {safe(figure.units)}.</span></figcaption>'
        f"<details><summary>The numbers behind it</summary>{table(figure.rows)}</details></figure>"
    )


def table(rows: Sequence[Row]) -> str:
    """Rows as a table that scrolls by itself where it is wider than the page."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f'<th scope="col">{safe(name.replace("_", " "))}</th>' for name in columns)
    lines = "".join(
        f"<tr>{''.join(_cell(row.get(name)) for name in columns)}</tr>" for row in rows[:MOST_ROWS]
    )
    more = (
        f'<p class="made">{len(rows) - MOST_ROWS} more rows are left out.</p>'
        if len(rows) > MOST_ROWS
        else ""
    )
    return (
        f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{more}"
    )


def _cell(value: Cell) -> str:
    """
    >>> _cell(None), _cell(True), _cell(0.125), _cell("PASS")
    ('<td>-</td>', '<td>yes</td>', '<td class="n">0.125</td>', '<td class="PASS">PASS</td>')
    """
    if value is None:
        return "<td>-</td>"
    if isinstance(value, bool):
        return f"<td>{'yes' if value else 'no'}</td>"
    if isinstance(value, (int, float)):
        shown = f"{value:,}" if isinstance(value, int) else _exact(value)
        return f'<td class="n">{shown}</td>'
    kind = value if value in _VERDICTS else "t" if len(value) > _LONG_CHARS else ""
    return f'<td class="{kind}">{safe(value)}</td>' if kind else f"<td>{safe(value)}</td>"


_LONG_CHARS = 20  # a text that may be broken anywhere, to fit a phone
_VERDICTS = frozenset({"PASS", "BLOCK", "NOT_ENOUGH_SEEDS"})


def _exact(value: float) -> str:
    """Money and seconds with more digits than a drawing shows.

    >>> _exact(1234.5678), _exact(0.0000012), _exact(float("inf"))
    ('1,234.5678', '1.2e-06', 'inf')
    """
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        text = f"{value:,.4f}"
        return text.rstrip("0").rstrip(".")
    return number(value) if abs(value) == float("inf") or value != value else f"{value:.6g}"
