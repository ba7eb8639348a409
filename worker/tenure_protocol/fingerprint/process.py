"""What a process can say about the environment its numbers come from."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import ModuleType
from typing import cast

from tenure_protocol.codec import canonical, sha256_hex
from tenure_protocol.fingerprint.cards import card_fields
from tenure_protocol.fingerprint.libraries import numpy_blas, openblas_threads
from tenure_protocol.fingerprint.packages import installed
from tenure_protocol.fingerprint.pinning import (
    NO_TORCH,
    OF_TORCH,
    TORCH_NOT_ASKED,
    import_torch,
)

#: What a runner knows and a machine cannot measure: the digest of its container's image (sha256:...),
#: and the SHA-256 of the lock that it was installed from.
IMAGE_VARIABLE, LOCK_VARIABLE = "TENURE_IMAGE", "TENURE_LOCK"
_NUMERIC_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NPY_DISABLE_CPU_FEATURES",
    "NPY_ENABLE_CPU_FEATURES",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
#: Instruction sets that numpy, OpenBLAS, oneDNN, MKL, FBGEMM, SLEEF and torch choose their code by, as
#: Linux names them: all vector sets, and these. x86 and ARM mean different things by one name.
_X86 = (
    ("avx", "sse", "amx", "fma", "xop"),
    frozenset({"pni", "ssse3", "popcnt", "f16c", "bmi1", "bmi2"}),
)
_ARM = (("asimd", "sve", "sme"), frozenset({"neon", "fp", "fphp", "bf16", "i8mm", "fcma"}))


def measure(
    use_torch: bool = True, known: MutableMapping[str, str] | None = None
) -> dict[str, object]:
    """This process's environment as plain JSON; see :data:`~tenure_protocol.fingerprint.fields.FIELDS`.

    ``use_torch=False`` leaves torch alone (its import takes over a second) and says so in the field
    ``torch``; such a measurement never satisfies a requirement made with torch. The digests of code
    and data are for the worker of a job to add. ``known`` are builds that were digested before.
    """
    torch = import_torch() if use_torch else None
    versions, builds = installed(known)
    cpu = _cpu_info()
    found: dict[str, object] = {
        **card_fields(torch),
        "cpu_model": _cpu_model(cpu),
        "cpu_flags": _cpu_flags(cpu),
        "instruction_sets": _instruction_sets(cpu),
        "machine": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": versions,
        "builds": builds,
        "lock": os.environ.get(LOCK_VARIABLE) or None,
        "image": os.environ.get(IMAGE_VARIABLE) or None,
        "code": None,
        "data": None,
        "numeric_variables": " ".join(
            f"{name}={os.environ[name]}" for name in _NUMERIC_VARIABLES if name in os.environ
        ),
        "torch": _torch_build(torch, use_torch),
        "cuda": _text(torch.version.cuda) if torch else None,
        "cudnn": _text(torch.backends.cudnn.version()) if torch else None,
        "blas": _blas(torch),
        "numpy_blas": numpy_blas(),
        "determinism": _switches(torch),
    }
    return cast(dict[str, object], json.loads(canonical(found)))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _torch_build(torch: ModuleType | None, asked: bool) -> str:
    if torch is None:
        return NO_TORCH if asked else TORCH_NOT_ASKED
    return f"{torch.__version__} git {torch.version.git_version}"


def _blas(torch: ModuleType | None) -> str | None:
    """Instruction set in use and a digest of how torch and its math libraries were built."""
    if torch is None:
        return None
    build = sha256_hex(torch.__config__.show().encode())[:16]
    return f"{torch.backends.cpu.get_cpu_capability()}, build {build}"


def _switches(torch: ModuleType | None) -> dict[str, object]:
    """The determinism switches in force; those of torch are null without torch."""
    found: dict[str, object] = dict.fromkeys(OF_TORCH)
    found["threads"] = _threads("OMP_NUM_THREADS")
    told = _threads("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    found["blas_threads"] = openblas_threads() or told
    found["cublas_workspace_config"] = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    found["pythonhashseed"] = _hash_seed()
    if torch is not None:
        warns = torch.is_deterministic_algorithms_warn_only_enabled()
        on = torch.are_deterministic_algorithms_enabled()
        found["deterministic_algorithms"] = "warn only" if on and warns else on
        found["allow_tf32"] = (
            torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        )
        found["float32_matmul_precision"] = torch.get_float32_matmul_precision()
        found["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        found["cudnn_deterministic"] = torch.backends.cudnn.deterministic
        found["threads"] = torch.get_num_threads()
        found["interop_threads"] = torch.get_num_interop_threads()
    return found


def _threads(*variables: str) -> int:
    """What the first set variable says, as the libraries read it; all of its processors otherwise."""
    for variable in variables:
        first = os.environ.get(variable, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _hash_seed() -> str:
    """The seed in force: a variable set after the start of Python changes nothing."""
    if not sys.flags.hash_randomization:
        return "0"
    seed = os.environ.get("PYTHONHASHSEED", "random")
    return "random" if seed in ("", "0") else seed


def _cpu_info() -> dict[str, str]:
    """The lines of ``/proc/cpuinfo`` by their names, of each the first: it repeats for every processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    return found


def _cpu_model(cpu: Mapping[str, str]) -> str | None:
    parts = [cpu.get("CPU implementer"), cpu.get("CPU part"), cpu.get("CPU variant")]
    arm = " ".join(part for part in parts if part)
    return cpu.get("model name") or arm or platform.processor() or None


def _cpu_flags(cpu: Mapping[str, str]) -> str | None:
    """Count and digest of all that the processor can do, sorted."""
    line = cpu.get("flags", cpu.get("Features"))
    if line is None:
        return None
    flags = sorted(set(line.split()))
    return f"{len(flags)} flags, digest {sha256_hex(' '.join(flags).encode())[:16]}"


def _instruction_sets(cpu: Mapping[str, str]) -> dict[str, bool]:
    """Those that math libraries dispatch on, by name."""
    found: dict[str, bool] = {}
    for line, (prefixes, others) in (("flags", _X86), ("Features", _ARM)):
        for name in cpu.get(line, "").split():
            if name.startswith(prefixes) or name in others:
                found[name] = True
    return found
