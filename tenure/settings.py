"""``tenure.toml``: where the store is, which runners and rungs there are, and who shares them.

Searched: ``--config``, ``$TENURE_CONFIG``, ``./tenure.toml``, then the parents of the working folder.
Without a file the defaults are exactly those of the class bodies below.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    model_validator,
)

from tenure.bad_input import KeyPath, Place, did_you_mean, read_text
from tenure.errors import UsageError
from tenure.toml_lines import key_lines
from tenure_protocol.records import check_name
from tenure_protocol.store.api import shown

FILE_NAME = "tenure.toml"
STORE_SCHEMES = ("file", "s3", "memory")

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.DOTALL)
_KEY_SOURCE = re.compile(r"[a-z][a-z0-9+-]*:\S[^\n]*")
_KEY_ID = re.compile(r"[0-9a-f]{64}")
_ADDRESS_SOURCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:(?!.*://)\S[^\n]*")
_CREDENTIAL_SOURCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|profile:[A-Za-z0-9_.@-]+")


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _check_key_source(text: str) -> str:
    # Never repeats the value: it may be the key itself.
    if not _KEY_SOURCE.fullmatch(text):
        raise ValueError(
            "must say where the key is, such as 'env:TENURE_DEPLOY_KEY', and never be the key"
        )
    return text


def _check_key_files(value: object) -> object:
    # Never repeats the value either: it may be a private key.
    if value is None:
        return value  # the default; TOML cannot write it
    named = isinstance(value, list) and all(
        isinstance(one, str) and one.strip() and "\n" not in one for one in value
    )
    if not named or not value:
        raise ValueError(
            "must be a list of files with public keys, such as ['keys/deploy.pem.pub'], with one at "
            "least; left out, the public half beside the deploy key is the one that is trusted"
        )
    return value


def _check_revoked(value: object) -> object:
    if not isinstance(value, dict) or not all(
        isinstance(name, str)
        and _KEY_ID.fullmatch(name)
        and isinstance(last, int)
        and not isinstance(last, bool)
        and last >= 0
        for name, last in value.items()
    ):
        raise ValueError(
            "must give each revoked key's id (64 of 0-9 and a-f, as `tenure key --show FILE` prints "
            "it) the number of its last warrant that is still believed, 0 for none"
        )
    return value


def _check_address_sources(value: object) -> object:
    # Never repeats the value either: an address holds a password or a token.
    if not isinstance(value, list) or not all(
        isinstance(one, str) and _ADDRESS_SOURCE.fullmatch(one) for one in value
    ):
        raise ValueError(
            "must be a list that says where the addresses are, such as ['env:TENURE_NOTIFY'] or "
            "['file:notify.txt'], and never holds one, since they contain passwords"
        )
    return value


def _check_credential_source(text: object) -> object:
    # Never repeats the value: it may be a credential itself.
    if text is not None and not (isinstance(text, str) and _CREDENTIAL_SOURCE.fullmatch(text)):
        raise ValueError(
            "must say where the credentials are: 'env:PREFIX' for $PREFIX_AWS_ACCESS_KEY_ID and "
            "$PREFIX_AWS_SECRET_ACCESS_KEY, or 'profile:NAME' for a profile of ~/.aws; never be one"
        )
    return text


def _path(value: object) -> object:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be the path of a folder")
    return Path(value).expanduser()


Name = Annotated[str, AfterValidator(lambda name: check_name(name, "the name"))]
Text = Annotated[str, AfterValidator(_check_text)]


class Section(BaseModel):
    """A section people write: unknown keys and loose types are errors."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True
    )


class StoreSection(Section):
    """``[store]``."""

    url: Text = "file:.tenure/store"


class RunnerSection(Section):
    """``[runners.NAME]``: a platform plug-in; what it configures is checked by its own model."""

    kind: Name
    extra: dict[str, object] = Field(default_factory=dict)  # every further key, as written

    @model_validator(mode="before")
    @classmethod
    def _keep_further_keys(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        known = {"kind": data["kind"]} if "kind" in data else {}
        return {**known, "extra": {key: data[key] for key in data if key != "kind"}}


class Price(Section):
    """What an hour of one rung costs; ``per_h`` is in ``currency``."""

    currency: Name  # usd, credits, or the hours of a quota: sums are kept per currency
    per_h: Annotated[float, Field(ge=0)]


class RungSection(Section):
    """``[rungs.NAME]``: one (runner, card, price class)."""

    runner: str
    card: Name
    price_class: Name
    price: Price


class TeamSection(Section):
    """``[teams.NAME]``: the weight of its fair share, and whose credentials speak for it."""

    weight: Annotated[float, Field(gt=0)] = 1.0
    #: That may write below ``submissions/NAME/``; None: those that everything else is written with.
    credentials: Annotated[str | None, BeforeValidator(_check_credential_source)] = None
    part_of: str | None = None  # a second account of that team, within its share


class GatesSection(Section):
    """``[gates]``: where the deploy key is, never the key; and whose warrants are believed."""

    #: Of the deployment step alone, where a bucket's policies keep others out; None: those of the rest.
    credentials: Annotated[str | None, BeforeValidator(_check_credential_source)] = None
    deploy_key: Annotated[str, AfterValidator(_check_key_source)] = "env:TENURE_DEPLOY_KEY"
    #: Files with public keys; None: the public half beside the deploy key's file, or of its variable.
    trusted_keys: Annotated[list[str] | None, BeforeValidator(_check_key_files)] = None
    #: By key id, the number of the last warrant of that key that is still believed; 0: none.
    revoked_keys: Annotated[dict[str, int], BeforeValidator(_check_revoked)] = {}


class PlansSection(Section):
    """``[plans]``: globs below the folder of ``tenure.toml``."""

    paths: list[Text] = ["examples/*/plan.yaml", "plans/*.yaml"]


class DagsterSection(Section):
    """``[dagster]``: its home (absolute once loaded) and the port of its page on loopback."""

    home: Annotated[Path, BeforeValidator(_path)] = Path(".tenure/dagster")
    port: Annotated[int, Field(ge=1, le=65535)] = 3000


def _default_runners() -> dict[Name, RunnerSection]:
    return {"here": RunnerSection.model_validate({"kind": "own_process", "slots": 2})}


def _default_rungs() -> dict[Name, RungSection]:
    free = Price(currency="usd", per_h=0)
    return {"local": RungSection(runner="here", card="cpu", price_class="on_demand", price=free)}


def _default_teams() -> dict[Name, TeamSection]:
    return {"me": TeamSection(weight=1)}


NoticeKind = Literal["done", "blocked", "stuck", "budget", "quota", "deployed"]


class NotifySection(Section):
    """``[notify]``: where the addresses of notices are, and which events are worth one."""

    to: Annotated[list[str], BeforeValidator(_check_address_sources)] = ["env:TENURE_NOTIFY"]
    events: list[NoticeKind] = ["done", "blocked", "stuck", "budget", "quota", "deployed"]
    stuck_s: Annotated[float, Field(ge=60)] = 3600.0  # that a job waits, for no want of slots


class PlannerSection(Section):
    """``[planner]``: whether jobs with a deadline are planned, and what other currencies are worth."""

    enabled: bool = True
    #: Whether a straggler that would miss its deadline has a backup copy, a job of its own (decision 0014).
    backups: bool = False
    #: Dollars for one unit of a currency, such as credits that could be spent otherwise; 0 where not named.
    rates: dict[Name, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)


class QueueSection(Section):
    """``[queue]``: of several teams, how fast use is forgotten and how long anybody waits at most."""

    half_life_h: Annotated[float, Field(gt=0)] = 168.0
    max_wait_h: Annotated[float, Field(gt=0)] = 168.0


class _File(Section):
    """What may stand in the file; a section left out takes its defaults as a whole."""

    store: StoreSection = StoreSection()
    runners: dict[Name, RunnerSection] = Field(default_factory=_default_runners)
    rungs: dict[Name, RungSection] = Field(default_factory=_default_rungs)
    teams: dict[Name, TeamSection] = Field(default_factory=_default_teams)
    gates: GatesSection = GatesSection()
    plans: PlansSection = PlansSection()
    dagster: DagsterSection = DagsterSection()
    notify: NotifySection = NotifySection()
    planner: PlannerSection = PlannerSection()
    queue: QueueSection = QueueSection()


class Settings(BaseModel):
    """The settings in force; every path in them is absolute."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path  # the folder of the file, else the working folder: what paths are relative to
    file: Path | None  # None where there is none and the defaults hold
    store_url: str
    runners: dict[str, RunnerSection]
    rungs: dict[str, RungSection]
    teams: dict[str, TeamSection]
    gates: GatesSection
    plans: PlansSection
    dagster: DagsterSection
    notify: NotifySection = NotifySection()
    planner: PlannerSection = PlannerSection()
    queue: QueueSection = QueueSection()
    _place: Place = PrivateAttr(default_factory=lambda: Place("the built-in defaults", {}))

    def error(self, path: KeyPath, sentence: str) -> UsageError:
        """A mistake found later, such as by a runner's own model: file, line, key and sentence."""
        return self._place.error(path, sentence)


def load_settings(
    config: Path | None = None,
    start: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Find, read and check ``tenure.toml``.

    ``config`` is what ``--config`` named; ``start`` stands for the working folder and ``environ``
    for the environment, both the real ones by default. Raises :class:`UsageError`.
    """
    start = (start or Path.cwd()).absolute()
    environ = os.environ if environ is None else environ
    file = _find(config, start, environ)
    root = file.parent if file else start
    text = read_text(file, "settings file") if file else ""
    data, place = _parse(text, file)
    try:
        found = _File.model_validate(data)
    except ValidationError as error:
        raise place.first_mistake(error, _File) from None
    _check_runners(found, place)
    _check_worths(found, place)
    _check_parts(found, place)
    settings = Settings(
        root=root,
        file=file,
        store_url=_store_url(found, root, environ, place),
        runners=found.runners,
        rungs=found.rungs,
        teams=found.teams,
        gates=found.gates,
        plans=found.plans,
        dagster=found.dagster.model_copy(
            update={"home": Path(os.path.normpath(root / found.dagster.home))}
        ),
        notify=found.notify,
        planner=found.planner,
        queue=found.queue,
    )
    settings._place = place
    return settings


def _find(config: Path | None, start: Path, environ: Mapping[str, str]) -> Path | None:
    named = config or (Path(environ["TENURE_CONFIG"]) if environ.get("TENURE_CONFIG") else None)
    if named is not None:
        file = start / named.expanduser()
        if not file.is_file():
            source = "--config" if config else "$TENURE_CONFIG"
            raise UsageError(f"{source} names {named}, and there is no such file; correct the path")
        return Path(os.path.normpath(file))
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder / FILE_NAME
    return None


def _parse(text: str, file: Path | None) -> tuple[dict[str, object], Place]:
    name = str(file) if file else "the built-in defaults"
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = int(line.group(1)) if line else text.count("\n") + 1
        reason = re.sub(r" \(at .*\)$", "", str(error))
        raise UsageError(f"{name}:{number}: not valid TOML: {reason}") from None
    return data, Place(name, key_lines(text))


def _check_worths(found: _File, place: Place) -> None:
    """Every currency that is worth something is one that a rung is paid in, and none is the dollar."""
    known = {rung.price.currency for rung in found.rungs.values()} - {"usd"}
    for currency in found.planner.rates:
        if currency not in known:
            what = "a dollar is worth a dollar" if currency == "usd" else "no rung is paid in it"
            named = ", ".join(sorted(known)) or "none"
            raise place.error(
                ("planner", "rates", currency), f"{what}; other currencies of the rungs: {named}"
            )


def _check_parts(found: _File, place: Place) -> None:
    """An account is part of a team that is there, and that is no account itself."""
    for name, team in found.teams.items():
        if team.part_of is None:
            continue
        path = ("teams", name, "part_of")
        whole = found.teams.get(team.part_of)
        if whole is None:
            hint = did_you_mean(team.part_of, found.teams)
            raise place.error(path, f"there is no [teams.{team.part_of}]; {hint}")
        if team.part_of == name or whole.part_of is not None:
            raise place.error(path, f"{team.part_of} is itself part of a team; name that one")


def _check_runners(found: _File, place: Place) -> None:
    if not found.rungs:
        raise place.error(("rungs",), "there is no rung, so nothing can run; add [rungs.NAME]")
    for name, rung in found.rungs.items():
        if rung.runner in found.runners:
            continue
        hint = did_you_mean(rung.runner, found.runners)
        if ("rungs",) not in place.lines:
            raise place.error(
                ("runners",),
                "without a [rungs.NAME] nothing runs on these runners; add one that names one of "
                f"them ({hint})",
            )
        raise place.error(("rungs", name, "runner"), f"there is no [runners.{rung.runner}]; {hint}")


def _store_url(found: _File, root: Path, environ: Mapping[str, str], place: Place) -> str:
    """The store's address with an absolute path in it.

    A relative path of ``$TENURE_STORE`` is below ``root`` too: it replaces the key of the file, and
    must not name another, empty store in each folder a command happens to run in.
    """
    override = environ.get("TENURE_STORE")
    url = override or found.store.url

    def mistake(sentence: str) -> UsageError:
        if override:
            return UsageError(f"$TENURE_STORE is {shown(url)!r}: {sentence}")
        return place.error(("store", "url"), f"{shown(url)!r}: {sentence}")

    return absolute_store_url(url, root, mistake)


def absolute_store_url(
    url: str, root: Path, mistake: Callable[[str], UsageError] | None = None
) -> str:
    """A store's address with an absolute path in it; raises what ``mistake`` makes of a sentence."""
    wrong = mistake or (lambda sentence: UsageError(f"the store {shown(url)!r}: {sentence}"))
    match = _SCHEME.fullmatch(url)
    if match is None:
        raise wrong(f"an address begins with its kind; for a folder write 'file:{url}'")
    scheme, rest = match.groups()
    if scheme not in STORE_SCHEMES:
        raise wrong(f"unknown kind of store {scheme!r}; {did_you_mean(scheme, STORE_SCHEMES)}")
    if scheme == "s3" and not re.match(r"//[^/?]+", rest):
        raise wrong("no bucket is named; write s3://BUCKET/PREFIX")
    if scheme != "file":
        return url
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise wrong("a folder of another host cannot be a store; write file:/PATH")
        rest = rest[2:]
    if not rest:
        raise wrong("no folder is named; write file:PATH")
    return "file:" + os.path.normpath(root / Path(rest).expanduser())
