"""``tenure fingerprint``: as a worker measures, what differs by class, and whether a pinned job would start."""

from __future__ import annotations

import copy
import json
import os
import sys
from functools import cache
from pathlib import Path

import pytest

from tenure.cli import fingerprint as command
from tenure_protocol import fingerprint
from tenure_protocol.codec import encode
from tenure_protocol.store.directory import DirectoryStore
from tests.record_builders import MEASURED, RESEARCH, research, retrain
from tests.tenure_command import complaint, tenure


@cache
def pinned_here() -> dict[str, object]:
    """Of a process of its own, with the switches of a pinned job: the real one."""
    return command.measured(fingerprint.pin(fingerprint.measure()))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What this machine measures, asked of nobody."""
    found = copy.deepcopy(MEASURED)
    monkeypatch.setattr(command, "measured", lambda _requires: found)
    return found


def test_a_machine_meets_the_pin_made_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    found = command.differences(fingerprint.measure(), pinned_here())
    assert fingerprint.refusing(found) == ()
    switches = pinned_here()["determinism"]
    assert isinstance(switches, dict) and switches["threads"] == 1


def test_a_table_says_that_there_is_no_gpu_and_what_is_not_verified(
    here: dict[str, object],
) -> None:
    here.update(card="cpu", gpu="none: no NVIDIA driver answered")
    ended = tenure("fingerprint")
    assert ended.code == 0
    assert "No GPU here (none: no NVIDIA driver answered)" in ended.out
    assert "stand-in library alone; it is not verified on hardware" in ended.out
    for name in fingerprint.FIELDS:
        if name in here or "." in name:
            assert f"\n{name}" in ended.out, name
    assert json.loads(tenure("fingerprint", "--json").out) == here


@pytest.mark.parametrize("field", ["card", "python", "packages", "builds", "determinism"])
def test_where_a_pinned_job_would_refuse_the_answer_is_no(
    here: dict[str, object], tmp_path: Path, field: str
) -> None:
    file = tmp_path / "there.json"
    file.write_text(json.dumps(MEASURED))
    ended = tenure("fingerprint", "--against", str(file))
    assert (ended.code, ended.out) == (0, "a pinned job would start here\n")
    table = here[field]
    if isinstance(table, dict):
        field, table[max(table)] = f"{field}.{max(table)}", "other"
    else:
        here[field] = "other"
    ended = tenure("fingerprint", "--against", str(file))
    assert ended.code == 1 and field in ended.out and f"1 fields: {field}" in ended.err
    answer = json.loads(tenure("fingerprint", "--against", str(file), "--json").out)
    assert answer["refuses"] and [row["field"] for row in answer["differences"]] == [field]
    assert answer["left_open"] == []


def test_an_informative_difference_is_told_and_refuses_nothing(
    here: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "there.json"
    file.write_text(json.dumps({**MEASURED, "kernel": "Linux 5", "code": "c", "data": "d"}))
    ended = tenure("fingerprint", "--against", str(file))
    assert ended.code == 0 and "informative  kernel" in ended.out
    assert "code" not in ended.out


def test_a_record_is_what_it_was_or_would_be_pinned_to(
    here: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_STORE", f"file:{tmp_path}/store")
    store = DirectoryStore(tmp_path / "store")
    parent = research(store)
    model = retrain(store, parent)
    assert tenure("fingerprint", "--against", model.id).code == 0
    ended = tenure("fingerprint", "--against", parent.id)
    assert ended.code == 1 and "cpu_model" in ended.err and str(RESEARCH["cpu_model"]) in ended.out
    file = tmp_path / "model.json"
    file.write_bytes(encode(model))
    assert tenure("fingerprint", "--against", str(file)).code == 0


def test_what_is_no_fingerprint_is_one_sentence(
    here: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_STORE", f"file:{tmp_path}/store")
    bodies = {"a": "{", "b": "[]", "c": '{"card_name": 1}', "d": '{"members": 3}'}
    says = {"a": "is no JSON", "b": "no fingerprint", "c": "no fingerprint", "d": "no model record"}
    for name, body in bodies.items():
        (tmp_path / name).write_text(body)
        ended = complaint("fingerprint", "--against", str(tmp_path / name))
        assert ended.code == 2 and says[name] in ended.err
    assert complaint("fingerprint", "--against", str(tmp_path / "none")).code == 2
    assert "no model record" in complaint("fingerprint", "--against", "a" * 26).err


def test_a_process_that_cannot_measure_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "could not be measured: no answer" in complaint("fingerprint").err


def test_a_pin_that_leaves_fields_open_is_told(here: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "there.json"
    file.write_text(json.dumps({n: v for n, v in MEASURED.items() if n != "builds"}))
    ended = tenure("fingerprint", "--against", str(file))
    assert ended.code == 0 and "it says nothing of builds" in ended.err
