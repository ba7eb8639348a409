"""A hostile wire: a proxy on loopback that does to one HTTP request at a time what networks do.

A request's bytes are handed on unchanged, so that an S3 signature stays valid: it covers the Host
header, and a server checks it against the very header that it receives. Every connection is closed
after its answer. What becomes of a request is said by the script, one entry for each request that it
applies to, and then by the weather.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO, Literal, get_args

from tenure_protocol.clock import SYSTEM

#: ``drop``: the server never sees it, the connection is cut. ``lose_answer``: applied, and cut before
#: the answer's first byte. ``cut_head``, ``cut_body``: cut in the middle of the answer's head or body
#: (an answer without a body is cut in its head). ``delay_request``, ``delay_answer``: a while before
#: the server sees it, or before the client sees the answer. ``twice_first``, ``twice_second``: sent
#: to the server twice, and answered with its first or second answer (a ghost 412). ``error_500``,
#: ``error_503``, ``error_409``, ``html``, ``redirect``: answered by the proxy (the latter two with a
#: page), never sent to the server. ``applied_500``: applied, and answered with 500, as a gateway does
#: that lost its own server. ``drip``: applied, and answered byte by byte. ``late1`` to ``late3``: cut at
#: once, and seen by the server just before the first, second or third further request that it sees,
#: or when the test says so.
Kind = Literal[
    "pass",
    "drop",
    "lose_answer",
    "cut_head",
    "cut_body",
    "delay_request",
    "delay_answer",
    "twice_first",
    "twice_second",
    "error_500",
    "error_503",
    "error_409",
    "applied_500",
    "html",
    "redirect",
    "drip",
    "late1",
    "late2",
    "late3",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
FAULTS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "pass")

_PAGE = b"<!DOCTYPE html><html><body><h1>Please sign in to this network</h1></body></html>\n"
_OWN: Mapping[str, tuple[int, str, str]] = {
    "error_500": (500, "Internal Server Error", "InternalError"),
    "error_503": (503, "Slow Down", "SlowDown"),
    "error_409": (409, "Conflict", "ConditionalRequestConflict"),
    "applied_500": (500, "Internal Server Error", "InternalError"),
}
_UPSTREAM_S = 30.0
_MAX_LINE = 1 << 16


@dataclass(frozen=True)
class Request:
    """One request as it came: its start line and headers, and its body with any framing."""

    head: bytes
    body: bytes

    @property
    def method(self) -> str:
        return self.head.split(b" ", 1)[0].decode()

    @property
    def target(self) -> str:
        """Path and query."""
        return self.head.split(b" ", 2)[1].decode()

    def has(self, header: str) -> bool:
        return _header(self.head, header) is not None

    @property
    def conditional(self) -> bool:
        """Whether it is a conditional write."""
        return self.method == "PUT" and (self.has("if-match") or self.has("if-none-match"))


@dataclass(frozen=True)
class _Answer:
    head: bytes
    body: bytes = b""


def every(_: Request) -> bool:
    """Any request."""
    return True


def conditional(request: Request) -> bool:
    """A conditional write."""
    return request.conditional


class Weather:
    """What becomes of each request, drawn from a seed; ``only`` says whom it touches."""

    def __init__(
        self,
        seed: int,
        chances: Mapping[Kind, float],
        only: Callable[[Request], bool] = every,
    ) -> None:
        self._random = random.Random(seed)
        self._kinds: tuple[Kind, ...] = ("pass", *chances)
        self._weights = (1.0 - sum(chances.values()), *chances.values())
        self._only = only
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Kind:
        if not self._only(request):
            return "pass"
        with self._lock:
            return self._random.choices(self._kinds, self._weights)[0]


class HostileProxy:
    """Listens on a port of its own in front of ``server_port``; see the kinds above."""

    def __init__(self, server_port: int, delay_s: float) -> None:
        self._server_port = server_port
        self.delay_s = delay_s  # of the two delays, and between two bytes of a drip
        self.cut_after: int | None = None  # bytes of a head; else the half of it
        self.weather: Callable[[Request], Kind] = lambda request: "pass"
        self.counts: Counter[Kind] = Counter()  # what was done, by kind
        self.seen: list[Request] = []  # by the server, in order, without their bodies
        self._script: deque[tuple[Kind, Callable[[Request], bool]]] = deque()
        self._late: list[tuple[int, Request]] = []  # further requests to go, request
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="hostile-proxy", daemon=True).start()

    @property
    def endpoint(self) -> str:
        """What a client takes for the server."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """Take no further connection."""
        with suppress(OSError):  # wakes the thread that accepts, where close alone does not
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    # ----------------------------------------------------------------------- for tests

    def script(self, *kinds: Kind, only: Callable[[Request], bool] = every) -> None:
        """The next requests that ``only`` accepts meet these, one each; before any weather."""
        with self._lock:
            self._script.extend((kind, only) for kind in kinds)

    def forget(self) -> None:
        """An empty script, fair weather, and counts from zero; what is late stays on its way."""
        with self._lock:
            self._script.clear()
            self.counts.clear()
            self.seen.clear()
            self.weather = lambda request: "pass"
            self.cut_after = None

    def land(self) -> None:
        """Everything that is late reaches the server now."""
        with self._lock:
            late, self._late = self._late, []
        for _, request in late:
            self._send(request)

    def seen_writes(self) -> int:
        """How many conditional writes the server has seen."""
        return sum(request.conditional for request in self.seen)

    # -------------------------------------------------------------------------- inside

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        # A client that hung up, or a server that was killed: the connection is cut, no more.
        with client, client.makefile("rb") as stream, suppress(OSError):
            request = _read_request(stream, client)
            kind = self._choose(request)
            told = self._play(kind, request)
            pieces = (told[n : n + 1] for n in range(len(told))) if kind == "drip" else (told,)
            for piece in pieces:
                client.sendall(piece)
                if kind == "drip":
                    SYSTEM.sleep(self.delay_s)

    def _choose(self, request: Request) -> Kind:
        with self._lock:
            kind: Kind | None = None
            for entry in self._script:
                if entry[1](request):
                    kind = entry[0]
                    self._script.remove(entry)
                    break
        kind = kind or self.weather(request)
        with self._lock:
            self.counts[kind] += 1
        return kind

    def _play(self, kind: Kind, request: Request) -> bytes:
        """The bytes that the client gets before its connection is closed."""
        if kind == "drop":
            return b""
        if kind.startswith("late"):
            with self._lock:
                self._late.append((int(kind.removeprefix("late")), request))
            return b""
        if kind == "html":
            return _made(200, "OK", "text/html", _PAGE)
        if kind == "redirect":
            return _made(302, "Found\r\nLocation: /sign-in", "text/html", _PAGE)
        if kind in _OWN and kind != "applied_500":
            return _error(*_OWN[kind])
        if kind == "delay_request":
            SYSTEM.sleep(self.delay_s)
        answer = self._deliver(request)
        if kind in ("twice_first", "twice_second"):
            second = self._deliver(request)
            answer = second if kind == "twice_second" else answer
        if kind == "delay_answer":
            SYSTEM.sleep(self.delay_s)
        if kind == "lose_answer":
            return b""
        if kind == "applied_500":
            return _error(*_OWN[kind])
        if kind == "cut_body" and answer.body:
            return answer.head + answer.body[: len(answer.body) // 2]
        if kind in ("cut_head", "cut_body"):
            half = len(answer.head) // 2
            return answer.head[: half if self.cut_after is None else self.cut_after]
        return answer.head + answer.body

    def _deliver(self, request: Request) -> _Answer:
        """Hand it to the server, after what was late long enough."""
        with self._lock:
            waiting = [(left - 1, late) for left, late in self._late]
            self._late = [entry for entry in waiting if entry[0] > 0]
        for left, late in waiting:
            if left <= 0:
                self._send(late)
        return self._send(request)

    def _send(self, request: Request) -> _Answer:
        with self._lock:
            self.seen.append(Request(request.head, b""))
        address = ("127.0.0.1", self._server_port)
        with (
            socket.create_connection(address, timeout=_UPSTREAM_S) as server,
            server.makefile("rb") as stream,
        ):
            server.sendall(request.head + request.body)
            return _read_answer(stream, request.method)


@contextmanager
def hostile_proxy(server_port: int, delay_s: float = 0.02) -> Iterator[HostileProxy]:
    """A proxy for the time of the block."""
    proxy = HostileProxy(server_port, delay_s)
    try:
        yield proxy
    finally:
        proxy.close()


# ------------------------------------------------------------------------------- HTTP


def _read_request(stream: BinaryIO, client: socket.socket) -> Request:
    """A whole request. This and all below raise ConnectionError for half of something."""
    head = _read_head(stream)
    if (_header(head, "expect") or "").lower() == "100-continue":
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = _read_body(stream, head)
    return Request(head, b"" if body is None else body)


def _read_answer(stream: BinaryIO, method: str) -> _Answer:
    """A whole answer, which is made to say that it is the last of its connection."""
    status = 100
    while status < 200:
        head = _read_head(stream)
        status = int(head.split(b" ", 2)[1])
    body: bytes | None = b""
    if method != "HEAD" and status not in (204, 304):
        body = _read_body(stream, head)
        body = stream.read() if body is None else body
    assert body is not None
    return _Answer(head[:-2] + b"Connection: close\r\n\r\n", body)


def _read_head(stream: BinaryIO) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += _read_line(stream)
    return head


def _read_body(stream: BinaryIO, head: bytes) -> bytes | None:
    """The body as the head frames it, or ``None`` where it does not."""
    if "chunked" in (_header(head, "transfer-encoding") or "").lower():
        return _read_chunks(stream)
    length = _header(head, "content-length")
    return None if length is None else _read_exactly(stream, int(length))


def _read_chunks(stream: BinaryIO) -> bytes:
    """A chunked body with its framing and its trailers."""
    raw, size = b"", 1
    while size:
        line = _read_line(stream)
        size = int(line.split(b";")[0], 16)
        raw += line + (_read_exactly(stream, size + 2) if size else b"")
    while (line := _read_line(stream)) != b"\r\n":
        raw += line
    return raw + line


def _read_line(stream: BinaryIO) -> bytes:
    line = stream.readline(_MAX_LINE)
    if not line.endswith(b"\n"):
        raise ConnectionError("cut in the middle of a line")
    return line


def _read_exactly(stream: BinaryIO, size: int) -> bytes:
    found = stream.read(size)
    if len(found) != size:
        raise ConnectionError(f"cut after {len(found)} of {size} bytes")
    return found


def _header(head: bytes, name: str) -> str | None:
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.strip().lower() == name.encode():
            return value.strip().decode()
    return None


def _made(status: int, words: str, content_type: str, body: bytes) -> bytes:
    """An answer of the proxy itself."""
    return (
        f"HTTP/1.1 {status} {words}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


def _error(status: int, words: str, code: str) -> bytes:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
        "<Message>said by the proxy</Message></Error>"
    )
    return _made(status, words, "application/xml", body.encode())
