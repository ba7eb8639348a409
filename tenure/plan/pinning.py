"""Which environment a plan's retrain is pinned to: one that was measured, whatever is asked of it.

A lock and a card class name no driver and no processor, so they choose among environments that were
measured and never stand for one: what a job requires is always complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tenure.errors import Blocked
from tenure_protocol import fingerprint
from tenure_protocol.records import ModelRecord
from tenure_worker.cargo import same_card

if TYPE_CHECKING:
    from tenure.plan.file import Plan

Environment = Mapping[str, object]

_EXACT = re.compile(
    r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^]]*\])?\s*={2,3}\s*([^\s;,*]+)\s*(;.*)?"
)
_ELSEWHERE = re.compile(r"-(?:r|c|e|-requirement|-constraint|-editable)\b")
_SHOWN = 3  # what a nearest environment lacks, in a sentence


@dataclass(frozen=True)
class Lock:
    """Exact versions by normalised name; several where markers choose between them."""

    versions: Mapping[str, tuple[str, ...]]
    conditional: frozenset[str]  # with a marker: these need not be installed everywhere


def parse_lock(text: str) -> Lock:
    """Read a pip requirements file of exact versions. Raises ``ValueError`` with the line.

    >>> parse_lock("numpy==2.4.6 --hash=sha256:ab  # via x").versions
    {'numpy': ('2.4.6',)}
    """
    versions: dict[str, tuple[str, ...]] = {}
    conditional: set[str] = set()
    for number, line in _logical(text):
        if _ELSEWHERE.match(line):
            raise ValueError(
                f"line {number} ({line!r}) refers to something else; put what it installs here, "
                "as name==version"
            )
        if line.startswith("-"):
            continue
        found = _EXACT.fullmatch(line.partition(" --")[0].strip())
        if found is None:
            raise ValueError(
                f"line {number} ({line!r}) is no exact version; a lock names every package as "
                "name==version, as `pip freeze` and `pip-compile` write it"
            )
        name = re.sub(r"[-_.]+", "-", found[1]).lower()
        versions[name] = (*versions.get(name, ()), found[2])
        if found[3]:
            conditional.add(name)
    if not versions:
        raise ValueError("it names no package; a lock has lines such as numpy==2.4.6")
    return Lock(versions, frozenset(conditional))


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, those that end in a backslash joined with the next."""
    held, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        first = first if held else number
        held = f"{held} {line.removesuffix(chr(92)).strip()}".strip()
        if not line.endswith(chr(92)):
            if held:
                yield first, held
            held = ""
    if held:
        yield first, held


def parse_environment(text: str) -> dict[str, object]:
    """What ``tenure fingerprint --json`` printed. Raises ``ValueError`` for what no pin can be made of."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object; `tenure fingerprint --json` prints one")
    if found.get("torch") == fingerprint.TORCH_NOT_ASKED:
        raise ValueError("torch was not asked when it was measured, so nothing could ever equal it")
    if missing := fingerprint.missing_from_pin(fingerprint.pin(found)):
        raise ValueError(
            f"it leaves open: {', '.join(missing)}; make it anew with `tenure fingerprint --json`"
        )
    return found


def same_version(locked: str, installed: str) -> bool:
    """Whether an installed version is the locked one; a local part counts only where it is locked.

    >>> same_version("2.13.0", "2.13.0+cpu"), same_version("2.13.0+cu128", "2.13.0+cpu")
    (True, False)
    >>> same_version("2.0", "2.0.0"), same_version("1.0", "1.0 (editable)")
    (True, True)
    """
    found = installed.removesuffix(" (editable)")
    if "+" not in locked:
        found = found.partition("+")[0]
    return _release(locked) == _release(found)


def _release(version: str) -> str:
    return re.sub(r"(\.0+)+(?=$|\+)", "", version.lower().removeprefix("v"))


@dataclass(frozen=True)
class Wish:
    """What a plan's ``pin`` asks for, as its files say now."""

    card: str | None = None
    lock: Lock | None = None
    environment: dict[str, object] | None = None

    def unmet(self, environment: Environment) -> list[str]:
        """In words, in what an environment is not what is asked for."""
        found = []
        card = str(environment.get("card"))
        if self.card is not None and not same_card(self.card, card):
            found.append(f"its card is {card!r}, not {self.card!r}")
        packages = environment.get("packages")
        have = cast(Mapping[str, object], packages) if isinstance(packages, Mapping) else {}
        for name, versions in self.lock.versions.items() if self.lock else ():
            locked = " or ".join(dict.fromkeys(versions))
            if name in have:
                if not any(same_version(each, str(have[name])) for each in versions):
                    found.append(f"it has {name} {have[name]}, the lock {locked}")
            elif self.lock and name not in self.lock.conditional:
                found.append(f"it has no {name}, the lock {locked}")
        return found

    def words(self) -> str:
        """What is asked for."""
        card = f"the card {self.card!r}" if self.card else ""
        lock = "the packages of the lock" if self.lock else ""
        return " and ".join(filter(None, [card, lock]))


def read_wish(plan: Plan) -> Wish:
    """Read the files that a plan's ``pin`` names. Raises UsageError with file, line and key."""
    pin = plan.pin
    if pin is None:
        return Wish()
    wish = Wish(card=pin.card)
    for key, name in (("lock", pin.lock), ("fingerprint", pin.fingerprint)):
        if name is None:
            continue
        path = (plan.file.parent if plan.file else Path()) / name
        try:
            text = path.read_text(encoding="utf-8")
            if key == "lock":
                wish = Wish(pin.card, parse_lock(text))
            else:
                wish = Wish(environment=parse_environment(text))
        except OSError as error:
            reason = f"{path} cannot be read ({error.strerror}); it lies beside the plan"
            raise plan.error(("pin", key), reason) from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            kind = "text" if key == "lock" else "JSON"
            raise plan.error(("pin", key), f"{path} is no {kind} ({error})") from None
        except ValueError as error:
            raise plan.error(("pin", key), f"{path}: {error}") from None
    return wish


def requirement(plan: Plan, record: ModelRecord) -> dict[str, object]:
    """What the retrain of a promoted record requires: always a whole measured environment.

    Raises Blocked where none of the record's environments is what the plan asks for, UsageError for a
    plan whose files are wrong.
    """
    wish = read_wish(plan)
    if wish.environment is not None:
        return fingerprint.pin(wish.environment)
    ranked = by_members(record)
    for digest in ranked:
        if not wish.unmet(record.environments[digest]):
            return fingerprint.pin(record.environments[digest])
    raise Blocked(_none_fits(wish, record, ranked))


def by_members(record: ModelRecord) -> list[str]:
    """The measured environments of a record: that which most members measured last comes first.

    Ties go to the first member's; what was measured by earlier attempts alone comes at the end.
    """
    last = [member.measured[-1] for member in record.members if member.measured]
    every = [*last, *(digest for member in record.members for digest in member.measured)]
    return sorted(dict.fromkeys(every), key=lambda digest: -last.count(digest))


def _none_fits(wish: Wish, record: ModelRecord, ranked: Sequence[str]) -> str:
    nearest = min(ranked, key=lambda digest: len(wish.unmet(record.environments[digest])))
    seeds = [str(m.seed) for m in record.members if nearest in m.measured]
    lacks = wish.unmet(record.environments[nearest])
    more = f" (and {len(lacks) - _SHOWN} more)" if len(lacks) > _SHOWN else ""
    return (
        f"pinned_retrain: none of the {len(ranked)} environments that the promoted model was trained in "
        f"has {wish.words()}; the nearest is {nearest}, of seeds {', '.join(seeds)}: "
        f"{'; '.join(lacks[:_SHOWN])}{more}. Train the research where it is so (a rung of that card "
        "whose runner installs the lock), name an environment measured there (pin.fingerprint), or "
        "change `pin` in the plan"
    )
