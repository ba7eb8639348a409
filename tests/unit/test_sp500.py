"""The example: nothing looks ahead, a resumed training is the same training, the verdict has reasons.

The loop's side is a fake here (``FakeTenure``); an end-to-end test runs the example on the real
worker.
"""

from __future__ import annotations

import doctest
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from hypothesis import given, settings

from examples.sp500 import data, experiment, portfolio, reference, scores, training
from examples.sp500.experiment import Volatility, judge, read_settings
from examples.sp500.training import MODEL_FILE, Network
from tenure_worker.snapshot import load_torch

State = TypeVar("State")
Json = Mapping[str, object]

ONE_EPOCH = {"gru": {"model": "gru", "epochs": 1}, "tcn": {"model": "tcn", "epochs": 1}}
EPOCH_STEPS = 23


class Interrupted(Exception):
    """The machine went away."""


class FakeTenure:
    """A FAKE of the loop's side of tenure_worker: milestones are folders under ``home``.

    ``dies_after`` raises Interrupted inside that call of ``step`` of this process, as a lost
    machine would: whatever was not saved by then is gone.
    """

    def __init__(self, home: Path, milestone_every: int = 5, dies_after: int | None = None) -> None:
        self.home = home
        self.milestone_every = milestone_every
        self.dies_after = dies_after
        self.step_number = 0
        self.metrics: list[dict[str, float]] = []
        self._steps_here = 0
        self._saved_at: int | None = None

    @property
    def folder(self) -> Path | None:
        """The newest snapshot."""
        saved = sorted(self.home.iterdir()) if self.home.is_dir() else []
        return saved[-1] if saved else None

    def resume(self, load: Callable[[Path], State]) -> State | None:
        if self.folder is None:
            return None
        self.step_number = self._saved_at = int(self.folder.name)
        return load(self.folder)

    def step(self) -> None:
        if self._steps_here == self.dies_after:
            raise Interrupted
        self._steps_here += 1
        self.step_number += 1

    @property
    def milestone_due(self) -> bool:
        due = self.step_number > 0 and self.step_number % self.milestone_every == 0
        return due and self._saved_at != self.step_number

    def milestone(self, save: Callable[[Path], None]) -> None:
        assert self._saved_at != self.step_number, "saved twice at one step"
        folder = self.home / f"{self.step_number:06d}"
        folder.mkdir(parents=True)
        save(folder)
        self._saved_at = self.step_number

    def metric(self, **values: float) -> None:
        self.metrics.append(values)

    def announce(self, reason: str, seconds: float) -> None:
        assert reason and seconds > 0

    def work(self, steps: int) -> None:
        assert steps > 0

    def log(self, text: str) -> None:
        assert text


@pytest.fixture(autouse=True, scope="module")
def _torch_as_before() -> Iterator[None]:
    """The example makes torch deterministic for its process; other tests get theirs back."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(exact)


@cache
def prices(index: str = "sp500") -> pd.DataFrame:
    return data.load(index)


@cache
def table() -> data.Table:
    return data.table(prices())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole training of the GRU, seed 0."""
    tenure = FakeTenure(tmp_path_factory.mktemp("gru"), milestone_every=20)
    Volatility().train(tenure, {"model": "gru"}, 0)
    assert tenure.folder is not None
    return tenure.folder


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, Json]]:
    """Weights and result of one whole epoch, by model."""
    found = {}
    for model, config in ONE_EPOCH.items():
        tenure = FakeTenure(tmp_path_factory.mktemp(model))
        result = Volatility().train(tenure, config, 7)
        assert tenure.folder is not None
        found[model] = ((tenure.folder / MODEL_FILE).read_bytes(), result)
    return found


# ---------------------------------------------------------------------------------------- the data


@pytest.mark.parametrize("index", data.INDEXES)
def test_data_equal_what_arch_itself_loads(index: str) -> None:
    from importlib import import_module

    theirs = import_module(f"arch.data.{index}").load()
    pd.testing.assert_frame_equal(data.load(index), theirs, check_exact=True)


def test_importing_the_entry_point_is_light() -> None:
    heavy = "torch pandas arch empyrical safetensors scipy"
    code = (
        "import sys; from examples.sp500.experiment import Volatility as V; "
        "assert all(f.is_file() for f in V().data_files()); "
        f"print([m for m in {heavy.split()!r} if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert found.stdout.strip() == "[]"


def test_splits_are_by_target_day_and_do_not_touch() -> None:
    source = table()
    days = {
        p.name: source.dates[source.rows(p) + 1] for p in (data.TRAIN, data.VALIDATION, data.TEST)
    }
    assert days["train"].max() < days["validation"].min()
    assert days["validation"].max() < days["test"].min()
    assert sum(len(d) for d in days.values()) == (source.dates >= data.TRAIN.first).sum()
    assert str(days["train"].max()) == "2010-12-31" and str(days["test"].max()) == "2018-12-31"
    for period in (data.TRAIN, data.VALIDATION, data.TEST):
        assert np.isfinite(data.windows(source, source.rows(period), _scale())).all()


@cache
def _scale() -> data.Standardisation:
    return data.fit_standardisation({i: data.table(prices(i)) for i in data.INDEXES})


# ------------------------------------------------------------------------------------ no look-ahead


def _with_another_future(after: int, seed: int, index: str = "sp500") -> pd.DataFrame:
    """Prices as they are up to row ``after``, and another world from the next day on."""
    rng = np.random.default_rng(seed)
    frame = prices(index).copy()
    future = len(frame) - after - 1
    factor = np.exp(rng.normal(0, 0.05, future).cumsum())
    for column in ("Open", "High", "Low", "Close", "Adj Close"):
        frame.iloc[after + 1 :, frame.columns.get_loc(column)] *= factor
    high = frame.columns.get_loc("High")
    frame.iloc[after + 1 :, high] *= np.exp(rng.exponential(0.05, future))
    return frame


def _past(frame: pd.DataFrame, after: int, model_dir: Path) -> dict[str, np.ndarray]:
    """Everything that row ``after`` and the ones before it may know, computed from ``frame``."""
    source = data.table(frame)
    predicted = Network("gru", model_dir, _scale()).predict(source)
    forecast = reference.calibrate(predicted, source)
    known = slice(None, after + 1)
    return {
        "features": source.features[known],
        "targets up to the day": source.log_variance[known],
        "network": forecast.log_variance[known],
        "moving average": reference.moving_average(source).log_variance[known],
        "har": reference.har(source).log_variance[known],
        "harx": reference.harx(source).mean_log_variance[known],
        "position": portfolio.target_position(forecast.log_variance, source)[known],
        "constant": portfolio.constant_position(source)[known],
    }


LAST_TRAINING_ROW = int(np.searchsorted(table().dates, data.TRAIN.last))


@settings(max_examples=5, deadline=None)
@given(after=st.integers(LAST_TRAINING_ROW, len(prices()) - 2), seed=st.integers(0, 2**32 - 1))
def test_future_rows_change_nothing_known_before(trained: Path, after: int, seed: int) -> None:
    truth = _past(prices(), after, trained)
    for frame in (_with_another_future(after, seed), prices().iloc[: after + 2]):
        for name, values in _past(frame, after, trained).items():
            np.testing.assert_array_equal(values, truth[name], err_msg=name)


@settings(max_examples=5, deadline=None)
@given(after=st.integers(60, LAST_TRAINING_ROW), seed=st.integers(0, 2**32 - 1))
def test_features_of_training_days_know_no_later_day(after: int, seed: int) -> None:
    other = data.table(_with_another_future(after, seed))
    np.testing.assert_array_equal(other.features[: after + 1], table().features[: after + 1])
    assert (other.features[after + 1 :] != table().features[after + 1 :]).any()


def test_nothing_after_the_training_period_enters_training() -> None:
    truth = {i: data.table(prices(i)) for i in data.INDEXES}
    other = {i: data.table(_with_another_future(LAST_TRAINING_ROW, 1, i)) for i in data.INDEXES}
    scale = data.fit_standardisation(truth)
    for name, value in vars(data.fit_standardisation(other)).items():
        np.testing.assert_array_equal(value, getattr(scale, name), err_msg=name)
    for mine, theirs in zip(
        data.pooled_training_set(truth, scale),
        data.pooled_training_set(other, scale),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_the_look_ahead_test_has_teeth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A centred mean in place of a trailing one is the classic leak: the test must see it."""
    trailing = data.trailing_mean
    monkeypatch.setattr(data, "trailing_mean", lambda v, days: np.roll(trailing(v, days), -1))
    after = LAST_TRAINING_ROW + 100
    other = data.table(_with_another_future(after, 1)).features[: after + 1]
    assert not np.array_equal(other, data.table(prices()).features[: after + 1], equal_nan=True)


# ------------------------------------------------------------------------------------- exact resume


@settings(max_examples=6, deadline=None)
@given(
    model=st.sampled_from(sorted(ONE_EPOCH)),
    lives=st.lists(st.integers(0, EPOCH_STEPS - 1), min_size=1, max_size=3),
    every=st.integers(1, EPOCH_STEPS + 1),
)
def test_a_resumed_training_ends_with_the_same_bits(
    uninterrupted: dict[str, tuple[bytes, Json]],
    tmp_path_factory: pytest.TempPathFactory,
    model: str,
    lives: list[int],
    every: int,
) -> None:
    """Die after any number of steps, several times, between any milestones of an epoch."""
    home = tmp_path_factory.mktemp("resumed")
    for steps in lives:
        torch.manual_seed(steps)  # another process has another generator state
        try:
            Volatility().train(FakeTenure(home, every, dies_after=steps), ONE_EPOCH[model], 7)
        except Interrupted:
            continue
        break
    last = FakeTenure(home, every)
    result = Volatility().train(last, ONE_EPOCH[model], 7)
    assert last.folder is not None and last.step_number == EPOCH_STEPS
    assert ((last.folder / MODEL_FILE).read_bytes(), result) == uninterrupted[model]


THREE_EPOCHS = {"model": "tcn", "epochs": 3}
CUT = EPOCH_STEPS + 12  # in the second epoch; the last milestone before it is at step 27


def _cut_and_resumed(home: Path) -> tuple[bytes, list[dict[str, float]]]:
    """Final weights, and the metrics told after the resume."""
    with pytest.raises(Interrupted):
        Volatility().train(FakeTenure(home, 9, dies_after=CUT), THREE_EPOCHS, 3)
    last = FakeTenure(home, 9)
    Volatility().train(last, THREE_EPOCHS, 3)
    assert last.folder is not None
    return (last.folder / MODEL_FILE).read_bytes(), last.metrics


@pytest.fixture(scope="module")
def three_epochs(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[dict[str, float]]]:
    whole = FakeTenure(tmp_path_factory.mktemp("whole"), 9)
    Volatility().train(whole, THREE_EPOCHS, 3)
    assert whole.folder is not None and len(whole.metrics) == 3
    return (whole.folder / MODEL_FILE).read_bytes(), whole.metrics[1:]


def test_resume_crosses_epochs_and_reports_the_same_losses(
    three_epochs: tuple[bytes, list[dict[str, float]]], tmp_path: Path
) -> None:
    assert _cut_and_resumed(tmp_path) == three_epochs


@pytest.mark.parametrize("stale", ["optimizer", "schedule", "order", "permutation", "loss_sum"])
def test_nothing_in_a_snapshot_is_superfluous(
    three_epochs: tuple[bytes, list[dict[str, float]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stale: str,
) -> None:
    """A mutant each: one part restored from the first milestone, the rest from the last."""

    def load(folder: Path) -> dict[str, object]:
        first = min(folder.parent.iterdir())
        return {**load_torch(folder), stale: load_torch(first)[stale]}

    monkeypatch.setattr(training, "load_torch", load)
    assert _cut_and_resumed(tmp_path) != three_epochs


def test_a_finished_training_that_is_started_again_only_reports(
    uninterrupted: dict[str, tuple[bytes, Json]], tmp_path: Path
) -> None:
    first, again = FakeTenure(tmp_path), FakeTenure(tmp_path)
    Volatility().train(first, ONE_EPOCH["tcn"], 7)
    assert Volatility().train(again, ONE_EPOCH["tcn"], 7) == uninterrupted["tcn"][1]
    assert again.metrics == []


def test_another_seed_is_another_model(
    uninterrupted: dict[str, tuple[bytes, Json]], tmp_path: Path
) -> None:
    tenure = FakeTenure(tmp_path)
    Volatility().train(tenure, ONE_EPOCH["tcn"], 8)
    assert tenure.folder is not None
    assert (tenure.folder / MODEL_FILE).read_bytes() != uninterrupted["tcn"][0]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model": "lstm"}, "lstm"),
        ({}, "None"),
        ({"model": "gru", "layers": 2}, "layers"),
        ({"model": "gru", "epochs": 0}, "epochs"),
    ],
)
def test_a_wrong_config_is_named(config: Json, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        read_settings(config)


# ------------------------------------------------------------------------------ evaluate, backtest


def test_evaluation_is_the_same_twice_and_holds_the_references(
    trained: Path, tmp_path: Path
) -> None:
    config = {"model": "gru"}
    one = Volatility().evaluate(FakeTenure(tmp_path), config, trained)
    assert one == Volatility().evaluate(FakeTenure(tmp_path), config, trained)
    values = {name: metric.value for name, metric in one.metrics.items()}
    assert all(metric.direction == "minimize" and metric.unit for metric in one.metrics.values())
    # The table of the recipe: HAR .3709 and .4613, the 22-day mean .4253 and .5887.
    assert values["har_qlike"] == pytest.approx(0.3709, abs=5e-4)
    assert values["har_test_qlike"] == pytest.approx(0.4613, abs=5e-4)
    assert values["ma22_qlike"] == pytest.approx(0.4253, abs=5e-4)
    assert values["ma22_test_qlike"] == pytest.approx(0.5887, abs=5e-4)
    # The GRU wins QLIKE, and HARX the squared error of the test: both stay true, both are shown.
    assert values["qlike"] < 0.95 * values["har_qlike"] and values["qlike"] < values["harx_qlike"]
    assert values["harx_test_mse"] < values["test_mse"]
    losses = one.losses["qlike"]
    assert len(losses) == len(table().rows(data.VALIDATION))
    assert np.mean(losses) == pytest.approx(values["qlike"], rel=1e-12)


def test_the_gru_passes_its_backtest_with_four_reasons(trained: Path, tmp_path: Path) -> None:
    found = Volatility().backtest(FakeTenure(tmp_path), {"model": "gru"}, trained)
    assert found == Volatility().backtest(FakeTenure(tmp_path), {"model": "gru"}, trained)
    assert found.passed and found.score >= experiment.MIN_IMPROVEMENT
    assert len(found.reasons) == 4 and all(any(c.isdigit() for c in r) for r in found.reasons)
    assert {len(values) for values in found.series.values()} == {len(found.series["date"])}
    assert found.series["date"][0] == "2011-01-03" and found.series["date"][-1] == "2018-12-31"
    figures = found.tables["figures"]
    assert len(figures) == 3 * 5
    assert all(str(row["looked_at_before"]).startswith(("yes", "no")) for row in figures)
    by_name = {(r["index"], r["period"], r["strategy"]): r for r in figures}
    # Sharpe gates nothing, and this is why.
    test = {name: by_name["sp500", "test", name]["sharpe"] for name in ("model", "buy and hold")}
    assert float(str(test["model"])) < float(str(test["buy and hold"]))


def _rows(**changed: float) -> tuple[list[Json], list[Json]]:
    """Rows of a model that passes, with some numbers changed."""
    numbers = {"improvement": 0.1, "t": 3.0, "volatility": 0.103, "tracking": 0.2} | changed
    at = {"index": "sp500", "period": "validation"}
    forecasts = {
        **at,
        "qlike": 0.34,
        "har_qlike": 0.37,
        "improvement_over_har": numbers["improvement"],
        "t_against_har": numbers["t"],
    }
    model = {
        **at,
        "strategy": "model",
        "realised_volatility": numbers["volatility"],
        "tracking_error": numbers["tracking"],
    }
    constant = {**at, "strategy": "constant exposure", "tracking_error": 0.5}
    return [forecasts], [model, constant]


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({}, None),
        ({"improvement": 0.049}, "improvement over HAR"),
        ({"t": 2.0}, "t of the improvement"),
        ({"volatility": 0.1101}, "realised volatility"),
        ({"volatility": 0.0899}, "realised volatility"),
        ({"tracking": 0.351}, "tracking of the target"),
    ],
)
def test_each_criterion_fails_alone(changed: dict[str, float], fails: str | None) -> None:
    criteria = judge(*_rows(**changed))
    assert [c.name for c in criteria if not c.passed] == ([fails] if fails else [])


def test_costs_and_leverage_are_paid_and_capped() -> None:
    source = table()
    rows = source.rows(data.VALIDATION)
    still = portfolio.run(portfolio.unit_position(source), source, rows)
    simple = np.expm1(source.returns[rows + 1])
    assert still.returns[0] == pytest.approx(simple[0] - portfolio.COST_PER_TURNOVER)
    np.testing.assert_array_equal(still.returns[1:], simple[1:])
    calm = np.full(len(source.dates), -20.0)
    calm[source.rows(data.TRAIN)] = -9.0
    assert (portfolio.target_position(calm, source)[rows] == portfolio.MAX_LEVERAGE).all()


def test_bootstrap_sees_a_gain_and_no_gain() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, 750)
    noise -= noise.mean()
    assert scores.block_bootstrap_t(noise + 0.2) > 3
    assert abs(scores.block_bootstrap_t(noise)) < 1e-6
    assert scores.block_bootstrap_t(noise + 0.2) == scores.block_bootstrap_t(noise + 0.2)
    with pytest.raises(ValueError, match="39 days"):
        scores.block_bootstrap_t(noise[:39])


def test_the_plan_asks_for_what_the_example_has() -> None:
    text = (Path(experiment.__file__).parent / "plan.yaml").read_text(encoding="utf-8")
    plan = yaml.safe_load(text)
    module, name = plan["experiment"].split(":")
    assert (module, name) == (Volatility.__module__, Volatility.__qualname__)
    assert sorted(plan["grid"]["model"]) == sorted(experiment.RECIPES)
    assert plan["baseline"]["model"] in experiment.RECIPES
    assert not set(plan["seeds"]) & set(plan["retrain_seeds"])
    assert plan["promote"]["min_score"] == experiment.MIN_IMPROVEMENT


def test_doctests() -> None:
    for module in (data, scores):
        assert doctest.testmod(module).failed == 0
