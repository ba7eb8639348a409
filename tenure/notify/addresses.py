"""Where notices go: apprise's addresses, which hold passwords and tokens and are never shown."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tenure.errors import UsageError
from tenure.settings import Settings

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9]{1,19})://")
# In a list on one line a comma may also belong to an address: it parts two only before a scheme.
_BETWEEN = re.compile(r"\s+|,\s*(?=[A-Za-z][A-Za-z0-9]{1,19}://)")
#: Schemes whose host is a host. Elsewhere it may be the token itself, as of slack:// and discord://.
_HOSTED = frozenset(
    "apprise form gotify json mailto mmost mqtt ncloud nctalk signal xml".split()
)  # fmt: skip


@dataclass(frozen=True)
class Address:
    """One address. Only ``shown`` may be printed."""

    url: str = field(repr=False)
    shown: str


def read_addresses(
    settings: Settings, environ: Mapping[str, str] | None = None
) -> tuple[Address, ...]:
    """All that ``[notify] to`` names, each once; none where nobody has chosen any.

    Raises UsageError for a source that is named and is not there, for a file that others can read,
    and where the extra is missing. No sentence repeats what was read.
    """
    environ = os.environ if environ is None else environ
    chosen = "to" in settings.notify.model_fields_set
    found: dict[str, Address] = {}
    for source in settings.notify.to:
        kind, _, rest = source.partition(":")
        if kind == "env":
            where, urls = f"${rest}", _BETWEEN.split(environ.get(rest, ""))
            missing = f"[notify] to names {source}, and ${rest} is not set; set it, or remove it"
        else:
            path = settings.root / Path(rest).expanduser()
            where, urls = str(path), _lines(path)
            missing = f"[notify] to names {source}, and {path} holds no address; write one a line"
        urls = [url.strip(" \t,") for url in urls if url.strip(" \t,")]
        if not urls and chosen:
            raise UsageError(missing)
        for number, url in enumerate(urls, 1):
            found.setdefault(url, Address(url, f"{what(url)}, number {number} in {where}"))
    if found and find_spec("apprise") is None:
        raise UsageError("notifications need the extra notify: pip install 'tenure[notify]'")
    return tuple(found.values())


def secret_variables(settings: Settings) -> frozenset[str]:
    """What workers must not see, in the words of ``Site.hidden``: variables, and ``file:PATH``."""
    return frozenset(source.removeprefix("env:") for source in settings.notify.to)


def what(url: str) -> str:
    """The scheme of an address, and its host and port where they are no secret.

    >>> what("json://ann:secret@example.org:8080/hook"), what("slack://xoxb-token/channel")
    ('json://example.org:8080', 'slack://')
    >>> what("a token without a scheme")
    'no address'
    """
    scheme = _SCHEME.match(url)
    if scheme is None:
        return "no address"
    name = scheme[1].lower()
    if not {name, name.removesuffix("s")} & _HOSTED:
        return f"{name}://"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # no number where the port belongs, half an IPv6 address
        return f"{name}://"
    if not re.fullmatch(r"[a-z0-9.:-]+", host):
        return f"{name}://"
    return f"{name}://{host}{'' if port is None else f':{port}'}"


def _lines(path: Path) -> list[str]:
    """The lines of a file that only its owner can read, without comments."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UsageError(
                    f"{path} holds addresses with passwords and can be read by others (mode "
                    f"{mode:04o}); run: chmod 600 {path}"
                )
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        raise UsageError(f"[notify] to names {path}, and there is no such file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return [line for line in lines if not line.startswith("#")]
