"""What a network has to beat: heterogeneous autoregressions, and a calibration that all share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.sp500.data import FEATURES, TRAIN, Floats, Table, trailing_mean


@dataclass(frozen=True)
class Forecast:
    """Forecasts made at the close of each row (days,), NaN where none can be made.

    ``log_variance`` is the log of the expected variance, which QLIKE rewards; ``mean_log_variance``
    is the expected log variance, which squared error rewards. They differ by Jensen's inequality,
    0.4 here, so a model judged by both needs both.
    """

    log_variance: Floats
    mean_log_variance: Floats


def calibrate(raw: Floats, source: Table) -> Forecast:
    """Both levels of a forecast, from the training rows of the index it is for.

    The mean of actual / forecast is made 1, which minimises QLIKE over all shifts, and the mean of
    the log residual is made 0, which minimises squared error. Every model gets the same two shifts,
    so that none is punished for the loss it was fitted with.
    """
    rows = source.rows(TRAIN)
    residual = source.target(rows) - raw[rows]
    return Forecast(
        log_variance=raw + np.log(np.exp(residual).mean()),
        mean_log_variance=raw + residual.mean(),
    )


def moving_average(source: Table) -> Forecast:
    """The mean log variance of the last 22 days."""
    return calibrate(trailing_mean(source.log_variance, 22), source)


def har(source: Table) -> Forecast:
    """HAR of the log variance on its means over a day, a week and a month (Corsi 2009).

    https://doi.org/10.1093/jjfinec/nbp001
    """
    return _least_squares(_har_columns(source), source)


def harx(source: Table) -> Forecast:
    """HAR with the four other features that the networks see, as they stand at the close.

    The strongest linear reference with the same information; the returns among them carry the
    leverage effect (Corsi and Reno 2012, https://doi.org/10.1080/07350015.2012.663261).
    """
    others = [
        column
        for name, column in zip(FEATURES, source.features.T, strict=True)
        if not name.startswith("log_variance")
    ]
    return _least_squares([*_har_columns(source), *others], source)


def _har_columns(source: Table) -> list[Floats]:
    log_variance = source.log_variance
    return [log_variance, trailing_mean(log_variance, 5), trailing_mean(log_variance, 22)]


def _least_squares(columns: list[Floats], source: Table) -> Forecast:
    """Ordinary least squares on the training rows of ``source``, applied to every row."""
    design = np.stack([*columns, np.ones_like(columns[0])], axis=1)
    rows = source.rows(TRAIN)
    coefficients, *_ = np.linalg.lstsq(design[rows], source.target(rows), rcond=None)
    # Summed column by column, not `design @ coefficients`: BLAS may choose another kernel for
    # another number of rows, and then a longer series would change the past's last bit.
    raw = sum(c * x for c, x in zip(coefficients, design.T, strict=True))
    return calibrate(np.asarray(raw, dtype=np.float64), source)
