"""An emulator of Vast.ai on loopback: the real SDK talks to it, and what it rents out are real processes here.

Written from the wire format of vastai 1.9.1 (``vastai/api/client.py``, ``instances.py``, ``offers.py``, ``auth.py``) and from
what is publicly told of the service. It is not the service. Not verified against it: the words and codes of
refusals (but for ``no_such_ask`` and the plain text of a 429), the status of an instance that was outbid (here: stopped,
while it is still intended to run), that a machine that comes back runs its onstart again, what the key in
CONTAINER_API_KEY may do (here: destroy its own instance, nothing else), the limit of 4,048 characters of an onstart (told,
not tried), and the room for variables. The service has no idempotency keys: two creates are two instances.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.emulators.machines import Machine, Machines

Operation = Literal["search", "create", "list", "destroy", "variables", "user"]
Row = dict[str, Any]

CARD, WORD = "NVIDIA GeForce RTX 4090", "RTX 4090"
_MOST_PER_PAGE = 25
_LONGEST_ONSTART = 4048
_LONGEST_HANG_S = 60.0
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "eq": lambda a, b: a == b,
    "neq": lambda a, b: a != b,
    "gte": lambda a, b: a >= b,
    "lte": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "lt": lambda a, b: a < b,
    "in": lambda a, b: a in b,
    "notin": lambda a, b: a not in b,
}


@dataclass(frozen=True)
class Request:
    """One request that came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def text(self) -> str:
        """All of it, but for the header that must hold the key."""
        rest = {k: v for k, v in self.headers.items() if k.lower() != "authorization"}
        return f"{self.method} {self.path} {rest} {self.body.decode(errors='replace')}"


@dataclass(frozen=True)
class Fault:
    """What happens to one call instead of an answer, or after what it asked for was done (``applied``)."""

    kind: Literal["answer", "cut", "hang"]
    applied: bool = False
    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"


@dataclass(eq=False)
class Instance:
    """One contract: a container on one host, billed from its creation to its destruction."""

    id: int
    label: str
    offer: Row
    image: str
    onstart: str
    environ: dict[str, str]
    key: str
    bid: float | None
    machine: Machine
    status: str | None = "running"
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    unlisted: int = 0  # so many listings do not show it yet

    @property
    def alive(self) -> bool:
        """Whether it costs anything: a stopped one does."""
        return self.ended_s is None

    def row(self) -> Row:
        """As a listing shows it."""
        return {
            "id": self.id,
            "label": self.label,
            "actual_status": self.status,
            "cur_state": "running" if self.status == "running" else "stopped",
            "intended_status": "running",
            "machine_id": self.offer["machine_id"],
            "host_id": self.offer["host_id"],
            "gpu_name": self.offer["gpu_name"],
            "num_gpus": self.offer["num_gpus"],
            "dph_total": self.offer["dph_total"],
            "image_uuid": self.image,
            "is_bid": self.bid is not None,
            "start_date": None,  # the null that breaks the SDK's show_instances
            "extra_env": [[name, value] for name, value in self.environ.items()],
            "onstart": self.onstart,
        }


class VastEmulator:
    """The service, with ``capacity`` hosts of ``cards`` cards each; a context manager."""

    def __init__(
        self, folder: Path, capacity: int = 4, cards: int = 1, card: str = CARD, word: str = WORD
    ) -> None:
        self.machines = Machines(folder, card, cards)
        self.key = f"vast-key-{secrets.token_hex(16)}"
        self.offers = [_offer(number, word, cards) for number in range(capacity)]
        self.account_variables: dict[str, str] = {}
        self.requests: list[Request] = []
        self.instances: list[Instance] = []
        self.strangers: list[Row] = []  # rows of others' making on the account
        self.credit = True  # False: no create for want of money
        self.usd: object = 25.0  # what the account's credit is said to be
        self.searches_left: int | None = None  # of today's quota
        self.snatched = 0  # so many next creates find their offer taken
        self.lag = 0  # so many listings do not show a new instance
        self.lies = 0  # so many listings say the reverse of the truth
        self.latency_s = 0.0
        self._faults: dict[Operation, deque[Fault]] = defaultdict(deque)
        self._released = threading.Event()
        self._lock = threading.RLock()
        self._server: ThreadingHTTPServer | None = None

    # ------------------------------------------------------------------------------------- knobs

    def answer_next(
        self,
        operation: Operation,
        status: int,
        body: object = b"",
        content_type: str = "application/json",
        applied: bool = False,
    ) -> None:
        """The next call of ``operation`` gets this answer; JSON unless the body is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._faults[operation].append(Fault("answer", applied, status, data, content_type))

    def ghost(self, times: int = 1, cut: bool = False) -> None:
        """The next creates are done, and the answer is a 504, or none at all."""
        for _ in range(times):
            if cut:
                self._faults["create"].append(Fault("cut", True))
            else:
                self.answer_next("create", 504, b"<h1>504</h1>", "text/html", applied=True)

    def garbage(self, operation: Operation) -> None:
        """The next call of ``operation`` is answered by something else: 200, and HTML."""
        self.answer_next(operation, 200, b"<!doctype html><title>hello", "text/html")

    def hang(self, operation: Operation, applied: bool = False) -> None:
        """The next call of ``operation`` is never answered."""
        self._faults[operation].append(Fault("hang", applied))

    def cut(self, operation: Operation) -> None:
        """The next call of ``operation`` loses its connection; nothing is done."""
        self._faults[operation].append(Fault("cut"))

    def preempt(self, instance: Instance) -> None:
        """Somebody bids more: the container is killed and the instance stopped; its disk costs on."""
        with self._lock:
            self.machines.vanish(instance.machine)
            instance.status = "stopped"

    def resume(self, instance: Instance) -> None:
        """The bid wins again: the same onstart with the same variables."""
        with self._lock:
            instance.machine, instance.status = self._started(instance), "running"

    def vanish(self, instance: Instance) -> None:
        """The host goes offline, with all that ran there; the contract stays."""
        with self._lock:
            self.machines.vanish(instance.machine)
            instance.status = "offline"

    # --------------------------------------------------------------------------------- questions

    @property
    def url(self) -> str:
        """Its base address."""
        assert self._server
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environ(self) -> dict[str, str]:
        """What the SDK and the provider need to find it."""
        return {"VAST_URL": self.url, "VAST_API_KEY": self.key}

    def alive(self) -> list[str]:
        """Labels of all that costs money."""
        with self._lock:
            return [instance.label for instance in self.instances if instance.alive]

    def billed(self) -> dict[str, float]:
        """Seconds by label, from creation to destruction."""
        total: dict[str, float] = defaultdict(float)
        with self._lock:
            for instance in self.instances:
                total[instance.label] += (instance.ended_s or time.monotonic()) - instance.began_s
        return dict(total)

    def asked(self, operation: Operation) -> int:
        """How many calls of ``operation`` came in."""
        return sum(
            _operation(r.method, urlsplit(r.path).path)[0] == operation for r in self.requests
        )

    # ---------------------------------------------------------------------------------- the house

    def start(self) -> VastEmulator:
        """Listen on a port of loopback."""
        emulator = self

        class Handler(_Handler):
            service = emulator

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop listening and end every machine."""
        self._released.set()
        if self._server:
            self._server.shutdown()
            self._server.server_close()
        self.machines.close()

    def __enter__(self) -> VastEmulator:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def answered(self, request: Request) -> Fault:
        """What one request is answered."""
        with self._lock:
            self.requests.append(request)
        time.sleep(self.latency_s)
        path = urlsplit(request.path)
        operation, ident = _operation(request.method, path.path)
        if operation is None:
            return _json(404, {"success": False, "error": "not_found", "msg": "no such endpoint"})
        with self._lock:
            fault = self._faults[operation].popleft() if self._faults[operation] else None
            if fault and not fault.applied:
                return fault
            refused = self._refused(request, operation, ident)
            answer = refused or self._done(operation, ident, request, parse_qs(path.query))
            return fault or answer

    def until_released(self) -> None:
        """Wait as a call does that is never answered."""
        self._released.wait(_LONGEST_HANG_S)

    def _refused(self, request: Request, operation: Operation, ident: int) -> Fault | None:
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if key == self.key:
            return None
        own = next((i for i in self.instances if secrets.compare_digest(i.key, key)), None)
        if own is None:
            return _json(401, {"success": False, "error": "auth_error", "msg": "Invalid user key"})
        if operation == "destroy" and own.id == ident:
            return None
        return _json(403, {"success": False, "error": "forbidden", "msg": "not with this key"})

    def _done(
        self, operation: Operation, ident: int, request: Request, asked: Mapping[str, list[str]]
    ) -> Fault:
        if operation == "search":
            return self._search(json.loads(request.body))
        if operation == "create":
            return self._create(ident, json.loads(request.body))
        if operation == "list":
            return self._list({name: json.loads(values[0]) for name, values in asked.items() if name != "after_token"},
                              asked.get("after_token", ["0"])[0])  # fmt: skip
        if operation == "destroy":
            return self._destroy(ident)
        if operation == "user":
            return _json(200, {"id": 7, "api_key": self.key, "balance": 0.0, "credit": self.usd})
        return _json(200, {"success": True, "secrets": self.account_variables})

    def _search(self, query: Row) -> Fault:
        if self.searches_left is not None:
            if self.searches_left <= 0:
                return _json(
                    429,
                    {"success": False, "error": "search_quota_exceeded", "msg": "again tomorrow"},
                )
            self.searches_left -= 1
        order, limit = query.pop("order"), query.pop("limit", 64)
        kind = query.pop("type")
        query.pop("allocated_storage")
        rows = [self._priced(offer, kind) for offer in self.offers]
        unknown = [name for name in query if name not in rows[0]] if rows else []
        if unknown:
            return _json(
                400, {"success": False, "error": "invalid_args", "msg": f"no field {unknown[0]}"}
            )
        rows = [row for row in rows if _matches(row, query)]
        for name, direction in reversed(order):
            rows.sort(key=lambda row: row[name], reverse=direction == "desc")
        return _json(200, {"offers": rows[: min(limit, 64)]})

    def _priced(self, offer: Row, kind: str) -> Row:
        taken = any(i.alive and i.offer["id"] == offer["id"] for i in self.instances)
        price = offer["min_bid"] + 0.005 if kind == "bid" else offer["dph_total"]  # with the disk
        free = offer["rentable"] and not taken
        return {
            **offer,
            "rentable": free,
            "dph_total": price,
            "driver_version": offer["driver_vers"],
        }

    def _create(self, ident: int, body: Row) -> Fault:
        offer = next((o for o in self.offers if o["id"] == ident), None)
        taken = any(i.alive and i.offer["id"] == ident for i in self.instances)
        if self.snatched > 0 or offer is None or taken or not offer["rentable"]:
            self.snatched -= self.snatched > 0
            return _json(
                410,
                {"success": False, "error": "no_such_ask", "msg": f"ask {ident} is not available"},
            )
        if not self.credit:
            return _json(
                400, {"success": False, "error": "insufficient_credit", "msg": "add credit"}
            )
        if len(body["onstart"] or "") > _LONGEST_ONSTART or not body["image"]:
            return _json(
                400, {"success": False, "error": "invalid_args", "msg": "bad onstart or image"}
            )
        number = 7_000_000 + len(self.instances)
        key = secrets.token_hex(16)
        environ = {
            **self.account_variables,
            **{name: str(value) for name, value in body["env"].items() if not name.startswith("-")},
            "CONTAINER_ID": str(number),
            "CONTAINER_API_KEY": key,
            "VAST_CONTAINERLABEL": f"C.{number}",
        }
        argv = ["bash", "-c", body["onstart"]]
        machine = self.machines.start(str(number), body["label"], argv, environ)
        self.instances.append(
            Instance(number, body["label"], offer, body["image"], body["onstart"], environ, key, body["price"],
                     machine, unlisted=self.lag)
        )  # fmt: skip
        return _json(200, {"success": True, "new_contract": number, "instance_api_key": key})

    def _started(self, instance: Instance) -> Machine:
        argv = ["bash", "-c", instance.onstart]
        return self.machines.start(str(instance.id), instance.label, argv, instance.environ)

    def _list(self, asked: Row, token: str) -> Fault:
        lie = self.lies > 0
        self.lies -= lie
        rows = list(self.strangers)
        for instance in self.instances:
            hidden, instance.unlisted = instance.unlisted > 0, max(0, instance.unlisted - 1)
            if hidden or not (instance.alive or lie):
                continue
            row = instance.row()
            if lie:  # what is gone is told to run, and what runs to have stopped
                row["actual_status"] = "exited" if instance.alive else "running"
            rows.append(row)
        rows = [row for row in rows if _matches(row, asked["select_filters"])]
        rows.sort(key=lambda row: row["id"])
        first = int(token)
        after = first + min(asked["limit"], _MOST_PER_PAGE)
        return _json(
            200,
            {
                "success": True,
                "instances_found": len(rows),
                "total_instances": len(rows),
                "instances": rows[first:after],
                "next_token": str(after) if after < len(rows) else None,
            },
        )

    def _destroy(self, ident: int) -> Fault:
        instance = next((i for i in self.instances if i.id == ident and i.alive), None)
        if instance is None:
            return _json(
                404, {"success": False, "error": "no_such_instance", "msg": f"no instance {ident}"}
            )
        instance.ended_s = time.monotonic()
        self.machines.end(instance.machine)
        return _json(200, {"success": True, "msg": f"Instance {ident} destroyed."})


class _Handler(BaseHTTPRequestHandler):
    service: VastEmulator

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        answer = self.service.answered(Request(self.command, self.path, dict(self.headers), body))
        if answer.kind == "hang":
            self.service.until_released()
        if answer.kind != "answer":
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        with suppress(OSError):  # a machine that destroyed itself is not there to read it
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_POST = do_DELETE = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def _operation(method: str, path: str) -> tuple[Operation | None, int]:
    parts = [part for part in path.split("/") if part]
    number = int(parts[-1]) if parts and parts[-1].isdigit() else 0
    match method, parts[1:]:
        case "POST", ["v0", "bundles"]:
            return "search", 0
        case "PUT", ["v0", "asks", _] if number:
            return "create", number
        case "GET", ["v1", "instances"]:
            return "list", 0
        case "DELETE", ["v0", "instances", _] if number:
            return "destroy", number
        case "GET", ["v0", "secrets"]:
            return "variables", 0
        case "GET", ["v0", "users", "current"]:
            return "user", 0
    return None, 0


def _offer(number: int, word: str, cards: int) -> Row:
    return {
        "id": 4_000_000 + number,
        "machine_id": 30_000 + number,
        "host_id": 900 + number,
        "gpu_name": word,
        "num_gpus": cards,
        "gpu_ram": 24_564,
        "dph_total": round(0.30 + 0.05 * number, 4),
        "min_bid": round(0.10 + 0.05 * number, 4),
        "reliability": 0.99,
        "inet_down": 800.0,
        "cuda_max_good": 12.8,
        "driver_version": "550.54.15",
        "driver_vers": 550_054_015,
        "disk_space": 500.0,
        "duration": 30 * 86_400.0,
        "hosting_type": 0,
        "rentable": True,
        "rented": False,
        "verified": True,
        "external": False,
    }


def _matches(row: Row, filters: Row) -> bool:
    return all(
        row.get(name) is not None and _COMPARE[operator](row[name], value)
        for name, tests in filters.items()
        for operator, value in tests.items()
    )


def _json(status: int, body: object) -> Fault:
    return Fault("answer", status=status, body=json.dumps(body).encode())
