"""Jobs of code that one did not write: Python that stands in their configuration, run by real workers."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runners.own_process import OwnProcessRunner, _bearers
from tenure.dispatch.contract import Job, Receipt, Site
from tenure.testing import runner_checks
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import Reserve
from tenure_protocol.records import JobSpec, Kind, SnapshotRef, Witness
from tenure_protocol.store.api import Found, Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_worker import code
from tests.processes import end
from tests.without_torch import without_torch

DEADLINE_S = 240.0
ENTRY = "stranger.experiment:Stranger"
EXPERIMENT = '''
import json
class Stranger:
    def train(self, tenure, config, seed):
        found = tenure.resume(lambda folder: json.loads((folder / "state").read_text())) or {}
        def step():
            tenure.step()
            if tenure.milestone_due:
                tenure.milestone(save)
        def save(folder):
            (folder / "state").write_text(json.dumps(found))
        def refused(act):
            """The words of the refusal, or None where there was none."""
            try:
                act()
            except OSError as error:
                return error.strerror or str(error)
        exec(config["code"], {**globals(), **locals()})
        tenure.step()
        tenure.milestone(save)
        return found

    def evaluate(self, tenure, config, model_dir):
        from tenure_worker.experiment import Evaluation, Metric
        loss = float(json.loads((model_dir / "state").read_text())["loss"])
        return Evaluation({"loss": Metric(loss, "minimize", "nats")}, {"loss": [loss]})

    def backtest(self, tenure, config, model_dir): ...
'''


STAYS = """
import time
while True:
    time.sleep(0.02)
    step()
"""


@dataclass
class Place:
    """A project of a stranger's code, a store, and launches of its jobs."""

    root: Path
    store: Store
    receipts: list[tuple[OwnProcessRunner, Receipt]] = field(default_factory=list)

    def runner(self, **config: object) -> OwnProcessRunner:
        """A runner of this place, with a sandbox unless ``sandbox`` is false."""
        settings = {"sandbox": True, "threads": 1, "slots": 99, "linger_s": 0.0, **config}
        hidden = frozenset({"MY_KEY", "file:keys/deploy.pem"})
        return OwnProcessRunner("here", settings, Site(self.root, SYSTEM, hidden))

    def enlist(
        self, program: str, seed: int = 1, every: int = 1000, model: SnapshotRef | None = None
    ) -> JobSpec:
        """A job whose first launch is announced: a training, or the evaluation of ``model``."""
        kind: Kind = "evaluate" if model else "train"
        spec = JobSpec(
            "strangers", kind, kind, ENTRY, {"code": textwrap.dedent(program)}, seed, 1,
            code.code_digest(ENTRY), code.data_digest(object()), every,  # type: ignore[arg-type]
            model=model,
        )  # fmt: skip
        self.store.create(keys.job(spec.id), encode(spec))
        stored = read_witness(self.store, keys.witness_of(spec))
        reserve = Reserve("here", 60.0, "d1")
        done = change(self.store, keys.witness_of(spec), spec.id, stored, reserve, SYSTEM)
        assert isinstance(done, Applied)
        return spec

    def launch(
        self,
        program: str,
        every: int = 1000,
        model: SnapshotRef | None = None,
        **config: object,
    ) -> tuple[JobSpec, Receipt]:
        """Enlist a job and launch it."""
        spec = self.enlist(program, len(self.receipts), every, model)
        runner = self.runner(**config)
        name = f"tenure-{SYSTEM.nonce()}"
        receipt = runner.launch([Job(spec.id, spec.kind, 1, name, self.store.url)])
        self.receipts.append((runner, receipt))
        return spec, receipt

    def run(self, program: str, **config: object) -> tuple[int, Witness]:
        """The exit code of one job, and its witness."""
        spec, receipt = self.launch(program, 1000, None, **config)
        code = self.over(receipt)
        return code, self.witness(spec)

    def result(self, program: str, **config: object) -> dict[str, object]:
        """What one job found."""
        code, w = self.run(program, **config)
        assert code == 0 and w.result is not None, (code, w.reason, self.output())
        return dict(w.result)

    def over(self, receipt: Receipt) -> int:
        """Wait for the end of a launch; its exit code."""
        runner = next(runner for runner, one in self.receipts if one is receipt)
        end_s = SYSTEM.monotonic_s() + DEADLINE_S
        while (code := runner.exit_code(receipt)) is None:
            assert SYSTEM.monotonic_s() < end_s, self.output()
            SYSTEM.sleep(0.05)
        return code

    def witness(self, spec: JobSpec) -> Witness:
        found = read_witness(self.store, keys.witness_of(spec)).witness
        assert found is not None
        return found

    def until(self, ready: Callable[[], object]) -> None:
        end_s = SYSTEM.monotonic_s() + DEADLINE_S
        while not ready():
            assert SYSTEM.monotonic_s() < end_s, self.output()
            SYSTEM.sleep(0.05)

    def output(self) -> str:
        runner, receipt = self.receipts[-1]
        path = runner.output(receipt)
        return path.read_text(errors="replace") if path else ""

    def log(self, spec: JobSpec) -> str:
        found = [self.store.read(row.key) for row in self.store.list(keys.attempts(spec.id))
                 if "/log/" in row.key]  # fmt: skip
        return b"".join(one.body for one in found if isinstance(one, Found)).decode()


@contextmanager
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place for the time of the block; nothing of its launches is left after it."""
    root = tmp_path / "project"
    (root / "stranger").mkdir(parents=True)
    (root / "stranger" / "__init__.py").touch()
    (root / "stranger" / "experiment.py").write_text(EXPERIMENT)
    monkeypatch.syspath_prepend(str(root))
    for name in [name for name in sys.modules if name.partition(".")[0] == "stranger"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("PYTHONPATH", str(without_torch(tmp_path)))
    place = Place(root, DirectoryStore(root / ".tenure" / "store"))
    yield place
    for runner, receipt in place.receipts:
        end(_bearers(receipt.name))
        runner_checks.until_closed(runner, receipt)
