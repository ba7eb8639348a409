"""The six verbs over one store: four are answered by the store itself, two by a runner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from tenure.dispatch.contract import (
    AlreadyFinal,
    Finished,
    Job,
    JobState,
    Receipt,
    Renewed,
    Revocation,
    Revoked,
    Runner,
    Running,
    Settlement,
    Slice,
    Unknown,
    Unwritten,
    Vacant,
)
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Changed, Stored, change, read_witness
from tenure_protocol.lease.machine import (
    Cancel,
    Event,
    Occupied,
    Refused,
    Revoke,
    Watched,
    vacancy,
)
from tenure_protocol.records import FINAL
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_worker.claim import read_spec


class Execution:
    """Everything a dispatcher, a person or a script can do with a job."""

    def __init__(self, store: Store, runners: Mapping[str, Runner], clock: Clock, by: str) -> None:
        self._store = store
        self._runners = runners
        self._clock = clock
        self._by = by

    def launch(self, jobs: Sequence[Job], runner: str) -> Receipt:
        """Start the jobs on a runner. Raises a :class:`~tenure.dispatch.contract.LaunchFailed`."""
        return self._runners[runner].launch(jobs)

    def release(self, receipt: Receipt) -> Settlement:
        """Close the bill of a launch on the runner that made it."""
        return self._runners[receipt.runner].release(receipt)

    def status(self, job: str, watched: Watched | None = None) -> JobState:
        """What the store says of a job; ``watched`` is the caller's own watch, if it has one."""
        try:
            stored = read_witness(self._store, self._key(job))
        except (StoreSilent, Corrupt) as error:
            return Unknown(str(error))
        w = stored.witness
        if w is None:
            return Vacant("nobody has run it yet")
        if w.phase in FINAL:
            code = w.exit_code if w.phase == "finished" else None
            return Finished(code, w.reason or w.phase)
        if w.phase != "held" or w.holder is None:
            return Vacant(f"{w.phase}: {w.reason}" if w.reason else w.phase)
        judged = vacancy(w, stored.age_s, watched or Watched(0.0, 0.0))
        if isinstance(judged, Occupied):
            if stored.age_s > w.silence_allowed_s + 3.0:
                return Unknown(judged.reason)
            return Running(w.attempt, w.holder.launch)
        return Vacant(judged.reason)

    def revoke(self, job: str, reason: str, held_back: bool = False) -> Revocation:
        """Take the tenure away; launches so far may no longer claim."""
        return self._change(job, lambda _: Revoke(self._by, reason, held_back))

    def cancel(self, job: str, reason: str) -> Revocation:
        """End the job without a result; ``Revoked`` means it is cancelled now."""
        return self._change(job, lambda _: Cancel(self._by, reason))

    def events(self, job: str, offset: str = "") -> Slice:
        """Events since ``offset``, as JSON lines. Raises StoreSilent."""
        return self._slice(job, "events", ".jsonl", offset)

    def log(self, job: str, offset: str = "") -> Slice:
        """Log lines since ``offset``. Raises StoreSilent."""
        return self._slice(job, "log", ".txt", offset)

    # ----------------------------------------------------------------------------------- inside

    def _key(self, job: str) -> str:
        return keys.witness_of(read_spec(self._store, job))

    def _change(self, job: str, event: Callable[[Stored], Event]) -> Revocation:
        try:
            key = self._key(job)
            stored = read_witness(self._store, key)
        except (StoreSilent, Corrupt) as error:
            return Unwritten(str(error))
        if stored.witness and stored.witness.phase in FINAL:
            return AlreadyFinal()
        outcome = change(self._store, key, job, stored, event(stored), self._clock)
        if isinstance(outcome, Applied):
            return Revoked()
        if isinstance(outcome, Changed):
            return Renewed()
        if isinstance(outcome, Refused):
            return Unwritten(outcome.reason)
        return Unwritten(outcome.reason)

    def _slice(self, job: str, stream: str, suffix: str, offset: str) -> Slice:
        """Read on from the last chunk seen of each attempt.

        Chunks of an attempt are numbered without a gap; where one is missing, what follows it is
        held back and the slice is ``incomplete``: what can be relied on is what lies before the gap. Late chunks of an attempt that is not the newest
        are marked, because a deposed worker may still add to its own prefix.
        """
        seen: dict[str, int] = json.loads(offset) if offset else {}
        state = self.status(job)
        chunks: dict[str, list[tuple[int, str]]] = {}
        prefix = keys.attempts(job)
        for row in self._store.list(prefix):
            attempt, _, rest = row.key.removeprefix(prefix).partition("/")
            folder, _, name = rest.partition("/")
            if folder == stream and name.removesuffix(suffix).isdigit():
                chunks.setdefault(attempt, []).append((int(name.removesuffix(suffix)), row.key))
        records: list[str] = []
        gaps: list[str] = []
        newest = max(chunks, default="")
        for attempt in sorted(chunks):
            there = sorted(chunks[attempt])
            for number, key in there:
                last = seen.get(attempt, 0)
                if number <= last:
                    continue
                found = self._store.read(key) if number == last + 1 else Missing()
                if isinstance(found, Missing):
                    held = sum(each > last for each, _ in there)
                    gaps.append(_gap(stream, int(attempt), last + 1, held))
                    break
                late = bool(offset) and attempt != newest and attempt in seen
                text = found.body.decode("utf-8", "replace").splitlines()
                records += (
                    [f"[deposed attempt {int(attempt)}] {line}" for line in text] if late else text
                )
                seen[attempt] = number
        over = isinstance(state, Finished)
        end = over and not gaps
        return Slice(tuple(records), json.dumps(seen), bool(gaps), end, "; ".join(gaps), over)


def _gap(stream: str, attempt: int, number: int, held: int) -> str:
    """
    >>> _gap("log", 2, 4, 1)
    'chunk 4 of the log of attempt 2 is missing, and what follows it (1 chunk) is held back'
    """
    chunks = "1 chunk" if held == 1 else f"{held} chunks"
    return (
        f"chunk {number} of the {stream} of attempt {attempt} is missing, and what follows it ({chunks}) is "
        "held back"
    )
