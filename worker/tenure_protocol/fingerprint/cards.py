"""The cards a process sees: by NVML, else by torch, else by nvidia-smi.

The NVML part is tested with a stand-in library; it is not verified on hardware.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
from types import ModuleType

_SMI_S = 5.0
SOURCE_UNTRIED = "NVML (not verified on hardware)"


def card_fields(torch: ModuleType | None) -> dict[str, object]:
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
    return _cards(models, driver, SOURCE_UNTRIED), ""


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
