"""A store in a local directory: the embedded default.

A conditional write prepares its bytes in a temp file first and holds the key's lock only for
"compare, rename", so that a process frozen by SIGSTOP almost never freezes it inside. The answer
comes after the directory itself is on disk. Lock files are never unlinked: two processes would
then lock two different files under one name.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.store.api import (
    DEADLINE_S,
    Entry,
    Found,
    Lost,
    Missing,
    Outcome,
    Progress,
    StoreSilent,
    StoreUnusable,
    Unknown,
    Written,
    check_key,
    is_key,
)

#: File systems on which flock or rename of two machines may not exclude each other.
NETWORK_FILE_SYSTEMS = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs afs ncpfs 9p fuse.sshfs fuse.s3fs fuse.rclone "
    "fuse.gcsfuse fuse.goofys fuse.glusterfs glusterfs ceph lustre gpfs beegfs".split()
)
_MOUNTS = Path("/proc/self/mounts")
_LOCK_POLL_S = 0.002
_HASHED_UP_TO = 1 << 20  # larger objects are never conditional; their ETag is size and time
_TEMP = ".temp"
_LOCKS = ".locks"
_STALE_TEMP_S = 86_400.0
_FUTURE_S = 2.0


class DirectoryStore:
    """Objects as files under ``root``.

    With ``read_only`` nothing under ``root`` is created or touched, so that a folder which this user
    can only read suffices and a mistyped one is not made; writing then raises StoreUnusable.
    """

    deadline_s = DEADLINE_S["file"]

    def __init__(self, root: Path, clock: Clock = SYSTEM, *, read_only: bool = False) -> None:
        self._root = root.absolute()
        self._clock = clock
        self._read_only = read_only
        self._durable: set[Path] = set()
        self._apart = False  # the folder of temp files is a mount of its own, as in a sandbox
        kind = _file_system(self._root)
        if kind in NETWORK_FILE_SYSTEMS:
            raise StoreUnusable(
                f"the store folder {self._root} lies on a network file system ({kind}), where two "
                "machines may both win one write; use a local folder or an s3:// store"
            )
        if read_only:
            self._demand_readable()
            return
        try:
            for part in (_TEMP, _LOCKS):
                (self._root / part).mkdir(parents=True, exist_ok=True)
            self._temp(clock.nonce()).unlink()
        except OSError as error:
            if _full(error):
                raise StoreSilent(f"{self._root} cannot be written: {_words(error)}") from error
            blocked = isinstance(error, (NotADirectoryError, FileExistsError))
            first = "a file stands in its way" if blocked else "give this user write permission"
            raise StoreUnusable(
                f"the store folder {self._root} cannot be written ({_words(error)}); "
                f"{first}{';' if blocked else ' or'} set [store] url to another folder"
            ) from error
        self._sweep()

    @property
    def url(self) -> str:
        return self.url_of(self._root)

    @staticmethod
    def url_of(root: Path) -> str:
        """The URL of the store in a folder."""
        return f"file:{root}".replace("%", "%25")

    # ---------------------------------------------------------------------------- reading

    def read(self, key: str) -> Found | Missing:
        try:
            with _opened(self._path(key)) as file:
                age_s = self._age_s(file, os.fstat(file.fileno()).st_mtime)
                body = file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return Missing()
        except OSError as error:
            raise StoreSilent(f"{key} could not be read ({_words(error)})") from error
        return Found(body, _etag(body), age_s)

    def read_range(self, key: str, start: int, length: int) -> bytes | Missing:
        try:
            with _opened(self._path(key)) as file:
                file.seek(start)
                return file.read(length)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return Missing()
        except OSError as error:
            raise StoreSilent(f"{key} could not be read ({_words(error)})") from error

    def list(self, prefix: str) -> Iterator[Entry]:
        folder, _, _ = prefix.rpartition("/")
        if folder and not is_key(folder):
            return  # such as '..': no key begins so, and the walk stays inside the root
        try:
            yield from self._walk(self._root / folder, f"{folder}/" if folder else "", prefix)
        except OSError as error:
            raise StoreSilent(f"{prefix}* could not be listed ({_words(error)})") from error

    def _walk(self, folder: Path, base: str, prefix: str) -> Iterator[Entry]:
        try:
            # By whole keys, as S3 does: 'a-b' and 'a.b' come before 'a/...'.
            rows = sorted(os.scandir(folder), key=lambda row: row.name + "/" * _is_folder(row))
        except (FileNotFoundError, NotADirectoryError):
            return
        for row in rows:
            key = base + row.name
            if row.name.startswith("."):
                continue
            if _is_folder(row):
                if f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"):
                    yield from self._walk(folder / row.name, f"{key}/", prefix)
            elif key.startswith(prefix) and is_key(key):  # an editor's backup is no object
                try:
                    yield self._entry(folder / row.name, key)
                except (FileNotFoundError, IsADirectoryError):
                    continue  # deleted between the scan and the look, or no object

    def _entry(self, path: Path, key: str) -> Entry:
        with _opened(path) as file:
            found = os.fstat(file.fileno())
            if found.st_size > _HASHED_UP_TO:
                etag = f"{found.st_size:x}-{found.st_mtime_ns:x}"
            else:
                etag = _etag(file.read())
            return Entry(key, etag, found.st_size, self._age_s(file, found.st_mtime))

    def _age_s(self, file: BinaryIO, written_s: float) -> float:
        # The kernel stamps files with this machine's wall clock, so this difference is the store's
        # own; a jump of that clock is why a watcher also demands a watch of its own. A file from
        # the future (the clock was set back since) would never age: its age begins now.
        age_s = self._clock.wall_s() - written_s
        if age_s < -_FUTURE_S and not self._read_only:
            os.utime(file.fileno())
        return max(0.0, age_s)

    # ---------------------------------------------------------------------------- writing

    def create(self, key: str, body: bytes) -> Outcome:
        return self._conditional(key, body, None)

    def replace(self, key: str, body: bytes, etag: str) -> Outcome:
        return self._conditional(key, body, etag)

    def _conditional(self, key: str, body: bytes, etag: str | None) -> Outcome:
        path = self._path(key)
        self._demand_writable()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temp = self._temp_for(path)
            try:
                _write_through(temp, body)
                with self._locked(key) as locked:
                    if not locked:
                        return Unknown(
                            f"another process has held the lock of {key} too long", locked=True
                        )
                    if _current_etag(path) != etag:
                        return Lost()
                    os.utime(temp)  # the age counts from here, not from before the wait
                    self._rename(temp, path)
            finally:
                temp.unlink(missing_ok=True)
            self._sync_parents(path)
        except OSError as error:
            return Unknown(f"{key} could not be written ({_words(error)})", full=_full(error))
        return Written(_etag(body))

    def put_file(self, key: str, path: Path, progress: Progress | None = None) -> None:
        target = self._path(key)
        self._demand_writable()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temp = self._temp_for(target)
            try:
                with path.open("rb") as file:
                    _copy(file, temp, progress)
                self._rename(temp, target)
            finally:
                temp.unlink(missing_ok=True)
            self._sync_parents(target)
        except OSError as error:
            raise StoreSilent(f"{key} could not be written ({_words(error)})") from error

    def get_file(self, key: str, path: Path, progress: Progress | None = None) -> bool:
        source = self._path(key)
        try:
            with _opened(source) as file:
                _copy(file, path, progress)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if source.is_file() and not source.is_symlink():
                raise  # it is the target's folder that does not exist
            return False
        except OSError as error:
            if _full(error):
                raise  # this machine's disk is full; the store is not silent
            raise StoreSilent(f"{key} could not be fetched ({_words(error)})") from error
        return True

    def presign(self, key: str, method: Literal["GET", "PUT"], expires_s: int) -> str | None:
        return None

    def delete(self, key: str) -> None:
        self._demand_writable()
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise StoreSilent(f"{key} could not be deleted ({_words(error)})") from error

    # ----------------------------------------------------------------------------- inside

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _demand_readable(self) -> None:
        try:
            os.scandir(self._root).close()
        except FileNotFoundError as error:
            raise StoreUnusable(
                f"there is no store folder {self._root}; correct [store] url or $TENURE_STORE, or "
                "enlist something first: reading creates none"
            ) from error
        except OSError as error:
            raise StoreUnusable(
                f"the store folder {self._root} cannot be read ({_words(error)}); "
                "give this user read permission or set [store] url to another folder"
            ) from error

    def _demand_writable(self) -> None:
        if self._read_only:
            raise StoreUnusable(f"the store folder {self._root} was opened for reading only")

    def _temp(self, name: str) -> Path:
        path = self._root / _TEMP / f"{os.getpid()}-{name}"
        path.touch(exist_ok=False)
        return path

    def _temp_for(self, path: Path) -> Path:
        """A temp file that can be renamed to ``path``, whose folder exists."""
        if not self._apart:
            return self._temp(self._clock.nonce())
        temp = path.with_name(f".{os.getpid()}-{self._clock.nonce()}")  # no key, in no listing
        temp.touch(exist_ok=False)
        return temp

    def _rename(self, temp: Path, path: Path) -> None:
        """Rename a temp file, or a copy of it where they lie on different mounts of one folder."""
        try:
            temp.replace(path)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        self._apart = True
        near = self._temp_for(path)
        try:
            with temp.open("rb") as file:
                _copy(file, near, None)
            near.replace(path)
        finally:
            near.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, key: str) -> Iterator[bool]:
        """Hold the key's lock; false when it could not be had within the deadline."""
        name = hashlib.sha256(key.encode()).hexdigest()[:3]  # 4,096 files, however many keys
        end_s = self._clock.monotonic_s() + self.deadline_s
        with (self._root / _LOCKS / name).open("ab") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                        raise
                if self._clock.monotonic_s() >= end_s:
                    yield False
                    return
                self._clock.sleep(_LOCK_POLL_S)
            yield True  # closing the file gives the lock back

    def _sync_parents(self, path: Path) -> None:
        """Make the name durable, and once per process every folder above it, which may be new."""
        folder = path.parent
        while True:
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if folder == self._root or folder in self._durable:
                return
            self._durable.add(folder)
            folder = folder.parent

    def _sweep(self) -> None:
        """Remove temp files that a killed process left a day ago."""
        for row in os.scandir(self._root / _TEMP):
            try:
                if self._clock.wall_s() - row.stat().st_mtime > _STALE_TEMP_S:
                    os.unlink(row.path)
            except OSError:
                continue  # gone already, or another user's


def _is_folder(row: os.DirEntry[str]) -> bool:
    return row.is_dir(follow_symlinks=False)


def _etag(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


def _current_etag(path: Path) -> str | None:
    try:
        with _opened(path) as file:
            return _etag(file.read())
    except FileNotFoundError:
        return None


def _opened(path: Path) -> BinaryIO:
    """Open an object's file for reading. Raises ``OSError``: IsADirectoryError for what is no file.

    A job in a sandbox writes in folders of the store. What reads there must neither wait for a pipe
    that it made, nor read a device or somebody's file by a link.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise IsADirectoryError(error.errno, "is no file", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IsADirectoryError(errno.EISDIR, "is no file", str(path))
    return os.fdopen(descriptor, "rb")


def _write_through(path: Path, body: bytes) -> None:
    with path.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _copy(read: BinaryIO, target: Path, progress: Progress | None) -> None:
    """Copy bytes, tell how far, and have them on disk before returning."""
    with target.open("wb") as write:
        total = os.fstat(read.fileno()).st_size
        done = 0
        if progress is None:
            shutil.copyfileobj(read, write, 1 << 20)
        else:
            while block := read.read(1 << 20):
                write.write(block)
                done += len(block)
                progress(done, total)
        write.flush()
        os.fsync(write.fileno())


def _full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _words(error: OSError) -> str:
    return error.strerror or type(error).__name__


def _file_system(path: Path) -> str:
    """Type of the file system that holds ``path``, from the mount table; '' where there is none."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        lines = _MOUNTS.read_text().splitlines()
        real = str(existing.resolve())
    except OSError:
        return ""
    best = ("", "")
    for line in lines:
        _, mount, kind, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
