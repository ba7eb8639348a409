"""The warrant: a signed statement that a model passed every gate, and the log of all of them.

An in-toto Statement v1 (https://github.com/in-toto/attestation/tree/main/spec/v1) in a DSSE
envelope (https://github.com/secure-systems-lab/dsse), signed with ed25519 by the deploy key, which
only the deployment step reads. The log is create-only, and each entry names the digest of the one
before, so that nobody can take an entry out or put one in between unseen. What is signed names the
warrant's place in the log too: whoever believes the newest entry believes every one before it.
"""

from __future__ import annotations

import base64
import os
import shlex
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gates.evidence import deployed_member
from gates.predicate import predicate
from gates.verdict import Verdict, deployable
from tenure.deploy_key import read_public, write_key
from tenure.errors import Blocked, UsageError
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import (
    Corrupt,
    Json,
    canonical,
    encode,
    from_base64,
    parse,
    plain,
    sha256_hex,
)
from tenure_protocol.lease import keys
from tenure_protocol.records import PROTOCOL_VERSION, Member, ModelRecord, load
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_protocol.store.settle import create_once
from tenure_protocol.warrants import PAYLOAD_TYPE, PREDICATE_TYPE, STATEMENT_TYPE

if TYPE_CHECKING:
    # At run time inside functions: its signers import boto3, and most processes neither sign nor verify.
    from securesystemslib.signer import CryptoSigner, SSlibKey

UNTRUSTED = "the warrant is not signed by a key that is trusted here"
_APPEND_TRIES = 20


class BadWarrant(Exception):
    """A warrant, or the log of them, that proves nothing; says why."""


@dataclass(frozen=True)
class PublicKey:
    """What verifies a warrant; may be shown to anybody."""

    key: SSlibKey

    @classmethod
    def from_pem(cls, pem: bytes, where: str = "this") -> PublicKey:
        """Read an ed25519 public key, found in ``where``. Raises UsageError."""
        from securesystemslib.signer import SSlibKey

        return cls(SSlibKey.from_crypto(read_public(pem, where)))

    @property
    def id(self) -> str:
        """What a signature names its key by."""
        return str(self.key.keyid)

    def pem(self) -> bytes:
        """The key as a PEM file."""
        raw = bytes.fromhex(cast(str, self.key.keyval["public"]))
        return Ed25519PublicKey.from_public_bytes(raw).public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )


@dataclass(frozen=True)
class DeployKey:
    """What signs a warrant; never shown, never stored by Tenure outside the file it made."""

    signer: CryptoSigner

    @property
    def public(self) -> PublicKey:
        """The half that may be shown."""
        return PublicKey(self.signer.public_key)

    def __repr__(self) -> str:
        return f"DeployKey({self.public.id[:16]})"


def make_key(path: Path) -> DeployKey:
    """A new ed25519 key in ``path`` (mode 0600) and its public half in ``path``.pub.

    Raises UsageError when the file exists: a key is never overwritten.
    """
    write_key(path)
    return _deploy_key(_read_secret(path), str(path))


def load_deploy_key(
    source: str, root: Path | None = None, environ: Mapping[str, str] | None = None
) -> DeployKey:
    """The key at ``env:NAME`` (the variable holds the PEM) or ``file:PATH`` (relative to ``root``).

    Raises UsageError; a file that others can read is refused.
    """
    kind, _, rest = source.partition(":")
    if kind == "env":
        pem = (os.environ if environ is None else environ).get(rest, "")
        if not pem.strip():
            raise UsageError(
                f"the deploy key is expected in ${rest}, which is not set; make one with "
                f"`tenure key PATH`, then set [gates] deploy_key = 'file:PATH' or run: "
                f'export {rest}="$(cat PATH)"'
            )
        return _deploy_key(pem.encode(), f"${rest}")
    if kind == "file":
        path = (root or Path()) / Path(rest).expanduser()
        return _deploy_key(_read_secret(path), str(path))
    raise UsageError(f"[gates] deploy_key begins with {kind!r}; it must be env:NAME or file:PATH")


def _read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UsageError(
                    f"the deploy key {path} can be read by others (mode {mode:04o}), so it may have "
                    f"been copied; make a new one, or run: chmod 600 {path}"
                )
            return file.read()
    except FileNotFoundError:
        raise UsageError(
            f"there is no deploy key at {path}; make one with: tenure key {shlex.quote(str(path))}"
        ) from None
    except OSError as error:
        raise UsageError(f"the deploy key {path} cannot be read: {error.strerror}") from None


def _deploy_key(pem: bytes, where: str) -> DeployKey:
    # The sentence never repeats what was read: it may be most of a key.
    try:
        private = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UsageError(f"{where} holds no unencrypted private key in PEM form") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise UsageError(f"the deploy key in {where} is not an ed25519 key")
    from securesystemslib.signer import CryptoSigner

    return DeployKey(CryptoSigner(private))


# -------------------------------------------------------------------------------- envelope


@dataclass(frozen=True)
class Statement:
    """What a verified warrant says."""

    subject: dict[str, str]  # SHA-256 by file of the model
    record: str
    deployment: str  # the name it may be deployed under
    predicate: dict[str, Json]
    key: str  # id of the key whose signature was verified

    @property
    def place(self) -> Place:
        """Where in the log it was signed for. Raises BadWarrant."""
        found = self.predicate.get("log")
        number, previous = (
            (found.get("number"), found.get("previous"))
            if isinstance(found, dict)
            else (None, None)
        )
        if not isinstance(number, int) or not (previous is None or isinstance(previous, str)):
            raise BadWarrant("the signed statement names no place in the log")
        return Place(number, previous)


@dataclass(frozen=True)
class Place:
    """Where in the log an entry stands."""

    number: int  # 1, 2, ...
    previous: str | None  # SHA-256 of the bytes of the entry before; None for the first


def sign(
    record: ModelRecord,
    member: Member,
    verdicts: Sequence[Verdict],
    key: DeployKey,
    name: str | None = None,
    place: Place | None = None,
) -> bytes:
    """The warrant of one member under the deployment ``name`` (by default the experiment's).

    It holds for one ``place`` in the log, by default the first.

    Raises Blocked with every reason unless all verdicts pass and ``member`` is the one to deploy.
    """
    if not deployable(verdicts):
        raise Blocked(blocked_sentence(record, verdicts))
    if member != deployed_member(record):
        raise Blocked(
            f"seed {member.seed} is not the one to deploy: it is the first of the retrain seeds, "
            f"{record.seeds[0]}, fixed beforehand and never the best"
        )
    from securesystemslib.dsse import Envelope

    place = place or Place(1, None)
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": file, "digest": {"sha256": entry.sha256}}
            for file, entry in sorted(member.files.items())
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            **predicate(record, member, verdicts, name or record.experiment),
            "log": {"number": place.number, "previous": place.previous},
        },
    }
    envelope = Envelope(canonical(plain(statement)), PAYLOAD_TYPE, {})
    envelope.sign(key.signer)
    return canonical(envelope.to_dict())


def blocked_sentence(record: ModelRecord, verdicts: Sequence[Verdict]) -> str:
    """Every gate that does not pass, in one sentence each."""
    against = [f"{item.gate}: {item.reason}" for item in verdicts if item.verdict != "PASS"]
    return f"record {record.id} may not be deployed. " + ". ".join(against or ["no gate was asked"])


def verify(envelope: bytes, public_keys: Sequence[PublicKey]) -> Statement:
    """What the warrant says, if one of ``public_keys`` signed it. Raises BadWarrant."""
    if not public_keys:
        raise BadWarrant("no public key was given, so no warrant can be believed")
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError

    try:
        value = parse(envelope, "the warrant")
        texts = [
            value["payload"],
            *(row["sig"] for row in cast("list[dict[str, Json]]", value["signatures"])),
        ]
        for text in texts:  # securesystemslib believes several texts for one signature
            from_base64(text, "the warrant")
        found = Envelope.from_dict(value)
    except (Corrupt, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadWarrant(f"the warrant is no DSSE envelope ({error})") from error
    if found.payload_type != PAYLOAD_TYPE:
        raise BadWarrant(f"the warrant's payload is {found.payload_type!r}, not {PAYLOAD_TYPE!r}")
    try:
        accepted = found.verify([item.key for item in public_keys], 1)
    except (VerificationError, ValueError) as error:
        raise BadWarrant(UNTRUSTED) from error
    return _statement(found.payload, next(iter(accepted)))


def _statement(payload: bytes, key: str) -> Statement:
    try:
        value = parse(payload, "the warrant")
        predicate = value["predicate"]
        if (value["_type"], value["predicateType"]) != (STATEMENT_TYPE, PREDICATE_TYPE):
            raise BadWarrant("the signed statement is no warrant of this version")
        subject = {
            str(item["name"]): str(item["digest"]["sha256"])
            for item in cast("list[dict[str, dict[str, str]]]", value["subject"])
        }
        assert isinstance(predicate, dict)
        record, name = str(predicate["record"]), str(predicate["deployment"])
        return Statement(subject, record, name, predicate, key)
    except (KeyError, TypeError, AssertionError) as error:
        raise BadWarrant(f"the signed statement lacks {error}") from error


# ------------------------------------------------------------------------------------- log


@dataclass(frozen=True)
class LogEntry:
    """One warrant in the log; create-only, numbered from 1 without a gap."""

    number: int
    envelope: str  # base64 of the DSSE envelope's bytes
    at_s: float  # Unix time by the signer's clock, for people
    write_id: str
    previous: str | None = None  # SHA-256 of the bytes of the entry before; None for the first
    protocol: int = PROTOCOL_VERSION

    @property
    def warrant(self) -> bytes:
        """The envelope's bytes. Raises BadWarrant."""
        try:
            return from_base64(self.envelope, keys.warrant(self.number))
        except Corrupt as error:
            raise BadWarrant(f"entry {self.number} of the log holds no envelope") from error


def append(
    store: Store, warrant: Callable[[Place], bytes], clock: Clock = SYSTEM
) -> tuple[int, str]:
    """Add to the log what ``warrant`` makes for the place it gets, asked anew when another came first.

    Returns its number and the SHA-256 of the entry's bytes. Raises BadWarrant when the log has a gap,
    StoreSilent when the store does not answer.
    """
    number, previous = _last(store)
    for _ in range(_APPEND_TRIES):
        number += 1
        text = base64.b64encode(warrant(Place(number, previous))).decode()
        body = encode(LogEntry(number, text, clock.wall_s(), clock.nonce(), previous))
        if create_once(store, keys.warrant(number), body, clock):
            return number, sha256_hex(body)
        found = store.read(keys.warrant(number))  # somebody else's entry: go on behind it
        if isinstance(found, Missing):
            raise StoreSilent(f"{keys.warrant(number)} exists and cannot be read")
        previous = sha256_hex(found.body)
    raise StoreSilent(f"{_APPEND_TRIES} others wrote to the log of warrants first; try again")


def _last(store: Store) -> tuple[int, str | None]:
    found = sorted(entry.key for entry in store.list(keys.WARRANTS))
    if found != [keys.warrant(number + 1) for number in range(len(found))]:
        raise BadWarrant(f"the log of warrants has a gap among its {len(found)} entries")
    if not found:
        return 0, None
    last = store.read(found[-1])
    if isinstance(last, Missing):
        raise StoreSilent(f"{found[-1]} is listed and cannot be read")
    return len(found), sha256_hex(last.body)


def read_log(store: Store) -> list[LogEntry]:
    """Every entry, the chain checked. Raises BadWarrant that names the entry, or Corrupt."""
    return [entry for entry, _ in read_chain(store)]


def read_chain(store: Store) -> list[tuple[LogEntry, str]]:
    """The same, each entry with the SHA-256 of its bytes."""
    entries: list[tuple[LogEntry, str]] = []
    previous: str | None = None
    for key in sorted(row.key for row in store.list(keys.WARRANTS)):
        number = len(entries) + 1
        if key != keys.warrant(number):
            raise BadWarrant(f"the log of warrants lacks entry {number}")
        found = store.read(key)
        if isinstance(found, Missing):
            raise StoreSilent(f"{key} is listed and cannot be read")
        entry = load(LogEntry, found.body, key)
        if (entry.number, entry.previous) != (number, previous):
            raise BadWarrant(
                f"entry {number} of the log of warrants does not follow the one before"
            )
        previous = sha256_hex(found.body)
        entries.append((entry, previous))
    return entries
