"""From a measured environment to what a pinned job requires, and the switches that make it so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import ModuleType
from typing import cast

from tenure_protocol.codec import canonical
from tenure_protocol.fingerprint.fields import FIELD_CLASSES, OWN_PACKAGES, compare, field_of

#: Switches of a pinned job. Sources: the PyTorch page named above; cuBLAS section 2.1.4 for the
#: workspace; one thread because a TCN trained with 1 and with 2 threads got different weights here.
PINNED_DETERMINISM: dict[str, object] = {
    "deterministic_algorithms": True,
    "cublas_workspace_config": ":4096:8",
    "allow_tf32": False,
    "float32_matmul_precision": "highest",
    "cudnn_benchmark": False,
    "cudnn_deterministic": True,
    "threads": 1,
    "blas_threads": 1,
    "pythonhashseed": "0",
}
OF_TORCH = frozenset(
    {
        "deterministic_algorithms",
        "allow_tf32",
        "float32_matmul_precision",
        "cudnn_benchmark",
        "cudnn_deterministic",
        "interop_threads",
    }
)
#: How many threads the math libraries of a process take.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OF_PROCESS: dict[str, tuple[str, ...]] = {
    "threads": ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    "blas_threads": ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
    "cublas_workspace_config": ("CUBLAS_WORKSPACE_CONFIG",),
    "pythonhashseed": ("PYTHONHASHSEED",),
}
NO_TORCH = "none: torch is not installed"
TORCH_NOT_ASKED = "none: torch was not asked"
_TABLES = ("packages", "builds")


def pin(measured: Mapping[str, object]) -> dict[str, object]:
    """The requirement a pinned job carries, made from a measured environment.

    The bitwise and numeric fields as measured, the determinism switches as a pinned job sets them
    (those of torch only where torch is installed), and all packages but Tenure's own.

    >>> pin({"card": "cpu", "kernel": "6.1", "torch": NO_TORCH})["determinism"]["threads"]
    1
    """
    required = {
        name: value for name, value in measured.items() if field_of(name).kind != "informative"
    }
    for table in _TABLES:
        if isinstance(rows := measured.get(table), Mapping):
            required[table] = {n: value for n, value in rows.items() if n not in OWN_PACKAGES}
    with_torch = not str(measured.get("torch", NO_TORCH)).startswith("none")
    required["determinism"] = {
        name: value
        for name, value in PINNED_DETERMINISM.items()
        if with_torch or name not in OF_TORCH
    }
    return cast(dict[str, object], json.loads(canonical(required)))


def missing_from_pin(requires: Mapping[str, object]) -> tuple[str, ...]:
    """Fields that a requirement leaves open although numbers depend on them, dotted and sorted.

    >>> missing_from_pin({})[:3]
    ('blas', 'builds', 'card')
    """
    asked = {
        name for name in FIELD_CLASSES if "." not in name and field_of(name).kind != "informative"
    }
    missing = asked - set(requires)
    switches = requires.get("determinism")
    if isinstance(switches, Mapping):
        pinned = cast(Mapping[str, object], pin(requires)["determinism"])
        found = compare(pinned, switches)
        missing |= {f"determinism.{item.field}" for item in found}
    missing |= {table for table in _TABLES if not requires.get(table)}
    return tuple(sorted(missing))


def environment_variables(requires: Mapping[str, object]) -> dict[str, str]:
    """Variables that must be set before Python starts, for the switches ``requires`` names.

    >>> environment_variables({"determinism": {"pythonhashseed": "0"}})
    {'PYTHONHASHSEED': '0'}
    """
    switches = requires.get("determinism")
    if not isinstance(switches, Mapping):
        return {}
    return {
        variable: str(switches[name])
        for name, variables in _OF_PROCESS.items()
        if switches.get(name) is not None
        for variable in variables
    }


def apply_determinism(requires: Mapping[str, object]) -> None:
    """Set the switches of torch that ``requires`` names, in this process.

    Does nothing where torch is not installed: :func:`compare` then names what is missing.
    """
    switches = requires.get("determinism")
    torch = import_torch() if isinstance(switches, Mapping) else None
    if torch is None or not isinstance(switches, Mapping):
        return
    if (threads := switches.get("threads")) is not None:
        torch.set_num_threads(int(str(threads)))
    if (tf32 := switches.get("allow_tf32")) is not None:
        torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
        torch.backends.cudnn.allow_tf32 = bool(tf32)
    if (precision := switches.get("float32_matmul_precision")) is not None:
        torch.set_float32_matmul_precision(str(precision))
    if (benchmark := switches.get("cudnn_benchmark")) is not None:
        torch.backends.cudnn.benchmark = bool(benchmark)
    if (cudnn := switches.get("cudnn_deterministic")) is not None:
        torch.backends.cudnn.deterministic = bool(cudnn)
    if (algorithms := switches.get("deterministic_algorithms")) is not None:
        torch.use_deterministic_algorithms(bool(algorithms))


def import_torch() -> ModuleType | None:
    """Torch where it is installed and can be loaded."""
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library of it is missing
        return None
    return cast(ModuleType, torch)
