"""The fields of a measured environment: what each can change, how much is known, how two differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tenure_protocol.codec import canonical

#: ``bitwise``: other last bits may come out; ``numeric``: other code computes the numbers;
#: ``informative``: no way to the numbers is known, or another field covers it: never refuses.
Kind = Literal["bitwise", "numeric", "informative"]
#: How much is known of what a field changes. ``vendor``: its maker documents it; ``measured``: seen by
#: the experiments of bench/fingerprint.py; ``known``: it follows from what the field is.
Known = Literal["known", "vendor", "measured", "nothing"]

KNOWN_WORDS: dict[Known, str] = {
    "known": "known",
    "vendor": "documented by the vendor",
    "measured": "measured here",
    "nothing": "nothing known",
}


@dataclass(frozen=True)
class Field:
    """One field of an environment."""

    kind: Kind
    effect: str  # what another value can change
    known: Known


# Sources: PyTorch, 'Reproducibility'; cuBLAS 2.1.4 'Results reproducibility'; cuDNN developer guide,
# 'Reproducibility (determinism)'; oneMKL 'Conditional numerical reproducibility'; the NEWS of glibc
# 2.28 and 2.41; CUDA C programming guide, 'JIT compilation'; bench/fingerprint.py for "measured".
FIELDS: dict[str, Field] = {
    "card": Field("bitwise", "another card has other kernels, which add in another order", "vendor"),
    "cards": Field(
        "bitwise", "another number of cards splits batches and reductions otherwise", "known"
    ),
    "compute_capability": Field("bitwise", "the libraries choose kernels by it", "vendor"),
    "driver": Field(
        "bitwise", "the driver compiles kernels and may choose other instructions", "vendor"
    ),
    "cuda": Field("bitwise", "another CUDA build brings other kernels", "vendor"),
    "cudnn": Field("bitwise", "another cuDNN chooses other convolution algorithms", "vendor"),
    "cpu_model": Field(
        "bitwise", "math libraries choose their code path and block sizes by the processor", "vendor"
    ),
    "instruction_sets": Field(
        "bitwise", "math libraries dispatch on it: other vector widths and fused operations", "measured"
    ),
    "machine": Field("bitwise", "another architecture rounds fused operations otherwise", "known"),
    "libc": Field(
        "bitwise", "its exp, log, pow and sin may round otherwise; releases replaced them", "vendor"
    ),
    "torch": Field("bitwise", "PyTorch promises no equal results across builds", "vendor"),
    "blas": Field(
        "bitwise", "another build or instruction set of torch's linear algebra sums in another order",
        "measured",
    ),
    "numpy_blas": Field(
        "bitwise", "another build of numpy's linear algebra sums in another order", "known"
    ),
    "numeric_variables": Field(
        "bitwise", "these variables change precision or code paths of the math libraries", "measured"
    ),
    "determinism": Field(
        "bitwise", "the switch decides whether equal inputs give equal bits", "vendor"
    ),
    "determinism.threads": Field(
        "bitwise", "sums are split among threads, and added in another order", "measured"
    ),
    "determinism.blas_threads": Field(
        "bitwise", "products are split among threads, and added in another order", "measured"
    ),
    "determinism.pythonhashseed": Field(
        "bitwise", "it orders sets of strings, and whatever is drawn or summed in that order", "vendor"
    ),
    "determinism.interop_threads": Field(
        "informative", "it schedules operations, no operation is split by it", "vendor"
    ),
    "python": Field("numeric", "another interpreter may order, hash and draw otherwise", "known"),
    "packages": Field(
        "numeric", "another version may compute another result, and so may one more package that "
        "others use where they find it", "known",
    ),
    "builds": Field(
        "numeric", "another build of the same version is other code", "known"
    ),
    "image": Field(
        "numeric", "another image may bring other system libraries than those measured", "nothing"
    ),
    "code": Field("informative", "the job names it, and its worker has compared it already", "known"),
    "data": Field("informative", "the job names it, and its worker has compared it already", "known"),
    "lock": Field(
        "informative", "what it installed is compared package by package, and build by build", "known"
    ),
    "cpu_flags": Field(
        "informative", "those that math libraries dispatch on are compared by name", "nothing"
    ),
    "gpu": Field("informative", "a statement for people", "known"),
    "kernel": Field("informative", "no effect on numbers", "nothing"),
}  # fmt: skip
_UNJUDGED = Field("bitwise", "nobody has judged what it can change", "nothing")

#: Class by field. One that is not listed is bitwise: what nobody judged is not waved through.
FIELD_CLASSES: dict[str, Kind] = {name: field.kind for name, field in FIELDS.items()}
#: Tables whose every name counts: a package that is there beside the required ones is a difference.
CLOSED = frozenset({"packages", "builds", "instruction_sets"})
#: Tenure itself: the digests of code and data in the job cover what the user wrote.
OWN_PACKAGES = frozenset({"tenure", "tenure-worker"})
_PACKAGE_TABLES = frozenset({"packages", "builds"})


def field_of(path: str) -> Field:
    """What is known of a dotted field, or of the one it lies in.

    >>> field_of("packages.numpy").kind, field_of("determinism.interop_threads").kind
    ('numeric', 'informative')
    >>> field_of("moon_phase").kind
    'bitwise'
    """
    return FIELDS.get(path) or FIELDS.get(path.split(".", maxsplit=1)[0]) or _UNJUDGED


@dataclass(frozen=True)
class Difference:
    """One field in which an environment is not another, or not the required one."""

    field: str  # dotted: packages.numpy, determinism.threads
    required: object  # None when nothing was required by this name
    measured: object  # None when the field was not measured at all
    kind: Kind
    effect: str
    known: Known

    @property
    def judgement(self) -> str:
        """Its class, what it can change, and how much is known about that."""
        return f"{self.kind}: {self.effect}; {KNOWN_WORDS[self.known]}"

    def sentence(self) -> str:
        """What differs from what is required, both values, and what it can change."""
        return (
            f"{self.field} is {_words(self.measured)} where {_words(self.required)} is required "
            f"({self.judgement})"
        )

    def change(self) -> str:
        """The same of two measurements: what was, what is."""
        return (
            f"{self.field} was {_words(self.required)} and is {_words(self.measured)} "
            f"({self.judgement})"
        )

    def row(self) -> dict[str, str]:
        """The same as cells of a table or an event."""
        return {
            "field": self.field,
            "was": _cell(self.required),
            "is": _cell(self.measured),
            "class": self.kind,
            "effect": self.effect,
            "known": KNOWN_WORDS[self.known],
        }


def compare(
    required: Mapping[str, object], measured: Mapping[str, object]
) -> tuple[Difference, ...]:
    """Every field of ``required`` that ``measured`` does not equal, in order of the field's name.

    Fields that ``required`` does not have are not looked at; but in the tables of :data:`CLOSED` each
    name beside the required ones is a difference. Tenure's own packages count where both have them.
    Values are equal when their canonical JSON is: ``1`` is neither ``True`` nor ``1.0``.

    >>> [d.field for d in compare({"card": "cpu", "packages": {"numpy": "2.4"}}, {"card": "cpu"})]
    ['packages.numpy']
    >>> compare({"kernel": "6.1"}, {"kernel": "6.8"})[0].kind
    'informative'
    >>> compare({"packages": {}}, {"packages": {"bottleneck": "1.6"}})[0].field
    'packages.bottleneck'
    """
    return tuple(_differences(required, measured, ""))


def changes(was: Mapping[str, object], now: Mapping[str, object]) -> tuple[Difference, ...]:
    """Every field in which two measurements differ, also those that only the second one has.

    >>> [d.field for d in changes({"card": "a"}, {"card": "a", "driver": "1"})]
    ['driver']
    """
    found = {item.field: item for item in compare(now, was)}
    found = {
        name: replace(item, required=item.measured, measured=item.required)
        for name, item in found.items()
    }
    found |= {item.field: item for item in compare(was, now)}
    return tuple(found[name] for name in sorted(found))


def refusing(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Those for which a pinned job does not start: all but the informative ones."""
    return tuple(item for item in differences if item.kind != "informative")


def telling(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """The same for people: another version of a package is another build, which is told once."""
    listed = tuple(differences)
    follows = {f"builds.{i.field[9:]}" for i in listed if i.field.startswith("packages.")}
    return tuple(item for item in listed if item.field not in follows)


def _differences(
    required: Mapping[str, object], measured: Mapping[str, object], prefix: str
) -> Iterable[Difference]:
    table = prefix.rstrip(".")
    names = set(required)
    if table in CLOSED:
        beside = set(measured) - names
        names |= beside - OWN_PACKAGES if table in _PACKAGE_TABLES else beside
    for name in sorted(names):
        wanted, found = required.get(name), measured.get(name)
        path = prefix + name
        if isinstance(wanted, Mapping):
            yield from _differences(wanted, found if isinstance(found, Mapping) else {}, f"{path}.")
            if not isinstance(found, Mapping) and not wanted:
                yield _difference(path, {}, found)
        elif (name in required) != (name in measured) or canonical(wanted) != canonical(found):
            yield _difference(path, wanted, found)


def _difference(path: str, wanted: object, found: object) -> Difference:
    judged = field_of(path)
    return Difference(path, wanted, found, judged.kind, judged.effect, judged.known)


def _words(value: object) -> str:
    return "nothing" if value is None else repr(value)


def _cell(value: object) -> str:
    return "-" if value is None else str(value)
