"""Is this process the environment that the warrant demands, as far as it matters to a model that serves?

What the machine and its software are counts always: card, driver, CUDA, cuDNN, processor, torch and its
math libraries, Python, every package the warrant names, variables that change precision. Packages that it
does not name are told: who serves a model has a server beside it. What a process chooses for itself (threads, deterministic kernels, the seed of hashes) changes the last bits of what it
computes; it is told, and counts only when it is pinned. TF32 and the precision of float32 count always:
they take away digits, not bits.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping

from tenure_live.refusal import Refused
from tenure_protocol import fingerprint
from tenure_protocol.fingerprint import Difference

_OWN_CHOICE = "determinism."
_PRECISION = ("determinism.allow_tf32", "determinism.float32_matmul_precision")
_PACKAGES = ("packages", "builds")  # versions by name, and builds of the same names
_TOLD = 4


def differences(
    required: Mapping[str, object],
    pin: bool,
    allow: Iterable[str],
    known: MutableMapping[str, str],
) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Every difference of this process from ``required``, and those of them that count.

    With ``pin`` the switches of torch that ``required`` names are set first, in this process. A field of
    ``allow``, and all that lies in it, does not count. ``known`` are builds of packages that were digested
    before on this machine; it is added to.
    """
    if pin:
        fingerprint.apply_determinism(required)
    measured = fingerprint.measure(_with_torch(required), known)
    found = fingerprint.compare(required, measured)
    allowed = tuple(allow)
    counting = tuple(
        item
        for item in fingerprint.refusing(found)
        if (pin or _counts_unpinned(item, measured))
        and not _is_beside(item)
        and not _is_allowed(item, allowed)
    )
    return found, counting


def refusal(counting: tuple[Difference, ...], required: Mapping[str, object], pin: bool) -> Refused:
    """The sentence about an environment that is another one, and what to do."""
    other = {item.field for item in counting}
    # Another version of a package is another build of it, which is told once.
    listed = [
        i for i in counting if i.field.replace("builds.", "packages.", 1) not in other - {i.field}
    ]
    said = "; ".join(item.sentence() for item in listed[:_TOLD])
    more = f"; and {len(listed) - _TOLD} more" if len(listed) > _TOLD else ""
    chosen = any(item.field.startswith(_OWN_CHOICE) for item in counting)
    help_ = (
        "install what is named, or deploy a model that was proved in an environment like this one"
    )
    if chosen and pin:
        wanted = fingerprint.environment_variables(required)
        unset = [
            f"{name}={value}" for name, value in wanted.items() if os.environ.get(name) != value
        ]
        help_ = f"start this process with {' '.join(unset)}" if unset else help_
    elif chosen:
        help_ = "load with pin=True, which sets what the warrant demands"
    return Refused(
        f"this is not the environment that the warrant demands: {said}{more}; {help_}", counting
    )


def _is_beside(item: Difference) -> bool:
    """Whether it is a package of which the warrant says nothing."""
    return item.required is None and item.field.partition(".")[0] in _PACKAGES


def _is_allowed(item: Difference, allowed: tuple[str, ...]) -> bool:
    """A package that may differ may be another build too."""
    table, _, name = item.field.partition(".")
    names = [item.field, f"{_PACKAGES[0]}.{name}"] if table in _PACKAGES else [item.field]
    return any(f"{one}.".startswith(f"{given}.") for one in names for given in allowed)


def _counts_unpinned(item: Difference, measured: Mapping[str, object]) -> bool:
    if not item.field.startswith(_OWN_CHOICE):
        return True
    on_card = measured.get("card") != "cpu"
    return item.field in _PRECISION and (on_card or item.field != _PRECISION[0])


def _with_torch(required: Mapping[str, object]) -> bool:
    """Whether torch is asked: importing it takes a second, which who needs it spends anyway."""
    wanted = str(required.get("torch", fingerprint.NO_TORCH))
    return _loaded() or not _installed() or not wanted.startswith("none")


def _loaded() -> bool:
    return "torch" in sys.modules


def _installed() -> bool:
    return importlib.util.find_spec("torch") is not None
