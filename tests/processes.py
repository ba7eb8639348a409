"""Ending what a test has left running."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def end(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each; one that ended between being listed and now has ended all the same."""
    left = list(processes)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=120)
