"""What a stage tells about itself, as plain values: Dagster and the command line show the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from assets.chain import Done
from assets.stage import Context
from gates.verdict import Verdict
from tenure_protocol.records import ModelRecord

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Table:
    """Rows with the same columns, in order."""

    rows: Sequence[Mapping[str, Cell]]


@dataclass(frozen=True)
class Picture:
    """A PNG image and the words for who cannot see it."""

    png: bytes
    words: str


@dataclass(frozen=True)
class Tree:
    """A JSON object."""

    value: Mapping[str, object]


Fact = Cell | Table | Picture | Tree
Facts = dict[str, Fact]  # the key ``summary`` is one line
Describe = Callable[[Context, Sequence[Done]], Facts]


def point_words(config: Mapping[str, object]) -> str:
    """A point of a grid as people write it.

    >>> point_words({"lr": 0.001, "model": "gru"}), point_words({})
    ('lr=0.001, model=gru', 'the only point')
    """
    return ", ".join(f"{key}={value}" for key, value in config.items()) or "the only point"


def jobs(done: Sequence[Done]) -> Facts:
    """How many jobs and attempts a stage took, and a row for each job."""
    attempts = sum(one.witness.attempt for one in done)
    return {
        "jobs": len(done),
        "attempts": attempts,
        "attempts_lost": attempts - len(done),
        "job_table": Table([_job(one) for one in done]),
    }


def _job(done: Done) -> dict[str, Cell]:
    result = done.witness.result or {}
    return {
        "job": done.spec.id,
        "seed": done.spec.seed,
        "config": point_words(done.spec.config),
        "attempts": done.witness.attempt,
        "launches": done.witness.launched,
        "last_step": done.witness.pointer.step if done.witness.pointer else None,
        "result": ", ".join(_short(name, value) for name, value in result.items()) or "-",
    }


def _short(name: str, value: object) -> str:
    """One entry of a result on one line; metrics come as nested objects."""
    if isinstance(value, float):
        return f"{name} {value:.6g}"
    if name == "metrics" and isinstance(value, dict):
        values = ((key, metric.get("value")) for key, metric in value.items())
        return ", ".join(_short(key, number) for key, number in values)
    if isinstance(value, list):
        return f"{name}: {len(value)}"
    return f"{name} {value}"


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """A row for every gate."""
    return Table([{"gate": v.gate, "verdict": v.verdict, "reason": v.reason} for v in verdicts])


def said(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in the words of ``tenure gate check``; on one line, as the page would join them."""
    return ". ".join(f"{v.gate}: {v.verdict}: {v.reason}" for v in verdicts)


def member_table(record: ModelRecord) -> Table:
    """A row for every seed of a record: its judged metrics and its backtest."""
    metrics = [terms.metric for terms in record.promote.judged]
    return Table(
        [
            {
                "seed": member.seed,
                **{
                    metric: member.metrics[metric].value if metric in member.metrics else None
                    for metric in metrics
                },
                "score": member.backtest.score if member.backtest else None,
                "passed": member.backtest.passed if member.backtest else None,
                "deployable": member.backtest.deployable if member.backtest else None,
                "reasons": " ".join(member.backtest.reasons) if member.backtest else None,
            }
            for member in record.members
        ]
    )
