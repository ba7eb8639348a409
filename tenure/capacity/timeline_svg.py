"""The timeline as one SVG: what a task does when, and the share of each capacity that all tasks use together.

Plain text and rectangles: it needs no library, opens in every browser, and scales with the page.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from html import escape

from tenure.capacity.demand import UNITS, DemandScenario, Resource
from tenure.capacity.timeline import Folded, Timeline, folded

_WIDTH, _LEFT, _RIGHT = 960, 190, 30
_PLOT = _WIDTH - _LEFT - _RIGHT
_ROW, _PLOT_HEIGHT, _GAP = 26, 220, 62
_COLOURS = {"model": "#2b6cb0", "prepare": "#718096", "tool": "#c05621"}
_LINES: dict[Resource, str] = {"cpu": "#c05621", "memory": "#2f855a", "model": "#2b6cb0"}
_PHASES = {"model": "model call", "prepare": "preparation", "tool": "tool run"}
_PERIODS = 40  # that the lower panel shows at most
_LEAST_SHARE = 0.01  # of the width: what is shorter gets no label


def draw(asked: DemandScenario, told: Timeline, title: str) -> str:
    """The text of an SVG file."""
    rows = max(phase.task for phase in told.phases) if told.phases else 0
    kinds = [(n, what) for n in range(1, rows + 1) for what in _shown(told, n)]
    top = 92
    schedule_end = top + _ROW * max(len(kinds), 1)
    plot_top = schedule_end + _GAP + 34
    height = plot_top + _PLOT_HEIGHT + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'role="img" aria-labelledby="title" font-family="sans-serif" font-size="14">',
        f'<title id="title">{escape(title)}</title>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(_LEFT, 28, title, size=18, weight="bold"),
        _text(_LEFT, 52, _subtitle(told), size=14, fill="#4a5568"),
        *_schedule(told, kinds, top, schedule_end),
        *_use(asked, told, plot_top),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _subtitle(told: Timeline) -> str:
    many = "one task" if told.tasks_at_once == 1 else f"{told.tasks_at_once} tasks at once"
    return f"{many} every {told.every_s:.4g} s; one task's way above, all tasks together below"


def _shown(told: Timeline, number: int) -> list[str]:
    there = {phase.what for phase in told.phases if phase.task == number}
    return [what for what in _PHASES if what in there]


def _schedule(told: Timeline, kinds: list[tuple[int, str]], top: int, end: int) -> Iterator[str]:
    """A row for each part of each sort of task."""
    longest_s = max((phase.to_s for phase in told.phases), default=0.0) or 1.0
    several = len({number for number, _ in kinds}) > 1
    for n, (number, what) in enumerate(kinds):
        y = top + n * _ROW
        label = f"task {number}: {_PHASES[what]}" if several else _PHASES[what]
        yield _text(_LEFT - 10, y + 17, label, anchor="end")
        for phase in told.phases:
            if (phase.task, phase.what) != (number, what):
                continue
            x, width = _place(phase.from_s, longest_s), _place(phase.to_s, longest_s)
            words = (
                f"{_PHASES[what]}, round {phase.round}: {phase.from_s:.4g} to {phase.to_s:.4g} s"
            )
            yield (
                f'<rect x="{x:.1f}" y="{y + 3}" width="{max(width - x, 1):.1f}" height="{_ROW - 6}" '
                f'fill="{_COLOURS[what]}"><title>{escape(words)}</title></rect>'
            )
            length = f"{phase.to_s - phase.from_s:.3g} s"
            if width - x > 9 * len(length):
                yield _text(
                    (x + width) / 2, y + 17, length, anchor="middle", size=12, fill="#ffffff"
                )
    yield from _across(longest_s, end, "time since the task arrived, s")


def _use(asked: DemandScenario, told: Timeline, top: int) -> Iterator[str]:
    """Each resource as a line in percent of what is there, over some periods of the steady state."""
    layers = folded(asked, told.tasks_at_once)
    drawn = {
        name: (each, told.peaks[name].capacity)
        for name, each in layers.items()
        if told.peaks[name].capacity > 0 and each
    }
    bottom = top + _PLOT_HEIGHT
    sizes = {"cpu": 1.0, "memory": asked.environment.memory_gib, "model": 1.0}
    shares = [told.peaks[name].peak_share or 0.0 for name in drawn]
    most = _top_of_scale(100 * max([*shares, 1.0]))
    longest_s = max((phase.to_s for phase in told.phases), default=1.0) or 1.0
    until_s = max(2 * told.every_s, min(longest_s, _PERIODS * told.every_s))
    yield from _up(most, top, bottom)
    yield from _across(until_s, bottom, "time in steady state, s")
    line = bottom - _PLOT_HEIGHT * 100 / most
    yield (
        f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{line:.1f}" y2="{line:.1f}" stroke="#1a202c" '
        'stroke-dasharray="6 4"/>'
    )
    words = _text(_LEFT + _PLOT, line - 5, "all there is", anchor="end", size=12)
    beneath = 'stroke="#ffffff" stroke-width="4" paint-order="stroke" '
    for n, (name, (each, capacity)) in enumerate(drawn.items()):
        scale = 100 * sizes[name] / capacity
        points = " ".join(
            f"{_place(at_s, until_s):.1f},{bottom - _PLOT_HEIGHT * scale * level / most:.1f}"
            for at_s, level in _steps(each, until_s)
        )
        yield f'<polyline points="{points}" fill="none" stroke="{_LINES[name]}" stroke-width="2.5"/>'
        peak = told.peaks[name]
        x = _RIGHT + n * (_WIDTH - 2 * _RIGHT) / len(_LINES)
        yield f'<rect x="{x:.1f}" y="{top - 27}" width="14" height="14" fill="{_LINES[name]}"/>'
        yield _text(
            x + 20, top - 15, f"{name}: {peak.peak:.4g} of {capacity:.4g} {UNITS[name]} at most"
        )
    yield words.replace("<text ", f"<text {beneath}")  # readable across a line


def _steps(layers: list[Folded], until_s: float) -> Iterator[tuple[float, float]]:
    """The corners of the line of all sorts of tasks together."""
    changes = sorted({at_s for layer in layers for at_s in layer.changes_s(until_s)} | {0.0})
    before = None
    for at_s in itertools.chain((each for each in changes if each < until_s), [until_s]):
        level = sum(layer.at(at_s) for layer in layers)
        if before is not None:
            yield at_s, before
        if at_s < until_s:
            yield at_s, level
            before = level


def _place(at_s: float, longest_s: float) -> float:
    return _LEFT + _PLOT * at_s / longest_s


def _across(longest_s: float, y: float, label: str) -> Iterator[str]:
    """The axis of time."""
    yield _rule(_LEFT, y, _LEFT + _PLOT, y)
    for tick in _ticks(longest_s):
        x = _place(tick, longest_s)
        yield _rule(x, y, x, y + 5)
        yield _text(x, y + 20, f"{tick:g}", anchor="middle", size=12)
    yield _text(_LEFT + _PLOT / 2, y + 40, label, anchor="middle")


def _up(most: float, top: float, bottom: float) -> Iterator[str]:
    """The axis of shares."""
    yield _rule(_LEFT, top, _LEFT, bottom)
    for tick in _ticks(most):
        y = bottom - _PLOT_HEIGHT * tick / most
        yield _rule(_LEFT - 5, y, _LEFT, y)
        yield _text(_LEFT - 10, y + 4, f"{tick:g}", anchor="end", size=12)
    middle = (top + bottom) / 2
    yield (
        f'<text x="{_LEFT - 62}" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 {_LEFT - 62} {middle})">use, % of what is there</text>'
    )


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to ``most``, four to ten of them.

    >>> _ticks(30), _ticks(0.7)
    ([0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0], [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    """
    step = _step(most)
    return [round(n * step, 12) for n in range(math.floor(most / step + 1e-9) + 1)]


def _step(most: float) -> float:
    size = float(10 ** math.floor(math.log10(most)))
    return next(size * each for each in (0.1, 0.2, 0.5, 1.0) if most / (size * each) <= 10)


def _top_of_scale(percent: float) -> float:
    step = _step(percent)
    return step * math.ceil(percent / step * (1 - 1e-12))


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#4a5568"/>'


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    size: int = 14,
    weight: str = "normal",
    fill: str = "#1a202c",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}" fill="{fill}">{escape(words)}</text>'
    )
