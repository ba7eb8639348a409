"""How a stage becomes a Dagster asset: partitions, metadata, and failures in one sentence."""

# No `from __future__ import annotations` where assets are declared: Dagster reads the annotation of
# `context` and does not resolve a string.

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import dagster as dg

from assets.chain import Incomplete
from assets.facts import Describe, Fact, Facts, Picture, Table, Tree, said, verdict_table
from assets.stage import Context, complete
from assets.standing import count, first_open, jobs_digest
from assets.team import queue_of, team_facts, team_tags
from gates.verdict import Verdict
from tenure.dispatch.loop import Tick
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure_protocol.codec import Corrupt
from tenure_protocol.store.api import StoreSilent, StoreUnusable

GROUP = "research_to_deploy"
EXIT_CODE = "exit_code"  # metadata of a failure: what `tenure run` would end with
SUMMARY = "summary"
ENVIRONMENT_WARNING = "environment_warning"  # a fact that the run's own log tells too
#: Of thousands of jobs one ends in every round: what became of them is told together, so often at most.
REPORT_EVERY_S = 10.0

experiments = dg.DynamicPartitionsDefinition(name="experiments")


class Opener(Protocol):
    """The resource ``tenure``: from a partition key, which is a plan's name, to its context."""

    def context(self, plan: str) -> Context:
        """What the stages of this plan work with. Raises UsageError or StoreOutOfReach."""


@contextmanager
def in_words() -> Iterator[None]:
    """Turn every expected end into a failure that says one sentence and is not retried."""
    try:
        yield
    except (UsageError, StoreUnusable) as error:
        raise _failure(str(error), UsageError.exit_code) from None
    except (StoreOutOfReach, StoreSilent) as error:
        raise _failure(str(error), StoreOutOfReach.exit_code) from None
    except (Blocked, Incomplete, Corrupt) as error:
        raise _failure(str(error), Blocked.exit_code) from None


def _failure(sentence: str, exit_code: int) -> dg.Failure:
    return dg.Failure(sentence, metadata={EXIT_CODE: exit_code}, allow_retries=False)


def played(
    context: dg.AssetExecutionContext, tenure: Opener, stage: str, describe: Describe
) -> dg.MaterializeResult[None]:
    """Complete the jobs of a stage and materialize what it tells about itself."""
    with in_words():
        ours = tenure.context(context.partition_key)
        team = ours.chain.plan.team
        _tag(context, team_tags(queue_of(ours.dispatcher), team, ()))
        ours = _reporting(ours, context)
        done = complete(ours, stage)
        facts = {**describe(ours, done), **team_facts(queue_of(ours.dispatcher), team)}
    if warning := facts.get(ENVIRONMENT_WARNING):
        context.log.warning(f"{stage}: {warning}")
    return materialized(facts, [one.spec.id for one in done])


def _tag(context: dg.AssetExecutionContext, tags: dict[str, str]) -> None:
    """Mark the run, so that Dagster's page finds the runs of a team and shows where they stand."""
    context.instance.add_run_tags(context.run.run_id, tags)


def materialized(facts: Facts, jobs: Sequence[str]) -> dg.MaterializeResult[None]:
    """The facts as metadata; the data version names the exact jobs."""
    return dg.MaterializeResult(
        metadata={name: _metadata(fact) for name, fact in facts.items() if fact is not None},
        data_version=dg.DataVersion(jobs_digest(jobs)),
    )


def checked(verdicts: Sequence[Verdict]) -> dg.AssetCheckResult:
    """A blocking check that passes when every verdict does, in the words of ``tenure gate check``."""
    return dg.AssetCheckResult(
        passed=bool(verdicts) and all(item.verdict == "PASS" for item in verdicts),
        severity=dg.AssetCheckSeverity.ERROR,
        description=said(verdicts),
        metadata={"verdicts": _metadata(verdict_table(verdicts))},
    )


def picture(png: bytes, words: str) -> dg.MarkdownMetadataValue:
    """An image that the page shows without fetching anything."""
    return dg.MetadataValue.md(
        f"![{words}](data:image/png;base64,{base64.b64encode(png).decode()})"
    )


def _metadata(fact: Fact) -> dg.MetadataValue[Any]:
    if isinstance(fact, Table):
        return _table(fact)
    if isinstance(fact, Picture):
        return picture(fact.png, fact.words)
    if isinstance(fact, Tree):
        return dg.MetadataValue.json(dict(fact.value))
    if isinstance(fact, bool):
        return dg.MetadataValue.bool(fact)
    if isinstance(fact, int):
        return dg.MetadataValue.int(fact)
    if isinstance(fact, float):
        return dg.MetadataValue.float(fact)
    return dg.MetadataValue.text(str(fact))


def _table(table: Table) -> dg.MetadataValue[Any]:
    """Every column has one type; a column without any number or flag is text."""
    columns = list(dict.fromkeys(name for row in table.rows for name in row))
    types = {name: _type([row.get(name) for row in table.rows]) for name in columns}
    rows = [
        {
            name: value if types[name] != "string" or value is None else str(value)
            for name, value in row.items()
        }
        for row in table.rows
    ]
    return dg.MetadataValue.table(
        records=[dg.TableRecord(row) for row in rows],
        schema=dg.TableSchema([dg.TableColumn(name, types[name]) for name in columns]),
    )


def _type(values: Sequence[object]) -> str:
    """
    >>> _type([True, None]), _type([1, 2]), _type([1, 0.5]), _type([1, "a"]), _type([None])
    ('bool', 'int', 'float', 'string', 'string')
    """
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        return "int"
    return "float" if kinds and kinds <= {int, float} else "string"


def _reporting(ours: Context, context: dg.AssetExecutionContext) -> Context:
    """Where nobody else listens, the run's own log tells when the numbers have changed.

    What happened to many jobs is one line, and there is a line in :data:`REPORT_EVERY_S` at most; the
    end of the stage is told at once.
    """
    if ours.report is not None:
        return ours
    told, again_s = "", ours.clock.monotonic_s()

    def report(stage: str, jobs: list[str], tick: Tick) -> None:
        nonlocal told, again_s
        found, now_s = count(ours.dispatcher, jobs), ours.clock.monotonic_s()
        words, over = found.words(), found.finished + found.ended == found.jobs
        if words != told and (over or now_s >= again_s):
            told, again_s = words, now_s + REPORT_EVERY_S
            waiting = first_open(ours.dispatcher, jobs)
            reason = f"; {waiting}: {tick.reason(waiting)}" if waiting else ""
            context.log.info(f"{stage}: {words}{reason}")
            if queue := queue_of(ours.dispatcher):  # with one team nothing of it changes
                _tag(context, team_tags(queue, ours.chain.plan.team, jobs))

    return replace(ours, report=report)
