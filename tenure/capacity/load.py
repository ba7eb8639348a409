"""What environments hold of their template, and how long a link loads it (11.2.2, example 11-2; 11.2.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tenure.bad_input import MistakeAt
from tenure.capacity.terms import Answer, Number, Positive, Scenario, Seconds, Several, brief

Way = Literal["copied", "on_demand", "shared", "shared_hot"]
_MIB_PER_GIB = 1024
_BITS_PER_GIB = 8 * 2**30


@dataclass(frozen=True)
class Load(Answer):
    """By way of loading; what is shared needs one template of ``template_gib`` beside it."""

    per_environment_mib: dict[Way, float]
    total_gib: dict[Way, float]  # of all environments, without the one template
    saved_gib: dict[Way, float]  # against copies
    template_gib: float
    link_gib_per_s: float | None
    template_s: float | None  # to fetch the template: what a cold start takes more
    cold_s: (
        float | None
    )  # the template is not there: it is fetched, then what is touched is installed
    warm_s: float | None  # it is there
    late_s: float | None  # pages that the first run touches later
    cold_prepare_s: float | None  # a preparation that must fetch the template first

    @property
    def words(self) -> str:
        """The most and the least."""
        least = min(self.total_gib, key=lambda way: self.total_gib[way])
        return (
            f"copies of the template are {brief(self.total_gib['copied'])} GiB; the least is {least}, "
            f"{brief(self.total_gib[least])} GiB and {brief(self.template_gib)} GiB once"
        )


def link_s(gib: float, gib_per_s: float) -> float:
    """The least time over a link: ``(V_fetch + V_install) / B`` (11.2.2).

    >>> round(link_s(2 + 0.5, 25e9 / 8 / 2**30), 2)
    0.86
    """
    return gib / gib_per_s


class LoadScenario(Scenario):
    """Environments of one template."""

    kind: Literal["load"]
    environments: Several
    template_mib: Number
    touched_mib: Annotated[Number, Field(description="of the template, by the tool")]
    changed_mib: Annotated[Number, Field(description="of it: pages of one's own")]
    hot_mib: Annotated[
        Number, Field(description="read-only pages kept in each environment all the same")
    ] = 0.0
    overhead_mib: Annotated[Number, Field(description="of each environment")] = 0.0
    link_gbit_per_s: Annotated[Positive | None, Field(description="none: no times")] = None
    late_mib: Annotated[Number, Field(description="touched by the first run, not loaded yet")] = 0.0
    prepare_s: Annotated[
        Seconds | None, Field(description="to prepare one where the template is there")
    ] = None

    @model_validator(mode="after")
    def _fits_the_template(self) -> LoadScenario:
        for name in ("touched_mib", "hot_mib", "late_mib"):
            if getattr(self, name) > self.template_mib:
                raise MistakeAt(
                    (name,),
                    f"is {getattr(self, name):g} and the template has {self.template_mib:g} MiB",
                )
        if self.changed_mib > self.touched_mib:
            raise MistakeAt(
                ("changed_mib",),
                f"is {self.changed_mib:g}, and the tool touches {self.touched_mib:g} MiB",
            )
        return self

    def answer(self) -> Load:
        """Example 11-2, and the times after it."""
        own_mib: dict[Way, float] = {
            "copied": self.template_mib + self.overhead_mib,
            "on_demand": self.touched_mib + self.overhead_mib,
            "shared": self.changed_mib + self.overhead_mib,
            "shared_hot": self.changed_mib + self.hot_mib + self.overhead_mib,
        }
        total = {way: self.environments * mib / _MIB_PER_GIB for way, mib in own_mib.items()}
        saved = {way: total["copied"] - gib for way, gib in total.items()}
        template = self.template_mib / _MIB_PER_GIB
        if self.link_gbit_per_s is None:
            return Load(own_mib, total, saved, template, None, None, None, None, None, None)
        speed = self.link_gbit_per_s * 1e9 / _BITS_PER_GIB
        touched = self.touched_mib / _MIB_PER_GIB
        fetch_s = link_s(template, speed)
        return Load(
            own_mib,
            total,
            saved,
            template,
            speed,
            template_s=fetch_s,
            cold_s=link_s(template + touched, speed),
            warm_s=link_s(touched, speed),
            late_s=link_s(self.late_mib / _MIB_PER_GIB, speed),
            cold_prepare_s=None if self.prepare_s is None else self.prepare_s + fetch_s,
        )
