"""Emulators of the five platforms, for loopback only: real SDKs talk to them, real processes run in them."""
