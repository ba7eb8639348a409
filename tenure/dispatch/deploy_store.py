"""The store as the deployment step opens it: with credentials of its own, where settings name some.

Deployments and warrants lie under prefixes that the credentials of workers and researchers cannot write
(docs/rights.md). Nothing but that step opens a store this way, and its variables are hidden from every
worker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tenure.bad_input import KeyPath
from tenure.dispatch.registry import CREDENTIAL_VARIABLES as VARIABLES
from tenure.dispatch.registry import open_settings_store
from tenure.errors import StoreOutOfReach, UsageError
from tenure.settings import Settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.store import probe
from tenure_protocol.store.api import Missing, Store, StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store
from tenure_protocol.store.s3 import Credentials


def open_deploy_store(
    settings: Settings, store: Store | None = None, environ: Mapping[str, str] | None = None
) -> Store:
    """The settings' store for who deploys or rolls back.

    Without ``[gates] credentials`` it is ``store``, the one that is open already, or opened as all others
    are. With them it is opened anew, and never probed: a deployer may not write scratch keys.

    Raises UsageError for credentials that are not there or cannot be used, StoreOutOfReach.
    """
    if settings.gates.credentials is None:
        return open_settings_store(settings) if store is None else store
    if not settings.store_url.startswith("s3:"):
        raise settings.error(
            ("gates", "credentials"),
            "credentials of its own are for a store in a bucket, and this one is none; remove the key",
        )
    credentials = deploy_credentials(settings, os.environ if environ is None else environ)
    where = f"with [gates] credentials ({settings.gates.credentials})"
    try:
        opened = open_store(settings.store_url, credentials=credentials)
        if isinstance(opened.read(probe.KEY), Missing):
            raise UsageError(
                f"the store {settings.store_url.partition('?')[0]} was never used, so nothing in it can be "
                "deployed, and whether it keeps its conditions is not known; enlist a plan first"
            )
        probe.demand_safe(opened, SYSTEM)
        return opened
    except StoreUnusable as error:
        raise UsageError(f"{where}: {error}") from error
    except StoreSilent as error:
        raise StoreOutOfReach(f"{where}: {error}") from error


def deploy_credentials(settings: Settings, environ: Mapping[str, str]) -> Credentials:
    """What ``[gates] credentials`` names. Raises UsageError, which repeats no value."""
    whose = "the deployment step's"
    source = settings.gates.credentials or ""
    return named_credentials(settings, ("gates", "credentials"), source, whose, environ)


def named_credentials(
    settings: Settings, path: KeyPath, source: str, whose: str, environ: Mapping[str, str]
) -> Credentials:
    """What a key of the settings names. Raises UsageError, which repeats no value."""
    kind, _, name = source.partition(":")
    if kind == "profile":
        return Credentials(profile=name)
    access, secret, token = (environ.get(f"{name}_{variable}", "") for variable in VARIABLES)
    for value, variable in ((access, VARIABLES[0]), (secret, VARIABLES[1])):
        if not value.strip():
            raise settings.error(
                path,
                f"{whose} credentials are expected in ${name}_{VARIABLES[0]} and "
                f"${name}_{VARIABLES[1]}, and ${name}_{variable} is not set",
            )
    return Credentials(access_key=access, secret_key=secret, token=token or None)
