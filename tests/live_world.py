"""A deployed model in a store, signed for by gates/, as the live side finds it; and ways to forge one."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner

from gates.check import check_record
from gates.deploy import Deployment
from gates.warrant import DeployKey, Place, sign
from tenure_protocol.codec import canonical, parse, plain, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import FileEntry, ModelRecord
from tenure_protocol.store.api import Found, Store
from tenure_protocol.warrants import PAYLOAD_TYPE
from tests.record_builders import overwrite, research, retrain

NAME = "vol"
SLOT = keys.deployment(NAME)
SHADOW = SLOT.removesuffix("current") + "shadow"

Said = dict[str, Any]


def new_key() -> DeployKey:
    """A deploy key that is in no file."""
    return DeployKey(CryptoSigner.generate_ed25519())


def model(
    store: Store, required: Mapping[str, object], measured: Mapping[str, object]
) -> ModelRecord:
    """A record that passes every gate, made in an environment, with all it refers to."""
    first = research(store, measured=measured)
    return retrain(store, first, requires=required, backtest_requires=required, measured=measured)


def put_live(
    store: Store,
    record: ModelRecord,
    key: DeployKey,
    slot: str = SLOT,
    name: str = NAME,
    files: Mapping[str, FileEntry] | None = None,
    change: Callable[[Said], None] | None = None,
) -> Deployment:
    """Sign for the first member and put it into a slot, whatever is there.

    ``files`` are other files that the warrant and the deployment both name; ``change`` edits the
    statement before it is signed.
    """
    member = record.members[0]
    if files is not None:
        member = replace(member, files=dict(files))
        record = replace(record, members=(member, *record.members[1:]))
    verdicts = [v for v in check_record(store, record) if files is None or v.verdict == "PASS"]
    before = sorted(row.key for row in store.list(keys.WARRANTS))
    number, last = len(before) + 1, store.read(before[-1]) if before else None
    previous = sha256_hex(last.body) if isinstance(last, Found) else None
    honest = sign(record, member, verdicts, key, name, Place(number, previous))
    statement = cast(Said, parse(signed_payload(honest)))
    if change is not None:
        change(statement)
    text = base64.b64encode(envelope(statement, key)).decode()
    entry = {"number": number, "envelope": text, "at_s": 1.0, "write_id": "0", "protocol": 1}
    body = canonical({**entry, "previous": previous} if previous else entry)
    overwrite(store, keys.warrant(number), body)
    deployed = Deployment(
        name=name,
        record=record.id,
        experiment=record.experiment,
        seed=member.seed,
        model=member.train,
        files=member.files,
        warrant=number,
        warrant_digest=sha256_hex(body),
        at_s=1.0,
        write_id="0" * 16,
        slot="shadow" if slot.endswith("/shadow") else "live",
    )
    put_json(store, slot, cast(Said, plain(deployed)))
    return deployed


def signed_payload(body: bytes) -> bytes:
    """What an envelope says, unverified."""
    return base64.b64decode(json.loads(body)["payload"])


def envelope(statement: Said, key: DeployKey) -> bytes:
    """A statement under the signature of ``key``."""
    made = Envelope(canonical(statement), PAYLOAD_TYPE, {})
    made.sign(key.signer)
    return canonical(made.to_dict())


def read_json(store: Store, key: str) -> Said:
    """A stored object as plain JSON."""
    found = store.read(key)
    assert isinstance(found, Found), key
    return cast(Said, json.loads(found.body))


def put_json(store: Store, key: str, value: Said) -> None:
    """Another content under a key, as an enemy would put it."""
    overwrite(store, key, canonical(value))


def put_entry(store: Store, number: int, value: Said, slot: str = SLOT) -> None:
    """Another entry of the log, and the deployment that names its digest."""
    body = canonical(value)
    overwrite(store, keys.warrant(number), body)
    put_json(store, slot, {**read_json(store, slot), "warrant_digest": sha256_hex(body)})


def file_keys(deployed: Deployment) -> dict[str, str]:
    """Where each of the model's files is in the store, by name."""
    prefix = keys.snapshot(deployed.model.job, deployed.model.pointer)
    return {name: prefix + name for name in deployed.files}


def public_pem(folder: Path, key: DeployKey, name: str = "key.pem.pub") -> Path:
    """The public half of a key in a file."""
    path = folder / name
    path.write_bytes(key.public.pem())
    return path


def texts_of_the_same_bytes(text: str) -> list[str]:
    """The other base64 texts that a lenient decoder takes for ``text``, which ends in ``==``."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    others = [text[:-3] + one + "==" for one in letters]
    return [
        one for one in others if one != text and base64.b64decode(one) == base64.b64decode(text)
    ]
