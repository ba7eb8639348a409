"""Dagster over an s3:// store: its logs in the bucket, an S3 client for assets, and no truth of its own.

One chain is played over a real SeaweedFS; what needs no server is asked of the files alone.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
import yaml
from dagster._core.storage.defs_state.base import set_defs_state_storage

from assets.chain import STAGES
from assets.materialize import experiments
from assets.stage import enlist_stage
from gates.deploy import current
from pipelines.bucket import LOGS, Bucket
from pipelines.definitions import defs
from pipelines.home import dagster_yaml, open_instance, prepare
from pipelines.resources import Workshop, store_s3
from pipelines.up import CHECKOUT, environment, page
from tenure.errors import UsageError
from tenure_protocol.lease import keys
from tenure_protocol.store.api import Found, Store, Written
from tests.e2e.test_dagster import (
    RUNS,
    SETTINGS,
    Place,
    Played,
    ask,
    browsable,
    closed_workshops,
    materialized_in,
    played,
    requested,
    tick,
    waiting,
)
from tests.e2e.test_init import tenure
from tests.seaweed import Seaweed

__all__ = ["closed_workshops", "played"]  # fixtures

ELSEWHERE = "s3://logs/a/b?endpoint_url=http://127.0.0.1:9&region=eu-west-1"
MATERIALIZE = [
    sys.executable, "-m", "dagster", "asset", "materialize", "-m", "pipelines.definitions",
    "--partition", "quick", "--select",
]  # fmt: skip


def over(url: str, folder: Path) -> Place:
    """A place whose store is at the URL."""
    place = Place.make(folder)
    return move(place, url)


def move(place: Place, url: str) -> Place:
    place.file.write_text(SETTINGS.replace("file:store", url))
    return place


def compute_logs(place: Place) -> dict[str, Any]:
    """What dagster.yaml says of them."""
    found = yaml.safe_load((place.folder / "dagster" / "dagster.yaml").read_text())
    section: dict[str, Any] = found["compute_logs"]
    return section


# --------------------------------------------------------------------------- over a real server


def test_a_chain_over_a_bucket(
    played: Played, tmp_path: Path, seaweed: Callable[[], Seaweed]
) -> None:
    """A played store moves into a bucket, where its last jobs are done anew and deployed."""
    place = moved_into(seaweed().url(uuid4().hex), played.place, tmp_path / "bucket")
    store = place.store
    before = {row.key: row.etag for row in store.list(keys.WITNESSES)}
    assert len(before) == 16
    play_and_show_again(place, store)
    after = {row.key: row.etag for row in store.list(keys.WITNESSES)}
    assert len(after) == 19 and before.items() <= after.items()  # three workers, no more


@pytest.mark.soak
def test_a_whole_chain_over_a_bucket(tmp_path: Path, seaweed: Callable[[], Seaweed]) -> None:
    place = over(seaweed().url(uuid4().hex), tmp_path / "bucket")
    play_and_show_again(place, place.store)


@pytest.mark.soak
def test_the_daemon_plays_a_chain_over_a_bucket_and_shows_it_again(
    tmp_path: Path, seaweed: Callable[[], Seaweed]
) -> None:
    place = over(seaweed().url(uuid4().hex), tmp_path / "bucket")
    store = place.store
    enlist_stage(Workshop(place.settings).context("quick"), "training")
    all_shown_by_the_daemon(place)
    deployed = current(store, "quick")
    assert deployed is not None and deployed.seed == 11
    first = runs_in_the_bucket(store)
    shutil.rmtree(place.folder / "dagster")
    all_shown_by_the_daemon(place)
    assert current(store, "quick") == deployed
    again = runs_in_the_bucket(store) - first
    assert len(first) == len(again) == len(STAGES)
    for run in again:
        check_logs_of(place, store, run)


def moved_into(url: str, played: Place, folder: Path) -> Place:
    """A played store in a bucket, as it was before its last stage with jobs began."""
    place = over(url, folder)
    for half in ("deploy.key", "deploy.key.pub"):
        shutil.copy(played.folder / half, place.folder)
    redone = {spec.id for spec in played.chain().specs("pinned_backtest")}
    left_out = ("store/", "deployments/", "warrants/")
    there, here = played.store, place.store
    for row in there.list(""):
        found = there.read(row.key)
        assert isinstance(found, Found)
        of_them = redone & {*row.key.removesuffix(".json").split("/")}
        if row.key.startswith(keys.PLANS):
            of_them = redone & {*json.loads(found.body)["jobs"]}
        if not of_them and not row.key.startswith(left_out):
            assert isinstance(here.create(row.key, found.body), Written)
    return place


def play_and_show_again(place: Place, store: Store) -> None:
    """Played by `tenure run`, forgotten by Dagster, and shown again from the bucket alone."""
    said = json.loads(tenure(place.folder, "run", "plan.yaml", "--json"))
    assert [(s["stage"], s["state"]) for s in said["stages"]] == [(s, "done") for s in STAGES]
    deployed = current(store, "quick")
    assert deployed is not None and said["deployed"]["record"] == deployed.record
    assert isinstance(store.read(said["deployed"]["keys"]["model"] + "manifest.json"), Found)
    assert list(store.list("dagster/")) == []  # a run in a terminal is not captured

    shutil.rmtree(place.folder / "dagster")
    with open_instance(place.settings) as instance:
        assert materialized_in(instance) == []
        instance.add_dynamic_partitions(str(experiments.name), ["quick"])
        for stage in requested(tick(place, instance))[1:]:
            materialize(place, instance, stage)
        assert requested(tick(place, instance)) == ["training"]
    assert list(store.list("dagster/")) == []
    environ = environment(place.settings, place.folder / "dagster")
    subprocess.run([*MATERIALIZE, "training"], env=environ, cwd=place.folder, check=True)
    with open_instance(place.settings) as instance:
        assert materialized_in(instance) == list(STAGES)
        assert requested(tick(place, instance)) == []
    assert current(store, "quick") == deployed  # deploying again changed nothing
    (run,) = runs_in_the_bucket(store)
    check_logs_of(place, store, run)
    check_an_asset_of_ones_own(place, store)


def all_shown_by_the_daemon(place: Place) -> None:
    with browsable(place) as url:
        for _ in waiting():
            runs = [run["status"] for run in ask(url, RUNS)["runsOrError"]["results"]]
            assert not {*runs} & {"FAILURE", "CANCELED"}
            if len(runs) == len(STAGES) and {*runs} == {"SUCCESS"}:
                break
    with open_instance(place.settings) as instance:
        assert materialized_in(instance) == list(STAGES)


def materialize(place: Place, instance: dg.DagsterInstance, stage: str) -> None:
    """What the sensor asked for, in this process."""
    done = defs.resolve_job_def("chain").execute_in_process(
        instance=instance,
        partition_key="quick",
        asset_selection=[dg.AssetKey(stage)],
        run_config={"resources": {"tenure": {"config": {"config": str(place.file)}}}},
    )
    assert done.success


def runs_in_the_bucket(store: Store) -> set[str]:
    """The ids of the runs whose logs lie there."""
    return {row.key.split("/")[3] for row in store.list(f"{LOGS}/storage/")}


def check_logs_of(place: Place, store: Store, run: str) -> None:
    """What the run printed comes back by Dagster's own ways, and lies nowhere but in the bucket."""
    from dagster_aws.s3 import S3ComputeLogManager

    home = place.folder / "dagster"
    assert [file for file in (home / "compute_logs" / run).rglob("*") if file.is_file()] == []
    with dg.DagsterInstance.from_config(str(home)) as instance:
        manager = instance.compute_log_manager
        assert isinstance(manager, S3ComputeLogManager)
        (event,) = instance.all_logs(run, of_type=dg.DagsterEventType.LOGS_CAPTURED)
        assert event.dagster_event is not None
        captured = event.dagster_event.logs_captured_data
        (stage,) = set(captured.step_keys or []) & set(STAGES)
        data = manager.get_log_data(manager.build_log_key_for_run(run, captured.file_key))
    assert data.stderr is not None and f"{stage} - STEP_SUCCESS".encode() in data.stderr
    (row,) = store.list(f"{LOGS}/storage/{run}/")
    stored = store.read(row.key)
    assert isinstance(stored, Found) and stored.body == data.stderr


def check_an_asset_of_ones_own(place: Place, store: Store) -> None:
    """It asks for an S3Resource by type, and sees the keys that the store sees."""
    from tests.e2e.bucket_asset import listing_of

    seen: list[str] = []
    listing = listing_of(place.settings.store_url, seen)
    with set_defs_state_storage(None):  # not that of an instance which another test has left
        done = dg.materialize(
            [listing],
            resources={"s3": (defs.resources or {})["s3"]},
            run_config={"resources": {"s3": {"config": {"config": str(place.file)}}}},
        )
    assert done.success
    assert sorted(seen) == sorted(row.key for row in store.list("jobs/")) and seen


# --------------------------------------------------------------------------------- the home


def test_a_home_for_a_bucket_names_it_and_holds_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_aws.s3 import S3ComputeLogManager

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
    place = over(ELSEWHERE, tmp_path / "bucket")
    text = (prepare(place.settings) / "dagster.yaml").read_text()
    assert "an-access-key" not in text and "a-secret-key" not in text
    section = compute_logs(place)
    assert (section["module"], section["class"]) == ("dagster_aws.s3", "S3ComputeLogManager")
    assert section["config"] == {
        "bucket": "logs",
        "prefix": "a/b/dagster/compute_logs",
        "endpoint_url": "http://127.0.0.1:9",
        "region": "eu-west-1",
        "local_dir": str(place.folder / "dagster" / "compute_logs"),
        "skip_empty_files": True,
    }
    with dg.DagsterInstance.from_config(str(place.folder / "dagster")) as instance:
        assert isinstance(instance.compute_log_manager, S3ComputeLogManager)
    with open_instance(place.settings) as instance:  # as `tenure run` does: nothing is captured
        assert type(instance.compute_log_manager).__name__ == "NoOpComputeLogManager"


def test_a_bucket_without_prefix_endpoint_and_region(tmp_path: Path) -> None:
    place = over("s3://logs", tmp_path / "bucket")
    prepare(place.settings)
    assert compute_logs(place)["config"] == {
        "bucket": "logs",
        "prefix": "dagster/compute_logs",
        "local_dir": str(place.folder / "dagster" / "compute_logs"),
        "skip_empty_files": True,
    }


@pytest.mark.parametrize(
    "url", ["s3://AKIA:word@logs/p", "s3://logs/p?endpoint_url=http://AKIA:word@h"]
)
def test_credentials_in_the_url_reach_no_file(url: str, tmp_path: Path) -> None:
    place = over(url, tmp_path / "bucket")
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID") as error:
        prepare(place.settings)
    assert "word" not in str(error.value)
    assert not (place.folder / "dagster").exists()


def test_a_home_of_another_store_is_written_anew_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place.make(tmp_path / "moving")
    home = prepare(place.settings)
    first = (home / "dagster.yaml").read_text()
    for url in (ELSEWHERE, ELSEWHERE.replace("/a/b", "/c"), "file:store"):
        assert capsys.readouterr().err == ""
        before = (home / "dagster.yaml").read_text()
        bucket = Bucket.of(move(place, url).settings.store_url)
        prepare(place.settings)
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "nobody edited it, so it is written anew" in said
        assert url in said or bucket is None
        assert (home / "dagster.yaml").read_text() == dagster_yaml(home, bucket) != before
        prepare(place.settings)  # from now on it fits
    assert (home / "dagster.yaml").read_text() == first
    assert {file.name for file in home.iterdir()} == {"dagster.yaml"}


@pytest.mark.parametrize("before", ["file:store", "s3://logs/old"])
@pytest.mark.parametrize("after", ["file:other", "s3://logs/new"])
def test_a_file_that_a_person_edited_stays(
    before: str, after: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = over(before, tmp_path / "edited")
    file = prepare(place.settings) / "dagster.yaml"
    edited = file.read_text().replace("purge_after_days: 90", "purge_after_days: 9")
    file.write_text(edited)
    prepare(place.settings)
    assert capsys.readouterr().err == ""  # it is for this store
    move(place, after)
    for _ in range(2):  # said each time
        prepare(place.settings)
        said = capsys.readouterr().err
        assert file.read_text() == edited
        if before.startswith("file:") and after.startswith("file:"):
            assert said == ""  # one for folders is for every folder
        else:
            assert said.count("\n") == 1 and "it was edited, so it stays" in said
    bucket = Bucket.of(after)
    first_line = f"# For the store {bucket.url}\n" if bucket else ""
    file.write_text(first_line + edited.partition("\n")[2])  # a person says that it fits
    prepare(place.settings)
    assert capsys.readouterr().err == ""


def test_a_home_that_was_moved_fits_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path stands in the file, so the old folder's must not stay in it."""
    place = over(ELSEWHERE, tmp_path / "old")
    prepare(place.settings)
    place = Place(place.folder.rename(tmp_path / "new"))
    prepare(place.settings)
    assert compute_logs(place)["config"]["local_dir"] == str(
        tmp_path / "new" / "dagster" / "compute_logs"
    )
    assert capsys.readouterr().err == ""


def test_what_the_daemon_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The region of the URL is the default; one that a person set stays."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    place = over(ELSEWHERE, tmp_path / "bucket")
    assert environment(place.settings, tmp_path)["AWS_DEFAULT_REGION"] == "eu-west-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    assert environment(place.settings, tmp_path)["AWS_DEFAULT_REGION"] == "us-west-2"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert "AWS_DEFAULT_REGION" not in environment(move(place, "file:store").settings, tmp_path)


# ---------------------------------------------------------------------------- without the package


@pytest.fixture
def without_dagster_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAKE of an install without the package: nobody finds it."""
    find = importlib.util.find_spec

    def not_this_one(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "dagster_aws" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", not_this_one)


@pytest.mark.usefixtures("without_dagster_aws")
def test_a_missing_package_is_one_sentence_where_it_is_needed(tmp_path: Path) -> None:
    place = over(ELSEWHERE, tmp_path / "bucket")
    with pytest.raises(UsageError, match="pip install") as error, page(place.settings, 1):
        raise AssertionError("a page without its logs")
    assert "\n" not in str(error.value)
    with open_instance(place.settings):
        pass  # a run in a terminal does without
    bucket = Bucket.of(ELSEWHERE)
    assert bucket is not None
    with pytest.raises(UsageError, match="pip install"):
        bucket.resource()


def test_the_resource_of_a_folder_says_so(tmp_path: Path) -> None:
    place = Place.make(tmp_path / "folder")
    context = dg.build_init_resource_context(config={"config": str(place.file)})
    with pytest.raises(UsageError, match=r"is for an s3:// store, and \[store\] url is file:"):
        store_s3(context)


def test_nothing_of_it_is_imported_before_it_is_needed() -> None:
    """dagster-aws costs 1.2 s and 50 MB, and the location is imported for every run."""
    code = (
        "import sys, pipelines.definitions as d, pipelines.up\n"
        "print('dagster_aws' in sys.modules, sorted(d.defs.resources))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "False ['s3', 'tenure']"


def test_the_page_in_docs_shows_what_works() -> None:
    text = (CHECKOUT / "docs" / "s3.md").read_text()
    (settings,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    bucket = Bucket.of(tomllib.loads(settings)["store"]["url"])
    assert bucket == Bucket("my-bucket", "tenure", "https://s3.example.com", "eu-west-1")
    assert f"`<prefix>/{LOGS}/`" in text
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert "s3" in names["report"].required_resource_keys


# --------------------------------------------------------------------------------- the page


def test_the_tables_are_there_before_page_and_daemon_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would make them on a fresh home, and the later one ends: `table jobs already exists`."""
    place = Place.make(tmp_path / "fresh")
    there: list[bool] = []

    def started(*_: object, **__: object) -> None:
        there.append((place.folder / "dagster" / "schedules" / "schedules.db").exists())
        raise InterruptedError

    monkeypatch.setattr(subprocess, "Popen", started)
    with pytest.raises(InterruptedError), page(place.settings, 1):
        raise AssertionError("nothing was started")
    assert there == [True]


def test_a_silent_tick_logs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What a tick logs is an object in the bucket, and it ticks some 5,000 times a day."""
    monkeypatch.setenv("TENURE_TICK_S", "0")
    place = Place.make(tmp_path / "idle")
    said: list[str] = []
    monkeypatch.setattr("pipelines.sensors.playing", lambda *_: ([], list(said)))
    with dg.DagsterInstance.ephemeral() as instance:
        for sentences in (["one"], ["one"], ["one", "two"], ["two"], ["one", "two"]):
            said[:] = sentences
            skipped = str(tick(place, instance).skip_reason)
            assert all(sentence in skipped for sentence in sentences)
    logged = [line.rpartition(" ")[2] for line in capfd.readouterr().err.splitlines()]
    assert logged == ["one", "two", "one"]
