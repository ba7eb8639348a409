"""Dagster's page and daemon on this machine: two processes, loopback only."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pipelines.bucket import Bucket
from pipelines.home import demand_packages, make_tables, prepare
from tenure.errors import Blocked, UsageError
from tenure.settings import Settings
from tenure_protocol.clock import SYSTEM, Clock

HOST = "127.0.0.1"
LAST_PORT = 65535
CHECKOUT = Path(__file__).resolve().parents[1]
START_S = 120.0  # a cold disk takes a while to import Dagster
STOP_S = 20.0
POLL_S = 0.25
_TAIL_LINES = 5


@dataclass(frozen=True)
class Part:
    """One of the two processes, and the file its output goes to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        """The end of its log, on one line."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-_TAIL_LINES:] if line.strip())


class Page:
    """Both processes while they run."""

    def __init__(self, url: str, parts: Sequence[Part], clock: Clock) -> None:
        self.url = url
        self.parts = parts
        self._clock = clock

    def wait_until_it_answers(self, stopped: Sequence[int] = (), for_s: float = START_S) -> None:
        """Until it does, or a signal is noted in ``stopped``.

        Raises Blocked when a process ends first, or when none answers in time.
        """
        end_s = self._clock.monotonic_s() + for_s
        while not (stopped or _answers(self.url)):
            self._still_there()
            if self._clock.monotonic_s() >= end_s:
                raise Blocked(
                    f"Dagster did not answer at {self.url} within {for_s:.0f} s; its output is in "
                    f"{self.parts[0].log}"
                )
            self._clock.sleep(POLL_S)

    def wait(self, stopped: Sequence[int]) -> None:
        """Until a signal was noted in ``stopped``. Raises Blocked when a process ends by itself."""
        while not stopped:
            self._still_there()
            self._clock.sleep(POLL_S)

    def _still_there(self) -> None:
        for part in self.parts:
            code = part.process.poll()
            if code is not None:
                raise Blocked(
                    f"{part.name} ended with code {code} ({part.last_words() or 'it said nothing'}); "
                    f"its output is in {part.log}"
                )


@contextmanager
def page(settings: Settings, port: int | None = None, clock: Clock = SYSTEM) -> Iterator[Page]:
    """Webserver and daemon over the settings; both are ended on leaving.

    Workers are processes of their own and go on: the next dispatcher attaches to them. Raises
    UsageError when the port is taken, or when dagster-aws is named and missing.
    """
    port = settings.dagster.port if port is None else port
    demand_number(port)
    demand_free(port, settings)
    home = prepare(settings)
    demand_packages(home)
    make_tables(home)
    environ = environment(settings, home)
    workspace = str(CHECKOUT / "workspace.yaml")
    with ExitStack() as stack:
        parts = [
            stack.enter_context(
                _part(
                    "dagster-webserver",
                    ["dagster_webserver", "-h", HOST, "-p", str(port), "-w", workspace],
                    settings.root, environ, home, clock,
                )
            ),
            stack.enter_context(
                _part(
                    "dagster-daemon",
                    ["dagster._daemon", "run", "-w", workspace],
                    settings.root, environ, home, clock,
                )
            ),
        ]  # fmt: skip
        yield Page(f"http://{HOST}:{port}", parts, clock)


def demand_number(port: int) -> None:
    """Raises UsageError for a number that no port has; 0 would be another port than is printed."""
    if not 1 <= port <= LAST_PORT:
        raise UsageError(f"--port is {port}; it must be a number from 1 to {LAST_PORT}")


def demand_free(port: int, settings: Settings) -> None:
    """Raises UsageError when somebody listens on the port of loopback already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            where = settings.file or "a tenure.toml"
            raise UsageError(
                f"the port {port} of {HOST} cannot be used ({error.strerror}); end what listens "
                f"there, name another with --port, or set [dagster] port in {where}"
            ) from None


def environment(settings: Settings, home: Path) -> dict[str, str]:
    """What both processes see: the same settings as here, whatever folder they run in.

    dagster-aws signs the requests for its logs for the region of the environment alone.
    """
    config = {"TENURE_CONFIG": str(settings.file)} if settings.file else {}
    bucket = Bucket.of(settings.store_url)
    region = {"AWS_DEFAULT_REGION": bucket.region} if bucket and bucket.region else {}
    return {
        **region,
        **os.environ,
        **config,
        "DAGSTER_HOME": str(home),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def _part(
    name: str,
    module: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    home: Path,
    clock: Clock,
) -> Iterator[Part]:
    path = home / "output" / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as log:
        # a session of its own: Ctrl-C reaches it through us, once, and in order
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Part(name, process, path)
    finally:
        _end(process, clock)


def _end(process: subprocess.Popen[bytes], clock: Clock) -> None:
    """SIGTERM to the process, which ends its code server; SIGKILL to its session after a while."""
    end_s = clock.monotonic_s() + STOP_S
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    while process.poll() is None and clock.monotonic_s() < end_s:
        clock.sleep(POLL_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # what it left behind of its own session
    process.wait()


def _answers(url: str) -> bool:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)
    try:
        connection.request("GET", "/server_info")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
