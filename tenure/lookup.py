"""Model records by what a person writes: an id, or a JSON file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tenure.bad_input import read_text
from tenure.errors import UsageError
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord, load
from tenure_protocol.store.api import Missing, Store, StoreSilent

RECORD_ID = re.compile(r"[a-z2-7]{26}")


def find_record(name: str, store: Store) -> ModelRecord:
    """The record a person named.

    Raises UsageError for a name that leads nowhere and a file that holds no record, Corrupt for a
    stored record that cannot be read.
    """
    if is_file(name):
        return read_record(Path(name))
    if not RECORD_ID.fullmatch(name):
        raise UsageError(
            f"{name!r} is no file here and no record's id (26 of a-z and 2-7); "
            "name a record's JSON file, a record's id, or a plan file"
        )
    found = stored_record(name, store)
    if found is None:
        raise UsageError(f"the store at {store.url} holds no model record {name}")
    return found


def stored_record(name: str, store: Store) -> ModelRecord | None:
    """The record of an id, of whichever experiment. Raises Corrupt, StoreSilent."""
    for entry in store.list(keys.models()):
        if entry.key.endswith(f"/{name}.json"):
            return _stored(store, entry.key)
    return None


def read_record(path: Path) -> ModelRecord:
    """The record in a file. Raises UsageError."""
    try:
        return load(ModelRecord, read_text(path, "record").encode(), str(path))
    except Corrupt as error:
        raise UsageError(f"{error}; it is no model record of this version") from None


def is_file(name: str) -> bool:
    """Whether a person named a record by its file, so that no store is asked."""
    path = Path(name)
    return path.exists() or path.suffix == ".json"


def retrains(store: Store, experiment: str) -> Iterator[ModelRecord]:
    """The generation-2 records of an experiment, the newest first. Raises Corrupt, StoreSilent."""
    for row in sorted(store.list(keys.models(experiment)), key=lambda row: row.age_s):
        found = _stored(store, row.key)
        if found.generation == 2:
            yield found


def _stored(store: Store, key: str) -> ModelRecord:
    found = store.read(key)
    if isinstance(found, Missing):
        raise StoreSilent(f"{key} is listed and cannot be read")
    return load(ModelRecord, found.body, key)
