"""The rows that observations are kept in: what a launch came to, and how two sights of it are one.

Pure. Whoever runs a rented machine may write any numbers into its manifests; what cannot be shows no work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from tenure_protocol import peaks
from tenure_protocol.codec import canonical, encode, short_id
from tenure_protocol.ratios import MOST_STEPS, Ratios
from tenure_protocol.records import (
    JobSpec,
    Lifetimes,
    Manifest,
    Observation,
    Observations,
)
from tenure_protocol.work import DTYPES

MOST_ROWS = 300  # of one (runner, card): the newest
_MOST, _MOST_CHARS = 1e30, 100  # of a number that a worker tells, and of the name of a card
MOST_SECONDS = 1e9  # thirty years: what lasts longer was not measured
RUNNING = "running"
FLOPS_OF = "FLOPs of "  # how the work of an experiment that tells them begins
Place = tuple[str, str]  # runner, card
#: What a worker that tells no format most likely computes in.
LIKELY_DTYPES = ("fp16", "bf16", "fp32")


class Row(Protocol):
    """Of one launch; an observation or a lifetime."""

    @property
    def job(self) -> str:
        """Its job."""

    @property
    def launch(self) -> int:
        """Its number, counted by job."""


R = TypeVar("R", bound=Row)


@dataclass(frozen=True)
class WorkLeft:
    """What a job has left to do."""

    work: str  # what ``amount`` counts
    dtype: str | None
    amount: float
    share: float  # of the whole
    per_step: float = 1.0


def work_of(spec: JobSpec, manifest: Manifest | None) -> str:
    """What the work of a job is counted in: FLOPs of a dtype where told, else steps of its configuration."""
    if manifest is not None and manifest.flops_per_step is not None:
        return f"{FLOPS_OF}{manifest.dtype}"
    alike = canonical([spec.entry_point, spec.config, spec.code])
    return f"steps of {spec.experiment}/{short_id(alike)[:8]}"


def shown(spec: JobSpec, m: Manifest) -> tuple[float, float]:
    """Seconds in steps and work done, as a manifest tells; none for a job that has one milestone alone."""
    steps = m.step - m.from_step
    if spec.kind != "train" or steps <= 0:
        return 0.0, 0.0
    return m.busy_s, steps * (m.flops_per_step or 1.0)


def peak_ratio(there: str, here: str, dtype: str) -> float | None:
    """How many times as fast one card is as another by their datasheets; ``None`` where one is unknown."""
    top, low = peaks.known_peak(there, dtype), peaks.known_peak(here, dtype)
    return top.flops_per_s / low.flops_per_s if top and low else None


def merge(
    one: Iterable[Observation], other: Iterable[Observation]
) -> dict[tuple[str, int], Observation]:
    """The rows of both, a launch once: who saw more of it stands; the newest at most.

    >>> a = Observation("j", 1, "r", "running", "w", done=1.0)
    >>> b = Observation("j", 1, "r", "finished", "w", done=2.0)
    >>> [row.end for row in merge([b], [a]).values()]
    ['finished']
    """
    return merged(one, other, lambda old, row: row if _seen(row) > _seen(old) else old)


def merged(
    one: Iterable[R], other: Iterable[R], joined: Callable[[R, R], R]
) -> dict[tuple[str, int], R]:
    """The rows of both, a launch once: two sights of one are ``joined``; the newest at most."""
    found: dict[tuple[str, int], R] = {}
    for row in (*one, *other):
        old = found.pop((row.job, row.launch), None)
        found[row.job, row.launch] = row if old is None else joined(old, row)
    return newest(found)


def newest(rows: dict[tuple[str, int], R]) -> dict[tuple[str, int], R]:
    """The same without the oldest beyond the most that are kept."""
    while len(rows) > MOST_ROWS:
        del rows[next(iter(rows))]
    return rows


def believable(manifest: Manifest) -> Manifest:
    """What a manifest is judged by, without the rest: the packages of 10,000 attempts would fill the memory.

    Whoever runs a rented machine may write any numbers into it: those that cannot be show no work.
    """
    card = manifest.fingerprint.get("card")
    short = replace(
        manifest,
        files={},
        fingerprint={"card": card[:_MOST_CHARS]} if isinstance(card, str) and card else {},
    )
    if _possible(manifest):
        return short
    return replace(
        short,
        from_step=manifest.step,
        busy_s=0.0,
        median_step_s=None,
        flops_per_step=None,
        dtype=None,
        steps_total=None,
        save_s=None,
        ratios=None,
    )


def _possible(m: Manifest) -> bool:
    """Whether a worker of ours could have measured it."""
    if not (0 <= m.from_step <= m.step <= MOST_STEPS and 0 <= (m.steps_total or 0) <= MOST_STEPS):
        return False
    seconds = (m.busy_s, m.median_step_s or 0.0, m.save_s or 0.0)
    if not all(0 <= each <= MOST_SECONDS for each in seconds):
        return False
    if m.flops_per_step is not None and not (1 <= m.flops_per_step <= _MOST and m.dtype in DTYPES):
        return False
    try:
        if m.ratios is not None:
            Ratios.from_json(m.ratios)
    except ValueError:
        return False
    return True


_NO_ROWS = b'"rows":[]'


def encode_with_rows(frame: Observations | Lifetimes, rows: Iterable[bytes]) -> bytes:
    """What :func:`encode` gives for ``frame`` with these rows, which are in canonical JSON themselves.

    No string can hold what stands for no rows: a quotation mark in one is written with a backslash.

    >>> encode_with_rows(Observations("r", "c", "w", (), "n"), [b"{}", b"{}"])
    b'{"card":"c","protocol":1,"rows":[{},{}],"runner":"r","write_id":"n","writer":"w"}'
    """
    return encode(frame).replace(_NO_ROWS, b'"rows":[' + b",".join(rows) + b"]", 1)


def _seen(row: Observation) -> tuple[bool, float, float, bool, str]:
    """Orders two sights of one launch by how much they saw; total, so that every writer chooses alike."""
    return row.end != RUNNING, row.done, row.paid_s, row.start_s is not None, repr(row)
