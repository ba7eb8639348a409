"""Words of others on a person's terminal."""

from __future__ import annotations

import re

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(words: str) -> str:
    """Words of others, such as a worker's reason, with what a terminal would obey made visible.

    >>> plain("title \x1b]0;mine\x07")
    'title \\\\x1b]0;mine\\\\x07'
    """
    return _OBEYED.sub(lambda found: f"\\x{ord(found[0]):02x}", words)
