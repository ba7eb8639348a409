"""What a machine does with plain HTTP: temporary links, and asking for its own end.

Stage 0 (``runners.stage_zero``) carries the source of this module to machines that have nothing of
ours yet: it imports the standard library alone, and its syntax is that of Python 3.8.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

READ_S = 30.0  # of one read; the whole has a deadline of its own
#: What a link opens is small: an envelope or a lock some KB, a wheel some hundred.
MOST_BYTES = 32 << 20
TRIES = 3  # of the machine's own end
_BLOCK_BYTES = 1 << 16
_LOOK_EVERY_S = 0.1
#: A link that expired stays so, and what it opens was there before it was made.
FINAL = (400, 401, 403, 404, 410)


class Closed(Exception):
    """A link that opens nothing any more: it expired, or what gave it has lost the right to."""


class Silent(Exception):
    """No usable answer within the deadline."""


def _ask(open_it: Callable[..., Any], what: object) -> tuple[threading.Thread, list[object]]:
    """Ask beside the caller, which no server can hold then; the list gets the body, or what was raised."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(_whole(open_it(what, timeout=READ_S)))
        except Exception as error:
            got.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, got


def _whole(answer: Any) -> bytes:
    """The body. Raises :class:`Closed` for one that is too long, and for half a one ``EOFError``."""
    body: bytes = b""
    with answer:
        while len(body) <= MOST_BYTES:
            block = answer.read(_BLOCK_BYTES)
            body += block
            if not block:
                if answer.length:  # was promised and did not come
                    raise EOFError
                return body
    raise Closed(f"opens more than {MOST_BYTES >> 20} MiB, which nothing of ours has")


def _told(got: list[object]) -> bytes:
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]  # type: ignore[return-value]


def fetch(
    url: str, within_s: float, now_s: Callable[[], float], sleep: Callable[[float], None]
) -> bytes:
    """What a link opens, ``MOST_BYTES`` at most. Raises :class:`Closed`, or :class:`Silent` after
    ``within_s`` seconds, whether or not somebody still sends.

    ``sleep`` is called while an answer is waited for as well, and may raise: nothing waits for it then.
    No word of any failure holds the link: whoever has it may read what it opens.
    """
    until_s, pause_s = now_s() + within_s, 0.5
    while True:
        thread, got = _ask(urllib.request.urlopen, url)
        thread.join(_LOOK_EVERY_S)
        while not got:
            sleep(0.0)
            if now_s() >= until_s:
                raise Silent(f"gave no whole answer for {within_s:.0f} s")
            thread.join(_LOOK_EVERY_S)
        try:
            return _told(got)
        except Closed:
            raise
        except urllib.error.HTTPError as error:
            if error.code in FINAL:
                raise Closed(f"has expired or opens nothing ({error.code})") from None
            words = f"answered {error.code}"
        except Exception as error:  # no route, a name that is not found, half an answer
            words = f"gave no answer ({type(error).__name__})"
        if now_s() + pause_s >= until_s:
            raise Silent(f"{words} for {within_s:.0f} s")
        sleep(pause_s)
        pause_s = min(2 * pause_s, 15.0)


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Follow nobody: the request has a key of the platform in it."""


def _refused(answer: bytes) -> bool:
    try:
        told = json.loads(answer)
    except ValueError:
        return False
    return isinstance(told, dict) and bool(told.get("errors"))


def end_machine(
    ending: Mapping[str, object],
    environ: Mapping[str, str],
    say: Callable[[str], object],
    sleep: Callable[[float], None],
) -> bool:
    """Ask the platform to end this machine, by one HTTP request; whether it said yes.

    ``${NAME}`` in the url, the headers and the body stands for a variable that the platform set.
    What is said names neither the address nor a header.
    """

    def filled(text: object, quoted: Callable[[str], str]) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda name: quoted(environ[name.group(1)]), str(text))

    words = ""
    for count in range(TRIES):
        try:
            body = ending.get("body")
            text = body if isinstance(body, str) or body is None else json.dumps(body)
            headers = ending.get("headers") or {}
            request = urllib.request.Request(
                filled(ending["url"], lambda value: urllib.parse.quote(value, safe="")),
                None if text is None else filled(text, lambda v: json.dumps(v)[1:-1]).encode(),
                {n: filled(v, str) for n, v in dict(headers).items()},  # type: ignore[call-overload]
                method=str(ending.get("method", "POST")),
            )
            thread, got = _ask(urllib.request.build_opener(_Stay).open, request)
            thread.join(READ_S)
            if not got:
                raise TimeoutError
            if not _refused(_told(got)):
                return True
            words = "the platform answered 200 with errors"  # as every GraphQL service does
        except KeyError as error:
            say(f"tenure: this machine cannot end itself: ${error.args[0]} is not set")
            return False
        except urllib.error.HTTPError as error:
            words = f"the platform answered {error.code}"
        except Exception as error:
            words = f"the platform gave no answer ({type(error).__name__})"
        sleep(1.0 + count)
    say(f"tenure: this machine could not end itself: {words}")
    return False
