"""Experiments of projects over HTTP: definitions, their life, results, and the sums behind them."""
