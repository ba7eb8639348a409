"""An emulator of Kaggle's kernels API on loopback, for the real ``kagglesdk``; no service stands behind it.

Written from the SDK's wire format (kagglesdk 0.1.38). Read or reported, and kept to: one kernel per ``owner/slug``, a
version and a run of its own per push, versions that go on running beside each other, no way to cancel a run, 200
with ``error`` where there is no slot, a bare 403 for a kernel that is not there, titles of 5 to 50 characters.

Not verified against the service: that the runs of a deleted kernel end, and that it is to be seen until they have; the words of a spent quota and of refused
credentials; what a run's environment holds; when ``lastRunTime`` is set; a run's status after its timeout (here ERROR).
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.emulators.machines import Machine, Machines

_SERVICES = re.compile(r"/v1/(?:kernels\.KernelsApiService|security\.OAuthService)/(\w+)$")


@dataclass(frozen=True)
class Request:
    """One request as it came in."""

    operation: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(eq=False)
class Run:
    """One version's run."""

    version: int
    argv: list[str]
    timeout_s: float
    pushed_s: float = field(default_factory=time.monotonic)
    machine: Machine | None = None  # None: still queued
    failure: str = ""
    dropped: bool = False  # its kernel was deleted

    @property
    def status(self) -> str:
        """As Kaggle would say if it knew the truth."""
        if self.machine is None:
            return "CANCEL_ACKNOWLEDGED" if self.dropped else "QUEUED"
        if self.machine.alive:
            return "CANCEL_REQUESTED" if self.dropped else "RUNNING"
        return "COMPLETE" if self.machine.exit_code == 0 and not self.failure else "ERROR"

    @property
    def costs(self) -> bool:
        """Whether it runs or will run."""
        return self.status in ("QUEUED", "RUNNING", "CANCEL_REQUESTED")


@dataclass(eq=False)
class Kernel:
    """One notebook of the account."""

    id: int
    slug: str
    text: str
    shape: str
    gpu: bool
    runs: list[Run] = field(default_factory=list)
    pushed_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    looks_left: int | None = None  # after its deletion: how often it is still shown


Answer = tuple[int, Mapping[str, object] | list[object] | str]


class Kaggle:
    """One account of the service. All attributes without an underscore are knobs, or what was seen."""

    USER, KEY, TOKEN = "tenure-tester", "0123456789abcdef0123456789abcdef", "KGAT_fedcba9876543210"

    def __init__(self, folder: Path, card: str = "Tesla T4", cards: int = 2) -> None:
        self.capacity = 2  # GPU runs at once
        self.granted_h, self.used_h = 30.0, 0.0  # used before; what runs here comes on top
        self.renews_at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
        self.latency_s = 0.0  # before each answer
        self.queue_s = 0.0  # between a push and the start of its run
        self.queue: list[Callable[[], None]] | None = None  # runs that begin when they are called
        self.ghosts: list[str] = []  # next pushes are applied and answered "504", or "cut" off
        self.garbage: set[str] = set()  # operations that answer 200 with HTML
        self.hangs: set[str] = set()  # operations that never answer
        self.absent = 403  # how a kernel that is not there is answered; or 404
        self.keeps = False  # a kernel cannot be deleted
        self.lingers = 0  # looks at which a deleted kernel is still there
        self.page_size = 100  # the largest page of a listing
        self.requests: list[Request] = []
        self.machines = Machines(folder / "machines", card, cards)
        self._folder = folder
        self._kernels: dict[str, Kernel] = {}
        self._made: list[Kernel] = []  # deleted ones too
        self._answers: dict[str, list[Answer]] = defaultdict(list)
        self._lies: dict[str, list[str]] = defaultdict(list)
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True

    # --------------------------------------------------------------------------- for the tests

    def __enter__(self) -> Kaggle:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """End all machines and answer nothing any more."""
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self.machines.close()

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which the SDK comes here, with credentials that are good here."""
        return {
            "KAGGLE_API_BASE_URL": self.url,
            "KAGGLE_USERNAME": self.USER,
            "KAGGLE_KEY": self.KEY,
            "NO_PROXY": "127.0.0.1",
        }

    def answer(self, operation: str, status: int, body: object) -> None:
        """The next call of an operation gets this answer and does nothing; text goes out as HTML."""
        self._answers[operation].append((status, body))  # type: ignore[arg-type]

    def lie(self, slug: str, status: str, times: int) -> None:
        """The next ``times`` questions for the status of a kernel's runs are answered so."""
        self._lies[slug] += [status] * times

    def preempt(self, machine: Machine) -> None:
        """Take a machine away."""
        for kernel in self._made:
            for run in kernel.runs:
                if run.machine is machine:
                    run.failure = "the session was lost"
        self.machines.vanish(machine)

    def machine(self, slug: str) -> Machine:
        """The newest machine of a kernel."""
        return [machine for machine in self.machines.all if machine.name == slug][-1]

    def billed(self) -> dict[str, float]:
        """Seconds of machines, by the name of their kernel."""
        seconds: dict[str, float] = defaultdict(float)
        for machine in self.machines.all:
            seconds[machine.name] += machine.billed_s
        return dict(seconds)

    def alive(self) -> list[str]:
        """Names of kernels for each run of theirs that goes on, or will."""
        return [kernel.slug for kernel in self._made for run in kernel.runs if run.costs]

    def asked(self, operation: str) -> int:
        """How often an operation was asked for."""
        return sum(request.operation == operation for request in self.requests)

    # -------------------------------------------------------------------------------- the service

    def _answer(self, request: Request) -> Answer | None:
        """What a request gets; ``None``: the connection is cut."""
        self.requests.append(request)
        operation = request.operation
        self._stopped.wait(self.latency_s)
        if operation in self.hangs:
            self._stopped.wait()
            return None
        if operation in self.garbage:
            return 200, "<html><body>Welcome to the hotel's network</body></html>"
        if self._answers[operation]:
            return self._answers[operation].pop(0)
        if not self._welcome(request.headers.get("Authorization", "")):
            return 401, {"code": 401, "message": "Unauthorized"}
        body = json.loads(request.body)
        with self._lock:
            answer: Answer = getattr(self, f"_{operation}")(body)
        ghost = self.ghosts.pop(0) if operation == "SaveKernel" and self.ghosts else ""
        if ghost == "504":
            return 504, "<html>Gateway Timeout</html>"
        return None if ghost == "cut" else answer

    def _welcome(self, authorization: str) -> bool:
        pair = base64.b64encode(f"{self.USER}:{self.KEY}".encode()).decode()
        return authorization in (f"Basic {pair}", f"Bearer {self.TOKEN}")

    def _IntrospectToken(self, body: Mapping[str, str]) -> Answer:
        return 200, {"active": body.get("token") == self.TOKEN, "username": self.USER}

    def _SaveKernel(self, body: Mapping[str, object]) -> Answer:
        owner, _, slug = str(body["slug"]).partition("/")
        if owner != self.USER:
            return 403, {"code": 403, "message": "Permission 'kernels.create' was denied"}
        if not re.fullmatch(r".{5,50}", str(body["newTitle"])):
            return 500, {"code": 500, "message": "An internal server error occurred."}
        assert body["newTitle"] == slug and body["isPrivate"] and body["enableInternet"]
        assert (body["language"], body["kernelType"]) == ("python", "script")
        seconds = body["sessionTimeoutSeconds"]
        assert isinstance(seconds, int) and 0 < seconds < 12 * 3600
        gpu = bool(body.get("enableGpu"))
        assert body.get("machineShape") == ("NvidiaTeslaT4" if gpu else None)
        if refusal := self._full() if gpu else None:
            return 200, {"error": refusal}
        kernel = self._kernels.get(slug)
        if kernel is None:
            shape = str(body.get("machineShape", ""))
            kernel = Kernel(1000 + len(self._made), slug, "", shape, gpu)
            self._kernels[slug] = kernel
            self._made.append(kernel)
        self._run(kernel, str(body["text"]), seconds)
        url = f"https://www.kaggle.com/code/{owner}/{slug}"
        number = len(kernel.runs)
        return 200, {
            "ref": f"/{owner}/{slug}", "url": url, "versionNumber": number, "kernelId": kernel.id,
        }  # fmt: skip

    def _full(self) -> str | None:
        running = sum(run.costs for kernel in self._made if kernel.gpu for run in kernel.runs)
        if running >= self.capacity:
            return f"Maximum batch GPU session count of {self.capacity} reached."
        if self._used_h() >= self.granted_h:
            return f"Your weekly GPU quota of {self.granted_h:g} hours is used up."
        return None

    def _used_h(self) -> float:
        gpu = {kernel.slug for kernel in self._made if kernel.gpu}
        return self.used_h + sum(s for name, s in self.billed().items() if name in gpu) / 3600

    def _run(self, kernel: Kernel, text: str, timeout_s: float) -> None:
        version = len(kernel.runs) + 1
        path = self._folder / "kernels" / f"{kernel.id}-v{version}" / "script.py"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        kernel.text, kernel.pushed_at = text, datetime.now(UTC)
        run = Run(version, ["python3", str(path)], timeout_s)
        kernel.runs.append(run)
        if self.queue is not None:
            self.queue.append(lambda: self._begin(kernel, run))
        elif self.queue_s:
            self._later(self.queue_s, lambda: self._begin(kernel, run))
        else:
            self._begin(kernel, run)

    def _begin(self, kernel: Kernel, run: Run) -> None:
        with self._lock:
            if run.dropped or self._stopped.is_set():
                return
            environ = {"KAGGLE_KERNEL_RUN_TYPE": "Batch"}
            ident = f"{kernel.id}-v{run.version}"
            machine = self.machines.start(ident, kernel.slug, run.argv, environ)
            run.machine = machine

        def too_long() -> None:
            if machine.alive:
                run.failure = "the session was longer than its timeout"
                self.machines.end(machine)

        self._later(run.timeout_s, too_long)

    def _later(self, seconds: float, what: object) -> None:
        timer = threading.Timer(seconds, what)  # type: ignore[arg-type]
        timer.daemon = True
        timer.start()

    def _shown(self, body: Mapping[str, object]) -> Kernel | None:
        """The kernel that a request is about, while it is to be seen."""
        kernel = self._kernels.get(str(body.get("kernelSlug")))
        if body.get("userName") != self.USER or kernel is None:
            return None
        if kernel.looks_left == 0 and not any(run.costs for run in kernel.runs):
            del self._kernels[kernel.slug]
            return None
        if kernel.looks_left:
            kernel.looks_left -= 1
        return kernel

    def _missing(self, permission: str) -> Answer:
        if self.absent == 403:
            return 403, {"code": 403, "message": f"Permission 'kernels.{permission}' was denied"}
        return 404, {"code": 404, "message": "Not found"}

    def _GetKernel(self, body: Mapping[str, object]) -> Answer:
        kernel = self._shown(body)
        if kernel is None:
            return self._missing("get")
        return 200, {"metadata": self._metadata(kernel), "blob": {"source": kernel.text}}

    def _metadata(self, kernel: Kernel) -> dict[str, object]:
        return {
            "id": kernel.id,
            "ref": f"{self.USER}/{kernel.slug}",
            "title": kernel.slug,
            "slug": kernel.slug,
            "lastRunTime": kernel.pushed_at.strftime("%Y-%m-%dT%H:%M:%S.%f0Z"),
            "isPrivate": True,
            "enableGpu": kernel.gpu,
            "machineShape": kernel.shape,
            "currentVersionNumber": len(kernel.runs),
        }

    def _GetKernelSessionStatus(self, body: Mapping[str, object]) -> Answer:
        kernel = self._shown(body)
        if kernel is None:
            return self._missing("get")
        label = str(body.get("versionLabel") or f"v{len(kernel.runs)}")
        run = next((run for run in kernel.runs if label == f"v{run.version}"), None)
        if run is None:
            return 404, {"code": 404, "message": "Not found"}
        lies = self._lies[kernel.slug]
        status = lies.pop(0) if lies else run.status
        # A default is left out, as protobuf's JSON leaves it out.
        told = {} if status == "QUEUED" else {"status": status}
        return 200, told | ({"failureMessage": run.failure} if run.failure else {})

    def _DeleteKernel(self, body: Mapping[str, object]) -> Answer:
        kernel = self._kernels.get(str(body.get("kernelSlug")))
        if kernel is None or body.get("userName") != self.USER:
            return self._missing("delete")
        if self.keeps:
            return 200, {"errorMessage": "a kernel with a running session cannot be deleted"}
        for run in kernel.runs:
            run.dropped = True
            if run.machine is not None and run.machine.alive:
                self.machines.end(run.machine)
        if kernel.looks_left is None:
            kernel.looks_left = self.lingers
        return 200, {}

    def _ListKernels(self, body: Mapping[str, object]) -> Answer:
        assert body.get("group") == "PROFILE", "else everybody's kernels are listed"
        search = str(body.get("search") or "")
        shown = [
            kernel
            for kernel in reversed(self._kernels.values())
            if search in kernel.slug
            and (kernel.looks_left != 0 or any(run.costs for run in kernel.runs))
        ]
        size = min(int(str(body.get("pageSize") or 20)), self.page_size)
        first = int(str(body.get("pageToken") or 0))
        rows = [self._metadata(kernel) for kernel in shown[first : first + size]]
        after = first + size
        return 200, {"kernels": rows} | (
            {"nextPageToken": str(after)} if after < len(shown) else {}
        )

    def _GetAcceleratorQuotaStatistics(self, body: Mapping[str, object]) -> Answer:
        return 200, {
            "quotaRefreshTime": self.renews_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "gpuQuota": {
                "timeUsed": f"{round(self._used_h() * 3600)}s",
                "timeReserved": "0s",
                "totalTimeAllowed": f"{round(self.granted_h * 3600)}s",
                "hasEverRun": True,
            },
        }


def _handler(kaggle: Kaggle) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found = _SERVICES.match(self.path)
            if found is None:
                return self._send(404, {"code": 404, "message": "Not found"})
            request = Request(found[1], self.path, dict(self.headers.items()), body)
            answer = kaggle._answer(request)
            if answer is None:
                self.close_connection = True
                return None
            return self._send(*answer)

        def _send(self, status: int, body: object) -> None:
            html = isinstance(body, str)
            sent = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if html else "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
