"""An orbit that tells how long it is, so that what is left of it is known."""

from __future__ import annotations

from collections.abc import Mapping

from tenure_worker.tenure import Tenure
from tests.orbit.experiment import Orbit, number


class ToldOrbit(Orbit):
    """The same training; its dispatcher may weigh what is left against a move."""

    def train(self, tenure: Tenure, config: Mapping[str, object], seed: int) -> dict[str, object]:
        tenure.work(steps=int(number(config, "steps", 100)))
        return super().train(tenure, config, seed)
