"""The ``tenure`` command: what each subcommand says and does, and which code it ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer

from tenure.cli import app, group, release
from tenure.cli.workplace import OneJob
from tenure.errors import Blocked, StoreOutOfReach, UsageError
from tenure.plan.enlist import enlist
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import Corrupt, encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, change, read_witness
from tenure_protocol.lease.machine import (
    Cancel,
    Claim,
    Event,
    Finish,
    Hold,
    Move,
    Refused,
    Release,
    Reserve,
    transition,
)
from tenure_protocol.records import (
    Holder,
    Intent,
    JobSpec,
    LaunchReceipt,
    Manifest,
    PlanRecord,
    Pointer,
    Refusal,
    Witness,
    load,
)
from tenure_protocol.store.api import Found, Missing, StoreSilent, StoreUnusable
from tenure_protocol.store.directory import DirectoryStore

ROOT = Path(__file__).parents[2]
TERMS: dict[str, object] = {"rungs": ["local"], "priority": 0}
STATUS_FIELDS = [
    "job", "experiment", "stage", "phase", "attempt", "launch", "rung", "step", "eta_s", "reason",
    "exit_code", "steps_total", "eta_by",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.out)
        return found


Run = Callable[..., Ended]


@pytest.fixture
def tenure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """Run a command in this process, in an empty folder; no output ever holds a traceback."""
    monkeypatch.chdir(tmp_path)
    for name in ("TENURE_CONFIG", "TENURE_STORE"):
        monkeypatch.delenv(name, raising=False)

    def run(*args: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            group.build(app).main([str(arg) for arg in args], prog_name="tenure")
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return Ended(int(stop.value.code or 0), said.out, said.err)

    yield run


def spec(seed: int = 0, **fields: object) -> JobSpec:
    made = JobSpec("first", "train", "training", "experiments.first:Experiment", {}, seed, 1,
                   "code", "data", 50)  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


@dataclass
class Shop:
    """A store with jobs of one plan in it, and a hand that writes what workers would."""

    store: DirectoryStore

    def enlist(self, *specs: JobSpec) -> list[str]:
        return enlist(self.store, "first", "first", specs, TERMS, SYSTEM)

    def apply(self, job: JobSpec, *events: Event) -> Witness:
        key = keys.witness_of(job)
        for event in events:
            done = change(self.store, key, job.id, read_witness(self.store, key), event, SYSTEM)
            assert isinstance(done, Applied), done
        found = read_witness(self.store, key).witness
        assert found is not None
        return found

    def put(self, key: str, body: bytes) -> None:
        """Write whatever stands there, as tampering or a broken disk would."""
        found = self.store.read(key)
        if isinstance(found, Found):
            self.store.replace(key, body, found.etag)
        else:
            self.store.create(key, body)

    def launched(self, job: JobSpec, number: int = 1) -> None:
        """What a dispatcher writes beside the witness."""
        intent = Intent(job.id, number, "here", "local", f"tenure-{job.id}-{number:05d}",
                        "dispatcher-1", "nobody has run it yet; 1 of 2 slots left", 0.0)  # fmt: skip
        self.put(keys.unsettled(job.id, number), b"{}")
        self.put(keys.intent(job.id, number), encode(intent))
        receipt = LaunchReceipt(
            job.id, number, "here", "local", intent.name, "cpu", 0.0, {"pid": 2**22}
        )
        self.put(keys.receipt(job.id, number), encode(receipt))


RESERVE = Reserve("here", 60.0, "dispatcher-1")
CLAIM = Claim(1, "nonce", 30.0)
HOLDER = Holder(1, "nonce")
POINTER = Pointer(1, 100, 1, 1, "0" * 64)
MOVE = Hold(HOLDER, 1, 30.0, move=Move(POINTER, None))
FINISH = Finish(HOLDER, 1, 0, "finished", {"loss": 0.5})
CODE_ERROR = Finish(HOLDER, 1, 1, "the tail of it\n  line 7\nValueError: of the user", {})


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(DirectoryStore(tmp_path / ".tenure" / "store"))


def row(tenure: Run, job: JobSpec) -> dict[str, object]:
    ended = tenure("status", "--json")
    assert ended.code == 0
    (found,) = [each for each in ended.json["jobs"] if each["job"] == job.id]  # type: ignore[attr-defined]
    return dict(found)


# ------------------------------------------------------------------------------ help and plug-ins


SDKS = "kaggle kagglesdk runpod vastai vastai_sdk modal lightning_sdk boto3 botocore".split()
HEAVY = [*SDKS, *"pydantic dagster torch scipy numpy yaml gates runners assets.chain".split()]


def test_help_loads_no_command_and_no_sdk() -> None:
    script = (
        "import sys, tenure.cli\nsys.argv = ['tenure', '--help']\n"
        f"try: tenure.cli.main()\nexcept SystemExit: print(sorted(set({HEAVY}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.rstrip().endswith("[]"), done.stdout + done.stderr


def test_a_ladder_of_every_platform_loads_no_sdk(tmp_path: Path) -> None:
    """A dispatcher that has them configured pays for an SDK when it first uses it."""
    cards = {"kaggle": "Tesla T4", "modal": "Tesla T4", "lightning": "Tesla T4"}
    cards |= {"runpod": "NVIDIA L4", "vast": "NVIDIA GeForce RTX 4090"}
    text = "".join(
        f'[runners.{kind}]\nkind = "{kind}"\ncard = "{card}"\n'
        + ('teamspace = "me"\n' if kind == "lightning" else "")
        + f'[rungs.{kind}]\nrunner = "{kind}"\ncard = "{card.lower().replace(" ", "-")}"\n'
        'price_class = "spot"\nprice = {currency = "usd", per_h = 1}\n'
        for kind, card in cards.items()
    )
    (tmp_path / "tenure.toml").write_text(text)
    script = (
        "import sys\nfrom pathlib import Path\nfrom tenure.settings import load_settings\n"
        "from tenure.dispatch.registry import build_rungs\n"
        f"rungs = build_rungs(load_settings(Path({str(tmp_path / 'tenure.toml')!r})))\n"
        f"print([rung.name for rung in rungs], sorted(set({SDKS}) & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == f"{list(cards)} []\n", done.stdout + done.stderr


def test_every_command_has_a_line_of_help_that_fits(tenure: Run) -> None:
    said = tenure("--help").out
    for name, target in group.CORE.items():
        assert f"  {name} " in said and group.summary(target) in said
    for name in group.CORE:
        ended = tenure(name, "--help")
        assert ended.code == 0 and f"tenure {name}" in ended.out


def test_version(tenure: Run) -> None:
    assert tenure("--version").out.startswith("tenure 0.")


def test_an_unknown_command_is_bad_input(tenure: Run) -> None:
    ended = tenure("statsu")
    assert ended.code == 2 and "'status'" in ended.err


def plug_in(monkeypatch: pytest.MonkeyPatch, name: str, found: object) -> None:
    """An installed plug-in with a command of this name."""
    module = types.ModuleType("planted_commands")
    module.found = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = EntryPoint(name, "planted_commands:found", group.GROUP)
    monkeypatch.setattr(group, "entry_points", lambda group: [point])


def test_a_function_and_an_app_can_be_plugged_in(
    tenure: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def greet(name: str) -> None:
        print(f"hello {name}")

    plug_in(monkeypatch, "greet", greet)
    assert tenure("greet", "you").out == "hello you\n"
    shell = typer.Typer()
    shell.command("you")(lambda: print("hello"))
    shell.callback()(lambda: None)
    plug_in(monkeypatch, "greet", shell)
    assert tenure("greet", "you").out == "hello\n"
    assert tenure("greet", "them").code == 2


@pytest.mark.parametrize(
    "value", ["no_such_module:command", "tenure.cli:nothing", "tenure.cli.group:GROUP"]
)
def test_a_broken_plug_in_is_reported_and_the_others_work(
    tenure: Run, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    point = EntryPoint("broken", value, group.GROUP)
    monkeypatch.setattr(group, "entry_points", lambda group: [point])
    assert "broken" in tenure("--help").out
    ended = tenure("broken")
    assert ended.code == 2 and value in ended.err
    assert tenure("status").code == 0


def test_a_plug_in_cannot_take_the_name_of_a_command(
    tenure: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in(monkeypatch, "status", lambda: print("taken over"))
    assert "taken over" not in tenure("status").out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a typo"), 2),
        (Blocked("no"), 1),
        (StoreOutOfReach("silence"), 3),
        (StoreSilent("silence"), 3),
        (StoreUnusable("a file"), 2),
        (Corrupt("no JSON", "plans/first/x.json"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
    ],
)
def test_what_a_command_raises_becomes_a_sentence_and_a_code(
    tenure: Run, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail() -> None:
        raise error

    plug_in(monkeypatch, "fail", fail)
    ended = tenure("fail")
    assert ended.code == code and str(error) in ended.err and ended.out == ""


# ------------------------------------------------------------------------------ status


def test_status_of_an_empty_store(tenure: Run) -> None:
    ended = tenure("status")
    assert ended.code == 0 and "tenure enlist" in ended.out
    assert tenure("status", "--json").json == {"jobs": [], "quotas": [], "costs": []}


def test_status_tells_every_phase(tenure: Run, shop: Shop) -> None:
    stories: list[tuple[str, list[Event]]] = [
        ("absent", []),
        ("expected", [RESERVE]),
        ("vacant", [Reserve("here", 0.0, "dispatcher-1")]),
        ("held", [RESERVE, CLAIM, MOVE]),
        ("released", [RESERVE, CLAIM, Release(HOLDER, 1, 10, "asked")]),
        ("finished", [RESERVE, CLAIM, MOVE, FINISH]),
        ("cancelled", [Cancel("somebody", "of no use")]),
    ]
    jobs = [spec(seed) for seed in range(len(stories))]
    shop.enlist(*jobs)
    for job, (_, events) in zip(jobs, stories, strict=True):
        shop.apply(job, *events) if events else None
    shop.launched(jobs[3])
    rows = tenure("status", "--json").json["jobs"]
    assert isinstance(rows, list)
    assert [each["phase"] for each in rows] == [phase for phase, _ in stories]
    assert all(list(each) == STATUS_FIELDS for each in rows)
    assert rows[3] | {"reason": ""} == {
        "job": jobs[3].id, "experiment": "first", "stage": "training", "phase": "held",
        "attempt": 1, "launch": 1, "rung": "local", "step": 100, "eta_s": None, "reason": "",
        "exit_code": None, "steps_total": None, "eta_by": None,
    }  # fmt: skip
    assert rows[0]["step"] is None and "nobody has run it yet" in rows[0]["reason"]
    assert rows[6]["reason"] == "cancelled by somebody: of no use"
    plain = tenure("status").out
    assert all(job.id[:8] in plain for job in jobs) and "attempt 1 renewed" in plain


def test_status_of_one_plan(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    other = spec(experiment="other")
    enlist(shop.store, "other", "other", [other], TERMS, SYSTEM)
    assert [each["job"] for each in tenure("status", "--plan", "other", "--json").json["jobs"]] == [  # type: ignore[attr-defined]
        other.id
    ]
    ended = tenure("status", "--plan", "fist")
    assert ended.code == 2 and "'first'" in ended.err


def test_status_shows_jobs_of_local_mode(tenure: Run, shop: Shop) -> None:
    local = spec()
    shop.put(keys.job(local.id), encode(local))
    shop.apply(local, Claim(0, "nonce", 30.0))
    assert row(tenure, local)["phase"] == "held"
    assert "no plan names it" in str(row(tenure, local)["reason"])
    assert "no plan names it" in tenure("why", local.id).out


def test_watching_ends_when_every_job_is_over(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, FINISH)
    ended = tenure("status", "--watch")
    assert ended.code == 0 and "finished" in ended.out


@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"job": 3}', b"\xff\xfe", b"[]"])
def test_a_corrupt_witness_stops_its_job_alone(tenure: Run, shop: Shop, body: bytes) -> None:
    bad, good = spec(0), spec(1)
    shop.enlist(bad, good)
    shop.put(keys.witness_of(bad), body)
    shop.apply(good, RESERVE, CLAIM)
    found = row(tenure, bad)
    assert found["phase"] == "stopped" and keys.witness_of(bad) in str(found["reason"])
    assert row(tenure, good)["phase"] == "held"
    why = tenure("why", bad.id)
    assert why.code == 0 and keys.witness_of(bad) in why.out
    for command in ("revoke", "cancel", "pause", "resume"):
        ended = tenure(command, bad.id)
        assert ended.code == 1 and keys.witness_of(bad) in ended.err
        assert f"`tenure retry {bad.id}`" in ended.err
    assert keys.witness_of(bad) in tenure("dispatch", "--once").out
    again = replace(bad, run=1)
    assert tenure("retry", bad.id).out.strip() == again.id
    assert row(tenure, again)["phase"] == "absent"


def test_a_witness_of_a_newer_protocol_is_left_to_a_newer_tenure(tenure: Run, shop: Shop) -> None:
    """Nothing is wrong with it: a second run beside it would be waste, and bad advice."""
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM)
    body = shop.store.read(keys.witness_of(spec()))
    assert isinstance(body, Found)
    newer = body.body.replace(b'"protocol":1', b'"protocol":2')
    assert newer != body.body
    shop.put(keys.witness_of(spec()), newer)
    for command in ("retry", "revoke", "cancel", "pause", "resume"):
        ended = tenure(command, spec().id)
        assert ended.code == 1 and "speaks protocol 2, this Tenure speaks 1" in ended.err
        assert "tenure retry" not in ended.err
    assert isinstance(shop.store.read(keys.job(spec(run=1).id)), Missing)


@pytest.mark.parametrize("body", [b"no JSON", encode(spec(9)), b'{"experiment": "first"}'])
def test_a_corrupt_spec_stops_its_job_alone(tenure: Run, shop: Shop, body: bytes) -> None:
    bad, good = spec(0), spec(1)
    shop.enlist(bad, good)
    shop.put(keys.job(bad.id), body)
    found = row(tenure, bad)
    assert found["phase"] == "stopped" and keys.job(bad.id) in str(found["reason"])
    assert found["stage"] is None and row(tenure, good)["phase"] == "absent"
    ended = tenure("cancel", bad.id)
    assert ended.code == 1 and keys.job(bad.id) in ended.err


def test_a_corrupt_plan_record_is_named_and_the_jobs_of_others_are_shown(
    tenure: Run, shop: Shop
) -> None:
    shop.enlist(spec())
    shop.put("plans/broken/x.json", b"{")
    ended = tenure("status")
    assert ended.code == 0 and "plans/broken/x.json" in ended.err and spec().id[:8] in ended.out


def test_a_silent_store_is_out_of_reach(
    tenure: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.enlist(spec())

    def silent(*_: object) -> None:
        raise StoreSilent("plans/* could not be listed (Input/output error)")

    monkeypatch.setattr(DirectoryStore, "list", silent)
    for command in (["status"], ["why", "aa"], ["cancel", "aa"], ["dispatch", "--once"]):
        ended = tenure(*command)
        assert ended.code == 3 and "plans/" in ended.err


# ------------------------------------------------------------------------------ why


def test_why_a_job_waits_for_its_first_launch(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    found = tenure("why", spec().id, "--json").json
    assert list(found) == ["job", "action", "reason", "numbers", "history"]
    assert found["action"] == "launch" and "nobody has run it yet" in str(found["reason"])


def test_why_a_launched_job_waits(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, MOVE)
    shop.launched(spec())
    shop.put(keys.refusal(spec().id, 1, "n"), encode(Refusal(spec().id, 1, "another torch")))
    found = tenure("why", spec().id[:9], "--json").json
    reason, numbers = str(found["reason"]), found["numbers"]
    assert found["action"] == "launch"
    assert "launch 1 on rung local by dispatcher-1: nobody has run it yet" in reason
    assert "now: attempt 1 renewed" in reason and "launch 1 was refused: another torch" in reason
    assert isinstance(numbers, dict)
    assert numbers["attempt"] == numbers["launch"] == numbers["open_bills"] == 1
    assert numbers["step"] == 100 and numbers["silence_s"] == 30.0


def test_why_a_job_ended(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec(0), spec(1), spec(2))
    shop.apply(spec(0), RESERVE, CLAIM, FINISH)
    shop.apply(spec(1), RESERVE, CLAIM, CODE_ERROR)
    shop.apply(spec(2), Cancel("somebody", "of no use"))
    assert '{"loss": 0.5}' in tenure("why", spec(0).id).out
    failed = tenure("why", spec(1).id).out
    assert "code 1 (code error)" in failed and "ValueError: of the user" in failed
    assert "cancelled by somebody: of no use" in tenure("why", spec(2).id).out
    assert "ended with code 1: ValueError: of the user" in tenure("status").out


# ------------------------------------------------------------------------------ events and log


def test_events_and_log(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, FINISH)
    job = spec().id
    shop.put(keys.events(job, 1, 1), b'{"at_s":0,"loss":0.5,"step":3}\nno JSON\n')
    shop.put(keys.log(job, 1, 1), b"one\n")
    shop.put(keys.log(job, 1, 2), b"two [red]\n")
    assert tenure("log", job, "--follow").out == "one\ntwo [red]\n"
    assert tenure("events", job).out.startswith("1970-01-01 00:00:00  loss=0.5 step=3\n")
    lines = [json.loads(line) for line in tenure("events", job, "--json", "-f").out.splitlines()]
    assert lines == [{"at_s": 0, "loss": 0.5, "step": 3}, {"unreadable": "no JSON"}]


def test_a_missing_chunk_is_said(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM)
    shop.put(keys.log(spec().id, 1, 2), b"two\n")
    ended = tenure("log", spec().id)
    assert ended.out == "" and "incomplete: chunk 1 of the log of attempt 1 is missing" in ended.err


def test_who_follows_a_log_with_a_gap_has_what_lies_before_it_and_an_end(
    tenure: Run, shop: Shop
) -> None:
    """Of a job that is over nobody fills the gap: to follow it is not to wait for ever."""
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, FINISH)
    shop.put(keys.log(spec().id, 1, 1), b"one\n")
    shop.put(keys.log(spec().id, 1, 3), b"three\n")
    ended = tenure("log", spec().id, "--follow")
    assert ended.out == "one\n" and ended.err.count("incomplete: chunk 2 of the log") == 1


# ------------------------------------------------------------------------------ orders


def test_retry_enlists_the_next_run(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    ended = tenure("retry", spec().id)
    assert ended.code == 1 and "is not over" in ended.err
    shop.apply(spec(), RESERVE, CLAIM)
    assert tenure("retry", spec().id).code == 1
    shop.apply(spec(), CODE_ERROR)
    again = replace(spec(), run=1)
    for _ in range(2):
        assert tenure("retry", spec().id[:12]).out == again.id + "\n"
    assert row(tenure, again)["phase"] == "absent"
    records = [
        load(PlanRecord, found.body, each.key)
        for each in shop.store.list(keys.PLANS)
        if isinstance(found := shop.store.read(each.key), Found)
    ]
    assert sorted(record.version for record in records) == [0, 1]
    assert all(record.terms == TERMS for record in records)
    local = spec(5)
    shop.put(keys.job(local.id), encode(local))
    shop.apply(local, Claim(0, "nonce", 30.0), Finish(Holder(0, "nonce"), 1, 0, "finished", {}))
    assert "no plan names" in tenure("retry", local.id).err


def test_revoke_and_cancel(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, MOVE)
    assert tenure("revoke", spec().id, "--reason", "the card is slow").code == 0
    w = shop.apply(spec())
    assert (w.phase, w.barrier, w.pointer, w.reason) == ("revoked", 1, POINTER, "the card is slow")
    assert w.by is not None and w.by.startswith("operator")
    assert tenure("revoke", spec().id).code == 1  # it is revoked already
    assert tenure("cancel", spec().id).code == 0
    for command in ("cancel", "revoke", "pause"):
        ended = tenure(command, spec().id)
        assert ended.code == 1 and "it is over" in ended.err


def test_pause_and_resume(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec(0), spec(1))
    assert tenure("resume", spec(0).id).code == 1
    assert tenure("pause", spec(0).id).code == 0
    assert shop.apply(spec(0)).held_back
    assert "held back" in str(row(tenure, spec(0))["reason"])
    assert tenure("resume", spec(0).id).code == 0
    assert not shop.apply(spec(0)).held_back
    shop.apply(spec(1), RESERVE, CLAIM)
    assert tenure("pause", spec(1).id, "--within-s", "5").code == 0
    asked = shop.apply(spec(1)).asked
    assert asked is not None and (asked.what, asked.within_s) == ("pause", 5.0)
    assert tenure("pause", spec(1).id).code == 1  # once per attempt
    assert tenure("pause", spec(1).id, "--within-s", "-1").code == 2


def line(shop: Shop, job: JobSpec, *steps: int) -> list[Pointer]:
    """Attempt 1 holds the job, and has moved the pointer along these steps."""
    shop.apply(job, RESERVE, CLAIM)
    made: list[Pointer] = []
    for ordinal, step in enumerate(steps, 1):
        parent = made[-1] if made else None
        manifest = Manifest(job.id, 1, step, ordinal, ordinal, {}, {}, parent)
        pointer = manifest.pointer(encode(manifest))
        shop.put(keys.manifest(job.id, pointer), encode(manifest))
        shop.apply(job, Hold(HOLDER, 1, 30.0, move=Move(pointer, parent)))
        made.append(pointer)
    return made


def test_resume_from_an_earlier_milestone(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    made = line(shop, spec(), 10, 20, 30)
    ended = tenure("resume", spec().id, "--from", "10", "--reason", "its loss is not a number")
    assert ended.code == 0 and "goes on from step 10, written by attempt 1" in ended.out
    w = shop.apply(spec())
    assert (w.phase, w.held_back, w.pointer, w.barrier) == ("revoked", False, made[0], 1)
    assert w.reason == "its loss is not a number"
    assert tenure("resume", spec().id, "--from", "start").code == 0
    w = shop.apply(spec())
    assert (w.phase, w.held_back, w.pointer) == ("revoked", False, None)
    shop.apply(spec(), RESERVE, Claim(2, "another", 30.0))  # a dispatcher and a worker go on


def test_no_dispatcher_may_launch_a_job_between_its_revocation_and_its_new_pointer(
    tenure: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.enlist(spec())
    line(shop, spec(), 10, 20)
    real, seen = OneJob.change, []

    def changed(found: OneJob, event: Callable[[Witness | None], Event]) -> Witness:
        w = real(found, event)
        seen.append((w.pointer and w.pointer.step, transition(w.job, w, RESERVE)))
        return w

    monkeypatch.setattr(OneJob, "change", changed)
    assert tenure("resume", spec().id, "--from", "10").code == 0
    assert [step for step, _ in seen] == [20, 10, 10]
    assert [isinstance(launched, Refused) for _, launched in seen] == [True, True, False]


def test_resume_from_names_what_there_is(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec(0), spec(1), spec(2))
    line(shop, spec(0), *range(10, 200, 10))
    for step in ("30.5", "190", "5", "-1", "end"):
        ended = tenure("resume", spec(0).id, f"--from={step}")
        assert ended.code == 2 and "the newest is 190, before it there are 180, 170" in ended.err
        assert "70 and 6 before, or start" in ended.err
    assert shop.apply(spec(0)).phase == "held", "a typo takes nobody's job away"
    ended = tenure("resume", spec(1).id, "--from", "start")
    assert ended.code == 1 and "waiting for its first launch" in ended.err
    shop.apply(spec(1), RESERVE, CLAIM)
    ended = tenure("resume", spec(1).id, "--from", "10")
    assert ended.code == 1 and "has no milestone yet" in ended.err
    line(shop, spec(2), 10)
    assert "before it only start" in tenure("resume", spec(2).id, "--from", "10").err
    shop.apply(spec(2), FINISH)
    ended = tenure("resume", spec(2).id, "--from", "start")
    assert ended.code == 1 and "is finished, so there is nothing to go back to" in ended.err


def test_resume_from_goes_past_a_corrupt_manifest(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    made = line(shop, spec(), 10, 20, 30)
    shop.put(keys.manifest(spec().id, made[2]), b"half a man")
    assert tenure("resume", spec().id, "--from", "20").code == 0
    assert shop.apply(spec()).pointer == made[1]


def test_resume_from_does_not_guess_between_two_parents(tenure: Run, shop: Shop) -> None:
    """A deposed worker's snapshot may have the same number; only a manifest tells which is ours."""
    shop.enlist(spec())
    made = line(shop, spec(), 10, 20, 30)
    stray = Manifest(spec().id, 2, 21, 1, 2, {}, {}, made[0])
    shop.put(keys.manifest(spec().id, stray.pointer(encode(stray))), encode(stray))
    shop.put(keys.manifest(spec().id, made[2]), b"half a man")
    ended = tenure("resume", spec().id, "--from", "20")
    assert ended.code == 2 and "before it only start" in ended.err


# ------------------------------------------------------------------------------ release


def test_release_of_a_rented_launch_reads_past_its_envelopes(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, MOVE)
    shop.launched(spec())
    shop.put(keys.envelope(spec().id, 1), b'{"variables": {"SECRET": "words"}}')
    ended = tenure("release", spec().id, "--yes")
    assert ended.code == 0 and "words" not in ended.out + ended.err


ESCAPE = "\x1b]0;owned\x07\x1b[2Jnothing to see"


def test_a_terminal_never_obeys_the_words_of_a_worker(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, MOVE, Finish(HOLDER, 1, 1, ESCAPE, {}))
    shop.launched(spec())
    for command in (("why", spec().id), ("status",), ("release", spec().id, "--yes")):
        ended = tenure(*command)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", ended.out + ended.err), command
    assert "nothing to see" in tenure("why", spec().id).out


def test_release_shows_and_asks(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    assert "never been launched" in tenure("release", spec().id, "--yes").err
    shop.apply(spec(), RESERVE, CLAIM, MOVE)
    shop.launched(spec())
    ended = tenure("release", spec().id)
    assert ended.code == 2 and "IT IS ALIVE" in ended.err and "--yes" in ended.err
    assert "since step 100" in ended.err
    assert tenure("release", spec().id, "--launch", "7", "--yes").code == 2
    assert list(shop.store.list(keys.UNSETTLED))


def test_release_takes_no_for_an_answer(
    tenure: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE)
    shop.launched(spec())
    monkeypatch.setattr(release, "_on_terminal", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda *_, **__: False)
    ended = tenure("release", spec().id)
    assert ended.code == 1 and "nothing was done" in ended.err
    assert list(shop.store.list(keys.UNSETTLED))


def test_release_closes_the_bill(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE, CLAIM, MOVE)
    shop.launched(spec())
    ended = tenure("release", spec().id, "--yes")
    assert ended.code == 0 and "the process is gone" in ended.out
    assert not list(shop.store.list(keys.UNSETTLED))
    assert "closed already" in tenure("release", spec().id, "--launch", "1").out
    assert "released by a person" in tenure("why", spec().id).out


# ------------------------------------------------------------------------------ dispatch


def test_dispatch_prints_each_decision_once(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    shop.apply(spec(), RESERVE)
    ended = tenure("dispatch", "--for-s", "1.5")
    assert ended.code == 0
    assert len([line for line in ended.out.splitlines() if "may claim for" in line]) == 1
    ended = tenure("dispatch", "--until-done", "--for-s", "0")
    assert ended.code == 1 and "still open" in ended.err


def test_dispatch_leaves_what_another_dispatcher_may_run(tenure: Run, shop: Shop) -> None:
    enlist(shop.store, "first", "first", [spec()], {"rungs": ["gone"]}, SYSTEM)
    ended = tenure("dispatch", "--until-done", "--for-s", "1")
    assert ended.code == 1
    assert "rung gone is out: the tenure.toml of this dispatcher has no such rung" in ended.out


def test_dispatch_until_done_does_not_take_an_unread_plan_for_no_plan(
    tenure: Run, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a server that has just started: it lists, and does not read yet."""
    shop.enlist(spec())
    read = DirectoryStore.read

    def silent(store: DirectoryStore, key: str) -> Found | Missing:
        if key.startswith(keys.PLANS):
            raise StoreSilent(f"{key} could not be read (InternalError)")
        return read(store, key)

    monkeypatch.setattr(DirectoryStore, "read", silent)
    ended = tenure("dispatch", "--until-done", "--for-s", "0")
    assert ended.code == 1 and "still open" in ended.err
    assert tenure("dispatch", "--once").code == 3


# ------------------------------------------------------------------------------ init and enlist


def test_init_overwrites_nothing(tenure: Run, tmp_path: Path) -> None:
    assert tenure("init").code == 0
    plan = tmp_path / "plans" / "first.yaml"
    before = plan.read_text()
    plan.write_text(before + "# mine\n")
    ended = tenure("init")
    assert ended.code == 0 and ended.out.count("kept") == 6 and "# mine" in plan.read_text()
    assert tenure("init", "--name", "second").code == 0
    assert (tmp_path / "experiments" / "second.py").is_file()


def test_init_names_what_an_older_settings_file_has(tenure: Run, tmp_path: Path) -> None:
    (tmp_path / "tenure.toml").write_text(
        '[runners.a]\nkind = "own_process"\n[teams.quants]\nweight = 1\n[rungs.big]\nrunner = "a"\n'
        'card = "cpu"\nprice_class = "spot"\nprice = {currency = "usd", per_h = 0}\n'
    )
    assert tenure("init", tmp_path).code == 0
    text = (tmp_path / "plans" / "first.yaml").read_text()
    assert "rungs: [big]" in text and "team: quants" in text


def test_init_refuses_what_cannot_be(tenure: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for args in (["--name", "2nd"], ["--name", "class"], ["--name", "a-b"], ["file"], ["file/x"]):
        ended = tenure("init", *args)
        assert ended.code == 2 and ended.err.startswith("tenure: "), args
    (tmp_path / "plans").mkdir()
    assert tenure("init").code == 0
    (tmp_path / "plans" / "first.yaml").rename(tmp_path / "plans" / "other.yaml")
    ended = tenure("init")
    assert ended.code == 2 and "other.yaml" in ended.err


BAD_PLANS = {
    "a typo in a key": ("milestone_every:", "milestone_evry:", "did you mean 'milestone_every'?"),
    "a missing import path": ("experiments.first:", "experiments.fist:", "no such module"),
    "a missing class": (":Experiment", ":Experimnt", "no class"),
    "a negative margin": ("margin: 0.004", "margin: -1", "promote.margin"),
    "seeds shared": ("[100, 101,", "[0, 101,", "retrain_seeds"),
    "an unknown rung": ("rungs: [local]", "rungs: [moon]", "there is no rung"),
    "not YAML": ("seeds: [", "seeds: ]", "not valid YAML"),
}


@pytest.mark.parametrize("change", BAD_PLANS.values(), ids=BAD_PLANS)
def test_a_bad_plan_is_named_by_file_and_line(
    tenure: Run, tmp_path: Path, change: tuple[str, str, str]
) -> None:
    tenure("init")
    plan = tmp_path / "plans" / "first.yaml"
    old, new, said = change
    assert old in plan.read_text()
    plan.write_text(plan.read_text().replace(old, new))
    ended = tenure("enlist", plan)
    assert ended.code == 2 and said in ended.err and ended.out == ""
    assert ended.err.startswith(f"tenure: {plan}:") and ended.err.count("\n") == 1
    assert not list(DirectoryStore(tmp_path / ".tenure/store").list("jobs/"))


@pytest.mark.parametrize("command", [["enlist"], ["run"], ["gate", "check"], ["deploy"]])
def test_two_plans_with_one_name(tenure: Run, tmp_path: Path, command: list[str]) -> None:
    tenure("init")
    plan = tmp_path / "plans" / "first.yaml"
    (tmp_path / "plans" / "copy.yaml").write_text(plan.read_text())
    ended = tenure(*command, plan)
    assert ended.code == 2 and ended.out == ""
    assert re.fullmatch(
        rf"tenure: {tmp_path}/plans/\w+.yaml:\d+: name: 'first' is the name of "
        rf"{tmp_path}/plans/\w+.yaml too; rename one\n",
        ended.err,
    )


def test_no_plan_there(tenure: Run) -> None:
    assert tenure("enlist", "plans/none.yaml").code == 2
    assert tenure("enlist").code == 2


# ------------------------------------------------------------------------------ bad settings


def test_a_store_that_cannot_be_written(tenure: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tenure.toml").write_text('[store]\nurl = "file:file/store"\n')
    for command in (["status"], ["why", "aa"], ["dispatch", "--once"], ["retry", "aa"]):
        ended = tenure(*command)
        assert ended.code == 2 and "cannot be written" in ended.err and "file/store" in ended.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[store]\nurl = "ftp:somewhere"\n', "unknown kind of store 'ftp'"),
        ('[store]\nurl = "folder"\n', "file:folder"),
        ('[stor]\nurl = "file:x"\n', "did you mean 'store'?"),
        ('[runners.here]\nkind = "own_proces"\n[rungs.local]\nrunner = "here"\ncard = "cpu"\n'
         'price_class = "spot"\nprice = {currency = "usd", per_h = 0}\n', "own_process"),
        ('[runners.here]\nkind = "own_process"\nslots = 0\n[rungs.local]\nrunner = "here"\n'
         'card = "cpu"\nprice_class = "spot"\nprice = {currency = "usd", per_h = 0}\n', "slots"),
        ("[store\n", "not valid TOML"),
    ],
)  # fmt: skip
def test_bad_settings(tenure: Run, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "tenure.toml").write_text(text)
    ended = tenure("status")
    assert ended.code == 2 and said in ended.err and "tenure.toml:" in ended.err


def test_config_names_the_settings(tenure: Run, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my.toml").write_text('[store]\nurl = "file:kept"\n')
    assert tenure("status", "--config", "elsewhere/my.toml").code == 0
    assert (elsewhere / "kept").is_dir()
    ended = tenure("status", "--config", "no.toml")
    assert ended.code == 2 and "--config names no.toml" in ended.err


# ------------------------------------------------------------------------------ naming a job


def test_an_unknown_job(tenure: Run, shop: Shop) -> None:
    shop.enlist(spec())
    unknown = "z" * 26
    for command in ("why", "events", "log", "retry", "revoke", "cancel", "pause", "release"):
        ended = tenure(command, unknown)
        assert ended.code == 2 and unknown in ended.err
    assert tenure("why", "../../etc").code == 2
    assert tenure("why", "").code == 2


def test_a_prefix_must_be_unique(tenure: Run, shop: Shop) -> None:
    jobs = [spec(seed) for seed in range(40)]
    shop.enlist(*jobs)
    ids = sorted(job.id for job in jobs)
    letter = next(i[0] for i in ids if sum(j[0] == i[0] for j in ids) > 1)
    ended = tenure("why", letter)
    assert ended.code == 2 and all(i in ended.err for i in [i for i in ids if i[0] == letter][:6])
    assert tenure("why", ids[0][:20].upper()).out.startswith(ids[0])
