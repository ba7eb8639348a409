"""What all tests may ask for."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests import seaweed as server
from tests import seaweed_iam
from tests.hostile_proxy import HostileProxy, hostile_proxy

# No test asserts a time: what takes 200 ms alone takes a second beside three other processes.
# `make test` draws the same examples each time, so that what turns red was changed; `make sim` draws anew.
settings.register_profile("tenure", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    """The profile, unless the command line names one."""
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("tenure")


# A suite that a script starts in the background is born with SIGINT ignored, and so is all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], server.Seaweed]]:
    """A real S3 server, started by the first test of the session that calls for it."""
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        started: list[server.Seaweed] = []

        def get() -> server.Seaweed:
            if not started:
                patch.setenv("AWS_ACCESS_KEY_ID", server.ACCESS_KEY)
                patch.setenv("AWS_SECRET_ACCESS_KEY", server.SECRET_KEY)
                folder = tmp_path_factory.mktemp("seaweed") / "data"
                started.append(stack.enter_context(server.running(folder)))
            return started[0]

        yield get


@pytest.fixture(scope="module")
def iam(tmp_path_factory: pytest.TempPathFactory) -> Iterator[seaweed_iam.SeaweedIam]:
    """A real S3 server with STS, and its operator's keys in the environment of the module's tests."""
    with (
        pytest.MonkeyPatch.context() as patch,
        seaweed_iam.running(tmp_path_factory.mktemp("iam") / "data") as server,
    ):
        patch.setenv("AWS_ACCESS_KEY_ID", seaweed_iam.OPERATOR[0])
        patch.setenv("AWS_SECRET_ACCESS_KEY", seaweed_iam.OPERATOR[1])
        yield server


@pytest.fixture
def hostile(seaweed: Callable[[], server.Seaweed]) -> Iterator[Callable[[], HostileProxy]]:
    """A hostile wire in front of that server: one for each test that calls for it."""
    with ExitStack() as stack:
        made: list[HostileProxy] = []

        def get() -> HostileProxy:
            if not made:
                made.append(stack.enter_context(hostile_proxy(seaweed().port)))
            return made[0]

        yield get


_WRITES_NO_BYTECODE = sys.dont_write_bytecode


def pytest_collection(session: pytest.Session) -> None:
    """Each process of the suite imports a share of the test files before it collects them all.

    pytest rewrites their assertions when they are imported: 12 s of CPU for all of them, two thirds
    of a collection. It keeps what it wrote beside them, so that what one process has done, the others
    read. All begin at the same time; in the same order each would do all of it.
    """
    gc.disable()  # what is made here lives to the end of the process
    sys.dont_write_bytecode = False  # for as long as nothing but the checkout is imported
    name, here = os.environ.get("PYTEST_XDIST_WORKER"), Path(__file__).parent
    if name is None or here not in [Path(each).resolve() for each in session.config.args]:
        return
    number, count = int(name.removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in sorted(here.rglob("test_*.py"))[number::count]:
        with suppress(Exception):  # whatever is wrong with it, the collection says
            importlib.import_module(".".join(file.relative_to(here.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """From here on no collection of garbage looks again at six thousand tests and all they import."""
    gc.freeze()
    gc.enable()
    sys.dont_write_bytecode = _WRITES_NO_BYTECODE


#: What waits longest is begun first, so that no process of the suite is left alone with it at the end.
_LONGEST_FIRST = (
    "test_dagster.py", "test_chaos_s3", "test_platform_chain", "test_five_platforms", "/e2e/", "/sim/",
    "/conformance/", "",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files in that order, each as a whole."""

    def place(item: pytest.Item) -> int:
        path = item.path.as_posix()
        return next(n for n, part in enumerate(_LONGEST_FIRST) if part in path)

    items.sort(key=place)
