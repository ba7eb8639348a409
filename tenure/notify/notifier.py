"""What a dispatcher calls: it hands over what it saw and goes on; all else happens beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tenure.errors import UsageError
from tenure.notify import notices
from tenure.notify.addresses import Address, read_addresses
from tenure.notify.notices import Look, Notice, Runs, Teller
from tenure.notify.post import TAKE_OVER_S, Post
from tenure.notify.send import Send, send
from tenure.settings import NotifySection, Settings
from tenure_protocol.clock import Clock, Mailbox, Task
from tenure_protocol.codec import Corrupt
from tenure_protocol.records import JobSpec
from tenure_protocol.store.api import Store, StoreSilent
from tenure_worker.claim import read_spec

if TYPE_CHECKING:  # the dispatcher imports this module
    from tenure.dispatch.loop import Tick
    from tenure.dispatch.quota import Left
    from tenure.dispatch.world import World

LOOK_EVERY_S = 5.0
_REST_S = 60.0  # after a bug
_BOX = 64
_CLOSE_S = 45.0  # one batch, and the store's answers


@dataclass(frozen=True)
class _Word:
    """What the thread is to do beside telling a notice."""

    word: str


_LOOK, _CLOSE = _Word("look"), _Word("close")


class Notifier:
    """Tells people what happens, in a thread of its own. No method raises or waits but ``close``."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        name: str,
        section: NotifySection,
        addresses: Sequence[Address],
        send: Send = send,
    ) -> None:
        """``name`` is the dispatcher's, for the claims. Without addresses nothing is ever done."""
        self._clock = clock
        self._events = frozenset(section.events)
        self._on = bool(addresses)
        self._post = Post(store, clock, name, addresses, send)
        self._specs = _Specs(store)
        self._teller = Teller(section.stuck_s)
        self._box: Mailbox[Notice | _Word] = clock.mailbox(_BOX)
        self._task: Task | None = None
        self._look: Look | None = None  # the newest, and whether the thread has yet to see it
        self._fresh = False
        self._looked_s = -math.inf
        self._searched_s = -math.inf
        self._standing: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        settings: Settings,
        store: Store,
        clock: Clock,
        name: str,
        environ: Mapping[str, str] | None = None,
    ) -> Notifier:
        """As tenure.toml has it. What is wrong there is a trouble: jobs run all the same."""
        addresses: Sequence[Address] = ()
        trouble = ""
        try:
            addresses = read_addresses(settings, environ)
        except UsageError as error:
            trouble = f"nobody is notified: {error}"
        made = cls(store, clock, name, settings.notify, addresses)
        if trouble:
            made._standing["notify"] = trouble
        return made

    @property
    def troubles(self) -> Mapping[str, str]:
        """What is wrong with notifications now, by subject, without any address in it."""
        return {**self._standing, **self._post.troubles}

    def tell(
        self,
        tick: Tick,
        world: World,
        spent: Mapping[tuple[str, str], str] | None = None,
        left: Mapping[str, Left] | None = None,
    ) -> None:
        """Hand over what a round saw, if the last one was some seconds ago.

        ``spent`` says of (plan, currency) in words that its budget is; ``left`` is what is left of
        quotas, by runner.
        """
        now_s = self._clock.monotonic_s()
        if not self._on or now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        try:
            self._look = notices.look(tick, world, spent, left)
            if not self._fresh:  # a thread that is busy sees the newest look alone
                self._fresh = True
                if not self._put(_LOOK):
                    self._fresh = False
        except Exception as error:  # a bug here must not end a dispatcher
            self._standing["notify"] = f"a round was not looked at: {type(error).__name__}"

    def deployed(self, name: str, record: str, seed: int, warrant: int) -> None:
        """A model was made current under ``name``. The same warrant again is no other event."""
        self._teller.told_end.add(name)
        self._demand(notices.is_deployed(name, record, seed, warrant))

    def rolled_back(self, name: str, record: str, seed: int, warrant: int, move: int) -> None:
        """An earlier model was made current again under ``name``."""
        self._demand(notices.is_rolled_back(name, record, seed, warrant, move))

    def blocked(self, plan: str, reason: str) -> None:
        """A gate, or the chain itself, said no."""
        self._teller.told_end.add(plan)
        self._demand(notices.gate_blocks(plan, reason))

    def close(self, for_s: float = _CLOSE_S) -> None:
        """Tell what is left to tell, for so long at most. Afterwards it may be used anew."""
        if self._task is not None and self._task.alive() and self._box.offer(_CLOSE):
            self._task.join(for_s)

    # ----------------------------------------------------------------------- in its thread

    def _demand(self, notice: Notice) -> None:
        if self._on and not self._put(notice):
            self._standing["notify"] = f"{_BOX} notices wait to be sent, and one more was dropped"

    def _put(self, item: Notice | _Word) -> bool:
        """Hand an item to the thread; whether there was room for it."""
        if not self._on:
            return False
        taken = self._box.offer(item)
        if self._task is None or not self._task.alive():
            self._task = self._clock.spawn(self._run, "tenure-notify")
        return taken

    def _run(self) -> None:
        closing, rest_until_s = False, -math.inf
        while not closing:
            wait_s = max(self._post.next_s, rest_until_s) - self._clock.monotonic_s()
            item = self._box.get(None if math.isinf(wait_s) else max(0.0, wait_s))
            closing = item is _CLOSE
            try:
                self._handle(item)
                if closing or self._clock.monotonic_s() >= rest_until_s:
                    self._post.work(last=closing)
                    self._standing.pop("the notifier", None)
            except Exception as error:  # a bug here must not end the thread without a word
                self._standing["the notifier"] = f"it failed: {type(error).__name__}"
                rest_until_s = self._clock.monotonic_s() + _REST_S

    def _handle(self, item: Notice | _Word | None) -> None:
        if isinstance(item, Notice):
            self._take([item])
        elif item is not None and self._look is not None:
            self._fresh = False
            seen, now_s = self._look, self._clock.monotonic_s()
            if now_s - self._searched_s >= TAKE_OVER_S:
                self._searched_s = now_s
                self._take(self._post.unsent())
            runs = self._specs.runs(seen)
            self._take(self._teller.notices(seen, runs, now_s, closing=item is _CLOSE))

    def _take(self, found: Sequence[Notice]) -> None:
        self._post.take(notice for notice in found if notice.kind in self._events)


class _Specs:
    """The specs of jobs that ended without a result, each read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._specs: dict[str, JobSpec | None] = {}  # None: it is corrupt

    def runs(self, seen: Look) -> Runs:
        """Which runs the jobs are that ended without a result."""
        known = {each.job for each in seen.jobs}
        numbers, retried, unread = {}, set(), set()
        for each in seen.jobs:
            if each.state != "over":
                continue
            try:
                spec = self._spec(each.job)
            except StoreSilent:
                unread.add(each.job)
                continue
            if spec is not None:
                numbers[each.job] = spec.run
                if replace(spec, run=spec.run + 1).id in known:
                    retried.add(each.job)
        return Runs(numbers, frozenset(retried), frozenset(unread))

    def _spec(self, job: str) -> JobSpec | None:
        if job not in self._specs:
            try:
                self._specs[job] = read_spec(self._store, job)
            except Corrupt:
                self._specs[job] = None
        return self._specs[job]
