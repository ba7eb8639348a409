"""Which rung a waiting job tries so that its like learn from it: a probe of a new card, or a draw among like rungs.

Both reorder what the planner has advised for a job that waits, and nothing else: whatever holds a rung back or
takes it out stands above them, and so does the last moment. What they decide by is pure
(:mod:`tenure.plan.learn`); the work that a job does there is kept, and from its first milestone on the rung is known.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tenure.dispatch.foretell import Foreseen
from tenure.dispatch.ladder import Rung
from tenure.dispatch.observations import Observatory
from tenure.dispatch.rows import Place, WorkLeft
from tenure.dispatch.views import JobView
from tenure.plan.advise import Advice, Prospect
from tenure.plan.learn import Arm, pick, probe

#: Rungs of a price class are alike where one is expected to cost at most so many times the other.
ALIKE = 1.5
_NEWEST = 30  # launches that tell what work costs on a rung
_MOST_WAITING = 100  # jobs of a kind of work that are looked at: those that are launched next


class Tries:
    """Called from a dispatcher's rounds alone."""

    def __init__(
        self, rungs: Mapping[str, Rung], observatory: Observatory, foreseen: Foreseen
    ) -> None:
        self._rungs = rungs
        self._observatory = observatory
        self._foreseen = foreseen

    def advised(
        self,
        views: Sequence[JobView],
        lefts: Mapping[str, WorkLeft],
        on: Mapping[str, str],
        now_s: float,
    ) -> dict[str, Advice]:
        """By job, the advice of those that try something; ``on`` is where each job is, '' where it waits.

        Jobs whose length nobody knows try nothing: whatever they do tells that first. Nor do those that are to be
        deployed, or whose last moment has come.
        """
        groups: dict[str, list[JobView]] = {}
        for view in views:
            if view.job in lefts and view.advice is not None:
                groups.setdefault(lefts[view.job].work, []).append(view)
        found: dict[str, Advice] = {}
        for work, alike in sorted(groups.items()):
            known = {name for name in self._rungs if self._is_known(name, work)}
            waiting = [view for view in alike if not on[view.job] and _may_try(view, now_s)]
            waiting.sort(key=lambda view: (-view.priority, view.order, view.job))
            waiting = waiting[:_MOST_WAITING]
            if not waiting or len(known) == len(self._rungs):
                continue
            taken = {on[view.job] for view in alike}
            found |= self._probes(work, alike, waiting, known | taken, known, now_s)
            per_s = {name: self._per_s(name, work) for name in self._rungs}
            for view in waiting:
                if view.job not in found:
                    amount = lefts[view.job].amount
                    costs = {name: [amount * s for s in rows] for name, rows in per_s.items()}
                    if advice := self._draw(view, known, costs):
                        found[view.job] = advice
        return found

    # ------------------------------------------------------------------------------- probes

    def _probes(
        self,
        work: str,
        alike: Sequence[JobView],
        waiting: Sequence[JobView],
        out: set[str],
        known: set[str],
        now_s: float,
    ) -> dict[str, Advice]:
        """One job for each rung that nobody knows and that is worth a probe; ``out``: known, or one is there already.

        What is left of all such jobs is at stake: it costs so much on the cheapest rung that is known, and so much there.
        """
        found: dict[str, Advice] = {}
        for name in sorted(set(self._rungs) - out):
            law = self._foreseen.law(self._place(name), work)
            view = next(
                (v for v in waiting if v.job not in found and _has_time(v, name, now_s)), None
            )
            here = _prospect(view, name) if view else None
            if law is None or view is None or here is None:
                continue
            known_usd = new_usd = 0.0
            for each in alike:
                cheapest = min((e.usd for e in each.prospects if e.rung in known), default=None)
                there = _prospect(each, name)
                if cheapest is not None and there is not None:
                    known_usd, new_usd = known_usd + cheapest, new_usd + there.usd
            if known_usd <= 0 or new_usd <= 0:
                continue
            price = here.usd_per_h * (here.start_s + here.milestone_s) / 3600.0
            worth = probe(known_usd, new_usd, law.log_sd(view.cards), price, what=f"rung {name}")
            if worth.run:
                found[view.job] = _first(view, name, f"it probes rung {name}: {worth.reason}")
        return found

    # --------------------------------------------------------------------------- like rungs

    def _draw(
        self, view: JobView, known: set[str], seconds: Mapping[str, Sequence[float]]
    ) -> Advice | None:
        """A draw among the rungs that are like its first one, as long as nobody knows one of them.

        ``seconds`` are those that the job would have been paid for on each machine that did such work, by rung.
        """
        assert view.advice is not None
        first = _prospect(view, view.advice.order[0])
        assert first is not None
        price_class = self._rungs[first.rung].price_class
        like = [
            each
            for each in view.prospects
            if each.rung not in view.advice.held
            and self._rungs[each.rung].price_class == price_class
            and 0 < each.usd <= ALIKE * first.usd
        ]
        if len(like) < 2 or all(each.rung in known for each in like):
            return None
        arms = [
            Arm(each.rung, each.usd, tuple(each.usd_per_h * s / 3600.0 for s in seconds[each.rung]))
            for each in like
        ]
        drawn = pick(arms, zlib.crc32(view.job.encode()))
        return _first(view, drawn.rung, drawn.reason)

    def _per_s(self, name: str, work: str) -> list[float]:
        """Seconds paid for one unit of work, by the newest launches on a rung, starts included."""
        rows = [row for at, row in self._observatory.rows() if at == self._place(name)]
        return [
            row.paid_s / row.done
            for row in rows[-_NEWEST:]
            if row.work == work and row.rung == name and row.done > 0 and row.paid_s > 0
        ]

    def _is_known(self, name: str, work: str) -> bool:
        return self._observatory.usual(self._place(name), work) is not None

    def _place(self, name: str) -> Place:
        rung = self._rungs[name]
        return rung.runner_name, self._observatory.card_of(rung)


def _prospect(view: JobView, rung: str) -> Prospect | None:
    return next((each for each in view.prospects if each.rung == rung), None)


def _may_try(view: JobView, now_s: float) -> bool:
    return not view.critical and view.advice is not None and not view.advice.pressed(now_s)


def _has_time(view: JobView, rung: str, now_s: float) -> bool:
    """Whether a job comes to a milestone there before its last moment, and from there to the sure rung."""
    here = _prospect(view, rung)
    if here is None or view.advice is None:
        return False
    return now_s + here.start_s + here.milestone_s + here.reserve_s < view.advice.latest_s


def _first(view: JobView, rung: str, why: str) -> Advice:
    """The same advice with a rung before all others, not held back any more."""
    assert view.advice is not None
    order = (rung, *(name for name in view.advice.order if name != rung))
    held = {name: until_s for name, until_s in view.advice.held.items() if name != rung}
    return replace(view.advice, order=order, held=held, reason=f"{view.advice.reason}; {why}")
