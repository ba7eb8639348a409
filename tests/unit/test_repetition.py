"""The gate of the repetition: what passes, what never does, and which tensor it names."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save as safetensors

from assets.chain import REPETITION, Chain, Incomplete
from gates import tensors
from gates.check import check_record
from gates.evidence import Evidence
from gates.repetition import repetition, where
from gates.tensors import parts
from gates.verdict import Verdict, deployable
from tenure.errors import Blocked
from tenure_protocol.codec import encode, sha256_hex
from tenure_protocol.lease import keys
from tenure_protocol.records import (
    FileEntry,
    JobSpec,
    LaunchReceipt,
    Manifest,
    Member,
    ModelRecord,
    Pointer,
    SnapshotRef,
    Witness,
    environment_digest,
)
from tenure_protocol.store.api import Found, Store
from tenure_protocol.store.directory import DirectoryStore
from tenure_protocol.store.memory import MemoryStore
from tests.record_builders import (
    EXPERIMENT,
    MEASURED,
    REQUIRED,
    TERMS,
    Wish,
    overwrite,
    put,
    research,
    retrain,
    spec,
)
from tests.tenure_command import tenure
from tests.unit.test_chain import Bench

Files = Mapping[str, bytes]
Milestone = tuple[int, int, Files]  # attempt, step, files


def pinned(**changes: object) -> JobSpec:
    """The spec of a pinned training, or of what passes for its repetition."""
    wish = Wish(2, (11,), "p" * 26, requires=REQUIRED)
    return replace(spec(wish, "train", 11, requires=REQUIRED), **changes)  # type: ignore[arg-type]


def trained(
    store: Store,
    job: JobSpec,
    line: Sequence[Milestone],
    measured: Mapping[str, object] = MEASURED,
    **witness: object,
) -> SnapshotRef:
    """A job that ended with the last of its milestones."""
    store.create(keys.job(job.id), encode(job))
    pointer: Pointer | None = None
    for ordinal, (attempt, step, files) in enumerate(line, start=1):
        entries = {name: FileEntry(sha256_hex(body), len(body)) for name, body in files.items()}
        manifest = Manifest(job.id, attempt, step, 1, ordinal, entries, dict(measured), pointer)
        body = encode(manifest)
        pointer = manifest.pointer(body)
        store.create(keys.manifest(job.id, pointer), body)
        for name, content in files.items():
            store.create(keys.snapshot(job.id, pointer) + name, content)
    assert pointer is not None
    ended = Witness(job.id, "finished", "0" * 16, attempt=1, pointer=pointer, exit_code=0)
    ended = replace(ended, **witness)  # type: ignore[arg-type]
    store.create(keys.witness_of(job), ended.encode())
    return SnapshotRef(job.id, pointer)


def judged(store: Store, ours: SnapshotRef, theirs: SnapshotRef | None) -> Verdict:
    """What the gate says of a record whose deployed member these two are."""
    member = Member(11, ours, {}, (), environment_digest(REQUIRED), repetition=theirs)
    record = ModelRecord(
        EXPERIMENT, 2, "examples.vol:Vol", {}, "code1", "data1", (11,), (member,), {},
        TERMS,
    )  # fmt: skip
    return repetition(Evidence(store, record))


def twice(ours: Sequence[Milestone], theirs: Sequence[Milestone]) -> tuple[Verdict, str, str]:
    """The verdict on two trainings, and the names of their jobs."""
    store = MemoryStore()
    one, other = pinned(), pinned(stage=REPETITION)
    return judged(store, trained(store, one, ours), trained(store, other, theirs)), one.id, other.id


def names(ours: bytes, theirs: bytes, file: str) -> str:
    """The sentence on two models of one file."""
    verdict, one, other = twice([(1, 10, {file: ours})], [(1, 10, {file: theirs})])
    assert verdict.verdict == "BLOCK"
    return verdict.reason.replace(one, "A").replace(other, "B")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


# --------------------------------------------------------------------------- what is repeated


def test_equal_trainings_pass_and_say_what_was_compared() -> None:
    line = [(1, 10, {"a": b"1"}), (1, 20, {"a": b"2"}), (1, 30, {"a": b"3", "b": b"4"})]
    verdict, one, other = twice(line, line)
    assert verdict.verdict == "PASS"
    assert verdict.reason == (
        f"job {one} and its repetition {other} gave the same bits: 3 milestones, 2 files in the "
        "last; the store does not tell whether they ran on one machine or on two"
    )
    assert verdict.numbers["equal_milestones"] == 3


def test_milestones_of_other_attempts_are_left_out_and_counted() -> None:
    ours = [(1, 10, {"a": b"1"}), (1, 13, {"a": b"x"}), (2, 20, {"a": b"2"}), (2, 30, {"a": b"3"})]
    theirs = [
        (1, 10, {"a": b"1"}),
        (3, 20, {"a": b"2"}),
        (5, 27, {"a": b"y"}),
        (5, 30, {"a": b"3"}),
    ]
    verdict, *_ = twice(ours, theirs)
    assert verdict.verdict == "PASS", verdict
    assert "3 milestones, 2 that only one of them has left out" in verdict.reason


def test_the_first_milestone_that_differs_is_named() -> None:
    """The last one is equal again, as where a machine lied only once."""
    ours = [(1, step, {"a": b"%d" % step}) for step in (10, 20, 30, 40)]
    theirs = [
        (1, 10, {"a": b"10"}),
        (1, 20, {"a": b"x"}),
        (1, 30, {"a": b"y"}),
        (1, 40, {"a": b"40"}),
    ]
    verdict, one, other = twice(ours, theirs)
    assert verdict.verdict == "BLOCK"
    assert verdict.reason.startswith(
        f"milestone of step 20: file a has digest {sha256_hex(b'20')[:16]} in job {one} and "
        f"{sha256_hex(b'x')[:16]} in job {other} (equal before it: 1 milestone); "
    )
    assert "either the code is not deterministic, or a machine does not compute" in verdict.reason
    assert verdict.numbers["step"] == 20 and verdict.numbers["digest"] == sha256_hex(b"20")


def test_a_repetition_that_ended_earlier_is_none() -> None:
    ours = [(1, 10, {"a": b"1"}), (1, 20, {"a": b"1"})]
    verdict, one, other = twice(ours, ours[:1])
    assert f"job {one} ended at step 20 and job {other} at step 10" in verdict.reason
    assert verdict.verdict == "BLOCK"


def test_a_file_that_one_of_them_lacks() -> None:
    verdict, one, _ = twice([(1, 10, {"a": b"1", "b": b"2"})], [(1, 10, {"b": b"2"})])
    assert (
        f"file a has digest {sha256_hex(b'1')[:16]} in job {one} and is missing" in verdict.reason
    )
    assert "(1 of 2 files differ)" in verdict.reason and verdict.verdict == "BLOCK"


# ------------------------------------------------------------------------- adversarial records


def sentence(store: MemoryStore, record: ModelRecord, gate: str = "repetition") -> str:
    """The reason of a gate that must not pass, on a record that must not be deployable."""
    verdicts = {verdict.gate: verdict for verdict in check_record(store, record)}
    assert not deployable(verdicts.values())
    assert verdicts[gate].verdict == "BLOCK", verdicts[gate]
    return verdicts[gate].reason


def with_repetition(
    store: MemoryStore, record: ModelRecord, ref: SnapshotRef | None
) -> ModelRecord:
    first = replace(record.members[0], repetition=ref)
    return put(store, replace(record, members=(first, *record.members[1:])))


def test_without_a_repetition_nothing_is_deployed(store: MemoryStore) -> None:
    record = with_repetition(store, retrain(store, research(store)), None)
    assert "seed 11, which is to be deployed, was not repeated" in sentence(store, record)


def test_no_training_is_its_own_repetition(store: MemoryStore) -> None:
    good = retrain(store, research(store))
    record = with_repetition(store, good, good.members[0].train)
    assert "is passed off as its own repetition" in sentence(store, record)


def test_the_training_of_another_seed_is_none(store: MemoryStore) -> None:
    good = retrain(store, research(store))
    record = with_repetition(store, good, good.members[1].train)
    assert "its seed is 12 where job" in sentence(store, record)
    assert "its seed is 12, the record says 11" in sentence(store, record, "jobs")


def test_an_evaluation_is_none(store: MemoryStore) -> None:
    good = retrain(store, research(store))
    record = with_repetition(store, good, good.members[0].evaluation)
    assert "its kind is 'evaluate' where job" in sentence(store, record)
    assert "its kind is 'evaluate', the record says 'train'" in sentence(store, record, "jobs")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 99}, "its seed is 99 where job"),
        ({"config": {"lr": 1}}, "its config is {'lr': 1} where job"),
        ({"code": "code2"}, "its code is 'code2' where job"),
        ({"data": "data2"}, "its data is 'data2' where job"),
        ({"entry_point": "m:Other"}, "its entry_point is 'm:Other' where job"),
        ({"generation": 1}, "its generation is 1 where job"),
        ({"parent": None}, "its parent is None where job"),
        ({"milestone_every": 7}, "its milestone_every is 7 where job"),
        ({"cards": 2}, "its cards is 2 where job"),
        ({"requires": None}, "its requires is None where job"),
        ({"requires": {"card": "cpu"}}, "where job"),
    ],
)
def test_a_job_of_another_spec_is_none(
    store: MemoryStore, change: dict[str, object], words: str
) -> None:
    record = retrain(store, research(store), again=change)
    said = sentence(store, record)
    assert "is no repetition of job" in said and words in said


def test_a_retry_of_the_repetition_is_one(store: MemoryStore) -> None:
    record = retrain(store, research(store), again={"run": 2})
    assert deployable(check_record(store, record))


def test_what_was_not_pinned_cannot_be_repeated(store: MemoryStore) -> None:
    record = retrain(store, research(store), requires=None)
    assert "was not pinned, so that it cannot be repeated" in sentence(store, record)


@pytest.mark.parametrize(
    ("witness", "words"),
    [
        ({"phase": "revoked", "exit_code": None}, "is revoked, not finished"),
        ({"exit_code": 1}, "ended with exit code 1, not 0"),
        ({"pointer": Pointer(1, 5, 1, 1, "d")}, "finished with another snapshot"),
    ],
)
def test_only_what_the_repetition_finished_with_counts(
    store: MemoryStore, witness: dict[str, object], words: str
) -> None:
    line = [(1, 10, {"a": b"1"})]
    ours = trained(store, pinned(), line)
    verdict = judged(store, ours, trained(store, pinned(stage=REPETITION), line, **witness))
    assert verdict.verdict == "BLOCK" and words in verdict.reason


@pytest.mark.parametrize("side", [0, 1])
def test_both_measured_what_was_required(store: MemoryStore, side: int) -> None:
    line, elsewhere = [(1, 10, {"a": b"1"})], {**MEASURED, "card": "another"}
    measured = [MEASURED, MEASURED]
    measured[side] = elsewhere
    one, other = pinned(), pinned(stage=REPETITION)
    refs = [trained(store, j, line, m) for j, m in zip((one, other), measured, strict=True)]
    verdict = judged(store, *refs)
    assert verdict.verdict == "BLOCK"
    job = (one, other)[side].id
    assert f"attempt 1 of job {job} ran elsewhere: card is 'another' where" in verdict.reason


def test_a_manifest_that_is_edited_missing_or_of_another_place(store: MemoryStore) -> None:
    line = [(1, 10, {"a": b"1"}), (1, 20, {"a": b"2"})]
    ours, theirs = trained(store, pinned(), line), trained(store, pinned(stage=REPETITION), line)
    key = keys.manifest(theirs.job, theirs.pointer)
    found = store.read(key)
    assert isinstance(found, Found)
    overwrite(store, key, found.body + b" ")
    assert "does not have the digest" in judged(store, ours, theirs).reason
    store.delete(key)
    assert "is not in the store" in judged(store, ours, theirs).reason
    moved = replace(theirs.pointer, step=40)
    store.create(keys.manifest(theirs.job, moved), found.body)
    spec_of = pinned(stage=REPETITION)
    witness = Witness(spec_of.id, "finished", "0" * 16, attempt=1, pointer=moved, exit_code=0)
    overwrite(store, keys.witness_of(spec_of), witness.encode())
    verdict = judged(store, ours, replace(theirs, pointer=moved))
    assert verdict.verdict == "BLOCK" and "says it is of step 20" in verdict.reason


def test_the_bytes_of_the_repetition_are_those_of_its_manifest(store: MemoryStore) -> None:
    record = retrain(store, research(store))
    ref = record.members[0].repetition
    assert ref is not None
    key = keys.snapshot(ref.job, ref.pointer) + "weights.bin"
    found = store.read(key)
    assert isinstance(found, Found)
    overwrite(store, key, b"W" + found.body[1:])
    said = sentence(store, record, "integrity")
    assert said == f"the bytes of {key} are not those that its manifest names"
    store.delete(key)
    assert f"{key} is missing" in sentence(store, record, "integrity")


def test_a_difference_is_told_where_the_bytes_are_gone(store: MemoryStore) -> None:
    """Early milestones may be removed by a rule of the bucket: their manifests say enough."""
    ours = trained(store, pinned(), [(1, 10, {"a.npy": b"1"})])
    theirs = trained(store, pinned(stage=REPETITION), [(1, 10, {"a.npy": b"2"})])
    key = keys.snapshot(theirs.job, theirs.pointer) + "a.npy"
    overwrite(store, key, b"3")
    said = judged(store, ours, theirs).reason
    assert "file a.npy has digest" in said and f"the bytes of {key} are not those" in said
    store.delete(key)
    said = judged(store, ours, theirs).reason
    assert "file a.npy has digest" in said and f"{key} is missing, and its manifest" in said


# -------------------------------------------------------------------------- which tensor it is

SHAPES = {"head.bias": (3,), "gru.weight_ih_l0": (4, 3), "gru.weight_hh_l0": (4, 4)}


def weights(**changed: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    made = {name: rng.normal(size=shape).astype("<f4") for name, shape in SHAPES.items()}
    return {**made, **changed}


def nudged(array: np.ndarray, byte: int = 0, bit: int = 0) -> np.ndarray:
    body = bytearray(array.tobytes())
    body[byte % len(body)] ^= 1 << bit
    return np.frombuffer(bytes(body), array.dtype).reshape(array.shape)


def npz(arrays: Mapping[str, np.ndarray], packed: bool = False) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def pt(arrays: Mapping[str, np.ndarray]) -> bytes:
    file = io.BytesIO()
    torch.save({name: torch.from_numpy(array.copy()) for name, array in arrays.items()}, file)
    return file.getvalue()


def test_the_first_tensor_of_a_safetensors_file_is_named() -> None:
    """In the order of its bytes; two differ here, and the header is the same."""
    other = weights()
    offsets = {
        part.name.removeprefix("tensor "): part.start for part in parts_of(safetensors(other))
    }
    order = sorted(offsets, key=lambda name: offsets[name])
    for name in order[1:]:
        other[name] = nudged(other[name])
    said = names(safetensors(weights()), safetensors(other), "model.safetensors")
    first = order[1]
    digests = [sha256_hex(w[first].tobytes())[:16] for w in (weights(), other)]
    assert said.startswith(
        f"milestone of step 10: tensor {first} of model.safetensors has digest {digests[0]} in job "
        f"A and {digests[1]} in job B (equal before it: 0 milestones)"
    )


def parts_of(body: bytes, name: str = "model.safetensors") -> tuple[tensors.Part, ...]:
    return parts(name, len(body), lambda start, length: body[start : start + length])


@given(name=st.sampled_from(sorted(SHAPES)), byte=st.integers(0, 63), bit=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_any_bit_of_any_tensor_is_found_and_named(name: str, byte: int, bit: int) -> None:
    other = weights()
    other[name] = nudged(other[name], byte, bit)
    said = names(safetensors(weights()), safetensors(other), "model.safetensors")
    assert f"tensor {name} of model.safetensors has digest" in said
    for make, packed in ((npz, False), (npz, True)):
        said = names(make(weights(), packed), make(other, packed), "model.npz")
        assert f"array {name} of model.npz has digest" in said or (
            packed and f"array {name} of model.npz is" in said  # packed to another length
        )
    said = names(npy(weights()[name]), npy(other[name]), "w.npy")
    assert "array of w.npy has digest" in said


@given(at=st.integers(0), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_any_bit_of_a_file_is_never_passed(at: int, bit: int) -> None:
    """Headers, directories and lengths too: whatever it breaks is told as a sentence."""
    for file, body in (
        ("model.safetensors", safetensors(weights())),
        ("state.pt", _PT),
        ("w.npy", npy(weights()["head.bias"])),
    ):
        other = bytearray(body)
        other[at % len(other)] ^= 1 << bit
        assert f"of {file}" in (said := names(body, bytes(other), file)) or f"file {file}" in said


_PT = pt(weights())


def test_an_entry_of_what_torch_saved_is_named() -> None:
    other = weights()
    other["gru.weight_ih_l0"] = nudged(other["gru.weight_ih_l0"])
    said = names(pt(weights()), pt(other), "state.pt")
    assert "entry archive/data/1 of state.pt has digest" in said


def test_forms_and_missing_tensors_are_told() -> None:
    reshaped = weights(**{"head.bias": np.zeros((1, 3), "<f4")})
    said = names(safetensors(weights()), safetensors(reshaped), "m.safetensors")
    assert (
        "tensor head.bias of m.safetensors is F32 [3] in job A and is F32 [1, 3] in job B" in said
    )
    fewer = {name: array for name, array in weights().items() if name != "head.bias"}
    said = names(safetensors(weights()), safetensors(fewer), "m.safetensors")
    assert "tensor head.bias of m.safetensors is F32 [3] in job A and is missing in job B" in said
    said = names(safetensors(fewer), safetensors(weights()), "m.safetensors")
    assert "tensor head.bias of m.safetensors is missing in job A and is F32 [3] in job B" in said
    said = names(npy(np.zeros(3)), npy(np.zeros((3, 1))), "w.npy")
    assert "array of w.npy is float64 [3] in job A and is float64 [3, 1] in job B" in said


def test_a_header_that_differs_is_told() -> None:
    one, other = (safetensors(weights(), {"made": made}) for made in ("a", "b"))
    said = names(one, other, "m.safetensors")
    assert "file m.safetensors has digest" in said
    assert "in what lies around its 3 tensors" in said


def test_what_is_not_understood_is_compared_as_a_file() -> None:
    for ours, file in (
        (safetensors(weights())[:-1], "m.safetensors"),  # a tensor beyond the end
        (b"\xff" * 32, "m.safetensors"),
        (headed({"w": {"dtype": "F32", "data_offsets": ["a", 4]}}), "m.safetensors"),
        (headed({"w": {"dtype": "F32", "data_offsets": [4, 0]}}), "m.safetensors"),
        (headed({"w": [0, 4]}), "m.safetensors"),
        (b"\x08" + b"\0" * 7 + b"[1,2,3] ", "m.safetensors"),
        (b"\x93NUMPY\x03\x00" + b"\0" * 20, "w.npy"),
        (b"PK\x03\x04" + b"\0" * 40, "state.pt"),
        (_PT[:-4], "state.pt"),
        (_misplaced(_PT), "state.pt"),
        (b"", "m.safetensors"),
    ):
        assert f"file {file} has digest" in names(ours, b"other", file)


def headed(header: object) -> bytes:
    """Four bytes of data under such a header of safetensors."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"data"


def _misplaced(archive: bytes) -> bytes:
    """Its directory says that the first entry begins two bytes before the end of the file."""
    at = archive.index(b"PK\x01\x02") + 42  # APPNOTE.TXT 4.3.12
    return archive[:at] + (len(archive) - 2).to_bytes(4, "little") + archive[at + 4 :]


def test_headers_are_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = {"m.safetensors": safetensors(weights()), "state.pt": _PT}
    assert all(parts_of(body, name) for name, body in bodies.items())
    monkeypatch.setattr(tensors, "MOST_HEADER_BYTES", 100)
    longest = 0

    def read(body: bytes) -> Callable[[int, int], bytes]:
        def found(start: int, length: int) -> bytes:
            nonlocal longest
            longest = max(longest, length)
            return body[start : start + length]

        return found

    for name, body in bodies.items():
        assert parts(name, len(body), read(body)) == ()
    assert longest <= 100


def test_nothing_is_unpickled(store: MemoryStore) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return pytest.fail, ("it was unpickled",)

    file = io.BytesIO()
    np.save(file, np.array([Bomb()], dtype=object), allow_pickle=True)
    assert "array of w.npy has digest" in names(
        file.getvalue(), file.getvalue()[:-1] + b"x", "w.npy"
    )
    file = io.BytesIO()
    torch.save({"bomb": Bomb()}, file)
    other = file.getvalue().replace(b"it was unpickled", b"it was_unpickled")
    assert "entry archive/data.pkl of s.pt has digest" in names(file.getvalue(), other, "s.pt")


def test_large_files_are_read_in_pieces(store: MemoryStore) -> None:
    longest = 0

    class Watched(MemoryStore):
        def read_range(self, key: str, start: int, length: int) -> object:  # type: ignore[override]
            nonlocal longest
            longest = max(longest, length)
            return super().read_range(key, start, min(length, 1_000_000))  # fewer than asked for

    watched = Watched()
    big = {"a": np.zeros(5_000_000, "<f4"), "b": np.zeros(8, "<f4")}
    other = {**big, "a": nudged(big["a"], 19_999_999)}
    refs = [
        trained(watched, job, [(1, 10, {"m.safetensors": safetensors(w)})])
        for job, w in ((pinned(), big), (pinned(stage=REPETITION), other))
    ]
    verdict = judged(watched, *refs)
    assert "tensor a of m.safetensors has digest" in verdict.reason
    assert longest <= 8 << 20


# ------------------------------------------------------------------------ one machine or two


def receipt(store: Store, job: str, number: int, name: str, handle: dict[str, object]) -> None:
    found = LaunchReceipt(job, number, "spot", "spot", name, "cpu", 0.0, handle)
    store.create(keys.receipt(job, number), encode(found))


def test_where_they_ran(store: MemoryStore) -> None:
    said = where(store, "a", "b")
    assert said == "the store does not tell whether they ran on one machine or on two"
    receipt(store, "a", 1, "m1", {"id": 7})
    assert "does not tell" in where(store, "a", "b")
    receipt(store, "b", 1, "m2", {"id": 8})
    assert where(store, "a", "b") == "they ran on two machines (spot/m1; spot/m2)"
    receipt(store, "b", 2, "m1", {"id": 7})
    assert where(store, "a", "b") == "they have the machine spot/m1 in common"
    receipt(store, "c", 1, "p1", {"pid": 3, "host": "here"})
    receipt(store, "d", 1, "p2", {"pid": 4, "host": "here"})
    assert where(store, "c", "d") == "they ran on one machine (here)"
    receipt(store, "e", 1, "p3", {"pid": 5})  # of an older Tenure
    assert "does not tell" in where(store, "c", "e")
    store.create(keys.receipt("f", 1), b"no JSON")
    assert "does not tell" in where(store, "c", "f")


# ------------------------------------------------------------------------------ in the chain


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def played(bench: Bench, *stages: str) -> list[JobSpec]:
    """Finish the jobs of the stages; the last stage's specs."""
    specs: list[JobSpec] = []
    for stage in stages:
        specs = bench.chain().specs(stage)
        bench.enlist(specs)
        for each in specs:
            bench.finish(each, result=result_of(each))
    return specs


def result_of(job: JobSpec) -> dict[str, object]:
    metric = {"value": 1.0 + job.seed / 100, "direction": "minimize", "unit": "nats"}
    return {
        "train": {},
        "evaluate": {"metrics": {"loss": metric}},
        "backtest": {"score": 0.8, "passed": True, "reasons": []},
    }[job.kind]


def test_the_seed_to_be_deployed_is_trained_twice(bench: Bench) -> None:
    played(bench, "training", "metrics", "backtest")
    specs = bench.chain().specs("pinned_retrain")
    assert [(s.stage, s.seed, s.run) for s in specs] == [
        ("pinned_retrain", 7, 0), ("pinned_retrain", 8, 0), (REPETITION, 7, 0),
    ]  # fmt: skip
    assert replace(specs[2], stage="pinned_retrain") == specs[0]
    assert len({s.id for s in specs}) == 3


def test_a_retry_of_a_training_is_not_its_repetition(bench: Bench) -> None:
    """Run 1 of the deployed seed exists when run 0 failed; the repetition is still asked for."""
    played(bench, "training", "metrics", "backtest")
    model, other, again = bench.chain().specs("pinned_retrain")
    bench.enlist([model, other, again])
    bench.finish(other)
    bench.finish(model, code=1)
    retry = replace(model, run=1)
    bench.enlist([retry])
    bench.finish(retry)
    with pytest.raises(Incomplete) as still_open:
        bench.chain().done("pinned_retrain")
    assert still_open.value.jobs == (again.id,)
    bench.finish(again, code=1)
    with pytest.raises(Blocked, match=f"job {again.id} .* ended with code 1"):
        bench.chain().done("pinned_retrain")
    second = replace(again, run=1)
    bench.enlist([second])
    bench.finish(second)
    done = bench.chain().done("pinned_retrain")
    assert [one.spec.id for one in done] == [retry.id, other.id, second.id]
    chain = bench.chain()
    assert chain._retrained({}, {}).members[0].repetition == done[2].ref
    assert [m.repetition is None for m in chain._retrained({}, {}).members] == [False, True]


def ends(bench: Bench, body: Callable[[JobSpec], bytes]) -> Chain:
    """The pinned trainings end in the environment they require, with such a file."""
    played(bench, "training", "metrics", "backtest")
    specs = bench.chain().specs("pinned_retrain")
    bench.enlist(specs)
    for each in specs:
        assert each.requires is not None
        trained(bench.store, each, [(1, 5, {"w": body(each)})], each.requires)
    return bench.chain()


def test_other_bits_end_the_chain_before_anything_more_is_spent(bench: Bench) -> None:
    chain = ends(bench, lambda job: job.stage.encode())
    assert chain.repetition().verdict == "BLOCK"
    with pytest.raises(Blocked, match="pinned_retrain: repetition: milestone of step 5: file w"):
        chain.specs("seed_spread")


def test_equal_bits_let_it_go_on(bench: Bench) -> None:
    chain = ends(bench, lambda job: b"%d" % job.seed)
    assert chain.repetition().verdict == "PASS"
    specs = chain.specs("seed_spread")
    assert [s.seed for s in specs] == [7, 8], "the repetition is evaluated by nobody"
    assert {s.model.job for s in specs if s.model} == {
        s.id for s in chain.specs("pinned_retrain")[:2]
    }


def test_what_could_not_be_read_is_read_again(bench: Bench) -> None:
    """A chain lives long in the daemon: an object that was put right must be seen."""
    chain = ends(bench, lambda job: b"%d" % job.seed)
    again = chain.done("pinned_retrain")[2]
    key = keys.job(again.spec.id)
    found = bench.store.read(key)
    assert isinstance(found, Found)
    overwrite(bench.store, key, b"{}")
    assert chain.repetition().verdict == "BLOCK"
    overwrite(bench.store, key, found.body)
    assert chain.repetition().verdict == "PASS"


# ------------------------------------------------------------------------------- the command


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_STORE", raising=False)
    (tmp_path / "tenure.toml").write_text('[store]\nurl = "file:store"\n')
    return DirectoryStore(tmp_path / "store")


def test_the_command_compares_two_jobs(house: DirectoryStore) -> None:
    research_spec = pinned(generation=1, parent=None, requires=None, stage="training")
    again = replace(research_spec, run=1)
    body = {"m.safetensors": safetensors(weights())}
    trained(house, research_spec, [(1, 10, body)])
    trained(house, again, [(1, 10, body)])
    ended = tenure("gate", "repetition", research_spec.id, again.id)
    assert ended.code == 0 and "gave the same bits: 1 milestone, 1 file" in ended.out
    third = replace(research_spec, run=2)
    other = weights(**{"head.bias": nudged(weights()["head.bias"])})
    threads = {**MEASURED, "determinism": {"threads": 2}}
    trained(house, third, [(1, 10, {"m.safetensors": safetensors(other)})], threads)
    ended = tenure("gate", "repetition", research_spec.id, third.id, "--json")
    assert ended.code == 1 and ended.json["equal"] is False
    assert "tensor head.bias of m.safetensors has digest" in str(ended.json["reason"])
    environments = ended.json["environments"]
    assert isinstance(environments, list)
    assert any(
        f"determinism.threads was 1 in job {research_spec.id} and 2" in e for e in environments
    )
    assert ended.json["digest"] == sha256_hex(weights()["head.bias"].tobytes())


def test_the_command_refuses_what_is_no_repetition(house: DirectoryStore) -> None:
    one, other = pinned(), pinned(seed=3)
    line = [(1, 10, {"a": b"1"})]
    trained(house, one, line)
    trained(house, other, line)
    for arguments, code, words in (
        ((one.id, one.id), 2, "is named twice"),
        ((one.id, other.id), 2, "its seed is 3 where job"),
        ((one.id, "a" * 26), 2, "no job in"),
    ):
        ended = tenure("gate", "repetition", *arguments)
        assert (ended.code, ended.out) == (code, "") and words in ended.err, ended


@pytest.mark.parametrize(
    ("witness", "words"),
    [
        ({"exit_code": 1}, "is finished with code 1: only what"),
        ({"phase": "released", "exit_code": 0}, "is released: only what"),
    ],
)
def test_the_command_says_when_a_job_has_no_result(
    house: DirectoryStore, witness: dict[str, object], words: str
) -> None:
    one, other = pinned(), pinned(run=1)
    trained(house, one, [(1, 10, {"a": b"1"})])
    trained(house, other, [(1, 10, {"a": b"1"})], **witness)
    ended = tenure("gate", "repetition", one.id, other.id)
    assert (ended.code, ended.out) == (1, "") and words in ended.err
