"""The promoted config is trained again, with fresh seeds, in an environment pinned to its parent's.

The training of the seed to be deployed is done twice: the same bits must come out.
"""

from collections.abc import Mapping, Sequence

import dagster as dg

from assets.backtest import backtest
from assets.chain import Done
from assets.curves import loss_picture
from assets.facts import Cell, Facts, Table, Tree, jobs, point_words, verdict_table
from assets.launches import launches
from assets.materialize import GROUP, Opener, experiments, played
from assets.stage import Context
from tenure_protocol.codec import canonical
from tenure_protocol.fingerprint import compare
from tenure_protocol.records import environment_digest

_LONGEST_VALUE = 120  # characters of a field in a table; the requirement itself is shown whole


def describe(context: Context, done: Sequence[Done]) -> Facts:
    """The parent, the required environment, what was measured, the loss, and the repetition."""
    parent = context.chain.promoted()
    requires = done[0].spec.requires or {}
    repetition = context.chain.repetition()
    measured = {environment_digest(one.manifest.fingerprint): one for one in done}
    return {
        "summary": (
            f"{len(done) - 1} seeds of {point_words(parent.config)} in the environment "
            f"{environment_digest(requires)}; repetition: {repetition.verdict}: {repetition.reason}"
        ),
        "verdicts": verdict_table([repetition]),
        "parent": parent.id,
        "config": point_words(parent.config),
        "loss_curve": loss_picture(context, done),
        "requirement": Tree(requires),
        "fingerprint": Table(environment_rows(requires, done[0].manifest.fingerprint)),
        "environments_measured": len(measured),
        **jobs(done),
        **launches(context, done),
    }


def environment_rows(
    required: Mapping[str, object], measured: Mapping[str, object]
) -> list[dict[str, Cell]]:
    """Every field of the environment, as required and as measured, and whether it may differ."""
    differing = {difference.field.partition(".")[0] for difference in compare(required, measured)}
    return [
        {
            "field": name,
            "required": _short(required[name]) if name in required else "not required",
            "measured": _short(measured[name]) if name in measured else "not measured",
            "equal": name not in differing,
        }
        for name in sorted({*required, *measured})
    ]


def _short(value: object) -> str:
    text = value if isinstance(value, str) else canonical(value).decode()
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


@dg.asset(group_name=GROUP, partitions_def=experiments, kinds={"python"}, deps=[backtest])
def pinned_retrain(
    context: dg.AssetExecutionContext, tenure: dg.ResourceParam[Opener]
) -> dg.MaterializeResult[None]:
    """The promoted config again: generation 2, fresh seeds, a pinned environment."""
    return played(context, tenure, "pinned_retrain", describe)
