"""What any job may write: log, events, output and disk, and what becomes of one that writes more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tenure.testing import runner_checks
from tenure_worker import caps, exits, journal
from tenure_worker.__main__ import main
from tenure_worker.caps import Caps, Watch
from tenure_worker.courier import Chunk
from tenure_worker.exits import Stopped
from tests.e2e.strangers import DEADLINE_S, made
from tests.fake_clock import FakeClock
from tests.unit.worker_world import World

WORKER = Path(caps.__file__).parents[1]


# ------------------------------------------------------------------------------------ the journal


@dataclass
class Told:
    """A journal whose courier has room while ``open`` is true."""

    clock: FakeClock
    most: Caps
    open: bool = True
    chunks: list[Chunk] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = journal.Journal("j", 1, self._offer, self.clock, self.most)

    def _offer(self, chunk: Chunk) -> bool:
        if self.open:
            self.chunks.append(chunk)
        return self.open

    def text(self, kind: str) -> str:
        self.journal.flush()
        found = [chunk for chunk in self.chunks if f"/{kind}/" in chunk.key]
        numbers = [int(chunk.key.rpartition("/")[2].partition(".")[0]) for chunk in found]
        assert numbers == list(range(1, len(found) + 1))
        return b"".join(chunk.body for chunk in found).decode()


CUT = "tenure: the log is cut at 1000 bytes; what the job prints from here on is not kept\n"


def test_the_log_is_cut_once_and_says_so_and_tenure_still_has_a_say(clock: FakeClock) -> None:
    told = Told(clock, Caps(log=1000))
    for n in range(100):
        told.journal.line(f"{n:099d}")
    told.journal.note("tenure: the end")
    assert told.text("log") == "".join(f"{n:099d}\n" for n in range(10)) + CUT + "tenure: the end\n"
    told.journal.line("x")  # shorter than what is left of the cap after a long line
    assert told.text("log").endswith("the end\n")


def test_a_line_longer_than_the_cap_is_cut_as_well(clock: FakeClock) -> None:
    told = Told(clock, Caps(log=1000))
    told.journal.line("x" * 1001)
    told.journal.line("y")
    assert told.text("log") == CUT


def test_that_it_is_cut_is_told_even_by_a_slow_store(clock: FakeClock) -> None:
    told = Told(clock, Caps(log=4 << 20), open=False)
    for _ in range(50):
        told.journal.line("x" * 99_999)
    told.journal.line("y" * (4 << 20))
    told.open = True
    assert told.text("log").count("tenure: the log is cut at 4 MiB") == 1
    assert told.text("log").count("tenure: the log is cut") == 1


def test_events_are_cut_and_the_log_says_so(clock: FakeClock) -> None:
    told = Told(clock, Caps(events=1000))
    for n in range(1000):
        told.journal.event({"n": n})
    events = told.text("events")
    assert 900 < len(events) <= 1000 and '"n":0' in events
    assert told.text("log") == (
        "tenure: the events are cut at 1000 bytes; what the job records from here on is not kept\n"
    )
    assert not told.journal._pending


def test_the_caps_are_64_mib_unless_the_environment_says_otherwise() -> None:
    assert Caps.of({}) == Caps(64 << 20, 64 << 20, 64 << 20, None)
    named = {"TENURE_LOG_BYTES": "1", "TENURE_EVENT_BYTES": "2", "TENURE_OUTPUT_BYTES": "3"}
    assert Caps.of({**named, "TENURE_DISK_BYTES": "4"}) == Caps(1, 2, 3, 4)


def test_a_worker_with_a_cap_that_is_no_number_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENURE_LOG_BYTES", "many")
    with pytest.raises(SystemExit) as ended:
        main(["--store", "memory:", "--job", "j"])
    assert ended.value.code == exits.USAGE
    assert "$TENURE_LOG_BYTES is 'many'; it must be a number of bytes" in capsys.readouterr().err


# -------------------------------------------------------------------------------------- the output

PRINTS = f"""
import os, subprocess, sys
sys.path.insert(0, {str(WORKER)!r})
from tenure_protocol.clock import SYSTEM
from tenure_worker import caps
caps.LOOK_EVERY_S = 0.01
caps.Watch(caps.Caps(output=10_000), SYSTEM).start()
child = subprocess.Popen([sys.argv[2]])
try:
    for n in range(int(sys.argv[1])):
        print("x" * 99)
        os.write(2, b"y" * 99)
        if n % 100 == 0:
            SYSTEM.sleep(0.02)
finally:
    child.kill()
    child.wait()
SYSTEM.sleep(1.0)
"""
SAID = "\ntenure: the output is cut at 10000 bytes; what is printed from here on is not kept\n"


def printed(path: Path, mode: str, times: int, beside: str) -> str:
    with path.open(mode) as file:
        command = [sys.executable, "-c", PRINTS, str(times), beside]
        subprocess.run(command, stdout=file, stderr=file, check=True, timeout=DEADLINE_S)
    return path.read_text()


def test_output_is_cut_at_its_cap_with_that_of_c_code_and_of_children(tmp_path: Path) -> None:
    text = printed(tmp_path / "log", "ab", 1000, "yes")
    assert text.endswith(SAID) and len(text) == 10_000 + len(SAID)


def test_a_file_that_is_not_appended_to_gets_no_hole(tmp_path: Path) -> None:
    text = printed(tmp_path / "log", "wb", 1000, "true")
    assert SAID in text and "\0" not in text


def test_output_to_a_pipe_or_nowhere_is_left_alone() -> None:
    read, write = os.pipe()
    assert not caps._outputs((read, write, 987))
    os.close(read)
    os.close(write)
    assert not caps._outputs((os.open(os.devnull, os.O_RDWR),))


def test_a_job_that_prints_for_ever_is_cut_and_says_so_while_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a single step: nothing but a thread of its own could look."""
    monkeypatch.setenv("TENURE_OUTPUT_BYTES", "20000")
    monkeypatch.setenv("TENURE_LOG_BYTES", "10000")
    with made(tmp_path, monkeypatch) as place:
        _, receipt = place.launch(
            """
            import os
            while True:
                print("x" * 99)
                os.write(2, b"y" * 99)
            """,
            sandbox=False,
            grace_s=0.0,
        )
        place.until(lambda: "tenure: the output is cut at 20000 bytes" in place.output())
        pid = int(str(receipt.handle["pid"]))
        path = place.receipts[0][0].output(receipt)
        assert path
        size = path.stat().st_size
        place.until(lambda: os.stat(f"/proc/{pid}/fd/1").st_rdev)
        assert path.stat().st_size == size < 20_200
        runner_checks.until_closed(place.receipts[0][0], receipt)


# ---------------------------------------------------------------------------------------- the disk


def test_disk_use_counts_blocks_once_and_follows_no_link(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    empty = caps.disk_use(str(folder))
    (folder / "inner" / "file").write_bytes(b"x" * 100_000)
    os.link(folder / "inner" / "file", folder / "again")
    (tmp_path / "big").write_bytes(b"x" * 1_000_000)
    (folder / "link").symlink_to(tmp_path / "big")
    (folder / "up").symlink_to(tmp_path)
    (folder / "sparse").touch()
    os.truncate(folder / "sparse", 1 << 40)
    assert 100_000 <= caps.disk_use(str(folder)) - empty < 150_000
    assert caps.disk_use(str(tmp_path / "nowhere")) == 0


@dataclass
class Spender:
    """What a tenure is told."""

    clock: FakeClock
    told: list[tuple[str, float, str]] = field(default_factory=list)

    def overspent(self, words: str) -> None:
        self.told.append(("overspent", self.clock.monotonic_s(), words))

    def end_without_boundary(self, words: str) -> None:
        self.told.append(("end", self.clock.monotonic_s(), words))


def test_a_disk_above_its_cap_is_told_once_and_then_there_is_a_grace(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0]
    monkeypatch.setattr(caps, "disk_use", lambda folder: used[0])
    watch, spender = Watch(Caps(disk=50_000_000_000), clock, "/x"), Spender(clock)
    used[0] = 51_200_000_001
    watch.look()  # nobody holds a tenure so far
    used[0] = 50_000_000_000
    watch.holds(spender)
    watch.look()
    assert not spender.told
    used[0] = 51_200_000_001
    watch.look()
    assert not spender.told, "every few seconds, not at every look"
    clock.sleep(caps.MEASURE_EVERY_S)
    watch.look()
    words = "the job wrote 51.2 GB to its disk, at most 50 GB are allowed"
    at_s = clock.monotonic_s()
    used[0] = 0  # it is said already
    while len(spender.told) < 2:
        clock.sleep(1.0)
        watch.look()
    assert spender.told == [("overspent", at_s, words), ("end", at_s + caps.GRACE_S, words)]


def test_without_a_cap_nobody_measures(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caps, "disk_use", lambda folder: pytest.fail("measured"))
    watch = Watch(Caps(), clock)
    watch.holds(Spender(clock))
    watch.look()


def test_a_job_above_its_disk_ends_at_the_next_boundary_in_a_sentence(clock: FakeClock) -> None:
    world = World(clock)
    words = caps.overspent(3_000_000, 2_000_000)
    swallowed = 0
    with pytest.raises(Exception, match="3 MB"), world.claimed() as tenure:
        world.steps(tenure, 5)
        tenure.overspent(words)
        for _ in range(3):
            try:
                tenure.step()
            except Exception:
                swallowed += 1
        tenure.step()
    w = world.witness
    assert swallowed >= 1
    assert (w.phase, w.exit_code, w.reason) == ("finished", exits.CODE_ERROR, words)
    assert words == "the job wrote 3 MB to its disk, at most 2 MB are allowed"


class Ended(BaseException):
    """Instead of the end of this process."""


def test_a_job_that_comes_to_no_boundary_is_ended_for_good(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is told, so that no dispatcher launches it again."""
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", leave)
    world = World(clock)
    with world.killed() as tenure:
        world.steps(tenure, 5)
        with pytest.raises(Ended):
            tenure.end_without_boundary("too much")
        with pytest.raises(Stopped):  # a loop that comes back after all
            world.steps(tenure, 1)
    w = world.witness
    assert codes == [exits.CODE_ERROR]
    assert (w.phase, w.exit_code, w.reason) == ("finished", exits.CODE_ERROR, "too much")


def test_a_loop_that_is_about_to_end_is_left_to_it(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("ended"))
    world = World(clock)
    with world.claimed() as tenure:
        world.steps(tenure, 3)
        tenure.finish({})
        tenure.end_without_boundary("too much")
    assert (world.witness.phase, world.witness.exit_code) == ("finished", exits.FINISHED)


def test_a_real_job_above_its_disk_ends_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path, monkeypatch) as place:
        code, w = place.run(
            """
            import tempfile, time
            with open(tempfile.mkdtemp() + "/ballast", "wb") as file:
                file.write(b"x" * (3 << 20))
            while True:
                time.sleep(0.02)
                step()
            """,
            sandbox=False,
            disk_gb=0.002,
        )
    assert (code, w.phase, w.exit_code) == (exits.CODE_ERROR, "finished", exits.CODE_ERROR)
    # It may have been measured while it was written.
    assert re.fullmatch(
        r"the job wrote [23]\.?\d? MB to its disk, at most 2 MB are allowed", w.reason or ""
    )
