"""The entry point of the example: ``examples.sp500.experiment:Volatility``.

Importing this module costs numpy and nothing heavier; torch, pandas and empyrical come with the
first method that needs them, under an announcement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from examples.sp500 import data, portfolio, reference, scores
from tenure_worker.experiment import Backtest, Evaluation, Metric

if TYPE_CHECKING:
    from examples.sp500.training import Settings
    from tenure_worker.tenure import Tenure

#: Criteria of the backtest, all judged on the validation period of the S&P 500.
MIN_IMPROVEMENT = 0.05  # QLIKE below HAR's, relative
MIN_T = 2.0  # of the daily differences, paired block bootstrap
MAX_VOLATILITY_MISS = 0.01  # realised against the target of 10 % per year
MAX_TRACKING_RATIO = 0.7  # tracking error against that of a constant exposure

#: (epochs, learning rate). More epochs overfit.
RECIPES = {"tcn": (8, 3e-3), "gru": (10, 4e-3)}

#: Where a backtest is played: the first is judged, the others are reported.
STAGES = (
    ("sp500", data.VALIDATION),
    ("sp500", data.TEST),
    ("nasdaq", data.HOLDOUT),
)

LOADING_S = 60.0  # torch and pandas on a cold disk; 4 s on the machine this was written on


@dataclass(frozen=True)
class Criterion:
    """One reason to pass or to fail, as a number against its threshold."""

    name: str
    value: float
    threshold: float
    passed: bool
    sentence: str


class Volatility:
    """Tomorrow's volatility of the S&P 500, and a position that lives off it."""

    def data_files(self) -> Sequence[Path]:
        """The two files of the package ``arch`` that everything here is computed from."""
        return [data.data_file(index) for index in data.INDEXES]

    def train(
        self, tenure: Tenure, config: Mapping[str, object], seed: int
    ) -> Mapping[str, object]:
        """Train one network on both indexes; the last snapshot's model.safetensors is the model."""
        tenure.announce("importing torch, reading prices", LOADING_S)
        from examples.sp500.training import Training

        by_index = data.tables()
        scale = data.fit_standardisation(by_index)
        inputs, targets = data.pooled_training_set(by_index, scale)
        training = Training(read_settings(config), seed, inputs, targets, scale)
        tenure.work(steps=training.total_steps)  # what is left is known when its machine is judged
        tenure.resume(training.load)
        while not training.done:
            training.step()
            tenure.step()
            if training.epoch_ended:
                tenure.metric(epoch=training.epoch, loss=training.epoch_loss)
            if tenure.milestone_due or training.done:
                tenure.milestone(training.save)
        return {
            "train_qlike": training.epoch_loss,
            "steps": training.steps,
            "examples": len(inputs),
            "parameters": sum(p.numel() for p in training.model.parameters()),
        }

    def evaluate(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Evaluation:
        """QLIKE and squared error on validation and test, beside three references.

        ``qlike`` and ``mse`` are of the validation period, 2011 to 2013; the losses are its daily
        QLIKE, in order of date.
        """
        tenure.announce("importing torch, predicting every day", LOADING_S)
        by_index = data.tables()
        scale, source = data.fit_standardisation(by_index), by_index["sp500"]
        forecast = _forecasts(config, model_dir, {"sp500": source}, scale)["sp500"]
        metrics: dict[str, Metric] = {}
        for name, each in [("", forecast), *_references(source)]:
            prefix = f"{name}_" if name else ""
            for period, word in ((data.VALIDATION, ""), (data.TEST, "test_")):
                qlike = float(_qlike(each, source, period).mean())
                error = _squared_error(each, source, period)
                metrics[f"{prefix}{word}qlike"] = Metric(qlike, "minimize", "nats")
                metrics[f"{prefix}{word}mse"] = Metric(error, "minimize", "squared log volatility")
        losses = _qlike(forecast, source, data.VALIDATION)
        return Evaluation(metrics=metrics, losses={"qlike": losses.tolist()})

    def backtest(self, tenure: Tenure, config: Mapping[str, object], model_dir: Path) -> Backtest:
        """Play the volatility-targeted position; pass on forecast and tracking, never on Sharpe.

        The score is the relative improvement of QLIKE over HAR on validation. Sharpe, drawdown and
        turnover are in the tables and decide nothing: on the test years no volatility-targeted
        position has a better Sharpe than buy and hold, whatever forecasts it.
        """
        tenure.announce("importing torch, playing the position", LOADING_S)
        by_index = data.tables()
        scale = data.fit_standardisation(by_index)
        forecasts = _forecasts(config, model_dir, by_index, scale)
        figure_rows: list[dict[str, object]] = []
        forecast_rows: list[dict[str, object]] = []
        for index, period in STAGES:
            source, forecast = by_index[index], forecasts[index]
            where = {"index": index, "period": period.name}
            seen = {"looked_at_before": period.looked_at}
            forecast_rows.append({**where, **compare(forecast, source, period), **seen})
            for name, position in _positions(forecast, source).items():
                played = portfolio.run(position, source, source.rows(period))
                row = asdict(portfolio.figures(played))
                figure_rows.append({**where, "strategy": name, **row, **seen})
        criteria = judge(forecast_rows, figure_rows)
        score = next(c.value for c in criteria if c.name == "improvement over HAR")
        return Backtest(
            score=score,
            series=_series(forecasts["sp500"], by_index["sp500"]),
            tables={
                "criteria": [asdict(c) for c in criteria],
                "forecasts": forecast_rows,
                "figures": figure_rows,
            },
            passed=all(c.passed for c in criteria),
            reasons=[c.sentence for c in criteria],
        )


def read_settings(config: Mapping[str, object]) -> Settings:
    """The recipe of ``config["model"]``; ``epochs`` may shorten it, as tests do.

    Raises ValueError with the key that is wrong.
    """
    from examples.sp500.training import Settings

    unknown = sorted(set(config) - {"model", "epochs"})
    if unknown:
        raise ValueError(f"The example has no setting {unknown[0]!r}: it has 'model' and 'epochs'")
    model = config.get("model")
    if not isinstance(model, str) or model not in RECIPES:
        raise ValueError(f"'model' must be one of {sorted(RECIPES)}, not {model!r}")
    epochs, learning_rate = RECIPES[model]
    chosen = config.get("epochs", epochs)
    if not isinstance(chosen, int) or isinstance(chosen, bool) or chosen < 1:
        raise ValueError(f"'epochs' must be a whole number from 1 up, not {chosen!r}")
    return Settings(model=model, epochs=chosen, learning_rate=learning_rate)


def compare(
    forecast: reference.Forecast, source: data.Table, period: data.Period
) -> dict[str, object]:
    """QLIKE of the model and the references over a period, and how sure the gain over HAR is."""
    model = _qlike(forecast, source, period)
    others = {name: _qlike(each, source, period) for name, each in _references(source)}
    return {
        "qlike": float(model.mean()),
        **{f"{name}_qlike": float(losses.mean()) for name, losses in others.items()},
        "improvement_over_har": float(1.0 - model.mean() / others["har"].mean()),
        "t_against_har": scores.block_bootstrap_t(others["har"] - model),
        "t_against_harx": scores.block_bootstrap_t(others["harx"] - model),
    }


def judge(
    forecast_rows: Sequence[Mapping[str, object]], figure_rows: Sequence[Mapping[str, object]]
) -> list[Criterion]:
    """The four criteria, on the stage that is judged: validation of the S&P 500."""
    index, period = STAGES[0]
    at = {"index": index, "period": period.name}
    forecasts = _only_row(forecast_rows, at)
    model = _only_row(figure_rows, {**at, "strategy": "model"})
    constant = _only_row(figure_rows, {**at, "strategy": "constant exposure"})
    improvement, t = forecasts["improvement_over_har"], forecasts["t_against_har"]
    miss = abs(model["realised_volatility"] - portfolio.TARGET_VOLATILITY)
    ratio = model["tracking_error"] / constant["tracking_error"]
    return [
        Criterion(
            "improvement over HAR",
            improvement,
            MIN_IMPROVEMENT,
            improvement >= MIN_IMPROVEMENT,
            f"QLIKE {forecasts['qlike']:.4f} is {improvement:.1%} below HAR's "
            f"{forecasts['har_qlike']:.4f}; at least {MIN_IMPROVEMENT:.0%} is asked.",
        ),
        Criterion(
            "t of the improvement",
            t,
            MIN_T,
            t > MIN_T,
            f"The daily gain over HAR has t = {t:.1f} in a paired bootstrap of "
            f"{scores.BLOCK_DAYS}-day blocks; more than {MIN_T:.0f} is asked.",
        ),
        Criterion(
            "realised volatility",
            miss,
            MAX_VOLATILITY_MISS,
            miss <= MAX_VOLATILITY_MISS,
            f"The position realised {model['realised_volatility']:.1%} a year against a target of "
            f"{portfolio.TARGET_VOLATILITY:.0%}; within {100 * MAX_VOLATILITY_MISS:.0f} point "
            "is asked.",
        ),
        Criterion(
            "tracking of the target",
            ratio,
            MAX_TRACKING_RATIO,
            ratio <= MAX_TRACKING_RATIO,
            f"Its tracking error {model['tracking_error']:.2f} is {ratio:.2f} of the "
            f"{constant['tracking_error']:.2f} of a constant exposure; at most "
            f"{MAX_TRACKING_RATIO} is asked.",
        ),
    ]


def _only_row(
    rows: Sequence[Mapping[str, object]], where: Mapping[str, object]
) -> dict[str, float]:
    """The numbers of the one row that matches ``where``."""
    (row,) = [r for r in rows if where.items() <= r.items()]
    return {key: value for key, value in row.items() if isinstance(value, float)}


def _references(source: data.Table) -> list[tuple[str, reference.Forecast]]:
    return [
        ("ma22", reference.moving_average(source)),
        ("har", reference.har(source)),
        ("harx", reference.harx(source)),
    ]


def _forecasts(
    config: Mapping[str, object],
    model_dir: Path,
    by_index: Mapping[str, data.Table],
    scale: data.Standardisation,
) -> dict[str, reference.Forecast]:
    """The trained network's forecasts for each index."""
    from examples.sp500.training import Network

    network = Network(read_settings(config).model, model_dir, scale)
    return {
        index: reference.calibrate(network.predict(source), source)
        for index, source in by_index.items()
    }


def _qlike(forecast: reference.Forecast, source: data.Table, period: data.Period) -> data.Floats:
    rows = source.rows(period)
    return scores.qlike(source.target(rows), forecast.log_variance[rows])


def _squared_error(forecast: reference.Forecast, source: data.Table, period: data.Period) -> float:
    """Mean squared error of log volatility, which is half the log variance."""
    rows = source.rows(period)
    residual = source.target(rows) - forecast.mean_log_variance[rows]
    return float((residual**2).mean() / 4.0)


def _positions(forecast: reference.Forecast, source: data.Table) -> dict[str, data.Floats]:
    har, harx = reference.har(source), reference.harx(source)
    return {
        "model": portfolio.target_position(forecast.log_variance, source),
        "har": portfolio.target_position(har.log_variance, source),
        "harx": portfolio.target_position(harx.log_variance, source),
        "constant exposure": portfolio.constant_position(source),
        "buy and hold": portfolio.unit_position(source),
    }


def _series(forecast: reference.Forecast, source: data.Table) -> dict[str, Sequence[float | str]]:
    """Validation and test of the S&P 500 in one line, a value per day."""
    periods = (data.VALIDATION, data.TEST)
    rows = np.concatenate([source.rows(period) for period in periods])
    held = {
        name: portfolio.run(position, source, rows)
        for name, position in _positions(forecast, source).items()
    }
    words = [period.name for period in periods for _ in source.rows(period)]
    return {
        "date": [str(day) for day in source.dates[rows + 1]],
        "period": words,
        "equity": held["model"].equity.tolist(),
        "har": held["har"].equity.tolist(),
        "constant_exposure": held["constant exposure"].equity.tolist(),
        "buy_and_hold": held["buy and hold"].equity.tolist(),
        "position": held["model"].position.tolist(),
        "forecast_volatility": portfolio.forecast_volatility(forecast.log_variance, source)[
            rows
        ].tolist(),
    }
