"""Finds what a platform still runs for us though no bill is open for it, and ends it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tenure.dispatch.contract import (
    Closed,
    ListsItsOwn,
    Pending,
    Receipt,
    Rejected,
    Runner,
    Settlement,
)
from tenure.dispatch.ladder import Rung, launch_name, name_prefix
from tenure.dispatch.world import World
from tenure_protocol.clock import Clock

SWEEP_EVERY_S = 300.0
_FIRST_PAUSE_S = 2.0  # before an orphan's release is asked again, or a look that failed; doubled


@dataclass
class _Beat:
    """One runner that is asked."""

    runner: Runner
    lister: ListsItsOwn  # the same object
    due_s: float = 0.0  # monotonic
    pause_s: float = _FIRST_PAUSE_S
    orphans: dict[str, Receipt] = field(default_factory=dict)  # not known to have ended, by name
    failed: bool = False  # the last look
    refused: bool = False  # at the last look: without its SDK or credentials it will not tell soon


class Sweeper:
    """Asks the runners that can tell, at once and then now and then.

    Bills are read after the platform has answered: a bill is opened before its machine, so that a
    machine without one is no fresh launch. Nothing is judged where either answer is missing.
    """

    def __init__(
        self,
        rungs: Iterable[Rung],
        store_url: str,
        clock: Clock,
        world: World,
        every_s: float = SWEEP_EVERY_S,
    ) -> None:
        self._url = store_url
        self._prefix = name_prefix(store_url)
        self._clock = clock
        self._world = world
        self._every_s = every_s
        self._beats: dict[str, _Beat] = {}
        for rung in rungs:
            if isinstance(rung.runner, ListsItsOwn):
                beat = _Beat(rung.runner, rung.runner, clock.monotonic_s())
                self._beats.setdefault(rung.runner_name, beat)
        self._over: set[str] = set()  # troubles that were told once and end with that
        self.troubles: dict[str, str] = {}  # by name of the machine or of the runner
        self.found = 0  # orphans so far
        self.ended = 0  # of these, known to have ended

    @property
    def clean(self) -> bool:
        """Whether every runner has told at the last look that nothing runs without an open bill.

        One that refuses to tell is a trouble in words, and nothing to wait for.
        """
        beats = self._beats.values()
        return not any((beat.failed and not beat.refused) or beat.orphans for beat in beats)

    @property
    def orphans(self) -> list[str]:
        """The names of machines that were to be ended and are not known to have."""
        return sorted(name for beat in self._beats.values() for name in beat.orphans)

    def sweep(self, at_once: bool = False) -> None:
        """Look where it is time to, or everywhere; raises nothing."""
        for key in self._over:
            self.troubles.pop(key, None)
        self._over.clear()
        for name, beat in self._beats.items():
            if at_once or self._clock.monotonic_s() >= beat.due_s:
                beat.failed = not self._look(name, beat)
                again = beat.failed or beat.orphans
                beat.due_s = self._clock.monotonic_s() + (beat.pause_s if again else self._every_s)
                beat.pause_s = min(2 * beat.pause_s, self._every_s) if again else _FIRST_PAUSE_S

    def _look(self, name: str, beat: _Beat) -> bool:
        """Ask one runner, and end what is nobody's; whether both answers were there."""
        key = f"runner {name}"
        beat.refused = False
        try:
            listed = list(beat.lister.running(self._prefix))
        except Exception as error:  # a failure of the platform, or a bug of a plug-in
            beat.refused = isinstance(error, Rejected)
            words = f"{type(error).__name__}: {error}"
            self.troubles[key] = f"it does not tell what it still runs for us ({words})"
            return False
        if unseen := self._world.see_bills():
            self.troubles[key] = f"what it still runs cannot be judged, for the bills: {unseen}"
            return False
        self.troubles.pop(key, None)
        known = self._open_names()
        told = {each.name: each for each in listed if each.name.startswith(self._prefix)}
        before, beat.orphans = beat.orphans, {}
        for receipt in {**before, **told}.values():
            self.troubles.pop(receipt.name, None)
            if receipt.name not in known:
                self.found += receipt.name not in before
                self._end(name, beat, receipt)
        return True

    def _open_names(self) -> set[str]:
        """What every open launch may be known by, a pack by the names of its jobs as well."""
        names = set()
        for bill in self._world.bills.values():
            names.add(launch_name(self._url, bill.job, bill.launch))
            if bill.intent:
                names.add(bill.intent.name)
        return names

    def _end(self, name: str, beat: _Beat, receipt: Receipt) -> None:
        try:
            settlement: Settlement = beat.runner.release(receipt)
        except Exception as error:
            settlement = Pending(f"{type(error).__name__}: {error}")
        words = f"runner {name} still ran it, and no bill of ours is open for it"
        if isinstance(settlement, Closed):
            self.ended += 1
            self._over.add(receipt.name)
            self.troubles[receipt.name] = f"{words}; it has been ended ({settlement.reason})"
        else:
            beat.orphans[receipt.name] = receipt
            self.troubles[receipt.name] = f"{words}; its end was asked for ({settlement.reason})"
