"""Open a store by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from tenure_protocol.store.api import Store, StoreUnusable, shown

if TYPE_CHECKING:  # each backend is imported where a store of it is opened
    from tenure_protocol.store.memory import MemoryStore
    from tenure_protocol.store.s3 import Credentials

_MEMORY: dict[str, MemoryStore] = {}


def open_store(
    url: str, *, read_only: bool = False, credentials: Credentials | None = None
) -> Store:
    """The store at ``file:/path``, ``s3://bucket/prefix?endpoint_url=...`` or ``memory:name``.

    A memory store lives in this process: the same name gives the same store. Opening a folder makes
    it, unless it is ``read_only``; a bucket is never made, and is opened with boto3's own credentials
    unless there are others. Raises :class:`StoreUnusable` with what is wrong and what to do.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "file" and rest:
        from tenure_protocol.store.directory import DirectoryStore

        return DirectoryStore(Path(unquote(rest.removeprefix("//"))), read_only=read_only)
    if scheme == "memory":
        from tenure_protocol.store.memory import MemoryStore

        return _MEMORY.setdefault(rest, MemoryStore(name=rest))
    if scheme == "s3" and rest.strip("/"):
        from tenure_protocol.store.s3 import S3Store

        return S3Store(url, credentials=credentials)
    raise StoreUnusable(
        f"the store URL {shown(url)!r} is none that can be opened; "
        "use file:FOLDER (a local folder), s3://BUCKET/PREFIX or memory:"
    )
