"""The foreign-runtime family: Modal builds an image by our lock, Kaggle runs a script in its own kernel."""

from __future__ import annotations

from runners.rented import RentedRunner


class ForeignRuntimeRunner(RentedRunner):
    """The platform owns the process and ends it with its program; nothing is left to be ended by us.

    Where it builds images (``BUILDS``), the lock goes to it, once for all machines of that lock;
    else the machine installs it, on top of what the runtime brings.
    """

    @property
    def _built_by_platform(self) -> bool:
        return self.PLATFORM.BUILDS
