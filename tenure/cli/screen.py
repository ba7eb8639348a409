"""What people see: rich where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_ENDLESS = 10_000  # columns: a file or a pipe has no width, and a cut line is no line for grep

COLOURS = {
    "held": "green",
    "finished": "green",
    "expected": "cyan",
    "vacant": "yellow",
    "released": "yellow",
    "revoked": "yellow",
    "cancelled": "red",
    "stopped": "red",
    "unknown": "red",
}


def console() -> Console:
    """Standard output, as it is at this moment."""
    return Console(width=None if sys.stdout.isatty() else _ENDLESS, highlight=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose last column takes what room there is. Cells may hold square brackets."""
    made = Table(box=SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    for name in columns[:-1]:
        made.add_column(name, no_wrap=True)
    made.add_column(columns[-1], overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, COLOURS.get(cell, "")) for cell in row))
    return made


@contextmanager
def working(words: str) -> Iterator[None]:
    """Show that something goes on, on the terminal of standard error; nothing where it is none."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(Text(words)):
        yield


def warn(words: str) -> None:
    """One line on standard error."""
    print(f"tenure: {words}", file=sys.stderr)
