"""The desk of a team: the store as that team's credentials open it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tenure.bad_input import did_you_mean
from tenure.dispatch.deploy_store import named_credentials
from tenure.errors import StoreOutOfReach, UsageError
from tenure.plan.submit import Desk
from tenure.settings import Settings
from tenure_protocol.store.api import Store, StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store


def several_teams(settings: Settings) -> bool:
    """Whether whose job goes next is a question: with one team the order of its plans is the answer."""
    return len(settings.teams) > 1


def desk_of(
    settings: Settings, store: Store, team: object, environ: Mapping[str, str] | None = None
) -> Desk | None:
    """Where a plan's team submits, or ``None`` where there is only one team.

    ``store`` is open already and serves teams without credentials of their own. Raises UsageError for an
    unknown team and for credentials that are not there, StoreOutOfReach.
    """
    if not several_teams(settings):
        return None
    name = str(team)
    if name not in settings.teams:
        raise UsageError(f"there is no [teams.{name}]; {did_you_mean(name, settings.teams)}")
    source = settings.teams[name].credentials
    if source is None:
        return Desk(name, store)
    path = ("teams", name, "credentials")
    if not settings.store_url.startswith("s3:"):
        raise settings.error(
            path, "credentials of its own are for a store in a bucket, and this one is none; remove the key"
        )  # fmt: skip
    where = os.environ if environ is None else environ
    given = named_credentials(settings, path, source, f"team {name}'s", where)
    try:
        return Desk(name, open_store(settings.store_url, credentials=given))
    except StoreUnusable as error:
        raise UsageError(f"with the credentials of team {name} ({source}): {error}") from error
    except StoreSilent as error:
        raise StoreOutOfReach(f"with the credentials of team {name} ({source}): {error}") from error
