"""The five emulated platforms under one set of knobs, for tests that mean all of them alike.

What each knob does is the emulators' own; what is not to be had on a platform says why (``cannot``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar, Protocol

import pytest

from runners.platforms import KaggleRunner, LightningRunner, ModalRunner, RunPodRunner, VastRunner
from runners.rented import RentedRunner
from tenure.dispatch.contract import Site
from tenure.testing.runner_checks import Fault
from tenure_protocol.clock import SYSTEM
from tests.emulators import kaggle, lightning, modal, runpod, vast
from tests.emulators.machines import Machine, Machines

_PAGE = b"<!doctype html><title>hello</title>"
MANY = 50


class Sent(Protocol):
    """A request that came in."""

    path: str
    body: bytes


class Service(AbstractContextManager[object], Protocol):
    """What the emulators have alike; the knobs are each one's own."""

    @property
    def environ(self) -> Mapping[str, str]: ...
    @property
    def requests(self) -> Sequence[Sent]: ...
    def alive(self) -> list[str]: ...
    def billed(self) -> Mapping[str, float]: ...


class Account(ABC):
    """An account of one platform, with its emulator; a context manager."""

    kind: ClassVar[str]
    runner: ClassVar[type[RentedRunner]]
    card: ClassVar[str]
    cards: ClassVar[int] = 1
    currency: ClassVar[str] = "usd"
    keys: ClassVar[Mapping[str, object]] = {}  # of its configuration, beyond the common ones
    service: Service
    machines: Machines

    @property
    def environ(self) -> Mapping[str, str]:
        """Variables by which the SDK finds the emulator, with good credentials."""
        return self.service.environ

    def alive(self) -> list[str]:
        """Names of all that costs."""
        return self.service.alive()

    def billed(self) -> Mapping[str, float]:
        """Seconds by name."""
        return self.service.billed()

    def sent(self) -> Iterator[tuple[str, bytes]]:
        """Path and body of every request; headers, which bear the API key, apart."""
        return ((request.path, request.body) for request in list(self.service.requests))

    @abstractmethod
    def preempt(self, name: str) -> None:
        """Take the machine of a name away, without a word."""

    @abstractmethod
    def ghost(self) -> None:
        """The next create is done, and its answer lost."""

    def room(self, machines: int) -> None:
        """So many machines at once, and no more."""
        self.service.capacity = machines  # type: ignore[attr-defined]

    @abstractmethod
    def funds(self, there: bool) -> None:
        """Whether there is money, or hours of a quota."""

    @abstractmethod
    def trouble(self, fault: Fault, lasts: bool) -> None:
        """Bad credentials, a hang or garbage at every call, until it does not last any more."""

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """One of the ways to fail that runners' checks name."""
        if fault == "ghost":
            self.ghost()
            yield
        elif fault in ("no slots", "quota gone"):
            if fault == "no slots":
                self.room(0)
            else:
                self.funds(False)
            yield
            self.room(MANY)
            self.funds(True)
        else:
            self.trouble(fault, True)
            yield
            self.trouble(fault, False)

    def config(self, **keys: object) -> dict[str, object]:
        """A ``[runners.<name>]`` section without its kind."""
        common = {"card": self.card, "cards": self.cards, "machines": 20, "deadline_s": 30.0}
        return {**common, **self.keys, **keys}

    def make(self, root: Path, **keys: object) -> RentedRunner:
        """A new runner over this account."""
        return self.runner(self.kind, self.config(**keys), Site(root, SYSTEM))

    def machine(self, name: str) -> Machine:
        """The newest machine of a name that still runs."""
        return [machine for machine in self.machines.running if machine.name == name][-1]


class KaggleAccount(Account):
    kind, runner, card, cards, currency = "kaggle", KaggleRunner, "Tesla T4", 2, "gpu-hours"
    _EVERY = frozenset(
        "IntrospectToken SaveKernel GetKernel GetKernelSessionStatus DeleteKernel ListKernels "
        "GetAcceleratorQuotaStatistics".split()
    )

    def __init__(self, folder: Path) -> None:
        self.service = kaggle.Kaggle(folder, self.card, self.cards)
        self.service.capacity = MANY
        self.machines = self.service.machines

    def preempt(self, name: str) -> None:
        self.service.preempt(self.machine(name))

    def ghost(self) -> None:
        self.service.ghosts.append("504")

    def funds(self, there: bool) -> None:
        self.service.used_h = 0.0 if there else self.service.granted_h

    def trouble(self, fault: Fault, lasts: bool) -> None:
        every = self._EVERY if lasts else frozenset()
        if fault == "hang":
            self.service.hangs = set(every)
        elif fault == "garbage":
            self.service.garbage = set(every)
        else:
            self.service.KEY = "another" if lasts else kaggle.Kaggle.KEY


class ModalAccount(Account):
    kind, runner, card = "modal", ModalRunner, "Tesla T4"
    _EVERY = (
        "AppGetOrCreate EnvironmentGetOrCreate ImageGetOrCreate SandboxCreate SandboxCreateV2 "
        "SandboxGetFromName SandboxGetFromNameV2 SandboxList SandboxListV2 SandboxTerminate "
        "SandboxTerminateV2 SandboxWait SandboxWaitV2 SandboxGetTaskId"
    ).split()

    def __init__(self, folder: Path) -> None:
        self.service = modal.ModalEmulator(folder, self.card, self.cards)
        self.machines = self.service.machines

    def preempt(self, name: str) -> None:
        self.service.preempt(name)

    def ghost(self) -> None:
        self.service.ghosts += 1

    def funds(self, there: bool) -> None:
        self.service.quota_gone = not there

    def trouble(self, fault: Fault, lasts: bool) -> None:
        if not lasts:
            self.service._answers.clear()
            return
        answers: dict[str, modal.Answer] = {
            "hang": modal.HANG,
            "garbage": modal.Http(200),
            "bad credentials": modal.Status.UNAUTHENTICATED,
        }
        for operation in self._EVERY:
            self.service.answer(operation, answers[fault], MANY)


class LightningAccount(Account):
    kind, runner, card, currency = "lightning", LightningRunner, "Tesla T4", "credits"
    keys: ClassVar[Mapping[str, object]] = {"teamspace": "research"}
    _EVERY = ("memberships", "create", "list", "find", "get", "update", "delete")

    def __init__(self, folder: Path) -> None:
        self.service = lightning.LightningEmulator(folder, self.card, self.cards)
        self.machines = self.service.machines

    def preempt(self, name: str) -> None:
        self.service.preempt(name)

    def ghost(self) -> None:
        self.service.ghost()

    def funds(self, there: bool) -> None:
        self.service.quota_s = None if there else 0.0

    def trouble(self, fault: Fault, lasts: bool) -> None:
        if fault == "bad credentials":
            self.service.key = "another" if lasts else lightning.API_KEY
            return
        if not lasts:
            self.service._replies.clear()
            return
        for operation in self._EVERY:
            for _ in range(MANY):
                if fault == "hang":
                    self.service.hang_next(operation)
                else:
                    html = (("Content-Type", "text/html"),)
                    self.service.answer_next(operation, 200, _PAGE, headers=html)


class RunPodAccount(Account):
    kind, runner, card = "runpod", RunPodRunner, "NVIDIA L4"
    keys: ClassVar[Mapping[str, object]] = {"bid_usd_per_h": 0.2, "unlisted_s": 0.0}
    _EVERY = ("create", "myself", "pod", "podTerminate", "gpuTypes")

    def __init__(self, folder: Path) -> None:
        self.service = runpod.RunPodEmulator(folder, self.card, self.cards)
        self.machines = self.service.machines

    def preempt(self, name: str) -> None:
        self.service.preempt(next(p for p in self.service.pods if p.name == name and not p.ended_s))

    def ghost(self) -> None:
        self.service.ghost()

    def funds(self, there: bool) -> None:
        self.service.funds = there

    def trouble(self, fault: Fault, lasts: bool) -> None:
        if fault == "hang":
            self.service.hanging = lasts
        elif not lasts:
            self.service._answers.clear()
        else:
            for operation in self._EVERY:
                if fault == "garbage":
                    self.service.answer(operation, 200, _PAGE, MANY)
                else:
                    self.service.answer(operation, 401, b"", MANY)


class VastAccount(Account):
    kind, runner, card = "vast", VastRunner, vast.CARD
    keys: ClassVar[Mapping[str, object]] = {"interruptible": True}

    def __init__(self, folder: Path) -> None:
        self.service = vast.VastEmulator(folder, MANY)
        self.machines = self.service.machines
        self._key, self._offers = self.service.key, self.service.offers

    def preempt(self, name: str) -> None:
        self.service.preempt(next(i for i in self.service.instances if i.label == name and i.alive))

    def ghost(self) -> None:
        self.service.ghost()

    def room(self, machines: int) -> None:
        self.service.offers = self._offers[:machines]

    def funds(self, there: bool) -> None:
        self.service.credit = there

    def trouble(self, fault: Fault, lasts: bool) -> None:
        if fault == "bad credentials":
            self.service.key = "another" if lasts else self._key
            return
        if not lasts:
            self.service._faults.clear()
            return
        operations: tuple[vast.Operation, ...] = ("search", "create", "list", "destroy")
        for operation in operations:
            for _ in range(MANY):
                (self.service.hang if fault == "hang" else self.service.garbage)(operation)


ACCOUNTS: tuple[type[Account], ...] = (
    KaggleAccount,
    ModalAccount,
    LightningAccount,
    RunPodAccount,
    VastAccount,
)


@contextmanager
def opened(kind: type[Account], folder: Path) -> Iterator[Account]:
    """An account whose emulator answers, and to which the environment leads."""
    folder.mkdir(parents=True, exist_ok=True)
    account = kind(folder)  # type: ignore[call-arg]
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        stack.enter_context(account.service)
        for name, value in account.environ.items():
            patch.setenv(name, value)
        yield account
