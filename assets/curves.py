"""Loss and equity curves: read from the store, drawn as small PNG images."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from assets.chain import Done
from assets.facts import Picture, point_words
from assets.stage import Context
from tenure.dispatch.execution import Execution
from tenure.errors import Blocked, StoreOutOfReach
from tenure_protocol.codec import Corrupt, parse, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.store.api import Missing, Store, StoreSilent
from tenure_worker.stages import BACKTEST_FILE

MAX_CURVES = 24  # more lines than that cannot be told apart
LOG_ABOVE = 20.0  # largest value over smallest, from which the axis is logarithmic
_NOT_A_LOSS = frozenset({"at_s", "step", "epoch"})
_REFERENCES = ("buy_and_hold", "benchmark")


@dataclass(frozen=True)
class Curve:
    """One line of a picture."""

    label: str
    group: str  # lines of one group have one colour
    x: Sequence[float]
    y: Sequence[float]


def loss_picture(context: Context, done: Sequence[Done]) -> Picture | str | None:
    """The loss of every training over its steps, from the jobs' events; ``None`` without any.

    A sentence where nothing can be drawn: trainings of hours are not lost for want of a picture.
    """
    execution = Execution(context.store, {}, context.clock, "assets")
    curves, name = [], None
    for one in done[:MAX_CURVES]:
        try:
            lines = execution.events(one.spec.id).records
        except StoreSilent as error:
            raise StoreOutOfReach(str(error)) from error
        events = [event for line in lines if isinstance(event := json.loads(line), dict)]
        name = name or loss_name(events)
        points = loss_curve(events, name) if name else {}
        if points:
            group = point_words(one.spec.config)
            label = f"{group}, seed {one.spec.seed}"
            curves.append(Curve(label, group, list(points), list(points.values())))
    if not curves or name is None:
        return None
    return _picture(curves, "step", name, f"{name} over {len(curves)} trainings")


def loss_name(events: Sequence[Mapping[str, object]]) -> str | None:
    """Which of a training's metrics is its loss: one that says so, else the first number.

    >>> loss_name([{"step": 1, "lr": 0.1, "train_loss": 2.0}]), loss_name([{"step": 1, "err": 3}])
    ('train_loss', 'err')
    """
    names = dict.fromkeys(
        name
        for event in events
        for name, value in event.items()
        if name not in _NOT_A_LOSS and _is_number(value)
    )
    return next((name for name in names if "loss" in name), next(iter(names), None))


def loss_curve(events: Sequence[Mapping[str, object]], name: str) -> dict[float, float]:
    """Value by step; a step that a later attempt repeated counts once, with the later value.

    >>> loss_curve([{"step": 1, "loss": 3}, {"step": 2, "loss": 2}, {"step": 1, "loss": 1}], "loss")
    {1.0: 1.0, 2.0: 2.0}
    """
    found: dict[float, float] = {}
    for event in events:
        step, value = event.get("step"), event.get(name)
        if isinstance(step, (int, float)) and isinstance(value, (int, float)):
            found[float(step)] = float(value)
    return dict(sorted(found.items()))


def equity_picture(context: Context, done: Sequence[Done]) -> Picture | str | None:
    """The equity of every backtest, and what the first is compared with; ``None`` without any.

    A sentence where nothing can be drawn, as of :func:`loss_picture`.
    """
    curves: list[Curve] = []
    for one in done[:MAX_CURVES]:
        series = backtest_series(context.store, one)
        for name, values in equity_series(series).items():
            reference = name in _REFERENCES
            if reference and any(curve.group == name for curve in curves):
                continue  # the same for every seed
            group = name if reference else point_words(one.spec.config)
            label = name if reference else f"{group}, seed {one.spec.seed}"
            curves.append(Curve(label, group, range(len(values)), values))
    if not curves:
        return None
    return _picture(curves, "day", "equity", f"equity of {len(done)} backtests")


def backtest_series(store: Store, done: Done) -> Mapping[str, object]:
    """The series of one backtest, its digest checked. Raises Blocked or StoreOutOfReach."""
    key = keys.snapshot(done.spec.id, done.ref.pointer) + BACKTEST_FILE
    entry = done.manifest.files.get(BACKTEST_FILE)
    try:
        found = store.read(key)
        if isinstance(found, Missing) or entry is None or sha256_hex(found.body) != entry.sha256:
            raise Blocked(f"{key} is not the file that its manifest names")
        series = parse(found.body, key).get("series")
    except StoreSilent as error:
        raise StoreOutOfReach(str(error)) from error
    except Corrupt as error:
        raise Blocked(str(error)) from error
    return series if isinstance(series, dict) else {}


def equity_series(series: Mapping[str, object]) -> dict[str, list[float]]:
    """The series that show money: ``equity`` and its references, else the first one of numbers.

    >>> equity_series({"day": ["a"], "equity": [1.0], "position": [0.5], "buy_and_hold": [1.1]})
    {'equity': [1.0], 'buy_and_hold': [1.1]}
    """
    numbers = {
        name: [float(value) for value in values]
        for name, values in series.items()
        if isinstance(values, list) and values and all(map(_is_number, values))
    }
    wanted = [name for name in ("equity", *_REFERENCES) if name in numbers]
    if "equity" not in wanted and numbers:
        wanted = [next(iter(numbers))]
    return {name: numbers[name] for name in wanted}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _picture(curves: Sequence[Curve], x_name: str, y_name: str, words: str) -> Picture | str:
    try:
        return Picture(_draw(curves, x_name, y_name), words)
    except ImportError as error:
        return f"not drawn, because matplotlib cannot be imported ({error}): {words}"


def _draw(curves: Sequence[Curve], x_name: str, y_name: str) -> bytes:
    """A PNG of about 30 kB: it is kept in every materialization."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    groups = list(dict.fromkeys(curve.group for curve in curves))
    seen: set[str] = set()
    for curve in curves:
        axes.plot(
            curve.x,
            curve.y,
            color=f"C{groups.index(curve.group) % 10}",
            linewidth=1.0,
            alpha=0.8,
            label=None if curve.group in seen else curve.group,
        )
        seen.add(curve.group)
    values = [value for curve in curves for value in curve.y]
    if min(values) > 0 and max(values) > LOG_ABOVE * min(values):
        axes.set_yscale("log")  # one bad first epoch would flatten all the rest
    axes.set_xlabel(x_name)
    axes.set_ylabel(y_name)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    return buffer.getvalue()
