"""A job, a hostile store and virtual time, to run a worker inside a test."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Lease, acquire, change, read_witness
from tenure_protocol.lease.machine import Event, Reserve
from tenure_protocol.records import JobSpec, Manifest, Pointer, Witness, load, sha256_hex
from tenure_worker.claim import claim
from tenure_worker.exits import Stopped
from tenure_worker.tenure import Tenure
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.toy.experiment import advance, final_word

MEASURED: dict[str, object] = {"card": "cpu", "packages": {"numpy": "2.4"}}


class World:
    """One job. ``run`` trains it in this thread; everything else happens through the store."""

    def __init__(self, clock: FakeClock, **spec: object) -> None:
        self.clock = clock
        self.store = FaultyStore(clock)
        self.spec = JobSpec(
            **{  # type: ignore[arg-type]
                "experiment": "toy",
                "kind": "train",
                "stage": "training",
                "entry_point": "tests.toy.experiment:Toy",
                "config": {"steps": 60},
                "seed": 5,
                "generation": 1,
                "code": "c",
                "data": "d",
                "milestone_every": 10,
                "patience_s": 300.0,
                **spec,
            }
        )
        self.key = keys.witness_of(self.spec)
        self.store.inner.create(keys.job(self.spec.id), encode(self.spec))
        self.launch = 0
        self.measured = MEASURED  # by whoever claims next
        self.history: list[int] = []  # every step any attempt made

    # --------------------------------------------------------------------- other people

    def event(self, event: Event) -> Witness:
        """Somebody else's change, over a path without faults."""
        stored = read_witness(self.store.inner, self.key)
        done = change(self.store.inner, self.key, self.spec.id, stored, event, self.clock)
        assert isinstance(done, Applied), done
        self.store.applied.append((self.key, done.witness.encode()))
        return done.witness

    def reserve(self) -> int:
        self.event(Reserve("here", 600.0, "d1", "vacant"))
        self.launch += 1
        return self.launch

    @property
    def witness(self) -> Witness:
        found = read_witness(self.store.inner, self.key).witness
        assert found is not None
        return found

    @property
    def age_s(self) -> float:
        return read_witness(self.store.inner, self.key).age_s

    # ---------------------------------------------------------------------- the worker

    @contextmanager
    def claimed(self, launch: int | None = None) -> Iterator[Tenure]:
        """Hold the tenure; reserves a launch when none is named."""
        number = self.reserve() if launch is None else launch
        with claim(self.spec.id, self.store, number, self.clock, self.measured) as tenure:
            yield tenure

    @contextmanager
    def killed(self) -> Iterator[Tenure]:
        """A worker that is killed at the end of the block: it neither releases nor closes."""
        number = self.reserve()
        lease = acquire(self.store, self.key, self.spec.id, number, 3600.0, 300.0, self.clock)
        assert isinstance(lease, Lease), lease
        tenure = Tenure(self.spec, self.store, lease, self.clock, self.measured)
        yield tenure
        shutil.rmtree(tenure.folder, ignore_errors=True)

    def steps(self, tenure: Tenure, count: int, step_s: float = 1.0) -> None:
        for _ in range(count):
            self.clock.sleep(step_s)
            tenure.step()

    def train(
        self, tenure: Tenure, steps: int = 60, step_s: float = 1.0, until: int | None = None
    ) -> dict[str, object]:
        """The toy's training on virtual time; ``until`` returns early, as a crash would."""
        state = tenure.resume(_load) or {"step": 0, "word": self.spec.seed}

        def save(folder: Path) -> None:
            (folder / "state.json").write_text(json.dumps(state))

        while state["step"] < steps:
            state["step"] += 1
            state["word"] = advance(state["word"], state["step"])
            self.history.append(state["step"])
            self.clock.sleep(step_s)
            tenure.step()
            tenure.metric(word=state["word"])
            if state["step"] == until:
                break
            if tenure.milestone_due:
                tenure.milestone(save)
        if until is None and tenure.saved_step != tenure.step_number:
            tenure.milestone(save)
        return {"word": state["word"]}

    def run(self, launch: int | None = None, **train: object) -> int:
        """Claim, train and finish; returns the exit code."""
        try:
            with self.claimed(launch) as tenure:
                tenure.finish(self.train(tenure, **train))  # type: ignore[arg-type]
        except Stopped as stop:
            return stop.exit_code
        return 0

    def expected_word(self, steps: int = 60) -> int:
        return final_word(self.spec.seed, steps)

    # ---------------------------------------------------------------------- invariants

    def manifest(self, pointer: Pointer) -> Manifest:
        body = self.store.bodies(keys.manifest(self.spec.id, pointer))[0]
        return load(Manifest, body, "manifest")

    def check(self) -> None:
        """What must hold of every history, over every write in the order it was applied."""
        stored: dict[str, bytes] = {}
        pointer: Pointer | None = None
        attempt, seq = 0, 0
        for key, body in self.store.applied:
            if key == self.key:
                new = Witness.decode(body, key)
                assert new.seq == seq + 1 and new.attempt in (attempt, attempt + 1)
                if new.pointer != pointer:
                    assert new.pointer is not None and new.phase == "held"
                    assert new.pointer.attempt == new.attempt
                    self._check_moved(new.pointer, pointer, stored)
                pointer, attempt, seq = new.pointer, new.attempt, new.seq
                continue
            assert stored.get(key, body) == body, f"{key} was written with two contents"
            if key.endswith("manifest.json"):
                manifest = load(Manifest, body, key)
                assert manifest.parent == pointer, "the parent is not the pointer then stored"
                prefix = key.removesuffix("manifest.json")
                for name, entry in manifest.files.items():
                    assert sha256_hex(stored[prefix + name]) == entry.sha256, (
                        "manifest before bytes"
                    )
            stored[key] = body
        self._check_journal(stored)

    def _check_moved(
        self, pointer: Pointer, parent: Pointer | None, stored: dict[str, bytes]
    ) -> None:
        body = stored[keys.manifest(self.spec.id, pointer)]
        manifest = load(Manifest, body, "manifest")
        assert manifest.parent == parent and manifest.pointer(body) == pointer
        assert pointer.ordinal == (parent.ordinal if parent else 0) + 1
        assert pointer.step >= (parent.step if parent else 0)

    def _check_journal(self, stored: dict[str, bytes]) -> None:
        for what in ("events", "log"):
            numbers: dict[str, list[int]] = {}
            for key in stored:
                folder, _, name = key.rpartition("/")
                if folder.endswith(f"/{what}"):
                    numbers.setdefault(folder, []).append(int(name.split(".")[0]))
            for folder, found in numbers.items():
                assert found == list(range(1, len(found) + 1)), f"{folder} has gaps: {found}"

    def stored_keys(self) -> list[str]:
        return [entry.key for entry in self.store.inner.list("")]

    def events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._lines("events")]

    def log(self) -> str:
        return "".join(self._lines("log"))

    def _lines(self, what: str) -> list[str]:
        return [
            line
            for entry in self.store.inner.list(f"jobs/{self.spec.id}/attempts/")
            if f"/{what}/" in entry.key
            for line in self.store.inner._objects[entry.key][0].decode().splitlines(keepends=True)
        ]


def _load(folder: Path) -> dict[str, int]:
    state: dict[str, int] = json.loads((folder / "state.json").read_text())
    return state
