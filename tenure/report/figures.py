"""The figures of a report: each from plain numbers to a drawing of any width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tenure.report.attempts import Bar, unit
from tenure.report.drawing import CHAR_PX, Drawing, Scale, number, short

COLOURS = 8  # of groups that are told apart; those beyond share a grey
LOG_ABOVE = 20.0  # largest value over smallest, from which a scale is logarithmic
_WIDE = 560.0  # from here on names stand beside what they name, not above
_GUTTER = 270.0


def colour(groups: Sequence[str], name: str) -> str:
    """The class of a group's colour.

    >>> colour(["a", "b"], "b"), colour([str(n) for n in range(9)], "8")
    ('c1', 'cx')
    """
    place = groups.index(name)
    return f"c{place}" if place < COLOURS else "cx"


@dataclass(frozen=True)
class Stack:
    """One bar of parts, each with the class of its colour."""

    name: str
    parts: tuple[tuple[str, str, float], ...]  # class, what it is, value


def stacks(rows: Sequence[Stack], in_words: str, width: float) -> Drawing:
    """Bars of parts over one scale from zero; ``in_words`` is what it counts in."""
    drawing = Drawing(width)
    names = dict.fromkeys((kind, what) for row in rows for kind, what, _ in row.parts)
    top = drawing.legend(list(names), 0.0, 4.0)
    left, high = _left(width), 20.0 if width >= _WIDE else 38.0
    most = max((sum(value for *_, value in row.parts) for row in rows), default=0.0)
    scale = Scale(0.0, most or 1.0, left, width - 66.0)
    bottom = top + len(rows) * (high + 8.0)
    drawing.below(scale, bottom, top, in_words)
    for place, row in enumerate(rows):
        y = _named(drawing, row.name, top + place * (high + 8.0), width)
        x, whole = scale(0.0), 0.0
        for kind, what, value in row.parts:
            if value <= 0:
                continue
            whole += value
            end = scale(whole)
            words = f"{row.name}: {what}: {number(value)} {in_words}"
            drawing.rect(x, y, max(end - x - 1.0, 1.0), 16.0, kind, words)
            x = end
        drawing.text(x + 5.0, y + 12.0, number(whole), "tick")
    return drawing


def timeline(lines: Mapping[str, Sequence[Bar]], width: float) -> Drawing:
    """A line for each job, a bar for each launch by the colour of its rung, a cross where it was lost."""
    drawing = Drawing(width)
    bars = [each for found in lines.values() for each in found]
    rungs = list(dict.fromkeys(each.rung for each in bars))
    zero_s, last_s = min(b.begin_s for b in bars), max(b.end_s for b in bars)
    in_one_s, name = unit(last_s - zero_s)
    top = drawing.legend([(colour(rungs, rung), rung) for rung in rungs], 0.0, 4.0)
    left, high = _left(width), 20.0 if width >= _WIDE else 36.0
    scale = Scale(0.0, (last_s - zero_s) / in_one_s, left, width - 14.0)
    bottom = top + len(lines) * (high + 4.0)
    drawing.below(scale, bottom, top, f"{name} since the first launch")
    for place, (line, found) in enumerate(lines.items()):
        y = _named(drawing, line, top + place * (high + 4.0), width)
        for each in found:
            begin, end = (scale((at - zero_s) / in_one_s) for at in (each.begin_s, each.end_s))
            claim = end if each.claim_s is None else scale((each.claim_s - zero_s) / in_one_s)
            kind = colour(rungs, each.rung)
            how = "was lost" if each.lost else "was not lost"
            took = number((each.end_s - each.begin_s) / in_one_s)
            words = f"{line}: on {each.rung} for {took} {name}, {how}"
            drawing.rect(begin, y, max(claim - begin, 0.5), 14.0, f"{kind} pale", words)
            drawing.rect(claim, y, max(end - claim, 0.5), 14.0, kind, words)
            if each.lost:
                drawing.cross(end, y + 7.0, 4.0, words)
    return drawing


@dataclass(frozen=True)
class Strip:
    """Values of one kind side by side, each with what it is."""

    name: str
    group: str
    values: tuple[tuple[float, str], ...]


def strips(
    rows: Sequence[Strip], in_words: str, width: float, reference: float | None = None
) -> Drawing:
    """A dot for each value and a line at the mean of each row, over one scale."""
    drawing = Drawing(width)
    groups = list(dict.fromkeys(row.group for row in rows))
    top = 4.0
    if len(groups) > 1:
        top = drawing.legend([(colour(groups, group), group) for group in groups], 0.0, 4.0)
    values = [value for row in rows for value, _ in row.values]
    values += [reference] if reference is not None else []
    left, high = _left(width), 26.0 if width >= _WIDE else 42.0
    scale = Scale(min(values), max(values), left + 8.0, width - 16.0)
    bottom = top + len(rows) * high
    drawing.below(scale, bottom, top, in_words)
    if reference is not None:
        drawing.line(scale(reference), top, scale(reference), bottom, "reference")
    for place, row in enumerate(rows):
        y = _named(drawing, row.name, top + place * high + 2.0, width)
        kind = colour(groups, row.group)
        mean = sum(value for value, _ in row.values) / len(row.values)
        drawing.line(scale(mean), y - 1.0, scale(mean), y + 17.0, "mean")
        for value, what in row.values:
            words = f"{row.name}: {what}: {number(value)} {in_words}"
            drawing.dot(scale(value), y + 8.0, 4.5, f"{kind} dot", words)
    return drawing


@dataclass(frozen=True)
class Told:
    """One prediction and what came of it."""

    name: str
    low: float
    middle: float
    high: float
    came: float


def predictions(rows: Sequence[Told], in_words: str, width: float) -> Drawing:
    """What was foretold, from the first to the ninth decile, and a dot for what came."""
    drawing = Drawing(width)
    top = drawing.legend([("c0 pale", "deciles 1 to 9"), ("c1", "what came")], 0.0, 4.0)
    values = [each for row in rows for each in (row.low, row.high, row.came)]
    left, high = _left(width), 22.0 if width >= _WIDE else 38.0
    log = min(values) > 0 and max(values) > LOG_ABOVE * min(values)
    scale = Scale(min(values) if log else 0.0, max(values), left + 6.0, width - 16.0, log)
    bottom = top + len(rows) * high
    drawing.below(scale, bottom, top, in_words)
    for place, row in enumerate(rows):
        y = _named(drawing, row.name, top + place * high, width)
        words = (
            f"{row.name}: {number(row.low)} to {number(row.high)} {in_words} foretold, "
            f"{number(row.middle)} in the middle; {number(row.came)} came"
        )
        wide = max(scale(row.high) - scale(row.low), 1.5)
        drawing.rect(scale(row.low), y + 3.0, wide, 9.0, "c0 pale", words)
        drawing.line(scale(row.middle), y + 1.0, scale(row.middle), y + 14.0, "mean")
        drawing.dot(scale(row.came), y + 7.5, 4.5, "c1 dot", words)
    return drawing


@dataclass(frozen=True)
class Curve:
    """One line; lines of one group have one colour."""

    name: str
    group: str
    x: tuple[float, ...]
    y: tuple[float, ...]


def curves(rows: Sequence[Curve], x_name: str, y_name: str, width: float) -> Drawing:
    """Lines over one pair of scales; the vertical one is logarithmic where values are far apart."""
    drawing = Drawing(width)
    groups = list(dict.fromkeys(row.group for row in rows))
    top = drawing.legend([(colour(groups, group), group) for group in groups], 0.0, 4.0) + 20.0
    xs = [x for row in rows for x in row.x]
    ys = [y for row in rows for y in row.y]
    log = min(ys) > 0 and max(ys) > LOG_ABOVE * min(ys)
    bottom = top + (300.0 if width >= _WIDE else 220.0)
    upright = Scale(min(ys), max(ys), bottom, top, log)
    left = 12.0 + CHAR_PX * max(len(number(tick)) for tick in upright.ticks)
    along = Scale(min(xs), max(xs), left, width - 12.0)
    drawing.beside(upright, left, width - 12.0, y_name)
    drawing.below(along, bottom, bottom, x_name)
    for row in rows:
        points = [(along(x), upright(y)) for x, y in zip(row.x, row.y, strict=True)]
        drawing.path(points, f"curve s{colour(groups, row.group)}", row.name)
    return drawing


def _left(width: float) -> float:
    return _GUTTER if width >= _WIDE else 0.0


def _named(drawing: Drawing, name: str, y: float, width: float) -> float:
    """The name of a row beside it, or above it where there is no room; where its bar begins."""
    if width >= _WIDE:
        drawing.text(_GUTTER - 8.0, y + 12.0, short(name, _GUTTER - 16.0), "label", "end")
        return y
    drawing.text(0.0, y + 12.0, short(name, width), "label")
    return y + 17.0
