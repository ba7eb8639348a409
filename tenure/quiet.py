"""Standard output is for what a command says: what libraries print there goes to standard error."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stdout_kept() -> Iterator[None]:
    """Send what C code prints on descriptor 1 to descriptor 2 meanwhile.

    HiGHS may print a line at numbers that are very far apart, whatever it is told, and that line would stand
    in the middle of ``--json``. Nothing happens where either descriptor is closed.
    """
    try:
        sys.stdout.flush()
        kept, errors = os.dup(1), os.dup(2)
    except (OSError, ValueError):
        yield
        return
    try:
        _flush_c()  # what was printed before belongs where it was going
        os.dup2(errors, 1)
        yield
    finally:
        _flush_c()  # a pipe is written when a buffer is full, or the process ends
        os.dup2(kept, 1)
        os.close(kept)
        os.close(errors)


def _flush_c() -> None:
    """Write out the buffers of the C library, which Python's own do not know of."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
