"""The script ``tenure``, and ``python -m tenure``. Importing this imports nothing that takes time."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line and exit with its code.

    Importing it takes a tenth of a second, in which Ctrl-C simply ends the process: nothing has begun
    yet, and a traceback out of an import would tell nobody anything. Where a parent ignores Ctrl-C, so
    does this.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tenure.cli import main as run

    run()


if __name__ == "__main__":
    main()
