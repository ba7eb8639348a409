"""All gates, in a fixed order."""

from __future__ import annotations

from gates.environment import measured, pinned
from gates.evidence import Evidence
from gates.integrity import integrity, jobs
from gates.lineage import generation, lineage, parent
from gates.repetition import repetition
from gates.score import backtest, score
from gates.spread import spread
from gates.verdict import Verdict
from tenure_protocol.records import ModelRecord
from tenure_protocol.store.api import Store


def check_record(store: Store, record: ModelRecord) -> list[Verdict]:
    """Every gate's verdict on a record; it may be deployed when ``deployable`` says so of them.

    What is missing, edited or of another version is a BLOCK with its sentence. Raises
    :class:`StoreSilent` alone: a store that does not answer proves nothing either way.
    """
    evidence = Evidence(store, record)
    return [
        generation(evidence),
        parent(evidence),
        lineage(evidence),
        integrity(evidence),
        jobs(evidence),
        pinned(evidence),
        measured(evidence),
        repetition(evidence),
        *spread(evidence),
        backtest(evidence),
        score(evidence),
    ]
