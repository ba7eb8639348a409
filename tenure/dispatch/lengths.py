"""How long jobs are: by their own last milestone, else by what others of their configuration were.

A worker tells how many steps its job has. Whoever runs a rented machine may tell anything: a total below what
was done is none, and of a configuration the middle total of its jobs counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from tenure.dispatch.rows import WorkLeft, believable, work_of
from tenure.dispatch.world import JobMemory, World
from tenure_protocol.codec import Corrupt
from tenure_protocol.lease import keys
from tenure_protocol.records import JobSpec, Manifest, Pointer, load
from tenure_protocol.store.api import Missing, Store, StoreSilent, is_key

_MOST_OF_ONE = 32  # jobs of a configuration that are remembered: the newest
_READS = 16  # of manifests in one look


class Lengths:
    """What is left of each job. Called from a dispatcher's rounds alone."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self._left: dict[str, WorkLeft] = {}  # by job, by its newest manifest that tells
        self._whole: dict[str, dict[str, WorkLeft]] = {}  # by configuration and job
        self._middle: dict[str, WorkLeft] = {}  # by configuration, until another manifest tells
        self._names: dict[str, str] = {}  # of configurations, by job: thousands ask in each round
        self._read: dict[str, Pointer] = {}  # by job, whose manifest was read here

    def note(self, job: str, spec: JobSpec, m: Manifest) -> None:
        """Keep what a manifest that can be believed tells."""
        if m.steps_total is None or m.steps_total < m.step or m.steps_total == 0:
            return
        each, work = m.flops_per_step or 1.0, work_of(spec, m)
        left = m.steps_total - m.step
        self._left[job] = WorkLeft(work, m.dtype, left * each, left / m.steps_total, each)
        name = self._name(job, spec)
        self._middle.pop(name, None)
        alike = self._whole.setdefault(name, {})
        alike.pop(job, None)  # the newest stand last
        alike[job] = WorkLeft(work, m.dtype, m.steps_total * each, 1.0, each)
        if len(alike) > _MOST_OF_ONE:
            del alike[next(iter(alike))]

    def told(self, job: str) -> WorkLeft | None:
        """What a job has left by its own milestone."""
        return self._left.get(job)

    def left(self, job: str) -> WorkLeft | None:
        """What a job has left; ``None`` where nobody has told it.

        What it does before its first milestone is not counted.
        """
        if job in self._left:
            return self._left[job]
        spec = self._world.jobs[job].spec
        name = self._name(job, spec) if spec else ""
        if name in self._whole and name not in self._middle:
            self._middle[name] = _middle(list(self._whole[name].values()))
        return self._middle.get(name)

    def _name(self, job: str, spec: JobSpec) -> str:
        if job not in self._names:
            self._names[job] = work_of(spec, None)
        return self._names[job]

    def look(self) -> None:
        """Read what nobody who is alive tells: of jobs that wait, and of one that is over for its like.

        Only where a deadline asks for it, so many in a look. A silent store costs knowledge and nothing else.
        """
        budget = _READS
        for memory in self._world.jobs.values():
            if not budget:
                return
            if memory.deadline_s is not None and self._is_wanted(memory):
                budget -= 1
                if not self._take(memory):
                    return

    def _is_wanted(self, memory: JobMemory) -> bool:
        w, spec = memory.witness, memory.spec
        if w is None or spec is None or w.pointer is None or memory.broken or w.phase == "held":
            return False
        if self._read.get(memory.job) == w.pointer:
            return False
        if memory.final:
            return self._name(memory.job, spec) not in self._whole
        return memory.job not in self._left

    def _take(self, memory: JobMemory) -> bool:
        """Whether the store answered."""
        w, spec = memory.witness, memory.spec
        assert w is not None and w.pointer is not None and spec is not None
        key = keys.manifest(memory.job, w.pointer)
        try:
            found = self._store.read(key) if is_key(key) else Missing()
            if not isinstance(found, Missing):
                self.note(memory.job, spec, believable(load(Manifest, found.body, key)))
        except StoreSilent:
            return False
        except Corrupt:
            pass  # who resumes from it says so
        self._read[memory.job] = w.pointer
        return True


def _middle(alike: Sequence[WorkLeft]) -> WorkLeft:
    """That of the middle amount, of those that count what the newest counts."""
    newest = alike[-1]
    same = [each for each in alike if (each.work, each.dtype) == (newest.work, newest.dtype)]
    amount = median(each.amount for each in same)
    return min(same, key=lambda each: abs(each.amount - amount))
