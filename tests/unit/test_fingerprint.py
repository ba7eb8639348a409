"""The environment a process measures: equal twice, every change found, pinned means enforced."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_protocol import fingerprint
from tenure_protocol.codec import canonical
from tenure_protocol.fingerprint import libraries
from tenure_protocol.lease import keys
from tenure_protocol.records import Refusal, load
from tenure_protocol.store.api import Found
from tenure_worker import exits
from tests.fake_clock import FakeClock
from tests.unit.worker_world import World

HEAVY = ("torch", "pynvml")


def in_a_fresh_process(program: str, **variables: str) -> str:
    """What a program prints in a process of its own that has this one's import path."""
    path = os.pathsep.join(p for p in sys.path if p)
    cleared = {
        name: value
        for name, value in os.environ.items()
        if name not in fingerprint.environment_variables(pinned())
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**cleared, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pinned() -> dict[str, object]:
    return {"determinism": fingerprint.PINNED_DETERMINISM}


@cache
def measured() -> dict[str, object]:
    return fingerprint.measure()


PRINT_DIGEST = """
    from tenure_protocol import fingerprint
    from tenure_protocol.codec import canonical, sha256_hex
    print(sha256_hex(canonical(fingerprint.measure())))
"""


def test_two_processes_measure_the_same() -> None:
    assert in_a_fresh_process(PRINT_DIGEST) == in_a_fresh_process(PRINT_DIGEST)


def test_a_measurement_is_plain_json_and_has_every_field() -> None:
    assert json.loads(canonical(measured())) == measured()
    top = {name for name in fingerprint.FIELD_CLASSES if "." not in name}
    assert top == set(measured())


# ---------------------------------------------------------------------------- differences


def leaves(value: dict[str, object], prefix: str = "") -> list[str]:
    found = []
    for name, item in value.items():
        found += leaves(item, f"{prefix}{name}/") if isinstance(item, dict) else [prefix + name]
    return found


def changed(value: dict[str, object], path: str) -> dict[str, object]:
    other = copy.deepcopy(value)
    *above, last = path.split("/")
    place = other
    for part in above:
        place = place[part]  # type: ignore[assignment]
    place[last] = "something else"
    return other


@given(st.data())
def test_every_single_change_is_found_and_named(data: st.DataObject) -> None:
    before = measured()
    path = data.draw(st.sampled_from(leaves(before)))
    (difference,) = fingerprint.compare(before, changed(before, path))
    assert difference.field == path.replace("/", ".")
    assert difference.field in difference.sentence()
    assert "'something else'" in difference.sentence()


@given(st.data())
def test_a_missing_field_is_a_difference(data: st.DataObject) -> None:
    before = measured()
    name = data.draw(st.sampled_from(sorted(before)))
    rest = {n: v for n, v in before.items() if n != name}
    found = fingerprint.compare(before, rest)
    assert found and all(item.field.split(".")[0] == name for item in found)


SCALARS = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b", ""])
TABLE = st.dictionaries(st.sampled_from(["numpy", "torch", "six", "avx2"]), SCALARS)


@st.composite
def measurements(draw: st.DrawFn) -> dict[str, object]:
    """Any two have the same fields; the names in their closed tables are their own."""
    found: dict[str, object] = {}
    for name in sorted(measured()):
        if name in fingerprint.CLOSED:
            found[name] = draw(TABLE)
        elif name == "determinism":
            found[name] = {switch: draw(SCALARS) for switch in ("threads", "interop_threads")}
        else:
            found[name] = draw(SCALARS)
    return found


def flat(environment: dict[str, object]) -> dict[str, str]:
    return {
        path.replace("/", "."): json.dumps(value_at(environment, path))
        for path in leaves(environment)
    }


def value_at(environment: object, path: str) -> object:
    for part in path.split("/"):
        assert isinstance(environment, dict)
        environment = environment[part]
    return environment


@settings(deadline=None)
@given(measurements(), measurements())
def test_two_measurements_differ_in_exactly_the_fields_named(
    one: dict[str, object], other: dict[str, object]
) -> None:
    before, after = flat(one), flat(other)
    names = sorted(n for n in {*before, *after} if before.get(n, "x") != after.get(n, "x"))
    found = fingerprint.compare(one, other)
    assert sorted(item.field for item in found) == names
    assert fingerprint.compare(one, one) == ()
    for item in found:
        judged = fingerprint.field_of(item.field)
        assert (item.kind, item.known) == (judged.kind, judged.known)
        assert fingerprint.KNOWN_WORDS[item.known] in item.sentence()
        assert item.effect in item.change()


def test_what_changed_is_also_what_one_side_alone_has() -> None:
    was = {"card": "a", "driver": "1", "packages": {"x": "1"}}
    found = fingerprint.changes(was, {"card": "b", "cuda": "2", "packages": {"y": "1"}})
    assert [(item.field, item.required, item.measured) for item in found] == [
        ("card", "a", "b"), ("cuda", None, "2"), ("driver", "1", None),
        ("packages.x", "1", None), ("packages.y", None, "1"),
    ]  # fmt: skip
    assert fingerprint.changes(was, was) == ()


def test_informative_differences_refuse_nothing() -> None:
    found = fingerprint.compare({"kernel": "a", "lock": "b"}, {"kernel": "c", "lock": "d"})
    assert [item.field for item in found] == ["kernel", "lock"]
    assert fingerprint.refusing(found) == ()


def test_a_field_nobody_judged_refuses() -> None:
    found = fingerprint.compare({"weather": "rain"}, {"weather": "sun"})
    assert fingerprint.refusing(found) == found
    assert "nobody has judged" in found[0].sentence() and "nothing known" in found[0].sentence()


def test_a_package_more_is_a_difference_and_tenures_own_is_none() -> None:
    required = {"packages": {"pandas": "2"}, "builds": {"pandas": "x"}}
    here = {
        "packages": {"pandas": "2", "bottleneck": "1", "tenure": "1"},
        "builds": {"pandas": "x"},
    }
    assert [item.field for item in fingerprint.compare(required, here)] == ["packages.bottleneck"]


def test_another_version_is_told_once_and_another_build_by_itself() -> None:
    one = {"packages": {"a": "1", "b": "1"}, "builds": {"a": "x", "b": "x"}}
    other = {"packages": {"a": "2", "b": "1"}, "builds": {"a": "y", "b": "y"}}
    found = fingerprint.telling(fingerprint.compare(one, other))
    assert [item.field for item in found] == ["builds.b", "packages.a"]


@pytest.mark.parametrize(("wanted", "found"), [(1, True), (0, False), (1, 1.0), ("1", 1)])
def test_values_of_another_type_are_not_equal(wanted: object, found: object) -> None:
    assert fingerprint.compare({"cards": wanted}, {"cards": found})


def test_what_is_not_required_is_not_compared() -> None:
    assert fingerprint.compare({"card": "cpu"}, {"card": "cpu", "python": "4"}) == ()


# ------------------------------------------------------------------------------- what is measured


def test_what_only_the_runner_knows_is_told_by_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(fingerprint.IMAGE_VARIABLE, raising=False)
    found = fingerprint.measure(use_torch=False)
    assert (found["image"], found["lock"], found["code"], found["data"]) == (None,) * 4
    monkeypatch.setenv(fingerprint.IMAGE_VARIABLE, "sha256:1")
    monkeypatch.setenv(fingerprint.LOCK_VARIABLE, "abc")
    found = fingerprint.measure(use_torch=False)
    assert (found["image"], found["lock"]) == ("sha256:1", "abc")


def test_instruction_sets_have_names() -> None:
    sets = measured()["instruction_sets"]
    assert isinstance(sets, dict)
    if measured()["machine"] == "x86_64":
        assert "sse2" in sets and "hypervisor" not in sets
        fewer = {**measured(), "instruction_sets": {n: True for n in sets if n != "sse2"}}
        (difference,) = fingerprint.compare(measured(), fewer)
        assert difference.field == "instruction_sets.sse2"


def test_numpys_blas_is_told_without_importing_numpy() -> None:
    assert "blas" in str(libraries.numpy_blas()).lower()
    program = """
        import sys
        from tenure_protocol.fingerprint.libraries import numpy_blas
        print(numpy_blas() is not None, "numpy" in sys.modules)
    """
    assert in_a_fresh_process(program).split() == ["True", "False"]


def test_the_threads_of_a_loaded_openblas_count_and_not_what_a_variable_says_later() -> None:
    program = """
        import os
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        import numpy
        os.environ["OPENBLAS_NUM_THREADS"] = "7"
        from tenure_protocol import fingerprint
        print(fingerprint.measure(use_torch=False)["determinism"]["blas_threads"])
    """
    if "openblas" not in str(libraries.numpy_blas()).lower():
        pytest.skip("numpy's BLAS is another one")
    assert in_a_fresh_process(program).strip() == "1"


def test_the_module_prints_what_a_process_measures() -> None:
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-m", "tenure_protocol.fingerprint", "--requires"],
        input=json.dumps(fingerprint.pin(measured())),
        env={**os.environ, "PYTHONPATH": path, **fingerprint.environment_variables(pinned())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = json.loads(done.stdout)
    assert fingerprint.refusing(fingerprint.compare(fingerprint.pin(measured()), found)) == ()


# ------------------------------------------------------------------------------------ pin


def differences_after_pinning(requires: dict[str, object], **variables: str) -> list[str]:
    program = f"""
        import json
        from tenure_protocol import fingerprint
        requires = json.loads({json.dumps(requires)!r})
        fingerprint.apply_determinism(requires)
        found = fingerprint.compare(requires, fingerprint.measure())
        print(json.dumps([item.field for item in found]))
    """
    found = json.loads(in_a_fresh_process(program, **variables))
    assert isinstance(found, list)
    return found


def test_a_pinned_environment_is_met_by_a_process_started_for_it() -> None:
    requires = fingerprint.pin(measured())
    variables = fingerprint.environment_variables(requires)
    assert differences_after_pinning(requires, **variables) == []


def test_without_its_variables_a_pinned_environment_is_not_met() -> None:
    found = differences_after_pinning(fingerprint.pin(measured()))
    assert {"determinism.pythonhashseed", "determinism.cublas_workspace_config"} <= set(found)


def test_the_hash_seed_counts_as_it_was_when_python_started() -> None:
    program = """
        import os
        os.environ["PYTHONHASHSEED"] = "0"
        from tenure_protocol import fingerprint
        print(fingerprint.measure(use_torch=False)["determinism"]["pythonhashseed"])
    """
    assert in_a_fresh_process(program).strip() == "random"


def test_pin_leaves_out_tenure_itself_and_what_is_informative() -> None:
    requires = fingerprint.pin({**measured(), "packages": {"tenure": "1 (editable)", "numpy": "2"}})
    assert requires["packages"] == {"numpy": "2"}
    assert not fingerprint.OWN_PACKAGES & set(requires["builds"])  # type: ignore[call-overload]
    assert not {"kernel", "lock", "gpu", "code", "data", "cpu_flags"} & set(requires)


def test_a_pin_is_complete_and_leaves_nothing_open() -> None:
    requires = fingerprint.pin(measured())
    assert fingerprint.missing_from_pin(requires) == ()
    assert fingerprint.pin(requires) == requires
    for name in requires:
        rest = {n: v for n, v in requires.items() if n != name}
        assert name in fingerprint.missing_from_pin(rest)
    assert "builds" in fingerprint.missing_from_pin({**requires, "builds": {}})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_changed_field_of_a_pinned_environment_is_refused_by_name(data: st.DataObject) -> None:
    """Or it is informative, and then the job runs."""
    switches = fingerprint.pin(measured())["determinism"]
    here = {**measured(), "determinism": {**measured()["determinism"], **switches}}  # type: ignore[dict-item]
    path = data.draw(st.sampled_from(leaves(here)))
    world = World(FakeClock(), requires=fingerprint.pin(here))
    world.measured = changed(here, path)
    code = world.run()
    field = path.replace("/", ".")
    own = field.split(".")[-1] in fingerprint.OWN_PACKAGES
    if own or fingerprint.field_of(field).kind == "informative":
        assert code == exits.FINISHED
        return
    assert code == exits.REFUSED and world.witness.phase == "expected"
    (row,) = world.store.inner.list(keys.refusals(world.spec.id))
    body = world.store.inner.read(row.key)
    assert isinstance(body, Found)
    (difference,) = load(Refusal, body.body, row.key).differences
    assert difference.startswith(f"{field} is 'something else' where ")


# ------------------------------------------------------------------- without, and stand-ins


def test_without_torch_it_says_so_and_can_still_be_pinned() -> None:
    program = """
        import json, sys
        sys.modules["torch"] = None  # makes every import of it fail
        from tenure_protocol import fingerprint
        found = fingerprint.measure()
        requires = fingerprint.pin(found)
        fingerprint.apply_determinism(requires)
        left = [d.field for d in fingerprint.compare(requires, fingerprint.measure())]
        print(json.dumps([found["torch"], left]))
    """
    variables = fingerprint.environment_variables(pinned())
    said, left = json.loads(in_a_fresh_process(program, **variables))
    assert said == fingerprint.NO_TORCH
    assert left == []


def test_torch_that_was_not_asked_satisfies_nothing() -> None:
    found = fingerprint.compare(measured(), fingerprint.measure(use_torch=False))
    if measured()["torch"] == fingerprint.NO_TORCH:
        pytest.skip("torch is not installed")
    assert "torch" in {item.field for item in fingerprint.refusing(found)}


def test_nothing_heavy_is_imported_with_the_module() -> None:
    program = f"""
        import sys
        import tenure_protocol.fingerprint
        print([name for name in {HEAVY!r} if name in sys.modules])
    """
    assert in_a_fresh_process(program).strip() == "[]"


NVML_STAND_IN = '''
"""Stand-in for nvidia-ml-py in tests: NOT verified on hardware."""


class NVMLError(Exception):
    pass


CARDS = [("NVIDIA H200", "GPU-aa", (9, 0)), ("NVIDIA A100-SXM4-80GB", "GPU-bb", (8, 0))]


def nvmlInit():
    {init}


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(CARDS)


def nvmlDeviceGetHandleByIndex(n):
    return CARDS[n]


def nvmlDeviceGetName(card):
    return card[0].encode()


def nvmlDeviceGetUUID(card):
    return card[1]


def nvmlDeviceGetCudaComputeCapability(card):
    return card[2]


def nvmlSystemGetDriverVersion():
    return "580.65.06"
'''

Measure = Callable[..., dict[str, object]]


@pytest.fixture
def with_stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Measures where the module ``pynvml`` is the stand-in above."""

    def run(visible: str | None = None, init: str = "pass") -> dict[str, object]:
        (tmp_path / "pynvml.py").write_text(NVML_STAND_IN.replace("{init}", init))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "pynvml", raising=False)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = fingerprint.measure(use_torch=False)
        sys.modules.pop("pynvml", None)  # monkeypatch would put the stand-in back at the end
        return found

    return run


def test_nvml_names_cards_driver_and_capability(with_stand_in: Measure) -> None:
    found = with_stand_in()
    assert found["card"] == "NVIDIA A100-SXM4-80GB + NVIDIA H200"
    assert (found["cards"], found["driver"]) == (2, "580.65.06")
    assert found["compute_capability"] == "8.0 + 9.0"
    assert "told by NVML (not verified on hardware)" in str(found["gpu"])


@pytest.mark.parametrize(
    ("visible", "card", "cards"),
    [
        ("0", "NVIDIA H200", 1),
        ("GPU-b", "NVIDIA A100-SXM4-80GB", 1),
        ("0,7,1", "NVIDIA H200", 1),
        ("", "cpu", 0),
    ],
)
def test_only_visible_cards_count(
    with_stand_in: Measure, visible: str, card: str, cards: int
) -> None:
    found = with_stand_in(visible)
    assert (found["card"], found["cards"]) == (card, cards)


def test_without_a_driver_it_says_so(with_stand_in: Measure) -> None:
    found = with_stand_in(init='raise NVMLError("Driver Not Loaded")')
    assert (found["card"], found["gpu"]) == ("cpu", "none: no NVIDIA driver answered")
