"""Where the model comes from: generation 2, of a proven generation-1 parent, nothing else changed."""

from __future__ import annotations

from collections.abc import Sequence

from gates.evidence import Evidence, Unproved, same_json
from gates.promotion import judge_backtest, judge_metrics, metric_words
from gates.verdict import Verdict, judged
from tenure_protocol.codec import plain
from tenure_protocol.records import JudgedMetric, ModelRecord


def generation(evidence: Evidence) -> Verdict:
    """Research stops here."""
    found = evidence.record.generation
    problems = []
    if found == 1:
        problems.append(
            "this is a generation-1 (research) model; only a generation-2 retrain can be deployed"
        )
    elif found != 2:
        problems.append(f"the record claims generation {found}, there are 1 and 2")
    return judged("generation", problems, "a generation-2 retrain", {"generation": float(found)})


def parent(evidence: Evidence) -> Verdict:
    """The parent exists, is a research model, and passed metrics and backtest by its own numbers."""
    try:
        found = evidence.parent()
    except Unproved as why:
        return judged("parent", [str(why)], "")
    problems = []
    if found.generation != 1:
        problems.append(f"the parent {found.id} is of generation {found.generation}, not 1")
    problems += [f"of the parent {found.id}: {problem}" for problem in _members(found)]
    for what, flag, judge in (
        ("metrics", found.passed_metrics, judge_metrics),
        ("backtest", found.passed_backtest, judge_backtest),
    ):
        passed, reasons = judge(found)
        if not flag:
            why_not = f" ({'; '.join(found.reasons)})" if found.reasons else ""
            problems.append(f"the parent {found.id} did not pass its {what}{why_not}")
        elif not passed:
            problems.append(
                f"the parent {found.id} says it passed its {what}, its numbers do not: "
                + "; ".join(reasons)
            )
    return judged("parent", problems, f"{found.id} passed metrics and backtest")


def lineage(evidence: Evidence) -> Verdict:
    """Same entry point, config, code, data and terms as the parent; fresh seeds, one member each."""
    record = evidence.record
    problems = _members(record)
    try:
        before = evidence.parent()
    except Unproved:
        return judged("lineage", [*problems, "there is no parent to compare with"], "")
    for name in ("experiment", "entry_point", "config", "code", "data"):
        ours, theirs = getattr(record, name), getattr(before, name)
        if not same_json(ours, theirs):
            problems.append(f"its {name} is {ours!r} and the parent's is {theirs!r}")
    problems += _terms(record, before)
    if shared := sorted(set(record.seeds) & set(before.seeds)):
        problems.append(
            f"it shares the seeds {', '.join(map(str, shared))} with its parent, so that the "
            "comparison of the two would be partly of a model with itself"
        )
    jobs = {member.train.job for member in before.members}
    if any(member.train.job in jobs for member in record.members):
        problems.append("a training of the parent is passed off as a retrain")
    return judged("lineage", problems, f"same config, code, data and terms as {before.id}")


def _terms(record: ModelRecord, before: ModelRecord) -> list[str]:
    ours, theirs = plain(record.promote), plain(before.promote)
    assert isinstance(ours, dict) and isinstance(theirs, dict)
    if same_json(ours, theirs):
        return []
    changed = [
        f"promote.{name} was {theirs.get(name)!r} when the parent was promoted and is "
        f"{ours.get(name)!r} now: terms are fixed before the retrain"
        for name in sorted({*ours, *theirs} - {"also"})
        if not same_json(ours.get(name), theirs.get(name))
    ]
    return changed + _also(record.promote.also or (), before.promote.also or ())


def _also(ours: Sequence[JudgedMetric], theirs: Sequence[JudgedMetric]) -> list[str]:
    """Each metric of ``promote.also`` that is not as it was, or their order where that is all."""
    if list(ours) == list(theirs):
        return []
    now, then = ({one.metric: metric_words(one) for one in side} for side in (ours, theirs))
    fixed = "terms are fixed before the retrain"
    found = []
    for name in dict.fromkeys([*then, *now]):
        if name not in now:
            found.append(f"promote.also had {then[name]} and lacks it now: {fixed}")
        elif name not in then:
            found.append(f"promote.also has {now[name]} now and had no {name}: {fixed}")
        elif now[name] != then[name]:
            found.append(f"promote.also had {then[name]} and has {now[name]} now: {fixed}")
    return found or [
        f"promote.also was {', '.join(map(metric_words, theirs))} and is "
        f"{', '.join(map(metric_words, ours))} now: {fixed}"
    ]


def _members(record: ModelRecord) -> list[str]:
    problems = []
    if not record.members:
        problems.append("it has no members")
    if [member.seed for member in record.members] != list(record.seeds):
        problems.append("its members are not those of its seeds, in their order")
    if len(set(record.seeds)) != len(record.seeds):
        problems.append("a seed stands twice among its seeds")
    if len({member.train.job for member in record.members}) != len(record.members):
        problems.append("two of its members are one training")
    return problems
