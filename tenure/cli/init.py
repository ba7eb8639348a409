"""``tenure init``: a settings file, a plan and an experiment that run as they are."""

from __future__ import annotations

import keyword
import os
import re
import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from tenure.cli.own_name import own_name
from tenure.errors import UsageError
from tenure.plan.file import load_plan, load_plans
from tenure.settings import FILE_NAME, Settings, load_settings

_KEY = ".tenure/deploy_key.pem"  # as the skeleton's tenure.toml names it
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where; by default the working folder.")
    ] = Path(),
    name: Annotated[str, typer.Option(help="Of the plan and of its experiment.")] = "first",
) -> None:
    """Write settings, a key, a plan and an experiment that run.

    Whatever is there already stays as it is.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"--name {name!r} becomes a Python module: 1 to 63 of a-z, 0-9 and '_', beginning with "
            "a letter, and no keyword"
        )
    root = Path(os.path.abspath(folder.expanduser()))
    settings_file = root / FILE_NAME
    _write(settings_file, _skeleton("tenure.toml"), root)
    # An older file stays as it is: the plan names what is in that one.
    settings = load_settings(settings_file)
    _check_free(name, settings)
    plan = root / "plans" / f"{name}.yaml"
    _write(root / "experiments" / "__init__.py", "", root)
    _write(root / "experiments" / f"{name}.py", _skeleton("experiment.py"), root)
    _write(plan, _plan_text(name, settings), root)
    load_plan(plan, settings, check_import=True)
    # A .gitignore of its own, because one in the folder above may be there already and lack the line.
    _write(root / ".tenure" / ".gitignore", "*\n", root)
    _make_key(settings)
    here = root == Path.cwd()
    tenure = own_name(elsewhere=not here)
    where = "" if here else f"  cd {shlex.quote(str(root))}\n"
    typer.echo(
        f"\nNext:\n{where}"
        f"  {tenure} enlist plans/{name}.yaml    # five training jobs\n"
        f"  {tenure} dispatch --until-done      # runs them here\n"
        f"  {tenure} status\n"
        f"  {tenure} run plans/{name}.yaml       # all stages, up to a model that may be deployed"
    )


def _make_key(settings: Settings) -> None:
    """The key that the written settings name; of older ones, whatever they name is their owner's."""
    from tenure.deploy_key import write_key

    path = settings.root / _KEY
    if settings.gates.deploy_key != f"file:{_KEY}":
        return
    if path.exists():
        typer.echo(f"kept     {_KEY} (it was there)")
        return
    write_key(path)
    typer.echo(f"written  {_KEY} (signs what is deployed; mode 600)")


def _skeleton(file: str) -> str:
    return (resources.files("tenure.cli.skeleton") / file).read_text(encoding="utf-8")


def _plan_text(name: str, settings: Settings) -> str:
    filled = {
        "{file}": f"plans/{name}.yaml",
        "{name}": name,
        "{team}": "me" if "me" in settings.teams else next(iter(settings.teams), "me"),
        "{rungs}": f"[{', '.join(settings.rungs)}]",
    }
    text = _skeleton("plan.yaml")
    for field, value in filled.items():
        text = text.replace(field, value)
    return text


def _check_free(name: str, settings: Settings) -> None:
    """Refuse the name of a plan that stands elsewhere: two plans of one name share their jobs' keys."""
    mine = settings.root / "plans" / f"{name}.yaml"
    for plan in load_plans(settings):
        if plan.name == name and plan.file and plan.file.resolve() != mine.resolve():
            raise UsageError(f"{plan.file} is a plan {name!r} already; choose another --name")


def _write(file: Path, text: str, root: Path) -> None:
    """Write a file that is not there yet, and say so. Raises UsageError."""
    shown = file.relative_to(root)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        if file.parent.is_dir():
            typer.echo(f"kept     {shown} (it was there)")
            return
        raise UsageError(f"{file.parent} is a file; name a folder") from None
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from None
    typer.echo(f"written  {shown}")
