"""What rented machines share, over a platform that is a list: lost answers, walls, families, the doctor's rows."""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, cast

import pytest

from runners import cargo, rented, sdk
from runners.bare_container import BareContainerRunner
from runners.foreign_runtime import ForeignRuntimeRunner
from runners.grants import Grant
from runners.order import Handle, Order, RentedConfig
from runners.rented import RentedRunner
from runners.sdk import SdkPlatform
from tenure.dispatch.contract import (
    Closed,
    Job,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Quota,
    Receipt,
    Rejected,
    Settlement,
    Site,
    Unreachable,
)
from tenure_protocol.clock import SYSTEM
from tenure_protocol.records import JobSpec
from tests.fake_clock import FakeClock

NAME = "tenure-one"
ROLE = "arn:aws:iam::1:role/worker"
HOUR_S = 3600.0
LOST = Unreachable("no answer", sent=True)


class ListConfig(RentedConfig):
    TITLE: ClassVar[str] = "List"
    CARDS: ClassVar[Mapping[str, str]] = {"Tesla T4": "t4", "NVIDIA L4": "l4", "cpu": ""}
    COUNTS: ClassVar[Sequence[int]] = (1, 2, 4)
    COUNTS_OF: ClassVar[Mapping[str, Sequence[int]]] = {"Tesla T4": (2,), "cpu": range(1, 4)}
    GONE: ClassVar[Mapping[str, str]] = {"P100": "the P100 is retired"}

    zones: tuple[str, ...] = ()


class ListPlatform(SdkPlatform[ListConfig, None]):
    """Machines are names in a list; ``fails`` is what a call raises, ``unlisted`` what is not told of."""

    KIND, EXTRA, MODULE = "list", "list", "json"
    VARIABLES: ClassVar[tuple[str, ...]] = ("LIST_KEY",)
    Config: ClassVar[type[RentedConfig]] = ListConfig
    machines: ClassVar[list[str]] = []
    orders: ClassVar[list[Order]] = []
    fails: ClassVar[dict[str, Exception]] = {}
    unlisted: ClassVar[set[str]] = set()
    left: ClassVar[Quota | None] = None

    def _open(self) -> None: ...

    @staticmethod
    def _classify(error: BaseException) -> LaunchFailed | None:
        return None

    def _may_fail(self, call: str) -> None:
        if call in self.fails:
            raise self.fails[call]

    def create(self, order: Order) -> Handle:
        if not isinstance(self.fails.get("create"), Rejected):
            self.machines.append(order.name)
            self.orders.append(order)
        self._may_fail("create")
        return {"id": order.name}

    def find(self, name: str) -> Handle | None:
        self._may_fail("find")
        return {"id": name} if name in self.machines and name not in self.unlisted else None

    def end(self, handle: Handle) -> Settlement:
        if handle["id"] in self.machines:
            self.machines.remove(str(handle["id"]))
        return Closed("ended")

    def running(self, prefix: str) -> Sequence[tuple[str, Handle]]:
        self._may_fail("running")
        return [(name, {"id": name}) for name in self.machines if name.startswith(prefix)]

    def quota(self) -> Quota | None:
        self._may_fail("quota")
        return self.left

    def ending(self) -> Mapping[str, object]:
        return {"method": "DELETE", "url": "http://end"}


class BuildsPlatform(ListPlatform):
    BUILDS = True


class Bare(BareContainerRunner):
    PLATFORM = ListPlatform


class Foreign(ForeignRuntimeRunner):
    PLATFORM = ListPlatform


class ForeignBuilder(ForeignRuntimeRunner):
    PLATFORM = BuildsPlatform


class LinksStore:
    """As much of a store as an order needs."""

    url = "s3://b"
    lives_s: ClassVar[list[int]] = []

    def presign(self, key: str, method: str, lives_s: int) -> str:
        self.lives_s.append(lives_s)
        return f"http://store/{key}"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("machines", []), ("orders", []), ("fails", {}), ("unlisted", set()), ("left", None),
    ):  # fmt: skip
        monkeypatch.setattr(ListPlatform, name, value)


Make = Callable[..., RentedRunner]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, clock: FakeClock, tmp_path: Path) -> Make:
    """A runner whose orders are real, without a store or an STS: ``lasts_s`` is for its credentials."""

    def made(kind: type[RentedRunner] = Bare, lasts_s: float = 12 * HOUR_S, **keys: object) -> RentedRunner:  # fmt: skip
        def published(*_: object) -> cargo.Published:
            return cargo.Published("wheel/key", "0" * 64, "file.whl")

        def granted(url: str, spec: JobSpec, config: RentedConfig, _: object) -> Grant:
            return Grant({"AWS_SESSION_TOKEN": "t"}, url, clock.wall_s() + lasts_s, "it is short")

        monkeypatch.setattr(RentedRunner, "_store", lambda *_: LinksStore())
        monkeypatch.setattr(rented, "read_spec", lambda *_: JobSpec(
            "e", "train", "training", "m:C", {}, 0, 1, "c", "d", 10
        ))  # fmt: skip
        monkeypatch.setattr(rented, "grant", granted)
        monkeypatch.setattr(cargo, "publish", lambda *_: None)
        monkeypatch.setattr(cargo, "publish_wheel", published)
        monkeypatch.setattr(cargo, "publish_lock", published)
        monkeypatch.setattr(cargo, "write_envelope", lambda *_: "jobs/j/envelope.json")
        config = {"card": "NVIDIA L4", "role": ROLE, **keys}
        return kind("list", config, Site(tmp_path, clock))

    return made


def job(name: str = NAME) -> Job:
    return Job("j", "train", 1, name, "s3://b")


def by_name(name: str = NAME) -> Receipt:
    """What a dispatcher has of a launch whose create had no answer."""
    return Receipt(("j",), "list", name, "NVIDIA L4", 0.0)


def packet() -> dict[str, object]:
    return cast("dict[str, object]", json.loads(b64decode(ListPlatform.orders[-1].packet)))


# -------------------------------------------------------------------------------- lost answers


@pytest.mark.parametrize("lost", [LOST, ProtocolError("what is this?")])
def test_a_ghost_that_is_not_listed_yet_is_not_closed(
    make: Make, clock: FakeClock, lost: LaunchFailed
) -> None:
    runner = make(unlisted_s=60.0)
    ListPlatform.fails["create"] = lost
    ListPlatform.unlisted.add(NAME)
    with pytest.raises(type(lost)):
        runner.launch([job()])
    settlement = runner.release(by_name())
    assert isinstance(settlement, Pending) and "no answer" in settlement.reason
    assert not settlement.seen  # nothing is paid for what nobody has seen
    assert isinstance(runner.release(by_name("tenure-other")), Closed)
    ListPlatform.unlisted.clear()  # now it is listed
    assert runner.release(by_name()) == Closed("ended", seen=True) and not ListPlatform.machines
    assert runner.release(by_name("tenure-other")) == Closed("nothing runs under its name")


def test_what_is_never_listed_is_closed_when_its_grace_is_over(
    make: Make, clock: FakeClock
) -> None:
    runner = make(unlisted_s=60.0)
    ListPlatform.fails["create"] = LOST
    ListPlatform.unlisted.add(NAME)
    with pytest.raises(Unreachable):
        runner.launch([job()])
    clock.sleep(59.0)
    assert isinstance(runner.release(by_name()), Pending)
    clock.sleep(2.0)
    assert isinstance(runner.release(by_name()), Closed)


def test_what_was_never_sent_or_was_refused_needs_no_grace(make: Make) -> None:
    runner = make()
    for failure in (Unreachable("nobody there", sent=False), Rejected("no such image")):
        ListPlatform.fails["create"] = failure
        with pytest.raises(type(failure)):
            runner.launch([job()])
        ListPlatform.machines.clear()
        assert isinstance(runner.release(by_name()), Closed)


def test_a_ghost_that_is_listed_is_the_launch(make: Make) -> None:
    ListPlatform.fails["create"] = LOST
    receipt = make().launch([job()])
    assert receipt.handle == {"id": NAME} and ListPlatform.machines == [NAME]


def test_links_live_as_long_as_the_claim_is_waited_for(make: Make) -> None:
    """The window doubles where nobody came in time: links of the first length would never do."""
    LinksStore.lives_s.clear()
    make(claim_window_s=600.0).launch([Job("j", "train", 4, NAME, "s3://b", window_s=4800.0)])
    assert len(LinksStore.lives_s) == 2 and min(LinksStore.lives_s) > 4800


# -------------------------------------------------------------------------------- the wall


def test_the_usual_session_fits_into_twelve_hours_and_nobody_is_warned(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make().launch([job()])
    config = RentedConfig(card="cpu")
    assert config.session_s + config.claim_window_s == 12 * HOUR_S
    assert packet()["session_s"] == config.session_s
    assert not caplog.records


@pytest.mark.parametrize("asked", [None, 6 * HOUR_S])
def test_a_machine_ends_before_its_credentials(
    make: Make, caplog: pytest.LogCaptureFixture, asked: float | None
) -> None:
    """One that came up when the claim window was over, too. Who asked for more is told so."""
    keys = {"session_s": asked} if asked else {}
    make(lasts_s=HOUR_S, claim_window_s=300.0, **keys).launch([job()])
    assert packet()["session_s"] == pytest.approx(HOUR_S - 300.0)
    warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert bool(warned) is bool(asked)
    assert not asked or "0.92 h, not 6.00 h" in warned[0]


def test_the_seconds_that_a_launch_takes_are_worth_no_word(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(lasts_s=12 * HOUR_S - 5.0, session_s=12 * HOUR_S - 600.0).launch([job()])
    assert packet()["session_s"] == pytest.approx(12 * HOUR_S - 605.0)
    assert not caplog.records


def test_the_shortest_credentials_of_a_pack_count(
    make: Make, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    runner, lasts_s = make(cards=2), iter([HOUR_S, 2 * HOUR_S])
    monkeypatch.setattr(
        rented, "grant", lambda url, *_: Grant({}, url, clock.wall_s() + next(lasts_s))
    )
    runner.launch([job(), job()])
    assert packet()["session_s"] == pytest.approx(HOUR_S - 600.0)


def test_full_trust_has_the_wall_of_the_configuration_and_a_warning(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    make(lasts_s=float("inf"), trust="full", session_s=100 * HOUR_S).launch([job()])
    assert packet()["session_s"] == 100 * HOUR_S
    assert ["it is short" in r.getMessage() for r in caplog.records] == [True]


@pytest.mark.parametrize(
    ("walls_s", "session_s"),
    [((1800.0,), 1800.0), ((None,), HOUR_S), ((7200.0,), HOUR_S), ((None, 2000.0, 900.0), 900.0)],
)
def test_what_is_left_of_a_quota_is_a_wall_too(
    make: Make, walls_s: Sequence[float | None], session_s: float
) -> None:
    jobs = [Job(f"j{n}", "train", 1, NAME, "s3://b", wall_s=s) for n, s in enumerate(walls_s)]
    make(cards=4, session_s=HOUR_S).launch(jobs)
    assert packet()["session_s"] == session_s


@pytest.mark.parametrize("wall_s", [0.0, 119.0])
def test_a_quota_that_is_nearly_gone_rents_nothing(make: Make, wall_s: float) -> None:
    with pytest.raises(NoSlots, match=f"the quota ends {wall_s:.0f} s after the launch"):
        make().launch([Job("j", "train", 1, NAME, "s3://b", wall_s=wall_s)])
    assert not ListPlatform.machines


def test_how_long_a_launch_lives_is_known_before_it_is_made(make: Make) -> None:
    config = {"card": "cpu", "session_s": HOUR_S}
    assert type(make()).capacity(config).wall_s == HOUR_S


def test_credentials_that_only_serve_a_claim_are_refused(make: Make) -> None:
    with pytest.raises(Rejected, match=r"shorten claim_window_s.*docs/credentials\.md"):
        make(lasts_s=HOUR_S, claim_window_s=3550.0).launch([job()])
    assert not ListPlatform.machines


# -------------------------------------------------------------------------------- families


@pytest.mark.parametrize(
    ("kind", "ends", "installs", "builds"),
    [(Bare, True, True, False), (Foreign, False, True, False), (ForeignBuilder, False, False, True)],
)  # fmt: skip
def test_how_the_families_differ(
    make: Make, tmp_path: Path, kind: type[RentedRunner], ends: bool, installs: bool, builds: bool
) -> None:
    (tmp_path / "lock.txt").write_text("numpy==2.4.0")
    make(kind, lock="lock.txt").launch([job()])
    told = packet()
    assert ("end" in told, "lock" in told) == (ends, installs)
    assert ListPlatform.orders[-1].lock == (tmp_path / "lock.txt" if builds else None)


class ImageConfig(ListConfig):
    image: str = "maker/image:tag"


class ImagePlatform(ListPlatform):
    Config: ClassVar[type[RentedConfig]] = ImageConfig


class Container(BareContainerRunner):
    PLATFORM = ImagePlatform


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, {}),
        ({"lock": "lock.txt"}, {"TENURE_LOCK": sha256(b"numpy==2.4.0").hexdigest()}),
        ({"image": f"maker/image@sha256:{'a' * 64}"}, {"TENURE_IMAGE": f"sha256:{'a' * 64}"}),
        ({"image": "maker/image:sha256"}, {}),
    ],
)
def test_a_machine_is_told_what_it_cannot_measure(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str],
    told: dict[str, str],
) -> None:  # fmt: skip
    """The image's digest where it is named by one, and that of the lock it was installed from."""
    (tmp_path / "lock.txt").write_text("numpy==2.4.0")
    runner = make(Container, **keys)
    envelopes: list[Mapping[str, str]] = []

    def written(_store: object, _job: object, variables: Mapping[str, str], _clock: object) -> str:
        envelopes.append(variables)
        return "jobs/j/envelope.json"

    monkeypatch.setattr(cargo, "write_envelope", written)
    runner.launch([job()])
    (variables,) = envelopes
    assert {n: variables[n] for n in ("TENURE_LOCK", "TENURE_IMAGE") if n in variables} == told


# ---------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"card": "T4"}, "list: card: List has no 'T4'; did you mean 'Tesla T4'? It has NVIDIA L4, "),
        ({"card": "T4", "cards": 3}, "did you mean 'Tesla T4'"),
        ({"card": "Tesla P100"}, "no 'Tesla P100' (the P100 is retired); did you mean 'Tesla T4'"),
        ({"card": "NVIDIA L4", "cards": 3}, "list: cards: List rents NVIDIA L4 by 1 or 2 or 4, not 3"),
        ({"card": "Tesla T4", "cards": 1}, "List rents Tesla T4 by 2, not 1"),
        ({"card": "cpu", "cards": 4}, "List rents cpu by 1 to 3, not 4"),
        ({"card": "cpu", "zones": "a"}, "list: zones: "),
        ({"card": "cpu", "zones": [1]}, "list: zones.0: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_sentence(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        Bare.capacity(keys)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert ";" not in str(caught.value).replace("; did you", "")


def test_lists_of_toml_are_tuples_and_cards_are_as_few_as_there_are() -> None:
    keys = {"card": "Tesla T4", "zones": ["a", "b"], "secrets": ["S"], "lock": "lock.txt"}
    config = ListConfig.model_validate(keys)
    assert (config.zones, config.secrets, config.lock) == (("a", "b"), ("S",), Path("lock.txt"))
    assert config.cards == 2 == Bare.capacity(keys).per_launch
    assert ListConfig.model_validate({"card": "NVIDIA L4"}).cards == 1


# --------------------------------------------------------------------------------- doctor


def wrong(runner: RentedRunner) -> dict[str, str]:
    return {seen: problem for seen, problem in runner.examine() if problem}


def test_what_is_in_order_has_a_row_each(make: Make, tmp_path: Path) -> None:
    (tmp_path / "lock.txt").write_text("")
    ListPlatform.machines += ["tenure-a", "other"]
    ListPlatform.left = Quota(10.0, 30.0)
    rows = make(lock="lock.txt").examine()
    assert rows == [
        ("the package json is installed", None),
        ("the worker's wheel builds", None),
        (f"the lock {tmp_path / 'lock.txt'} can be read", None),
        ("the account of list answers; machines of Tenure there: 1", None),
        ("20.0 of 30.0 hours of the quota are left", None),
    ]


def test_each_thing_that_is_wrong_has_a_row_and_words(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: Path) -> Path:
        raise Rejected("the worker's wheel cannot be built: tenure-worker is not installed here")

    (tmp_path / "lock.txt").write_text("")
    runner = make(lock="lock.txt", role="")
    (tmp_path / "lock.txt").unlink()
    monkeypatch.setattr(cargo, "wheel", broken)
    ListPlatform.fails["running"] = Rejected("401 who are you?")
    problems = wrong(runner)
    assert "not installed here" in problems["the worker's wheel builds"]
    assert "No such file" in problems[f"the lock {tmp_path / 'lock.txt'} can be read"]
    assert "docs/credentials.md" in problems["a role is set that machines assume"]
    assert problems["the account of list answers"] == "401 who are you?; check LIST_KEY"
    assert len(problems) == 4


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (Unreachable("no route"), "no route; try again"),
        (ProtocolError("JSON?"), "look at its address"),
        (Rejected("no credentials: set LIST_KEY"), "no credentials: set LIST_KEY"),
        (KeyError("pods"), "KeyError: 'pods'"),
    ],
)
def test_nothing_that_a_platform_raises_gets_out(
    make: Make, failure: Exception, words: str
) -> None:
    ListPlatform.fails["running"] = failure
    assert words in wrong(make())["the account of list answers"]
    ListPlatform.fails.clear()
    ListPlatform.fails["quota"] = failure
    assert words in wrong(make())["what is left of the quota is told"]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Quota(-3.0, 30.0), "-3 of 30 h are said to be used, which cannot be"),
        (Quota(float("nan"), 30.0), "nan of 30 h are said to be used, which cannot be"),
        (Quota(33.0, 30.0), "33 of 30 h are said to be used: nothing counts as left"),
        (Quota(3.0, 30.0, 0.0), "its renewal is said to be"),
    ],
)
def test_a_quota_that_cannot_be_says_so_and_what_to_do(make: Make, told: Quota, words: str) -> None:
    ListPlatform.left = told
    said = wrong(make())["what is left of the quota can be believed"]
    assert (
        said
        and said.startswith(words)
        and said.endswith(
            "; look at the account's own page, and use another rung until it is mended"
        )
    )


def test_a_balance_is_told_in_its_currency(make: Make) -> None:
    ListPlatform.left = Quota(0.0, 12.5, None, "usd")
    assert ("12.50 usd of the balance are left", None) in make().examine()
    ListPlatform.left = Quota(0.0, 0.0, None, "usd")
    assert wrong(make())["0.00 usd of the balance are left"]


def test_a_quota_that_is_used_up_says_what_to_do(make: Make) -> None:
    ListPlatform.left = Quota(30.0, 30.0)
    assert "another rung" in wrong(make())["0.0 of 30.0 hours of the quota are left"]


def test_an_sdk_that_is_missing_names_its_extra_and_nobody_is_asked(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(cargo, "wheel", lambda folder: folder)
    runner = make()
    assert [seen for seen, _ in runner.examine()] == [
        "the package json is installed", "the worker's wheel builds",
    ]  # fmt: skip
    assert "pip install -c constraints.txt -e '.[list]'" in wrong(runner)["the package json is installed"]  # fmt: skip


# ---------------------------------------------------------------------------------- the edge


def test_newborns_are_young_once_and_not_for_ever(clock: FakeClock) -> None:
    young = sdk.Newborns(clock, 10.0)
    assert "a" not in young
    young.add("a"), young.add("b")
    young.discard("b")
    assert "a" in young and "b" not in young
    clock.sleep(10.0)
    assert "a" not in young


def test_pages_are_read_to_the_last_and_never_in_circles() -> None:
    book = {"": ([1, 2], "x"), "x": ([3], 7), "7": ([], None)}
    assert list(sdk.pages("list", lambda token: book[token])) == [1, 2, 3]
    asked: list[str] = []

    def circle(token: str) -> tuple[list[int], str]:
        asked.append(token)
        return [1], "b" if token == "a" else "a"

    with pytest.raises(ProtocolError, match="list: the same page twice"):
        list(sdk.pages("list", circle))
    assert asked == ["", "a", "b"]
    with pytest.raises(ProtocolError, match="over 1000"):
        list(sdk.pages("list", lambda token: ([], int(token or 0) + 1)))


@pytest.mark.parametrize("sent", [True, False])
def test_a_look_launches_nothing_however_it_ends(sent: bool) -> None:
    def lost() -> None:
        raise LOST

    def late() -> None:
        SYSTEM.sleep(0.2)

    for call, within_s in ((lost, 5.0), (late, 0.01)):
        with pytest.raises(Unreachable) as caught:
            sdk.ask(SYSTEM, within_s, "look", call, lambda _: None, (), sent)
        assert caught.value.sent is sent
