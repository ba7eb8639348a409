"""The eight invariants of the protocol and the economy rules, checked at every applied write.

Written against the stored JSON, not against the machine that produced it. Each check cites the
number of its invariant in DESIGN.md section 5, or an economy rule: E1 a stored ``expected`` is
launched or replaced; E2 a deposed worker stops; E3 a live holder keeps its lease; E4 claims are
bounded; E5 bills are closed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

from tenure.sim.clock import Process
from tenure.sim.platform import Cloud, Instance
from tenure.sim.store import Object
from tenure_protocol.codec import sha256_hex
from tenure_protocol.lease.client import CLAIM_WINDOW_S
from tenure_worker import exits

Body = dict[str, object]
SLACK_S = 3.0
_LEAVING_S = 5.0
_ASKING_S = 6.0
_FINAL = ("finished", "cancelled")
_CARRIED = ("launch", "barrier", "attempt", "asked", "pointer", "holder", "held_back")


@dataclass(frozen=True)
class Violation:
    """One broken rule: which, when, and what was seen."""

    invariant: str
    at_s: float
    detail: str


@dataclass
class Worker:
    """What the simulator knows of one worker's process, whatever the store says."""

    process: Process
    job: str
    launch: int
    rung: str
    started_s: float
    step_s: float
    patience_s: float
    nonce: str | None = None
    claimed: bool = False  # it knows that it holds the job
    silence_s: float = 0.0  # as last stored by it
    longest_s: float = 0.0  # the longest lease it ever stored
    deposed_s: float | None = None  # when somebody else's write took the tenure from it
    told: bool = False  # somebody or something asked it to end
    hung: bool = False
    notice: str = ""
    ended: int | None = None
    first_step: int | None = None  # the step it resumed at, once it has made one
    pointed_step: int = 0  # the step of the pointer it claimed with


@dataclass
class JobFacts:
    """One job, and every witness it ever had."""

    job: str
    key: str
    steps: int
    word: int
    own_error: bool  # its code raises
    now: Body | None = None
    at_s: float = 0.0  # when ``now`` was stored
    past: list[tuple[float, Body]] = field(default_factory=list)
    asked_s: float = 0.0  # when its holder was last asked for something
    moved_s: float = 0.0  # when the pointer last moved
    pointers: list[Body] = field(default_factory=list)  # every pointer ever stored
    write_ids: set[str] = field(default_factory=set)
    claims: dict[str, Worker] = field(default_factory=dict)  # by nonce
    attempts: dict[int, Worker] = field(default_factory=dict)  # who claimed which
    reserved: dict[int, Process] = field(default_factory=dict)  # who announced a launch
    claimed_launch: int = 0
    workers: int = 0  # processes that were ever started for it
    writer: Process | None = None  # of ``now``
    holder: Worker | None = None  # by ``now``

    @property
    def phase(self) -> str:
        """Of the stored witness."""
        return cast(str, self.now["phase"]) if self.now else "absent"


def _launched(w: Body | None) -> int:
    return cast(int, cast(Body, w["launch"])["number"]) if w and "launch" in w else 0


def _lease_s(w: Body) -> float:
    announced = cast(Body, w.get("announced") or {})
    return max(cast(float, w["silence_s"]), cast(float, announced.get("silence_s", 0.0)))


def _nonce(w: Body | None) -> str | None:
    return cast(str, cast(Body, w["holder"])["nonce"]) if w and "holder" in w else None


class Checker:
    """Sees every applied write before anybody else moves."""

    def __init__(self, cloud: Cloud) -> None:
        self.violations: list[Violation] = []
        self.jobs: dict[str, JobFacts] = {}  # by id
        self.workers: dict[Process, Worker] = {}
        self.objects: dict[str, Object] = {}
        self.open_bills = 0
        self.asked: set[tuple[Process, str, int]] = set()  # who began to make which launch
        self.people: set[Process] = set()
        self._keys: dict[str, JobFacts] = {}  # by witness key
        self._manifests: dict[str, tuple[float, Body]] = {}
        self._contents: dict[str, str] = {}  # key: digest of the one content it may have
        self._cloud = cloud
        self._scheduler = cloud.scheduler
        self._parsed: tuple[bytes, Body] = (b"", {})

    def fail(self, invariant: str, detail: str) -> None:
        """Note a broken rule; the history ends there."""
        self.violations.append(Violation(invariant, self._scheduler.now_s, detail))
        self._scheduler.over = True

    def add(self, facts: JobFacts) -> None:
        """Watch a job."""
        self.jobs[facts.job] = facts
        self._keys[facts.key] = facts

    def _parse(self, body: bytes) -> Body:
        if self._parsed[0] != body:
            self._parsed = (body, cast(Body, json.loads(body)))
        return self._parsed[1]

    # ------------------------------------------------------------------------------- requests

    def sending(self, process: Process, key: str, body: bytes) -> None:
        """A conditional write or an upload leaves a process."""
        facts = self._keys.get(key)
        if facts is not None:
            self._pointer_confirmed(process, facts, self._parse(body))
        elif key.startswith("unsettled/"):
            job, _, launch = key.removeprefix("unsettled/").rpartition("-")
            self.asked.add((process, job, int(launch)))

    def _pointer_confirmed(self, process: Process, facts: JobFacts, w: Body) -> None:
        worker = self.workers.get(process)
        pointer = cast(Body | None, w.get("pointer"))
        if worker is None or pointer is None:
            return
        if pointer in facts.pointers[-1:] or pointer in facts.pointers:  # the newest, most often
            return
        manifest = self._manifest(facts, pointer)
        if manifest is None:
            self.fail("3 bytes confirmed", f"{process.name} points to a manifest nobody stored")
            return
        prefix, _, found = manifest
        for name in cast(Body, found["files"]):
            if prefix + name not in process.confirmed:
                self.fail("3 bytes confirmed", f"{process.name} points to {name} unconfirmed")

    def _manifest(self, facts: JobFacts, pointer: Body) -> tuple[str, float, Body] | None:
        prefix = (
            f"jobs/{facts.job}/attempts/{pointer['attempt']:05d}/milestones/"
            f"{pointer['step']}-{pointer['save']}/"
        )
        found = self._manifests.get(prefix)
        stored = self.objects.get(f"{prefix}manifest.json")
        if found is None or stored is None or sha256_hex(stored.body) != pointer["digest"]:
            return None
        return prefix, *found

    # ---------------------------------------------------------------------------------- writes

    def wrote(self, process: Process | None, key: str, old: Object | None, body: bytes) -> None:
        """A write was applied."""
        facts = self._keys.get(key)
        if facts is not None:
            self._witness(process, facts, self._parse(body))
        elif key.startswith("unsettled/"):
            self.open_bills += old is None
        elif "/attempts/" in key:
            self._artifact(process, key, body)

    def deleted(self, key: str) -> None:
        """A key was deleted."""
        if key.startswith("unsettled/"):
            self.open_bills -= 1
        else:
            self.fail("1 attempts", f"{key} was deleted; only bills and scratch keys are")

    def _artifact(self, process: Process | None, key: str, body: bytes) -> None:
        digest = sha256_hex(body)
        if self._contents.setdefault(key, digest) != digest:
            self.fail("5 one content", f"{key} was written with two contents")
        _, job, _, number, *_ = key.split("/")
        facts = self.jobs[job]
        worker = self.workers.get(process) if process else None
        if worker is None or facts.attempts.get(int(number)) is not worker:
            name = process.name if process else "nobody"
            self.fail("5 one writer", f"{name} wrote {key} of another's attempt")
        if key.endswith("/manifest.json"):
            self._new_manifest(facts, key.removesuffix("manifest.json"), body, int(number))

    def _new_manifest(self, facts: JobFacts, prefix: str, body: bytes, attempt: int) -> None:
        manifest = cast(Body, json.loads(body))
        self._manifests[prefix] = (self._scheduler.now_s, manifest)
        for name, entry in cast(dict[str, Body], manifest["files"]).items():
            stored = self.objects.get(prefix + name)
            if stored is None or sha256_hex(stored.body) != entry["sha256"]:
                self.fail("3 manifest last", f"{prefix}manifest.json was stored before {name}")
        now = facts.now
        held = now is not None and facts.phase == "held" and now["attempt"] == attempt
        if held and now and manifest.get("parent") != now.get("pointer"):
            self.fail("2 one line", f"{prefix} names a parent that is not the stored pointer")

    # --------------------------------------------------------------------------------- witness

    def _witness(self, process: Process | None, facts: JobFacts, new: Body) -> None:
        old = facts.now
        worker = self.workers.get(process) if process else None
        for invariant, detail in self._broken(process, worker, facts, old, new):
            words = f"{facts.phase} -> {new['phase']} by {process.name if process else '?'}"
            self.fail(invariant, f"{words}: {detail}")
        self._note(process, worker, facts, old, new)

    def _broken(
        self,
        process: Process | None,
        worker: Worker | None,
        facts: JobFacts,
        old: Body | None,
        new: Body,
    ) -> Iterator[tuple[str, str]]:
        phase, was = cast(str, new["phase"]), facts.phase
        if was in _FINAL:
            yield "4 final", "it was over"
        if new["seq"] != (cast(int, old["seq"]) if old else 0) + 1:
            yield "1 attempts", "a write was not decided from the stored body"
        if new["write_id"] in facts.write_ids:
            yield "5 write ids", "its write_id was used before"
        attempt, attempts = cast(int, new["attempt"]), cast(int, old["attempt"]) if old else 0
        mine = worker is not None and worker.nonce is not None and _nonce(old) == worker.nonce
        claim = phase == "held" and _nonce(new) != _nonce(old)
        if attempt != attempts + claim:
            yield "1 attempts", f"the attempt went from {attempts} to {attempt}"
        if (
            not claim
            and phase not in ("revoked",)
            and (old or {}).get("barrier", 0) != new["barrier"]
        ):
            yield "row", "the barrier moved"
        if new.get("pointer") != (old or {}).get("pointer"):
            yield from self._pointer(facts, process, mine, old, new)
        if claim:
            yield from self._claim(worker, facts, old, new)
        elif phase in ("held", "released", "finished") and was == "held" and not mine:
            yield from self._foreign(process, old, new)
        elif phase in ("held", "finished") and was != "held":
            yield "row", "nobody held it"
        elif phase == "finished":
            yield from self._finish(facts, new)
        elif phase == "expected":
            yield from self._reserve(process, facts, old, new)
        elif phase == "revoked" and was == "held" and process not in self.people:
            if not self._disobeyed(facts, old):
                yield from self._deposition(facts, old, new)
        elif phase == "cancelled" and process not in self.people:
            yield from self._cancel(facts, new)

    def _pointer(
        self, facts: JobFacts, process: Process | None, mine: bool, old: Body | None, new: Body
    ) -> Iterator[tuple[str, str]]:
        pointer = cast(Body | None, new.get("pointer"))
        before = cast(Body | None, (old or {}).get("pointer"))
        if new["phase"] == "revoked" and process in self.people:
            if pointer is not None and pointer not in facts.pointers:
                yield "2 one line", "rewound to what never was a pointer"
            return
        if not mine or new["phase"] != "held" or pointer is None:
            yield "3 holder moves", "the pointer moved, and not by the holder's renewal"
            return
        found = self._manifest(facts, pointer)
        if found is None:
            yield "3 bytes confirmed", "the pointer moved to a manifest that is not stored"
            return
        _, written_s, manifest = found
        if manifest.get("parent") != before or written_s < facts.moved_s:
            yield "2 one line", "the manifest was written before the previous pointer was settled"
        ordinal = cast(int, before["ordinal"]) if before else 0
        if pointer["ordinal"] != ordinal + 1 or pointer["attempt"] != new["attempt"]:
            yield "2 one line", "the pointer is not the next of this attempt"
        if before and cast(int, pointer["step"]) <= cast(int, before["step"]):
            yield "2 one line", "the pointer moved back"

    def _claim(
        self, worker: Worker | None, facts: JobFacts, old: Body | None, new: Body
    ) -> Iterator[tuple[str, str]]:
        holder = cast(Body, new["holder"])
        launch = cast(int, holder["launch"])
        barrier = cast(int, (old or {}).get("barrier", 0))
        if worker is None or worker.launch != launch:
            yield "row", "a claim in another's name"
        elif worker.claimed:
            yield "E4 claims", f"{worker.process.name} claimed twice"
        if launch <= barrier and not (launch == 0 and barrier == 0):
            yield "5 barrier", f"launch {launch} claimed past the barrier {barrier}"
        if old and old.get("held_back"):
            yield "row", "a held-back job was claimed"
        if facts.phase == "revoked":
            yield "row", "a revoked job was claimed"
        if new.get("asked"):
            yield "row", "a fresh attempt has been asked already"
        if facts.phase == "expected" and not launch:
            yield "row", "local mode claimed past a dispatcher"
        if facts.phase == "held" and old:
            other = cast(Body, old["holder"])["launch"]
            if launch and launch != other:
                yield "E3 live holder", "a launch judged another's holder"
            yield from self._deposition(facts, old, new)
        # A worker that never learnt of its claim and has lost it since may claim the next launch.
        if facts.workers + _launched(new) < cast(int, new["attempt"]):
            yield "E4 claims", "more attempts than workers and launches"

    def _foreign(
        self, process: Process | None, old: Body | None, new: Body
    ) -> Iterator[tuple[str, str]]:
        """A write into a held witness by somebody who does not hold it."""
        name = process.name if process else "nobody"
        if process in self.workers or new["phase"] != "held" or old is None:
            yield "5 deposed worker", f"{name} wrote over attempt {old and old['attempt']}"
            return
        if old.get("asked") or not new.get("asked"):
            yield "row", "neither a request nor the first of this attempt"
        if any(old.get(name) != new.get(name) for name in _CARRIED if name != "asked"):
            yield "row", "a request changed more than the request"

    def _finish(self, facts: JobFacts, new: Body) -> Iterator[tuple[str, str]]:
        pointer = cast(Body | None, new.get("pointer"))
        if new["exit_code"] == exits.FINISHED:
            if pointer is None or pointer["step"] != facts.steps:
                yield "3 last pointer", f"finished with the pointer {pointer}"
            if cast(Body, new["result"])["word"] != facts.word:
                yield "5 result", "the result is not that of an uninterrupted training"
        elif not (new["exit_code"] == exits.CODE_ERROR and facts.own_error):
            yield "7 ends", f"finished with {new['exit_code']}: {str(new.get('reason'))[-900:]}"

    def _reserve(
        self, process: Process | None, facts: JobFacts, old: Body | None, new: Body
    ) -> Iterator[tuple[str, str]]:
        if _launched(new) != _launched(old) + 1:
            yield "1 attempts", "the launch is not the next"
        if process in self.workers or process in self.people:
            yield "row", "only dispatchers announce a launch"
        if old and old.get("held_back"):
            yield "row", "a held-back job was launched"
        if facts.phase == "held":
            yield from self._deposition(facts, old, new)
        elif facts.phase == "expected" and old:
            launch = _launched(old)
            window_s = cast(float, cast(Body, old["launch"])["window_s"])
            if (facts.job, launch) in self._cloud.failed:
                return
            if self._scheduler.now_s - facts.at_s < window_s - 2.0:
                yield "8 evidence", f"launch {launch} could still claim, and had not failed"

    def _deposition(
        self, facts: JobFacts, old: Body | None, new: Body
    ) -> Iterator[tuple[str, str]]:
        """A holder was judged vacant: its lease must have run out, and not by a common outage."""
        assert old is not None
        now_s = self._scheduler.now_s
        lease_s = _lease_s(old)
        if now_s - facts.at_s < lease_s:
            yield (
                "E3 confirmed holder",
                (f"confirmed {now_s - facts.at_s:.1f} s ago, its lease lasts {lease_s:.0f} s"),
            )
        holder = facts.claims.get(_nonce(old) or "")
        if holder is None or holder.process.dead or holder.hung or holder.ended is not None:
            return
        # What hit the holder alone excuses a dispatcher, what hit both does not: a watch without a
        # failed call of one lease means that the store answered for so long.
        if holder.process.harmed_s < now_s - lease_s - SLACK_S - 2.0:
            yield "E3 live holder", f"{holder.process.name} is healthy and had no fault of its own"

    def _disobeyed(self, facts: JobFacts, old: Body | None) -> bool:
        """Whether the holder was asked and has had a lease to read it, and the time it was given."""
        asked = cast(Body | None, (old or {}).get("asked"))
        if asked is None or old is None:
            return False
        had_s = cast(float, asked["within_s"]) + _lease_s(old)
        return self._scheduler.now_s - facts.asked_s > had_s

    def _cancel(self, facts: JobFacts, new: Body) -> Iterator[tuple[str, str]]:
        """The reason that a dispatcher gives for ending a job must be the truth."""
        reason = str(new.get("reason"))
        pointer = cast(Body | None, new.get("pointer"))
        launched = _launched(new)
        if "without a milestone" in reason:
            moved = cast(int, pointer["attempt"]) if pointer else 0
            if cast(int, new["attempt"]) - moved < 6:
                yield "7 ends", reason
        elif "never claimed it" in reason:
            unclaimed = [
                n
                for n in range(facts.claimed_launch + 1, launched + 1)
                if (facts.job, n) not in self._cloud.failed
            ]
            if len(unclaimed) < 6:
                yield "7 ends", f"{reason}; of {launched} launches {len(unclaimed)} were made"
        elif "were rejected" in reason:
            if self._cloud.rejections.get(facts.job, 0) < 5:
                yield "7 ends", reason
        elif "no allowed rung" not in reason or not self._cloud.excluded.get(facts.job):
            yield "7 ends", reason

    def _note(
        self,
        process: Process | None,
        worker: Worker | None,
        facts: JobFacts,
        old: Body | None,
        new: Body,
    ) -> None:
        """Remember what was stored, and who lost or gained by it."""
        now_s = self._scheduler.now_s
        facts.write_ids.add(cast(str, new["write_id"]))
        if new.get("pointer") != (old or {}).get("pointer"):
            facts.moved_s = now_s
            if new.get("pointer"):
                facts.pointers.append(cast(Body, new["pointer"]))
        before = facts.claims.get(_nonce(old) or "")
        if new["phase"] == "held" and _nonce(new) != _nonce(old) and worker is not None:
            worker.nonce, worker.deposed_s = _nonce(new), None
            worker.pointed_step = cast(int, cast(Body, new.get("pointer") or {}).get("step", 0))
            facts.claims[worker.nonce or ""] = worker
            facts.attempts[cast(int, new["attempt"])] = worker
            facts.claimed_launch = max(facts.claimed_launch, worker.launch)
        if before is not None and _nonce(new) != before.nonce and before is not worker:
            before.deposed_s = now_s
        holder = facts.claims.get(_nonce(new) or "")
        if holder is not None:
            holder.silence_s = _lease_s(new)
            holder.longest_s = max(holder.longest_s, holder.silence_s)
            holder.told = holder.told or bool(new.get("asked"))
        if new.get("asked") and not (old or {}).get("asked"):
            facts.asked_s = now_s
        if new["phase"] == "expected" and process is not None:
            facts.reserved[_launched(new)] = process
        facts.now, facts.at_s, facts.writer, facts.holder = new, now_s, process, holder
        facts.past.append((now_s, new))

    # --------------------------------------------------------------------------- other moments

    def ticked(self, process: Process, began_s: float) -> None:
        """E1: after a round without trouble, what a dispatcher announced has been asked for."""
        if process.troubled_s >= began_s:
            return
        for facts in self.jobs.values():
            if facts.phase != "expected" or facts.at_s >= began_s:
                continue
            launch = _launched(facts.now)
            made = (process, facts.job, launch) in self.asked
            if facts.reserved.get(launch) is process and not made:
                self.fail("E1 launched", f"{process.name} announced launch {launch}, made none")

    def launching(self, job: str, launch: int) -> None:
        """The platform is asked for a launch: it must have been announced."""
        if launch not in self.jobs[job].reserved:
            self.fail("E1 announced", f"launch {launch} was made and never announced")

    def releasing(self, process: Process, instance: Instance) -> None:
        """E3: nobody ends a machine on which somebody holds his job, whatever became of another.

        What the dispatcher read before it asked is some seconds old, or older if it was frozen.
        """
        then_s = self._scheduler.now_s - _ASKING_S
        if max(process.troubled_s, process.harmed_s) > then_s:
            return
        for job, launch in instance.aboard:
            facts = self.jobs[job]
            holder = facts.holder
            if holder is None or holder.launch != launch or holder.hung:
                continue
            lapsed = any(
                _nonce(w) != holder.nonce or moment_s - at_s > _lease_s(w)
                for moment_s in (then_s, self._scheduler.now_s)
                for at_s, w in [each for each in facts.past if each[0] <= moment_s][-1:]
            )
            if not lapsed and holder.process in instance.processes and not holder.process.dead:
                name = holder.process.name
                self.fail("E3 live holder", f"{process.name} ends the machine of {name}")

    def stepping(self, worker: Worker) -> None:
        """E2: a deposed worker stops within one renewal after it can read the store."""
        if worker.deposed_s is None:
            return
        p = worker.process
        since_s = max(worker.deposed_s, p.troubled_s, p.harmed_s)
        allowed_s = worker.silence_s / 3 + 2 * worker.step_s + 15.0
        if self._scheduler.now_s - since_s > allowed_s:
            self.fail(
                "E2 deposed stops", f"{p.name} works on {allowed_s:.0f} s after it could know"
            )

    def stopped(self, worker: Worker, code: int, reason: str) -> None:
        """Invariant 6: only proof stops a worker."""
        worker.ended = code
        words = f"{worker.process.name} stopped ({exits.EXIT_CODES[code]}: {reason})"
        facts = self.jobs[worker.job]
        seen = self._seen(facts, worker.started_s)
        fine = {
            exits.FINISHED: True,
            exits.LEASE_LOST: facts.writer is not worker.process and facts.holder is not worker,
            exits.RELEASED: worker.told,
            exits.OUT_OF_MEMORY: worker.told,
            exits.ELSEWHERE: any(
                (w["phase"] in ("held", "expected") and _nonce(w) != worker.nonce)
                or not worker.nonce
                for w in seen
            ),
            exits.SUPERSEDED: any(
                w["phase"] in (*_FINAL, "revoked")
                or w.get("held_back")
                or cast(int, w["barrier"]) >= worker.launch
                for w in seen
            ),
            exits.STORE_GONE: self._silent_for_long(worker),
        }
        if not fine.get(code, False):
            self.fail("6 only proof", words)

    @staticmethod
    def _seen(facts: JobFacts, since_s: float) -> list[Body]:
        """Every witness that was current at some time since."""
        recent = [w for at_s, w in facts.past if at_s >= since_s]
        before = [w for at_s, w in facts.past if at_s < since_s]
        return before[-1:] + recent

    def _silent_for_long(self, worker: Worker) -> bool:
        p = worker.process
        knows = f"jobs/{worker.job}/job.json" in p.confirmed  # its own patience
        lasted_s = [p.sent[kind] - since_s for kind, since_s in p.silent.items()]
        # An answer may come between its decision and its end.
        now_s = self._scheduler.now_s
        lasted_s += [was_s for was_s, at_s in p.was_silent.values() if now_s - at_s < _LEAVING_S]
        return max(lasted_s, default=0.0) >= (worker.patience_s if knows else CLAIM_WINDOW_S)

    def at_the_end(self, settled: bool, limit_s: float) -> None:
        """Invariant 7, and what must be true of the store when everything has ended."""
        for facts in self.jobs.values():
            if facts.phase not in _FINAL and not self.violations:
                words = json.dumps(facts.now)
                self.fail("7 ends", f"after {limit_s:.0f} s it is {facts.phase}: {words}")
            pointer = cast(Body | None, (facts.now or {}).get("pointer"))
            if pointer is not None:
                self._readable(facts, pointer)
        for name, instance in self._cloud.instances.items():
            alive = [p.name for p in instance.processes if not p.dead]
            if settled and alive and not instance.lied and not self.violations:
                self.fail("E5 bills", f"{name} is closed and {alive} run on")
        if not settled and not self.violations:
            if self.open_bills:
                self.fail("E5 bills", f"{self.open_bills} bills are open after {limit_s:.0f} s")
            else:
                self.fail("E2 deposed stops", f"a worker runs on after {limit_s:.0f} s")

    def nothing_wasted(self) -> None:
        """A history without faults needs one launch and one attempt of each job."""
        for facts in self.jobs.values():
            if facts.own_error or self._cloud.weather.counts or not facts.now:
                continue
            spent = (_launched(facts.now), facts.now["attempt"], facts.workers)
            if spent != (1, 1, 1):
                self.fail("E3 live holder", f"launches, attempts, workers without a fault: {spent}")

    def _readable(self, facts: JobFacts, pointer: Body) -> None:
        found = self._manifest(facts, pointer)
        if found is None:
            self.fail("5 result", "the last pointer names a manifest that is not there")
            return
        prefix, _, manifest = found
        for name, entry in cast(dict[str, Body], manifest["files"]).items():
            stored = self.objects.get(prefix + name)
            if stored is None or sha256_hex(stored.body) != entry["sha256"]:
                self.fail("5 result", f"{prefix}{name} is not what the manifest says")
