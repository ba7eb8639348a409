"""The two ways in which no model is given; a store that does not answer is a StoreSilent."""

from __future__ import annotations

from typing import ClassVar

from tenure_protocol.fingerprint import Difference


class Refused(Exception):
    """The model may not be loaded here: one sentence that says what, where, and what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, sentence: str, differences: tuple[Difference, ...] = ()) -> None:
        super().__init__(sentence)
        self.differences = differences  # of the environment, where that is the reason


class WrongCall(ValueError):
    """Bad input, or something that is not installed: nothing was asked of the model yet."""

    exit_code: ClassVar[int] = 2
