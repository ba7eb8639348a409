"""The example: next-day volatility of the S&P 500, from training to a gated backtest."""
