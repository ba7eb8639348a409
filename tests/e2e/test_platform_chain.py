"""`tenure run` from training to deployment with a rented platform as the only rung, as people run it.

The command is a process of its own, and so are its workers; the SDKs, S3 and STS are real, the services are
emulated (tests/emulators), so that a machine's card is what its ``nvidia-smi`` says and no more.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from gates.warrant import make_key
from tenure.dispatch.ladder import name_prefix
from tenure.dispatch.ledger import by_rung, read_ledger
from tenure.dispatch.registry import card_slug
from tenure.lookup import find_record
from tenure_protocol.lease import keys
from tenure_protocol.store.api import Store
from tenure_protocol.store.open import open_store
from tests.e2e.test_dagster import PLAN
from tests.e2e.test_init import COMMAND
from tests.emulators.accounts import ACCOUNTS, Account, KaggleAccount, opened
from tests.seaweed_iam import ROLE, SeaweedIam
from tests.tenure_command import complaint

CHECKOUT = Path(__file__).resolve().parents[2]
SP500 = CHECKOUT / "examples" / "sp500" / "plan.yaml"
FEWER = PLAN.replace("seeds: [1, 2, 3]", "seeds: [1, 2]").replace("[11, 14, 15]", "[11, 14]")
FEWER = FEWER.replace("margin: 0.2", "alpha: 0.2, margin: 0.2")  # two against two prove no less
QUICK_JOBS, SP500_JOBS = 13, 46  # of all stages together, with the repetition


TWO_RUNGS = "".join(
    f"""[rungs.{name}]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {{currency = "usd", per_h = 0}}
"""
    for name in ("near", "far")
)


@dataclass(frozen=True)
class Project:
    """A folder with a tenure.toml and a deploy key: one runner and one rung for each account."""

    folder: Path
    accounts: Sequence[Account]
    url: str
    slots: int  # jobs at once on each platform
    keys: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        make_key(self.folder / "deploy.key")
        parts = [f'[store]\nurl = "{self.url}"', '[gates]\ndeploy_key = "file:deploy.key"']
        for account in self.accounts:
            machines = max(1, self.slots // account.cards)
            config = account.config(machines=machines, role=ROLE, **self.keys)
            lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in config.items())
            parts += [
                f'[runners.at-{account.kind}]\nkind = "{account.kind}"\n{lines}',
                f'[rungs.{account.kind}]\nrunner = "at-{account.kind}"\n'
                f'card = "{card_slug(account.card)}"\nprice_class = "spot"\n'
                f'price = {{currency = "{account.currency}", per_h = 3.6}}',
            ]
        (self.folder / "tenure.toml").write_text("\n".join(parts))

    @property
    def store(self) -> Store:
        return open_store(self.url)

    def run(self, plan: Path, rung: str) -> dict[str, object]:
        """The answer of `tenure run PLAN --rungs RUNG --json` in this folder."""
        environ = {
            name: text for name, text in os.environ.items() if not name.startswith("TENURE_")
        }
        words = ["run", str(plan), "--rungs", rung, "--json"]
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        answer: dict[str, object] = json.loads(done.stdout)
        return answer


def check_deployed(project: Project, account: Account, name: str) -> None:
    """Every stage is done, the model was retrained on that card, and all has ended and is paid."""
    store = project.store
    record = find_record(str(json.loads(body(store, keys.deployment(name)))["record"]), store)
    assert record.generation == 2
    for member in record.members:
        for digest in [member.requires or "not pinned", *member.measured]:
            environment = record.environments[digest]
            assert environment["card"] == account.card and environment["cards"] == 1
    entries, troubles = read_ledger(store)
    (cost,) = by_rung(entries)
    assert not troubles and (cost.rung, cost.currency) == (account.kind, account.currency)
    assert cost.launches == len(account.machines.all) and cost.amount > 0
    jobs = {row.key.split("/")[1] for row in store.list("jobs/")}
    assert {entry.job for entry in entries} == jobs
    assert not list(store.list(keys.UNSETTLED))
    check_nothing_lives(project)


def check_nothing_lives(project: Project) -> None:
    for account in project.accounts:
        assert account.alive() == [] and account.machines.all_end()
    prefix = name_prefix(project.url)
    for process in psutil.process_iter(["environ"]):
        assert not str((process.info["environ"] or {}).get("TENURE_NAME", "")).startswith(prefix)


def check_stages(answer: dict[str, object], jobs: int) -> None:
    stages = answer["stages"]
    assert isinstance(stages, list)
    assert [stage["state"] for stage in stages] == ["done"] * 7, stages
    assert all(stage["jobs"] == stage["finished"] for stage in stages)
    assert sum(stage["jobs"] for stage in stages) == jobs, stages
    verdicts = answer["verdicts"]
    assert isinstance(verdicts, list) and {v["verdict"] for v in verdicts} == {"PASS"}, verdicts


def body(store: Store, key: str) -> bytes:
    found = store.read(key)
    assert hasattr(found, "body"), key
    content: bytes = found.body
    return content


def test_a_chain_on_machines_of_two_cards(iam: SeaweedIam, tmp_path: Path) -> None:
    """Kaggle: jobs come in pairs, the hours are a quota's, and no call ends a run."""
    with opened(KaggleAccount, tmp_path / "kaggle") as account:
        project = Project(tmp_path / "project", [account], iam.url("quick"), slots=4)
        (project.folder / "plan.yaml").write_text(FEWER)
        answer = project.run(project.folder / "plan.yaml", "kaggle")
        check_stages(answer, QUICK_JOBS)
        check_deployed(project, account, "quick")
        pairs = (QUICK_JOBS - 1) // 2  # and a machine for the repetition
        assert len(account.machines.all) == pairs + 1, "every other machine had a job for each card"


def test_rungs_that_are_named_stand_in_for_those_of_the_plan(
    iam: SeaweedIam, tmp_path: Path
) -> None:
    """The plan's own `local` is not there, and only who uses it is told so."""
    project = Project(tmp_path / "project", [], iam.url("none"), slots=1)
    (project.folder / "tenure.toml").write_text(TWO_RUNGS)
    plan, config = project.folder / "plan.yaml", str(project.folder / "tenure.toml")
    plan.write_text(FEWER)
    for rungs, name in (
        (("--rungs", "far,nowhere"), "nowhere"),
        ((), "local"),
        (("--rungs", ","), "local"),
    ):
        ended = complaint("run", str(plan), *rungs, "--config", config)
        assert ended.code == 2 and f"there is no rung {name!r}" in ended.err
        assert "known: " in ended.err or "did you mean" in ended.err


@pytest.mark.soak
@pytest.mark.usefixtures("with_torch")
@pytest.mark.parametrize("kind", ACCOUNTS, ids=lambda kind: kind.kind)
def test_the_example_on_each_platform(iam: SeaweedIam, tmp_path: Path, kind: type[Account]) -> None:
    with opened(kind, tmp_path / kind.kind) as account:
        account.machines.torch = True
        project = Project(tmp_path / "project", [account], iam.url(f"sp500-{kind.kind}"), slots=2)
        answer = project.run(SP500, kind.kind)
        check_stages(answer, SP500_JOBS)
        check_deployed(project, account, "sp500")
