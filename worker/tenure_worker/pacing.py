"""How long the lease of a worker is: K median steps, with a K that is learnt from the steps of its job."""

from __future__ import annotations

from collections.abc import Sequence

from tenure_protocol import peaks
from tenure_protocol.lease.client import fruitless
from tenure_protocol.patience import MOST_K, best_k, first_silence_s
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import JobSpec, Launch, Manifest, Witness
from tenure_protocol.store.api import shortest_lease_s
from tenure_protocol.work import Work

#: Until a dispatcher has observed them: from a loss to the next attempt's first step; losses per hour.
RESTART_S, DEATH_PER_H = 300.0, 0.05
#: Three boundaries at which a renewal may be sent: two lost answers in a row depose nobody.
LEAST_K = 4.0
UNMEASURED_S = 60.0  # the lease over the first steps
_LOW_SPEED = 0.1  # of its peak that a card reaches at least, as long as nothing is measured
_CHOOSE_AFTER = 1.2  # times as many steps as at the last choice of K
_MOST_DOUBLINGS = 6


class Pacing:
    """Of one attempt. It lies within the shortest lease of the store and the job's longest silence."""

    def __init__(self, spec: JobSpec, claimed: Witness, deadline_s: float, card: str) -> None:
        self._spec = spec
        self._launch = claimed.launch
        self._card = card
        self._floor_s = shortest_lease_s(deadline_s)
        self._ratios = Ratios()  # of the steps of the job, as far as its pointers tell
        self._platform = _told_ratios(self._launch)  # lent while the job has few of its own
        self._k = float(MOST_K)
        # An attempt that was written off before its first milestone may have been so by its lease.
        self._doubling = 2.0 ** min(max(fruitless(claimed) - 1, 0), _MOST_DOUBLINGS)
        self._chosen_at = 0  # steps known when K was last chosen

    def resume(self, manifest: Manifest) -> None:
        """Go on with what the attempts before have measured. Raises ValueError for ratios that are none.

        The step in which the last one was written off had lasted so long, and nobody knows more: it is
        counted as censored.
        """
        if manifest.ratios:
            self._ratios.merge(Ratios.from_json(manifest.ratios))
        if self._launch and self._launch.lapsed_s and manifest.median_step_s:
            self._ratios.censor(max(1.0, self._launch.lapsed_s / manifest.median_step_s))

    def learn(self, steps_s: Sequence[float], median_s: float) -> None:
        """Further steps, in seconds, and the median of the latest; K is chosen anew now and then."""
        self._ratios.add_many(steps_s, median_s)
        if median_s > 0 and self._ratios.total >= self._chosen_at * _CHOOSE_AFTER:
            self._chosen_at = self._ratios.total
            self._k = max(float(self._choose(median_s)), LEAST_K)

    def _choose(self, median_s: float) -> int:
        """K by least expected cost, with what the launch was told of its platform."""
        told = self._launch.restart_s if self._launch else None
        deaths = self._launch.death_per_h if self._launch else None
        return best_k(
            self._ratios,
            median_s,
            RESTART_S if told is None else told,
            DEATH_PER_H if deaths is None else deaths,
            milestone_s=self._spec.milestone_every * median_s,
            prior=self._platform,
        ).k

    def silence_s(self, median_s: float) -> float:
        """The lease once steps are measured."""
        return self._within(self._k * self._doubling * median_s)

    def first_silence_s(self, work: Work | None) -> float:
        """The lease over the first steps: by their FLOPs and the card's peak, where it is longer than usual."""
        top = peaks.known_peak(self._card, work.dtype) if work else None
        if work is None or top is None:
            return self._within(UNMEASURED_S)
        predicted_s, _ = first_silence_s(work.flops, top.flops_per_s, _LOW_SPEED, self._k)
        return self._within(max(predicted_s, UNMEASURED_S))

    def to_json(self) -> dict[str, object] | None:
        """What a manifest keeps of it; ``None`` before the first step is measured."""
        return self._ratios.to_json() if self._ratios.total else None

    def _within(self, seconds: float) -> float:
        return min(max(seconds, self._floor_s), self._spec.max_silence_s)


def _told_ratios(launch: Launch | None) -> Ratios | None:
    """The step ratios of the platform, where a dispatcher has told them; without any, K begins high."""
    if launch is None or launch.ratios is None:
        return None
    try:
        return Ratios.from_json(launch.ratios)
    except ValueError:  # a newer dispatcher's: a measure is lost, and no work
        return None
