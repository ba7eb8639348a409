"""``tenure compare``: is an effect larger than the seeds' noise, and is a platform's deviation a fault?"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from gates.evidence import same_json
from tenure.bad_input import did_you_mean
from tenure.cli import screen
from tenure.cli.workplace import Config, Json
from tenure.dispatch.registry import open_settings_store
from tenure.errors import Blocked, UsageError
from tenure.lookup import find_record, is_file, read_record
from tenure.seed_noise import WITHIN_SD, platforms
from tenure.seed_noise import compare as compare_samples
from tenure.settings import load_settings
from tenure.statistics import oriented
from tenure_protocol.fingerprint import FIELD_CLASSES
from tenure_protocol.records import Member, MetricValue, ModelRecord

Values = NDArray[np.float64]


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A record's id or its JSON file.")],
    second: Annotated[
        str | None, typer.Argument(metavar="B", help="The same; without it, --by groups A.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="What is compared; by default what A is promoted by.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Group A's members by this field that they measured: card.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="With --by: the platform the others are compared with.")
    ] = None,
    within: Annotated[
        float,
        typer.Option(help="With --by: standard deviations of the seeds that count as inside."),
    ] = WITHIN_SD,
    alpha: Annotated[float, typer.Option(help="Level of the tests.")] = 0.05,
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Is a difference larger than the noise of the seeds?

    With ``--by card``: is the deviation of a platform a fault?

    Exit code 0: answered, 1: with --by, a fault was found, 2: bad input, 3: store out of reach.
    """
    if (second is None) == (by is None):
        raise UsageError(
            "name two records to compare, or one and --by card to compare the platforms of its seeds"
        )
    if by is None and (reference is not None or within != WITHIN_SD):
        raise UsageError("--reference and --within belong to --by; two records have neither")
    if not 0 < alpha < 0.5:
        raise UsageError(f"--alpha is {alpha:g}, it lies between 0 and 0.5")
    records = _records([name for name in (first, second) if name is not None], config)
    name = metric or records[0].promote.metric
    terms = _terms(records, name)
    head: dict[str, object] = {"metric": name, "direction": terms.direction, "unit": terms.unit}
    try:
        if by is None:
            answer = head | _two(records[0], records[1], name, terms, alpha)
        else:
            answer = head | _groups(records[0], name, terms, by, reference, within, alpha)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        _tell(answer)
    if "fault" in _answers(answer):
        raise typer.Exit(Blocked.exit_code)


def _records(names: Sequence[str], config: Path | None) -> list[ModelRecord]:
    """The records that were named; a store is opened only for an id. Raises UsageError."""
    opened = functools.cache(lambda: open_settings_store(load_settings(config), read_only=True))
    found = [
        read_record(Path(name)) if is_file(name) else find_record(name, opened()) for name in names
    ]
    if len(found) == 2:
        first, second = ({member.train.job for member in record.members} for record in found)
        if first & second:
            raise UsageError(
                f"{names[0]} and {names[1]} share {len(first & second)} trainings, so a model would "
                "be compared with itself; name two records of different trainings"
            )
    return found


def _terms(records: Sequence[ModelRecord], name: str) -> MetricValue:
    """One measurement of the metric, whose direction and unit are those of all. Raises UsageError."""
    seen: dict[tuple[str, str], MetricValue] = {}
    for record in records:
        if not record.members:
            raise UsageError(f"record {record.id} has no members, so no seeds to compare")
        for member in record.members:
            found = member.metrics.get(name)
            if found is None:
                raise UsageError(
                    f"seed {member.seed} of record {record.id} has no metric {name!r}; "
                    + did_you_mean(name, member.metrics)
                )
            seen.setdefault((found.direction, found.unit), found)
    if len(seen) > 1:
        kinds = " and ".join(sorted(f"{direction} in {unit}" for direction, unit in seen))
        raise UsageError(f"{name} was measured as {kinds}, which cannot be compared")
    (terms,) = seen.values()
    return terms


def _losses(members: Sequence[Member], name: str, terms: MetricValue) -> Values:
    return oriented([member.metrics[name].value for member in members], terms.direction)


def _two(
    first: ModelRecord, second: ModelRecord, name: str, terms: MetricValue, alpha: float
) -> dict[str, object]:
    a, b = (_losses(record.members, name, terms) for record in (first, second))
    found = compare_samples(a, b, alpha)
    differs = [
        what
        for what in ("experiment", "config", "code", "data", "generation")
        if not same_json(getattr(first, what), getattr(second, what))
    ]
    cards = [set(_groups_of(record, "card")) for record in (first, second)]
    if cards[0] != cards[1]:
        differs.append("card")
    return {
        "first": first.id,
        "second": second.id,
        "differs": differs,
        "answer": found.answer,
        "reason": found.reason,
        "numbers": {
            name: value
            for name, value in asdict(found).items()
            if name not in ("answer", "reason", "seeds")
        }
        | {"first_seeds": found.seeds[0], "second_seeds": found.seeds[1]},
    }


def _groups(
    record: ModelRecord,
    name: str,
    terms: MetricValue,
    by: str,
    reference: str | None,
    within: float,
    alpha: float,
) -> dict[str, object]:
    fields = [field for field in FIELD_CLASSES if "." not in field]
    if by not in fields:
        raise UsageError(f"--by {by}: no environment has such a field; {did_you_mean(by, fields)}")
    groups = _groups_of(record, by)
    moved = groups.pop(None, [])
    samples = {platform or "": _losses(group, name, terms) for platform, group in groups.items()}
    against, found = platforms(samples, reference, within, alpha)
    return {
        "record": record.id,
        "by": by,
        "reference": against,
        "reference_seeds": len(samples[against]),
        "within_sd": within,
        "seeds_left_out": [member.seed for member in moved],
        "platforms": [asdict(each) for each in found],
    }


def _groups_of(record: ModelRecord, by: str) -> dict[str | None, list[Member]]:
    """Members by what their training measured; under ``None`` those that moved between platforms."""
    groups: dict[str | None, list[Member]] = {}
    for member in record.members:
        seen = {_words(record.environments.get(digest, {}).get(by)) for digest in member.measured}
        groups.setdefault(seen.pop() if len(seen) == 1 else None, []).append(member)
    return groups


def _words(value: object) -> str:
    """A field of an environment in words.

    >>> _words("NVIDIA L4"), _words(2), _words(None)
    ('NVIDIA L4', '2', 'unknown')
    """
    if value is None:
        return "unknown"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _answers(answer: Mapping[str, object]) -> list[str]:
    rows = answer.get("platforms", [])
    assert isinstance(rows, list)
    return [row["answer"] for row in rows]


def _tell(answer: Mapping[str, object]) -> None:
    head = f"{answer['metric']} ({answer['direction']}, in {answer['unit']})"
    if "platforms" not in answer:
        differs = answer["differs"]
        assert isinstance(differs, list)
        typer.echo(f"{head}: {answer['answer']}")
        typer.echo(str(answer["reason"]))
        if differs:
            typer.echo(f"What differs between the records: {', '.join(differs)}")
        return
    rows, left_out = answer["platforms"], answer["seeds_left_out"]
    assert isinstance(rows, list) and isinstance(left_out, list)
    typer.echo(f"{head}, by {answer['by']}; the reference is {answer['reference']}")
    screen.show(
        (str(answer["by"]), "seeds", "answer", "reason"),
        [(row["platform"], str(row["seeds"]), row["answer"], row["reason"]) for row in rows],
    )
    if left_out:
        typer.echo(
            f"Left out, because their training moved between several: seeds "
            f"{', '.join(map(str, left_out))}"
        )
