"""A group of commands that are loaded when called, and the one place where an exception ends a command.

The core's commands and those of the entry-point group ``tenure.commands`` are both named
``module:attribute``. A line of help is read from the source without running it: importing every
plug-in would cost seconds, and one that is broken would take the others with it.
"""

from __future__ import annotations

import ast
import errno
import importlib
import importlib.util
import os
import signal
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from tenure.cli.plain import plain
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure_protocol.codec import Corrupt
from tenure_protocol.store.api import StoreSilent, StoreUnusable

if TYPE_CHECKING:
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter

GROUP = "tenure.commands"
INTERRUPTED = 130

CORE = {
    "init": "tenure.cli.init:init",
    "key": "tenure.cli.key:key",
    "status": "tenure.cli.status:status",
    "why": "tenure.cli.why:why",
    "queue": "tenure.cli.queue:app",
    "events": "tenure.cli.streams:events",
    "log": "tenure.cli.streams:log",
    "retry": "tenure.cli.change:retry",
    "revoke": "tenure.cli.change:revoke",
    "pause": "tenure.cli.change:pause",
    "resume": "tenure.cli.resume:resume",
    "cancel": "tenure.cli.change:cancel",
    "release": "tenure.cli.release:release",
    "dispatch": "tenure.cli.dispatch:dispatch",
    "gc": "tenure.cli.gc:gc",
    "store": "tenure.cli.store:app",
    "costs": "tenure.cli.costs:costs",
    "forecasts": "tenure.cli.forecasts:forecasts",
    "notify": "tenure.notify.command:notify",
    "doctor": "tenure.cli.doctor:doctor",
    "fingerprint": "tenure.cli.fingerprint:fingerprint",
    "sim": "tenure.cli.sim:sim",
    "rehearse": "tenure.cli.rehearse:app",
    "allocate": "tenure.cli.allocate:allocate",
    "capacity": "tenure.cli.capacity:capacity",
}


class CommandGroup(TyperGroup):
    """The root of the command line."""

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Fill in the commands' lines, which nothing else needs, and print the help."""
        for command in self.commands.values():
            if isinstance(command, LazyCommand):
                command.help = summary(command.target)
        super().format_help(ctx, formatter)

    def main(self, *args: Any, **kwargs: Any) -> Any:  # as typer declares it
        """Run the command line; a full disk behind standard output is a sentence, for help too."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if not _unprintable(error):
                raise
            print(f"tenure: standard output cannot be written: {error.strerror}", file=sys.stderr)
            raise SystemExit(Blocked.exit_code) from None

    def invoke(self, ctx: Context) -> object:
        """Run a command; what it raises for a person becomes a sentence and an exit code."""
        obeyed = False
        try:
            obeyed = _obey_interrupts()
            found = super().invoke(ctx)
            sys.stdout.flush()  # what cannot be printed is told here, not after the last line
            return found
        except (KeyboardInterrupt, typer.Abort):
            raise SystemExit(INTERRUPTED) from None
        except Exception as error:
            code = exit_code(error)
            if code is None:
                raise
            print(plain(f"tenure: {error}"), file=sys.stderr)
            raise SystemExit(code) from None
        finally:
            if obeyed:  # the answer is given: one more Ctrl-C ends the process where it clears up
                signal.signal(signal.SIGINT, signal.SIG_DFL)


class LazyCommand(TyperCommand):
    """Stands for a command until it is called."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name=name)
        self.target = target

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: object
    ) -> Context:
        """Load the command, and let it parse its own arguments."""
        command = load(cast(str, self.name), self.target)
        return command.make_context(info_name, args, parent=parent, **extra)


def build(app: typer.Typer) -> CommandGroup:
    """The whole command line. A plug-in cannot take the name of a command of the core."""
    group = typer.main.get_command(app)
    assert isinstance(group, CommandGroup)
    targets = dict(CORE)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        targets.setdefault(point.name, point.value)
    for name, target in targets.items():
        group.commands[name] = LazyCommand(name, target)
    return group


def _obey_interrupts() -> bool:
    """Ctrl-C raises ``KeyboardInterrupt`` again, where ``tenure.__main__`` had it end the process."""
    ends = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return ends


def _unprintable(error: OSError) -> bool:
    """Whether it is standard output that failed; then nothing more is printed there.

    A reader that went away, as of ``tenure status | head``, is no failure, and typer ends for it.
    """
    if error.errno == errno.EPIPE:
        return False
    try:
        print(flush=True)  # what failed is no longer in its buffer, so something else is tried
    except OSError:
        # what is left in its buffer would be tried again, with a traceback, when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def exit_code(error: Exception) -> int | None:
    """The code of an exception that carries a sentence for a person; ``None`` for a bug.

    >>> exit_code(UsageError("a typo")), exit_code(Corrupt("no JSON", "plans/p")), exit_code(KeyError())
    (2, 1, None)
    """
    if isinstance(error, (UsageError, Blocked, StoreOutOfReach)):
        return error.exit_code
    if isinstance(error, StoreSilent):
        return StoreOutOfReach.exit_code
    if isinstance(error, StoreUnusable):
        return UsageError.exit_code
    return Blocked.exit_code if isinstance(error, Corrupt) else None


def load(name: str, target: str) -> Command:
    """The command behind ``module:attribute``: a typer app or a function.

    Raises :class:`UsageError` for a plug-in that cannot be loaded.
    """
    module, _, attribute = target.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(f"the command {name!r} ({target}) cannot be loaded: {words}") from error
    shell = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        shell.add_typer(found, name=name)
        outer = typer.main.get_command(shell)
        assert isinstance(outer, TyperGroup)
        return outer.commands[name]
    if callable(found):
        shell.command(name)(found)
        return typer.main.get_command(shell)
    raise UsageError(f"the command {name!r} ({target}) is neither a typer app nor a function")


def summary(target: str) -> str:
    """The first line that says what a command does, read from its source, which is not run."""
    module, _, attribute = target.partition(":")
    try:
        spec = importlib.util.find_spec(module)  # runs the packages above it and no more
        if spec is None or spec.origin is None:
            return f"(cannot be loaded: there is no module {module})"
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    except Exception as error:  # whatever a broken plug-in raises
        return f"(cannot be loaded: {type(error).__name__})"
    for node in tree.body:
        words = _words(node, attribute)
        if words:
            return words.splitlines()[0]
    return f"({target})"


def _words(node: ast.stmt, attribute: str) -> str | None:
    """The docstring of a function of this name, or the ``help`` of a typer app of this name.

    Of an app without one, it is the docstring of its callback, as typer has it.
    """
    if isinstance(node, ast.FunctionDef):
        calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
        callback = any(ast.unparse(call) == f"{attribute}.callback" for call in calls)
        return ast.get_docstring(node) if callback or node.name == attribute else None
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        for keyword in node.value.keywords if attribute in names else []:
            value = keyword.value
            if keyword.arg == "help" and isinstance(value, ast.Constant):
                return str(value.value)
    return None
