"""What a process can say about the environment its numbers come from, and how two of them differ.

The promise a pinned job makes is exact: *bitwise reproducible on the same device class, build and
software versions*. This module measures that class, build and those versions, turns a measurement
into a requirement (:func:`pin`), and names every field in which two of them differ. PyTorch itself
promises no reproducibility across releases, commits or platforms
(https://docs.pytorch.org/docs/stable/notes/randomness.html), which is why they all count.

Two processes on one machine with the same settings measure the same: no times, process numbers,
free memory or load. Standard library only at import; torch and pynvml are asked when installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeVar, cast

from tenure_protocol.codec import canonical, sha256_hex

Kind = Literal["bitwise", "numeric", "informative"]
T = TypeVar("T")

#: ``bitwise``: other last bits may come out; ``numeric``: other code computes the numbers;
#: ``informative``: no way to the numbers is known, so it is told and never refuses.
#: A field that is not listed is bitwise: what nobody judged is not waved through.
FIELD_CLASSES: dict[str, Kind] = {
    "card": "bitwise",
    "cards": "bitwise",
    "compute_capability": "bitwise",
    "driver": "bitwise",
    "cuda": "bitwise",
    "cudnn": "bitwise",
    "cpu_model": "bitwise",
    "cpu_flags": "bitwise",
    "machine": "bitwise",
    "torch": "bitwise",
    "blas": "bitwise",
    "numeric_variables": "bitwise",
    "determinism": "bitwise",
    "determinism.interop_threads": "informative",
    "python": "numeric",
    "packages": "numeric",
    "gpu": "informative",
    "kernel": "informative",
    "libc": "informative",
}

_EFFECTS = {
    "card": "another card has other kernels, which add in another order",
    "cards": "another number of cards splits batches and reductions otherwise",
    "compute_capability": "the libraries choose kernels by it",
    "driver": "the driver compiles kernels and may choose other instructions",
    "cuda": "another CUDA build brings other kernels",
    "cudnn": "another cuDNN chooses other convolution algorithms",
    "cpu_model": "math libraries choose their code path by the processor",
    "cpu_flags": "other instruction sets mean other vector widths and fused operations",
    "machine": "another architecture rounds fused operations otherwise",
    "torch": "PyTorch promises no equal results across builds",
    "blas": "another build or instruction set of the linear algebra sums in another order",
    "numeric_variables": "these variables change precision or code paths of the math libraries",
    "determinism": "the switch decides whether equal inputs give equal bits",
    "determinism.interop_threads": "it schedules operations, no operation is split by it",
    "python": "another interpreter may order, hash and draw otherwise",
    "packages": "another version may compute another result",
    "gpu": "a statement for people",
    "kernel": "no effect on numbers is known",
    "libc": "its math functions may round otherwise where Python calls them; not known to matter",
}
_UNJUDGED = "its effect on the numbers is not known"

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
_OF_TORCH = frozenset(
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
#: Tenure itself: the digests of code and data in the job cover what the user wrote.
OWN_PACKAGES = frozenset({"tenure", "tenure-worker"})
NO_TORCH = "none: torch is not installed"
TORCH_NOT_ASKED = "none: torch was not asked"
_SMI_S = 5.0


# -------------------------------------------------------------------------------- compare


@dataclass(frozen=True)
class Difference:
    """One field in which a measured environment is not the required one."""

    field: str  # dotted: packages.numpy, determinism.threads
    required: object
    measured: object  # None when the field was not measured at all
    kind: Kind
    effect: str

    def sentence(self) -> str:
        """What differs, both values, and what it can change."""
        return (
            f"{self.field} is {_words(self.measured)} where {_words(self.required)} is required "
            f"({self.kind}: {self.effect})"
        )


def compare(
    required: Mapping[str, object], measured: Mapping[str, object]
) -> tuple[Difference, ...]:
    """Every field of ``required`` that ``measured`` does not equal, in order of the field's name.

    Fields that ``required`` does not have are not looked at. Values are equal when their canonical
    JSON is: ``1`` is neither ``True`` nor ``1.0``.

    >>> [d.field for d in compare({"card": "cpu", "packages": {"numpy": "2.4"}}, {"card": "cpu"})]
    ['packages.numpy']
    >>> compare({"kernel": "6.1"}, {"kernel": "6.8"})[0].kind
    'informative'
    """
    return tuple(_differences(required, measured, ""))


def refusing(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """Those for which a pinned job does not start: all but the informative ones."""
    return tuple(item for item in differences if item.kind != "informative")


def _differences(
    required: Mapping[str, object], measured: Mapping[str, object], prefix: str
) -> Iterable[Difference]:
    for name in sorted(required):
        wanted, found = required[name], measured.get(name)
        path = prefix + name
        if isinstance(wanted, Mapping):
            yield from _differences(wanted, found if isinstance(found, Mapping) else {}, f"{path}.")
        elif name not in measured or canonical(wanted) != canonical(found):
            yield Difference(path, wanted, found, _kind(path), _of(path, _EFFECTS) or _UNJUDGED)


def _of(path: str, table: Mapping[str, T]) -> T | None:
    """The entry of a dotted path, or of the field it lies in."""
    return table.get(path, table.get(path.split(".", maxsplit=1)[0]))


def _kind(path: str) -> Kind:
    return _of(path, FIELD_CLASSES) or "bitwise"


def _words(value: object) -> str:
    return "nothing" if value is None else repr(value)


# ------------------------------------------------------------------------------------ pin


def pin(measured: Mapping[str, object]) -> dict[str, object]:
    """The requirement a pinned job carries, made from a measured environment.

    The bitwise and numeric fields as measured, the determinism switches as a pinned job sets them
    (those of torch only where torch is installed), and all packages but Tenure's own.

    >>> pin({"card": "cpu", "kernel": "6.1", "torch": NO_TORCH})["determinism"]["threads"]
    1
    """
    required = {name: value for name, value in measured.items() if _kind(name) != "informative"}
    packages = measured.get("packages")
    if isinstance(packages, Mapping):
        required["packages"] = {
            name: version for name, version in packages.items() if name not in OWN_PACKAGES
        }
    with_torch = not str(measured.get("torch", NO_TORCH)).startswith("none")
    required["determinism"] = {
        name: value
        for name, value in PINNED_DETERMINISM.items()
        if with_torch or name not in _OF_TORCH
    }
    return cast(dict[str, object], json.loads(canonical(required)))


def missing_from_pin(requires: Mapping[str, object]) -> tuple[str, ...]:
    """Fields that a requirement leaves open although numbers depend on them, dotted and sorted.

    >>> missing_from_pin({})[:3]
    ('blas', 'card', 'cards')
    """
    asked = {name for name in FIELD_CLASSES if "." not in name and _kind(name) != "informative"}
    missing = asked - set(requires)
    switches = requires.get("determinism")
    if isinstance(switches, Mapping):
        pinned = cast(Mapping[str, object], pin(requires)["determinism"])
        found = _differences(pinned, switches, "determinism.")
        missing |= {item.field for item in found}
    if not requires.get("packages"):
        missing.add("packages")
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
    torch = _torch() if isinstance(switches, Mapping) else None
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


# -------------------------------------------------------------------------------- measure


def measure(use_torch: bool = True) -> dict[str, object]:
    """This process's environment as plain JSON; see :data:`FIELD_CLASSES` for the fields.

    ``use_torch=False`` leaves torch alone (its import takes over a second) and says so in the field
    ``torch``; such a measurement never satisfies a requirement made with torch.
    """
    torch = _torch() if use_torch else None
    found: dict[str, object] = {
        **_card(torch),
        "cpu_model": _cpu_model(),
        "cpu_flags": _cpu_flags(),
        "machine": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "packages": _packages(),
        "numeric_variables": " ".join(
            f"{name}={os.environ[name]}" for name in _NUMERIC_VARIABLES if name in os.environ
        ),
        "torch": _torch_build(torch, use_torch),
        "cuda": _text(torch.version.cuda) if torch else None,
        "cudnn": _text(torch.backends.cudnn.version()) if torch else None,
        "blas": _blas(torch),
        "determinism": _switches(torch),
    }
    return cast(dict[str, object], json.loads(canonical(found)))


def _torch() -> ModuleType | None:
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library of it is missing
        return None
    return cast(ModuleType, torch)


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
    found: dict[str, object] = dict.fromkeys(_OF_TORCH)
    found["threads"] = _threads("OMP_NUM_THREADS")
    found["blas_threads"] = _threads("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
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
    """What the first set variable says, as the libraries read it; all processors otherwise."""
    for variable in variables:
        first = os.environ.get(variable, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return os.cpu_count() or 1


def _hash_seed() -> str:
    """The seed in force: a variable set after the start of Python changes nothing."""
    if not sys.flags.hash_randomization:
        return "0"
    seed = os.environ.get("PYTHONHASHSEED", "random")
    return "random" if seed in ("", "0") else seed


def _packages() -> dict[str, str]:
    """Version of every installed distribution by normalised name; the one Python imports first."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if not name or not version:  # a damaged installation: its files name nobody
            continue
        key = re.sub(r"[-_.]+", "-", name).lower()  # PEP 503
        found.setdefault(key, version + (" (editable)" if _editable(distribution) else ""))
    return dict(sorted(found.items()))


def _editable(distribution: importlib.metadata.Distribution) -> bool:
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        return bool(origin.get("dir_info", {}).get("editable"))
    except (ValueError, AttributeError):
        return False


# -------------------------------------------------------------------------------- machine


def _cpu_info(*names: str) -> str | None:
    """The first processor's line of ``/proc/cpuinfo`` that bears one of ``names``."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for name in names:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None


def _cpu_model() -> str | None:
    parts = [_cpu_info("CPU implementer"), _cpu_info("CPU part"), _cpu_info("CPU variant")]
    arm = " ".join(part for part in parts if part)
    return _cpu_info("model name") or arm or platform.processor() or None


def _cpu_flags() -> str | None:
    """Count and digest of the instruction sets, sorted."""
    line = _cpu_info("flags", "Features")
    if line is None:
        return None
    flags = sorted(set(line.split()))
    return f"{len(flags)} flags, digest {sha256_hex(' '.join(flags).encode())[:16]}"


def _card(torch: ModuleType | None) -> dict[str, object]:
    """Card, count, driver and compute capability: from NVML, else from torch, else from nvidia-smi.

    NVML first, because asking torch for a name opens a CUDA context in this process; nvidia-smi last,
    because it is a process of its own, and there where neither of the others is installed.
    """
    found, why = _from_nvml()
    if not found and torch is not None and torch.cuda.is_available():
        count = torch.cuda.device_count()
        models = [
            (torch.cuda.get_device_name(n), ".".join(map(str, torch.cuda.get_device_capability(n))))
            for n in range(count)
        ]
        found = _cards(models, None, "torch")
    found = found or _from_smi()
    if found:
        return found
    return {
        "card": "cpu",
        "cards": 0,
        "driver": None,
        "compute_capability": None,
        "gpu": f"none: {why}",
    }


def _cards(models: list[tuple[str, str]], driver: str | None, source: str) -> dict[str, object]:
    names = sorted({name for name, _ in models})
    return {
        "card": " + ".join(names),
        "cards": len(models),
        "driver": driver,
        "compute_capability": " + ".join(sorted({each for _, each in models if each})) or None,
        "gpu": f"{len(models)} x {' + '.join(names)}, told by {source}",
    }


def _from_nvml() -> tuple[dict[str, object], str]:
    """The visible cards, or nothing and why. ``pynvml`` is the module of nvidia-ml-py."""
    if importlib.util.find_spec("pynvml") is None:
        return {}, "nvidia-ml-py is not installed and torch sees no card"
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return {}, "no NVIDIA driver answered"
    try:
        handles = _visible(nvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
        models = []
        for handle in handles:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            models.append((_decoded(nvml.nvmlDeviceGetName(handle)), f"{major}.{minor}"))
        driver = _decoded(nvml.nvmlSystemGetDriverVersion())
    except nvml.NVMLError as error:
        return {}, f"the NVIDIA driver answered with an error ({error})"
    finally:
        nvml.nvmlShutdown()
    if not models:
        return {}, "the NVIDIA driver answered, and no card is visible to this process"
    return _cards(models, driver, "NVML"), ""


def _visible(nvml: ModuleType, visible: str | None) -> list[object]:
    """Handles of the cards CUDA would see: ``CUDA_VISIBLE_DEVICES`` ends at the first unknown name.

    Source: CUDA C++ programming guide, 'CUDA environment variables'.
    """
    everyone = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    if visible is None:
        return everyone
    chosen: list[object] = []
    for token in (part.strip() for part in visible.split(",")):
        if token.isdigit() and int(token) < len(everyone):
            chosen.append(everyone[int(token)])
        elif token.startswith("MIG-"):
            chosen.append(nvml.nvmlDeviceGetHandleByUUID(token))
        elif token.startswith("GPU-"):
            named = [h for h in everyone if _decoded(nvml.nvmlDeviceGetUUID(h)).startswith(token)]
            if len(named) != 1:
                break
            chosen.extend(named)
        else:
            break
    return chosen


def _from_smi() -> dict[str, object]:
    """The visible cards by nvidia-smi, or nothing. Old drivers know no ``compute_cap``."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    for fields in ("name,driver_version,uuid,compute_cap", "name,driver_version,uuid"):
        try:
            done = subprocess.run(
                [tool, f"--query-gpu={fields}", "--format=csv,noheader"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_SMI_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return {}
        lines = done.stdout.decode(errors="replace").splitlines()
        # A line that tells less than was asked for still tells the name.
        rows = [[*map(str.strip, line.split(",")), "", "", ""] for line in lines if line.strip()]
        if done.returncode == 0 and rows:
            seen = _visible_rows(rows, os.environ.get("CUDA_VISIBLE_DEVICES"))
            models = [(row[0], row[3]) for row in seen]
            return _cards(models, rows[0][1] or None, "nvidia-smi") if models else {}
    return {}


def _visible_rows(rows: list[list[str]], visible: str | None) -> list[list[str]]:
    """As :func:`_visible`, over rows whose third field is the card's UUID."""
    if visible is None:
        return rows
    chosen: list[list[str]] = []
    for token in (part.strip() for part in visible.split(",")):
        if token.isdigit() and int(token) < len(rows):
            chosen.append(rows[int(token)])
            continue
        named = [row for row in rows if token.startswith("GPU-") and row[2].startswith(token)]
        if len(named) != 1:
            break
        chosen += named
    return chosen


def _decoded(value: object) -> str:
    """Old releases of nvidia-ml-py answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
