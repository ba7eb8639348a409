"""Submitting: a team asks for jobs in its own name, below a prefix that only its credentials may write.

What a plan says of its team is a claim; a record below ``submissions/<team>/`` is proof that whoever wrote
it holds that team's credentials, and the store's own time of it is when the job began to wait. A team can
make its own jobs wait anew and can do nothing else there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tenure.errors import StoreOutOfReach
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import PROTOCOL_VERSION, check_name, load
from tenure_protocol.store.api import Entry, Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once

Why = Literal["enlisted", "resumed"]


@dataclass(frozen=True)
class SubmissionRecord:
    """One record: so many jobs of one plan began to wait when it was stored."""

    team: str
    plan: str
    jobs: tuple[str, ...]
    why: Why
    number: int  # how many records of these jobs the team had before: a second one is no repetition
    protocol: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        check_name(self.team, "team")


@dataclass(frozen=True)
class Desk:
    """Where one team submits: its name, and the store as that team writes it."""

    team: str
    store: Store

    def submit(self, plan: str, jobs: Sequence[str], clock: Clock, why: Why = "enlisted") -> None:
        """Write down that the team wants these jobs.

        Jobs that it has asked for keep their time; ``resumed`` ones begin to wait anew. Raises
        StoreOutOfReach, in whose words a store that refuses this prefix is named.
        """
        try:
            earlier = [each for _, each in submissions(self.store, self.team) if each.plan == plan]
            asked = [job for each in earlier for job in each.jobs]
            wanted = list(jobs) if why == "resumed" else _but(jobs, set(asked))
            if not wanted:
                return
            number = sum(bool(set(each.jobs) & set(wanted)) for each in earlier)
            record = SubmissionRecord(self.team, plan, tuple(wanted), why, number)
            body = encode(record)
            create_once(self.store, keys.submission(self.team, short_id(body)), body, clock)
        except StoreSilent as error:
            raise StoreOutOfReach(
                f"the jobs of plan {plan} are not submitted for team {self.team}: {error}; who may write "
                f"{keys.SUBMISSIONS}{self.team}/ speaks for that team ([teams.{self.team}] credentials)"
            ) from error


def _but(jobs: Sequence[str], others: Collection[str]) -> list[str]:
    return [job for job in jobs if job not in others]


def submissions(store: Store, team: str = "") -> Iterator[tuple[Entry, SubmissionRecord]]:
    """Every readable record, of one team or of all; a corrupt one counts for nothing. Raises StoreSilent."""
    for row in store.list(f"{keys.SUBMISSIONS}{team}/" if team else keys.SUBMISSIONS):
        try:
            found = read_submission(store, row.key)
        except Corrupt:
            continue
        if found is not None:
            yield row, found


def read_submission(store: Store, key: str) -> SubmissionRecord | None:
    """One record. Raises StoreSilent, or Corrupt for one that claims another team than its prefix is."""
    found = store.read(key)
    if isinstance(found, Missing):
        return None
    record = load(SubmissionRecord, found.body, key)
    prefix = key.removeprefix(keys.SUBMISSIONS).partition("/")[0]
    if record.team != prefix:
        raise Corrupt(f"it speaks for team {record.team} below the prefix of team {prefix}", key)
    return record
