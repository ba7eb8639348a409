"""Kaggle: the real ``kagglesdk`` through our platform, against the emulator; every row of what that SDK does."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from runners.order import Order
from runners.providers.kaggle import KaggleConfig, KagglePlatform, classify
from runners.sdk import ask
from tenure.dispatch.contract import (
    Bounded,
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Quota,
    Rejected,
    Settlement,
    Unreachable,
)
from tenure_protocol.clock import SYSTEM
from tests.emulators.kaggle import Kaggle

NAME = "tenure-abcdefgh-abcdefghijklmnopqrstuvwxyz-00001"  # as long as launch names are
HANDLE = {"kernel": f"{Kaggle.USER}/{NAME}"}
SLEEPS = "import time; time.sleep(60)"
HTML = "<html>Service Unavailable</html>"


def order(
    program: str = SLEEPS,
    name: str = NAME,
    packet: str = "cGFja2V0",
) -> Order:
    shell = f"echo {base64.b64encode(program.encode()).decode()} | base64 -d | python3 -"
    return Order(name, program, packet, shell, 2)


@pytest.fixture
def kaggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kaggle]:
    with Kaggle(tmp_path / "kaggle") as emulator:
        for name, value in emulator.environ.items():
            monkeypatch.setenv(name, value)
        for name in ("KAGGLE_API_TOKEN", "KAGGLE_CONFIG_DIR", "XDG_CONFIG_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))  # no ~/.kaggle of whoever runs the tests
        yield emulator


def platform(card: str = "Tesla T4", **keys: object) -> KagglePlatform:
    config = KaggleConfig.model_validate({"card": card, "deadline_s": 30.0, **keys})
    return KagglePlatform(config, SYSTEM)


def until_closed(made: KagglePlatform, handle: dict[str, object]) -> list[Settlement]:
    """Ask for the end until the bill is closed; the answers on the way."""
    answers: list[Settlement] = []
    end_s = SYSTEM.monotonic_s() + 120.0
    while not answers or not isinstance(answers[-1], Closed):
        assert SYSTEM.monotonic_s() < end_s, answers
        answers.append(made.end(handle))
        SYSTEM.sleep(0.01)
    return answers


# ----------------------------------------------------------------------------------- failures

FULL = {"error": "Maximum batch GPU session count of 2 reached."}
SAVED = {"ref": f"/{Kaggle.USER}/{NAME}", "versionNumber": 1, "kernelId": 1}
FAILURES: dict[str, tuple[int, object, type[LaunchFailed], bool]] = {
    # what is answered -> the class, and whether a machine may have been made all the same
    "500": (500, {"code": 500, "message": "An internal server error occurred."}, Unreachable, True),
    "502 HTML": (502, HTML, Unreachable, True),
    "503": (503, {"code": 503, "message": "try later"}, Unreachable, True),
    "504 HTML": (504, HTML, Unreachable, True),
    "429": (429, {"code": 429, "message": "Too many requests"}, Unreachable, False),
    "429 text": (429, "slow down", Unreachable, False),
    "400": (400, {"code": 400, "message": "bad"}, Rejected, False),
    "400 source": (400, {"code": 400, "message": "The kernel source must be ..."}, Rejected, False),
    "401": (401, {"code": 401, "message": "Unauthorized"}, Rejected, False),
    "401 HTML": (401, HTML, Rejected, False),
    "403": (403, {"code": 403, "message": "Forbidden"}, Rejected, False),
    "404": (404, {"code": 404, "message": "Not found"}, Rejected, False),
    "404 HTML": (404, HTML, Rejected, False),
    "200 no slot": (200, FULL, NoSlots, False),
    "200 no quota": (200, {"error": "You have exceeded your GPU quota"}, NoSlots, False),
    "200 error": (200, {"error": "Kernel not found"}, Rejected, False),
    "200 sources": (200, SAVED | {"invalidDatasetSources": ["a/b"]}, Rejected, False),
    "200 code 403": (200, {"code": 403, "message": "Forbidden"}, Rejected, False),
    "200 code 503": (200, {"code": 503, "message": "later"}, Unreachable, True),
    "200 code without message": (200, {"code": 403}, Rejected, False),
    "200 list": (200, [], ProtocolError, False),
    "200 nothing": (200, {}, ProtocolError, False),
    "200 null": (200, None, ProtocolError, False),
    "200 HTML": (200, HTML, Unreachable, True),
    "200 another name": (200, SAVED | {"ref": f"/{Kaggle.USER}/other"}, ProtocolError, False),
    "200 wrong type": (200, SAVED | {"invalidTags": 5}, ProtocolError, False),
    "302": (302, HTML, Unreachable, True),
}


@pytest.mark.parametrize("case", FAILURES)
def test_every_answer_to_a_push_has_its_class(kaggle: Kaggle, case: str) -> None:
    status, body, expected, sent = FAILURES[case]
    kaggle.answer("SaveKernel", status, body)
    with pytest.raises(LaunchFailed) as caught:
        platform().create(order())
    assert type(caught.value) is expected or (
        expected is Rejected and isinstance(caught.value, Rejected)
    ), repr(caught.value)
    assert getattr(caught.value, "sent", False) is sent
    assert kaggle.asked("SaveKernel") == 1, "one retry layer, and it is not the SDK's"


@pytest.mark.parametrize("operation", ["GetKernel", "GetKernelSessionStatus", "DeleteKernel"])
@pytest.mark.parametrize("case", ["503", "429", "401", "200 list", "200 HTML", "200 code 503"])
def test_no_broken_answer_closes_a_bill(kaggle: Kaggle, operation: str, case: str) -> None:
    status, body, expected, _ = FAILURES[case]
    made = platform()
    handle = made.create(order())
    kaggle.answer(operation, status, body)
    if (operation, expected) == ("DeleteKernel", Rejected):
        assert isinstance(made.end(handle), Bounded)
    else:
        with pytest.raises(expected):
            made.end(handle)
    assert isinstance(until_closed(made, dict(handle))[-1], Closed) and not kaggle.alive()


@pytest.mark.parametrize("case", ["503", "401", "200 list", "200 HTML", "200 null"])
def test_no_broken_listing_says_that_nothing_runs(kaggle: Kaggle, case: str) -> None:
    status, body, expected, _ = FAILURES[case]
    kaggle.answer("ListKernels", status, body)
    with pytest.raises(expected):
        platform().running("tenure-")
    kaggle.answer("ListKernels", status, body)
    with pytest.raises(expected):
        platform().find(NAME)  # 403 of the kernel itself proves nothing without the listing


def test_sources_that_are_not_there_leave_no_run(kaggle: Kaggle) -> None:
    made = platform()
    made.create(order())  # what such a push has started all the same
    kaggle.answer("SaveKernel", 200, SAVED | {"invalidModelSources": ["m"]})
    with pytest.raises(Rejected, match="unknown sources: m"):
        made.create(order())
    assert kaggle.asked("DeleteKernel") == 1 and made.find(NAME) is None


def test_nobody_listens(kaggle: Kaggle) -> None:
    kaggle.stop()
    with pytest.raises(Unreachable) as caught:
        platform().create(order())
    assert not caught.value.sent


@pytest.mark.parametrize("how", ["504", "cut"])
def test_a_push_that_was_applied_and_failed_is_found_by_its_name(kaggle: Kaggle, how: str) -> None:
    kaggle.ghosts = [how]
    made = platform()
    with pytest.raises(Unreachable) as caught:
        made.create(order())
    assert caught.value.sent and kaggle.alive() == [NAME]
    found = made.find(NAME)
    assert found == HANDLE
    until_closed(made, dict(found))
    assert not kaggle.alive()


@pytest.mark.parametrize("operation", ["SaveKernel", "GetKernel", "ListKernels"])
def test_an_answer_that_never_comes_has_a_deadline(kaggle: Kaggle, operation: str) -> None:
    kaggle.hangs.add(operation)
    made = platform(deadline_s=1.0)
    with pytest.raises(Unreachable) as caught:
        if operation == "SaveKernel":
            made.create(order())
        else:
            made.find(NAME)
    assert caught.value.sent is (operation == "SaveKernel")  # nothing else launches
    for thread in threading.enumerate():
        if thread.name.startswith("tenure-sdk"):
            thread.join(60.0)
            assert not thread.is_alive(), "the SDK waits for ever, and a thread with it"


def test_the_same_page_for_ever_is_no_listing(kaggle: Kaggle) -> None:
    for _ in range(2):
        kaggle.answer("ListKernels", 200, {"kernels": [], "nextPageToken": "again"})
    with pytest.raises(ProtocolError, match="same page"):
        platform().running("tenure-")


# -------------------------------------------------------------------------------- credentials


def test_the_sdks_exit_without_credentials_is_a_rejection(
    kaggle: Kaggle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")

    def sign_in() -> None:
        from kaggle import KaggleApi

        KaggleApi().authenticate()

    with pytest.raises(Rejected, match="KAGGLE_API_TOKEN"):
        ask(SYSTEM, 30.0, "sign in", sign_in, classify)
    with pytest.raises(Rejected, match=r"KAGGLE_USERNAME and KAGGLE_KEY.*kaggle\.json"):
        platform().create(order())
    assert not kaggle.requests


@pytest.mark.parametrize(
    ("variable", "value"), [("KAGGLE_KEY", "wrong"), ("KAGGLE_API_TOKEN", "KGAT_wrong")]
)
def test_bad_credentials_are_a_rejection(
    kaggle: Kaggle, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    made = platform()
    calls: list[Callable[[], object]] = [
        lambda: made.create(order()),
        lambda: made.find(NAME),
        lambda: made.running("tenure-"),
        made.quota,
    ]
    for call in calls:
        with pytest.raises(Rejected, match="401"):
            call()
    assert not kaggle.alive()


def test_a_token_tells_whose_it_is(kaggle: Kaggle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")
    monkeypatch.setenv("KAGGLE_API_TOKEN", Kaggle.TOKEN)
    made = platform()
    assert made.create(order()) == HANDLE and made.find(NAME) == HANDLE
    assert kaggle.asked("IntrospectToken") == 1
    kaggle.answer("IntrospectToken", 200, {"active": False})
    with pytest.raises(Rejected, match="not valid"):
        platform().find(NAME)


def test_a_file_in_the_home_folder_will_do(
    kaggle: Kaggle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("KAGGLE_USERNAME")
    monkeypatch.delenv("KAGGLE_KEY")
    (tmp_path / ".kaggle").mkdir()
    pair = {"username": Kaggle.USER, "key": Kaggle.KEY}
    (tmp_path / ".kaggle" / "kaggle.json").write_text(json.dumps(pair))
    assert platform().create(order()) == HANDLE


def test_no_failure_repeats_a_secret(kaggle: Kaggle, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = base64.b64encode(f"{Kaggle.USER}:{Kaggle.KEY}".encode()).decode()
    echo = f"who is Basic {pair}, {Kaggle.KEY} or Bearer {Kaggle.TOKEN}?"
    answers: list[tuple[int, object]] = [
        (401, {"code": 401, "message": echo}),
        (503, {"code": 503, "message": echo}),
        (200, {"error": echo}),
        (200, {"ref": echo}),
        (200, SAVED | {"invalidDatasetSources": [echo]}),
        (200, {"invalidTags": {"a": echo}, "kernelId": {echo: 1}}),
    ]
    for token in (None, Kaggle.TOKEN):
        if token:
            monkeypatch.setenv("KAGGLE_API_TOKEN", token)
        made = platform()
        for status, body in answers:
            kaggle.answer("SaveKernel", status, body)
            with pytest.raises(LaunchFailed) as caught:
                made.create(order())
            error = caught.value
            assert error.__cause__ is None and error.__suppress_context__
            told = "".join(traceback.format_exception(error)) + repr(error) + str(error.args)
            used = [token] if token else [pair, Kaggle.KEY]
            assert not [secret for secret in used if secret in told], told
        assert Kaggle.KEY not in repr(made.create(order(name=f"tenure-{'b' if token else 'a'}-1")))
    for request in kaggle.requests:
        words = request.path.encode() + request.body
        assert Kaggle.KEY.encode() not in words and pair.encode() not in words
        assert Kaggle.TOKEN.encode() not in words or request.operation == "IntrospectToken"


# ---------------------------------------------------------------------------------- a machine


def test_the_machine_is_told_the_packet_and_runs_the_program_unchanged(
    kaggle: Kaggle, tmp_path: Path
) -> None:
    packet = base64.b64encode(bytes(range(256)) * 192).decode()  # 64 KiB
    assert len(packet) == 65_536
    out = tmp_path / "out.json"
    lines = [
        "from __future__ import annotations",
        "import json, os",
        'words = """three \\"quotes\\" and \'\'\' \\\\ back\\\\slashes $HOME `id` %s {x} \\u00e9\n',
        'over lines"""',
        "def environ() -> dict[str, str]:",
        "    return dict(os.environ)",
        f"with open({str(out)!r}, 'w') as file:",
        "    json.dump([words, environ(), __name__], file)",
    ]
    program = "\n".join(lines)
    platform().create(order(program, packet=packet))
    machine = kaggle.machine(NAME)
    assert machine.process.wait(120) == 0, machine.output()
    words, environ, name = json.loads(out.read_text())
    told: dict[str, str] = {}
    exec(lines[2] + "\n" + lines[3], told)
    assert words == told["words"] and name == "__main__"
    assert environ["TENURE_START"] == packet
    assert not [name for name in KagglePlatform.VARIABLES if name in environ]


def test_a_push_says_all_that_it_must(kaggle: Kaggle) -> None:
    image = "gcr.io/kaggle-images/python@sha256:" + "0" * 64
    made = platform(session_s=3600.0, image=image)
    assert made.create(order()) == HANDLE
    (push,) = [request for request in kaggle.requests if request.operation == "SaveKernel"]
    sent = json.loads(push.body)
    assert sent["sessionTimeoutSeconds"] == 3600 and sent["dockerImage"] == image
    assert (sent["slug"], sent["newTitle"]) == (f"{Kaggle.USER}/{NAME}", NAME)
    assert sent["isPrivate"] is sent["enableGpu"] is sent["enableInternet"] is True
    assert sent["machineShape"] == "NvidiaTeslaT4"


def test_a_machine_without_a_card(kaggle: Kaggle) -> None:
    made = platform("cpu")
    kaggle.capacity = 0  # GPU sessions do not count for it
    made.create(order("pass"))
    (push,) = [request for request in kaggle.requests if request.operation == "SaveKernel"]
    sent = json.loads(push.body)
    assert sent["enableGpu"] is False and not sent.keys() & {"machineShape", "enableTpu"}
    assert kaggle.machine(NAME).process.wait(120) == 0 and made.quota() is None


@pytest.mark.parametrize(
    "name", ["abcd", "a" * 51, "Upper-case", "two--dashes", "dot.ted", "-abcd"]
)
def test_a_name_that_kaggle_would_change_is_refused(kaggle: Kaggle, name: str) -> None:
    with pytest.raises(Rejected, match="cannot name a kernel"):
        platform().create(order(name=name))
    assert not kaggle.requests


# ------------------------------------------------------------------------------- find and end


def test_find_sees_a_run_until_it_is_over(kaggle: Kaggle, tmp_path: Path) -> None:
    made = platform()
    assert made.find(NAME) is None
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    handle = made.create(order(waits))
    assert handle == made.find(NAME) == platform().find(NAME) == HANDLE
    go.touch()
    kaggle.machine(NAME).process.wait(120)
    assert made.find(NAME) is None
    assert isinstance(made.end(handle), Closed) and kaggle.asked("DeleteKernel") == 0


@pytest.mark.parametrize("absent", [403, 404])
def test_end_is_asked_for_confirmed_and_stays(kaggle: Kaggle, absent: int) -> None:
    kaggle.absent = absent
    made = platform()
    handle = made.create(order())
    kaggle.lingers = 3
    first = made.end(handle)
    assert isinstance(first, Pending), first
    until_closed(made, dict(handle))
    assert not kaggle.alive() and kaggle.billed()[NAME] > 0
    for again in (made, platform()):
        assert isinstance(again.end(handle), Closed)
    assert made.find(NAME) is None and made.running("tenure-") == []


@pytest.mark.parametrize("absent", [403, 404])
def test_end_of_what_never_was_is_closed(kaggle: Kaggle, absent: int) -> None:
    kaggle.absent = absent
    assert isinstance(platform().end(HANDLE), Closed)
    assert kaggle.asked("DeleteKernel") == 0


def test_a_404_that_is_not_kaggles_proves_nothing(kaggle: Kaggle) -> None:
    kaggle.answer("GetKernel", 404, HTML)
    with pytest.raises(Rejected):
        platform().find(NAME)
    kaggle.answer("GetKernel", 200, {})
    with pytest.raises(ProtocolError, match="metadata"):
        platform().find(NAME)


def test_a_forbidden_kernel_that_is_listed_is_there(kaggle: Kaggle) -> None:
    made = platform()
    made.create(order())
    kaggle.answer("GetKernel", 403, {"code": 403, "message": "Permission 'kernels.get' was denied"})
    with pytest.raises(Rejected, match="is listed"):
        made.find(NAME)


def test_a_handle_of_another_account_is_not_closed(kaggle: Kaggle) -> None:
    with pytest.raises(Rejected, match="does not belong to the account"):
        platform().end({"kernel": f"somebody/{NAME}"})
    with pytest.raises(Rejected):
        platform().end({})


def test_a_run_that_cannot_be_ended_is_bounded_by_its_timeout(kaggle: Kaggle) -> None:
    made = platform(session_s=3600.0, claim_window_s=100.0)
    before_s = SYSTEM.wall_s()
    handle = made.create(order())
    kaggle.keeps = True
    settled = made.end(handle)
    assert isinstance(settled, Bounded) and "cannot be deleted" in settled.reason
    assert before_s - 1 <= settled.until_s - 3700 <= SYSTEM.wall_s()
    kaggle.preempt(kaggle.machine(NAME))
    assert isinstance(made.end(handle), Closed)


def test_two_that_delete_at_once_do_not_disagree(kaggle: Kaggle) -> None:
    made = platform()
    handle = made.create(order())
    kaggle.lingers = 2  # it is still seen, and deleted when we come to delete it
    platform().end(handle)
    kaggle.preempt(kaggle.machine(NAME))
    kaggle.answer("DeleteKernel", 403, {"code": 403, "message": "'kernels.delete' was denied"})
    kaggle.lie(NAME, "RUNNING", 1)
    assert isinstance(made.end(handle), Closed)


def test_a_second_push_under_one_name_is_seen_and_ended_too(kaggle: Kaggle) -> None:
    kaggle.ghosts = ["504"]
    made = platform()
    with pytest.raises(Unreachable):
        made.create(order())
    handle = made.create(order("pass"))  # by somebody who did not look
    kaggle.machine(NAME).process.wait(120)
    assert kaggle.alive() == [NAME], "the ghost goes on when the newer run is over"
    assert made.find(NAME) == handle == HANDLE
    assert made.running("tenure-") == [(NAME, HANDLE)]
    assert isinstance(made.end(handle), Pending)
    until_closed(made, dict(handle))
    assert not kaggle.alive()


def test_a_lie_delays_and_closes_nothing_for_good(kaggle: Kaggle) -> None:
    made = platform()
    handle = made.create(order())
    kaggle.lie(NAME, "COMPLETE", 1)
    assert made.find(NAME) is None
    assert made.find(NAME) == HANDLE, "Kaggle is asked anew each time"
    kaggle.preempt(kaggle.machine(NAME))
    kaggle.keeps = True
    kaggle.lie(NAME, "RUNNING", 2)
    assert [type(made.end(handle)) for _ in range(3)] == [Bounded, Bounded, Closed]


@pytest.mark.parametrize("status", ["QUEUED", "NEW_SCRIPT", "CANCEL_REQUESTED", "RUNNING"])
def test_what_may_still_cost_is_alive(kaggle: Kaggle, status: str) -> None:
    made = platform()
    made.create(order("pass"))
    kaggle.machine(NAME).process.wait(120)
    kaggle.lie(NAME, status, 1)
    assert made.find(NAME) == HANDLE


def test_a_status_of_tomorrow_is_a_protocol_error(kaggle: Kaggle) -> None:
    made = platform()
    made.create(order())
    kaggle.lie(NAME, "HIBERNATED", 1)
    with pytest.raises(ProtocolError):
        made.find(NAME)


def test_a_queued_run_is_found_and_never_starts_after_its_end(kaggle: Kaggle) -> None:
    kaggle.queue = []
    made = platform()
    handle = made.create(order())
    assert made.find(NAME) == HANDLE and kaggle.alive() == [NAME]
    until_closed(made, dict(handle))
    (begin,) = kaggle.queue
    begin()  # its turn has come
    assert not kaggle.machines.all


def test_a_preempted_run_is_over(kaggle: Kaggle) -> None:
    made = platform()
    handle = made.create(order())
    kaggle.preempt(kaggle.machine(NAME))
    assert made.find(NAME) is None and isinstance(made.end(handle), Closed)


# ------------------------------------------------------------------- running, slots and quota


def test_running_lists_every_page_and_only_what_runs_under_the_prefix(kaggle: Kaggle) -> None:
    kaggle.capacity = 9
    kaggle.page_size = 1
    made = platform()
    for number in range(3):
        made.create(order(name=f"tenure-one-{number}"))
    made.create(order(name="tenure-other-1"))
    made.create(order("pass", name="tenure-one-over"))
    made.create(order(name="somebodys-own-notebook"))
    kaggle.machine("tenure-one-over").process.wait(120)
    found = made.running("tenure-one-")
    names = sorted(name for name, _ in found)
    assert names == ["tenure-one-0", "tenure-one-1", "tenure-one-2"]
    for _, handle in found:
        until_closed(made, dict(handle))
    assert made.running("tenure-one-") == []
    assert sorted(kaggle.alive()) == ["somebodys-own-notebook", "tenure-other-1"]


def test_a_notebook_of_last_month_is_not_asked_about(kaggle: Kaggle) -> None:
    made = platform()
    made.create(order())
    kaggle._kernels[NAME].pushed_at -= timedelta(days=30)
    assert made.running("tenure-") == [] and kaggle.asked("GetKernelSessionStatus") == 0


def test_a_kernel_that_is_shared_with_us_is_not_ours(kaggle: Kaggle) -> None:
    row = {"ref": f"somebody/{NAME}", "slug": NAME, "currentVersionNumber": 1}
    kaggle.answer("ListKernels", 200, {"kernels": [row]})
    assert platform().running("tenure-") == [] and kaggle.asked("GetKernelSessionStatus") == 0


def test_no_slots(kaggle: Kaggle) -> None:
    made = platform()
    made.create(order(name="tenure-first"))
    made.create(order(name="tenure-second"))
    with pytest.raises(NoSlots, match="session count of 2"):
        made.create(order())
    assert made.find(NAME) is None
    until_closed(made, {"kernel": f"{Kaggle.USER}/tenure-first"})
    made.create(order())


def test_the_quota_is_read_whole_and_when_it_is_gone_there_are_no_slots(kaggle: Kaggle) -> None:
    made = platform()
    kaggle.used_h = 26.5  # more than a day: the SDK's own text of it drops the days
    assert made.quota() == Quota(26.5, 30.0, kaggle.renews_at.timestamp())
    kaggle.used_h = 30.0
    with pytest.raises(NoSlots, match="quota"):
        made.create(order())


@pytest.mark.parametrize("body", [{}, {"gpuQuota": {"timeUsed": "0s"}}])
def test_an_account_without_a_quota(kaggle: Kaggle, body: object) -> None:
    kaggle.answer("GetAcceleratorQuotaStatistics", 200, body)
    assert platform().quota() is None


# ------------------------------------------------------------------------------ configuration


def test_a_pair_of_cards_is_the_default() -> None:
    config = KaggleConfig.model_validate({"card": "Tesla T4"})
    assert (config.cards, config.machines) == (2, 2) and config.session_s < 12 * 3600
    assert KaggleConfig.model_validate({"card": "cpu"}).cards == 1
    assert platform().ending() is None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"card": "NVIDIA T4"},
            "has no 'NVIDIA T4'; did you mean 'Tesla T4'. It has Tesla T4, cpu",
        ),
        ({"card": "Tesla P100-PCIE-16GB"}, "P100 is retired.*did you mean 'Tesla T4'"),
        ({"card": "CPU"}, "did you mean 'cpu'|did you mean 'Tesla T4'"),
        ({"card": "Tesla T4", "cards": 1}, "rents Tesla T4 by 2, not 1"),
        ({"card": "Tesla T4", "session_s": 43_200.0}, "less than 43200"),
        ({"card": "cpu", "image": "python:3.11"}, "gcr"),
        ({"card": "cpu", "region": "eu"}, "region"),
        ({"card": "cpu", "secrets": ["WANDB_KEY"]}, "attached to one notebook by hand"),
    ],
)
def test_a_mistake_is_a_sentence(keys: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        KaggleConfig.model_validate(keys)


def test_the_sdk_is_imported_when_it_is_first_used() -> None:
    program = """
import sys
from runners.providers.kaggle import KaggleConfig, KagglePlatform
from tenure_protocol.clock import SYSTEM
KagglePlatform(KaggleConfig.model_validate({"card": "cpu"}), SYSTEM)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"kaggle", "kagglesdk", "requests"}))
"""
    root = Path(__file__).parents[2]
    environ = {"PYTHONPATH": f"{root}:{root / 'worker'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env=environ,
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
