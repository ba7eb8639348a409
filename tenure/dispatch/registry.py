"""Runners by name: the entry-point group ``tenure.runners``, and the ladder that settings describe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import entry_points
from typing import cast

from tenure.bad_input import did_you_mean
from tenure.dispatch.contract import Capacity, Runner, Site
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.queueing import Sharing
from tenure.errors import StoreOutOfReach, UsageError
from tenure.notify import addresses
from tenure.notify.notifier import Notifier
from tenure.queue.records import Team
from tenure.settings import RungSection, Settings
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.lease import keys
from tenure_protocol.store.api import Store, StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store
from tenure_protocol.store.probe import demand_safe

GROUP = "tenure.runners"
#: After ``[gates] credentials = "env:PREFIX"`` and an underscore; the last for temporary ones alone.
CREDENTIAL_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_PARTS = ("JOB_KINDS", "capacity", "launch", "release")


def runner_class(kind: str) -> type[Runner]:
    """The plug-in of a kind. Raises :class:`UsageError` for an unknown or a broken one."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if kind not in found:
        raise UsageError(f"there is no runner kind {kind!r}; {did_you_mean(kind, found)}")
    try:
        loaded = found[kind].load()
    except (Exception, SystemExit) as error:  # an SDK may exit the process when it is imported
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        raise UsageError(
            f"the runner kind {kind!r} ({found[kind].value}) cannot be loaded: {words}"
        ) from error
    missing = [part for part in _PARTS if not hasattr(loaded, part)]
    if not isinstance(loaded, type) or missing:
        words = f"it has no {' and no '.join(missing)}" if missing else "it is no class"
        raise UsageError(f"the runner kind {kind!r} ({found[kind].value}) is no runner: {words}")
    return cast(type[Runner], loaded)


def open_settings_store(settings: Settings, *, read_only: bool = False) -> Store:
    """The store that the settings name, probed at its first use.

    With ``read_only`` nothing is created, and nothing probed: a probe writes, and what a store does
    to conditional writes is nothing to who only reads.

    Raises :class:`UsageError` for one that cannot be used or ignores a condition, and
    :class:`StoreOutOfReach` for one that does not answer.
    """
    try:
        store = open_store(settings.store_url, read_only=read_only)
        if not read_only:
            demand_safe(store, SYSTEM)
        return store
    except StoreUnusable as error:
        raise UsageError(str(error)) from error
    except StoreSilent as error:
        raise StoreOutOfReach(str(error)) from error


def secret_variables(settings: Settings) -> tuple[frozenset[str], dict[str, str]]:
    """The variables that hold secrets of ours, and what is wrong with which runner's plug-in.

    They are those of every runner in the file, whichever is used: a worker on this machine must not
    see the credentials of a platform.
    """
    hidden = {settings.gates.deploy_key.removeprefix("env:")} | addresses.secret_variables(settings)
    hidden |= own_variables(settings)
    troubles = {}
    for name, section in settings.runners.items():
        try:
            named: Iterable[str] = getattr(runner_class(section.kind), "SECRET_VARIABLES", ())
            hidden |= set(named)
        except UsageError as error:
            troubles[f"runners.{name}"] = f"no rung can use the runner {name}: {error}"
    return frozenset(hidden), troubles


def own_variables(settings: Settings) -> set[str]:
    """The variables that hold credentials for the store of the deployment step's own, or a team's."""
    sources = [settings.gates.credentials, *(team.credentials for team in settings.teams.values())]
    return set().union(*map(_variables_of, sources))


def _variables_of(source: str | None) -> set[str]:
    kind, _, prefix = (source or "").partition(":")
    return {f"{prefix}_{name}" for name in CREDENTIAL_VARIABLES} if kind == "env" else set()


def card_slug(name: str) -> str:
    """The official name of a card as ``[rungs.NAME]`` writes it.

    >>> card_slug("NVIDIA T4"), card_slug("NVIDIA A100-SXM4-80GB")
    ('nvidia-t4', 'nvidia-a100-sxm4-80gb')
    """
    return name.lower().replace(" ", "-")


def build_rungs(
    settings: Settings, clock: Clock = SYSTEM, only: Sequence[str] | None = None
) -> list[Rung]:
    """The rungs of tenure.toml (or those of ``only``) with their runners. Raises :class:`UsageError`.

    A runner that none of them uses is not made, and its plug-in may be broken.
    """
    return _build(settings, clock, only, secret_variables(settings)[0])


def _build(
    settings: Settings, clock: Clock, only: Sequence[str] | None, hidden: frozenset[str]
) -> list[Rung]:
    site = Site(settings.root, clock, hidden, settings.store_url)
    runners: dict[str, tuple[Runner, type[Runner]]] = {}
    rungs = []
    for name, section in settings.rungs.items():
        if only is not None and name not in only:
            continue
        config = settings.runners[section.runner]
        try:
            if section.runner not in runners:
                kind = runner_class(config.kind)
                runners[section.runner] = kind(section.runner, config.extra, site), kind
            runner, kind = runners[section.runner]
            capacity = kind.capacity(config.extra)
        except (ValueError, UsageError) as error:
            raise settings.error(("runners", section.runner), str(error)) from error
        _check_card(settings, name, section, capacity)
        price = Price(section.price.currency, section.price.per_h)
        rungs.append(
            Rung(name, section.runner, runner, capacity, section.card, section.price_class, price)
        )
    return rungs


def _check_card(settings: Settings, name: str, section: RungSection, capacity: Capacity) -> None:
    """A rung whose card is not the one that its runner rents would be paid for and refused."""
    promised = card_slug(capacity.card)
    if promised and section.card != promised:
        raise settings.error(
            ("rungs", name, "card"),
            f"{section.card!r} is not what [runners.{section.runner}] rents, which is "
            f"{capacity.card!r}; write card = {promised!r} here, or another card there",
        )


def sharing_of(settings: Settings) -> Sharing:
    """The teams of tenure.toml and the rules of its queue."""
    teams = tuple(
        Team(name, section.weight, f"{keys.SUBMISSIONS}{name}/", section.part_of)
        for name, section in settings.teams.items()
    )
    rules = settings.queue
    return Sharing(teams, 3600.0 * rules.half_life_h, 3600.0 * rules.max_wait_h)


def build_dispatcher(
    settings: Settings,
    store: Store | None = None,
    clock: Clock = SYSTEM,
    only: Sequence[str] | None = None,
) -> Dispatcher:
    """A dispatcher over the settings' store and ladder; it tells which plug-ins are broken."""
    hidden, broken = secret_variables(settings)
    rungs = _build(settings, clock, only, hidden)
    store = store or open_settings_store(settings)
    name = f"dispatcher-{clock.nonce()}"
    notifier = Notifier.of(settings, store, clock, name)
    return Dispatcher(
        store,
        rungs,
        clock,
        name,
        broken,
        notifier=notifier,
        plans=settings.planner.enabled,
        rates=settings.planner.rates,
        backups=settings.planner.enabled and settings.planner.backups,
        sharing=sharing_of(settings),
    )
