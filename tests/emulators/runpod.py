"""An emulator of RunPod's GraphQL service on loopback, for the real SDK.

Written from the SDK's queries (runpod 1.11.0), RunPod's public documentation and public reports. It is an
emulator; not verified against the service:
* which fields the schema has beyond those that the SDK names (``terminateAfter``, ``bidPerGpu`` and
  ``podRentInterruptable`` come from published lists of the schema), and how strictly inputs are checked;
* the words of errors other than 'no longer any instances', 'pod not found to terminate' and 'Something went
  wrong', above all those about money; whether a bad key gets 401 or 403, and the body of either;
* whether a container that ends with 0 is started again as one that fails is (here it is, the worse case);
* that the key of a pod may terminate that pod and nothing else; how soon a new pod is listed; how long a
  preempted pod is given (5 s here, and its status EXITED after it); how a start command is split into words;
* that there are no idempotency keys: none is known, so every create makes a pod.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType

from graphql import GraphQLError, GraphQLResolveInfo, build_schema, graphql_sync, parse
from graphql.language import OperationDefinitionNode

from tests.emulators.machines import Machine, Machines

API_KEY = "rpa_EMULATEDKEYOFTHEACCOUNT0123456789"
NO_SLOTS = (
    "There are no longer any instances available with the requested specifications. "
    "Please refresh and try again."
)
_MOST_VARIABLES = 50
_CREATES = ("podFindAndDeployOnDemand", "podRentInterruptable", "deployCpuPod")

# What starts the container again in the same folder whenever it ends. As a container's first process does,
# the command gets SIGTERM alone, and only if it has a handler of its own for it.
_CONTAINER = """
import os, signal, subprocess, sys, time

child, ending = None, False

def told(*_):
    global ending
    ending = True
    if child and child.poll() is None:
        lines = open(f"/proc/{child.pid}/status").read().splitlines()
        caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
        if caught >> (signal.SIGTERM - 1) & 1:
            child.terminate()

signal.signal(signal.SIGTERM, told)
pause_s = float(os.environ.pop("RESTART_S"))
while not ending:
    with open("starts.txt", "a") as file:
        file.write("started\\n")
    child = subprocess.Popen(sys.argv[1:], start_new_session=True)
    child.wait()
    time.sleep(0 if ending else pause_s)
"""

_DEPLOY = """
  name: String, imageName: String, cloudType: CloudTypeEnum, startSsh: Boolean, supportPublicIp: Boolean
  gpuTypeId: String, gpuCount: Int, volumeInGb: Int, containerDiskInGb: Int, minVcpuCount: Int
  minMemoryInGb: Int, allowedCudaVersions: [String], dataCenterId: String, dockerArgs: String
  countryCode: String, ports: String, volumeMountPath: String, env: [EnvironmentVariableInput]
  templateId: String, networkVolumeId: String, minDownload: Int, minUpload: Int
"""
_SCHEMA = f"""
enum CloudTypeEnum {{ ALL SECURE COMMUNITY }}
input EnvironmentVariableInput {{ key: String!, value: String! }}
input PodFindAndDeployOnDemandInput {{ {_DEPLOY} terminateAfter: String, stopAfter: String }}
input PodRentInterruptableInput {{
  {_DEPLOY} terminateAfter: String, stopAfter: String, bidPerGpu: Float!
}}
input DeployCpuPodInput {{ {_DEPLOY} instanceId: String }}
input PodId {{ podId: String! }}
input GpuTypeFilter {{ id: String }}
input GpuLowestPriceInput {{ gpuCount: Int }}
type Port {{ ip: String, isIpPublic: Boolean, privatePort: Int, publicPort: Int, type: String }}
type Runtime {{ ports: [Port] }}
type PodMachine {{ gpuDisplayName: String, podHostId: String }}
type Pod {{
  id: String!, name: String, desiredStatus: String, imageName: String, dockerArgs: String, dockerId: String
  env: [String], gpuCount: Int, costPerHr: Float, lastStatusChange: String, machineId: String
  memoryInGb: Float, podType: String, port: Int, ports: String, uptimeSeconds: Int, vcpuCount: Float
  volumeInGb: Float, volumeMountPath: String, containerDiskInGb: Int, runtime: Runtime, machine: PodMachine
}}
type LowestPrice {{ minimumBidPrice: Float, uninterruptablePrice: Float }}
type GpuType {{
  id: String, displayName: String, memoryInGb: Int, maxGpuCount: Int, manufacturer: String, cudaCores: Int
  secureCloud: Boolean, communityCloud: Boolean, securePrice: Float, communityPrice: Float
  oneMonthPrice: Float, threeMonthPrice: Float, oneWeekPrice: Float, communitySpotPrice: Float
  secureSpotPrice: Float, lowestPrice(input: GpuLowestPriceInput): LowestPrice
}}
type User {{ id: String, pods: [Pod] }}
type Query {{ myself: User, pod(input: PodId): Pod, gpuTypes(input: GpuTypeFilter): [GpuType] }}
type Mutation {{
  podFindAndDeployOnDemand(input: PodFindAndDeployOnDemandInput): Pod
  podRentInterruptable(input: PodRentInterruptableInput!): Pod
  deployCpuPod(input: DeployCpuPodInput!): Pod
  podTerminate(input: PodId!): String
}}
"""


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    operation: str


@dataclass(frozen=True)
class Answer:
    """What an operation is answered instead, after it was applied or not."""

    status: int
    body: bytes
    applied: bool = False
    cut: bool = False  # the connection is closed, and nothing is answered


@dataclass(eq=False)
class Pod:
    """One pod, with what was asked for."""

    id: str
    name: str
    key: str  # its own, which may terminate it and nothing else
    asked: Mapping[str, object]
    kind: str
    machine: Machine
    unlisted: int  # answers in which it is missing yet
    status: str = "RUNNING"
    ended_s: float | None = None  # terminated
    stopped_s: float | None = None  # preempted
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def billed_s(self) -> float:
        """Seconds it was rented for: neither preempted nor terminated."""
        end_s = min(self.ended_s or time.monotonic(), self.stopped_s or time.monotonic())
        return end_s - self.machine.began_s

    @property
    def starts(self) -> int:
        """How often its container was started."""
        path = self.machine.folder / "starts.txt"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def row(self, status: str) -> dict[str, object]:
        """The pod as the service tells of it."""
        return {
            "id": self.id,
            "name": self.name,
            "desiredStatus": status,
            "imageName": self.asked.get("imageName"),
            "dockerArgs": self.asked.get("dockerArgs"),
            "env": [f"{key}={value}" for key, value in self.environ.items()],
            "gpuCount": self.asked.get("gpuCount", 0),
            "containerDiskInGb": self.asked.get("containerDiskInGb"),
            "volumeInGb": self.asked.get("volumeInGb", 0),
            "podType": "INTERRUPTABLE" if self.kind == "podRentInterruptable" else "RESERVED",
            "costPerHr": 0.5,
            "machineId": "m0",
            "machine": {"gpuDisplayName": self.asked.get("gpuTypeId"), "podHostId": f"{self.id}-0"},
            "runtime": {"ports": []} if status == "RUNNING" else None,
            "uptimeSeconds": 0,
        }


class RunPodEmulator:
    """The service, and the machines it rents out. All knobs are attributes and may be changed at any time."""

    def __init__(self, folder: Path, card: str = "NVIDIA L4", cards: int = 1) -> None:
        self.machines = Machines(folder, card, cards)
        self.capacity = 100  # pods that run at once
        self.funds = True  # money in the account
        self.latency_s = 0.0
        self.restart_s = 0.2  # between two starts of a container
        self.grace_s = 5.0  # between SIGTERM and SIGKILL
        self.slow_listing = 0  # answers in which a new pod is missing
        self.still_running = 0  # answers in which terminated pods are said to be RUNNING
        self.seem_gone = 0  # answers in which living pods are said to be TERMINATED
        self.denial = 401  # status that a bad key is answered with
        self.hanging = False  # takes requests and never answers
        self.account = "user_emulated"
        self.secrets: dict[str, str] = {}  # the account's secret store
        self.requests: list[Request] = []
        self.pods: list[Pod] = []
        self._answers: dict[str, list[Answer]] = {}
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._schema = build_schema(_SCHEMA)
        self._server: ThreadingHTTPServer | None = None

    # ------------------------------------------------------------------------------ its life

    def start(self) -> RunPodEmulator:
        """Serve on a free port of the loopback."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def stop(self) -> None:
        """End the server and every machine."""
        self._stopped.set()
        if self._server:
            self._server.shutdown()
            self._server.server_close()
        self.machines.close()

    def __enter__(self) -> RunPodEmulator:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Base of the API."""
        assert self._server
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        """The variables by which the SDK finds it."""
        return {
            "RUNPOD_API_BASE_URL": self.url,
            "RUNPOD_API_KEY": API_KEY,
            "NO_PROXY": "127.0.0.1",
        }

    # ------------------------------------------------------------------------- what a test does

    def ghost(self, how: str = "504") -> None:
        """The next create is applied, and its answer is a 504 of a proxy, or "cut" off."""
        page = b"<html><body>504 Gateway Time-out</body></html>"
        self._queue("create", Answer(504, page, applied=True, cut=how == "cut"))

    def answer(self, operation: str, status: int, body: bytes | object, times: int = 1) -> None:
        """Answer the next calls of an operation ("create" or a field of the schema) with this."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        for _ in range(times):
            self._queue(operation, Answer(status, raw))

    def preempt(self, pod: Pod) -> None:
        """Somebody outbids a spot pod: SIGTERM, a few seconds, SIGKILL; it stays, stopped."""
        assert pod.kind == "podRentInterruptable", "only spot pods are preempted"
        with self._lock:
            pod.status, pod.stopped_s = "EXITED", time.monotonic()
        self.machines.end(pod.machine, self.grace_s)

    def alive(self) -> list[str]:
        """Names of the pods that are not terminated; a stopped one counts."""
        with self._lock:
            return [pod.name for pod in self.pods if pod.ended_s is None]

    def billed(self) -> dict[str, float]:
        """Seconds that were paid for, by the name of the pod."""
        with self._lock:
            paid: dict[str, float] = {}
            for pod in self.pods:
                paid[pod.name] = paid.get(pod.name, 0.0) + pod.billed_s
            return paid

    # ------------------------------------------------------------------------------- the service

    def respond(self, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer to one request."""
        if path != "/graphql":
            return Answer(404, b"Not Found")
        try:
            query = str(json.loads(body)["query"])
        except (ValueError, KeyError, TypeError):
            return _errors(
                400, "POST body missing, invalid Content-Type, or JSON object has no keys."
            )
        try:
            operation = _operation(query)
        except GraphQLError as error:
            return _errors(400, error.message)
        with self._lock:
            self.requests.append(Request(path, headers, body, operation))
            instead = self._next(operation)
        if self.hanging:
            self._stopped.wait()
            return Answer(0, b"", cut=True)
        self._stopped.wait(self.latency_s)
        if instead and not instead.applied:
            return instead
        key = headers.get("authorization", "").removeprefix("Bearer ")
        pod = self._pod_of_key(key)
        if key != API_KEY and pod is None:
            words = "Unauthorized" if self.denial == 401 else "Forbidden"
            return Answer(self.denial, json.dumps({"error": words}).encode())
        with self._lock:
            answer = self._execute(query, pod.id if pod else None)
        return instead or answer

    def _execute(self, query: str, allowed: str | None) -> Answer:
        root = {
            "podTerminate": self._terminate,
            "myself": self._myself,
            "pod": self._pod,
            "gpuTypes": self._gpu_types,
            **dict.fromkeys(_CREATES, self._create),
        }
        found = graphql_sync(self._schema, query, root, context_value=allowed)
        if found.errors and found.data is None and found.errors[0].path is None:
            return _errors(400, found.errors[0].message)  # no such field, no such type
        body: dict[str, object] = {"data": found.data}
        if found.errors:
            body["errors"] = [{"message": e.message, "path": e.path} for e in found.errors]
        return Answer(200, json.dumps(body).encode())

    def _create(self, info: GraphQLResolveInfo, input: dict[str, object]) -> dict[str, object]:
        _demand(info, None)
        if not self.funds:
            raise GraphQLError("Your account balance is insufficient to deploy this pod.")
        if sum(pod.status == "RUNNING" for pod in self.pods) >= self.capacity:
            raise GraphQLError(NO_SLOTS)
        rows = input.get("env") or []
        assert isinstance(rows, list)
        if len(rows) > _MOST_VARIABLES:
            raise GraphQLError("A pod may have 50 environment variables at most.")
        if end := input.get("terminateAfter"):
            datetime.strptime(str(end), "%Y-%m-%dT%H:%M:%SZ")
        ident, name = secrets.token_hex(7), str(input["name"])
        key = f"rpa_EMULATEDKEYOFPOD{ident}"
        given = {row["key"]: row["value"] for row in rows}
        around = {word: self._with_secret(value) for word, value in given.items()}
        around |= {"RUNPOD_POD_ID": ident, "RUNPOD_API_KEY": key, "RESTART_S": f"{self.restart_s}"}
        command = shlex.split(str(input.get("dockerArgs") or "")) or ["sleep", "infinity"]
        machine = self.machines.start(
            ident, name, [sys.executable, "-SE", "-c", _CONTAINER, *command], around
        )
        pod = Pod(
            ident, name, key, input, info.field_name, machine, self.slow_listing, environ=given
        )
        self.pods.append(pod)
        return pod.row("RUNNING")

    def _with_secret(self, value: str) -> str:
        found = re.fullmatch(r"\{\{ RUNPOD_SECRET_(\w+) \}\}", value)
        return self.secrets.get(found[1], value) if found else value

    def _terminate(self, info: GraphQLResolveInfo, input: dict[str, str]) -> None:
        _demand(info, input["podId"])
        for pod in self.pods:
            if pod.id == input["podId"] and pod.ended_s is None:
                pod.status, pod.ended_s = "TERMINATED", time.monotonic()
                self.machines.end(pod.machine, self.grace_s)
                return
        raise GraphQLError("pod not found to terminate")

    def _myself(self, info: GraphQLResolveInfo) -> dict[str, object]:
        _demand(info, None)
        return {"id": self.account, "pods": self._rows(self.pods)}

    def _pod(self, info: GraphQLResolveInfo, input: dict[str, str]) -> dict[str, object] | None:
        _demand(info, None)
        rows = self._rows([pod for pod in self.pods if pod.id == input["podId"]])
        return rows[0] if rows else None

    def _rows(self, pods: list[Pod]) -> list[dict[str, object]]:
        """What is told of these pods, lies included."""
        gone = [pod for pod in pods if pod.ended_s is not None]
        rows = []
        for pod in pods:
            if pod.ended_s is None and pod.unlisted:
                pod.unlisted -= 1
            elif pod.ended_s is None:
                rows.append(pod.row("TERMINATED" if self.seem_gone else pod.status))
            elif self.still_running:
                rows.append(pod.row("RUNNING"))
        self.still_running -= bool(self.still_running and gone)
        self.seem_gone -= bool(self.seem_gone and len(pods) > len(gone))
        return rows

    @staticmethod
    def _gpu_types(
        info: GraphQLResolveInfo, input: dict[str, str] | None = None
    ) -> list[dict[str, object]]:
        names = [input["id"]] if input else ["NVIDIA L4"]
        return [{"id": name, "displayName": name, "memoryInGb": 24} for name in names]

    def _pod_of_key(self, key: str) -> Pod | None:
        return next((pod for pod in self.pods if pod.key == key and pod.ended_s is None), None)

    def _queue(self, operation: str, answer: Answer) -> None:
        with self._lock:
            self._answers.setdefault(operation, []).append(answer)

    def _next(self, operation: str) -> Answer | None:
        names = [operation, *(["create"] if operation in _CREATES else [])]
        queue = next((self._answers[name] for name in names if self._answers.get(name)), None)
        return queue.pop(0) if queue else None


def _demand(info: GraphQLResolveInfo, pod: str | None) -> None:
    """Whether the caller may: the account everything, a pod the end of itself."""
    if info.context is not None and info.context != pod:
        raise GraphQLError("You are not authorized to do this.")


def _operation(query: str) -> str:
    (definition,) = parse(query).definitions
    assert isinstance(definition, OperationDefinitionNode)
    return str(definition.selection_set.selections[0].name.value)  # type: ignore[attr-defined]


def _errors(status: int, message: str) -> Answer:
    return Answer(status, json.dumps({"errors": [{"message": message}]}).encode())


def _handler(service: RunPodEmulator) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = service.respond(self.path, headers, body)
            self.close_connection = True
            if answer.cut:
                return
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the requests are kept."""

    return Handler
