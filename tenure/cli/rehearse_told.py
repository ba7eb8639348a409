"""What a rehearsal is told as: tables, JSON, and a picture. ``docs/rehearse.md`` names the keys."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from tenure.cli import screen
from tenure.dispatch.rehearsal import Prepared
from tenure.errors import UsageError
from tenure.plan.file import Plan
from tenure.plan.rehearse import Outcome, Relaxation, Spread

_HOUR_S = 3600.0
_BINS = 30
PLANNER, ORDER = "the planner", "the user's order"


@dataclass(frozen=True)
class Told:
    """One rehearsal, to be told."""

    plan: Plan
    ready: Prepared
    outcome: Outcome
    off: Outcome | None  # the same by the user's order, where the planner was asked
    way_out: Relaxation | None
    faster: float
    seed: int

    # -------------------------------------------------------------------------------- JSON

    def as_json(self) -> dict[str, object]:
        """As scripts read it; what never ends is null."""
        script, way_out = self.outcome.script, self.way_out
        stages = {"training": len(script.jobs)}
        if script.retrain:
            stages["pinned_retrain"] = script.retrain.jobs
        return {
            "plan": self.plan.name,
            "plays": len(self.outcome.plays),
            "seed": self.seed,
            "jobs": stages,
            "deadline_h": self.plan.deadline_h,
            "budget": dict(self.plan.budget),
            "rule": "order" if self.off is None else "planner",
            **_outcome_json(self.outcome, self.faster),
            "order": None if self.off is None else _outcome_json(self.off, self.faster),
            "relaxation": None if way_out is None else _relaxation_json(way_out),
            "excluded": dict(self.ready.excluded),
            "assumed": list(self.ready.assumed),
        }

    # -------------------------------------------------------------------------------- words

    def show(self) -> None:
        """Print the tables and the sentences."""
        outcome = self.outcome
        screen.show(("by", "what", "mean", "10 %", "50 %", "90 %"), _spreads(self._rules()))
        typer.echo("")
        screen.show(
            ("rung", "card", "hours", "share", "launches", "lost"),
            [
                (
                    each.rung, each.card, f"{each.hours:.2f}", f"{each.share:.0%}",
                    f"{each.launches:.1f}", f"{each.losses:.1f}",
                )
                for each in outcome.rungs
            ],
        )  # fmt: skip
        typer.echo("")
        for line in self._sentences():
            typer.echo(screen.plain(line))
        for name, why in self.ready.excluded.items():
            typer.echo(screen.plain(f"rung {name} is not played: {why}"))
        if self.ready.assumed:
            typer.echo(screen.plain(f"assumed: {'; '.join(self.ready.assumed)}"))

    def _rules(self) -> list[tuple[str, Outcome]]:
        if self.off is None:
            return [(ORDER, self.outcome)]
        return [(PLANNER, self.outcome), (ORDER, self.off)]

    def _sentences(self) -> list[str]:
        outcome, script = self.outcome, self.outcome.script
        retrain = f" and {script.retrain.jobs} of the pinned retrain" if script.retrain else ""
        found = [f"{len(script.jobs)} jobs{retrain}, played {len(outcome.plays)} times"]
        if outcome.on_time is not None:
            chance = f"P(on time) {_chance(outcome.on_time, len(outcome.plays))} by {PLANNER}"
            if self.off is None:
                chance = f"P(on time) {_chance(outcome.on_time, len(outcome.plays))}"
            elif self.off.on_time is not None:
                chance += f", {_chance(self.off.on_time, len(outcome.plays))} by {ORDER}"
            found.append(f"{chance}; due in {self.plan.deadline_h:g} h")
        if outcome.budget_kept is not None:
            budget = ", ".join(f"{amount:g} {name}" for name, amount in script.budget.items())
            found.append(f"P(all is done within the budget of {budget}) {outcome.budget_kept:.2f}")
        for name, each in self._rules():
            if each.never:
                why = next(play.stuck for play in each.plays if play.stuck)
                found.append(f"{each.never:.0%} of the plays by {name} never end: {why}")
        if phases := outcome.phases:
            found.append(
                f"of {phases.total_s / _HOUR_S:.1f} h on machines {phases.part:.0%} is computing, "
                f"{phases.start_s / phases.total_s:.1%} starts, {phases.restart_s / phases.total_s:.1%} "
                f"restarts and lost work, {phases.checkpoint_s / phases.total_s:.1%} snapshots; jobs wait "
                f"{outcome.wait_h:.1f} h beside it"
            )
            found.append(phases.words(self.faster))
        return found

    # ------------------------------------------------------------------------------ picture

    def draw(self, file: Path) -> None:
        """Two panels, finish times and costs, as a PNG. Raises UsageError; a sentence without matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            screen.warn(f"{file} is not drawn: matplotlib is missing; pip install matplotlib")
            return
        figure = Figure(figsize=(10, 4), layout="constrained")
        times, costs = figure.subplots(1, 2)
        rules = self._rules()
        finishes = {
            name: [p.finish_s / _HOUR_S for p in each.plays if math.isfinite(p.finish_s)]
            for name, each in rules
        }
        _histogram(times, finishes)
        times.set(xlabel="finish (h)", ylabel="plays")
        if self.plan.deadline_h is not None:
            times.axvline(self.plan.deadline_h, color="black", linestyle="--", label="deadline")
        currency = self._dearest()
        paid = {name: [p.spent[currency] for p in each.plays] for name, each in rules}
        _histogram(costs, paid)
        costs.set(xlabel=f"cost ({currency})", ylabel="plays")
        if currency in self.plan.budget:
            costs.axvline(self.plan.budget[currency], color="black", linestyle="--", label="budget")
        times.legend()
        costs.legend()
        figure.suptitle(f"{self.plan.name}: {len(self.outcome.plays)} plays, seed {self.seed}")
        try:
            figure.savefig(file, format="png", dpi=110)
        except OSError as error:
            raise UsageError(f"--plot {file} cannot be written: {error.strerror}") from None

    def _dearest(self) -> str:
        """The currency that is drawn: that of a budget, else the one with the largest mean."""
        spreads = self.outcome.cost
        names = [name for name in spreads if name in self.plan.budget] or list(spreads)
        return max(names, key=lambda name: spreads[name].mean)


def _histogram(axes: object, series: Mapping[str, Sequence[float]]) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    values = [value for each in series.values() for value in each]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < 1e-9:  # all plays alike, as on a free rung
        low, high = low - 0.5, high + 0.5
    for name, each in series.items():
        axes.hist(list(each), bins=_BINS, range=(low, high), alpha=0.6, label=name)


def _spreads(rules: Sequence[tuple[str, Outcome]]) -> list[tuple[str, ...]]:
    rows = []
    for name, each in rules:
        rows.append((name, "finish, h", *_cells(each.finish_h)))
        rows += [(name, f"cost, {unit}", *_cells(cost)) for unit, cost in each.cost.items()]
    return rows


def _cells(spread: Spread) -> tuple[str, ...]:
    return tuple(
        f"{value:.2f}" if math.isfinite(value) else "never" for value in asdict(spread).values()
    )


def _chance(share: float, plays: int) -> str:
    """A share of the plays with its standard error.

    >>> _chance(0.8, 100), _chance(1.0, 200)
    ('0.80 (sd 0.04)', '1.00 (sd 0.00)')
    """
    return f"{share:.2f} (sd {math.sqrt(share * (1 - share) / plays):.2f})"


def _outcome_json(outcome: Outcome, faster: float) -> dict[str, object]:
    phases = outcome.phases
    return {
        "finish_h": _spread_json(outcome.finish_h),
        "cost": {name: _spread_json(each) for name, each in outcome.cost.items()},
        "on_time": outcome.on_time,
        "budget_kept": outcome.budget_kept,
        "never": outcome.never,
        "moves": outcome.moves,
        "rungs": [asdict(each) for each in outcome.rungs],
        "phases_h": None
        if phases is None
        else {
            "compute": phases.compute_s / _HOUR_S,
            "start": phases.start_s / _HOUR_S,
            "restart": phases.restart_s / _HOUR_S,
            "checkpoint": phases.checkpoint_s / _HOUR_S,
        },
        "wait_h": outcome.wait_h,
        "faster": None
        if phases is None
        else {
            "times": faster,
            "part": phases.part,
            "speedup": phases.speedup(faster),
            "most": _finite(phases.most),
            "reason": phases.words(faster),
        },
    }


def _spread_json(spread: Spread) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in asdict(spread).items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _relaxation_json(way_out: Relaxation) -> dict[str, object]:
    return {
        "what": way_out.what,
        "asked": way_out.asked,
        "short": _finite(way_out.short),
        "enough": _finite(way_out.enough),
        "cost": {name: _spread_json(each) for name, each in way_out.cost.items()},
        "reason": way_out.reason,
    }
