"""Events and log lines of one attempt, cut into numbered chunks that the courier uploads.

A chunk's number follows the last one that was queued, and the courier keeps their order, so the
chunks in the store are always a contiguous beginning of what was said.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from threading import RLock

from tenure_protocol.clock import Clock
from tenure_protocol.codec import canonical
from tenure_protocol.lease import keys
from tenure_worker.caps import Caps, size
from tenure_worker.courier import Chunk

FLUSH_EVERY_S = 5.0
#: Events are written as JSON many at a time: between two batches, which leave the caches cold, one
#: alone took 0.1 ms of the loop.
_PENDING = 200
_PLAIN = frozenset({int, float, str, bool, type(None)})  # what nobody can change afterwards
_CHUNK_BYTES = 256 << 10
_MAX_BUFFER_BYTES = 4 << 20
_NOTES_BYTES = 1 << 20  # beyond the cap of the log, for what tenure itself has to say


def _scalar(value: object) -> object:
    """A JSON scalar: numbers of other libraries become floats, what has no JSON form its words."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value)
    try:
        number = float(value)  # type: ignore[arg-type]
    except Exception:  # of whatever library; what a user records must not end a training
        return _text(value)
    return number if math.isfinite(number) else str(number)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


class _Stream:
    def __init__(
        self, key: Callable[[int], str], offer: Callable[[Chunk], bool], most_bytes: int
    ) -> None:
        self._key = key
        self._offer = offer
        self._left = most_bytes
        self.cut = False  # nothing more of the job's is taken
        self._lines: list[bytes] = []
        self._size = 0
        self._chunk = 1
        self._full = _CHUNK_BYTES  # size at which to try a flush
        self.dropped = 0

    def add(self, line: bytes) -> bool:
        if self._size + len(line) > _MAX_BUFFER_BYTES:
            return False
        self._lines.append(line)
        self._size += len(line)
        if self._size >= self._full:
            self.flush()
        return True

    def say(self, line: bytes, beyond: int = 0) -> bool:
        """Take a line unless it passes the cap by more than ``beyond``; whether this cut the stream."""
        if self._left + beyond < len(line) or (self.cut and not beyond):
            first, self.cut = not self.cut, True
            return first
        if self.add(line):
            self._left -= len(line)
        else:
            self.dropped += 1  # the store is too slow for what this job says; flush() tells
        return False

    def flush(self) -> None:
        if self._lines and self._offer(Chunk(self._key(self._chunk), b"".join(self._lines))):
            self._lines.clear()
            self._size = 0
            self._chunk += 1
        self._full = self._size + _CHUNK_BYTES


class Journal:
    """Buffers of one attempt. Any thread of the experiment may print, hence the lock."""

    def __init__(
        self,
        job: str,
        attempt: int,
        offer: Callable[[Chunk], bool],
        clock: Clock,
        caps: Caps | None = None,
    ) -> None:
        caps = caps or Caps()
        self._clock = clock
        self._caps = caps
        self._lock = RLock()
        self._events = _Stream(lambda chunk: keys.events(job, attempt, chunk), offer, caps.events)
        self._log = _Stream(lambda chunk: keys.log(job, attempt, chunk), offer, caps.log)
        # Events not yet written. A deque: threads append to it while another one writes.
        self._pending: deque[tuple[float, Mapping[str, object]]] = deque()
        self._due_s = clock.monotonic_s() + FLUSH_EVERY_S
        self._trouble: str | None = None
        self._untold: list[bytes] = []

    def event(self, values: Mapping[str, object]) -> None:
        """Add one event, stamped with this machine's wall clock for people."""
        if self._events.cut:
            return
        for value in values.values():
            if type(value) not in _PLAIN:  # a tensor, say: as it is now
                values = {name: _scalar(each) for name, each in values.items()}
                break
        self._pending.append((self._clock.wall_s(), values))
        if len(self._pending) >= _PENDING:
            self._write_events()

    def _write_events(self) -> None:
        with self._lock:
            while self._pending:
                at_s, values = self._pending.popleft()
                stamped = {"at_s": round(at_s, 3), **values}
                line = canonical({name: _scalar(v) for name, v in stamped.items()}) + b"\n"
                if self._events.say(line):
                    self._tell_of_cut("events are", "records", self._caps.events)

    def line(self, text: str) -> None:
        """Add log text of the job's."""
        line = text.rstrip("\n").encode("utf-8", "replace") + b"\n"
        with self._lock:
            if self._log.say(line):
                self._tell_of_cut("log is", "prints", self._caps.log)

    def note(self, text: str) -> None:
        """Add log text of tenure's own, which a job that printed too much must not crowd out."""
        line = text.rstrip("\n").encode("utf-8", "replace") + b"\n"
        with self._lock:
            if self._log.say(line, _NOTES_BYTES):
                self._tell_of_cut("log is", "prints", self._caps.log)

    def _tell_of_cut(self, what: str, does: str, most_bytes: int) -> None:
        cut = f"tenure: the {what} cut at {size(most_bytes)}"
        self._untold.append(f"{cut}; what the job {does} from here on is not kept\n".encode())
        self._tell()

    def _tell(self) -> None:
        """Say what must be said once, as soon as there is room."""
        while self._untold and self._log.add(self._untold[0]):
            self._untold.pop(0)

    def trouble(self, reason: str) -> None:
        """Note a silent store once per reason."""
        if reason != self._trouble:
            self._trouble = reason
            self.note(f"tenure: the store is silent ({reason}); working on")

    def answered(self) -> None:
        """Note that a silent store answers again."""
        if self._trouble is not None:
            self._trouble = None
            self.note("tenure: the store answers again")

    def flush_if_due(self, now_s: float) -> None:
        """Flush every few seconds."""
        if now_s >= self._due_s:
            self.flush()
            self._due_s = now_s + FLUSH_EVERY_S

    def flush(self) -> None:
        """Hand every buffered line to the courier, as far as its queue has room."""
        self._write_events()
        with self._lock:
            self._tell()
            for stream in (self._events, self._log):
                stream.flush()
                lost = f"tenure: {stream.dropped} lines dropped, the store was too slow\n"
                if stream.dropped and self._log.add(lost.encode()):
                    stream.dropped = 0
