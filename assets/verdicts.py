"""The verdicts along the chain: of the research stages here, of the deployment gates in gates/."""

from __future__ import annotations

from collections.abc import Callable

from assets.chain import Chain, Incomplete
from assets.facts import point_words
from gates import promotion
from gates.evidence import Evidence
from gates.score import backtest, score
from gates.verdict import Verdict, judged
from tenure.errors import Blocked
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import ModelRecord

#: Every gate in the order in which a plan meets it; all after the first two are those of a record.
GATES = (
    "research_metrics",
    "research_backtest",
    "generation",
    "parent",
    "lineage",
    "integrity",
    "jobs",
    "pinned",
    "measured",
    "repetition",
    "spread_mean",
    "spread_variance",
    "spread_worst_seed",
    "spread_examples",
    "backtest",
    "score",
    "seeds",
)


def research_metrics(chain: Chain) -> Verdict:
    """Whether some point of the grid has finite metrics in the plan's direction for every seed."""
    records = chain.evaluated()
    judgements = [promotion.judge_metrics(record) for record in records]
    passed = sum(answer for answer, _ in judgements)
    problems = [
        f"{point_words(record.config)}: {'; '.join(reasons)}"
        for record, (_, reasons) in zip(records, judgements, strict=True)
        if reasons
    ]
    said = f"{passed} of {len(records)} points of the grid have finite metrics for every seed"
    return judged("research_metrics", [] if passed else problems, said)


def research_backtest(chain: Chain) -> Verdict:
    """Whether some point passed metrics and backtest, and which one is retrained."""
    records = chain.first_generation()
    best = promotion.promote(records)
    if best is None:
        problems = [f"{point_words(r.config)}: {'; '.join(r.reasons)}" for r in records]
        return judged("research_backtest", problems, "")
    passed = sum(record.passed_metrics and record.passed_backtest for record in records)
    said = (
        f"{passed} of {len(records)} points of the grid passed; {point_words(best.config)} has the "
        f"best mean of {best.promote.metric}, {mean(best):.6g}, and is retrained"
    )
    return judged("research_backtest", [], said)


def mean(record: ModelRecord) -> float:
    """Mean of the promoted metric over the members of a record that passed."""
    values = [member.metrics[record.promote.metric].value for member in record.members]
    return sum(values) / len(values)


def pinned_backtest(chain: Chain) -> list[Verdict]:
    """The backtest and the score of the very model that would be deployed."""
    evidence = Evidence(chain.store, chain.second_generation())
    return [backtest(evidence), score(evidence)]


def so_far(chain: Chain) -> list[Verdict]:
    """Every verdict that can be given now, in the order of :data:`GATES`."""
    found: dict[str, Verdict] = {}
    asks: list[Callable[[], list[Verdict]]] = [
        lambda: [research_metrics(chain)],
        lambda: [research_backtest(chain)],
        lambda: [chain.repetition()],
        chain.spread,
        chain.verdicts,
    ]
    for ask in asks:
        try:
            found.update({verdict.gate: verdict for verdict in ask()})
        except (Incomplete, Blocked, Corrupt):
            break
    return [found[gate] for gate in GATES if gate in found]
