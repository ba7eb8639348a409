"""Daily prices from the installed package ``arch``, causal features, and splits by date.

Nothing here looks ahead: row ``t`` is computed from rows up to ``t``, its target is the range of
day ``t + 1``, and every statistic is taken from training rows. A test changes the future and
expects no bit of the past to move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The indexes a network is trained on, pooled. The first is the one that is judged.
INDEXES = ("sp500", "nasdaq")

#: Days per example. The TCN's receptive field (kernel 2, dilations 1..16) is exactly 32.
WINDOW_DAYS = 32

#: The first row with a whole window: 21 days for the 22-day mean, 31 more before the window's last.
FIRST_ROW = 21 + WINDOW_DAYS - 1

#: Volume is left out on purpose: the NASDAQ file has two days with volume 0 (2015-05-12,
#: 2018-01-09). So are overnight gaps: Open equals the previous Close on 97-100 % of the days up to
#: 2005. And so is the calendar, which would know closures that nobody knew the day before.
FEATURES = (
    "log_variance",  # Parkinson's, of the day itself
    "log_variance_22d",  # its mean over a month
    "return_1d",  # log, close to close
    "return_5d",  # mean of a week
    "return_in_ranges",  # return_1d over the day's own Parkinson volatility
    "close_location",  # 0 closed at the low, 1 at the high
)


@dataclass(frozen=True)
class Period:
    """Target days from ``first`` to ``last``, both included."""

    name: str
    first: np.datetime64
    last: np.datetime64
    looked_at: str


TRAIN = Period("train", np.datetime64("1999-05-01"), np.datetime64("2010-12-31"), "yes, fitted")
VALIDATION = Period(
    "validation",
    np.datetime64("2011-01-01"),
    np.datetime64("2013-12-31"),
    "yes, features and thresholds were chosen here",
)
TEST = Period(
    "test",
    np.datetime64("2014-01-01"),
    np.datetime64("2018-12-31"),
    "yes, while the recipe was tried and the features were chosen",
)
#: The same years of the other index: nothing was chosen on them. But the two indexes move together,
#: so this is fresher than the test, not independent of it.
HOLDOUT = Period(
    "holdout",
    TEST.first,
    TEST.last,
    "not before the README's figures were written; it moves with the S&P 500",
)


@dataclass(frozen=True)
class Table:
    """One index, one row per trading day, oldest first.

    ``features`` is (days, 6) and, like ``log_variance`` and ``returns`` (log, close to close), NaN
    where the history is too short. Row ``t`` knows nothing of ``t + 1``.
    """

    dates: NDArray[np.datetime64]
    features: Floats
    log_variance: Floats
    returns: Floats

    def rows(self, period: Period) -> Ints:
        """Rows ``t`` whose target day ``t + 1`` lies in ``period``.

        Split by the day that is predicted, not by the day that predicts it, so that no target of
        one period is an input's day of another.
        """
        target_day = self.dates[1:]
        inside = (target_day >= period.first) & (target_day <= period.last)
        rows = np.flatnonzero(inside).astype(np.int64)
        return rows[rows >= FIRST_ROW]

    def target(self, rows: Ints) -> Floats:
        """Log Parkinson variance of the day after each row."""
        return self.log_variance[rows + 1]


@dataclass(frozen=True)
class Standardisation:
    """Means and deviations of the features (6,) and of the target, from training rows alone."""

    feature_mean: Floats
    feature_sd: Floats
    target_mean: float
    target_sd: float


def data_file(index: str) -> Path:
    """The file that ``arch`` ships for ``index``.

    The file is found, not imported: ``import arch`` pulls statsmodels and scipy in (1.4 s on the
    machine this was written on), and reading one CSV needs neither.
    """
    spec = find_spec("arch")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "The example reads its prices from the package arch, which is not installed here. "
            "Install it: pip install arch"
        )
    path = Path(spec.submodule_search_locations[0]) / "data" / index / f"{index}.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            f"This version of arch ships no {path.name} (looked for {path}). "
            "The example was written against arch 8.0."
        )
    return path


def load(index: str) -> pd.DataFrame:
    """Open, High, Low, Close, Adj Close and Volume by day; equal to ``arch.data.<index>.load()``."""
    import pandas as pd

    frame = pd.read_csv(data_file(index))
    frame["Date"] = pd.to_datetime(frame["Date"])
    return frame.set_index("Date")


def table(frame: pd.DataFrame) -> Table:
    """Features and ranges of one index.

    Parkinson's estimate of a day's variance is ``ln(High / Low)^2 / (4 ln 2)`` (Parkinson 1980,
    Journal of Business 53:61-65, https://doi.org/10.1086/296071).
    """
    high, low, close = (frame[name].to_numpy(np.float64) for name in ("High", "Low", "Close"))
    log_range = np.log(high / low)
    log_variance = np.log(log_range**2 / (4 * np.log(2)))
    returns = np.concatenate([[np.nan], np.diff(np.log(close))])
    columns = {
        "log_variance": log_variance,
        "log_variance_22d": trailing_mean(log_variance, 22),
        "return_1d": returns,
        "return_5d": trailing_mean(returns, 5),
        "return_in_ranges": returns / np.exp(log_variance / 2),
        "close_location": np.log(close / low) / log_range,
    }
    return Table(
        dates=frame.index.to_numpy().astype("datetime64[D]"),
        features=np.stack([columns[name] for name in FEATURES], axis=1),
        log_variance=log_variance,
        returns=returns,
    )


def tables() -> dict[str, Table]:
    """The tables of both indexes, by name."""
    return {index: table(load(index)) for index in INDEXES}


def trailing_mean(values: Floats, days: int) -> Floats:
    """Mean of the last ``days`` values, NaN before there are as many.

    Every window is summed on its own: a running sum would let a rounding error of one day live on
    in all later ones.

    >>> trailing_mean(np.array([1.0, 2.0, 4.0]), 2)
    array([nan, 1.5, 3. ])
    """
    out = np.full(len(values), np.nan)
    out[days - 1 :] = np.lib.stride_tricks.sliding_window_view(values, days).mean(axis=1)
    return out


def fit_standardisation(by_index: Mapping[str, Table]) -> Standardisation:
    """Statistics of the training rows, pooled over the indexes.

    Pooled, because the level itself carries information: scaled one by one, a calm NASDAQ day looks
    like a calm S&P day, and the validation loss is worse (0.361 against 0.338, three seeds).
    """
    features = np.concatenate([t.features[t.rows(TRAIN)] for t in by_index.values()])
    target = np.concatenate([t.target(t.rows(TRAIN)) for t in by_index.values()])
    return Standardisation(
        feature_mean=features.mean(axis=0),
        feature_sd=features.std(axis=0),
        target_mean=float(target.mean()),
        target_sd=float(target.std()),
    )


def windows(source: Table, rows: Ints, scale: Standardisation) -> NDArray[np.float32]:
    """Standardised windows (rows, 32, 6), each ending with its row."""
    scaled = ((source.features - scale.feature_mean) / scale.feature_sd).astype(np.float32)
    days = rows[:, None] + np.arange(1 - WINDOW_DAYS, 1)
    return np.asarray(scaled[days], dtype=np.float32)


def pooled_training_set(
    by_index: Mapping[str, Table], scale: Standardisation, indexes: Sequence[str] = INDEXES
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Windows (examples, 32, 6) and log variances (examples,) of the training period."""
    chosen = [by_index[index] for index in indexes]
    inputs = [windows(t, t.rows(TRAIN), scale) for t in chosen]
    targets = [t.target(t.rows(TRAIN)) for t in chosen]
    return np.concatenate(inputs), np.concatenate(targets).astype(np.float32)
