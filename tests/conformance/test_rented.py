"""The suite that every runner must pass, over the five platforms: real SDKs, emulated services, real S3 and STS.

The machines run a program that sleeps instead of stage 0: what starts a job is tested elsewhere
(``test_machine_program``), and all of it together in ``tests/e2e/test_five_platforms.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from runners import rented
from runners.rented import RentedRunner
from tenure.dispatch.contract import Job, Rejected
from tenure.dispatch.loop import launch_name
from tenure.plan.enlist import enlist
from tenure.testing import runner_checks
from tenure.testing.runner_checks import Fault
from tenure_protocol.clock import SYSTEM
from tenure_protocol.records import JobSpec
from tenure_protocol.store.open import open_store
from tenure_worker import code
from tests import seaweed_iam
from tests.emulators.accounts import ACCOUNTS, Account, opened
from tests.seaweed_iam import ROLE, SeaweedIam

CHECKOUT = Path(__file__).resolve().parents[2]
ENTRY = "tests.e2e.quick.experiment:Quick"
SLEEP = "import time; time.sleep(600)"
_numbers = itertools.count()


@pytest.fixture(scope="module", params=ACCOUNTS, ids=lambda kind: kind.kind)
def account(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Account]:
    with opened(request.param, tmp_path_factory.mktemp(request.param.kind)) as one:
        yield one


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rented.stage_zero, "program", lambda: SLEEP)


def maker(account: Account, **keys: object) -> Callable[[], RentedRunner]:
    return lambda: account.make(CHECKOUT, role=ROLE, **keys)


def job_in(server: SeaweedIam, cards: int = 1) -> Callable[[], Job]:
    """Enlists one job after the other, each launched for the first time."""
    url = server.url("rented")
    store = open_store(url)
    digest, data = code.code_digest(ENTRY), code.data_digest(object())  # type: ignore[arg-type]

    def job() -> Job:
        seed = next(_numbers)
        spec = JobSpec(
            "rented", "train", "training", ENTRY, {"level": 1.0}, seed, 1, digest, data, 10,
            cards=cards,
        )  # fmt: skip
        enlist(store, "rented", "rented", [spec], {"rungs": []}, SYSTEM)
        return Job(spec.id, spec.kind, 1, launch_name(url, spec.id, 1), url, cards)

    return job


@pytest.mark.usefixtures("asleep")
@pytest.mark.parametrize("check", runner_checks.ALL, ids=lambda check: check.__name__)
def test_every_runner(account: Account, iam: SeaweedIam, check: runner_checks.Check) -> None:
    check(maker(account), job_in(iam))
    assert not account.alive()


@pytest.mark.usefixtures("asleep")
@pytest.mark.parametrize("check", runner_checks.FAULTS, ids=lambda check: check.__name__)
def test_every_runner_when_its_platform_fails(
    account: Account, iam: SeaweedIam, check: runner_checks.FaultCheck
) -> None:
    hung = False

    def make() -> RentedRunner:
        return account.make(CHECKOUT, role=ROLE, deadline_s=2.0 if hung else 30.0)

    @contextmanager
    def fault(kind: runner_checks.Fault) -> Iterator[None]:
        nonlocal hung
        with account.fault(kind):
            hung = kind == "hang"
            yield
            hung = False

    check(make, job_in(iam), fault)
    assert not account.alive()


@pytest.mark.usefixtures("asleep")
def test_no_request_to_a_platform_holds_a_secret(account: Account, iam: SeaweedIam) -> None:
    user = "the user's own \" value' \\ \n"
    runner = account.make(CHECKOUT, role=ROLE, variables={"MINE": user})
    seen: dict[str, str] = {}
    real = rented.grant

    def watched(*args: object) -> object:
        granted = real(*args)  # type: ignore[arg-type]
        seen.update(granted.variables)
        return granted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rented, "grant", watched)
        receipt = runner.launch([job_in(iam)()])
    runner_checks.until_closed(runner, receipt)
    secrets = [
        seen["AWS_SECRET_ACCESS_KEY"], seen["AWS_SESSION_TOKEN"], seaweed_iam.OPERATOR[1], user,
        *(value for name, value in account.environ.items() if name in runner.SECRET_VARIABLES),
    ]  # fmt: skip
    users = account.environ.get("KAGGLE_USERNAME"), account.environ.get("LIGHTNING_USER_ID")
    secrets = [secret for secret in secrets if secret not in (*users, "ak-of-the-emulator")]
    sent = [(path, body) for path, body in account.sent()]
    assert any(b"TENURE_START" in body or b"echo " in body for _, body in sent)
    for path, body in sent:
        for secret in secrets:
            assert secret not in path and secret.encode() not in body, path
    assert not any(secret in repr(receipt) for secret in secrets)


@pytest.mark.usefixtures("asleep")
def test_several_jobs_on_one_machine_are_one_order(account: Account, iam: SeaweedIam) -> None:
    runner, job = account.make(CHECKOUT, role=ROLE), job_in(iam)
    capacity = runner.capacity(account.config())
    assert capacity.card == account.card and capacity.cards == account.cards
    first = job()
    jobs = [first, *(job() for _ in range(capacity.per_launch - 1))]
    jobs = [Job(j.job_id, j.kind, j.launch, first.name, j.store) for j in jobs]
    receipt = runner.launch(jobs)
    assert receipt.jobs == tuple(j.job_id for j in jobs)
    assert account.alive() == [first.name]
    runner_checks.until_closed(runner, receipt)


def test_what_a_machine_cannot_reach_is_refused_before_anything_is_rented(
    account: Account, tmp_path: Path
) -> None:
    store = open_store(f"file:{tmp_path / 'store'}")
    digest, data = code.code_digest(ENTRY), code.data_digest(object())  # type: ignore[arg-type]
    spec = JobSpec("r", "train", "training", ENTRY, {"level": 1.0}, 0, 1, digest, data, 10)
    enlist(store, "r", "r", [spec], {"rungs": []}, SYSTEM)
    job = Job(spec.id, "train", 1, launch_name(store.url, spec.id, 1), store.url)
    with pytest.raises(Rejected, match="s3://"):
        account.make(CHECKOUT, role=ROLE).launch([job])
    assert not account.alive()


def test_without_a_role_the_words_say_what_to_do(account: Account, iam: SeaweedIam) -> None:
    with pytest.raises(Rejected, match=r"role.*docs/credentials\.md"):
        account.make(CHECKOUT).launch([job_in(iam)()])
    assert not account.alive()


@pytest.mark.usefixtures("asleep")
def test_full_trust_is_said_each_time(
    account: Account, iam: SeaweedIam, caplog: pytest.LogCaptureFixture
) -> None:
    runner = account.make(CHECKOUT, trust="full")
    for launches in (1, 2):
        receipt = runner.launch([job_in(iam)()])
        assert len([r for r in caplog.records if 'trust = "full"' in r.getMessage()]) == launches
        runner_checks.until_closed(runner, receipt)
    assert seaweed_iam.OPERATOR[1] not in caplog.text


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"card": "NVIDIA T5"}, "T5"),
        ({"cards": 0}, "cards"),
        ({"session_s": -1.0}, "session_s"),
        ({"lock": "nowhere.txt"}, "nowhere.txt"),
        ({"colour": "red"}, "colour"),
        ({"trust": "much"}, "trust"),
    ],
)
def test_a_mistake_in_the_configuration_is_one_sentence(
    account: Account, keys: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        account.make(CHECKOUT, **keys)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------------------------- the doctor


@pytest.mark.usefixtures("asleep")
def test_an_account_in_order_has_nothing_wrong(account: Account) -> None:
    seen = dict(account.make(CHECKOUT, role=ROLE).examine())
    assert not [problem for problem in seen.values() if problem]
    assert "the worker's wheel builds" in seen
    assert f"the account of {account.kind} answers; machines of Tenure there: 0" in seen
    assert any("quota" in words for words in seen) is (account.kind == "kaggle")


@pytest.mark.parametrize("fault", ["bad credentials", "hang", "garbage"])
def test_what_is_wrong_with_an_account_is_one_row_with_what_to_do(
    account: Account, fault: Fault
) -> None:
    with account.fault(fault):
        deadline_s = 1.0 if fault == "hang" else 30.0
        rows = account.make(CHECKOUT, role=ROLE, deadline_s=deadline_s).examine()
    wrong = [(seen, problem) for seen, problem in rows if problem]
    assert [seen for seen, _ in wrong] == [f"the account of {account.kind} answers"]
    problem = wrong[0][1]
    assert problem and "\n" not in problem
    if fault == "bad credentials":
        assert any(name in problem for name in account.runner.PLATFORM.VARIABLES)


def test_an_sdk_that_is_not_there_names_its_extra(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, module = find_spec, account.runner.PLATFORM.MODULE
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *how: None if name == module else real(name, *how)
    )
    (problem,) = filter(None, dict(account.make(CHECKOUT, role=ROLE).examine()).values())
    assert f"pip install -c constraints.txt -e '.[{account.kind}]'" in problem
