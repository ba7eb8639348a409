"""How long a person waits for the command line itself.

    python bench/startup.py

Each command is run as a process of its own, several times, in turn with an empty Python, so that what
the machine does meanwhile meets both alike. Nothing of a platform's SDK, of Dagster or torch is
imported by them (a test says so); this says what is left.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from bench.instruments.report import Report, arguments
from tenure_protocol.clock import SYSTEM

ROUNDS, QUICK_ROUNDS = 21, 3
MOST_S = 0.5
COMMANDS: dict[str, list[str]] = {
    "python -c pass": ["-c", "pass"],
    "tenure --help": ["-c", "from tenure.__main__ import main; main()", "--help"],
    "tenure --version": ["-c", "from tenure.__main__ import main; main()", "--version"],
}


def seconds(arguments: list[str]) -> float:
    began_s = SYSTEM.monotonic_s()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return SYSTEM.monotonic_s() - began_s


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("startup", options)
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(QUICK_ROUNDS if report.quick else ROUNDS):
        for name, command in COMMANDS.items():
            took[name].append(seconds(command))
    for name, times in took.items():
        median_s = statistics.median(times)
        report.line(
            name,
            f"median {median_s:.3f} s, the longest of {len(times)} {max(times):.3f} s",
            f"at most {MOST_S:g} s" if name == "tenure --help" else "",
            median_s=median_s, longest_s=max(times),
        )  # fmt: skip
    report.end()


if __name__ == "__main__":
    main()
