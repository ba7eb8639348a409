"""The bare-container family: Lightning, RunPod, Vast. An image, variables, a command; nothing else is ours."""

from __future__ import annotations

from runners.rented import RentedRunner


class BareContainerRunner(RentedRunner):
    """The machine fetches wheel, lock, code and data itself, and ends itself when its jobs have ended."""
