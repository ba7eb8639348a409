"""Making the key that signs what is deployed, and the id of its public half.

Only the deployment step (gates/) ever reads the private half.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tenure.errors import UsageError

PRIVATE = b"PRIVATE KEY-----"


def read_public(pem: bytes, where: str) -> Ed25519PublicKey:
    """The public key in PEM form that ``where`` holds. Raises UsageError, which never repeats it."""
    if PRIVATE in pem:
        raise UsageError(
            f"{where} holds a private key where a public one belongs; name its public half, the file "
            "that ends in .pub"
        )
    try:
        found = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{where} holds no public key in PEM form") from None
    if not isinstance(found, Ed25519PublicKey):
        raise UsageError(f"the public key in {where} is not an ed25519 key")
    return found


def key_id(public: Ed25519PublicKey) -> str:
    """What a signature names its key by, and ``[gates] revoked_keys`` a revoked one.

    SHA-256 over the key's canonical JSON, as securesystemslib has it.
    """
    from securesystemslib.signer import SSlibKey

    return str(SSlibKey.from_crypto(public).keyid)


def write_key(path: Path) -> Path:
    """A new ed25519 key in ``path`` (mode 0600); its public half goes into what is returned.

    Raises UsageError when either file exists: a key is never overwritten.
    """
    private = Ed25519PrivateKey.generate()
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    beside = path.with_name(path.name + ".pub")
    at = path
    try:
        if beside.exists():
            raise FileExistsError
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        at = beside
        beside.write_bytes(public)
    except FileExistsError:
        taken = beside if beside.exists() else path
        raise UsageError(f"{taken} exists; a deploy key is never overwritten") from None
    except OSError as error:
        raise UsageError(f"{at} cannot be written: {error.strerror}") from None
    return beside
