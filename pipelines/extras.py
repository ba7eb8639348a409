"""What is installed of the packages that only some commands need."""

from __future__ import annotations

import importlib.util

from tenure.errors import UsageError


def demand_dagster(command: str, package: str = "dagster") -> None:
    """Raises UsageError where a package of the extra ``dagster`` is missing."""
    demand(
        package,
        f"`tenure {command}` needs the extra dagster ({package} is not installed); run: "
        "pip install -c constraints.txt -e '.[dagster]'",
    )


def demand(package: str, otherwise: str) -> None:
    """Raises UsageError with the sentence where the package is missing; imports nothing."""
    if importlib.util.find_spec(package) is None:
        raise UsageError(otherwise)
