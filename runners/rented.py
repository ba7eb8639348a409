"""What all rented machines share: adopt, publish, grant, order, find again, end.

Two families stand on it (:mod:`runners.foreign_runtime`, :mod:`runners.bare_container`); a provider adds its
configuration and the calls of its SDK. The order of things, each of which may be the last that happens:
what bears the name is adopted; code, data, wheel and lock are published under their digests; each job
gets credentials for its own keys, in an envelope in the store; the machine is told three links; and after
an answer that was lost the platform is asked for the name before anybody launches again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from runners import cargo, stage_zero
from runners.grants import grant
from runners.order import Handle, Order, Platform, PlatformKind, RentedConfig
from runners.sdk import demand_sdk
from tenure.dispatch.contract import (
    ALL_KINDS,
    Capacity,
    Closed,
    Job,
    JobKind,
    LaunchFailed,
    Pending,
    ProtocolError,
    Quota,
    Receipt,
    Rejected,
    Settlement,
    Site,
    Unreachable,
)
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Store, StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store
from tenure_worker.claim import read_spec

_LOG = logging.getLogger("tenure.runners")
_LINK_SLACK_S = 600.0
_LONGEST_LINK_S = 7 * 86_400.0  # what signature version 4 allows
_LOOKS, _LOOK_EVERY_S = (
    3,
    2.0,
)  # for a machine whose create had no answer, and is not listed at once


class RentedRunner:
    """A runner over a provider's :class:`~runners.order.Platform`."""

    JOB_KINDS: ClassVar[frozenset[JobKind]] = ALL_KINDS
    PLATFORM: ClassVar[PlatformKind]
    SECRET_VARIABLES: ClassVar[frozenset[str]] = frozenset()  # hidden from all workers

    def __init_subclass__(cls) -> None:
        if platform := getattr(cls, "PLATFORM", None):
            cls.SECRET_VARIABLES = frozenset(platform.VARIABLES)

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self._name = name
        self._config = self._checked(config)
        self._site = site
        self._platform: Platform = self.PLATFORM(self._config, site.clock)
        self._stores: dict[str, Store] = {}
        if (lock := self._lock) and not lock.is_file():
            raise ValueError(f"{self.PLATFORM.KIND}: lock: there is no file {lock}")

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        """``machines`` launches at once, each of as many jobs of one card as a machine has cards."""
        found = cls._checked(config)
        promised = "" if found.card == "cpu" else found.card
        return Capacity(found.cards, found.machines, found.claim_window_s, found.cards, promised)

    @classmethod
    def _checked(cls, config: Mapping[str, object]) -> RentedConfig:
        kind = cls.PLATFORM.KIND
        try:
            return cls.PLATFORM.Config.model_validate(dict(config))
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, e['loc']))}: {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            )
            raise ValueError(f"{kind}: {problems}") from error

    # ------------------------------------------------------------------------------------- launch

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        """Rent one machine for ``jobs``, or adopt the one that already bears their name."""
        self._demand_sdk()
        name, at_s = jobs[0].name, self._site.clock.wall_s()
        handle = self._adopted(name) or self._rent(jobs)
        ids = tuple(job.job_id for job in jobs)
        return Receipt(ids, self._name, name, self._config.card, at_s, dict(handle))

    def _adopted(self, name: str) -> Handle | None:
        """What bears the name already. A look launches nothing, whatever became of its answer."""
        try:
            return self._platform.find(name)
        except (Unreachable, ProtocolError) as error:
            raise Unreachable(str(error), sent=False) from None

    def _rent(self, jobs: Sequence[Job]) -> Handle:
        order = self._order(jobs)
        try:
            return self._platform.create(order)
        except (Unreachable, ProtocolError) as error:
            if isinstance(error, Unreachable) and not error.sent:
                raise
            found = self._found_after_all(order.name)
            if found is None:
                raise
            return found

    def _found_after_all(self, name: str) -> Handle | None:
        """The machine of a create whose answer was lost, if the platform knows it by now."""
        for look in range(_LOOKS):
            if look:
                self._site.clock.sleep(_LOOK_EVERY_S)
            try:
                if found := self._platform.find(name):
                    return found
            except LaunchFailed:
                continue  # asked again, and else by whoever closes the bill of this launch
        return None

    def _order(self, jobs: Sequence[Job]) -> Order:
        """Everything a machine needs, put where it can fetch it. Raises a LaunchFailed."""
        try:
            store = self._store(jobs[0].store)
            wheel = cargo.publish_wheel(store, self._site.clock)
            lock = None
            if self._lock and not self.PLATFORM.BUILDS:
                lock = cargo.publish_lock(store, self._lock, self._site.clock)
            envelopes = [self._envelope(store, job) for job in jobs]
        except StoreSilent as error:
            raise Unreachable(f"the store did not answer: {error}", sent=False) from None
        except (StoreUnusable, Corrupt, OSError) as error:
            raise Rejected(str(error)) from None
        program = stage_zero.program()
        packet = stage_zero.packet(
            wheel=(self._link(store, wheel.key), wheel.sha256, wheel.file),
            lock=(self._link(store, lock.key), lock.sha256) if lock else None,
            envelopes=[(self._link(store, key), cards) for key, cards in envelopes],
            card=self._config.card,
            hide=self.PLATFORM.VARIABLES,
            end=self._platform.ending(),
            session_s=self._config.session_s,
        )
        return Order(
            jobs[0].name,
            program,
            packet,
            stage_zero.shell(program),
            self._config.cards,
            self._lock if self.PLATFORM.BUILDS else None,
            self._config.secrets,
        )

    def _envelope(self, store: Store, job: Job) -> tuple[str, int]:
        """Publish what one job needs; the key of its envelope, and how many cards it takes."""
        clock = self._site.clock
        spec: JobSpec = read_spec(store, job.job_id)
        cargo.publish(store, spec, self._site.root, clock)
        granted = grant(job.store, spec, self._config, clock)
        if granted.warning:
            _LOG.warning("job %s, launch %d: %s", job.job_id, job.launch, granted.warning)
        variables = {
            **self._config.variables,
            **granted.variables,
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "TENURE_STORE": granted.store,
            "TENURE_JOB": job.job_id,
            "TENURE_LAUNCH": str(job.launch),
            "TENURE_NAME": job.name,
            "TENURE_RUNNER": self._name,
        }
        return cargo.write_envelope(store, job, variables, clock), spec.cards

    def _link(self, store: Store, key: str) -> str:
        """A link that opens ``key`` until the claim window is over, and some."""
        lives_s = min(self._config.claim_window_s + _LINK_SLACK_S, _LONGEST_LINK_S)
        link = store.presign(key, "GET", int(lives_s))
        if link is None:
            raise Rejected(
                f"the store {store.url.partition(':')[0]}: lies on this machine, and a machine of "
                f"{self.PLATFORM.KIND} cannot reach it; use an s3:// store ([store] url in tenure.toml)"
            )
        return link

    def _store(self, url: str) -> Store:
        if url not in self._stores:
            self._stores[url] = open_store(url)
        return self._stores[url]

    @property
    def _lock(self) -> Path | None:
        return self._site.root / self._config.lock if self._config.lock else None

    def _demand_sdk(self) -> None:
        demand_sdk(self.PLATFORM.MODULE, self.PLATFORM.EXTRA, self.PLATFORM.KIND)

    # ------------------------------------------------------------------------------------ release

    def release(self, receipt: Receipt) -> Settlement:
        """End the machine, and any other one that a lost answer left under its name."""
        try:
            self._demand_sdk()
            settlement: Settlement = Closed("nothing runs under its name")
            if receipt.handle:
                settlement = self._platform.end(receipt.handle)
                if not isinstance(settlement, Closed):
                    return settlement
            left = self._platform.find(receipt.name)
            return settlement if left is None else self._platform.end(left)
        except LaunchFailed as error:
            return Pending(str(error))

    def running(self, prefix: str) -> Sequence[Receipt]:
        """What the platform still runs, or still bills, under names that begin with ``prefix``."""
        self._demand_sdk()
        return [
            Receipt((), self._name, name, self._config.card, 0.0, dict(handle))
            for name, handle in self._platform.running(prefix)
        ]

    def quota(self) -> Quota | None:
        """What is left, where the platform tells."""
        self._demand_sdk()
        return self._platform.quota()

    def examine(self) -> Sequence[tuple[str, str | None]]:
        """The SDK, the credentials (by a listing, which costs nothing), the lock, the quota."""
        seen: list[tuple[str, str | None]] = []
        try:
            self._demand_sdk()
            seen.append((f"the package {self.PLATFORM.MODULE} is installed", None))
            mine = self.running("tenure-")
            seen.append((f"the account answers; {len(mine)} machines of Tenure run there", None))
            if quota := self.quota():
                left_h = quota.granted_h - quota.used_h
                words = f"{left_h:.1f} of {quota.granted_h:.1f} hours of the quota are left"
                seen.append((words, None if left_h > 0 else "the quota is used up"))
        except LaunchFailed as error:
            seen.append((f"{type(error).__name__}", str(error)))
        return seen
