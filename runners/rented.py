"""What all rented machines share: adopt, publish, grant, order, find again, end.

Two families stand on it (:mod:`runners.foreign_runtime`, :mod:`runners.bare_container`); a provider adds its
configuration and the calls of its SDK. The order of things, each of which may be the last that happens:
what bears the name is adopted; code, data, wheel and lock are published under their digests; each job
gets credentials for its own keys, in an envelope in the store; the machine is told three links; and after
an answer that was lost the platform is asked for the name before anybody launches again.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import ClassVar

from pydantic import ValidationError

from runners import cargo, stage_zero
from runners.grants import grant
from runners.order import Handle, Order, Platform, PlatformKind, RentedConfig
from runners.sdk import Newborns, demand_sdk
from tenure.dispatch.contract import (
    ALL_KINDS,
    Capacity,
    Closed,
    Job,
    JobKind,
    LaunchFailed,
    NoSlots,
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
from tenure_protocol.fingerprint import IMAGE_VARIABLE, LOCK_VARIABLE
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Store, StoreSilent, StoreUnusable
from tenure_protocol.store.open import open_store
from tenure_worker.claim import read_spec
from tenure_worker.code import file_sha256

DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
_LOG = logging.getLogger("tenure.runners")
_LINK_SLACK_S = 600.0
_LEAST_WALL_S = 120.0  # of a machine: less is no time to do anything in
_LOOK = "look at the account's own page, and use another rung until it is mended"
_SHORT_BY_S = 60.0  # a session that is shorter by less than this is not worth a word
_LONGEST_LINK_S = 7 * 86_400.0  # what signature version 4 allows
_LOOKS, _LOOK_EVERY_S = 3, 2.0  # for a machine of a lost answer, which is not listed at once


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
        self._unanswered = Newborns(site.clock, self._config.unlisted_s)  # names of lost creates
        if (lock := self._lock) and not lock.is_file():
            raise ValueError(f"{self.PLATFORM.KIND}: lock: there is no file {lock}")

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        """``machines`` launches at once, each of as many jobs of one card as a machine has cards."""
        found = cls._checked(config)
        promised = "" if found.card == "cpu" else found.card
        return Capacity(
            found.cards,
            found.machines,
            found.claim_window_s,
            found.cards,
            promised,
            found.session_s,
        )

    @classmethod
    def _checked(cls, config: Mapping[str, object]) -> RentedConfig:
        kind = cls.PLATFORM.KIND
        try:
            return cls.PLATFORM.Config.model_validate(dict(config))
        except ValidationError as error:
            problems = [
                (".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, "))
                for e in error.errors()
            ]
            words = "; ".join(": ".join(filter(None, each)) for each in problems)
            raise ValueError(f"{kind}: {words}") from error

    # -------------------------------------------------------------------- where families differ

    def _ending(self) -> Mapping[str, object] | None:
        """How a machine ends itself when its jobs have ended; ``None`` where it ends with its program."""
        return None

    @property
    def _built_by_platform(self) -> bool:
        """Whether the lock is in the machine's image already; else the machine installs it."""
        return False

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
                self._unanswered.add(order.name)
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
        window_s = max(self._config.claim_window_s, *(job.window_s for job in jobs))
        config = self._config.model_copy(update={"claim_window_s": window_s})
        wall_s = min((job.wall_s for job in jobs if job.wall_s is not None), default=inf)
        if wall_s < _LEAST_WALL_S:
            raise NoSlots(f"what is left of the quota ends {wall_s:.0f} s after the launch")
        try:
            store = self._store(jobs[0].store)
            wheel = cargo.publish_wheel(store, self._site.clock)
            lock = None
            if self._lock and not self._built_by_platform:
                lock = cargo.publish_lock(store, self._lock, self._site.clock)
            facts = self._facts()
            envelopes = [self._envelope(store, job, config, facts) for job in jobs]
        except StoreSilent as error:
            raise Unreachable(f"the store did not answer: {error}", sent=False) from None
        except (StoreUnusable, Corrupt, OSError) as error:
            raise Rejected(str(error)) from None
        lives_s = int(min(window_s + _LINK_SLACK_S, _LONGEST_LINK_S))
        program = stage_zero.program()
        packet = stage_zero.packet(
            wheel=(self._link(store, wheel.key, lives_s), wheel.sha256, wheel.file),
            lock=(self._link(store, lock.key, lives_s), lock.sha256) if lock else None,
            envelopes=[(self._link(store, key, lives_s), cards) for key, cards, _ in envelopes],
            card=self._config.card,
            hide=self.PLATFORM.VARIABLES,
            end=self._ending(),
            session_s=min(wall_s, self._wall_s(min(until_s for *_, until_s in envelopes), config)),
        )
        return Order(
            jobs[0].name,
            program,
            packet,
            stage_zero.shell(program),
            self._config.cards,
            self._lock if self._built_by_platform else None,
            self._config.secrets,
        )

    def _wall_s(self, until_s: float, config: RentedConfig) -> float:
        """How long a machine may live from its start, seconds: what its credentials serve at least.

        It may come up at the end of the claim window. ``until_s`` is Unix time by another clock, which
        is near ours: an STS and a store refuse requests of a clock that is 15 minutes off.
        """
        left_s = until_s - self._site.clock.wall_s() - config.claim_window_s
        if left_s >= config.session_s:
            return config.session_s
        if left_s < _LEAST_WALL_S:
            raise Rejected(
                f"the machine's credentials end {left_s + config.claim_window_s:.0f} s after the launch "
                f"and it may be claimed for {config.claim_window_s:.0f} s of them: shorten "
                "claim_window_s, or let the role's sessions last longer (docs/credentials.md)"
            )
        # Who asked for a session of some length hears that it is another; nobody else is warned.
        asked = "session_s" in config.model_fields_set
        asked = asked and config.session_s - left_s > _SHORT_BY_S
        _LOG.log(
            logging.WARNING if asked else logging.DEBUG,
            "runner %s: a machine releases its jobs after %.2f h, not %.2f h, since its credentials "
            "end then; the jobs go on elsewhere from their last milestones",
            self._name, left_s / 3600, config.session_s / 3600,
        )  # fmt: skip
        return left_s

    def _facts(self) -> dict[str, str]:
        """What the machine cannot measure of itself: its lock's digest, its image's where that is pinned."""
        image = DIGEST.search(str(getattr(self._config, "image", "")))
        return {
            **({LOCK_VARIABLE: file_sha256(self._lock)} if self._lock else {}),
            **({IMAGE_VARIABLE: image[1]} if image else {}),
        }

    def _envelope(
        self, store: Store, job: Job, config: RentedConfig, facts: Mapping[str, str]
    ) -> tuple[str, int, float]:
        """Publish what one job needs: the key of its envelope, its cards, and when its credentials end."""
        clock = self._site.clock
        spec: JobSpec = read_spec(store, job.job_id)
        cargo.publish(store, spec, self._site.root, clock)
        granted = grant(job.store, spec, config, clock)
        if granted.warning and self._config.trust == "full":  # else ``_wall_s`` says it
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
            **facts,
        }
        return cargo.write_envelope(store, job, variables, clock), spec.cards, granted.until_s

    def _link(self, store: Store, key: str, lives_s: int) -> str:
        """A link that opens ``key`` for so many seconds: until the claim window is over, and some."""
        link = store.presign(key, "GET", lives_s)
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
            if left is not None:
                ended = self._platform.end(left)
                return replace(ended, seen=True) if isinstance(ended, Closed) else ended
            if not receipt.handle and receipt.name in self._unanswered:
                words = "its create had no answer, and what it made may not be listed yet"
                return Pending(words, seen=False)
            return settlement
        except LaunchFailed as error:
            return Pending(str(error), seen=False)

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
        """The SDK, the wheel, the lock, the credentials (by a listing, which costs nothing), the quota."""
        return list(self._examined())

    def _examined(self) -> Iterator[tuple[str, str | None]]:
        kind, problem = self.PLATFORM, self._problem(self._demand_sdk)
        yield (f"the package {kind.MODULE} is installed", problem)
        yield ("the worker's wheel builds", self._problem(self._build_wheel))
        if lock := self._lock:
            yield (f"the lock {lock} can be read", self._problem(lock.read_bytes))
        if self._config.trust == "session" and not self._config.role:
            words = (
                'set role, or trust = "full" to hand over your own keys; see docs/credentials.md'
            )
            yield ("a role is set that machines assume", words)
        if problem:
            return
        mine: list[Receipt] = []
        problem = self._problem(lambda: mine.extend(self.running("tenure-")))
        several = "" if problem else f"; machines of Tenure there: {len(mine)}"
        yield (f"the account of {kind.KIND} answers{several}", problem)
        if problem:
            return
        told: list[Quota | None] = []
        problem = self._problem(lambda: told.append(self.quota()))
        if problem:
            yield ("what is left of the quota is told", problem)
        for quota in filter(None, told):
            if quota.unit == "h":
                words = f"{quota.left:.1f} of {quota.granted:.1f} hours of the quota are left"
            else:
                words = f"{quota.left:.2f} {quota.unit} of the balance are left"
            if doubt := quota.doubt(self._site.clock.wall_s()):
                words, problem = "what is left of the quota can be believed", f"{doubt}; {_LOOK}"
            else:
                problem = None if quota.left > 0 else "wait for its renewal, or use another rung"
            yield (words, problem)

    def _problem(self, look: Callable[[], object]) -> str | None:
        """What is wrong and what to do about it, in words; whatever a look raises."""
        try:
            look()
        except Unreachable as error:
            return f"{error}; try again, and look whether this machine reaches the service"
        except Rejected as error:
            # What is refused without having been asked for anything are credentials, or their lack.
            known = any(name in str(error) for name in (*self.PLATFORM.VARIABLES, "pip install"))
            return str(error) if known else f"{error}; check {', '.join(self.PLATFORM.VARIABLES)}"
        except ProtocolError as error:
            return f"{error}; the service is not what its SDK takes it for: look at its address"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    @staticmethod
    def _build_wheel() -> None:
        with tempfile.TemporaryDirectory(prefix="tenure-") as folder:
            cargo.wheel(Path(folder))
