"""What people see: rich where there is a terminal, plain lines where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tenure.cli.plain import plain as plain

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


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose last column takes what room there is. Cells may hold square brackets."""
    made = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for name in columns[:-1]:
        made.add_column(name, no_wrap=True)
    made.add_column(columns[-1], overflow="fold")
    for row in rows:
        made.add_row(*(Text(plain(cell), COLOURS.get(cell, "")) for cell in row))
    return made


def show(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where there is no terminal, one line per row that no width cuts."""
    if sys.stdout.isatty():
        Console().print(table(columns, rows))
        return
    lines = [list(columns), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(cells).rstrip())


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
    print(f"tenure: {plain(words)}", file=sys.stderr)
