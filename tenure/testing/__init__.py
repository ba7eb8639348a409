"""Suites that any backend must pass: plain functions, so that a third party may run them too."""
