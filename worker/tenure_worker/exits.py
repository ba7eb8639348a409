"""How a worker ends: the public table of exit codes, as exceptions that user code cannot swallow."""

from __future__ import annotations

import errno
import re

FINISHED = 0
CODE_ERROR = 1
USAGE = 2
RELEASED = 10
LEASE_LOST = 11
ELSEWHERE = 12
SUPERSEDED = 13
REFUSED = 14
PROTOCOL = 15
STORE_GONE = 16
OUT_OF_MEMORY = 17

EXIT_CODES: dict[int, str] = {
    FINISHED: "finished",
    CODE_ERROR: "code error",
    USAGE: "usage",
    RELEASED: "released",
    LEASE_LOST: "lease lost",
    ELSEWHERE: "someone else holds it",
    SUPERSEDED: "superseded",
    REFUSED: "refused",
    PROTOCOL: "protocol",
    STORE_GONE: "store gone",
    OUT_OF_MEMORY: "out of memory",
}

#: errno values that speak of the machine, not of the user's code: the job goes on elsewhere.
_MACHINE_ERRNO = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EROFS, errno.ENXIO, errno.EREMOTEIO}
)
_MACHINE_WORDS = re.compile(
    r"cuda error|ecc error|uncorrectable|cudnn_status|\bxid\b", re.IGNORECASE
)
#: Another rank of the job is gone: killed, or its card. That says nothing about this machine.
_PEER_WORDS = re.compile(
    r"nccl error|gloo/transport|connection (closed|reset) by peer", re.IGNORECASE
)


#: How the reason of a release begins that a fault of the machine led to; workers of before told no step.
_FAULT = re.compile(r"machine fault(?: at step (\d{1,18}))?: ")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+", re.IGNORECASE)


def fault_of(reason: str | None) -> tuple[str, int | None] | None:
    """What a machine fault is known by on whatever machine, and at which step of the training it came.

    ``None`` where the reason tells of none; no step where the worker did not tell it.

    >>> fault_of("machine fault at step 7: RuntimeError: CUDA error 719 at 0x7f"), fault_of("SIGTERM")
    (('RuntimeError: CUDA error # at #', 7), None)
    """
    begins = _FAULT.match(reason or "")
    if begins is None:
        return None
    line = begins.string[begins.end() :].strip().splitlines() or [""]
    step = int(begins[1]) if begins[1] else None
    return _NUMBERS.sub("#", line[0])[:200], step


class Stopped(SystemExit):
    """The worker must end now. A SystemExit, so that ``except Exception`` does not keep it alive."""

    def __init__(self, exit_code: int, reason: str) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code
        self.reason = reason

    def __str__(self) -> str:
        return f"{EXIT_CODES[self.exit_code]}: {self.reason}"


def classify(error: BaseException) -> int:
    """Exit code of an exception of the experiment.

    Out of memory and faults of the machine (CUDA, ECC, I/O) release the job for another rung; any
    other exception is the code's own and ends it.

    >>> classify(MemoryError()), classify(OSError(errno.ENOSPC, "full")), classify(KeyError("x"))
    (17, 10, 1)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return OUT_OF_MEMORY
    if isinstance(error, OSError):
        if error.errno == errno.ENOMEM:
            return OUT_OF_MEMORY
        return RELEASED if error.errno in _MACHINE_ERRNO else CODE_ERROR
    if isinstance(error, RuntimeError) and "out of memory" in str(error).lower():
        return OUT_OF_MEMORY
    if _is_peers(error):
        return RELEASED
    if isinstance(error, RuntimeError) and _MACHINE_WORDS.search(str(error)):
        return RELEASED
    return CODE_ERROR


def _is_peers(error: BaseException) -> bool:
    if type(error).__name__ in ("DistBackendError", "DistNetworkError"):
        return True
    told = isinstance(error, RuntimeError) or type(error).__name__ == "RankFailed"
    return told and bool(_PEER_WORDS.search(str(error)))


def release_reason(error: BaseException, code: int, step: int) -> str:
    """The words that a job is released with for an exception; a fault of this machine says that it is one.

    ``step`` is the last step of the training that was done: what comes at the same one on machines of
    different makes is not theirs.

    >>> release_reason(RuntimeError("CUDA error: 719"), RELEASED, 7)
    'machine fault at step 7: RuntimeError: CUDA error: 719'
    """
    words = f"{type(error).__name__}: {error}"
    if code != RELEASED or _is_peers(error):
        return words
    return f"machine fault at step {step}: {words}"
