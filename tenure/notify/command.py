"""``tenure notify``: where notices would go, and whether they arrive."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.cli import screen
from tenure.cli.workplace import Config
from tenure.errors import Blocked, UsageError
from tenure.notify.addresses import read_addresses
from tenure.notify.send import Letter, send
from tenure.settings import load_settings

_TEST = Letter("Tenure: test", "this is a test of `tenure notify --test`; nothing has happened")


def notify(
    test: Annotated[
        bool, typer.Option("--test", help="Send a line to each and say whether it was taken.")
    ] = False,
    config: Config = None,
) -> None:
    """List where notices go; with --test, send each a line.

    Exit code 1 when one of them did not take it. Passwords and tokens are not shown.
    """
    settings = load_settings(config)
    addresses = read_addresses(settings)
    if not addresses:
        raise UsageError(
            "there is no address to notify; set $TENURE_NOTIFY to one, such as "
            "mailto://USER:PASSWORD@example.org, or name another source in [notify] to"
        )
    if not test:
        screen.show(("address",), [(address.shown,) for address in addresses])
        typer.echo(f"told of: {', '.join(settings.notify.events)}")
        return
    with screen.working("sending"):
        answers = send([(address, _TEST) for address in addresses])
    rows = [
        (words or "taken", address.shown) for words, address in zip(answers, addresses, strict=True)
    ]
    screen.show(("answer", "address"), rows)
    if lost := sum(map(bool, answers)):
        raise Blocked(f"{lost} of {len(addresses)} addresses did not take it")
