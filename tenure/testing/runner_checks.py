"""What every runner must do, as plain functions: run them over a plug-in of your own.

Each check takes ``make`` (a new runner over the same platform) and ``job`` (a launchable job). Those of
:data:`FAULTS` take also ``fault``, which makes the platform fail in one of the ways of :data:`Fault`
for as long as a ``with`` block lasts; a platform that cannot fail so is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal

from tenure.dispatch.contract import (
    Closed,
    Job,
    LaunchFailed,
    ListsItsOwn,
    NoSlots,
    Pending,
    ProtocolError,
    Receipt,
    Rejected,
    Runner,
    Unreachable,
)
from tenure_protocol.clock import SYSTEM

Make = Callable[[], Runner]
MakeJob = Callable[[], Job]
Check = Callable[[Make, MakeJob], None]
Fault = Literal["no slots", "quota gone", "bad credentials", "hang", "garbage", "ghost"]
MakeFault = Callable[[Fault], AbstractContextManager[None]]
FaultCheck = Callable[[Make, MakeJob, MakeFault], None]


def until_closed(runner: Runner, receipt: Receipt, for_s: float = 60.0) -> None:
    """Ask for release until the bill is closed."""
    end_s = SYSTEM.monotonic_s() + for_s
    while not isinstance(settlement := runner.release(receipt), Closed):
        assert SYSTEM.monotonic_s() < end_s, f"still {settlement}"
        SYSTEM.sleep(0.05)


def _nothing_runs(runner: Runner, name: str) -> None:
    """Where the platform lists what it runs, nothing under the name is among it."""
    if isinstance(runner, ListsItsOwn):
        found = [receipt.name for receipt in runner.running(name)]
        assert not found, f"{found} still run"


def check_a_launch_gives_a_receipt_for_its_job(make: Make, job: MakeJob) -> None:
    """The receipt names the job and the launch."""
    one = job()
    runner = make()
    receipt = runner.launch([one])
    assert receipt.jobs == (one.job_id,) and receipt.name == one.name
    until_closed(runner, receipt)


def check_the_same_launch_twice_is_one(make: Make, job: MakeJob) -> None:
    """A second launch under one name adopts what the first made."""
    one = job()
    runner = make()
    first, second = runner.launch([one]), runner.launch([one])
    assert first.handle == second.handle
    if isinstance(runner, ListsItsOwn):
        assert [receipt.name for receipt in runner.running(one.name)] == [one.name]
    until_closed(runner, first)
    _nothing_runs(runner, one.name)


def check_release_is_idempotent(make: Make, job: MakeJob) -> None:
    """A closed bill stays closed."""
    runner = make()
    receipt = runner.launch([job()])
    until_closed(runner, receipt)
    assert isinstance(runner.release(receipt), Closed)
    assert isinstance(make().release(receipt), Closed)
    _nothing_runs(runner, receipt.name)


def check_release_of_an_unknown_name_is_closed(make: Make, job: MakeJob) -> None:
    """Nothing was launched under that name, so there is nothing to pay for."""
    unknown = Receipt(("j",), "here", job().name, "cpu", 0.0)
    assert isinstance(make().release(unknown), Closed)


def check_a_launch_is_found_by_its_name(make: Make, job: MakeJob) -> None:
    """A dispatcher that died before it kept the receipt leaves nothing running."""
    one = job()
    made = make().launch([one])
    until_closed(make(), Receipt(made.jobs, made.runner, one.name, made.card, 0.0))
    assert isinstance(make().release(made), Closed)
    _nothing_runs(make(), one.name)


# ------------------------------------------------------------------------------ when it fails


def _failure(runner: Runner, job: Job) -> LaunchFailed:
    try:
        receipt = runner.launch([job])
    except LaunchFailed as error:
        return error
    raise AssertionError(f"it was launched all the same: {receipt}")


def check_no_slots_parks(make: Make, job: MakeJob, fault: MakeFault) -> None:
    """A platform that is full says so in the one class that costs no budget; nothing is left behind."""
    runner, one = make(), job()
    with fault("no slots"):
        assert isinstance(_failure(runner, one), NoSlots)
    _nothing_runs(runner, one.name)


def check_a_quota_that_is_gone_parks(make: Make, job: MakeJob, fault: MakeFault) -> None:
    """So does one whose quota is used up."""
    runner, one = make(), job()
    with fault("quota gone"):
        assert isinstance(_failure(runner, one), NoSlots)
    _nothing_runs(runner, one.name)


def check_bad_credentials_are_rejected(make: Make, job: MakeJob, fault: MakeFault) -> None:
    """Credentials of nobody are refused at once, in one sentence, and close nothing."""
    runner, one = make(), job()
    receipt = runner.launch([one])
    with fault("bad credentials"):
        anew = make()
        error = _failure(anew, job())
        assert isinstance(error, Rejected) and str(error) and "\n" not in str(error)
        assert isinstance(anew.release(receipt), Pending)
    until_closed(make(), receipt)


def check_a_platform_that_hangs_is_unreachable(make: Make, job: MakeJob, fault: MakeFault) -> None:
    """A call that never ends is given up at its deadline, and nobody is declared gone by it."""
    runner, one = make(), job()
    receipt = runner.launch([one])
    with fault("hang"):
        assert isinstance(_failure(make(), job()), Unreachable)
        assert isinstance(make().release(receipt), Pending)
    until_closed(make(), receipt)
    _nothing_runs(make(), one.name)


def check_garbage_proves_nothing(make: Make, job: MakeJob, fault: MakeFault) -> None:
    """An answer that is none is neither a launch nor an end."""
    runner, one = make(), job()
    receipt = runner.launch([one])
    with fault("garbage"):
        assert isinstance(_failure(make(), job()), (ProtocolError, Unreachable, Rejected))
        assert isinstance(make().release(receipt), Pending)
    until_closed(make(), receipt)
    _nothing_runs(make(), one.name)


def check_what_was_created_though_the_call_failed_is_found(
    make: Make, job: MakeJob, fault: MakeFault
) -> None:
    """A lost answer costs no job and leaves no second machine."""
    runner, one = make(), job()
    with fault("ghost"):
        try:
            runner.launch([one])
        except (Unreachable, ProtocolError) as error:
            assert not isinstance(error, Unreachable) or error.sent
    receipt = make().launch([one])  # adopts
    if isinstance(runner, ListsItsOwn):
        assert [found.name for found in runner.running(one.name)] == [one.name]
    until_closed(runner, receipt)
    _nothing_runs(runner, one.name)


ALL: tuple[Check, ...] = (
    check_a_launch_gives_a_receipt_for_its_job,
    check_the_same_launch_twice_is_one,
    check_release_is_idempotent,
    check_release_of_an_unknown_name_is_closed,
    check_a_launch_is_found_by_its_name,
)

FAULTS: tuple[FaultCheck, ...] = (
    check_no_slots_parks,
    check_a_quota_that_is_gone_parks,
    check_bad_credentials_are_rejected,
    check_a_platform_that_hangs_is_unreachable,
    check_garbage_proves_nothing,
    check_what_was_created_though_the_call_failed_is_found,
)
