"""One file per platform: its configuration, its cards, and its few calls."""
