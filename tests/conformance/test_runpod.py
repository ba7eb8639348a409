"""The real RunPod SDK, through its provider, against the emulator on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from runners.order import Handle, Order
from runners.providers.runpod import RunPodConfig, RunPodPlatform
from runners.stage_zero import shell
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
from tests.emulators.runpod import API_KEY, NO_SLOTS, Pod, RunPodEmulator
from tests.until import until

CARD = "NVIDIA L4"
IDLE = "import time; time.sleep(600)"
FORBIDDEN = {"error": "Forbidden"}
NOT_FOUND = {"errors": [{"message": "pod not found to terminate"}], "data": {"podTerminate": None}}


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunPodEmulator]:
    import runpod  # 3 to 4 s, once: not within a deadline of the tests

    monkeypatch.setattr(runpod, "api_key", None)  # whatever this machine's own file says
    with RunPodEmulator(tmp_path / "rack", CARD) as emulator:
        for name, value in emulator.environ.items():
            monkeypatch.setenv(name, value)
        yield emulator


@pytest.fixture
def platform(emulator: RunPodEmulator) -> RunPodPlatform:
    return rented()


def rented(**keys: object) -> RunPodPlatform:
    """The provider, as [runners.<name>] would give it."""
    return RunPodPlatform(
        RunPodConfig.model_validate({"card": CARD, "deadline_s": 20.0, **keys}), SYSTEM
    )


def order(name: str = "tenure-a", program: str = IDLE, packet: str = "e30=") -> Order:
    return Order(name, program, packet, shell(program), 1)


def failure(call: Callable[[], object]) -> LaunchFailed:
    """The failure of a call, in which no key is to be found."""
    with pytest.raises(LaunchFailed) as caught:
        call()
    error = caught.value
    assert error.__cause__ is None and error.__context__ is None
    for words in (str(error), repr(error), repr(error.args), repr(vars(error))):
        assert API_KEY not in words
    return error


def closed(platform: RunPodPlatform, handle: Handle) -> None:
    until(lambda: isinstance(platform.end(handle), Closed))


# --------------------------------------------------------------------------------- what is ordered


def test_what_was_ordered_runs_unchanged(emulator: RunPodEmulator) -> None:
    program = (
        "import hashlib, json, os, sys, time\n"
        "text = 'quotes \\' \" and \\\\ and $HOME and `date`\\nlines'\n"
        "seen = {name: os.environ.get(name, '') for name in ('RUNPOD_POD_ID', 'RUNPOD_API_KEY', 'TOKEN')}\n"
        "seen['packet'] = hashlib.sha256(os.environ['TENURE_START'].encode()).hexdigest()\n"
        "open('seen.tmp', 'w').write(json.dumps({**seen, 'text': text}))\n"
        "os.replace('seen.tmp', 'seen.json')\n"
        "time.sleep(600)\n"
    )
    packet = base64.b64encode(bytes(range(256)) * 192).decode()
    assert len(packet) == 65_536
    emulator.secrets["TOKEN"] = 'the user\'s own "secret"'
    made = order(program=program, packet=packet)
    made = Order(made.name, made.program, made.packet, made.shell, 1, None, ("TOKEN",))
    handle = rented(secrets=["TOKEN"]).create(made)
    (pod,) = emulator.pods
    path = pod.machine.folder / "seen.json"
    until(path.exists)
    assert json.loads(path.read_text()) == {
        "RUNPOD_POD_ID": handle["pod"],
        "RUNPOD_API_KEY": pod.key,
        "TOKEN": 'the user\'s own "secret"',
        "packet": hashlib.sha256(packet.encode()).hexdigest(),
        "text": "quotes ' \" and \\ and $HOME and `date`\nlines",
    }
    assert pod.environ["TENURE_START"] == packet
    assert pod.environ["TOKEN"] == "{{ RUNPOD_SECRET_TOKEN }}"


def test_the_configuration_reaches_the_service(emulator: RunPodEmulator) -> None:
    keys = {"image": "me/it:1", "cloud": "COMMUNITY", "data_center": "EU-RO-1", "country": "RO"}
    more = {"disk_gb": 33, "vcpus": 5, "memory_gb": 7, "download_mbps": 300, "upload_mbps": 100}
    rented(**keys, **more, cuda_versions=["12.4", "12.5"]).create(order())
    (pod,) = emulator.pods
    asked = {
        "imageName": "me/it:1", "cloudType": "COMMUNITY", "dataCenterId": "EU-RO-1", "countryCode": "RO",
        "containerDiskInGb": 33, "minVcpuCount": 5, "minMemoryInGb": 7, "minDownload": 300, "minUpload": 100,
        "allowedCudaVersions": ["12.4", "12.5"], "gpuTypeId": CARD, "gpuCount": 1, "volumeInGb": 0,
        "supportPublicIp": False,
    }  # fmt: skip
    assert {name: pod.asked.get(name) for name in asked} == asked
    assert "terminateAfter" in pod.asked, "RunPod itself ends what everybody forgot"


def test_a_pod_without_cards(emulator: RunPodEmulator) -> None:
    platform = rented(card="cpu")
    handle = platform.create(order())
    assert emulator.pods[0].kind == "deployCpuPod" and "gpuTypeId" not in emulator.pods[0].asked
    closed(platform, handle)


@pytest.mark.parametrize("unsafe", ['"', "'", "\\", "\n"])
@pytest.mark.parametrize("field", ["name", "shell", "packet"])
def test_what_could_end_a_string_is_refused(
    emulator: RunPodEmulator, unsafe: str, field: str
) -> None:
    made = order()
    words = {"name": made.name, "shell": made.shell, "packet": made.packet}
    words[field] += unsafe
    hostile = Order(words["name"], made.program, words["packet"], words["shell"], 1)
    assert isinstance(failure(lambda: rented().create(hostile)), Rejected)
    assert not emulator.requests


# ------------------------------------------------------------------------------------ the four verbs


def test_a_pod_is_created_found_listed_and_ended(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    assert platform.find("tenure-a") is None and not platform.running("tenure-")
    handle = platform.create(order("tenure-a"))
    other = platform.create(order("tenure-b"))
    platform.create(order("somebody-else"))
    assert platform.find("tenure-a") == handle == rented().find("tenure-a")
    assert platform.running("tenure-") == [("tenure-a", handle), ("tenure-b", other)]
    closed(platform, handle)
    assert isinstance(platform.end(handle), Closed) and isinstance(rented().end(handle), Closed)
    assert platform.find("tenure-a") is None
    assert sorted(emulator.alive()) == ["somebody-else", "tenure-b"]
    assert platform.quota() is None
    assert json.loads(json.dumps(handle)) == handle and API_KEY not in json.dumps(handle)


def test_the_end_of_an_unknown_handle(platform: RunPodPlatform) -> None:
    assert isinstance(platform.end({"pod": "nobody0", "name": "tenure-x"}), Closed)
    for handle in ({}, {"pod": 'x") { id } }'}):
        assert isinstance(failure(lambda handle=handle: platform.end(handle)), ProtocolError)


def test_another_account_does_not_close_the_bill(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    handle = platform.create(order())
    emulator.account = "user_of_another_key"
    error = failure(lambda: platform.end(handle))
    assert isinstance(error, Rejected) and "user_of_another_key" in str(error)
    assert emulator.alive() == ["tenure-a"]


def test_two_pods_of_one_name_are_ended_together(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    emulator.ghost()
    assert isinstance(failure(lambda: platform.create(order())), Unreachable)
    handle = platform.create(order())
    assert len(emulator.alive()) == 2 == len(platform.running("tenure-"))
    closed(platform, handle)
    assert not emulator.alive()


def test_the_bill_of_a_name_is_open_while_another_pod_bears_it(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    handle = platform.create(order())
    platform.create(order())
    assert platform._terminate(str(handle["pod"])) == ""
    emulator.answer("podTerminate", 503, {}, times=2)
    assert isinstance(platform.end(handle), Pending)
    closed(platform, handle)
    assert not emulator.alive()


def test_of_two_pods_the_one_meant_to_run_is_found(emulator: RunPodEmulator) -> None:
    platform = rented(bid_usd_per_h=0.2)
    platform.create(order())
    emulator.preempt(emulator.pods[0])
    second = platform.create(order())
    assert platform.find("tenure-a") == second
    closed(platform, second)
    assert not emulator.alive()


@pytest.mark.parametrize("how", ["504", "cut"])
def test_a_ghost_is_found_by_its_name(
    emulator: RunPodEmulator, platform: RunPodPlatform, how: str
) -> None:
    emulator.ghost(how)
    error = failure(lambda: platform.create(order()))
    assert isinstance(error, Unreachable) and error.sent
    found = platform.find("tenure-a")
    assert found and found["pod"] == emulator.pods[0].id
    closed(platform, found)
    assert not emulator.alive()


def test_one_create_is_one_request(emulator: RunPodEmulator, platform: RunPodPlatform) -> None:
    platform.find("tenure-a")
    emulator.answer("create", 503, {}, times=9)
    failure(lambda: platform.create(order()))
    operations = [request.operation for request in emulator.requests]
    assert operations == ["myself", "podFindAndDeployOnDemand"]


# ----------------------------------------------------------------------------------- proof of an end


@pytest.mark.parametrize("status", [200, 403, 429, 503])
def test_a_refused_end_is_pending(
    emulator: RunPodEmulator, platform: RunPodPlatform, status: int
) -> None:
    """The SDK's terminate_pod returns None on each of these."""
    handle = platform.create(order())
    emulator.answer("podTerminate", status, {"error": "nothing was done"})
    assert isinstance(platform.end(handle), Pending)
    assert emulator.alive() == ["tenure-a"]
    closed(platform, handle)


@pytest.mark.parametrize(
    "body", [b"<html>", {}, {"data": None}, {"data": {}}, {"data": {"pod": 1}}]
)
def test_only_a_well_formed_answer_proves_an_end(
    emulator: RunPodEmulator, platform: RunPodPlatform, body: object
) -> None:
    handle = platform.create(order())
    emulator.answer("pod", 200, body)
    failure(lambda: platform.end(handle))
    closed(platform, handle)


def test_an_unlisted_pod_is_not_taken_for_gone(emulator: RunPodEmulator) -> None:
    emulator.slow_listing = 5
    platform = rented(unlisted_s=600)
    handle = platform.create(order())
    emulator.answer("podTerminate", 200, NOT_FOUND)
    assert isinstance(platform.end(handle), Pending)
    assert emulator.alive() == ["tenure-a"]
    closed(platform, handle)
    assert not emulator.alive()


def test_a_pod_that_was_listed_once_needs_no_grace(emulator: RunPodEmulator) -> None:
    platform = rented(unlisted_s=600)
    handle = platform.create(order())
    assert platform.find("tenure-a") == handle
    assert rented()._terminate(str(handle["pod"])) == ""  # as the machine does at its own end
    assert isinstance(platform.end(handle), Closed)


def test_the_grace_of_a_new_pod_ends(emulator: RunPodEmulator) -> None:
    emulator.slow_listing = 99
    platform = rented(unlisted_s=0)
    handle = platform.create(order())
    emulator.answer("podTerminate", 200, NOT_FOUND)
    assert isinstance(platform.end(handle), Closed)


def test_a_pod_that_is_said_to_run_is_not_closed(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    handle = platform.create(order())
    emulator.still_running = 3
    assert isinstance(platform.end(handle), Pending)
    closed(platform, handle)


def test_a_pod_that_is_said_to_be_gone_is_not_closed(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    handle = platform.create(order())
    emulator.seem_gone = 4
    assert platform.find("tenure-a") == handle
    assert platform.running("tenure-") == [("tenure-a", handle)]
    emulator.answer("podTerminate", 503, {})
    assert isinstance(platform.end(handle), Pending)
    closed(platform, handle)


# ------------------------------------------------------------------------------------ what pods do


def test_a_spot_pod_is_told_and_stays_to_be_ended(emulator: RunPodEmulator) -> None:
    platform = rented(bid_usd_per_h=0.25)
    program = (
        "import signal, time\n"
        "def told(*_):\n    open('told', 'w').close()\n    raise SystemExit(10)\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(600)\n"
    )
    handle = platform.create(order(program=program))
    (pod,) = emulator.pods
    assert pod.kind == "podRentInterruptable" and pod.asked["bidPerGpu"] == 0.25
    until((pod.machine.folder / "ready").exists)
    emulator.preempt(pod)
    until(lambda: not pod.machine.alive)
    assert (pod.machine.folder / "told").exists() and pod.starts == 1
    paid_s = emulator.billed()["tenure-a"]
    assert platform.running("tenure-") == [("tenure-a", handle)], "it could be resumed, and billed"
    closed(platform, handle)
    assert emulator.billed()["tenure-a"] == paid_s and not emulator.alive()


def test_a_failing_container_is_started_again_and_ends_its_own_pod(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    end = base64.b64encode(json.dumps(platform.ending()).encode()).decode()
    program = (
        "import base64, json, os, string, sys, urllib.request\n"
        "open('runs.txt', 'a').write('x')\n"
        "if len(open('runs.txt').read()) < 3:\n    sys.exit(1)\n"
        f"end = json.loads(base64.b64decode('{end}'))\n"
        "filled = lambda text: string.Template(text).substitute(os.environ)\n"
        "headers = {name: filled(value) for name, value in end['headers'].items()}\n"
        "request = urllib.request.Request(\n"
        "    end['url'], filled(end['body']).encode(), headers, method=end['method'])\n"
        "print(urllib.request.urlopen(request).read())\n"
    )
    emulator.restart_s = 0.01
    handle = platform.create(order(program=program))
    (pod,) = emulator.pods
    until(lambda: not emulator.alive())
    assert (pod.machine.folder / "runs.txt").read_text() == "xxx" and pod.starts == 3
    assert isinstance(platform.end(handle), Closed | Pending)
    assert platform.find("tenure-a") is None
    until(lambda: not pod.machine.alive)


def test_the_key_of_a_pod_opens_its_own_end_only(
    emulator: RunPodEmulator, platform: RunPodPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = platform.create(order("tenure-a")), platform.create(order("tenure-b"))
    monkeypatch.setenv("RUNPOD_API_KEY", emulator.pods[0].key)
    for call in (lambda: platform.find("tenure-a"), lambda: platform.create(order("tenure-c"))):
        assert isinstance(failure(call), Rejected)
    assert "not authorized" in platform._terminate(str(other["pod"]))
    assert platform._terminate(str(one["pod"])) == ""
    assert emulator.alive() == ["tenure-b"]


def test_what_a_container_left_running_ends_with_its_pod(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    program = (
        "import subprocess, sys\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "open('child', 'w').write(str(child.pid) + '.')\n"
        "child.wait()\n"
    )
    emulator.grace_s = 0.1
    handle = platform.create(order(program=program))
    path = emulator.pods[0].machine.folder / "child"
    until(lambda: path.exists() and path.read_text().endswith("."))
    stat = Path("/proc", path.read_text().rstrip("."), "stat")
    assert stat.exists()
    closed(platform, handle)
    until(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


# -------------------------------------------------------------------------------------- failures


def errors(message: object) -> dict[str, object]:
    return {"errors": [{"message": message}], "data": None}


FAILURES: list[tuple[int, object, type[LaunchFailed]]] = [
    (200, errors(NO_SLOTS), NoSlots),
    (200, errors("There are no longer any instances available. Please try again later."), NoSlots),
    (200, errors("There are not enough free GPUs on the host machine to start this pod."), NoSlots),
    (200, errors("This machine does not have the resources to deploy your pod."), NoSlots),
    (200, errors("Your account balance is insufficient to deploy this pod."), NoSlots),
    (200, errors("Something went wrong. Please try again later or contact support."), Unreachable),
    (200, errors("Too many requests"), Unreachable),
    (200, errors("You are not authorized to do this."), Rejected),
    (200, errors("You have insufficient permissions"), Rejected),
    (200, errors("The load balancer is busy, try again"), Unreachable),
    (200, errors("Network volume does not exist"), Rejected),
    (200, errors("A text that nobody has seen"), ProtocolError),
    (400, errors('Cannot query field "podd" on type "Query".'), ProtocolError),
    (401, {"error": "Unauthorized"}, Rejected),
    (401, b"", Rejected),
    (403, FORBIDDEN, Rejected),
    (429, {"message": "slow down"}, Unreachable),
    (429, b"Too Many Requests", Unreachable),
    (500, {"error": "the upstream is not found"}, Unreachable),
    (503, {"error": "maintenance"}, Unreachable),
    (503, b"<html>Service Unavailable</html>", Unreachable),
    (504, b"", Unreachable),
    (200, b"<html>garbage</html>", Unreachable),
    (200, b"", Unreachable),
    (200, {}, Unreachable),
    (200, [], ProtocolError),
    (200, b"null", ProtocolError),
    (200, b'"errors"', ProtocolError),
    (200, {"data": None}, ProtocolError),
    (200, {"data": {}}, ProtocolError),
    (200, {"data": {"podFindAndDeployOnDemand": None}}, ProtocolError),
    (200, {"data": {"podFindAndDeployOnDemand": {"id": None}}}, ProtocolError),
    (200, {"errors": None}, ProtocolError),
    (200, {"errors": []}, ProtocolError),
    (200, {"errors": [{}]}, ProtocolError),
    (200, errors(None), ProtocolError),
]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPodEmulator]:
    """One service for all failures: nothing is ever created there."""
    import runpod  # noqa: F401

    with RunPodEmulator(tmp_path_factory.mktemp("refusing")) as emulator:
        yield emulator


@pytest.fixture
def environ(refusing: RunPodEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in refusing.environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize(("status", "body", "kind"), FAILURES)
def test_a_failure_of_create(
    refusing: RunPodEmulator, status: int, body: object, kind: type[LaunchFailed]
) -> None:
    refusing.answer("create", status, body)
    error = failure(lambda: rented().create(order()))
    assert type(error) is kind, error
    assert not isinstance(error, Unreachable) or error.sent


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize(("status", "body", "kind"), FAILURES)
def test_a_failure_of_a_list_is_no_absence(
    refusing: RunPodEmulator, status: int, body: object, kind: type[LaunchFailed]
) -> None:
    for call in (lambda: rented().find("tenure-a"), lambda: rented().running("tenure-")):
        refusing.answer("myself", status, body)
        assert type(failure(call)) is kind


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize(
    "body",
    [
        {"data": {"myself": None}},
        {"data": {"myself": {"pods": []}}},
        {"data": {"myself": {"id": "u", "pods": None}}},
        {"data": {"myself": {"id": "u", "pods": [None]}}},
        {"data": {"myself": {"id": "u", "pods": [{"name": "tenure-a"}]}}},
    ],
)
def test_a_malformed_list_is_no_absence(refusing: RunPodEmulator, body: object) -> None:
    refusing.answer("myself", 200, body)
    assert isinstance(failure(lambda: rented().find("tenure-a")), ProtocolError)


@pytest.mark.usefixtures("environ")
def test_an_answer_that_repeats_the_key_is_scrubbed(refusing: RunPodEmulator) -> None:
    for body in (errors(f"bad key {API_KEY}"), {"seen": f"Bearer {API_KEY}"}):
        refusing.answer("create", 200, body)
        assert "***" in str(failure(lambda: rented().create(order())))


def test_no_slots_and_no_money(emulator: RunPodEmulator, platform: RunPodPlatform) -> None:
    emulator.capacity = 1
    handle = platform.create(order("tenure-a"))
    assert isinstance(failure(lambda: platform.create(order("tenure-b"))), NoSlots)
    closed(platform, handle)
    emulator.funds = False
    assert isinstance(failure(lambda: platform.create(order("tenure-b"))), NoSlots)
    assert not emulator.alive()


@pytest.mark.parametrize("denial", [401, 403])
def test_bad_credentials(
    emulator: RunPodEmulator,
    platform: RunPodPlatform,
    denial: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulator.denial = denial
    handle = platform.create(order())
    monkeypatch.setenv("RUNPOD_API_KEY", "rpa_WRONG")
    for call in (
        lambda: platform.create(order()),
        lambda: platform.find("tenure-a"),
        lambda: platform.end(handle),
    ):
        assert isinstance(failure(call), Rejected)


@pytest.mark.parametrize("key", ["", " \n", f"{API_KEY}\nX-Evil: 1", f"{API_KEY}\u2026"])
def test_no_credentials_or_odd_ones(
    emulator: RunPodEmulator,
    platform: RunPodPlatform,
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", key)
    error = failure(lambda: platform.create(order()))
    words = "characters" if key.strip() else "no credentials: set RUNPOD_API_KEY"
    assert isinstance(error, Rejected) and words in str(error)
    assert not emulator.requests


def test_the_key_may_come_from_the_file_of_the_sdk(
    emulator: RunPodEmulator, platform: RunPodPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpod

    monkeypatch.delenv("RUNPOD_API_KEY")
    monkeypatch.setattr(runpod, "api_key", f"{API_KEY}\n")
    assert platform.find("tenure-a") is None


def test_a_service_that_never_answers(emulator: RunPodEmulator) -> None:
    mine = rented(deadline_s=3.0)
    mine.find("tenure-a")  # whose pods they are
    emulator.hanging = True
    error = failure(lambda: mine.create(order()))
    assert isinstance(error, Unreachable) and error.sent
    error = failure(lambda: rented(deadline_s=0.5).create(order()))
    assert isinstance(error, Unreachable) and not error.sent  # only looked for the account


def test_nobody_listens(platform: RunPodPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_API_BASE_URL", "http://127.0.0.1:9")
    error = failure(lambda: platform.create(order()))
    assert isinstance(error, Unreachable) and not error.sent
    monkeypatch.setenv("RUNPOD_API_BASE_URL", "not an address")
    assert isinstance(failure(lambda: platform.create(order())), Rejected)


# ----------------------------------------------------------------------- what is not to be known


def test_the_key_is_in_one_header_and_nowhere_else(
    emulator: RunPodEmulator, platform: RunPodPlatform
) -> None:
    handle = platform.create(order())
    platform.running("tenure-")
    closed(platform, handle)
    assert len(emulator.requests) > 4
    for request in emulator.requests:
        assert request.headers["authorization"] == f"Bearer {API_KEY}"
        assert API_KEY.encode() not in request.body and API_KEY not in request.path
        assert [name for name, value in request.headers.items() if API_KEY in value] == [
            "authorization"
        ]
    (pod,) = emulator.pods
    assert API_KEY not in json.dumps(platform.ending()) + json.dumps(dict(pod.environ))


def test_the_address_of_the_end_is_that_of_the_service(
    emulator: RunPodEmulator, platform: RunPodPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert platform.ending()["url"] == f"{emulator.url}/graphql"
    monkeypatch.delenv("RUNPOD_API_BASE_URL")
    assert platform.ending()["url"] == "https://api.runpod.io/graphql"


def test_its_import_pulls_in_no_sdk() -> None:
    code = (
        "import sys; from runners.providers.runpod import RunPodConfig, RunPodPlatform as P\n"
        "from tenure_protocol.clock import SYSTEM\n"
        "P(RunPodConfig(card='NVIDIA L4'), SYSTEM).ending()\n"
        "sys.exit('runpod' in sys.modules or 'requests' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"card": "RTX 4090"}, "did you mean 'NVIDIA GeForce RTX 4090'"),
        ({"card": "NVIDIA T4"}, "NVIDIA L4"),
        ({"card": "cpu", "bid_usd_per_h": 0.1}, "bid_usd_per_h"),
        ({"bid_usd_per_h": 0.0}, "greater than 0"),
        ({"cards": 9}, "8"),
        ({"cloud": "secure"}, "SECURE"),
        ({"image": 'a" b'}, "pattern"),
        ({"image": "a\n"}, "pattern"),
        ({"data_center": 'EU"'}, "pattern"),
        ({"secrets": ["no-dash"]}, "pattern"),
        ({"secrets": [f"S{n}" for n in range(50)]}, "49"),
        ({"cuda_versions": ["12"]}, "pattern"),
        ({"gpu": "x"}, "Extra inputs"),
    ],
)
def test_a_mistake_in_the_configuration(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RunPodConfig.model_validate({"card": CARD, **keys})
    (problem,) = caught.value.errors()
    assert words in str(problem["msg"]) + str(problem["input"])


# ------------------------------------------------------------- what the SDK itself does (1.11.0)


def raw(name: str, *args: object) -> object:
    import runpod

    return getattr(runpod, name)(*args)


@pytest.mark.usefixtures("environ")
@pytest.mark.parametrize(
    ("call", "operation", "status", "body", "raised"),
    [
        (("terminate_pod", "p"), "podTerminate", 503, {"error": "x"}, None),
        (("terminate_pod", "p"), "podTerminate", 429, {"error": "x"}, None),
        (("terminate_pod", "p"), "podTerminate", 403, FORBIDDEN, None),
        (("get_pod", "p"), "pod", 503, {"error": "x"}, "KeyError"),
        (("get_pod", "p"), "pod", 503, b"<html>", "JSONDecodeError"),
        (("get_pod", "p"), "pod", 401, b"", "AuthenticationError"),
        (("get_pod", "p"), "pod", 200, {"data": None}, "TypeError"),
        (("get_pod", "p"), "pod", 200, {"errors": []}, "IndexError"),
        (("get_pods",), "myself", 200, {"data": {"myself": None}}, "TypeError"),
        (("create_pod", "n", "i", CARD), "create", 200, errors(NO_SLOTS), "QueryError"),
        (("create_pod", "n", "i", CARD), "create", 429, {"error": "x"}, "KeyError"),
    ],
)
def test_the_failure_table_of_the_installed_sdk(
    refusing: RunPodEmulator,
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[str, ...],
    operation: str,
    status: int,
    body: object,
    raised: str | None,
) -> None:
    """The table was measured on another version; whoever pins a new one sees here what has changed."""
    import runpod

    monkeypatch.setattr(runpod, "api_key", API_KEY)
    refusing.answer(operation, status, body)
    if raised is None:
        assert raw(*call) is None
        return
    with pytest.raises(Exception) as caught:
        raw(*call)
    assert caught.type.__name__ == raised


def test_the_text_of_the_sdk_has_the_places_that_are_filled_in(emulator: RunPodEmulator) -> None:
    """The bid and the wall are put into the SDK's own text: each was there once."""
    rented(bid_usd_per_h=0.5).create(order())
    (pod,) = emulator.pods
    text = json.loads(emulator.requests[-1].body)["query"]
    assert text.count("podRentInterruptable") == text.count("bidPerGpu") == 1
    assert text.count("terminateAfter") == 1 and "podFindAndDeployOnDemand" not in text
    assert isinstance(pod, Pod) and pod.asked["name"] == "tenure-a"
