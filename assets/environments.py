"""In which environments a stage's jobs ran, and how these differ: research is warned, never refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assets.chain import Chain, Done
from assets.facts import Cell, Facts, Table, point_words
from tenure_protocol.fingerprint import Difference, compare, field_of, refusing, telling
from tenure_protocol.records import environment_digest

_MOST_ROWS = 200  # differences in a table


@dataclass(frozen=True)
class Ran:
    """The environments of one job's attempts, in order, as its snapshots tell them."""

    done: Done
    environments: tuple[Mapping[str, object], ...]


def environments(chain: Chain, done: Sequence[Done]) -> Facts:
    """Where the jobs ran, what differs from where most did, and a warning where it matters.

    Raises Blocked for a corrupt snapshot, StoreOutOfReach.
    """
    ran = [Ran(one, tuple(m.fingerprint for m in chain.attempts_of(one))) for one in done]
    return environment_facts(ran)


def environment_facts(ran: Sequence[Ran]) -> Facts:
    """The same of what has been read."""
    known = {environment_digest(each): each for one in ran for each in one.environments}
    counts = Counter(environment_digest(each) for one in ran for each in one.environments[-1:])
    if not counts:
        return {}
    usual = counts.most_common(1)[0][0]
    found = {name: telling(compare(known[usual], each)) for name, each in known.items()}
    rows = [
        {"environment": name, "most_jobs_ran_in": usual, **_cells(item)}
        for name, each in found.items()
        for item in each
    ]
    return {
        "environment_warning": _warning(ran, found),
        "environments": Table(
            [
                {
                    "environment": name,
                    "jobs_ended_in_it": counts[name],
                    "jobs_passed_through": sum(
                        name in map(environment_digest, one.environments) for one in ran
                    ),
                    "card": str(each.get("card")),
                    "cpu_model": str(each.get("cpu_model")),
                    "differences": len(refusing(found[name])),
                }
                for name, each in known.items()
            ]
        ),
        "environment_differences": Table(rows[:_MOST_ROWS]) if rows else None,
    }


def _cells(item: Difference) -> dict[str, Cell]:
    cells: dict[str, Cell] = {**item.row()}
    cells["in_most"], cells["here"] = cells.pop("was"), cells.pop("is")
    return cells


def _warning(ran: Sequence[Ran], found: Mapping[str, Sequence[Difference]]) -> str | None:
    """One line where models of one record come from environments that differ in what matters."""
    points: dict[str, list[Ran]] = {}
    for one in ran:
        points.setdefault(point_words(one.done.spec.config), []).append(one)
    mixed = [
        point
        for point, jobs in points.items()
        if len({_matters(each) for one in jobs for each in one.environments}) > 1
    ]
    if not mixed:
        return None
    fields = dict.fromkeys(item.field for each in found.values() for item in refusing(each))
    named = ", ".join(list(fields)[:5]) + (
        f" and {len(fields) - 5} more" if len(fields) > 5 else ""
    )
    return (
        f"the seeds of {len(mixed)} of {len(points)} points ({'; '.join(mixed[:3])}) ran in environments "
        f"that differ ({named}): their spread holds that difference too, and none of them can be made "
        "again bit by bit elsewhere; the table environment_differences says what each can change"
    )


def _matters(environment: Mapping[str, object]) -> str:
    """The same for environments between which a pinned job would not refuse."""
    kept = {name: value for name, value in environment.items() if _counts(name)}
    if isinstance(switches := kept.get("determinism"), Mapping):
        kept["determinism"] = {n: v for n, v in switches.items() if _counts(f"determinism.{n}")}
    return environment_digest(kept)


def _counts(field: str) -> bool:
    return field_of(field).kind != "informative"
