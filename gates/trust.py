"""Whose warrants are believed, and up to which number. Verifying takes public keys alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gates.warrant import (
    UNTRUSTED,
    BadWarrant,
    DeployKey,
    PublicKey,
    Statement,
    load_deploy_key,
    verify,
)
from tenure.errors import UsageError
from tenure.settings import Settings


@dataclass(frozen=True)
class Trust:
    """The public keys whose warrants are believed here."""

    keys: tuple[PublicKey, ...]
    #: By key id, the number of the last warrant that is still believed; 0: none.
    revoked: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def only(cls, *keys: PublicKey) -> Trust:
        """These keys, none of them revoked."""
        return cls(keys)

    def believes(self, key: PublicKey, number: int) -> bool:
        """Whether the warrant ``number`` is believed if ``key`` signed it; they count from 1."""
        return number <= self.revoked.get(key.id, number)

    def verified(self, envelope: bytes, number: int) -> Statement:
        """What the warrant ``number`` of the log says. Raises BadWarrant."""
        believed = [key for key in self.keys if self.believes(key, number)]
        try:
            return verify(envelope, believed)
        except BadWarrant:
            for key in self.keys:
                if key not in believed:
                    self._demand_other(envelope, number, key)
            if self.keys and not believed:
                raise BadWarrant(UNTRUSTED) from None
            raise

    def _demand_other(self, envelope: bytes, number: int, key: PublicKey) -> None:
        """Raises BadWarrant, in words, when the revoked ``key`` did sign it."""
        try:
            verify(envelope, [key])
        except BadWarrant:
            return
        raise BadWarrant(
            f"warrant {number} is signed by the key {key.id[:16]}, which is revoked here: "
            + said_of_revoked(self.revoked[key.id])
        )

    def demand_signer(self, key: DeployKey) -> None:
        """Raises UsageError unless what ``key`` signs now would be believed here."""
        public = key.public
        if public.id in self.revoked:
            raise UsageError(
                f"the deploy key {public.id[:16]} is revoked ([gates] revoked_keys: "
                f"{said_of_revoked(self.revoked[public.id])}), so what it signs is not believed; "
                "nothing was signed; name another one in [gates] deploy_key"
            )
        if public not in self.keys:
            trusted = ", ".join(one.id[:16] for one in self.keys)
            raise UsageError(
                f"the deploy key {public.id[:16]} is not among the trusted keys ({trusted}), so what "
                "it signs is not believed; nothing was signed; add its public half to "
                "[gates] trusted_keys, or name another one in [gates] deploy_key"
            )


def said_of_revoked(last: int) -> str:
    """Which warrants of a revoked key are believed, in words.

    >>> said_of_revoked(0), said_of_revoked(7)
    ('none of its warrants is believed', 'its last warrant that is believed is 7')
    """
    return (
        f"its last warrant that is believed is {last}"
        if last
        else "none of its warrants is believed"
    )


def load_trust(settings: Settings, environ: Mapping[str, str] | None = None) -> Trust:
    """Whom the settings trust. Raises UsageError.

    Without ``[gates] trusted_keys`` that is the deploy key alone: the public half beside its file, or
    that of the key in its variable.
    """
    gates = settings.gates
    if gates.trusted_keys is None:
        return Trust((_own_half(settings, environ),), gates.revoked_keys)
    found = []
    for name in gates.trusted_keys:
        path = settings.root / Path(name).expanduser()
        try:
            found.append(PublicKey.from_pem(_read(path), str(path)))
        except UsageError as error:
            raise settings.error(("gates", "trusted_keys"), str(error)) from None
    return Trust(tuple({key.id: key for key in found}.values()), gates.revoked_keys)


def load_signer(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> tuple[DeployKey, Trust]:
    """The deploy key, and whom the settings trust, itself among them. Raises UsageError."""
    key = load_deploy_key(settings.gates.deploy_key, settings.root, environ)
    trust = load_trust(settings, environ)
    trust.demand_signer(key)
    return key, trust


def _own_half(settings: Settings, environ: Mapping[str, str] | None) -> PublicKey:
    kind, _, rest = settings.gates.deploy_key.partition(":")
    if kind != "file":
        try:
            return load_deploy_key(settings.gates.deploy_key, settings.root, environ).public
        except UsageError as error:
            raise UsageError(
                f"{error}. Whoever only verifies needs no deploy key: name the public ones in "
                "[gates] trusted_keys"
            ) from None
    private = settings.root / Path(rest).expanduser()
    path = private.with_name(private.name + ".pub")
    try:
        return PublicKey.from_pem(_read(path), str(path))
    except UsageError as error:
        raise UsageError(
            f"{error}; it is the public half of the deploy key and verifies its warrants: copy it "
            "there, or name the trusted keys in [gates] trusted_keys"
        ) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"there is no public key at {path}") from None
    except OSError as error:
        raise UsageError(f"the public key {path} cannot be read: {error.strerror}") from None
