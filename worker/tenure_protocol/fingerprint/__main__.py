"""``python -m tenure_protocol.fingerprint``: this machine, measured, as JSON on standard output.

With a requirement on standard input (``--requires``), its switches are set first, as a worker sets them.
"""

from __future__ import annotations

import json
import sys

from tenure_protocol.fingerprint import apply_determinism, measure


def main() -> int:
    """Measure and print."""
    if sys.argv[1:] == ["--requires"]:
        apply_determinism(json.load(sys.stdin))
    elif sys.argv[1:]:
        print("usage: python -m tenure_protocol.fingerprint [--requires]", file=sys.stderr)
        return 2
    print(json.dumps(measure(), sort_keys=True, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
