"""Resume is exact: interrupted anywhere, resumed from the last milestone, bit-identical weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure_worker import snapshot
from tenure_worker.exits import Stopped
from tenure_worker.snapshot import load_torch, save_torch
from tenure_worker.tenure import Tenure
from tests.fake_clock import FakeClock
from tests.unit.worker_world import World

SAMPLES, BATCH, EPOCHS = 40, 8, 5
STEPS = SAMPLES // BATCH * EPOCHS
EVERY = 4


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def batches(epoch_order: list[int], position: int) -> Iterator[list[int]]:
    for start in range(position, SAMPLES, BATCH):
        yield epoch_order[start : start + BATCH]


def train(tenure: Tenure | None, crash_at: int | None = None) -> bytes:
    """A loop with everything that has a state; the bytes of its final weights.

    Dropout draws from torch, augmentation from numpy, label noise from Python, the order from a
    generator of its own: each of them must go on exactly where it was.
    """
    torch.manual_seed(1)
    np.random.seed(2)
    random.seed(3)
    order = torch.Generator().manual_seed(4)
    inputs = torch.linspace(-1, 1, SAMPLES * 3).reshape(SAMPLES, 3)
    targets = inputs.sin().sum(1, keepdim=True)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(16, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    epoch, position, permutation = 0, 0, [0]

    def save(folder: Path) -> None:
        save_torch(
            folder,
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            order=order,
            epoch=epoch,
            position=position,
            permutation=permutation,
        )

    if tenure and (state := tenure.resume(load_torch)):
        model.load_state_dict(state["model"])  # type: ignore[arg-type]
        optimizer.load_state_dict(state["optimizer"])  # type: ignore[arg-type]
        schedule.load_state_dict(state["schedule"])  # type: ignore[arg-type]
        order.set_state(state["order"])  # type: ignore[arg-type]
        epoch, position = int(str(state["epoch"])), int(str(state["position"]))
        permutation = list(state["permutation"])  # type: ignore[call-overload]
    model.train()
    while epoch < EPOCHS:
        if position == 0:
            permutation = torch.randperm(SAMPLES, generator=order).tolist()
        for rows in batches(permutation, position):
            noise = torch.from_numpy(np.random.normal(0, 0.01, (BATCH, 3)).astype("float32"))
            loss = torch.nn.functional.mse_loss(
                model(inputs[rows] + noise), targets[rows] + random.gauss(0, 0.01)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            position += BATCH
            if tenure:
                tenure.step()
                tenure.metric(loss=loss.item())
                if tenure.step_number == crash_at:
                    return b""
                if tenure.milestone_due:
                    tenure.milestone(save)
        epoch, position = epoch + 1, 0
    if tenure and tenure.saved_step != tenure.step_number:
        tenure.milestone(save)
    return b"".join(p.detach().numpy().tobytes() for p in model.state_dict().values())


@cache
def uninterrupted() -> bytes:
    return train(None)


@given(st.lists(st.tuples(st.integers(1, STEPS), st.booleans()), max_size=4))
@settings(max_examples=25, deadline=None)
def test_interrupted_training_ends_with_the_same_weights(stops: list[tuple[int, bool]]) -> None:
    """``(step, asked)``: asked to stop at that step, or killed there and resumed from a milestone."""
    with FakeClock() as clock:
        world = World(clock, milestone_every=EVERY)
        for step, asked in stops:
            if asked:
                with pytest.raises(Stopped), world.claimed() as tenure:
                    stop_at(tenure, step)
                    train(tenure)
            else:
                with world.killed() as tenure:
                    train(tenure, crash_at=step)
                clock.sleep(10_000.0)
        with world.claimed() as tenure:
            weights = train(tenure)
            tenure.finish({})
        assert weights == uninterrupted()
        world.check()


def stop_at(tenure: Tenure, step: int) -> None:
    real = tenure.step

    def wrapped() -> None:
        if tenure.step_number + 1 == step:
            tenure.request_stop("a test")
        real()

    tenure.step = wrapped  # type: ignore[method-assign]


def test_the_training_draws_from_every_generator() -> None:
    """Else the property above would hold without the generators' states in the snapshot."""
    first = uninterrupted()
    assert train(None) == first
    for number, original in enumerate((torch.manual_seed, random.seed, np.random.seed)):
        module = (torch, random, np.random)[number]
        name = original.__name__
        setattr(module, name, lambda seed, original=original: original(99))
        try:
            assert train(None) != first, f"{name} changes nothing"
        finally:
            setattr(module, name, original)


@pytest.mark.parametrize("forgotten", ["torch", "python", "numpy"])
def test_a_generator_that_is_not_restored_shows(
    forgotten: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutants of save_torch: without one generator's state the weights differ."""
    real = snapshot._rng_state

    def forgetful() -> dict[str, object]:
        return {**real(), forgotten: fresh[forgotten]}

    torch.manual_seed(50)
    random.seed(51)
    np.random.seed(52)
    fresh = real()
    monkeypatch.setattr(snapshot, "_rng_state", forgetful)
    with FakeClock() as clock:
        world = World(clock, milestone_every=EVERY)
        with pytest.raises(Stopped), world.claimed() as tenure:
            stop_at(tenure, 7)
            train(tenure)
        with world.claimed() as tenure:
            weights = train(tenure)
            tenure.finish({})
    assert weights != uninterrupted()


def test_a_snapshot_holds_what_it_was_given(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    save_torch(tmp_path, tensor=tensor, words=["a", "b"], nested={"x": [1, 2.5, None, True]})
    drawn = (torch.rand(2).tolist(), random.random(), np.random.rand())
    torch.rand(5)
    found = load_torch(tmp_path)
    assert torch.equal(found["tensor"], tensor)  # type: ignore[arg-type]
    assert found["words"] == ["a", "b"] and found["nested"] == {"x": [1, 2.5, None, True]}
    assert (torch.rand(2).tolist(), random.random(), np.random.rand()) == drawn


@pytest.mark.parametrize("seed", [0, 7, -3, 2**40, 2**70])
def test_a_seed_decides_what_every_global_generator_draws(seed: int) -> None:
    def drawn() -> tuple[float, float, float]:
        snapshot.seed_generators(seed)
        return random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))

    first = drawn()
    snapshot.seed_generators(seed + 1)
    assert drawn() == first
    snapshot.seed_generators(seed + 1)
    other = random.gauss(0, 1), float(np.random.normal()), float(torch.rand(()))
    assert all(one != two for one, two in zip(first, other, strict=True))
