"""Wait for what another process or thread is about to do."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], for_s: float = 120.0, every_s: float = 0.02) -> None:
    """Look until it is so; a test that waits longer hangs, on the slowest machine too."""
    end_s = time.monotonic() + for_s
    while not true():
        assert time.monotonic() < end_s, f"not within {for_s:g} s"
        time.sleep(every_s)
