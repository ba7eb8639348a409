"""Machines whose clocks are wrong: an hour apart on one S3 store, or jumping over a directory.

No machine's clock can be set in a test. On S3 what botocore takes for now is shifted, and on a
directory a file gets the time that a kernel with such a clock would have given it; the servers, the
stores and the seconds that pass are real.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tenure_protocol.clock import SYSTEM, SystemClock
from tenure_protocol.lease.client import (
    Applied,
    Confirmed,
    Deposed,
    Elsewhere,
    Lease,
    Silent,
    acquire,
    change,
    read_witness,
)
from tenure_protocol.lease.machine import Hold, Reserve
from tenure_protocol.store.api import (
    Found,
    Missing,
    Outcome,
    StoreSilent,
    StoreUnusable,
    Unknown,
    Written,
)
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.s3 import S3Store
from tests.seaweed import Seaweed
from tests.tenure_command import complaint
from tests.unit.test_dispatcher import Bench

if TYPE_CHECKING:
    from botocore.client import BaseClient

HOUR_S = 3600.0
LEASE_S = 1.5
KEY = "witness/e/j.json"


class WrongClock(SystemClock):
    """This machine's clock, set wrong by ``off_s`` seconds, which may change."""

    def __init__(self, off_s: float = 0.0) -> None:
        self.off_s = off_s

    def wall_s(self) -> float:
        return SYSTEM.wall_s() + self.off_s


class Renewing:
    """While the block lasts a holder's thread renews, as a training loop does."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.said: list[object] = []

    def __enter__(self) -> Renewing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.25):
            hold = Hold(self._lease.holder, self._lease.attempt, LEASE_S)
            self.said.append(self._lease.write(hold))


# ----------------------------------------------------------------------------------- an S3 store


class Signing(threading.local):
    """By how much the calls of this thread are signed with a wrong time."""

    off_s = 0.0


@pytest.fixture
def signing(monkeypatch: pytest.MonkeyPatch) -> Signing:
    """Shifts what botocore takes for now, in this thread and in those that take it over."""
    import botocore.auth

    shift, real = Signing(), botocore.auth.get_current_datetime

    def now(remove_tzinfo: bool = True) -> datetime.datetime:
        shifted: datetime.datetime = real(remove_tzinfo) + datetime.timedelta(seconds=shift.off_s)
        return shifted

    monkeypatch.setattr(botocore.auth, "get_current_datetime", now)
    return shift


class Machine(S3Store):
    """A client on a machine whose clock is off: it signs by it, and compares by it if it ever does."""

    def __init__(self, url: str, signing: Signing, clock: WrongClock, tolerated_s: float) -> None:
        self._signing = signing
        self._tolerated_s = tolerated_s
        super().__init__(url, clock)

    def _call(
        self, name: str, client: BaseClient | None = None, **parameters: object
    ) -> Mapping[str, object]:
        off_s = self._clock.off_s  # type: ignore[attr-defined]
        self._signing.off_s = max(-self._tolerated_s, min(off_s, self._tolerated_s))
        try:
            return super()._call(name, client, **parameters)
        finally:
            self._signing.off_s = 0.0


@pytest.mark.parametrize(("off_s", "words"), [(HOUR_S, "ahead of"), (-HOUR_S, "behind")])
def test_opening_a_store_with_a_wrong_clock_names_the_clock(
    off_s: float, words: str, seaweed: Callable[[], Seaweed], signing: Signing
) -> None:
    url = seaweed().url("clock-at-opening")
    with pytest.raises(StoreUnusable) as refused:
        Machine(url, signing, WrongClock(off_s), HOUR_S)
    assert f"this machine's clock is 60 minutes {words} the store's; set it" in str(refused.value)


def test_the_command_says_so_too(
    seaweed: Callable[[], Seaweed],
    signing: Signing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = seaweed().url("clock-at-opening")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_STORE", url)
    real_s = SYSTEM.wall_s
    monkeypatch.setattr(SystemClock, "wall_s", staticmethod(lambda: real_s() + HOUR_S))
    monkeypatch.setattr(Signing, "off_s", HOUR_S)  # in every thread of the command
    for ended in (complaint("store", "check", url), complaint("status")):
        assert ended.code == 2 and "this machine's clock is 60 minutes ahead" in ended.err


def test_a_clock_that_goes_wrong_in_mid_run_is_a_silent_store_that_says_why(
    seaweed: Callable[[], Seaweed], signing: Signing
) -> None:
    clock = WrongClock()
    store = Machine(seaweed().url(f"clock-{SYSTEM.nonce()}"), signing, clock, HOUR_S)
    reserve(store)
    lease = acquire(store, KEY, "j", 1, HOUR_S, 60.0, clock)
    assert isinstance(lease, Lease)
    clock.off_s = HOUR_S
    why = "RequestTimeTooSkewed: this machine's clock is 60 minutes ahead of the store's"
    for ask in (lambda: store.read(KEY), lambda: list(store.list("")), lambda: store.delete("x")):
        with pytest.raises(StoreSilent, match=why):
            ask()
    outcome = store.create("other", b"x")
    assert isinstance(outcome, Unknown) and why in outcome.reason
    said = lease.write(Hold(lease.holder, lease.attempt, 60.0))
    assert isinstance(said, Silent) and why in said.reason, "it stops nobody"
    clock.off_s = 0.0
    assert isinstance(lease.write(Hold(lease.holder, lease.attempt, 60.0)), Confirmed)
    assert isinstance(store.read("other"), Missing)


def reserve(store: S3Store) -> None:
    event = Reserve("here", 60.0, "d1", "failed")
    done = change(store, KEY, "j", read_witness(store, KEY), event, SYSTEM)
    assert isinstance(done, Applied)


#: SeaweedFS takes signatures that are up to 15 minutes off. The clocks are an hour apart all the same:
#: a server that does not mind is one that takes the signature.
TOLERATED_S = 600.0


@pytest.mark.parametrize("off_s", [0.0, HOUR_S, -HOUR_S])
def test_two_clocks_an_hour_apart_are_one_lease(
    off_s: float, seaweed: Callable[[], Seaweed], signing: Signing
) -> None:
    """The same with both right: ages come from the times that the server itself tells."""
    url = seaweed().url(f"clocks-{SYSTEM.nonce()}")
    right, wrong = WrongClock(), WrongClock(off_s)
    here = Machine(url, signing, right, TOLERATED_S)
    there = Machine(url, signing, wrong, TOLERATED_S)
    reserve(here)
    first = acquire(there, KEY, "j", 1, LEASE_S, 60.0, wrong)
    assert isinstance(first, Lease)
    for store in (here, there):
        found = store.read(KEY)
        (row,) = store.list(KEY)
        assert isinstance(found, Found) and max(found.age_s, row.age_s) < HOUR_S / 2
    assert isinstance(acquire(here, KEY, "j", 2, LEASE_S, 60.0, right), Elsewhere)
    with Renewing(first):
        alive = acquire(here, KEY, "j", 1, LEASE_S, 60.0, right)
        assert isinstance(alive, Elsewhere) and "alive" in alive.reason
    began_s = SYSTEM.monotonic_s()
    second = acquire(here, KEY, "j", 1, LEASE_S, 60.0, right)
    assert isinstance(second, Lease) and second.attempt == 2
    assert SYSTEM.monotonic_s() - began_s > LEASE_S, "it did not watch for a whole lease"
    assert isinstance(first.write(Hold(first.holder, 1, LEASE_S)), Deposed)
    assert isinstance(second.write(Hold(second.holder, 2, LEASE_S)), Confirmed)


# ------------------------------------------------------------------------------------ a directory


class Stamped(DirectoryStore):
    """A folder of a machine with the wrong clock: its kernel would stamp each file by it."""

    def _conditional(self, key: str, body: bytes, etag: str | None) -> Outcome:
        outcome = super()._conditional(key, body, etag)
        if isinstance(outcome, Written):
            now_s = self._clock.wall_s()
            os.utime(self._path(key), (now_s, now_s))
        return outcome


def ticks(bench: Bench, seconds: float) -> None:
    end_s = SYSTEM.monotonic_s() + seconds
    while SYSTEM.monotonic_s() < end_s:
        bench.dispatcher.tick()
        SYSTEM.sleep(0.05)


@pytest.fixture
def wrong_clock() -> Iterator[WrongClock]:
    yield WrongClock()


def held(bench: Bench, clock: WrongClock) -> Lease:
    """The dispatcher's first launch has claimed, with a short lease."""
    bench.dispatcher.tick()
    lease = bench.claim()
    assert isinstance(lease.write(Hold(lease.holder, 1, LEASE_S)), Confirmed)
    return lease


@pytest.mark.parametrize("stamps", [Stamped, DirectoryStore], ids=["own stamps", "another's"])
@pytest.mark.parametrize("first_s", [0.0, HOUR_S], ids=["forwards, back", "back, forwards"])
def test_a_clock_that_jumps_deposes_nobody_alive(
    first_s: float, stamps: type[DirectoryStore], tmp_path: Path, wrong_clock: WrongClock
) -> None:
    """Not even where another kernel stamps the files, as in a folder shared with a virtual machine:
    there each body looks an hour old as long as this clock is ahead."""
    wrong_clock.off_s = first_s
    bench = Bench(1, stamps(tmp_path, wrong_clock), wrong_clock)
    lease = held(bench, wrong_clock)
    with Renewing(lease) as holder:
        ticks(bench, LEASE_S)
        for off_s in (HOUR_S - first_s, first_s):
            wrong_clock.off_s = off_s
            ticks(bench, 2 * LEASE_S)
    assert holder.said and all(isinstance(said, Confirmed) for said in holder.said)
    assert [job.launch for job in bench.runner.launched] == [1]


@pytest.mark.parametrize(
    "jumps",
    [(0.0, HOUR_S), (0.0, HOUR_S, 0.0), (HOUR_S, 0.0)],
    ids=["forwards", "forwards, back", "back"],
)
def test_a_dead_holder_is_found_after_one_lease_of_watching(
    jumps: tuple[float, ...], tmp_path: Path, wrong_clock: WrongClock
) -> None:
    wrong_clock.off_s, *later = jumps
    bench = Bench(1, Stamped(tmp_path, wrong_clock), wrong_clock)
    lease = held(bench, wrong_clock)
    ticks(bench, 0.6 * LEASE_S)
    for off_s in later:
        wrong_clock.off_s = off_s
        jumped_s = SYSTEM.monotonic_s()
        ticks(bench, 0.6 * LEASE_S)
        assert len(bench.runner.launched) == 1, "the watch began anew with the jump"
    while len(bench.runner.launched) == 1:
        assert SYSTEM.monotonic_s() - jumped_s < 240.0, "it is never found"
        ticks(bench, 0.05)
    assert SYSTEM.monotonic_s() - jumped_s >= LEASE_S, "it was not watched for a whole lease"
    assert [job.launch for job in bench.runner.launched] == [1, 2]
    assert bench.claim(launch=2).attempt == 2
    assert isinstance(lease.write(Hold(lease.holder, 1, LEASE_S)), Deposed)
