"""Making the key that signs what is deployed. Only the deployment step (gates/) ever reads it."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tenure.errors import UsageError


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
