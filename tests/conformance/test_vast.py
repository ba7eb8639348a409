"""The real SDK of Vast through its platform, against an emulator on loopback: every failure and its class."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from runners import stage_zero
from runners.order import Order
from runners.providers.vast import VastConfig, VastPlatform
from tenure.dispatch.contract import (
    Closed,
    LaunchFailed,
    NoSlots,
    Pending,
    ProtocolError,
    Quota,
    Rejected,
    Unreachable,
)
from tenure_protocol.clock import SYSTEM
from tenure_worker.links import end_machine
from tests.emulators.vast import CARD, WORD, Instance, Operation, VastEmulator
from tests.until import until

NAME = "tenure-abcdefgh-1-0123456789abcdef"
SLEEPS = "import time\ntime.sleep(600)\n"


@pytest.fixture
def vast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VastEmulator]:
    with VastEmulator(tmp_path) as emulator:
        for name, value in emulator.environ.items():
            monkeypatch.setenv(name, value)
        yield emulator


def platform(**config: object) -> VastPlatform:
    return VastPlatform(VastConfig.model_validate({"card": CARD, **config}), SYSTEM)


def order(name: str = NAME, program: str = SLEEPS, packet: str = "e30=", secrets: tuple[str, ...] = ()) -> Order:  # fmt: skip
    shell = f"echo {base64.b64encode(program.encode()).decode()} | base64 -d | python3 -"
    return Order(name, program, packet, shell, 1, secrets=secrets)


def failure(call: Callable[[], object]) -> LaunchFailed:
    with pytest.raises(LaunchFailed) as caught:
        call()
    return caught.value


# -------------------------------------------------------------------------------------- the life of a machine


def test_a_machine_is_created_found_listed_and_ended(vast: VastEmulator) -> None:
    rented = platform()
    assert rented.find(NAME) is None
    handle = rented.create(order())
    assert handle == {"id": 7_000_000, "name": NAME, "machine_id": 30_000}
    assert json.loads(json.dumps(handle)) == handle == rented.find(NAME)
    assert rented.running("tenure-") == [(NAME, handle)] and rented.running("other-") == []
    assert isinstance(rented.end(handle), Pending)
    assert isinstance(rented.end(handle), Closed) and isinstance(platform().end(handle), Closed)
    assert rented.find(NAME) is None and vast.alive() == []
    until(lambda: not vast.machines.running)
    assert vast.billed()[NAME] >= 0


def test_a_name_is_not_a_beginning_of_another(vast: VastEmulator) -> None:
    platform().create(order(f"{NAME}-2"))
    assert platform().find(NAME) is None
    rows = [instance.row() for instance in vast.instances]
    vast.answer_next("list", 200, {"success": True, "instances": rows, "next_token": None})
    assert platform().find(NAME) is None, "the service did not obey the filter"


def test_an_unknown_instance_is_closed_and_a_handle_without_one_is_refused(
    vast: VastEmulator,
) -> None:
    assert isinstance(platform().end({"id": 12, "name": NAME}), Closed)
    assert isinstance(failure(lambda: platform().end({})), Rejected)


def test_two_machines_under_one_name_are_each_ended(vast: VastEmulator) -> None:
    """A ghost create, and a second one by somebody who did not look: the one that lives is found first."""
    rented = platform()
    rented.create(order())
    rented.create(order())
    first, second = vast.instances
    vast.preempt(first)
    assert (rented.find(NAME) or {})["id"] == second.id
    assert [handle["id"] for _, handle in rented.running("tenure-")] == [first.id, second.id]
    while handle := rented.find(NAME):
        rented.end(handle)
    assert vast.alive() == []


def test_pages_are_read_to_the_end_and_rows_of_nulls_do_no_harm(vast: VastEmulator) -> None:
    vast.strangers = [{"id": n, "label": None, "start_date": None, "extra_env": None} for n in range(60)]  # fmt: skip
    handle = platform().create(order())
    assert platform().running("tenure-") == [(NAME, handle)]
    assert vast.asked("list") == 3


def test_what_the_status_says_decides_nothing(vast: VastEmulator) -> None:
    rented = platform()
    handle = rented.create(order())
    vast.lies = 1
    assert rented.find(NAME) == handle, "told to have exited, and it costs all the same"
    rented.end(handle)
    vast.lies = 1
    found = rented.find(NAME)
    assert found == handle, "told to run, and gone"
    assert isinstance(rented.end(found), Closed) and rented.find(NAME) is None


def test_an_outbid_instance_is_stopped_and_costs_until_it_is_destroyed(vast: VastEmulator) -> None:
    rented = platform(interruptible=True)
    handle = rented.create(order())
    vast.preempt(vast.instances[0])
    assert not vast.machines.running and vast.alive() == [NAME]
    assert rented.find(NAME) == handle and rented.running("tenure-") == [(NAME, handle)]
    assert isinstance(rented.end(handle), Pending) and isinstance(rented.end(handle), Closed)
    assert vast.alive() == []


def test_a_host_that_vanished_costs_until_it_is_destroyed(vast: VastEmulator) -> None:
    rented = platform()
    handle = rented.create(order())
    vast.vanish(vast.instances[0])
    assert rented.find(NAME) == handle
    assert isinstance(rented.end(handle), Pending) and isinstance(rented.end(handle), Closed)


def test_there_is_no_quota_of_hours(vast: VastEmulator) -> None:
    assert platform().quota() is None and vast.requests == []


@pytest.mark.parametrize("usd", [25.0, 3, 0.0, -1.5])
def test_the_credit_of_the_account_is_a_quota_where_it_counts(
    vast: VastEmulator, usd: float
) -> None:
    vast.usd = usd
    told = platform(credit_counts=True).quota()
    assert told == Quota(0.0, usd, None, "usd") and told.left == max(0.0, usd)
    assert bool(told.doubt(0.0)) is (usd < 0)


@pytest.mark.parametrize("usd", [None, "25", True, [25.0]])
def test_a_credit_that_is_no_number_must_not_happen(vast: VastEmulator, usd: object) -> None:
    vast.usd = usd
    failed = failure(platform(credit_counts=True).quota)
    assert isinstance(failed, ProtocolError) and "no credit of the account" in str(failed)


def test_who_may_not_see_the_credit_hears_why(vast: VastEmulator) -> None:
    rented = platform(credit_counts=True)
    key, vast.key = vast.key, "another"
    failed = failure(rented.quota)
    assert isinstance(failed, Rejected) and key not in str(failed)
    vast.key = key
    vast.hang("user")
    assert isinstance(failure(platform(credit_counts=True, deadline_s=0.5).quota), Unreachable)


# ------------------------------------------------------------------------------------------------- offers


def test_the_cheapest_offer_that_fits_is_taken(vast: VastEmulator) -> None:
    a, b, c, d = vast.offers
    a["reliability"], b["inet_down"], c["cuda_max_good"] = 0.5, 3.0, 11.8
    assert platform().create(order())["machine_id"] == d["machine_id"]
    assert isinstance(failure(lambda: platform().create(order(f"{NAME}-2"))), NoSlots)


@pytest.mark.parametrize(
    ("key", "value", "config"),
    [
        ("gpu_name", "RTX 3090", {}),
        ("num_gpus", 2, {}),
        ("dph_total", 0.9, {"max_usd_per_h": 0.5}),
        ("driver_vers", 470_000_000, {"min_driver": "550.54.15"}),
        ("disk_space", 10.0, {}),
        ("duration", 3600.0, {}),
        ("machine_id", 5, {"avoid_machines": [5]}),
        ("verified", False, {}),
    ],
)
def test_an_offer_that_does_not_fit_is_not_taken(
    vast: VastEmulator, key: str, value: object, config: dict[str, object]
) -> None:
    del vast.offers[1:]
    vast.offers[0][key] = value
    assert isinstance(failure(lambda: platform(**config).create(order())), NoSlots)
    vast.offers.append(
        {**vast.offers[0], **dict(zip([key], [_fitting(key)], strict=True)), "id": 1}
    )
    assert platform(**config).create(order())["id"]


def _fitting(key: str) -> object:
    return {"gpu_name": WORD, "num_gpus": 1, "dph_total": 0.4, "driver_vers": 560_000_000, "disk_space": 99.0,
            "duration": 9e9, "machine_id": 6, "verified": True}[key]  # fmt: skip


def test_a_price_is_looked_at_again_after_the_search(vast: VastEmulator) -> None:
    """A filter that the service does not know or does not obey buys nothing."""
    fits = vast.offers[0]
    changes: list[dict[str, object]] = [
        {"dph_total": 99.0}, {"dph_total": None}, {"gpu_name": "RTX 3060"}, {"num_gpus": 8}, {"id": None},
    ]  # fmt: skip
    vast.answer_next("search", 200, {"offers": [{**fits, **change} for change in changes]})
    assert isinstance(failure(lambda: platform(max_usd_per_h=1.0).create(order())), NoSlots)
    assert vast.asked("create") == 0


def test_the_service_chooses_among_thousands_by_the_card(vast: VastEmulator) -> None:
    cheaper = {**vast.offers[0], "gpu_name": "RTX 3060", "dph_total": 0.01}
    vast.offers += [{**cheaper, "id": number} for number in range(100)]
    assert platform().create(order())["machine_id"] == vast.offers[0]["machine_id"]


def test_cards_of_one_name_are_told_apart_by_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    with VastEmulator(tmp_path, capacity=2, card="NVIDIA A100-SXM4-80GB", word="A100 SXM4") as vast:
        for name, value in vast.environ.items():
            monkeypatch.setenv(name, value)
        vast.offers[0]["gpu_ram"], vast.offers[1]["gpu_ram"] = 40_960, 81_920
        handle = platform(card="NVIDIA A100-SXM4-80GB").create(order())
        assert handle["machine_id"] == vast.offers[1]["machine_id"]


def test_a_bid_is_above_the_least_one_and_never_above_the_cap(vast: VastEmulator) -> None:
    platform(interruptible=True, bid_factor=2.0).create(order())
    platform(interruptible=True, bid_factor=2.0, max_usd_per_h=0.2).create(order(f"{NAME}-2"))
    platform().create(order(f"{NAME}-3"))
    assert [instance.bid for instance in vast.instances] == [0.2, 0.2, None]


def test_an_offer_is_not_a_slot_and_the_next_two_are_tried(vast: VastEmulator) -> None:
    vast.snatched = 2
    assert platform().create(order())["machine_id"] == vast.offers[2]["machine_id"]
    assert vast.asked("create") == 3


def test_no_fourth_offer_is_tried(vast: VastEmulator) -> None:
    vast.snatched = 9
    failed = failure(lambda: platform().create(order()))
    assert isinstance(failed, NoSlots) and "no_such_ask" in str(failed)
    assert vast.asked("create") == 3 and vast.alive() == []


def test_no_places_are_no_slots(vast: VastEmulator) -> None:
    for number in range(4):
        platform().create(order(f"{NAME}-{number}"))
    failed = failure(lambda: platform().create(order(f"{NAME}-5")))
    assert isinstance(failed, NoSlots) and CARD in str(failed)


def test_credit_and_searches_that_are_used_up_park_the_rung(vast: VastEmulator) -> None:
    vast.credit = False
    failed = failure(lambda: platform().create(order()))
    assert isinstance(failed, NoSlots) and "insufficient_credit" in str(failed)
    vast.searches_left = 0
    failed = failure(lambda: platform().create(order()))
    assert isinstance(failed, NoSlots) and "search_quota_exceeded" in str(failed)


# ----------------------------------------------------------------------------------------------- failures

HTML = b"<!doctype html><h1>Bad Gateway</h1>"
REFUSED = {"success": False, "error": "invalid_args", "msg": "no such image"}


@pytest.mark.parametrize("operation", ["search", "create", "list", "destroy", "variables"])
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (500, HTML, Unreachable),
        (502, HTML, Unreachable),
        (503, {"success": False, "msg": "not available"}, Unreachable),
        (504, HTML, Unreachable),
        (429, b"API requests too frequent: endpoint threshold=3.5", Unreachable),
        (400, REFUSED, Rejected),
        (401, {"success": False, "error": "auth_error", "msg": "Invalid user key"}, Rejected),
        (403, b"<h1>403</h1>", Rejected),
        (403, b"<h1>not available in your country</h1>", Rejected),
        (403, b"not available in your country", Rejected),
        (410, b"", Rejected),
        (200, HTML, ProtocolError),
        (200, b"", ProtocolError),
        (200, b"null", ProtocolError),
        (200, b"[]", ProtocolError),
        (200, b'"yes"', ProtocolError),
        (200, b'{"success": tr', ProtocolError),
    ],
)
def test_every_answer_has_its_class(
    vast: VastEmulator, operation: Operation, status: int, body: object, kind: type[LaunchFailed]
) -> None:
    vast.answer_next(operation, status, body)
    failed = failure(lambda: _asking(operation, platform()))
    assert type(failed) is kind, failed
    assert vast.asked(operation) == 1, "one try, ours"
    assert status != 429 or "too frequent" in str(failed)
    if isinstance(failed, Unreachable):
        assert failed.sent is (operation == "create" and status != 429)


@pytest.mark.parametrize(
    ("operation", "body", "kind"),
    [
        ("create", REFUSED, Rejected),
        ("create", {"success": False, "error": "no_such_ask"}, NoSlots),
        ("create", {"success": True}, ProtocolError),
        ("create", {"success": True, "new_contract": None}, ProtocolError),
        ("create", {}, ProtocolError),
        ("list", {"success": False, "msg": "unknown column"}, Rejected),
        ("list", {"success": True}, ProtocolError),
        ("list", {"success": True, "instances": None}, ProtocolError),
        ("list", {"success": True, "instances": [None]}, ProtocolError),
        ("list", {"success": True, "instances": [{"label": NAME}]}, ProtocolError),
        ("destroy", {"success": False, "msg": "still starting"}, Rejected),
        ("destroy", {}, ProtocolError),
        ("search", {"offers": None}, ProtocolError),
        ("search", {"offers": [None]}, ProtocolError),
        ("variables", {"success": True, "secrets": ["A"]}, ProtocolError),
    ],
)
def test_success_is_read_from_the_body(
    vast: VastEmulator, operation: Operation, body: object, kind: type[LaunchFailed]
) -> None:
    for _ in range(3):
        vast.answer_next(operation, 200, body)
    assert type(failure(lambda: _asking(operation, platform()))) is kind


def _asking(operation: Operation, rented: VastPlatform) -> object:
    if operation == "list":
        return rented.find(NAME)
    if operation == "destroy":
        return rented.end({"id": 7, "name": NAME})
    if operation == "variables":
        return rented.unknown_secrets(["A"])
    return rented.create(order())


def test_a_404_that_is_not_the_services_closes_no_bill(vast: VastEmulator) -> None:
    vast.answer_next("destroy", 404, b"<h1>404 page not found</h1>", "text/html")
    assert isinstance(failure(lambda: platform().end({"id": 7, "name": NAME})), ProtocolError)


@pytest.mark.parametrize("operation", ["search", "create", "list", "destroy", "variables"])
def test_a_lost_connection_is_unreachable_and_a_create_may_have_been_heard(
    vast: VastEmulator, operation: Operation
) -> None:
    vast.cut(operation)
    failed = failure(lambda: _asking(operation, platform()))
    assert isinstance(failed, Unreachable) and vast.asked(operation) == 1
    assert failed.sent is (operation == "create"), "nothing else launches"


def test_nobody_there_is_unreachable_and_was_not_heard(
    vast: VastEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    vast.stop()
    failed = failure(lambda: platform().find(NAME))
    assert isinstance(failed, Unreachable) and not failed.sent
    monkeypatch.setenv("VAST_URL", "http://no-such-host.invalid")
    failed = failure(lambda: platform().find(NAME))
    assert isinstance(failed, Unreachable) and not failed.sent


def test_a_call_that_hangs_ends_at_its_deadline(vast: VastEmulator) -> None:
    rented = platform(deadline_s=10.0)
    rented.find(NAME)
    vast.hang("create", applied=True)
    failed = failure(lambda: rented.create(order()))
    assert isinstance(failed, Unreachable) and failed.sent and vast.asked("create") == 1
    assert rented.find(NAME) is not None
    until(lambda: "tenure-sdk vast create" not in {one.name for one in threading.enumerate()})


@pytest.mark.parametrize("cut", [False, True])
def test_a_ghost_create_is_found_by_its_name_and_no_second_one_is_made(
    vast: VastEmulator, cut: bool
) -> None:
    """The SDK's own three tries would have made three."""
    vast.ghost(cut=cut)
    failed = failure(lambda: platform().create(order()))
    assert isinstance(failed, Unreachable) and failed.sent
    assert vast.alive() == [NAME] and vast.asked("create") == 1
    handle = platform().find(NAME)
    assert handle is not None and handle["id"] == vast.instances[0].id
    platform().end(handle)
    assert vast.alive() == []


def test_a_new_instance_that_is_not_listed_yet_can_be_ended(vast: VastEmulator) -> None:
    vast.lag = 1
    handle = platform().create(order())
    assert platform().find(NAME) is None, "an answer, and too early"
    assert platform().find(NAME) == handle
    assert isinstance(platform().end(handle), Pending)


# --------------------------------------------------------------------------------------- credentials, secrets


def test_bad_credentials_are_refused(vast: VastEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VAST_API_KEY", "another")
    failed = failure(lambda: platform().find(NAME))
    assert isinstance(failed, Rejected) and "Invalid user key" in str(failed)


def test_no_credentials_are_refused_in_one_sentence(
    vast: VastEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VAST_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    failed = failure(lambda: platform().find(NAME))
    assert isinstance(failed, Rejected) and "VAST_API_KEY" in str(failed)


@pytest.mark.parametrize("extra", ["\n", " \n"])
def test_a_key_may_end_in_a_newline(vast: VastEmulator, monkeypatch: pytest.MonkeyPatch, extra: str) -> None:  # fmt: skip
    monkeypatch.setenv("VAST_API_KEY", vast.key + extra)
    assert platform().find(NAME) is None


@pytest.mark.parametrize("middle", ["\n", "é", "\u2028", "\x00"])
def test_a_key_that_cannot_be_one_is_refused_and_not_repeated(
    vast: VastEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, middle: str
) -> None:
    monkeypatch.delenv("VAST_API_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    file = tmp_path / ".config" / "vastai" / "vast_api_key"
    file.parent.mkdir(parents=True)
    file.write_text(vast.key)
    assert platform().find(NAME) is None, "the SDK's own file is read"
    file.write_text(f"geheim{middle}geheim")
    failed = failure(lambda: platform().find(NAME))
    assert isinstance(failed, Rejected) and "geheim" not in _everything(failed)


@pytest.mark.parametrize(
    ("operation", "status"),
    [
        ("search", 400),
        ("create", 401),
        ("create", 500),
        ("list", 403),
        ("destroy", 429),
        ("create", 200),
    ],
)
def test_no_failure_repeats_a_secret(vast: VastEmulator, operation: Operation, status: int) -> None:
    """Not even where the service repeats what it was sent, header and all."""
    packet = base64.b64encode(b'{"envelopes": ["https://store/?X-Amz-Signature=0123"]}').decode()
    sent = f"{'.' * 180} {vast.key} {packet if operation == 'create' else ''}"
    told = {"success": False, "error": f"Bearer {vast.key}", "msg": sent}
    vast.answer_next(operation, status, told)
    rented = platform()
    failed = failure(
        lambda: (
            rented.create(order(packet=packet))
            if operation == "create"
            else _asking(operation, rented)
        )
    )
    everything = _everything(failed)
    assert vast.key[:16] not in everything and packet[:16] not in everything, "not even half of it"
    assert "***" in str(failed), "the service did repeat it"


def _everything(error: BaseException) -> str:
    """All that an exception could ever print, and of those it came from."""
    seen, words, next_ = set[int](), "", [error]
    while next_:
        one = next_.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        words += f"{one} {one!r} {one.args} {''.join(traceback.format_exception(one))}"
        next_ += [other for other in (one.__cause__, one.__context__) if other is not None]
    return words


def test_the_key_is_in_one_header_and_nowhere_else(vast: VastEmulator) -> None:
    handle = platform().create(order())
    platform().running("tenure-")
    platform().end(handle)
    assert vast.key not in json.dumps(dict(handle))
    assert vast.requests and not [r for r in vast.requests if vast.key in r.text()]


def test_variables_of_the_account_reach_the_machine_by_their_names_alone(
    vast: VastEmulator,
) -> None:
    vast.account_variables = {"HF_TOKEN": "hf-secret"}
    says = "import os,pathlib; pathlib.Path('said').write_text(os.environ['HF_TOKEN'])"
    platform().create(order(program=says, secrets=("HF_TOKEN",)))
    assert _file(vast.instances[0], "said") == b"hf-secret"
    assert not [request for request in vast.requests if "hf-secret" in request.text()]


def test_a_variable_that_the_account_has_not_is_named(vast: VastEmulator) -> None:
    vast.account_variables = {"HF_TOKEN": "hf-secret"}
    failed = failure(lambda: platform().create(order(secrets=("HF_TOKEN", "WANDB"))))
    assert isinstance(failed, Rejected) and "WANDB" in str(failed) and not vast.alive()
    assert "hf-secret" not in _everything(failed)


# -------------------------------------------------------------------------------------------- what arrives


def _file(instance: Instance, name: str) -> bytes:
    path = instance.machine.folder / name
    until(lambda: (path.exists() and path.read_bytes()) or instance.machine.exit_code)
    assert path.exists(), instance.machine.output()
    return path.read_bytes()


PROGRAM = """
import os, pathlib
text = 'single \\' double " dollar $HOME back `id` \\\\ percent %s tab \\t end\\n\\r\\n\u00fc\u2028'
pathlib.Path("text").write_bytes(text.encode())
pathlib.Path("start").write_text(os.environ["TENURE_START"])
pathlib.Path("own").write_text(os.environ["CONTAINER_ID"])
pathlib.Path("done").write_text("done")
"""


def test_program_and_packet_arrive_unchanged(vast: VastEmulator) -> None:
    packet = base64.b64encode(bytes(range(256)) * 192).decode()
    assert len(packet) == 64 * 1024
    platform().create(order(program=PROGRAM, packet=packet))
    (instance,) = vast.instances
    assert _file(instance, "done") == b"done"
    assert _file(instance, "start").decode() == packet
    assert _file(instance, "own") == b"7000000"
    assert _file(instance, "text").decode() == 'single \' double " dollar $HOME back `id` \\ percent %s tab \t end\n\r\n\u00fc\u2028'  # fmt: skip


def test_what_starts_a_machine_is_short_enough_for_an_onstart(vast: VastEmulator) -> None:
    program = stage_zero.program()
    platform().create(replace(order(packet=""), program=program, shell=stage_zero.shell(program)))
    (instance,) = vast.instances
    until(lambda: not instance.machine.alive)
    assert "$TENURE_START" in instance.machine.output()


def test_an_instance_outlives_its_program_and_ends_itself_by_its_own_key(
    vast: VastEmulator,
) -> None:
    rented = platform()
    rented.create(order(program="print('over')"))
    rented.create(order(f"{NAME}-2"))
    first, second = vast.instances
    until(lambda: not first.machine.alive)
    assert len(vast.alive()) == 2, "it costs although nothing runs there"
    ending, said = rented.ending(), list[str]()
    assert ending is not None and vast.key not in json.dumps(ending)
    others = {**first.environ, "CONTAINER_ID": str(second.id)}
    assert not end_machine(ending, others, said.append, lambda _: None)
    assert len(vast.alive()) == 2 and "403" in said[0]
    assert end_machine(ending, first.environ, said.append, lambda _: None)
    assert vast.alive() == [second.label]


def test_an_instance_that_comes_back_starts_on_the_same_input(vast: VastEmulator) -> None:
    says = "import os,pathlib; pathlib.Path('start').write_text(os.environ['TENURE_START'])"
    handle = platform(interruptible=True).create(order(program=says, packet="c2FtZQ=="))
    (instance,) = vast.instances
    assert _file(instance, "start") == b"c2FtZQ=="
    vast.preempt(instance)
    vast.resume(instance)
    assert _file(instance, "start") == b"c2FtZQ==" and platform().find(NAME) == handle


# ------------------------------------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"card": "NVIDIA RTX 4090"}, "did you mean 'NVIDIA GeForce RTX 4090'"),
        ({"card": "NVIDIA T4"}, "did you mean 'Tesla T4'"),
        ({"card": "H100"}, "did you mean 'NVIDIA H100"),
        ({"card": "cpu"}, "Vast has no 'cpu'"),
        ({"card": CARD, "min_driver": "550"}, "three numbers"),
        ({"card": CARD, "max_usd_per_h": 0}, "max_usd_per_h"),
        ({"card": CARD, "bid_factor": 0.5}, "bid_factor"),
        ({"card": CARD, "disk": 3}, "disk"),
    ],
)
def test_a_mistake_is_one_sentence(config: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as caught:
        VastConfig.model_validate(config)
    assert len(caught.value.errors()) == 1


def test_nothing_is_imported_or_read_before_the_first_call() -> None:
    program = f"""
import sys
from runners.providers.vast import VastConfig, VastPlatform
from tenure_protocol.clock import SYSTEM
VastPlatform(VastConfig(card={CARD!r}), SYSTEM).ending()
print([name for name in ("vastai", "vastai_sdk", "requests", "aiohttp") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env={})  # fmt: skip
    assert done.stdout.strip() == "[]"
