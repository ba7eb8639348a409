"""Verified files of models on this machine's disk.

A model's folder is named by the digest of its files' names and digests. It appears whole, by a rename,
and is read again, byte for byte, whenever it is given out. The folder of the cache belongs to this user
alone: who else could write there could change a file after it was verified.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tenure_live.refusal import Refused, WrongCall
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, canonical, parse, sha256_hex
from tenure_protocol.fingerprint.packages import changed_s
from tenure_protocol.snapshots import FileEntry
from tenure_protocol.store.api import Store

_LOG = logging.getLogger("tenure_live")
_TEMP = ".new-"
_STALE_S = 86_400.0
_TRIES = 3
_BUILDS = "builds.json"
_MOST_BUILDS = 5000
_SETTLED_S = 2.0  # the coarsest clock of a file system in use: FAT's


def default_folder() -> Path:
    """``$XDG_CACHE_HOME/tenure-live``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tenure-live"


def fetched(
    store: Store, prefix: str, files: Mapping[str, FileEntry], cache: Path, clock: Clock
) -> Path:
    """The folder with exactly ``files``, verified just now; those that are not here are fetched.

    Raises Refused for bytes that are not those of their digest, StoreSilent, and WrongCall for a cache
    that cannot be used.
    """
    digests = {name: entry.sha256 for name, entry in files.items()}
    target = cache / sha256_hex(canonical(digests))
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _demand_own(cache)
        for _ in range(_TRIES):
            if os.path.lexists(target):
                wrong = _wrong(target, files)
                if wrong is None:
                    return target
                _LOG.warning("%s in the cache %s; it is fetched again", wrong, target)
                _remove(target, cache, clock)
            if _fetch(store, prefix, files, target, clock):
                return target
    except OSError as error:
        raise WrongCall(
            f"the cache {cache} cannot be used ({error.strerror}); name another folder"
        ) from error
    raise Refused(f"the cache {cache} changes while it is read; find out who else writes there")


def known_builds(cache: Path) -> dict[str, str]:
    """Builds of packages that were digested before on this machine; none where nothing is kept."""
    try:
        _demand_own(cache)
        found = parse((cache / _BUILDS).read_bytes())
    except (OSError, Corrupt, WrongCall):
        return {}
    return {mark: build for mark, build in found.items() if isinstance(build, str)}


def keep_builds(cache: Path, known: Mapping[str, str], read_s: float, clock: Clock) -> None:
    """Keep the newest of them; a cache that cannot be written only costs time.

    A RECORD that was changed just before ``read_s``, when reading began, may change once more within
    the same tick of its file system's clock, and nothing would tell: its build is digested again.
    """
    settled = {
        mark: build for mark, build in known.items() if changed_s(mark) < read_s - _SETTLED_S
    }
    temp = cache / f"{_TEMP}{clock.nonce()}"
    try:
        temp.write_bytes(canonical(dict(list(settled.items())[-_MOST_BUILDS:])))
        temp.replace(cache / _BUILDS)
    except OSError:
        temp.unlink(missing_ok=True)


def _demand_own(cache: Path) -> None:
    found = cache.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise WrongCall(
            f"the cache {cache} is not a folder that this user alone can write, so its files could be "
            f"changed after they were verified; run: chmod 700 {cache}, or name another folder"
        )


def _wrong(folder: Path, files: Mapping[str, FileEntry]) -> str | None:
    """What is wrong with a folder that was fetched before; ``None`` when it holds ``files`` alone."""
    if folder.is_symlink() or not folder.is_dir():
        return "something else is in the place of the model"
    found = set(_names(folder))
    if found != set(files):
        return f"{sorted(found ^ set(files))[0]!r} is too much or missing"
    for name, entry in files.items():
        if _digest(folder / name, entry.size) != entry.sha256:
            return f"the bytes of {name!r} are not those of the warrant"
    return None


def _names(folder: Path) -> Iterator[str]:
    """Everything below a folder that is no folder, links too."""
    for base, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        for name in (*names, *links):
            yield (Path(base) / name).relative_to(folder).as_posix()


def _digest(path: Path, size: int) -> str | None:
    """SHA-256 of a plain file of that size; ``None`` for anything else, a link too."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return None
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(
    store: Store, prefix: str, files: Mapping[str, FileEntry], target: Path, clock: Clock
) -> bool:
    """Fetch into a folder of its own, verify, and rename; false when another process was faster."""
    _sweep(target.parent, clock)
    temp = target.with_name(f"{_TEMP}{clock.nonce()}")
    try:
        for name, entry in files.items():
            path = temp / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not store.get_file(prefix + name, path):
                raise Refused(f"the model's file {prefix}{name} is not in the store")
            if _digest(path, entry.size) != entry.sha256:
                raise Refused(
                    f"the bytes of {prefix}{name} are not those of the warrant; the file was changed in "
                    "the store after it was signed for, so deploy a model whose files are whole"
                )
            path.chmod(0o400)
        try:
            temp.rename(target)
            return True
        except OSError:
            if os.path.lexists(target):
                return False
            raise
    finally:
        shutil.rmtree(temp, ignore_errors=True)


def _remove(target: Path, cache: Path, clock: Clock) -> None:
    """Take what is wrong out of the way in one step, then off the disk."""
    aside = cache / f"{_TEMP}{clock.nonce()}"
    target.rename(aside)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()


def _sweep(cache: Path, clock: Clock) -> None:
    """Remove what a killed process left a day ago."""
    for path in cache.glob(f"{_TEMP}*"):
        try:
            if clock.wall_s() - path.lstat().st_mtime > _STALE_S:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # gone already
