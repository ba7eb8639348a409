"""The program that sends: ``python -P -m tenure.notify.send``, and the call that runs it.

A process of its own, because apprise and the libraries below it log addresses, may hang, and may end
the process they are in. Addresses go in by standard input, never as arguments, which others could
list; all that comes back is which letter was taken.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tenure.notify.addresses import Address

Tone = Literal["info", "success", "warning", "failure"]  # apprise's own

#: Of one batch. Mail alone has 15 s to connect.
DEADLINE_S = 30.0
_MARGIN_S = 5.0  # to start Python and to end


@dataclass(frozen=True)
class Letter:
    """What is sent."""

    title: str
    line: str
    tone: Tone = "info"


Send = Callable[[Sequence[tuple[Address, Letter]]], Sequence[str]]  # '' or what went wrong, of each


def send(batch: Sequence[tuple[Address, Letter]]) -> list[str]:
    """Send each letter to its address, all addresses at the same time.

    Returns for each '' where it was taken, else what went wrong, in words without the address. Takes
    ``DEADLINE_S`` and some seconds at most. Raises nothing.
    """
    order = [
        {"url": address.url, "title": letter.title, "line": letter.line, "tone": letter.tone}
        for address, letter in batch
    ]
    # nothing of ours is needed there, and apprise obeys no TENURE_*
    environ = {name: text for name, text in os.environ.items() if not name.startswith("TENURE_")}
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tenure.notify.send"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # it may hold addresses
            env=environ,
            start_new_session=True,  # Ctrl-C ends who asked, not a letter on its way
        )
    except OSError as error:
        return [f"nothing could be started: {error.strerror}"] * len(batch)
    try:
        told, _ = child.communicate(json.dumps(order).encode(), DEADLINE_S + _MARGIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        told, _ = child.communicate()
    return _answers(told, len(batch))


def _answers(told: bytes, count: int) -> list[str]:
    """
    >>> _answers(b'[1, ""]\\n[0, "it was not taken"]\\n[2', 3)
    ['it was not taken', '', 'no answer within 30 s']
    """
    found = [f"no answer within {DEADLINE_S:g} s"] * count
    for line in told.splitlines():
        try:
            number, words = json.loads(line)
            found[number] = str(words)
        except (ValueError, TypeError, IndexError):
            continue  # cut off in the middle
    return found


def main() -> None:
    """Send what standard input orders; print the number of each with '' or what went wrong."""
    order: list[dict[str, str]] = json.load(sys.stdin)
    # What a library prints there is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    lock = threading.Lock()

    def answer(number: int, words: str) -> None:
        with lock:
            print(json.dumps([number, words]), file=answers, flush=True)

    # One thread for each address: one that hangs keeps no other waiting.
    by_url: dict[str, list[int]] = {}
    for number, one in enumerate(order):
        by_url.setdefault(one["url"], []).append(number)

    def deliver(numbers: list[int]) -> None:
        for number in numbers:
            answer(number, _deliver(order[number]))

    threads = [
        threading.Thread(target=deliver, args=(numbers,), daemon=True)
        for numbers in by_url.values()
    ]
    guard = threading.Thread(target=_wait, args=(threads,), daemon=True)
    for thread in (*threads, guard):
        thread.start()
    guard.join(DEADLINE_S)
    with lock:
        answers.flush()
        os._exit(0)  # threads that hang are not waited for


def _wait(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


def _deliver(one: dict[str, str]) -> str:
    """'' when the address took it, else what went wrong. apprise's own words may hold the address."""
    try:
        import apprise

        # Nothing of it stays on this disk: a service's session would.
        asset = apprise.AppriseAsset(app_id="Tenure", async_mode=False, storage_mode="memory")
        to = apprise.Apprise(asset=asset)
        if not to.add(one["url"]):
            return "it is no address that apprise knows, or something is missing in it"
        taken = to.notify(
            body=one["line"],
            title=one["title"],
            notify_type=one["tone"],
            body_format=apprise.NotifyFormat.TEXT,  # so that mail and chats show '<' as '<'
        )
    except ImportError:
        return "apprise is not installed"
    except Exception as error:
        return f"apprise failed: {type(error).__name__}"
    return "" if taken else "it was not taken"


if __name__ == "__main__":
    main()
