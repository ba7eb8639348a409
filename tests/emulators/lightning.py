"""An emulator of Lightning's jobs service, on loopback: the unmodified ``lightning_sdk`` talks to it over HTTP.

Written from the SDK's wire format (its generated clients of ``/v1/memberships`` and ``/v1/projects/{id}/jobs``).
A job is a real process: entrypoint, command and variables as they were sent. Names are unique as the SDK says
that the service keeps them: a job of a taken name is made under another one.

Not verified against the service: the words and codes of every refusal (401, 403 and 404 are what the SDK looks
at; that a full or spent account answers 429 with code 8 is an assumption, and the real one may queue the job
instead, see ``queues``); the form of a name that was taken; whether ``maxRunAttempts: 1`` keeps the service from
starting a preempted job again (``restarts`` lets it do so all the same); whether ``find`` tells of ended jobs;
that a job without ``includeCredentials: false`` is given the account's credentials, as deployments are; the size
of a page. The service knows no idempotency keys: the SDK sends none.
"""

from __future__ import annotations

import base64
import json
import shlex
import socket
import threading
import uuid
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.machines import Machine, Machines

USER_ID = "7b0c4c52-user"
API_KEY = "lit-key-5e2f9a41c7d8"
PROJECT = "01project"
_ENDED = ("stopped", "completed", "failed")


@dataclass(frozen=True)
class Request:
    """What came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """The answer to one call; ``applied``: what was asked for is done all the same."""

    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)
    applied: bool = False
    silent: bool = False  # never answers
    cut: bool = False  # ends the connection instead


@dataclass(eq=False)
class Job:
    """A job as the service keeps it."""

    id: str
    name: str
    spec: dict[str, Any]
    machine: Machine | None = None  # none while it waits for one
    fixed: str = ""  # a state that does not come from the machine
    attempts: int = 0
    lies: deque[str] = field(default_factory=deque)  # states told instead of the true one

    @property
    def state(self) -> str:
        """The true state."""
        if self.machine is None:
            return self.fixed or "pending"
        if self.machine.alive:
            return "stopping" if self.fixed == "stopped" else "running"
        return self.fixed or ("failed" if self.machine.exit_code else "completed")


class LightningEmulator:
    """The service. Use it as a context manager, and set ``environ`` before the SDK is used."""

    def __init__(self, folder: Path, card: str = "cpu", cards: int = 1) -> None:
        self.machines = Machines(folder, card, cards)
        self.capacity: int | None = None  # machines at once
        self.queues = False  # whether a job beyond them waits; else it is refused
        self.quota_s: float | None = None  # seconds of all machines together
        self.latency_s = 0.0
        self.restarts = False  # whether a preempted job is started again, whatever it asked for
        self.page = 2  # jobs of one page, whatever is asked for beyond it
        self.key = API_KEY
        self.teamspaces = [{"projectId": PROJECT, "name": "research", "displayName": "Research"}]
        self.secrets: dict[str, str] = {}  # the teamspace's
        self.broken_images: set[str] = set()  # those that do not start
        self.requests: list[Request] = []
        self.jobs: list[Job] = []
        self._replies: dict[str, deque[Reply]] = {}
        self._rented: list[tuple[str, Machine]] = []
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._server: ThreadingHTTPServer | None = None

    # ------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Listen on a free port of 127.0.0.1."""
        emulator = self

        class Handler(_Handler):
            service = emulator

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stop listening; end what still runs."""
        self._stopped.set()
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        self.machines.close()

    def __enter__(self) -> LightningEmulator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def environ(self) -> dict[str, str]:
        """What the SDK needs to find it."""
        assert self._server is not None
        return {
            "LIGHTNING_CLOUD_URL": f"http://127.0.0.1:{self._server.server_address[1]}",
            "LIGHTNING_USER_ID": USER_ID,
            "LIGHTNING_API_KEY": API_KEY,
            "LIGHTNING_DISABLE_VERSION_CHECK": "1",
        }

    # ------------------------------------------------------------------------------------ knobs

    def answer_next(
        self,
        operation: str,
        status: int = 200,
        body: bytes | Mapping[str, object] = b"{}",
        *,
        applied: bool = False,
        headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),),
    ) -> None:
        """Answer the next call of an operation so: memberships create list find get update delete."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._queue(operation, Reply(status, sent, headers, applied))

    def refuse_next(self, operation: str, status: int, code: int, words: str) -> None:
        """Refuse the next call as the service's gateway does."""
        self.answer_next(operation, status, _refusal(code, words))

    def hang_next(self, operation: str, *, applied: bool = False) -> None:
        """Never answer the next call."""
        self._queue(operation, Reply(applied=applied, silent=True))

    def cut_next(self, operation: str, *, applied: bool = False) -> None:
        """End the connection instead of answering the next call."""
        self._queue(operation, Reply(applied=applied, cut=True))

    def ghost(self, *, cut: bool = False) -> None:
        """Apply the next create, then answer 504, or end the connection."""
        if cut:
            self.cut_next("create", applied=True)
        else:
            self.answer_next("create", 504, b"upstream request timeout", applied=True)

    def _queue(self, operation: str, reply: Reply) -> None:
        self._replies.setdefault(operation, deque()).append(reply)

    def lie(self, name: str, state: str, answers: int = 1) -> None:
        """Tell another state of a job than its true one, so many times."""
        self.job(name).lies.extend([state] * answers)

    def preempt(self, machine: Machine | str) -> None:
        """Take a machine away from its job, which starts again on the same input if it may."""
        with self._lock:
            job = next(j for j in self.jobs if machine in (j.name, j.machine))
            assert job.machine is not None
            self.machines.vanish(job.machine)
            most = job.spec.get("maxRunAttempts") or 0
            if self.restarts or not most or job.attempts < most:
                self._run(job)

    def exhaust(self) -> None:
        """The credits end: every machine is stopped, and none is rented any more."""
        with self._lock:
            self.quota_s = 0.0
            for job in self.jobs:
                self._stop(job)

    # ------------------------------------------------------------------------------ what it bills

    def billed(self) -> dict[str, float]:
        """Seconds that each job's machines were rented for."""
        total: Counter[str] = Counter()
        for name, machine in self._rented:
            total[name] += machine.billed_s  # type: ignore[assignment]
        return dict(total)

    def alive(self) -> list[str]:
        """Names of the jobs that still cost, or would as soon as there is a machine."""
        return [job.name for job in self.jobs if job.state not in _ENDED]

    def job(self, name: str) -> Job:
        """The job of a name."""
        return next(job for job in self.jobs if job.name == name)

    # ------------------------------------------------------------------------------- the service

    def answer(self, request: Request) -> Reply:
        """What the service says to a request; does what it asks for."""
        self.requests.append(request)
        self._stopped.wait(self.latency_s)
        operation, arguments = _operation(request)
        with self._lock:
            ready = self._replies.get(operation)
            forced = ready.popleft() if ready else None
            if forced is not None and not forced.applied:
                return forced
            reply = self._answer(operation, arguments, request)
        return forced or reply

    def silence(self) -> None:
        """Wait as long as the service lives."""
        self._stopped.wait()

    def _answer(self, operation: str, arguments: Mapping[str, str], request: Request) -> Reply:
        if request.headers.get("Authorization") not in self._accepted():
            return _refused(401, 16, "invalid credentials")
        if operation == "memberships":
            return _json({"memberships": self.teamspaces})
        if operation == "unknown" or arguments["project"] not in self._projects():
            return _refused(404, 5, "not found")
        if operation == "create":
            return self._create(json.loads(request.body))
        if operation == "list":
            return self._list(arguments)
        wanted = arguments.get("name") or arguments.get("id")
        job = next((j for j in self.jobs if wanted in (j.id, j.name)), None)
        if job is None:
            return _refused(404, 5, f"job {wanted} not found")
        if operation == "update" and json.loads(request.body).get("state") == "stop":
            self._stop(job)
        if operation == "delete":
            self._stop(job)
            self.jobs.remove(job)
            return _json({})
        return _json(self._told(job))

    def _accepted(self) -> tuple[str, str]:
        basic = base64.b64encode(f"{USER_ID}:{self.key}".encode()).decode()
        return f"Basic {basic}", f"Bearer {self.key}"

    def _projects(self) -> set[str]:
        return {row["projectId"] for row in self.teamspaces}

    def _create(self, body: dict[str, Any]) -> Reply:
        spent = self.quota_s is not None and sum(self.billed().values()) >= self.quota_s
        if spent:
            return _refused(429, 8, "the teamspace has no credits left")
        full = self.capacity is not None and len(self.machines.running) >= self.capacity
        if full and not self.queues:
            return _refused(429, 8, f"no {body['spec']['instanceName']} is available")
        ident = f"01job{uuid.uuid4().hex[:20]}"
        taken = any(job.name == body["name"] for job in self.jobs)
        name = f"{body['name']}-{ident[-5:]}" if taken else body["name"]
        job = Job(ident, name, body["spec"])
        self.jobs.append(job)
        if job.spec["image"] in self.broken_images:
            job.fixed = "failed"
        elif not full:
            self._run(job)
        return _json(self._told(job))

    def _run(self, job: Job) -> None:
        spec = job.spec
        job.attempts += 1
        variables = {
            row["name"]: self.secrets[row["fromSecret"]]
            if row.get("fromSecret")
            else row.get("value", "")
            for row in spec.get("env", [])
        }
        if spec.get("includeCredentials", True):
            variables |= {"LIGHTNING_USER_ID": USER_ID, "LIGHTNING_API_KEY": self.key}
        argv = [*shlex.split(spec["entrypoint"]), spec["command"]]
        job.machine = self.machines.start(job.id, job.name, argv, variables)
        self._rented.append((job.name, job.machine))

    def _stop(self, job: Job) -> None:
        if job.state in _ENDED:
            return
        job.fixed = "stopped"
        if job.machine is not None:
            self.machines.end(job.machine)

    def _list(self, arguments: Mapping[str, str]) -> Reply:
        """A page of jobs; also the moment at which those that wait are looked at."""
        self._serve_queue()
        first = int(arguments.get("pageToken") or 0)
        last = first + min(self.page, int(arguments.get("limit") or self.page))
        rows = [self._told(job) for job in self.jobs[first:last]]
        more = str(last) if last < len(self.jobs) else ""
        return _json({"jobs": rows, "nextPageToken": more, "previousPageToken": ""})

    def _serve_queue(self) -> None:
        for job in self.jobs:
            waits = job.machine is None and job.state == "pending"
            if waits and len(self.machines.running) < (self.capacity or 0):
                self._run(job)

    def _told(self, job: Job) -> dict[str, object]:
        return {
            "id": job.id,
            "name": job.name,
            "projectId": PROJECT,
            "userId": USER_ID,
            "state": job.lies.popleft() if job.lies else job.state,
            "spec": job.spec,
            "createdAt": "2026-11-01T00:00:00.000000Z",
            "startedAt": None,
            "restartCount": max(0, job.attempts - 1),
            "message": "",
            "tags": [],
        }


def _operation(request: Request) -> tuple[str, dict[str, str]]:
    """Which call of the API a request is, and what it is about."""
    url = urlsplit(request.path)
    asked = {key: values[-1] for key, values in parse_qs(url.query).items()}
    match [unquote(part) for part in url.path.split("/")[1:]]:
        case ["v1", "memberships"] if request.method == "GET":
            return "memberships", asked
        case ["v1", "projects", project, "jobs"] if request.method in ("GET", "POST"):
            name = "create" if request.method == "POST" else "list"
            return name, {**asked, "project": project}
        case ["v1", "projects", project, "jobs", "find"] if request.method == "GET":
            return "find", {**asked, "project": project}
        case ["v1", "projects", project, "jobs", ident]:
            calls = {"GET": "get", "PUT": "update", "DELETE": "delete"}
            return calls.get(request.method, "unknown"), {"project": project, "id": ident}
    return "unknown", asked


def _json(body: Mapping[str, object]) -> Reply:
    return Reply(200, json.dumps(body).encode())


def _refusal(code: int, words: str) -> dict[str, object]:
    return {"code": code, "message": words, "details": []}


def _refused(status: int, code: int, words: str) -> Reply:
    return Reply(status, json.dumps(_refusal(code, words)).encode())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: 40 ms of waiting between them
    service: LightningEmulator

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.requestline.split()[1]  # self.path has lost a slash where two began it
        request = Request(self.command, path, dict(self.headers.items()), body)
        reply = self.service.answer(request)
        if reply.silent:
            self.service.silence()
        if reply.silent or reply.cut:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        with suppress(OSError):  # whoever asked has given up
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
