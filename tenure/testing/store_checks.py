"""What a Store must do. ``make()`` gives a fresh, empty store; a check raises AssertionError.

A backend that differs declares which check it cannot pass and why, and its test asserts that the
check really fails there.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tenure_protocol.clock import SYSTEM
from tenure_protocol.store.api import (
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Store,
    Unknown,
    Written,
)

Make = Callable[[], Store]
Check = Callable[[Make], None]

_RACERS = 16
#: Front ends of one store may differ by 2 s, and ages are whole seconds on S3.
_AGE_SLACK_S = 3.0
_LARGE_BYTES = 9 << 20  # above the size from which S3 clients upload in parts
ODD_KEYS = (
    "", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", ".hidden", "a/.b", "-a", "a b",
    "a\\b", "a\nb", "a?b", "a%2fb", "ä", "a\x00b", "a*", "~a", "x" * 901, "y/" + "x" * 256,
)  # fmt: skip


# ------------------------------------------------------------------------------ conditions


def check_create_twice(make: Make) -> None:
    """The second create of a key is Lost and changes nothing."""
    store = make()
    first = _written(store.create("a/key", b"one"))
    assert isinstance(store.create("a/key", b"two"), Lost), "a second create won"
    found = _found(store, "a/key")
    assert found.body == b"one" and found.etag == first, "a refused create changed the object"


def check_create_equal_body_is_lost(make: Make) -> None:
    """A second create is Lost even with the very same bytes."""
    store = make()
    _written(store.create("k", b"same"))
    assert isinstance(store.create("k", b"same"), Lost), "a create of equal bytes won twice"


def check_replace_fresh_wins(make: Make) -> None:
    """A replace on the current ETag is Written, and its ETag is the next condition."""
    store = make()
    etag = _written(store.create("k", b"0"))
    for n in range(1, 4):
        etag = _written(store.replace("k", b"%d" % n, etag))
        found = _found(store, "k")
        assert (found.body, found.etag) == (b"%d" % n, etag), "the stored ETag is not the returned"


def check_replace_stale_loses(make: Make) -> None:
    """A replace on an older ETag is Lost and changes nothing."""
    store = make()
    old = _written(store.create("k", b"old"))
    _written(store.replace("k", b"new", old))
    assert isinstance(store.replace("k", b"late", old), Lost), "a stale ETag was accepted"
    assert _found(store, "k").body == b"new", "a refused replace changed the object"


def check_replace_missing_loses(make: Make) -> None:
    """A replace of a key that does not exist is Lost and creates nothing."""
    store = make()
    etag = _written(store.create("other", b"x"))
    assert isinstance(store.replace("k", b"y", etag), Lost), "a missing key was replaced"
    assert isinstance(store.read("k"), Missing), "a refused replace created the key"


def check_replace_other_keys_etag_loses(make: Make) -> None:
    """The ETag of other content is no condition."""
    store = make()
    _written(store.create("a", b"a"))
    other = _written(store.create("b", b"b"))
    assert isinstance(store.replace("a", b"c", other), Lost), "another object's ETag was accepted"


def check_replace_with_equal_body(make: Make) -> None:
    """Replacing with equal bytes is Written; the returned ETag holds for the next replace."""
    store = make()
    etag = _written(store.create("k", b"same"))
    etag = _written(store.replace("k", b"same", etag))
    assert _found(store, "k").etag == etag, "the stored ETag is not the returned one"
    _written(store.replace("k", b"next", etag))


def check_etag_of_list_and_read_agree(make: Make) -> None:
    """A listing shows the ETag that a read shows and a replace takes."""
    store = make()
    _written(store.create("w/1", b"one"))
    (row,) = _rows(store, "w/")
    assert row.etag == _found(store, "w/1").etag, "LIST and read disagree about the ETag"
    _written(store.replace("w/1", b"two", row.etag))


def check_race_of_creates(make: Make) -> None:
    """Sixteen simultaneous creates of one key: one winner, and its bytes are stored."""
    store = make()
    for n in range(5):
        key = f"race/{n}"
        outcomes = _race(partial(store.create, key))
        _one_winner(store, key, outcomes)


def check_race_of_replaces(make: Make) -> None:
    """Sixteen simultaneous replaces on one ETag: one winner, and its bytes are stored."""
    store = make()
    etag = _written(store.create("race", b"start"))
    for _ in range(5):
        outcomes = _race(partial(_replace_race, store, etag))
        etag = _one_winner(store, "race", outcomes)


def check_counter_loses_no_update(make: Make) -> None:
    """Eight threads adding one, each by read and replace, lose no update."""
    store = make()
    _written(store.create("counter", b"0"))

    def add(_: int) -> None:
        done = 0
        while done < 5:
            found = _found(store, "counter")
            body = b"%d" % (int(found.body) + 1)
            done += isinstance(store.replace("counter", body, found.etag), Written)

    _threads(8, add)
    assert _found(store, "counter").body == b"40", "an update was lost"


# --------------------------------------------------------------------------------- reading


def check_read_missing(make: Make) -> None:
    """A key that was never written is Missing, and so is a prefix of one."""
    store = make()
    _written(store.create("a/b/c", b"x"))
    for key in ("nothing", "a/b", "a/b/c/d", "a/b/cc"):
        assert isinstance(store.read(key), Missing), f"{key} was found"
        assert isinstance(store.read_range(key, 0, 1), Missing), f"a range of {key} was found"


def check_bodies_are_bytes(make: Make) -> None:
    """Every byte comes back: empty, binary, trailing spaces."""
    store = make()
    for n, body in enumerate((b"", bytes(range(256)), b"{}   ", b"\r\n\n", b"\xff\xfe")):
        _written(store.create(f"k{n}", body))
        assert _found(store, f"k{n}").body == body, f"the body {body!r} came back changed"


def check_age(make: Make) -> None:
    """An age is never negative, counts from the last write, and is the same in a listing."""
    store = make()
    began_s = SYSTEM.monotonic_s()
    etag = _written(store.create("k", b"one"))
    _written(store.replace("k", b"two", etag))
    ages_s = (_found(store, "k").age_s, _rows(store, "k")[0].age_s)
    passed_s = SYSTEM.monotonic_s() - began_s
    for age_s in ages_s:
        assert 0 <= age_s <= passed_s + _AGE_SLACK_S, f"an age of {age_s} s after {passed_s} s"


def check_read_range(make: Make) -> None:
    """Ranges inside, across and beyond the end."""
    store = make()
    _written(store.create("k", b"0123456789"))
    for start, length, want in ((0, 4, b"0123"), (8, 10, b"89"), (10, 5, b""), (50, 5, b"")):
        got = store.read_range("k", start, length)
        assert got == want, f"bytes {start}+{length} are {got!r}"


# --------------------------------------------------------------------------------- listing


def check_list_order(make: Make) -> None:
    """Keys come in the order of their characters, whatever folders they might seem to lie in."""
    store = make()
    keys = ["w/e/1", "w/e-2/1", "w/e.3/1", "w/e0/1", "w/e/0", "w/E/1", "w/e=/1", "w/e_/1", "w/e.j"]
    for key in keys:
        _written(store.create(key, b"x"))
    assert [row.key for row in store.list("w/")] == sorted(keys)


def check_list_prefix(make: Make) -> None:
    """A prefix is characters, not a folder: 'a/b' lists 'a/bc' and 'a/b/c' too."""
    store = make()
    keys = ("a/b/c", "a/bc", "a/bd/e", "a/c", "ab", "b")
    for key in keys:
        _written(store.create(key, b"x"))
    for prefix in ("", "a", "a/", "a/b", "a/b/", "a/bc", "a/b/c", "a/b/cc", "b/", "c", "a/bd/e"):
        want = sorted(key for key in keys if key.startswith(prefix))
        got = [row.key for row in store.list(prefix)]
        assert got == want, f"the prefix {prefix!r} listed {got}, not {want}"


def check_list_odd_prefix(make: Make) -> None:
    """A prefix that no key can have lists nothing, least of all what lies outside the store."""
    store = make()
    _written(store.create("a/b", b"x"))
    for prefix in ("../", "/", "/etc/", "a/../", "./", ".", "//", "a/.", "a b/"):
        assert not _rows(store, prefix), f"the prefix {prefix!r} listed something"


def check_list_sizes(make: Make) -> None:
    """Sizes are exact bytes, since the length of a witness speaks."""
    store = make()
    for size in (0, 1, 7, 8, 1000):
        _written(store.create(f"k/{size}", b"x" * size))
    for row in store.list("k/"):
        assert row.size == int(row.key[2:]), f"{row.key} is listed with {row.size} bytes"


def check_list_many(make: Make) -> None:
    """More rows than one page of S3 holds, each once."""
    store = make()
    keys = [f"many/{n:04d}" for n in range(1003)]

    def fill(number: int) -> None:
        for key in keys[number::_RACERS]:
            _written(store.create(key, b"x"))

    _threads(_RACERS, fill)
    assert [row.key for row in store.list("many/")] == keys


# ----------------------------------------------------------------------------------- files


def check_files(make: Make) -> None:
    """A file comes back as it went, appears whole, and replaces what was there."""
    store = make()
    with _folder() as folder:
        source, target = folder / "source", folder / "target"
        for content in (b"", b"first", bytes(range(256)) * 50):
            source.write_bytes(content)
            store.put_file("files/f", source)
            assert _found(store, "files/f").body == content
            assert store.get_file("files/f", target) is True
            assert target.read_bytes() == content
        assert source.exists(), "put_file took the file away"


def check_get_missing_file(make: Make) -> None:
    """A key that does not exist is told by False."""
    with _folder() as folder:
        assert make().get_file("nothing/here", folder / "target") is False


def check_large_file(make: Make) -> None:
    """Nine megabytes, with a progress that grows and ends at the size."""
    store = make()
    content = b"".join(n.to_bytes(4, "big") for n in range(_LARGE_BYTES // 4))
    with _folder() as folder:
        source, target = folder / "source", folder / "target"
        source.write_bytes(content)
        sent: list[tuple[int, int]] = []
        got: list[tuple[int, int]] = []
        store.put_file("large/f", source, lambda done, total: sent.append((done, total)))
        assert store.get_file("large/f", target, lambda done, total: got.append((done, total)))
        for seen in (sent, got):
            assert seen and seen[-1] == (len(content), len(content)), (
                f"progress ended at {seen[-1:]}"
            )
            assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        assert target.read_bytes() == content, "a large file came back changed"
    assert store.read_range("large/f", len(content) - 4, 100) == content[-4:]
    (row,) = _rows(store, "large/")
    assert row.size == len(content)


def check_file_and_conditions(make: Make) -> None:
    """An uploaded file counts as existing for a create, and its ETag is a condition."""
    store = make()
    with _folder() as folder:
        (folder / "f").write_bytes(b"file")
        store.put_file("k", folder / "f")
    assert isinstance(store.create("k", b"x"), Lost)
    _written(store.replace("k", b"y", _found(store, "k").etag))


# ------------------------------------------------------------------------- keys, the rest


def check_odd_keys_refused(make: Make) -> None:
    """A key that some backend could not hold is a ValueError everywhere."""
    store = make()
    with _folder() as folder:
        (folder / "f").write_bytes(b"x")
        for key in ODD_KEYS:
            calls: tuple[Callable[[str], object], ...] = (
                store.read,
                lambda k: store.create(k, b"x"),
                lambda k: store.replace(k, b"x", "etag"),
                lambda k: store.put_file(k, folder / "f"),
                lambda k: store.get_file(k, folder / "g"),
                lambda k: store.read_range(k, 0, 1),
                store.delete,
            )
            for call in calls:
                try:
                    call(key)
                except ValueError:
                    continue
                raise AssertionError(f"the key {key!r} was taken")
    assert not _rows(store, ""), "an odd key was written"


def check_good_keys(make: Make) -> None:
    """Everything Tenure names: digits, dots, equals signs, capitals, long keys."""
    store = make()
    for key in ("0", "a.b.c", "A/b=c_d-e.f", "jobs/x/attempts/00001/milestones/10-1/m.json"):
        _written(store.create(key, b"x"))
        assert _found(store, key).body == b"x"
    long = "/".join(["x" * 100] * 8)
    _written(store.create(long, b"x"))
    assert [row.key for row in store.list("x")] == [long]


def check_delete(make: Make) -> None:
    """A deleted key is Missing and can be created again; deleting nothing is fine."""
    store = make()
    _written(store.create("temp/a", b"x"))
    _written(store.create("temp/ab", b"y"))
    store.delete("temp/a")
    store.delete("temp/a")
    assert isinstance(store.read("temp/a"), Missing)
    assert [row.key for row in store.list("temp/")] == ["temp/ab"]
    _written(store.create("temp/a", b"again"))


def check_describes_itself(make: Make) -> None:
    """A URL that names a scheme, a deadline above zero, a link or none."""
    store = make()
    assert ":" in store.url and store.deadline_s > 0
    link = store.presign("k", "GET", 60)
    assert link is None or link.startswith("http")


def all_checks() -> dict[str, Check]:
    """Every check of this module, by name."""
    return {name: found for name, found in globals().items() if name.startswith("check_")}


# ---------------------------------------------------------------------------------- inside


def _written(outcome: Outcome) -> str:
    assert isinstance(outcome, Written), f"{outcome} where Written belongs"
    return outcome.etag


def _found(store: Store, key: str) -> Found:
    found = store.read(key)
    assert isinstance(found, Found), f"{key} is missing"
    return found


def _rows(store: Store, prefix: str) -> list[Entry]:
    return list(store.list(prefix))


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tenure-check-") as folder:
        yield Path(folder)


def _threads(count: int, work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            start.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _replace_race(store: Store, etag: str, body: bytes) -> Outcome:
    return store.replace("race", body + etag.encode(), etag)


def _race(write: Callable[[bytes], Outcome]) -> dict[int, Outcome]:
    outcomes: dict[int, Outcome] = {}

    def once(racer: int) -> None:
        outcomes[racer] = write(b"%d " % racer)

    _threads(_RACERS, once)
    return outcomes


def _one_winner(store: Store, key: str, outcomes: dict[int, Outcome]) -> str:
    winners = [racer for racer, outcome in outcomes.items() if isinstance(outcome, Written)]
    unknown = [racer for racer, outcome in outcomes.items() if isinstance(outcome, Unknown)]
    found = _found(store, key)
    by = int(found.body.split(b" ")[0])
    assert winners == [by] or (not winners and by in unknown), f"{winners} won, {by} is stored"
    return found.etag
