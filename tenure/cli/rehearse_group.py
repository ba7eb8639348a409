"""The commands below ``tenure rehearse``: what is none of their names is a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperGroup

if TYPE_CHECKING:
    from typer._click.core import Context

DEFAULT = "plan"


class PlanByDefault(TyperGroup):
    """A group whose first argument may be a plan file, or an option of its rehearsal.

    A file that bears the name of a command is written with its folder, as ``./lease``.
    """

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Put the default command before anything but a command or a wish for help."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)
