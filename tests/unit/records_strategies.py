"""Hypothesis strategies for the stored records."""

from __future__ import annotations

from hypothesis import strategies as st

from tenure_protocol import records
from tenure_protocol.records import (
    Announced,
    Asked,
    FileEntry,
    Holder,
    JobSpec,
    Launch,
    Manifest,
    Pointer,
    SnapshotRef,
    Witness,
)

names = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,20}", fullmatch=True)
words = st.text(max_size=30)
counts = st.integers(0, 10**6)
seconds = st.floats(0, 1e6, allow_nan=False)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(words, json_values, max_size=4)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
pointers = st.builds(Pointer, counts, counts, counts, counts, digests)
maybe_pointers = st.none() | pointers
snapshots = st.builds(SnapshotRef, names, pointers)

specs = st.builds(
    JobSpec,
    experiment=names,
    kind=st.sampled_from(["train", "evaluate", "backtest", "dataset"]),
    stage=names,
    entry_point=words,
    config=objects,
    seed=st.integers(-(2**63), 2**63),
    generation=st.sampled_from([1, 2]),
    code=words,
    data=words,
    milestone_every=st.integers(1, 10**6),
    parent=st.none() | words,
    model=st.none() | snapshots,
    requires=st.none() | objects,
    cards=st.integers(1, 8),
    patience_s=st.floats(1e-3, 1e6) | st.integers(1, 10**6),
    max_silence_s=st.floats(1e-3, 1e6) | st.integers(1, 10**6),
    run=counts,
)


@st.composite
def witnesses(draw: st.DrawFn) -> Witness:
    phase = draw(st.sampled_from([*records._RESIDUES, "held"]))
    held = phase == "held"
    launches = st.builds(Launch, st.integers(1, 10**5), words, seconds)
    return Witness(
        job=draw(names),
        phase=phase,
        write_id=draw(words),
        seq=draw(counts),
        launch=draw(launches if phase == "expected" else st.none() | launches),
        barrier=draw(counts),
        attempt=draw(counts),
        holder=draw(st.builds(Holder, counts, words)) if held else None,
        silence_s=draw(seconds),
        announced=draw(st.none() | st.builds(Announced, words, seconds)) if held else None,
        asked=draw(
            st.none() | st.builds(Asked, st.sampled_from(["yield", "pause"]), seconds, words)
        ),
        held_back=draw(st.booleans()),
        pointer=draw(maybe_pointers),
        exit_code=draw(st.none() | counts),
        reason=draw(st.none() | words),
        by=draw(st.none() | words),
        result=draw(st.none() | objects),
    )


manifests = st.builds(
    Manifest,
    job=names,
    attempt=counts,
    step=counts,
    save=counts,
    ordinal=counts,
    files=st.dictionaries(names, st.builds(FileEntry, digests, counts), max_size=4),
    fingerprint=objects,
    parent=maybe_pointers,
    median_step_s=st.none() | seconds,
    busy_s=seconds,
)
