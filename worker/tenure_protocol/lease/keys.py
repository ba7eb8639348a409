"""Where everything lives in the store.

Invariant: every key has one writer, or is create-only, or is changed only by conditional replace
(the witness, and what is ``current`` in a deployment and its ``shadow``). No two attempts ever address
the same key.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tenure_protocol.codec import short_id

if TYPE_CHECKING:  # the live side reads keys and no job
    from tenure_protocol.records import JobSpec
    from tenure_protocol.snapshots import Pointer

_UNSAFE = re.compile(r"[^a-z0-9_.-]")
_KEPT_CHARS = 40  # of a name that cannot stand in a key

WITNESSES = "witness/"
PLANS = "plans/"
UNSETTLED = "unsettled/"
CLOSED = "closed/"
DATA = "data/"


def witness(experiment: str, job: str) -> str:
    return f"{WITNESSES}{experiment}/{job}.json"


def witness_of(spec: JobSpec) -> str:
    return witness(spec.experiment, spec.id)


def experiment_witnesses(experiment: str) -> str:
    """Prefix of all witnesses of one experiment: one LIST page watches a thousand jobs."""
    return f"{WITNESSES}{experiment}/"


def job(job: str) -> str:
    return f"jobs/{job}/job.json"


def attempts(job: str) -> str:
    return f"jobs/{job}/attempts/"


def attempt(job: str, attempt: int) -> str:
    """Prefix that only the holder of this attempt writes under."""
    return f"{attempts(job)}{attempt:05d}/"


def snapshot(job: str, pointer: Pointer) -> str:
    return save(job, pointer.attempt, pointer.step, pointer.save)


def save(job: str, attempt_number: int, step: int, save_number: int) -> str:
    """Prefix of one snapshot; a new save takes a new name."""
    return f"{attempt(job, attempt_number)}milestones/{step}-{save_number}/"


def manifest(job: str, pointer: Pointer) -> str:
    return f"{snapshot(job, pointer)}manifest.json"


def discarded(job: str) -> str:
    """Prefix of what tells that the files of a snapshot were deleted."""
    return f"jobs/{job}/discarded/"


def discard(job: str, attempt_number: int, step: int, save_number: int) -> str:
    return f"{discarded(job)}{attempt_number:05d}-{step}-{save_number}.json"


def events(job: str, attempt_number: int, chunk: int) -> str:
    return f"{attempt(job, attempt_number)}events/{chunk:06d}.jsonl"


def log(job: str, attempt_number: int, chunk: int) -> str:
    return f"{attempt(job, attempt_number)}log/{chunk:06d}.txt"


def launches(job: str) -> str:
    return f"jobs/{job}/launches/"


def launch(job: str, number: int) -> str:
    return f"{launches(job)}{number:05d}/"


def intent(job: str, number: int) -> str:
    return f"{launch(job, number)}intent.json"


def receipt(job: str, number: int) -> str:
    return f"{launch(job, number)}receipt.json"


def settlement(job: str, number: int, k: int) -> str:
    return f"{launch(job, number)}settlement-{k}.json"


def envelope(job: str, number: int, k: int = 1) -> str:
    """What the worker of a launch needs, credentials included: only a link ever opens it."""
    return f"{launch(job, number)}envelope{f'-{k}' if k > 1 else ''}.json"


def refusals(job: str) -> str:
    return f"jobs/{job}/refusals/"


def refusal(job: str, number: int, nonce: str) -> str:
    return f"{refusals(job)}{number:05d}-{nonce}.json"


def plan(plan: str, digest: str) -> str:
    return f"{PLANS}{plan}/{digest}.json"


def unsettled(job: str, number: int) -> str:
    return f"{UNSETTLED}{job}-{number:05d}"


def closed(experiment: str) -> str:
    return f"{CLOSED}{experiment}"


def code(digest: str) -> str:
    return f"code/{digest}.tar"


def wheel(sha256: str, file: str) -> str:
    return f"code/{sha256}/{file}"  # pip wants its name in the link


def lock(sha256: str) -> str:
    return f"code/{sha256}.lock"


def data_index(digest: str) -> str:
    return f"{DATA}{digest}.json"


def data(sha256: str) -> str:
    return f"{DATA}{sha256}"


def model(experiment: str, record: str) -> str:
    return f"models/{experiment}/{record}.json"


def models(experiment: str = "") -> str:
    return f"models/{experiment}/" if experiment else "models/"


def deployment(name: str) -> str:
    return f"deployments/{name}/current"


def slot(name: str, slot: str) -> str:
    """What is live under a name, or runs beside it as its shadow."""
    return deployment(name) if slot == "live" else f"deployments/{name}/{slot}"


def history(name: str, slot: str = "live") -> str:
    """Prefix of every state that a slot of a deployment had."""
    return f"deployments/{name}/{'' if slot == 'live' else f'{slot}-'}history/"


def moved(name: str, slot: str, move: int) -> str:
    """The state of a slot after a move: create-only."""
    return f"{history(name, slot)}{move:08d}.json"


def warrant(number: int) -> str:
    return f"warrants/log/{number:08d}.json"


WARRANTS = "warrants/log/"
LEDGER = "ledger/"


def ledger(writer: str, job: str, number: int, outcome: str) -> str:
    """What a launch cost, by one writer: a bound may be followed by what it came to."""
    bound = "" if outcome == "closed" else f"-{outcome}"
    return f"{LEDGER}{part(writer)}/{job}-{number:05d}{bound}.json"


SUBMISSIONS = "submissions/"
POOLS = "pools/"  # what dispatchers and the agents of own machines tell each other


def submission(team: str, digest: str) -> str:
    """What a team has asked for: create-only, and only the team's own credentials write there."""
    return f"{SUBMISSIONS}{team}/{digest}.json"


OBSERVATIONS = "observations/"


def observations(runner: str, card: str) -> str:
    """What launches on one (runner, card) came to: changed by conditional replace alone."""
    return f"{OBSERVATIONS}{part(runner)}/{part(card)}.json"


LIFETIMES = "lifetimes/"


def lifetimes(runner: str, card: str) -> str:
    """How long machines of one (runner, card) lasted: changed by conditional replace alone."""
    return f"{LIFETIMES}{part(runner)}/{part(card)}.json"


def part(name: str) -> str:
    """A name as a part of a key; one that may not stand there gets a digest, to stay apart.

    >>> part("dispatcher-0a"), part("../Ann")
    ('dispatcher-0a', 'ann-5obfk4ic')
    """
    safe = _UNSAFE.sub("-", name.lower()).lstrip(".-")[:_KEPT_CHARS]
    return name if name == safe and safe else f"{safe or 'it'}-{short_id(name.encode())[:8]}"
