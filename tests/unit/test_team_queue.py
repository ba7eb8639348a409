"""Teams that share rungs: whose records count, how old a job is, and whose goes next."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assets.stage import Context, enlist_stage
from tenure.cli.resume import wait_anew
from tenure.cli.workplace import OneJob, Workplace
from tenure.dispatch.contract import Capacity
from tenure.dispatch.decide import JobView, Launch, RungView, Snapshot, Wait, decide
from tenure.dispatch.desks import desk_of
from tenure.dispatch.ladder import Price, Rung
from tenure.dispatch.loop import Dispatcher
from tenure.dispatch.queueing import Sharing
from tenure.dispatch.registry import open_settings_store
from tenure.errors import StoreOutOfReach, UsageError
from tenure.plan.enlist import enlist
from tenure.plan.submit import Desk, SubmissionRecord, submissions
from tenure.queue.records import Team
from tenure.settings import load_settings
from tenure_protocol.clock import SYSTEM
from tenure_protocol.codec import encode
from tenure_protocol.lease import keys
from tenure_protocol.lease.client import acquire, change, read_witness
from tenure_protocol.lease.machine import Cancel, Finish, Resume, Revoke
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Entry, Outcome, Store, StoreSilent, Unknown
from tenure_protocol.store.memory import MemoryStore
from tests.fake_clock import FakeClock
from tests.record_builders import overwrite
from tests.tenure_command import tenure
from tests.unit.test_dispatcher import ListingRunner

TEAMS = [Team("a"), Team("b")]


class World:
    """A store, one rung of one slot, two teams, and a dispatcher, in virtual time."""

    def __init__(self, clock: FakeClock, slots: int = 1, teams: Sequence[Team] = TEAMS) -> None:
        self.clock = clock
        self.store = MemoryStore(clock)
        self.runner = ListingRunner()
        self.slots = slots
        self.teams = teams
        self.dispatcher = self.another()
        self.seed = 0

    def another(self) -> Dispatcher:
        price = Price("usd", 0.0)
        rung = Rung("local", "here", self.runner, Capacity(1, self.slots, 60.0), price=price)
        sharing = Sharing(tuple(self.teams), max_wait_s=86_400.0)
        return Dispatcher(self.store, [rung], self.clock, sharing=sharing)

    def ask(
        self,
        team: str,
        plan: str,
        count: int = 1,
        priority: int = 0,
        rungs: Sequence[str] = ("local",),
        claims: str | None = None,
    ) -> list[str]:
        """Enlist jobs of a plan as a team; the plan may claim another."""
        specs = []
        for _ in range(count):
            self.seed += 1
            specs.append(JobSpec(plan, "train", "training", "m:C", {}, self.seed, 1, "c", "d", 10))
        return self.enlist(team, plan, specs, priority, rungs, claims)

    def enlist(
        self,
        team: str,
        plan: str,
        specs: Sequence[JobSpec],
        priority: int = 0,
        rungs: Sequence[str] = ("local",),
        claims: str | None = None,
    ) -> list[str]:
        terms: dict[str, object] = {
            "rungs": list(rungs),
            "priority": priority,
            "team": claims or team,
        }
        desk = Desk(team, self.store)
        return enlist(self.store, plan, plan, specs, terms, self.clock, desk)

    def order(self, dispatcher: Dispatcher | None = None) -> list[str]:
        which = dispatcher or self.dispatcher
        which.look()
        found = which.team_queue()
        assert found is not None
        return [each.job for each in found.decisions if each.place is not None]

    def run(self, job: str, experiment: str, for_s: float) -> None:
        """The job that was launched runs for so long, and its bill is closed."""
        lease = acquire(self.store, keys.witness(experiment, job), job, 1, 1e6, 1.0, self.clock)
        self.clock.sleep(for_s)
        assert not isinstance(lease, Exception)
        lease.write(Finish(lease.holder, lease.attempt, 0, "finished", {}))  # type: ignore[union-attr]
        self.dispatcher.tick()
        self.dispatcher.tick()


def test_a_team_that_has_used_more_goes_after_one_that_has_used_less() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (first,) = world.ask("a", "pa")
        world.dispatcher.tick()
        assert [job.job_id for job in world.runner.launched] == [first]
        clock.sleep(10.0)
        more = world.ask("a", "pa", 2)
        (theirs,) = world.ask("b", "pb")
        assert world.order() == [theirs, *more]  # a is charged for what it holds
        world.run(first, "pa", 3600.0)
        assert world.runner.launched[-1].job_id == theirs


def test_priority_orders_a_teams_own_jobs_and_nothing_else() -> None:
    with FakeClock() as clock:
        world = World(clock)
        low = world.ask("a", "low", priority=0)
        clock.sleep(5.0)
        theirs = world.ask("b", "pb")
        clock.sleep(5.0)
        high = world.ask("a", "high", priority=1_000_000)
        # between teams that are charged alike the next job's age decides, and a's next one is now young
        assert world.order() == [*theirs, *high, *low]


def test_jobs_of_one_plan_stay_in_its_order() -> None:
    with FakeClock() as clock:
        world = World(clock)
        jobs = world.ask("a", "pa", 9)
        world.ask("b", "pb")
        assert [job for job in world.order() if job in jobs] == jobs


def test_a_team_is_who_could_write_the_record_and_not_what_a_plan_claims() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (mine,) = world.ask("a", "p", claims="b")
        world.dispatcher.look()
        assert {job: each.team for job, each in world.dispatcher._sight.queue.asked().items()} == {
            mine: "a"
        }
        # a record that speaks for another team than its prefix counts for nothing
        body = encode(SubmissionRecord("b", "p", ("x" * 26,), "enlisted", 0))
        world.store.create(keys.submission("a", "y" * 26), body)
        assert [each.team for _, each in submissions(world.store)] == ["a"]
        world.dispatcher.look()
        told = world.dispatcher._sight.queue.troubles[keys.submission("a", "y" * 26)]
        assert "speaks for team b below the prefix of team a" in told


def test_who_asked_first_has_the_job_and_its_cost() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "pa")
        clock.sleep(100.0)
        Desk("b", world.store).submit("pa", [job], clock)
        world.dispatcher.look()
        asked = world.dispatcher._sight.queue.asked()[job]
        assert (asked.team, asked.since_s) == ("a", 1000.0)


def test_a_job_that_no_team_submitted_goes_last_and_says_so() -> None:
    with FakeClock() as clock:
        world = World(clock, slots=3)
        spec = JobSpec("p0", "train", "training", "m:C", {}, 0, 1, "c", "d", 10)
        terms: dict[str, object] = {"rungs": ["local"], "priority": 99, "team": "a"}
        (nobodys,) = enlist(world.store, "p0", "p0", [spec], terms, clock)
        clock.sleep(50.0)
        (theirs,) = world.ask("b", "pb")
        world.dispatcher.tick()
        assert [job.job_id for job in world.runner.launched] == [theirs, nobodys]
        reason = world.dispatcher.look().reason(nobodys)
        assert world.order() == []
        assert "no team" not in reason  # it was launched: nobody else wanted the room


def test_an_unknown_team_is_told_and_counts_for_nothing() -> None:
    with FakeClock() as clock:
        world = World(clock, slots=0)
        (job,) = world.ask("ghosts", "p")
        tick = world.dispatcher.look()
        assert any("there is no [teams.ghosts]" in said for said in tick.troubles.values())
        assert "no team has submitted it" in tick.reason(job)


# ---------------------------------------------------------------------------------------------- age


def age_s(world: World, job: str) -> float:
    world.dispatcher.look()
    found = world.dispatcher.team_queue()
    assert found
    (since_s,) = [each.submitted_s for each in found.state.waiting if each.job == job]
    return found.now_s - since_s


def test_age_is_that_of_the_record_and_enlisting_again_changes_nothing() -> None:
    with FakeClock() as clock:
        world = World(clock)
        spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        (job,) = world.enlist("a", "p", [spec])
        clock.sleep(60.0)
        world.enlist("a", "p", [spec])
        world.enlist("a", "p", [spec], priority=7)  # new terms: a new version of the plan
        assert age_s(world, job) == 60.0
        assert len(list(submissions(world.store))) == 1


def test_an_edited_a_split_and_a_repeated_job_start_anew() -> None:
    with FakeClock() as clock:
        world = World(clock)
        spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        world.enlist("a", "p", [spec])
        clock.sleep(60.0)
        for other in (replace(spec, config={"lr": 1}), replace(spec, seed=9), replace(spec, run=1)):
            (job,) = world.enlist("a", "p", [other])
            assert age_s(world, job) == 0.0


def test_a_record_in_advance_makes_no_job_older_than_its_plan() -> None:
    with FakeClock() as clock:
        world = World(clock)
        spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        Desk("a", world.store).submit("p", [spec.id], clock)
        clock.sleep(60.0)
        (job,) = world.enlist("a", "p", [spec])
        assert age_s(world, job) == 0.0


def test_a_job_that_could_not_run_before_an_edit_did_not_wait_before_it() -> None:
    with FakeClock() as clock:
        world = World(clock)
        spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        world.enlist("a", "p", [spec], rungs=["elsewhere"])
        clock.sleep(60.0)
        (job,) = world.enlist("a", "p", [spec], rungs=["local"])
        clock.sleep(1.0)
        assert age_s(world, job) == 1.0


def test_a_record_that_is_written_over_is_as_old_as_it_is_now() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "p")
        world.dispatcher.look()
        clock.sleep(60.0)
        (row,) = [row for row, _ in submissions(world.store)]
        record = SubmissionRecord("a", "p", (job,), "enlisted", 5)
        overwrite(world.store, row.key, encode(record))
        assert age_s(world, job) == 0.0
        assert world.order(world.another()) == [job]


def test_what_a_job_has_run_is_no_waiting() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "p")
        world.dispatcher.tick()
        lease = acquire(world.store, keys.witness("p", job), job, 1, 1e6, 1.0, clock)
        clock.sleep(1000.0)
        stored = read_witness(world.store, keys.witness("p", job))
        change(world.store, keys.witness("p", job), job, stored, Revoke("op", "test"), clock)
        assert lease is not None
        world.dispatcher.look()
        found = world.dispatcher.team_queue()
        assert found
        (row,) = found.state.waiting
        assert found.now_s - row.submitted_s == pytest.approx(0.0, abs=1.0)


def test_a_job_that_has_waited_for_the_bound_goes_first_and_its_team_owes_for_it() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (old,) = world.ask("a", "pa", priority=-5)
        clock.sleep(100.0)
        world.ask("a", "better", priority=5)
        clock.sleep(86_400.0)
        (young,) = world.ask("b", "pb")
        assert world.order()[0] == old
        world.dispatcher.tick()
        assert [job.job_id for job in world.runner.launched] == [old]
        world.dispatcher.look()
        found = world.dispatcher.team_queue()
        assert found
        (hold,) = found.state.holds
        assert hold.overdue and hold.expected_s == 3600.0 and young != old


def settings_of(tmp_path: Path, more: str = "") -> Path:
    (tmp_path / "tenure.toml").write_text(f"[teams.a]\nweight = 3\n[teams.b]\n{more}")
    return tmp_path


def test_holding_back_and_letting_go_begins_anew(tmp_path: Path) -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "p")
        key = keys.witness("p", job)
        stored = read_witness(world.store, key)
        change(world.store, key, job, stored, Revoke("op", "later", held_back=True), clock)
        clock.sleep(60.0)
        assert world.order() == []
        settings = load_settings(start=settings_of(tmp_path), environ={})
        spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        wait_anew(OneJob(Workplace(settings, world.store), job, spec))
        change(world.store, key, job, read_witness(world.store, key), Resume("op"), clock)
        assert age_s(world, job) == 0.0
        assert {each.why for _, each in submissions(world.store)} == {"enlisted", "resumed"}


# ------------------------------------------------------------------------------------------- misuse


def cancel(world: World, job: str, plan: str, by: str = "operator x") -> None:
    key = keys.witness(plan, job)
    stored = read_witness(world.store, key)
    change(world.store, key, job, stored, Cancel(by, "no more"), world.clock)


def resubmit(world: World, times: int, by: str = "operator x") -> None:
    spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
    for run in range(times):
        (job,) = world.enlist("a", "p", [replace(spec, run=run)])
        world.clock.sleep(60.0)
        cancel(world, job, "p", by)
        world.clock.sleep(60.0)


@pytest.mark.parametrize(("times", "weight"), [(3, 1.0), (4, 0.5), (5, 0.25)])
def test_taking_back_and_handing_in_again_lowers_the_weight_and_says_so(
    times: int, weight: float
) -> None:
    with FakeClock() as clock:
        world = World(clock)
        resubmit(world, times)
        (job,) = world.ask("a", "pa")
        for dispatcher in (world.dispatcher, world.another()):
            dispatcher.look()
            found = dispatcher.team_queue()
            assert found and found.teams["a"]["weight_now"] == weight
            said = dispatcher.look().reason(job)
            assert ("its weight is 1 without its penalties" in said) == (weight < 1)
        clock.sleep(86_500.0)
        world.dispatcher.look()
        found = world.dispatcher.team_queue()
        assert found and found.teams["a"]["weight_now"] == 1.0


def test_what_a_dispatcher_ends_is_nobodys_deed() -> None:
    with FakeClock() as clock:
        world = World(clock)
        resubmit(world, 5, by="dispatcher-7")
        world.dispatcher.look()
        found = world.dispatcher.team_queue()
        assert found and found.state.penalties == ()


def test_letting_go_again_and_again_costs_the_age_and_nothing_else() -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "p")
        for _ in range(5):
            clock.sleep(60.0)
            Desk("a", world.store).submit("p", [job], clock, "resumed")
        assert age_s(world, job) == 0.0
        found = world.dispatcher.team_queue()
        assert found and found.state.penalties == ()


# ---------------------------------------------------------------------------------- one team, as ever


VIEWS = st.lists(
    st.builds(
        JobView,
        st.sampled_from(["j1", "j2", "j3", "j4", "j5"]),
        st.just("e"),
        st.just(("r",)),
        priority=st.integers(-2, 2),
        order=st.integers(0, 4),
    ),
    max_size=5,
    unique_by=lambda view: view.job,
)


def test_with_one_team_there_is_no_desk(tmp_path: Path) -> None:
    assert desk_of(load_settings(start=tmp_path, environ={}), MemoryStore(), "me") is None


@settings(max_examples=25)
@given(VIEWS, st.integers(0, 3))
def test_with_one_team_the_order_is_that_of_the_plans(views: list[JobView], slots: int) -> None:
    rungs = {"r": RungView("r", frozenset({"train"}), Capacity(1, slots, 60.0))}
    got = [a.job for a, _ in decide(Snapshot(tuple(views), (), rungs), 0.0)]
    assert got == [v.job for v in sorted(views, key=lambda v: (-v.priority, v.order, v.job))]


def test_with_one_team_nothing_is_read_and_nothing_else_is_said() -> None:
    with FakeClock() as clock:
        one, none = World(clock, teams=[Team("a")]), World(clock, teams=[])
        for world in (one, none):
            world.ask("a", "p", 3)
        first, second = one.dispatcher.look(), none.dispatcher.look()
        assert first.decisions == second.decisions
        assert one.dispatcher.team_queue() is None
        assert not any("queue" in why for _, why in first.decisions)
        assert one.dispatcher._sight.queue._rows == {}


def test_a_bug_of_the_queue_ends_no_round(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "p")

        def fails(*_: object) -> None:
            raise ZeroDivisionError("of the queue")

        monkeypatch.setattr(world.dispatcher._sight.queue, "queue", fails)
        tick = world.dispatcher.tick()
        assert "the order of the plans holds" in tick.troubles["the queue"]
        assert [each.job_id for each in world.runner.launched] == [job]


@pytest.mark.parametrize("prefix", [keys.SUBMISSIONS, keys.LEDGER])
def test_until_it_is_known_who_asked_and_had_what_nothing_is_launched(
    monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    with FakeClock() as clock:
        world = World(clock)
        (job,) = world.ask("a", "p")
        real = world.store.list

        def silent(asked: str) -> Iterator[Entry]:
            if asked == prefix:
                raise StoreSilent("no answer")
            return real(asked)

        with monkeypatch.context() as patch:
            patch.setattr(world.store, "list", silent)
            tick = world.dispatcher.tick()
            assert world.runner.launched == [] and "cannot be read yet" in tick.reason(job)
            assert tick.troubles[prefix] == "no answer"
        tick = world.dispatcher.tick()
        assert [each.job_id for each in world.runner.launched] == [job]
        assert prefix not in tick.troubles
        with monkeypatch.context() as patch:  # what was read once stands
            patch.setattr(world.store, "list", silent)
            (more,) = world.ask("b", "pb")
            assert "cannot be read yet" not in world.dispatcher.look().reason(more)


def test_two_dispatchers_agree_whenever_they_began() -> None:
    with FakeClock() as clock:
        world = World(clock)
        for n in range(4):
            world.ask("ab"[n % 2], f"p{n}", 3, priority=n)
            clock.sleep(7.0)
        first = world.order()
        clock.sleep(1000.0)
        assert world.order(world.another()) == first == world.order()


def test_room_is_given_to_whoever_fits_and_the_reason_has_the_place_with_numbers() -> None:
    with FakeClock() as clock:
        world = World(clock, slots=1)
        (mine,) = world.ask("a", "pa")
        clock.sleep(1.0)
        (theirs,) = world.ask("b", "pb")
        decisions = {
            action.job: (type(action), why) for action, why in world.dispatcher.look().decisions
        }
        assert decisions[mine][0] is Launch and decisions[theirs][0] is Wait
        assert "place 1 of 2 in the queue: team a is charged 0 card-hours" in decisions[mine][1]
        assert "place 2 of 2 in the queue: team b is charged 0 card-hours" in decisions[theirs][1]


# ------------------------------------------------------------------------------- settings, commands


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[teams.a]\n[teams.b]\npart_of = 'c'\n", "there is no [teams.c]"),
        ("[teams.a]\npart_of = 'a'\n[teams.b]\n", "a is itself part of a team"),
        ("[teams.a]\ncredentials = 'secret'\n[teams.b]\n", "must say where the credentials are"),
        ("[queue]\nmax_wait_h = 0\n", "queue.max_wait_h"),
        ("[teams.a]\nweight = -1\n[teams.b]\n", "teams.a.weight"),
    ],
)
def test_wrong_teams_are_told(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "tenure.toml").write_text(text)
    with pytest.raises(UsageError) as told:
        load_settings(start=tmp_path, environ={})
    assert says in str(told.value)


def test_a_desk_is_for_a_team_that_is_there(tmp_path: Path) -> None:
    settings = load_settings(start=settings_of(tmp_path), environ={})
    store = MemoryStore()
    found = desk_of(settings, store, "a")
    assert found is not None and found.team == "a" and found.store is store
    with pytest.raises(UsageError, match=r"there is no \[teams.c\]"):
        desk_of(settings, store, "c")
    own = tmp_path / "own"
    own.mkdir()
    (own / "tenure.toml").write_text("[teams.a]\ncredentials = 'env:A'\n[teams.b]\n")
    with pytest.raises(UsageError, match="for a store in a bucket"):
        desk_of(load_settings(start=own, environ={}), store, "a")


def test_a_store_that_refuses_is_named_with_the_team() -> None:
    class Refusing(MemoryStore):
        def create(self, key: str, body: bytes) -> Outcome:
            return Unknown(f"{key}: AccessDenied: these credentials have no right to it")

    with FakeClock() as clock, pytest.raises(StoreOutOfReach) as told:
        Desk("b", Refusing(clock)).submit("p", ["j"], clock)
    assert "who may write submissions/b/ speaks for that team" in str(told.value)


def test_the_command_shows_shares_and_places(tmp_path: Path) -> None:
    settings = load_settings(start=settings_of(tmp_path), environ={})
    store = open_settings_store(settings)
    for n, team in enumerate("ab"):
        spec = JobSpec(f"p{n}", "train", "training", "m:C", {}, n, 1, "c", "d", 10)
        terms: dict[str, object] = {"rungs": ["local"], "team": team}
        enlist(store, f"p{n}", f"p{n}", [spec], terms, SYSTEM, Desk(team, store))
    where = ("--config", str(tmp_path / "tenure.toml"))
    answer = json.loads(tenure("queue", "--json", *where).out)
    assert answer["teams"]["a"]["entitlement"] == 0.75
    assert [(row["place"], row["team"], row["verdict"]) for row in answer["jobs"]] == [
        (1, "a", "next"),
        (2, "b", "waits"),
    ]
    assert answer["jobs"][0]["numbers"]["weight"] == 3.0
    shown = tenure("queue", *where).out
    assert "75%" in shown and answer["jobs"][1]["job"] in shown
    why = json.loads(tenure("why", answer["jobs"][1]["job"], "--json", *where).out)
    assert "place 2 of 2 in the queue: team b is charged" in why["reason"]


def submitted(store: Store) -> list[tuple[str, str, tuple[str, ...]]]:
    return sorted((each.team, each.why, each.jobs) for _, each in submissions(store))


def test_every_command_that_enlists_or_lets_go_submits_first(tmp_path: Path) -> None:
    settings = load_settings(start=settings_of(tmp_path), environ={})
    store = open_settings_store(settings)
    where = ("--config", str(tmp_path / "tenure.toml"))
    spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
    terms: dict[str, object] = {"rungs": ["local"], "team": "a"}
    (job,) = enlist(store, "p", "p", [spec], terms, SYSTEM, desk_of(settings, store, "a"))
    assert tenure("pause", job, *where).code == 0
    assert tenure("resume", job, *where).code == 0
    assert submitted(store) == [("a", "enlisted", (job,)), ("a", "resumed", (job,))]
    assert tenure("cancel", job, *where).code == 0
    again = tenure("retry", job, *where).out.strip()
    assert ("a", "enlisted", (again,)) in submitted(store)


def test_a_stage_submits_for_its_plans_team(tmp_path: Path) -> None:
    """As Dagster and `tenure run` enlist; the plan is the one that claims, the desk the one that writes."""
    settings = load_settings(start=settings_of(tmp_path), environ={})
    with FakeClock() as clock:
        world = World(clock)
        spec = JobSpec("p", "train", "training", "m:C", {}, 1, 1, "c", "d", 10)
        plan = SimpleNamespace(name="p", team="b", terms=lambda: {"rungs": ["local"], "team": "b"})
        chain: Any = SimpleNamespace(plan=plan, newest_runs=lambda stage: [spec])
        context = Context(
            world.store,
            chain,
            world.dispatcher,
            clock,
            desk=lambda team: desk_of(settings, world.store, team),
        )
        (job,) = enlist_stage(context, "training")
        assert submitted(world.store) == [("b", "enlisted", (job,))]
