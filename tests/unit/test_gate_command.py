"""``tenure gate check`` and ``tenure deploy``, of records and of plans; no job trains here."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from assets.chain import STAGES, Chain
from assets.gate_command import answer
from assets.verdicts import GATES
from gates.deploy import current
from gates.evidence import Evidence
from gates.spread import spread
from gates.verdict import Verdict
from gates.warrant import make_key
from tenure.lookup import retrains
from tenure.plan.enlist import enlist
from tenure.plan.file import load_plan
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import canonical, encode, plain
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, MetricValue, ModelRecord
from tenure_protocol.store.api import Found, Store, StoreSilent
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import (
    EXPERIMENT,
    MEASURED,
    METRIC,
    losses_of,
    overwrite,
    research,
    retrain,
    snapshot,
)
from tests.tenure_command import complaint, tenure
from tests.unit.test_cli import Ended

PLAN = """\
name: orbit
experiment: study_of_gates.experiment:Study
grid: {level: [1, 2]}
seeds: [1, 2, 3, 4, 5]
retrain_seeds: [11, 12, 13, 14, 15]
baseline: {level: 1}
rungs: [local]
promote: {metric: qlike, direction: minimize, margin: 0.05, min_score: 0.5}
"""
CODE = """\
from pathlib import Path
from xml.etree import ElementTree

class Study:
    def data_files(self):
        return [Path(__file__).with_name("table.csv")]

    def train(self, tenure, config, seed): ...
    def evaluate(self, tenure, config, model_dir): ...
    def backtest(self, tenure, config, model_dir): ...
"""
SETTINGS = """\
[store]
url = "file:store"
[gates]
deploy_key = "file:deploy.pem"
"""


@dataclass(frozen=True)
class House:
    """Somebody's project: settings, a plan, an experiment with data, and a store."""

    folder: Path
    plan: Path
    code: Path
    store: Store

    @property
    def store_folder(self) -> Path:
        return self.folder / "store"

    def chain(self) -> Chain:
        settings = load_settings(start=self.folder, environ={})
        return Chain(self.store, load_plan(self.plan, settings), settings, SYSTEM)

    def play(self, stages: tuple[str, ...] = STAGES) -> None:
        """Finish the jobs of the stages as workers would, unless they are finished already."""
        for stage in stages:
            chain = self.chain()
            specs = chain.specs(stage)
            name = chain.plan.name
            enlist(self.store, name, name, specs, chain.plan.terms(), SYSTEM)
            for spec in specs:
                finish(self.store, spec)


def finish(store: Store, spec: JobSpec) -> None:
    if spec.kind == "train":
        snapshot(
            store,
            spec,
            {"weights.bin": f"{spec.config} {spec.seed} {spec.generation}".encode()},
            MEASURED,
        )
    elif spec.kind == "evaluate":
        losses = losses_of(spec.seed, shift=0.1 * int(str(spec.config["level"])))
        value = {METRIC: MetricValue(float(losses.mean()), "minimize", "nats")}
        files = {
            f"losses/{METRIC}.f64": losses.astype("<f8").tobytes(),
            "evaluation.json": canonical({"metrics": plain(value)}),
        }
        snapshot(store, spec, files, MEASURED, {"metrics": plain(value)})
    else:
        result = {"score": 0.8, "passed": True, "reasons": []}
        snapshot(store, spec, {"backtest.json": canonical(result)}, MEASURED, result)


def build(folder: Path) -> House:
    (folder / "tenure.toml").write_text(SETTINGS)
    (folder / "plan.yaml").write_text(PLAN)
    code = folder / "study_of_gates" / "experiment.py"
    code.parent.mkdir()
    code.write_text(CODE)
    code.with_name("table.csv").write_text("1,2,3")
    make_key(folder / "deploy.pem")
    return House(folder, folder / "plan.yaml", code, DirectoryStore(folder / "store"))


@contextmanager
def import_system() -> Iterator[None]:
    """Two projects here have a module of one name: what is imported from one is forgotten after."""
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("study_of_gates")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """What a store holds when the plan was played to its end."""
    with import_system():
        house = replace(build(tmp_path_factory.mktemp("played")), store=MemoryStore())
        house.play()
        house.chain().second_generation()
        assert isinstance(house.store, MemoryStore)
        return house.store


def fill(house: House, played: MemoryStore) -> ModelRecord:
    """Put all that into the house's store; returns the record that may be deployed now."""
    for row in played.list(""):
        path = house.store_folder / row.key
        path.parent.mkdir(parents=True, exist_ok=True)
        body = played.read(row.key)
        assert isinstance(body, Found)
        path.write_bytes(body.body)
    (record,) = retrains(house.store, "orbit")
    return record


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_STORE", raising=False)
    monkeypatch.delenv("TENURE_CONFIG", raising=False)
    with import_system():
        yield build(tmp_path)


@pytest.fixture
def found(house: House, played: MemoryStore) -> ModelRecord:
    return fill(house, played)


def answered(ended: Ended) -> tuple[int, object, str]:
    """Exit code, record, and the reasons of every verdict that is no PASS."""
    verdicts = ended.json["verdicts"]
    assert isinstance(verdicts, list)
    against = [item["reason"] for item in verdicts if item["verdict"] != "PASS"]
    assert ended.json["deployable"] is (not against)
    return ended.code, ended.json["record"], "; ".join(against)


# -------------------------------------------------------------------------------- a plan


def test_a_plan_that_was_not_run_has_nothing_to_deploy(house: House) -> None:
    code, record, why = answered(tenure("gate", "check", "plan.yaml", "--json"))
    assert (code, record) == (1, None)
    assert "orbit as it stands now has no generation-2 record to deploy: 10 jobs of training" in why
    assert f"`tenure run {house.plan}` plays it" in why


def test_the_record_of_a_plan_is_deployed(house: House, found: ModelRecord) -> None:
    for name in ("plan.yaml", found.id):
        assert answered(tenure("gate", "check", name, "--json")) == (0, found.id, "")
    ended = tenure("deploy", "plan.yaml")
    assert ended.code == 0 and f"orbit: record {found.id}, seed 11, is deployed" in ended.out


CHANGES = {
    "margin": (
        "plan.yaml",
        "margin: 0.05",
        "margin: 0.000000001",
        "promote.margin 0.05 instead of 1e-09",
    ),
    "min_score": ("plan.yaml", "min_score: 0.5", "min_score: 0.6", "min_score 0.5 instead of 0.6"),
    "direction": ("plan.yaml", "minimize", "maximize", "promote.direction 'minimize'"),
    "alpha": ("plan.yaml", "0.5}", "0.5, alpha: 0.01}", "promote.alpha 0.05 instead"),
    "another metric": (
        "plan.yaml",
        "0.5}",
        "0.5, also: [{metric: mae, direction: minimize, margin: 2}]}",
        "promote.also [] instead of ['mae (minimize, margin 2)']",
    ),
    "grid, without the point": ("plan.yaml", "level: [1, 2]", "level: [2]", "no point of the plan"),
    "grid, with one more": (
        "plan.yaml",
        "level: [1, 2]",
        "level: [1, 2, 3]",
        "jobs that are not the plan's",
    ),
    "seeds": ("plan.yaml", "seeds: [1, 2,", "seeds: [6, 2,", "jobs that are not the plan's"),
    "retrain_seeds": (
        "plan.yaml",
        "seeds: [11,",
        "seeds: [16,",
        "seeds [11, 12, 13, 14, 15] instead of [16",
    ),
    "milestone_every": (
        "plan.yaml",
        "rungs:",
        "milestone_every: 7\nrungs:",
        "jobs that are not the plan's",
    ),
    "code": (
        "study_of_gates/experiment.py",
        "import Path\n",
        "import Path\nN = 1\n",
        "code '",
    ),
    "data": ("study_of_gates/table.csv", "1,2,3", "1,2,4", "data '"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_plan_that_changed_since_is_not_deployable(
    house: House, change: tuple[str, str, str, str], found: ModelRecord
) -> None:
    file, old, new, words = change
    path = house.folder / file
    before = path.read_text()
    assert old in before
    path.write_text(
        before.replace(old, new).replace("baseline: {level: 1}", "baseline: {level: 2}")
    )
    code, record, why = answered(tenure("gate", "check", "plan.yaml", "--json"))
    assert (code, record) == (1, None)
    assert f"The newest there is, {found.id}, is not of this plan: it has " in why and words in why
    ended = tenure("deploy", "plan.yaml")
    assert ended.code == 1 and words in ended.err and ended.out == ""
    assert current(house.store, "orbit") is None
    assert answered(tenure("gate", "check", found.id, "--json")) == (0, found.id, "")
    path.write_text(before)
    assert answered(tenure("gate", "check", "plan.yaml", "--json")) == (0, found.id, "")


def test_a_plan_that_ended_blocked_says_by_what(house: House, found: ModelRecord) -> None:
    house.plan.write_text(PLAN.replace("margin: 0.05", "margin: 0.000000001"))
    house.play(STAGES[:5])
    code, record, why = answered(tenure("gate", "check", "plan.yaml", "--json"))
    assert (code, record) == (1, None)
    assert "seed_spread: spread_mean: " in why and "more than 10000 on each side" in why
    assert found.id in why and "plays it" not in why
    ended = tenure("deploy", "plan.yaml")
    assert ended.code == 1 and "spread_mean" in ended.err
    assert current(house.store, "orbit") is None


def test_a_record_that_nobody_wrote_yet_is_not_written_by_a_check(
    house: House, found: ModelRecord
) -> None:
    house.store.delete(keys.model("orbit", found.id))
    before = files(house.folder)
    code, record, why = answered(tenure("gate", "check", "plan.yaml", "--json"))
    assert (code, record) == (1, None) and f"record {found.id} is not written yet" in why
    assert files(house.folder) == before
    assert tenure("deploy", "plan.yaml").code == 1


def test_terms_that_decide_no_deployment_may_change(house: House, found: ModelRecord) -> None:
    house.plan.write_text(f"{PLAN}priority: 5\nnightly: true\ndeadline_h: 2.5\n")
    assert answered(tenure("gate", "check", "plan.yaml", "--json")) == (0, found.id, "")


# ------------------------------------------------------------------------------ a record


def test_a_record_by_its_id_and_by_its_file(house: House) -> None:
    parent = research(house.store)
    code, name, _ = answered(tenure("gate", "check", parent.id, "--json"))
    assert (code, name) == (1, parent.id)
    record = retrain(house.store, parent)
    file = house.folder / "record.json"
    file.write_bytes(encode(record))
    for argument in (record.id, str(file)):
        assert answered(tenure("gate", "check", argument, "--json")) == (0, record.id, "")
    assert "may be deployed" in tenure("gate", "check", record.id).out


def test_a_record_is_deployed_under_a_name(house: House) -> None:
    parent = research(house.store)
    record = retrain(house.store, parent)
    assert tenure("deploy", parent.id).code == 1
    ended = tenure("deploy", record.id, "--name", "live")
    assert ended.code == 0, ended.err
    assert f"live: record {record.id}, seed 11, is deployed by warrant 1" in ended.out
    found = current(house.store, "live")
    assert found is not None and found.record == record.id


def test_a_record_by_its_id_has_the_seeds_of_its_plan(house: House, found: ModelRecord) -> None:
    """Whoever changed the plan since, with jobs in the store, cannot deploy a part of its seeds."""
    house.plan.write_text(PLAN.replace("seeds: [11,", "seeds: [10, 11,"))
    house.play(("pinned_retrain",))
    code, record, why = answered(tenure("gate", "check", found.id, "--json"))
    assert (code, record) == (1, found.id)
    assert "retrain_seeds [10, 11, 12, 13, 14, 15]" in why and "[11, 12, 13, 14, 15]" in why
    ended = tenure("deploy", found.id)
    assert ended.code == 1 and "seeds: the plan orbit (version " in ended.err
    assert current(house.store, "orbit") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "is no file here and no record's id"),
        ("a" * 26, "holds no model record"),
        ("gone.json", "there is no such record"),
        ("bad.json", "is corrupt"),
    ],
)
def test_bad_input_is_a_sentence(house: House, name: str, words: str) -> None:
    (house.folder / "bad.json").write_text('{"experiment": 3}')
    ended = tenure("gate", "check", name)
    assert (ended.code, ended.out) == (2, "") and words in ended.err


def test_a_stored_record_that_is_corrupt_is_a_no_and_names_its_key(house: House) -> None:
    record = retrain(house.store, research(house.store))
    key = keys.model(EXPERIMENT, record.id)
    overwrite(house.store, key, b"{}")
    for command in (["gate", "check", record.id, "--json"], ["deploy", record.id]):
        ended = tenure(*command)
        assert (ended.code, ended.out) == (1, "") and f"{key} is corrupt" in ended.err


# ---------------------------------------------------------------------------- reads only


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, with its bytes and when it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {
        str(path.relative_to(folder)) + "/": (b"", 0)
        for path in folder.rglob("*")
        if path.is_dir() and path.name != "__pycache__"
    }


def test_a_check_changes_nothing(house: House, played: MemoryStore) -> None:
    for filled in (False, True):
        if filled:
            fill(house, played)
        names = ["plan.yaml", "a" * 26, *models(house)[:1]]
        ahead_s = SYSTEM.wall_s() + 3600
        for path in house.store_folder.rglob("*.json"):
            os.utime(path, (ahead_s, ahead_s))  # an age from the future is mended by who may write
        before = files(house.folder)
        assert [tenure("gate", "check", name).code for name in names[:2]] == [int(not filled), 2]
        for name in names[2:]:
            tenure("gate", "check", name)
        assert files(house.folder) == before


def models(house: House) -> list[str]:
    return [Path(row.key).stem for row in house.store.list(keys.models("orbit"))]


def test_a_store_that_does_not_exist_is_bad_input_and_is_not_made(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    typo = house.folder / "stroe"
    monkeypatch.setenv("TENURE_STORE", f"file:{typo}")
    for name in ("plan.yaml", "a" * 26):
        ended = tenure("gate", "check", name, "--json")
        assert (ended.code, ended.out) == (2, "")
        assert re.fullmatch(rf"tenure: there is no store folder {typo}; .*\n", ended.err)
    assert not typo.exists()


def test_a_store_that_can_only_be_read_suffices(
    house: House, monkeypatch: pytest.MonkeyPatch, found: ModelRecord
) -> None:
    writes = ("mkdir", "touch", "unlink", "rename", "replace")

    def refused(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    for name in writes:  # modes of a folder do not bind root, who may run these tests
        monkeypatch.setattr(Path, name, refused)
    for argument in ("plan.yaml", found.id):
        assert answered(tenure("gate", "check", argument, "--json")) == (0, found.id, "")
    ended = tenure("deploy", found.id)
    assert ended.code == 2 and "cannot be written" in ended.err


# ----------------------------------------------------------------------- the JUnit report


def reported(path: Path) -> dict[str, tuple[str, str, str]]:
    """Of each case that is against the model: what it is, its type and its sentence."""
    return {
        str(case.get("name")): (item.tag, str(item.get("type")), str(item.get("message")))
        for case in ElementTree.parse(path).iter("testcase")
        for item in case
    }


def test_a_report_says_what_the_answer_says(house: House) -> None:
    parent = research(house.store)
    record = retrain(house.store, parent)
    file = house.folder / "reports" / "gate.xml"
    plainly = tenure("gate", "check", parent.id, "--json")
    ended = tenure("gate", "check", parent.id, "--json", "--junit", str(file))
    assert (ended.code, ended.out, ended.err) == (1, plainly.out, "")
    verdicts = ended.json["verdicts"]
    assert isinstance(verdicts, list)
    assert reported(file) == {
        item["gate"]: ("failure", item["verdict"], item["reason"])
        for item in verdicts
        if item["verdict"] != "PASS"
    }
    numbers = {item["gate"]: item["numbers"] for item in verdicts}
    assert numbers["generation"] == {"generation": 1.0}
    assert tenure("gate", "check", record.id, "--junit", str(file)).code == 0
    assert reported(file) == {}
    assert [path.name for path in file.parent.iterdir()] == ["gate.xml"]


def test_there_is_a_report_when_there_is_no_answer(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = retrain(house.store, research(house.store))
    (house.folder / "no.json").write_text('{"experiment": 3}')
    silent = DirectoryStore.read

    def read(self: DirectoryStore, key: str) -> object:
        if key.startswith("jobs/"):
            raise StoreSilent("timeout")
        return silent(self, key)

    monkeypatch.setattr(DirectoryStore, "read", read)
    cases = {record.id: (3, "StoreOutOfReach"), "no.json": (2, "UsageError")}
    for name, (code, kind) in cases.items():
        ended = tenure("gate", "check", name, "--junit", "gate.xml")
        assert (ended.code, ended.out) == (code, "")
        ((tag, found, words),) = reported(Path("gate.xml")).values()
        assert (tag, found, f"tenure: {words}\n") == ("error", kind, ended.err)


def test_a_report_that_cannot_be_written_is_a_sentence(house: House) -> None:
    record = retrain(house.store, research(house.store))
    for name in (record.id, "nonsense"):
        ended = tenure("gate", "check", name, "--junit", str(house.plan / "gate.xml"))
        assert ended.code == 2 and "the report " in ended.err and "cannot be written: " in ended.err


def test_an_infinite_number_is_a_text() -> None:
    found = answer(None, [Verdict("spread_mean", "BLOCK", "no", {"needed": float("inf")})])
    assert json.dumps(found, allow_nan=False).count('"inf"') == 1


# ------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocol": 99}, "speaks protocol 99"),
        ({"more": 1}, "has the unknown field 'more'"),
        ({"seeds": None}, "seeds"),
    ],
)
def test_a_record_of_another_version_is_refused(
    house: House, change: dict[str, object], words: str
) -> None:
    record = retrain(house.store, research(house.store))
    value = json.loads(encode(record)) | change
    (house.folder / "record.json").write_text(json.dumps(value))
    for command in (["gate", "check", "record.json"], ["deploy", "record.json"]):
        ended = complaint(*command)
        assert ended.code == 2 and words in ended.err


def test_seeds_of_both_generations_are_refused_in_the_plan(house: House) -> None:
    house.plan.write_text(PLAN.replace("seeds: [11,", "seeds: [5,"))
    ended = complaint("gate", "check", "plan.yaml")
    assert ended.code == 2 and "retrain_seeds" in ended.err and "plan.yaml" in ended.err


def test_a_key_that_others_can_read_deploys_nothing(house: House) -> None:
    record = retrain(house.store, research(house.store))
    (house.folder / "deploy.pem").chmod(0o644)
    ended = complaint("deploy", record.id)
    assert ended.code == 2 and "can be read by others (mode 0644)" in ended.err
    assert current(house.store, EXPERIMENT) is None


# ------------------------------------------------------------------------- Dagster's words


def test_the_asset_check_says_what_the_command_says(house: House, found: ModelRecord) -> None:
    """Of a model that is blocked in the command, by the check's own function."""
    from assets.materialize import checked

    ref = found.members[0].train
    key = keys.snapshot(ref.job, ref.pointer) + "weights.bin"
    overwrite(house.store, key, b"other weights")
    verdicts = tenure("gate", "check", "plan.yaml", "--json").json["verdicts"]
    shown = checked(house.chain().verdicts())
    assert not shown.passed and shown.description is not None
    assert isinstance(verdicts, list) and [item["gate"] for item in verdicts] == list(GATES[2:])
    assert shown.description == ". ".join(
        f"{item['gate']}: {item['verdict']}: {item['reason']}" for item in verdicts
    )
    assert f"the bytes of {key} are not those" in shown.description


def test_a_chain_judges_the_spread_once(
    house: House, found: ModelRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Evidence] = []

    def counted(evidence: Evidence) -> list[Verdict]:
        asked.append(evidence)
        return spread(evidence)

    monkeypatch.setattr("assets.chain.spread", counted)
    chain = house.chain()
    verdicts = chain.spread()
    chain.specs("pinned_backtest")
    assert chain.spread() == verdicts == spread(asked[0])
    assert len(asked) == 1 and all(verdict.verdict == "PASS" for verdict in verdicts)
