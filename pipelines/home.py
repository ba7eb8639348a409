"""Dagster's home: what it remembers may be deleted at any time, and is rebuilt from the store."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pipelines.bucket import Bucket, demand_dagster_aws
from tenure.cli import screen
from tenure.errors import UsageError
from tenure.settings import Settings

if TYPE_CHECKING:
    import dagster as dg

FILE = "dagster.yaml"

_TOP = """\
# Written by Tenure once; yours to change. Without a `storage:` section everything is SQLite in this
# folder, which is enough for one machine; use dagster-postgres beyond.

telemetry:
  enabled: false

"""

_LOGS_NOWHERE = """\
# What workers print is in the store: `tenure log JOB`. Dagster's own capture would start two further
# processes for every step and come between a terminal and its progress bars.
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""

# A run costs two uploads at its end at most, a tick of the sensor that has news one, a silent one none
# (skip_empty_files). While a capture lasts, its bytes are in local_dir.
_LOGS_IN_BUCKET = """\
# What runs print that the page or the daemon starts, and what the sensor says, goes into the store's
# bucket, so that it outlives this folder; anything under that prefix may be deleted at any time.
# Credentials come from the environment. What workers print is in the store: `tenure log JOB`.
compute_logs:
  module: dagster_aws.s3
  class: S3ComputeLogManager
  config:
{config}
"""

_BOTTOM = """\

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

# The first line of a home for a bucket: for which, and (as long as nobody edits it) of what below.
_ORIGIN = re.compile(r"# For the store (\S+)(?: \(below as Tenure wrote it: ([0-9a-f]{16})\))?\n")


def prepare(settings: Settings) -> Path:
    """The home's folder, with a ``dagster.yaml`` in it that fits the store.

    One that Tenure wrote for another store is written anew. One that a person edited stays as it is;
    where it was for another store, that is said each time. Raises UsageError.
    """
    bucket = Bucket.of(settings.store_url)
    home = settings.dagster.home
    file = home / FILE
    wanted = dagster_yaml(home, bucket)
    try:
        home.mkdir(parents=True, exist_ok=True)
        found = _read(file) if file.exists() else None
        edited = found is not None and not _is_ours(found)
        if found != wanted and not edited:
            _write(file, wanted)
    except OSError as error:
        raise settings.error(
            ("dagster", "home"), f"{home} cannot be used: {error.strerror}; name another folder"
        ) from None
    if found is None or _origin(found) == _store_of(bucket):
        return home
    was = f"{file} is for {_origin(found)} and the store is {_store_of(bucket)}; "
    screen.warn(
        f"{was}it was edited, so it stays: correct its first line and its compute_logs, or remove it"
        if edited
        else f"{was}nobody edited it, so it is written anew"
    )
    return home


def dagster_yaml(home: Path, bucket: Bucket | None) -> str:
    """The file that Tenure writes for a store; no secret is in it."""
    if bucket is None:
        return _TOP + _LOGS_NOWHERE + _BOTTOM
    config = {
        "bucket": bucket.name,
        "prefix": bucket.logs,
        "endpoint_url": bucket.endpoint_url,
        "region": bucket.region,
        "local_dir": str(home / "compute_logs"),
        "skip_empty_files": True,
    }
    lines = [f"    {name}: {json.dumps(value)}" for name, value in config.items() if value]
    text = _TOP + _LOGS_IN_BUCKET.format(config="\n".join(lines)) + _BOTTOM
    return f"# For the store {bucket.url} (below as Tenure wrote it: {_digest(text)})\n{text}"


def demand_packages(home: Path) -> None:
    """Raises UsageError when the file names dagster-aws, and that is not installed."""
    if "dagster_aws" in _read(home / FILE):
        demand_dagster_aws()


def make_tables(home: Path) -> None:
    """Dagster's tables in a home that has none yet. Raises UsageError.

    Page and daemon start at the same time, and each would make them: on a fresh home the later one
    ended with `table jobs already exists`.
    """
    if not (home / "schedules" / "schedules.db").exists():
        _open(home).dispose()


def open_instance(settings: Settings) -> dg.DagsterInstance:
    """Dagster's instance at the home, for runs in a terminal. Raises UsageError.

    They are not captured into the bucket: between a terminal and its progress bars would stand two
    processes for each of stdout and stderr, and what they print is on the screen already.
    """
    return _open(prepare(settings))


def _open(home: Path) -> dg.DagsterInstance:
    import dagster as dg
    from dagster._core.instance.ref import InstanceRef

    try:
        logs = (yaml.safe_load(_read(home / FILE)) or {}).get("compute_logs") or {}
        in_bucket = logs.get("class") == "S3ComputeLogManager"
        overrides = yaml.safe_load(_LOGS_NOWHERE) if in_bucket else {}
        return dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(home), overrides=overrides))
    except Exception as error:  # Dagster has a class of its own for each mistake in the file
        raise UsageError(f"{home / FILE} cannot be used: {error}") from error


def _is_ours(text: str) -> bool:
    """Whether nobody but Tenure wrote it: the same as ever without a bucket, or by its digest."""
    origin = _ORIGIN.match(text)
    if origin is None:
        return text == _TOP + _LOGS_NOWHERE + _BOTTOM
    return origin[2] == _digest(text[origin.end() :])


def _origin(text: str) -> str:
    origin = _ORIGIN.match(text)
    return origin[1] if origin else _store_of(None)


def _store_of(bucket: Bucket | None) -> str:
    return bucket.url if bucket else "no bucket"


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write(file: Path, text: str) -> None:
    """In one piece: a daemon that starts meanwhile must not read half of it."""
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(file)
