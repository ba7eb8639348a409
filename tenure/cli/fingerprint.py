"""``tenure fingerprint``: this machine as a worker would measure it, and how another differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from tenure.bad_input import read_text
from tenure.cli import screen
from tenure.cli.workplace import Config, Json, open_workplace
from tenure.errors import Blocked, UsageError
from tenure.lookup import RECORD_ID, stored_record
from tenure.plan.pinning import by_members
from tenure_protocol import fingerprint as protocol
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import ModelRecord, load

_WITHIN_S = 300.0
_NOT_HERE = frozenset({"code", "data"})  # of a job, and this is none
_LONGEST = 60

Against = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|RECORD",
        help="What to compare with: a JSON file of --json, or a model record.",
    ),
]


def fingerprint(against: Against = None, as_json: Json = False, config: Config = None) -> None:
    """Measure this machine as a worker would, or how it differs.

    Exit code 1 when a job pinned to the other environment would refuse here.
    """
    there = _named(against, config) if against else None
    with screen.working("measuring this machine"):
        here = measured(protocol.pin(there) if there is not None else None)
    if there is None:
        if as_json:
            typer.echo(json.dumps(here, sort_keys=True, indent=1))
            return
        screen.show(("field", "class", "measured"), list(_rows(here)))
        typer.echo(screen.plain("\n".join(_remarks(here))))
        return
    found = differences(there, here)
    refuses = protocol.refusing(found)
    if as_json:
        answer = {
            "against": against,
            "refuses": bool(refuses),
            "differences": [item.row() for item in found],
            "left_open": list(protocol.missing_from_pin(protocol.pin(there))),
            "measured": here,
        }
        typer.echo(json.dumps(answer, sort_keys=True, indent=1))
    else:
        _show(found, there)
    if refuses:
        fields = ", ".join(item.field for item in protocol.telling(refuses)[:5])
        raise Blocked(
            f"a job pinned to {against} would refuse here, over {len(refuses)} fields: {fields}"
        )


def measured(requires: Mapping[str, object] | None) -> dict[str, object]:
    """What a worker's process measures here, with the switches of ``requires`` set as it sets them.

    Raises Blocked where that process does not answer.
    """
    command = [sys.executable, "-m", "tenure_protocol.fingerprint"]
    variables = protocol.environment_variables(requires or {})
    try:
        done = subprocess.run(
            [*command, "--requires"] if requires is not None else command,
            input=json.dumps(requires) if requires is not None else None,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            check=False,
        )
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise Blocked(f"this machine could not be measured: {error}") from None
    if not isinstance(found, dict):
        last = done.stderr.strip().splitlines()[-1:]
        raise Blocked(f"this machine could not be measured: {''.join(last) or 'no answer'}")
    return found


def differences(
    there: Mapping[str, object], here: Mapping[str, object]
) -> tuple[protocol.Difference, ...]:
    """How a machine differs from an environment, with the switches that a pinned job sets itself."""
    wanted = {**there, **protocol.pin(there)}
    return protocol.compare({n: v for n, v in wanted.items() if n not in _NOT_HERE}, here)


def _named(name: str, config: Path | None) -> dict[str, object]:
    """The environment a person named. Raises UsageError, StoreOutOfReach or Corrupt."""
    path = Path(name)
    if path.exists() or not RECORD_ID.fullmatch(name):
        return _of_file(name, read_text(path, "fingerprint"))
    store = open_workplace(config).store
    found = stored_record(name, store)
    if found is None:
        raise UsageError(
            f"{name} is no file here, and {store.url} holds no model record of that id"
        )
    return _of_record(found, name)


def _of_file(name: str, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{name} is no JSON: {error}") from None
    if isinstance(found, dict) and "members" in found:
        try:
            return _of_record(load(ModelRecord, text.encode(), name), name)
        except Corrupt as error:
            raise UsageError(f"{error}; it is no model record of this version") from None
    if isinstance(found, dict) and isinstance(found.get("measured"), dict):
        found = found["measured"]  # what --json --against printed
    if not isinstance(found, dict) or not protocol.FIELDS.keys() & found.keys():
        raise UsageError(
            f"{name} holds no fingerprint; `tenure fingerprint --json` prints one, and a model "
            "record has its own"
        )
    return found


def _of_record(record: ModelRecord, name: str) -> dict[str, object]:
    """What a second generation was pinned to, or a retrain of a first one would be."""
    digest = record.members[0].requires if record.members else None
    digest = digest or next(iter(by_members(record)), None)
    if digest is None or digest not in record.environments:
        raise UsageError(f"the record {name} holds no environment")
    return record.environments[digest]


def _rows(here: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Every field of a measurement as a line; of long tables how long they are."""
    for name, value in here.items():
        kind = protocol.field_of(name).kind
        if name == "instruction_sets" and isinstance(value, Mapping):
            yield name, kind, " ".join(value) or "not told"
        elif name in protocol.CLOSED and isinstance(value, Mapping):
            yield name, kind, f"{len(value)}, listed by --json"
        elif isinstance(value, Mapping):
            for switch, state in value.items():
                path = f"{name}.{switch}"
                yield path, protocol.field_of(path).kind, _cell(state)
        else:
            yield name, kind, _cell(value)


def _cell(value: object) -> str:
    return "-" if value in (None, "") else str(value)


def _remarks(here: Mapping[str, object]) -> Iterator[str]:
    if here.get("card") == "cpu":
        yield (
            f"No GPU here ({here.get('gpu')}): the fields of card, driver, CUDA and cuDNN are complete "
            "as they stand, for a machine without one."
        )
    yield (
        "The part that asks NVML was tested with a stand-in library alone; it is not verified on hardware."
    )
    yield (
        "The determinism.* switches are those of this shell: a pinned job sets its own. Their class is "
        "said in docs/fingerprint.md."
    )


def _show(found: tuple[protocol.Difference, ...], there: Mapping[str, object]) -> None:
    """Differences by class, the gravest first."""
    order = ("bitwise", "numeric", "informative")
    told = sorted(protocol.telling(found), key=lambda item: order.index(item.kind))
    if told:
        screen.show(
            ("class", "field", "there", "here", "what it can change"),
            [
                (
                    item.kind,
                    item.field,
                    _short(item.required),
                    _short(item.measured),
                    f"{item.effect} ({protocol.KNOWN_WORDS[item.known]})",
                )
                for item in told
            ],
        )
    if left_open := protocol.missing_from_pin(protocol.pin(there)):
        screen.warn(f"it says nothing of {', '.join(left_open)}: no gate takes a pin made from it")
    if not protocol.refusing(found):
        typer.echo("a pinned job would start here")


def _short(value: object) -> str:
    text = _cell(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
