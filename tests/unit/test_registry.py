"""The ladder that settings describe: plug-ins that are broken, cards that are another, secrets."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from tenure.dispatch import registry
from tenure.dispatch.contract import Capacity, Closed, Job, NoSlots, Receipt, Settlement, Site
from tenure.dispatch.ladder import Price
from tenure.errors import UsageError
from tenure.settings import Settings, load_settings
from tenure_protocol.store.memory import MemoryStore

HERE = "tests.unit.test_registry"
FILE = """
[store]
url = "memory:"
[runners.cloud]
kind = "cloud"
card = "NVIDIA T4"
[runners.spare]
kind = "{spare}"
[rungs.t4]
runner = "cloud"
card = "{card}"
price_class = "spot"
price = {{currency = "credits", per_h = 0.5}}
{more}
"""
SPARE_RUNG = """
[rungs.spare]
runner = "spare"
card = "cpu"
price_class = "spot"
price = {currency = "usd", per_h = 0}
"""


class Cloud:
    """A plug-in that keeps what its site told it."""

    JOB_KINDS: ClassVar[frozenset[str]] = frozenset({"train"})
    SECRET_VARIABLES: ClassVar[tuple[str, ...]] = ("CLOUD_KEY", "CLOUD_TOKEN")

    def __init__(self, name: str, config: Mapping[str, object], site: Site) -> None:
        self.site = site

    @classmethod
    def capacity(cls, config: Mapping[str, object]) -> Capacity:
        return Capacity(2, 1, 60.0, cards=2, card=str(config.get("card", "")))

    def launch(self, jobs: Sequence[Job]) -> Receipt:
        raise NoSlots("nothing runs here")

    def release(self, receipt: Receipt) -> Settlement:
        return Closed("nothing ran here")


class Spare(Cloud):
    """Another one, with a secret of its own."""

    SECRET_VARIABLES = ("SPARE_KEY",)


class NoRunner:
    """It has none of the verbs."""


@pytest.fixture(autouse=True)
def plug_ins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "exits_at_import.py").write_text("raise SystemExit(1)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    found = {
        "cloud": f"{HERE}:Cloud",
        "spare": f"{HERE}:Spare",
        "missing": "no_such_module:Runner",
        "exits": "exits_at_import:Runner",
        "nothing": f"{HERE}:NoRunner",
    }
    points = [EntryPoint(name, value, registry.GROUP) for name, value in found.items()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


def settings(
    folder: Path, spare: str = "spare", card: str = "nvidia-t4", more: str = ""
) -> Settings:
    file = folder / "tenure.toml"
    file.write_text(FILE.format(spare=spare, card=card, more=more))
    return load_settings(file, environ={})


def test_a_rung_has_its_runner_capacity_and_price(tmp_path: Path) -> None:
    (rung,) = registry.build_rungs(settings(tmp_path))
    assert (rung.name, rung.runner_name, rung.card) == ("t4", "cloud", "nvidia-t4")
    assert rung.price == Price("credits", 0.5)
    assert (rung.capacity.per_launch, rung.capacity.cards) == (2, 2)


def test_a_card_that_the_runner_does_not_rent_is_a_mistake_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        registry.build_rungs(settings(tmp_path, card="nvidia-l4"))
    words = str(caught.value)
    assert "tenure.toml:11: rungs.t4.card: 'nvidia-l4'" in words
    assert "'NVIDIA T4'" in words and "card = 'nvidia-t4'" in words


def test_a_runner_that_promises_no_card_takes_any(tmp_path: Path) -> None:
    rungs = registry.build_rungs(settings(tmp_path, more=SPARE_RUNG))
    assert [rung.card for rung in rungs] == ["nvidia-t4", "cpu"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [("missing", "No module named 'no_such_module'"), ("exits", "SystemExit: 1"),
     ("nothing", "it has no JOB_KINDS"), ("clod", "there is no runner kind 'clod'")],
)  # fmt: skip
def test_a_broken_plug_in_is_reported_and_fatal_only_where_it_is_used(
    tmp_path: Path, kind: str, words: str
) -> None:
    unused = settings(tmp_path, spare=kind)
    assert [rung.name for rung in registry.build_rungs(unused)] == ["t4"]
    tick = registry.build_dispatcher(unused, MemoryStore()).tick()
    assert words in tick.troubles["runners.spare"]
    used = settings(tmp_path, spare=kind, more=SPARE_RUNG)
    assert [rung.name for rung in registry.build_rungs(used, only=["t4"])] == ["t4"]
    with pytest.raises(UsageError, match=r"runners\.spare") as caught:
        registry.build_rungs(used)
    assert words in str(caught.value)


def test_workers_here_see_the_credentials_of_no_platform(tmp_path: Path) -> None:
    """Of a runner that no rung uses neither: they are in the same environment."""
    (rung,) = registry.build_rungs(settings(tmp_path))
    assert isinstance(rung.runner, Cloud)
    assert rung.runner.site.hidden == {
        "TENURE_DEPLOY_KEY", "TENURE_NOTIFY", "CLOUD_KEY", "CLOUD_TOKEN", "SPARE_KEY",
    }  # fmt: skip
