"""A pool of own machines: agents that admit, refuse and take back by themselves. Real processes, one machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners import pool, pool_agent
from runners.own_process import live_worker
from runners.pool import PoolRunner
from runners.pool_agent import Agent
from runners.pool_mail import Answer, End, MachineQuota, Mail, Order
from tenure.dispatch.contract import (
    Capacity,
    Closed,
    Job,
    NoSlots,
    Pending,
    Receipt,
    Site,
    Unreachable,
)
from tenure.queue.placement import Size
from tenure.testing import runner_checks
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import Applied, Lease, acquire, change, read_witness
from tenure_protocol.lease.machine import Reserve
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import StoreSilent
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock

T = TypeVar("T")


def until(call: Callable[[], T | None], why: str, for_s: float = 60.0) -> T:
    """What a call returns once it returns something."""
    end_s = SYSTEM.monotonic_s() + for_s
    while (found := call()) is None:
        assert SYSTEM.monotonic_s() < end_s, f"not within {for_s:g} s: {why}"
        SYSTEM.sleep(0.02)
    return found


Machines = Mapping[str, Mapping[str, object]]
ONE: Machines = {"a": {"cards": 2}}
TWO: Machines = {"a": {"cards": 1}, "b": {"cards": 1}}


class Lab:
    """A store in a folder, runners over it, and agents that step in threads of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.url = f"file:{folder / 'store'}"
        self.store = DirectoryStore(folder / "store")
        self.name = f"lab{SYSTEM.nonce()[:6]}"
        self.agents: list[tuple[Agent, threading.Event, threading.Thread]] = []
        monkeypatch.setattr(pool_agent, "TELLS_EVERY_S", 0.05)
        script = folder / "python"
        script.write_text(
            textwrap.dedent(f"""\
            #!{sys.executable}
            import time
            time.sleep(600)
            """)
        )
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        self.worker = {"python": str(script), "linger_s": 0.0, "grace_s": 0.0}

    def config(self, machines: Machines, **more: object) -> dict[str, object]:
        return {"machines": machines, "worker": self.worker, "answer_s": 30.0, **more}

    def site(self) -> Site:
        return Site(self.folder, SYSTEM, store=self.url)

    def runner(self, machines: Machines, **more: object) -> PoolRunner:
        return PoolRunner(self.name, self.config(machines, **more), self.site())

    def agent(self, machine: str, machines: Machines, **more: object) -> Agent:
        made = Agent(self.store, self.name, machine, self.config(machines, **more), self.site())
        end = threading.Event()

        def run() -> None:
            while not end.is_set():
                made.step()
                end.wait(0.02)

        thread = threading.Thread(target=run, daemon=True)
        made.step()  # it has shown itself before anybody asks
        thread.start()
        self.agents.append((made, end, thread))
        return made

    def stop(self, machine: str = "") -> None:
        for made, end, thread in self.agents:
            if made.machine == machine or not machine:
                end.set()
                thread.join()

    def job(self, cards: int = 1) -> Job:
        return Job("j" * 26, "train", 1, f"one-{SYSTEM.nonce()}", self.url, cards)

    def mail(self) -> Mail:
        return Mail(self.store, self.name, SYSTEM)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path, monkeypatch)
    yield made
    made.stop()
    for agent, _, _ in made.agents:
        for child in agent._own._children.values():
            child.kill()
            child.wait()


@pytest.mark.parametrize("check", runner_checks.ALL, ids=lambda check: check.__name__)
def test_contract(lab: Lab, check: runner_checks.Check) -> None:
    lab.agent("a", ONE)
    check(lambda: lab.runner(ONE), lab.job)


def process_of(lab: Lab, machine: str, receipt: Receipt) -> Any:
    return live_worker(Receipt(receipt.jobs, f"{lab.name}-{machine}", receipt.name, "cpu", 0.0))


def test_a_full_machine_refuses_at_once_another_takes_it_and_nobody_is_no_failure(lab: Lab) -> None:
    for machine in TWO:
        lab.agent(machine, TWO)
    runner, other = lab.runner(TWO), lab.runner(TWO)  # two dispatchers that know of no load
    first, second = runner.launch([lab.job()]), other.launch([lab.job()])
    assert {first.handle["machine"], second.handle["machine"]} == {"a", "b"}
    with pytest.raises(NoSlots) as told:
        runner.launch([lab.job()])
    assert "a: no room: 1 of 1 cards are taken, and it asks for 1" in str(told.value)
    assert "b: no room" in str(told.value)
    assert sorted(one.name for one in runner.running("one-")) == sorted([first.name, second.name])
    runner_checks.until_closed(runner, first)
    again = runner.launch([lab.job()])
    assert again.handle["machine"] == first.handle["machine"]
    for receipt in (second, again):
        runner_checks.until_closed(other, receipt)


@pytest.mark.parametrize("way", ["fit", "spread"])
def test_a_large_job_finds_a_whole_machine_by_best_fit_and_may_not_by_spreading(
    lab: Lab, way: str
) -> None:
    """Two cards each, three small jobs would leave one card on each machine where they are spread."""
    machines = {name: {"cards": 2, "cpus": 8.0} for name in ("a", "b")}
    for machine in machines:
        lab.agent(machine, machines)
    runner = lab.runner(machines, place=way, cpus=1.0)
    small = [runner.launch([lab.job()]) for _ in range(2)]
    used = {receipt.handle["machine"] for receipt in small}
    assert len(used) == (1 if way == "fit" else 2)
    large = launched(runner, lab.job(cards=2))
    assert (large is not None) == (way == "fit")
    for receipt in [*small, *([large] if large else [])]:
        runner_checks.until_closed(runner, receipt)


def test_where_nobody_seems_to_have_room_some_are_asked_all_the_same(lab: Lab) -> None:
    """What a dispatcher knows is old: the agent's last word was before the end of what it ran."""
    agent = lab.agent("a", {"a": {"cards": 1}})
    runner = lab.runner({"a": {"cards": 1}})
    receipt = runner.launch([lab.job()])
    assert [machine.free.cards for machine in runner._seen(lab.mail())] == [0]
    until(lambda: process_of(lab, "a", receipt), "it runs").kill()
    until(lambda: agent._taken()[0] == 0 or None, "the agent has seen it")
    runner._placed["a"] = [
        (SYSTEM.monotonic_s() + 1e6, "another", Size(1))
    ]  # as if the word were older
    assert [machine.free.cards for machine in runner._seen(lab.mail())] == [0]
    second = runner.launch([lab.job()])
    for one in (receipt, second):
        runner_checks.until_closed(runner, one)


def test_a_process_that_ended_by_itself_frees_its_room_before_its_bill_is_closed(lab: Lab) -> None:
    lab.agent("a", {"a": {"cards": 1}})
    runner = lab.runner({"a": {"cards": 1}})
    first = runner.launch([lab.job()])
    process = until(lambda: process_of(lab, "a", first), "the worker has started")
    process.kill()
    second = until(lambda: launched(runner, lab.job()), "there is room again")
    assert second.name != first.name
    for receipt in (first, second):
        runner_checks.until_closed(runner, receipt)


def launched(runner: PoolRunner, job: Job) -> Receipt | None:
    try:
        return runner.launch([job])
    except NoSlots:
        return None


def test_without_an_agent_there_is_no_room_and_no_order(lab: Lab) -> None:
    runner = lab.runner(ONE)
    with pytest.raises(NoSlots, match=r"no agent of pool .* has shown itself"):
        runner.launch([lab.job()])
    assert list(lab.mail().names("orders")) == []
    (row,) = runner.examine()
    assert row[0] == "a" and "tenure agent" in str(row[1])


def test_an_order_that_nobody_answers_is_withdrawn_and_never_run(lab: Lab) -> None:
    """The agent stops between its last word and the order: when it comes back nothing is started."""
    agent = lab.agent("a", ONE)
    lab.stop()
    one = lab.job()
    with pytest.raises(NoSlots, match=r"no answer in 0\.2 s"):
        lab.runner(ONE, answer_s=0.2).launch([one])
    agent.step()
    assert agent.aboard == {} and agent._own._children == {}
    answer = lab.mail().read("answers", "a", one.name, Answer)
    assert answer is not None and answer.verdict == "withdrawn"
    with pytest.raises(NoSlots):  # a name is never ordered twice
        lab.runner(ONE).launch([one])


def test_an_agent_that_begins_anew_finds_what_it_had_admitted(lab: Lab) -> None:
    lab.agent("a", ONE)
    runner = lab.runner(ONE)
    receipt = runner.launch([lab.job()])
    gone = runner.launch([lab.job()])
    until(lambda: process_of(lab, "a", gone), "it runs").kill()
    until(lambda: process_of(lab, "a", gone) is None or None, "it is gone")
    lab.stop()
    fresh = lab.agent("a", ONE)
    fresh_names = set(fresh.aboard)
    assert fresh_names == {receipt.name}
    for one in (receipt, gone):
        runner_checks.until_closed(runner, one)
    assert process_of(lab, "a", receipt) is None


def test_a_machine_whose_agent_has_fallen_silent_is_not_asked(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.agent("a", ONE)
    lab.stop()
    monkeypatch.setattr(pool, "SILENT_S", 0.0)
    with pytest.raises(NoSlots, match="has shown itself"):
        lab.runner(ONE, answer_s=0.2).launch([lab.job()])
    assert list(lab.mail().names("orders")) == []


def test_a_launch_that_may_still_be_admitted_goes_before_one_that_was_refused(lab: Lab) -> None:
    """A dispatcher died between two machines: one had refused, the other has not answered."""
    one, mail = lab.job(), lab.mail()
    order = Order(one.name, one.job_id, "train", 1, 1, 0.0, 0.0, 60.0)
    for machine in TWO:
        assert mail.write("orders", machine, one.name, order)
    assert mail.write("answers", "b", one.name, Answer("refused", "no room", "agent"))
    receipt = Receipt((one.job_id,), lab.name, one.name, "cpu", 0.0)
    assert isinstance(lab.runner(TWO, answer_s=0.2).release(receipt), Closed)
    answer = mail.read("answers", "a", one.name, Answer)
    assert answer is not None and answer.verdict == "withdrawn"


def test_a_quota_is_given_anew_in_time_and_not_at_every_launch() -> None:
    with FakeClock() as clock:
        store = MemoryStore(clock)

        def giver(cards: int) -> PoolRunner:
            site = Site(Path("/"), clock, store="memory:")
            made = PoolRunner("p", {"machines": {"a": {"cards": cards}}, "quota_s": 600.0}, site)
            made._opened = Mail(store, "p", clock)
            return made

        def etag_after(runner: PoolRunner) -> str:
            runner._give_quota(Mail(store, "p", clock), "a")
            found = Mail(store, "p", clock).told("quota", "a", "", MachineQuota)
            assert found is not None
            return found[1]

        first = etag_after(giver(2))
        clock.sleep(150.0)
        assert etag_after(giver(2)) == first
        clock.sleep(100.0)
        second = etag_after(giver(2))
        assert second != first
        assert etag_after(giver(3)) != second  # a change is given at once


def test_the_end_is_pending_while_nobody_can_look(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.agent("a", ONE)
    runner = lab.runner(ONE)
    receipt = runner.launch([lab.job()])
    lab.stop()
    monkeypatch.setattr(pool, "SILENT_S", 0.0)
    settlement = runner.release(receipt)
    assert isinstance(settlement, Pending) and "nobody can look there" in settlement.reason
    monkeypatch.undo()
    lab.agent("a", ONE)
    runner_checks.until_closed(runner, receipt)


def reserve(store: DirectoryStore, spec: JobSpec) -> None:
    key = keys.witness_of(spec)
    event = Reserve("lab", 60.0, "dispatcher-1")
    made = change(store, key, spec.id, read_witness(store, key), event, SYSTEM)
    assert isinstance(made, Applied), made


def test_a_smaller_quota_takes_the_youngest_back_by_asking_first(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker holds the job and is asked through the witness; then its time is over: SIGTERM."""
    monkeypatch.setattr(pool_agent, "_QUOTA_EVERY_S", 0.05)
    agent = lab.agent("a", ONE, yield_s=0.0)
    runner = lab.runner(ONE)
    spec = JobSpec("e", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
    lab.store.create(keys.job(spec.id), encode(spec))
    old = runner.launch([lab.job()])
    until(lambda: old.name in agent.aboard or None, "it is aboard")
    young = runner.launch([Job(spec.id, "train", 1, f"two-{SYSTEM.nonce()}", lab.url)])
    reserve(lab.store, spec)
    lease = acquire(lab.store, keys.witness_of(spec), spec.id, 1, 600.0, 1.0, SYSTEM)
    assert isinstance(lease, Lease)
    agent._settings = agent._settings.model_copy(update={"yield_s": 30.0})
    found = lab.mail().told("quota", "a", "", MachineQuota)
    assert found is not None
    smaller = MachineQuota(1, 0.0, 0.0, 600.0, SYSTEM.nonce())
    assert lab.mail().put("quota", "a", smaller, found[1]) is not None

    def asked() -> object:
        w = read_witness(lab.store, keys.witness_of(spec)).witness
        return w and w.asked

    request: Any = until(asked, "the holder is asked to yield")
    assert request.what == "yield" and request.by.startswith("agent a")
    assert process_of(lab, "a", young) is not None  # it has its time
    agent._settings = agent._settings.model_copy(update={"yield_s": 0.0})
    until(lambda: process_of(lab, "a", young) is None or None, "it is ended")
    assert process_of(lab, "a", old) is not None
    assert isinstance(until_answer(runner, young), Closed)
    runner_checks.until_closed(runner, old)


def until_answer(runner: PoolRunner, receipt: Receipt) -> object:
    runner_checks.until_closed(runner, receipt)
    return runner.release(receipt)


def test_the_command_is_an_agent_and_its_end_ends_no_worker(lab: Lab) -> None:
    checkout = Path(__file__).parents[2]
    text = f"""
    [store]
    url = "{lab.url}"
    [runners.{lab.name}]
    kind = "pool"
    machines.a = {{cards = 1}}
    worker = {{python = "{lab.worker["python"]}", linger_s = 0.0, grace_s = 0.0}}
    [rungs.lab]
    runner = "{lab.name}"
    card = "cpu"
    price_class = "on_demand"
    price = {{currency = "usd", per_h = 0}}
    """
    (lab.folder / "tenure.toml").write_text(textwrap.dedent(text))
    path = os.pathsep.join([str(checkout), str(checkout / "worker")])
    program = "import typer; from assets.agent_command import agent; typer.run(agent)"
    process = subprocess.Popen(
        [sys.executable, "-c", program, lab.name, "a"],
        cwd=lab.folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        runner = lab.runner({"a": {"cards": 1}})
        receipt = until(lambda: launched(runner, lab.job()), "the agent admits", for_s=60.0)
        until(lambda: process_of(lab, "a", receipt), "the worker runs")
        process.terminate()
        process.wait()
        assert process_of(lab, "a", receipt) is not None
    finally:
        process.kill()
        process.wait()
    lab.agent("a", {"a": {"cards": 1}})
    runner_checks.until_closed(runner, receipt)


# -------------------------------------------------------------------------- admission, in virtual time


class Counting:
    """Stands for the own-process runner: what is started stays until it is ended."""

    def __init__(self) -> None:
        self.alive: dict[str, Job] = {}

    def launch(self, jobs: list[Job]) -> Receipt:
        (job,) = jobs
        assert job.name not in self.alive, "started twice"
        self.alive[job.name] = job
        return Receipt((job.job_id,), "r", job.name, "cpu", 0.0)

    def release(self, receipt: Receipt) -> object:
        self.alive.pop(receipt.name, None)
        return Closed("gone")


class Scene:
    """One agent over a store in memory, in virtual time."""

    def __init__(self, clock: FakeClock, patch: pytest.MonkeyPatch, **machine: object) -> None:
        self.clock, self.own = clock, Counting()
        self.store = MemoryStore(clock)
        config = {"machines": {"a": machine}}
        self.agent = Agent(self.store, "p", "a", config, Site(Path("/"), clock, store="memory:"))
        self.agent._own = self.own  # type: ignore[assignment]
        patch.setattr(pool_agent, "live_worker", lambda receipt: self.own.alive.get(receipt.name))
        self.mail = Mail(self.store, "p", clock)
        self.etag: str | None = None

    def give(self, cards: int, cpus: float = 0.0, lasts_s: float = 600.0) -> None:
        quota = MachineQuota(cards, cpus, 0.0, lasts_s, self.clock.nonce())
        self.etag = self.mail.put("quota", "a", quota, self.etag)
        assert self.etag

    def order(self, name: str, cards: int = 1, cpus: float = 0.0, memory_gb: float = 0.0) -> None:
        order = Order(name, "j" * 26, "train", 1, cards, cpus, memory_gb, 60.0)
        assert self.mail.write("orders", "a", name, order)

    def answer(self, name: str) -> str:
        found = self.mail.read("answers", "a", name, Answer)
        assert found is not None
        return f"{found.verdict}: {found.reason}"


def test_a_quota_expires_by_the_stores_time_and_what_runs_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeClock() as clock:
        scene = Scene(clock, monkeypatch, cards=4)
        scene.order("early")
        scene.agent.step()
        assert scene.answer("early") == "refused: no quota is in force: it has none"
        scene.give(4, lasts_s=100.0)
        scene.order("one")
        scene.agent.step()
        assert scene.answer("one").startswith("admitted")
        clock.sleep(130.0)
        scene.order("two")
        scene.agent.step()
        assert scene.answer("two") == "refused: no quota is in force: its quota ended 30 s ago"
        assert list(scene.own.alive) == ["one"]
        scene.give(4)
        scene.order("three")
        scene.agent.step()
        assert scene.answer("three").startswith("admitted")


def test_without_any_quota_what_runs_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeClock() as clock:
        scene = Scene(clock, monkeypatch, cards=4)
        scene.give(4)
        scene.order("one")
        scene.agent.step()
        scene.store.delete(scene.mail.key("quota", "a"))
        clock.sleep(1000.0)
        scene.agent.step()
        assert list(scene.own.alive) == ["one"]
        assert scene.agent.aboard["one"].asked_s is None


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"cards": 3}, "no room: 2 of 4 cards are taken, and it asks for 3"),
        ({"cpus": 5.0}, "no room: 4 of 8 cores are taken, and it asks for 5"),
        ({"memory_gb": 1e6}, "GB of memory are free, and it asks for 1e+06"),
    ],
)
def test_a_machine_refuses_by_cards_cores_and_its_real_memory(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], says: str
) -> None:
    with FakeClock() as clock:
        scene = Scene(clock, monkeypatch, cards=8)
        scene.give(4, 8.0)
        scene.order("first", 2, 4.0)
        scene.agent.step()
        scene.order("second", **asked)
        scene.agent.step()
        assert says in scene.answer("second")


def test_the_machines_own_file_bounds_what_a_dispatcher_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeClock() as clock:
        scene = Scene(clock, monkeypatch, cards=1, cpus=2.0)
        scene.give(64, 64.0)
        for name, cpus in (("wide", 3.0), ("fits", 2.0), ("more", 0.0)):
            scene.order(name, cpus=cpus)
            clock.sleep(1.0)  # the oldest is answered first
        scene.agent.step()
        assert "0 of 2 cores" in scene.answer("wide")
        assert scene.answer("fits").startswith("admitted")
        assert "1 of 1 cards" in scene.answer("more")


def test_who_withdraws_while_the_agent_decides_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is created once: who loses the race starts nothing."""
    with FakeClock() as clock:
        scene = Scene(clock, monkeypatch, cards=1)
        scene.give(1)
        scene.order("one")
        decide = scene.agent.refusal

        def slowly(order: Order) -> str | None:
            scene.mail.write("answers", "a", order.name, Answer("withdrawn", "too late", "d"))
            return decide(order)

        monkeypatch.setattr(scene.agent, "refusal", slowly)
        scene.agent.step()
        assert scene.answer("one") == "withdrawn: too late"
        assert scene.own.alive == {} and scene.agent.aboard == {}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("order"), st.integers(1, 3), st.integers(0, 3)),
        st.tuples(st.just("withdraw"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("quota"), st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 400), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=60)
@given(STEPS)
def test_an_order_is_run_or_refused_and_never_both_and_no_limit_is_passed(
    steps: list[tuple[str, int, int]],
) -> None:
    """Whatever dispatchers do in whatever order, and however often the agent begins anew."""
    with FakeClock() as clock, pytest.MonkeyPatch.context() as patch:
        scene = Scene(clock, patch, cards=4, cpus=4.0)
        scene.agent._settings = scene.agent._settings.model_copy(update={"yield_s": 0.0})
        started: set[str] = set()
        count = 0
        for what, first, second in [*steps, ("step", 0, 0), ("step", 0, 0)]:
            if what == "order":
                scene.order(f"n{count}", first, float(second))
                count += 1
            elif what == "withdraw" and first < count:
                scene.mail.write("answers", "a", f"n{first}", Answer("withdrawn", "late", "d"))
            elif what == "end" and first < count:
                scene.mail.write("ends", "a", f"n{first}", End("over", "d"))
            elif what == "quota":
                scene.give(first, float(second))
            elif what == "restart":
                fresh = Agent(
                    scene.store,
                    "p",
                    "a",
                    scene.agent.config,
                    Site(Path("/"), clock, store="memory:"),
                )
                fresh._own, fresh._settings = scene.agent._own, scene.agent._settings
                scene.agent = fresh
            elif what == "wait":
                clock.sleep(float(first))
            else:
                before = set(scene.own.alive)
                scene.agent.step()
                new = set(scene.own.alive) - before
                assert not new & started, "a name is never started twice"
                started |= new
                live = [each.order for each in scene.agent.aboard.values() if not each.over]
                assert {order.name for order in live} == set(scene.own.alive)
                if new:  # whoever came in came within the limits
                    most = scene.agent._most()
                    taken = pool_agent._sum(live)
                    staying = [
                        each.order for each in scene.agent.aboard.values() if each.asked_s is None
                    ]
                    assert pool_agent._fits(pool_agent._sum(staying), most), (taken, most)
        for n in range(count):
            answer = scene.answer(f"n{n}")
            assert (f"n{n}" in started) == answer.startswith("admitted"), (n, answer, started)


def test_bad_pools_are_told() -> None:
    for config, says in (
        ({"machines": {}}, "machines"),
        ({"machines": {"a": {"cards": 0}}}, "machines.a.cards"),
        ({"machines": {"a": {}}, "choices": 0}, "choices"),
        ({"machines": {"a": {}}, "worker": {"slot": 1}}, "worker.slot"),
    ):
        with pytest.raises(ValueError, match=f"pool: {says}"):
            PoolRunner.capacity(config)
    assert PoolRunner.capacity({"machines": {"a": {"cards": 2}, "b": {"cards": 4}}}) == Capacity(
        1, 6, 60.0, 4
    )
    with pytest.raises(ValueError, match="pool p has no machine 'x'; known: a"):
        Agent(MemoryStore(), "p", "x", {"machines": {"a": {}}}, Site(Path("/"), SYSTEM))


def test_a_silent_store_is_a_platform_that_does_not_answer(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise StoreSilent("no route")

    runner = lab.runner(ONE)
    monkeypatch.setattr(Mail, "told", silent)
    with pytest.raises(Unreachable, match="the store does not answer: no route") as told:
        runner.launch([lab.job()])
    assert told.value.sent
    settlement = runner.release(Receipt(("j",), "here", "x", "cpu", 0.0))
    assert isinstance(settlement, Pending) and "no route" in settlement.reason
