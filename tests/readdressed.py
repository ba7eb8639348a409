"""What a patient attacker does: change one stored object and make every id and digest anew that follows."""

from __future__ import annotations

from tenure_protocol.codec import sha256_hex, short_id
from tenure_protocol.store.api import Found
from tenure_protocol.store.memory import MemoryStore

Objects = dict[str, bytes]


def body_of(store: MemoryStore, key: str) -> bytes:
    """The bytes under a key that exists."""
    found = store.read(key)
    assert isinstance(found, Found)
    return found.body


def snapshot_of(store: MemoryStore) -> Objects:
    return {row.key: body_of(store, row.key) for row in store.list("")}


def store_of(objects: Objects) -> MemoryStore:
    store = MemoryStore()
    for name, body in objects.items():
        store.create(name, body)
    return store


def kind_of(key: str) -> str:
    if key.startswith("models/"):
        return "record"
    if key.endswith("/job.json"):
        return "spec"
    if key.endswith("/manifest.json"):
        return "manifest"
    return "witness" if key.startswith("witness/") else "file"


def name_of(kind: str, body: bytes) -> str | None:
    """What content-addresses an object, as others refer to it."""
    if kind in ("record", "spec"):
        return short_id(body)
    return sha256_hex(body) if kind in ("manifest", "file") else None


def readdressed(objects: Objects, key: str, body: bytes) -> Objects:
    """``key`` holds ``body`` now, and every id and digest that follows is made anew, everywhere."""
    found = {**objects, key: body}
    renamed = [(name_of(kind_of(key), objects[key]), name_of(kind_of(key), body))]
    while renamed:
        old, new = renamed.pop(0)
        if old is None or new is None or old == new:
            continue
        before, found = found, {}
        for place, content in before.items():
            after = content.replace(old.encode(), new.encode())
            found[place.replace(old, new)] = after
            if after != content:
                kind = kind_of(place)
                renamed.append((name_of(kind, content), name_of(kind, after)))
    return found
