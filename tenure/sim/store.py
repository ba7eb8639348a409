"""A store in memory, and each process's hostile path to it.

A call is two events: the request arrives, the answer arrives. So a write whose sender is dead, frozen
or has given up still lands. Every applied write is shown to the world before anybody else moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeVar

from tenure.sim.clock import Process, Scheduler
from tenure.sim.faults import PUT_FAULTS, READ_FAULTS, Weather
from tenure_protocol.store.api import (
    DEADLINE_S,
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Progress,
    StoreSilent,
    Unknown,
    Written,
    check_key,
)

R = TypeVar("R")
URL = "memory:sim"
_LATEST_S = 90.0  # a delayed request lands by then


class Object(NamedTuple):
    """What the store keeps under a key."""

    body: bytes
    etag: str
    at_s: float


class Observer(Protocol):
    """Who is told of every call and of every applied write."""

    def calling(self, process: Process, call: str, key: str, body: bytes) -> None:
        """A process is about to send a request."""

    def wrote(self, process: Process | None, key: str, old: Object | None, body: bytes) -> None:
        """A write was applied."""

    def deleted(self, process: Process | None, key: str) -> None:
        """A key was deleted."""

    def trace(self, *words: object) -> None:
        """Something happened."""


class Objects:
    """The store itself: keys, bodies, times. ETags are content hashes, as on S3."""

    def __init__(self, scheduler: Scheduler, weather: Weather, observer: Observer) -> None:
        self.objects: dict[str, Object] = {}
        self._scheduler = scheduler
        self._weather = weather
        self._observer = observer

    def read(self, key: str) -> Found | Missing:
        held = self.objects.get(key)
        if held is None:
            return Missing()
        return Found(held.body, held.etag, self._age_s(held.at_s))

    def list(self, prefix: str) -> list[Entry]:
        return [
            Entry(key, held.etag, len(held.body), self._age_s(held.at_s))
            for key, held in sorted(
                item for item in self.objects.items() if item[0].startswith(prefix)
            )
        ]

    def create(self, process: Process | None, key: str, body: bytes) -> Outcome:
        return Lost() if key in self.objects else self.put(process, key, body)

    def replace(self, process: Process | None, key: str, body: bytes, etag: str) -> Outcome:
        held = self.objects.get(key)
        if held is None or held.etag != etag:
            return Lost()
        return self.put(process, key, body)

    def put(self, process: Process | None, key: str, body: bytes) -> Written:
        old = self.objects.get(key)
        etag = hashlib.sha256(body).hexdigest()[:32]
        self.objects[key] = Object(body, etag, self._scheduler.now_s)
        self._observer.wrote(process, key, old, body)
        return Written(etag)

    def delete(self, process: Process | None, key: str) -> bool:
        held = self.objects.pop(key, None)
        if held is not None:
            self._observer.deleted(process, key)
        return held is not None

    def _age_s(self, at_s: float) -> float:
        skew_s = self._weather.skew_s
        if not skew_s:
            return self._scheduler.now_s - at_s
        # two front ends stamp and report; whole seconds, as in a Last-Modified header
        noise_s = self._weather.rng.uniform(-skew_s, skew_s)
        return max(0.0, float(int(self._scheduler.now_s - at_s + noise_s)))


class SimulatedStore:
    """A Store: one process's path to the objects."""

    url = URL
    deadline_s = DEADLINE_S["memory"]

    def __init__(
        self,
        objects: Objects,
        scheduler: Scheduler,
        weather: Weather,
        process: Process,
        observer: Observer,
    ) -> None:
        self._objects = objects
        self._scheduler = scheduler
        self._weather = weather
        self._process = process
        self._observer = observer
        self._random = weather.rng.random

    # ---------------------------------------------------------------------------- reading

    def read(self, key: str) -> Found | Missing:
        found = self._ask("read", check_key(key), lambda: self._objects.read(key))
        if isinstance(found, Found):
            self._process.confirmed[key] = self._scheduler.now_s
        return found

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        found = self._ask("read_range", check_key(key), lambda: self._objects.read(key))
        return found if isinstance(found, Missing) else found.body[start : start + length]

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(self._ask("list", prefix, lambda: self._objects.list(prefix)))

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        found = self._ask("get_file", check_key(key), lambda: self._objects.read(key))
        if isinstance(found, Missing):
            return False
        path.write_bytes(found.body)
        if progress:
            progress(len(found.body), len(found.body))
        return True

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return None

    # ---------------------------------------------------------------------------- writing

    def create(self, key: str, body: bytes) -> Outcome:
        check_key(key)
        return self._write(
            "create", key, body, lambda: self._objects.create(self._process, key, body)
        )

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        check_key(key)
        return self._write(
            "replace", key, body, lambda: self._objects.replace(self._process, key, body, etag)
        )

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        body = path.read_bytes()
        self._observer.calling(self._process, "put_file", check_key(key), body)
        now_s = self._scheduler.now_s

        def put() -> Outcome:
            return self._objects.put(self._process, key, body)

        fault, takes_s = "", 0.0
        if self._struck(self._weather.put):
            fault = self._weather.draw(PUT_FAULTS)
            self._process.harm(now_s)
        if fault == "slow_upload":
            takes_s = 2.0 + 40.0 * self._random()
        elif fault == "late_put":
            self._scheduler.at(now_s + self._late_s(), lambda: self._land(put))
        mute = {"lost_put": "lost_request", "late_put": "lost_request"}.get(fault, fault)
        if self._send("put_file", key, put, mute, takes_s) is None:
            raise StoreSilent(f"{key} was not answered")
        self._process.confirm(key, self._scheduler.now_s)
        if progress:
            progress(len(body), len(body))

    def delete(self, key: str) -> None:
        self._ask("delete", check_key(key), lambda: self._objects.delete(self._process, key))

    # ----------------------------------------------------------------------------- inside

    def _ask(self, call: str, key: str, apply: Callable[[], R]) -> R:
        self._observer.calling(self._process, call, key, b"")
        fault = ""
        if self._struck(self._weather.read):
            fault = "lost_request" if self._weather.draw(READ_FAULTS) else ""
            self._process.harm(self._scheduler.now_s)
        found = self._send(call, key, apply, fault)
        if found is None:
            raise StoreSilent(f"{key} was not answered")
        return found

    def _write(self, call: str, key: str, body: bytes, apply: Callable[[], Outcome]) -> Outcome:
        self._observer.calling(self._process, call, key, body)
        scheduler, now_s = self._scheduler, self._scheduler.now_s
        fault = ""
        if self._struck(self._weather.write):
            fault = self._weather.draw(self._weather.write_kinds)
            self._process.harm(now_s)
        send = apply
        if fault == "late_write":
            scheduler.at(now_s + self._late_s(), lambda: self._land(apply))
            fault = "lost_request"
        elif fault == "duplicate":
            scheduler.at(now_s + 0.1 + 30.0 * self._random(), lambda: self._land(apply))
        elif fault == "ghost_412":
            send = lambda: (apply(), apply())[1]  # noqa: E731
        elif fault == "conflict":
            send = Lost
        outcome = self._send(call, key, send, fault)
        if outcome is None:
            return Unknown("no answer")
        if isinstance(outcome, Written):
            self._process.confirm(key, scheduler.now_s)
        return outcome

    def _send(
        self, call: str, key: str, apply: Callable[[], R], fault: str, takes_s: float = 0.0
    ) -> R | None:
        """One request and its answer; ``None`` when no answer came."""
        scheduler, weather, process = self._scheduler, self._weather, self._process
        now_s = scheduler.now_s
        me = scheduler.running
        # a reset connection says so at once, a lost packet only at the deadline
        gives_up_s = now_s + takes_s + self.deadline_s * (0.1 if self._random() < 0.3 else 1.0)
        travel_s = 0.005 + 0.05 * self._random() + takes_s
        if weather.strikes(weather.delay, now_s):
            weather.counts["delay"] += 1
            travel_s += 0.9 * self.deadline_s * self._random()
            gives_up_s = max(gives_up_s, now_s + travel_s)
        back_s = 0.005 + 0.05 * self._random()
        answer: list[R] = []

        def arrive() -> None:
            cut = self._cut()
            if cut or fault == "lost_request":
                self._observer.trace(process.name, call, key, "cut" if cut else "lost")
                scheduler.wake(me, max(gives_up_s, scheduler.now_s))
                return
            got = apply()
            self._observer.trace(process.name, call, key, fault, type(got).__name__)
            if fault in ("lost_answer", "unconfirmed_put"):
                scheduler.wake(me, max(gives_up_s, scheduler.now_s))
                return
            answer.append(got)
            scheduler.wake(me, scheduler.now_s + back_s)

        scheduler.at(now_s + travel_s, arrive)
        scheduler.wait(None)
        if answer:
            process.answered(key, scheduler.now_s)
            return answer[0]
        process.unanswered(key, now_s, scheduler.now_s)
        return None

    def _cut(self) -> bool:
        now_s = self._scheduler.now_s
        if now_s < self._process.cut_until_s:
            self._process.harm(now_s)
            return True
        return now_s < self._weather.store_out_until_s

    def _struck(self, probability: float) -> bool:
        """Whether something goes wrong that an outage does not bring about anyway."""
        now_s = self._scheduler.now_s
        return now_s >= self._weather.store_out_until_s and self._weather.strikes(
            probability, now_s
        )

    def _late_s(self) -> float:
        """When a request lands that nobody waits for: soon after its sender gave up, or much later."""
        if self._random() < 0.5:
            return 0.1 + self._random()
        return self.deadline_s + _LATEST_S * self._random() ** 2

    def _land(self, apply: Callable[[], Outcome]) -> None:
        """A request that was under way, and whose sender no longer waits."""
        if self._scheduler.now_s < self._weather.store_out_until_s:
            return
        got = apply()
        self._observer.trace(self._process.name, "landed", type(got).__name__)


class DirectStore:
    """A path without faults or time, for what stands in the store before a history begins."""

    url = URL
    deadline_s = DEADLINE_S["memory"]

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def read(self, key: str) -> Found | Missing:
        return self._objects.read(key)

    def list(self, prefix: str) -> Iterator[Entry]:
        return iter(self._objects.list(prefix))

    def create(self, key: str, body: bytes) -> Outcome:
        return self._objects.create(None, key, body)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._objects.replace(None, key, body, etag)

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        self._objects.put(None, key, path.read_bytes())

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        found = self._objects.read(key)
        if isinstance(found, Missing):
            return False
        path.write_bytes(found.body)
        return True

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        found = self._objects.read(key)
        return found if isinstance(found, Missing) else found.body[start : start + length]

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return None

    def delete(self, key: str) -> None:
        self._objects.delete(None, key)
