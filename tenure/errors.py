"""The three ways a command ends other than well; each carries one sentence for a person.

The command line prints the sentence and exits with the code; nobody sees a traceback for bad input.
"""

from __future__ import annotations

from typing import ClassVar


class UsageError(Exception):
    """Bad input: what is wrong, where, and what to do. Exit code 2."""

    exit_code: ClassVar[int] = 2


class StoreOutOfReach(Exception):
    """The store did not answer, so nothing is known and nothing was done. Exit code 3."""

    exit_code: ClassVar[int] = 3


class Blocked(Exception):
    """The answer is no: a gate blocks, a store is unsafe, a job failed. Exit code 1."""

    exit_code: ClassVar[int] = 1
