"""An emulator of Modal's control plane for sandboxes: gRPC over plain HTTP/2 on loopback, spoken to by the real SDK.

Written from the wire format of modal 1.6.4 (its protobuf classes and what the SDK does with them); nothing
here ran against the service. Not verified there: which status and which words the service answers with when
there is no room, when a spending limit is reached or a name is taken; whether a name is found while its
sandbox waits for a GPU; that it honours an idempotency key for a create whose answer was lost; how a
preempted sandbox looks; how many sandboxes a page of a listing has; how large a variable may be. Images are
not built: what was asked for is kept in ``images``. A sandbox is a real process (:mod:`tests.emulators.machines`).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import grpclib.server
from google.protobuf.message import Message  # type: ignore[import-untyped]
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import StatusDetailsCodecBase
from modal_proto import api_pb2 as pb
from modal_proto.api_grpc import ModalClientBase

from tests.emulators.machines import Machine, Machines

TOKEN_ID, TOKEN_SECRET = "ak-of-the-emulator", "as-secret-of-the-emulator"
HANG, CUT = "hang", "cut"
GPUS = frozenset("T4 L4 A10 L40S A100-40GB A100-80GB RTX-PRO-6000 H100! H200 B200".split())
_CREATES = ("SandboxCreate", "SandboxCreateV2")
_EVERY_S = 0.02
Result = pb.GenericResult


@dataclass(frozen=True)
class Request:
    """What came in."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def operation(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Http:
    """An answer that is no gRPC: of a proxy in between, a login page."""

    status: int
    body: bytes = b"<!doctype html><title>Sign in</title>"
    content_type: str = "text/html"


Answer: TypeAlias = "Status | Http | Message | GRPCError | str"  # HANG or CUT


@dataclass(eq=False)
class Sandbox:
    """One sandbox."""

    id: str
    name: str
    v2: bool
    definition: pb.Sandbox
    environ: Mapping[str, str]
    app_id: str
    tags: Mapping[str, str]
    created_s: float = field(default_factory=time.time)
    machines: list[Machine] = field(default_factory=list)  # several where it was restarted
    end: Any = Result.GENERIC_STATUS_UNSPECIFIED  # why it was ended, if it was
    words: str = ""

    @property
    def machine(self) -> Machine | None:
        return self.machines[-1] if self.machines else None

    def result(self) -> pb.GenericResult:
        """Its result; without a status while it waits or runs."""
        if self.machine is None:
            return Result(status=self.end, exception=self.words)
        if self.machine.alive:
            return Result()
        code = self.machine.exit_code or 0
        ended = Result.GENERIC_STATUS_FAILURE if code else Result.GENERIC_STATUS_SUCCESS
        return Result(status=self.end or ended, exitcode=code)

    @property
    def live(self) -> bool:
        """Whether it runs, or waits to."""
        return not self.result().status


class ModalEmulator:
    """One workspace. Its knobs are plain attributes that may be turned at any time."""

    def __init__(self, folder: Path, card: str = "cpu", cards: int = 1) -> None:
        self._folder = folder
        self.machines = Machines(folder / "machines", card, cards)
        self.capacity = 1_000  # sandboxes that may run at once
        self.queues = False  # without room: a sandbox with GPUs waits instead of being refused
        self.quota_gone = False
        self.latency_s = 0.0
        self.build_s = 0.0  # what an image takes that was never asked for before
        self.ghosts = 0  # answers of creates that are lost, though the create was done
        self.ghost_answer: Answer = Status.UNAVAILABLE
        self.honours_keys = True  # idempotency keys
        self.lies = 0  # answers about a sandbox that say the contrary of what is
        self.lives_s: float | None = None  # a sandbox's timeout, if shorter than it asked for
        self.broken_image = ""  # the words with which each sandbox fails to start
        self.page = 100  # sandboxes of one page of a listing
        self.named_secrets: dict[str, dict[str, str]] = {}
        self.requests: list[Request] = []
        self.images: list[pb.Image] = []
        self.sandboxes: list[Sandbox] = []
        self._answers: dict[str, deque[Answer]] = {}
        self._by_key: dict[str, Message] = {}
        self.apps: dict[str, str] = {}  # ids by name
        self._secrets: dict[str, dict[str, str]] = {}
        self._built_s: dict[str, float] = {}
        self._lock = threading.RLock()
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        # With the protocol named, asyncio switches Nagle's delays off: 40 ms of each call.
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listener.bind(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    @property
    def environ(self) -> dict[str, str]:
        """Variables by which the SDK finds it, and finds nobody's own configuration."""
        return {
            "MODAL_SERVER_URL": f"http://127.0.0.1:{self.port}",
            "MODAL_TOKEN_ID": TOKEN_ID,
            "MODAL_TOKEN_SECRET": TOKEN_SECRET,
            "MODAL_CONFIG_PATH": str(self._folder / "no-such-modal.toml"),
            "NO_PROXY": "127.0.0.1",
        }

    # ------------------------------------------------------------------------------------- life

    def start(self) -> None:
        started = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(120), "the emulator does not start"

    def _serve(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        service = _Service(self)  # type: ignore[abstract]
        server = grpclib.server.Server([service], status_details_codec=_Details())
        self._loop.run_until_complete(server.start(sock=self._listener))
        started.set()
        self._loop.run_forever()
        server.close()
        left = asyncio.all_tasks(self._loop)
        for task in left:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self._loop.close()

    def stop(self) -> None:
        """End the service and all that still runs in it."""
        if self._thread:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)
        self.machines.close()

    def __enter__(self) -> ModalEmulator:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------ knobs

    def answer(self, operation: str, answer: Answer, times: int = 1) -> None:
        """Answer the next ``times`` calls of an operation so, and do nothing."""
        self._answers.setdefault(operation, deque()).extend([answer] * times)

    def preempt(self, name: str, restart: bool = False) -> None:
        """Take the machine away; ``restart``: the same sandbox goes on elsewhere on the same input."""
        with self._lock:
            box = self.box(name)
            assert box.machine, f"{name} does not run"
            self.machines.vanish(box.machine)
            if restart:
                self._run(box)
            else:
                box.end = Result.GENERIC_STATUS_TERMINATED

    def box(self, name: str) -> Sandbox:
        """The newest sandbox of a name."""
        return next(box for box in reversed(self.sandboxes) if box.name == name)

    def alive(self) -> list[str]:
        """Names of what runs and costs, or waits to run."""
        with self._lock:
            return [box.name for box in self.sandboxes if box.live]

    def billed(self) -> dict[str, float]:
        """Seconds that each name has run."""
        sums: dict[str, float] = {}
        for box in self.sandboxes:
            sums[box.name] = sums.get(box.name, 0.0) + sum(one.billed_s for one in box.machines)
        return sums

    def asked(self, operation: str) -> list[Request]:
        """The requests of one operation."""
        return [request for request in self.requests if request.operation == operation]

    # ---------------------------------------------------------------------------------- answers

    async def respond(self, stream: grpclib.server.Stream[Any, Any], path: str) -> None:
        """Answer one unary call."""
        request = await stream.recv_message()
        assert request is not None and stream.metadata is not None
        headers = {name: str(value) for name, value in stream.metadata.items()}
        seen = Request(path, headers, request.SerializeToString())
        self.requests.append(seen)
        await asyncio.sleep(self.latency_s)
        planned = self._answers.get(seen.operation)
        if planned:
            await _odd(stream, planned.popleft())
            return
        given = (headers.get("x-modal-token-id"), headers.get("x-modal-token-secret"))
        if given != (TOKEN_ID, TOKEN_SECRET):
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")
        if seen.operation == "ImageJoinStreaming":
            while not self._built(request.image_id):
                await asyncio.sleep(_EVERY_S)
            await stream.send_message(pb.ImageJoinStreamingResponse(result=_OK, eof=True))
            return
        if seen.operation.startswith("SandboxWait"):
            await self._long_poll(request.sandbox_id, request.timeout)
        response = self._once(seen.operation, headers["x-idempotency-key"], request)
        if seen.operation in _CREATES and self.ghosts:
            self.ghosts -= 1
            await _odd(stream, self.ghost_answer)
            return
        await stream.send_message(response)

    async def _long_poll(self, ident: str, for_s: float) -> None:
        until_s = time.monotonic() + for_s
        while time.monotonic() < until_s and self._found(ident).live:
            await asyncio.sleep(_EVERY_S)

    def _once(self, operation: str, key: str, request: Any) -> Message:
        """A create under a key that was seen is the create of before."""
        if operation not in _CREATES or not self.honours_keys:
            return self._call(operation, request)
        if key not in self._by_key:
            self._by_key[key] = self._call(operation, request)
        return self._by_key[key]

    def _call(self, operation: str, request: Any) -> Message:
        handler: Callable[[Any, bool], Message] | None = getattr(
            self, f"_on_{operation.removesuffix('V2')}", None
        )
        if handler is None:
            raise GRPCError(Status.UNIMPLEMENTED, f"the emulator does not know {operation}")
        with self._lock:
            self._schedule()
            return handler(request, operation.endswith("V2"))

    def _on_AppGetOrCreate(self, request: pb.AppGetOrCreateRequest, _: bool) -> Message:
        if request.app_name not in self.apps:
            if request.object_creation_type != pb.OBJECT_CREATION_TYPE_CREATE_IF_MISSING:
                raise GRPCError(Status.NOT_FOUND, f"App '{request.app_name}' not found")
            self.apps[request.app_name] = _ident("ap")
        return pb.AppGetOrCreateResponse(app_id=self.apps[request.app_name])

    def _on_EnvironmentGetOrCreate(self, request: Any, _: bool) -> Message:
        settings = pb.EnvironmentSettings(image_builder_version="2025.06")
        named = pb.EnvironmentMetadata(name=request.deployment_name or "main", settings=settings)
        return pb.EnvironmentGetOrCreateResponse(environment_id=_ident("en"), metadata=named)

    def _on_AuthTokenGet(self, request: Any, _: bool) -> Message:
        parts = ({"alg": "none"}, {"exp": int(time.time()) + 3600})
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
        return pb.AuthTokenGetResponse(token=".".join([*encoded, "x"]).replace("=", ""))

    def _on_SecretGetOrCreate(self, request: pb.SecretGetOrCreateRequest, _: bool) -> Message:
        ident = _ident("st")
        if name := request.deployment_name:
            if name not in self.named_secrets:
                raise GRPCError(Status.NOT_FOUND, f"Secret '{name}' not found")
            self._secrets[ident] = self.named_secrets[name]
        else:
            self._secrets[ident] = dict(request.env_dict)
        return pb.SecretGetOrCreateResponse(secret_id=ident)

    def _on_ImageGetOrCreate(self, request: pb.ImageGetOrCreateRequest, _: bool) -> Message:
        body = request.image.SerializeToString(deterministic=True)
        ident = f"im-{hashlib.sha256(body).hexdigest()[:22]}"
        if ident not in self._built_s:
            self.images.append(request.image)
            self._built_s[ident] = time.monotonic() + self.build_s
        return pb.ImageGetOrCreateResponse(
            image_id=ident, result=_OK if self._built(ident) else Result()
        )

    def _built(self, ident: str) -> bool:
        return time.monotonic() >= self._built_s[ident]

    # --------------------------------------------------------------------------------- sandboxes

    def _on_SandboxCreate(self, request: Any, v2: bool) -> Message:
        definition: pb.Sandbox = request.definition
        gpu = definition.resources.gpu_config.gpu_type
        if gpu and (gpu not in GPUS or v2):
            raise GRPCError(Status.INVALID_ARGUMENT, f"Invalid GPU type: {gpu}")
        named = [box for box in self.sandboxes if box.name == definition.name and box.live]
        if any(box.app_id == request.app_id for box in named):
            raise GRPCError(Status.ALREADY_EXISTS, f"Sandbox '{definition.name}' already exists")
        if self.quota_gone:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "Workspace spend limit reached")
        if not self._room() and not (self.queues and gpu):
            raise GRPCError(Status.RESOURCE_EXHAUSTED, "No capacity for this sandbox")
        environ = {}
        for ident in definition.secret_ids:
            environ.update(self._secrets[ident])
        for source in request.secret_sources if v2 else ():
            environ.update(self._secrets.get(source.secret_id, {}))
            environ.update(source.env.contents)
        box = Sandbox(
            _ident("sb", 26 if v2 else 22), definition.name, v2, definition, environ, request.app_id,
            {tag.tag_name: tag.tag_value for tag in request.tags},
        )  # fmt: skip
        self.sandboxes.append(box)
        if self.broken_image:
            box.end, box.words = Result.GENERIC_STATUS_INIT_FAILURE, self.broken_image
        self._schedule()
        if v2:
            return pb.SandboxCreateV2Response(sandbox_id=box.id, task_id=f"ta-{box.id[3:]}")
        return pb.SandboxCreateResponse(sandbox_id=box.id)

    def _room(self) -> bool:
        return len(self.alive()) < self.capacity

    def _schedule(self) -> None:
        """Start what waits, while there is room."""
        for box in self.sandboxes:
            if box.live and not box.machines and len(self.machines.running) < self.capacity:
                self._run(box)
                lives_s = min(box.definition.timeout_secs, self.lives_s or 1e9)
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, lives_s, self._timed_out, box
                )

    def _run(self, box: Sandbox) -> None:
        environ = {**box.environ, "MODAL_SANDBOX_ID": box.id}
        argv = list(box.definition.entrypoint_args)
        box.machines.append(self.machines.start(box.id, box.name, argv, environ))

    def _timed_out(self, box: Sandbox) -> None:
        with self._lock:
            self._stop(box, Result.GENERIC_STATUS_TIMEOUT)

    def _stop(self, box: Sandbox, why: Any) -> None:
        if box.live and not box.end:
            box.end = why
            if box.machine:
                self.machines.end(box.machine)

    def _found(self, ident: str) -> Sandbox:
        for box in self.sandboxes:
            if box.id == ident:
                return box
        raise GRPCError(Status.NOT_FOUND, f"Sandbox {ident} not found")

    def _said(self, box: Sandbox) -> pb.GenericResult:
        """A sandbox's result, or the contrary of it."""
        true = box.result()
        if not self.lies:
            return true
        self.lies -= 1
        return Result() if true.status else Result(status=Result.GENERIC_STATUS_TERMINATED)

    def _on_SandboxGetTaskId(self, request: pb.SandboxGetTaskIdRequest, _: bool) -> Message:
        box = self._found(request.sandbox_id)
        if box.machine:
            return pb.SandboxGetTaskIdResponse(task_id=f"ta-{box.id[3:]}")
        result = box.result()
        return pb.SandboxGetTaskIdResponse(task_result=result if result.status else None)

    def _on_SandboxGetFromName(self, request: pb.SandboxGetFromNameRequest, v2: bool) -> Message:
        for box in self.sandboxes:
            if (box.name, box.v2, box.app_id) == (
                request.sandbox_name, v2, self.apps.get(request.app_name),
            ) and box.live:  # fmt: skip
                return pb.SandboxGetFromNameResponse(sandbox_id=box.id)
        raise GRPCError(Status.NOT_FOUND, f"Sandbox '{request.sandbox_name}' not found")

    def _on_SandboxWait(self, request: pb.SandboxWaitRequest, _: bool) -> Message:
        return pb.SandboxWaitResponse(result=self._said(self._found(request.sandbox_id)))

    def _on_SandboxTerminate(self, request: pb.SandboxTerminateRequest, _: bool) -> Message:
        box = self._found(request.sandbox_id)
        ended = box.result()
        self._stop(box, Result.GENERIC_STATUS_TERMINATED)
        return pb.SandboxTerminateResponse(existing_result=ended if ended.status else None)

    def _on_SandboxTagsGet(self, request: pb.SandboxTagsGetRequest, _: bool) -> Message:
        return pb.SandboxTagsGetResponse(tags=_tags(self._found(request.sandbox_id)))

    def _on_SandboxList(self, request: pb.SandboxListRequest, v2: bool) -> Message:
        """Newest first. The V2 call lists both kinds."""
        wanted = {(tag.tag_name, tag.tag_value) for tag in request.tags}
        before_s = request.before_timestamp or float("inf")
        rows = [
            pb.SandboxInfo(id=box.id, name=box.name, created_at=box.created_s, app_id=box.app_id, tags=_tags(box))
            for box in sorted(self.sandboxes, key=lambda one: -one.created_s)
            if box.app_id == request.app_id and box.created_s < before_s and (v2 or not box.v2)
            and (box.live or request.include_finished) and wanted <= set(box.tags.items())
        ]  # fmt: skip
        return pb.SandboxListResponse(sandboxes=rows[: self.page])


_OK = Result(status=Result.GENERIC_STATUS_SUCCESS)


def _tags(box: Sandbox) -> list[pb.SandboxTag]:
    return [pb.SandboxTag(tag_name=name, tag_value=value) for name, value in box.tags.items()]


def _ident(prefix: str, length: int = 22) -> str:
    """22 letters and digits make a sandbox of the first kind, with or without GPUs; more, of the second."""
    return f"{prefix}-{secrets.token_hex(length)[:length]}"


class _Service(ModalClientBase):
    """All of the service's calls; what the emulator does not know is UNIMPLEMENTED."""

    def __init__(self, emulator: ModalEmulator) -> None:
        self._emulator = emulator

    def __mapping__(self) -> dict[str, Handler]:
        return {
            path: Handler(self._handler(path, one.cardinality), *one[1:])
            for path, one in super().__mapping__().items()
        }

    def _handler(self, path: str, cardinality: Cardinality) -> Any:
        async def handle(stream: grpclib.server.Stream[Any, Any]) -> None:
            await self._emulator.respond(stream, path)

        return handle


_Service.__abstractmethods__ = frozenset()  # hundreds of calls: none is called by its own method


class _Details(StatusDetailsCodecBase):
    """Details of a failure, such as when to come again, as the SDK reads them."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        body = pb.RPCStatus(code=status.value, message=message or "")
        for detail in details or ():
            body.details.add().Pack(detail, type_url_prefix="type.modal.com/")
        return bytes(body.SerializeToString())

    def decode(self, status: Status, message: str | None, data: bytes) -> Any:
        raise NotImplementedError


async def _odd(stream: grpclib.server.Stream[Any, Any], answer: Answer) -> None:
    """Send an answer that was planned."""
    if isinstance(answer, GRPCError):
        raise answer
    if isinstance(answer, Status):
        raise GRPCError(answer, f"planned {answer.name}")
    if isinstance(answer, Message):
        await stream.send_message(answer)
        return
    wire = stream._stream
    if isinstance(answer, Http):
        headers = [(":status", str(answer.status)), ("content-type", answer.content_type)]
        await wire.send_headers(headers)
        await wire.send_data(answer.body, end_stream=True)
        stream._send_trailing_metadata_done = True
        return
    if answer == HANG:
        await asyncio.Event().wait()
    assert answer == CUT
    wire._transport.abort()
