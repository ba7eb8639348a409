"""A position that aims at a constant volatility, what it costs, and its figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from examples.sp500.data import TRAIN, Floats, Ints, Table

TRADING_DAYS_PER_YEAR = 252
TARGET_VOLATILITY = 0.10  # per year
MAX_LEVERAGE = 2.0
COST_PER_TURNOVER = 2e-4  # 2 basis points of every unit bought or sold
TRACKING_DAYS = 21


@dataclass(frozen=True)
class Run:
    """One strategy over one period, a value per target day.

    ``position`` is decided at the close before the day, ``returns`` are simple and net of costs.
    """

    position: Floats
    returns: Floats

    @property
    def equity(self) -> Floats:
        """Wealth at each close, starting from 1."""
        return np.asarray(np.cumprod(1.0 + self.returns), dtype=np.float64)


@dataclass(frozen=True)
class Figures:
    """Figures of one run; volatility, turnover and costs per year, the drawdown a negative part."""

    realised_volatility: float
    tracking_error: float
    sharpe: float
    max_drawdown: float
    annual_return: float
    turnover_per_year: float
    mean_position: float


def forecast_volatility(forecast_log_variance: Floats, source: Table) -> Floats:
    """Volatility per year of the next close-to-close return, forecast at each row's close.

    A range misses what happens overnight, so its variance is scaled to that of close-to-close
    returns by the ratio of their means over the training rows.
    """
    rows = source.rows(TRAIN)
    variance = np.exp(forecast_log_variance)
    scale = float((_next_returns(source, rows) ** 2).mean() / variance[rows].mean())
    return np.asarray(np.sqrt(TRADING_DAYS_PER_YEAR * scale * variance), dtype=np.float64)


def target_position(forecast_log_variance: Floats, source: Table) -> Floats:
    """Position held from each row's close to the next: target volatility / forecast volatility."""
    wanted = TARGET_VOLATILITY / forecast_volatility(forecast_log_variance, source)
    return np.asarray(np.minimum(wanted, MAX_LEVERAGE), dtype=np.float64)


def constant_position(source: Table) -> Floats:
    """The exposure that would have met the target over the training period, held for ever."""
    daily = _next_returns(source, source.rows(TRAIN))
    volatility = float(daily.std(ddof=1)) * TRADING_DAYS_PER_YEAR**0.5
    return np.full(len(source.dates), TARGET_VOLATILITY / volatility)


def unit_position(source: Table) -> Floats:
    """Buy and hold."""
    return np.ones(len(source.dates))


def run(position: Floats, source: Table, rows: Ints) -> Run:
    """Hold ``position`` over the days after ``rows``; entering from cash is paid for as well."""
    held = position[rows]
    turnover = np.abs(np.diff(held, prepend=0.0))
    gross = held * _next_returns(source, rows)
    return Run(position=held, returns=gross - COST_PER_TURNOVER * turnover)


def figures(of: Run) -> Figures:
    """Figures by empyrical-reloaded; no interest on cash, no cost of leverage beyond turnover.

    The tracking error is the root mean square of (volatility of 21 days / target - 1): a constant
    exposure can meet the target on average and miss it every month.
    """
    import empyrical

    rolling = np.lib.stride_tricks.sliding_window_view(of.returns, TRACKING_DAYS)
    monthly = rolling.std(axis=1, ddof=1) * TRADING_DAYS_PER_YEAR**0.5
    turnover = np.abs(np.diff(of.position, prepend=0.0))
    return Figures(
        realised_volatility=float(empyrical.annual_volatility(of.returns)),
        tracking_error=float(np.sqrt(((monthly / TARGET_VOLATILITY - 1.0) ** 2).mean())),
        sharpe=float(empyrical.sharpe_ratio(of.returns)),
        max_drawdown=float(empyrical.max_drawdown(of.returns)),
        annual_return=float(empyrical.annual_return(of.returns)),
        turnover_per_year=float(turnover.mean() * TRADING_DAYS_PER_YEAR),
        mean_position=float(of.position.mean()),
    )


def _next_returns(source: Table, rows: Ints) -> Floats:
    """Simple return of the day after each row."""
    return np.asarray(np.expm1(source.returns[rows + 1]), dtype=np.float64)
