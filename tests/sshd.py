"""A real ``sshd`` on loopback, with a host key and a user key of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd") or shutil.which("/usr/sbin/sshd")


@dataclass(frozen=True)
class Sshd:
    """How to reach it; ``home`` is what its sessions have for a home."""

    host: str
    options: tuple[str, ...]
    home: Path


@contextmanager
def running(folder: Path) -> Iterator[Sshd]:
    """A server for the time of the block; ``SSHD`` says whether there is one to start."""
    assert SSHD
    home = folder / "home"
    home.mkdir(parents=True)
    for name in ("host", "user"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    (folder / "allowed").write_text((folder / "user.pub").read_text())
    port = _free_port()
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder / 'host'}\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder / 'allowed'}\nStrictModes no\nPasswordAuthentication no\n"
        f"PermitRootLogin yes\nMaxStartups 100\nSetEnv HOME={home}\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # its own demand where root starts it
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(config)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_for(port, server)
        options = (
            "-p", str(port), "-i", str(folder / "user"), "-F", "none",
            "-o", f"UserKnownHostsFile={folder / 'known'}", "-o", "StrictHostKeyChecking=accept-new",
        )  # fmt: skip
        yield Sshd(f"{getpass.getuser()}@127.0.0.1", options, home)
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + 120.0
    while time.monotonic() < end_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, "sshd has ended"
        time.sleep(0.05)
    raise AssertionError("sshd does not answer")
