"""A signed statement: a DSSE envelope (https://github.com/secure-systems-lab/dsse) and ed25519 keys.

What gates/warrant.py signs with securesystemslib is verified here with ``cryptography`` alone, and gets
the same answers: a signature counts only for the key that it names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tenure_live.refusal import Refused, WrongCall
from tenure_protocol.codec import Corrupt, canonical, from_base64, parse, sha256_hex
from tenure_protocol.warrants import PAYLOAD_TYPE

_PEM = re.compile(
    rb"\s*-----BEGIN PUBLIC KEY-----\s+([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----\s*"
)
#: What stands before the 32 bytes of an ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
_ED25519 = bytes.fromhex("302a300506032b6570032100")


@dataclass(frozen=True)
class TrustedKey:
    """One public key whose signature is believed."""

    raw: bytes  # 32 bytes
    id: str  # what a signature, and a revocation, names it by

    @classmethod
    def of(cls, source: bytes | str | Path) -> TrustedKey:
        """The key in a PEM file, or in such a file's bytes. Raises WrongCall, which repeats no key."""
        pem, where = (source, "a trusted key") if isinstance(source, bytes) else _read(source)
        if b"PRIVATE KEY" in pem:
            raise WrongCall(
                f"{where} is a private key, which the live side must not have; give it the public half "
                "(the file that ends in .pub)"
            )
        match = _PEM.fullmatch(pem)
        try:
            der = from_base64(b"".join(match[1].split()).decode()) if match else b""
        except Corrupt:
            der = b""
        if len(der) != len(_ED25519) + 32 or not der.startswith(_ED25519):
            raise WrongCall(f"{where} holds no ed25519 public key in PEM form")
        raw = der[len(_ED25519) :]
        named = {"keytype": "ed25519", "keyval": {"public": raw.hex()}, "scheme": "ed25519"}
        return cls(raw, sha256_hex(canonical(named)))


def _read(path: str | Path) -> tuple[bytes, str]:
    try:
        return Path(path).read_bytes(), str(path)
    except OSError as error:
        raise WrongCall(f"the trusted key {path} cannot be read: {error.strerror}") from None


def signed(envelope: bytes, trusted: Sequence[TrustedKey]) -> tuple[bytes, tuple[TrustedKey, ...]]:
    """The payload of an envelope, and those of the ``trusted`` keys that signed it; at least one.

    Raises Refused, or WrongCall where ``cryptography`` is not installed.
    """
    try:
        value = parse(envelope, "the warrant")
        payload_type, rows = value["payloadType"], value["signatures"]
        payload = from_base64(value["payload"], "its payload")
        pairs = [
            (row["keyid"], from_base64(row["sig"], "a signature"))
            for row in cast("list[dict[str, str]]", rows)
        ]
    except (Corrupt, KeyError, TypeError, ValueError) as error:
        raise Refused(f"the warrant is no DSSE envelope ({error})") from None
    if payload_type != PAYLOAD_TYPE:
        raise Refused(f"the warrant's payload is {payload_type!r}, not {PAYLOAD_TYPE!r}")
    statement = _encoded(PAYLOAD_TYPE, payload)
    found = tuple(
        key
        for key in trusted
        if any(name == key.id and _verifies(key, sig, statement) for name, sig in pairs)
    )
    if not found:
        raise Refused(
            "the warrant is not signed by a key that is trusted here; trust the key of who deploys, or "
            "find out who signed it"
        )
    return payload, found


def _encoded(payload_type: str, payload: bytes) -> bytes:
    """The bytes that are signed: DSSE's pre-authentication encoding."""
    name = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(payload), payload)


def _verifies(key: TrustedKey, signature: bytes, statement: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise WrongCall(
            "a warrant is verified with the package cryptography, which is not installed; install the "
            "extra: tenure-worker[live]"
        ) from None
    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, statement)
    except InvalidSignature:
        return False
    return True
