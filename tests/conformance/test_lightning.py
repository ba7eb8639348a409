"""The real ``lightning_sdk`` through ``LightningPlatform``, against the emulator of Lightning's jobs service."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runners.order import Order
from runners.providers.lightning import LightningConfig, LightningPlatform
from tenure.dispatch.contract import (
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Rejected,
    Unreachable,
)
from tenure_protocol.clock import SYSTEM
from tests.emulators.lightning import API_KEY, PROJECT, USER_ID, LightningEmulator
from tests.until import until

NAME = "tenure-0a1b2c3d-job-00001"
SLEEP = "import time; time.sleep(600)"
PACKET = base64.b64encode(b'{"wheel": "a link that opens one launch"}').decode()
BASIC = base64.b64encode(f"{USER_ID}:{API_KEY}".encode()).decode()
SECRETS = (API_KEY, BASIC, PACKET)
OPERATIONS = ("memberships", "create", "find", "get", "update", "list")

Service = LightningEmulator


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """A deadline of one second is for an answer, not for the import of the SDK."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIGHTNING_DISABLE_VERSION_CHECK", "1")
        import lightning_sdk.lightning_cloud.rest_client  # noqa: F401


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.delenv("LIGHTNING_AUTH_TOKEN", raising=False)
    with LightningEmulator(tmp_path / "machines") as emulator:
        for name, value in emulator.environ.items():
            monkeypatch.setenv(name, value)
        yield emulator


def config(**keys: object) -> LightningConfig:
    return LightningConfig.model_validate({"card": "cpu", "teamspace": "research", **keys})


def platform(deadline_s: float = 20.0, **keys: object) -> LightningPlatform:
    return LightningPlatform(config(deadline_s=deadline_s, **keys), SYSTEM)


def order(
    name: str = NAME, program: str = SLEEP, packet: str = PACKET, secrets: tuple[str, ...] = ()
) -> Order:
    shell = f"echo {base64.b64encode(program.encode()).decode()} | base64 -d | python3 -"
    return Order(name, program, packet, shell, 1, secrets=secrets)


def ended(mine: LightningPlatform, handle: Mapping[str, object]) -> bool:
    return isinstance(mine.end(handle), Closed)


def sent(service: Service, method: str, part: str = "") -> int:
    """Requests of a method that came in."""
    return sum(r.method == method and part in r.path for r in service.requests)


def clean(error: BaseException) -> None:
    """No secret is in any text of an exception, nor in one that it goes back to."""
    seen: BaseException | None = error
    while seen is not None:
        for secret in SECRETS:
            assert secret not in f"{seen} {seen!r} {seen.args}"
        seen = seen.__cause__ or seen.__context__


# ---------------------------------------------------------------------------------------- import


def test_the_import_pulls_in_no_sdk_and_its_first_use_reaches_the_service_alone(
    service: Service,
) -> None:
    script = """
        import sys
        from runners.providers.lightning import LightningConfig, LightningPlatform
        from tenure_protocol.clock import SYSTEM
        mine = LightningPlatform(LightningConfig(card="cpu", teamspace="research"), SYSTEM)
        print("before", "lightning_sdk" in sys.modules)
        reached = set()
        sys.addaudithook(lambda event, args: event in ("socket.connect", "socket.getaddrinfo")
                         and reached.add(str(args)))
        print("found", mine.find("tenure-x"), "lightning_sdk" in sys.modules)
        port = sys.argv[1]
        print("elsewhere", [r for r in reached if "127.0.0.1" not in r or port not in r])
    """
    url = service.environ["LIGHTNING_CLOUD_URL"]
    around = {k: v for k, v in os.environ.items() if k != "LIGHTNING_DISABLE_VERSION_CHECK"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), url.rpartition(":")[2]],
        env={**around, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.splitlines() == ["before False", "found None True", "elsewhere []"], (
        done.stderr
    )


# ----------------------------------------------------------------------------------------- config


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"card": "Tesla T5"}, "did you mean 'Tesla T4'"),
        ({"card": "NVIDIA T4"}, "did you mean 'Tesla T4'"),
        ({"card": "H100"}, "did you mean 'NVIDIA H100 80GB HBM3'"),
        ({"card": ""}, "It has NVIDIA A100-SXM4-40GB, "),
        ({"card": "Tesla T4", "cards": 3}, "by 1 or 2 or 4 or 8, not 3"),
        ({"card": "NVIDIA B200", "cards": 2}, "by 1 or 8, not 2"),
        ({"card": "cpu", "cards": 2}, "by 1, not 2"),
        ({"teamspace": "me/research"}, "without its owner"),
        ({"teamspace": " "}, "the name of the teamspace"),
        ({"image": ""}, "image"),
        ({"interruptible": "yes"}, "interruptible"),
        ({"region": "eu"}, "region"),
    ],
)
def test_a_mistake_in_the_configuration_is_told_in_one_sentence(
    keys: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match="1 validation error") as caught:
        config(**keys)
    assert words in str(caught.value)


def test_the_sdk_knows_each_machine_that_a_configuration_may_ask_for() -> None:
    from lightning_sdk.machine import Machine

    slugs = {m.slug for m in vars(Machine).values() if isinstance(m, Machine)}
    for card, word in LightningConfig.CARDS.items():
        for cards in (1, 2, 3, 4, 8, 16):
            slug = word if card == "cpu" else f"{word}-{cards}"
            try:
                config(card=card, cards=cards)
            except ValueError:
                assert card == "cpu" or slug not in slugs
            else:
                assert slug in slugs


# --------------------------------------------------------------------------------------- one life


def test_a_job_is_made_found_told_of_and_ended(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_CLOUD_URL", service.environ["LIGHTNING_CLOUD_URL"] + "/")
    mine = platform()
    assert mine.find(NAME) is None and mine.running("tenure-") == []
    handle = mine.create(order())
    assert mine.find(NAME) == handle and json.loads(json.dumps(handle)) == handle
    assert mine.running("tenure-") == [(NAME, handle)] and mine.running("tenure-f") == []
    assert service.alive() == [NAME]
    first = mine.end(handle)
    assert isinstance(first, Pending) and "running" in first.reason
    until(lambda: ended(mine, handle))
    assert service.alive() == [] and mine.find(NAME) is None and mine.running("") == []
    assert isinstance(mine.end(handle), Closed) and isinstance(platform().end(handle), Closed)
    assert sent(service, "PUT") == 1  # the end is asked for once
    assert service.billed()[NAME] > 0
    assert not any(secret in json.dumps(handle) for secret in SECRETS)


def test_it_says_what_the_configuration_says(service: Service) -> None:
    service.secrets["HF_TOKEN"] = "hf-secret"
    mine = platform(
        card="Tesla T4", cards=2, image="org/image:1", interruptible=True, cloud_account="gcp",
        image_secret="registry",
    )  # fmt: skip
    mine.create(order(secrets=("HF_TOKEN",)))
    (request,) = [r for r in service.requests if r.method == "POST"]
    said = json.loads(request.body)
    assert request.path == f"/v1/projects/{PROJECT}/jobs" and said["name"] == NAME
    assert said["spec"] == {
        "clusterId": "gcp",
        "command": order().shell,
        "entrypoint": "sh -c",
        "env": [
            {"name": "TENURE_START", "value": PACKET},
            {"name": "TENURE_MACHINE", "value": NAME},
            {"name": "HF_TOKEN", "fromSecret": "HF_TOKEN"},
        ],
        "image": "org/image:1",
        "imageSecretRef": "registry",
        "includeCredentials": False,
        "instanceName": "lit-t4-2",
        "maxRunAttempts": 1,
        "spot": True,
    }


def test_a_job_ends_with_its_program(service: Service) -> None:
    mine = platform()
    good, bad = mine.create(order("good", "pass")), mine.create(order("bad", "raise SystemExit(3)"))
    until(lambda: not service.alive())
    assert mine.ending() is None and mine.quota() is None
    assert "completed" in mine.end(good).reason and "failed" in mine.end(bad).reason
    assert mine.running("") == [] and sent(service, "PUT") == 0


def test_packet_program_and_secrets_arrive_unchanged_and_nothing_of_the_account_does(
    service: Service,
) -> None:
    service.secrets["HF_TOKEN"] = "hf-secret"
    packet = base64.b64encode(os.urandom(48 * 1024)).decode()
    assert len(packet) == 64 * 1024
    program = textwrap.dedent("""
        import json, os
        text = 'it\\'s "quoted" `x` $HOME \\\\ %s {} \\n é'
        with open("seen.json", "w") as file:
            json.dump([text, dict(os.environ)], file)
    """)
    platform().create(order(program=program, packet=packet, secrets=("HF_TOKEN",)))
    until(lambda: not service.alive())
    (machine,) = service.machines.all
    text, around = json.loads((machine.folder / "seen.json").read_text())
    assert text == 'it\'s "quoted" `x` $HOME \\ %s {} \n é' and machine.output() == ""
    assert around["TENURE_START"] == packet and around["HF_TOKEN"] == "hf-secret"
    assert not [name for name in around if name.startswith("LIGHTNING_")]
    assert API_KEY not in json.dumps(around)


def test_the_key_is_in_the_header_that_is_for_it_and_nowhere_else(service: Service) -> None:
    mine = platform()
    handle = mine.create(order())
    until(lambda: ended(mine, handle))
    assert mine.running("") == []
    for request in service.requests:
        assert request.headers["Authorization"] == f"Basic {BASIC}"
        rest = {k: v for k, v in request.headers.items() if k != "Authorization"}
        assert not any(s in f"{request.path} {rest}" for s in SECRETS)
        assert not any(s.encode() in request.body for s in (API_KEY, BASIC))


# --------------------------------------------------------------------------------------- failures

HTML = b"<html><body>504 Gateway Time-out</body></html>"


@pytest.mark.parametrize(
    ("status", "body", "kind", "maybe"),
    [
        *[(status, HTML, Unreachable, True) for status in (500, 502, 503, 504)],
        (500, {"code": 13, "message": "internal"}, Unreachable, True),
        (429, b"slow down", Unreachable, False),
        (429, {"code": 8, "message": "no lit-t4-1 is available"}, NoSlots, None),
        (400, {"code": 8, "message": "out of credits"}, NoSlots, None),
        (400, {"code": 3, "message": "bad image"}, Rejected, None),
        (401, {"code": 16, "message": "who are you?"}, Rejected, None),
        (402, b"pay first", Rejected, None),
        (403, {"code": 7, "message": "not yours"}, Rejected, None),
        (404, {"code": 5, "message": "no such teamspace"}, Rejected, None),
        (404, HTML, Rejected, None),
        (409, {"code": 6, "message": "already exists"}, ProtocolError, None),
        (302, b"", ProtocolError, None),
        *[(200, b, ProtocolError, None) for b in (b"{}", b"[]", b"null", b"", HTML, b'{"id": ""}')],
        (200, b'{"id": "01jo', ProtocolError, None),
    ],
)
def test_what_a_create_raises(
    service: Service,
    status: int,
    body: bytes | dict[str, object],
    kind: type[LaunchFailed],
    maybe: bool | None,
) -> None:
    mine = platform()
    service.answer_next(
        "create", status, body, headers=(("Location", "/v1/memberships"), ("Retry-After", "1"))
    )
    with pytest.raises(LaunchFailed) as caught:
        mine.create(order())
    assert type(caught.value) is kind, caught.value
    assert getattr(caught.value, "sent", None) is maybe
    assert sent(service, "POST") == 1  # neither the SDK nor its transport tries again
    if isinstance(body, dict) and status != 401:
        assert str(body["message"]) in str(caught.value)


@pytest.mark.parametrize("operation", ["memberships", "find", "get", "list"])
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, HTML, Unreachable),
        (429, b"slow down", Unreachable),
        (401, {"code": 16, "message": "who are you?"}, Rejected),
        (403, {"code": 7, "message": "not yours"}, Rejected),
        (404, HTML, Rejected),
        (404, b"[]", Rejected),
        *[(200, garbage, ProtocolError) for garbage in (b"{}", b"[]", b"null", b"", HTML)],
    ],
)
def test_no_question_takes_a_failure_for_an_answer(
    service: Service,
    operation: str,
    status: int,
    body: bytes | dict[str, object],
    kind: type[LaunchFailed],
) -> None:
    mine = platform()
    service.answer_next(operation, status, body, headers=(("Retry-After", "1"),))
    questions: dict[str, Callable[[], object]] = {
        "get": lambda: mine.end({"id": "01job"}),
        "list": lambda: mine.running(""),
    }
    with pytest.raises(LaunchFailed) as caught:
        questions.get(operation, lambda: mine.find(NAME))()
    assert type(caught.value) is kind, caught.value
    assert getattr(caught.value, "sent", False) is False  # asking launches nothing
    assert len([r for r in service.requests if "memberships" not in r.path]) == (
        operation != "memberships"
    )


def test_an_end_is_not_taken_for_asked_for_unless_it_was(service: Service) -> None:
    mine = platform()
    handle = mine.create(order())
    for status, body, kind in (
        (504, HTML, Unreachable),
        (403, HTML, Rejected),
        (200, HTML, ProtocolError),
    ):
        service.answer_next("update", status, body)
        with pytest.raises(kind):
            mine.end(handle)
        assert service.alive() == [NAME]
    service.answer_next("update")  # 200 {}, and nothing is done: it is asked for again
    assert isinstance(mine.end(handle), Pending) and isinstance(mine.end(handle), Pending)
    until(lambda: ended(mine, handle))
    assert service.alive() == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_ghost_is_found_by_its_name(service: Service, cut: bool) -> None:
    mine = platform()
    service.ghost(cut=cut)
    with pytest.raises(Unreachable) as caught:
        mine.create(order())
    assert caught.value.sent and service.alive() == [NAME]  # one, not three
    handle = platform().find(NAME)
    assert handle is not None
    until(lambda: ended(mine, handle))
    assert service.alive() == [] and len(service.jobs) == 1


def test_a_create_that_is_cut_off_before_it_was_applied_leaves_nothing(service: Service) -> None:
    service.cut_next("create")
    with pytest.raises(Unreachable) as caught:
        platform().create(order())
    assert caught.value.sent and platform().find(NAME) is None


def test_nothing_was_sent_to_a_service_that_is_not_there(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = platform()
    assert mine.find(NAME) is None
    monkeypatch.setenv("LIGHTNING_CLOUD_URL", "http://127.0.0.1:1")
    with pytest.raises(Unreachable) as caught:
        platform().create(order())
    assert not caught.value.sent
    mine._opened.api_client.configuration.host = "http://127.0.0.1:1"
    with pytest.raises(Unreachable) as caught:
        mine.create(order())
    assert not caught.value.sent


def test_no_slots_and_spent_credits_park_the_rung(service: Service) -> None:
    mine = platform()
    service.capacity = 1
    handle = mine.create(order())
    with pytest.raises(NoSlots, match="available"):
        mine.create(order("tenure-2"))
    service.exhaust()
    until(lambda: ended(mine, handle))
    with pytest.raises(NoSlots, match="credits"):
        mine.create(order("tenure-3"))
    assert len(service.jobs) == 1 and service.alive() == []


def test_a_job_that_waits_for_a_machine_counts_as_running_and_can_be_ended(
    service: Service,
) -> None:
    mine = platform()
    service.capacity, service.queues = 1, True
    first, second = mine.create(order("tenure-1")), mine.create(order("tenure-2"))
    assert [name for name, _ in mine.running("tenure-")] == ["tenure-1", "tenure-2"]
    assert isinstance(mine.end(second), Pending) and isinstance(mine.end(second), Closed)
    until(lambda: ended(mine, first))
    assert service.alive() == [] and len(service.machines.all) == 1


def test_an_image_that_does_not_start_costs_nothing(service: Service) -> None:
    service.broken_images.add("nobody/nothing:1")
    mine = platform(image="nobody/nothing:1")
    handle = mine.create(order())
    assert mine.find(NAME) is None and isinstance(mine.end(handle), Closed)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_service_that_hangs_costs_one_deadline(service: Service, operation: str) -> None:
    mine = platform(deadline_s=3.0)
    handle: Mapping[str, object] = {"id": "01job"}
    if operation == "update":
        handle = platform().create(order())
    service.hang_next(operation)
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: mine.create(order()),
        "get": lambda: mine.end(handle),
        "update": lambda: mine.end(handle),
        "list": lambda: mine.running(""),
    }
    with pytest.raises(Unreachable, match=r"within 3 s|timed out") as caught:
        calls.get(operation, lambda: mine.find(NAME))()
    assert caught.value.sent is (operation == "create")  # nothing else launches
    # Nobody waits on for the answer that never comes.
    until(lambda: not [t for t in threading.enumerate() if "tenure-sdk lightning" in t.name])


# ------------------------------------------------------------------------------------ credentials


@pytest.mark.parametrize("operation", OPERATIONS)
def test_credentials_that_the_service_does_not_take_are_rejected(
    service: Service, operation: str
) -> None:
    mine = platform()
    handle = mine.create(order())
    if operation == "memberships":
        mine = platform()
    service.refuse_next(operation, 401, 16, "invalid credentials")
    with pytest.raises(Rejected, match="credentials in LIGHTNING_API_KEY") as caught:
        if operation in ("get", "update"):
            mine.end(handle)
        elif operation == "list":
            mine.running("")
        elif operation == "create":
            mine.create(order("tenure-2"))
        else:
            mine.find(NAME)
    clean(caught.value)


def test_a_wrong_key_is_rejected_by_the_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHTNING_API_KEY", "another")
    with pytest.raises(Rejected, match="does not accept"):
        platform().create(order())
    assert service.jobs == []


@pytest.mark.parametrize("key", [None, "", "key\n", "schlüssel"])
def test_without_a_key_nobody_is_asked_and_no_browser_opens(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str | None
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setenv("HOME", str(tmp_path))
    if key is None:
        monkeypatch.delenv("LIGHTNING_API_KEY")
    else:
        monkeypatch.setenv("LIGHTNING_API_KEY", key)
    with pytest.raises(Rejected, match="set LIGHTNING_USER_ID and LIGHTNING_API_KEY"):
        platform().find(NAME)
    with pytest.raises(Rejected, match="set LIGHTNING_USER_ID and LIGHTNING_API_KEY"):
        platform().create(order())
    assert opened == [] and service.requests == []


@pytest.mark.parametrize("variable", ["LIGHTNING_API_KEY", "LIGHTNING_AUTH_TOKEN"])
def test_a_key_without_a_user_and_a_token_serve_as_well_and_stay_as_secret(
    service: Service, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in LightningPlatform.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, API_KEY)
    assert platform().find(NAME) is None
    assert {r.headers["Authorization"] for r in service.requests} == {f"Bearer {API_KEY}"}
    service.answer_next("memberships", 400, {"message": f"what is Bearer {API_KEY}?"})
    with pytest.raises(Rejected, match="what is Bearer") as caught:
        platform().find(NAME)
    clean(caught.value)


def test_the_wrong_account_is_told_by_what_it_sees(service: Service) -> None:
    with pytest.raises(Rejected, match=rf"no teamspace 'other'; it has research \({PROJECT}\)"):
        platform(teamspace="other").create(order())
    service.teamspaces.append({"projectId": "02", "name": "research", "displayName": "R"})
    with pytest.raises(Rejected, match=r"several teamspaces 'research'.*research \(02\)"):
        platform().create(order())
    assert sent(service, "POST") == 0
    platform(teamspace="02").create(order())
    assert sent(service, "POST", "/v1/projects/02/") == 1


@pytest.mark.parametrize("status", [200, 400, 401, 403, 409, 429, 500])
@pytest.mark.parametrize("operation", ["memberships", "create", "find"])
def test_a_service_that_repeats_what_it_was_told_gives_no_secret_away(
    service: Service, operation: str, status: int
) -> None:
    echo = {"code": 3, "message": f"{BASIC} {API_KEY} {PACKET if operation == 'create' else ''}"}
    mine = platform()
    headers = (("Content-Type", "application/json"), ("X-Echo", f"Basic {BASIC}"))
    service.answer_next(operation, status, echo, headers=headers)
    with pytest.raises(LaunchFailed) as caught:
        mine.create(order()) if operation == "create" else mine.find(NAME)
    clean(caught.value)


def test_a_debugging_environment_prints_no_credentials(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lightning_sdk.lightning_cloud import env

    monkeypatch.setattr(env, "DEBUG", True)
    assert platform().find(NAME) is None
    told = capsys.readouterr()
    assert BASIC not in told.out + told.err


# ------------------------------------------------------------------------------------- same names


def test_twins_under_one_name_are_found_and_ended_one_after_the_other(service: Service) -> None:
    mine = platform()
    first, second = mine.create(order()), mine.create(order())
    names = [job.name for job in service.jobs]
    assert names[0] == NAME and names[1] != NAME  # the service gave the second another name
    assert mine.running("tenure-") == [(NAME, first), (NAME, second)]
    assert mine.find(NAME) == first
    until(lambda: ended(mine, first))
    assert mine.find(NAME) == second  # although the job of that very name has ended
    until(lambda: ended(mine, second))
    assert mine.find(NAME) is None and service.alive() == []


def test_a_name_that_begins_like_another_is_another(service: Service) -> None:
    mine = platform()
    mine.create(order("tenure-1", "pass"))
    other = mine.create(order("tenure-11"))
    until(lambda: service.alive() == ["tenure-11"])
    assert mine.find("tenure-1") is None and mine.find("tenure-11") == other


def test_a_job_of_another_name_is_never_adopted(service: Service) -> None:
    mine = platform()
    mine.create(order("tenure-11"))
    (told,) = [service._told(job) for job in service.jobs]
    service.answer_next("find", 200, told)
    with pytest.raises(ProtocolError, match="told of tenure-11"):
        mine.find("tenure-1")


def test_a_listing_is_read_to_its_last_page(service: Service) -> None:
    mine = platform()
    for number in range(5):
        mine.create(order(f"tenure-{number}", SLEEP if number % 2 == 0 else "pass"))
    until(lambda: len(service.alive()) == 3)
    assert [name for name, _ in mine.running("tenure-")] == ["tenure-0", "tenure-2", "tenure-4"]
    assert sent(service, "GET", "/jobs?") == 3


def test_a_listing_that_goes_round_in_circles_ends(service: Service) -> None:
    for _ in range(3):
        service.answer_next("list", 200, {"jobs": [], "nextPageToken": "again"})
    with pytest.raises(ProtocolError, match="same page twice"):
        platform().running("")
    assert sent(service, "GET", "/jobs?") == 2


# ----------------------------------------------------------------------------------------- states


def test_the_end_of_an_unknown_handle_is_closed_and_a_strange_one_refused(service: Service) -> None:
    mine = platform()
    assert isinstance(mine.end({"id": "01never"}), Closed)
    for strange in ({}, {"id": 7}, {"job": "x"}):
        with pytest.raises(Rejected, match="no job of Lightning"):
            mine.end(strange)


def test_a_job_that_somebody_deleted_is_closed_but_a_new_one_is_given_time(
    service: Service,
) -> None:
    mine = platform()
    handle = mine.create(order())
    service.refuse_next("get", 404, 5, "not found")
    assert isinstance(mine.end(handle), Pending)  # made a moment ago
    service.refuse_next("get", 404, 5, "not found")
    assert isinstance(platform().end(handle), Closed)


@pytest.mark.parametrize("state", ["pending", "creating", "restarting", "", "rebooting", None])
def test_a_state_that_nobody_knows_is_no_end(service: Service, state: Any) -> None:
    mine = platform()
    handle = mine.create(order())
    service.lie(NAME, state, 3)
    assert mine.find(NAME) == handle and mine.running(NAME) == [(NAME, handle)]
    assert isinstance(mine.end(handle), Pending) and sent(service, "PUT") == 1


@pytest.mark.parametrize("state", ["stopping", "stop", "complete", "fail", "delete"])
def test_a_job_that_is_ending_still_costs_and_is_not_asked_again(
    service: Service, state: str
) -> None:
    mine = platform()
    handle = mine.create(order())
    service.lie(NAME, state, 2)
    assert mine.find(NAME) == handle and isinstance(mine.end(handle), Pending)
    assert sent(service, "PUT") == 0


@pytest.mark.parametrize("state", ["stopped", "completed", "failed", "deleted"])
def test_a_job_said_to_have_ended_that_runs_is_brought_back_by_the_next_true_answer(
    service: Service, state: str
) -> None:
    mine = platform()
    handle = mine.create(order())
    service.lie(NAME, state, 2)
    assert isinstance(mine.end(handle), Closed)
    assert (
        mine.find(NAME) == handle
    )  # its own state was a lie once more, the listing told the truth
    assert mine.running(NAME) == [(NAME, handle)]


def test_a_job_said_to_run_that_has_ended_is_closed_by_the_first_true_answer(
    service: Service,
) -> None:
    mine = platform()
    handle = mine.create(order(program="pass"))
    until(lambda: not service.alive())
    service.lie(NAME, "running", 2)  # to the question, and in the answer to the stop
    assert isinstance(mine.end(handle), Pending) and isinstance(mine.end(handle), Closed)


def test_a_preempted_job_is_not_started_again_unless_the_service_does_so_all_the_same(
    service: Service,
) -> None:
    mine = platform(interruptible=True)
    program = "import os; print(os.environ['TENURE_START'], flush=True); " + SLEEP
    first = mine.create(order("tenure-1", program))
    service.preempt("tenure-1")
    assert isinstance(mine.end(first), Closed) and service.alive() == []
    service.restarts = True
    second = mine.create(order("tenure-2", program))
    until(lambda: PACKET in service.machines.all[-1].output())
    service.preempt("tenure-2")
    assert mine.find("tenure-2") == second and isinstance(mine.end(second), Pending)
    until(lambda: ended(mine, second))
    assert service.alive() == [] and len(service.machines.all) == 3
    assert set(service.billed()) == {"tenure-1", "tenure-2"}


def test_two_threads_may_use_one_platform(service: Service) -> None:
    mine = platform()
    made: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(mine.create(order(f"tenure-{n}"))))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and len(mine.running("tenure-")) == 4
