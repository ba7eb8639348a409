"""How a person calls this command, for the commands that it proposes to them."""

from __future__ import annotations

import os.path
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "tenure"


def own_name(elsewhere: bool = False) -> str:
    """``tenure`` where a shell finds it by that name, else the path it was called by, quoted.

    ``elsewhere``: as it must be written in another folder than the working one.
    """
    called = Path(sys.argv[0])
    if called.name != _NAME or not called.is_file():
        return _NAME  # called as a module or from a test: nothing better is known
    found = shutil.which(_NAME)
    if found and os.path.samefile(found, called):
        return _NAME
    if elsewhere:
        called = called.absolute()
    return shlex.quote(str(called) if called.parent != Path() else f"./{called}")
