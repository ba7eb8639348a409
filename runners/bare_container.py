"""The bare-container family: Lightning, RunPod, Vast. An image, variables, a command; nothing else is ours."""

from __future__ import annotations

from collections.abc import Mapping

from runners.rented import RentedRunner


class BareContainerRunner(RentedRunner):
    """The machine fetches wheel, lock, code and data itself, and installs the lock before its jobs.

    It may live on, and be billed, when its program has ended, so it is told how to end itself; where it
    ends with its command (Lightning) there is nothing to tell.
    """

    def _ending(self) -> Mapping[str, object] | None:
        return self._platform.ending()
