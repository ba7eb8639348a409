"""The whole ``tenure`` command in this process: its entry point, its arguments, its exit code."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

from tenure.cli import app, group
from tests.unit.test_cli import Ended


def tenure(*args: str) -> Ended:
    """Run one command; what it raises for nobody's eyes is a bug and comes out as it is."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            group.build(app).main(list(args), prog_name="tenure")
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Ended(code, out.getvalue(), err.getvalue())


def complaint(*args: str) -> Ended:
    """A command that ends with one sentence, and nothing else, for a person."""
    ended = tenure(*args)
    assert ended.out == "" and ended.err.startswith("tenure: "), ended
    assert len(ended.err.splitlines()) == 1 and "Traceback" not in ended.err
    return ended
