"""Lines, bars and words as inline SVG: no library, no script, and every word is escaped here.

Colours are classes of the page's style sheet, so that one drawing is right by day, by night and on paper.
A figure is drawn twice, narrow and wide, because words in a drawing that is shrunk to a phone cannot be read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from math import ceil, floor, isfinite, log10

CHAR_PX = 7.2  # of a letter at the size of a label, in a wide font
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


def safe(words: object) -> str:
    """Words as HTML and SVG show them: no markup, no attribute's end, no letter that turns a line around.

    >>> safe('<b onclick="x">'), safe("a\\x00b")
    ('&lt;b onclick=&quot;x&quot;&gt;', 'a\ufffdb')
    """
    return escape(_CONTROL.sub("\ufffd", str(words)), quote=True)


def short(words: str, most_px: float) -> str:
    """Words cut to a width.

    >>> short("lr=0.001, model=gru", 80.0)
    'lr=0.001, m…'
    """
    most = max(1, floor(most_px / CHAR_PX) + 1)
    return words if len(words) <= most else words[: most - 1] + "…"


def number(value: float) -> str:
    """A number for people, three digits of it.

    >>> number(0.0), number(1234.5), number(0.04567), number(12.0), number(1.5e13)
    ('0', '1,234', '0.0457', '12', '1.5e+13')
    """
    if not isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.0f}" if size >= 100 else f"{value:.3g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, both ends within them.

    >>> ticks(0.0, 9.7), ticks(0.93, 1.31, 4), ticks(2.0, 2.0)
    ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.9, 1.0, 1.1, 1.2, 1.3, 1.4], [1.0, 1.5, 2.0, 2.5, 3.0])
    """
    if not high > low:
        half = abs(low) / 2 or 1.0
        low, high = low - half, high + half
    rough = (high - low) / most
    power = 10.0 ** floor(log10(rough))
    step = next(unit * power for unit in (1, 2, 5, 10) if unit * power >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(each * step, 12) for each in range(first, last + 1)]


class Scale:
    """From values to pixels, over round numbers; ``log`` for values above zero that are far apart."""

    def __init__(
        self, low: float, high: float, start_px: float, end_px: float, log: bool = False
    ) -> None:
        self.log = log
        self.start_px, self.end_px = start_px, end_px
        if log:
            self.ticks = [10.0**e for e in range(floor(log10(low)), ceil(log10(high)) + 1)]
            if len(self.ticks) < 2:
                self.ticks = [self.ticks[0], self.ticks[0] * 10.0]
        else:
            self.ticks = ticks(low, high, max(2, int(abs(end_px - start_px) // 75)))
        self._low, self._high = self._of(self.ticks[0]), self._of(self.ticks[-1])

    def _of(self, value: float) -> float:
        return log10(value) if self.log else value

    def __call__(self, value: float) -> float:
        """The pixel of a value; beyond the ends it is the end."""
        part = (self._of(value) - self._low) / (self._high - self._low)
        return self.start_px + min(max(part, 0.0), 1.0) * (self.end_px - self.start_px)


class Drawing:
    """One SVG of a given width; its height grows with what is drawn."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.height = 0.0
        self._parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str) -> None:
        """A straight line."""
        self._add(
            max(y1, y2),
            f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>',
        )

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, words: str = ""
    ) -> None:
        """A bar, and what a pointer on it tells."""
        shape = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.0):.1f}" height="{height:.1f}"'
        self._add(y + height, _titled("rect", f'{shape} rx="2"', words))

    def dot(self, x: float, y: float, radius: float, kind: str, words: str = "") -> None:
        """A circle, and what a pointer on it tells."""
        shape = f'class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        self._add(y + radius, _titled("circle", shape, words))

    def cross(self, x: float, y: float, size: float, words: str = "") -> None:
        """The sign of a loss."""
        ends = f"M{x - size:.1f} {y - size:.1f}l{2 * size:.1f} {2 * size:.1f}"
        back = f"M{x - size:.1f} {y + size:.1f}l{2 * size:.1f} {-2 * size:.1f}"
        self._add(y + size, _titled("path", f'class="lost" d="{ends}{back}"', words))

    def path(self, points: Sequence[tuple[float, float]], kind: str, words: str = "") -> None:
        """A line through points."""
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self._add(max(y for _, y in points), _titled("path", f'class="{kind}" d="{d}"', words))

    def text(
        self, x: float, y: float, words: str, kind: str = "label", anchor: str = "start"
    ) -> None:
        """Words, escaped."""
        shape = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._add(y + 4.0, f"<text {shape}>{safe(words)}</text>")

    def legend(self, names: Sequence[tuple[str, str]], x: float, y: float) -> float:
        """Names beside their colours, as (class, name), in as many lines as they need; where it ends."""
        at = x
        for kind, name in names:
            words = short(name, self.width - x - 24)
            wide = 24 + len(words) * CHAR_PX
            if at > x and at + wide > self.width:
                at, y = x, y + 18
            self.rect(at, y, 11, 11, kind)
            self.text(at + 16, y + 10, words)
            at += wide + 8
        return y + 24

    def below(self, scale: Scale, y: float, top: float, name: str) -> None:
        """A scale along the bottom, its grid, and what it counts in."""
        for tick in scale.ticks:
            self.line(scale(tick), top, scale(tick), y, "grid")
            at = scale(tick)
            anchor = "end" if at > self.width - 15 else "start" if at < 12 else "middle"
            self.text(scale(tick), y + 15, number(tick), "tick", anchor)
        self.text(scale.end_px, y + 33, name, "tick", "end")

    def beside(self, scale: Scale, x: float, right: float, name: str) -> None:
        """A scale along the left side, its grid, and what it counts in."""
        for tick in scale.ticks:
            self.line(x, scale(tick), right, scale(tick), "grid")
            self.text(x - 6, scale(tick) + 4, number(tick), "tick", "end")
        self.text(2, scale.end_px - 10, name, "tick")

    def svg(self, label: str, kind: str) -> str:
        """The drawing, with words for who cannot see it."""
        size = f'viewBox="0 0 {self.width:.0f} {self.height + 4:.0f}"'
        return (
            f'<svg class="{kind}" role="img" aria-label="{safe(label)}" {size}>'
            f"{''.join(self._parts)}</svg>"
        )

    def _add(self, bottom: float, part: str) -> None:
        self.height = max(self.height, bottom)
        self._parts.append(part)


def _titled(name: str, shape: str, words: str) -> str:
    return (
        f"<{name} {shape}><title>{safe(words)}</title></{name}>" if words else f"<{name} {shape}/>"
    )
