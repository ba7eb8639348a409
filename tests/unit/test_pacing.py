"""K of a job that has few steps of its own: those of its platform are lent to it, from row to lease."""

from __future__ import annotations

import pytest

from tenure_protocol.lease import keys
from tenure_protocol.lease.client import read_witness
from tenure_protocol.lease.machine import Claim, Reserve, transition
from tenure_protocol.patience import KNOWN_STEPS, best_k
from tenure_protocol.ratios import Ratios
from tenure_protocol.records import JobSpec, Witness
from tenure_worker.pacing import DEATH_PER_H, RESTART_S, Pacing
from tests.fake_clock import FakeClock
from tests.unit.test_observations import Pool

MEDIAN_S = 200.0
SPEC = JobSpec(
    "e", "train", "training", "m:C", {}, 0, 1, "c", "d", 10, max_silence_s=50 * MEDIAN_S
)  # fmt: skip
#: Steps of a platform on which one in fifty lasts four medians.
UNEVEN = Ratios()
UNEVEN.add(1.0, 490)
UNEVEN.add(4.0, 10)


def claimed(ratios: dict[str, object] | None) -> Witness:
    expected = transition("j", None, Reserve("here", 600.0, "d", ratios=ratios))
    assert isinstance(expected, Witness)
    held = transition("j", expected, Claim(1, "n", 60.0))
    assert isinstance(held, Witness)
    return held


def lease_s(ratios: dict[str, object] | None, steps: int) -> float:
    """After so many even steps of its own."""
    pacing = Pacing(SPEC, claimed(ratios), 5.0, "t4")
    pacing.learn([MEDIAN_S] * steps, MEDIAN_S)
    return pacing.silence_s(MEDIAN_S)


def k(own_steps: int, prior: Ratios | None) -> int:
    own = Ratios()
    own.add(1.0, own_steps)
    return best_k(own, MEDIAN_S, RESTART_S, DEATH_PER_H, 10 * MEDIAN_S, prior).k


def test_a_job_with_few_steps_is_lent_those_of_its_platform() -> None:
    alone, lent = lease_s(None, 30), lease_s(UNEVEN.to_json(), 30)
    assert alone == max(k(30, None), 4) * MEDIAN_S
    assert lent == k(30, UNEVEN) * MEDIAN_S > alone


def test_a_job_with_many_steps_of_its_own_asks_no_platform() -> None:
    assert lease_s(UNEVEN.to_json(), KNOWN_STEPS) == lease_s(None, KNOWN_STEPS)


def test_step_ratios_that_are_none_cost_a_measure_and_no_attempt() -> None:
    assert lease_s({"steps": {"-3": 1}, "censored": {}}, 30) == lease_s(None, 30)


def test_a_launch_is_told_the_steps_of_its_rung(clock: FakeClock) -> None:
    """From the manifests of other jobs there to the witness of the next launch; of no other rung."""
    pool = Pool(clock, count=3)
    workers = pool.started()
    for worker in workers:
        worker.train(100, 2.0, lie={"ratios": UNEVEN.to_json()})
    pool.tick()
    workers[0].release()
    pool.tick()  # closes the bill of the machine that was left
    pool.tick()
    w = read_witness(pool.store, keys.witness_of(pool.specs[0])).witness
    assert w and w.launch and (w.launched, w.launch.runner) == (2, "spotty")
    seen = Ratios()
    for _ in workers:
        seen.merge(UNEVEN)
    assert w.launch.ratios == seen.to_json()
    observatory = pool.dispatcher.observatory
    assert not observatory.risks(pool.dispatcher.rungs["demand"]).ratios.total
    assert observatory.risks(pool.dispatcher.rungs["spot"]).ratios == seen


@pytest.mark.parametrize("ratios", [{"steps": {"0": -1}, "censored": {}}, {"steps": 3}])
def test_ratios_of_somebody_elses_making_are_left_out(
    clock: FakeClock, ratios: dict[str, object]
) -> None:
    pool = Pool(clock, count=2)
    first, second = pool.started(count=2)
    first.train(100, 2.0, lie={"ratios": UNEVEN.to_json()})
    second.train(100, 2.0, lie={"ratios": ratios})
    pool.tick()
    assert pool.dispatcher.observatory.risks(pool.dispatcher.rungs["spot"]).ratios == UNEVEN
