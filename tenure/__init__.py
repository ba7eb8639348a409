"""Tenure's core: our side of the wire. Plans, dispatch, capacity, and the command line."""

__version__ = "0.1.0"

__all__ = ["__version__"]
