"""Which environment a retrain is pinned to: always a whole one that was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import Blocked, UsageError
from tenure.plan.file import Plan, load_plan
from tenure.plan.pinning import by_members, parse_lock, requirement, same_version
from tenure.settings import load_settings
from tenure_protocol.fingerprint import missing_from_pin, pin
from tenure_protocol.records import ModelRecord, environment_digest
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import MEASURED, SEEDS, research

PLAN = """\
name: vol
experiment: examples.vol:Vol
seeds: [1, 2]
retrain_seeds: [11, 12]
rungs: [local]
promote: {metric: qlike, direction: minimize, margin: 0.05, min_score: 0.5}
"""
CPU = {**MEASURED, "card": "cpu"}
OLDER = {
    **CPU,
    "packages": {"numpy": "2.3.0", "torch": "2.13.0+cpu"},
    "builds": {"numpy": "ff", "torch": "cd34"},
}
T4 = {**MEASURED, "card": "Tesla T4"}


def plan(folder: Path, text: str = "", **files: str) -> Plan:
    for name, body in files.items():
        (folder / f"{name}.txt").write_text(body)
    file = folder / "plan.yaml"
    file.write_text(PLAN + text)
    return load_plan(file, load_settings(start=folder, environ={}))


def record(*measured: tuple[dict[str, object], ...]) -> ModelRecord:
    """A promoted record whose members measured these environments, in order."""
    made = research(MemoryStore())
    every = [each for one in measured for each in one]
    members = tuple(
        replace(made.members[n], measured=tuple(environment_digest(each) for each in one))
        for n, one in enumerate(measured)
    )
    return replace(
        made, members=members, environments={environment_digest(each): each for each in every}
    )


# ------------------------------------------------------------------------------ the default


def test_without_a_pin_it_is_the_environment_most_seeds_ended_in(tmp_path: Path) -> None:
    found = record((T4,), (T4, CPU), (CPU,))
    assert requirement(plan(tmp_path), found) == pin(CPU)
    assert by_members(found) == [environment_digest(CPU), environment_digest(T4)]


def test_of_equally_many_the_first_seeds_counts(tmp_path: Path) -> None:
    assert requirement(plan(tmp_path), record((CPU,), (T4,), (T4,), (CPU,))) == pin(CPU)
    assert requirement(plan(tmp_path), record((T4,), (CPU,))) == pin(T4)


# --------------------------------------------------------------------------- lock and card


def test_a_card_class_chooses_among_what_was_measured(tmp_path: Path) -> None:
    found = record((CPU,), (CPU,), (T4,))
    for name in ("Tesla T4", "NVIDIA T4"):
        assert requirement(plan(tmp_path, f"pin: {{card: {name}}}\n"), found) == pin(T4)


def test_a_lock_chooses_and_what_is_required_stays_complete(tmp_path: Path) -> None:
    wanted = plan(tmp_path, "pin: {lock: lock.txt, card: cpu}\n", lock="numpy==2.3.0\n")
    requires = requirement(wanted, record((CPU,), (CPU,), (OLDER, CPU)))
    assert requires == pin(OLDER) and missing_from_pin(requires) == ()


def test_where_none_fits_the_nearest_is_named_with_its_differences(tmp_path: Path) -> None:
    lock = "numpy==2.4.6\nscipy==1.0\ntorch==2.12.0\nx==1\ny==1\n"
    wanted = plan(tmp_path, "pin: {lock: lock.txt, card: cpu}\n", lock=lock)
    with pytest.raises(Blocked) as error:
        requirement(wanted, record((T4,), (OLDER,), (CPU,)))
    sentence = str(error.value)
    assert sentence.startswith("pinned_retrain: none of the 3 environments")
    assert "has the card 'cpu' and the packages of the lock" in sentence
    assert f"nearest is {environment_digest(CPU)}, of seeds {SEEDS[2]}: " in sentence
    assert "it has no scipy, the lock 1.0; it has torch 2.13.0+cpu, the lock 2.12.0" in sentence
    assert "(and 1 more)" in sentence and "Train the research where it is so" in sentence


def test_another_card_is_told(tmp_path: Path) -> None:
    with pytest.raises(Blocked, match="its card is 'cpu', not 'NVIDIA H200'"):
        requirement(plan(tmp_path, "pin: {card: NVIDIA H200}\n"), record((CPU,)))


NAMES = st.sampled_from(["numpy", "torch", "six"])
VERSIONS = st.sampled_from(["1.0", "2.0", "2.0.1"])


@given(st.dictionaries(NAMES, VERSIONS), st.dictionaries(NAMES, VERSIONS, min_size=1))
def test_an_environment_is_taken_only_when_every_line_of_the_lock_holds(
    packages: dict[str, str], locked: dict[str, str]
) -> None:
    from tenure.plan.pinning import Wish

    lock = parse_lock("".join(f"{name}=={version}\n" for name, version in locked.items()))
    holds = all(packages.get(name) == version for name, version in locked.items())
    assert (Wish(lock=lock).unmet({"packages": packages}) == []) == holds


def test_a_lock_as_tools_write_it() -> None:
    lock = parse_lock(
        "# by hand\n--only-binary :all:\n"
        "NumPy==2.4.6 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
        "dask[array]==2026.1 ; python_version < '4'  # via x\nruamel_yaml == 0.18\n"
    )
    assert lock.versions == {"numpy": ("2.4.6",), "dask": ("2026.1",), "ruamel-yaml": ("0.18",)}
    assert lock.conditional == {"dask"}


def test_a_line_with_a_marker_holds_where_its_package_is_installed(tmp_path: Path) -> None:
    lock = "numpy==2.4.6 ; python_version < '4'\ncolorama==0.4 ; sys_platform == 'win32'\n"
    wanted = plan(tmp_path, "pin: {lock: lock.txt}\n", lock=lock)
    assert requirement(wanted, record((OLDER,), (OLDER,), (CPU,))) == pin(CPU)


@pytest.mark.parametrize(
    ("locked", "installed", "same"),
    [("1.10", "1.1", False), ("1.0", "1", True), ("2.0+a", "2.0", False), ("1.0rc1", "1.0", False)],
)
def test_versions(locked: str, installed: str, same: bool) -> None:
    assert same_version(locked, installed) is same


# ---------------------------------------------------------------------------- a fingerprint


def test_a_fingerprint_is_the_requirement(tmp_path: Path) -> None:
    wanted = plan(tmp_path, "pin: {fingerprint: print.txt}\n", print=json.dumps(T4))
    assert requirement(wanted, record((CPU,))) == pin(T4)


@pytest.mark.parametrize(
    ("section", "body", "says"),
    [
        ("lock: there.txt", "", "pin.lock: .*there.txt cannot be read .*beside the plan"),
        ("lock: it.txt", "numpy>=2\n", "pin.lock: .*line 1 .*no exact version"),
        ("lock: it.txt", "numpy==2.*\n", "pin.lock: .*line 1 .*no exact version"),
        ("lock: it.txt", "# none\n", "pin.lock: .*names no package"),
        ("lock: it.txt", "-r other.txt\n", "pin.lock: .*refers to something else"),
        ("fingerprint: it.txt", "{", "pin.fingerprint: .*no JSON"),
        ("fingerprint: it.txt", "[]", "pin.fingerprint: .*no JSON object"),
        ("fingerprint: it.txt", '{"card": "cpu"}', "pin.fingerprint: .*leaves open: blas, builds"),
        (
            "fingerprint: it.txt",
            json.dumps({**MEASURED, "torch": "none: torch was not asked"}),
            "pin.fingerprint: .*torch was not asked",
        ),
        ("fingerprint: it.txt, card: cpu", "{}", "pin: .*beside a card or a lock"),
        ("", "", "pin: .*is empty"),
        ("crad: cpu", "", "pin.crad: .*did you mean 'card'"),
        ("card: 4", "", "pin.card: must be text"),
    ],
)
def test_a_wrong_pin_is_one_sentence(tmp_path: Path, section: str, body: str, says: str) -> None:
    with pytest.raises(UsageError, match=rf"plan.yaml:7: {says}") as error:
        plan(tmp_path, f"pin: {{{section}}}\n", it=body)
    assert "\n" not in str(error.value)


def test_the_pin_is_a_term_of_the_plan(tmp_path: Path) -> None:
    assert plan(tmp_path).terms()["pin"] is None
    assert plan(tmp_path, "pin: {card: cpu}\n").terms()["pin"] == {
        "card": "cpu",
        "lock": None,
        "fingerprint": None,
    }
