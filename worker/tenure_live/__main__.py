"""``python -m tenure_live NAME``: print the path of a proved model, or say why there is none."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from tenure_live.loader import POLICIES, load_model
from tenure_live.refusal import Refused, WrongCall
from tenure_protocol.store.api import StoreSilent
from tenure_protocol.warrants import SLOTS

_SILENT = 3


def main(argv: list[str] | None = None) -> int:
    """Load one model; returns 0, 1 refused, 2 bad input, 3 the store does not answer."""
    parser = argparse.ArgumentParser(
        prog="python -m tenure_live",
        description="Print the folder of the model that is deployed under a name, once its warrant, "
        "its files and this environment were verified.",
        epilog="exit codes: 0 the path is printed, 1 refused, 2 bad input, 3 the store does not answer",
    )
    parser.add_argument("name", metavar="NAME", help="the deployment's name")
    parser.add_argument("--store", default=os.environ.get("TENURE_STORE"), help="$TENURE_STORE")
    parser.add_argument(
        "--key",
        type=Path,
        action="append",
        required=True,
        help="a trusted public key (PEM); repeat it",
    )
    parser.add_argument(
        "--revoked", action="append", default=[], metavar="KEYID=N",
        help="a revoked key, and its last warrant that is believed (0: none)",
    )  # fmt: skip
    parser.add_argument("--slot", choices=SLOTS, default="live")
    parser.add_argument("--environment", choices=POLICIES, default="forbid")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="FIELD",
        help="a field that may differ, such as packages.pytest; repeat it",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, help="default: tenure-live in $XDG_CACHE_HOME")
    options = parser.parse_args(argv)
    if not options.store:
        parser.error("name a store, or set $TENURE_STORE")
    logging.basicConfig(format="tenure: %(message)s", stream=sys.stderr)
    try:
        model = load_model(
            options.name,
            store=options.store,
            trusted_keys=options.key,
            revoked_keys=dict(map(_revoked, options.revoked)),
            slot=options.slot,
            environment=options.environment,
            allow=options.allow,
            cache=options.cache,
        )
    except (Refused, WrongCall) as error:
        print(f"tenure: {error}", file=sys.stderr)
        return error.exit_code
    except StoreSilent as error:
        print(f"tenure: the store does not answer: {error}", file=sys.stderr)
        return _SILENT
    except KeyboardInterrupt:
        return 130
    print(model.path)
    return 0


def _revoked(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not name or not number.isdecimal():
        raise WrongCall(f"--revoked {text!r} must be KEYID=N, N the last warrant that is believed")
    return name, int(number)


if __name__ == "__main__":
    raise SystemExit(main())
