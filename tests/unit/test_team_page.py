"""A run belongs to a team: its tags and the metadata of its assets say whose, and where it stands."""

from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import pytest

from assets import materialize as pages
from assets.stage import Context
from assets.team import team_facts, team_tags
from tenure.dispatch.loop import Tick
from tests.fake_clock import FakeClock
from tests.unit.test_team_queue import World


class Opener:
    """A context whose plan is team a's, over the world's dispatcher."""

    def __init__(self, world: World) -> None:
        self.world = world

    def context(self, plan: str) -> Context:
        chain = cast(Any, SimpleNamespace(plan=SimpleNamespace(name=plan, team="a")))
        return Context(self.world.store, chain, self.world.dispatcher, self.world.clock)


def test_tags_and_metadata_tell_team_share_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeClock() as clock:
        world = World(clock)
        (first,) = world.ask("b", "pb")
        clock.sleep(1.0)
        (mine,) = world.ask("a", "vol")
        world.dispatcher.look()
        ticks: list[dict[str, str]] = []

        def complete(ours: Context, stage: str) -> list[object]:
            assert ours.report is not None
            clock.sleep(20.0)
            ours.report(stage, [mine], Tick(()))
            ticks.append(dict(instance.get_runs()[0].tags))
            return []

        monkeypatch.setattr(pages, "complete", complete)

        @dg.asset(partitions_def=pages.experiments)
        def training(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
            return pages.played(context, Opener(world), "training", lambda *_: {"summary": "s"})

        with dg.DagsterInstance.ephemeral() as instance:
            instance.add_dynamic_partitions("experiments", ["vol"])
            done = dg.materialize([training], instance=instance, partition_key="vol")
            assert done.success
            (made,) = done.asset_materializations_for_node("training")
        (waiting,) = ticks
        assert waiting["tenure/team"] == "a"
        assert waiting["tenure/place"] == "2 of 2"
        assert waiting["tenure/share"] == "0% of use, entitled to 50%"
        told = {name: value.value for name, value in made.metadata.items()}
        assert (told["team"], told["team_entitlement"], told["team_share"]) == ("a", 0.5, 0.0)
        assert first != mine


def test_with_one_team_a_run_has_its_label_alone() -> None:
    assert team_tags(None, "me", ["j"]) == {"tenure/team": "me"}
    assert team_facts(None, "me") == {"team": "me"}
