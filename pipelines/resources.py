"""What every stage, sensor and schedule works with, from ``tenure.toml`` and the environment.

One workshop is kept for the life of a process, because a dispatcher's gapless watch of the witnesses
lives in its memory: sensor ticks run in one long-living code server.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from assets.chain import Chain
from assets.facts import Facts
from assets.stage import Context, Report
from assets.team import queue_of, team_facts
from gates.head import KnownHead
from gates.trust import Trust, load_trust
from gates.warrant import DeployKey, load_deploy_key
from pipelines.bucket import Bucket
from pipelines.plays import Play
from tenure.bad_input import did_you_mean
from tenure.dispatch.deploy_store import open_deploy_store
from tenure.dispatch.desks import desk_of
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.registry import build_dispatcher, open_settings_store
from tenure.errors import UsageError
from tenure.plan.file import Plan, load_plans
from tenure.settings import Settings, load_settings
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.store.api import shown
from tenure_worker import code

if TYPE_CHECKING:
    from dagster_aws.s3 import S3Resource

Key = Callable[[], DeployKey]


class Workshop:
    """The settings' store, one dispatcher over it, and the plans' chains."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock = SYSTEM,
        plan: Plan | None = None,
        report: Report | None = None,
        key: Key | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        """``plan`` replaces all plans that the settings find; ``key`` the settings' deploy key."""
        self.settings = settings
        self.clock = clock
        self.store = open_settings_store(settings)
        self.dispatcher = dispatcher or build_dispatcher(settings, self.store, clock)
        self._plan = plan
        self._report = report
        self._key = key or (lambda: load_deploy_key(settings.gates.deploy_key, settings.root))
        self._trust = (lambda: Trust.only(key().public)) if key else (lambda: load_trust(settings))
        self.plays: dict[str, Play] = {}  # by plan, kept between the sensor's ticks
        self._chains: dict[str, tuple[object, Chain]] = {}
        self._said: list[str] = []

    def plans(self) -> dict[str, Plan]:
        """The plans by name. Raises UsageError."""
        found = [self._plan] if self._plan else load_plans(self.settings)
        return {plan.name: plan for plan in found}

    def context(self, plan: str) -> Context:
        """What the stages of a plan work with; the same chain for the life of this process.

        Code that is edited while a run lasts changes nothing of it: its workers refuse to run other
        code than was enlisted, and say so. Raises UsageError or StoreOutOfReach.
        """
        plans = self.plans()
        if plan not in plans:
            raise UsageError(
                f"the experiment {plan!r} has no plan; {did_you_mean(plan, plans)} "
                f"(found by [plans] paths below {self.settings.root})"
            )
        return self.context_of(plans[plan])

    def context_of(self, plan: Plan, fresh: bool = False) -> Context:
        """The same for a plan at hand; ``fresh`` looks again at its code and data."""
        terms = plan.model_dump_json()
        kept = self._chains.get(plan.name)
        mark = (terms, code_and_data(plan, self.settings)) if fresh or not kept else None
        if kept is None or kept[1].plan != plan or (mark and kept[0] != mark):
            mark = mark or (terms, code_and_data(plan, self.settings))
            kept = mark, Chain(self.store, plan, self.settings, self.clock)
            self._chains[plan.name] = kept
        return Context(
            self.store,
            kept[1],
            self.dispatcher,
            self.clock,
            self._report,
            deploy_key=self._key,
            trust=self._trust,
            deploy_store=lambda: open_deploy_store(self.settings, self.store),
            desk=lambda team: desk_of(self.settings, self.store, team),
            head=KnownHead.of(self.settings),
        )

    def play(self, plan: Plan) -> Play:
        """The plan's play as the last tick left it, or a new one when anything of it changed."""
        context = self.context_of(plan, fresh=True)
        kept = self.plays.get(plan.name)
        if kept is None or kept.context.chain is not context.chain:
            kept = self.plays[plan.name] = Play(context)
        return kept

    def news(self, said: list[str]) -> list[str]:
        """What was not said the last time: what a tick logs may cost an object in a bucket."""
        before, self._said = self._said, said
        return [sentence for sentence in said if sentence not in before]

    def close(self) -> None:
        """Let the background watch end, and what was seen be written; workers go on."""
        self.dispatcher.leave()


def code_and_data(plan: Plan, settings: Settings) -> object:
    """What tells cheaply whether the code or the data of a plan changed: data by size and time."""
    code.add_code_path(settings.root)
    try:
        files = getattr(code.load_experiment(plan.experiment), "data_files", None)
        stats = [Path(file).stat() for file in files()] if callable(files) else []
        return code.code_digest(plan.experiment), [(s.st_size, s.st_mtime_ns) for s in stats]
    except (code.BadEntryPoint, OSError) as error:
        raise plan.error(("experiment",), str(error)) from error
    except Exception as error:  # whatever the user's module raises when it is imported
        words = f"cannot import {plan.experiment!r}: {type(error).__name__}: {error}"
        raise plan.error(("experiment",), words) from error


_OPEN: dict[str | None, Workshop] = {}


def workshop(config: str | None = None) -> Workshop:
    """The workshop of this process for a settings file; made anew when its settings changed.

    Raises UsageError or StoreOutOfReach.
    """
    settings = load_settings(Path(config) if config else None)
    kept = _OPEN.get(config)
    if kept is None or kept.settings != settings:
        opened = Workshop(settings)
        if kept is not None:
            kept.close()
        _OPEN[config] = kept = opened
    return kept


class TenureResource(dg.ConfigurableResource[None]):
    """``tenure.toml``: without ``config`` found as the command line finds it."""

    config: str | None = None

    def workshop(self) -> Workshop:
        """The process's workshop. Raises UsageError or StoreOutOfReach."""
        return workshop(self.config)

    def context(self, plan: str) -> Context:
        """What the stages of a plan work with. Raises UsageError or StoreOutOfReach."""
        return self.workshop().context(plan)

    def team(self, plan: str) -> Facts:
        """Whose plan it is, and where teams share, its weight, entitlement, share and use.

        For assets of one's own; as the dispatcher last saw it. Raises UsageError or StoreOutOfReach.
        """
        context = self.context(plan)
        return team_facts(queue_of(context.dispatcher), context.chain.plan.team)


@dg.resource(
    config_schema={"config": dg.Field(str, is_required=False)},
    description="dagster-aws's S3Resource for the endpoint and region of an s3:// store. An asset "
    "takes it as `s3: S3Resource`; nothing is imported or opened for those that do not.",
)
def store_s3(context: dg.InitResourceContext) -> "S3Resource":
    """The S3 client of the store's URL. Raises UsageError for a store that is no bucket."""
    config = context.resource_config.get("config")
    settings = load_settings(Path(config) if config else None)
    bucket = Bucket.of(settings.store_url)
    if bucket is None:
        raise UsageError(
            f"the resource s3 is for an s3:// store, and [store] url is {shown(settings.store_url)}; "
            "give the asset an S3Resource of its own"
        )
    return bucket.resource()
