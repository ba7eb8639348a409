"""``tenure key``: the key that signs what is deployed, and the id that it is named by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.errors import UsageError


def key(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A file that is not there yet; with --show, a key's."),
    ],
    show: Annotated[
        bool, typer.Option("--show", help="Make nothing: tell the id of PATH's public half.")
    ] = False,
) -> None:
    """Make a deploy key: PATH (mode 600), public half PATH.pub."""
    from tenure.deploy_key import key_id, read_public, write_key

    path = path.expanduser()
    if not path.name:
        raise UsageError(f"{path} is a folder; name a file")
    if not show:
        public = write_key(path)
        typer.echo(
            f"written  {path} (private, mode 600)\n"
            f"written  {public} (for whoever verifies warrants)"
        )
    else:
        beside = path.with_name(path.name + ".pub")
        public = path if path.suffix == ".pub" or not beside.exists() else beside
    try:
        pem = public.read_bytes()
    except OSError as error:
        raise UsageError(f"{public} cannot be read: {error.strerror}") from None
    name = key_id(read_public(pem, str(public)))
    typer.echo(f"key id   {name}")
    if show:
        typer.echo(
            f"to trust it:   [gates] trusted_keys = [{_quoted(str(public.absolute()))}, ...]"
        )
        typer.echo(
            f'to revoke it:  [gates] revoked_keys = {{"{name}" = N}}, N the last of its warrants '
            "that is still believed, 0 for none"
        )
        return
    typer.echo(
        f"\nName it in tenure.toml:\n  [gates]\n  deploy_key = {_quoted(f'file:{path.absolute()}')}"
        "  # where models are deployed, and nowhere else\n"
        f"  trusted_keys = [{_quoted(str(public.absolute()))}]  # wherever a warrant is verified"
    )


def _quoted(text: str) -> str:
    """A TOML string.

    >>> _quoted("file:/a")
    '"file:/a"'
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
