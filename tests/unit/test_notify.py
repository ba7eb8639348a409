"""Notices: what is worth one, that each is told once, and that no address is ever shown."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tenure.dispatch.contract import NoSlots, ProtocolError
from tenure.dispatch.decide import Wait
from tenure.dispatch.ladder import Rung
from tenure.dispatch.loop import Dispatcher, Tick
from tenure.dispatch.quota import Left
from tenure.errors import Blocked, UsageError
from tenure.notify import addresses, notices, post
from tenure.notify.addresses import Address, read_addresses, secret_variables, what
from tenure.notify.command import notify
from tenure.notify.notices import (
    AGAIN_S,
    MAX_CHARS,
    NEWS_S,
    SETTLE_S,
    JobSeen,
    Look,
    Notice,
    Runs,
    Teller,
    one_line,
    shape,
)
from tenure.notify.notifier import LOOK_EVERY_S, Notifier
from tenure.notify.post import MOST_CLAIMS, MOST_OF_A_KIND, TAKE_OVER_S, TRIES, UNCLAIMED_S, Post
from tenure.notify.send import Letter, send
from tenure.plan.enlist import enlist
from tenure.settings import NotifySection, load_settings
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import change, read_witness
from tenure_protocol.lease.machine import Cancel, Finish, Revoke
from tenure_protocol.store.api import Store
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.faulty_store import FaultyStore
from tests.unit.test_dispatcher import Bench
from tests.until import until

SECRET = "hunter2secret"
HERE = Address(f"json://{SECRET}@a.example/", "json://a.example, number 1 in $TENURE_NOTIFY")
THERE = Address(f"slack://{SECRET}", "slack://, number 2 in $TENURE_NOTIFY")
DONE = Notice("done", "p", "event", "plan p is done")


class Letterbox:
    """Takes letters as it is told to: ``answers`` gives for each address what goes wrong."""

    def __init__(self) -> None:
        self.answers: dict[Address, str] = {}
        self.batches: list[list[tuple[Address, Letter]]] = []
        self.taken: list[str] = []

    def __call__(self, batch: Sequence[tuple[Address, Letter]]) -> list[str]:
        self.batches.append(list(batch))
        answers = [self.answers.get(address, "") for address, _ in batch]
        self.taken += [
            letter.line for (_, letter), words in zip(batch, answers, strict=True) if not words
        ]
        return answers


# ------------------------------------------------------------------------------- addresses


def write(folder: Path, text: str) -> None:
    (folder / "tenure.toml").write_text(text)


@pytest.mark.parametrize(
    "to",
    [f'"json://{SECRET}@host"', f'["json://{SECRET}@host"]', f'["file:json://{SECRET}@h/"]',
     f'["env:json://{SECRET}"]', f'["{SECRET}"]', f'[["{SECRET}"]]', '["env:"]', '["file: "]'],
)  # fmt: skip
def test_an_address_in_the_settings_is_refused_and_never_repeated(tmp_path: Path, to: str) -> None:
    write(tmp_path, f"\n[notify]\nto = {to}\n")
    with pytest.raises(UsageError, match=r"tenure\.toml:3: notify\.to: must be a list") as caught:
        load_settings(start=tmp_path, environ={})
    assert SECRET not in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_event_is_named_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, '[notify]\nevents = ["done", "dnoe"]\n')
    with pytest.raises(UsageError, match=r"tenure\.toml:2: notify\.events\[1\]: must be 'done'"):
        load_settings(start=tmp_path, environ={})


def test_addresses_come_from_a_variable_and_a_file_each_once(tmp_path: Path) -> None:
    write(tmp_path, '[notify]\nto = ["env:MINE", "file:to.txt"]\n')
    file = tmp_path / "to.txt"
    file.write_text("# chat\nslack://a/b\n\njson://one.example\n")
    file.chmod(0o600)
    mine = "json://one.example, mailto://u:p@h?to=a@x.example,b@x.example\n"
    found = read_addresses(load_settings(start=tmp_path, environ={}), {"MINE": mine})
    assert [each.url for each in found] == [
        "json://one.example", "mailto://u:p@h?to=a@x.example,b@x.example", "slack://a/b",
    ]  # fmt: skip
    assert found[2].shown == f"slack://, number 1 in {file}"


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, '[notify]\nto = ["file:to.txt"]\n')
    settings = load_settings(start=tmp_path, environ={})
    with pytest.raises(UsageError, match="there is no such file"):
        read_addresses(settings, {})
    file = tmp_path / "to.txt"
    file.write_text(f"json://{SECRET}@h\n")
    file.chmod(0o640)
    with pytest.raises(UsageError, match=r"mode 0640\); run: chmod 600") as caught:
        read_addresses(settings, {})
    assert SECRET not in str(caught.value)
    file.chmod(0o600)
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8 text"):
        read_addresses(settings, {})
    file.write_text("# nothing\n")
    with pytest.raises(UsageError, match="holds no address"):
        read_addresses(settings, {})


def test_nobody_who_chose_nothing_is_told_off_and_who_chose_is(tmp_path: Path) -> None:
    write(tmp_path, "")
    assert read_addresses(load_settings(start=tmp_path, environ={}), {}) == ()
    write(tmp_path, '[notify]\nto = ["env:TENURE_NOTIFY"]\n')
    with pytest.raises(UsageError, match=r"\$TENURE_NOTIFY is not set"):
        read_addresses(load_settings(start=tmp_path, environ={}), {})
    write(tmp_path, "[notify]\nto = []\n")
    assert read_addresses(load_settings(start=tmp_path, environ={}), {"TENURE_NOTIFY": "x"}) == ()


def test_a_missing_extra_is_one_sentence_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "find_spec", lambda name: None)
    write(tmp_path, "")
    settings = load_settings(start=tmp_path, environ={})
    with pytest.raises(UsageError, match=r"tenure\[notify\]") as caught:
        read_addresses(settings, {"TENURE_NOTIFY": f"json://{SECRET}"})
    assert SECRET not in str(caught.value)
    notifier = Notifier.of(
        settings, MemoryStore(), FakeClock(), "d", environ={"TENURE_NOTIFY": "json://h"}
    )
    assert "tenure[notify]" in notifier.troubles["notify"], "and a dispatcher goes on without"


def test_what_workers_must_not_see_is_named(tmp_path: Path) -> None:
    write(tmp_path, '[notify]\nto = ["env:MINE", "file:keys/to.txt"]\n')
    found = secret_variables(load_settings(start=tmp_path, environ={}))
    assert found == {"MINE", "file:keys/to.txt"}


@pytest.mark.parametrize(
    "url",
    [f"slack://{SECRET}/b", f"discord://{SECRET}/{SECRET}", f"sendgrid://{SECRET}.x.y:a@b.c",
     f"tgram://1:{SECRET}/2", f"ntfy://{SECRET}", f"json://u:{SECRET}@h.example:99/{SECRET}?k={SECRET}",
     f"mailtos://{SECRET}:{SECRET}@h.example", f"{SECRET}", f"json://h.example:{SECRET}/",
     f"json://{SECRET}!/", f"json://[{SECRET}", f"jsons://{SECRET}%00@{SECRET}@h.example"],
)  # fmt: skip
def test_what_is_shown_of_an_address_holds_no_secret(url: str) -> None:
    assert SECRET not in what(url)
    assert SECRET not in repr(Address(url, what(url)))


@given(st.text(max_size=80))
def test_what_is_shown_is_a_scheme_and_a_host_at_most(url: str) -> None:
    shown = what(url)
    assert (
        shown == "no address" or shown.endswith("://") or shown.lower() in url.lower() or "@" in url
    )


# ----------------------------------------------------------------------------------- words

_hostile = st.text(max_size=400) | st.text("\x00\x1b\n\r\t\u202e\u200b\u2028@<!:/ab", max_size=400)


@given(_hostile)
@example("x" * 1000)
def test_words_of_others_become_one_harmless_line(words: str) -> None:
    line = one_line(words)
    assert len(line) <= 160 and line == " ".join(line.split())
    assert not any(unicodedata.category(c)[0] == "C" or c in "@\u2028\u2029" for c in line)
    assert "<!" not in line and "http://" not in line.lower() and "https://" not in line.lower()
    assert one_line(line) == line


@given(_hostile, st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,62}", fullmatch=True), st.integers(0, 10**6))
@example("y " * 500, "p" * 63, 10**6)
def test_every_notice_is_one_bounded_line_with_a_command(
    words: str, plan: str, number: int
) -> None:
    every = [
        notices.gate_blocks(plan, words),
        notices.is_deployed(plan, "r" * 26, number, number),
        *told_by_a_teller(plan, words),
    ]
    assert {each.kind for each in every} == {
        "blocked", "deployed", "budget", "quota", "stuck", "done",
    }  # fmt: skip
    for each in every:
        assert len(each.line) <= MAX_CHARS
        assert not any(unicodedata.category(c)[0] == "C" for c in each.line)
        command = each.line.split("; `")[-1]
        assert command.endswith("`") and command.startswith("tenure ")


def told_by_a_teller(plan: str, words: str) -> list[Notice]:
    jobs = (
        JobSeen("a", plan, "over", words), JobSeen("b", plan, "waiting", words),
        JobSeen("c", plan, "stopped", words), JobSeen("d", f"{plan}2", "finished"),
    )  # fmt: skip
    spent = {(plan, "usd", 2.0): words}
    left = {"kaggle": Left(0.0, None, words, 1.0), "modal": Left(0.0, 7200.0, words, 1.0)}
    look = Look(jobs, silent=words, spent=spent, left=left)
    teller = Teller(60.0)
    return [
        notice
        for now_s in (0.0, 1000.0)
        for notice in teller.notices(look, Runs(), now_s, closing=True)
    ]


@given(st.text("ab (:) rung", max_size=30), st.integers(0, 10**9), st.floats(0, 1e6))
def test_numbers_do_not_tell_reasons_apart(words: str, one: int, other: float) -> None:
    assert shape(f"{words} {one} s") == shape(f"{words} {round(other, 3):f} s")
    assert shape(f"{words} (NoSlots)") != shape(f"{words} (Rejected)")


# ------------------------------------------------------------------- what a dispatcher saw


class Watched:
    """A bench whose dispatcher's rounds are judged, as the notifier's thread does it."""

    def __init__(self, clock: FakeClock, count: int = 1, stuck_s: float = 600.0) -> None:
        self.clock = clock
        self.bench = Bench(count, MemoryStore(clock), clock)
        self.teller = Teller(stuck_s)
        self.found: dict[tuple[str, str], Notice] = {}

    def round(self, closing: bool = False, runs: Runs | None = None) -> list[Notice]:
        tick = self.bench.dispatcher.tick()
        seen = notices.look(tick, self.bench.dispatcher.world)
        now_s = self.clock.monotonic_s()
        return self.teller.notices(seen, runs or Runs(), now_s, closing)

    def rounds(self, for_s: float, every_s: float = 10.0) -> list[Notice]:
        """What is told in that time, each event once."""
        end_s = self.clock.monotonic_s() + for_s
        found: dict[tuple[str, str], Notice] = {}
        while self.clock.monotonic_s() < end_s:
            for notice in self.round():
                found.setdefault((notice.kind, notice.key), notice)
            self.clock.sleep(every_s)
        return list(found.values())

    def end(self, number: int, code: int = 0, reason: str = "finished") -> None:
        lease = self.bench.claim(number)
        lease.write(Finish(lease.holder, lease.attempt, code, reason, {}))

    @property
    def rung(self) -> Rung:
        return self.bench.dispatcher.rungs["local"]


def test_a_plan_is_done_once_all_its_jobs_have_been_finished_for_a_while() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 2)
        assert here.round() == []
        here.end(0)
        here.end(1)
        assert here.round() == [], "the next stage may be enlisted at once"
        (done,) = here.rounds(2 * SETTLE_S)
        assert done.line == "plan p: all 2 jobs are finished; `tenure status --plan p`"
        assert (done.kind, done.about, done.again_s) == ("done", "p", None)


def test_a_next_stage_that_is_enlisted_meanwhile_keeps_a_plan_from_being_done() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.round()
        here.end(0)
        here.rounds(SETTLE_S / 2)
        spec = replace(here.bench.specs[0], stage="metrics")
        here.bench.jobs += enlist(here.bench.store, "p", "e", [spec], {"rungs": ["local"]}, clock)
        here.bench.specs.append(spec)
        assert here.rounds(2 * SETTLE_S) == []
        here.end(1)
        (done,) = here.rounds(2 * SETTLE_S)
        assert "all 2 jobs" in done.line


def test_at_a_dispatchers_end_a_plan_that_is_over_is_told_at_once() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.round()
        here.end(0)
        assert here.round() == []
        (done,) = here.round(closing=True)
        assert done.kind == "done" and "its one job is finished" in done.line


def test_what_ended_long_ago_is_no_news_to_one_who_comes_later() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 2)
        here.round()
        here.end(0)
        here.end(1, 1, "ValueError: no data")
        clock.sleep(NEWS_S + 60.0)
        here.bench.dispatcher = here.bench.another()
        assert here.rounds(2 * SETTLE_S) == []


def test_jobs_that_end_alike_without_a_result_are_one_notice_and_the_plans_end_another() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 2)
        here.round()
        here.end(0, 1, "Traceback\n  File x\nValueError: no data for 1998")
        here.end(1, 1, "Traceback\n  File y\nValueError: no data for 2003")
        first, last = here.rounds(2 * SETTLE_S)
        assert first.line.startswith(
            "2 of 2 jobs of plan p ended without a result: ended with code 1: ValueError: no data "
        )
        assert first.line.endswith(f"; `tenure why {min(here.bench.jobs)}`")
        assert last.line == (
            "plan p is over: 0 of 2 jobs finished, 2 without a result; `tenure status --plan p`"
        )
        assert first.kind == last.kind == "blocked" and first.key != last.key


def test_a_job_that_was_retried_is_no_news_and_its_retry_is() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.round()
        here.end(0, 1, "no data")
        (before,) = here.round()
        spec = replace(here.bench.specs[0], run=1)
        retry = enlist(here.bench.store, "p", "e", [spec], {"rungs": ["local"]}, clock)
        here.bench.jobs += retry
        here.bench.specs.append(spec)
        old = frozenset(here.bench.jobs[:1])
        assert here.round(runs=Runs(retried=old)) == []
        here.end(1, 1, "no data")
        after, over = here.round(closing=True, runs=Runs({retry[0]: 1}, old))
        assert after.key != before.key, "a person has tried once more, and waits for the answer"
        assert "0 of 1 job finished" in over.line
        unread = Runs(unread=frozenset(here.bench.jobs))
        assert here.round(closing=True, runs=unread) == []


def test_a_cancelled_job_is_without_a_result() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.round()
        key = keys.witness_of(here.bench.specs[0])
        stored = read_witness(here.bench.store, key)
        change(here.bench.store, key, here.bench.jobs[0], stored, Cancel("ann", "too dear"), clock)
        (notice,) = here.round()
        assert "cancelled: too dear" in notice.line


def test_a_job_that_no_rung_takes_is_stuck_after_a_while_and_is_told_daily() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.bench.runner.failures = [NoSlots("none of that card")] * 1000
        assert here.rounds(580.0) == []
        found = here.rounds(700.0)
        assert {notice.kind for notice in found} == {"stuck"}
        assert "1 of 1 job of plan p has waited for" in found[0].line
        assert any("NoSlots: none of that card" in notice.line for notice in found)
        assert all(notice.again_s == AGAIN_S for notice in found)


def test_one_who_waits_for_a_slot_is_not_stuck() -> None:
    """The words are those of the real decision: other words there, and this fails."""
    with FakeClock() as clock:
        here = Watched(clock, 3)
        here.round()
        leases = [here.bench.claim(number) for number in range(2)]
        for _ in range(200):
            clock.sleep(10.0)
            for lease in leases:
                lease.write(_renewed(lease))
            assert here.round() == []
        tick = here.bench.dispatcher.tick()
        seen = notices.look(tick, here.bench.dispatcher.world)
        assert [each.state for each in seen.jobs] == ["held", "held", "queued"]


def _renewed(lease: object) -> object:
    from tenure_protocol.lease.machine import Hold

    return Hold(lease.holder, lease.attempt, 100.0)  # type: ignore[attr-defined]


def test_the_states_of_a_job_are_those_that_a_dispatcher_decides_from() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)

        def state() -> str:
            tick = here.bench.dispatcher.tick()
            (seen,) = notices.look(tick, here.bench.dispatcher.world).jobs
            return seen.state

        assert state() == "launched"
        assert state() == "launched", "it may claim"
        lease = here.bench.claim()
        assert state() == "held"
        clock.sleep(150.0)
        assert state() == "held", "silent, but our own watch is too short to tell"
        key = keys.witness_of(here.bench.specs[0])
        stored = read_witness(here.bench.store, key)
        event = Revoke("ann", "paused", True)
        change(here.bench.store, key, here.bench.jobs[0], stored, event, clock)
        assert state() == "paused"
        assert lease is not None


def test_launches_that_nobody_claims_are_no_end_of_waiting() -> None:
    teller = Teller(600.0)
    for minute in range(0, 20, 2):
        for at_s, state in ((minute * 60.0, "launched"), (minute * 60.0 + 60.0, "waiting")):
            job = JobSeen("a", "p", state, "launch 3 did not claim")  # type: ignore[arg-type]
            found = teller.notices(Look((job,)), Runs(), at_s)
            assert bool(found) == (state == "waiting" and at_s - 60.0 >= 600.0)
    held = JobSeen("a", "p", "held")
    assert teller.notices(Look((held,)), Runs(), 1200.0) == []
    assert teller.notices(Look((job,)), Runs(), 1210.0) == []


def test_a_corrupt_witness_and_a_silent_store_are_stuck_and_a_paused_job_is_not() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 2)
        here.round()
        lease = here.bench.claim(0)
        lease.write(_renewed(lease))
        key = keys.witness_of(here.bench.specs[0])
        found = here.bench.store.read(key)
        here.bench.store.replace(key, b"{}", found.etag)  # type: ignore[union-attr]
        other = keys.witness_of(here.bench.specs[1])
        stored = read_witness(here.bench.store, other)
        event = Revoke("ann", "paused", True)
        change(here.bench.store, other, here.bench.jobs[1], stored, event, clock)
        (notice,) = here.rounds(700.0)
        assert notice.kind == "stuck" and "is corrupt" in notice.line
    with FakeClock() as clock:
        store = FaultyStore(clock)
        here = Watched(clock)
        here.bench = Bench(1, store, clock)
        here.round()
        store.silent = lambda key: True
        found_ = {notice.about: notice for notice in here.rounds(1300.0)}
        assert set(found_) == {"p", "store=all"}
        assert "has not answered for" in found_["store=all"].line


def test_a_job_that_may_never_run_here_is_stuck_with_the_rungs_that_are_out() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.bench.dispatcher = Dispatcher(
            here.bench.store, [replace(here.rung, name="other")], clock
        )  # fmt: skip
        (notice,) = here.rounds(700.0)
        assert (
            "rung local is out: the tenure.toml of this dispatcher has no such rung" in notice.line
        )


def test_a_fatal_rung_ends_the_job_and_that_is_told_as_its_end() -> None:
    with FakeClock() as clock:
        here = Watched(clock, 1)
        here.bench.runner.failures = [ProtocolError("an answer that must not be")] * 9
        kinds = {notice.kind for notice in here.rounds(800.0)}
        assert kinds == {"blocked"}


# ------------------------------------------------------------------------------------ post


def a_post(
    store: Store, clock: FakeClock, box: Letterbox, name: str = "d1",
    to: Sequence[Address] = (HERE,),
) -> Post:  # fmt: skip
    return Post(store, clock, name, to, box)


def work(clock: FakeClock, *posts: Post, for_s: float) -> None:
    end_s = clock.monotonic_s() + for_s
    while clock.monotonic_s() < end_s:
        for each in posts:
            each.work()
        clock.sleep(5.0)


def stored(store: Store) -> list[str]:
    return [row.key.removeprefix("notices/p/") for row in store.list("notices/")]


def test_two_dispatchers_and_their_restarts_tell_an_event_once() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        for _ in range(3):
            posts = [a_post(store, clock, box, name) for name in ("d1", "d2")]
            for _ in range(5):
                for each in posts:
                    each.take([DONE])
                work(clock, *posts, for_s=30.0)
        assert box.taken == ["plan p is done"]
        assert stored(store) == ["done-event-1.claim-1.json", "done-event-1.sent.json"]
        claim = store.read("notices/p/done-event-1.claim-1.json")
        assert SECRET not in claim.body.decode()  # type: ignore[union-attr]
        assert json.loads(claim.body)["by"] == "d1"  # type: ignore[union-attr]


def test_a_race_for_the_claim_has_one_winner() -> None:
    """Both have seen an empty folder before either writes."""
    with FakeClock() as clock:
        store, box = FaultyStore(clock, lambda key: False), Letterbox()
        store.call_s = 0.2  # every call lets the other thread go on
        posts = [a_post(store, clock, box, name) for name in ("d1", "d2", "d3")]
        for each in posts:
            each.take([DONE])
        tasks = [clock.spawn(each.work, "racer") for each in posts]
        for task in tasks:
            task.join()
        assert box.taken == ["plan p is done"]


class _Dies(BaseException):
    pass


@pytest.mark.parametrize("when", ["before sending", "after sending"])
def test_one_who_dies_after_claiming_is_replaced(when: str) -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()

        def dies(batch: Sequence[tuple[Address, Letter]]) -> list[str]:
            if when == "after sending":
                box(batch)
            raise _Dies

        first = Post(store, clock, "d1", [HERE], dies)
        first.take([DONE])
        with pytest.raises(_Dies):
            first.work()
        second = a_post(store, clock, box, "d2")
        second.take([DONE])
        work(clock, second, for_s=TAKE_OVER_S - 30.0)
        told_before = 1 if when == "after sending" else 0
        assert len(box.taken) == told_before, "the first one may yet live"
        work(clock, second, for_s=60.0)
        assert len(box.taken) == told_before + 1, "twice is better than never"
        assert stored(store)[-2:] == ["done-event-1.claim-2.json", "done-event-1.sent.json"]
        third = a_post(store, clock, box, "d3")
        third.take([DONE])
        work(clock, third, for_s=2 * TAKE_OVER_S)
        assert len(box.taken) == told_before + 1


def test_a_sender_that_was_frozen_does_not_send_what_was_taken_from_it() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        box.answers[HERE] = "it was not taken"
        frozen = a_post(store, clock, box, "d1")
        frozen.take([DONE])
        frozen.work()
        clock.sleep(TAKE_OVER_S + 10.0)  # SIGSTOP
        box.answers.clear()
        other = a_post(store, clock, box, "d2")
        other.take([DONE])
        other.work()
        frozen.work()
        assert len(box.taken) == 1


def test_what_was_told_of_once_and_not_sent_is_sent_by_another_dispatcher() -> None:
    """Who deployed a model dies between its claim and its letter: nobody else knows of it."""
    with FakeClock() as clock:
        office = Office(clock)

        def dies(batch: Sequence[tuple[Address, Letter]]) -> list[str]:
            raise _Dies

        first = Post(office.bench.store, clock, "d1", [HERE], dies)
        first.take([notices.is_deployed("p", "r", 7, 3)])
        with pytest.raises(_Dies):
            first.work()
        office.rounds(TAKE_OVER_S - 30.0)
        assert office.box.taken == []
        office.rounds(2 * TAKE_OVER_S)
        assert office.box.taken == [notices.is_deployed("p", "r", 7, 3).line]
        office.rounds(3 * TAKE_OVER_S)
        assert len(office.box.taken) == 1


def test_a_claim_that_is_corrupt_is_named_and_ends_nothing() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        store.create("notices/p/done-event-1.claim-1.json", b"{")
        clock.sleep(TAKE_OVER_S + 1.0)
        mine = a_post(store, clock, box)
        assert mine.unsent() == []
        assert "is corrupt" in mine.troubles["notices/p/done-event-1.claim-1.json"]


def test_at_a_dispatchers_end_one_address_that_took_it_is_enough() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        box.answers[THERE] = "it was not taken"
        mine = a_post(store, clock, box, to=(THERE, HERE))
        mine.take([DONE, replace(DONE, key="other")])
        mine.work(last=True)
        assert sum("sent" in key for key in stored(store)) == 2
        mine.take([replace(DONE, key="before")])
        mine.work()
        assert sum("sent" in key for key in stored(store)) == 2, "the other may take it yet"
        mine.work(last=True)
        assert sum("sent" in key for key in stored(store)) == 3
        box.answers[HERE] = "it was not taken"
        mine.take([replace(DONE, key="third")])
        mine.work(last=True)
        assert sum("sent" in key for key in stored(store)) == 3, "nobody took that one"


def test_a_dead_address_keeps_nobody_waiting_and_is_named_without_its_secret() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        box.answers[THERE] = "it was not taken"
        mine = a_post(store, clock, box, to=(THERE, HERE))
        mine.take([DONE])
        mine.work()
        assert box.taken == ["plan p is done"]
        assert list(mine.troubles.values()) == [
            f"a notice did not go to {THERE.shown}: it was not taken"
        ]
        assert SECRET not in str(mine.troubles) + repr(mine.__dict__)
        work(clock, mine, for_s=1000.0)
        tried = [address for batch in box.batches for address, _ in batch]
        assert tried.count(HERE) == 1 and tried.count(THERE) == TRIES
        assert "done-event-1.sent.json" in stored(store)
        box.answers.clear()
        mine.take([replace(DONE, key="other")])
        mine.work()
        assert mine.troubles == {}, "what is over is no trouble any more"


def test_where_nobody_takes_it_it_is_tried_so_often_and_no_more() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        box.answers[HERE] = "it was not taken"
        posts = [a_post(store, clock, box, name) for name in ("d1", "d2")]
        for _ in range(40):
            for each in posts:
                each.take([DONE])
            work(clock, *posts, for_s=100.0)
        assert len(box.batches) == MOST_CLAIMS * TRIES
        assert "done-event-1.sent.json" not in stored(store)
        assert sum("claim" in key for key in stored(store)) == MOST_CLAIMS


def test_without_a_store_and_a_taker_it_is_given_up_as_well() -> None:
    with FakeClock() as clock:
        store, box = FaultyStore(clock), Letterbox()
        store.silent = lambda key: True
        box.answers[HERE] = "it was not taken"
        mine = a_post(store, clock, box)
        mine.take([DONE])
        work(clock, mine, for_s=6 * 3600.0)
        assert len(box.batches) == MOST_CLAIMS * TRIES


def test_what_lasts_is_told_again_after_a_day_by_one_of_them() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        posts = [a_post(store, clock, box, name) for name in ("d1", "d2")]
        lasting = replace(DONE, kind="stuck", again_s=AGAIN_S)
        for _ in range(60):
            for each in posts:
                each.take([lasting])
                each.work()
            clock.sleep(3600.0)
        assert len(box.taken) == 3  # in 60 hours
        assert [key for key in stored(store) if "sent" in key] == [
            f"stuck-event-{number}.sent.json" for number in (1, 2, 3)
        ]


def test_reasons_without_end_are_no_notices_without_end() -> None:
    with FakeClock() as clock:
        store, box = MemoryStore(clock), Letterbox()
        mine = a_post(store, clock, box)
        for number in range(3 * MOST_OF_A_KIND):
            mine.take([replace(DONE, kind="blocked", key=f"event{number}")])
            mine.work()
        assert len(box.taken) == MOST_OF_A_KIND
        assert "further ones are not" in mine.troubles["notices/p/blocked"]
        mine.take([DONE])
        mine.work()
        assert len(box.taken) == MOST_OF_A_KIND + 1, "another kind has its own number"


def test_a_silent_store_is_waited_for_and_then_told_without() -> None:
    with FakeClock() as clock:
        store, box = FaultyStore(clock), Letterbox()
        store.silent = lambda key: True
        mine = a_post(store, clock, box)
        mine.take([replace(DONE, kind="stuck", about="store=all", again_s=AGAIN_S)])
        work(clock, mine, for_s=UNCLAIMED_S - 60.0)
        assert box.taken == [] and "cannot be claimed" in mine.troubles["notices/"]
        work(clock, mine, for_s=3600.0)
        assert len(box.taken) == 1


def test_a_notice_whose_record_got_no_answer_is_recorded_later_and_not_sent_again() -> None:
    with FakeClock() as clock:
        store, box = FaultyStore(clock), Letterbox()
        box.answers[THERE] = "it was not taken"
        mine, other = a_post(store, clock, box, to=(HERE, THERE)), a_post(store, clock, box, "d2")
        store.silent = lambda key: "sent" in key
        for each in (mine, other):
            each.take([DONE])
        work(clock, mine, other, for_s=250.0)
        store.heal()
        work(clock, mine, other, for_s=100.0)
        assert "done-event-1.sent.json" in stored(store)
        work(clock, mine, other, for_s=2 * TAKE_OVER_S)
        assert len(box.taken) == 1
        tried = [address for batch in box.batches for address, _ in batch]
        assert tried.count(THERE) == TRIES
        assert other.unsent() == [], "its claim was followed by the record"


@given(
    st.lists(st.sampled_from(["ok", "lost_request", "lost_answer", "ghost", "late2"]), max_size=8),
    st.lists(st.booleans(), max_size=4),
)
def test_over_a_hostile_store_a_notice_is_never_lost(faults: list[str], dies: list[bool]) -> None:
    """Told at least once; exactly once where nobody dies between sending and saying so."""
    with FakeClock() as clock:
        store, box = FaultyStore(clock, lambda key: key.startswith("notices/")), Letterbox()
        store.fail_writes(faults)
        deaths = list(dies)
        killed = 0

        def may_die(batch: Sequence[tuple[Address, Letter]]) -> list[str]:
            nonlocal killed
            answers = box(batch)
            if deaths and deaths.pop():
                killed += 1
                raise _Dies
            return answers

        posts = [Post(store, clock, f"d{number}", [HERE], may_die) for number in range(2)]
        for _ in range(80):
            for number, each in enumerate(posts):
                each.take([DONE])
                try:
                    each.work()
                except _Dies:  # and is started again
                    posts[number] = Post(store, clock, f"e{killed}", [HERE], may_die)
            clock.sleep(60.0)
        assert 1 <= len(box.taken) <= 1 + killed


# -------------------------------------------------------------------------------- notifier


@dataclass
class Office:
    """A notifier beside a real dispatcher."""

    clock: FakeClock
    count: int = 1
    section: NotifySection = field(default_factory=NotifySection)
    store: Store | None = None

    def __post_init__(self) -> None:
        self.box = Letterbox()
        self.spent: dict[tuple[str, str], str] = {}
        self.bench = Bench(self.count, self.store or MemoryStore(self.clock), self.clock)
        self.notifier = self.another()

    def another(self) -> Notifier:
        return Notifier(self.bench.store, self.clock, "d1", self.section, [HERE], self.box)

    def rounds(self, for_s: float, left: Left | None = None) -> None:
        end_s = self.clock.monotonic_s() + for_s
        world, lefts = self.bench.dispatcher.world, {"kaggle": left} if left else {}
        while self.clock.monotonic_s() < end_s:
            self.notifier.tell(self.bench.dispatcher.tick(), world, self.spent, lefts)
            self.clock.sleep(LOOK_EVERY_S)

    def end(self, number: int, code: int = 0, reason: str = "finished") -> None:
        lease = self.bench.claim(number)
        lease.write(Finish(lease.holder, lease.attempt, code, reason, {}))


def test_a_dispatchers_rounds_become_notices() -> None:
    with FakeClock() as clock:
        office = Office(clock)
        office.rounds(60.0)
        assert office.box.taken == []
        office.end(0)
        office.rounds(2 * SETTLE_S)
        (line,) = office.box.taken
        assert line.startswith("plan p: its one job is finished")
        office.notifier = office.another()
        office.rounds(2 * SETTLE_S)
        assert len(office.box.taken) == 1, "a restarted dispatcher finds it told"
        assert office.notifier.troubles == {}


def test_only_the_events_that_were_chosen_are_told() -> None:
    with FakeClock() as clock:
        office = Office(clock, section=NotifySection(events=["deployed"]))
        office.rounds(30.0)
        office.end(0)
        office.rounds(2 * SETTLE_S)
        office.notifier.deployed("p", "r" * 26, 7, 3)
        clock.sleep(10.0)
        assert office.box.taken == [
            f"p is deployed: record {'r' * 26}, seed 7, by warrant 3; `tenure gate check {'r' * 26}`"
        ]


def test_closing_tells_what_is_left_and_who_played_a_plan_has_told_its_end() -> None:
    with FakeClock() as clock:
        office = Office(clock)
        office.rounds(30.0)
        office.end(0)
        office.rounds(2 * LOOK_EVERY_S)
        office.notifier.close()
        (line,) = office.box.taken
        assert line.startswith("plan p: its one job is finished")
    with FakeClock() as clock:
        office = Office(clock)
        office.rounds(30.0)
        office.end(0)
        office.rounds(2 * LOOK_EVERY_S)
        office.notifier.blocked("p", "score: 0.1 is below 0.3")
        office.notifier.close()
        (line,) = office.box.taken
        assert line == "plan p is blocked: score: 0.1 is below 0.3; `tenure status --plan p`"
        office.notifier.deployed("p", "r", 1, 1)  # used anew
        office.notifier.close()
        assert len(office.box.taken) == 2


def test_a_plan_whose_end_was_told_is_told_again_once_it_had_more_to_do() -> None:
    with FakeClock() as clock:
        office = Office(clock)
        office.rounds(10.0)
        office.end(0)
        office.notifier.blocked("p", "score: too low")
        office.rounds(2 * SETTLE_S)
        assert len(office.box.taken) == 1
        spec = replace(office.bench.specs[0], seed=77)
        enlist(office.bench.store, "p", "e", [spec], {"rungs": ["local"]}, clock)
        office.bench.specs.append(spec)
        office.rounds(10.0)
        office.end(1)
        office.rounds(2 * SETTLE_S)
        assert [line for line in office.box.taken if "all 2 jobs are finished" in line]


def test_nothing_is_done_while_a_plan_may_be_missing() -> None:
    jobs = (JobSeen("a", "p", "finished"),)
    for whole in (False, True):
        found = Teller(60.0).notices(Look(jobs, whole=whole), Runs(), 0.0, closing=True)
        assert len(found) == whole


def test_a_retry_is_found_by_its_spec() -> None:
    with FakeClock() as clock:
        office = Office(clock)
        office.rounds(10.0)
        office.end(0, 1, "no data")
        office.rounds(10.0)
        assert len(office.box.taken) == 1
        spec = replace(office.bench.specs[0], run=1)
        enlist(office.bench.store, "p", "e", [spec], {"rungs": ["local"]}, clock)
        office.bench.specs.append(spec)
        office.bench.jobs.append(spec.id)
        office.rounds(10.0)
        office.end(1)
        office.rounds(2 * SETTLE_S)
        assert office.box.taken[1:] == ["plan p: its one job is finished; `tenure status --plan p`"]


def test_a_budget_that_is_spent_is_told_once_and_again_when_more_was_given() -> None:
    with FakeClock() as clock:
        office = Office(clock)

        def give(most: float) -> None:
            terms: dict[str, object] = {"rungs": ["local"], "budget": {"usd": most}}
            enlist(office.bench.store, "p", "e", office.bench.specs, terms, clock)

        def told() -> list[str]:
            return [line for line in office.box.taken if "budget" in line]

        give(2.0)
        office.rounds(60.0)
        assert told() == []
        for amount in (2.1, 2.2):  # a machine that ends is paid for
            words = f"the budget of plan p is spent: {amount:.2f} of 2.00 usd"
            office.spent = {("p", "usd"): words}
            office.rounds(60.0)
        assert told() == [
            "the budget of plan p is spent: 2.10 of 2.00 usd; `tenure costs p`"
        ]  # fmt: skip
        give(5.0)
        office.spent = {}
        office.rounds(60.0)
        office.spent = {("p", "usd"): "the budget of plan p is spent: 5.01 of 5.00 usd"}
        office.rounds(60.0)
        assert len(told()) == 2


def test_the_budget_of_a_plan_that_ended_long_ago_is_no_news() -> None:
    seen = Look(
        (JobSeen("a", "p", "finished", age_s=NEWS_S + 1.0), JobSeen("b", "q", "finished")),
        spent={("p", "usd", 1.0): "spent", ("q", "usd", 1.0): "spent"},
    )
    assert [notice.about for notice in Teller(60.0).notices(seen, Runs(), 0.0)] == ["q"]


def test_a_quota_that_is_spent_is_told_with_its_renewal_once_per_period() -> None:
    with FakeClock() as clock:
        office = Office(clock)
        renewal_s = clock.wall_s() + 36 * 3600.0

        def told() -> list[str]:
            return [line for line in office.box.taken if "quota" in line]

        office.rounds(60.0, Left(1.0, renewal_s, "1 of 30 h were left 60 s ago", 60.0))
        assert told() == []
        words = "0.05 of 30 h were left 60 s ago, renewed in 36.0 h"
        office.rounds(60.0, Left(0.05, renewal_s, words, 60.0))
        office.rounds(60.0, Left(0.0, renewal_s + 2.0, "0 of 30 h were left", 60.0))
        assert told() == [f"the quota of runner kaggle is spent: {words}; `tenure doctor`"]
        office.rounds(60.0, Left(0.0, renewal_s + 7 * 86400.0, "0 of 30 h were left", 60.0))
        assert len(told()) == 2, "another week's is another"


def test_after_a_bug_the_thread_rests_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeClock() as clock:
        office = Office(clock)
        calls: list[float] = []
        work = Post.work

        def broken(self: Post, last: bool = False) -> None:
            calls.append(clock.now_s)
            if len(calls) < 4:
                raise KeyError(SECRET)
            work(self, last)

        monkeypatch.setattr(Post, "work", broken)
        office.notifier.deployed("p", "r", 1, 1)
        clock.sleep(100.0)
        assert office.notifier.troubles == {"the notifier": "it failed: KeyError"}
        clock.sleep(200.0)
        assert len(office.box.taken) == 1 and office.notifier.troubles == {}
        assert len(calls) <= 6


def test_a_look_that_found_no_room_is_followed_by_another() -> None:
    with FakeClock() as clock, pytest.MonkeyPatch.context() as patch:
        office = Office(clock)
        office.rounds(20.0)
        patch.setattr(office.notifier._box, "offer", lambda item: False)
        office.rounds(20.0)
        patch.undo()
        office.end(0)
        office.rounds(2 * SETTLE_S)
        assert len(office.box.taken) == 1


def test_sending_that_hangs_and_a_bug_in_it_leave_the_rounds_alone() -> None:
    released = threading.Event()
    begun = threading.Event()

    def hangs(batch: Sequence[tuple[Address, Letter]]) -> list[str]:
        begun.set()
        released.wait()
        raise KeyError(SECRET)

    from tenure_protocol.clock import SYSTEM

    bench = Bench(1)
    notifier = Notifier(bench.store, SYSTEM, "d", NotifySection(), [HERE], send=hangs)
    notifier.deployed("p", "r", 1, 1)
    until(begun.is_set)
    for _ in range(200):
        notifier._looked_s = float("-inf")
        notifier.tell(bench.dispatcher.tick(), bench.dispatcher.world)
        notifier.deployed("p", "r", 1, 1)
    assert notifier.troubles, "it says what it dropped"
    released.set()
    until(lambda: "the notifier" in notifier.troubles)
    assert SECRET not in str(notifier.troubles)


def test_without_addresses_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(notices, "look")
    with FakeClock() as clock:
        bench = Bench(1, MemoryStore(clock), clock)
        notifier = Notifier(bench.store, clock, "d", NotifySection(), [])
        notifier.tell(Tick(((Wait(bench.jobs[0]), "x"),)), bench.dispatcher.world)
        notifier.deployed("p", "r", 1, 1)
        notifier.close()
        assert list(bench.store.list(post.NOTICES)) == [] and notifier.troubles == {}


# ----------------------------------------------------------- apprise itself, over loopback


@contextmanager
def web(status: int = 200, hang: threading.Event | None = None) -> Iterator[tuple[int, list[str]]]:
    bodies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            if hang:
                hang.wait()
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], bodies
    finally:
        if hang:
            hang.set()
        server.shutdown()
        server.server_close()


@contextmanager
def mail() -> Iterator[tuple[int, list[str]]]:
    """As much of SMTP as one letter needs."""
    lines: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 loopback\r\n")
        data = False
        while line := await reader.readline():
            lines.append(line.decode().rstrip())
            word = line[:4].upper()
            if data:
                data = line != b".\r\n"
                if not data:
                    writer.write(b"250 taken\r\n")
            elif word == b"DATA":
                data = True
                writer.write(b"354 go on\r\n")
            elif word == b"EHLO":
                writer.write(b"250-loopback\r\n250 AUTH PLAIN LOGIN\r\n")
            elif word == b"QUIT":
                writer.write(b"221 bye\r\n")
                break
            else:
                writer.write(b"235 ok\r\n" if word == b"AUTH" else b"250 ok\r\n")
        writer.close()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    try:
        yield server.sockets[0].getsockname()[1], lines
    finally:
        loop.call_soon_threadsafe(loop.stop)


def address(url: str, number: int = 1) -> Address:
    return Address(url, f"{what(url)}, number {number} in $TENURE_NOTIFY")


LETTER = Letter("Tenure: stuck", "1 of 5 jobs: loss < 3 & <b>more</b>; `tenure why x`", "warning")


def test_a_webhook_and_a_mailbox_take_a_line_as_it_is() -> None:
    with web() as (hook, bodies), mail() as (smtp, lines):
        letterbox = f"mailto://ann:{SECRET}@127.0.0.1:{smtp}/b@example.org?from=a@example.org"
        to = [address(f"json://ann:{SECRET}@127.0.0.1:{hook}/hook"), address(letterbox)]
        assert send([(one, LETTER) for one in to]) == ["", ""]
        text = "\n".join(lines)
        assert "Subject: Tenure: stuck" in text and f"\n{LETTER.line}\n" in text
        lines.clear()
        assert send([(address(f"{letterbox}&format=html"), LETTER)]) == [""]
        page = "\n".join(lines).replace("=\n", "").rpartition("text/html")[2].replace("&nbsp;", " ")
        assert "loss &lt; 3 &amp; &lt;b&gt;more&lt;/b&gt;" in page, "nothing is markup there"
    (body,) = bodies
    told = json.loads(body)
    assert (told["title"], told["message"], told["type"]) == (LETTER.title, LETTER.line, "warning")


def test_addresses_that_are_dead_mute_or_none_keep_no_other_from_its_letter(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    hang = threading.Event()
    with web() as (hook, bodies), web(500) as (angry, _), web(hang=hang) as (mute, asked):
        to = [
            address(f"json://ann:{SECRET}@127.0.0.1:{mute}/{SECRET}?rto=1&cto=1"),
            address(f"json://ann:{SECRET}@127.0.0.1:9/?cto=1"),
            address(f"json://ann:{SECRET}@127.0.0.1:{angry}/"),
            address(f"nosuchscheme://{SECRET}"),
            address(SECRET),
            address(f"json://ann:{SECRET}@127.0.0.1:{hook}/"),
        ]
        answers = send([(one, LETTER) for one in to])
        assert answers == [
            "it was not taken",
            "it was not taken",
            "it was not taken",
            "it is no address that apprise knows, or something is missing in it",
            "it is no address that apprise knows, or something is missing in it",
            "",
        ]
        assert len(bodies) == len(asked) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("", ""), "what a library says may hold an address"
    assert SECRET not in caplog.text + str(answers)


def test_a_sender_that_never_answers_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.notify import send as module

    monkeypatch.setattr(module, "DEADLINE_S", 0.5)
    monkeypatch.setattr(module, "_MARGIN_S", 0.0)
    hang = threading.Event()
    with web(hang=hang) as (mute, _):
        one = address(f"json://{SECRET}@127.0.0.1:{mute}/?rto=100")
        assert send([(one, LETTER)]) == ["no answer within 0.5 s"]


def test_the_senders_process_shows_no_address_and_gets_no_secret_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from outside while it waits for its answer: its arguments and its environment."""
    monkeypatch.setenv("TENURE_DEPLOY_KEY", SECRET)
    hang = threading.Event()
    seen: list[str] = []

    with web(hang=hang) as (mute, asked):
        one = address(f"json://{SECRET}@127.0.0.1:{mute}/?rto=20")
        thread = threading.Thread(target=lambda: seen.append(str(send([(one, LETTER)]))))
        thread.start()
        until(lambda: asked)
        mine = [
            folder for folder in Path("/proc").iterdir()
            if folder.name.isdigit() and "tenure.notify.send" in _text(folder / "cmdline")
            and _parent(folder) == os.getpid()
        ]  # fmt: skip
        assert len(mine) == 1
        shown = _text(mine[0] / "cmdline") + _text(mine[0] / "environ")
        assert (mine[0] / "fd" / "2").readlink() == Path("/dev/null"), "a library may print it"
        hang.set()
        thread.join()
    assert SECRET not in shown and seen == ["['']"]


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _parent(folder: Path) -> int:
    return int(_text(folder / "stat").rpartition(")")[2].split()[1] or 0)


# --------------------------------------------------------------------------------- command


def run_command(folder: Path, *arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(notify)
    (folder / "tenure.toml").touch()
    result = CliRunner().invoke(app, [*arguments, "--config", str(folder / "tenure.toml")])
    told = str(result.exception) if isinstance(result.exception, (Blocked, UsageError)) else ""
    code = result.exception.exit_code if told else result.exit_code  # type: ignore[union-attr]
    return code, result.output, told


def test_the_command_tests_each_address_and_shows_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with web() as (hook, bodies):
        good = f"json://ann:{SECRET}@127.0.0.1:{hook}/{SECRET}"
        monkeypatch.setenv("TENURE_NOTIFY", good)
        code, output, told = run_command(tmp_path, "--test")
        assert (code, told) == (0, "") and f"taken   json://127.0.0.1:{hook}" in output
        monkeypatch.setenv("TENURE_NOTIFY", f"{good} json://{SECRET}@127.0.0.1:9/?cto=1")
        code, output, told = run_command(tmp_path, "--test")
        assert (code, told) == (1, "1 of 2 addresses did not take it")
        assert "it was not taken  json://127.0.0.1:9, number 2 in $TENURE_NOTIFY" in output
        assert len(bodies) == 2
        code, output, told = run_command(tmp_path)
        assert code == 0 and "number 2 in $TENURE_NOTIFY" in output and len(bodies) == 2
        assert "told of: done, blocked, stuck, budget, quota, deployed" in output
    assert SECRET not in output + told


def test_the_command_says_where_an_address_would_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_NOTIFY", raising=False)
    code, _, told = run_command(tmp_path)
    assert code == 2 and "$TENURE_NOTIFY" in told
