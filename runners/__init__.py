"""Platforms that run workers, in three families."""
