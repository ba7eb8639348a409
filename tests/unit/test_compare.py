"""``tenure compare``: two records, or the platforms of one; every answer and every mistake."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tenure_protocol.codec import encode, plain
from tenure_protocol.records import (
    Member,
    MetricValue,
    ModelRecord,
    Pointer,
    SnapshotRef,
    environment_digest,
)
from tenure_protocol.store.directory import DirectoryStore
from tests.record_builders import TERMS, put
from tests.tenure_command import complaint, tenure

BASE = (1.0, 1.1, 0.9, 1.05, 0.95)


def model(
    values: Sequence[float],
    job: str,
    cards: Sequence[Sequence[str]] | None = None,
    metric: MetricValue | None = None,
    **changes: object,
) -> ModelRecord:
    """A record of seeds that measured ``values`` of the promoted metric, on these cards each."""
    kind = metric or MetricValue(0.0, "minimize", "nats")
    environments: dict[str, dict[str, object]] = {}
    members = []
    for seed, value in enumerate(values):
        seen = []
        for card in cards[seed] if cards else ["cpu"]:
            environment: dict[str, object] = {"card": card, "cards": 2}
            seen.append(environment_digest(environment))
            environments[seen[-1]] = environment
        members.append(
            Member(
                seed=seed,
                train=SnapshotRef(f"{job}{seed}", Pointer(1, 20, 1, 2, "0" * 64)),
                files={},
                measured=tuple(seen),
                metrics={TERMS.metric: replace(kind, value=value)},
            )
        )
    record = ModelRecord(
        experiment="vol",
        generation=1,
        entry_point="examples.vol:Vol",
        config={"lr": job},
        code="code1",
        data="data1",
        seeds=tuple(range(len(values))),
        members=tuple(members),
        environments=environments,
        promote=TERMS,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's folder, whose store is only opened where an id is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENURE_STORE", "file:store")
    return tmp_path


def file(name: str, record: ModelRecord) -> str:
    Path(name).write_bytes(encode(record))
    return name


def pair(second: Sequence[float], **changes: object) -> tuple[str, str]:
    return file("a.json", model(BASE, "a")), file("b.json", model(second, "b", **changes))  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------- answers


def test_two_records_by_file_and_by_id(folder: Path) -> None:
    a, b = pair([value + 0.5 for value in BASE])
    ended = tenure("compare", a, b, "--json")
    assert ended.code == 0 and ended.json["answer"] == "larger than the noise"
    assert ended.json["differs"] == ["config"]
    assert (ended.json["direction"], ended.json["unit"]) == ("minimize", "nats")
    numbers = ended.json["numbers"]
    assert isinstance(numbers, Mapping)
    assert numbers["worse_by"] == pytest.approx(0.5) and numbers["second_seeds"] == 5
    assert not (folder / "store").exists()
    store = DirectoryStore(folder / "store")
    ids = [put(store, model(BASE, "a")).id, put(store, model([v + 0.5 for v in BASE], "b")).id]
    assert tenure("compare", *ids, "--json").json == ended.json


def test_the_words_for_a_person() -> None:
    ended = tenure("compare", *pair([value + 0.01 for value in BASE[::-1]]))
    assert ended.code == 0 and "qlike (minimize, in nats): inside the noise" in ended.out
    assert "this does not say that they are equal" in ended.out
    assert "What differs between the records: config" in ended.out


def test_a_maximised_metric_is_worse_where_it_is_less() -> None:
    up = MetricValue(0.0, "maximize", "nats")
    a, b = (
        file("a.json", model(BASE, "a", metric=up)),
        file("b.json", model([value - 0.5 for value in BASE], "b", metric=up)),
    )
    ended = tenure("compare", a, b)
    assert "0.5 worse" in ended.out and "qlike (maximize, in nats)" in ended.out


def test_other_platforms_are_told_as_a_difference() -> None:
    a, b = pair(BASE[::-1], cards=[["T4"]] * 5)
    assert tenure("compare", a, b, "--json").json["differs"] == ["config", "card"]


def test_one_seed_is_not_enough() -> None:
    ended = tenure("compare", *pair([1.0]), "--json")
    assert ended.code == 0 and ended.json["answer"] == "not enough seeds"


def test_platforms_of_one_record() -> None:
    values = [*BASE, *[value + 2 for value in BASE], 7.0]
    cards = [["T4"]] * 5 + [["L4"]] * 5 + [["T4", "L4"]]
    name = file("a.json", model(values, "a", cards))
    ended = tenure("compare", name, "--by", "card", "--reference", "T4", "--json")
    assert ended.code == 1 and ended.json["seeds_left_out"] == [10]
    (row,) = ended.json["platforms"]  # type: ignore[misc]
    assert (row["platform"], row["answer"], row["seeds"]) == ("L4", "fault", 5)
    told = tenure("compare", name, "--by", "card")
    assert told.code == 1 and "the reference is L4" in told.out and "seeds 10" in told.out


def test_platforms_that_cannot_be_told_apart_need_seeds() -> None:
    values = [*BASE, *BASE[::-1]]
    name = file("a.json", model(values, "a", [["T4"]] * 5 + [["L4"]] * 5))
    ended = tenure("compare", name, "--by", "card")
    assert ended.code == 0 and "not enough seeds" in ended.out and "18 on each side" in ended.out
    ended = tenure("compare", name, "--by", "card", "--within", "3", "--json")
    (row,) = ended.json["platforms"]  # type: ignore[misc]
    assert ended.code == 0 and row["answer"] == "inside the noise"


# --------------------------------------------------------------------------------- mistakes


def edited(**metric: object) -> str:
    """The text of b.json with the metric of seed 0 changed."""
    body = json.loads(encode(model(BASE, "b")))
    body["members"][0]["metrics"]["qlike"].update(metric)
    return json.dumps(body)


MISTAKES = {
    "NaN": (edited(value=float("nan")), "NaN is no number"),
    "infinite": (edited(value=1e999), "Infinity is no number"),
    "no direction": (
        edited().replace('"direction": "minimize", ', "", 1),
        "it lacks the field 'members[0].metrics.qlike.direction'",
    ),
    "another direction": (edited(direction="down"), "is 'down', not one of minimize, maximize"),
    "directions": (edited(direction="maximize"), "maximize in nats and minimize in nats, which"),
    "units": (edited(unit="bits"), "minimize in bits and minimize in nats, which cannot"),
    "constants": (encode(model([0.7] * 5, "b")).decode(), "all 5 seeds of the second gave 0.7"),
    "no members": (encode(model([], "b")).decode(), "has no members, so no seeds to compare"),
    "version": (
        encode(model(BASE, "b", protocol=99)).decode(),  # type: ignore[arg-type]
        "speaks protocol 99, this Tenure speaks 1",
    ),
    "the same": (encode(model(BASE, "a")).decode(), "share 5 trainings"),
    "no JSON": ("{", "it is no JSON"),
    "too large": (encode(model([v * 1e200 for v in BASE], "b")).decode(), "in another unit"),
}


@pytest.mark.parametrize(("text", "words"), MISTAKES.values(), ids=MISTAKES)
def test_records_that_cannot_be_compared(text: str, words: str) -> None:
    a = file("a.json", model(BASE, "a"))
    Path("b.json").write_text(text)
    ended = complaint("compare", a, "b.json")
    assert ended.code == 2 and words in ended.err, ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.json"], "name two records to compare, or one and --by card"),
        (["a.json", "b.json", "--by", "card"], "name two records to compare, or one and --by"),
        (["a.json", "b.json", "--within", "2"], "--reference and --within belong to --by"),
        (["a.json", "b.json", "--metric", "qlke"], "did you mean 'qlike'?"),
        (["a.json", "b.json", "--alpha", "0.7"], "--alpha is 0.7"),
        (["a.json", "b.json", "--alpha", "nan"], "--alpha is nan"),
        (["a.json", "none.json"], "none.json: there is no such record"),
        (["a.json", "aaaa"], "'aaaa' is no file here and no record's id"),
        (["a.json", "a" * 26], "holds no model record"),
        (["a.json", "--by", "crad"], "--by crad: no environment has such a field; did you mean"),
        (["a.json", "--by", "card"], "there is one platform (cpu), two are compared"),
        (["a.json", "--by", "card", "--within", "-1"], "within is -1, it must be a positive"),
    ],
)
def test_arguments_that_ask_nothing(folder: Path, arguments: list[str], words: str) -> None:
    pair(BASE[::-1])
    DirectoryStore(folder / "store")
    ended = complaint("compare", *arguments)
    assert ended.code == 2 and words in ended.err, ended.err


def test_a_record_that_is_stored_and_corrupt_is_an_answer_of_its_own(folder: Path) -> None:
    a, _ = pair(BASE)
    store = DirectoryStore(folder / "store")
    store.create(f"models/vol/{'b' * 26}.json", json.dumps(plain({"protocol": 1})).encode())
    ended = complaint("compare", a, "b" * 26)
    assert ended.code == 1 and "it lacks the field" in ended.err
