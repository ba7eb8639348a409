"""The five platforms as runners: a family, and a provider's own code. The registry names these."""

from __future__ import annotations

from runners.bare_container import BareContainerRunner
from runners.foreign_runtime import ForeignRuntimeRunner
from runners.providers.kaggle import KagglePlatform
from runners.providers.lightning import LightningPlatform
from runners.providers.modal import ModalPlatform
from runners.providers.runpod import RunPodPlatform
from runners.providers.vast import VastPlatform


class KaggleRunner(ForeignRuntimeRunner):
    """A notebook's kernel."""

    PLATFORM = KagglePlatform


class ModalRunner(ForeignRuntimeRunner):
    """A sandbox."""

    PLATFORM = ModalPlatform


class LightningRunner(BareContainerRunner):
    """A job of a teamspace."""

    PLATFORM = LightningPlatform


class RunPodRunner(BareContainerRunner):
    """A pod."""

    PLATFORM = RunPodPlatform


class VastRunner(BareContainerRunner):
    """An instance."""

    PLATFORM = VastPlatform
