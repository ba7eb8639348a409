"""What may go wrong in a history, how often, and a count of what did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

#: What may become of one conditional write. A late one lands after its sender gave up on it, or died.
WRITE_FAULTS = ("lost_request", "lost_answer", "late_write", "duplicate", "ghost_412", "conflict")
READ_FAULTS = ("silent_read",)
LAUNCH_FAULTS = (
    "no_slots",
    "no_slots",
    "unreachable",
    "unreachable_sent",
    "rejected",
    "never_started",
    "late_start",
    "launched_twice",
    "restarted",
)
PUT_FAULTS = ("lost_put", "unconfirmed_put", "late_put", "slow_upload")
KINDS = (
    *WRITE_FAULTS,
    *READ_FAULTS,
    *PUT_FAULTS,
    "delay",
    "store_outage",
    "dispatcher_outage",
    "worker_outage",
    "platform_outage",
    "worker_crash",
    "worker_stop",
    "worker_suspend",
    "worker_hang",
    "notice",
    "dispatcher_crash",
    "dispatcher_stop",
    "clock_jump",
    "no_slots",
    "unreachable",
    "unreachable_sent",
    "rejected",
    "protocol_error",
    "never_started",
    "late_start",
    "launched_twice",
    "restarted",
    "release_pending",
    "release_bounded",
    "release_lie",
    "human_revoke",
    "human_pause",
    "human_resume",
    "human_cancel",
    "human_rewind",
    "human_relaunch",
    "human_local",
    "out_of_memory",
    "machine_fault",
    "code_error",
)


@dataclass
class Weather:
    """How hostile one history is; every number is drawn from its seed."""

    rng: Random
    calm_s: float = 0.0  # no fault after it
    write: float = 0.0  # probability that a conditional write goes wrong
    read: float = 0.0
    put: float = 0.0
    delay: float = 0.0
    launch: float = 0.0  # probability that a launch goes wrong
    release: float = 0.0
    skew_s: float = 0.0  # how far apart the clocks of the store's front ends are, at most
    store_out_until_s: float = 0.0
    dispatchers_out_until_s: float = 0.0
    platform_out_until_s: float = 0.0
    write_kinds: tuple[str, ...] = WRITE_FAULTS
    launch_kinds: tuple[str, ...] = LAUNCH_FAULTS
    counts: Counter[str] = field(default_factory=Counter)

    def strikes(self, probability: float, now_s: float) -> bool:
        """Whether something goes wrong now."""
        return probability > 0 and now_s < self.calm_s and self.rng.random() < probability

    def draw(self, kinds: tuple[str, ...]) -> str:
        """One kind of fault, counted."""
        kind = kinds[int(self.rng.random() * len(kinds))]
        self.counts[kind] += 1
        return kind


#: What a history is mostly about, drawn by its seed; ``mixed`` is a little of everything.
THEMES = ("clear", "mixed", "outages", "lossy", "people", "platform", "packs")
_WEIGHTS = (1, 6, 3, 2, 3, 3, 0)  # of packs is every tenth history, see ``run``
_LOSSY = ("late_write", "late_write", "late_write", "lost_answer", "lost_answer", "lost_request")


def draw_theme(rng: Random) -> str:
    """What a history is about."""
    return rng.choices(THEMES, _WEIGHTS)[0]


def draw_weather(rng: Random, theme: str) -> Weather:
    """How hostile a history of this theme is."""
    if theme == "clear":
        return Weather(rng)
    if theme == "outages":  # nothing else goes wrong, so a live worker has no excuse
        return Weather(rng, calm_s=rng.uniform(200.0, 350.0), skew_s=rng.choice((0.0, 2.0)))
    weather = Weather(
        rng,
        calm_s=rng.uniform(60.0, 320.0),
        write=rng.choice((0.0, 0.03, 0.1, 0.25)),
        read=rng.choice((0.0, 0.0, 0.03, 0.1)),
        put=rng.choice((0.0, 0.05, 0.2, 0.4)),
        delay=rng.choice((0.0, 0.05, 0.2)),
        launch=rng.choice((0.0, 0.1, 0.3)),
        release=rng.choice((0.0, 0.2, 0.5)),
        skew_s=rng.choice((0.0, 2.0)),
    )
    if theme == "lossy":
        weather.write, weather.write_kinds = 0.4, _LOSSY
    elif theme == "people":
        weather.launch, weather.release = 0.4, 0.6
        weather.launch_kinds = ("late_start", "late_start", "launched_twice", "restarted")
    elif theme == "platform":
        weather.launch, weather.release = 0.5, 0.6
    elif theme == "packs":
        weather.launch = rng.choice((0.0, 0.2, 0.4))
    return weather
