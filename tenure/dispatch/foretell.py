"""With every launch a forecast of when its job will be done, kept to be scored when it is.

What forecasts and advice are made of (curves, laws, overheads) is drawn anew every ten minutes, and only
where it is asked for.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import replace

from tenure.dispatch import quality
from tenure.dispatch.foresight import Foresight
from tenure.dispatch.ladder import Rung
from tenure.dispatch.observations import Observatory
from tenure.dispatch.rows import Place, WorkLeft
from tenure.plan.predict import Forecast, Overheads, forecast
from tenure.plan.survival import Curve
from tenure.plan.throughput import Throughput
from tenure_protocol.records import JobSpec, Lifetime
from tenure_worker.pacing import LEAST_K

#: A market changes slowly against a round.
DRAWN_EVERY_S = 600.0
#: Of one forecast. It is made in the middle of a round; its deciles are then known to 2 points of chance.
DRAWS = 200
#: A job that needs more machines is said never to end: a worker may tell any length.
MOST_LIVES = 200


class Foreseen:
    """Curves, laws and overheads of a dispatcher's rungs, by what it has seen."""

    def __init__(self, rungs: Mapping[str, Rung], observatory: Observatory) -> None:
        self._rungs = rungs
        self._observatory = observatory
        self._seen: Foresight | None = None
        self._drawn_s = 0.0
        self._curves: dict[str, Curve] = {}  # by rung
        self._laws: dict[tuple[Place, str], Throughput | None] = {}
        self._overheads: dict[str, Overheads] = {}  # by rung

    def at(self, now_s: float) -> None:
        """It is so late (monotonic): what is too old by now is drawn anew when it is asked for."""
        if self._seen is not None and now_s - self._drawn_s < DRAWN_EVERY_S:
            return
        self._seen = Foresight(self._observatory.rows(), self._observatory.lifetimes.rows())
        self._drawn_s = now_s
        self._curves.clear()
        self._laws.clear()
        self._overheads.clear()

    def curve(self, name: str) -> Curve:
        """How long machines of a rung last from their claim on, borrowed from its price class at first."""
        if name not in self._curves:
            rung = self._rungs[name]
            like = [
                each.name for each in self._rungs.values() if each.price_class == rung.price_class
            ]
            self._curves[name] = self._known.curve(name, self._wall_s(rung), like)
        return self._curves[name]

    def _wall_s(self, rung: Rung) -> float | None:
        """A machine's wall counts from its launch, and a life from the claim."""
        if rung.capacity.wall_s is None or rung.capacity.wall_s <= 0:
            return None
        start_s = self._observatory.start_s(rung.name)
        start_s = quality.UNKNOWN_START_S if start_s is None else start_s
        return max(rung.capacity.wall_s - start_s, 1.0)

    def law(self, place: Place, work: str) -> Throughput | None:
        """The throughput of a kind of work on one (runner, card); ``None`` where nothing is known."""
        if (place, work) not in self._laws:
            try:
                self._laws[place, work] = self._known.law(place, work)
            except ValueError:
                self._laws[place, work] = None
        return self._laws[place, work]

    def overheads(self, rung: str, interval_s: float, silence_s: float) -> Overheads:
        """What a job loses there beside its work, with milestones after so much training."""
        if rung not in self._overheads:
            self._overheads[rung] = self._known.overheads(rung, math.inf)
        return replace(self._overheads[rung], interval_s=interval_s, silence_s=silence_s)

    @property
    def _known(self) -> Foresight:
        assert self._seen is not None, "at() comes first"
        return self._seen


class Foreteller:
    """Keeps a forecast with each launch of a job whose length is known, on a rung whose speed is."""

    def __init__(self, observatory: Observatory, foreseen: Foreseen) -> None:
        self._observatory = observatory
        self._foreseen = foreseen

    def launched(self, spec: JobSpec, launch: int, rung: Rung, made_s: float, now_s: float) -> None:
        """A launch was made on a rung, announced at ``made_s``; both times are monotonic.

        Where nothing is known there is no forecast. It raises nothing for numbers that cannot be: a
        rented machine may have told them. A job that reads a model is as long as nobody knows: it has the
        configuration of its training, and not its length.
        """
        if spec.kind != "train":
            return
        left = self._observatory.left(spec.id)
        if left is None:
            return
        self._foreseen.at(now_s)
        place = rung.runner_name, self._observatory.card_of(rung)
        try:
            told = self._forecast(spec, launch, rung, left, place)
        except (ValueError, ArithmeticError):
            return
        if told is not None:
            row = Lifetime(spec.id, launch, rung.name, "running", spec.cards)
            self._observatory.lifetimes.predicted(place, row, told.quantiles_s, made_s)

    def _forecast(
        self, spec: JobSpec, launch: int, rung: Rung, left: WorkLeft, place: Place
    ) -> Forecast | None:
        law = self._foreseen.law(place, left.work)
        if law is None:
            return None
        step_s = left.per_step / law.per_s(spec.cards)
        # how long the lease of a machine is that is lost, so far as it is known before it has begun
        silence_s = min(LEAST_K * step_s, spec.max_silence_s)
        return forecast(
            left.amount,
            law,
            self._foreseen.curve(rung.name),
            self._foreseen.overheads(rung.name, spec.milestone_every * step_s, silence_s),
            spec.cards,
            draws=DRAWS,
            seed=zlib.crc32(f"{spec.id}/{launch}".encode()),
            most_lives=MOST_LIVES,
        )
