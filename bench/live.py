"""What the live loader costs beyond reading a model's files.

    python bench/live.py

A model of 50 MB is signed for and put into a directory store. Each sample is a process of its own,
because a service mostly loads once: it loads the model with ``tenure_live.load_model``, and beside that
only reads and hashes the same files; the cost is the difference. *Cached* finds the files on this
machine; *fetched* copies them from the store first, and is compared with that copy and hash alone. The
warrant demands this machine as it measures itself, torch included. Whoever serves such a model has
imported torch; in a process that has not, the loader imports it, which is told apart.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.instruments.intervals import bootstrap, median_of
from bench.instruments.report import Report, arguments
from tenure_protocol import fingerprint
from tenure_protocol.lease import keys
from tenure_protocol.records import FileEntry
from tenure_protocol.store.directory import DirectoryStore
from tests.live_world import NAME, model, new_key, public_pem, put_live

ROUNDS, QUICK_ROUNDS = 31, 3
MODEL_BYTES, QUICK_BYTES = 50_000_000, 1_000_000
MOST_S = 0.05
MEASURE = (
    "import json; from tenure_protocol import fingerprint as f; print(json.dumps(f.measure()))"
)

Sample = dict[str, float]


def python(*words: str, compiled: Path | None = None) -> str:
    """What a process prints. An installed wheel has its byte code, so that of ``compiled`` is kept."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ = {**kept, "PYTHONPYCACHEPREFIX": str(compiled)} if compiled else None
    done = subprocess.run(
        [sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True, env=environ
    )
    return done.stdout


class Deployed:
    """A store with its model, and the samples that are taken of it."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder = folder
        self._store = DirectoryStore(folder / "store")
        measured = json.loads(python("-c", MEASURE))
        required = fingerprint.pin(measured)
        record = model(self._store, required, {**measured, "determinism": required["determinism"]})
        member = record.members[0]
        (file,) = member.files
        weights = folder / "weights"
        weights.write_bytes(b"\x5a" * size)
        self._stored = keys.snapshot(member.train.job, member.train.pointer) + file
        self._store.put_file(self._stored, weights)
        entry = FileEntry(hashlib.sha256(weights.read_bytes()).hexdigest(), size)
        key = new_key()
        put_live(self._store, record, key, files={file: entry})
        self._key = public_pem(folder, key)

    def sample(self, cached: bool, torch: bool = True, known: bool = False) -> Sample:
        """One load: the model in the cache or not, and of a machine where another was loaded before."""
        cache = self._folder / "cache"
        if not cached:
            for model in cache.glob("*/"):
                shutil.rmtree(model)
            if not known:
                shutil.rmtree(cache, ignore_errors=True)
        told = python(
            "-m", "bench.instruments.live_sample", NAME, self._store.url, str(self._key), str(cache),
            self._stored, "torch" if torch else "no", "cached" if cached else "fetched",
            compiled=self._folder / "compiled",
        )  # fmt: skip
        (cache / "copy").unlink(missing_ok=True)
        found: Sample = json.loads(told)
        return found


def main() -> None:
    options = arguments(__doc__).parse_args()
    report = Report("live", options)
    rounds = QUICK_ROUNDS if report.quick else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        deployed = Deployed(Path(folder), QUICK_BYTES if report.quick else MODEL_BYTES)
        deployed.sample(cached=False)
        deployed.sample(cached=True)
        cached, fetched, next_, bare = [], [], [], []
        for _ in range(rounds):
            cached.append(deployed.sample(cached=True))
            fetched.append(deployed.sample(cached=False))
            next_.append(deployed.sample(cached=False, known=True))
            bare.append(deployed.sample(cached=True, torch=False))
    size = f"{(QUICK_BYTES if report.quick else MODEL_BYTES) // 1_000_000} MB"
    beyond: list[tuple[str, list[Sample], Callable[[Sample], float], str]] = [
        ("first load of a process, cached", cached, lambda s: s["load_s"] - s["read_s"], "target"),
        (
            "first load of a process, fetched",
            fetched,
            lambda s: s["load_s"] - s["read_s"],
            "target",
        ),
        (
            "the same, where another model was loaded before",
            next_,
            lambda s: s["load_s"] - s["read_s"],
            "target",
        ),
        ("each further load", cached, lambda s: s["again_s"] - s["read_s"], "target"),
        (
            "the same, cached, with the import of tenure_live",
            cached,
            lambda s: s["import_s"] + s["load_s"] - s["read_s"],
            "target",
        ),
        (
            "first load where torch is not imported yet",
            bare,
            lambda s: s["load_s"] - s["read_s"],
            "",
        ),
        (f"reading {size} alone, cached", cached, lambda s: s["read_s"], ""),
        (f"reading {size} alone, fetched", fetched, lambda s: s["read_s"], ""),
    ]
    for what, samples, value, target in beyond:
        found = bootstrap([value(sample) * 1000 for sample in samples], median_of)
        words = "" if what.startswith("reading") else " beyond reading"
        report.line(
            what,
            f"median {found.words(1)} ms{words}",
            f"at most {MOST_S * 1000:g} ms" if target else "",
            **found.numbers("median_ms"),
        )
    report.end()


if __name__ == "__main__":
    main()
