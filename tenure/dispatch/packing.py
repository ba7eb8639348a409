"""Which jobs go onto one machine, where a launch is a machine of several cards.

A machine is paid for whole, so a job takes a place on one that this round already fills before it
opens another. Machines of earlier rounds take nobody on: their launch has been made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tenure.dispatch.contract import Capacity


@dataclass
class Machine:
    """One machine of a rung as a round fills it, in the order of turns."""

    jobs: list[str] = field(default_factory=list)
    cards: int = 0  # taken so far


class Filling:
    """The machines of one rung that a round may still fill."""

    def __init__(self, capacity: Capacity, free: int) -> None:
        self.free = free  # machines that nobody has yet; below 0 where others have launched as well
        self.machines: list[Machine] = []
        self._with_room: list[Machine] = []  # of these, so that full ones are not looked at again
        self._of: dict[str, Machine] = {}
        self._capacity = capacity

    def has_room(self, cards: int) -> bool:
        """Whether a job of so many cards can be launched here."""
        return self._open(cards) is not None or (self.free > 0 and cards <= self._capacity.cards)

    def take(self, job: str, cards: int) -> None:
        """Give a job a place: on the first machine that has room, else on one of its own."""
        assert self.has_room(cards), f"no room for {job}"
        limit = self._capacity
        machine = self._open(cards)
        if machine is None:
            machine = Machine()
            self.machines.append(machine)
            self._with_room.append(machine)
            self.free -= 1
        machine.jobs.append(job)
        machine.cards += cards
        self._of[job] = machine
        assert machine.cards <= limit.cards and len(machine.jobs) <= max(1, limit.per_launch)
        if machine.cards == limit.cards or len(machine.jobs) >= limit.per_launch:
            self._with_room.remove(machine)

    def together(self, job: str) -> tuple[str, ...]:
        """The jobs of the machine that this one goes onto, itself among them."""
        return tuple(self._of[job].jobs)

    def _open(self, cards: int) -> Machine | None:
        limit_cards = self._capacity.cards
        return next((it for it in self._with_room if it.cards + cards <= limit_cards), None)
