"""Modal's own SDK, unmodified, through our platform against the emulator of Modal."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast, get_type_hints

import pytest
from grpclib import GRPCError, Status
from modal_proto import api_pb2 as pb
from pydantic import ValidationError

from runners.order import Handle, Order, Platform, PlatformKind
from runners.providers.modal import ModalConfig, ModalPlatform
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
from tests import until as waiting
from tests.emulators.modal import (
    CUT,
    HANG,
    TOKEN_ID,
    TOKEN_SECRET,
    Answer,
    Http,
    ModalEmulator,
)

T4 = "Tesla T4"
CARDS = ("cpu", T4)  # Modal has two kinds of sandboxes: without a GPU and with one
SLEEP = "import time; time.sleep(60)"
CREATE = {"cpu": "SandboxCreateV2", T4: "SandboxCreate"}
Make = Callable[..., ModalPlatform]
until = partial(waiting.until, for_s=240.0)


@pytest.fixture
def modal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModalEmulator]:
    with ModalEmulator(tmp_path, T4) as emulator:
        for name, value in emulator.environ.items():
            monkeypatch.setenv(name, value)
        yield emulator


def platform(card: str = "cpu", **keys: object) -> ModalPlatform:
    return ModalPlatform(ModalConfig.model_validate({"card": card, **keys}), SYSTEM)


def order(
    name: str = "tenure-a", program: str = SLEEP, packet: str = "cGFja2V0", **keys: object
) -> Order:
    encoded = base64.b64encode(program.encode()).decode()
    shell = f"echo {encoded} | base64 -d | python3 -"
    return Order(name, program, packet, shell, **{"cards": 1, **keys})  # type: ignore[arg-type]


def closed(one: ModalPlatform, handle: Handle) -> None:
    until(lambda: isinstance(one.end(handle), Closed))


def made(one: ModalPlatform, what: Order) -> Handle:
    """What a runner gets: a handle, or what bears the name when an answer was lost."""
    try:
        return one.create(what)
    except Unreachable as error:
        assert error.sent
        found = one.find(what.name)
        assert found is not None, error
        return found


# ------------------------------------------------------------------------------------ configuration


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"card": "T4"}, "did you mean 'Tesla T4'? It has NVIDIA A10, "),
        ({"card": "NVIDIA T4"}, "did you mean 'Tesla T4'"),
        ({"card": "H100"}, "did you mean 'NVIDIA H100 80GB HBM3'"),
        ({"card": "NVIDIA A100 80GB PCIe"}, "did you mean 'NVIDIA A100-SXM4-80GB'"),
        ({"card": "NVIDIA A10", "cards": 5}, "rents NVIDIA A10 by 1 to 4, not 5"),
        ({"card": T4, "cards": 9}, "rents Tesla T4 by 1 to 8, not 9"),
        ({"card": "cpu", "cards": 2}, "rents cpu by 1, not 2"),
        ({"card": "cpu", "session_s": 90_000.0}, "lives at most 24 hours"),
        ({"card": "cpu", "python": "3.10"}, "'3.11' or a later series, not '3.10'"),
        ({"card": "cpu", "app": "my app"}, "not 'my app'"),
        ({"card": "cpu", "cpu_cores": 0.0}, "greater than 0"),
        ({"card": "cpu", "zone": "eu"}, "Extra inputs are not permitted"),
    ],
)
def test_a_mistake_in_the_configuration_is_named_in_a_sentence(
    keys: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        ModalConfig.model_validate(keys)
    assert words in str(caught.value)


def test_it_is_a_platform_kind() -> None:
    assert not {name for name in get_type_hints(PlatformKind) if not hasattr(ModalPlatform, name)}
    one: Platform = platform()
    assert one.quota() is None and one.ending() is None


def test_neither_the_import_nor_a_platform_imports_the_sdk() -> None:
    code = """
        import sys
        from runners.providers.modal import ModalConfig, ModalPlatform
        from tenure_protocol.clock import SYSTEM
        ModalPlatform(ModalConfig(card="cpu"), SYSTEM)
        assert not {"modal", "modal_proto", "grpclib"} & set(sys.modules)
    """
    path = os.pathsep.join([".", "worker"])
    environ = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ)


# ------------------------------------------------------------------------------------------ launch


@pytest.mark.parametrize("card", CARDS)
def test_program_packet_and_secrets_arrive_unchanged(modal: ModalEmulator, card: str) -> None:
    modal.named_secrets = {"mine": {"MY_KEY": "a 'value'\nwith \"all\" of $it"}}
    program = textwrap.dedent(
        """
        # 'single', "double", `back`, $HOME, \\n, é, and a tab:\t.
        import json, os
        text = '''two
        lines'''
        kept = [os.environ["TENURE_START"], os.environ["MY_KEY"], text]
        open("out.part", "w").write(json.dumps(kept)); os.rename("out.part", "out")
        """
    )
    packet = base64.b64encode(os.urandom(49_152)).decode()
    assert len(packet) == 65_536
    one = platform(card, secrets=["mine"])
    handle = one.create(order("tenure-a", program, packet, secrets=("mine",)))
    folder = modal.machines.all[0].folder
    until((folder / "out").exists)
    lines = json.loads((folder / "out").read_text())
    assert lines == [packet, modal.named_secrets["mine"]["MY_KEY"], "two\nlines"]
    closed(one, handle)
    assert not any(b"MY_KEY" in request.body for request in modal.requests)


@pytest.mark.parametrize(
    ("card", "gpu"), [("cpu", ""), (T4, "T4"), ("NVIDIA H100 80GB HBM3", "H100!")]
)
def test_what_a_sandbox_is_asked_to_be(modal: ModalEmulator, card: str, gpu: str) -> None:
    cards = 1 if card == "cpu" else 4
    one = platform(
        card, cards=cards, session_s=3_600.0, region="eu-west", cpu_cores=2, memory_mib=4_096
    )
    one.create(order(cards=cards))
    asked = modal.box("tenure-a")
    assert asked.definition.name == "tenure-a" and asked.tags == {"tenure": "tenure-a"}
    assert asked.definition.timeout_secs == 3_600
    assert list(asked.definition.scheduler_placement.regions) == ["eu-west"]
    resources = asked.definition.resources
    assert resources.gpu_config.gpu_type == gpu
    assert resources.gpu_config.count == (cards if gpu else 0)
    assert (resources.milli_cpu, resources.memory_mb) == (2_000, 4_096)
    assert asked.definition.network_access.network_access_type == pb.NetworkAccess.OPEN


def test_the_image_is_built_by_the_lock_and_holds_nothing_else(
    modal: ModalEmulator, tmp_path: Path
) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("numpy==2.4.0 --hash=sha256:00\n")
    platform(python="3.12").create(order(lock=lock))
    base, image = modal.images
    assert base.dockerfile_commands[0].startswith("FROM python:3.12")
    assert [file.data for file in image.context_files] == [lock.read_bytes()]
    assert list(image.dockerfile_commands)[-1] == "RUN python -m pip install -r /.requirements.txt"
    assert not image.context_mount_id and not modal.box("tenure-a").definition.mount_ids


def test_without_a_lock_the_image_is_the_plain_one(modal: ModalEmulator) -> None:
    platform().create(order())
    assert len(modal.images) == 1 and not modal.images[0].context_files


def test_an_image_that_is_still_being_built_is_there_later(modal: ModalEmulator) -> None:
    modal.build_s = 8.0
    one = platform(deadline_s=4.0)
    until(lambda: not _fails(lambda: one.running("")))  # imports the SDK
    with pytest.raises(Unreachable, match="nothing was launched") as caught:
        one.create(order())
    assert not caught.value.sent and not modal.sandboxes
    until(lambda: not _fails(lambda: one.create(order())))
    assert len(modal.sandboxes) == 1


def _fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unreachable:
        return True
    return False


def test_an_image_that_cannot_be_built_is_refused(modal: ModalEmulator) -> None:
    failed = pb.GenericResult(
        status=pb.GenericResult.GENERIC_STATUS_FAILURE, exception="no such version: nunpy"
    )
    modal.answer("ImageGetOrCreate", pb.ImageGetOrCreateResponse(image_id="im-1", result=failed))
    with pytest.raises(Rejected, match="no such version: nunpy"):
        platform().create(order())
    assert not modal.sandboxes


def test_an_image_that_does_not_start_is_refused(modal: ModalEmulator) -> None:
    modal.broken_image = "exec format error"
    with pytest.raises(Rejected, match="exec format error"):
        platform(T4).create(order())
    assert platform(T4).find("tenure-a") is None and not modal.alive()


def test_a_secret_that_is_not_there_is_refused_by_its_name(modal: ModalEmulator) -> None:
    with pytest.raises(Rejected, match="'wandb' not found"):
        platform().create(order(secrets=("wandb",)))
    assert not modal.sandboxes


@pytest.mark.parametrize("card", CARDS)
def test_a_second_create_under_a_name_adopts(modal: ModalEmulator, card: str) -> None:
    first = platform(card).create(order())
    assert made(platform(card), order()) == first
    assert len(modal.sandboxes) == 1 and modal.alive() == ["tenure-a"]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(
    ("answer", "honours_keys"),
    [(CUT, True), (Http(504), True), (Http(504), False), (Status.UNAVAILABLE, False)],
)
def test_a_ghost_create_is_found_by_its_name(
    modal: ModalEmulator, card: str, answer: Answer, honours_keys: bool
) -> None:
    """All four tries of the SDK are applied and lost, or only the first is."""
    modal.ghost_answer, modal.honours_keys = answer, honours_keys
    modal.ghosts = 4 if honours_keys else 1
    one = platform(card)
    handle = made(one, order())
    assert handle == one.find("tenure-a") == {"sandbox": modal.box("tenure-a").id}
    assert len(modal.machines.all) == 1
    keys = {request.headers["x-idempotency-key"] for request in modal.asked(CREATE[card])}
    assert len(keys) == 1


def test_a_ghost_is_ambiguous(modal: ModalEmulator) -> None:
    modal.ghosts = 4
    with pytest.raises(Unreachable, match="create a sandbox: planned UNAVAILABLE") as caught:
        platform().create(order())
    assert caught.value.sent and modal.alive() == ["tenure-a"]


def test_a_create_that_waits_for_a_gpu_is_bounded_and_found_by_its_name(
    modal: ModalEmulator,
) -> None:
    modal.capacity, modal.queues = 0, True
    one = platform(T4, deadline_s=10.0)
    one.running("")  # imports the SDK
    handle = made(one, order())
    assert modal.asked("SandboxGetTaskId") and not modal.machines.all
    assert dict(one.running("tenure-")) == {"tenure-a": handle}
    modal.capacity = 1
    until(lambda: modal.machines.all)
    assert one.find("tenure-a") == handle
    closed(one, handle)


def test_one_that_waits_for_a_gpu_can_be_ended(modal: ModalEmulator) -> None:
    modal.capacity, modal.queues = 0, True
    one = platform(T4, deadline_s=10.0)
    one.running("")
    closed(one, made(one, order()))
    modal.capacity = 1
    asked = len(modal.asked("SandboxGetTaskId"))
    until(lambda: len(modal.asked("SandboxGetTaskId")) > asked)  # the SDK still waits for it
    assert one.find("tenure-a") is None and not modal.machines.all


def test_one_that_waits_for_a_gpu_outlives_the_process_that_asked(modal: ModalEmulator) -> None:
    """The SDK terminates what it waits for when the wait is cut short; leaving is no such thing."""
    modal.capacity, modal.queues = 0, True
    code = """
        from runners.order import Order
        from runners.providers.modal import ModalConfig, ModalPlatform
        from tenure.dispatch.contract import Unreachable
        from tenure_protocol.clock import SYSTEM
        ModalPlatform(ModalConfig(card="Tesla T4"), SYSTEM).find("tenure-b")
        one = ModalPlatform(ModalConfig(card="Tesla T4", deadline_s=10.0), SYSTEM)
        try:
            one.create(Order("tenure-a", "", "cGFja2V0", "sleep 60", 1))
        except Unreachable:
            print(one.find("tenure-a")["sandbox"])
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([".", "worker"])}
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, env=environ, capture_output=True
    )
    assert told.stdout.decode().strip() == modal.box("tenure-a").id
    assert modal.alive() == ["tenure-a"] and not modal.asked("SandboxTerminate")


# ---------------------------------------------------------------------------------------- failures


@dataclass(frozen=True)
class Case:
    """One call of a verb whose answer is a failure."""

    verb: str
    operation: str
    answer: Answer
    failure: type[LaunchFailed]
    tries: int
    card: str = "cpu"

    def __str__(self) -> str:
        answer = self.answer
        if isinstance(answer, Http):
            answer = f"http {answer.status} {len(answer.body)}"
        return f"{self.verb}-{self.operation}-{answer}"

    def call(self, one: ModalPlatform) -> object:
        if self.verb == "create":
            return one.create(order())
        if self.verb == "find":
            return one.find("tenure-a")
        return one.end({"sandbox": "sb-1"}) if self.verb == "end" else one.running("")


# The SDK tries four times where the answer may have been lost.
CREATES: list[tuple[Answer, type[LaunchFailed], int]] = [
    (Status.RESOURCE_EXHAUSTED, NoSlots, 1),
    (Status.UNAVAILABLE, Unreachable, 4),
    (Status.DEADLINE_EXCEEDED, Unreachable, 4),
    (Status.UNKNOWN, Unreachable, 4),
    (Status.INTERNAL, Unreachable, 4),
    (Status.CANCELLED, Unreachable, 4),
    (Status.ABORTED, Unreachable, 1),
    (Status.ALREADY_EXISTS, Unreachable, 1),  # an earlier try's: whoever looks finds it
    (Status.UNAUTHENTICATED, Rejected, 1),
    (Status.PERMISSION_DENIED, Rejected, 1),
    (Status.INVALID_ARGUMENT, Rejected, 1),
    (Status.NOT_FOUND, Rejected, 1),
    (Status.FAILED_PRECONDITION, Rejected, 1),
    (Status.UNIMPLEMENTED, ProtocolError, 1),
    (Status.DATA_LOSS, ProtocolError, 1),
    (CUT, Unreachable, 4),
    (Http(200), Unreachable, 4),  # a sign-in page
    (Http(429, b"slow down", "text/plain"), Unreachable, 4),
    (Http(503), Unreachable, 4),
    (Http(401), Rejected, 1),
    (Http(403), Rejected, 1),
    (Http(404), ProtocolError, 1),
    (Http(200, b"\x00garbage", "application/grpc+proto"), ProtocolError, 1),
    (Http(200, b"\x00\x00\x00\x00\x02\xff\xff", "application/grpc+proto"), ProtocolError, 1),
    (HANG, Unreachable, 1),
]
OTHERS: list[tuple[Answer, type[LaunchFailed], int]] = [
    (Status.UNAVAILABLE, Unreachable, 4),
    (Status.UNAUTHENTICATED, Rejected, 1),
    (Status.RESOURCE_EXHAUSTED, NoSlots, 1),  # a rate limit
    (Http(200), Unreachable, 4),
    (Http(404), ProtocolError, 1),
    (CUT, Unreachable, 4),
    (HANG, Unreachable, 1),
]
ASKS = [
    ("find", "SandboxGetFromNameV2"),
    ("find", "SandboxGetFromName"),
    ("end", "SandboxWaitV2"),
    ("running", "AppGetOrCreate"),
    ("running", "SandboxListV2"),
]
CASES = [
    *(Case("create", CREATE[card], *row, card) for card in CARDS for row in CREATES),
    *(Case(verb, operation, *row) for verb, operation in ASKS for row in OTHERS),
]
Outcomes = dict[Case, tuple[LaunchFailed | None, ModalEmulator]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """All cases at once, each with an emulator of its own: the SDK's pauses add up to a minute."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        ready: list[tuple[Case, ModalPlatform, ModalEmulator]] = []
        for case in CASES:
            emulator = stack.enter_context(ModalEmulator(tmp_path_factory.mktemp("modal")))
            emulator.apps["tenure"] = "ap-1"
            for name, value in emulator.environ.items():
                patch.setenv(name, value)
            one = platform(case.card, deadline_s=8.0 if case.answer == HANG else 60.0)
            one.find("tenure-b")  # opens its client
            emulator.requests.clear()
            emulator.answer(case.operation, case.answer, case.tries)
            ready.append((case, one, emulator))
        with ThreadPoolExecutor(len(ready)) as pool:
            failures = list(pool.map(lambda row: _failure(row[0], row[1]), ready))
        yield {row[0]: (failure, row[2]) for row, failure in zip(ready, failures, strict=True)}


def _failure(case: Case, one: ModalPlatform) -> LaunchFailed | None:
    try:
        case.call(one)
    except LaunchFailed as error:
        return error
    return None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_failure_has_its_class(outcomes: Outcomes, case: Case) -> None:
    """Above all none is taken for absence, for an end, or for a machine."""
    failure, emulator = outcomes[case]
    assert type(failure) is case.failure
    asked = emulator.asked(case.operation)
    assert len({request.headers["x-idempotency-key"] for request in asked}) == 1
    assert len(asked) == case.tries
    if case.verb == "create" and isinstance(failure, Unreachable):
        assert failure.sent


def test_a_success_without_an_id_is_none(modal: ModalEmulator) -> None:
    one = platform()
    modal.answer("SandboxCreateV2", pb.SandboxCreateV2Response())
    modal.answer("SandboxGetFromNameV2", pb.SandboxGetFromNameResponse())
    calls: list[Callable[[], object]] = [lambda: one.create(order()), lambda: one.find("tenure-a")]
    for call in calls:
        with pytest.raises(ProtocolError):
            call()


def test_no_slots_and_then_one(modal: ModalEmulator) -> None:
    modal.capacity = 1
    one = platform()
    first = one.create(order("tenure-a"))
    with pytest.raises(NoSlots):
        one.create(order("tenure-b"))
    closed(one, first)
    one.create(order("tenure-b"))
    assert modal.alive() == ["tenure-b"]


def test_a_used_up_quota_is_no_slots(modal: ModalEmulator) -> None:
    modal.quota_gone = True
    with pytest.raises(NoSlots, match="spend limit"):
        platform(T4).create(order())


def test_a_server_that_says_when_to_come_again_is_not_waited_for(modal: ModalEmulator) -> None:
    later = pb.RPCRetryPolicy(retry_after_secs=600.0)
    limited = GRPCError(Status.RESOURCE_EXHAUSTED, "Rate limit exceeded", [later])
    modal.answer("SandboxCreateV2", limited)
    with pytest.raises(NoSlots, match="Rate limit exceeded"):
        platform(deadline_s=20.0).create(order())


def test_wrong_credentials_are_refused(
    modal: ModalEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-of-another-account")
    one = platform()
    calls: list[Callable[[], object]] = [
        lambda: one.create(order()),
        lambda: one.find("tenure-a"),
        lambda: one.end({"sandbox": "sb-1"}),
        lambda: one.running(""),
    ]
    for call in calls:
        with pytest.raises(Rejected, match="Token validation failed"):
            call()


def test_without_credentials_it_says_which_to_set(
    modal: ModalEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    with pytest.raises(Rejected, match="set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
        platform().find("tenure-a")
    assert not modal.requests


def test_no_secret_is_in_a_failure_or_in_a_handle(modal: ModalEmulator) -> None:
    echo = GRPCError(Status.INVALID_ARGUMENT, f"bad request by {TOKEN_ID} {TOKEN_SECRET}")
    modal.answer("SandboxCreateV2", echo)
    with pytest.raises(Rejected) as caught:
        platform().create(order())
    error: BaseException = caught.value
    told = "".join([str(error), repr(error), *traceback.format_exception(error)])
    assert "bad request by ***" in told
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    assert TOKEN_SECRET not in told + repr(error.__context__) and TOKEN_ID not in told
    handle = platform().create(order())
    assert set(handle) == {"sandbox"} and TOKEN_SECRET not in repr(handle)


def test_a_token_is_sent_as_a_header_and_nowhere_else(modal: ModalEmulator) -> None:
    one = platform(T4)
    closed(one, one.create(order()))
    one.running("")
    for request in modal.requests:
        others = {k: v for k, v in request.headers.items() if not k.startswith("x-modal-token-")}
        assert TOKEN_SECRET not in f"{request.path} {others}"
        assert TOKEN_SECRET.encode() not in request.body
    assert modal.requests[0].headers["x-modal-token-secret"] == TOKEN_SECRET


# ------------------------------------------------------------------------------------- find and end


def test_absence_is_told_by_a_well_formed_answer(modal: ModalEmulator) -> None:
    assert platform().find("tenure-a") is None
    one = platform()
    one.create(order("tenure-b"))
    assert one.find("tenure-a") is None and one.find("tenure-b") is not None


@pytest.mark.parametrize("card", CARDS)
def test_ending_twice_is_ending_once(modal: ModalEmulator, card: str) -> None:
    one = platform(card)
    handle = one.create(order())
    closed(one, handle)
    assert isinstance(one.end(handle), Closed) and isinstance(platform().end(handle), Closed)
    assert one.find("tenure-a") is None and modal.alive() == []
    assert modal.billed()["tenure-a"] == modal.billed()["tenure-a"] > 0


def test_an_end_that_takes_its_time_is_pending(modal: ModalEmulator) -> None:
    one = platform()
    handle = one.create(Order("tenure-a", "", "", "trap '' 15; echo deaf; sleep 60", 1))
    until(lambda: "deaf" in modal.machines.all[0].output())
    assert isinstance(one.end(handle), Pending) and modal.alive() == ["tenure-a"]
    assert one.find("tenure-a") == handle
    modal.machines.vanish(modal.machines.all[0])
    assert isinstance(one.end(handle), Closed)


@pytest.mark.parametrize("ident", ["sb-1234567890123456789012", "sb-of-another-shape"])
def test_an_unknown_sandbox_is_closed(modal: ModalEmulator, ident: str) -> None:
    assert isinstance(platform().end({"sandbox": ident}), Closed)


def test_what_is_no_handle_closes_nothing(modal: ModalEmulator) -> None:
    with pytest.raises(ProtocolError, match="no handle"):
        platform().end({"pod": "sb-1"})


def test_a_sandbox_that_is_said_to_have_ended_is_ended_all_the_same(modal: ModalEmulator) -> None:
    one = platform()
    handle = one.create(order())
    modal.lies = 2
    assert isinstance(one.end(handle), Closed | Pending)
    until(lambda: not modal.alive())


def test_a_sandbox_that_is_said_to_run_is_asked_again(modal: ModalEmulator) -> None:
    one = platform()
    handle = one.create(order(program="pass"))
    until(lambda: not modal.alive())
    modal.lies = 2
    assert isinstance(one.end(handle), Pending)
    assert isinstance(one.end(handle), Closed)


@pytest.mark.parametrize("card", CARDS)
def test_a_program_that_ends_ends_its_machine(modal: ModalEmulator, card: str) -> None:
    one = platform(card)
    handle = one.create(order(program="raise SystemExit(3)"))
    until(lambda: not modal.alive())
    assert one.end(handle) == Closed("the sandbox has ended with exit code 3")
    assert one.running("") == [] and one.find("tenure-a") is None


def test_a_sandbox_ends_at_its_wall(modal: ModalEmulator) -> None:
    modal.lives_s = 0.2
    one = platform(T4)
    handle = one.create(order())
    until(lambda: not modal.alive())
    assert one.end(handle) == Closed("the sandbox has ended with exit code 124")


def test_a_preempted_sandbox_is_gone(modal: ModalEmulator) -> None:
    one = platform()
    handle = one.create(order())
    modal.preempt("tenure-a")
    assert one.find("tenure-a") is None and one.running("") == []
    assert isinstance(one.end(handle), Closed)


def test_a_sandbox_restarted_on_the_same_input_is_the_same(modal: ModalEmulator) -> None:
    one = platform()
    handle = one.create(order())
    modal.preempt("tenure-a", restart=True)
    assert one.find("tenure-a") == handle and len(modal.machines.all) == 2
    closed(one, handle)
    assert modal.alive() == []


# ----------------------------------------------------------------------------------------- running


def test_running_lists_both_kinds_over_all_pages(modal: ModalEmulator) -> None:
    modal.page = 2
    handles = {}
    for number in range(5):
        name = f"tenure-{number}"
        handles[name] = platform(CARDS[number % 2]).create(order(name))
    one = platform()
    one.create(order("other-1"))
    gone = one.create(order("tenure-9", "pass"))
    until(lambda: "tenure-9" not in modal.alive())
    found = one.running("tenure-")
    assert dict(found) == handles and len(found) == 5
    assert gone not in dict(found).values()
    assert [name for name, _ in one.running("tenure-3")] == ["tenure-3"]
    assert len(modal.asked("SandboxListV2")) >= 4


def test_nothing_runs_in_an_app_that_nobody_made(modal: ModalEmulator) -> None:
    assert platform(app="somebody-elses").running("") == []
    (asked,) = modal.asked("AppGetOrCreate")
    assert pb.AppGetOrCreateRequest.FromString(asked.body).object_creation_type == 0


def test_a_sandbox_of_somebody_else_in_the_app_is_not_ours(modal: ModalEmulator) -> None:
    one = platform()
    one.create(order())
    box = modal.box("tenure-a")
    box.tags = {}
    assert one.running("") == [] and one.running("tenure-") == []


def test_one_that_ends_while_it_is_listed_is_left_out(modal: ModalEmulator) -> None:
    one = platform()
    one.create(order())
    modal.answer("SandboxTagsGetV2", Status.NOT_FOUND)
    assert one.running("") == []
    assert [name for name, _ in one.running("")] == ["tenure-a"]


def test_an_environment_is_asked_for_by_its_name(modal: ModalEmulator) -> None:
    one = platform(environment="lab")
    one.create(order())
    one.find("tenure-a")
    for operation, kind in (
        ("AppGetOrCreate", pb.AppGetOrCreateRequest),
        ("SandboxGetFromNameV2", pb.SandboxGetFromNameRequest),
    ):
        for request in modal.asked(operation):
            asked = cast(pb.AppGetOrCreateRequest, kind.FromString(request.body))
            assert asked.environment_name == "lab"
