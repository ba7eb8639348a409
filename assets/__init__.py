"""The research-to-deploy chain: one file per asset, and their checks."""
