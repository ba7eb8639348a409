"""Slots, rollback and history: exactly one move wins, and what was put there by hand is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gates.deploy import deploy
from gates.head import KnownHead
from gates.rollback import rollback
from gates.slots import Deployment, current, history, proved
from gates.trust import Trust
from gates.verification import Verification, verify_deployment
from gates.warrant import BadWarrant, DeployKey, LogEntry, append, make_key, read_log
from tenure.errors import Blocked, UsageError
from tenure_protocol.codec import encode, plain, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import ModelRecord, load
from tenure_protocol.store.api import Found, Outcome, Store, StoreSilent, Unknown
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import overwrite, research, retrain
from tests.unit.test_warrant import Hostile, NoWaiting, landed, lost_on_the_way

SECOND, THIRD = (31, 32, 33, 34, 35), (41, 42, 43, 44, 45)


class House:
    """A store with three models that may be deployed, and the key for it."""

    def __init__(self, store: MemoryStore, key: DeployKey) -> None:
        self.store, self.key = store, key
        self.trust = Trust.only(key.public)
        parent = research(store)
        self.parent = parent
        self.a = retrain(store, parent)
        self.b = retrain(store, parent, seeds=SECOND)
        self.c = retrain(store, parent, seeds=THIRD)

    def deploy(self, record: ModelRecord, name: str = "vol") -> Deployment:
        return deploy(self.store, record, self.key, name, NoWaiting())

    def back(self, to: int | None = None, trust: Trust | None = None) -> Deployment:
        return rollback(self.store, "vol", trust or self.trust, to, clock=NoWaiting())

    def verified(self, head: KnownHead | None = None, trust: Trust | None = None) -> Verification:
        return verify_deployment(self.store, "vol", trust or self.trust, head)

    def live(self) -> Deployment:
        found = current(self.store, "vol")
        assert found is not None
        return found

    def moves(self) -> list[tuple[str, int | None, int]]:
        return [(one.what, one.replaced, one.warrant) for one in history(self.store, "vol")]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> DeployKey:
    return make_key(tmp_path_factory.mktemp("keys") / "deploy.pem")


@pytest.fixture
def house(key: DeployKey) -> House:
    return House(Hostile(), key)


def plan(house: House, *writes: Callable[[Callable[[], Outcome]], Outcome]) -> None:
    """What becomes of the next conditional writes of a slot."""
    assert isinstance(house.store, Hostile)
    house.store.plan = list(writes)


def wrong(found: Verification) -> list[tuple[str | None, str, str]]:
    return [(item.slot, item.check, item.detail) for item in found.checks if not item.ok]


# ---------------------------------------------------------------------------------- slots


def test_a_shadow_stands_beside_and_a_deployment_makes_it_live(house: House) -> None:
    house.deploy(house.a)
    shadow = deploy(house.store, house.b, house.key, "vol", slot="shadow", by="ann", reason="try")
    assert current(house.store, "vol", "shadow") == shadow
    assert (shadow.slot, shadow.move, shadow.by, shadow.reason) == ("shadow", 1, "ann", "try")
    assert house.live().record == house.a.id
    done = house.deploy(house.b)
    assert (done.record, done.warrant, done.replaced) == (house.b.id, 3, 1)
    assert house.moves() == [("deploy", None, 1), ("deploy", 1, 3)]
    assert history(house.store, "vol", "shadow") == [shadow]
    found = house.verified()
    assert found.ok and {item.slot for item in found.checks} == {None, "live", "shadow"}


def test_each_move_is_in_the_history_even_when_its_writer_dies(house: House) -> None:
    first = house.deploy(house.a)
    house.store.delete(keys.moved("vol", "live", 1))  # died between its two writes
    assert house.verified().ok and history(house.store, "vol") == [first]
    second = house.deploy(house.b)
    assert history(house.store, "vol") == [first, second]
    body = house.store.read(keys.moved("vol", "live", 1))
    assert isinstance(body, Found) and load(Deployment, body.body, "it") == first


# ------------------------------------------------------------------------------- rollback


def test_a_rollback_leads_to_the_model_before_and_on_to_the_one_before_that(house: House) -> None:
    for record in (house.a, house.b, house.c):
        house.deploy(record)
    assert house.back().record == house.b.id
    done = house.back()
    assert (done.record, done.warrant, done.what, done.move) == (house.a.id, 1, "rollback", 5)
    with pytest.raises(Blocked, match="no other model was live as 'vol' before"):
        house.back()
    assert house.back(to=3).record == house.c.id  # a rollback is undone by its number
    assert house.moves()[3:] == [("rollback", 3, 2), ("rollback", 2, 1), ("rollback", 1, 3)]
    assert house.back().record == house.b.id
    assert house.verified().ok and len(read_log(house.store)) == 3


def test_a_model_that_was_rolled_away_is_not_the_one_before(house: House) -> None:
    house.deploy(house.a)
    house.deploy(house.b)
    house.back()
    house.deploy(house.c)  # onto a
    assert house.back().record == house.a.id


def test_the_same_model_signed_anew_is_not_the_one_before(house: House, tmp_path: Path) -> None:
    new = make_key(tmp_path / "new.pem")
    both = Trust.only(house.key.public, new.public)
    house.deploy(house.a)
    house.deploy(house.b)
    deploy(house.store, house.b, new, "vol", trust=both)
    assert house.back(trust=both).record == house.a.id


def test_what_cannot_be_rolled_back_to(house: House) -> None:
    with pytest.raises(Blocked, match="nothing is deployed as 'vol'"):
        house.back()
    with pytest.raises(UsageError, match="the deployment's name"):
        rollback(house.store, "../vol", house.trust)
    house.deploy(house.a)
    house.deploy(house.a, "other")
    house.deploy(house.b)
    with pytest.raises(Blocked, match="warrant 3 is live as 'vol' already"):
        house.back(to=3)
    with pytest.raises(
        Blocked, match="warrant 2 never let a model be live as 'vol'; these did: 1, 3"
    ):
        house.back(to=2)


def test_a_revoked_warrant_is_not_rolled_back_to(house: House, tmp_path: Path) -> None:
    new = make_key(tmp_path / "new.pem")
    house.deploy(house.a)
    house.deploy(house.b)
    deploy(house.store, house.c, new, "vol")
    before = house.live()
    for last, words in ((1, r"last warrant that is believed is 1"), (0, "none of its warrants")):
        trust = Trust((house.key.public, new.public), {house.key.public.id: last})
        with pytest.raises(
            Blocked, match=rf"revocation: .* revoked here: .*{words}.*nothing was moved"
        ):
            house.back(trust=trust)
    with pytest.raises(Blocked, match=r"signature: .* trusted here; warrant 1 is not made live"):
        house.back(to=1, trust=Trust.only(new.public))
    assert house.live() == before
    assert house.back(to=1, trust=Trust((house.key.public, new.public), {house.key.public.id: 1}))


def test_a_model_whose_bytes_changed_is_not_rolled_back_to(house: House) -> None:
    first = house.deploy(house.a)
    house.deploy(house.b)
    prefix = keys.snapshot(first.model.job, first.model.pointer)
    overwrite(house.store, prefix + "weights.bin", b"w" * first.files["weights.bin"].size)
    with pytest.raises(Blocked, match=r"files: the bytes of .*weights.bin are not those"):
        house.back()
    assert house.live().record == house.b.id


@given(st.lists(st.sampled_from(["a", "b", "c", "back", "1", "2", "3"]), max_size=12))
@settings(max_examples=25)
def test_any_walk_keeps_the_history_whole(walk: list[str]) -> None:
    house = _HOUSE()
    for prefix in ("deployments/", keys.WARRANTS):
        for name in [row.key for row in house.store.list(prefix)]:
            house.store.delete(name)
    expected: list[str] = []
    for step in walk:
        try:
            if step in "abc":
                house.deploy(getattr(house, step))
            else:
                house.back(None if step == "back" else int(step))
        except Blocked:
            continue
        if not expected or expected[-1] != house.live().record:
            expected.append(house.live().record)
    states = history(house.store, "vol")
    shown = [one.record for one in states]
    assert [r for n, r in enumerate(shown) if n == 0 or shown[n - 1] != r] == expected
    assert [one.move for one in states] == list(range(1, len(states) + 1))
    assert house.verified().ok is bool(states)


def _once(make: Callable[[], House]) -> Callable[[], House]:
    kept: list[House] = []

    def get() -> House:
        if not kept:
            kept.append(make())
        return kept[0]

    return get


def _make_house() -> House:
    from securesystemslib.signer import CryptoSigner

    return House(MemoryStore(), DeployKey(CryptoSigner.generate_ed25519()))


_HOUSE = _once(_make_house)


# ---------------------------------------------------------------------------------- races


def test_a_deployment_that_began_before_a_rollback_does_not_undo_it(house: House) -> None:
    house.deploy(house.a)
    house.deploy(house.b)

    def rolled_back_first(write: Callable[[], Outcome]) -> Outcome:
        house.back()
        return write()

    plan(house, rolled_back_first)
    with pytest.raises(Blocked, match=r"rolled back meanwhile \(move 3; warrant 1 is current\)"):
        house.deploy(house.c)  # by warrant 3, which is later than any
    assert house.live().record == house.a.id
    assert house.deploy(house.c).record == house.c.id  # begun after it
    assert house.moves()[2:] == [("rollback", 2, 1), ("deploy", 1, 4)]


def test_an_older_deployment_does_not_undo_a_rollback_either(house: House) -> None:
    house.deploy(house.a)

    def another_and_back(write: Callable[[], Outcome]) -> Outcome:
        house.deploy(house.c)  # logged later, moved earlier
        house.back()
        return write()

    plan(house, another_and_back)
    with pytest.raises(Blocked, match="rolled back meanwhile"):
        house.deploy(house.b)
    assert (house.live().record, house.live().warrant) == (house.a.id, 1)


@pytest.mark.parametrize("other", ["deploy", "rollback"])
def test_a_rollback_that_comes_second_moves_nothing(house: House, other: str) -> None:
    house.deploy(house.a)
    house.deploy(house.b)

    def another_first(write: Callable[[], Outcome]) -> Outcome:
        house.deploy(house.c) if other == "deploy" else house.back()
        return write()

    plan(house, another_first)
    with pytest.raises(Blocked, match=r"was moved to warrant \d \(move 3\) meanwhile, so nothing"):
        house.back()
    assert house.live().move == 3


@pytest.mark.parametrize("faults", [[landed], [lost_on_the_way], [lost_on_the_way, landed]])
def test_a_rollback_without_an_answer_is_settled(
    house: House, faults: Sequence[Callable[[Callable[[], Outcome]], Outcome]]
) -> None:
    house.deploy(house.a)
    house.deploy(house.b)
    plan(house, *faults)
    done = house.back()
    assert house.live() == done and done.move == 3
    assert house.moves() == [("deploy", None, 1), ("deploy", 1, 2), ("rollback", 2, 1)]


def test_a_success_that_was_answered_as_refused_is_recognised(house: House) -> None:
    house.deploy(house.a)
    house.deploy(house.b)

    def refused(write: Callable[[], Outcome]) -> Outcome:
        write()
        return write()  # a retry on the way: its own success is in its way

    plan(house, refused)
    assert house.back() == house.live()
    assert house.live().move == 3


def test_a_history_that_cannot_be_written_now_is_written_by_the_next_mover(house: House) -> None:
    house.deploy(house.a)
    plan(house, lambda write: write(), lambda write: Unknown("cut before the write"))
    done = house.deploy(house.b)
    assert house.live() == done and house.verified().ok
    assert [row.key[-6:] for row in house.store.list(keys.history("vol"))] == ["1.json"]
    house.deploy(house.c)
    assert len(house.moves()) == 3


def before_key(
    house: House, monkeypatch: pytest.MonkeyPatch, verb: str, key: str, act: Callable[[], object]
) -> None:
    """Do ``act`` once, just before the store's ``verb`` of ``key``."""
    real, waits = getattr(house.store, verb), [True]

    def hooked(asked: str, *args: object) -> object:
        if asked == key and waits:
            waits.clear()
            act()
        return real(asked, *args)

    monkeypatch.setattr(house.store, verb, hooked)


def test_a_slow_signer_does_not_pass_over_a_rollback_that_was_moved_on_from(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = retrain(house.store, house.parent, seeds=(61, 62, 63, 64, 65))
    house.deploy(house.a)
    house.deploy(house.b)

    def back_and_on() -> None:
        house.back()
        house.deploy(house.c)  # by warrant 3; the slow one gets 4

    before_key(house, monkeypatch, "create", keys.warrant(3), back_and_on)
    with pytest.raises(Blocked, match=r"rolled back meanwhile \(move 3; warrant 3 is current\)"):
        house.deploy(slow)
    assert house.live().record == house.c.id


def test_who_is_overtaken_between_two_reads_looks_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.deploy(house.a)
    later = keys.moved("vol", "live", 2)
    before_key(house, monkeypatch, "read", later, lambda: house.deploy(house.b))
    with pytest.raises(Blocked, match="by the later warrant 3"):
        house.deploy(house.c)
    assert house.live().record == house.b.id and house.verified().ok


# --------------------------------------------------------------------- put there by hand


def test_nothing_is_moved_over_a_history_that_says_otherwise(house: House) -> None:
    house.deploy(house.a)
    edited(house, 1, reason="because")
    with pytest.raises(Blocked, match="one of them was written by hand; nothing is moved"):
        house.deploy(house.b)
    assert house.live().record == house.a.id


def test_a_record_is_proved_with_its_parent_its_line_and_its_sizes(house: House) -> None:
    done = house.deploy(house.a)
    line = next(
        row.key
        for row in house.store.list(f"jobs/{done.model.job}/attempts/00001/milestones/10-1/")
    )
    for key in (keys.model("vol", house.parent.id), line):
        body = house.store.read(key)
        assert isinstance(body, Found)
        house.store.delete(key)
        ((_, check, said),) = wrong(house.verified())
        assert check == "record" and key in said
        house.store.create(key, body.body)
    larger = {name: replace(file, size=file.size + 1) for name, file in done.files.items()}
    house.store.delete(keys.moved("vol", "live", 1))
    overwrite(house.store, keys.deployment("vol"), encode(replace(done, files=larger)))
    ((_, check, said),) = wrong(house.verified())
    assert check == "record" and "has another model of seed 11 than is deployed" in said


def test_an_old_state_that_is_put_back_is_no_rollback(house: House) -> None:
    house.deploy(house.a)
    old = house.store.read(keys.deployment("vol"))
    assert isinstance(old, Found)
    house.deploy(house.b)
    overwrite(house.store, keys.deployment("vol"), old.body)
    ((slot, check, said),) = wrong(house.verified())
    assert (slot, check) == ("live", "history") and "put back by hand, which is no rollback" in said
    for move in (lambda: house.deploy(house.c), house.back):
        with pytest.raises(Blocked, match="put back by hand"):
            move()
    newest = house.store.read(keys.moved("vol", "live", 2))
    assert isinstance(newest, Found)
    overwrite(house.store, keys.deployment("vol"), newest.body)  # as docs/deployment.md says
    assert house.verified().ok and house.deploy(house.c).move == 3


def edited(house: House, move: int, **changes: object) -> None:
    key = keys.moved("vol", "live", move)
    found = house.store.read(key)
    assert isinstance(found, Found)
    state = load(Deployment, found.body, key)
    overwrite(house.store, key, encode(replace(state, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda house: house.store.delete(keys.moved("vol", "live", 1)),
            "the history of 'vol' lacks",
        ),
        (lambda house: edited(house, 1, reason="because"), "is not the state that move 2 replaced"),
        (lambda house: edited(house, 3, reason="because"), "is not what is in the slot"),
        (lambda house: house.store.create(keys.history("vol") + "x", b""), "put back by hand"),
        (lambda house: house.store.delete(keys.deployment("vol")), "is gone: 3 moves of it"),
    ],
)
def test_a_history_that_was_changed_is_found(
    house: House, spoil: Callable[[House], object], words: str
) -> None:
    for record in (house.a, house.b, house.c):
        house.deploy(record)
    spoil(house)
    assert words in wrong(house.verified())[0][2]
    with pytest.raises(Blocked):
        house.back()


def test_a_state_of_another_name_or_slot_is_found(house: House) -> None:
    house.deploy(house.a)
    deploy(house.store, house.b, house.key, "vol", slot="shadow")
    house.deploy(house.b, "other")
    for source in (keys.deployment("other"), keys.slot("vol", "shadow")):
        body = house.store.read(source)
        assert isinstance(body, Found)
        house.store.delete(keys.moved("vol", "live", 1))
        overwrite(house.store, keys.deployment("vol"), body.body)
        found = wrong(house.verified())
        assert found[0][1] == "history" and "it was put there by hand" in found[0][2]


@pytest.mark.parametrize("changes", [{"warrant": 0}, {"move": 0}, {"rolled_back": 2}])
def test_numbers_that_no_state_has(house: House, changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="count"):
        replace(house.deploy(house.a), **changes)  # type: ignore[arg-type]


def test_a_number_of_a_move_that_is_absurd_costs_nothing(house: House) -> None:
    done = house.deploy(house.a)
    overwrite(house.store, keys.deployment("vol"), encode(replace(done, move=10**15)))
    assert "lacks" in wrong(house.verified())[0][2]


# --------------------------------------------------------------- warrants that are not it


def test_a_warrant_of_another_model_or_name_or_seed_lets_nothing_be_live(house: House) -> None:
    done = house.deploy(house.a)
    other = house.deploy(house.b, "other")
    forged = {
        "another record": {"record": house.b.id},
        "other files": {"files": house.a.members[1].files},
        "about the snapshot {'job'": {"model": house.a.members[1].train},
        "about the seed 11, not 12": {"seed": 12},
        "about the experiment 'vol', not 'fx'": {"experiment": "fx"},
        "lets record": {"warrant": other.warrant, "warrant_digest": other.warrant_digest,
                        "files": other.files},
    }  # fmt: skip
    for words, changes in forged.items():
        state = replace(done, **changes)  # type: ignore[arg-type]
        overwrite(house.store, keys.deployment("vol"), encode(state))
        house.store.delete(keys.moved("vol", "live", 1))
        ((_, check, said),) = wrong(house.verified())
        assert check == "slot" and words.removeprefix("another ") in said, (words, said)
        with pytest.raises(BadWarrant, match=re.escape(said)):
            proved(house.store, state, house.trust)


def test_a_warrant_that_is_put_into_the_log_again_is_found(house: House) -> None:
    """An old signature at a new place would make an old model the newest."""
    done = house.deploy(house.a)
    house.deploy(house.b)
    again = read_log(house.store)[0].warrant
    number, digest = append(house.store, lambda _: again)
    now = house.live()
    state = replace(done, warrant=number, warrant_digest=digest, move=3, rolled_back=0, replaced=2)
    body = house.store.read(keys.deployment("vol"))
    assert isinstance(body, Found)
    state = replace(state, before=sha256_hex(body.body))
    overwrite(house.store, keys.deployment("vol"), encode(state))
    found = wrong(house.verified())
    assert [(slot, check) for slot, check, _ in found] == [(None, "log"), ("live", "slot")]
    assert all("was signed for entry 1 of it" in said for _, _, said in found)
    assert now.warrant == 2


def test_a_record_under_another_name_deploys_nothing(house: House) -> None:
    """A record's name is the digest of its content: a copy under another id is another's."""
    done = house.deploy(house.a)
    copied = keys.model("vol", house.a.id)
    overwrite(house.store, copied, encode(house.b))
    ((_, check, said),) = wrong(house.verified())
    assert check == "record" and f"was edited: its content has the id {house.b.id}" in said
    with pytest.raises(Blocked, match="does not hold this record"):
        deploy(house.store, house.a, house.key, "again")
    assert house.live() == done


# ---------------------------------------------------------------------------------- log


def place_of(house: House, number: int) -> LogEntry:
    return read_log(house.store)[number - 1]


def test_a_log_that_lost_its_end_is_found(house: House, tmp_path: Path) -> None:
    head = KnownHead(tmp_path / ".tenure" / "warrants.json", "s3://user:secret@bucket/x?key=1")
    house.deploy(house.a)
    house.deploy(house.b)
    house.deploy(house.b, "other")
    first = house.verified(head)
    assert first.ok and "last seen here" not in first.checks[0].detail
    assert "entry 3 is the one last seen here" in house.verified(head).checks[0].detail
    assert "secret" not in head.file.read_text()
    house.store.delete(keys.warrant(3))
    ((_, check, said),) = wrong(house.verified(head))
    assert check == "log" and "had 3 entries when it was last verified here and has 2" in said
    for act in (
        lambda: rollback(house.store, "vol", house.trust, head=head),
        lambda: deploy(house.store, house.c, house.key, "vol", head=head),
    ):
        with pytest.raises(Blocked, match="had 3 entries"):
            act()
    assert len(read_log(house.store)) == 2 and house.live().move == 2
    house.deploy(house.c, "other")  # by somebody who remembers nothing
    ((_, _, said),) = wrong(house.verified(head))
    assert "entry 3 of the log is not the one that stood there" in said
    assert house.verified(KnownHead(head.file, "s3://another")).ok  # each store has its own


def test_the_head_never_goes_back_and_a_deployment_remembers_it(
    house: House, tmp_path: Path
) -> None:
    head = KnownHead(tmp_path / "warrants.json", "file:/store")
    deploy(house.store, house.a, house.key, "vol", head=head)
    known = head.known()
    assert known is not None and known.number == 1
    assert head.remember(0, "older") == "" and head.known() == known


def test_a_file_of_heads_that_cannot_be_read_is_bad_input(house: House, tmp_path: Path) -> None:
    head = KnownHead(tmp_path / "warrants.json", "file:/store")
    head.file.write_text("{}")
    house.deploy(house.a)
    with pytest.raises(UsageError, match=r"warrants\.json .* remove it if you know why"):
        house.verified(head)
    blocked = KnownHead(tmp_path / "warrants.json" / "x" / "warrants.json", "file:/store")
    with pytest.raises(UsageError, match="cannot be read"):
        house.verified(blocked)


def test_a_chain_that_was_made_anew_around_an_edit_is_found(house: House, tmp_path: Path) -> None:
    """Whoever may write the log can mend the digests of the chain, and not what was signed of them."""
    house.deploy(house.a)
    house.deploy(house.b)
    entries = read_log(house.store)
    first = encode(replace(entries[0], at_s=1.0))
    overwrite(house.store, keys.warrant(1), first)
    second = replace(entries[1], previous=sha256_hex(first))
    overwrite(house.store, keys.warrant(2), encode(second))
    assert [one.number for one in read_log(house.store)] == [1, 2]  # a chain again
    found = wrong(house.verified())
    assert found[0][:2] == (None, "log") and "entry 2 of the log holds a warrant" in found[0][2]


def test_entries_of_keys_that_are_not_trusted_here_are_counted(
    house: House, tmp_path: Path
) -> None:
    own = make_key(tmp_path / "own.pem")
    deploy(house.store, house.a, own, "theirs")
    house.deploy(house.b)
    found = house.verified()
    assert found.ok and "1 of them by no key that is trusted here" in found.checks[0].detail
    deploy(house.store, house.a, own, "vol")  # a self-made key, live
    ((_, check, said),) = wrong(house.verified())
    assert check == "signature" and "not signed by a key that is trusted here" in said


def test_a_state_that_names_an_entry_that_is_not_there(house: House) -> None:
    done = house.deploy(house.a)
    for changes in ({"warrant": 9}, {"warrant_digest": "0" * 64}):
        overwrite(house.store, keys.deployment("vol"), encode(replace(done, **changes)))  # type: ignore[arg-type]
        house.store.delete(keys.moved("vol", "live", 1))
        found = wrong(house.verified())
        assert [check for _, check, _ in found] == ["history", "warrant"]


def test_what_is_signed_names_its_place_and_all_it_rests_on(house: House) -> None:
    house.deploy(house.a)
    house.deploy(house.b)
    statement = house.trust.verified(place_of(house, 2).warrant, 2)
    assert statement.place.number == 2 and statement.place.previous == place_of(house, 2).previous
    said = statement.predicate
    member = house.b.members[0]
    assert said["environments"] == plain(house.b.environments)
    assert said["environment"] == member.requires and member.requires in house.b.environments
    lineage = said["lineage"]
    assert isinstance(lineage, dict) and lineage["parent"] == house.parent.id
    members = lineage["members"]
    assert isinstance(members, list) and len(members) == 5
    first = members[0]
    assert isinstance(first, dict)
    jobs = first["jobs"]
    assert isinstance(jobs, dict) and set(jobs) == {"train", "evaluate", "backtest", "repetition"}
    train = jobs["train"]
    assert isinstance(train, dict)
    assert (train["job"], train["line"]) == (member.train.job, member.train.pointer.digest)
    again = jobs["repetition"]
    assert isinstance(again, dict) and member.repetition is not None
    assert (again["job"], again["line"]) == (
        member.repetition.job,
        member.repetition.pointer.digest,
    )
    assert all(isinstance(m, dict) and "repetition" not in m["jobs"] for m in members[1:])  # type: ignore[operator]
    assert said["bom"]["bomFormat"] == "CycloneDX"  # type: ignore[index, call-overload]
    with pytest.raises(BadWarrant, match="names no place in the log"):
        _ = replace(statement, predicate={**said, "log": {"number": "2"}}).place


def test_a_silent_store_proves_nothing(house: House) -> None:
    house.deploy(house.a)

    class Silent(MemoryStore):
        def read(self, key: str) -> Found:
            raise StoreSilent("cut")

    silent: Store = Silent()
    with pytest.raises(StoreSilent):
        verify_deployment(silent, "vol", house.trust)
