"""``load_model``: from a deployment's name to a folder with its files, or one sentence why not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

from tenure_live import environment as here
from tenure_live.cache import default_folder, fetched, keep_builds, known_builds
from tenure_live.envelope import TrustedKey
from tenure_live.refusal import Refused, WrongCall
from tenure_live.warrant import nothing_deployed, prove, read_slot, slot_key
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.fingerprint import Difference
from tenure_protocol.store.api import Store, StoreUnusable
from tenure_protocol.store.open import open_store
from tenure_protocol.warrants import Slot

Policy = Literal["forbid", "warn"]
POLICIES: tuple[str, ...] = ("forbid", "warn")
_LOG = logging.getLogger("tenure_live")


@dataclass(frozen=True)
class Model:
    """A model that may be used here. It stays usable whatever becomes of the store."""

    path: Path  # the folder of its files
    name: str
    slot: str
    record: str
    seed: int
    warrant: int  # number in the log of warrants
    differences: tuple[Difference, ...]  # of this environment from the demanded one, all of them
    _digest: str = field(repr=False)
    _store: Store = field(repr=False, compare=False)

    def stale(self) -> bool:
        """Whether another model, or none, is deployed there by now: one read. Raises StoreSilent."""
        try:
            found = read_slot(self._store, slot_key(self.name, self.slot))
        except Refused:
            return True  # loading again says what is wrong with it
        return found is None or found.warrant_digest != self._digest


def load_model(
    name: str,
    *,
    store: str | Store,
    trusted_keys: Sequence[str | Path | bytes],
    revoked_keys: Mapping[str, int] | None = None,
    slot: Slot = "live",
    environment: Policy = "forbid",
    pin: bool = False,
    allow: Iterable[str] = (),
    cache: Path | None = None,
    clock: Clock = SYSTEM,
) -> Model:
    """The model that is deployed as ``name``, proved and on this machine's disk.

    ``store`` is a URL, or one that is open; ``trusted_keys`` are PEM files of public keys, or their
    bytes. ``revoked_keys`` maps a key's id to the number of its last warrant that is still believed, 0
    for none. In another ``environment`` than the warrant demands the model is refused, or given with a
    warning in the log ``tenure_live``; ``pin`` sets the switches of torch that the warrant demands and
    lets all of them count; fields of ``allow`` (``packages.pytest``, ``packages``) do not count.

    Raises Refused with one sentence when the model may not be used here, StoreSilent when the store
    does not answer, WrongCall for bad input.
    """
    if environment not in POLICIES:
        raise WrongCall(f"there is no policy {environment!r}; there are {' and '.join(POLICIES)}")
    if isinstance(allow, str) or isinstance(trusted_keys, (str, bytes)):
        raise WrongCall("trusted_keys and allow are lists, also where there is one of them")
    trusted = [TrustedKey.of(source) for source in trusted_keys]
    if not trusted:
        raise WrongCall("no trusted key was given, so no warrant can be believed")
    began_s = clock.wall_s()
    key = slot_key(name, slot)
    opened = _opened(store, key) if isinstance(store, str) else store
    proved = prove(opened, name, slot, trusted, revoked_keys or {})
    folder = cache or default_folder()
    known = known_builds(folder)
    before = len(known)
    found, counting = here.differences(proved.required, pin, allow, known)
    if counting:
        refusal = here.refusal(counting, proved.required, pin)
        if environment == "forbid":
            raise Refused(f"{key}: {refusal}", counting)
        _LOG.warning("%s: %s", key, refusal)
    deployed = proved.deployed
    try:
        path = fetched(opened, proved.prefix, deployed.files, folder, clock)
    except Refused as error:
        raise Refused(f"{key}: {error}") from None
    if len(known) > before:
        keep_builds(folder, known, began_s, clock)
    return Model(
        path=path,
        name=name,
        slot=slot,
        record=deployed.record,
        seed=deployed.seed,
        warrant=deployed.warrant,
        differences=found,
        _digest=deployed.warrant_digest,
        _store=opened,
    )


def _opened(url: str, key: str) -> Store:
    """A store for reading; a bucket is opened by the key that is read first, and never listed."""
    if url.startswith("s3:") and "opened_by=" not in url:
        url += ("&" if "?" in url else "?") + urlencode({"opened_by": key}, safe="/")
    try:
        return open_store(url, read_only=True)
    except StoreUnusable as error:
        if "opened_by" in str(error):  # the one thing it can say of the key by which it is opened
            raise nothing_deployed(key) from None
        raise WrongCall(f"{key} cannot be read: {error}") from None
