"""The foreign-runtime family: Modal builds an image by our lock, Kaggle runs a script in its own kernel."""

from __future__ import annotations

from runners.rented import RentedRunner


class ForeignRuntimeRunner(RentedRunner):
    """The platform owns the process and ends it with its program; nothing is left to be ended by us."""
