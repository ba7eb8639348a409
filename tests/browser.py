"""A real browser, driven by the few calls of WebDriver that tests need: chromedriver speaks HTTP and JSON."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

_STARTED = re.compile(r"started successfully on port (\d+)")
_CALL_S = 120.0


class Browser:
    """One window of headless Chromium."""

    def __init__(self, base: str, options: dict[str, object]) -> None:
        self._base = base
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{cast('dict[str, object]', made)['sessionId']}"

    def _call(self, method: str, path: str, body: object = None) -> object:
        request = urllib.request.Request(
            f"{self._base}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=_CALL_S) as answer:
            return json.loads(answer.read())["value"]

    def show(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str) -> object:
        """What a script returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def said(self) -> list[str]:
        """What the page wrote to the console since the last call, its errors too."""
        rows = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [str(row["message"]) for row in cast("list[dict[str, object]]", rows)]

    def command(self, name: str, **parameters: object) -> dict[str, object]:
        """A command of the browser's own protocol."""
        body = {"cmd": name, "params": parameters}
        found = self._call("POST", f"{self._session}/goog/cdp/execute", body)
        return cast("dict[str, object]", found)

    def wide(self, width: int, height: int, dark: bool = False) -> None:
        """A screen of this size, by day or by night."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[theme])

    def picture(self) -> bytes:
        """The window as a PNG."""
        return base64.b64decode(str(self._call("GET", f"{self._session}/screenshot")))

    def printed(self) -> bytes:
        """The page as a PDF."""
        found = self._call("POST", f"{self._session}/print", {})
        return base64.b64decode(str(found))

    def close(self) -> None:
        self._call("DELETE", self._session)


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile below ``folder``, without a network; skips where there is none."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("there is no chromium with a chromedriver on this machine")
    process = subprocess.Popen(
        [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        assert process.stdout is not None
        port = next(
            (found.group(1) for line in process.stdout if (found := _STARTED.search(line))), None
        )
        assert port, "chromedriver did not start"
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
        ]  # fmt: skip
        window = Browser(f"http://127.0.0.1:{port}", {"binary": chromium, "args": arguments})
        try:
            yield window
        finally:
            window.close()
    finally:
        process.terminate()
        process.wait()
