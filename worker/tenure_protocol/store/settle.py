"""Create-only writes that end in an answer."""

from __future__ import annotations

from tenure_protocol.clock import Clock
from tenure_protocol.store.api import Lost, Missing, Store, StoreSilent, Unknown, Written


def create_once(store: Store, key: str, body: bytes, clock: Clock, tries: int = 5) -> bool:
    """Create ``key`` with ``body``; true when the stored bytes are ours, false when another's.

    An unknown outcome is settled by a further conditional create, never by a read that finds
    nothing: the write may still land. Raises :class:`StoreSilent` when no try got an answer.
    """
    reason = ""
    for count in range(tries):
        outcome = store.create(key, body)
        if isinstance(outcome, Written):
            return True
        if isinstance(outcome, Lost):
            found = store.read(key)
            if not isinstance(found, Missing):
                return found.body == body
            reason = f"{key} is refused as existing and read as missing"
        if isinstance(outcome, Unknown):
            reason = outcome.reason
        clock.sleep(0.1 * 2**count)
    raise StoreSilent(reason)
