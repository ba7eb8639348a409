"""One line per number, with its target beside it; or all of them as one JSON object."""

from __future__ import annotations

import argparse
import json
import os
import platform

import psutil

#: Where the machine does so much else, in percent of all cores, times say little.
_BUSY_PERCENT = 15.0


class Report:
    """Prints numbers as they come, or keeps them for ``--json``.

    Keys carry their unit (``tick_s``, ``cpu_s_per_renewal``); the words around a number are for
    people and stand in no JSON.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.quick: bool = arguments.quick
        self._json: bool = arguments.json
        self._numbers: dict[str, dict[str, object]] = {}
        busy_percent = psutil.cpu_percent(1.0)
        self._head = {
            "bench": name,
            "quick": self.quick,
            "cores": os.cpu_count(),
            "busy_before_percent": busy_percent,
            "python": platform.python_version(),
        }
        if busy_percent > _BUSY_PERCENT:
            self.note(f"others take {busy_percent:.0f} % of this machine: trust the counts alone")
        if self.quick:
            self.note("--quick: small sizes that show that it works, not what it costs")

    def note(self, words: str) -> None:
        """Something a reader of the numbers must know."""
        if not self._json:
            print(f"  {words}", flush=True)

    def line(self, what: str, measured: str, target: str = "", /, **numbers: object) -> None:
        """One measurement in words with its target, and the same as numbers under ``what``."""
        self._numbers[" ".join(what.split())] = {**numbers, "target": target or None}
        if not self._json:
            beside = f"   [target {target}]" if target else ""
            print(f"{what}: {measured}{beside}", flush=True)

    def end(self) -> None:
        """With ``--json``, print everything."""
        if self._json:
            print(json.dumps({**self._head, "numbers": self._numbers}, indent=2))


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    return parser
