"""``python -m tenure_worker``: claim the job named in the environment and run it."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from tenure_protocol import fingerprint
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import PROTOCOL_VERSION, JobSpec
from tenure_protocol.store.api import Progress, Store, StoreUnusable, is_key
from tenure_protocol.store.open import open_store
from tenure_worker import cargo, code, exits, stages
from tenure_worker.caps import Caps, Watch
from tenure_worker.claim import claim, patiently, read_spec, refuse
from tenure_worker.exits import EXIT_CODES, Stopped
from tenure_worker.experiment import Experiment
from tenure_worker.gang import Follower, Gang, follow, lead, note_exit
from tenure_worker.snapshot import seed_generators
from tenure_worker.tenure import Tenure
from tenure_worker.wall import Wall

_DATA_IS_HERE = "data"  # what rank 0 tells the other ranks
_TABLE = "\n".join(f"  {number:3d}  {words}" for number, words in EXIT_CODES.items())


def main(argv: list[str] | None = None) -> int:
    """Run one job; returns a code of the public table."""
    parser = argparse.ArgumentParser(
        prog="python -m tenure_worker",
        description=f"Claim a Tenure job and run it (protocol {PROTOCOL_VERSION}).",
        epilog=f"exit codes:\n{_TABLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    env = os.environ
    parser.add_argument("--store", default=env.get("TENURE_STORE"), help="$TENURE_STORE")
    parser.add_argument("--job", default=env.get("TENURE_JOB"), help="$TENURE_JOB")
    parser.add_argument(
        "--launch",
        type=int,
        default=env.get("TENURE_LAUNCH") or "0",
        help="$TENURE_LAUNCH; 0 is local mode",
    )
    parser.add_argument(
        "--code",
        default=env.get("TENURE_CODE") or (None if env.get("TENURE_FETCH") == "1" else "."),
        help="folder that entry points are imported from, $TENURE_CODE; with TENURE_FETCH=1 and none "
        "named, code and data come from the store",
    )
    options = parser.parse_args(argv)
    if not options.store or not options.job:
        parser.error("name a store and a job (or set $TENURE_STORE and $TENURE_JOB)")
    if not is_key(keys.job(options.job)):
        parser.error(f"{options.job!r} is no job id")
    try:
        watch, wall = Watch(Caps.of(env), SYSTEM), Wall.of(env, SYSTEM)
    except ValueError as error:
        parser.error(str(error))
    watch.start()
    try:
        with _exit_code_survives_sigterm():
            store = patiently(lambda: open_store(options.store))
            here = Path(options.code) if options.code else None
            return note_exit(work(store, options.job, options.launch, here, watch, wall))
    except StoreUnusable as error:
        print(f"tenure: {error}", file=sys.stderr)
        return note_exit(exits.USAGE)
    except Stopped as stop:
        print(f"tenure: {stop}", file=sys.stderr)
        return note_exit(stop.exit_code)


@contextmanager
def _exit_code_survives_sigterm() -> Iterator[None]:
    """A worker whose end is decided ignores SIGTERM: its exit code tells what became of the job.

    The block itself may be ended until it claims, and stops by itself afterwards (``claim``).
    """
    try:
        yield
    finally:
        # SIG_IGN, unlike a handler, outlives the interpreter's own clean-up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def work(
    store: Store,
    job: str,
    launch: int,
    code_path: Path | None,
    watch: Watch | None = None,
    wall: Wall | None = None,
) -> int:
    """Prepare the environment, claim and run. Raises :class:`Stopped`.

    Without a ``code_path`` the code is fetched into the working directory before the claim, and the
    data after it.
    """
    try:
        spec = patiently(lambda: read_spec(store, job))
    except Corrupt as error:
        raise Stopped(exits.PROTOCOL, str(error)) from error
    if refusal := os.environ.get("TENURE_REFUSE"):  # this machine knows already that it cannot
        refuse(spec.id, launch, refusal, store, SYSTEM)
    if spec.requires is not None:
        _pin(spec, store, launch)
    if code_path is None:
        code_path = _fetch_code(spec, store, launch)
    code.add_code_path(code_path.absolute())
    _same_code(spec, store, launch)
    if spec.cards > 1 and spec.kind == "train":
        gang = Gang.of_environment()
        if gang is None:
            _promised(spec, store, launch)
            return lead(spec)
        if gang.rank > 0:
            return follow(spec, gang, lambda rank: _train(spec, rank, gang))
    measured = _promised(spec, store, launch)
    try:
        with claim(spec.id, store, launch, measured=measured) as tenure:
            if watch is not None:
                watch.holds(tenure)
            if wall is not None:
                wall.guards(tenure)
            with _Tee(tenure):
                seed_generators(spec.seed)  # before the experiment's own import, which may draw
                experiment = _experiment(spec, store, tenure)
                _same_data(spec, experiment)
                result = stages.run(tenure, experiment)
            tenure.finish(result)
    except Stopped:
        raise
    except (Exception, SystemExit):  # sys.exit(0) in an experiment is no result either
        traceback.print_exc()
        return exits.CODE_ERROR
    return exits.FINISHED


def _train(spec: JobSpec, rank: Follower, gang: Gang) -> None:
    """What a rank beside rank 0 runs; its result is rank 0's to give."""
    if _fetches():
        gang.wait_for(_DATA_IS_HERE)
    seed_generators(spec.seed)
    experiment = code.load_experiment(spec.entry_point)
    experiment.train(cast(Tenure, rank), spec.config, spec.seed)


def _pin(spec: JobSpec, store: Store, launch: int) -> None:
    """Set what a pinned job requires, as far as a process can; the rest is measured and compared."""
    requires = spec.requires or {}
    try:
        variables = fingerprint.environment_variables(requires)
        _restart_with(variables)
        fingerprint.apply_determinism(requires)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = f"the environment it requires cannot be read ({type(error).__name__}: {error})"
        refuse(spec.id, launch, reason, store, SYSTEM)


def _fetches() -> bool:
    """Whether this machine has nothing of the user's but what the store has."""
    return os.environ.get("TENURE_FETCH") == "1"


def _fetch_code(spec: JobSpec, store: Store, launch: int) -> Path:
    """Fetch the code, work where it lies, and refuse whatever its digest does not cover.

    The processes that this one starts find it as well: the ranks of a job of several cards.
    """
    folder = Path.cwd() / "code"
    try:
        here, *beside = patiently(lambda: cargo.fetch_code(store, spec.code, folder))
    except (cargo.BadBundle, OSError) as error:
        refuse(spec.id, launch, str(error), store, SYSTEM)
    os.chdir(here)
    for path in reversed([here, *beside]):
        code.add_code_path(Path(path))
    before = [os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*beside, *before]))
    os.environ["TENURE_CODE"] = here
    own = _same_code(spec, store, launch, trusted=False)  # nothing of it has run so far
    if strangers := cargo.strangers(folder, [file.path for file in own.files]):
        reason = f"the bundle of code holds {strangers[0]!r}, which the code of the job never names"
        refuse(spec.id, launch, reason, store, SYSTEM)
    return Path(here)


def _promised(spec: JobSpec, store: Store, launch: int) -> dict[str, object]:
    """The environment, measured; refuse a machine that has not the card that was promised."""
    # The code has been compared with its digest; the data is, before anything reads it.
    measured = {**fingerprint.measure(), "code": spec.code, "data": spec.data}
    promised = os.environ.get("TENURE_CARD", "")
    if words := cargo.wrong_card(promised, spec.cards, measured):
        refuse(spec.id, launch, words, store, SYSTEM)
    return measured


def _experiment(spec: JobSpec, store: Store, tenure: Tenure) -> Experiment:
    """Import the experiment, once its data is here. Raises what the user's module raises."""
    if not _fetches():
        return code.load_experiment(spec.entry_point)
    what, here = "fetching the data", Path.cwd()

    def fetcher(told: Progress) -> cargo.Fetcher:
        return cargo.Fetcher(store, cargo.cache_folder(os.environ), SYSTEM, told)

    index = tenure.fetching(what, lambda _: cargo.read_index(store, spec.data))
    tenure.fetching(what, lambda told: cargo.place_data(index, here, fetcher(told)))
    experiment = code.load_experiment(spec.entry_point)
    named = code.data_files(experiment)
    tenure.fetching(what, lambda told: cargo.place_named(index, here, named, fetcher(told)))
    if gang := Gang.of_environment():
        gang.share(_DATA_IS_HERE, {})
    return experiment


def _same_code(spec: JobSpec, store: Store, launch: int, trusted: bool = True) -> code.OwnCode:
    """Refuse to run other code than the job was enlisted with."""
    try:
        own = code.own_code(spec.entry_point, trusted)
    except code.BadEntryPoint as error:
        refuse(spec.id, launch, str(error), store, SYSTEM)
    if own.digest != spec.code:
        reason = (
            f"the code of {spec.entry_point} changed since the job was enlisted "
            f"(digest {own.digest}, enlisted {spec.code}); {_mended(spec)}"
        )
        refuse(spec.id, launch, reason, store, SYSTEM)
    return own


def _same_data(spec: JobSpec, experiment: Experiment) -> None:
    found = code.data_digest(experiment)
    if found != spec.data:
        raise ValueError(
            f"the data of {spec.entry_point} changed since the job was enlisted "
            f"(digest {found}, enlisted {spec.data}); {_mended(spec)}"
        )


def _mended(spec: JobSpec) -> str:
    return (
        "enlist the plan again, or, where it is the same again as it was then, "
        f"run `tenure retry {spec.id}`"
    )


def _restart_with(variables: Mapping[str, str]) -> None:
    """Start this process anew where a variable must stand before Python starts."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        if os.environ.get("TENURE_RESTARTED"):
            return  # the measured environment will differ and the worker will say so
        environ = {**os.environ, **variables, "TENURE_RESTARTED": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "tenure_worker", *sys.argv[1:]], environ)


class _Tee:
    """Copies what the experiment prints into the job's log, line by line."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure

    def __enter__(self) -> None:
        self._before = (sys.stdout, sys.stderr)
        sys.stdout = _Copy(self._tenure, sys.stdout)
        sys.stderr = _Copy(self._tenure, sys.stderr)

    def __exit__(self, *_: object) -> None:
        for copy in (sys.stdout, sys.stderr):
            if isinstance(copy, _Copy):
                copy.last_line()
        sys.stdout, sys.stderr = self._before


class _Copy:
    def __init__(self, tenure: Tenure, stream: TextIO) -> None:
        self._tenure = tenure
        self._stream = stream
        self._line = ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line.rpartition("\r")[2]  # a progress bar drawn over and over
        for line in lines:
            self._tenure.log(line)
        return self._stream.write(text)

    def last_line(self) -> None:
        if self._line:
            self._tenure.log(self._line)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


if __name__ == "__main__":
    sys.exit(main())
