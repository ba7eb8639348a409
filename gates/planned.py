"""Are a record's seeds those that its plan fixed before the retrain?

A record by its id knows no plan. The store does: each version of a plan names its jobs and its terms,
is written once, and stands before any of its jobs runs.
"""

from __future__ import annotations

from dataclasses import replace

from gates.evidence import Evidence, Unproved, attempt, same_json
from gates.verdict import Verdict, judged
from tenure_protocol.codec import Corrupt, short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import Member, ModelRecord, PlanRecord, load
from tenure_protocol.store.api import Missing, Store

GATE = "seeds"
_MOST_RUNS = 1000  # a number that somebody made up costs no time


def of_plan(record: ModelRecord) -> Verdict:
    """The verdict on a record that was made from the plan itself."""
    return judged(GATE, [], f"seeds {_listed(record.seeds)} are the plan's retrain_seeds")


def planned_seeds(store: Store, record: ModelRecord) -> Verdict:
    """The seeds are the ``retrain_seeds`` of the newest version of its plan that names a training.

    Of each training, and all of them: so seeds can be added and a retrain made anew, and none can be
    left out afterwards. A rerun (``tenure retry``) stands for the run that the plan names.
    """
    if record.generation != 2:  # its own gate says that it cannot be deployed
        return judged(GATE, [], "a plan fixes the seeds of a retrain, and this is none")
    found, problems = attempt(_planned, store, record)
    if found is not None:
        problems += [
            f"the plan {record.experiment} (version {version.version}) has retrain_seeds "
            f"{_listed(seeds)} for the training of seed {seed}, and the record has seeds "
            f"{_listed(record.seeds)}: which seeds count is not chosen afterwards"
            for seed, version, seeds in found
            if not same_json(seeds, record.seeds)
        ]
    return judged(GATE, problems, of_plan(record).reason)


def _planned(store: Store, record: ModelRecord) -> list[tuple[int, PlanRecord, tuple[object, ...]]]:
    """For each seed the newest version that names its training, and what it fixes. Raises Unproved."""
    evidence = Evidence(store, record)
    versions = _versions(store, record.experiment)
    found = []
    for member in record.members:
        jobs = _runs(evidence, member)
        naming = [version for version in versions if jobs & set(version.jobs)]
        if not naming:
            raise Unproved(
                f"no plan {record.experiment} in the store names job {member.train.job} (seed "
                f"{member.seed}), so nobody can say which seeds were fixed beforehand; deploy it "
                "through its plan"
            )
        newest = max(naming, key=lambda version: version.version)
        fixed = newest.terms.get("retrain_seeds")
        found.append((member.seed, newest, tuple(fixed) if isinstance(fixed, list) else ()))
    return found


def _versions(store: Store, plan: str) -> list[PlanRecord]:
    """Every version of a plan, each by the digest that is its name. Raises Unproved, StoreSilent."""
    found = []
    for row in store.list(f"{keys.PLANS}{plan}/"):
        body = store.read(row.key)
        if isinstance(body, Missing):
            raise Unproved(f"{row.key} is listed and cannot be read")
        if row.key != keys.plan(plan, short_id(body.body)):
            raise Unproved(f"{row.key} was edited: its content has the id {short_id(body.body)}")
        try:
            found.append(load(PlanRecord, body.body, row.key))
        except Corrupt as error:
            raise Unproved(str(error)) from error
    return found


def _runs(evidence: Evidence, member: Member) -> set[str]:
    """The training of a member, and every run of its spec before it. Raises Unproved."""
    spec = evidence.spec(member.train.job)
    return {spec.id} | {replace(spec, run=run).id for run in range(min(spec.run, _MOST_RUNS))}


def _listed(seeds: tuple[object, ...]) -> str:
    return f"[{', '.join(map(str, seeds))}]"
