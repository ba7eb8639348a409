"""The courier: a thread that uploads snapshots, events and logs, and only reports.

It never writes the witness. A snapshot's bytes go first, its manifest last and naming the pointer
that was stored when the loop handed the snapshot over; the loop then moves the pointer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tenure_protocol.clock import Clock, Mailbox
from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.machine import Move
from tenure_protocol.records import FileEntry, Manifest
from tenure_protocol.store.api import Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_protocol.store.silence import Silence
from tenure_worker import snapshot

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 15.0
_CHUNKS = 62  # waiting at most


@dataclass(frozen=True)
class Parcel:
    """A saved snapshot to upload: local files, and the manifest they will get (without files)."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class Chunk:
    """One numbered chunk of events or of the log."""

    key: str
    body: bytes


@dataclass(frozen=True)
class Delivered:
    """Every byte of a snapshot is confirmed; the pointer may move."""

    move: Move
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class Undeliverable:
    """A snapshot that can never be uploaded (a file name no key can hold, files that vanished)."""

    error: Exception


class Courier:
    """Uploads in the order given, retrying the same bytes under the same key while it may."""

    def __init__(self, store: Store, clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._wake = wake
        # Two places more than chunks may take, so that neither a snapshot nor the word to end ever
        # waits behind a silent store: the loop must stay able to lose its patience.
        self._parcels: Mailbox[Parcel | Chunk | None] = clock.mailbox(_CHUNKS + 2)
        self._queued = 0  # chunks, counted by the loop
        self._done = 0  # chunks, counted by the courier
        self._reports: Mailbox[Delivered | Undeliverable] = clock.mailbox(2)
        self._closed = False
        self.silence = Silence()  # of the upload under way
        self._task = clock.spawn(self._run, "tenure-courier")

    def hand_over(self, item: Parcel) -> None:
        """Queue a snapshot. The loop hands over one at a time."""
        self._parcels.put(item)

    def offer(self, chunk: Chunk) -> bool:
        """Queue a chunk if there is room; the loop keeps its lines otherwise."""
        if self._queued - self._done >= _CHUNKS:
            return False
        self._queued += 1
        return self._parcels.offer(chunk)

    def report(self, timeout_s: float = 0.0) -> Delivered | Undeliverable | None:
        """What became of the snapshot under way."""
        return self._reports.get(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Upload what is queued, for at most ``timeout_s`` seconds, then stop."""
        self._parcels.offer(None)
        self._task.join(timeout_s)
        self._closed = True

    def _run(self) -> None:
        while not self._closed:
            item = self._parcels.get()
            if item is None:
                return
            try:
                if isinstance(item, Chunk):
                    self._insist(partial(self._put_chunk, item))
                else:
                    self._deliver(item)
            except Exception as error:
                self._reports.put(Undeliverable(error))
            self._done += isinstance(item, Chunk)
            self._wake()

    def _put_chunk(self, chunk: Chunk) -> None:
        if not create_once(self._store, chunk.key, chunk.body, self._clock, tries=1):
            raise Corrupt("another writer has written this attempt's key", chunk.key)

    def _deliver(self, parcel: Parcel) -> None:
        draft = parcel.manifest
        prefix = keys.save(draft.job, draft.attempt, draft.step, draft.save)
        files = snapshot.entries(parcel.folder, prefix)
        for name in files:
            self._insist(partial(self._store.put_file, prefix + name, parcel.folder / name))
        if snapshot.entries(parcel.folder, prefix) != files:
            raise ValueError(
                "a file of the snapshot changed while it was uploaded; save() must copy what goes on "
                "changing, not link it"
            )
        manifest = replace(draft, files=files)
        body = encode(manifest)
        self._insist(partial(self._put_chunk, Chunk(prefix + snapshot.MANIFEST, body)))
        if self._closed:
            return
        shutil.rmtree(parcel.folder, ignore_errors=True)
        self._reports.put(Delivered(Move(manifest.pointer(body), manifest.parent), files))

    def _insist(self, upload: Callable[[], None]) -> None:
        """Retry while the store is silent; the loop, not the courier, loses patience."""
        pause_s = _FIRST_PAUSE_S
        while not self._closed:
            sent_s = self._clock.monotonic_s()
            try:
                upload()
                self.silence.ended()
                return
            except StoreSilent as error:
                self.silence.failed(sent_s, self._clock.monotonic_s(), str(error))
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
