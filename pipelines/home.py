"""Dagster's home: what it remembers may be deleted at any time, and is rebuilt from the store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tenure.errors import UsageError
from tenure.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

CONFIG = """\
# Written by Tenure once; yours to change. Without a `storage:` section everything is SQLite in this
# folder, which is enough for one machine; use dagster-postgres beyond.

telemetry:
  enabled: false

# What workers print is in the store: `tenure log JOB`. Dagster's own capture would start two further
# processes for every step and come between a terminal and its progress bars.
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager

# No dialog over the first page.
nux:
  enabled: false

# A run whose process died is marked as failed; without the last key, slots of pools that a cancelled
# run held would never come back.
run_monitoring:
  enabled: true
  start_timeout_seconds: 180
  max_resume_run_attempts: 0
  free_slots_after_run_end_seconds: 60

# The sensor ticks every few seconds, so that its skipped ticks are forgotten soon.
retention:
  schedule:
    purge_after_days: 90
  sensor:
    purge_after_days:
      skipped: 2
      failure: 30
      success: 30
"""


def prepare(settings: Settings) -> Path:
    """The home's folder, with a ``dagster.yaml`` in it; one that is there is left alone."""
    home = settings.dagster.home
    file = home / "dagster.yaml"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(CONFIG, encoding="utf-8")
    except OSError as error:
        raise settings.error(
            ("dagster", "home"), f"{home} cannot be used: {error.strerror}; name another folder"
        ) from None
    return home


def open_instance(settings: Settings) -> dg.DagsterInstance:
    """Dagster's instance at the home. Raises UsageError."""
    import dagster as dg

    home = prepare(settings)
    try:
        return dg.DagsterInstance.from_config(str(home))
    except Exception as error:  # Dagster has a class of its own for each mistake in the file
        raise UsageError(f"{home / 'dagster.yaml'} cannot be used: {error}") from error
