"""Claim a job, or end because somebody else lives here.

``with claim(job, store) as tenure`` works in two ways: launched by a dispatcher, which names the
launch in ``TENURE_LAUNCH``, or in local mode, where a script claims a job that nobody holds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar, cast

from tenure_protocol import fingerprint
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import Corrupt, NeverWritten, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import (
    CLAIM_WINDOW_S,
    Elsewhere,
    Lease,
    Silent,
    Superseded,
    acquire,
)
from tenure_protocol.lease.machine import Release
from tenure_protocol.records import JobSpec, Refusal, load
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_protocol.store.silence import Silence
from tenure_worker import exits
from tenure_worker.exits import Stopped
from tenure_worker.gang import Gang
from tenure_worker.tenure import Tenure

T = TypeVar("T")

_ASK_AGAIN_S = 2.0


def patiently(ask: Callable[[], T], clock: Clock = SYSTEM, patience_s: float = CLAIM_WINDOW_S) -> T:
    """An answer of a store that may be silent for a while. Raises :class:`Stopped` (store gone).

    A job's own patience is not known before its spec is read: the claim window stands for it.
    """
    silence = Silence()
    while True:
        sent_s = clock.monotonic_s()
        try:
            return ask()
        except StoreSilent as error:
            if silence.failed(sent_s, clock.monotonic_s(), str(error)) >= patience_s:
                raise Stopped(exits.STORE_GONE, str(error)) from error
        clock.sleep(_ASK_AGAIN_S)


def read_spec(store: Store, job: str) -> JobSpec:
    """The spec of a job. Raises Corrupt or NeverWritten (with the key), or StoreSilent."""
    key = keys.job(job)
    found = store.read(key)
    if isinstance(found, Missing):
        raise NeverWritten("no job of this id has been enlisted", key)
    spec = load(JobSpec, found.body, key)
    if spec.id != job:
        raise Corrupt(f"its content is that of job {spec.id}", key)
    return spec


@contextmanager
def claim(
    job: str | JobSpec,
    store: Store,
    launch: int | None = None,
    clock: Clock = SYSTEM,
    measured: Mapping[str, object] | None = None,
) -> Iterator[Tenure]:
    """Hold the tenure of ``job`` while the block runs.

    The environment is measured before the claim; a job whose ``requires`` it does not match is
    refused, in words, under ``refusals/``. Raises :class:`Stopped`, a ``SystemExit`` with a code of
    the public table, when the block must not run or must not go on.
    """
    number = launch if launch is not None else int(os.environ.get("TENURE_LAUNCH") or 0)
    spec = _enlisted(job, store, clock)
    found = dict(measured) if measured is not None else fingerprint.measure()
    if spec.requires is not None:
        refuse_mismatch(spec, found, store, number, clock)
    with _stopping() as signals:
        lease = _acquired(spec, store, number, signals.ending_sleep(clock))
        tenure = _begun(spec, store, lease, clock, found, signals.noted)
        with tenure:
            signals.serve(tenure)
            yield tenure


def _enlisted(job: str | JobSpec, store: Store, clock: Clock) -> JobSpec:
    try:
        if isinstance(job, str):
            return patiently(lambda: read_spec(store, job), clock)
        key, body = keys.job(job.id), encode(job)
        if not patiently(lambda: create_once(store, key, body, clock), clock, job.patience_s):
            raise Corrupt("it differs from the spec of the same id", key)
        return job
    except Corrupt as error:
        raise Stopped(exits.PROTOCOL, str(error)) from error


def _acquired(spec: JobSpec, store: Store, launch: int, clock: Clock) -> Lease:
    try:
        got = acquire(
            store,
            keys.witness_of(spec),
            spec.id,
            launch,
            spec.max_silence_s,
            spec.patience_s,
            clock,
        )
    except Corrupt as error:
        raise Stopped(exits.PROTOCOL, str(error)) from error
    if isinstance(got, Elsewhere):
        raise Stopped(exits.ELSEWHERE, got.reason)
    if isinstance(got, Superseded):
        raise Stopped(exits.SUPERSEDED, got.reason)
    if isinstance(got, Silent):
        raise Stopped(exits.STORE_GONE, got.reason)
    return got


def _begun(
    spec: JobSpec,
    store: Store,
    lease: Lease,
    clock: Clock,
    found: Mapping[str, object],
    noted: str,
) -> Tenure:
    """The tenure of a lease, unless a signal came first or this machine has no room for it."""
    reason = noted
    if not reason:
        try:
            return Tenure(spec, store, lease, clock, found, Gang.of_environment())
        except OSError as error:  # no room for a temporary folder: let another machine have the job
            reason = str(error)
    lease.write(Release(lease.holder, lease.attempt, exits.RELEASED, reason))
    raise Stopped(exits.RELEASED, reason)


def refuse_mismatch(
    spec: JobSpec, measured: Mapping[str, object], store: Store, launch: int, clock: Clock
) -> None:
    """Refuse a pinned job in another environment. Raises :class:`Stopped`."""
    differences = fingerprint.refusing(fingerprint.compare(spec.requires or {}, measured))
    if differences:
        sentences = tuple(d.sentence() for d in differences)
        reason = "the environment differs from the pinned one: " + "; ".join(sentences[:3])
        refuse(spec.id, launch, reason, store, clock, sentences)


def refuse(
    job: str,
    launch: int,
    reason: str,
    store: Store,
    clock: Clock,
    differences: tuple[str, ...] = (),
) -> None:
    """Say under ``refusals/`` why this worker will not start, and stop."""
    record = Refusal(job, launch, reason, differences[:200])
    try:
        create_once(store, keys.refusal(job, launch, clock.nonce()), encode(record), clock)
    except StoreSilent as error:
        reason = f"{reason} (and the store did not take the refusal: {error})"
    raise Stopped(exits.REFUSED, reason)


class _Signals:
    """SIGTERM and SIGINT: before the claim they end the worker, then they ask the tenure to stop."""

    def __init__(self) -> None:
        self.noted = ""  # a signal that came while a claim was being written
        self._tenure: Tenure | None = None
        self._asleep = False
        self._owner = os.getpid()

    def serve(self, tenure: Tenure) -> None:
        """From now on there is somebody to ask."""
        self._tenure = tenure
        if self.noted:
            tenure.request_stop(self.noted)

    def ending_sleep(self, clock: Clock) -> Clock:
        """The clock of who waits for a claim: a signal ends its sleep, and with it the worker."""
        return cast(Clock, _SleepEnds(clock, self))

    def ask(self, number: int, _frame: object) -> None:
        """The handler."""
        if os.getpid() != self._owner:  # a forked child of the experiment, such as a pool's worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        words = f"received {signal.Signals(number).name}"
        if self._tenure is None:
            self.noted = words
            if self._asleep:  # no write of ours is on its way
                raise Stopped(exits.RELEASED, f"{words} before the claim")
            return
        if number == signal.SIGINT and self._tenure.stopping:
            raise KeyboardInterrupt  # a person who asks twice means it
        self._tenure.request_stop(words)


class _SleepEnds:
    """A clock whose sleep a signal may end."""

    def __init__(self, clock: Clock, signals: _Signals) -> None:
        self._clock = clock
        self._signals = signals

    def sleep(self, seconds: float) -> None:
        self._signals._asleep = True
        try:
            if self._signals.noted and self._signals._tenure is None:
                raise Stopped(exits.RELEASED, f"{self._signals.noted} before the claim")
            self._clock.sleep(seconds)
        finally:
            self._signals._asleep = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._clock, name)


@contextmanager
def _stopping() -> Iterator[_Signals]:
    """Turn SIGTERM and SIGINT into one last milestone and a release."""
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, signals.ask) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
