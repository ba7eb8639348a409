"""The chain in Dagster: a real webserver and daemon, real workers, and Dagster's storage deleted.

One store is played to its end by a chain that is started through GraphQL; the other tests work on
copies of it. With several pytest workers the first to come plays it, the others wait.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest
import typer

from assets.chain import STAGES, Chain
from assets.materialize import GROUP, experiments
from assets.stage import enlist_stage
from assets.standing import standing
from assets.verdicts import GATES
from gates.deploy import Deployment, current
from gates.warrant import make_key
from pipelines import command, resources
from pipelines.chain_run import run_chain
from pipelines.definitions import defs
from pipelines.home import open_instance, prepare
from pipelines.resources import TenureResource, Workshop
from pipelines.schedules import nightly
from pipelines.sensors import dispatch
from pipelines.up import page
from tenure.cli.group import exit_code
from tenure.dispatch.registry import open_settings_store
from tenure.errors import UsageError
from tenure.plan.file import Plan, load_plan
from tenure.settings import Settings, load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.store.api import Found, Store
from tests.without_torch import hidden_torch

SETTINGS = """\
[store]
url = "file:store"
[runners.here]
kind = "own_process"
slots = 3
linger_s = 2.0
[gates]
deploy_key = "file:deploy.key"
[plans]
paths = ["*.yaml"]
[dagster]
home = "dagster"
port = 3000
"""
PLAN = """\
name: quick
experiment: tests.e2e.quick.experiment:Quick
grid: {level: [0.5]}
seeds: [1, 2, 3]
retrain_seeds: [11, 14, 15]
milestone_every: 5
rungs: [local]
nightly: true
promote: {metric: loss, direction: minimize, margin: 0.2, min_score: 0.1}
"""
IMPOSSIBLE = PLAN.replace("margin: 0.2", "margin: 0.000001")
LOCATION = "pipelines.definitions"
WAIT_S = (
    900.0  # a guard against waiting for ever: each run of a stage is a process that imports Dagster
)


@dataclass(frozen=True)
class Place:
    """A folder with a tenure.toml, a plan, a deploy key, and perhaps a store that was played."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, plan: str = PLAN) -> Place:
        folder.mkdir(parents=True)
        (folder / "tenure.toml").write_text(SETTINGS)
        (folder / "plan.yaml").write_text(plan)
        make_key(folder / "deploy.key")
        return cls(folder)

    def copy(self, folder: Path, plan: str = PLAN) -> Place:
        """The store and the key, with no home of Dagster."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("dagster", ".tenure"))
        (folder / "plan.yaml").write_text(plan)
        return Place(folder)

    @property
    def file(self) -> Path:
        return self.folder / "tenure.toml"

    @property
    def settings(self) -> Settings:
        return load_settings(self.file, environ={})

    @property
    def plan(self) -> Plan:
        return load_plan(self.folder / "plan.yaml", self.settings)

    @property
    def store(self) -> Store:
        return open_settings_store(self.settings)

    def resource(self) -> TenureResource:
        return TenureResource(config=str(self.file))

    def chain(self) -> Chain:
        return Chain(self.store, self.plan, self.settings, SYSTEM)


@dataclass(frozen=True)
class Played:
    """What the first, real page showed while it lasted."""

    place: Place
    run_status: str
    materialized: dict[str, int]
    page: str | None  # the lineage page's DOM; None without Chromium


# --------------------------------------------------------------------------------- fixtures


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Played:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "quick-chain"
    folder.mkdir(exist_ok=True)
    answer = folder / "answer.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not answer.exists():
            with hidden_torch(folder):
                found = play(Place.make(folder / "first"))
            answer.write_text(json.dumps(found))
    status, materialized, dom = json.loads(answer.read_text())
    return Played(Place(folder / "first"), status, materialized, dom)


@pytest.fixture(autouse=True)
def closed_workshops() -> Iterator[None]:
    yield
    for workshop in resources._OPEN.values():
        workshop.close()
    resources._OPEN.clear()


@contextmanager
def browsable(place: Place) -> Iterator[str]:
    """Webserver and daemon; gives the address."""
    with page(place.settings, free_port()) as ours:
        ours.wait_until_it_answers()
        yield ours.url


def play(place: Place) -> tuple[str, dict[str, int], str | None]:
    """Start the chain through GraphQL, as the page's button does, and wait for its end."""
    with browsable(place) as url:
        selector = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}
        made = ask(url, ADD_PARTITION, partition="quick", repository=selector)[
            "addDynamicPartition"
        ]
        assert made["__typename"] == "AddDynamicPartitionSuccess", made
        parameters = {
            "selector": {**selector, "jobName": "chain"},
            "runConfigData": {},
            "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "quick"}]},
        }
        launched = ask(url, LAUNCH, parameters=parameters)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        run = launched["run"]["runId"]
        status = ""
        for _ in waiting():
            status = ask(url, RUN, run=run)["runOrError"]["status"]
            if status in ("SUCCESS", "FAILURE", "CANCELED"):
                break
        return status, materialized_over(url), lineage(url, place.folder)


ADD_PARTITION = """mutation($partition: String!, $repository: RepositorySelector!) {
  addDynamicPartition(partitionKey: $partition, partitionsDefName: "experiments",
                      repositorySelector: $repository) { __typename ... on PythonError {message} } }"""
LAUNCH = """mutation($parameters: ExecutionParams!) { launchRun(executionParams: $parameters) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
RUN = "query($run: ID!) { runOrError(runId: $run) { ... on Run { status } } }"
NODES = "{ assetNodes { assetKey { path } assetMaterializations(limit: 100) { partition runId } } }"
RUNS = "{ runsOrError { ... on Runs { results { status } } } }"


def ask(url: str, query: str, **variables: object) -> dict:
    body = json.dumps({"query": query, "variables": variables}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        found = json.load(answer)
    assert "errors" not in found, found
    return found["data"]


def materialized_over(url: str) -> dict[str, int]:
    """How often each asset was materialized for the plan, as the page shows it."""
    return {
        node["assetKey"]["path"][-1]: sum(
            made["partition"] == "quick" for made in node["assetMaterializations"]
        )
        for node in ask(url, NODES)["assetNodes"]
    }


def lineage(url: str, folder: Path) -> str | None:
    """The lineage page as headless Chromium draws it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return None
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--virtual-time-budget=15000",
            f"--user-data-dir={folder / 'chromium'}", "--dump-dom",
            f"{url}/locations/{LOCATION}/asset-groups/{GROUP}/lineage",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    shutil.rmtree(folder / "chromium", ignore_errors=True)
    return done.stdout


def waiting(for_s: float = WAIT_S, every_s: float = 2.0) -> Iterator[None]:
    """Each question costs the page a tenth of a second of CPU."""
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        yield
        time.sleep(every_s)
    raise AssertionError(f"it took longer than {for_s:.0f} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def materialized_in(instance: dg.DagsterInstance) -> list[str]:
    return [
        stage
        for stage in STAGES
        if "quick" in instance.get_materialized_partitions(dg.AssetKey(stage))
    ]


def tick(place: Place, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    context = dg.build_sensor_context(
        instance=instance, cursor=cursor, resources={"tenure": place.resource()}
    )
    found = dispatch(context)
    assert isinstance(found, dg.SensorResult)
    return found


def requested(result: dg.SensorResult) -> list[str]:
    """The stages that a tick asks to be run."""
    return [
        key.path[-1]
        for request in result.run_requests or []
        for key in request.asset_selection or []
    ]


# ------------------------------------------------------------------------------ the whole chain


def test_a_chain_started_through_graphql_materializes_all_seven(played: Played) -> None:
    assert played.run_status == "SUCCESS"
    assert list(played.materialized) and set(played.materialized) == set(STAGES)
    assert all(played.materialized.values()), played.materialized


def test_the_lineage_page_shows_the_seven_assets(played: Played) -> None:
    if played.page is None:
        pytest.skip("there is no chromium on this machine")
    assert [stage for stage in STAGES if f">{stage}<" not in played.page] == []


def test_run_attaches_to_a_finished_chain_and_shows_it_again(
    played: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = played.place.copy(tmp_path / "again")
    witnesses = [row.key for row in place.store.list(keys.WITNESSES)]
    command.run(place.folder / "plan.yaml", None, True, place.file)
    said = json.loads(capsys.readouterr().out)
    assert said["plan"] == "quick"
    assert [(s["stage"], s["state"]) for s in said["stages"]] == [(s, "done") for s in STAGES]
    assert [s["jobs"] for s in said["stages"]] == [3, 3, 3, 4, 3, 3, 0]
    assert [v["gate"] for v in said["verdicts"]] == list(GATES)
    assert {v["verdict"] for v in said["verdicts"]} == {"PASS"}
    deployed = current(place.store, "quick")
    assert deployed is not None and deployed.seed == 11
    assert said["deployed"]["record"] == deployed.record
    for key in ("deployment", "warrant", "record"):
        assert isinstance(place.store.read(said["deployed"]["keys"][key]), Found)
    assert [row.key for row in place.store.list(keys.WITNESSES)] == witnesses
    with open_instance(place.settings) as instance:
        assert materialized_in(instance) == list(STAGES)
        check_metadata(instance)


def check_metadata(instance: dg.DagsterInstance) -> None:
    """Pictures, tables and the fingerprint are there, and no table is empty."""
    shown: dict[str, dict[str, object]] = {}
    for stage in STAGES:
        event = instance.get_latest_materialization_event(dg.AssetKey(stage))
        assert event is not None and event.asset_materialization is not None
        shown[stage] = {k: v.value for k, v in event.asset_materialization.metadata.items()}
    for stage, name in [
        ("training", "loss_curve"), ("pinned_retrain", "loss_curve"),
        ("backtest", "equity_curve"), ("pinned_backtest", "equity_curve"),
    ]:  # fmt: skip
        text = str(shown[stage][name])
        assert text.startswith("![") and "(data:image/png;base64,iVBOR" in text
        assert len(text) < 100_000
    assert shown["pinned_retrain"]["requirement"]["determinism"]  # type: ignore[index]
    for stage in ("training", "metrics"):
        (row,) = shown[stage]["environments"].records  # type: ignore[attr-defined]
        assert row.data["jobs_ended_in_it"] == 3 and row.data["differences"] == 0
        assert "environment_warning" not in shown[stage]
    assert "repetition: PASS: " in str(shown["pinned_retrain"]["summary"])
    (row,) = shown["pinned_retrain"]["verdicts"].records  # type: ignore[attr-defined]
    assert (row.data["gate"], row.data["verdict"]) == ("repetition", "PASS")
    assert "they ran on one machine" in row.data["reason"]
    for stage in STAGES[:-1]:
        jobs = 4 if stage == "pinned_retrain" else 3  # with the repetition
        assert len(shown[stage]["job_table"].records) == jobs  # type: ignore[attr-defined]
        assert len(shown[stage]["launch_history"].records) >= 3  # type: ignore[attr-defined]
        assert str(shown[stage]["timeline"]).startswith("![")
    assert shown["deployment"]["experiment_costs"].records  # type: ignore[attr-defined]
    (row,) = shown["metrics"]["promoted_metric"].records  # type: ignore[attr-defined]
    assert (row.data["seeds"], row.data["difference_to_baseline"]) == (3, 0.0)
    assert len(shown["pinned_backtest"]["verdicts"].records) == 15  # type: ignore[attr-defined]


def test_an_impossible_margin_ends_blocked_and_says_why(
    played: Played, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = played.place.copy(tmp_path / "blocked", IMPOSSIBLE)
    reports: list[str] = []
    outcome = run_chain(place.settings, place.plan, lambda stage, *_: reports.append(stage))
    states = {stage.stage: stage.state for stage in outcome.stages}
    assert outcome.exit_code == 1 and outcome.deployed is None and outcome.drained
    assert states["pinned_retrain"] == "done" and states["seed_spread"] == "blocked"
    assert states["pinned_backtest"] == states["deployment"] == "not reached"
    assert any(r.startswith("spread_mean:") and "1e-06" in r for r in outcome.reasons)
    assert outcome.not_reached[-3:] == ("backtest", "score", "seeds")
    assert list(dict.fromkeys(reports)) == list(STAGES[:5])
    with open_instance(place.settings) as instance:
        assert materialized_in(instance) == list(STAGES[:5])
        result = tick(place, instance)
    # Unattended, and across separate runs, the later stages are not asked for either.
    assert requested(result) == []
    assert result.skip_reason and "spread_mean" in str(result.skip_reason.skip_message)
    with pytest.raises(typer.Exit) as end:
        command.run(place.folder / "plan.yaml", None, False, place.file)
    assert end.value.exit_code == 1
    assert "Not deployed: spread_mean" in capsys.readouterr().out


def test_a_job_that_fails_ends_the_chain_with_its_sentence(tmp_path: Path) -> None:
    plan = PLAN.replace("level: [0.5]", "level: [high]").replace("[1, 2, 3]", "[1, 2]")
    place = Place.make(tmp_path / "failing", plan)
    outcome = run_chain(place.settings, place.plan)
    assert outcome.exit_code == 1 and outcome.stages[0].state == "blocked"
    assert "ended with code 1: ValueError: could not convert string to float" in outcome.reasons[0]
    assert {stage.state for stage in outcome.stages[1:]} == {"not reached"}


def test_a_missing_deploy_key_is_one_sentence(played: Played, tmp_path: Path) -> None:
    place = played.place.copy(tmp_path / "keyless")
    (place.folder / "deploy.key").unlink()
    outcome = run_chain(place.settings, place.plan)
    assert outcome.exit_code == 2 and outcome.deployed is None
    assert outcome.stages[-1].state == "blocked"
    (reason,) = outcome.reasons
    assert "there is no deploy key at" in reason and "\n" not in reason


# -------------------------------------------------------------------- Dagster holds no truth


def test_the_daemon_rebuilds_what_was_deleted(played: Played, tmp_path: Path) -> None:
    """The storage is gone, and nobody asks for anything: the next ticks show all seven again."""
    place = played.place.copy(tmp_path / "rebuilt")
    before = current(place.store, "quick")
    with browsable(place) as url:
        for _ in waiting():
            runs = [run["status"] for run in ask(url, RUNS)["runsOrError"]["results"]]
            if len(runs) >= len(STAGES) and {*runs} == {"SUCCESS"}:
                break
        assert len(runs) == 7 and materialized_over(url) == dict.fromkeys(STAGES, 1)  # once each
    assert current(place.store, "quick") == before  # deploying again changed nothing


def test_a_tick_asks_once_for_each_finished_stage(played: Played, tmp_path: Path) -> None:
    place = played.place.copy(tmp_path / "ticks")
    with open_instance(place.settings) as instance:
        first = tick(place, instance)
        assert requested(first) == list(STAGES)
        assert len({request.run_key for request in first.run_requests or []}) == 7
        (added,) = first.dynamic_partitions_requests or []
        assert added.partition_keys == ["quick"]
        instance.add_dynamic_partitions(str(experiments.name), ["quick"])
        request = (first.run_requests or [])[0]
        done = defs.resolve_job_def("chain").execute_in_process(
            instance=instance,
            partition_key=request.partition_key,
            asset_selection=request.asset_selection,
            tags={**request.tags, "dagster/run_key": str(request.run_key)},
            run_config={"resources": {"tenure": {"config": {"config": str(place.file)}}}},
        )
        assert done.success
        second = tick(place, instance, first.cursor)
        assert requested(second) == list(STAGES[1:]) and not second.dynamic_partitions_requests


def test_a_tick_leaves_a_fresh_stage_to_a_run_of_somebody_else(
    played: Played, tmp_path: Path
) -> None:
    place = played.place.copy(tmp_path / "shared")
    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_job_def("chain")
        instance.create_run_for_job(
            job, tags={"dagster/partition": "quick"}, status=dg.DagsterRunStatus.STARTED
        )
        first = tick(place, instance, json.dumps({"quick": 2}))
        assert requested(first) == list(STAGES[:2])
        assert requested(tick(place, instance, first.cursor)) == list(STAGES)


def test_an_edit_starts_nothing_by_itself_and_the_night_enlists(
    played: Played, tmp_path: Path
) -> None:
    place = played.place.copy(tmp_path / "edited", PLAN.replace("[1, 2, 3]", "[1, 2, 4]"))
    training = {spec.id for spec in place.chain().specs("training")}
    with open_instance(place.settings) as instance:
        result = tick(place, instance)
        assert "3 trainings are not enlisted" in str(result.skip_reason)
        assert not training <= enlisted(place)
        context = dg.build_schedule_context(
            instance=instance, resources={"tenure": place.resource()}
        )
        said = str(nightly(context))
        assert "quick: 3 trainings are enlisted" in said
        assert instance.get_dynamic_partitions(str(experiments.name)) == ["quick"]
        assert training <= enlisted(place)
        records = [row.key for row in place.store.list(keys.PLANS)]
        assert str(nightly(context)) == said  # the same again writes nothing
        assert [row.key for row in place.store.list(keys.PLANS)] == records


def enlisted(place: Place) -> set[str]:
    found = set()
    for row in place.store.list(keys.PLANS):
        record = place.store.read(row.key)
        assert isinstance(record, Found)
        found.update(json.loads(record.body)["jobs"])
    return found


def test_unattended_a_replaced_deployment_is_not_put_back(played: Played, tmp_path: Path) -> None:
    place = played.place.copy(tmp_path / "replaced")
    key = keys.deployment("quick")
    found = place.store.read(key)
    deployed = current(place.store, "quick")
    assert isinstance(found, Found) and isinstance(deployed, Deployment)
    other = Deployment(**{**vars(deployed), "record": "a" * 26, "write_id": "other"})
    place.store.replace(key, encode(other), found.etag)
    with open_instance(place.settings) as instance:
        assert requested(tick(place, instance)) == list(STAGES[:-1])


def test_a_tick_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_TICK_S", "0")
    enough = tmp_path / "enough"  # until it is there, no job can end
    plan = PLAN.replace("level: [0.5]", f"level: [0.5], until: [{enough}]")
    place = Place.make(tmp_path / "fresh", plan)
    with dg.DagsterInstance.ephemeral() as instance:
        assert "no plan is enlisted" in str(tick(place, instance).skip_reason)
        held = load_plan(place.folder / "plan.yaml", place.settings)
        workshop = Workshop(place.settings, plan=held)
        enlist_stage(workshop.context("quick"), "training")
        (place.folder / "plan.yaml").unlink()
        assert "quick is in the store and has no plan file" in str(
            tick(place, instance).skip_reason
        )
        (place.folder / "plan.yaml").write_text(plan.replace("margin", "margn"))
        assert "plan.yaml:9: promote.margn" in str(tick(place, instance).skip_reason)
        monkeypatch.setenv("TENURE_TICK_S", "soon")
        assert "$TENURE_TICK_S is 'soon'" in str(tick(place, instance).skip_reason)
        (place.folder / "plan.yaml").write_text(plan)
        monkeypatch.setenv("TENURE_TICK_S", "0.2")
        said = str(tick(place, instance).skip_reason)
        assert "quick: training: 0 of 3 jobs finished" in said
    enough.touch()
    assert workshop.dispatcher.drain()


# ------------------------------------------------------------------------------------- the page


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    place = Place.make(tmp_path / "port")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(UsageError) as error:
            command.up(port, place.file)
    assert exit_code(error.value) == 2
    said = str(error.value)
    assert f"the port {port}" in said and "[dagster] port" in said and "\n" not in said
    assert not (place.folder / "dagster").exists()


def test_a_home_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    place = Place.make(tmp_path / "home")
    (place.folder / "dagster").write_text("a file")
    with pytest.raises(UsageError, match=r"dagster\.home: .* cannot be used"):
        prepare(place.settings)


def test_what_the_stages_import_is_not_dagster() -> None:
    """`tenure enlist` and the demo's first second must not wait for it."""
    modules = "assets, assets.chain, assets.stage, assets.standing, assets.verdicts"
    assert "dagster" not in imported(f"{modules}, pipelines.command")


def test_what_dagster_loads_for_every_run_is_light() -> None:
    """Each run of a stage and each code server imports it: scipy alone is 0.9 s of CPU."""
    heavy = {"scipy", "boto3", "securesystemslib", "matplotlib", "torch", "pandas", "dagster_aws"}
    assert heavy & imported("pipelines.definitions") == set()


def imported(modules: str) -> set[str]:
    """What a Python that imports ``modules`` has loaded."""
    code = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return set(done.stdout.split())


def test_every_gate_is_named_in_its_order(played: Played) -> None:
    chain = played.place.chain()
    assert [verdict.gate for verdict in chain.verdicts()] == list(GATES[2:])
    assert standing(chain).stage is None
