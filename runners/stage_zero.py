"""Stage 0: the tiny program that a rented machine is given, and the packet it reads.

It fetches the worker's wheel by a link, checks its digest and becomes ``tenure_worker.machine``. Its
line of shell, its base64 and its packet hold letters, digits and ``+/=| -_`` alone, so that no quoting
on the way can change them, and it fits into the 4,048 characters that Vast takes.
"""

from __future__ import annotations

import ast
import base64
import inspect
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence

from tenure_protocol.clock import SYSTEM
from tenure_worker import exits, links

#: Seconds in which the wheel must have come.
WITHIN_S = 120.0

_MAIN = """
import base64, hashlib, os, sys, tempfile, time

def say(words):
    sys.stderr.write(words + "\\n")
    sys.stderr.flush()

def home():
    folder = os.path.join(os.environ.get("HOME") or tempfile.gettempdir(), ".tenure")
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        if {os.lstat(folder).st_uid, os.stat(folder).st_uid} != {os.geteuid()}:
            raise OSError
        os.chmod(folder, 0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return tempfile.mkdtemp(prefix="tenure-")

def wheel(folder, told):
    path = os.path.join(folder, os.path.basename(told["file"]))
    def same(body):
        return hashlib.sha256(body).hexdigest() == told["sha256"]
    if os.path.exists(path):
        with open(path, "rb") as file:
            if same(file.read()):
                return path
    try:
        body = fetch(told["url"], WITHIN_S, time.monotonic, time.sleep)
    except (Closed, Silent) as error:
        say("tenure: the link to the worker's wheel %s; launch the job again" % error)
        return GONE
    if not same(body):
        say("tenure: the worker's wheel has another digest than was promised; nothing of it was run")
        return PROTOCOL
    part = "%s.%d" % (path, os.getpid())
    with open(part, "wb") as file:
        file.write(body)
    os.replace(part, path)
    return path

def start():
    try:
        packet = json.loads(base64.b64decode(os.environ["TENURE_START"]))
        told = packet["wheel"]
    except (KeyError, TypeError, ValueError):
        say("tenure: $TENURE_START is not set or holds no packet")
        return USAGE
    code = REFUSED
    try:
        if sys.version_info < (3, 11):
            say("tenure: this machine has Python %d.%d, 3.11 or newer is needed; choose another image"
                % sys.version_info[:2])
        else:
            folder = home()
            code = wheel(folder, told)
            if isinstance(code, str):
                path = os.pathsep.join(filter(None, [code, os.environ.get("PYTHONPATH")]))
                environ = dict(os.environ, PYTHONPATH=path, TENURE_HOME=folder)
                sys.stdout.flush()
                os.execve(sys.executable, [sys.executable, "-P", "-m", "tenure_worker.machine"], environ)
    except OSError as error:
        say("tenure: the worker could not be started: %s" % error)
        code = REFUSED
    if packet.get("end"):
        end_machine(packet["end"], os.environ, say, time.sleep)
    return code

sys.exit(start())
"""

# Status 0 is "nothing to run": the shell goes on to ``place`` only where it is known to be ours.
_FIRST = """
import os, sys
try:
    try:
        os.mkdir(place, 0o700)
    except FileExistsError:
        pass
    one, above = os.lstat(place), os.stat(os.path.dirname(place)).st_mode
    if one.st_uid != os.geteuid() or one.st_mode & 0o77:  # a link, of any mode, is its maker's
        raise OSError("it is not ours alone")
    if above & 0o22 and not above & 0o1000:
        raise OSError("anybody may rename it")
    with open(place + "/start", "w", encoding="utf-8") as file:
        file.write(text)
except BaseException as error:
    sys.stderr.write("tenure: nothing was run, since %s cannot be used: %s\\n" % (place, error))
    sys.exit(0)
sys.exit(1)
"""
_UNPACK = base64.b64encode(
    b"import sys,zlib,base64\nexec(zlib.decompress(base64.b64decode(sys.argv[1])))"
).decode()


def program() -> str:
    """Source of the program; it reads ``$TENURE_START`` and runs on Python 3.8 or newer.

    On one older than 3.11 it says so and ends with 14; with 16 when the link to the wheel does not open
    any more or never answers; with 15 for a wheel of another digest. Where it cannot start the jobs it
    asks for the machine's own end, as ``tenure_worker.machine`` does at the end of the jobs.
    """
    tree = ast.parse(inspect.getsource(links))
    _strip(tree)  # a machine reads no docstrings, and some platforms count characters
    numbers = {
        "WITHIN_S": WITHIN_S,
        "USAGE": exits.USAGE,
        "GONE": exits.STORE_GONE,
        "PROTOCOL": exits.PROTOCOL,
        "REFUSED": exits.REFUSED,
    }
    head = "".join(f"{name} = {value!r}\n" for name, value in numbers.items())
    return f"{ast.unparse(tree)}\n{head}{_MAIN}"


def shell(program: str) -> str:
    """One line of POSIX shell that runs ``program``, in characters that nothing on the way changes.

    A first Python writes the program into a folder and fails, so that the shell then becomes the second:
    a signal to a container reaches its first process alone, and a shell would pass none on. Others may
    write to /tmp as well, so the folder has a name that nobody can know before, is ours alone or the
    first Python does not fail, and goes as soon as the program has been read; and neither Python
    imports from a folder that it happens to be in.
    """
    place = f"/tmp/tenure_{SYSTEM.nonce()}"
    text = f"import shutil\nshutil.rmtree({place!r}, True)\n{program}"
    first = f"place = {place!r}\ntext = {text!r}\n{_FIRST}"
    packed = base64.b64encode(zlib.compress(first.encode(), 9)).decode()
    return f"echo {_UNPACK} | base64 -d | python3 -I - {packed} || exec python3 -I {place}/start"


def packet(
    *,
    wheel: tuple[str, str, str],
    envelopes: Sequence[tuple[str, int]],
    card: str,
    lock: tuple[str, str] | None = None,
    end: Mapping[str, object] | None = None,
    hide: Iterable[str] = (),
    session_s: float | None = None,
    most_output_bytes: int | None = None,
) -> str:
    """The value of ``$TENURE_START``: base64 of JSON.

    ``wheel`` is its link, its SHA-256 and its file's name; ``lock`` the link and SHA-256 of a pip
    requirements file; ``envelopes`` the link of each job's envelope and how many cards it takes.
    ``card`` is the promised card by its official name, or "cpu". ``end`` says how the machine ends
    itself (:meth:`runners.order.Platform.ending`), ``hide`` names variables of the platform that no job
    may see, and after ``session_s`` seconds the machine releases what still runs and ends.
    """
    content: dict[str, object] = {
        "wheel": dict(zip(("url", "sha256", "file"), wheel, strict=True)),
        "lock": dict(zip(("url", "sha256"), lock, strict=True)) if lock else None,
        "envelopes": [{"url": url, "cards": cards} for url, cards in envelopes],
        "card": card,
        "end": dict(end) if end else None,
        "hide": sorted(hide),
        "session_s": session_s,
        "most_output_bytes": most_output_bytes,
    }
    told = {name: value for name, value in content.items() if value}
    return base64.b64encode(json.dumps(told).encode()).decode()


def _strip(tree: ast.Module) -> None:
    """Remove docstrings, annotations that are only for people, and what only they need."""
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.ImportFrom)  # __future__ and collections.abc
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for each in (*node.args.args, *filter(None, [node.args.vararg])):
                each.annotation = None
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            constant = body[0].value
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
