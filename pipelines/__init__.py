"""Dagster's code location, and the commands that run the chain and the page."""
