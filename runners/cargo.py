"""What travels to a rented machine, put into the store under its digest: code, data, wheel, lock.

Each is written once, whoever comes first; a machine verifies what it fetches. Envelopes, one for each
launch of a job, hold credentials and are opened by a link alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import tarfile
import tempfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from tenure.dispatch.contract import Job, Rejected, Unreachable
from tenure_protocol.clock import Clock
from tenure_protocol.codec import Corrupt, NeverWritten, canonical
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Progress, Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_worker import code
from tenure_worker.cargo import (
    INSTALLED,
    NO_DATA,
    PATHS,
    DataFile,
    DataIndex,
    encode_index,
    read_index,
    safe,
)

PACKAGES = ("tenure_protocol", "tenure_worker", "tenure_live")
DISTRIBUTION = "tenure-worker"
_MOST_ENVELOPES = 1000  # of one launch
_FEW = 20  # contents that are looked for one by one


class Published(NamedTuple):
    """An object that a machine fetches by a link."""

    key: str
    sha256: str
    file: str


def publish(
    store: Store, spec: JobSpec, root: Path, clock: Clock, progress: Progress | None = None
) -> None:
    """Make sure that the code and the data of a job are in the store.

    ``root`` is the folder that entry points are imported from and that data lies below. What the store
    has already needs no checkout. ``progress`` is told bytes of data done and in all. Raises Rejected
    in words for a person, or Unreachable when the store does not answer.
    """
    with _answering():
        _publish_code(store, spec, root)
        _publish_data(store, spec, root, clock, progress)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except StoreSilent as error:
        raise Unreachable(f"the store did not answer: {error}") from error
    except Corrupt as error:
        raise Rejected(str(error)) from error


def _size(store: Store, key: str) -> int | None:
    """Size of an object in bytes, ``None`` when there is none."""
    return next((row.size for row in store.list(key) if row.key == key), None)


# --------------------------------------------------------------------------------------- code


def _publish_code(store: Store, spec: JobSpec, root: Path) -> None:
    key = keys.code(spec.code)
    if _size(store, key) is not None:
        return
    code.add_code_path(root.absolute())
    try:
        own = code.own_code(spec.entry_point)
    except code.BadEntryPoint as error:
        raise Rejected(f"the code of job {spec.id} cannot be published: {error}") from error
    if own.digest != spec.code:
        raise Rejected(
            f"the code of {spec.entry_point} changed since job {spec.id} was enlisted (digest "
            f"{own.digest}, enlisted {spec.code}), and the store has no copy of what it was; enlist the "
            "plan again, or check out the code it was enlisted with"
        )
    _put(store, key, bundle(own))


def bundle(own: code.OwnCode) -> bytes:
    """A tar of the user's code: the same bytes for the same content, whoever builds it.

    Raises Rejected for a file that changes meanwhile.
    """
    rows = {PATHS: "".join(f"{path}\n" for path in own.paths).encode()}
    for file in own.files:
        rows[file.place] = file.path.read_bytes()
        if sha256(rows[file.place]).hexdigest() != file.sha256:
            raise Rejected(f"{file.path} changed while it was read; launch the job again")
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(rows):
            entry = tarfile.TarInfo(name)  # mtime, uid and gid are 0
            entry.size = len(rows[name])
            tar.addfile(entry, io.BytesIO(rows[name]))
    return made.getvalue()


def _put(store: Store, key: str, body: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
        path = Path(folder) / "object"
        path.write_bytes(body)
        store.put_file(key, path)


# --------------------------------------------------------------------------------------- data


def _publish_data(
    store: Store, spec: JobSpec, root: Path, clock: Clock, progress: Progress | None
) -> None:
    if spec.data == NO_DATA:
        return
    try:
        known: DataIndex | None = read_index(store, spec.data)
    except NeverWritten:
        known = None
    if known and not _missing(store, known):
        return
    files = _files(spec, root)
    index = DataIndex(tuple(_row(path, root) for path in files))
    if index.digest != spec.data:
        raise Rejected(
            f"the data of {spec.entry_point} changed since job {spec.id} was enlisted (digest "
            f"{index.digest}, enlisted {spec.data}), and the store has no copy of what it was; enlist "
            "the plan again, or bring back the files it was enlisted with"
        )
    by_content = {row.sha256: path for row, path in zip(index.files, files, strict=True)}
    missing = _missing(store, index)
    done, total = 0, sum(missing.values())
    for digest, size in missing.items():

        def told(sent: int, _: int, before: int = done) -> None:
            if progress:
                progress(before + sent, total)

        _put_content(store, digest, by_content[digest], told)
        done += size
    # Last, so that whoever finds an index finds the contents. Another layout of the same data may have
    # been first: a machine then puts the files where the experiment looks for them.
    create_once(store, keys.data_index(spec.data), encode_index(index), clock)


def _files(spec: JobSpec, root: Path) -> list[Path]:
    """The files the experiment names, as absolute paths; what is relative lies below ``root``."""
    code.add_code_path(root.absolute())
    try:
        named = code.data_files(code.load_experiment(spec.entry_point))
    except Exception as error:  # whatever the user's module raises
        words = f"the data of job {spec.id} cannot be published: {type(error).__name__}: {error}"
        raise Rejected(words) from error
    return [Path(os.path.abspath(root / path)) for path in named]


def _row(path: Path, root: Path) -> DataFile:
    """One row of an index. Raises Rejected for a file that cannot travel."""
    place = os.path.relpath(path, os.path.abspath(root))
    if code.INSTALLED_IN.intersection(path.parts):
        place = INSTALLED
    elif not safe(place):  # a link below root to a big disk is below root: nothing is resolved
        raise Rejected(
            f"the data file {path} lies outside of the project; put it, or a link to it, below {root}"
        )
    try:
        return DataFile(code.file_sha256(path), path.name, path.stat().st_size, place)
    except OSError as error:
        raise Rejected(f"the data file {path} cannot be read: {error.strerror}") from error


def _missing(store: Store, index: DataIndex) -> dict[str, int]:
    """Size by SHA-256 of the contents that are not in the store with their full size."""
    wanted = index.contents
    if len(wanted) > _FEW:
        sizes: dict[str, int | None] = {row.key: row.size for row in store.list(keys.DATA)}
    else:
        sizes = {keys.data(digest): _size(store, keys.data(digest)) for digest in wanted}
    return {each: size for each, size in wanted.items() if sizes.get(keys.data(each)) != size}


def _put_content(store: Store, digest: str, path: Path, told: Progress) -> None:
    """Upload a file under its digest. Raises Rejected for one that changes meanwhile."""
    try:
        store.put_file(keys.data(digest), path, told)
        same = code.file_sha256(path) == digest
    except OSError as error:
        raise Rejected(f"the data file {path} cannot be read: {error.strerror}") from error
    if not same:
        if path.stat().st_size:
            _put(store, keys.data(digest), b"")  # its size then says that it is not there
        raise Rejected(f"the data file {path} changed while it was uploaded; enlist the plan again")


# ------------------------------------------------------------------------------ wheel and lock


def publish_wheel(store: Store, clock: Clock) -> Published:
    """Make sure that the worker's wheel is in the store. Raises Rejected or Unreachable."""
    with tempfile.TemporaryDirectory(prefix="tenure-") as folder, _answering():
        path = wheel(Path(folder))
        digest = code.file_sha256(path)
        key = keys.wheel(digest, path.name)
        if _size(store, key) != path.stat().st_size:
            store.put_file(key, path)
        return Published(key, digest, path.name)


def wheel(folder: Path) -> Path:
    """Build the worker's wheel in ``folder``, from the packages that are imported here.

    With the standard library alone, so that it needs neither hatchling nor a network. Raises Rejected
    where the worker is not installed.
    """
    try:
        about = importlib.metadata.metadata(DISTRIBUTION)
        places = [_package(name) for name in PACKAGES]
    except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError) as error:
        words = (
            f"the worker's wheel cannot be built: {DISTRIBUTION} is not installed here ({error})"
        )
        raise Rejected(words) from error
    version = about["Version"]
    stem = f"{DISTRIBUTION.replace('-', '_')}-{version}"
    rows = {
        f"{place.name}/{path.relative_to(place).as_posix()}": path.read_bytes()
        for place in places
        for path in place.rglob("*")
        if path.is_file() and (path.suffix == ".py" or path.name == "py.typed")
    }
    names = ("Name", "Version", "Summary", "Requires-Python", "Provides-Extra", "Requires-Dist")
    headers = [f"{name}: {value}" for name in names for value in about.get_all(name) or ()]
    info = f"{stem}.dist-info"
    rows[f"{info}/METADATA"] = "\n".join(["Metadata-Version: 2.1", *headers, ""]).encode()
    rows[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: tenure\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [
        f"{name},sha256={_in_record(body)},{len(body)}" for name, body in sorted(rows.items())
    ]
    rows[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, body in sorted(rows.items(), key=lambda row: (row[0].startswith(info), row[0])):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, body)
    return path


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module {name}")
    return Path(spec.origin).parent


def _in_record(body: bytes) -> str:
    return urlsafe_b64encode(sha256(body).digest()).rstrip(b"=").decode()


def publish_lock(store: Store, path: Path, clock: Clock) -> Published:
    """Make sure that a pip requirements file is in the store. Raises Rejected or Unreachable."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise Rejected(f"the lock {path} cannot be read: {error.strerror}") from error
    digest = sha256(body).hexdigest()
    key = keys.lock(digest)
    with _answering():
        if _size(store, key) != len(body):
            _put(store, key, body)
    return Published(key, digest, path.name)


# ----------------------------------------------------------------------------------- envelopes


def write_envelope(store: Store, job: Job, variables: Mapping[str, str], clock: Clock) -> str:
    """Write what the worker of one launch needs; returns the key.

    Create-only. Another try of the same launch has other credentials, and takes the next name. Raises
    Rejected for what no variable can hold, or Unreachable.
    """
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise Rejected(f"no process can have the variable {name!r} with the value that it has")
    body = canonical({"variables": dict(variables)})
    with _answering():
        for k in range(1, _MOST_ENVELOPES):
            key = keys.envelope(job.job_id, job.launch, k)
            if create_once(store, key, body, clock):
                return key
    raise Rejected(
        f"launch {job.launch} of job {job.job_id} has {_MOST_ENVELOPES} envelopes already"
    )
