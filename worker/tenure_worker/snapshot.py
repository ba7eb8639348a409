"""Snapshots: hashing, uploading and fetching the files of a milestone, and exact training state."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from tenure_protocol.codec import Corrupt, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import Discard, FileEntry, Manifest, Pointer, load
from tenure_protocol.store.api import Missing, Progress, Store, check_key, is_key

#: Version, words and the cached normal of Python's generator; the same of numpy's.
_PythonState = tuple[int, Sequence[int], float | None]
_NumpyState = tuple[str, Sequence[int], int, int, float]

STATE_FILE = "training_state.pt"
MANIFEST = "manifest.json"
_SMALL = 1 << 16  # bytes


def names(folder: Path, prefix: str) -> list[str]:
    """Every file under ``folder``, by its path relative to it.

    Raises ``ValueError`` for a name that no key under ``prefix`` can hold.
    """
    found = sorted(_files(folder), key=lambda name: name.split("/"))
    for name in found:
        if name == MANIFEST:
            raise ValueError(f"a snapshot's own file may not be named {MANIFEST}")
        check_key(prefix + name)
    return found


def _files(folder: Path | str, under: str = "") -> Iterator[str]:
    """Of a folder and those in it; a linked file counts, a linked folder is not entered."""
    with os.scandir(folder) as found:
        for each in found:
            if each.is_dir(follow_symlinks=False):
                yield from _files(each.path, f"{under}{each.name}/")
            elif each.is_file():
                yield under + each.name


def entries(folder: Path, prefix: str) -> dict[str, FileEntry]:
    """Digest and size of every file under ``folder``, by name. Raises as :func:`names` does."""
    return {name: FileEntry(*_digest(folder / name)) for name in names(folder, prefix)}


def _digest(path: Path) -> tuple[str, int]:
    """SHA-256 of a file, and its size in bytes."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _SMALL:  # file_digest would clear its buffer of 256 KiB first
            body = file.read()
            return sha256_hex(body), len(body)
        return hashlib.file_digest(file, "sha256").hexdigest(), size


def read_manifest(store: Store, job: str, pointer: Pointer) -> Manifest:
    """The manifest a pointer names. Raises Corrupt (with the key) or StoreSilent."""
    key = keys.manifest(job, pointer)
    found = store.read(key)
    if isinstance(found, Missing):
        raise Corrupt("the stored pointer names it and it does not exist", key)
    if sha256_hex(found.body) != pointer.digest:
        raise Corrupt("its digest is not the one in the pointer", key)
    return load(Manifest, found.body, key)


def gone(store: Store, job: str, pointer: Pointer) -> str | None:
    """Why the files of a snapshot are not there, where they were deleted on purpose. Raises StoreSilent."""
    key = keys.discard(job, pointer.attempt, pointer.step, pointer.save)
    found = store.read(key)
    try:
        return None if isinstance(found, Missing) else load(Discard, found.body, key).words()
    except Corrupt as error:
        return str(error)


def fetch(
    store: Store, job: str, pointer: Pointer, folder: Path, progress: Progress | None = None
) -> Manifest:
    """Download a snapshot into ``folder`` and verify every byte. Raises Corrupt or StoreSilent."""
    manifest = read_manifest(store, job, pointer)
    prefix = keys.snapshot(job, pointer)
    for name, entry in manifest.files.items():
        if not is_key(prefix + name):
            raise Corrupt(f"it names the file {name!r}", keys.manifest(job, pointer))
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not store.get_file(prefix + name, target, progress):
            words = "its manifest names it and it does not exist"
            raise Corrupt(gone(store, job, pointer) or words, prefix + name)
        if _digest(target) != (entry.sha256, entry.size):
            raise Corrupt("its bytes differ from its manifest's digest", prefix + name)
    return manifest


# ------------------------------------------------------------------- exact training state (torch)


def seed_generators(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch, those that are installed.

    They begin with entropy of the machine otherwise, and a training that draws from one of them, or
    saves its state, would never give the same bits twice.
    """
    random.seed(seed)
    try:
        import numpy as np

        np.random.seed(seed % 2**32)  # the range it takes
    except ImportError:
        pass
    try:
        import torch

        torch.manual_seed(seed % 2**63)
    except (ImportError, OSError):  # OSError: a shared library of it is missing
        pass


def save_torch(folder: Path, **objects: object) -> None:
    """Write ``objects`` and the state of every random generator, so that a resume is exact.

    An object with ``state_dict`` is stored by it (model, optimizer, schedule), a torch Generator by
    its state, anything else (epoch, position, permutation) as it is, as long as
    ``torch.load(weights_only=True)`` can read it: tensors, numbers, strings, lists, dictionaries.
    """
    import torch

    state: dict[str, object] = {name: _state_of(item) for name, item in objects.items()}
    torch.save({"objects": state, "rng": _rng_state()}, folder / STATE_FILE)


def load_torch(folder: Path) -> dict[str, object]:
    """Restore the random generators and return the stored states by name. Raises ``OSError``."""
    import torch

    stored = torch.load(folder / STATE_FILE, weights_only=True, map_location="cpu")
    _restore_rng(stored["rng"])
    objects: dict[str, object] = stored["objects"]
    return objects


def _state_of(item: object) -> object:
    import torch

    if isinstance(item, torch.Generator):
        return item.get_state()
    state_dict = getattr(item, "state_dict", None)
    return state_dict() if callable(state_dict) else item


def _rng_state() -> dict[str, object]:
    import torch

    version, words, gauss = random.getstate()
    state: dict[str, object] = {
        "python": [version, list(words), gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    try:
        import numpy as np
    except ImportError:
        return state
    name, words, position, has_gauss, cached = cast(_NumpyState, np.random.get_state())
    state["numpy"] = [name, [int(word) for word in words], position, has_gauss, cached]
    return state


def _restore_rng(state: Mapping[str, object]) -> None:
    import torch

    version, words, gauss = cast(_PythonState, state["python"])
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        import numpy as np

        name, words, position, has_gauss, cached = cast(_NumpyState, state["numpy"])
        np.random.set_state((name, np.array(words, dtype=np.uint32), position, has_gauss, cached))
