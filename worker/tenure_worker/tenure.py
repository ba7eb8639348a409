"""The loop's side of the tenure: the right to write, renewed at step boundaries by the loop itself.

The loop authorises every conditional write; the carrier sends exactly that one. The courier only
reports; the loop moves the pointer. A loop that waits renews only under an announcement.
"""

from __future__ import annotations

import errno
import os
import shutil
import statistics
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn, TypeVar

from tenure_protocol import fingerprint
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, canonical, plain
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Confirmed, Deposed, Lease, Silent
from tenure_protocol.lease.machine import Finish, Hold, Move, Release
from tenure_protocol.records import MAX_RESULT_BYTES, Announced, Asked, JobSpec, Manifest, Pointer
from tenure_protocol.store.api import Progress, Store, StoreSilent
from tenure_protocol.store.silence import Silence
from tenure_protocol.work import Work
from tenure_worker import exits, snapshot
from tenure_worker.caps import Caps
from tenure_worker.carrier import Answer, Carrier, Errand
from tenure_worker.courier import Courier, Delivered, Parcel, Undeliverable
from tenure_worker.exits import Stopped
from tenure_worker.gang import Gang, RankFailed
from tenure_worker.journal import FLUSH_EVERY_S, Journal
from tenure_worker.pacing import UNMEASURED_S, Pacing

S = TypeVar("S")

MEASURED_AFTER = 20  # steps
STOP_GRACE_S = 20.0  # for a last milestone after SIGTERM
_RING = 64
_WAIT_S = 0.05
_REASON_CHARS = 2000
_MOST_SWALLOWED = 1000
_WARNINGS = 20  # differences named in the log of a job that moved to another environment


class Overspent(Exception):
    """The job wrote more to its disk than it may."""


class Tenure:
    """What ``with claim(...) as tenure`` gives; see the module's words for who writes what."""

    def __init__(
        self,
        spec: JobSpec,
        store: Store,
        lease: Lease,
        clock: Clock,
        measured: Mapping[str, object],
        gang: Gang | None = None,
    ) -> None:
        caps = Caps.of(os.environ)
        self.spec = spec
        self.step_number = 0
        self._gang = gang  # of a job of several cards; this is rank 0 of it
        self._pid = os.getpid()
        self._swallowed = 0  # how often the experiment went on after it was stopped
        self._store = store
        self._lease = lease
        self._clock = clock
        self._fingerprint = dict(measured)
        self._now = clock.monotonic_s
        self._woken = True
        self._look_s = 0.0
        self._ring = [0.0] * _RING
        self._began_at = 0  # step_number at which this attempt began
        self._last_s = self._segment_s = self._now()
        self._busy_s = 0.0
        self._work: Work | None = None  # of one step
        self._steps_total: int | None = None
        self._learnt_to = 0  # step_number up to which the steps are known to the pacing
        self._pacing = Pacing(spec, lease.witness, store.deadline_s, str(measured.get("card", "")))
        self._pointer = lease.witness.pointer
        self._silence_s = lease.witness.silence_s  # what the store was last told
        self._confirmed_s = lease.confirmed_at_s
        self._unanswered = Silence()  # of the witness
        self._retry_s = 0.0  # no further write before, after one that had no answer
        self._announced: Announced | None = None
        self._move: Move | None = None
        self.in_transit = False  # a snapshot is with the courier
        self._saves = 0
        self.save_s: float | None = None
        self._stop: tuple[str, float] | None = None  # why, and when at the latest
        self._asked: Asked | None = None  # the request that has been read already
        self._last_milestone = 0
        self._ended = False
        self._leaving = False  # the loop sees to the end itself, which may take its patience
        self._stopped: Stopped | None = None  # raised again, should the experiment swallow it
        self._undeliverable: Exception | None = None  # likewise
        self._overspent: Overspent | None = None  # likewise
        self.folder = Path(tempfile.mkdtemp(prefix="tenure-"))
        self._carrier = Carrier(lease, clock, self._wake)
        self._courier = Courier(store, clock, self._wake)
        self._journal = Journal(spec.id, lease.attempt, self._courier.offer, clock, caps)
        if gang:
            gang.share("claimed", {"attempt": lease.attempt})

    # ------------------------------------------------------------------------ what a loop calls

    def step(self) -> None:
        """Call after every optimizer step; costs under two microseconds unless something is due."""
        now_s = self._now()
        number = self.step_number = self.step_number + 1
        self._ring[number % _RING] = now_s - self._last_s
        self._last_s = now_s
        if self._woken or now_s >= self._look_s:
            self._look(now_s)

    @property
    def milestone_due(self) -> bool:
        """Every ``milestone_every`` steps, and as soon as the worker has been asked to stop."""
        return self.stopping or (
            self.step_number % self.spec.milestone_every == 0
            and self.step_number != self._last_milestone
        )

    @property
    def stopping(self) -> bool:
        """Whether this worker has been asked to stop."""
        return self._stop is not None

    @property
    def saved_step(self) -> int:
        """Step of the last milestone, 0 before the first."""
        return self._last_milestone

    @property
    def attempt(self) -> int:
        """Number of this attempt."""
        return self._lease.attempt

    def work(
        self, flops: float | None = None, dtype: str = "fp32", steps: int | None = None
    ) -> None:
        """Tell what a step costs, before the first: its FLOPs in a dtype, and how many steps there are in all.

        By the FLOPs the dispatcher compares machines of different cards; without them it compares those
        that ran the same configuration. By ``steps`` it knows what is left of the job. Raises
        ``ValueError`` for what cannot be.
        """
        if flops is not None:
            self._work = Work(float(flops), dtype)
        if steps is not None and (isinstance(steps, bool) or steps < 1):
            raise ValueError(f"steps is {steps}, a training has 1 at least")
        self._steps_total = steps

    def resume(self, load: Callable[[Path], S]) -> S | None:
        """Load the snapshot the pointer names, or ``None`` when there is none.

        ``step_number`` goes on from the milestone. A snapshot that cannot be what its pointer says
        ends the attempt and names the key.
        """
        if self._pointer is None:
            if self._gang:
                self._gang.share("resume", {"folder": None})
            self._last_s = self._segment_s = self._now()  # loading was no step
            return None
        folder = self.folder / "resume"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        manifest = self._fetch(self.spec.id, self._pointer, folder)
        self._warn_of_change(manifest)
        try:
            self._pacing.resume(manifest)
        except ValueError as error:  # a measure is lost, and no work
            self.log(f"tenure: warning: the step times of attempt {manifest.attempt}: {error}")
        if self._gang:
            self._gang.share("resume", {"folder": str(folder), "step": self._pointer.step})
        state = load(folder)
        if self._gang is None:  # other ranks may still read it
            shutil.rmtree(folder, ignore_errors=True)
        self.step_number = self._began_at = self._last_milestone = self._pointer.step
        self._learnt_to = self.step_number
        self._last_s = self._segment_s = self._now()
        return state

    def _warn_of_change(self, manifest: Manifest) -> None:
        """Research is warned, not stopped: this job goes on in another environment than before."""
        since = f"since attempt {manifest.attempt}"
        found = fingerprint.telling(fingerprint.compare(manifest.fingerprint, self._fingerprint))
        told = fingerprint.refusing(found)
        for each in told[:_WARNINGS]:
            self._journal.note(f"tenure: warning: the environment changed {since}: {each.change()}")
            self._journal.event(
                {
                    "step": manifest.step,
                    "environment_changed_since": f"attempt {manifest.attempt}",
                    **each.row(),
                }
            )
        if len(told) > _WARNINGS:
            self._journal.note(f"tenure: warning: and {len(told) - _WARNINGS} fields more")
        if told:
            self._journal.note("tenure: warning: the model can no longer be made again bit by bit")
        if beside := [each.field for each in found if each.kind == "informative"]:
            self._journal.note(
                f"tenure: also changed {since}, and not known to matter: {', '.join(beside)}"
            )

    def milestone(self, save: Callable[[Path], object]) -> None:
        """Write a snapshot: ``save(folder)`` writes its files here and now; the courier uploads.

        Waits, under an announcement, while the previous snapshot is still on its way: none is ever
        skipped. After the worker was asked to stop it also waits for the pointer, and then releases.
        Raises ``ValueError`` for a file name that no key can hold, and what ``save`` raises.
        """
        self._busy_s += self._now() - self._segment_s
        if self._stop:  # here it is, and worth the little that writing it takes
            self._stop = (self._stop[0], max(self._stop[1], self._now() + STOP_GRACE_S))
        self._look(self._now())
        self._wait(lambda: not self.in_transit, "the previous snapshot is on its way")
        self._saves += 1
        folder = self.folder / f"{self.step_number}-{self._saves}"
        folder.mkdir()
        draft_prefix = keys.save(self.spec.id, self._lease.attempt, self.step_number, self._saves)
        expected_s = UNMEASURED_S if self.save_s is None else 4 * self.save_s
        if expected_s > self._silence_s / 3:
            self.announce("writing a snapshot", expected_s)
        began_s = self._now()
        save(folder)
        snapshot.names(folder, draft_prefix)
        self.save_s = self._now() - began_s
        self._courier.hand_over(Parcel(folder, self._draft()))
        self.in_transit = True
        self._last_milestone = self.step_number
        self._journal.flush()
        self._last_s = self._segment_s = self._now()
        if self._stop:
            self._wait(lambda: not self.in_transit, "the last snapshot is on its way")
            self._release(exits.RELEASED, self._stop[0])

    def announce(self, reason: str, seconds: float) -> None:
        """Tell of a silence before it begins; it ends at the next renewal.

        At most ``max_silence_s`` of the job. Returns once the store confirmed it, or after one
        call's deadline without an answer, which stops nobody.
        """
        self._still_open()
        seconds = min(max(seconds, 0.0), self.spec.max_silence_s)
        self._announced = Announced(reason[:200], max(seconds, self._silence_s))
        told_s = self._now()
        self._settle(told_s + self._store.deadline_s)
        self._authorise()
        self._settle(told_s + 2 * self._store.deadline_s)

    def metric(self, **values: float | int | str | bool | None) -> None:
        """Record numbers of this step; they become events anyone may read."""
        self._journal.event({"step": self.step_number, **values})

    def log(self, text: str) -> None:
        """Add a line to the job's log."""
        self._journal.line(text)

    def finish(self, result: Mapping[str, object]) -> None:
        """End the job with ``result`` (JSON, at most 4 KiB), once the last pointer has moved.

        Raises ``ValueError`` or ``TypeError`` for a result that is no JSON or too large.
        """
        self._still_open()
        body = plain(result)
        size = len(canonical(body))
        if not isinstance(body, dict) or size > MAX_RESULT_BYTES:
            raise ValueError(
                f"the result has {size} bytes, at most {MAX_RESULT_BYTES} fit; "
                "write anything larger to a file of the last snapshot"
            )
        self._wait(lambda: not self.in_transit, "the last snapshot is on its way")
        self._end(exits.FINISHED, "finished", dict(body))

    def request_stop(self, reason: str, within_s: float = STOP_GRACE_S) -> None:
        """Ask this worker to release after one last milestone; safe in a signal handler."""
        until_s = self._now() + within_s
        if self._stop is None or until_s < self._stop[1]:
            self._stop = (reason, until_s)
        self._woken = True

    def overspent(self, words: str) -> None:
        """End the job, for this reason, at the next step boundary; safe in any thread."""
        self._overspent = Overspent(words)
        self._woken = True

    def end_without_boundary(self, words: str) -> None:
        """End the job, and this process, from another thread: the loop does not come to a boundary.

        The carrier, which such a loop does not use, says so to the store, lest the job be launched
        again to do the same. Without an answer the lease runs out by itself. Returns where the loop is
        about to end.
        """
        if self._leaving:
            return
        self._stopped = Stopped(exits.CODE_ERROR, words)  # for a loop that comes back after all
        self._journal.note(f"tenure: {words}")
        self._journal.flush()
        errand = Finish(self._lease.holder, self._lease.attempt, exits.CODE_ERROR, words, {})
        until_s = self._now() + 3 * self._store.deadline_s
        while self._now() < until_s:
            if not self._carrier.busy:
                self._carrier.send(errand)
            got = self._carrier.answer(_WAIT_S)
            if got and got[0] is errand and not isinstance(got[1], Silent):
                break
        self._courier.close(self._store.deadline_s)
        print(f"tenure: {self._stopped}", file=sys.stderr, flush=True)
        os._exit(exits.CODE_ERROR)

    def fetch_model(self, folder: Path) -> Manifest:
        """Download the snapshot that an evaluate or backtest job reads. Raises ``ValueError``."""
        model = self.spec.model
        if model is None:
            raise ValueError(f"the {self.spec.kind} job {self.spec.id} names no model")
        return self._fetch(model.job, model.pointer, folder)

    def fetching(self, what: str, ask: Callable[[Progress], S]) -> S:
        """What ``ask`` fetches before the training begins; ``what`` is told to those who watch.

        ``ask`` is given a function to call, in this thread, as bytes arrive (done, in all): it renews
        under an announcement, and releases a worker that was asked to stop, since nothing is lost by
        it. While the store is silent ``ask`` is called again until patience is lost; ``Corrupt`` ends
        the attempt.
        """
        return self._fetching(what, ask, leaves=True)

    # ---------------------------------------------------------------------- the with statement

    def __enter__(self) -> Tenure:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid:
            return  # a forked child of the experiment leaves; the tenure is its parent's
        self._leaving = True
        try:
            if isinstance(error, Stopped):
                return
            if self._stopped is not None:  # the experiment swallowed it
                raise self._stopped from error
            if error is None and not self._ended:
                self._await_snapshot()
                self._release(exits.RELEASED, "the block ended without finish(result)")
            elif error is not None and not self._ended:
                self._fail(error)
        finally:
            self._close()

    def _fail(self, error: BaseException) -> None:
        """End or release the job for an exception of the experiment, by its class."""
        if self._gang and (elsewhere := self._gang.failure()):
            error = elsewhere  # what broke here is a connection to the rank that failed first
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            self._await_snapshot()
            self._release(exits.RELEASED, "interrupted")
        if isinstance(error, Corrupt):
            self._release(exits.PROTOCOL, str(error))
        code = error.code if isinstance(error, RankFailed) else exits.classify(error)
        if getattr(error, "errno", None) == errno.EROFS and os.environ.get("TENURE_SANDBOX"):
            code = exits.CODE_ERROR  # what is read-only there is so on every machine
        self._journal.note("".join(traceback.format_exception(error)))
        if code != exits.CODE_ERROR:
            self._await_snapshot()
            self._release(code, exits.release_reason(error, code, self.step_number))
        told = str(error) if isinstance(error, Overspent) else traceback.format_exception(error)
        self._end(code, _told("".join(told))[-_REASON_CHARS:], {})

    def _close(self) -> None:
        self._journal.flush()
        self._carrier.close()
        self._courier.close(self._store.deadline_s)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------------ looking and sending

    def _wake(self) -> None:
        self._woken = True

    def _look(self, now_s: float) -> None:
        """At a step boundary: take answers, then authorise what is due."""
        self._woken = False
        self._still_open()
        if self._gang and (elsewhere := self._gang.failure()):
            raise elsewhere
        self._take_answers()
        self._lose_time(now_s)
        self._lose_patience()
        self._learn()
        target_s = self._target_silence_s()
        due_s = max(self._confirmed_s + self._silence_s / 3, self._retry_s)
        changed = not self._silence_s / 2 <= target_s <= self._silence_s * 1.2
        early = (self._move or changed) and now_s >= self._retry_s
        if not self._carrier.busy and (early or now_s >= due_s):
            self._announced = None  # an announcement ends at the next renewal
            self._silence_s = target_s
            self._authorise()
        self._journal.flush_if_due(now_s)
        measuring = self.step_number - self._began_at < MEASURED_AFTER
        # After silence the loop authorises again soon; the carrier never repeats by itself.
        again_s = now_s + self._pause_s()
        self._look_s = 0.0 if measuring else min(max(due_s, again_s), now_s + FLUSH_EVERY_S)

    def _authorise(self) -> None:
        """Let the carrier send one renewal, with whatever merged into it."""
        if not self._carrier.busy:
            lease = self._lease
            self._carrier.send(
                Hold(lease.holder, lease.attempt, self._silence_s, self._announced, self._move)
            )

    def _take_answers(self) -> None:
        got = self._carrier.answer()
        if got:
            self._handle(*got)
        report = self._courier.report()
        if isinstance(report, Undeliverable):
            self._undeliverable = report.error
        if self._undeliverable is not None:
            raise self._undeliverable
        if self._overspent is not None:
            raise self._overspent
        if isinstance(report, Delivered):
            self._move = report.move

    def _handle(self, errand: Errand, answer: Answer) -> None:
        if isinstance(answer, Deposed):
            self._stop_now(exits.LEASE_LOST, answer.reason)
        if not isinstance(answer, Confirmed):
            now_s = self._now()
            self._retry_s = now_s + self._pause_s()
            self._unanswered.failed(self._carrier.sent_s, now_s, answer.reason)
            self._journal.trouble(answer.reason)
            return
        self._confirmed_s = answer.at_s
        self._unanswered.ended()
        self._retry_s = 0.0
        self._journal.answered()
        if isinstance(errand, Hold) and errand.move and errand.move == self._move:
            self._pointer = errand.move.pointer
            self._move, self.in_transit = None, False
        asked = self._lease.witness.asked
        if asked and asked != self._asked:
            self._asked = asked
            self.request_stop(f"asked to {asked.what} by {asked.by}", asked.within_s)

    def _lose_time(self, now_s: float) -> None:
        if self._stop and now_s >= self._stop[1]:
            self._release(exits.RELEASED, f"{self._stop[0]}; no time for a last milestone")

    def _lose_patience(self) -> None:
        longest = max(self._unanswered, self._courier.silence, key=lambda it: it.lasted_s)
        if longest.lasted_s > max(self.spec.patience_s, self._silence_s):
            self._stop_now(
                exits.STORE_GONE,
                f"the store has not taken a write for {longest.lasted_s:.0f} s ({longest.reason})",
            )

    def _pause_s(self) -> float:
        """How long to wait after a write that had no answer."""
        return min(max(self._silence_s / 12, 0.2), 5.0)

    def _learn(self) -> None:
        """How long the steps since the last look were."""
        measured = self.step_number - self._began_at >= MEASURED_AFTER
        count = min(self.step_number - self._learnt_to, _RING)
        if measured and count:
            steps = [self._ring[(self.step_number - n) % _RING] for n in range(count)]
            self._pacing.learn(steps, self.median_step_s)
            self._learnt_to = self.step_number

    def _target_silence_s(self) -> float:
        steps = self.step_number - self._began_at
        if steps == 0:
            return self._silence_s
        if steps < MEASURED_AFTER:
            return self._pacing.first_silence_s(self._work)
        return self._pacing.silence_s(self.median_step_s)

    @property
    def median_step_s(self) -> float:
        """Median duration of the latest steps of this attempt, at most 64 of them, in seconds."""
        count = min(self.step_number - self._began_at, _RING)
        recent = [self._ring[(self.step_number - n) % _RING] for n in range(count)]
        return statistics.median(recent) if recent else 0.0

    # ------------------------------------------------------------------------------- waiting

    def _wait(self, ready: Callable[[], bool], reason: str) -> None:
        """Wait at a step boundary, renewing only under an announcement."""
        self._take_answers()
        if ready() and not self._carrier.busy:
            return
        self._announced = Announced(reason, min(UNMEASURED_S, self.spec.max_silence_s))
        while True:
            now_s = self._now()
            self._lose_patience()
            self._lose_time(now_s)
            due = self._move or now_s >= self._confirmed_s + self._silence_s / 3
            due = due and now_s >= self._retry_s
            if due and not self._carrier.busy and not (ready() and not self._move):
                self._authorise()
            got = self._carrier.answer(_WAIT_S)
            if got:
                self._handle(*got)
            self._take_answers()
            if ready() and not self._carrier.busy:
                return
            if not self._carrier.busy and (not self._move or self._now() < self._retry_s):
                self._clock.sleep(_WAIT_S)

    def _await_snapshot(self) -> None:
        """Before giving the tenure back: a snapshot on its way is worth a short wait."""
        until_s = self._now() + STOP_GRACE_S
        try:
            self._wait(
                lambda: not self.in_transit or self._now() >= until_s,
                "the last snapshot is on its way",
            )
        except Exception as error:  # it cannot be delivered; what ends the attempt is told already
            self._journal.note(f"tenure: the last snapshot is lost ({error})")

    def _settle(self, until_s: float) -> None:
        """Wait for the write in flight, at most until ``until_s``."""
        while self._carrier.busy and self._now() < until_s:
            got = self._carrier.answer(_WAIT_S)
            if got:
                self._handle(*got)

    def _fetch(self, job: str, pointer: Pointer, folder: Path) -> Manifest:
        """Fetch a snapshot, renewing under an announcement as its bytes arrive."""

        def ask(progress: Progress) -> Manifest:
            return snapshot.fetch(self._store, job, pointer, folder, progress)

        return self._fetching("fetching a snapshot", ask, leaves=False)

    def _fetching(self, what: str, ask: Callable[[Progress], S], leaves: bool) -> S:
        loop = threading.get_ident()

        def breathe(done: int, total: int) -> None:
            if threading.get_ident() != loop:
                return  # the loop alone authorises, whatever thread a store tells from
            now_s = self._now()
            self._take_answers()
            self._lose_patience()
            if self._stop and leaves:
                self._release(exits.RELEASED, self._stop[0])
            due_s = max(self._confirmed_s + self._silence_s / 3, self._retry_s)
            if now_s >= due_s and not self._carrier.busy:
                self._announced = Announced(what, self._silence_s)
                self._authorise()

        silence = Silence()
        while True:
            sent_s = self._now()
            try:
                return ask(breathe)
            except Corrupt as error:
                self._release(exits.PROTOCOL, str(error))
            except StoreSilent as error:
                self._journal.trouble(str(error))
                if silence.failed(sent_s, self._now(), str(error)) > self.spec.patience_s:
                    self._release(exits.STORE_GONE, str(error))
                self._clock.sleep(1.0)
                breathe(0, 0)

    def _draft(self) -> Manifest:
        parent = self._pointer
        return Manifest(
            job=self.spec.id,
            attempt=self._lease.attempt,
            step=self.step_number,
            save=self._saves,
            ordinal=(parent.ordinal if parent else 0) + 1,
            files={},
            fingerprint=self._fingerprint,
            parent=parent,
            median_step_s=self.median_step_s or None,
            busy_s=self._busy_s,
            from_step=self._began_at,
            flops_per_step=self._work.flops if self._work else None,
            dtype=self._work.dtype if self._work else None,
            steps_total=self._steps_total,
            save_s=self.save_s,
            ratios=self._pacing.to_json(),
        )

    # -------------------------------------------------------------------------------- ending

    def _still_open(self) -> None:
        if self._stopped is not None:
            self._swallowed += 1
            if (
                self._swallowed > _MOST_SWALLOWED
            ):  # a bare except in a loop keeps a worker nobody wants
                os._exit(self._stopped.exit_code)
            raise self._stopped
        if self._ended:
            raise RuntimeError("this job is finished; nothing can follow tenure.finish(result)")

    def _stop_now(self, code: int, reason: str) -> NoReturn:
        self._ended = True
        self._stopped = Stopped(code, reason)
        self._look_s = 0.0  # each later step raises it again
        raise self._stopped

    def _release(self, code: int, reason: str) -> NoReturn:
        """Give the tenure back and stop; without an answer the lease runs out by itself."""
        self._leaving = True
        limit_s = self._now() + 3 * self._store.deadline_s
        self._settle(limit_s)
        self._ended = True
        if not self._carrier.busy:
            errand = Release(
                self._lease.holder, self._lease.attempt, code, _told(reason)[:_REASON_CHARS]
            )
            self._carrier.send(errand)
            self._settle(limit_s)
        self._stop_now(code, reason)

    def _end(self, code: int, reason: str, result: dict[str, object]) -> None:
        """Finish the job; insist until the store answers or patience is lost."""
        self._leaving = True
        self._journal.flush()
        errand = Finish(self._lease.holder, self._lease.attempt, code, reason, result)
        while True:
            while self._carrier.busy:
                self._lose_patience()
                got = self._carrier.answer(_WAIT_S)
                if got:
                    self._handle(*got)
                    if got[0] is errand and isinstance(got[1], Confirmed):
                        self._ended = True
                        self._look_s = 0.0
                        return
            self._lose_patience()
            if self._now() < self._retry_s:
                self._clock.sleep(_WAIT_S)
            else:
                self._carrier.send(errand)


def _told(words: str) -> str:
    """Text that can be stored: a file name that is no UTF-8 leaves half characters in messages."""
    return words.encode("utf-8", "replace").decode()
