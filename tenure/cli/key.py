"""``tenure key``: the key that signs what is deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.errors import UsageError


def key(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A file that is not there yet.")],
) -> None:
    """Make a deploy key: PATH (mode 600), its public half in PATH.pub."""
    from tenure.deploy_key import write_key

    path = path.expanduser()
    if not path.name:
        raise UsageError(f"{path} is a folder; name a file")
    public = write_key(path)
    typer.echo(
        f"written  {path} (private, mode 600)\nwritten  {public} (for whoever verifies warrants)\n\n"
        f"Name it in tenure.toml:\n  [gates]\n  deploy_key = {_quoted(f'file:{path.absolute()}')}"
    )


def _quoted(text: str) -> str:
    """A TOML string.

    >>> _quoted("file:/a")
    '"file:/a"'
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
