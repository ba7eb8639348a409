"""Runners by name: the entry-point group ``tenure.runners``, and the ladder that settings describe."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import cast

from tenure.bad_input import did_you_mean
from tenure.dispatch.contract import Runner, Site
from tenure.dispatch.loop import Dispatcher, Rung
from tenure.errors import StoreOutOfReach, UsageError
from tenure.settings import Settings
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.store.api import Store, StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store
from tenure_protocol.store.probe import demand_safe

GROUP = "tenure.runners"
_PARTS = ("JOB_KINDS", "capacity", "launch", "release")


def runner_class(kind: str) -> type[Runner]:
    """The plug-in of a kind. Raises :class:`UsageError` for an unknown or a broken one."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if kind not in found:
        raise UsageError(f"there is no runner kind {kind!r}; {did_you_mean(kind, found)}")
    try:
        loaded = found[kind].load()
    except Exception as error:
        raise UsageError(
            f"the runner kind {kind!r} ({found[kind].value}) cannot be loaded: {error}"
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


def build_rungs(
    settings: Settings, clock: Clock = SYSTEM, only: Sequence[str] | None = None
) -> list[Rung]:
    """The rungs of tenure.toml with their runners. Raises :class:`UsageError`."""
    hidden = frozenset({settings.gates.deploy_key.removeprefix("env:")})
    site = Site(settings.root, clock, hidden)
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
        rungs.append(
            Rung(name, section.runner, runner, capacity, section.card, section.price_class)
        )
    return rungs


def build_dispatcher(
    settings: Settings,
    store: Store | None = None,
    clock: Clock = SYSTEM,
    only: Sequence[str] | None = None,
) -> Dispatcher:
    """A dispatcher over the settings' store and ladder."""
    return Dispatcher(
        store or open_settings_store(settings), build_rungs(settings, clock, only), clock
    )
