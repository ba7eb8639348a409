"""One plan played from training to deployment in this process, in Dagster's eyes and in the store's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from assets.chain import STAGES, Chain
from assets.stage import Context, Report
from assets.standing import Count, count, first_open, standing
from assets.verdicts import GATES, so_far
from gates import deploy
from gates.deploy import Deployment
from gates.verdict import Verdict
from pipelines.home import open_instance
from pipelines.interrupts import Look, interruptible
from pipelines.resources import Key, Workshop
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.errors import Blocked, StoreOutOfReach
from tenure.plan.file import Plan
from tenure.settings import Settings
from tenure_protocol.clock import SYSTEM, Clock
from tenure_protocol.codec import Corrupt
from tenure_protocol.store.api import StoreSilent

if TYPE_CHECKING:
    import dagster as dg

Watch = Callable[[str, Count, str], None]  # stage, its numbers, what its first open job waits for
State = Literal["done", "blocked", "not reached"]
DRAIN_S = 60.0


@dataclass(frozen=True)
class StageOutcome:
    """How one stage ended. ``blocked`` is the stage at which the chain ended before its end."""

    stage: str
    state: State
    count: Count
    summary: str  # its numbers in words, or why it ended the chain
    seconds: float


@dataclass(frozen=True)
class ChainOutcome:
    """How the chain of one plan ended."""

    plan: str
    stages: tuple[StageOutcome, ...]
    verdicts: tuple[Verdict, ...]
    not_reached: tuple[str, ...]  # gates that could not be asked
    deployed: Deployment | None  # current now, and of this plan's record
    reasons: tuple[str, ...]  # why nothing was deployed
    exit_code: int  # of the command: 0 deployed, 1 blocked, 2 bad input, 3 store out of reach
    run_id: str
    drained: bool  # whether no launch of the plan is left open


def run_chain(
    settings: Settings,
    plan: Plan,
    report: Report | None = None,
    watch: Watch | None = None,
    key: Key | None = None,
    dispatcher: Dispatcher | None = None,
    clock: Clock = SYSTEM,
    at_first_signal: Callable[[], None] | None = None,
) -> ChainOutcome:
    """Run the chain job in this process against the home's instance; run again, it attaches.

    Every half second while a stage's jobs are open, ``report`` is called with the stage, the ids of
    its jobs and what the dispatcher did, and ``watch`` with the stage, its numbers and what its first
    open job waits for. ``key`` replaces the settings' deploy key, ``dispatcher`` one made of their
    rungs. Ctrl-C and SIGTERM end it at the next look at the store or the next stage, a second of them
    at once; ``at_first_signal`` may say so. Raises UsageError, StoreOutOfReach, Interrupted, and
    whatever is a bug.
    """

    def work(look: Look) -> ChainOutcome:
        workshop = _Workshop(settings, clock, plan, listener, key, dispatcher)
        workshop.look = listener.look = look
        listener.workshop = workshop
        return _play(workshop, plan, listener)

    listener = _Listener(report, watch)
    return interruptible(work, at_first_signal, clock)


def _play(workshop: _Workshop, plan: Plan, listener: _Listener) -> ChainOutcome:
    chain = workshop.context_of(plan).chain  # bad input is told before anything is written
    with open_instance(workshop.settings) as instance:
        workshop.dispatcher.keep_watching()
        try:
            result = _execute(instance, workshop, plan)
            drained = workshop.dispatcher.drain(
                DRAIN_S, experiment=plan.name, report=lambda _: workshop.look()
            )
        finally:
            workshop.close()
        seconds = {
            stats.step_key: (stats.end_time or 0.0) - (stats.start_time or 0.0)
            for stats in instance.get_run_step_stats(result.run_id)
        }
    ended = _Ended.of(result)
    try:
        verdicts = tuple(so_far(chain))
        deployed = _deployed(chain, plan.name)
    except (StoreOutOfReach, StoreSilent) as error:
        verdicts, deployed = (), None
        ended = replace(ended, reason=str(error), exit_code=StoreOutOfReach.exit_code)
    outcome = ChainOutcome(
        plan=plan.name,
        stages=tuple(_stage(stage, ended, listener.counts, seconds) for stage in STAGES),
        verdicts=verdicts,
        not_reached=tuple(g for g in GATES if g not in {v.gate for v in verdicts}),
        deployed=deployed if ended.exit_code == 0 else None,
        reasons=_reasons(ended, verdicts),
        exit_code=ended.exit_code,
        run_id=result.run_id,
        drained=drained,
    )
    _notify(workshop.dispatcher, outcome)
    return outcome


def _notify(dispatcher: Dispatcher, outcome: ChainOutcome) -> None:
    """Tell that a gate ended the chain, and what is left to tell; of jobs, rounds have told."""
    if dispatcher.notifier is None:
        return
    ended = any(stage.count.ended for stage in outcome.stages)
    if outcome.exit_code == Blocked.exit_code and not ended:
        dispatcher.notifier.blocked(outcome.plan, "; ".join(outcome.reasons))
    dispatcher.notifier.close()


class _Workshop(Workshop):
    """Lets no stage begin once a signal was noted: the last one has nothing to wait for."""

    look: Look

    def context(self, plan: str) -> Context:
        """As of any workshop. Raises Interrupted too."""
        self.look()
        return super().context(plan)


class _Listener:
    """Keeps the last numbers of each stage, and passes the report on. Raises Interrupted."""

    look: Look

    def __init__(self, report: Report | None, watch: Watch | None) -> None:
        self._report = report
        self._watch = watch
        self.workshop: Workshop | None = None
        self.counts: dict[str, Count] = {}

    def __call__(self, stage: str, jobs: list[str], tick: Tick) -> None:
        self.look()
        assert self.workshop is not None
        dispatcher = self.workshop.dispatcher
        found = self.counts[stage] = count(dispatcher, jobs)
        if self._report:
            self._report(stage, jobs, tick)
        if self._watch:
            waiting = first_open(dispatcher, jobs)
            self._watch(stage, found, tick.reason(waiting) if waiting else "")


def _execute(
    instance: dg.DagsterInstance, workshop: Workshop, plan: Plan
) -> dg.ExecuteInProcessResult:
    import dagster as dg

    from assets.checks import CHECKS
    from assets.materialize import experiments
    from pipelines.definitions import ASSETS
    from pipelines.jobs import CHAIN, chain_job

    definitions = dg.Definitions(
        assets=ASSETS,
        asset_checks=CHECKS,
        jobs=[chain_job],
        resources={"tenure": workshop},
        executor=dg.in_process_executor,
    )
    instance.add_dynamic_partitions(str(experiments.name), [plan.name])
    # The console logger would write between the progress bars; everything stands in the run's page.
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    return definitions.resolve_job_def(CHAIN).execute_in_process(
        instance=instance, partition_key=plan.name, raise_on_error=False, run_config=quiet
    )


@dataclass(frozen=True)
class _Ended:
    """What the run's events say: a summary for each stage, and where and why it ended."""

    summaries: Mapping[str, str]
    counts: Mapping[str, Count]
    at: str | None  # the stage that ended the chain
    reason: str
    exit_code: int

    @classmethod
    def of(cls, result: dg.ExecuteInProcessResult) -> _Ended:
        """Read the events; an exception that nobody foresaw is raised again, with its traceback."""
        from assets.materialize import EXIT_CODE, SUMMARY

        summaries: dict[str, str] = {}
        counts: dict[str, Count] = {}
        check = ""
        for event in result.all_events:
            if event.event_type_value == "ASSET_MATERIALIZATION":
                made = event.step_materialization_data.materialization
                told = {name: value.value for name, value in made.metadata.items()}
                stage = made.asset_key.path[-1]
                summaries[stage] = str(told.get(SUMMARY, ""))
                jobs, lost = told.get("jobs", 0), told.get("attempts_lost", 0)
                counts[stage] = Count(int(str(jobs)), int(str(jobs)), int(str(lost)))
            elif event.event_type_value == "ASSET_CHECK_EVALUATION":
                evaluation = event.asset_check_evaluation_data
                if not evaluation.passed:
                    check = evaluation.asset_key.path[-1]
            elif event.event_type_value == "STEP_FAILURE":
                failure = event.step_failure_data
                if check and failure.user_failure_data is None:
                    return cls(summaries, counts, check, "", Blocked.exit_code)
                if failure.user_failure_data is None:
                    assert failure.error is not None
                    raise RuntimeError(failure.error.to_string())
                code = failure.user_failure_data.metadata.get(EXIT_CODE)
                at = next((s for s in STAGES if event.step_key == s), None) or _last(summaries)
                return cls(
                    summaries,
                    counts,
                    at,
                    failure.user_failure_data.description or "",
                    int(str(code.value)) if code else Blocked.exit_code,
                )
        if not result.success:
            raise RuntimeError(f"Dagster's run {result.run_id} failed before any stage began")
        return cls(summaries, counts, None, "", 0)


def _last(summaries: Mapping[str, str]) -> str | None:
    return next(reversed(list(summaries)), None)


def _stage(
    stage: str, ended: _Ended, counts: Mapping[str, Count], seconds: Mapping[str, float]
) -> StageOutcome:
    state: State = "done" if stage in ended.summaries else "not reached"
    summary = ended.summaries.get(stage, "")
    if stage == ended.at:
        state, summary = "blocked", ended.reason or summary
    return StageOutcome(
        stage,
        state,
        ended.counts.get(stage) or counts.get(stage) or Count(0, 0, 0),
        summary,
        seconds.get(stage, 0.0),
    )


def _reasons(ended: _Ended, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    if ended.exit_code == 0:
        return ()
    if ended.reason:
        return (ended.reason,)
    return tuple(f"{v.gate}: {v.reason}" for v in verdicts if v.verdict != "PASS")


def _deployed(chain: Chain, name: str) -> Deployment | None:
    """What is current under the plan's name, if it is the plan's own record."""
    try:
        jobs = standing(chain).finished.get("deployment")
        current = deploy.current(chain.store, name)
    except Corrupt:
        return None  # the stage has said so
    return current if current and jobs and current.record == jobs[0] else None
