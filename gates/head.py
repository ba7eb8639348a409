"""What this machine remembers of the log of warrants, so that nobody takes its end away unseen.

The chain tells of an entry that is missing in the middle. Only who remembers its end can tell that the
end is gone: the file here is not in the store, and holds the newest entry that was seen, by number and
digest, for each store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gates.warrant import BadWarrant
from tenure.errors import UsageError
from tenure.settings import Settings
from tenure_protocol.codec import Corrupt, encode, sha256_hex, short_id
from tenure_protocol.lease import keys
from tenure_protocol.records import PROTOCOL_VERSION, load
from tenure_protocol.store.api import Missing, Store, shown


@dataclass(frozen=True)
class Head:
    """The newest entry of a log that was seen."""

    store: str  # its address, for people
    number: int
    digest: str  # SHA-256 of the entry's bytes


@dataclass(frozen=True)
class _File:
    heads: dict[str, Head]  # by digest of the store's address
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class KnownHead:
    """The remembered head of one store's log, in a file that is not in that store."""

    file: Path
    url: str

    @classmethod
    def of(cls, settings: Settings) -> KnownHead | None:
        """That of the settings' store: ``.tenure/warrants.json`` beside ``tenure.toml``.

        None for a store that ends with the process.
        """
        if settings.store_url.startswith("memory:"):
            return None
        return cls(settings.root / ".tenure" / "warrants.json", settings.store_url)

    def known(self) -> Head | None:
        """What is remembered. Raises UsageError for a file that cannot be read."""
        return self._heads().get(self._name)

    def demand(self, store: Store) -> Head | None:
        """Raises BadWarrant when the remembered entry is not in the log any more, StoreSilent."""
        head = self.known()
        if head is None:
            return None
        found = store.read(keys.warrant(head.number))
        if isinstance(found, Missing):
            count = sum(1 for _ in store.list(keys.WARRANTS))
            raise BadWarrant(
                f"the log had {_entries(head.number)} when it was last verified here and has {count}; "
                f"{self._if_meant}"
            )
        if sha256_hex(found.body) != head.digest:
            raise BadWarrant(
                f"entry {head.number} of the log is not the one that stood there when it was last "
                f"verified here; {self._if_meant}"
            )
        return head

    def remember(self, number: int, digest: str) -> str:
        """Remember a newer head; why it could not be, in words, or nothing."""
        heads = self._heads()
        if (known := heads.get(self._name)) is not None and known.number > number:
            return ""
        heads[self._name] = Head(shown(self.url), number, digest)
        new = self.file.with_name(f"{self.file.name}.{os.getpid()}")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(encode(_File(heads)))
            new.replace(self.file)
        except OSError as error:
            return f"{self.file} cannot be written ({error.strerror}), so this is not remembered"
        return ""

    @property
    def _if_meant(self) -> str:
        return f"where that is meant, as with a store begun anew, remove {self.file}"

    @property
    def _name(self) -> str:
        return short_id(self.url.encode())

    def _heads(self) -> dict[str, Head]:
        try:
            return dict(load(_File, self.file.read_bytes(), str(self.file)).heads)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UsageError(f"{self.file} cannot be read: {error.strerror}") from None
        except Corrupt as error:
            raise UsageError(
                f"{error}; it holds what was last seen of the log of warrants: put back a copy of it, "
                "or remove it if you know why it is so"
            ) from None


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"
