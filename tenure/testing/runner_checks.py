"""What every runner must do, as plain functions: run them over a plug-in of your own.

Each check takes ``make`` (a new runner over the same platform) and ``job`` (a launchable job).
"""

from __future__ import annotations

from collections.abc import Callable

from tenure.dispatch.contract import Closed, Job, Receipt, Runner
from tenure_protocol.clock import SYSTEM

Make = Callable[[], Runner]
MakeJob = Callable[[], Job]
Check = Callable[[Make, MakeJob], None]


def until_closed(runner: Runner, receipt: Receipt, for_s: float = 30.0) -> None:
    """Ask for release until the bill is closed."""
    end_s = SYSTEM.monotonic_s() + for_s
    while not isinstance(settlement := runner.release(receipt), Closed):
        assert SYSTEM.monotonic_s() < end_s, f"still {settlement}"
        SYSTEM.sleep(0.05)


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
    until_closed(runner, first)


def check_release_is_idempotent(make: Make, job: MakeJob) -> None:
    """A closed bill stays closed."""
    runner = make()
    receipt = runner.launch([job()])
    until_closed(runner, receipt)
    assert isinstance(runner.release(receipt), Closed)
    assert isinstance(make().release(receipt), Closed)


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


ALL: tuple[Check, ...] = (
    check_a_launch_gives_a_receipt_for_its_job,
    check_the_same_launch_twice_is_one,
    check_release_is_idempotent,
    check_release_of_an_unknown_name_is_closed,
    check_a_launch_is_found_by_its_name,
)
