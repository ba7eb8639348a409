"""A disk that fills up during a snapshot: the pointer does not move, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure_protocol.clock import SYSTEM
from tenure_protocol.records import JobSpec, Witness
from tests.e2e.ladder import Ladder, check_one_line
from tests.orbit.experiment import let_go, uninterrupted

MakeLadder = Callable[..., Ladder]
STEPS = 150
CONFIG: dict[str, object] = {"steps": STEPS, "pause_s": 0.03}
WAIT_S = 400.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        ).returncode
    )
    if not mounted:
        pytest.skip("a file system of its own can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(disk: Path) -> Path:
    """Take every byte that is left."""
    ballast = disk / ".ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return ballast


def witness(ladder: Ladder, spec: JobSpec) -> Witness | None:
    """The witness as it is now."""
    memory = ladder.dispatcher.world.jobs.get(spec.id)
    stored = ladder.dispatcher.world.read(memory) if memory else None
    return stored.witness if stored else None


def test_a_full_store_moves_no_pointer_and_the_worker_works_on(
    small_disk: Path, tmp_path: Path, make_ladder: MakeLadder
) -> None:
    ladder = make_ladder(small_disk)
    until = tmp_path / "go"
    (spec,) = ladder.orbits(1, {**CONFIG, "until": str(until)})
    while not ((w := witness(ladder, spec)) and w.pointer):
        ladder.dispatcher.tick()
        SYSTEM.sleep(0.1)
    ballast = fill(small_disk)
    SYSTEM.sleep(2.0)
    before = witness(ladder, spec)
    assert before and before.pointer
    SYSTEM.sleep(2.0)
    after = witness(ladder, spec)
    assert after and after.phase == "held" and after.pointer == before.pointer
    ballast.unlink()
    let_go(until, spec.seed)
    done = ladder.dispatcher.follow([spec.id], 0.2, WAIT_S)[spec.id]
    assert done.result == {"state": uninterrupted(spec.seed, STEPS)}
    assert done.pointer
    check_one_line(ladder, spec.id, done.pointer)


def test_a_full_scratch_disk_releases_the_job_and_says_so(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_ladder: MakeLadder
) -> None:
    monkeypatch.setenv("TMPDIR", str(small_disk))
    (small_disk / "room").write_bytes(b"x" * 8192)
    fill(small_disk)
    (small_disk / "room").unlink()  # enough for a folder's name, too little for a snapshot
    ladder = make_ladder(tmp_path)
    (spec,) = ladder.orbits(1, {**CONFIG, "padding": 64 << 10})
    done = ladder.dispatcher.follow([spec.id], 0.2, WAIT_S)[spec.id]  # its pauses alone are 75 s
    assert done.phase == "cancelled" and done.pointer is None
    assert "No space left on device" in (done.reason or "")
