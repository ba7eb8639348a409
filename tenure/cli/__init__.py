"""The ``tenure`` command. Importing this loads typer and no command: each is loaded when it is called."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure import __version__
from tenure.cli.group import CommandGroup, build

app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, secrets among them
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from tenure_protocol.records import PROTOCOL_VERSION

        print(f"tenure {__version__} (protocol {PROTOCOL_VERSION})")
        raise typer.Exit


@app.callback()
def tenure(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and end."
        ),
    ] = False,
) -> None:
    """Training jobs that finish, and models that are deployed only when that can be proved.

    Exit codes: 0 done, 1 the answer is no (blocked, unsafe, failed), 2 bad input, 3 store out of
    reach, 130 interrupted.
    """


def main() -> None:
    """Run the command line and exit with its code."""
    build(app)()
