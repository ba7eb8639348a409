"""A memory store that loses, delays and cuts as it is told, and remembers every write it applied."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

from tenure_protocol.clock import Clock
from tenure_protocol.store.api import (
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Progress,
    StoreSilent,
    Unknown,
    Written,
)
from tenure_protocol.store.memory import MemoryStore

#: What may become of one conditional write:
#: ``lost_request``: never applied, no answer. ``lost_answer``: applied, no answer. ``ghost``: applied,
#: and answered as refused (a retry inside an SDK). ``conflict``: refused though the condition held
#: (409). ``late1`` to ``late9``: no answer, and it lands that many operations later.
WRITE_FAULTS = (
    "lost_request",
    "lost_answer",
    "ghost",
    "conflict",
    "late1",
    "late2",
    "late3",
    "late8",
)


class FaultyStore:
    """A Store. Scripted faults apply to the keys that ``touches`` accepts, one per call."""

    url = "memory:faulty"

    def __init__(self, clock: Clock, touches: Callable[[str], bool] | None = None) -> None:
        self.inner = MemoryStore(clock)
        self.clock = clock
        self.deadline_s = self.inner.deadline_s
        self.touches = touches or (lambda key: key.startswith("witness/"))
        self.writes: deque[str] = deque()  # faults of the next conditional writes; then none
        self.reads: deque[str] = deque()  # "ok" or "silent" for the next reads; then none
        self.silent: Callable[[str], bool] = lambda key: False  # an outage of these keys
        self.put_s: Callable[[str], float] = lambda key: 0.0  # how long an upload takes
        self.call_s = 0.0  # how long everything else takes
        self.applied: list[tuple[str, bytes]] = []  # every write of any key, in order
        self.calls: list[tuple[str, str]] = []
        self._called_s = 0.0
        self._at_once = 0  # calls since time last moved
        self._late: list[list[object]] = []  # [operations to go, thunk]

    # ----------------------------------------------------------------------- for tests

    def fail_writes(self, faults: Iterable[str]) -> None:
        self.writes.extend(faults)

    def land(self) -> None:
        """Everything that was delayed arrives now."""
        late, self._late = self._late, []
        for _, thunk in late:
            thunk()  # type: ignore[operator]

    def heal(self) -> None:
        """No further faults; what was delayed stays on its way."""
        self.writes.clear()
        self.reads.clear()
        self.silent = lambda key: False

    def bodies(self, key: str) -> list[bytes]:
        return [body for k, body in self.applied if k == key]

    # --------------------------------------------------------------------------- Store

    def read(self, key: str) -> Found | Missing:
        self._pass("read", key)
        if self.silent(key) or (self.touches(key) and self._next(self.reads) == "silent"):
            raise StoreSilent(f"{key} was not answered")
        return self.inner.read(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        self._pass("list", prefix)
        if self.silent(prefix):
            raise StoreSilent(f"{prefix} was not answered")
        return self.inner.list(prefix)

    def create(self, key: str, body: bytes) -> Outcome:
        return self._write(key, body, lambda: self.inner.create(key, body))

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._write(key, body, lambda: self.inner.replace(key, body, etag))

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        body = path.read_bytes()
        self._pass("put_file", key)
        self.clock.sleep(self.put_s(key))
        if self.silent(key):
            raise StoreSilent(f"{key} was not answered")
        self.inner.put_file(key, path, progress)
        self.applied.append((key, body))

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        self._pass("get_file", key)
        if self.silent(key):
            raise StoreSilent(f"{key} was not answered")
        return self.inner.get_file(key, path, progress)

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        self._pass("read_range", key)
        return self.inner.read_range(key, start, length)

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return None

    def delete(self, key: str) -> None:
        self._pass("delete", key)
        self.inner.delete(key)

    # -------------------------------------------------------------------------- inside

    def _write(self, key: str, body: bytes, send: Callable[[], Outcome]) -> Outcome:
        self._pass("write", key)
        if self.silent(key):
            return Unknown("no answer")

        def apply() -> Outcome:
            outcome = send()
            if isinstance(outcome, Written):
                self.applied.append((key, body))
            return outcome

        fault = self._next(self.writes) if self.touches(key) else "ok"
        if fault == "lost_request":
            return Unknown("the request was lost")
        if fault == "lost_answer":
            apply()
            return Unknown("the answer was lost")
        if fault == "ghost":
            apply()
            return Lost()
        if fault == "conflict":
            return Lost()
        if fault.startswith("late"):
            self._late.append([int(fault[4:]), apply])
            return Unknown("timed out")
        assert fault == "ok", fault
        return apply()

    def _pass(self, call: str, key: str) -> None:
        """Time passes, and what was delayed long enough lands."""
        self.calls.append((call, key))
        self._at_once = self._at_once + 1 if self.clock.monotonic_s() == self._called_s else 0
        self._called_s = self.clock.monotonic_s()
        if self.call_s or self._at_once > 100:  # no loop may hammer without time going by
            self.clock.sleep(self.call_s or 0.1)
        due = []
        for entry in self._late:
            entry[0] = int(entry[0]) - 1  # type: ignore[call-overload]
            if entry[0] == 0:
                due.append(entry)
        for entry in due:
            self._late.remove(entry)
            entry[1]()  # type: ignore[operator]

    @staticmethod
    def _next(faults: deque[str]) -> str:
        return faults.popleft() if faults else "ok"
