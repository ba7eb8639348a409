"""What a rented machine fetches: the user's code before the claim, the data of the job after it.

Both are named by content in the job's spec, so whoever wrote them to the store is not trusted: code is
run only if its digest is the spec's, data is used only if each file's is its index's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from tenure_protocol.clock import Clock, beside
from tenure_protocol.codec import Corrupt, NeverWritten, encode, short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import PROTOCOL_VERSION, load
from tenure_protocol.store.api import Missing, Progress, Store
from tenure_worker.code import MAIN

T = TypeVar("T")

PATHS = "paths"  # a bundle's list of the folders that imports are searched in
INSTALLED = "installed"  # the place of a file that the environment brings
NO_DATA = short_id(b"")  # the digest of an experiment without data files

_MOST_CODE_BYTES = 1 << 30
_BLOCK_BYTES = 1 << 23
_FIRST_PART_BYTES, _SMALLEST_PART_BYTES, _LARGEST_PART_BYTES = 1 << 20, 1 << 16, 1 << 25
_QUICK_S, _SLOW_S = 1.0, 4.0
_TELL_EVERY_S = 0.25
_LOCKED_EVERY_S = 0.2
_CACHED_MODE, _USUAL_MODE = 0o400, 0o644
_SHA256 = re.compile(r"[0-9a-f]{64}")


class BadBundle(Exception):
    """A bundle of code that cannot be unpacked; says what is wrong with it."""


# ------------------------------------------------------------------------------------ records


@dataclass(frozen=True)
class DataFile:
    """One file that an experiment reads, and where it goes: a path below the working directory.

    The digest of an index does not cover places, so none may give a file another name: what was published
    as data would be a module then.
    """

    sha256: str
    name: str
    size: int  # bytes
    place: str  # or INSTALLED

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise ValueError(f"{self.sha256!r} is no SHA-256")
        if self.size < 0:
            raise ValueError("a size is not negative")
        if self.place != INSTALLED and not safe(self.place):
            raise ValueError(f"the place {self.place!r} does not lie below the working directory")
        if self.place not in (INSTALLED, self.name) and not self.place.endswith(f"/{self.name}"):
            raise ValueError(f"the place {self.place!r} is none of a file named {self.name!r}")


@dataclass(frozen=True)
class DataIndex:
    """The files behind ``spec.data``, in the order of ``data_files()``."""

    files: tuple[DataFile, ...]
    protocol: int = PROTOCOL_VERSION

    @property
    def digest(self) -> str:
        """What :func:`tenure_worker.code.data_digest` says of these files."""
        return short_id("".join(f"{row.sha256}  {row.name}\n" for row in self.files).encode())

    @property
    def contents(self) -> dict[str, int]:
        """Size by SHA-256 of every content that travels."""
        return {row.sha256: row.size for row in self.files if row.place != INSTALLED}


def safe(place: str) -> bool:
    """Whether a path stays below the folder it is joined to.

    >>> safe("a/b.csv"), safe("../b"), safe("/etc/passwd"), safe("a/../../b"), safe("")
    (True, False, False, False, False)
    """
    parts = place.split("/")
    return not {"", ".", ".."}.intersection(parts) and "\0" not in place and "\\" not in place


def read_index(store: Store, digest: str) -> DataIndex:
    """The index of a data digest. Raises Corrupt or NeverWritten (with the key), or StoreSilent."""
    key = keys.data_index(digest)
    if digest == NO_DATA:
        return DataIndex(())
    found = store.read(key)
    if isinstance(found, Missing):
        raise NeverWritten("the data of the job has not been published", key)
    index = load(DataIndex, found.body, key)
    if index.digest != digest:
        raise Corrupt(f"its rows have the digest {index.digest}", key)
    return index


def encode_index(index: DataIndex) -> bytes:
    """The body of an index."""
    return encode(index)


# --------------------------------------------------------------------------------------- code


def fetch_code(store: Store, digest: str, folder: Path) -> list[str]:
    """Fetch a bundle of code and unpack it below ``folder``, which is made anew.

    Returns the folders that imports are searched in, the working directory first. That the code is
    what its digest says is for the caller to check, and that ``folder`` holds nothing else.
    Raises :class:`BadBundle`, ``OSError`` or StoreSilent.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bundle = folder / "bundle.tar"
    if not store.get_file(keys.code(digest), bundle):
        raise BadBundle(f"the store has no {keys.code(digest)}, the code it was enlisted with")
    try:
        with tarfile.open(bundle, "r:") as tar:
            _unpack(tar, folder)
        listed = (folder / PATHS).read_text(encoding="utf-8").splitlines()
    except (tarfile.TarError, EOFError, FileNotFoundError, UnicodeDecodeError) as error:
        words = f"{keys.code(digest)} is no bundle of code ({type(error).__name__}: {error})"
        raise BadBundle(words) from error
    finally:
        bundle.unlink()
    if MAIN not in listed or not all(map(safe, listed)):
        raise BadBundle(f"{keys.code(digest)} names folders that are not its own")
    (folder / MAIN).mkdir(exist_ok=True)
    return [str(folder / path) for path in sorted(listed, key=lambda path: path != MAIN)]


def _unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Write the files of a bundle: regular ones below ``folder``, and nothing else of a tar."""
    total = 0
    for member in tar:
        if not member.isreg() or not safe(member.name):
            raise BadBundle(
                f"the bundle of code holds {member.name!r}, which is no file of its own"
            )
        total += member.size
        if total > _MOST_CODE_BYTES:
            raise BadBundle(f"the bundle of code unpacks to more than {_MOST_CODE_BYTES} bytes")
        source = tar.extractfile(member)
        target = folder / member.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source is None:
            raise BadBundle(f"the bundle of code holds {member.name!r}, which cannot be read")
        with source, target.open("xb") as file:
            shutil.copyfileobj(source, file)


def strangers(folder: Path, known: Sequence[Path]) -> list[str]:
    """Files below an unpacked bundle that are not the code the digest covers, nor the list of paths."""
    mine = {*known, folder / PATHS}
    every = (path for path in folder.rglob("*") if path.is_file() and path not in mine)
    return sorted(path.relative_to(folder).as_posix() for path in every)


# --------------------------------------------------------------------------------------- data


class Fetcher:
    """Fetches contents into a cache on this machine, and puts them in their places."""

    def __init__(self, store: Store, cache: Path, clock: Clock, breathe: Progress) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock
        self._breathe = breathe  # called in the caller's thread, several times a second

    def put(self, sha256: str, size: int, target: Path) -> None:
        """Make ``target`` the content ``sha256``: a copy of its own, which its job may write to.

        A download that was cut goes on where it stopped, in a later attempt too. Raises Corrupt
        (with the key), ``OSError`` or StoreSilent.
        """
        self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = self._cache / sha256
        target.parent.mkdir(parents=True, exist_ok=True)
        with (self._cache / f"{sha256}.lock").open("ab") as lock:
            self._take(lock, size)  # the jobs of one machine may need the same file
            if not (held.is_file() and self._copied(held, sha256, size, target)):
                self._download(sha256, size, held)
                if not self._copied(held, sha256, size, target):
                    raise Corrupt("its copy on this disk changes by itself", keys.data(sha256))

    def has_put(self, sha256: str, size: int, target: Path) -> bool:
        """Whether ``target`` is a file of that content."""
        return target.is_file() and self._sha256(target, size) == sha256

    def _copied(self, held: Path, sha256: str, size: int, target: Path) -> bool:
        """Copy a file of the cache, unless what was read of it has another digest than its name."""
        digest, (number, name) = hashlib.sha256(), tempfile.mkstemp(dir=target.parent)
        draft = Path(name)
        try:
            with os.fdopen(number, "wb") as file, held.open("rb") as source:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    file.write(block)
                    self._breathe(file.tell(), size)
            if digest.hexdigest() != sha256:
                return False
            draft.chmod(_USUAL_MODE)
            draft.replace(target)
            return True
        finally:
            draft.unlink(missing_ok=True)

    def _take(self, lock: BinaryIO, size: int) -> None:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._breathe(0, size)
            self._clock.sleep(_LOCKED_EVERY_S)

    def _download(self, sha256: str, size: int, held: Path) -> None:
        part = held.with_name(f"{sha256}.part")
        for fresh in (False, True):
            if fresh or (part.is_file() and part.stat().st_size > size):
                part.unlink(missing_ok=True)
            resumed = part.is_file()
            self._append(keys.data(sha256), size, part)
            if self._sha256(part, size) == sha256:
                part.chmod(_CACHED_MODE)
                os.replace(part, held)
                return
            if not resumed:
                break  # what was on this disk before is not to blame
        part.unlink(missing_ok=True)
        raise Corrupt("its bytes have another digest than its name", keys.data(sha256))

    def _append(self, key: str, size: int, part: Path) -> None:
        """Fetch what is still missing, in parts that take a second or so each."""
        length = _FIRST_PART_BYTES
        with part.open("ab") as file:
            while (done := file.tell()) < size:
                self._breathe(done, size)
                wanted, sent_s = min(length, size - done), self._clock.monotonic_s()
                body = self._beside(self._reader(key, done, wanted), done, size)
                if isinstance(body, Missing):
                    raise Corrupt("the index of the data names it and it does not exist", key)
                if not body or len(body) > wanted:
                    raise Corrupt(f"it does not have the {size} bytes that its index says", key)
                file.write(body)
                file.flush()
                took_s = self._clock.monotonic_s() - sent_s
                if took_s < _QUICK_S:
                    length = min(2 * length, _LARGEST_PART_BYTES)
                elif took_s > _SLOW_S:
                    length = max(length // 2, _SMALLEST_PART_BYTES)
        self._breathe(size, size)

    def _reader(self, key: str, start: int, length: int) -> Callable[[], bytes | Missing]:
        return lambda: self._store.read_range(key, start, length)

    def _beside(self, ask: Callable[[], T], done: int, size: int) -> T:
        """An answer, asked for in another thread: a server that hangs must not keep us from renewing."""
        box = beside(self._clock, ask, "tenure-cargo")
        while (ended := box.get(_TELL_EVERY_S)) is None:
            self._breathe(done, size)
        return ended.result()

    def _sha256(self, path: Path, size: int) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
                self._breathe(file.tell(), size)
        return digest.hexdigest()


def place_data(index: DataIndex, work: Path, fetcher: Fetcher) -> None:
    """Put every file of an index in its place below ``work``, which holds the job's code and nothing else.

    Raises as :meth:`Fetcher.put`, and Corrupt for a place that the code has, or another file of the index:
    the code was verified, and no digest covers the places.
    """
    for row in index.files:
        if row.place == INSTALLED:
            continue
        target, taken = work / row.place, f"{row.place}, which is there already with other content"
        if os.path.lexists(target):
            if fetcher.has_put(row.sha256, row.size, target):  # before the store fell silent, say
                continue
        else:
            try:
                fetcher.put(row.sha256, row.size, target)
                continue
            except (FileExistsError, NotADirectoryError):
                taken = f"{row.place}, as if a file of the code were a folder"
        raise Corrupt(f"it puts the data file {row.name} at {taken}", keys.data_index(index.digest))


def place_named(index: DataIndex, work: Path, named: Sequence[Path], fetcher: Fetcher) -> None:
    """Put files also where the experiment itself looks for them.

    The same data may have been published from another layout, and a module that is imported from a
    folder such as ``src`` finds what lies beside it in another place here. Only what is missing is
    put, and only below ``work``. Raises as :meth:`Fetcher.put`.
    """
    if len(named) != len(index.files):
        return  # the digest of the data will tell
    root = Path(os.path.abspath(work))
    for row, path in zip(index.files, named, strict=True):
        target = Path(os.path.abspath(root / path))
        wanted = row.place != INSTALLED and row.name == target.name
        if wanted and target.is_relative_to(root) and not target.exists():
            fetcher.put(row.sha256, row.size, target)


# --------------------------------------------------------------------------------------- card


def same_card(promised: str, measured: str) -> bool:
    """Whether two names are one card's: the maker's words and the case do not count.

    >>> same_card("NVIDIA T4", "Tesla T4"), same_card("NVIDIA L4", "NVIDIA L40S")
    (True, False)
    """
    return _bare(promised) == _bare(measured)


def _bare(name: str) -> list[str]:
    return [word for word in name.casefold().split() if word not in ("nvidia", "tesla")]


def wrong_card(promised: str, cards: int, measured: Mapping[str, object]) -> str | None:
    """What is wrong with the cards of this machine, in words; ``None`` when it keeps the promise.

    >>> wrong_card("NVIDIA T4", 1, {"card": "NVIDIA L4", "cards": 1})
    'this machine has NVIDIA L4, NVIDIA T4 was promised'
    """
    found, count = str(measured.get("card")), measured.get("cards")
    if promised in ("", "cpu"):
        return None
    if found == "cpu":
        return f"this machine shows no card ({measured.get('gpu')}), {promised} was promised"
    if not same_card(promised, found):
        return f"this machine has {found}, {promised} was promised"
    if isinstance(count, int) and count < cards:
        return f"this machine shows {count} of {promised} to the job, which needs {cards}"
    return None


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where contents stay between the attempts on one machine."""
    home = environ.get("TENURE_HOME")
    if not home:
        with suppress(RuntimeError):
            home = str(Path.home() / ".tenure")
    return Path(home or ".tenure") / "data"
