"""The runner of docs/add-a-runner.md, taken out of the page, under the suite of all runners: a real sshd."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from runners import rented
from runners.rented import RentedRunner
from tenure.dispatch.contract import Pending, Receipt, Site, Unreachable
from tenure.testing import runner_checks
from tenure.testing.runner_checks import Fault
from tenure_protocol.clock import SYSTEM
from tests import sshd
from tests.conformance.test_rented import CHECKOUT, ROLE, SLEEP, SeaweedIam, job_in

PAGE = CHECKOUT / "docs" / "add-a-runner.md"
MOST_LINES = 120
HAS: tuple[Fault, ...] = ("no slots", "bad credentials", "hang", "ghost")

pytestmark = pytest.mark.skipif(not sshd.SSHD, reason="no sshd: apt-get install openssh-server")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= MOST_LINES
    path = tmp_path_factory.mktemp("page") / "ssh_runner.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("ssh_runner", path)
    assert spec and spec.loader
    module = sys.modules["ssh_runner"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as one:
        yield one


@pytest.fixture(autouse=True)
def _asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rented.stage_zero, "program", lambda: SLEEP)


def maker(page: ModuleType, server: sshd.Sshd, **keys: object) -> Callable[[], RentedRunner]:
    config = {"host": server.host, "options": list(server.options), "card": "cpu", "role": ROLE}
    config |= {"machines": 50, "grace_s": 3.0, **keys}

    def make() -> RentedRunner:
        runner: RentedRunner = page.SshRunner("lab", config, Site(CHECKOUT, SYSTEM))
        return runner

    return make


@pytest.mark.parametrize("check", runner_checks.ALL, ids=lambda check: check.__name__)
def test_every_runner(
    page: ModuleType, server: sshd.Sshd, iam: SeaweedIam, check: runner_checks.Check
) -> None:
    check(maker(page, server), job_in(iam))


def faults(
    page: ModuleType, server: sshd.Sshd, keys: dict[str, object]
) -> Callable[[Fault], object]:
    """The ways in which a host can fail: ``keys`` are those of the runners made meanwhile."""

    @contextmanager
    def fault(kind: Fault) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if kind == "no slots":
                patch.setattr(page.SshPlatform, "running", lambda *_: [("x", {})] * 50)
                patch.setattr(page.SshPlatform, "find", lambda *_: None)
            elif kind == "bad credentials":
                keys["options"] = [o for o in server.options if o != "-i" and "user" not in o]
            elif kind == "hang":
                # a ProxyCommand that says nothing, as a host that takes connections and is stuck;
                # the deadline is of those calls alone: the host's own answers have all their time
                keys["options"] = [*server.options, "-o", "ProxyCommand=sleep 60"]
                keys["deadline_s"] = 1.0
            else:
                real = page.SshPlatform._run

                def lost(self: object, what: str, script: str) -> str:
                    said: str = real(self, what, script)
                    if what == "create":
                        raise Unreachable("no answer in time", sent=True)
                    return said

                patch.setattr(page.SshPlatform, "_run", lost)
            yield
            keys.clear()

    return fault


@pytest.mark.parametrize(
    "check",
    [c for c in runner_checks.FAULTS if not re.search("quota|garbage", c.__name__)],
    ids=lambda check: check.__name__,
)
def test_every_runner_when_its_host_fails(
    page: ModuleType, server: sshd.Sshd, iam: SeaweedIam, check: runner_checks.FaultCheck
) -> None:
    keys: dict[str, object] = {}

    def make() -> RentedRunner:
        return maker(page, server, **keys)()

    check(make, job_in(iam), faults(page, server, keys))  # type: ignore[arg-type]


def test_what_the_machine_left_behind_is_ended_before_the_bill_is_closed(
    page: ModuleType, server: sshd.Sshd, iam: SeaweedIam
) -> None:
    runner, job = maker(page, server)(), job_in(iam)()
    receipt = runner.launch([job])
    pid = int((server.home / ".tenure/machines" / job.name / "pid").read_text())
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEP],
        env={**os.environ, "TENURE_NAME": job.name},
        start_new_session=True,
    )
    try:
        os.kill(pid, signal.SIGKILL)
        settlement = runner.release(Receipt(receipt.jobs, "lab", job.name, "cpu", 0.0))
        while isinstance(settlement, Pending):
            SYSTEM.sleep(0.1)
            settlement = runner.release(receipt)
            child.poll()
        assert child.wait(60) == -signal.SIGKILL
    finally:
        child.kill()
        child.wait()
