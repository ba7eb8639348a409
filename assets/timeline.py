"""The launches of a stage over time: a bar for each, a line of bars for each job, as a small PNG image."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from assets.facts import Picture
from tenure.report.attempts import Bar as Bar
from tenure.report.attempts import bar as bar
from tenure.report.attempts import unit

MOST_LINES = 24  # more jobs than that cannot be told apart


def timeline_picture(lines: Mapping[str, Sequence[Bar]]) -> Picture | str | None:
    """The first jobs' launches over time; ``None`` without any, a sentence where nothing can be drawn."""
    drawn = {line: bars for line, bars in list(lines.items())[:MOST_LINES] if bars}
    if not drawn:
        return None
    bars = [each for found in drawn.values() for each in found]
    lost = sum(each.lost for each in bars)
    words = f"{len(bars)} launches of {len(drawn)} jobs, {lost} of them lost"
    if len(lines) > MOST_LINES:
        words += f"; {len(lines) - MOST_LINES} more jobs are not drawn"
    try:
        return Picture(_draw(drawn, bars), words)
    except ImportError as error:
        return f"not drawn, because matplotlib cannot be imported ({error}): {words}"


def _draw(lines: Mapping[str, Sequence[Bar]], bars: Sequence[Bar]) -> bytes:
    """A PNG of at most 40 kB: it is kept in every materialization."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    zero_s = min(each.begin_s for each in bars)
    last_s = max(each.end_s for each in bars)
    in_one_s, name = unit(last_s - zero_s)
    rungs = list(dict.fromkeys(each.rung for each in bars))
    figure = Figure(figsize=(7.0, 1.3 + 0.22 * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    seen: set[str] = set()
    for place, found in enumerate(lines.values()):
        for each in found:
            begin, end = ((at - zero_s) / in_one_s for at in (each.begin_s, each.end_s))
            claim = end if each.claim_s is None else (each.claim_s - zero_s) / in_one_s
            colour = f"C{rungs.index(each.rung) % 10}"
            label = None if each.rung in seen else each.rung
            seen.add(each.rung)
            axes.barh(place, claim - begin, 0.6, begin, color=colour, alpha=0.3)
            axes.barh(place, end - claim, 0.6, claim, color=colour, label=label)
            if each.lost:
                axes.plot([end], [place], "x", color="black", markersize=5)
    axes.set_yticks(range(len(lines)), list(lines), fontsize="x-small")
    axes.invert_yaxis()
    axes.set_xlabel(f"{name} since the first launch; pale: before its claim; x: lost")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(fontsize="small", loc="outside upper right", ncols=4)  # over no bar
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return buffer.getvalue()
