"""Machines that are no good: of another kind, that never start, too late, refused, or without their SDK.

Each case is one job on a ladder of two rungs: an emulated platform in trouble, with the real SDK, S3 and STS, and a
next rung. It ends with the job finished on the next one, and with words that say why.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from runners import rented
from tenure.cli.why import read_history
from tenure.dispatch import sweep
from tenure.dispatch.contract import (
    ALL_KINDS,
    Capacity,
    Closed,
    Job,
    JobKind,
    Receipt,
    Settlement,
    Site,
)  # fmt: skip
from tenure.dispatch.ladder import Price, Rung, launch_name
from tenure.dispatch.ledger import by_rung, read_ledger
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Lease, Stored, acquire, change, read_witness
from tenure_protocol.lease.machine import Cancel, Finish
from tenure_protocol.records import JobSpec, Witness
from tenure_protocol.store.api import Written
from tenure_protocol.store.open import open_store
from tenure_worker import code
from tenure_worker.claim import read_spec
from tests.e2e.test_interrupt import WITHOUT
from tests.e2e.test_platform_chain import Project
from tests.emulators.accounts import (
    ACCOUNTS,
    Account,
    KaggleAccount,
    LightningAccount,
    ModalAccount,
    RunPodAccount,
    VastAccount,
    opened,
)  # fmt: skip
from tests.seaweed_iam import ROLE, SeaweedIam
from tests.tenure_command import complaint, tenure

CHECKOUT = Path(__file__).resolve().parents[2]
ENTRY = "tests.e2e.quick.experiment:Quick"
WINDOW_S = 600.0
PATIENCE_S = 240.0
_numbers = itertools.count()


class Prompt:
    """A next rung that is good: its machine claims and finishes at once, through the real protocol."""

    JOB_KINDS: ClassVar[frozenset[JobKind]] = ALL_KINDS

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self._clock = site.clock

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(1, 2, WINDOW_S)

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        for job in jobs:
            store = open_store(job.store)
            key = keys.witness_of(read_spec(store, job.job_id))
            lease = acquire(store, key, job.job_id, job.launch, 100.0, 1.0, self._clock)
            assert isinstance(lease, Lease)
            lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))
        ids = tuple(job.job_id for job in jobs)
        return Receipt(ids, "prompt", jobs[0].name, "cpu", self._clock.wall_s(), {"id": 1})

    def release(self, receipt: Receipt) -> Settlement:
        return Closed("it has ended", 1.0)


class Scene:
    """One job, which may run on the platform of an account or, better, on the next rung."""

    def __init__(self, server: SeaweedIam, account: Account, **config: object) -> None:
        self.account = account
        self.store = open_store(server.url(f"bad-{next(_numbers)}"))
        digest, data = code.code_digest(ENTRY), code.data_digest(object())  # type: ignore[arg-type]
        spec = JobSpec("bad", "train", "training", ENTRY, {"level": 1.0}, 0, 1, digest, data, 10)
        terms: dict[str, object] = {"rungs": [account.kind, "next"]}
        (self.job,) = enlist(self.store, "bad", "bad", [spec], terms, SYSTEM)
        keys_ = account.config(role=ROLE, claim_window_s=WINDOW_S, **config)
        site = Site(CHECKOUT, SYSTEM)
        self.runner = account.runner(account.kind, keys_, site)
        rungs = [
            Rung(
                account.kind, account.kind, self.runner, account.runner.capacity(keys_),
                price=Price(account.currency, 3.6),
            ),
            Rung("next", "prompt", Prompt("prompt", {}, site), Prompt.capacity({})),
        ]  # fmt: skip
        self.dispatcher = Dispatcher(self.store, rungs, SYSTEM)
        self.said: list[str] = []

    def play(self) -> Witness:
        """Dispatch until the job is over and every bill closed; how it ended."""

        def report(tick: Tick) -> None:
            self.said.append(tick.reason(self.job))
            self.said += tick.troubles.values()

        done = self.dispatcher.follow([self.job], 0.2, PATIENCE_S, report)
        assert self.dispatcher.drain(120.0, 0.2), self.said
        assert self.account.alive() == [] and self.account.machines.all_end()
        return done[self.job]

    def until(self, holds: Callable[[], bool]) -> None:
        """Dispatch until something is so."""
        end_s = SYSTEM.monotonic_s() + PATIENCE_S
        while not holds():
            assert SYSTEM.monotonic_s() < end_s, self.said
            self.said.append(self.dispatcher.tick().reason(self.job))
            SYSTEM.sleep(0.1)

    def lapse(self) -> None:
        """Let the claim window be over now: nobody waits for ten minutes."""
        key = keys.witness("bad", self.job)
        stored = read_witness(self.store, key)
        assert stored.witness and stored.witness.phase == "expected", stored
        raw = json.loads(stored.witness.encode())
        raw["launch"]["window_s"] = 0.5
        over = Witness.decode(json.dumps(raw).encode(), key)
        assert isinstance(self.store.replace(key, over.encode(), stored.etag), Written)

    @property
    def launches(self) -> list[tuple[str, str]]:
        """Rung and reason of every launch."""
        return [(i.rung, i.reason) for i in read_history(self.store, self.job).intents]

    def check_finished_on_the_next(self, after: str) -> None:
        """It was launched there once, after one launch on the first rung, for a reason in words."""
        w = self.play()
        assert w.phase == "finished" and w.exit_code == 0, self.said
        (first, _), (second, reason) = self.launches
        assert (first, second) == (self.account.kind, "next")
        assert after in reason, reason

    def machine_said(self) -> str:
        return "".join(machine.output() for machine in self.account.machines.all)


@contextmanager
def scene(
    server: SeaweedIam, folder: Path, kind: type[Account], **config: object
) -> Iterator[Scene]:
    with opened(kind, folder / kind.kind) as account:
        yield Scene(server, account, **config)


FAILED = "launch 1 is known to have failed"
UNCLAIMED = "launch 1 did not claim within its"


def test_a_card_that_is_not_the_promised_one(iam: SeaweedIam, tmp_path: Path) -> None:
    with scene(iam, tmp_path, VastAccount) as bad:
        bad.account.machines.card = "NVIDIA GeForce RTX 3060"
        bad.check_finished_on_the_next(FAILED)
        words = f"this machine has NVIDIA GeForce RTX 3060, {bad.account.card} was promised"
        assert bad.dispatcher.world.jobs[bad.job].excluded == {"vast": words}
        (refusal,) = read_history(bad.store, bad.job).refusals
        assert (refusal.launch, refusal.reason) == (1, words) and words in bad.machine_said()
        entries, _ = read_ledger(bad.store)
        (cost,) = [cost for cost in by_rung(entries) if cost.rung == "vast"]
        assert cost.launches == 1 and cost.amount > 0, "it was paid for all the same"


def test_an_image_that_does_not_start(iam: SeaweedIam, tmp_path: Path) -> None:
    with scene(iam, tmp_path, ModalAccount) as bad:
        bad.account.service.broken_image = "exec format error"  # type: ignore[attr-defined]
        bad.check_finished_on_the_next(FAILED)  # this platform tells, and no window is waited for
        assert any("Rejected" in words and "exec format error" in words for words in bad.said)


def test_a_machine_that_ends_before_it_runs_anything(
    iam: SeaweedIam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that is restarted again and again, and paid for, until its window is over."""
    monkeypatch.setattr(rented.stage_zero, "program", lambda: "import sys; sys.exit(1)")
    with scene(iam, tmp_path, RunPodAccount) as bad:
        pods = bad.account.service.pods  # type: ignore[attr-defined]
        bad.until(lambda: bool(pods) and pods[0].starts > 1)
        assert len(pods) == 1 and bad.account.alive(), (
            "nobody but its worker says that it is no good"
        )
        bad.lapse()
        bad.check_finished_on_the_next(UNCLAIMED)
        entries, _ = read_ledger(bad.store)
        assert {cost.rung for cost in by_rung(entries)} == {"runpod"}


def test_a_link_that_expired_before_the_machine_came_up(
    iam: SeaweedIam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rented, "_LINK_SLACK_S", 1.0 - WINDOW_S)  # links of a second
    with scene(iam, tmp_path, KaggleAccount) as bad:
        bad.account.service.queue_s = 2.2  # type: ignore[attr-defined]
        machines = bad.account.machines
        bad.until(lambda: bool(machines.all) and not machines.running)
        bad.lapse()
        bad.check_finished_on_the_next(UNCLAIMED)
        assert len(machines.all) == 1 and bad.machine_said() == (
            "tenure: the link to the worker's wheel has expired or opens nothing (403); launch the "
            "job again\n"
        )


def test_credentials_of_an_account_that_may_not(iam: SeaweedIam, tmp_path: Path) -> None:
    with scene(iam, tmp_path, LightningAccount, teamspace="somebody-elses") as bad:
        bad.check_finished_on_the_next(FAILED)
        failed = [words for words in bad.said if "Rejected" in words]
        assert failed and all("somebody-elses" in words for words in failed), bad.said
        assert not bad.account.machines.all


# ------------------------------------------------------------------------------------- the commands


def test_an_sdk_that_is_not_installed_names_its_extra(iam: SeaweedIam, tmp_path: Path) -> None:
    """The job goes on to the next rung; `tenure doctor` says what to install."""
    with opened(ModalAccount, tmp_path / "modal") as account:
        project = Project(tmp_path / "project", [account], iam.url("no-sdk"), slots=1)
        toml = project.folder / "tenure.toml"
        toml.write_text(toml.read_text() + HERE)
        spec = quick(0)
        enlist(project.store, "q", "q", [spec], {"rungs": ["modal", "local"]}, SYSTEM)
        done = without("modal", project.folder, "dispatch", "--for-s", "60", "--until-done")
        assert done.returncode == 0, done.stdout + done.stderr
        assert EXTRA in done.stdout and "Traceback" not in done.stdout + done.stderr
        w = read_witness(project.store, keys.witness_of(spec)).witness
        assert w and w.exit_code == 0
        intents = read_history(project.store, spec.id).intents
        assert [intent.rung for intent in intents] == ["modal", "local"]
        seen = without("modal", project.folder, "doctor", "--json")
        assert seen.returncode == 1
        rows = json.loads(seen.stdout)["checks"]
        assert [row for row in rows if not row["ok"] and EXTRA in row["detail"]]
        assert not account.machines.all


EXTRA = "needs the package modal, which is not installed; run: pip install"
HERE = """
[runners.here]
kind = "own_process"
slots = 1
[rungs.local]
runner = "here"
card = "cpu"
price_class = "on_demand"
price = {currency = "usd", per_h = 0}
"""


def quick(seed: int) -> JobSpec:
    digest, data = code.code_digest(ENTRY), code.data_digest(object())  # type: ignore[arg-type]
    return JobSpec("q", "train", "training", ENTRY, {"level": 1.0}, seed, 1, digest, data, 10)


def without(module: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A command of `tenure` in a Python that lacks a package."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TENURE_")}
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("MISSING", repr({module})), *args],
        cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ACCOUNTS, ids=lambda kind: kind.kind)
def test_a_card_that_the_platform_has_not(tmp_path: Path, kind: type[Account]) -> None:
    """One sentence with file and line before anything is asked; `tenure doctor` has it in its table."""
    toml = tmp_path / "tenure.toml"
    lines = [
        *HERE.splitlines(),
        "[runners.far]",
        f'kind = "{kind.kind}"',
        'card = "NVIDIA T5"',
        *(f"{key} = {json.dumps(value)}" for key, value in kind.keys.items()),
        "[rungs.far]",
        'runner = "far"',
        'card = "nvidia-t5"',
        'price_class = "spot"',
        'price = {currency = "usd", per_h = 1}',
    ]
    toml.write_text("\n".join(lines))
    at = f"{toml}:{lines.index('[runners.far]') + 1}: runners.far: {kind.kind}: card: "
    ended = complaint("dispatch", "--until-done", "--config", str(toml))
    assert ended.code == 2
    assert ended.err.startswith(f"tenure: {at}") and "NVIDIA T5" in ended.err
    seen = tenure("doctor", "--json", "--config", str(toml))
    assert seen.code == 1 and "runner far" in seen.err
    (row,) = [row for row in json.loads(seen.out)["checks"] if row["about"] == "runner far"]
    assert row["detail"] == ended.err.strip().removeprefix("tenure: ")


@pytest.mark.parametrize("command", [("doctor",), ("dispatch", "--until-done")])
def test_a_rung_without_a_currency(tmp_path: Path, command: tuple[str, ...]) -> None:
    toml = tmp_path / "tenure.toml"
    toml.write_text(HERE.replace('currency = "usd", ', ""))
    ended = complaint(*command, "--config", str(toml))
    assert ended.code == 2
    assert ended.err.startswith(f"tenure: {toml}:9: rungs.local.price.currency: "), ended.err


def test_what_nobody_keeps_a_bill_of_is_gone_when_the_command_ends(
    iam: SeaweedIam, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine under our prefix that is listed only after the dispatcher's first look."""
    monkeypatch.setattr(rented.stage_zero, "program", lambda: "import time; time.sleep(600)")
    with opened(VastAccount, tmp_path / "vast") as account:
        project = Project(tmp_path / "project", [account], iam.url("orphan"), slots=1)
        store, spec = project.store, quick(0)
        enlist(store, "q", "q", [spec], {"rungs": ["vast"]}, SYSTEM)
        assert isinstance(
            change(
                store,
                keys.witness_of(spec),
                spec.id,
                Stored(None, ""),
                Cancel("a person", "enough"),
                SYSTEM,
            ),
            Applied,
        )
        name, first = launch_name(store.url, spec.id, 7), [True]
        look = sweep.Sweeper.sweep

        def then_a_ghost(self: sweep.Sweeper, at_once: bool = False) -> None:
            look(self, at_once)
            if first and first.pop():
                account.make(CHECKOUT, role=ROLE).launch(
                    [Job(spec.id, spec.kind, 7, name, store.url)]
                )
                assert account.alive() == [name]

        monkeypatch.setattr(sweep.Sweeper, "sweep", then_a_ghost)
        ended = tenure("dispatch", "--until-done", "--config", str(project.folder / "tenure.toml"))
        assert not first and account.alive() == [] and account.machines.all_end()
        assert ended.code == 1, "its only job was cancelled"
        assert name in ended.err and "no bill of ours is open for it" in ended.err
